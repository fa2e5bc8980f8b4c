"""Image operators on arrays (height, width, channels) or batches of them: convert, normalize, crop, resize, flip, jitter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import REQUIRED, Attrs, flag, integer, number, numbers, several, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.resize import cut, resized, sides
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import along, fixed_types

# principal components of ImageNet's colours (columns), and the same scaled by their deviations (Krizhevsky et al., 2012)
COMPONENTS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], np.float32)
SCALED_COMPONENTS = COMPONENTS * np.array([55.46, 4.794, 1.148], np.float32)


# ------------------------------------------------------------------------------------------ shared helpers
def _operator(name: str, **record: Any) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Return a decorator that registers an operator on one image (3 axes) or a batch of images (4 axes)."""

    def add(fn: Callable[..., Array]) -> Callable[..., Array]:
        @functools.wraps(fn)
        def checked(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
            if data.ndim not in (3, 4):
                raise ValueError(f"data has shape {data.shape}, expected an image or a batch of images; reshape the data")
            return fn(ctx, attrs, data)

        return operator(name, rows=batch_only, **record)(checked)

    return add


def batch_only(attrs: Any, rows: Any, shapes: Any, outs: Any) -> list:
    """Return where the batch rows are in the output (`RowLayout`).

    As in the data if it is a batch of images (4 axes) with the rows on axis 0, else LOST (they cannot be distinguished any
    more).
    """
    first = rows[0]
    if isinstance(first, RowLayout) and (first.axis != 0 or len(shapes[0]) != 4):
        return [LOST]
    return [first]


def saturated(values: Array, dtype: Any) -> Array:
    """Cast floats to the dtype of an image: truncated towards 0 for integers, and clipped to [0, 255] for uint8."""
    if dtype == jnp.uint8:
        return jnp.clip(values, 0, 255).astype(dtype)
    return values.astype(dtype)


@jax.custom_vjp
def _identity_gradient(data: Array, changed: Array) -> Array:
    return changed


_identity_gradient.defvjp(lambda data, changed: (changed, None), lambda _, grad: (grad, jnp.zeros_like(grad)))


def straight(data: Array, changed: Array) -> Array:
    """Return `changed` with the gradient of the identity, dx = dy, which MXNet uses for operators that change an image."""
    return _identity_gradient(data, lax.stop_gradient(changed)) if jnp.issubdtype(data.dtype, jnp.floating) else changed


# ------------------------------------------------------------------------------------------ operators
@_operator("_image_to_tensor", types=fixed_types("float32"))
def to_tensor(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[c, h, w] = x[h, w, c] / 255 in float32."""
    return jnp.moveaxis(data, -1, -3).astype(jnp.float32) / 255


@_operator("_image_normalize", attrs={"mean": numbers((0.0, 0.0, 0.0, 0.0)), "std": numbers((1.0, 1.0, 1.0, 1.0))})
def normalize(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = (x - mean[c]) / std[c] for images (channels, height, width)."""
    # equal values, also more of them than channels, are one value
    values = [v[:1] if len(set(v)) == 1 else v for v in (attrs.mean, attrs.std)]
    if not {*map(len, values)} <= {1, data.shape[-3]}:
        raise ValueError(f"mean is {attrs.mean} and std {attrs.std}, expected one number or {data.shape[-3]}, one per channel")
    mean, std = (along(jnp.asarray(v, jnp.float32), data.ndim - 3, data.ndim) for v in values)
    return ((data - mean) / std).astype(data.dtype)


@_operator("_image_crop", attrs={"x": integer(), "y": integer(), "width": integer(), "height": integer()})
def crop(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x[y : y + height, x : x + width]."""
    return cut(data, (-3, -2), (attrs.y, attrs.x), (attrs.height, attrs.width))


def new_size(attrs: Attrs, high: int, wide: int) -> tuple[int, int]:
    """Return (height, width) for `size`: (width, height), or one number for both sides (shorter side with keep_ratio)."""
    across, down = sides("size", attrs.size)
    if len(attrs.size) == 2 or not attrs.keep_ratio:
        return down, across
    return (across * high // wide, across) if high > wide else (across, across * wide // high)


@_operator("_image_resize", attrs={"size": shape(()), "keep_ratio": flag(False), "interp": integer(1)})
def resize(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x resized to `size`; interp is 0 nearest, 1 linear, 2 cubic, 3 area or 4 Lanczos, as in OpenCV."""
    return resized(data, new_size(attrs, *data.shape[-3:-1]), attrs.interp)


@_operator("_cvimresize", attrs={"w": integer(), "h": integer(), "interp": integer(1)})
def cv_resize(ctx: Ctx, attrs: Attrs, src: Array) -> Array:
    """y = x resized to height h and width w; interp as in _image_resize."""
    return resized(src, (attrs.h, attrs.w), attrs.interp)


BORDERS = {1: "edge", 2: "symmetric", 3: "wrap", 4: "reflect"}  # OpenCV's numbers; 0 is a constant


@_operator(
    "_cvcopyMakeBorder",
    attrs=several(integer, top=REQUIRED, bot=REQUIRED, left=REQUIRED, right=REQUIRED, type=0)
    | several(numbers, value=(0.0,), values=()),
)
def make_border(ctx: Ctx, attrs: Attrs, src: Array) -> Array:
    """y = x padded with a constant (type 0; `values` per channel) or as jnp.pad: 1 edge, 2 symmetric, 3 wrap, 4 reflect."""
    pads = [(0, 0)] * (src.ndim - 3) + [(attrs.top, attrs.bot), (attrs.left, attrs.right), (0, 0)]
    if attrs.type not in range(5):
        raise ValueError(f"type is {attrs.type}, expected 0 to 4 (constant, edge, symmetric, wrap, reflect)")
    if attrs.type:
        return jnp.pad(src, pads, mode=BORDERS[attrs.type])
    values: Any = attrs["values"] or attrs["value"]
    inside = jnp.pad(jnp.ones(src.shape[-3:-1], bool), pads[-3:-1])[..., None]
    colour = jnp.asarray(values, jnp.float32).astype(src.dtype).reshape((1,) * (src.ndim - 1) + (-1,))
    padded = jnp.pad(src, pads)
    inside = inside.reshape((1,) * (src.ndim - 3) + inside.shape)
    return jnp.where(inside, padded, jnp.broadcast_to(colour, padded.shape))


def add_lighting(data: Array, alpha: Array) -> Array:
    """Add PCA lighting noise: alpha (3,) times the scaled principal components; other than 3 channels are unchanged."""
    if data.shape[-1] != 3:
        return data
    offset = jnp.sum(jnp.asarray(SCALED_COMPONENTS) * alpha.astype(jnp.float32).reshape(1, 3), axis=1)
    return saturated(data.astype(jnp.float32) + along(offset, data.ndim - 1, data.ndim), data.dtype)


@_operator("_image_adjust_lighting", attrs={"alpha": numbers()})
def adjust_lighting(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x + P (s · alpha), P and s the principal components of ImageNet's colours and their standard deviations; dx = dy."""
    return straight(data, add_lighting(data, jnp.asarray(attrs.alpha, jnp.float32)))


# ----------------------------------------------------------------------------------------------------
# Random augmentation: brightness, contrast, saturation, hue, lighting, flips, independent for each image of a batch (MXNet
# supports only single images here).  The gradient of all of them is that of the identity, dx = dy.

Change = Callable[[Array, Array], Array]  # (image, factor or key) -> image
RANGE = {"min_factor": number(), "max_factor": number()}


# ------------------------------------------------------------------------------------------ changes of one image
def _grey(x: Array) -> Array:
    """Return the brightness of each pixel, (height, width, 1); the image itself unless it has 3 channels."""
    weights = along(jnp.asarray([0.299, 0.587, 0.114], x.dtype), x.ndim - 1, x.ndim)
    return x if x.shape[-1] != 3 else jnp.sum(x * weights, axis=-1, keepdims=True)


def adjust_brightness(image: Array, factor: Array) -> Array:
    """y = factor x."""
    return saturated(image.astype(jnp.float32) * factor, image.dtype)


def adjust_contrast(image: Array, factor: Array) -> Array:
    """y = factor x + (1 - factor) (mean brightness of x)."""
    x = image.astype(jnp.float32)
    return saturated(x * factor + (1 - factor) * jnp.mean(_grey(x)), image.dtype)


def adjust_saturation(image: Array, factor: Array) -> Array:
    """y = factor x + (1 - factor) 0.114 blue, as in MXNet, which drops all but the last term of the brightness."""
    if image.shape[-1] != 3:
        return image
    x = image.astype(jnp.float32)
    return saturated(x * factor + (1 - factor) * (0.114 * x[..., 2:]), image.dtype)


def adjust_hue(image: Array, factor: Array) -> Array:
    """y = x with its hue rotated by `factor` of the colour circle; lightness and saturation are unchanged."""
    if image.shape[-1] != 3:
        return image
    x = image.astype(jnp.float32) / 255
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    top, low = jnp.max(x, axis=-1), jnp.min(x, axis=-1)
    spread, light = top - low, (top + low) * 0.5
    some = spread > jnp.finfo(jnp.float32).eps
    wide = jnp.where(some, spread, 1.0)
    full = jnp.where(light < 0.5, top + low, 2.0 - top - low)
    strength = jnp.where(some, spread / jnp.where(some, full, 1.0), 0.0)
    step = 60.0 / wide
    hue = jnp.where(top == r, (g - b) * step, jnp.where(top == g, (b - r) * step + 120.0, (r - g) * step + 240.0))
    hue = jnp.where(some, jnp.where(hue < 0, hue + 360.0, hue), 0.0) + factor * 360.0
    six = jnp.mod(hue / 60.0, 6.0)
    high = jnp.where(light <= 0.5, light * (1 + strength), light + strength - light * strength)
    base = 2 * light - high
    sector = jnp.floor(six)
    part, sector = six - sector, sector.astype(jnp.int32) % 6
    falling, rising = base + (high - base) * (1 - part), base + (high - base) * part
    red = jnp.stack([high, falling, base, base, rising, high])
    green = jnp.stack([rising, high, high, falling, base, base])
    blue = jnp.stack([base, base, rising, high, high, falling])
    chosen = [jnp.take_along_axis(c, sector[None], axis=0)[0] for c in (red, green, blue)]
    return saturated(jnp.stack(chosen, axis=-1) * 255, image.dtype)


# ------------------------------------------------------------------------------------------ operators
def _each(ctx: Ctx, data: Array, change: Change) -> Array:
    """Apply change(image, key) to an image, or to each image of a batch with a separate key."""
    if data.ndim == 3:
        key = ctx.random(lambda key, _: jax.random.split(key, 1), (1,), which=None)[0]
        return straight(data, change(lax.stop_gradient(data), key))
    keys = ctx.random(jax.random.split, data.shape[:1])
    return straight(data, jax.vmap(change)(lax.stop_gradient(data), keys))


def _factor(key: Array, low: float, high: float) -> Array:
    return low + (high - low) * jax.random.uniform(key)


def _add(name: str, change: Change) -> None:
    def fn(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
        return _each(ctx, data, lambda image, key: change(image, _factor(key, attrs.min_factor, attrs.max_factor)))

    fn.__doc__ = f"{change.__doc__} factor ~ U(min_factor, max_factor)."
    _operator(f"_image_random_{name}", attrs=RANGE, needs_rng=True)(fn)


for _change in (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue):
    _add(_change.__name__.removeprefix("adjust_"), _change)


@_operator(
    "_image_random_color_jitter",
    attrs={"brightness": number(), "contrast": number(), "saturation": number(), "hue": number()},
    needs_rng=True,
)
def color_jitter(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x with random brightness, contrast, saturation (factors 1 ± attribute) and hue (0 ± attribute), in random order."""
    changes: list[tuple[Change, float, float]] = [
        (adjust_brightness, 1, attrs.brightness),
        (adjust_contrast, 1, attrs.contrast),
        (adjust_saturation, 1, attrs.saturation),
        (adjust_hue, 0, attrs.hue),
    ]
    active = [c for c in changes if c[2] > 0]

    def jitter(image: Array, key: Array) -> Array:
        order, *keys = jax.random.split(key, len(active) + 1)
        branches = [
            lambda x, c=c, k=k: c[0](x, _factor(k, c[1] - c[2], c[1] + c[2])) for c, k in zip(active, keys, strict=True)
        ]
        places = jax.random.permutation(order, len(active))
        for i in range(len(active)):
            image = lax.switch(places[i], branches, image)
        return image

    return _each(ctx, data, jitter) if active else data


@_operator("_image_random_lighting", attrs={"alpha_std": number(0.05)}, needs_rng=True)
def random_lighting(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x + P (s · alpha) as in _image_adjust_lighting, with three random alpha ~ N(0, alpha_std²)."""

    def light(image: Array, key: Array) -> Array:
        return add_lighting(image, attrs.alpha_std * jax.random.normal(key, (3,)))

    return _each(ctx, data, light)


def _add_flips(name: str, axis: int, formula: str, words: str) -> None:
    def always(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
        return straight(data, jnp.flip(data, axis))

    def fn(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
        def flip(image: Array, key: Array) -> Any:
            return jnp.where(jax.random.bernoulli(key), jnp.flip(image, axis), image)

        return _each(ctx, data, flip)

    always.__doc__ = f"{formula}; the gradient is not flipped (dx = dy), as in MXNet."
    fn.__doc__ = f"y = x, or with probability 1/2 x {words}; the gradient is not flipped (dx = dy)."
    _operator(f"_image_flip_{name}")(always)
    _operator(f"_image_random_flip_{name}", needs_rng=True)(fn)


_add_flips("left_right", -2, "y[h, w] = x[h, W - 1 - w]", "flipped left to right")
_add_flips("top_bottom", -3, "y[h, w] = x[H - 1 - h, w]", "flipped upside down")
