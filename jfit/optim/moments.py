"""Optimizers with moving averages of the gradient and of its square or magnitude: Adam, AdamW, Adamax, Nadam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
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
    moments,
    one_minus_power,
    optimizer,
    transformation,
)
from jfit.programs import Constants


@optimizer()
def adam(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    *,
    lazy_update: bool = True,
    **common: Unpack[Common],
) -> Optimizer:
    """G = c(g + wd * w);  w <- w - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * mean / (sqrt(var) + epsilon).

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    mean <- beta1 * mean + (1 - beta1) * G;  var <- beta2 * var + (1 - beta2) * G^2;  t: number of the update, from 1.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        beta1, beta2: decay rates of the moving averages of G and G^2.
        epsilon: added to sqrt(var), which is not bias-corrected.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; weight decay is added before clipping.
        lazy_update: for a `SparseRows` gradient, update only its rows; the update count grows for all rows.

    Returns:
        Optimizer with the state slots `mean` and `var` and one update count for all parameters.

    Example:
        >>> opt = adam(0.1)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.1

    Source: Kingma and Ba 2015, https://arxiv.org/abs/1412.6980; Apache MXNet 1.9.1, `adam_update`.
    """
    clip, numbers = clipper(common.get("clip_gradient")), _kernel_rates(beta1, beta2, epsilon=epsilon)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        mean, var = moments(clip(decayed(g, ctx.wd, w)), slots, numbers)
        rate = ctx.lr * jnp.sqrt(one_minus_power(numbers.log2, ctx.t)) / one_minus_power(numbers.log1, ctx.t)
        return -rate * mean / (jnp.sqrt(var) + numbers.epsilon), (mean, var)

    return transformation(rule, ("mean", "var"), learning_rate, common, counted=True, lazy=lazy_update)


@optimizer()
def adamw(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    wd: float = 0.01,
    clip_gradient: float | None = None,
    bias_correction: bool = True,
    **common: Any,
) -> Optimizer:
    """w <- w - lr * (mean' / (sqrt(var') + epsilon) + wd * w) where mean' and var' are averages of c(g) and c(g)^2.

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    mean <- beta1 * mean + (1 - beta1) * c(g);  var <- beta2 * var + (1 - beta2) * c(g)^2;  mean' = mean / (1 - beta1^t) and
    var' = var / (1 - beta2^t) for update number t, from 1, or mean and var without bias correction.

    MXNet's contributed kernel computes w - eta * (lr * mean / (sqrt(var) + epsilon) + wd * w) without bias correction.  Here
    the learning rate takes the place of its `eta`, and its `lr` is 1; `bias_correction=False` computes the kernel's values.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        beta1, beta2: decay rates of the moving averages of c(g) and c(g)^2.
        epsilon: added outside the square root.
        bias_correction: divide mean by 1 - beta1^t and var by 1 - beta2^t.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; weight decay is neither clipped nor averaged.

    Returns:
        Optimizer with the state slots `mean` and `var` and one update count for all parameters.

    Example:
        >>> opt = adamw(0.1, wd=0.5)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.15

    Source: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; Apache MXNet 1.9.1, `_contrib_adamw_update`.
    """
    clip = clipper(clip_gradient)
    numbers = (decay_rates if bias_correction else _kernel_rates)(beta1, beta2, epsilon=epsilon)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        mean, var = m, v = moments(clip(g), slots, numbers)
        if bias_correction:
            m, v = m / one_minus_power(numbers.log1, ctx.t), v / one_minus_power(numbers.log2, ctx.t)
        return -ctx.lr * decayed(m / (jnp.sqrt(v) + numbers.epsilon), ctx.wd, w), (mean, var)

    return transformation(rule, ("mean", "var"), learning_rate, Common(wd=wd, **common), counted=True)


@optimizer()
def adamax(
    learning_rate: LearningRate = 0.002, beta1: float = 0.9, beta2: float = 0.999, **common: Unpack[Common]
) -> Optimizer:
    """G = c(g + wd * w);  u <- max(beta2 * u, |G|);  w <- w - lr / (1 - beta1^t) * mean / u.

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    mean <- beta1 * mean + (1 - beta1) * G, a moving average; t: number of the update, from 1.

    While all gradients so far are 0, the weight is unchanged; MXNet 1.9.1 computes NaN.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        beta1: decay rate of the moving average of G.
        beta2: decay rate of the maximum of |G|.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; weight decay is added before clipping.

    Returns:
        Optimizer with the state slots `mean` and `var` (u above) and one update count for all parameters.

    Example:
        >>> opt = adamax(0.1)
        >>> w = {"fc_weight": jnp.array([2.0, 0.0])}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> [round(float(u), 4) for u in updates["fc_weight"]]
        [-0.1, -0.0]

    Source: Kingma and Ba 2015, section 7, https://arxiv.org/abs/1412.6980; Apache MXNet 1.9.1, `Adamax`.
    """
    clip, numbers = clipper(common.get("clip_gradient")), decay_rates(beta1, beta2)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(decayed(g, ctx.wd, w))
        mean, size = numbers.beta1 * slots[0] + numbers.rest1 * g, jnp.maximum(numbers.beta2 * slots[1], jnp.abs(g))
        rate = ctx.lr / one_minus_power(numbers.log1, ctx.t)
        return -rate * mean / jnp.where(size == 0, 1.0, size), (mean, size)

    return transformation(rule, ("mean", "var"), learning_rate, common, counted=True)


@optimizer()
def nadam(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    schedule_decay: float = 0.004,
    *,
    order: Sequence[str] | None = None,
    fixed: Sequence[str] | None = None,
    **common: Unpack[Common],
) -> Optimizer:
    """w <- w - lr * ((1 - b(t)) * G / (1 - M) + b(t+1) * mean / (1 - M * b(t+1))) / (sqrt(var / (1 - beta2^t)) + epsilon).

    G = c(g + wd * w);  b(t) = beta1 * (1 - 0.5 * 0.96^(t * schedule_decay));  M <- M * b(t), once per PARAMETER, from M = 1.
    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    mean and var are moving averages of G and G^2 (decay rates beta1 and beta2); t: number of the update, from 1.

    In the paper M is a product over updates.  In MXNet all parameters share one M, which is multiplied once for every
    parameter of every update, so the update of a parameter depends on its position in the update order.  jfit computes the
    same numbers.  A BatchNorm gamma with `fix_gamma` advances M too: MXNet updates it and then overwrites it with 1.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        beta1, beta2: decay rates of the moving averages of G and G^2.
        epsilon: added outside the square root.
        schedule_decay: how fast b(t) grows from beta1 / 2 to beta1.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; weight decay is added before clipping.
        order: parameter names in update order; parameters that are not listed follow in leaf order.  With None,
            `train_step` and `fit` use the order of the graph's arguments, as MXNet does, unless the optimizer is part of an
            optax chain.
        fixed: names of parameters that advance M without being updated.  With None, `train_step` and `fit` use the graph's
            BatchNorm gammas with `fix_gamma`.

    Returns:
        Optimizer with the state slots `mean` and `var`, the shared scalar `m_schedule` (M above) and one update count for
        all parameters.

    Example:
        >>> opt = nadam(0.1)
        >>> w = {"a_weight": jnp.ones(()), "b_weight": jnp.ones(())}
        >>> updates, state = opt.update(w, opt.init(w), w)
        >>> round(float(state.shared["m_schedule"]), 4)  # 0.45 for each
        0.2026
        >>> float(updates["a_weight"]) < float(updates["b_weight"])
        True

    Source: Dozat 2016, https://cs229.stanford.edu/proj2015/054_report.pdf; Apache MXNet 1.9.1, `Nadam`.
    """
    clip, more = clipper(common.get("clip_gradient")), {"epsilon": epsilon, "schedule_decay": schedule_decay}
    numbers = decay_rates(beta1, beta2, corrects_mean=False, **more)

    def warmed(t: Any) -> Any:
        return numbers.beta1 * (1 - 0.5 * 0.96 ** (t * numbers.schedule_decay))

    def advance(shared: Mapping[str, Array], contexts: Sequence[RuleContext]) -> list[dict[str, Array]]:
        t = jnp.stack([ctx.t for ctx in contexts])
        now, coming = warmed(t), warmed(t + 1)
        product = shared["m_schedule"] * jnp.cumprod(now)
        columns = {"m_schedule": product, "of_g": (1 - now) / (1 - product), "of_mean": coming / (1 - product * coming)}
        return [{name: column[k] for name, column in columns.items()} for k in range(len(contexts))]

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(decayed(g, ctx.wd, w))
        mean, var = moments(g, slots, numbers)
        ahead = ctx.shared["of_g"] * g + ctx.shared["of_mean"] * mean
        return -ctx.lr * ahead / (jnp.sqrt(var / one_minus_power(numbers.log2, ctx.t)) + numbers.epsilon), (mean, var)

    start = lambda: {"m_schedule": jnp.ones((), jnp.float32)}  # noqa: E731
    return transformation(
        rule, ("mean", "var"), learning_rate, common, counted=True, shared=start, advance=advance, order=order, fixed=fixed
    )


def _kernel_rates(beta1: float, beta2: float, **others: Any) -> Constants:
    """The numbers of moving averages as `decay_rates`, but with 1 - beta rounded to float32, as in MXNet's kernels.

    For beta = 0.999 this is 1e-5 (relative) below 0.001.
    """
    rest1, rest2 = (float(np.float32(1) - np.float32(beta)) for beta in (beta1, beta2))
    return decay_rates(beta1, beta2, **others, rest1=rest1, rest2=rest2)
