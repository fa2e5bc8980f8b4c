"""Operators of the old classes NumpyOp, NDArrayOp and PythonOp, attributes of Custom, and inner parts of modules."""

import warnings

import numpy as np
from recorded_checks import raised


def rand(*shape, seed=0):
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def new(cls, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cls(*args)


def softmax_class(mx):
    class Softmax(mx.operator.NumpyOp):
        def __init__(self):
            super().__init__(False)

        def list_arguments(self):
            return ["data", "label"]

        def list_outputs(self):
            return ["output"]

        def infer_shape(self, in_shape):
            return [in_shape[0], (in_shape[0][0],)], [in_shape[0]]

        def forward(self, in_data, out_data):
            x, y = in_data[0], out_data[0]
            y[:] = np.exp(x - x.max(axis=1).reshape((x.shape[0], 1)))
            y /= y.sum(axis=1).reshape((x.shape[0], 1))

        def backward(self, out_grad, in_data, out_data, in_grad):
            rows = in_data[1].reshape((in_data[1].size,)).astype(int)
            dx = in_grad[0]
            dx[:] = out_data[0]
            dx[np.arange(rows.shape[0]), rows] -= 1.0

    return Softmax


def power_class(mx, base, kind):
    class Power(base):
        def list_arguments(self):
            return ["x", "w"]

        def list_outputs(self):
            return ["sum", "product"]

        def infer_shape(self, in_shape):
            return [in_shape[0], in_shape[0]], [in_shape[0], in_shape[0]]

        def forward(self, in_data, out_data):
            out_data[0][:] = in_data[0] + 2 * in_data[1]
            out_data[1][:] = in_data[0] * in_data[1]

        def backward(self, out_grad, in_data, out_data, in_grad):
            assert type(in_data[0]).__name__ == kind
            in_grad[0][:] = out_grad[0] + out_grad[1] * in_data[1]
            in_grad[1][:] = 2 * out_grad[0] + out_grad[1] * in_data[0]

    return Power


def check_names(mx):
    def op(*args, **kwargs):
        return new(softmax_class(mx))(*args, **kwargs)

    data, fc = mx.sym.Variable("data"), mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    named, called = new(softmax_class(mx)).get_symbol(data, name="softmax"), op(fc, name="softmax")
    both = new(power_class(mx, mx.operator.NumpyOp, "ndarray")).get_symbol(x=data, name="pair")
    with mx.name.NameManager():
        first = op(data)
        second = new(power_class(mx, mx.operator.NDArrayOp, "NDArray"))(data)
        names = [first.name, second.name, op(data).name]
    return {
        "arguments": named.list_arguments(),
        "called arguments": called.list_arguments(),
        "outputs": named.list_outputs(),
        "auxiliary": named.list_auxiliary_states(),
        "two outputs": both.list_outputs(),
        "two arguments": both.list_arguments(),
        "automatic names": names,
        "automatic arguments": first.list_arguments() + second.list_arguments(),
        "shapes": list(named.infer_shape(data=(4, 3), softmax_label=(4,))),
        "shapes of fc": list(called.infer_shape(data=(4, 5), softmax_label=(4,))),
        "shapes of two": list(both.infer_shape(data=(4, 3), pair_w=(4, 3))),
        "types": [[np.dtype(t).name for t in part] for part in both.infer_type(data="float32")],
        "internals": called.get_internals().list_outputs(),
    }


def check_python_op(mx):
    op, loss = new(mx.operator.PythonOp), new(mx.operator.PythonOp, False)
    a, b = np.zeros((2, 2)), np.ones((2, 2))
    op.forward(in_data=[b], out_data=[a])
    grad = np.zeros((2, 2))
    op.backward(out_grad=[b], in_data=[b], out_data=[a], in_grad=[grad])
    nd_op = new(mx.operator.NDArrayOp)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        mx.operator.PythonOp()
        mx.operator.NumpyOp()
        mx.operator.NDArrayOp()
    return {
        "arguments": op.list_arguments(),
        "outputs": op.list_outputs(),
        "infer_shape": list(op.infer_shape([(2, 3)])),
        "need_top_grad": [op.need_top_grad(), loss.need_top_grad(), new(mx.operator.NumpyOp).need_top_grad()],
        "forward": a,
        "backward": grad,
        "get_symbol": raised(op.get_symbol, mx.sym.Variable("x")),
        "call": raised(op, mx.sym.Variable("x")),
        "dependency": list(nd_op.declare_backward_dependency([0], [1, 2], [3])),
        "dependency of a loss": list(new(mx.operator.NDArrayOp, False).declare_backward_dependency([0], [1], [2])),
        "subclasses": [issubclass(c, mx.operator.PythonOp) for c in (mx.operator.NumpyOp, mx.operator.NDArrayOp)],
        "warnings": [str(w.message).split(". ")[-1] for w in seen],
    }


def check_numpy_softmax(mx):
    net = new(softmax_class(mx)).get_symbol(mx.sym.Variable("data") * 2, name="softmax")
    args = {"data": mx.nd.array(rand(4, 3)), "softmax_label": mx.nd.array([0, 2, 1, 2])}
    grads = {k: mx.nd.zeros(v.shape) for k, v in args.items()}
    exe = net.bind(mx.cpu(), args, args_grad=grads)
    out = exe.forward(is_train=True)[0].asnumpy()
    exe.backward()
    first = grads["data"].asnumpy()
    args["data"][:] = rand(4, 3, seed=1)
    again = exe.forward(is_train=True)[0].asnumpy()
    exe.backward()
    return {
        "output": out,
        "gradient": first,
        "output again": again,
        "gradient again": grads["data"],
        "label gradient shape": grads["softmax_label"].shape,
        "predict": exe.forward(is_train=False)[0],
    }


def check_two_outputs(mx):
    values = {}
    for base, kind in (("NumpyOp", "ndarray"), ("NDArrayOp", "NDArray")):
        op = new(power_class(mx, getattr(mx.operator, base), kind))
        net = op(x=mx.sym.Variable("x"), w=mx.sym.Variable("w"), name="pair")
        args = {"x": mx.nd.array(rand(2, 3)), "w": mx.nd.array(rand(2, 3, seed=1))}
        grads = {k: mx.nd.zeros((2, 3)) for k in args}
        exe = net.bind(mx.cpu(), args, args_grad=grads)
        outs = [o.asnumpy() for o in exe.forward(is_train=True)]
        exe.backward([mx.nd.array(rand(2, 3, seed=2)), mx.nd.array(rand(2, 3, seed=3))])
        part = mx.sym.sum(net[1] * net[0])
        other = part.bind(mx.cpu(), args, args_grad={"x": mx.nd.zeros((2, 3))}, grad_req={"x": "write", "w": "null"})
        total = other.forward(is_train=True)[0].asnumpy()
        other.backward(mx.nd.array([2.0]))
        values |= {
            f"{base} sum": outs[0],
            f"{base} product": outs[1],
            f"{base} x": grads["x"],
            f"{base} w": grads["w"],
            f"{base} total": total,
            f"{base} x of the total": other.grad_dict["x"],
        }
    return values


def check_training(mx):
    x = rand(60, 4)
    y = (x[:, 0] > x[:, 1]).astype("float32") + (x[:, 2] > 0)
    weights = {"fc_weight": mx.nd.array(rand(3, 4, seed=5)), "fc_bias": mx.nd.zeros(3)}
    net = new(softmax_class(mx))(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc"), name="softmax")
    mod = mx.mod.Module(net, context=mx.cpu())
    train = mx.io.NDArrayIter(x, y, 20)
    mod.fit(train, num_epoch=3, arg_params=weights, optimizer_params={"learning_rate": 0.5}, eval_metric="acc")
    model = mx.model.FeedForward(net, ctx=mx.cpu(), num_epoch=2, numpy_batch_size=20, learning_rate=0.5, arg_params=weights)
    model.fit(mx.io.NDArrayIter(x, y, 20))
    return {
        "weight": mod.get_params()[0]["fc_weight"],
        "bias": mod.get_params()[0]["fc_bias"],
        "accuracy": mod.score(train, "acc")[0][1],
        "FeedForward's weight": model.arg_params["fc_weight"],
    }


def check_custom(mx):
    @mx.operator.register("old_ops_scale")
    class ScaleProp(mx.operator.CustomOpProp):
        def __init__(self, factor="1", shift=None):
            super().__init__(need_top_grad=True)
            self.factor, self.shift = float(factor), shift

        def create_operator(self, ctx, in_shapes, in_dtypes):
            factor = self.factor

            class Scale(mx.operator.CustomOp):
                def forward(self, is_train, req, in_data, out_data, aux):
                    self.assign(out_data[0], req[0], in_data[0] * factor + (1 if is_train else 0))

                def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
                    self.assign(in_grad[0], req[0], out_grad[0] * factor)

            return Scale()

    x = mx.nd.array(rand(2, 3))
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="old_ops_scale", factor=3, name="scale")
    exe = net.bind(mx.cpu(), {"data": x}, args_grad={"data": mx.nd.zeros((2, 3))})
    trained = exe.forward(is_train=True)[0].asnumpy()
    exe.backward(mx.nd.ones((2, 3)))
    prop = mx.operator.CustomOpProp()
    return {
        "nd": mx.nd.Custom(x, op_type="old_ops_scale", factor=2),
        "default": mx.nd.Custom(x, op_type="old_ops_scale"),
        "trained": trained,
        "gradient": exe.grad_dict["data"],
        "predicted": exe.forward(is_train=False)[0],
        "names": net.list_outputs() + net.list_arguments(),
        "prop shapes": list(prop.infer_shape([[2, 3]])),
        "prop types": [[np.dtype(t).name for t in part] for part in prop.infer_type([np.float32])],
        "unknown": raised(mx.nd.Custom, x, op_type="old_ops_absent"),
        "registered": "Custom" in mx.operator.get_all_registered_operators(),
        "arguments": mx.operator.get_operator_arguments("Activation").narg,
    }


def small_net(mx):
    fc = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    return mx.sym.SoftmaxOutput(fc, name="softmax")


def small_iter(mx):
    x = rand(20, 4)
    return mx.io.NDArrayIter(x, (x[:, 0] > 0).astype("float32"), 10)


def bound(mx, net=None, **options):
    module, data = mx.mod.Module(net or small_net(mx), context=mx.cpu()), small_iter(mx)
    module.bind(data.provide_data, data.provide_label, **options)
    module.init_params(mx.init.One())
    return module, data.next()


def check_executors_of_a_module(mx):
    values = {}
    for how in ("execs", "group"):
        module, batch = bound(mx)
        monitor = mx.mon.Monitor(1, lambda array: array.norm(), sort=True)
        if how == "execs":
            for executor in module._exec_group.execs:
                monitor.install(executor)
        else:
            module._exec_group.install_monitor(monitor)
        monitor.tic()
        module.forward(batch, is_train=True)
        module.backward()
        rows = {name: text for _, name, text in monitor.toc()}
        for name in ("data", "fc_output", "fc_weight", "softmax_output", "softmax_label", "fc_backward_output1"):
            values[f"{how} {name}"] = float(rows[name])
    module, batch = bound(mx)
    seen = []
    for executor in module._exec_group.execs:
        executor.set_monitor_callback(lambda name, array: seen.append(str(name).strip("b'")))
    module.forward(batch, is_train=False)
    [out.wait_to_read() for out in module.get_outputs()]
    forward = list(seen)
    executor = module._exec_group.execs[0]
    module.forward(batch, is_train=True)
    module.backward()
    return values | {
        "callback": forward,
        "outputs": executor.outputs[0],
        "weight": executor.arg_dict["fc_weight"],
        "gradient": executor.grad_dict["fc_weight"],
        "aux": sorted(executor.aux_dict),
        "param_names": module._exec_group.param_names,
    }


def check_modules(mx):
    iterator = small_iter(mx)
    regression = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=6, name="fc"), mx.sym.Variable("label"), name="out"
    )
    unbound = mx.mod.Module(regression, label_names=["label"], context=mx.cpu())
    unbound.bind([("data", (1, 4))])
    unbound.init_params(mx.init.One())
    unbound.init_optimizer(optimizer_params={"learning_rate": 0.1})
    for _ in range(2):
        unbound.forward(mx.io.DataBatch([mx.nd.ones((1, 4))], [mx.nd.ones((1,)) * 2]), is_train=True)
        unbound.backward()
        unbound.update()
    twice = mx.mod.Module(small_net(mx), context=[mx.cpu(0), mx.cpu(0)])
    twice.fit(small_iter(mx), num_epoch=2, initializer=mx.init.One(), optimizer_params={"learning_rate": 0.5})
    model = mx.model.FeedForward(
        small_net(mx), ctx=[mx.cpu(0)] * 2, num_epoch=2, numpy_batch_size=10, initializer=mx.init.One(), learning_rate=0.5
    )
    model.fit(small_iter(mx))
    extra, _ = bound(mx)
    extra.init_params(
        mx.init.One(),
        arg_params={"fc_weight": mx.nd.ones((2, 4)) * 3, "other": mx.nd.ones(3)},
        allow_missing=True,
        force_init=True,
    )
    seen = []

    class Watch(mx.metric.EvalMetric):
        def __init__(self):
            super().__init__("watch")

        def update(self, labels, preds):
            seen.append([type(labels[0]).__name__, type(preds[0]).__name__])
            self.sum_metric, self.num_inst = self.sum_metric + 1, self.num_inst + 1

    twice.score(small_iter(mx), Watch())
    with_grads, batch = bound(mx, inputs_need_grad=True)
    with_grads.init_params(
        mx.init.Normal(), force_init=True, arg_params={"fc_weight": mx.nd.array(rand(2, 4)), "fc_bias": mx.nd.zeros(2)}
    )
    with_grads.forward(batch, is_train=True)
    with_grads.backward()
    kept = [[g.copyto(g.context) for g in each] for each in with_grads._exec_group.grad_arrays]
    with_grads.forward(batch, is_train=True)
    with_grads.backward()
    for each, before in zip(with_grads._exec_group.grad_arrays, kept, strict=True):
        for g, b in zip(each, before, strict=True):
            g += b
    with_grads.init_optimizer(optimizer_params={"learning_rate": 0.5})
    with_grads.update()
    return {
        "types": [type(iterator.data[0][1]).__name__, type(iterator.label[0][1]).__name__],
        "data": iterator.data[0][1],
        "label": iterator.label[0][1],
        "names": [iterator.data[0][0], iterator.label[0][0]],
        "bound without labels": unbound.get_params()[0]["fc_bias"],
        "its output": unbound.get_outputs()[0],
        "a context twice": twice.get_params()[0]["fc_weight"],
        "FeedForward's": model.arg_params["fc_weight"],
        "another parameter": extra.get_params()[0]["fc_weight"],
        "names of parameters": sorted(extra.get_params()[0]),
        "metric": seen[0],
        "input gradient": with_grads.get_input_grads()[0],
        "two gradients": with_grads.get_params()[0]["fc_weight"],
    }


def check_indices_on_another_device(mx):
    a, index = mx.nd.array(rand(4, 2), mx.cpu(1)), mx.nd.array([2, 0], mx.cpu(2))
    chosen = a[index]
    a[index] = mx.nd.array(rand(2, 2, seed=1), mx.cpu(2))
    return {"read": chosen, "written": a, "out of range": raised(lambda: a[9]), "too many": raised(lambda: a[0, 0, 0])}
