"""Graphs with loops and branches that MXNet and jfit both build: `NETS[name](mx) -> (symbol, shapes)`."""

import json
from typing import Any

import numpy as np


def accumulate(mx):
    v = mx.sym.Variable
    outs, states = mx.sym.contrib.foreach(lambda x, s: (x * 2 + s[0], [s[0] + x]), v("data"), [v("s")])
    return mx.sym.Group([outs, *states]), {"data": (4, 3), "s": (3,)}


def recurrent(mx):
    """A cell with its own parameters, two states, and closures over a variable and over a computed value."""
    v = mx.sym.Variable
    w, gate = v("w"), mx.sym.sigmoid(v("g"), name="gate")

    def body(x, states):
        h, c = states
        pre = mx.sym.FullyConnected(x, num_hidden=3, name="i2h") + mx.sym.FullyConnected(h, num_hidden=3, name="h2h")
        c = mx.sym.broadcast_mul(c, gate) + mx.sym.tanh(pre) * w
        h = mx.sym.tanh(c)
        return [h, pre], [h, c]

    outs, states = mx.sym.contrib.foreach(body, v("data") * 0.5, [v("h"), v("c")], name="cell")
    shapes = {"data": (3, 2, 4), "h": (2, 3), "c": (2, 3), "w": (2, 3), "g": (1, 3)}
    return mx.sym.Group([*outs, *states]), shapes


def nested(mx):
    """A loop in a loop; the inner one reads variables of both bodies around it."""
    v = mx.sym.Variable
    w = v("w")

    def outer(x, states):
        factor = mx.sym.sum(x, name="factor")

        def inner(y, s):
            new = mx.sym.broadcast_mul(y, factor) * w + s[0]
            return new, [new]

        outs, last = mx.sym.contrib.foreach(inner, x, [states[0]])
        return mx.sym.sum(outs, axis=0), last

    outs, states = mx.sym.contrib.foreach(outer, v("data"), [v("s")])
    return mx.sym.Group([outs, *states]), {"data": (2, 3, 2), "s": (2,), "w": (2,)}


def several(mx):
    """Two data, nested lists, an output that is a state, a state that is passed on."""
    v = mx.sym.Variable

    def body(xs, states):
        a, b = xs
        s, (t, u) = states
        s = s + a * b
        return [s, [b, a + t]], [s, [t * 1.5, u]]

    outs, states = mx.sym.contrib.foreach(body, [v("a"), v("b")], [v("s"), [v("t"), v("u")]])
    flat = [outs[0], *outs[1], states[0], *states[1]]
    shapes = {"a": (3, 2), "b": (3, 2), "s": (2,), "t": (2,), "u": (2,)}
    return mx.sym.Group(flat), shapes


def only_outputs(mx):
    outs, _ = mx.sym.contrib.foreach(lambda x, s: (mx.sym.square(x), []), mx.sym.Variable("data"), [])
    return outs, {"data": (3, 2)}


def only_states(mx):
    _, states = mx.sym.contrib.foreach(lambda x, s: ([], [s[0] * x]), mx.sym.Variable("data"), [mx.sym.Variable("s")])
    return states[0], {"data": (3, 2), "s": (2,)}


def vector(mx):
    """A step of a vector is an array of one number."""
    v = mx.sym.Variable
    outs, states = mx.sym.contrib.foreach(lambda x, s: (x * s[0], [s[0] + x]), v("data"), [v("s")])
    return mx.sym.Group([outs, *states]), {"data": (4,), "s": (1,)}


def normalized(mx):
    """Moving statistics in a body are arguments, and stay as they are."""
    v = mx.sym.Variable

    def body(x, states):
        new = mx.sym.BatchNorm(x, name="bn", fix_gamma=False, momentum=0.5)
        return new, [states[0] + new]

    outs, states = mx.sym.contrib.foreach(body, v("data"), [v("s")])
    return mx.sym.Group([outs, *states]), {"data": (2, 4, 3), "s": (4, 3)}


def counted(mx):
    v = mx.sym.Variable

    def func(i, a):
        return [a * a, i], [i + 1, a * v("w")]

    outs, states = mx.sym.contrib.while_loop(lambda i, a: i < 3, func, [v("i"), v("a")], max_iterations=5)
    run = [mx.sym.slice_axis(o, axis=0, begin=0, end=3) for o in outs]  # what follows is not defined in MXNet
    return mx.sym.Group([*run, *states]), {"i": (1,), "a": (2,), "w": (2,)}


def shared_limit(mx):
    """Condition and body read the same computed value and the same variable from outside; no outputs."""
    v = mx.sym.Variable
    limit, w = mx.sym.abs(v("limit"), name="bound"), v("w")

    def cond(i, a):
        return i < limit + w

    def func(i, a):
        return [], [i + w, mx.sym.broadcast_mul(a, limit)]

    _, states = mx.sym.contrib.while_loop(cond, func, [v("i"), v("a")], max_iterations=6, name="walk")
    return mx.sym.Group(states), {"i": (1,), "a": (2,), "limit": (1,), "w": (1,)}


def to_the_end(mx):
    """A loop that is stopped by its number of steps."""
    v = mx.sym.Variable
    outs, states = mx.sym.contrib.while_loop(lambda a: mx.sym.sum(a) < 1e6, lambda a: (a, [a * 1.5]), [v("a")], 3)
    return mx.sym.Group([outs, *states]), {"a": (2,)}


def branch(mx):
    v = mx.sym.Variable
    a, b = v("a"), v("b")
    product = a * b
    out = mx.sym.contrib.cond(mx.sym.sum(product) < 100, lambda: product + a * 2 + b, lambda: b * b * a - product)
    return out, {"a": (2,), "b": (2,)}


def other_branch(mx):
    v = mx.sym.Variable
    a, b = v("a"), v("b")
    outs = mx.sym.contrib.cond(mx.sym.sum(a) > 100, lambda: [a * b, a], lambda: [b * b * a, b], name="choice")
    return mx.sym.Group(outs), {"a": (2,), "b": (2,)}


def branch_in_loop(mx):
    v = mx.sym.Variable
    w = v("w")

    def body(x, states):
        s = states[0]
        new = mx.sym.contrib.cond(mx.sym.sum(x) > 0, lambda: s + x * w, lambda: s * w - x)
        return new, [new]

    outs, states = mx.sym.contrib.foreach(body, v("data"), [v("s")])
    return mx.sym.Group([outs, *states]), {"data": (4, 2), "s": (2,), "w": (2,)}


def loop_in_loop(mx):
    """A while_loop in a foreach."""
    v = mx.sym.Variable
    w = v("w")

    def body(x, states):
        def step(i, a):
            return [], [i + 1, a * w + x]

        _, last = mx.sym.contrib.while_loop(lambda i, a: i < 2, step, [states[1], states[0]], max_iterations=4)
        return last[1], [last[1], states[1] * 1]

    outs, states = mx.sym.contrib.foreach(body, v("data"), [v("s"), v("i")])
    return mx.sym.Group([outs, *states]), {"data": (2, 2), "s": (2,), "i": (1,), "w": (2,)}


def classifier(mx):
    """A recurrent net with a head, on time-major data."""
    v = mx.sym.Variable

    def body(x, states):
        h = mx.sym.FullyConnected(x, num_hidden=4, name="i2h") + mx.sym.FullyConnected(
            states[0], num_hidden=4, no_bias=True, name="h2h"
        )
        h = mx.sym.Activation(h, act_type="tanh", name="act")
        return h, [h]

    _, states = mx.sym.contrib.foreach(body, mx.sym.SwapAxis(v("data"), dim1=0, dim2=1), [v("h0")])
    net = mx.sym.FullyConnected(states[0], num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax"), {"data": (5, 3, 2), "h0": (5, 4), "softmax_label": (5,)}


NETS = {
    f.__name__: f
    for f in (
        [accumulate, recurrent, nested, several, only_outputs, only_states, vector, normalized, counted, shared_limit]
        + [to_the_end, branch, other_branch, branch_in_loop, loop_in_loop, classifier]
    )
}


def values(name: str, argument: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array of an argument: small numbers, counters start at 0, variances are positive."""
    draw = np.random.RandomState(sum(map(ord, name + argument)))
    if argument == "i":
        return np.zeros(shape, np.float32)
    if argument.endswith("_label"):
        return (np.arange(shape[0]) % 3).astype(np.float32)
    found = draw.uniform(0.5, 1.5, shape) * np.where(draw.uniform(size=shape) < 0.3, -1, 1)
    return (np.abs(found) if "var" in argument else found).astype(np.float32)


def recorded(mx: Any) -> dict[str, Any]:
    """symbol.json and names of each net; arguments, outputs and gradients."""
    about, arrays = {}, {}
    for name, make in NETS.items():
        mx.AttrScope._subgraph_names.clear()
        with mx.name.NameManager():
            symbol, shapes = make(mx)
        names = symbol.list_arguments()
        given = shapes  # MXNet does not see through every loop
        if set(names) - set(shapes):
            given = dict(zip(names, symbol.infer_shape(**shapes)[0]))  # noqa: B905  (runs on MXNet's Python)
        args = {n: mx.nd.array(values(name, n, tuple(given[n]))) for n in names}
        wanted = [n for n in names if not n.endswith("_label")]
        grads = {n: mx.nd.zeros(args[n].shape) for n in wanted}
        try:
            bound = symbol.bind(mx.cpu(), dict(args), args_grad=grads)
        except mx.base.MXNetError:  # it has no gradient for moving statistics, and for what two bodies read
            print("forward only:", name)
            wanted, grads = [], {}
            bound = symbol.bind(mx.cpu(), dict(args), grad_req="null")
        try:
            outs = bound.forward(is_train=bool(wanted))
            mx.nd.waitall()
        except mx.base.MXNetError as error:  # its inference does not reach through a branch in a loop
            print("file only:", name, str(error)[:200])
            wanted, outs, grads = [], [], {}
        heads = [np.random.RandomState(i).uniform(-1, 1, o.shape).astype(np.float32) for i, o in enumerate(outs)]
        arrays.update({f"{name}/out/{i}": o.asnumpy() for i, o in enumerate(outs)})
        if wanted:
            bound.backward([mx.nd.array(h) for h in heads])
            mx.nd.waitall()
        arrays.update({f"{name}/in/{n}": a.asnumpy() for n, a in args.items()})
        arrays.update({f"{name}/head/{i}": h for i, h in enumerate(heads)})
        arrays.update({f"{name}/grad/{n}": g.asnumpy() for n, g in grads.items()})
        about[name] = {
            "symbol": json.loads(symbol.tojson()),
            "arguments": names,
            "outputs": symbol.list_outputs(),
            "shapes": {k: list(v) for k, v in shapes.items()},
        }
    return {"control.npz": arrays, "control.json": about}
