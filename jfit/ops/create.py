"""Arrays made from nothing: _zeros, _ones, _full, _arange.  A size of 0 in `shape` is filled in by shape inference."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from jfit.ops.attributes import choice, flag, integer, maybe_number, number, shape, text
from jfit.ops.registry import operator
from jfit.ops.rows import no_rows
from jfit.ops.rules import dtype_of, made_types

MADE = ["bfloat16", "bool", "float16", "float32", "float64", "int32", "int64", "int8", "uint8"]
RANGED = [name for name in MADE if name != "bool"]
RECORD: dict[str, Any] = {"inputs": (), "types": made_types, "rows": no_rows}
SHAPED = {"shape": shape(()), "ctx": text(""), "dtype": choice(*MADE, default="float32")}


@operator("_zeros", attrs=SHAPED, **RECORD)
def zeros(ctx, attrs):
    """y = 0 everywhere."""
    return jnp.zeros(attrs.shape, dtype_of(attrs.dtype))


@operator("_ones", attrs=SHAPED, **RECORD)
def ones(ctx, attrs):
    """y = 1 everywhere."""
    return jnp.ones(attrs.shape, dtype_of(attrs.dtype))


@operator("_full", attrs=SHAPED | {"value": number()}, **RECORD)
def full(ctx, attrs):
    """y = value everywhere."""
    return jnp.full(attrs.shape, attrs.value, dtype_of(attrs.dtype))


@operator(
    "_arange",
    attrs={
        "start": number(),
        "stop": maybe_number(None),
        "step": number(1.0),
        "repeat": integer(1),
        "infer_range": flag(False),
        "ctx": text(""),
        "dtype": choice(*RANGED, default="float32"),
    },
    **RECORD,
)
def arange(ctx, attrs):
    """y = start, start + step, ... below stop, each `repeat` times; without stop from 0 to start."""
    if attrs.infer_range:
        raise ValueError("infer_range leaves the size open, jfit needs it before a call; pass stop")
    start, stop = (0.0, attrs.start) if attrs.stop is None else (attrs.start, attrs.stop)
    count = max(math.ceil((stop - start) / attrs.step), 0)
    values = start + attrs.step * jnp.arange(count, dtype=dtype_of("float64"))
    return jnp.repeat(values, attrs.repeat).astype(dtype_of(attrs.dtype))
