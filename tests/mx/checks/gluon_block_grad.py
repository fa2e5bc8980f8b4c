"""Checks of gradients through gluon's blocks, run operator by operator and hybridized."""

import numpy as np
from gluon_block import X, classes, filled, ready
from recorded_checks import raised

Y = np.random.RandomState(5).uniform(-1, 1, (2, 2)).astype("float32")


def gradients(net):
    return {name: param.grad() for name, param in net.collect_params().items() if param.grad_req != "null"}


def check_gradients(mx):
    found, x = {}, mx.nd.array(X)
    for mode in ("plain", "hybrid"):
        net = ready(mx, prefix="net_")
        net.hybridize(mode == "hybrid")
        with mx.autograd.record():
            out = net(x)
            loss = (out * mx.nd.array(Y)).sum()
        loss.backward()
        found |= {f"{mode} {k}": v for k, v in gradients(net).items()} | {f"{mode} out": out, f"{mode} loss": loss}
        with mx.autograd.record():
            out = net(x)
        out.backward(mx.nd.array(Y))
        found |= {f"{mode} again {k}": v for k, v in gradients(net).items()}
        x.attach_grad()
        with mx.autograd.record():
            out = net(x * 2)
        out.backward()
        found[f"{mode} input"] = x.grad
        net.collect_params().zero_grad()
        found[f"{mode} zero"] = net.one.weight.grad()
        found[f"{mode} list_grad"] = [g.shape for g in net.one.weight.list_grad()]
    return found


def check_grad_req(mx):
    found, x = {}, mx.nd.array(X)
    for mode in ("plain", "hybrid"):
        net = ready(mx, prefix="net_")
        net.hybridize(mode == "hybrid")
        net.one.weight.grad_req = "add"
        net.two.weight.grad_req = "null"
        for _ in range(2):
            with mx.autograd.record():
                out = net(x)
            out.backward()
        found |= {f"{mode} {k}": v for k, v in gradients(net).items()}
        found[f"{mode} null"] = raised(net.two.weight.grad)
        net.two.weight.grad_req = "write"
        with mx.autograd.record():
            out = net(x)
        out.backward()
        found[f"{mode} write again"] = net.two.weight.grad()
        net.collect_params().setattr("grad_req", "null")
        with mx.autograd.record():
            out = net(x)
        found[f"{mode} none"] = raised(out.backward)
    return found


def check_moving_statistics(mx):
    found, x = {}, mx.nd.array(X)
    for mode in ("plain", "hybrid"):
        net = ready(mx, "Norm", prefix="n_")
        net.hybridize(mode == "hybrid")

        def state(net=net):
            return [net.running_mean.data().asnumpy(), net.running_var.data().asnumpy()]

        found[f"{mode} predict"] = net(x)
        with mx.autograd.train_mode():
            found[f"{mode} train mode"] = net(x)
        with mx.autograd.record():
            out = net(x)
        found[f"{mode} train"] = out
        out.backward(mx.nd.array(X * 2))
        found[f"{mode} after backward"] = state()
        found |= {f"{mode} {k}": v for k, v in gradients(net).items()}
        with mx.autograd.record(train_mode=False):
            out = net(x)
        out.backward(mx.nd.array(X))
        found[f"{mode} predict gradients"] = [g.asnumpy() for g in gradients(net).values()]
        found[f"{mode} predict backward"] = state()
        found[f"{mode} predict out"] = out
        found[f"{mode} grad_req"] = [net.running_mean.grad_req, raised(net.running_mean.grad)]
    return found


def check_modes(mx):
    class Mode(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.Dropout(x, p=0.999999)

    class Which(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * 2 if mx.autograd.is_training() else x * 3

    found, x = {}, mx.nd.ones((2, 3))
    for mode in ("plain", "hybrid"):
        drop, which = Mode(), Which()
        drop.hybridize(mode == "hybrid")
        which.hybridize(mode == "hybrid")
        found[f"{mode} predict"] = drop(x)
        with mx.autograd.record():
            found[f"{mode} train"] = drop(x)
            with mx.autograd.predict_mode():
                found[f"{mode} predict in record"] = drop(x)
            with mx.autograd.pause():
                found[f"{mode} pause"] = drop(x)
        with mx.autograd.train_mode():
            found[f"{mode} train mode"] = drop(x)
        with mx.autograd.record():
            found[f"{mode} which train"] = which(x)
        found[f"{mode} which predict"] = which(x)
    return found


def check_shared_gradients(mx):
    linear = classes(mx)[0]
    found, x = {}, mx.nd.array(X)
    for mode in ("plain", "hybrid"):
        a = linear(3, in_units=3, prefix="a_")
        b = linear(3, in_units=3, params=a.params)
        a.initialize()
        filled(mx, a)
        for block in (a, b):
            block.hybridize(mode == "hybrid")
        with mx.autograd.record():
            out = b(a(x)) + a(x)
        out.backward()
        found |= {f"{mode} {k}": v for k, v in gradients(a).items()}
        with mx.autograd.record():
            once = a(x)
            twice = a(once)
        twice.backward(retain_graph=True)
        found[f"{mode} retained"] = a.weight.grad().copy()
        twice.backward()
        found[f"{mode} second"] = a.weight.grad()
        with mx.autograd.record():
            losses = [a(x).sum(), (b(x) * 2).sum()]
        mx.autograd.backward(losses)
        found[f"{mode} two losses"] = a.weight.grad()
    return found


def check_outputs(mx):
    class Two(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.w = self.params.get("w", shape=(3,), init="ones")

        def hybrid_forward(self, F, x, pair, w):
            y = F.broadcast_mul(x, F.exp(w))
            return y, [y * pair[0], F.BlockGrad(y) * pair[1]]

    found = {}
    a, b, c = (mx.nd.array(X + k) for k in range(3))
    for mode in ("plain", "hybrid"):
        net = Two()
        net.initialize()
        net.hybridize(mode == "hybrid")
        for array in (a, b, c):
            array.attach_grad()
        with mx.autograd.record():
            y, (z, s) = net(a, [b, c])
        z.backward()
        found |= {f"{mode} z": net.w.grad(), f"{mode} z inputs": [a.grad, b.grad, c.grad]}
        with mx.autograd.record():
            y, (z, s) = net(a, [b, c])
            loss = y.sum() + (z * z).sum() + s.sum()
        loss.backward()
        found |= {f"{mode} all": net.w.grad(), f"{mode} all inputs": [a.grad, b.grad, c.grad]}
        with mx.autograd.record():
            y, (z, s) = net(a, [b, c])
        mx.autograd.backward([y, s], [mx.nd.ones((2, 3)) * 2, None])
        found[f"{mode} heads"] = net.w.grad()
        with mx.autograd.record():
            y, _ = net(a, [b, c])
            (g,) = mx.autograd.grad(y, [a], retain_graph=True)
        found[f"{mode} grad"] = g
    return found


def check_deferred_in_record(mx):
    found, x = {}, mx.nd.array(X)
    for mode in ("plain", "hybrid"):
        net = classes(mx)[1](prefix="net_")
        net.initialize(mx.init.Constant(0.5))
        net.hybridize(mode == "hybrid")
        with mx.autograd.record():
            out = net(x)
        out.backward()
        found |= {f"{mode} {k}": v for k, v in gradients(net).items()}
        net.initialize(mx.init.Constant(0.25), force_reinit=True)
        with mx.autograd.record():
            out = net(x)
        out.backward()
        found[f"{mode} again"] = net.one.weight.grad()
        net.one.weight.set_data(mx.nd.ones((3, 3)))
        with mx.autograd.record():
            out = net(x)
        out.backward()
        found[f"{mode} set_data"] = net.one.bias.grad()
    return found


def check_training(mx):
    found, x, y = {}, mx.nd.array(X), mx.nd.array(Y)
    for mode in ("plain", "hybrid"):
        for name, options in (("sgd", {"learning_rate": 0.1, "momentum": 0.9}), ("adam", {"learning_rate": 0.05})):
            net = ready(mx, prefix="net_")
            net.hybridize(mode == "hybrid")
            trainer = mx.gluon.Trainer(net.collect_params(), name, options)
            losses = []
            for _ in range(4):
                with mx.autograd.record():
                    loss = mx.nd.square(net(x) - y).mean(axis=1)
                loss.backward()
                trainer.step(2)
                losses.append(float(loss.mean().asscalar()))
            found |= {f"{mode} {name} losses": losses, f"{mode} {name}": net.one.weight.data()}
    net = ready(mx, prefix="net_")
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    found["stale"] = raised(trainer.step, 1)
    norm = ready(mx, "Norm", prefix="n_")
    norm.hybridize()
    trainer = mx.gluon.Trainer(norm.collect_params(), "sgd", {"learning_rate": 0.1})
    for k in range(3):
        with mx.autograd.record():
            loss = mx.nd.square(norm(mx.nd.array(X * (k + 1))) - x).sum()
        loss.backward()
        trainer.step(2)
    found |= {f"norm {name}": param.data() for name, param in norm.collect_params().items()}
    return found


def check_contexts(mx):
    found, contexts = {}, [mx.cpu(0), mx.cpu(1)]
    for mode in ("plain", "hybrid"):
        net = ready(mx, prefix="net_")
        net.collect_params().reset_ctx(contexts)
        net.hybridize(mode == "hybrid")
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        parts = mx.gluon.utils.split_and_load(X, contexts)
        with mx.autograd.record():
            losses = [net(part).sum() for part in parts]
        for loss in losses:
            loss.backward()
        found[f"{mode} gradients"] = net.one.weight.list_grad()
        found[f"{mode} contexts"] = [str(g.ctx) for g in net.one.weight.list_grad()]
        trainer.step(2)
        found[f"{mode} weights"] = net.one.weight.list_data()
        found[f"{mode} elsewhere"] = raised(net, mx.nd.array(X, ctx=mx.cpu(2)))
    mixed = classes(mx)[0](2)
    mixed.initialize(ctx=contexts)

    class Add(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return x + y

    add = Add()
    add.hybridize()
    found["mixed"] = raised(add, mx.nd.ones(2, ctx=contexts[0]), mx.nd.ones(2, ctx=contexts[1]))
    return found


def check_symbol_block_gradients(mx):
    net, x = ready(mx, "Norm", prefix="n_"), mx.nd.array(X)
    data = mx.sym.Variable("data")
    block = mx.gluon.SymbolBlock(mx.sym.tanh(net(data)), data, params=net.collect_params())
    x.attach_grad()
    with mx.autograd.record():
        out = block(x)
    out.backward()
    found = {"out": out, "x": x.grad} | gradients(net)
    found["mean"] = net.running_mean.data()
    found["again"] = block(x)
    return found


def check_inputs_as_outputs(mx):
    class Take(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, array, index):
            return array.take(index), index

    class Foo(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, a, b):
            return b * 3 if a is None else a * 2 if b is None else a + b

    class Nest(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = Foo(prefix="f1_"), Foo(prefix="f2_"), Foo(prefix="f3_")

        def hybrid_forward(self, F, a, b):
            inner = self.one(a, b)
            return self.three(self.two(a, inner), b)

    class Add(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, a, b):
            return (sum(a) if isinstance(a, (list, tuple)) else a) + b

    class Slice(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x[:, 0:1]

    found, ones = {}, mx.nd.ones(2)
    for mode in ("plain", "hybrid"):
        take = Take()
        take.hybridize(mode == "hybrid")
        array, index = mx.nd.arange(3), mx.nd.array([2])
        array.attach_grad()
        with mx.autograd.record():
            row, _ = take(array, index)
        row.backward()
        found[f"{mode} take"] = array.grad
        for k, args in enumerate([(None, ones), (ones, None), (ones, ones), (None, None)]):
            for kind in (Foo, Nest):
                block = kind()
                block.hybridize(mode == "hybrid")
                found[f"{mode} {kind.__name__} {k}"] = raised(block, *args) if k == 3 else block(*args)
        for k, args in enumerate([(ones, 1), (ones, "x"), ([ones, ones], ones), (ones, [])]):
            block = Add()
            block.hybridize(mode == "hybrid")
            found[f"{mode} add {k}"] = raised(block, *args)
        block = Slice()
        block.hybridize(mode == "hybrid")
        found[f"{mode} slice"] = raised(block, mx.nd.ones((2, 3)))
    inner = ready(mx, prefix="net_")(mx.sym.Variable("data")).get_internals()
    block = mx.gluon.SymbolBlock(inner, mx.sym.Variable("data"))
    block.initialize(mx.init.One())
    found["all internals"] = block(mx.nd.array(X))
    found["symbols of internals"] = [s.name for s in block(mx.sym.Variable("in"))]
    return found
