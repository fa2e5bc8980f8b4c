"""Calls of the graphs of hybridized blocks."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.invoke import run
from jfit.mxnet.recording.calls import graph_call


def call_graph(symbol: Any, arrays: dict[str, NDArray]) -> list[NDArray]:
    """Call a graph with NDArrays by name, as one operation that is recorded; returns its outputs."""
    call, names = graph_call(symbol)
    inputs, kind = [], NDArray
    for name in names:
        inputs.append(array := arrays[name])
        if array._kind is not NDArray:  # mx.np.ndarray if one of them is
            kind = array._kind
    return run(call, inputs, kind)
