"""Pictures as arrays (height, width, channels), alone or in a batch: to tensor, normalise, crop, resize, flip, light."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import DTYPES, Attrs, flag, integer, numbers, shape
from jfit.ops.context import Ctx
from jfit.ops.interpolation import resized
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import along

# principal components of the colours of ImageNet, each times its standard deviation (Krizhevsky et al. 2012)
SHARES = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], np.float32)
COLOURS = SHARES * np.array([55.46, 4.794, 1.148], np.float32)


# ------------------------------------------------------------------------------------------ what all share
def need_picture(op: str, data: Array, axes: str = "(height, width, channels)") -> None:
    """Raise a sentence unless data is a picture or a batch of them."""
    if data.ndim not in (3, 4):
        raise ValueError(f"{op}: data has shape {data.shape}, needed a picture {axes} or a batch of them; reshape the data")


def batch_only(attrs: Any, rows: Any, shapes: Any, outs: Any) -> list:
    """Rows of a batch of pictures stay on axis 0; within one picture they are lost."""
    first = rows[0]
    if isinstance(first, RowLayout) and (first.axis != 0 or len(shapes[0]) != 4):
        return [LOST]
    return [first]


def saturated(values: Array, dtype: Any) -> Array:
    """Floats in the dtype of a picture: integers are cut towards zero, bytes also to 0 ... 255."""
    if dtype == jnp.uint8:
        return jnp.clip(values, 0, 255).astype(dtype)
    return values.astype(dtype)


@jax.custom_vjp
def _instead(data: Array, changed: Array) -> Array:
    return changed


_instead.defvjp(lambda data, changed: (changed, None), lambda _, grad: (grad, jnp.zeros_like(grad)))


def straight(data: Array, changed: Array) -> Array:
    """`changed`, made from data, whose gradient MXNet hands to the data as it came: dx = dy."""
    return _instead(data, lax.stop_gradient(changed)) if jnp.issubdtype(data.dtype, jnp.floating) else changed


# ------------------------------------------------------------------------------------------ operators
@operator("_image_to_tensor", types=lambda attrs, ins: (ins, [DTYPES["float32"]]), rows=batch_only)
def to_tensor(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[c, h, w] = x[h, w, c] / 255 in float32."""
    need_picture("_image_to_tensor", data)
    return jnp.moveaxis(data, -1, -3).astype(jnp.float32) / 255


def _per_channel(name: str, values: tuple[float, ...], channels: int) -> Array:
    if len(set(values)) == 1:
        values = values[:1]
    if len(values) not in (1, channels):
        raise ValueError(
            f"_image_normalize: {name} is {values} and the data has {channels} channels, needed one value or one per channel; "
            f"change {name}"
        )
    return jnp.asarray(values, jnp.float32)


@operator(
    "_image_normalize",
    attrs={"mean": numbers((0.0, 0.0, 0.0, 0.0)), "std": numbers((1.0, 1.0, 1.0, 1.0))},
    rows=batch_only,
)
def normalize(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = (x - mean[c]) / std[c] of pictures (channels, height, width)."""
    need_picture("_image_normalize", data, "(channels, height, width)")
    mean, std = (along(_per_channel(k, attrs[k], data.shape[-3]), data.ndim - 3, data.ndim) for k in ("mean", "std"))
    return ((data - mean) / std).astype(data.dtype)


@operator(
    "_image_crop",
    attrs={"x": integer(), "y": integer(), "width": integer(), "height": integer()},
    rows=batch_only,
)
def crop(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x[y : y + height, x : x + width]."""
    need_picture("_image_crop", data)
    high, wide = data.shape[-3:-1]
    inside = 0 <= attrs.x < attrs.x + attrs.width <= wide and 0 <= attrs.y < attrs.y + attrs.height <= high
    if not inside:
        raise ValueError(
            f"_image_crop: the part {attrs.width} x {attrs.height} at ({attrs.x}, {attrs.y}) reaches beyond the picture of "
            f"{wide} x {high}, needed one inside; change x, y, width or height"
        )
    return data[..., attrs.y : attrs.y + attrs.height, attrs.x : attrs.x + attrs.width, :]


def new_size(attrs: Attrs, high: int, wide: int) -> tuple[int, int]:
    """(height, width) that `size` means: (width, height), or one number for both, or for the shorter side (keep_ratio)."""
    if len(attrs.size) not in (1, 2) or min(attrs.size) < 1:
        raise ValueError(f"_image_resize: size is {attrs.size}, needed one positive number or (width, height)")
    if len(attrs.size) == 2:
        return attrs.size[1], attrs.size[0]
    size = attrs.size[0]
    if not attrs.keep_ratio:
        return size, size
    return (size * high // wide, size) if high > wide else (size, size * wide // high)


@operator("_image_resize", attrs={"size": shape(()), "keep_ratio": flag(False), "interp": integer(1)}, rows=batch_only)
def resize(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x in another size: nearest entry, linear, cubic, area or Lanczos (interp 0 to 4, numbered as in OpenCV)."""
    need_picture("_image_resize", data)
    return resized("_image_resize", data, new_size(attrs, *data.shape[-3:-1]), attrs.interp)


@operator(
    "_cvimresize",
    inputs=("src",),
    attrs={"w": integer(), "h": integer(), "interp": integer(1)},
    rows=batch_only,
)
def cv_resize(ctx: Ctx, attrs: Attrs, src: Array) -> Array:
    """y = x of height h and width w, as _image_resize does it."""
    need_picture("_cvimresize", src)
    return resized("_cvimresize", src, (attrs.h, attrs.w), attrs.interp)


BORDERS = {1: "edge", 2: "symmetric", 3: "wrap", 4: "reflect"}  # as OpenCV numbers them; 0 is a constant


@operator(
    "_cvcopyMakeBorder",
    inputs=("src",),
    attrs={
        "top": integer(),
        "bot": integer(),
        "left": integer(),
        "right": integer(),
        "type": integer(0),
        "value": numbers((0.0,)),
        "values": numbers(()),
    },
    rows=batch_only,
)
def make_border(ctx: Ctx, attrs: Attrs, src: Array) -> Array:
    """y = x inside a border: a constant (type 0; `values` per channel), the edge, mirrored with and without it, or wrapped."""
    need_picture("_cvcopyMakeBorder", src)
    pads = [(0, 0)] * (src.ndim - 3) + [(attrs.top, attrs.bot), (attrs.left, attrs.right), (0, 0)]
    if attrs.type in BORDERS:
        return jnp.pad(src, pads, mode=BORDERS[attrs.type])
    if attrs.type != 0:
        raise ValueError(f"_cvcopyMakeBorder: type is {attrs.type}, needed 0 to 4 (constant, edge, symmetric, wrap, reflect)")
    values: Any = attrs["values"] or attrs["value"]
    if len(values) not in (1, src.shape[-1]):
        raise ValueError(f"_cvcopyMakeBorder: values is {values}, needed one per channel of {src.shape[-1]}")
    inside = jnp.pad(jnp.ones(src.shape[-3:-1], bool), pads[-3:-1])[..., None]
    colour = jnp.asarray(values, jnp.float32).astype(src.dtype).reshape((1,) * (src.ndim - 1) + (-1,))
    padded = jnp.pad(src, pads)
    inside = inside.reshape((1,) * (src.ndim - 3) + inside.shape)
    return jnp.where(inside, padded, jnp.broadcast_to(colour, padded.shape))


@operator("_image_flip_left_right", rows=batch_only)
def flip_left_right(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[h, w] = x[h, W - 1 - w]; the gradient is handed back unflipped, as MXNet does."""
    need_picture("_image_flip_left_right", data)
    return straight(data, jnp.flip(data, -2))


@operator("_image_flip_top_bottom", rows=batch_only)
def flip_top_bottom(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[h, w] = x[H - 1 - h, w]; the gradient is handed back unflipped, as MXNet does."""
    need_picture("_image_flip_top_bottom", data)
    return straight(data, jnp.flip(data, -3))


def lit(data: Array, alpha: Array) -> Array:
    """Colours moved by alpha (3,) along their principal components; pictures of one channel stay."""
    if data.shape[-1] != 3:
        return data
    moved = jnp.sum(jnp.asarray(COLOURS) * alpha.astype(jnp.float32).reshape(1, 3), axis=1)
    return saturated(data.astype(jnp.float32) + along(moved, data.ndim - 1, data.ndim), data.dtype)


@operator("_image_adjust_lighting", attrs={"alpha": numbers()}, rows=batch_only)
def adjust_lighting(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x + P (s · alpha), P and s the principal components of ImageNet's colours and their deviations; dx = dy."""
    need_picture("_image_adjust_lighting", data)
    if len(attrs.alpha) != 3:
        raise ValueError(f"_image_adjust_lighting: alpha is {attrs.alpha}, needed three numbers, one for each component")
    return straight(data, lit(data, jnp.asarray(attrs.alpha, jnp.float32)))
