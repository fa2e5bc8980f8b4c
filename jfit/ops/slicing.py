"""Concatenating and slicing arrays along an axis: Concat, stack, SliceChannel, slice, ..."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jfit.ops.attributes import flag, integer, maybe_integer, shape
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import (
    SEVERAL_INPUTS,
    common_rows,
    drop_axes,
    first_types,
    insert_axis,
    normalize_axis,
    numbered_outputs,
    same_shape,
    same_size_rows,
    unify,
)


def _concat_shapes(attrs, ins, outs):
    reference = next((s for s in [*outs, *ins] if s is not None), None)
    if reference is None:
        return ins
    axis = normalize_axis(attrs.dim, len(reference), "dim")
    blank = [None if s is None else s[:axis] + (0,) + s[axis + 1 :] for s in [*ins, *outs]]
    common = unify(blank, f"only axis {axis} may differ between concatenated arrays")
    assert common is not None
    filled = [common if s is None else (*common[:axis], s[axis], *common[axis + 1 :]) for s in ins]
    sizes = [s[axis] for s in filled]
    if outs[0] is not None and outs[0][axis] and sizes.count(0) == 1:  # infer a single unknown size from the output's size
        at = sizes.index(0)
        rest = outs[0][axis] - sum(sizes)
        filled[at] = (*common[:axis], max(rest, 0), *common[axis + 1 :])
    return filled


def _weight_shapes(attrs, ins, outs):
    """Infer input shapes of `_rnn_param_concat`, where all unknown sizes are equal (the input weights of both directions)."""
    filled = _concat_shapes(attrs, ins, outs)
    if outs[0] is None or any(s is None for s in filled):
        return filled
    axis = normalize_axis(attrs.dim, len(outs[0]), "dim")
    missing = [i for i, s in enumerate(filled) if not s[axis]]
    share, odd = divmod(outs[0][axis] - sum(s[axis] for s in filled), max(len(missing), 1))
    for i in missing if share > 0 and not odd else ():
        filled[i] = (*filled[i][:axis], share, *filled[i][axis + 1 :])
    return filled


def _concat_rows(attrs, rows, shapes, outs):
    layout = common_rows(rows)
    lost = isinstance(layout, RowLayout) and layout.axis == normalize_axis(attrs.dim, len(outs[0]), "dim")
    return [LOST if lost else layout]


CONCAT = SEVERAL_INPUTS | {"attrs": {"num_args": integer(), "dim": integer(1)}, "rows": _concat_rows}


@operator("_rnn_param_concat", fill=_weight_shapes, **CONCAT)
@operator("Concat", aliases=("concat", "_sparse_concat"), fill=_concat_shapes, **CONCAT)
def concat(ctx, attrs, *args):
    """y = the arrays concatenated along axis `dim`."""
    return jnp.concatenate(args, normalize_axis(attrs.dim, args[0].ndim, "dim"))


@operator(
    "stack",
    attrs={"axis": integer(0), "num_args": integer()},
    fill=lambda attrs, ins, outs: same_shape(attrs, ins, []),
    rows=lambda attrs, rows, shapes, outs: [insert_axis(common_rows(rows), normalize_axis(attrs.axis, len(outs[0])))],
    **SEVERAL_INPUTS,
)
def stack(ctx, attrs, *args):
    """y = the arrays, all of the same shape, stacked along a new axis."""
    return jnp.stack(args, normalize_axis(attrs.axis, args[0].ndim + 1))


def _part_rows(attrs, rows, shapes, outs):
    r, axis = rows[0], normalize_axis(attrs.axis, len(shapes[0]))
    return [drop_axes(r, (axis,), not attrs.squeeze_axis) if len(outs) > 1 or attrs.squeeze_axis else r] * len(outs)


def _parts_back(attrs, ins, outs):
    """Infer the shape of the data from that of any known output, because all outputs have the same shape."""
    known = [o for o in outs if o is not None]
    if not known:
        return ins
    part: Any = unify(known, "all outputs have the same shape")
    count = attrs.num_outputs
    axis = normalize_axis(attrs.axis, len(part) + attrs.squeeze_axis)
    size = (count, *part[axis:]) if attrs.squeeze_axis else (count * part[axis], *part[axis + 1 :])
    return [unify([ins[0], (*part[:axis], *size)], "the outputs determine the shape of the data")]


@operator(
    "SliceChannel",
    outputs=lambda attrs: numbered_outputs(attrs.num_outputs),
    fill=_parts_back,
    attrs={"num_outputs": integer(), "axis": integer(1), "squeeze_axis": flag(False)},
    aliases=("split",),
    rows=_part_rows,
)
def slice_channel(ctx, attrs, data):
    """yᵢ = the i-th of num_outputs equal parts along the axis."""
    axis = normalize_axis(attrs.axis, data.ndim)
    parts = jnp.split(data, attrs.num_outputs, axis)
    return tuple(jnp.squeeze(p, axis) for p in parts) if attrs.squeeze_axis else tuple(parts)


def slices(attrs: Any) -> tuple[slice, ...]:
    """Convert the attributes begin, end and step to Python slices, one for each of the leading axes."""
    step = (*attrs.step, *(None,) * (len(attrs.begin) - len(attrs.step)))
    return tuple(slice(b, e, s or None) for b, e, s in zip(attrs.begin, attrs.end, step, strict=True))


def slice_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the output (`RowLayout`).

    As in the inputs if the slice covers the whole axis of the rows, else LOST (they cannot be distinguished any more).
    """
    for r in rows:
        if isinstance(r, RowLayout) and r.axis < len(attrs.begin):
            size = shapes[0][r.axis]
            if slices(attrs)[r.axis].indices(size) != (0, size, 1):
                return [LOST]
    return [common_rows(rows)]


SLICE = {"begin": shape(), "end": shape(), "step": shape(())}


@operator("slice", attrs=SLICE, aliases=("crop", "_npx_slice", "_sparse_slice"), rows=slice_rows)
def slice_(ctx, attrs, data):
    """y = x[begin:end:step] along each of the leading axes; None is the start or end of the axis."""
    return data[slices(attrs)]


@operator("slice_axis", attrs={"axis": integer(), "begin": integer(), "end": maybe_integer()}, rows=same_size_rows)
def slice_axis(ctx, attrs, data):
    """y = x[begin:end] along one axis; end None is the end of the axis."""
    axis = normalize_axis(attrs.axis, data.ndim)
    return data[(slice(None),) * axis + (slice(attrs.begin, attrs.end),)]


@operator("slice_like", attrs={"axes": shape(())}, types=first_types, rows=same_size_rows)
def slice_like(ctx, attrs, data, shape_like):
    """y = x truncated to the sizes of shape_like along all axes, or along `axes`."""
    axes = [normalize_axis(a, data.ndim, "axes") for a in attrs.axes] or range(min(data.ndim, shape_like.ndim))
    for a in axes:
        data = lax.slice_in_dim(data, 0, shape_like.shape[a], axis=a)
    return data


@operator(
    "_split_v2",
    outputs=lambda attrs: numbered_outputs(attrs.sections or len(attrs.indices)),
    attrs={"indices": shape(()), "axis": integer(1), "squeeze_axis": flag(False), "sections": integer(0)},
    aliases=("split_v2",),
    rows=lambda attrs, rows, shapes, outs: (
        [drop_axes(rows[0], (normalize_axis(attrs.axis, len(shapes[0])),), not attrs.squeeze_axis)] * len(outs)
    ),
)
def split_v2(ctx, attrs, data):
    """yᵢ = the i-th of `sections` equal parts, or the part that begins at indices[i], along the axis."""
    axis = normalize_axis(attrs.axis, data.ndim)
    if attrs.sections:
        parts = jnp.split(data, attrs.sections, axis)
    else:  # unlike in jnp.split, what is before the first index is no part, and indices may be negative or past the end
        bounds = zip(attrs.indices, (*attrs.indices[1:], None), strict=True)
        parts = [data[(slice(None),) * axis + (slice(*ends),)] for ends in bounds]
    return tuple(jnp.squeeze(p, axis) if attrs.squeeze_axis else p for p in parts)
