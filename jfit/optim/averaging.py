"""Exponential moving average (EMA) of the parameters, kept in the state of an optimizer that is wrapped around another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfit.checks import below_1
from jfit.optim.core import Optimizer, apply_updates, copied, one_minus_power, wide
from jfit.optim.registry import get


class EmaState(NamedTuple):
    """State of `ema`.

    Attributes:
        count: number of updates so far, int32 scalar.
        ema_params: the averages, pytree like the trainable parameters, float32 or wider; before the first update, the initial
            parameters.
        inner: state of the wrapped optimizer.

    Example:
        >>> state = ema("sgd", 0.9).init({"w": jnp.ones(2)})
        >>> int(state.count), state.ema_params["w"].tolist()
        (0, [1.0, 1.0])
    """

    count: Array
    ema_params: Any
    inner: Any


def ema(optimizer: Any, decay: float | Callable[[Any], Any] = 0.999, *, debias: bool = True) -> Optimizer:
    """e(t) = d(t) * e(t-1) + (1 - d(t)) * w(t): average the parameters w exponentially, without changing their updates.

    t is the number of the update, from 1, and e(0) = w(0) the initial parameters.  With `debias`, d(t) = decay * (1 -
    decay^(t-1)) / (1 - decay^t), so that e(t) is the mean of w(1), ..., w(t) with weights decay^(t-i), as in `optax.ema`; the
    initial parameters have no weight.  This is the default, also of `fit(ema=)`.  Without it, d(t) = decay, the usual average
    that starts from the initial parameters, as in Keras.

    `jfit.fit(..., ema=0.999)` wraps its optimizer with it, and evaluates the averages.  For `jfit.init_state` and
    `jfit.train_step`, pass the wrapped optimizer to both; the averages are in `state.opt_state.ema_params`, and
    `jfit.optim.ema_params(state.params, state.opt_state)` has the frozen parameters too.

    Args:
        optimizer: the wrapped optimizer: a name (of MXNet's optimizer if there is one, also for functions, see
            `jfit.optim.get`), a `jfit.optim` optimizer or an optax transformation.  `ema` must be outermost, because it adds
            the updates to the parameters.
        decay: number from 0 to below 1; or a function t -> d(t) of the traced update number, which replaces both formulas: a
            warm-up is `lambda t: jnp.minimum(0.999, (1 + t) / (10 + t))`.
        debias: whether to correct the bias towards the initial parameters, see above.

    Returns:
        `Optimizer` with the updates, learning rate and multipliers of the wrapped one, and the state `EmaState`.  Averages are
        float32 or wider.  Those of embedding tables with row-sparse gradients are updated in all rows, in every step.

    Raises:
        ValueError: `decay` is out of range, or the optimizer is a result of `ema`.

    Example:
        >>> import optax
        >>> optimizer, params = ema(optax.sgd(1.0), 0.5), {"w": jnp.array(4.0)}
        >>> state = optimizer.init(params)
        >>> for _ in range(2):
        ...     updates, state = optimizer.update({"w": jnp.array(1.0)}, state, params)
        ...     params = optax.apply_updates(params, updates)
        >>> float(params["w"]), round(float(state.ema_params["w"]), 4)  # (0.5 * 3 + 2) / (0.5 + 1)
        (2.0, 2.3333)

    Source: Polyak and Juditsky 1992, Acceleration of stochastic approximation by averaging; Kingma and Ba 2015,
    https://arxiv.org/abs/1412.6980 (correction of the bias).
    """
    if not callable(decay):
        below_1(**{"ema: decay": decay})
    inner = get(optimizer)
    if inner.name.startswith("ema("):
        raise ValueError("ema: the optimizer is a result of jfit.optim.ema already; wrap it once, or leave ema= of fit out")

    def init(params: Any) -> EmaState:
        return EmaState(jnp.zeros((), jnp.int32), jax.tree.map(copied, params), inner.init(params))

    def update(grads: Any, state: EmaState, params: Any = None, **extra: Any) -> tuple[Any, EmaState]:
        updates, inner_state = inner.update(grads, state.inner, params, **extra)
        return updates, average(state, apply_updates(params, updates), inner_state, decay, debias)

    def for_graph(names: Any, fixed: Any) -> Optimizer:
        assert inner.for_graph is not None
        return ema(inner.for_graph(names, fixed), decay, debias=debias)

    by_graph = None if inner.for_graph is None else for_graph
    averaged = Optimizer(init, update, **vars(inner) | {"for_graph": by_graph, "name": f"ema({inner.name})"})
    return averaged.keyed(ema, inner, decay, debias)


def average(state: EmaState, params: Any, inner: Any, decay: float | Callable[[Any], Any], debias: bool) -> EmaState:
    """Return the state after an update: with the averages of these parameters, and this state of the wrapped optimizer."""
    count = state.count + 1
    d = jnp.asarray(_decay_of(decay, debias, count), float)

    def averaged(old: Array, w: Array) -> Array:
        return (d * old + (1 - d) * wide(w)).astype(old.dtype)

    return EmaState(count, jax.tree.map(averaged, state.ema_params, params), inner)


def _decay_of(decay: float | Callable[[Any], Any], debias: bool, count: Array) -> Any:
    if callable(decay):
        return decay(count)
    log = math.log(decay) if decay else None
    return decay * one_minus_power(log, count - 1) / one_minus_power(log, count) if debias else decay


def ema_params(params: Mapping[str, Array], opt_state: Any) -> dict[str, Array]:
    """Replace the parameters by their averages.

    Args:
        params: all parameters by name, such as `state.params` of a `jfit.TrainState`.
        opt_state: the state of the optimizer, such as `state.opt_state`.

    Returns:
        dict by name in the dtypes of `params`: the averages of the trainable parameters, and the frozen parameters.  A copy of
        `params` if the optimizer is not a result of `ema`.

    Example:
        >>> state = EmaState(jnp.int32(1), {"w": jnp.float32(2.0)}, ())
        >>> {name: float(x) for name, x in ema_params({"w": jnp.float32(3.0), "b": jnp.float32(1.0)}, state).items()}
        {'w': 2.0, 'b': 1.0}
    """
    if not isinstance(opt_state, EmaState):
        return dict(params)
    averages: Any = opt_state.ema_params
    if not isinstance(averages, Mapping):  # the parameters of a function may be one array
        averages = dict.fromkeys(params, averages)
    # Parameters that an optax transformation does not see are optax.MaskedNode in its state.
    averages = {name: x for name, x in averages.items() if hasattr(x, "dtype")}
    return {name: averages[name].astype(w.dtype) if name in averages else w for name, w in params.items()}
