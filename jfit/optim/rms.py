"""Rules that divide by a root of summed or averaged squares: RMSProp."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jax import Array

from jfit.optim.core import At, Common, LearningRate, Slots, clipper, decayed, transformation
from jfit.optim.multipliers import Multiplier


def rmsprop(
    learning_rate: LearningRate = 0.001,
    gamma1: float = 0.9,
    gamma2: float = 0.9,
    epsilon: float = 1e-8,
    centered: bool = False,
    clip_weights: float | None = None,
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
    multi_precision: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """G = c(g + wd * w);  n <- gamma1 * n + (1 - gamma1) * G^2;  w <- w - lr * G / sqrt(n + epsilon).

    Centered: a <- gamma1 * a + (1 - gamma1) * G;  d <- gamma2 * d - lr * G / sqrt(n - a^2 + epsilon);  w <- w + d.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        gamma1: decay of the means.
        gamma2: momentum of the centered form; unused otherwise.
        epsilon: inside the root.
        centered: Graves' form.
        clip_weights: clip the new weight to +-clip_weights.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; the decay is part of what is clipped.

    Returns:
        The transformation; slot `n`, centered also `g` (the mean, a above) and `delta` (d above).

    Example:
        >>> opt = rmsprop(0.1, gamma1=0.75)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.2

    Source: Tieleman and Hinton 2012; Graves 2013, https://arxiv.org/abs/1308.0850; Apache MXNet 1.9.1, `rmsprop_update`.
    """
    clip, bound = clipper(clip_gradient), clipper(clip_weights)

    def rule(g: Array, w: Array, slots: Slots, at: At) -> tuple[Array, Slots]:
        g = clip(decayed(g, at.wd, w))
        n = (1 - gamma1) * g * g + gamma1 * slots[0]
        if not centered:
            delta, new = -at.lr * g / jnp.sqrt(n + epsilon), (n,)
        else:
            mean = (1 - gamma1) * g + gamma1 * slots[1]
            delta = gamma2 * slots[2] - at.lr * g / jnp.sqrt(n - mean * mean + epsilon)
            new = (n, mean, delta)
        return (bound(w + delta) - w if clip_weights else delta), new

    return transformation(
        rule, ("n", "g", "delta") if centered else ("n",), Common(learning_rate, wd, lr_mult, wd_mult, multi_precision)
    )
