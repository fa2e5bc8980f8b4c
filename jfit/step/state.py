"""TrainState: everything a run needs to continue, as one pytree."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.init import InitDesc, default
from jfit.init import get as get_initializer
from jfit.lowering.model import Aux, Model, Params, specs_of
from jfit.metrics import Metric
from jfit.ops import nearest
from jfit.optim import Optimizer
from jfit.optim import get as get_optimizer
from jfit.step.totals import zero_totals


class _Fields(NamedTuple):
    step: Array
    params: Params
    aux: Aux
    opt_state: Any
    metrics: Any
    base_lr: Array | None
    key: Array
    local: Any = None


class TrainState(_Fields):
    """One pytree of arrays; `train_step` maps it to the next one.

    Attributes:
        step: updates done, () int32.
        params: parameters by name.
        aux: auxiliary states by name (moving means and variances).
        opt_state: the optimizer's own state.
        metrics: running sums of loss and metrics (see `jfit.totals.Totals`).
        base_lr: base learning rate, which a schedule scales, () float32, or None where the optimizer keeps its own; write it
            freely, nothing recompiles.  The rate that an update used is `lr` of its `StepOut`.
        key: data of the run's PRNG key, uint32 (a typed key costs more dispatch time; both are accepted); each step folds
            its number in.
        local: per-device state with a leading device axis, or None.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(2)})
        >>> state = jfit.init_state(model, "sgd")
        >>> jfit.TrainState._fields == state._fields, float(state._replace(base_lr=jnp.float32(0.5)).base_lr)
        (True, 0.5)
    """

    __slots__ = ()

    @property
    def lr(self) -> Array | None:
        """The former name of `base_lr`; `_replace` takes it too."""
        return self.base_lr

    def _replace(self, **changes: Any) -> TrainState:
        if "lr" in changes:
            changes["base_lr"] = changes.pop("lr")
        return super()._replace(**changes)


def frozen_names(model: Model, names: Sequence[str], frozen: Sequence[str] = ()) -> frozenset[str]:
    """Names of the parameters that do not learn: the model's own, and those that match a name or glob pattern.

    Raises:
        ValueError: a pattern matches no parameter (nearest names listed).
    """
    found = set(model.frozen) & set(names)
    for pattern in [frozen] if isinstance(frozen, str) else frozen:
        matches = [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if not matches:
            near = nearest(pattern, names)
            hint = f"did you mean {near}?" if near else f"they are {list(names)}"
            raise ValueError(f"frozen={pattern!r} matches no parameter; {hint}")
        found.update(matches)
    return frozenset(found)


def split_params(model: Model, params: Params, frozen: Sequence[str] = ()) -> tuple[Params, Params]:
    """(trainable, frozen): floating parameters that are not frozen, and the rest."""
    names = frozen_names(model, list(params), frozen)
    trainable = {k: v for k, v in params.items() if k not in names and jnp.issubdtype(v.dtype, jnp.floating)}
    return trainable, {k: v for k, v in params.items() if k not in trainable}


def init_state(
    model: Model,
    optimizer: Any = "sgd",
    inputs: Mapping[str, Any] | None = None,
    *,
    seed: int | Array = 0,
    initializer: Any = None,
    params: Mapping[str, Any] | None = None,
    aux: Mapping[str, Any] | None = None,
    metrics: Sequence[Metric] = (),
    learning_rate: float | None = None,
    frozen: Sequence[str] = (),
) -> TrainState:
    """The state before the first step.

    Args:
        model: from `jfit.lower` or `jfit.Model.from_function`.
        optimizer: name, `jfit.optim` optimizer or any optax transformation; the one that `train_step` gets.
        inputs: one batch (or jax.ShapeDtypeStruct per input): shapes decide the parameter shapes.
        seed: integer (also a traced one) or PRNG key; parameters are drawn from fold_in(key, crc32(name)).
        initializer: name or `jfit.init` initializer.
        params: values that replace drawn ones, by name; each is copied.
        aux: the same for auxiliary states.
        metrics: those that `train_step` gets.
        learning_rate: base rate, a number or a scalar array; default: the optimizer's own.
        frozen: names or glob patterns of parameters that do not learn.

    Raises:
        ValueError: an unknown name in params or aux, a shape that does not fit (name, found, needed), or a learning rate
            for an optax instance, which keeps its own.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> state = jfit.init_state(jfit.lower(net), "sgd", {"data": np.zeros((8, 4), "float32")})
        >>> int(state.step), sorted(state.params)
        (0, ['fullyconnected0_bias', 'fullyconnected0_weight'])
    """
    optimizer = get_optimizer(optimizer)
    init_key, run_key = jax.random.split(_key_of(seed))
    specs = specs_of(inputs or {})
    if model.symbol is not None:
        initializer = _unless_given({*(params or ()), *(aux or ())}, initializer)
    drawn, drawn_aux = model.init(init_key, specs, initializer)
    drawn, drawn_aux = _replaced("params", drawn, params), _replaced("aux", drawn_aux, aux)
    ones = {k: jnp.ones_like(drawn[k]) for k in model.frozen if k in drawn}
    drawn = {**drawn, **ones}
    trainable, _ = split_params(model, drawn, frozen)
    rate = _base_rate(optimizer, learning_rate)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=drawn,
        aux=drawn_aux,
        # one program instead of one for each shape; copies, because donated buffers must not be shared
        opt_state=jax.tree.map(own_buffer, jax.jit(optimizer.init)(trainable)),
        metrics=zero_totals(metrics),
        base_lr=None if rate is None else jnp.array(rate, jnp.float32),  # a copy: the state's buffers are donated
        key=jax.random.key_data(run_key),
    )


def own_buffer(x: Array) -> Array:
    """The same values in a buffer of their own, without compiling anything."""
    return jax.device_put(x, may_alias=False)


def typed_key(key: Array) -> Array:
    """The PRNG key that a state holds, as a typed key."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _key_of(seed: Any) -> Array:
    """A typed key from an integer, a typed key, or the data of one."""
    if not isinstance(seed, jax.Array):
        seed = np.asarray(seed)
    return jax.random.key(seed) if seed.ndim == 0 and jnp.issubdtype(seed.dtype, jnp.integer) else typed_key(jnp.asarray(seed))


def _base_rate(optimizer: Optimizer, given: Any) -> Any:
    """The rate that `state.base_lr` starts with; None where the optimizer keeps its own."""
    if optimizer.takes_rate:
        return optimizer.learning_rate if given is None else given
    if given is not None:
        raise ValueError(
            f"learning_rate={given} was given, but {optimizer.name} is an optax instance and keeps its own rate; "
            "give it to the optimizer's constructor, or pass the optimizer by name"
        )
    return None


def _unless_given(given: Collection[str], initializer: Any) -> Any:
    """The initializer, for all but the names given: their rules, which files may hold of any kind, are not asked."""
    if not given:
        return initializer
    start = default() if initializer is None else get_initializer(initializer)

    def draw(key: Array, desc: InitDesc, shape: tuple[int, ...], dtype: Any) -> Array:
        return jnp.zeros(shape, dtype) if desc.name in given else start(key, desc, shape, dtype)

    return draw


def _replaced(kind: str, drawn: dict[str, Array], given: Mapping[str, Any] | None) -> dict[str, Array]:
    result = dict(drawn)
    for name, value in (given or {}).items():
        if name not in drawn:
            near = nearest(name, list(drawn))
            hint = f"did you mean {near}?" if near else f"it knows {list(drawn)}"
            raise ValueError(f"{kind} has {name!r}, which the model does not know; {hint}")
        if np.shape(value) != drawn[name].shape:
            raise ValueError(
                f"{name}: the given value has shape {np.shape(value)}, the model needs {drawn[name].shape} for these "
                "inputs; pass matching data or another value"
            )
        result[name] = jnp.array(value, drawn[name].dtype)
    return result
