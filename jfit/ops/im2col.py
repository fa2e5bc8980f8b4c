"""Patches of images as columns, and columns added up to images."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import Attrs, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rules import batch_rows


def _geometry(op: str, attrs: Attrs, sizes: tuple[int, ...]) -> list[tuple[int, int, int, int, int]]:
    """(kernel, stride, dilate, pad, windows) of each spatial axis."""
    dims, found = len(attrs.kernel), []
    if len(sizes) != dims:
        raise ValueError(f"{op}: kernel is {attrs.kernel}, needed one entry for each of the {len(sizes)} spatial axes")
    given = [attrs.stride or (1,) * dims, attrs.dilate or (1,) * dims, attrs.pad or (0,) * dims]
    for n, k, s, d, p in zip(sizes, attrs.kernel, *given, strict=True):
        reach = d * (k - 1) + 1
        if n + 2 * p < reach:
            raise ValueError(
                f"{op}: a kernel that reaches over {reach} entries does not fit {n} entries with pad {p}; pad more, or make "
                "kernel or dilate smaller"
            )
        found.append((k, s, d, p, (n + 2 * p - reach) // s + 1))
    return found


def _columns(geometry: list[tuple[int, int, int, int, int]], data: Array) -> Array:
    """(rows, channels * kernel entries, windows): channels first, then the kernel's entries in reading order."""
    padded = jnp.pad(data, ((0, 0), (0, 0), *((p, p) for _, _, _, p, _ in geometry)))
    taps = []
    for tap in itertools.product(*(range(k) for k, *_ in geometry)):
        places = zip(tap, geometry, strict=True)
        cut = tuple(slice(t * d, t * d + (count - 1) * s + 1, s) for t, (_, s, d, _, count) in places)
        taps.append(padded[(slice(None), slice(None), *cut)])
    windows = math.prod(count for *_, count in geometry)
    return jnp.stack(taps, axis=2).reshape(data.shape[0], -1, windows)


_ATTRS = {"kernel": shape(), "stride": shape(()), "dilate": shape(()), "pad": shape(())}


@operator("im2col", attrs=_ATTRS, rows=batch_rows)
def im2col(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[n, (c, k), w] = x[n, c, start of window w + k]: the patches a convolution sees, a column a window."""
    return _columns(_geometry("im2col", attrs, data.shape[2:]), data)


@operator("col2im", attrs={"output_size": shape(), **_ATTRS}, rows=batch_rows)
def col2im(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = im2colᵀ(x): every entry of a column is added where im2col took it from; `output_size` is the image's."""
    geometry = _geometry("col2im", attrs, attrs.output_size)
    taps, windows = math.prod(attrs.kernel), math.prod(count for *_, count in geometry)
    if data.ndim != 3 or data.shape[1] % taps or data.shape[2] != windows:
        raise ValueError(
            f"col2im: data has shape {data.shape}, needed (rows, channels * {taps}, {windows}) because kernel, stride, dilate "
            "and pad make so many windows of output_size; change one of them"
        )
    image = jax.ShapeDtypeStruct((data.shape[0], data.shape[1] // taps, *attrs.output_size), data.dtype)
    (out,) = jax.linear_transpose(lambda x: _columns(geometry, x), image)(data)
    return out
