"""Optimizers that divide the gradient by the root of summed or averaged squares: RMSProp, AdaGrad, GroupAdaGrad, AdaDelta."""

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
    decayed,
    optimizer,
    transformation,
    zeros,
)
from jfit.programs import Constants


@optimizer()
def rmsprop(
    learning_rate: LearningRate = 0.001,
    gamma1: float = 0.9,
    gamma2: float = 0.9,
    epsilon: float = 1e-8,
    centered: bool = False,
    clip_weights: float | None = None,
    **common: Unpack[Common],
) -> Optimizer:
    """G = c(g + wd * w);  n <- gamma1 * n + (1 - gamma1) * G^2;  w <- w - lr * G / sqrt(n + epsilon).

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    n is a moving average of G^2, initially 0.

    With `centered`: a <- gamma1 * a + (1 - gamma1) * G;  d <- gamma2 * d - lr * G / sqrt(n - a^2 + epsilon);  w <- w + d.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        gamma1: decay rate of the moving averages.
        gamma2: momentum of the centered form; ignored otherwise.
        epsilon: added inside the square root.
        centered: use Graves' centered form, which divides by an estimate of the standard deviation.
        clip_weights: clip the new weight to ±clip_weights; None: no clipping.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; weight decay is added before clipping.

    Returns:
        Optimizer with the state slot `n`; the centered form adds `g` (a above) and `delta` (d above).

    Example:
        >>> opt = rmsprop(0.1, gamma1=0.75)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.2

    Source: Tieleman and Hinton 2012; Graves 2013, https://arxiv.org/abs/1308.0850; Apache MXNet 1.9.1, `rmsprop_update`.
    """
    clip, bound, clips = clipper(common.get("clip_gradient")), clipper(clip_weights), bool(clip_weights)
    numbers = Constants(gamma1=gamma1, rest=1 - gamma1, gamma2=gamma2, epsilon=epsilon)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(decayed(g, ctx.wd, w))
        n = numbers.rest * g * g + numbers.gamma1 * slots[0]
        if not centered:
            delta, new = -ctx.lr * g / jnp.sqrt(n + numbers.epsilon), (n,)
        else:
            mean = numbers.rest * g + numbers.gamma1 * slots[1]
            delta = numbers.gamma2 * slots[2] - ctx.lr * g / jnp.sqrt(n - mean * mean + numbers.epsilon)
            new = (n, mean, delta)
        return (bound(w + delta) - w if clips else delta), new

    return transformation(rule, ("n", "g", "delta") if centered else ("n",), learning_rate, common)


@optimizer()
def adagrad(learning_rate: LearningRate = 0.01, eps: float = 1e-7, **common: Unpack[Common]) -> Optimizer:
    """h <- h + c(g)^2;  w <- w - lr * (c(g) / sqrt(h + eps) + wd * w).

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    h is the sum of c(g)^2 over all updates, initially 0.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        eps: added inside the square root.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; weight decay is neither clipped nor divided.

    Returns:
        Optimizer with the state slot `history`.

    Example:
        >>> opt = adagrad(0.1)
        >>> w = {"fc_weight": jnp.full((), 3.0)}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.1

    Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html; Apache MXNet 1.9.1, `AdaGrad`.
    """
    clip, numbers = clipper(common.get("clip_gradient")), Constants(eps=eps)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(g)
        history = slots[0] + g * g
        return -ctx.lr * decayed(g / jnp.sqrt(history + numbers.eps), ctx.wd, w), (history,)

    return transformation(rule, ("history",), learning_rate, common, lazy=True)


@optimizer()
def group_adagrad(learning_rate: LearningRate = 0.01, eps: float = 1e-5, **common: Unpack[Common]) -> Optimizer:
    """h <- h + mean of c(g)^2 over each row;  w <- w - lr * c(g) / sqrt(h + eps): one step size per row of a matrix.

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    h has one number per row, initially 0.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        eps: added inside the square root.
        wd: must be 0.
        clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        Optimizer with the state slot `history` of shape (rows, 1).  All parameters must be matrices; use
        `optax.multi_transform` to train the others with another optimizer.

    Raises:
        ValueError: wd is not 0, or a parameter is not a matrix.

    Example:
        >>> opt = group_adagrad(0.1)
        >>> w = {"embed_weight": jnp.ones((2, 3))}
        >>> updates, state = opt.update(w, opt.init(w), w)
        >>> round(float(updates["embed_weight"][0, 0]), 4), state.slots["history"]["embed_weight"].shape
        (-0.1, (2, 1))

    Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html; Apache MXNet 1.9.1, `GroupAdaGrad`.
    """
    if common.get("wd"):
        raise ValueError(f"group_adagrad: wd is {common.get('wd')}, but it must be 0: this optimizer has no weight decay.")
    clip, numbers = clipper(common.get("clip_gradient")), Constants(eps=eps)

    def start(w: Array) -> Array:
        if w.ndim != 2:
            raise ValueError(
                f"group_adagrad: a parameter has shape {tuple(w.shape)}, but it must be a matrix: the step size is per row"
            )
        return zeros(w[:, :1])

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(g)
        history = slots[0] + jnp.mean(g * g, axis=1, keepdims=True)  # (rows, 1)
        return -ctx.lr * g / jnp.sqrt(history + numbers.eps), (history,)

    return transformation(rule, {"history": start}, learning_rate, common, lazy=True)


@optimizer()
def adadelta(
    learning_rate: LearningRate = 0.01, rho: float = 0.9, epsilon: float = 1e-5, **common: Unpack[Common]
) -> Optimizer:
    """a <- rho * a + (1 - rho) * c(g)^2;  d = sqrt(b + epsilon) / sqrt(a + epsilon) * c(g);  w <- w - d - wd * w.

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    a and b are moving averages of c(g)^2 and of d^2, initially 0.

    After d, b <- rho * b + (1 - rho) * d^2.  The formula has no learning rate, so weight decay is not multiplied by one either:
    the same `wd` is about a hundred times stronger than in other optimizers.

    Args:
        learning_rate: ignored, as are its multipliers.
        rho: decay rate of the moving averages.
        epsilon: added inside both square roots.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        Optimizer with the state slots `acc_g` (a above) and `acc_delta` (b above).

    Example:
        >>> opt = adadelta(epsilon=0.1)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.7071

    Source: Zeiler 2012, https://arxiv.org/abs/1212.5701; Apache MXNet 1.9.1, `AdaDelta`.
    """
    clip, numbers = clipper(common.get("clip_gradient")), Constants(rho=rho, rest=1 - rho, epsilon=epsilon)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(g)
        acc_g = numbers.rho * slots[0] + numbers.rest * g * g
        delta = jnp.sqrt(slots[1] + numbers.epsilon) / jnp.sqrt(acc_g + numbers.epsilon) * g
        return -decayed(delta, ctx.wd, w), (acc_g, numbers.rho * slots[1] + numbers.rest * delta * delta)

    return transformation(rule, ("acc_g", "acc_delta"), learning_rate, common)
