"""Optimizers for large batches, with layer-wise learning rates or long warm-ups: LAMB, LARS, LBSGD."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

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
    moments,
    one_minus_power,
    optimizer,
    transformation,
)
from jfit.optim.schedules import operand
from jfit.programs import Constants

# which parameters get a layer-wise learning rate from LARS
Adapt = str | Mapping[str, bool] | Callable[[str], bool] | Sequence[bool]

_FIXED = ("gamma", "beta", "bias")
_STRATEGIES = ("linear", "power2", "sqrt", "lars")


@optimizer()
def lamb(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    bias_correction: bool = True,
    **common: Unpack[Common],
) -> Optimizer:
    """w <- w - lr * (r / |u|) * u, with u = mean' / (sqrt(var') + epsilon) + wd * w and r = |w|, clipped to the bounds.

    w: weight, lr: learning rate; c(g) is the gradient clipped to ±clip_gradient, if that is set.  mean' and var' are moving
    averages of c(g) and c(g)^2, bias-corrected by default; |.| is the L2 norm of the whole parameter; r / |u| is replaced by 1
    if either norm is 0.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        beta1, beta2: decay rates of the moving averages of c(g) and c(g)^2.
        epsilon: added outside the square root.
        lower_bound, upper_bound: bounds of r; None or 0 for no bound.
        bias_correction: divide the moving averages by 1 - beta1^t and 1 - beta2^t, where t is the number of the update, from 1.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; weight decay is added after clipping.

    Returns:
        Optimizer with the state slots `mean` and `var` and one update count for all parameters.

    Example:
        >>> opt = lamb(0.1)
        >>> w = {"fc_weight": jnp.full((2,), 3.0)}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> [round(float(u), 4) for u in updates["fc_weight"]]  # a tenth of the norm of the weight
        [-0.3, -0.3]

    Source: You et al. 2020, https://arxiv.org/abs/1904.00962; Apache MXNet 1.9.1, `lamb_update_phase1` and `_phase2`.
    """
    clip = clipper(common.get("clip_gradient"))
    numbers = decay_rates(beta1, beta2, epsilon=epsilon, lower=lower_bound, upper=upper_bound)
    above, below = bool(lower_bound), bool(upper_bound)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        mean, var = m, v = moments(clip(g), slots, numbers)
        if bias_correction:
            m, v = m / one_minus_power(numbers.log1, ctx.t), v / one_minus_power(numbers.log2, ctx.t)
        u = decayed(m / (jnp.sqrt(v) + numbers.epsilon), ctx.wd, w)
        size, step_size = _norm(w), _norm(u)
        size = jnp.maximum(size, numbers.lower) if above else size
        size = jnp.minimum(size, numbers.upper) if below else size
        is_zero = (size == 0) | (step_size == 0)  # False if a norm is NaN: the whole parameter becomes NaN, as in MXNet
        return -ctx.lr * jnp.where(is_zero, 1.0, size / jnp.where(is_zero, 1.0, step_size)) * u, (mean, var)

    return transformation(rule, ("mean", "var"), learning_rate, common, counted=True)


@optimizer(wd_mult="lars")
def lars(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.0,
    eta: float = 0.001,
    eps: float = 0.0,
    momentum_correction: bool = True,
    adapt: Adapt = "mxnet",
    *,
    order: Sequence[str] | None = None,
    group: int | None = None,
    fixed: Sequence[str] | None = None,
    **common: Unpack[Common],
) -> Optimizer:
    """m <- momentum * k * m - lr * r * (c(g) + wd * w);  w <- w + m, with r = eta * |w| / (|g| + wd * |w| + eps).

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    m is the slot `momentum`, initially 0; |.| is the L2 norm of the whole parameter.

    r is 1 if |w| or |g| is 0, and for parameters that are not adapted.  k = learning rate / previous learning rate (momentum
    correction).  MXNet updates parameters in groups (of four, or of one with a key-value store) and applies k != 1 only in
    the first group after a change of the rate.  Set `group` to reproduce this; by default k applies to all parameters, as in
    the paper.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        momentum: momentum coefficient; with 0 the optimizer has no momentum slot.
        eta: trust coefficient: size of a step relative to the norm of the weight.
        eps: added to the denominator of r.
        momentum_correction: whether to use k; False means k = 1.
        adapt: which parameters use r: "mxnet" (all but names that end in gamma, beta or bias), a dict name -> bool (names
            that are not listed follow the "mxnet" rule), a function name -> bool, or, if the parameters are a list of arrays,
            a sequence of bool.
        wd, clip_gradient, lr_mult, multi_precision: see `jfit.optim`; |g| is the norm before clipping.
        wd_mult: see `jfit.optim`; with "lars" only names that end in `_weight` decay.
        order: parameter names in update order, needed with `group`.  None: as for `nadam`.
        group: number of consecutive parameters that use the same k; None: all parameters use k.
        fixed: names of parameters that are members of a group without being updated.  None: as for `nadam`.

    Returns:
        Optimizer with the state slot `momentum`, and with momentum correction the shared scalars `rate` and `last`.

    Example:
        >>> opt = lars(0.5, eta=0.1)
        >>> w = {"fc_weight": jnp.full((2,), 3.0), "fc_bias": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"][0]), 4), float(updates["fc_bias"])
        (-0.15, -0.5)

    Source: You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888; Goyal et al. 2017 (momentum correction),
        https://arxiv.org/abs/1706.02677; Apache MXNet 1.9.1, `LARS`.
    """
    clip, correct = clipper(common.get("clip_gradient")), bool(momentum and momentum_correction)
    numbers = Constants(momentum=momentum, eta=eta, eps=eps)

    def advance(shared: Mapping[str, Array], contexts: Sequence[RuleContext]) -> list[dict[str, Array]]:
        scalars, rate, last = [], shared["rate"], shared["last"]
        for place, ctx in enumerate(contexts):
            if place == 0 or (group is not None and place % group == 0):
                rate, last = jnp.asarray(ctx.base, jnp.float32), rate
            scalars.append({"rate": rate, "last": last})
        return scalars

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        rate = ctx.lr
        if _adapts(adapt, ctx.name):
            size, slope = _norm(w), _norm(g)
            rate = rate * _ratio(numbers.eta * size, decayed(slope, ctx.wd, size) + numbers.eps, size, slope)
        step = -rate * decayed(clip(g), ctx.wd, w)
        if not slots:
            return step, ()
        corrected = numbers.momentum
        if correct:
            corrected = corrected * _ratio(ctx.shared["rate"], ctx.shared["last"], ctx.shared["last"])
        m = corrected * slots[0] + step
        return m, (m,)

    if isinstance(common.get("wd_mult"), Mapping):
        common["wd_mult"] = ("lars", common.get("wd_mult"))
    in_order: Any = {"shared": _no_rate_yet, "advance": advance, "order": order, "fixed": fixed} if correct else {}
    return transformation(rule, ("momentum",) if momentum else (), learning_rate, common, **in_order)


@optimizer()
def lbsgd(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.0,
    warmup_strategy: str = "linear",
    warmup_epochs: int = 5,
    batch_scale: int = 1,
    updates_per_epoch: int = 32,
    begin_epoch: int = 0,
    num_epochs: int = 60,
    grad_scale: float = 1.0,
    one_buffer: bool = False,
    **common: Unpack[Common],
) -> Optimizer:
    """Every batch_scale updates: m <- momentum * m - lr * f * (c(mean of the last batch_scale g) + wd * w);  w <- w + m.

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    m is the slot `momentum`, initially 0; |.| is the L2 norm of the whole parameter.

    The updates in between only accumulate g.  f grows from 1 to batch_scale during a warm-up of n = warmup_epochs *
    updates_per_epoch updates: f = 1 + (batch_scale - 1) * p with p = k / n (linear), (k / n)^2 (power2) or sqrt(k / n)
    (sqrt), for update number k.  Strategy "lars" uses f = sqrt(|w|^2 / (|g|^2 + wd * |w|^2)) per parameter instead, clipped to
    0.01 .. 100.

    MXNet's LBSGD reads its learning rate scheduler one update late for the first parameter; jfit uses the learning rate of
    the current update, as in all optimizers.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        momentum: momentum coefficient; with 0 there is no momentum slot.
        warmup_strategy: "linear", "power2", "sqrt" or "lars"; any other string means f = 1 during the warm-up.
        warmup_epochs: length of the warm-up in epochs.
        updates_per_epoch: number of updates per epoch.
        batch_scale: number of consecutive gradients that are averaged for one update.
        begin_epoch: number of epochs done before, which shorten the warm-up.
        num_epochs: ignored, as in MXNet.
        grad_scale: factor that the gradients were multiplied by (rescale_grad); strategy "lars" divides |g| by it.
        one_buffer: reproduce a bug of MXNet's Module and Trainer: the sum shares a buffer with the first gradient, which the
            second gradient overwrites, so the second gradient counts twice and the first one is lost.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        Optimizer with the state slots `momentum` (unless it is 0) and `sum` (of gradients, if batch_scale > 1) and one
        update count for all parameters.

    Raises:
        ValueError: batch_scale is not a whole number from 1.

    Example:
        >>> opt = lbsgd(0.1, batch_scale=2, warmup_epochs=0)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> none, state = opt.update(w, opt.init(w), w)
        >>> both, _ = opt.update(w, state, w)
        >>> float(none["fc_weight"]), round(float(both["fc_weight"]), 4)  # 2 * 0.1
        (0.0, -0.2)

    Source: Goyal et al. 2017 (warm-up), https://arxiv.org/abs/1706.02677; Apache MXNet 1.9.1, `LBSGD`.
    """
    if batch_scale < 1 or batch_scale != int(batch_scale):
        raise ValueError(f"lbsgd: batch_scale is {batch_scale}; it must be a whole number of batches, at least 1.")
    clip = clipper(common.get("clip_gradient"))
    has_momentum, numbers = bool(momentum), Constants(momentum=momentum, scale=grad_scale**2)
    length, behind = operand(warmup_epochs * updates_per_epoch), operand(begin_epoch * updates_per_epoch)

    def factor(number: Any, g: Array, w: Array, ctx: RuleContext) -> Any:
        if warmup_strategy == "lars":
            size, slope = jnp.sum(w * w), jnp.sum(g * g) / numbers.scale
            return jnp.clip(jnp.sqrt(size / (decayed(slope, ctx.wd, size) + 1e-18)), 0.01, 100.0)
        return _warm(warmup_strategy, number, length, float(batch_scale))

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        number = behind + ctx.t
        total = slots[-1] + g if batch_scale > 1 else g
        if one_buffer and (behind + 1) % batch_scale:  # a sum of one gradient shares no buffer
            total = jnp.where(jnp.asarray(ctx.t) == 2, 2 * g, total)
        g = total / batch_scale
        step = -ctx.lr * factor(number, g, w, ctx) * decayed(clip(g), ctx.wd, w)
        delta = numbers.momentum * slots[0] + step if has_momentum else step
        after = (delta,) if has_momentum else ()
        if batch_scale == 1:
            return delta, after
        now = number % batch_scale == 0
        kept = tuple(jnp.where(now, new, old) for new, old in zip(after, slots[:-1], strict=True))
        return jnp.where(now, delta, 0.0), (*kept, jnp.where(now, 0.0, total))

    slots = (*(["momentum"] if momentum else []), *(["sum"] if batch_scale > 1 else []))
    return transformation(rule, slots, learning_rate, common, counted=True)


def _warm(strategy: str, number: Any, length: float, top: float) -> Any:
    if length <= 1 or strategy not in _STRATEGIES:
        return jnp.where(number >= length, top, 1.0)
    part = number / length
    climb = {"linear": part, "power2": part * part, "sqrt": jnp.sqrt(part)}[strategy]
    return jnp.where(number >= length, top, 1.0 + (top - 1.0) * climb)


def _adapts(adapt: Adapt, name: str) -> bool:
    if callable(adapt):
        return bool(adapt(name))
    by_rule = not name.endswith(_FIXED)
    if isinstance(adapt, Mapping):
        return bool(adapt.get(name, by_rule))
    if isinstance(adapt, str):
        if adapt != "mxnet":
            raise ValueError(f"lars: adapt is {adapt!r}; expected 'mxnet', a dict by name, a function of it, or a list of bool")
        return by_rule
    if not name.isdecimal() or int(name) >= len(adapt):
        raise ValueError(
            f"lars: adapt is a sequence of {len(adapt)} booleans for a list of arrays, but a parameter is called {name!r}"
        )
    return bool(adapt[int(name)])


def _no_rate_yet() -> dict[str, Array]:
    return {name: jnp.zeros((), jnp.float32) for name in ("rate", "last")}


def _norm(x: Array) -> Array:
    return jnp.sqrt(jnp.sum(x * x))


def _ratio(above: Any, below: Any, *positive: Any) -> Any:
    """Return above / below where all arrays in `positive` are above 0, else 1."""
    good = jnp.stack([jnp.asarray(p > 0) for p in positive]).all()
    return jnp.where(good, above / jnp.where(good, below, 1.0), 1.0)
