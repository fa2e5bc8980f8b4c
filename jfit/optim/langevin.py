"""Stochastic gradient Langevin dynamics: SGD with noise, so that the weights are samples of their posterior distribution."""

from __future__ import annotations

import zlib
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax import Array

from jfit.optim.core import (
    Common,
    LearningRate,
    Optimizer,
    RuleContext,
    Slots,
    clipper,
    decayed,
    optimizer,
    transformation,
)


@optimizer()
def sgld(learning_rate: LearningRate = 0.01, seed: int = 0, **common: Unpack[Common]) -> Optimizer:
    """w <- w - lr / 2 * (c(g) + wd * w) + sqrt(lr) * noise, noise from the standard normal distribution.

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.

    The noise is drawn with the PRNG key fold_in(fold_in(key, update number), crc32 of the parameter name): it differs between
    parameters and updates, and does not depend on the number of devices or the order of the parameters.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        seed: seed of the PRNG key, an int.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        Optimizer without state slots; the PRNG key data is in `OptState.shared`, and all parameters have one update count.

    Example:
        >>> opt = sgld(0.01)
        >>> w = {"fc_weight": jnp.zeros(10000)}
        >>> updates, state = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"].std()), 2)
        0.1
        >>> sorted(state.shared)
        ['key']

    Source: Welling and Teh 2011, https://icml.cc/2011/papers/398_icmlpaper.pdf; Apache MXNet 1.9.1, `SGLD`.
    """
    clip = clipper(common.get("clip_gradient"))

    def start() -> dict[str, Array]:
        return {"key": jax.random.key_data(jax.random.key(seed))}

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        key: Any = jax.random.wrap_key_data(ctx.shared["key"])
        key = jax.random.fold_in(jax.random.fold_in(key, ctx.t), zlib.crc32(ctx.name.encode()))
        noise = jax.random.normal(key, w.shape, w.dtype)
        return -ctx.lr / 2 * decayed(clip(g), ctx.wd, w) + jnp.sqrt(ctx.lr) * noise, ()

    return transformation(rule, (), learning_rate, common, counted=True, shared=start)
