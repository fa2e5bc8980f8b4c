"""Checks of the losses of gluon.loss."""

import numpy as np
from recorded_checks import raised


def values(shape, start=0.0):
    """Return an array of distinct values between -1 and 1."""
    return np.cos(1.7 * np.arange(int(np.prod(shape))) + start).reshape(shape).astype("float32")


def run(mx, name, loss, *arrays, hybrid=True, **named):
    """Return repr, value and gradient of a loss, and its value when it is hybridized."""
    inputs = [mx.nd.array(a) for a in arrays]
    named = {k: mx.nd.array(v) for k, v in named.items()}
    inputs[0].attach_grad()
    with mx.autograd.record():
        out = loss(*inputs, *named.values())
    out.backward()
    result = {f"{name} repr": repr(loss), f"{name} value": out, f"{name} gradient": inputs[0].grad}
    if hybrid:
        loss.hybridize()
        result[f"{name} hybridized"] = loss(*inputs, *named.values())
    return result


def regression(mx, kind, label):
    """Return the results of a loss of predictions (4, 3) with several weights."""
    pred = values((4, 3))
    by_row, by_value = np.array([[1], [2], [0], [0.5]]), values((4, 3), 2)
    result = run(mx, "plain", kind(), pred, label)
    result |= run(mx, "weight", kind(weight=0.25), pred, label, hybrid=False)
    result |= run(mx, "rows", kind(), pred, label, sample_weight=by_row)
    result |= run(mx, "values", kind(weight=2), pred, label, hybrid=False, sample_weight=by_value)
    result |= run(mx, "axis 1", kind(batch_axis=1), pred, label, hybrid=False)
    return result | {"prefix": kind(prefix="my_").prefix, "positional": repr(kind(0.5))}


def check_l2(mx):
    return regression(mx, mx.gluon.loss.L2Loss, values((4, 3), 1)) | run(
        mx, "other shape", mx.gluon.loss.L2Loss(), values((4, 1)), values((4,), 1)
    )


def check_l1(mx):
    return regression(mx, mx.gluon.loss.L1Loss, values((4, 3), 1)) | run(
        mx, "images", mx.gluon.loss.L1Loss(), values((2, 2, 3)), values((2, 2, 3), 1)
    )


def check_huber(mx):
    loss = mx.gluon.loss
    return regression(mx, loss.HuberLoss, values((4, 3), 1)) | run(
        mx, "rho", loss.HuberLoss(rho=0.3), values((4, 3)), values((4, 3), 1)
    )


def signs(shape):
    return np.where(values(shape, 1) > 0, 1.0, -1.0)


def check_hinge(mx):
    loss = mx.gluon.loss
    return regression(mx, loss.HingeLoss, signs((4, 3))) | run(
        mx, "margin", loss.HingeLoss(margin=0.2), values((4, 3)), signs((4, 3))
    )


def check_squared_hinge(mx):
    loss = mx.gluon.loss
    return regression(mx, loss.SquaredHingeLoss, signs((4, 3))) | run(
        mx, "margin", loss.SquaredHingeLoss(margin=0.2), values((4, 3)), signs((4, 3))
    )


def check_logistic(mx):
    loss = mx.gluon.loss
    return regression(mx, loss.LogisticLoss, signs((4, 3))) | {
        "format": raised(loss.LogisticLoss, label_format="other"),
        **run(mx, "binary", loss.LogisticLoss(label_format="binary"), values((4, 3)), signs((4, 3)) > 0),
    }


def check_sigmoid(mx):
    loss, label = mx.gluon.loss, (values((4, 3), 1) > 0).astype("float32")
    kind = loss.SigmoidBinaryCrossEntropyLoss
    pred, positive = values((4, 3)), np.array([[1, 2, 3]])
    probability, ones = 1 / (1 + np.exp(-pred)), np.ones((4, 1))
    result = run(mx, "plain", kind(), pred, label)
    result |= run(mx, "large", kind(), 100 * pred, label, hybrid=False)
    result |= run(mx, "weight", kind(weight=0.25), pred, label, sample_weight=values((4, 1)))
    result |= run(mx, "axis 1", kind(batch_axis=1), pred, label, hybrid=False)
    result |= run(mx, "probabilities", kind(from_sigmoid=True), probability, label)
    result |= run(mx, "positive", kind(), pred, label, sample_weight=ones, pos_weight=positive)
    result |= run(mx, "positive probabilities", kind(True), probability, label, sample_weight=ones, pos_weight=positive)
    return result | {"same": loss.SigmoidBCELoss is kind}


def check_softmax(mx):
    loss, kind = mx.gluon.loss, mx.gluon.loss.SoftmaxCrossEntropyLoss
    pred, label = values((4, 3)), np.array([0, 2, 1, 1])
    dense = np.abs(values((4, 3), 1))
    result = run(mx, "plain", kind(), pred, label)
    result |= run(mx, "large", kind(), 200 * pred, label, hybrid=False)
    result |= run(mx, "weight", kind(weight=0.5), pred, label, sample_weight=np.array([[1], [0], [2], [0.5]]))
    result |= run(mx, "dense", kind(sparse_label=False), pred, dense)
    result |= run(mx, "axis", kind(axis=1), values((2, 3, 2)), np.array([[0, 1], [2, 1]]), hybrid=False)
    result |= run(mx, "dense axis", kind(axis=0, sparse_label=False, batch_axis=1), pred, dense)
    result |= run(mx, "logarithms", kind(from_logits=True), np.log(dense), label)
    result |= run(mx, "column", kind(), pred, label[:, None], hybrid=False)
    return result | {"same": loss.SoftmaxCELoss is kind}


def check_kl(mx):
    loss = mx.gluon.loss.KLDivLoss
    target = np.abs(values((4, 3), 1))
    target /= target.sum(1, keepdims=True)
    result = run(mx, "plain", loss(), np.log(np.abs(values((4, 3)))), target)
    result |= run(mx, "outputs", loss(from_logits=False), values((4, 3)), target)
    result |= run(mx, "axis", loss(from_logits=False, axis=0, weight=2.0), values((4, 3)), target)
    result |= run(mx, "rows", loss(), values((4, 3)), target, sample_weight=values((4, 1), 3))
    return result | run(mx, "zeros", loss(), values((4, 3)), np.eye(4, 3))


def check_ctc(mx):
    loss = mx.gluon.loss.CTCLoss
    pred, label = values((2, 6, 4)), np.array([[1, 0, 2], [2, 2, -1]])
    result = run(mx, "plain", loss(), pred, label)
    result |= run(mx, "time first", loss(layout="TNC"), pred.transpose(1, 0, 2), label, hybrid=False)
    result |= run(mx, "labels", loss(label_layout="TN", weight=0.5), pred, label.T, hybrid=False)
    lengths = {"pred_lengths": [6, 5], "label_lengths": [2, 2]}
    result |= run(mx, "lengths", loss(), pred, np.array([[1, 0, 2], [2, 2, 1]]), **lengths)
    return result | {"layout": raised(loss, layout="NCT"), "label": raised(loss, label_layout="NTC")}


def check_triplet(mx):
    loss = mx.gluon.loss.TripletLoss
    arrays = values((4, 3)), values((4, 3), 0.2), values((4, 3), 1.5)
    return run(mx, "plain", loss(), *arrays) | run(mx, "margin", loss(margin=3, weight=0.5), *arrays)


def check_poisson(mx):
    loss = mx.gluon.loss.PoissonNLLLoss
    target = np.array([[0, 1, 2], [3, 5, 1]], "float32")
    result = run(mx, "plain", loss(), values((2, 3)), target)
    result |= run(mx, "rates", loss(from_logits=False), np.abs(values((2, 3))), target)
    result["full"] = loss(compute_full=True, weight=0.5)(mx.nd.array(values((2, 3))), mx.nd.array(target + 0.5))
    return result | run(mx, "rows", loss(), values((2, 3)), target, sample_weight=np.array([[1], [3]]))


def check_cosine(mx):
    loss = mx.gluon.loss.CosineEmbeddingLoss
    first, second, label = values((4, 3)), values((4, 3), 1), np.array([1, -1, -1, 1])
    result = run(mx, "plain", loss(), first, second, label)
    result |= run(mx, "margin", loss(margin=0.3, weight=2), first, second, label)
    result |= run(mx, "rows", loss(), first, second, label, hybrid=False, sample_weight=values((4, 1)))
    return result | run(mx, "zeros", loss(), np.ones((2, 2)), np.zeros((2, 2)), np.array([1, -1]), hybrid=False)


def check_sdml(mx):
    loss = mx.gluon.loss.SDMLLoss
    first, second = values((4, 3)), values((4, 3), 0.2)
    result = run(mx, "plain", loss(), first, second, hybrid=False)
    return result | run(mx, "smoothing", loss(smoothing_parameter=0.1), first, second, hybrid=False)


def check_own_loss(mx):
    class Cubic(mx.gluon.loss.Loss):
        def hybrid_forward(self, F, pred, label):
            return F.mean(F.abs(pred - label) ** 3, axis=self._batch_axis, exclude=True) * self._weight

    pred, label = values((4, 3)), values((4, 3), 1)
    result = run(mx, "plain", Cubic(0.5, 0), pred, label) | {"base": raised(mx.gluon.loss.Loss(1, 0), mx.nd.ones(1))}
    return result | {"weight": raised(mx.gluon.loss.L1Loss(weight="1"), mx.nd.ones(2), mx.nd.ones(2))}


def check_symbols(mx):
    loss = mx.gluon.loss
    pred, label = mx.sym.var("pred"), mx.sym.var("label")
    symbol = loss.SoftmaxCrossEntropyLoss(prefix="ce_")(pred, label)
    value = symbol.eval(pred=mx.nd.array(values((2, 3))), label=mx.nd.array([0, 2]))[0]
    return {"arguments": symbol.list_arguments(), "value": value}


def check_numpy_arrays(mx):
    """Losses of `mx.np.ndarray`s."""
    loss, result = mx.gluon.loss, {}
    with mx.util.np_shape(True), mx.util.np_array(True):
        pred, label = mx.np.array(values((4, 3))), mx.np.array(np.abs(values((4, 3), 1)))
        for kind in (loss.L2Loss, loss.L1Loss, loss.SigmoidBCELoss):
            result[kind.__name__] = kind()(pred, label)
            result[f"{kind.__name__} weighted"] = kind(weight=0.5)(pred, label, mx.np.array(values((4, 1))))
        classes = mx.np.array([0, 2, 1, 1])
        pred.attach_grad()
        with mx.autograd.record():
            value = loss.SoftmaxCrossEntropyLoss()(pred, classes)
        value.backward()
        result |= {"softmax": value, "class": type(value).__name__, "gradient": pred.grad}
        result["softmax dense"] = loss.SoftmaxCrossEntropyLoss(sparse_label=False)(pred, label)
    return result


def check_network(mx):
    net = mx.gluon.nn.Dense(3, prefix="d_")
    net.initialize(mx.init.Constant(0.1))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    history = []
    for _ in range(3):
        with mx.autograd.record():
            value = loss(net(mx.nd.array(values((4, 2)))), mx.nd.array([0, 1, 2, 0]))
        value.backward()
        trainer.step(4)
        history.append(value)
    return {f"step {i}": v for i, v in enumerate(history)} | {"weight": net.weight.data()}
