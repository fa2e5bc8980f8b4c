"""Checks of mx.autograd and of NDArrays that are recorded."""

import numpy as np
from recorded_checks import raised


def variable(mx, value, req="write"):
    x = mx.nd.array(value)
    x.attach_grad(req)
    return x


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def gradient(mx, function, *values, head=None):
    """Return the output of a function of NDArrays and its gradients."""
    inputs = [variable(mx, v) for v in values]
    with mx.autograd.record():
        out = function(*inputs)
    out.backward(None if head is None else mx.nd.array(head))
    return {"out": out, **{f"grad{i}": x.grad for i, x in enumerate(inputs)}}


def check_arithmetic(mx):
    a, b = numbers(3, 4), numbers(3, 4, seed=1) + 2
    functions = {
        "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
        "pow": lambda x, y: y**x, "square": lambda x, y: x**2 + y, "neg": lambda x, y: -x * y, "rsub": lambda x, y: 1 - x * y,
        "rdiv": lambda x, y: 2 / y + x, "max": lambda x, y: mx.nd.maximum(x, y - 2), "scalar": lambda x, y: x * 3 + y / 2 - 1,
        "abs": lambda x, y: abs(x) * y, "rpow": lambda x, y: 2**x * y, "mod": lambda x, y: x % 0.3 + y,
    }  # fmt: skip
    found = {name: gradient(mx, f, a, b) for name, f in functions.items()}
    return {f"{name}.{key}": value for name, r in found.items() for key, value in r.items()}


def check_broadcasting_and_reductions(mx):
    a, b = numbers(3, 4), numbers(1, 4, seed=1)
    functions = {
        "add": lambda x, y: mx.nd.broadcast_add(x, y), "operator": lambda x, y: x * y, "sum": lambda x, y: (x * y).sum(),
        "sum1": lambda x, y: (x * y).sum(axis=1), "mean": lambda x, y: (x + y).mean(axis=0),
        "norm": lambda x, y: (x * y).norm(),
        "max": lambda x, y: (x * y).max(axis=1), "dot": lambda x, y: mx.nd.dot(x, y, transpose_b=True),
        "softmax": lambda x, y: mx.nd.softmax(x * y), "log_softmax": lambda x, y: mx.nd.log_softmax(x + y),
    }  # fmt: skip
    found = {name: gradient(mx, f, a, b) for name, f in functions.items()}
    return {f"{name}.{key}": value for name, r in found.items() for key, value in r.items()}


def check_indexing_and_shapes(mx):
    a = numbers(4, 6)
    i = mx.nd.array([0, 2, 2])
    functions = {
        "row": lambda x: x[1] * 2,
        "rows": lambda x: x[1:3] * 2,
        "item": lambda x: x[1, 2] * 2,
        "step": lambda x: x[::2, 1:5:2],
        "reverse": lambda x: x[:, ::-1] * mx.nd.array(a),
        "newaxis": lambda x: x[:, None] * 2,
        "ellipsis": lambda x: x[..., 1],
        "array": lambda x: x[i] * 3,
        "list": lambda x: x[[0, 3]],
        "two": lambda x: x[[0, 1], [2, 3]] ** 2,
        "reshape": lambda x: x.reshape((6, 4)) * 2,
        "code": lambda x: x.reshape((-1, 3)) ** 2,
        "T": lambda x: x.T * 2,
        "transpose": lambda x: x.transpose((1, 0)) ** 2,
        "expand": lambda x: x.expand_dims(0) * 2,
        "slice": lambda x: x.slice((0, 1), (2, 3)),
        "slice_axis": lambda x: x.slice_axis(1, 2, 4),
        "take": lambda x: x.take(i),
        "flatten": lambda x: x.flatten() * 2,
        "split": lambda x: x.split(2, axis=1)[1] * 2,
        "copy": lambda x: x.copy() * 3,
        "astype": lambda x: x.astype("float16") * 2,
        "concat": lambda x: mx.nd.concat(x, x * 2, dim=0),
        "stack": lambda x: mx.nd.stack(x, x * 2),
        "tile": lambda x: x.tile((2, 1)),
        "pick": lambda x: x.pick(mx.nd.array([0, 1, 2, 3])),
        "one": lambda x: mx.nd.array([2, 0]) * x[0, 0:2],
        "iter": lambda x: sum(r for r in x),
        "squeeze": lambda x: x.reshape((4, 1, 6)).squeeze() * 2,
        "swapaxes": lambda x: x.swapaxes(0, 1),
        "flip": lambda x: x.flip(axis=0) * 2,
        "clip": lambda x: x.clip(-0.5, 0.5),
        "repeat": lambda x: x.repeat(2, axis=0),
        "reshape_like": lambda x: x.reshape_like(mx.nd.ones((2, 12))) * 2,
        "where": lambda x: mx.nd.where(x > 0, x * 2, x * 3),
        "as_in_context": lambda x: x.as_in_context(mx.cpu()) * 2,
    }
    found = {name: gradient(mx, f, a) for name, f in functions.items()}
    return {f"{name}.{key}": value for name, r in found.items() for key, value in r.items()}


def check_layers(mx):
    x, w, b, im = numbers(4, 6), numbers(3, 6, seed=1), numbers(3, seed=2), numbers(2, 3, 6, 6, seed=3)
    k = numbers(4, 3, 3, 3, seed=4)
    one, zero = np.ones(3, "float32"), np.zeros(3, "float32")
    nd = mx.nd
    results = {
        "fc": gradient(mx, lambda x, w, b: nd.FullyConnected(x, w, b, num_hidden=3), x, w, b),
        "relu": gradient(mx, lambda x: nd.Activation(x, act_type="relu"), x),
        "tanh": gradient(mx, lambda x: nd.tanh(x) * nd.sigmoid(x), x),
        "conv": gradient(mx, lambda x, k: nd.Convolution(x, k, kernel=(3, 3), num_filter=4, no_bias=True, pad=(1, 1)), im, k),
        "pool": gradient(mx, lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg") ** 2, im),
        "maxpool": gradient(mx, lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max") ** 2, im),
        "bn": gradient(
            mx, lambda x, g, b: nd.BatchNorm(x, g, b, nd.array(zero), nd.array(one), fix_gamma=False) ** 2, im, one, zero
        ),
        "ln": gradient(mx, lambda x, g, b: nd.LayerNorm(x, g, b) ** 2, numbers(4, 3), one, zero),
        "embedding": gradient(mx, lambda w: nd.Embedding(nd.array([0, 2, 2]), w, input_dim=3, output_dim=6), w),
        "softmax_output": gradient(mx, lambda x: nd.SoftmaxOutput(x, nd.array([0, 1, 2, 3])), x),
        "regression": gradient(mx, lambda x: nd.LinearRegressionOutput(x, nd.ones((4, 6))), x),
        "makeloss": gradient(mx, lambda x: nd.MakeLoss(x * x), x),
        "block": gradient(mx, lambda x: nd.BlockGrad(x) * x, x),
        "leaky": gradient(mx, lambda x: nd.LeakyReLU(x, act_type="elu", slope=0.3), x),
        "dropout0": gradient(mx, lambda x: nd.Dropout(x, p=0.0) * 2, x),
        "ce": gradient(mx, lambda x: nd.softmax_cross_entropy(x, nd.array([0, 1, 2, 3])), x),
    }
    return {f"{name}.{key}": value for name, r in results.items() for key, value in r.items()}


def check_modes(mx):
    ag, found = mx.autograd, {}
    x = variable(mx, np.ones((4, 5)))
    found["outside"] = [ag.is_recording(), ag.is_training()]
    with ag.record():
        found["record"] = [ag.is_recording(), ag.is_training()]
        with ag.pause():
            found["pause"] = [ag.is_recording(), ag.is_training()]
            with ag.train_mode():
                found["pause train"] = [ag.is_recording(), ag.is_training()]
        with ag.predict_mode():
            found["predict"] = [ag.is_recording(), ag.is_training()]
            y = mx.nd.Dropout(x, p=0.5)
        found["after"] = [ag.is_recording(), ag.is_training()]
    y.backward()
    found["dropout in predict mode"] = x.grad
    with ag.record(train_mode=False):
        found["record predict"] = [ag.is_recording(), ag.is_training()]
    found["set"] = [ag.set_recording(True), ag.is_recording(), ag.set_recording(False), ag.is_recording()]
    found["set_training"] = [ag.set_training(True), ag.is_training(), ag.set_training(False), ag.is_training()]
    with ag.train_mode():
        found["train"] = [ag.is_recording(), ag.is_training()]
    return found


def check_requests(mx):
    x = variable(mx, [1, 2], "add")
    for _ in range(3):
        with mx.autograd.record():
            y = x * x
        y.backward()
    added = x.grad.copy()
    x.grad[:] = 0
    with mx.autograd.record():
        z = x * 3
    z.backward(mx.nd.array([1, 10]))
    z = variable(mx, [1, 2])
    with mx.autograd.record():
        first, second = z * 2, z * z
    mx.autograd.backward([first, second], [mx.nd.array([1, 1]), mx.nd.array([10, 10])])
    both = z.grad.copy()
    a, b, ga, gb = mx.nd.ones(2), mx.nd.ones(2), mx.nd.zeros(2), mx.nd.ones(2)
    mx.autograd.mark_variables([a, b], [ga, gb], ["write", "add"])
    with mx.autograd.record():
        y = a * b * 4
    y.backward()
    w = variable(mx, [3.0])
    w.attach_grad("null")
    return {
        "add": added, "after zero": x.grad, "two heads": both, "marked": ga, "marked add": gb,
        "null": str(w.grad), "detached": str(z.detach().grad), "variable": raised(w.backward),
    }  # fmt: skip


def check_retain(mx):
    x = variable(mx, [1, 2])
    with mx.autograd.record():
        y = x * x
        z = y * y
    z.backward(retain_graph=True)
    first = x.grad.copy()
    z.backward(retain_graph=True)
    again = x.grad.copy()
    y.backward()
    return {"first": first, "again": again, "inner": x.grad, "then": raised(y.backward), "z": z, "y": y}


def check_grad(mx):
    x, w = variable(mx, [1, 2]), variable(mx, [3, 4])
    with mx.autograd.record():
        y = x * x * w
    gx, gw = mx.autograd.grad(y, [x, w], retain_graph=True)
    with_head = mx.autograd.grad([y], x, head_grads=[mx.nd.array([1, 10])], retain_graph=True)
    unchanged = x.grad
    return {
        "x": gx, "w": gw, "head": with_head, "unchanged": unchanged,
        "not a variable": raised(mx.autograd.grad, y, [mx.nd.ones(2)], retain_graph=True),
        "unrelated": raised(mx.autograd.grad, y, [variable(mx, [1, 2])], retain_graph=True),
    }  # fmt: skip


def check_higher_order(mx):
    found = {}
    functions = {
        "sin": mx.nd.sin, "cos": mx.nd.cos, "exp": mx.nd.exp, "log": mx.nd.log, "sigmoid": mx.nd.sigmoid, "tanh": mx.nd.tanh,
    }  # fmt: skip
    for name, f in functions.items():
        x = variable(mx, [0.5, 1.0, 2.0])
        with mx.autograd.record():
            y = f(x)
            (slope,) = mx.autograd.grad(y, x, create_graph=True, retain_graph=True)
        slope.backward()
        found[f"{name}.first"], found[f"{name}.second"] = slope, x.grad
    return found


def check_writes(mx):
    ag, found = mx.autograd, {}
    x, y = variable(mx, [1, 2]), mx.nd.zeros(2)
    with ag.record():
        y[:] = x * 2
        z = y * y
    z.backward()
    found["into a constant"] = x.grad.copy()
    with ag.record():
        found["variable"] = raised(x.__iadd__, 1)
        r = x * 2
        found["recorded"] = raised(r.__setitem__, 0, 5)
        found["recorded +="] = raised(r.__iadd__, 5)
    with ag.record():
        y = x * 2
    y[:] = 7
    y.backward()
    found["after"], found["after.grad"] = y, x.grad.copy()
    with ag.record():
        y = x * x
    x[:] = 100
    y.backward()
    found["variable written before backward"] = x.grad
    out = mx.nd.zeros(2)
    x = variable(mx, [1, 2])
    with ag.record():
        mx.nd.square(x, out=out)
        s = out.sum()
    s.backward()
    found["out"], found["out.grad"] = out, x.grad
    x = variable(mx, [1, 2])
    with ag.record():
        y = x * 2
        y.attach_grad()
        z = y * y
    z.backward()
    found["attach in the middle"], found["outer"] = y.grad, x.grad
    x = variable(mx, [1, 2])
    with ag.record():
        y = x * 2
        z = y.detach() * x
    z.backward()
    found["detach"] = x.grad
    return found


def check_branches(mx):
    found = {}
    for start in (1.0, 3.0):
        a = variable(mx, [start, -1.0])
        with mx.autograd.record():
            b = a * 2
            while b.norm().asscalar() < 100:
                b = b * 2
            c = b if b.sum().asscalar() > 0 else 100 * b
            if float(c[0].asscalar()) > 50:
                c = c * c
        c.backward()
        found[f"{start}"], found[f"{start}.grad"] = c, a.grad
    return found


def check_function(mx):
    class Sigmoid(mx.autograd.Function):
        def forward(self, x):
            y = 1 / (1 + mx.nd.exp(-x))
            self.save_for_backward(y)
            return y

        def backward(self, dy):
            (y,) = self.saved_tensors
            return dy * y * (1 - y)

    class Two(mx.autograd.Function):
        def forward(self, a, b):
            return a * b, a + b

        def backward(self, da, db):
            return da * 2 + db * 3, da * 5 + db * 7

    x = variable(mx, [0.5, -1.0])
    with mx.autograd.record():
        y = Sigmoid()(x * 2) * 3
    y.backward()
    found = {"y": y, "x.grad": x.grad}
    a, b = variable(mx, [1, 2]), variable(mx, [3, 4])
    with mx.autograd.record():
        p, q = Two()(a, b)
        r = p * 2 + q * a
    r.backward()
    found.update(p=p, q=q, a=a.grad.copy(), b=b.grad.copy())
    with mx.autograd.record():
        p, q = Two()(a, b)
    p.backward()
    found.update(only=a.grad, only_b=b.grad, outside=Sigmoid()(mx.nd.array([0.0])))
    return found


def check_moving_statistics(mx):
    x, state = variable(mx, numbers(4, 2)), [mx.nd.ones(2), mx.nd.zeros(2), mx.nd.zeros(2), mx.nd.ones(2)]
    found = {}
    with mx.autograd.record():
        y = mx.nd.BatchNorm(x, *state)
    found["before"] = state[2].copy()
    y.backward()
    found["mean"], found["var"] = state[2].copy(), state[3].copy()
    with mx.autograd.record():
        y, _ = mx.nd.BatchNorm(x, *state), mx.nd.BatchNorm(x, *state)
    y.backward()
    found["mean2"] = state[2].copy()
    with mx.autograd.record(train_mode=False):
        y = mx.nd.BatchNorm(x, *state)
    y.backward()
    found["mean3"], found["predict"] = state[2].copy(), y
    with mx.autograd.record():
        y = mx.nd.BatchNorm(x, *state, use_global_stats=True)
    y.backward()
    found["mean4"], found["global.grad"] = state[2].copy(), x.grad
    return found


def check_errors(mx):
    x = variable(mx, [1, 2])
    y = x * 2
    with mx.autograd.record():
        z = mx.nd.ones(2) * 2
    return {
        "not recorded": raised(y.backward), "no variable": raised(z.backward),
        "backward": raised(mx.autograd.backward, [y]), "constant": raised(mx.nd.ones(1).backward),
        "variable itself": str(x.backward()), "its grad": x.grad,
        "shapes": raised(lambda: mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3))).asnumpy()),
    }  # fmt: skip


def check_symbols(mx):
    x, w = variable(mx, numbers(2, 3)), variable(mx, numbers(4, 3, seed=1))
    with mx.autograd.record():
        y = mx.nd.relu(mx.nd.FullyConnected(x, w, num_hidden=4, no_bias=True))
    graph = mx.autograd.get_symbol(y)
    names = graph.list_arguments()
    executor = graph.bind(mx.cpu(), dict(zip(names, [x, w], strict=True)))
    return {"arguments": len(names), "out": executor.forward()[0], "y": y}


def check_custom_operator(mx):
    class Double(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0] * 3)

    @mx.operator.register("checks_double")
    class DoubleProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Double()

    return gradient(mx, lambda x: mx.nd.Custom(x * 2, op_type="checks_double") * 5, numbers(3))
