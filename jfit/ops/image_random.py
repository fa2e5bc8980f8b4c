"""Pictures changed at random: brightness, contrast, saturation, hue, lighting, flips.  Each picture of a batch on its own.

MXNet takes single pictures (height, width, channels) here; batches are jfit's.  All hand the gradient back as it came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, number
from jfit.ops.context import Ctx
from jfit.ops.image import batch_only, lit, need_picture, saturated, straight
from jfit.ops.registry import operator
from jfit.ops.rules import along

Change = Callable[[Array, Array], Array]  # (picture, factor or key) -> picture
RANGE = {"min_factor": number(), "max_factor": number()}


# ------------------------------------------------------------------------------------------ changes of one picture
def _grey(x: Array) -> Array:
    """Brightness of each point (height, width, 1); itself where there is one channel."""
    shares = along(jnp.asarray([0.299, 0.587, 0.114], x.dtype), x.ndim - 1, x.ndim)
    return x if x.shape[-1] != 3 else jnp.sum(x * shares, axis=-1, keepdims=True)


def brighter(picture: Array, factor: Array) -> Array:
    """y = factor x."""
    return saturated(picture.astype(jnp.float32) * factor, picture.dtype)


def contrasted(picture: Array, factor: Array) -> Array:
    """y = factor x + (1 - factor) mean brightness."""
    x = picture.astype(jnp.float32)
    return saturated(x * factor + (1 - factor) * jnp.mean(_grey(x)), picture.dtype)


def coloured(picture: Array, factor: Array) -> Array:
    """y = factor x + (1 - factor) 0.114 blue.  (MXNet means the brightness of the point, and keeps its last term only.)"""
    if picture.shape[-1] != 3:
        return picture
    x = picture.astype(jnp.float32)
    return saturated(x * factor + (1 - factor) * (0.114 * x[..., 2:]), picture.dtype)


def turned(picture: Array, factor: Array) -> Array:
    """y = x with its hue turned by `factor` of the colour circle, lightness and saturation as they are."""
    if picture.shape[-1] != 3:
        return picture
    x = picture.astype(jnp.float32) / 255
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
    return saturated(jnp.stack(chosen, axis=-1) * 255, picture.dtype)


# ------------------------------------------------------------------------------------------ operators
def _each(op: str, ctx: Ctx, data: Array, change: Change) -> Array:
    """change(picture, key) of the picture, or of each picture of a batch with the key of its row."""
    need_picture(op, data)
    if data.ndim == 3:
        key = ctx.random(lambda key, _: jax.random.split(key, 1), (1,), which=None)[0]
        return straight(data, change(lax.stop_gradient(data), key))
    keys = ctx.random(jax.random.split, data.shape[:1])
    return straight(data, jax.vmap(change)(lax.stop_gradient(data), keys))


def _factor(key: Array, low: float, high: float) -> Array:
    return low + (high - low) * jax.random.uniform(key)


def _add(name: str, change: Change) -> None:
    op = f"_image_random_{name}"

    def fn(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
        low, high = attrs.min_factor, attrs.max_factor
        if low > high:
            raise ValueError(f"{op}: min_factor is {low} and max_factor {high}, needed min_factor <= max_factor; change them")
        return _each(op, ctx, data, lambda picture, key: change(picture, _factor(key, low, high)))

    fn.__doc__ = f"{change.__doc__} The factor is drawn from U(min_factor, max_factor)."
    operator(op, attrs=RANGE, rows=batch_only, needs_rng=True)(fn)


for _name, _change in (("brightness", brighter), ("contrast", contrasted), ("saturation", coloured), ("hue", turned)):
    _add(_name, _change)


@operator(
    "_image_random_color_jitter",
    attrs={"brightness": number(), "contrast": number(), "saturation": number(), "hue": number()},
    rows=batch_only,
    needs_rng=True,
)
def color_jitter(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = brightness, contrast, saturation (factors of 1 ± the attribute) and hue (0 ± it) changed in a random order."""
    changes: list[tuple[Change, float, float]] = [
        (brighter, 1, attrs.brightness),
        (contrasted, 1, attrs.contrast),
        (coloured, 1, attrs.saturation),
        (turned, 0, attrs.hue),
    ]
    wanted = [c for c in changes if c[2] > 0]

    def jitter(picture: Array, key: Array) -> Array:
        order, *keys = jax.random.split(key, len(wanted) + 1)
        branches = [
            lambda x, c=c, k=k: c[0](x, _factor(k, c[1] - c[2], c[1] + c[2])) for c, k in zip(wanted, keys, strict=True)
        ]
        places = jax.random.permutation(order, len(wanted))
        for i in range(len(wanted)):
            picture = lax.switch(places[i], branches, picture)
        return picture

    return _each("_image_random_color_jitter", ctx, data, jitter) if wanted else data


@operator("_image_random_lighting", attrs={"alpha_std": number(0.05)}, rows=batch_only, needs_rng=True)
def random_lighting(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y as _image_adjust_lighting makes it, its three alpha ~ N(0, alpha_std²)."""

    def light(picture: Array, key: Array) -> Array:
        return lit(picture, attrs.alpha_std * jax.random.normal(key, (3,)))

    return _each("_image_random_lighting", ctx, data, light)


def _add_flip(name: str, axis: int, words: str) -> None:
    op = f"_image_random_flip_{name}"

    def fn(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
        def flip(picture: Array, key: Array) -> Any:
            return jnp.where(jax.random.bernoulli(key), jnp.flip(picture, axis), picture)

        return _each(op, ctx, data, flip)

    fn.__doc__ = f"y = x, or with probability 1/2 x {words}; the gradient is handed back unflipped."
    operator(op, rows=batch_only, needs_rng=True)(fn)


_add_flip("left_right", -2, "turned left to right")
_add_flip("top_bottom", -3, "turned upside down")
