"""Gradient descent and its momenta: SGD, NAG."""

from __future__ import annotations

import optax
from jax import Array

from jfit.optim.core import At, Common, LearningRate, Slots, clipper, decayed, transformation
from jfit.optim.multipliers import Multiplier


def sgd(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.0,
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
    multi_precision: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """m <- momentum * m - lr * (c(g) + wd * w);  w <- w + m.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        momentum: 0 keeps no state.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        The transformation; slot `momentum`.

    Example:
        >>> import jax.numpy as jnp
        >>> opt = sgd(0.1)
        >>> w = {"fc_weight": jnp.ones(2)}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> optax.apply_updates(w, updates)["fc_weight"].tolist()
        [0.8999999761581421, 0.8999999761581421]

    Source: Apache MXNet 1.9.1, `sgd_update` and `sgd_mom_update` (the decay is not clipped).
    """
    clip = clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, at: At) -> tuple[Array, Slots]:
        step = -at.lr * decayed(clip(g), at.wd, w)
        if not slots:
            return step, ()
        m = momentum * slots[0] + step
        return m, (m,)

    return transformation(rule, ("momentum",) if momentum else (), Common(learning_rate, wd, lr_mult, wd_mult, multi_precision))


def nag(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.0,
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
    multi_precision: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """m' = momentum * m;  w' = w - m' + (1 + momentum) * (m' - lr * (c(g) + wd * w));  m <- m' - lr * (c(g) + wd * w').

    The stored momentum decays the NEW weight, as MXNet's kernel does (it works in place), unlike the textbook.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        momentum: 0 is plain SGD.
        wd, clip_gradient, lr_mult, wd_mult, multi_precision: see `jfit.optim`.

    Returns:
        The transformation; slot `momentum`.

    Example:
        >>> import jax.numpy as jnp
        >>> opt = nag(0.1, momentum=0.5)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.15

    Source: Apache MXNet 1.9.1, `nag_mom_update`; Nesterov 1983.
    """
    if not momentum:
        return sgd(learning_rate, 0.0, wd, clip_gradient, lr_mult, wd_mult, multi_precision)
    clip = clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, at: At) -> tuple[Array, Slots]:
        g, m = clip(g), momentum * slots[0]
        delta = -m + (1 + momentum) * (m - at.lr * decayed(g, at.wd, w))
        return delta, (m - at.lr * decayed(g, at.wd, w + delta),)

    return transformation(rule, ("momentum",), Common(learning_rate, wd, lr_mult, wd_mult, multi_precision))
