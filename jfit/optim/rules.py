"""The update rules of jfit's optimizers, all those of MXNet; each is a function that returns an `Optimizer`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import one_of
from jfit.optim.core import (
    Common,
    LearningRate,
    Optimizer,
    RuleContext,
    Slots,
    clipper,
    copied,
    decay_rates,
    decayed,
    moments,
    one_minus_power,
    optimizer,
    transformation,
    unchecked,
    zeros,
)
from jfit.optim.schedules import operand
from jfit.programs import Constants

# ------------------------------------------------------------------------------------------ SGD, variants with momentum


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
            Unused without momentum, as in MXNet.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        Optimizer with the state slot `momentum`.

    Example:
        >>> opt = signum(0.1)
        >>> w = {"fc_weight": jnp.array([3.0, -0.5])}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> [round(float(u), 4) for u in updates["fc_weight"]]
        [-0.1, 0.1]

    Source: Bernstein et al. 2018, https://arxiv.org/abs/1802.04434; Apache MXNet 1.9.1, `signum_update`, `signsgd_update`.
    """
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


# ----------------------------------------------------------------------- moving averages of the gradient and its square


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
        u, averages = lamb_direction(clip(g), w, slots, numbers, ctx.t if bias_correction else None, ctx.wd)
        return -ctx.lr * u, averages

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


# ---------------------------------------------------------------------------------- roots of summed or averaged squares


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
            raise ValueError(f"group_adagrad: a parameter has shape {tuple(w.shape)}, but it must be a matrix")
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


# --------------------------------------------------------------------- follow the regularized leader, the moving leader


@optimizer()
def ftrl(
    learning_rate: LearningRate = 0.1,
    lamda1: float = 0.01,
    beta: float = 1.0,
    *,
    lazy_update: bool = True,
    **common: Unpack[Common],
) -> Optimizer:
    """z <- z + c(g) - (sqrt(n + c(g)^2) - sqrt(n)) * w / lr;  n <- n + c(g)^2;  w <- soft(z) / ((beta + sqrt(n)) / lr + wd).

    g: gradient, w: weight, lr: learning rate; c(x) clips x to ±clip_gradient, if that is set.
    z and n are slots, initially 0.

    soft(z) = sign(z) * lamda1 - z if |z| > lamda1, else 0, so small weights become exactly 0.  The weight is computed from z
    and n alone: the first update discards the initial weight, even if the gradient is 0.

    Args:
        learning_rate: nonzero number, or a schedule: function of the number of updates done.
        lamda1: strength of the L1 penalty.
        beta: added to sqrt(n).
        lazy_update: for a `SparseRows` gradient, update only its rows; rows without a gradient so far keep their
            initial weight.
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

    return transformation(rule, ("z", "n"), learning_rate, common, lazy=lazy_update)


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


# -------------------------------------------------------------------------------- stochastic gradient Langevin dynamics


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


# -------------------------------------------------------------- large batches: layer-wise learning rates, long warm-ups


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
    lower, upper = (numbers.lower if lower_bound else None), (numbers.upper if upper_bound else None)

    def rule(g: Array, w: Array, slots: Slots, ctx: RuleContext) -> tuple[Array, Slots]:
        u, averages = lamb_direction(clip(g), w, slots, numbers, ctx.t if bias_correction else None, ctx.wd)
        return -ctx.lr * lamb_ratio(_norm(w), _norm(u), lower, upper) * u, averages

    return transformation(rule, ("mean", "var"), learning_rate, common, counted=True)


def lamb_direction(g: Array, w: Array, slots: Slots, numbers: Constants, t: Any, wd: Any) -> tuple[Array, tuple[Array, Array]]:
    """Return LAMB's step before it is scaled, and the new moving averages; `t`: number of the update, None: not corrected.

    AdamW takes this step as it is.
    """
    mean, var = m, v = moments(g, slots, numbers)
    if t is not None:
        m, v = m / one_minus_power(numbers.log1, t), v / one_minus_power(numbers.log2, t)
    return decayed(m / (jnp.sqrt(v) + numbers.epsilon), wd, w), (mean, var)


def lamb_ratio(size: Array, step_size: Array, lower: Any, upper: Any) -> Array:
    """Return the norm of the weight, between the bounds (None: no bound), divided by that of the step; 1 if one is 0."""
    size = size if lower is None else jnp.maximum(size, lower)
    size = size if upper is None else jnp.minimum(size, upper)
    is_zero = (size == 0) | (step_size == 0)  # False if a norm is NaN: the whole parameter becomes NaN, as in MXNet
    return jnp.where(is_zero, 1.0, size / jnp.where(is_zero, 1.0, step_size))


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
            rate = rate * lars_ratio(size, slope, numbers.eta, ctx.wd, numbers.eps)
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
        one_of(("mxnet",), **{"lars: adapt": adapt})
        return by_rule
    return bool(adapt[int(name)])


def _no_rate_yet() -> dict[str, Array]:
    return {name: jnp.zeros((), jnp.float32) for name in ("rate", "last")}


def _norm(x: Array) -> Array:
    return jnp.sqrt(jnp.sum(x * x))


def lars_ratio(size: Array, slope: Array, eta: Any, wd: Any, eps: Any) -> Array:
    """Return LARS's factor of the learning rate for the norms of a weight and of its gradient."""
    return _ratio(eta * size, decayed(slope, wd, size) + eps, size, slope)


def _ratio(above: Any, below: Any, *positive: Any) -> Any:
    """Return above / below where all arrays in `positive`, of one shape, are above 0, else 1."""
    good = jnp.stack([jnp.asarray(p > 0) for p in positive]).all(0)
    return jnp.where(good, above / jnp.where(good, below, 1.0), 1.0)
