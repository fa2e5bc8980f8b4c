"""SGD and variants with momentum: sgd, nag, signum, dcasgd; and `adding`, which MXNet uses to test its updaters."""

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
    copied,
    decayed,
    optimizer,
    transformation,
    unchecked,
    zeros,
)
from jfit.programs import Constants


@optimizer()
def sgd(
    learning_rate: LearningRate = 0.01, momentum: float = 0.0, *, lazy_update: bool = True, **common: Unpack[Common]
) -> Optimizer:
    """m <- momentum * m - lr * (c(g) + wd * w);  w <- w + m.

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    m is the slot `momentum`, initially 0.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        momentum: momentum coefficient; with 0 the optimizer has no momentum slot.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.
        lazy_update: for a `SparseRows` gradient, update only its rows; other rows get no weight decay and no momentum step.

    Returns:
        Optimizer with the state slot `momentum`.

    Example:
        >>> import optax
        >>> opt = sgd(0.1)
        >>> w = {"fc_weight": jnp.ones(2)}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> optax.apply_updates(w, updates)["fc_weight"].tolist()
        [0.8999999761581421, 0.8999999761581421]

    Source: Apache MXNet 1.9.1, `sgd_update` and `sgd_mom_update` (weight decay is added after clipping).
    """
    clip, numbers = clipper(common.get("clip_gradient")), Constants(momentum=momentum)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        step = -ctx.lr * decayed(clip(g), ctx.wd, w)
        if not slots:
            return step, ()
        m = numbers.momentum * slots[0] + step
        return m, (m,)

    return transformation(rule, ("momentum",) if momentum else (), learning_rate, common, lazy=lazy_update)


@optimizer()
def nag(learning_rate: LearningRate = 0.01, momentum: float = 0.0, **common: Unpack[Common]) -> Optimizer:
    """m' = momentum * m;  w' = w - m' + (1 + momentum) * (m' - lr * (c(g) + wd * w));  m <- m' - lr * (c(g) + wd * w').

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    m is the slot `momentum`, initially 0; w' is the new weight.

    The stored momentum uses weight decay of the NEW weight, unlike the textbook: MXNet's kernel computes it after it has
    written the weight.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        momentum: momentum coefficient; 0 is plain SGD.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        Optimizer with the state slot `momentum`.

    Example:
        >>> opt = nag(0.1, momentum=0.5)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.15

    Source: Apache MXNet 1.9.1, `nag_mom_update`; Nesterov 1983.
    """
    if not momentum:
        return unchecked(sgd)(learning_rate, **common)
    clip, numbers = clipper(common.get("clip_gradient")), Constants(momentum=momentum, ahead=1 + momentum)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g, m = clip(g), numbers.momentum * slots[0]
        delta = -m + numbers.ahead * (m - ctx.lr * decayed(g, ctx.wd, w))
        return delta, (m - ctx.lr * decayed(g, ctx.wd, w + delta),)

    return transformation(rule, ("momentum",), learning_rate, common)


@optimizer()
def signum(
    learning_rate: LearningRate = 0.01, momentum: float = 0.9, wd_lh: float = 0.0, **common: Unpack[Common]
) -> Optimizer:
    """m <- momentum * m - (1 - momentum) * (wd * w + c(g));  w <- (1 - lr * wd_lh) * w + lr * sign(m).

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    m is the slot `momentum`, initially 0.

    Momentum 0 is signSGD: w <- (1 - lr * wd) * w - lr * sign(g).  The sign of NaN is 0, as in MXNet: a NaN gradient
    leaves the weight unchanged, and with momentum the weight stays unchanged from then on.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        momentum: momentum coefficient; with 0 the optimizer has no momentum slot.
        wd_lh: decoupled weight decay, not part of the momentum; it applies to every parameter, independent of `wd_mult`.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        Optimizer with the state slot `momentum`.

    Raises:
        ValueError: wd_lh without momentum.

    Example:
        >>> opt = signum(0.1)
        >>> w = {"fc_weight": jnp.array([3.0, -0.5])}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> [round(float(u), 4) for u in updates["fc_weight"]]
        [-0.1, 0.1]

    Source: Bernstein et al. 2018, https://arxiv.org/abs/1802.04434; Apache MXNet 1.9.1, `signum_update`, `signsgd_update`.
    """
    if wd_lh and not momentum:
        raise ValueError(f"signum: wd_lh is {wd_lh} and momentum is 0, but signSGD has no wd_lh; pass wd, or a momentum")
    clip, numbers = clipper(common.get("clip_gradient")), Constants(momentum=momentum, rest=1 - momentum, growth=-wd_lh)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        if not slots:
            return -ctx.lr * decayed(_sign(g), ctx.wd, w), ()
        m = numbers.momentum * slots[0] - numbers.rest * decayed(clip(g), ctx.wd, w)
        return ctx.lr * decayed(_sign(m), numbers.growth, w), (m,)

    return transformation(rule, ("momentum",) if momentum else (), learning_rate, common)


@optimizer()
def dcasgd(
    learning_rate: LearningRate = 0.01, momentum: float = 0.0, lamda: float = 0.04, **common: Unpack[Common]
) -> Optimizer:
    """m <- momentum * m - lr * (c(g) + wd * w + lamda * c(g)^2 * (w - previous));  previous <- w;  w <- w + m.

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    m is the slot `momentum`, initially 0; previous is the weight before the last update, initially w.

    With momentum, MXNet 1.9.1 raises an error; jfit follows the formula.

    Args:
        learning_rate: number, or a schedule: function of the number of updates done.
        momentum: momentum coefficient; with 0 there is no momentum slot.
        lamda: strength of the correction for delayed gradients.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        Optimizer with the state slots `momentum` (unless it is 0) and `previous`, the weight before the last update.

    Example:
        >>> import optax
        >>> opt = dcasgd(0.5, lamda=1.0)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, state = opt.update(w, opt.init(w), w)
        >>> half = optax.apply_updates(w, updates)
        >>> float(opt.update(w, state, half)[0]["fc_weight"])  # 1 + (0.5 - 1)
        -0.25

    Source: Zheng et al. 2017, https://arxiv.org/abs/1609.08326; Apache MXNet 1.9.1, `DCASGD`.
    """
    clip, numbers = clipper(common.get("clip_gradient")), Constants(momentum=momentum, lamda=lamda)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        g = clip(g)
        step = -ctx.lr * (decayed(g, ctx.wd, w) + numbers.lamda * g * g * (w - slots[-1]))
        if len(slots) == 1:
            return step, (w,)
        m = numbers.momentum * slots[0] + step
        return m, (m, w)

    slots = {"momentum": zeros, "previous": copied} if momentum else {"previous": copied}
    return transformation(rule, slots, learning_rate, common)


@optimizer()
def adding(learning_rate: LearningRate = 0.01, **common: Unpack[Common]) -> Optimizer:
    """w <- w + g: adds the unscaled gradient.  Known as "test"; MXNet tests its updaters with it.

    Args:
        learning_rate: unused.
        wd, clip_gradient, lr_mult, wd_mult: unused.
        multi_precision: see `jfit.optim`.

    Returns:
        Optimizer with the state slot `weight`, the new weight.

    Example:
        >>> opt = adding()
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, state = opt.update(w, opt.init(w), w)
        >>> float(updates["fc_weight"]), float(state.slots["weight"]["fc_weight"])
        (1.0, 2.0)

    Source: Apache MXNet 1.9.1, `Test`.
    """

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        return g, (w + g,)

    return transformation(rule, ("weight",), learning_rate, {**common, "wd": 0.0})


def _sign(x: Array) -> Array:
    """sign(x), and 0 for NaN."""
    return jnp.where(jnp.isnan(x), 0.0, jnp.sign(x))
