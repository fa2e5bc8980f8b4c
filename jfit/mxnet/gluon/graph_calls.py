"""Calls of the graphs of hybridized blocks."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.invoke import run
from jfit.mxnet.recording.calls import graph_call


def call_graph(symbol: Any, arrays: dict[str, NDArray]) -> list[NDArray]:
    """Call a graph with NDArrays by name, as one operation that is recorded; returns its outputs."""
    call, names = graph_call(symbol)
    inputs = [arrays[name] for name in names]
    kind = next((a._kind for a in inputs if a._kind is not NDArray), NDArray)  # mx.np.ndarray if one of them is
    return run(call, inputs, kind)
