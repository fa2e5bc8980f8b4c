"""Update rules with MXNet 1.9.1's exact arithmetic, shaped as optax transformations.

Every function returns `(init, update)`; `update(grads, state, params, learning_rate=None)` gives what is to be ADDED to
the parameters.  The rate is traced, so a schedule or a user may change it without a second compile; None means the one
given at construction.  It may be one for each leaf: (leaves,), or a tuple of scalars, which XLA compiles ten times faster on a
CPU.  Gradients arrive rescaled; c(.) below clips to +-clip_gradient, and is absent when that is None.

Shared parameters:
    wd: weight decay.  wd_mult: "mxnet" (default) decays what MXNet's Module decays, names that end in `_weight` or
        `_gamma`, or, where the parameters are no flat dict of such names, arrays of two or more dimensions; a dict by name
        overrides that; a function name -> float replaces it; None decays everything.
    lr_mult: dict by name (others 1) or function name -> float; None is 1 for all.
Parameters of 16 bits are updated in float32 arithmetic and keep float32 state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from jfit.optim.schedules import Schedule

LearningRate = float | Array | Callable[[Any], Any]
Multiplier = Mapping[str, float] | Callable[[str], float] | None
Slots = tuple[Array, ...]
# (gradient, weight, slots, rate, decay, t) -> (what to add to the weight, new slots), all float32
Rule = Callable[[Array, Array, Slots, Any, Any, Any], tuple[Array, Slots]]

_DECAYED = ("_weight", "_gamma")
_MXNET_ENDINGS = (*_DECAYED, "_bias", "_beta")


class OptState(NamedTuple):
    """State of a jfit optimizer.

    Attributes:
        count: updates so far, int32: () for all parameters, (leaves,) or a tuple of scalars for each, in leaf order; None
            where the rule does not need it.
        slots: by name, one tree of float arrays in the parameters' structure (`momentum`, `mean`, `var`, ...).
        lr_mult: float32 (leaves,) in leaf order; None when all are 1.
        wd_mult: the same for weight decay, or a tuple of scalars.
    """

    count: Array | tuple[Array, ...] | None
    slots: dict[str, Any]
    lr_mult: Array | None = None
    wd_mult: Array | tuple[Array, ...] | None = None


def sgd(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.0,
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
) -> optax.GradientTransformationExtraArgs:
    """m <- momentum * m - lr * (c(g) + wd * w);  w <- w + m.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        momentum: 0 keeps no state.
        wd, clip_gradient, lr_mult, wd_mult: see the module.

    Returns:
        The transformation; slot `momentum`.

    Example:
        >>> opt = sgd(0.1)
        >>> w = {"fc_weight": jnp.ones(2)}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> optax.apply_updates(w, updates)["fc_weight"].tolist()
        [0.8999999761581421, 0.8999999761581421]

    Source: Apache MXNet 1.9.1, `sgd_update` and `sgd_mom_update` (the decay is not clipped).
    """
    clip = _clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, lr: Any, wd: Any, t: Any) -> tuple[Array, Slots]:
        step = -lr * _decayed(clip(g), wd, w)
        if not slots:
            return step, ()
        m = momentum * slots[0] + step
        return m, (m,)

    return _transformation(rule, ("momentum",) if momentum else (), learning_rate, wd, lr_mult, wd_mult)


def nag(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.0,
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
) -> optax.GradientTransformationExtraArgs:
    """m' = momentum * m;  w' = w - m' + (1 + momentum) * (m' - lr * (c(g) + wd * w));  m <- m' - lr * (c(g) + wd * w').

    The stored momentum decays the NEW weight, as MXNet's kernel does (it works in place), unlike the textbook.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        momentum: 0 is plain SGD.
        wd, clip_gradient, lr_mult, wd_mult: see the module.

    Returns:
        The transformation; slot `momentum`.

    Example:
        >>> opt = nag(0.1, momentum=0.5)
        >>> w = {"fc_weight": jnp.ones(())}
        >>> updates, _ = opt.update(w, opt.init(w), w)
        >>> round(float(updates["fc_weight"]), 4)
        -0.15

    Source: Apache MXNet 1.9.1, `nag_mom_update`; Nesterov 1983.
    """
    if not momentum:
        return sgd(learning_rate, 0.0, wd, clip_gradient, lr_mult, wd_mult)
    clip = _clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, lr: Any, wd: Any, t: Any) -> tuple[Array, Slots]:
        g, m = clip(g), momentum * slots[0]
        delta = -m + (1 + momentum) * (m - lr * _decayed(g, wd, w))
        return delta, (m - lr * _decayed(g, wd, w + delta),)

    return _transformation(rule, ("momentum",), learning_rate, wd, lr_mult, wd_mult)


def adam(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0.0,
    clip_gradient: float | None = None,
    lr_mult: Multiplier = None,
    wd_mult: Multiplier | str = "mxnet",
) -> optax.GradientTransformationExtraArgs:
    """G = c(g + wd * w);  w <- w - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * mean / (sqrt(var) + epsilon).

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        beta1, beta2: decay of the means of G and of G^2.
        epsilon: outside the root, and not bias-corrected.
        wd, clip_gradient, lr_mult, wd_mult: see the module; the decay is part of what is clipped.

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
    clip = _clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, lr: Any, wd: Any, t: Any) -> tuple[Array, Slots]:
        mean, var = _moments(clip(_decayed(g, wd, w)), slots, beta1, beta2)
        rate = lr * jnp.sqrt(_one_minus_power(beta2, t)) / _one_minus_power(beta1, t)
        return -rate * mean / (jnp.sqrt(var) + epsilon), (mean, var)

    return _transformation(rule, ("mean", "var"), learning_rate, wd, lr_mult, wd_mult, counted=True)


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
) -> optax.GradientTransformationExtraArgs:
    """w <- w - lr * (mean' / (sqrt(var') + epsilon) + wd * w) with the moments of c(g), bias-corrected unless told not.

    MXNet's contributed kernel is w - eta * (lr * mean / (sqrt(var) + epsilon) + wd * w) without bias correction. Here the
    rate plays its `eta` and its own `lr` is 1, the way it was used; `bias_correction=False` gives the kernel's values.

    Args:
        learning_rate: rate, or a schedule of the update count from 0.
        beta1, beta2: decay of the means of g and of g^2.
        epsilon: outside the root.
        bias_correction: divide the moments by 1 - beta^t.
        wd, clip_gradient, lr_mult, wd_mult: see the module; the decay is neither clipped nor averaged.

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
    clip = _clipper(clip_gradient)

    def rule(g: Array, w: Array, slots: Slots, lr: Any, wd: Any, t: Any) -> tuple[Array, Slots]:
        mean, var = m, v = _moments(clip(g), slots, beta1, beta2)
        if bias_correction:
            m, v = m / _one_minus_power(beta1, t), v / _one_minus_power(beta2, t)
        return -lr * _decayed(m / (jnp.sqrt(v) + epsilon), wd, w), (mean, var)

    return _transformation(rule, ("mean", "var"), learning_rate, wd, lr_mult, wd_mult, counted=True)


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
        wd, clip_gradient, lr_mult, wd_mult: see the module; the decay is part of what is clipped.

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
    clip, bound = _clipper(clip_gradient), _clipper(clip_weights)

    def rule(g: Array, w: Array, slots: Slots, lr: Any, wd: Any, t: Any) -> tuple[Array, Slots]:
        g = clip(_decayed(g, wd, w))
        n = (1 - gamma1) * g * g + gamma1 * slots[0]
        if not centered:
            delta, new = -lr * g / jnp.sqrt(n + epsilon), (n,)
        else:
            mean = (1 - gamma1) * g + gamma1 * slots[1]
            delta = gamma2 * slots[2] - lr * g / jnp.sqrt(n - mean * mean + epsilon)
            new = (n, mean, delta)
        return (bound(w + delta) - w if clip_weights else delta), new

    return _transformation(rule, ("n", "g", "delta") if centered else ("n",), learning_rate, wd, lr_mult, wd_mult)


def set_multipliers(state: OptState, params: Any, lr_mult: Multiplier = None, wd_mult: Multiplier | str = "mxnet") -> OptState:
    """The state with other multipliers; a state that has them already keeps its structure, so nothing compiles again.

    Args:
        state: of an optimizer of this module.
        params: the tree it was made for.
        lr_mult, wd_mult: see the module.

    Returns:
        A new state; slots and count are shared with the old one.

    Example:
        >>> w = {"a_weight": jnp.ones(2), "b_bias": jnp.ones(2)}
        >>> set_multipliers(sgd(0.1).init(w), w, lr_mult={"b_bias": 2.0}).lr_mult.tolist()
        [1.0, 2.0]
    """
    lr = _multipliers(params, lr_mult, keep=state.lr_mult is not None)
    return state._replace(lr_mult=lr, wd_mult=_multipliers(params, wd_mult, "mxnet", keep=state.wd_mult is not None))


def _transformation(
    rule: Rule,
    slots: tuple[str, ...],
    learning_rate: LearningRate,
    wd: float,
    lr_mult: Multiplier,
    wd_mult: Multiplier | str,
    counted: bool = False,
) -> optax.GradientTransformationExtraArgs:
    base, counted = learning_rate, counted or callable(learning_rate)

    def init(params: Any) -> OptState:
        return OptState(
            count=jnp.zeros((), jnp.int32) if counted else None,
            slots={name: jax.tree.map(_zeros, params) for name in slots},
            lr_mult=_multipliers(params, lr_mult),
            wd_mult=_multipliers(params, wd_mult, "mxnet") if wd else None,
        )

    def update(
        grads: Any, state: OptState, params: Any = None, *, learning_rate: Any = None, **extra: Any
    ) -> tuple[Any, OptState]:
        if params is None:
            raise ValueError("the update of a jfit optimizer needs the parameters; call update(grads, state, params).")
        leaves, tree = jax.tree.flatten(params)
        rate = rate_at(base, state.count) if learning_rate is None else learning_rate
        t = jax.tree.map(lambda c: c + 1, state.count)
        kept = [tree.flatten_up_to(state.slots[name]) for name in slots]
        lr = rate if state.lr_mult is None else rate * state.lr_mult
        decay = wd if state.wd_mult is None or not wd else jax.tree.map(lambda m: wd * m, state.wd_mult)
        scalars = zip(*(_each(x, len(leaves)) for x in (lr, decay, t)), strict=True)
        added, new = [], [[] for _ in slots]
        for i, (g, w, own) in enumerate(zip(tree.flatten_up_to(grads), leaves, scalars, strict=True)):
            delta, after = rule(_wide(g), _wide(w), tuple(k[i] for k in kept), *own)
            added.append(delta.astype(w.dtype))
            for column, value in zip(new, after, strict=True):
                column.append(value)
        after = {name: tree.unflatten(column) for name, column in zip(slots, new, strict=True)}
        return tree.unflatten(added), state._replace(count=t, slots=after)

    # the train step feeds the rate, whether the optimizer came by name or as an instance: it needs to know where it starts
    cast(Any, update).base_rate = base
    return optax.GradientTransformationExtraArgs(cast(Any, init), cast(Any, update))


def rate_at(base: LearningRate, count: Any) -> Any:
    """The rate after `count` updates: jfit's schedules number the coming update from 1, optax's from 0."""
    if isinstance(base, Schedule):
        return base(count + 1)
    return base(count) if callable(base) else base


def _each(x: Any, n: int) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x[i] for i in range(n)] if np.ndim(x) else [x] * n


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _zeros(w: Array) -> Array:
    return jnp.zeros(w.shape, jnp.promote_types(w.dtype, jnp.float32))


def _clipper(bound: float | None) -> Callable[[Array], Array]:
    return (lambda x: jnp.clip(x, -bound, bound)) if bound else (lambda x: x)


def _decayed(g: Array, wd: Any, w: Array) -> Array:
    # w may hold inf where nothing decays it, so 0 * w is not written at all
    return g if isinstance(wd, int | float) and wd == 0 else g + wd * w


def _moments(g: Array, slots: Slots, beta1: float, beta2: float) -> tuple[Array, Array]:
    return beta1 * slots[0] + (1 - beta1) * g, beta2 * slots[1] + (1 - beta2) * g * g


def _one_minus_power(beta: float, t: Array) -> Any:
    # 1 - 0.999 in float32 is off by 1e-5; expm1 keeps all digits
    return -jnp.expm1(t.astype(jnp.float32) * math.log(beta)) if beta else 1.0


def _multipliers(params: Any, given: Multiplier | str, default: str | None = None, keep: bool = False) -> Array | None:
    if given is None and not keep:
        return None
    if isinstance(given, str) and given != "mxnet":
        raise ValueError(f"wd_mult is {given!r}; it needs to be 'mxnet', a dict by name, a function of the name, or None.")
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    if callable(given):
        values = np.asarray([given(name) for name in names], np.float32)
    else:
        by_rule = given == "mxnet" or (given is not None and default == "mxnet")
        base = _decays(names, [np.ndim(leaf) for _, leaf in paths]) if by_rule else [1.0] * len(names)
        own = given if isinstance(given, Mapping) else {}
        values = np.asarray([own.get(name, value) for name, value in zip(names, base, strict=True)], np.float32)
    return None if np.all(values == 1) and not keep else jnp.asarray(values)


def _decays(names: list[str], ndims: list[int]) -> list[float]:
    if any(name.endswith(_MXNET_ENDINGS) and "/" not in name for name in names):
        return [float(name.endswith(_DECAYED)) for name in names]
    return [float(ndim >= 2) for ndim in ndims]
