"""Counting entries: histogram, entries that are not zero."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jfit.ops.attributes import DTYPES, maybe_integer, numbers
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, lost_rows
from jfit.ops.rules import dtype_of, positive, removed


def _histogram_inputs(attrs):
    return ("data",) if attrs.bin_cnt is not None else ("data", "bins")


@operator(
    "_histogram",
    inputs=_histogram_inputs,
    outputs=("output0", "output1"),
    attrs={"bin_cnt": maybe_integer(None), "range": numbers(())},
    types=lambda attrs, ins: ([ins[0]] * len(ins), [DTYPES["int64"], ins[0]]),
    rows=lost_rows,
)
def histogram(ctx, attrs, data, bins=None):
    """y₀[k] = how many entries lie in [edge k, edge k + 1), the last one with its upper edge; y₁ = the edges."""
    if bins is None:
        if len(attrs.range) != 2 or attrs.bin_cnt < 1:
            raise ValueError(
                f"bin_cnt is {attrs.bin_cnt} and range {attrs.range}, needed a bin or more and (low, high); pass both, or bins"
            )
        bins = jnp.asarray(np.linspace(attrs.range[0], attrs.range[1], attrs.bin_cnt + 1), data.dtype)
    entries = data.reshape(-1)
    count = bins.shape[0] - 1
    at = jnp.searchsorted(bins, entries, side="right").astype(jnp.int32) - 1
    inside = (entries >= bins[0]) & (entries <= bins[-1])
    at = jnp.where(inside, jnp.minimum(at, count - 1), count)
    return jnp.zeros((count + 1,), dtype_of("int64")).at[at].add(1)[:-1], bins


def _nnz_rows(attrs, rows, shapes, outs):
    if attrs.axis is None:
        return [LOST if rows[0] is not None else None]
    return [removed(rows[0], (positive(attrs.axis, len(shapes[0])),))]


@operator(
    "_contrib_getnnz",
    attrs={"axis": maybe_integer(None)},
    types=lambda attrs, ins: (ins, [DTYPES["int64"]]),
    rows=_nnz_rows,
)
def getnnz(ctx, attrs, data):
    """y = how many entries of a matrix are not zero, in all or along an axis."""
    axis = None if attrs.axis is None else positive(attrs.axis, data.ndim)
    found = jnp.sum(data != 0, axis, dtype=dtype_of("int64"))
    return found.reshape((1,)) if found.ndim == 0 else found
