"""Operators, executors and checks of `mx.test_utils`, called in the ways of MXNet's own tests."""

import numpy as np
from recorded_checks import raised


def _bound(mx, symbol, **shapes):
    executor = symbol.simple_bind(mx.cpu(), **shapes)
    for at, array in enumerate(executor.arg_arrays):
        array[:] = np.random.RandomState(at).rand(*array.shape)
    return executor


def check_backward_of_executors(mx):
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    values = {}
    for name, symbol in {"equal": a == b, "sign": mx.sym.sign(a) + b * 0, "greater": mx.sym.broadcast_greater(a, b)}.items():
        executor = _bound(mx, symbol, a=(2, 3), b=(2, 3))
        executor.forward(is_train=True)
        executor.backward() if name != "sign" else executor.backward(mx.nd.ones((2, 3)))
        values[name] = executor.grad_dict["a"]
    executor = _bound(mx, mx.sym.repeat(a, repeats=2, axis=0), a=(2, 3))
    executor.backward(mx.nd.ones((4, 3)))
    values["without forward"] = executor.grad_dict["a"]
    executor = _bound(mx, mx.sym.take(a, b, mode="clip"), a=(4, 2), b=(3,), mode="clip", axis=0)
    values["other arguments of simple_bind"] = executor.forward()[0]
    return values


def check_attributes(mx):
    x = np.random.RandomState(0).rand(3, 3)
    matrix = mx.nd.array(x @ x.T + np.eye(3))
    upper = mx.nd.linalg.potrf(matrix, lower=False)
    return {
        "potrf": upper,
        "potri": mx.nd.linalg.potri(upper, lower=False),
        "reshape": mx.nd.reshape(mx.nd.arange(64), shape=(16, -1, -4), reverse=True).shape,
        "one_hot": mx.nd.one_hot(mx.nd.array([0, 2]), depth=3, dtype=np.int32),
        "smooth_l1": mx.nd.smooth_l1(mx.nd.array([-2, 0.5])),
        "arange": mx.nd.arange(1.3, 9, 1.3, dtype=np.int32),
        "dropout": [str(v) for v in mx.nd.Dropout(mx.nd.ones(2), p=1, mode="always").asnumpy()],
        "tile": raised(mx.nd.tile, mx.nd.ones((2, 2)), (1, 0)),
        "depth_to_space": raised(mx.nd.depth_to_space, mx.nd.ones((1, 4, 2, 2)), 0),
        "zeros": raised(mx.nd.zeros, shape=()),
        "ones": raised(mx.nd.ones, shape=(0, 1)),
        "arguments": str(mx.operator.get_operator_arguments("Activation").types),
        "text": mx.base.py_str(b"a"),
    }


def check_prelu_and_ctc(mx):
    draw = np.random.RandomState(1)
    data, gamma = mx.nd.array(draw.randn(2, 3, 2, 2)), mx.nd.array(draw.rand(2, 3))
    scores = draw.rand(4, 1, 3)
    scores[3] = np.nan
    acts = mx.nd.array(scores)
    acts.attach_grad()
    with mx.autograd.record():
        loss = mx.nd.CTCLoss(acts, mx.nd.array([[1, 2]]), use_data_lengths=True, data_lengths=mx.nd.array([3]))
    loss.backward()
    return {"prelu": mx.nd.LeakyReLU(data, gamma, act_type="prelu"), "loss": loss, "gradient": acts.grad[:3]}


def check_double_precision(mx):
    a, b = (np.random.RandomState(at).uniform(1, 9, (3, 3)) for at in (0, 1))
    gemm = mx.sym.linalg.gemm2(mx.sym.Variable("a"), mx.sym.Variable("b"), alpha=4.0)
    exact = {"rtol": 1e-7, "atol": 1e-9, "dtype": np.float64}
    mx.test_utils.check_symbolic_forward(gemm, [a, b], [4 * a @ b], **exact)
    mx.test_utils.check_numeric_gradient(gemm, [a, b], numeric_eps=1e-6, rtol=1e-5, atol=1e-6, dtype=np.float64)
    return {"passed": True}


def check_null_input_gradients(mx):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    module = mx.mod.Module(net, label_names=None)
    module.bind([("data", (2, 3))], inputs_need_grad=True, grad_req="null")
    module.init_params()
    batch = mx.io.DataBatch([mx.nd.ones((2, 3))])
    module.forward(batch, is_train=True)
    module.backward([mx.nd.ones((2, 2))])
    return {"gradients": module.get_input_grads()}
