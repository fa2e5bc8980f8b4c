"""Operators that rearrange, repeat or pad the entries of an array: Reshape, transpose, broadcast_to, tile, Pad, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from jfit.ops.attributes import choice, flag, integer, maybe_integer, maybe_shape, number, shape
from jfit.ops.registry import operator
from jfit.ops.rows import RowLayout, reshape_rows
from jfit.ops.rules import first_types, insert_axis, normalize_axis, same_size_rows, unify, unmixed

Shape = tuple[int, ...]


def _reshaped_rows(attrs, rows, shapes, outs):
    return [reshape_rows(rows[0], shapes[0], outs[0])]


def reshape_target(source: Shape, codes: Sequence[int], reverse: bool = False) -> Shape:
    """Evaluate the shape attribute of MXNet's Reshape, which mixes sizes and special codes.

    0 copies the next size of the source, -1 is inferred from the number of entries, -2 copies all remaining sizes, -3 merges
    the next two axes, -4 splits the next axis into the two sizes that follow the code (one of them may be -1).

    Args:
        source: shape of the data.
        codes: sizes and codes of the target shape.
        reverse: match codes and sizes from the right instead of from the left.

    Returns:
        The target shape, all sizes known.

    Raises:
        ValueError: the codes are invalid, or do not fit the source shape.

    Example:
        >>> reshape_target((2, 6, 4), (0, -4, 2, -1, 0))
        (2, 2, 3, 4)
        >>> reshape_target((10, 5, 4), (-1, 0), reverse=True)
        (50, 4)

    Source: MXNet 1.9.1, Reshape.
    """
    groups, sizes = _groups(codes[::-1] if reverse else codes), list(source[::-1] if reverse else source)
    try:
        target = _apply_codes(sizes, groups)
    except (IndexError, ValueError):  # more axes than the data has; -4 without two sizes
        target = [-1, -1]
    if target.count(-1) == 1:
        rest = math.prod(t for t in target if t != -1)
        target[target.index(-1)] = math.prod(source) // rest if rest else 0
    if -1 in target or math.prod(target) != math.prod(source):
        raise ValueError(f"data of shape {source} cannot be reshaped to {tuple(codes)}; see Reshape for the codes 0 to -4")
    return tuple(reversed(target)) if reverse else tuple(target)


def _groups(codes: Sequence[int]) -> list[tuple[int, ...]]:
    """Split shape codes into groups: -4 with the two sizes after it, every other code alone."""
    groups: list[tuple[int, ...]] = []
    at = 0
    while at < len(codes):
        groups.append(tuple(codes[at : at + (3 if codes[at] == -4 else 1)]))
        at += len(groups[-1])
    return groups


def _apply_codes(sizes: list[int], groups: Sequence[tuple[int, ...]]) -> list[int]:
    target: list[int] = []
    at = 0
    for code, *split in groups:
        if code == -2:
            target += sizes[at:]
            at = len(sizes)
        elif code == -3:
            target.append(sizes[at] * sizes[at + 1])
            at += 2
        elif code == -4:
            first, second = split
            first = sizes[at] // second if first == -1 else first
            target += [first, sizes[at] // first if second == -1 else second]
            at += 1
        else:
            target.append(sizes[at] if code == 0 else code)
            at += 1
    return target


def _reshape_back(attrs, ins, outs):
    """Infer the input shapes: a single unknown size of the data follows from the number of entries of the output."""
    data, out = ins[0], outs[0]
    if data is None or out is None or data.count(0) != 1 or 0 in out:
        return ins
    known_size = math.prod(d for d in data if d)
    return [tuple(d or math.prod(out) // known_size for d in data)] if math.prod(out) % known_size == 0 else ins


@operator(
    "Reshape",
    attrs={"shape": shape(()), "reverse": flag(False), "target_shape": shape(()), "keep_highest": flag(False)},
    aliases=("reshape",),
    fill=_reshape_back,
    rows=_reshaped_rows,
)
def reshape(ctx, attrs, data):
    """y = x reshaped in C order; the codes 0, -1, -2, -3, -4 copy a size, infer one, copy the rest, merge two, split one."""
    if attrs.shape:
        return data.reshape(reshape_target(data.shape, attrs.shape, attrs.reverse))
    # the deprecated form, in which one size 0 is inferred from the number of entries
    sizes = (data.shape[0], *attrs.target_shape[1:]) if attrs.keep_highest else attrs.target_shape
    return data.reshape(reshape_target(data.shape, [-1 if t == 0 else t for t in sizes]))


def _flatten_back(attrs, ins, outs):
    data, out = ins[0], outs[0]
    return ins if not data or out is None else [(data[0] or out[0], *data[1:])]


@operator("Flatten", aliases=("flatten", "_npx_batch_flatten"), fill=_flatten_back, rows=_reshaped_rows)
def flatten(ctx, attrs, data):
    """y = x reshaped to (n, product of the other sizes), n the size of the first axis."""
    return data.reshape((data.shape[0], math.prod(data.shape[1:])))


def _like_part(attrs, lhs, rhs):
    begin, end = (attrs.lhs_begin or 0), len(lhs) if attrs.lhs_end is None else attrs.lhs_end
    from_begin, from_end = (attrs.rhs_begin or 0), len(rhs) if attrs.rhs_end is None else attrs.rhs_end
    begin, end = (v + len(lhs) * (v < 0) for v in (begin, end))
    return lhs[:begin] + rhs[slice(from_begin, from_end)] + lhs[end:]


@operator(
    "reshape_like",
    attrs={k: maybe_integer(None) for k in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end")},
    aliases=("_npx_reshape_like",),
    types=first_types,
    rows=_reshaped_rows,
)
def reshape_like(ctx, attrs, lhs, rhs):
    """y = lhs reshaped to the shape of rhs; or its axes [lhs_begin, lhs_end) to the sizes of rhs's [rhs_begin, rhs_end)."""
    return lhs.reshape(_like_part(attrs, lhs.shape, rhs.shape))


def transposed(attrs, ndim):
    """Return the axes of the data in the order of the result of `transpose`."""
    return tuple(normalize_axis(a, ndim, "axes") for a in attrs.axes) or tuple(reversed(range(ndim)))


def _moved(rows, order):
    return rows._replace(axis=order.index(rows.axis)) if isinstance(rows, RowLayout) else rows


def _transpose_back(attrs, ins, outs):
    out = outs[0]
    if out is None or (attrs.axes and len(attrs.axes) != len(out)):
        return ins
    order = transposed(attrs, len(out))
    return [unify([ins[0], tuple(out[order.index(a)] for a in range(len(out)))], "a transpose keeps the sizes")]


@operator(
    "transpose",
    attrs={"axes": shape(())},
    fill=_transpose_back,
    rows=lambda attrs, rows, shapes, outs: [_moved(rows[0], transposed(attrs, len(shapes[0])))],
)
def transpose(ctx, attrs, data):
    """y = x with its axes permuted to the order `axes`; without `axes`, reversed."""
    return jnp.transpose(data, transposed(attrs, data.ndim))


def swapped(attrs, ndim):
    """Return the axes of the data in the order of the result of `SwapAxis`."""
    order = list(range(ndim))
    a, b = normalize_axis(attrs.dim1, ndim, "dim1"), normalize_axis(attrs.dim2, ndim, "dim2")
    order[a], order[b] = b, a
    return order


@operator(
    "SwapAxis",
    attrs={"dim1": integer(0), "dim2": integer(0)},
    aliases=("swapaxes",),
    rows=lambda attrs, rows, shapes, outs: [_moved(rows[0], swapped(attrs, len(shapes[0])))],
)
def swap_axis(ctx, attrs, data):
    """y = x with axes dim1 and dim2 exchanged."""
    return jnp.transpose(data, swapped(attrs, data.ndim))


def _expand_back(attrs, ins, outs):
    out = outs[0]
    if not out:
        return ins
    axis = normalize_axis(attrs.axis, len(out))
    return [unify([ins[0], out[:axis] + out[axis + 1 :]], "expand_dims keeps the sizes") if len(out) > 1 else ins[0]]


@operator(
    "expand_dims",
    attrs={"axis": integer()},
    fill=_expand_back,
    rows=lambda attrs, rows, shapes, outs: [insert_axis(rows[0], normalize_axis(attrs.axis, len(shapes[0]) + 1))],
)
def expand_dims(ctx, attrs, data):
    """y = x with a new axis of size 1 at position `axis`."""
    return jnp.expand_dims(data, normalize_axis(attrs.axis, data.ndim + 1))


@operator("squeeze", attrs={"axis": maybe_shape(None)}, rows=_reshaped_rows)
def squeeze(ctx, attrs, data):
    """y = x without its axes of size 1, or without the ones listed in `axis`."""
    ones = tuple(a for a, d in enumerate(data.shape) if d == 1)  # jnp.squeeze(data) refuses a symbolic batch size
    return jnp.atleast_1d(jnp.squeeze(data, ones if attrs.axis is None else attrs.axis))


@operator("broadcast_to", attrs={"shape": shape(())}, rows=same_size_rows)
def broadcast_to(ctx, attrs, data):
    """y = x broadcast to `shape` along its axes of size 1; a 0 in shape keeps the size."""
    return jnp.broadcast_to(data, tuple(s or d for s, d in zip(attrs.shape, data.shape, strict=True)))


@operator("broadcast_axis", attrs={"axis": shape(()), "size": shape(())}, aliases=("broadcast_axes",), rows=same_size_rows)
def broadcast_axis(ctx, attrs, data):
    """y = x broadcast along the axes `axis`, which must have size 1, to the sizes `size`."""
    sizes = dict(zip((normalize_axis(a, data.ndim) for a in attrs.axis), attrs.size, strict=True))
    return jnp.broadcast_to(data, tuple(sizes.get(a, d) for a, d in enumerate(data.shape)))


@operator(
    "broadcast_like",
    attrs={"lhs_axes": maybe_shape(None), "rhs_axes": maybe_shape(None)},
    types=first_types,
    rows=same_size_rows,
)
def broadcast_like(ctx, attrs, lhs, rhs):
    """y = lhs broadcast to the shape of rhs, or along lhs_axes to the sizes of rhs's axes rhs_axes."""
    if attrs.lhs_axes is None:
        return jnp.broadcast_to(lhs, rhs.shape)
    sizes = {normalize_axis(a, lhs.ndim): rhs.shape[b] for a, b in zip(attrs.lhs_axes, attrs.rhs_axes, strict=True)}
    return jnp.broadcast_to(lhs, tuple(sizes.get(a, d) for a, d in enumerate(lhs.shape)))


def _tile_rows(attrs, rows, shapes, outs):
    r = rows[0]
    if not isinstance(r, RowLayout):
        return [r]
    ndim = len(outs[0])
    reps = (1,) * (ndim - len(attrs.reps)) + attrs.reps
    axis = r.axis + ndim - len(shapes[0])
    return [RowLayout(axis, r.before * reps[axis], r.size, r.after)]


@operator("tile", attrs={"reps": shape()}, rows=_tile_rows)
def tile(ctx, attrs, data):
    """y = x tiled reps[k] times along axis k."""
    if any(r < 1 for r in attrs.reps):
        raise ValueError(f"reps is {attrs.reps}, expected positive numbers")
    return jnp.tile(data, attrs.reps)


def _repeat_rows(attrs, rows, shapes, outs):
    r = rows[0]
    if attrs.axis is None:
        r = reshape_rows(r, shapes[0], (math.prod(shapes[0]),))
    axis = 0 if attrs.axis is None else normalize_axis(attrs.axis, len(shapes[0]))
    if isinstance(r, RowLayout) and r.axis == axis:
        return [r._replace(after=r.after * attrs.repeats)]
    return [r]


@operator("repeat", attrs={"repeats": integer(), "axis": maybe_integer(None)}, rows=_repeat_rows)
def repeat(ctx, attrs, data):
    """y = x with every entry repeated `repeats` times in a row along the axis; without axis the data is flattened first."""
    return jnp.repeat(data, attrs.repeats, axis=attrs.axis)


@operator(
    "reverse",
    attrs={"axis": shape()},
    aliases=("flip",),
    rows=unmixed(lambda attrs, ndim: [normalize_axis(a, ndim) for a in attrs.axis]),
)
def reverse(ctx, attrs, data):
    """y = x in reverse order along the axes."""
    return jnp.flip(data, tuple(normalize_axis(a, data.ndim) for a in attrs.axis))


@operator(
    "Pad",
    attrs={"mode": choice("constant", "edge", "reflect"), "pad_width": shape(), "constant_value": number(0.0)},
    aliases=("pad",),
    rows=same_size_rows,
)
def pad(ctx, attrs, data):
    """y = x padded by pad_width = (before, after) of each axis in turn, with a constant, the edge entry or a reflection."""
    if len(attrs.pad_width) != 2 * data.ndim:  # jnp.pad would pad every axis by a single pair
        raise ValueError(f"pad_width has {len(attrs.pad_width)} numbers, expected {2 * data.ndim}, two for each axis")
    widths = list(zip(attrs.pad_width[::2], attrs.pad_width[1::2], strict=True))
    extra = {"constant_values": attrs.constant_value} if attrs.mode == "constant" else {}
    return jnp.pad(data, widths, mode=attrs.mode, **extra)


def _block_size(attrs, data):
    if attrs.block_size < 1 or 0 in data.shape[1:]:
        raise ValueError(f"block_size is {attrs.block_size} and data has shape {data.shape}; expected positive sizes")
    return attrs.block_size


@operator("depth_to_space", attrs={"block_size": integer()}, rows=unmixed(lambda attrs, ndim: range(1, ndim)))
def depth_to_space(ctx, attrs, data):
    """y[n, c, h b + i, w b + j] = x[n, (i b + j) C + c, h, w]: b² channels become a block of b x b pixels, b = block_size."""
    b, (n, c, h, w) = _block_size(attrs, data), data.shape
    parts = data.reshape((n, b, b, c // (b * b), h, w))
    return parts.transpose((0, 3, 4, 1, 5, 2)).reshape((n, c // (b * b), h * b, w * b))


@operator("space_to_depth", attrs={"block_size": integer()}, rows=unmixed(lambda attrs, ndim: range(1, ndim)))
def space_to_depth(ctx, attrs, data):
    """y[n, (i b + j) C + c, h, w] = x[n, c, h b + i, w b + j]: a block of b x b pixels becomes b² channels, b = block_size."""
    b, (n, c, h, w) = _block_size(attrs, data), data.shape
    parts = data.reshape((n, c, h // b, b, w // b, b))
    return parts.transpose((0, 3, 5, 1, 2, 4)).reshape((n, c * b * b, h // b, w // b))
