"""Checks of gluon's Block with layers of gluon.nn: names, repr, summary."""

import contextlib
import io

from gluon_block import X, classes, ready
from recorded_checks import raised


def check_names_of_layers(mx):
    nn = mx.gluon.nn
    with mx.name.NameManager():
        a, b = nn.HybridSequential(), nn.Sequential(prefix="outer_")
        with a.name_scope():
            a.add(nn.Dense(4, activation="relu"), nn.BatchNorm(), nn.Dense(3))
            inner = nn.HybridSequential()
            with inner.name_scope():
                inner.add(nn.Dense(2), nn.Dropout(0.5))
            a.add(inner)
        with b.name_scope():
            b.add(nn.Dense(2))
        b.add(nn.Dense(2))
        c = nn.HybridSequential()
        c.add(nn.Dense(1), nn.Dense(1))
    return {
        "a": list(a.collect_params()),
        "b": list(b.collect_params()),
        "c": list(c.collect_params()),
        "names": [child.name for child in a],
        "prefixes": [a.prefix, b.prefix, c.prefix, inner.prefix],
        "structure": list(a._collect_params_with_prefix()),
        "structure b": list(b._collect_params_with_prefix()),
        "children": list(a._children),
    }


def check_repr(mx):
    nn = mx.gluon.nn
    net = nn.HybridSequential(prefix="m_")
    inner = nn.HybridSequential(prefix="i_")
    inner.add(nn.Dense(2), nn.Dropout(0.5))
    net.add(nn.Dense(4, in_units=3, activation="relu"), inner, nn.BatchNorm(in_channels=4))
    _, own, norm = classes(mx)
    return {"own": repr(own()), "empty": repr(norm()), "layers": repr(net), "block": repr(mx.gluon.Block())}


def check_summary(mx):
    nn = mx.gluon.nn
    net = ready(mx)
    layers = nn.HybridSequential()
    layers.add(nn.Dense(4, activation="relu", prefix="d_"), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(2))
    layers.initialize()
    shared = nn.HybridSequential()
    shared.add(nn.Dense(3, in_units=3))
    shared.add(nn.Dense(3, in_units=3, params=shared[0].params))
    shared.initialize()
    text = {}
    for name, block in (("own", net), ("layers", layers), ("shared", shared)):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            block.summary(mx.nd.array(X))
        text[name] = out.getvalue()
        text[f"{name} hooks"] = [len(block._forward_hooks), *[len(c._forward_hooks) for c in block._children.values()]]

    class Two(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, rest):
            return [x + rest[0], [rest[1]]]

    with contextlib.redirect_stdout(io.StringIO()) as out:
        Two().summary(mx.nd.array(X), [mx.nd.array(X), mx.nd.ones((2, 1))])
    text["nested"] = out.getvalue()
    net.hybridize()
    text["hybridized"] = raised(net.summary, mx.nd.array(X))
    fresh = classes(mx)[1]()
    text["not initialized"] = raised(fresh.summary, mx.nd.array(X))
    return text
