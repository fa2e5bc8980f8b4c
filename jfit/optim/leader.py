"""FTRL and FTML (follow the regularized leader, the moving leader): the weight is computed from accumulated sums."""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from jfit.optim.core import (
    Common,
    LearningRate,
    Optimizer,
    RuleContext,
    Slots,
    clipper,
    decay_rates,
    decayed,
    one_minus_power,
    optimizer,
    transformation,
)
from jfit.programs import Constants


@optimizer()
def ftrl(learning_rate: LearningRate = 0.1, lamda1: float = 0.01, beta: float = 1.0, **common: Unpack[Common]) -> Optimizer:
    """z <- z + c(g) - (sqrt(n + c(g)^2) - sqrt(n)) * w / lr;  n <- n + c(g)^2;  w <- soft(z) / ((beta + sqrt(n)) / lr + wd).

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    z and n are slots, initially 0.

    soft(z) = sign(z) * lamda1 - z if |z| > lamda1, else 0, so small weights become exactly 0.  The weight is computed from z
    and n alone: the first update discards the initial weight, even if the gradient is 0.

    Args:
        learning_rate: nonzero number, or a schedule: function of the number of updates done.
        lamda1: strength of the L1 penalty.
        beta: added to sqrt(n).
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; `wd` is the strength of the L2 penalty.

    Returns:
        Optimizer with the state slots `z` and `n`.

    Example:
        >>> import optax
        >>> opt = ftrl(0.1)
        >>> w = {"fc_weight": jnp.array([1.0, 0.001])}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> [round(float(x), 4) for x in optax.apply_updates(w, updates)["fc_weight"]]
        [0.4495, 0.0]

    Source: McMahan et al. 2013, https://dl.acm.org/doi/10.1145/2487575.2488200; Apache MXNet 1.9.1, `ftrl_update`.
    """
    clip, numbers = clipper(common.get("clip_gradient")), Constants(lamda1=lamda1, beta=beta)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(g)
        n = slots[1] + g * g
        z = slots[0] + g - (jnp.sqrt(n) - jnp.sqrt(slots[1])) * w / ctx.lr
        # The condition is |z| <= lamda1, so that a NaN in z stays NaN: with |z| > lamda1 it would become 0, hiding an overflow.
        soft = jnp.where(jnp.abs(z) <= numbers.lamda1, 0.0, jnp.sign(z) * numbers.lamda1 - z)
        # If soft is 0, the update is -w, and w + (-w) is exactly 0.
        return soft / ((numbers.beta + jnp.sqrt(n)) / ctx.lr + ctx.wd) - w, (z, n)

    return transformation(rule, ("z", "n"), learning_rate, common)


@optimizer()
def ftml(
    learning_rate: LearningRate = 0.01,
    beta1: float = 0.6,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    **common: Unpack[Common],
) -> Optimizer:
    """z <- beta1 * z + (1 - beta1) * G - (d - beta1 * d_before) * w;  w <- -z / d, with G = c(g + wd * w).

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    z, d and v are slots, initially 0; d_before is d before this update; t: number of the update, from 1.

    d = (1 - beta1^t) / lr * (sqrt(v / (1 - beta2^t)) + epsilon);  v <- beta2 * v + (1 - beta2) * G^2.

    Args:
        learning_rate: nonzero number, or a schedule: function of the number of updates done.
        beta1: decay rate of z.
        beta2: decay rate of the moving average of G^2.
        epsilon: added outside the square root.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; weight decay is added before clipping.

    Returns:
        Optimizer with the state slots `d`, `v` and `z` and one update count for all parameters.

    Example:
        >>> opt = ftml(0.1)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.1

    Source: Zheng and Kwok 2017, https://proceedings.mlr.press/v70/zheng17a.html; Apache MXNet 1.9.1, `ftml_update`.
    """
    clip, numbers = clipper(common.get("clip_gradient")), decay_rates(beta1, beta2, epsilon=epsilon)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(decayed(g, ctx.wd, w))
        v = numbers.beta2 * slots[1] + numbers.rest2 * g * g
        correction = jnp.sqrt(v / one_minus_power(numbers.log2, ctx.t)) + numbers.epsilon
        d = one_minus_power(numbers.log1, ctx.t) / ctx.lr * correction
        z = numbers.beta1 * slots[2] + numbers.rest1 * g - (d - numbers.beta1 * slots[0]) * w
        return -z / d - w, (d, v, z)

    return transformation(rule, ("d", "v", "z"), learning_rate, common, counted=True)
