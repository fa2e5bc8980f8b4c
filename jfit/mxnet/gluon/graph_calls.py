"""Calls of the graphs of hybridized blocks."""

from __future__ import annotations

from typing import Any

import jax

from jfit.mxnet.errors import translated
from jfit.mxnet.executor.programs import programs_of
from jfit.mxnet.keys import next_key
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.invoke import on_device


def call_graph(symbol: Any, arrays: dict[str, NDArray], hook: tuple[Any, bool] | None = None) -> list[NDArray]:
    """Call a graph with NDArrays by name and return its outputs; in jfit.mxnet.autograd soon."""
    programs = programs_of(symbol.heads)
    args = {n: on_device(arrays[n]) for n in symbol.list_arguments()}
    aux = {n: on_device(arrays[n]) for n in symbol.list_auxiliary_states()}
    key = jax.random.key_data(next_key() if programs.random else jax.random.key(0))
    program: Any = translated()(programs.forward(False))
    return [NDArray(v) for v in program(args, aux, key)]
