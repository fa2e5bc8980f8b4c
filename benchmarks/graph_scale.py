"""Time to build, infer, lower, save and load a graph with thousands of nodes: `python -m benchmarks.graph_scale [NODES]`.

The graphs: a residual network whose widths differ between blocks, so that few shape inferences are cached; and an unrolled LSTM
with begin states of unknown batch size, whose shapes must be inferred backwards.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jfit
from jfit import sym

Net = tuple[Any, dict[str, tuple[int, ...]]]


def residual(nodes: int) -> Net:
    """A residual network of about `nodes` nodes: blocks of two convolutions, batch norm and relu."""
    x = sym.Convolution(sym.Variable("data"), num_filter=16, kernel=(3, 3), pad=(1, 1), no_bias=True)
    for block in range(nodes // 11):
        width = 16 + block * 37 % 97
        y = sym.Convolution(x, num_filter=width, kernel=(3, 3), pad=(1, 1), no_bias=True)
        y = sym.Activation(sym.BatchNorm(y), act_type="relu")
        x = y + sym.Convolution(x, num_filter=width, kernel=(1, 1), no_bias=True)
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Flatten(x), num_hidden=10), name="softmax"), {"data": (4, 3, 32, 32)}


def unrolled(nodes: int, size: int = 64) -> Net:
    """An LSTM of about `nodes` nodes, unrolled over time."""
    times = nodes // 14
    steps = sym.SliceChannel(sym.Variable("data"), num_outputs=times, axis=1, squeeze_axis=True)
    wx, bx, wh, bh = (sym.Variable(n) for n in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias"))
    h = c = sym._zeros(shape=(0, size))
    for step in steps:
        gates = sym.FullyConnected(step, wx, bx, num_hidden=4 * size) + sym.FullyConnected(h, wh, bh, num_hidden=4 * size)
        i, f, o, u = sym.SliceChannel(gates, num_outputs=4, axis=1)
        c = sym.sigmoid(f) * c + sym.sigmoid(i) * sym.tanh(u)
        h = sym.sigmoid(o) * sym.tanh(c)
    return sym.FullyConnected(h, num_hidden=10), {"data": (8, times, 20)}


def measure(make: Callable[[int], Net], nodes: int) -> dict[str, float]:
    """The number of nodes (key "nodes") and the seconds of each operation."""
    seconds: dict[str, float] = {}

    def timed(what: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = run()
        seconds[what] = time.perf_counter() - start
        return result

    net, shapes = timed("build", lambda: make(nodes))
    timed("infer", lambda: net.infer_shape(**shapes))
    timed("infer again", lambda: net.infer_shape(**shapes))
    timed("lower", lambda: jfit.lower(net))
    text = timed("tojson", net.tojson)
    timed("load", lambda: sym.load_json(text))
    return {"nodes": len(net.nodes()), **seconds}


def main(nodes: int) -> None:
    """Print the table."""
    for make in (residual, unrolled):
        times = measure(make, nodes)
        print(f"{make.__name__:<10}{times.pop('nodes'):>6.0f} nodes  " + "  ".join(f"{k} {v:.2f} s" for k, v in times.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000)
