"""Checks of gluon's Block, HybridBlock and SymbolBlock: names, children, files, hooks, graphs, values."""

import contextlib
import json
import os
import tempfile
import warnings

import numpy as np
from recorded_checks import raised

RNG = np.random.RandomState(0)
X = RNG.uniform(-1, 1, (2, 3)).astype("float32")


@contextlib.contextmanager
def folder():
    """Run the `with` block in a new folder, and number names from 0."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as path:
        os.chdir(path)
        try:
            yield
        finally:
            os.chdir(before)


def contents(name):
    """Return the bytes of a file as text."""
    with open(name, "rb") as file:
        return file.read().hex()


def graph(name):
    """Return the content of a graph file."""
    with open(f"{name}-symbol.json") as file:
        return json.load(file)


def nodes(name):
    """Return the nodes in a graph file, without the version numbers of inputs, which count earlier uses of the variable."""
    return [{**node, "inputs": [i[:2] for i in node["inputs"]]} for node in graph(name)["nodes"]]


def classes(mx):
    """Return block classes that use no layer of gluon.nn."""

    class Linear(mx.gluon.HybridBlock):
        def __init__(self, units, in_units=0, use_bias=True, **kwargs):
            super().__init__(**kwargs)
            self._units = units
            with self.name_scope():
                self.weight = self.params.get("weight", shape=(units, in_units), allow_deferred_init=True)
                self.bias = None
                if use_bias:
                    self.bias = self.params.get("bias", shape=(units,), init="zeros", allow_deferred_init=True)

        def hybrid_forward(self, F, x, weight, bias=None):
            if bias is None:
                return F.FullyConnected(x, weight, num_hidden=self._units, no_bias=True, name="fwd")
            return F.FullyConnected(x, weight, bias, num_hidden=self._units, name="fwd")

    class Net(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.one = Linear(3)
                self.two = Linear(2, in_units=3)

        def hybrid_forward(self, F, x):
            return self.two(F.relu(self.one(x)))

    class Norm(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                for name, init in (("gamma", "ones"), ("beta", "zeros")):
                    setattr(self, name, self.params.get(name, shape=(0,), init=init, allow_deferred_init=True))
                for name, init in (("running_mean", "zeros"), ("running_var", "ones")):
                    options = {"shape": (0,), "init": init, "allow_deferred_init": True}
                    setattr(self, name, self.params.get(name, grad_req="null", differentiable=False, **options))

        def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
            return F.BatchNorm(x, gamma, beta, running_mean, running_var, fix_gamma=False, eps=1e-3, name="fwd")

    return Linear, Net, Norm


def filled(mx, net, seed=1):
    """Give all parameters of a block random values; the block must have known shapes."""
    rng = np.random.RandomState(seed)
    for param in net.collect_params().values():
        positive = param.name.endswith(("var", "gamma"))
        value = rng.uniform(0.5 if positive else -1, 1, param.shape).astype("float32")
        param.set_data(mx.nd.array(value))
    return net


def ready(mx, kind="Net", **kwargs):
    """Return an initialized block with random parameters."""
    net = dict(zip(("Linear", "Net", "Norm"), classes(mx), strict=True))[kind](**kwargs)
    net.initialize()
    net(mx.nd.array(X))
    return filled(mx, net)


# ------------------------------------------------------------------------------------------------ names
def check_names(mx):
    linear, net, _ = classes(mx)
    with mx.name.NameManager():
        a, b, c = net(), net(), linear(2)
        d, e, f = net(prefix="mine_"), linear(2, prefix=""), linear(2, prefix="odd")
    with a.name_scope():
        g, h = linear(2), linear(2, prefix="x_")
    with e.name_scope(), mx.name.NameManager():
        i = linear(2)
    with a.name_scope():
        with d.name_scope():
            j = linear(2)
        k = linear(2)
    blocks = dict(zip("abcdefghijk", (a, b, c, d, e, f, g, h, i, j, k), strict=True))
    found = {f"{n} prefix": v.prefix for n, v in blocks.items()} | {f"{n} name": v.name for n, v in blocks.items()}
    found |= {f"{n} params": list(v.collect_params()) for n, v in blocks.items()}
    found |= {f"{n} own": list(v.params) for n, v in blocks.items()}
    found["params prefix"] = [v.params.prefix for v in blocks.values()]
    return found


def check_names_of_operators(mx):
    net = ready(mx, prefix="net_")
    out = net(mx.sym.Variable("data"))
    both = net(mx.sym.Variable("x"))
    return {
        "internals": out.get_internals().list_outputs(),
        "again": both.get_internals().list_outputs(),
        "arguments": out.list_arguments(),
        "outputs": out.list_outputs(),
        "norm arguments": ready(mx, "Norm", prefix="n_")(mx.sym.Variable("data")).list_arguments(),
        "norm aux": ready(mx, "Norm", prefix="n_")(mx.sym.Variable("data")).list_auxiliary_states(),
        "var": net.one.weight.var().name,
        "no bias": mx.sym.FullyConnected(*map(mx.sym.Variable, "xw"), None, num_hidden=2, no_bias=True).list_arguments(),
        "same var": net.one.weight.var() is net.one.weight.var(),
        "attrs": out.attr_dict()["net_linear0_weight"],
        "attrs of bias": out.attr_dict()["net_linear0_bias"],
    }


def check_collect(mx):
    net = ready(mx, prefix="net_")
    return {
        "all": list(net.collect_params()),
        "weights": list(net.collect_params(".*weight")),
        "two": list(net.collect_params("net_linear1_weight|net_linear0_bias")),
        "none": list(net.collect_params("weight")),
        "prefix": net.collect_params().prefix,
        "empty select": list(net.collect_params("")),
        "repr": repr(net.collect_params()),
        "structural": list(net._collect_params_with_prefix()),
        "with start": list(net._collect_params_with_prefix("top")),
        "same object": net.collect_params()["net_linear0_weight"] is net.one.weight,
        "registered": list(net.one._reg_params),
        "children": list(net._children),
    }


def check_attributes(mx):
    linear, net, _ = classes(mx)
    block = net(prefix="net_")

    def assign(target, name, value):
        setattr(target, name, value)

    found = {
        "block to int": raised(assign, block, "one", 1),
        "block to other block": raised(assign, block, "one", mx.gluon.HybridBlock()),
        "param to None": raised(assign, block.one, "weight", None),
        "param again": raised(assign, block.one, "weight", mx.gluon.Parameter("w")),
        "none to param": raised(assign, linear(2, use_bias=False), "bias", mx.gluon.Parameter("w")),
        "plain block in hybrid": raised(assign, block, "three", mx.gluon.Block()),
        "parameter in hybrid": raised(assign, block, "p", mx.gluon.Parameter("p")),
        "name is read-only": raised(assign, block, "name", "x"),
        "params is read-only": raised(assign, block, "params", None),
    }
    block.one = linear(5, prefix="new_")
    found["replaced"] = list(block.collect_params())
    found["replaced keeps order"] = list(block._children)
    block.register_child(linear(1, prefix="more_"))
    block.register_child(linear(1, prefix="more2_"), "named")
    found["registered"] = list(block._children)
    found["register plain"] = raised(block.register_child, mx.gluon.Block())
    del block.two
    found["deleted attribute stays a child"] = list(block._children)
    return found


def check_containers(mx):
    linear, _, _ = classes(mx)

    class Hidden(mx.gluon.HybridBlock):
        def __init__(self, kind, **kwargs):
            super().__init__(**kwargs)
            blocks = [linear(1)]
            self.blocks = {"list": blocks, "tuple": tuple(blocks), "dict": {"a": blocks[0]}, "deep": [[blocks[0]]]}[kind]

    found = {}
    for kind in ("list", "tuple", "dict", "deep"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found[f"{kind} params"] = list(Hidden(kind).collect_params())
        found[f"{kind} warnings"] = len(caught)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        block = Hidden("list")
        block.register_child(block.blocks[0])
        block.collect_params()
    found["registered warnings"] = len(caught)
    return found


# ------------------------------------------------------------------------------------------------ shared parameters
def check_sharing(mx):
    linear, net, _ = classes(mx)
    a = linear(2, in_units=3, prefix="a_")
    b = linear(2, in_units=3, prefix="b_", params=a.collect_params())
    c = net(prefix="c_")
    d = net(prefix="d_", params=c.collect_params())
    e = linear(2, in_units=3, params=a.params)
    for block in (a, c):
        block.initialize()
    x = mx.nd.array(X)
    c(x)
    filled(mx, a), filled(mx, c)
    return {
        "b names": list(b.collect_params()),
        "b prefix": [b.prefix, b.params.prefix],
        "b is a": b.weight is a.weight,
        "d names": list(d.collect_params()),
        "d is c": [d.one.weight is c.one.weight, d.two.bias is c.two.bias],
        "e is a": e.weight is a.weight,
        "values": a(x).asnumpy() - b(x).asnumpy(),
        "values of nets": [c(x), d(x)],
        "d prefixes": [d.one.prefix, d.one.params.prefix],
        "other units": raised(linear, 5, in_units=3, params=a.params),
        "new names": list(linear(2, params=mx.gluon.ParameterDict("z_")).collect_params()),
    }


# ------------------------------------------------------------------------------------------------ deferred initialization
def check_deferred(mx):
    linear, net, norm = classes(mx)
    a = net(prefix="net_")
    x = mx.nd.array(X)
    found = {"not initialized": raised(a, x), "no data": raised(a.one.weight.data)}
    a.initialize()
    found |= {
        "shape before": str(a.one.weight.shape),
        "data before": raised(a.one.weight.data),
        "grad before": raised(a.one.weight.grad),
        "type before": type(_error(a.one.weight.data)).__name__,
        "out": list(a(x).shape),
        "shape after": a.one.weight.shape,
        "known": a.two.weight.shape,
        "data after": a.one.weight.data().shape,
    }
    found["other width"] = raised(a, mx.nd.ones((2, 4)))
    b = net(prefix="net_")
    b.initialize()
    b.infer_shape(x)
    found["infer_shape"] = b.one.weight.shape
    b.infer_type(x)
    found["infer_type"] = np.dtype(b.one.weight.dtype).name
    c = norm(prefix="n_")
    c.initialize()
    c(x)
    found["norm"] = [p.shape for p in c.collect_params().values()]
    d = linear(2)
    d.initialize()
    d.hybridize()
    d(x)
    found["hybridized"] = d.weight.shape
    e = net()
    e.one.initialize()
    found["half"] = raised(e, x)
    f = net()
    f.initialize()
    f.one.weight.set_data(mx.nd.ones((3, 7)))
    found["set_data"] = [f.one.weight.shape, raised(f.one.weight.data)]
    found["contradiction"] = raised(f, x)
    g = linear(2)
    found["strict"] = raised(mx.gluon.Parameter("w", shape=(0, 2)).initialize)
    g.initialize(init=mx.init.Constant(2))
    found["initializer"] = g(x)
    g.initialize(init=mx.init.One(), force_reinit=True)
    found["again"] = g(x)
    return found


def _error(function):
    try:
        function()
    except Exception as error:
        return error
    return None


# ------------------------------------------------------------------------------------------------ values
def check_forward(mx):
    net, norm = ready(mx), ready(mx, "Norm")
    x = mx.nd.array(X)
    found = {"net": net(x), "norm": norm(x), "norm mean": norm.running_mean.data(), "one": net.one(x)}
    net.hybridize()
    norm.hybridize()
    found |= {"net hybrid": net(x), "norm hybrid": norm(x), "norm mean hybrid": norm.running_mean.data(), "again": net(x)}
    found["other rows"] = net(mx.nd.array(X[:1]))
    net.one.weight.set_data(mx.nd.ones((3, 3)))
    found["new weight"] = net(x)
    net.hybridize(False)
    found["off"] = net(x)
    symbol = net(mx.sym.Variable("data"))
    args = {n: p.data() for n, p in net.collect_params().items()}
    found["symbol"] = symbol.eval(data=x, **args)[0]
    return found


def check_structures(mx):
    class Nest(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, pair, last=None):
            a, (b, c) = pair
            d = x + 2 * a + 3 * b + 4 * c
            if last is not None:
                d = d + 5 * last
            return d, [a * 2, (b, [c])]

    class Split(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.split(x, num_outputs=3, axis=1)

    class Some(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, y=None):
            return x if y is None else x + y

    def shape(out):
        return [shape(v) for v in out] if isinstance(out, (list, tuple)) else out

    def kinds(out):
        return [type(out).__name__, *[kinds(v) for v in out]] if isinstance(out, (list, tuple)) else "array"

    a, b, c, d = (mx.nd.array(X + k) for k in range(4))
    found = {}
    for mode in ("plain", "hybrid"):
        net, split, some = Nest(), Split(), Some()
        for block in (net, split, some):
            block.hybridize(mode == "hybrid")
        out = net(a, [b, (c, d)])
        found |= {f"{mode} nest": shape(out), f"{mode} kinds": kinds(out), f"{mode} split": shape(split(a))}
        found[f"{mode} split kinds"] = kinds(split(a))
        found[f"{mode} other structure"] = raised(net, a, [b, c, d])
        found[f"{mode} none"] = some(a, None)
        found[f"{mode} without"] = some(a)
        found[f"{mode} with"] = raised(some, a, b)
        found[f"{mode} mixed"] = raised(net, a, [mx.sym.Variable("x"), (c, d)])
        found[f"{mode} number"] = raised(some, 3)
        found[f"{mode} None alone"] = raised(some, None)
        found[f"{mode} numpy"] = raised(some, X)
        found[f"{mode} no argument"] = raised(some)
        found[f"{mode} keyword"] = raised(some, x=a)
    net = Nest()
    out, (twice, (same, [last])) = net(mx.sym.Variable("x"), [mx.sym.Variable("a"), [mx.sym.Variable(n) for n in "bc"]])
    found["symbol"] = [len(out.list_arguments()), twice.list_arguments(), same.name, last.name]
    net.hybridize()
    net(a, [b, (c, d)])
    found["input names"] = [v.name for v in net._cached_graph[0]]
    some.hybridize()
    some(a)
    found["input name"] = [v.name for v in some._cached_graph[0]]
    found["in format"] = str(net._in_format)
    found["out format"] = str(net._out_format)
    return found


def check_hybridize(mx):
    linear, net, _ = classes(mx)
    found, x = {}, mx.nd.array(X)

    class Counted(linear):
        calls = 0

        def hybrid_forward(self, F, x, weight, bias):
            Counted.calls += 1
            return super().hybrid_forward(F, x, weight, bias)

    block = Counted(2, in_units=3)
    block.initialize()
    for _ in range(3):
        block(x)
    found["plain calls"] = Counted.calls
    block.hybridize()
    for _ in range(3):
        block(x)
    found["hybrid calls"] = Counted.calls
    block(mx.nd.ones((5, 3)))
    found["other shape"] = Counted.calls
    block.hybridize()
    block(x)
    found["hybridized again"] = Counted.calls
    block.hybridize(clear=False)
    block(x)
    found["clear=False"] = Counted.calls
    block.cast("float32")
    block(x)
    found["cast clears"] = Counted.calls
    block.hybridize(False)
    block(x)
    found["off"] = Counted.calls
    a = net()
    a.hybridize(static_alloc=True, static_shape=True, inline_limit=3, forward_bulk_size=2, backward_bulk_size=2)
    found["active"] = [a._active, a.one._active]
    a.one.hybridize(False)
    found["child off"] = [a._active, a.one._active]
    outer = mx.gluon.Block()
    outer.inner = net()
    outer.hybridize()
    found["of Block"] = outer.inner._active

    class Unused(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.w = self.params.get("w", shape=(1,))

        def hybrid_forward(self, F, x, y, w):
            return x * 2

    block = Unused()
    block.initialize()
    block.hybridize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["unused"] = block(x, x)
    found["unused warnings"] = len(caught) > 0
    found["abstract"] = raised(mx.gluon.HybridBlock(), x)
    found["abstract block"] = raised(mx.gluon.Block(), x)
    return found


# ------------------------------------------------------------------------------------------------ hooks, apply, cast
def check_hooks(mx):
    net, events = ready(mx), []
    x = mx.nd.array(X)
    handle = net.register_forward_pre_hook(lambda block, args: events.append(("pre", block is net, len(args))))
    after = net.register_forward_hook(lambda block, args, out: events.append(("post", args[0] is x, list(out.shape))))
    child = net.one.register_forward_hook(lambda block, args, out: events.append(("child", block is net.one)))
    net(x)
    found = {"first": list(events)}
    events.clear()
    handle.detach()
    handle.detach()
    net(x)
    found["detached"] = list(events)
    events.clear()
    with after:
        pass
    net(x)
    found["with"] = list(events)
    found["hooks left"] = [len(net._forward_hooks), len(net._forward_pre_hooks), len(net.one._forward_hooks)]
    events.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net.hybridize()
        net(x)
    found["hybridized"] = list(events)
    found["warned"] = len(caught) > 0
    child.detach()
    warnings.simplefilter("ignore")
    returned = net.register_forward_hook(lambda *args: 7)
    found["result is ignored"] = net(x).shape
    found["type"] = [type(returned).__name__, isinstance(returned, mx.gluon.utils.HookHandle)]
    names = []
    net.hybridize(clear=True)
    net.register_op_hook(lambda name, op, array: names.append([str(name), str(op)]))
    net(x)
    found["op hook"] = len(names)
    fresh = ready(mx, prefix="net_")
    fresh.hybridize()
    names.clear()
    fresh.register_op_hook(lambda name, op, array: names.append(_text(name)), monitor_all=True)
    fresh(x)
    found["op hook of inputs"] = sorted(n for n in names if "weight" in n or "fwd_output" in n)
    split = mx.gluon.HybridBlock(prefix="s_")
    split.hybrid_forward = lambda F, x: F.relu(F.split(x, num_outputs=3)[1], name="act") + 1
    for every in (False, True):
        names.clear()
        split.hybridize()
        split.register_op_hook(lambda name, op, array: names.append([_text(name), _text(op)]), every)
        found[f"out of watched {every}"] = split(x)
        found[f"watched {every}"] = list(names)
    return found


def _text(name):
    return name.decode() if isinstance(name, bytes) else str(name)


def check_apply(mx):
    net, order = ready(mx, prefix="net_"), []
    found = {"returns": net.apply(lambda block: order.append(block.name)) is net, "order": order}
    net.apply(lambda block: block.initialize(mx.init.One(), force_reinit=True))
    found["weights"] = net.one.weight.data()
    net.collect_params().setattr("grad_req", "null")
    found["grad_req"] = [p.grad_req for p in net.collect_params().values()]
    found["zero_grad"] = raised(net.collect_params().zero_grad)
    return found


def check_cast(mx):
    class Scale(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.factor = self.params.get("factor", shape=(0,), allow_deferred_init=True)

        def hybrid_forward(self, F, x, factor):
            return F.add_n(F.relu(x), factor)

    net, x = Scale(), mx.nd.array(X[0])
    net.initialize(mx.init.Constant(0.3))
    net(x)
    net.cast("float16")
    half = x.astype("float16")
    out = net(half)
    found = {"dtype": np.dtype(net.factor.dtype).name, "out": np.dtype(out.dtype).name, "values": out.astype("float32")}
    net.hybridize()
    found["hybrid"] = np.dtype(net(half).dtype).name
    net.cast("float32")
    found["data"] = np.dtype(net.factor.data().dtype).name
    found["grad"] = np.dtype(net.factor.grad().dtype).name
    late = Scale()
    late.initialize()
    late.cast("float16")
    found["deferred"] = np.dtype(late(half).dtype).name
    found["deferred weight"] = np.dtype(late.factor.data().dtype).name
    whole = ready(mx)
    whole.cast("float16")
    found["children"] = [np.dtype(p.dtype).name for p in whole.collect_params().values()]
    found["values of children"] = whole.one.weight.data().astype("float32")
    return found


# ------------------------------------------------------------------------------------------------ files
def check_files(mx):
    linear, net, _ = classes(mx)
    a, x = ready(mx, prefix="net_"), mx.nd.array(X)
    found = {}
    with folder():
        a.save_parameters("a.params")
        a.collect_params().save("full.params")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a.save_params("old.params")
        found |= {f"bytes of {n}": contents(f"{n}.params") for n in ("a", "full", "old")}
        found["names"] = list(mx.nd.load("a.params"))
        found["full names"] = list(mx.nd.load("full.params"))
        for name in ("a", "old"):
            b = net(prefix="net_" if name == "old" else None)
            b.load_parameters(f"{name}.params")
            found[f"loaded {name}"] = b(x)
        c = net(prefix="net_")
        c.collect_params().load("full.params")
        found["loaded full"] = c(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            d = net()
            d.load_params("old.params")
        found["load_params"] = d(x)
        e = net()
        e.initialize()
        e.load_parameters("a.params")
        found["after initialize"] = e(x)
        f = net()
        f.hybridize()
        f.load_parameters("a.params")
        found["hybridized"] = f(x)
        f.load_parameters("a.params", ctx=mx.cpu())
        found["again"] = f(x)
        found["other context"] = raised(f.load_parameters, "a.params", ctx=mx.cpu(1))
        values = mx.nd.load("a.params")
        less = {k: v for k, v in values.items() if k != "two.bias"}
        mx.nd.save("less.params", less)
        mx.nd.save("more.params", {**values, "three.weight": mx.nd.ones(1)})
        mx.nd.save("wrong.params", {**values, "two.bias": mx.nd.ones(7)})
        mx.nd.save("half.params", {k: v.astype("float16") for k, v in values.items()})
        mx.nd.save("list.params", list(values.values()))
        found["missing"] = raised(net().load_parameters, "less.params")
        g = net()
        g.initialize()
        g.load_parameters("less.params", allow_missing=True)
        found["allow_missing"] = g.two.weight.data()
        found["extra"] = raised(net().load_parameters, "more.params")
        h = net()
        h.load_parameters("more.params", ignore_extra=True)
        found["ignore_extra"] = h(x)
        found["wrong shape"] = raised(net().load_parameters, "wrong.params")
        found["dtype"] = raised(net().load_parameters, "half.params")
        i = net()
        i.load_parameters("half.params", cast_dtype=True)
        found["cast"] = np.dtype(i.one.weight.dtype).name
        j = net()
        j.load_parameters("half.params", cast_dtype=True, dtype_source="saved")
        found["saved dtype"] = np.dtype(j.one.weight.dtype).name
        found["list"] = raised(net().load_parameters, "list.params") != "no error"
        found["no file"] = raised(net().load_parameters, "none.params")
        found["uninitialized save"] = raised(net().save_parameters, "u.params")
        found["old prefix"] = raised(linear(2).load_parameters, "full.params")
        shared = mx.gluon.HybridBlock()
        shared.a = linear(2, in_units=3, prefix="s_")
        shared.b = linear(2, in_units=3, params=shared.a.params)
        shared.initialize()
        filled(mx, shared)
        shared.save_parameters("s.params")
        shared.save_parameters("d.params", deduplicate=True)
        found["shared"] = list(mx.nd.load("s.params"))
        found["deduplicated"] = list(mx.nd.load("d.params"))
        shared.load_parameters("d.params")
        found["loaded deduplicated"] = shared.a.weight.data()
        mx.gluon.HybridBlock().save_parameters("e.params")
        found["empty"] = raised(mx.gluon.HybridBlock().load_parameters, "e.params")
    return found


def check_export(mx):
    net, norm, x = ready(mx, prefix="net_"), ready(mx, "Norm", prefix="norm_"), mx.nd.array(X)
    found = {}
    with folder():
        fresh = classes(mx)[1]()
        found["no graph"] = raised(fresh.export, "x")
        for name, block in (("net", net), ("norm", norm)):
            block.hybridize()
            block(x)
            block.export(name, 3)
            found[f"{name} files"] = sorted(f for f in os.listdir() if f.startswith(f"{name}-"))
            found[f"{name} json"] = nodes(name)
            found[f"{name} rest"] = {k: v for k, v in graph(name).items() if k != "nodes"}
            found[f"{name} params"] = sorted(mx.nd.load(f"{name}-0003.params"))
            again = mx.gluon.SymbolBlock.imports(f"{name}-symbol.json", ["data"], f"{name}-0003.params")
            found[f"{name} imported"] = again(x)
            found[f"{name} imported names"] = list(again.collect_params())
            found[f"{name} registered"] = list(again._reg_params)
            found[f"{name} repr"] = repr(again)
            again.save_parameters("s.params")
            found[f"{name} saved"] = list(mx.nd.load("s.params"))
        net.export("zero")
        found["epoch 0"] = os.path.exists("zero-0000.params")
        symbol, args, aux = mx.model.load_checkpoint("norm", 3)
        found["checkpoint"] = [symbol.list_arguments(), sorted(args), sorted(aux)]
        module = mx.mod.Module(symbol, data_names=["data"], label_names=None)
        module.bind([("data", (2, 3))], for_training=False)
        module.set_params(args, aux)
        module.forward(mx.io.DataBatch([x]), is_train=False)
        found["module"] = module.get_outputs()[0]
        late = classes(mx)[1](prefix="late_")
        late.initialize()
        late.hybridize()
        late(x)
        late.export("late")
        found["json of deferred"] = nodes("late")
        imported = mx.gluon.SymbolBlock.imports("net-symbol.json", "data")
        found["no values"] = raised(imported, x)
        imported.initialize(mx.init.One())
        found["initialized"] = imported(x)
        found["missing"] = raised(mx.gluon.SymbolBlock.imports, "net-symbol.json", "data", "norm-0003.params")
        found["no file"] = raised(mx.gluon.SymbolBlock.imports, "none.json", "data")
    return found


def check_symbol_block(mx):
    net, x = ready(mx, prefix="net_"), mx.nd.array(X)
    data = mx.sym.Variable("data")
    inner = net(data).get_internals()
    outputs = [inner["net_linear0_fwd_output"], inner["net_linear1_fwd_output"]]
    block = mx.gluon.SymbolBlock(outputs, data, params=net.collect_params())
    found = {
        "outputs": block(x),
        "names": list(block.collect_params()),
        "shared": block.params["net_linear0_weight"] is net.one.weight,
        "prefix": block.prefix,
        "registered": list(block._reg_params),
        "repr": repr(block).count("\n"),
        "symbol": [s.list_outputs() for s in block(mx.sym.Variable("other"))],
        "symbol arguments": block(mx.sym.Variable("other"))[1].list_arguments(),
        "not a variable": raised(mx.gluon.SymbolBlock, outputs, inner["net_relu0_output"]),
        "number": raised(block, 3),
    }
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    two = mx.gluon.SymbolBlock(a + 2 * b, [a, b])
    found["two inputs"] = two(x, x)
    found["list of inputs"] = raised(two, [x, x])
    found["one input"] = raised(two, x)
    nested = mx.gluon.SymbolBlock([a + b, a * b], [a, [b]])
    found["nested"] = nested(x, [x])
    found["nested wrong"] = raised(nested, x, x)
    norm = ready(mx, "Norm", prefix="norm_")
    part = mx.gluon.SymbolBlock(norm(data), data, params=norm.collect_params())
    found["norm"] = part(x)
    found["grad_req"] = [p.grad_req for p in part.collect_params().values()]
    part.cast("float16")
    found["float16"] = [np.dtype(p.dtype).name for p in part.collect_params().values()]
    half = mx.gluon.SymbolBlock(net(mx.sym.Variable("data")), mx.sym.Variable("data"))
    found["fresh dtypes"] = [np.dtype(p.dtype).name for p in half.collect_params().values()]
    found["fresh shapes"] = [str(p.shape) for p in half.collect_params().values()]
    half.initialize(mx.init.One())
    found["fresh"] = half(x)
    found["shapes"] = [p.shape for p in half.collect_params().values()]

    class Outer(mx.gluon.HybridBlock):
        def __init__(self, inner, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.inner = inner
                self.last = classes(mx)[0](1)

        def hybrid_forward(self, F, x):
            return self.last(self.inner(x)[1])

    outer = Outer(block, prefix="outer_")
    outer.last.initialize(mx.init.One())
    found["in a block"] = outer(x)
    outer.hybridize()
    found["in a hybrid block"] = outer(x)
    found["in a block names"] = list(outer.collect_params())
    found["structural"] = list(outer._collect_params_with_prefix())
    return found
