"""Matrix products: dot and batch_dot."""

from __future__ import annotations

import jax.numpy as jnp

from jfit.ops.attributes import flag, maybe_choice
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, Rows
from jfit.ops.rules import agreed

ATTRS = {
    "transpose_a": flag(False),
    "transpose_b": flag(False),
    "forward_stype": maybe_choice("csr", "default", "row_sparse"),
}


def _contracted(attrs, ndim_a, ndim_b):
    """The axes that a dot product sums over."""
    return 0 if attrs.transpose_a else ndim_a - 1, ndim_b - 1 if attrs.transpose_b else 0


def _meet(attrs, lhs, rhs, a, b):
    """Both shapes with the summed size filled in from each other."""
    if 0 not in (lhs[a], rhs[b]) and lhs[a] != rhs[b]:
        flags = f"transpose_a={attrs.transpose_a}, transpose_b={attrs.transpose_b}"
        raise ValueError(
            f"lhs has shape {lhs} and rhs {rhs}, sizes {lhs[a]} and {rhs[b]} must be equal because they are summed over "
            f"({flags}); transpose or reshape one of them"
        )
    size = lhs[a] or rhs[b]
    return [(*lhs[:a], size, *lhs[a + 1 :]), (*rhs[:b], size, *rhs[b + 1 :])]


def _dot_shapes(attrs, ins, outs):
    lhs, rhs = ins
    if lhs is None or rhs is None or not lhs or not rhs:
        return ins
    return _meet(attrs, lhs, rhs, *_contracted(attrs, len(lhs), len(rhs)))


def _dot_rows(attrs, rows, shapes, outs):
    a, b = _contracted(attrs, len(shapes[0]), len(shapes[1]))
    lhs, rhs = rows
    if lhs is None and rhs is None:
        return [None]
    if rhs is None and isinstance(lhs, Rows) and lhs.axis != a:
        return [lhs._replace(axis=lhs.axis - (lhs.axis > a))]
    if lhs is None and isinstance(rhs, Rows) and rhs.axis != b:
        return [rhs._replace(axis=len(shapes[0]) - 1 + rhs.axis - (rhs.axis > b))]
    return [LOST]


@operator("dot", inputs=("lhs", "rhs"), attrs=ATTRS, aliases=("_sparse_dot",), fill=_dot_shapes, rows=_dot_rows)
def dot(ctx, attrs, lhs, rhs):
    """y = lhs · rhs, summed over the last axis of lhs (first with transpose_a) and the first of rhs (last with transpose_b)."""
    a, b = _contracted(attrs, lhs.ndim, rhs.ndim)
    result = jnp.tensordot(lhs, rhs, axes=((a,), (b,)))
    return result.reshape((1,)) if result.ndim == 0 else result


def _batch_axes(attrs, ndim):
    return ndim - 2 if attrs.transpose_a else ndim - 1, ndim - 1 if attrs.transpose_b else ndim - 2


def _batch_dot_shapes(attrs, ins, outs):
    lhs, rhs = ins
    if lhs is None or rhs is None:
        return ins
    if len(lhs) != len(rhs) or len(lhs) < 3:
        raise ValueError(
            f"lhs has shape {lhs} and rhs {rhs}, batch_dot needs two stacks of matrices of as many axes (three or more); "
            "reshape them or use dot"
        )
    for a, b in zip(lhs[:-2], rhs[:-2], strict=True):
        if 0 not in (a, b) and a != b:
            raise ValueError(f"lhs has shape {lhs} and rhs {rhs}, their leading sizes must be equal; reshape one of them")
    lead = tuple(a or b for a, b in zip(lhs[:-2], rhs[:-2], strict=True))
    return _meet(attrs, lead + lhs[-2:], lead + rhs[-2:], *_batch_axes(attrs, len(lhs)))


def _batch_dot_rows(attrs, rows, shapes, outs):
    together = agreed(rows)
    if isinstance(together, Rows) and together.axis >= len(outs[0]) - 2:
        return [LOST]
    return [together]


@operator(
    "batch_dot",
    inputs=("lhs", "rhs"),
    attrs=ATTRS,
    aliases=("_npx_batch_dot",),
    fill=_batch_dot_shapes,
    rows=_batch_dot_rows,
)
def batch_dot(ctx, attrs, lhs, rhs):
    """y[n] = lhs[n] rhs[n], a product of matrices for each n."""
    a = jnp.swapaxes(lhs, -1, -2) if attrs.transpose_a else lhs
    b = jnp.swapaxes(rhs, -1, -2) if attrs.transpose_b else rhs
    return jnp.matmul(a, b)
