"""Rules for large batches, whose rates follow the size of each layer: LAMB, LARS, LBSGD."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from jfit.optim.core import (
    Common,
    LearningRate,
    Multiplier,
    Optimizer,
    RuleContext,
    Slots,
    clipper,
    decayed,
    moments,
    one_minus_power,
    transformation,
)
from jfit.optim.spans import operand

# which parameters LARS gives a rate of their own
Adapt = str | Mapping[str, bool] | Callable[[str], bool] | Sequence[bool]

_FIXED = ("gamma", "beta", "bias")
_STRATEGIES = ("linear", "power2", "sqrt", "lars")


def lamb(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    bias_correction: bool = True,
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
    multi_precision: bool = False,
) -> Optimizer:
    """w <- w - lr * (r / |u|) * u, with u = mean' / (sqrt(var') + epsilon) + wd * w and r = |w|, kept within the bounds.

    The moments are those of c(g), bias-corrected by default; |.| is the norm over the whole parameter; r / |u| is 1
    where either is 0.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        beta1, beta2: decay of the means of c(g) and of c(g)^2.
        epsilon: outside the root.
        lower_bound, upper_bound: of r; None or 0 for none.
        bias_correction: divide the moments by 1 - beta^t.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`; the decay is not clipped.

    Returns:
        The transformation; slots `mean` and `var`, one count for all parameters.

    Example:
        >>> opt = lamb(0.1)
        >>> w = {"fc_weight": jnp.full((2,), 3.0)}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> [round(float(u), 4) for u in updates["fc_weight"]]  # a tenth of the weight's own size
        [-0.3, -0.3]

    Source: You et al. 2020, https://arxiv.org/abs/1904.00962; Apache MXNet 1.9.1, `lamb_update_phase1` and `_phase2`.
    """
    clip = clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        mean, var = m, v = moments(clip(g), slots, beta1, beta2)
        if bias_correction:
            m, v = m / one_minus_power(beta1, ctx.t), v / one_minus_power(beta2, ctx.t)
        u = decayed(m / (jnp.sqrt(v) + epsilon), ctx.wd, w)
        size, of_step = _norm(w), _norm(u)
        size = jnp.maximum(size, lower_bound) if lower_bound else size
        size = jnp.minimum(size, upper_bound) if upper_bound else size
        none = (size == 0) | (of_step == 0)  # a NaN is no 0: it shows in the whole parameter, as in MXNet
        return -ctx.lr * jnp.where(none, 1.0, size / jnp.where(none, 1.0, of_step)) * u, (mean, var)

    return transformation(rule, ("mean", "var"), Common(learning_rate, wd, lr_mult, wd_mult, multi_precision), counted=True)


def lars(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.0,
    eta: float = 0.001,
    eps: float = 0.0,
    momentum_correction: bool = True,
    adapt: Adapt = "mxnet",
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "lars",
    multi_precision: bool = False,
    order: Sequence[str] | None = None,
    group: int | None = None,
    fixed: Sequence[str] | None = None,
) -> Optimizer:
    """m <- momentum * k * m - lr * r * (c(g) + wd * w);  w <- w + m, with r = eta * |w| / (|g| + wd * |w| + eps).

    r is 1 where |w| or |g| is 0, and for parameters that are not adapted.  k is rate / last rate: momentum is in proportion to
    the rate it was made with.  MXNet's optimizer notices a new rate at the first of its calls, so that k is 1 again for
    parameters of later calls (four a call, or one where a key-value store updates); `group` says how many belong to a
    call, and the default, all of them, is what the paper means.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        momentum: 0 keeps no state.
        eta: how large a step is, as a part of the weight.
        eps: added to the divisor.
        momentum_correction: k as above; False: k is 1.
        adapt: parameters with a rate of their own: "mxnet" (names that do not end in gamma, beta or bias), a dict by name
            (others follow that rule), a function of the name, or for a list of arrays a sequence of booleans.
        wd, clip_gradient, lr_mult, multi_precision: see `jfit.optim`; |g| is that of the gradient before clipping.
        wd_mult: as in `jfit.optim`; "lars" decays names that end in `_weight` only.
        order: names of parameters in the order of their turns, where `group` is given; see `nadam`.
        group: parameters that see the same k; None for all.
        fixed: names without an update that take a place in a group; see `nadam`.

    Returns:
        The transformation; slot `momentum`; with momentum correction shared scalars `rate` and `last`.

    Example:
        >>> opt = lars(0.5, eta=0.1)
        >>> w = {"fc_weight": jnp.full((2,), 3.0), "fc_bias": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"][0]), 4), float(updates["fc_bias"])
        (-0.15, -0.5)

    Source: You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888; Goyal et al. 2017 (momentum correction),
        https://arxiv.org/abs/1706.02677; Apache MXNet 1.9.1, `LARS`.
    """
    clip, correct = clipper(clip_gradient), bool(momentum and momentum_correction)

    def advance(shared: Mapping[str, Array], contexts: Sequence[RuleContext]) -> list[dict[str, Array]]:
        found, rate, last = [], shared["rate"], shared["last"]
        for place, ctx in enumerate(contexts):
            if place == 0 or (group is not None and place % group == 0):
                rate, last = jnp.asarray(ctx.base, jnp.float32), rate
            found.append({"rate": rate, "last": last})
        return found

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        rate = ctx.lr
        if _adapts(adapt, ctx.name):
            size, slope = _norm(w), _norm(g)
            rate = rate * _ratio(eta * size, decayed(slope, ctx.wd, size) + eps, size, slope)
        step = -rate * decayed(clip(g), ctx.wd, w)
        if not slots:
            return step, ()
        kept = momentum * _ratio(ctx.shared["rate"], ctx.shared["last"], ctx.shared["last"]) if correct else momentum
        m = kept * slots[0] + step
        return m, (m,)

    decays: Any = ("lars", wd_mult) if isinstance(wd_mult, Mapping) else wd_mult
    common = Common(learning_rate, wd, lr_mult, decays, multi_precision)
    if not correct:
        return transformation(rule, ("momentum",) if momentum else (), common)
    return transformation(rule, ("momentum",), common, shared=_no_rate_yet, advance=advance, order=order, fixed=fixed)


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
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
    multi_precision: bool = False,
) -> Optimizer:
    """Every batch_scale-th update: m <- momentum * m - lr * f * (c(mean of g since then) + wd * w);  w <- w + m.

    f climbs from 1 to batch_scale during the warm-up of n = warmup_epochs * updates_per_epoch updates: with update number k
    and p = k / n it is 1 + (batch_scale - 1) * p (linear), p^2 (power2) or sqrt(p) (sqrt) in place of p.  Strategy "lars"
    has f = sqrt(|w|^2 / (|g|^2 + wd * |w|^2)) for each parameter instead, within 0.01 and 100.

    Updates in between change nothing.  MXNet reads its scheduler before it counts, one update behind other optimizers, for
    the first parameter only; here the rate that is fed, or that of the schedule, holds as for every other rule.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        momentum: 0 keeps none.
        warmup_strategy: linear, power2, sqrt or lars; others have f = 1 while it lasts.
        warmup_epochs, updates_per_epoch: length of the warm-up.
        batch_scale: how many gradients are averaged.
        begin_epoch: epochs that are behind, for the warm-up.
        num_epochs: unused, as in MXNet.
        grad_scale: what gradients were multiplied by (rescale_grad): strategy "lars" takes |g| as it was before.
        one_buffer: in MXNet the first sum is the first gradient's own buffer, so where every gradient is written into that
            buffer, as Module and Trainer do, the second one counts twice and the first not at all; True does the same.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        The transformation; slots `momentum` (if there is one) and `sum` (of gradients, for batch_scale above 1), one count
        for all parameters.

    Raises:
        ValueError: batch_scale below 1.

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
        raise ValueError(f"lbsgd: batch_scale is {batch_scale}, a whole number of batches from 1 on is needed.")
    clip = clipper(clip_gradient)
    length, behind = operand(warmup_epochs * updates_per_epoch), operand(begin_epoch * updates_per_epoch)

    def factor(number: Any, g: Array, w: Array, wd: Any) -> Any:
        if warmup_strategy == "lars":
            size, slope = jnp.sum(w * w), jnp.sum(g * g) / grad_scale**2
            return jnp.clip(jnp.sqrt(size / (decayed(slope, wd, size) + 1e-18)), 0.01, 100.0)
        return _warm(warmup_strategy, number, length, float(batch_scale))

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        number = behind + ctx.t
        total = slots[-1] + g if batch_scale > 1 else g
        if one_buffer and (behind + 1) % batch_scale:  # a sum that starts and ends with the first gradient is its own
            total = jnp.where(jnp.asarray(ctx.t) == 2, 2 * g, total)
        g = total / batch_scale
        step = -ctx.lr * factor(number, g, w, ctx.wd) * decayed(clip(g), ctx.wd, w)
        delta = momentum * slots[0] + step if momentum else step
        after = (delta,) if momentum else ()
        if batch_scale == 1:
            return delta, after
        now = number % batch_scale == 0
        kept = tuple(jnp.where(now, new, old) for new, old in zip(after, slots[:-1], strict=True))
        return jnp.where(now, delta, 0.0), (*kept, jnp.where(now, 0.0, total))

    slots = (*(["momentum"] if momentum else []), *(["sum"] if batch_scale > 1 else []))
    return transformation(rule, slots, Common(learning_rate, wd, lr_mult, wd_mult, multi_precision), counted=True)


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
            raise ValueError(
                f"lars: adapt is {adapt!r}; it needs to be 'mxnet', a dict by name, a function of the name, or a list."
            )
        return by_rule
    if not name.isdecimal() or int(name) >= len(adapt):
        raise ValueError(
            f"lars: adapt is a sequence of {len(adapt)} booleans, which goes with a list of as many arrays; a parameter is "
            f"called {name!r}. Pass a dict by name, or a function of the name."
        )
    return bool(adapt[int(name)])


def _no_rate_yet() -> dict[str, Array]:
    return {name: jnp.zeros((), jnp.float32) for name in ("rate", "last")}


def _norm(x: Array) -> Array:
    return jnp.sqrt(jnp.sum(x * x))


def _ratio(above: Any, below: Any, *positive: Any) -> Any:
    """above / below where all the others are positive, else 1."""
    good = jnp.stack([jnp.asarray(p > 0) for p in positive]).all()
    return jnp.where(good, above / jnp.where(good, below, 1.0), 1.0)
