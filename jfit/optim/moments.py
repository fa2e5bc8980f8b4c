"""Rules with running means of the gradient and of its square: Adam and its relatives."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jax import Array

from jfit.optim.core import At, Common, LearningRate, Slots, clipper, decayed, moments, one_minus_power, transformation
from jfit.optim.multipliers import Multiplier


def adam(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
    multi_precision: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """G = c(g + wd * w);  w <- w - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * mean / (sqrt(var) + epsilon).

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        beta1, beta2: decay of the means of G and of G^2.
        epsilon: outside the root, and not bias-corrected.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; the decay is part of what is clipped.

    Returns:
        The transformation; slots `mean` and `var`, one count for all parameters.

    Example:
        >>> opt = adam(0.1)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.1

    Source: Kingma and Ba 2015, https://arxiv.org/abs/1412.6980; Apache MXNet 1.9.1, `adam_update`.
    """
    clip = clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, at: At) -> tuple[Array, Slots]:
        mean, var = moments(clip(decayed(g, at.wd, w)), slots, beta1, beta2)
        rate = at.lr * jnp.sqrt(one_minus_power(beta2, at.t)) / one_minus_power(beta1, at.t)
        return -rate * mean / (jnp.sqrt(var) + epsilon), (mean, var)

    return transformation(rule, ("mean", "var"), Common(learning_rate, wd, lr_mult, wd_mult, multi_precision), counted=True)


def adamw(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    wd: float = 0.01,
    clip_gradient: float | None = None,
    bias_correction: bool = True,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
    multi_precision: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """w <- w - lr * (mean' / (sqrt(var') + epsilon) + wd * w) with the moments of c(g), bias-corrected unless told not.

    MXNet's contributed kernel is w - eta * (lr * mean / (sqrt(var) + epsilon) + wd * w) without bias correction. Here the
    rate plays its `eta` and its own `lr` is 1, the way it was used; `bias_correction=False` gives the kernel's values.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        beta1, beta2: decay of the means of g and of g^2.
        epsilon: outside the root.
        bias_correction: divide the moments by 1 - beta^t.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; the decay is neither clipped nor averaged.

    Returns:
        The transformation; slots `mean` and `var`, one count for all parameters.

    Example:
        >>> opt = adamw(0.1, wd=0.5)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.15

    Source: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; Apache MXNet 1.9.1, `_contrib_adamw_update`.
    """
    clip = clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, at: At) -> tuple[Array, Slots]:
        mean, var = m, v = moments(clip(g), slots, beta1, beta2)
        if bias_correction:
            m, v = m / one_minus_power(beta1, at.t), v / one_minus_power(beta2, at.t)
        return -at.lr * decayed(m / (jnp.sqrt(v) + epsilon), at.wd, w), (mean, var)

    return transformation(rule, ("mean", "var"), Common(learning_rate, wd, lr_mult, wd_mult, multi_precision), counted=True)
