"""TrainState: the complete state of training as one pytree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import at_least_0, matching, name_hint
from jfit.data.batch import flat_inputs
from jfit.init import InitDesc, default
from jfit.init import get as get_initializer
from jfit.init.core import distribution_of
from jfit.init.sampling import Fixed, split_seed
from jfit.lowering.dependence import is_literal
from jfit.lowering.model import Aux, Model, Params, Policy, flatten_names, specs_of
from jfit.lowering.structure import own_buffer
from jfit.metrics import Metric
from jfit.optim import EmaState, Optimizer, ema_params
from jfit.optim.core import zeros
from jfit.optim.registry import get_for, in_structure
from jfit.optim.several import by_pattern
from jfit.programs import Program
from jfit.step.loss_scale import LossScale, first_scale
from jfit.step.totals import norms_of, zero_totals

MAX_ON_HOST = 1 << 26  # bytes of parameters for which the optimizer state is made on the host, which compiles nothing


class TrainState(NamedTuple):
    """The complete state of training: one pytree of arrays, which a training step maps to the next one.

    Attributes:
        step: number of updates done, int32 scalar.
        params: parameters by name.
        aux: auxiliary states by name (moving means and variances).
        opt_state: state of the optimizer, such as momentum; its structure depends on the optimizer.  For a model made of a
            function, subtrees like the parameters are dicts by name, as `params` is.
        metrics: running sums of loss and metrics, a `jfit.totals.Totals`; None: steps sum nothing up.
        base_lr: base learning rate, before the schedule, float32 scalar; None if the optimizer has its own learning rate.  It
            can be replaced without recompiling.  The learning rate of an update is `StepOut.lr`.
        key: PRNG key data, uint32; a typed key works too, but costs dispatch time.  Each step folds its number into it.
        local: state of the gradient reduction that differs between devices (see `jfit.step.reduce`), with a leading device
            axis; None if the reduction has no state.
        loss_scale: `jfit.step.loss_scale.LossScale` of float16 training; None for policies without a loss scale.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(2)})
        >>> state = jfit.init_state(model, "sgd")
        >>> jfit.TrainState._fields == state._fields, float(state._replace(base_lr=jnp.float32(0.5)).base_lr)
        (True, 0.5)
    """

    step: Array
    params: Params
    aux: Aux
    opt_state: Any
    metrics: Any
    base_lr: Array | None
    key: Array
    local: Any = None
    loss_scale: LossScale | None = None


def split_params(model: Model, params: Params, frozen: Sequence[str] = ()) -> tuple[Params, Params]:
    """Split parameters into (trainable, frozen): the floating-point parameters that are not frozen, and all others.

    Args:
        model: the `Model`; `model.frozen` are the names that it freezes.
        params: parameters by name.
        frozen: names or glob patterns of further frozen parameters.

    Raises:
        ValueError: a pattern matches no parameter (the message lists the nearest names), or nothing is left to train.
    """
    names = set(model.frozen)
    for pattern in [frozen] if isinstance(frozen, str) else frozen:
        names.update(matching(pattern, list(params), f"frozen={pattern!r} matches no parameter"))
    trainable = {k: v for k, v in params.items() if k not in names and jnp.issubdtype(v.dtype, jnp.floating)}
    if len(frozen) and params and not trainable:
        raise ValueError(f"frozen={frozen!r} leaves no parameter to train; leave out at least one of {list(params)[:10]}")
    return trainable, {k: v for k, v in params.items() if k not in trainable}


def init_state(
    model: Model,
    optimizer: Any = "sgd",
    inputs: Mapping[str, Any] | None = None,
    *,
    seed: int | Array = 0,
    initializer: Any = None,
    params: Any = None,
    aux: Any = None,
    metrics: Sequence[Metric] = (),
    learning_rate: float | None = None,
    frozen: Sequence[str] = (),
    log: str | Sequence[str] = (),
    policy: Policy | str | None = None,
) -> TrainState:
    """Create the state before the first training step: draw parameters, initialize the optimizer.

    Args:
        model: from `jfit.lower` or `jfit.Model.from_function`.
        optimizer: as for `train_step`; pass the same to both.
        inputs: one batch, arrays or jax.ShapeDtypeStruct by input name; parameter shapes are inferred from their shapes.  None
            if the model needs no shapes (`Model.from_function`).
        seed: integer (may be traced) or PRNG key; each parameter is drawn with the key fold_in(key, crc32(name)).
        initializer: name or `jfit.init` initializer; None for the default, Xavier.
        params: initial parameters by name; the others are drawn.  The values are copied.  For a model made of a
            function: its pytree, or a dict by name.
        aux: initial auxiliary states by name, likewise.
        metrics: the metrics passed to `train_step`, whose running sums are in the state.
        learning_rate: base learning rate, number or scalar array; None for the default of the optimizer.
        frozen: names or glob patterns of parameters that are not trained.
        log: the argument `log` of `train_step`, whose running sums are in the state.
        policy: the argument `policy` of `train_step`, whose loss scale is in the state; only for "float16".

    Returns:
        `TrainState` on the default device.

    Raises:
        ValueError: an unknown name in params, aux, or the lr_mult or wd_mult of the optimizer, a shape that does not match, or
            a learning rate for an optax instance, which has its own.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> state = jfit.init_state(jfit.lower(net), "sgd", {"data": np.zeros((8, 4), "float32")})
        >>> int(state.step), sorted(state.params)
        (0, ['fullyconnected0_bias', 'fullyconnected0_weight'])
    """
    optimizer = optimizer_of(optimizer, model)
    init_key, run_key = _split_keys(seed)
    inputs = flat_inputs(inputs or {})
    specs = specs_of(inputs)
    if model.symbol is not None and (params or aux):
        start = default() if initializer is None else get_initializer(initializer)
        initializer = _Skipping(frozenset({*(params or ()), *(aux or ())}), start)
    drawn, drawn_aux = model.init(init_key, specs, initializer)
    if model.structure is not None:  # the values may be the user's trees
        params, aux = (None if tree is None else flatten_names(tree)[0] for tree in (params, aux))
    drawn, drawn_aux = _replaced("params", drawn, params), _replaced("aux", drawn_aux, aux)
    ones = {k: np.ones(drawn[k].shape, drawn[k].dtype) for k in model.frozen if k in drawn}
    drawn = _replaced("params", drawn, ones)
    _check_multipliers(optimizer, model, drawn)
    trainable, _ = split_params(model, drawn, frozen)
    base_lr, bound = _base_lr(optimizer, learning_rate), model.bound(inputs) if inputs else model
    norms = norms_of(log) if log else ()
    if both := sorted({*norms} & {*bound.logged}):
        raise ValueError(f"log has {both[0]!r}, but the loss returns a value to log with the same name; rename that value")
    return TrainState(
        step=own_buffer(np.zeros((), np.int32)),
        params=drawn,
        aux=drawn_aux,
        opt_state=_initialized(optimizer, trainable),
        metrics=zero_totals(metrics, (*bound.logged, *norms), bound.num_losses),
        base_lr=None if base_lr is None else _own_float(base_lr),
        key=run_key,
        loss_scale=first_scale(policy) if policy else None,
    )


def optimizer_of(optimizer: Any, model: Model | None) -> Optimizer:
    """Convert an optimizer, or a dict by pattern, to one of parameters by name; None: the model is a graph."""
    is_graph = model is None or model.symbol is not None
    if isinstance(optimizer, Mapping):
        optimizer = by_pattern({pattern: get_for(is_graph, each) for pattern, each in optimizer.items()})
    optimizer = optimizer if isinstance(optimizer, Optimizer) else get_for(is_graph, optimizer)
    return optimizer if model is None or model.structure is None else in_structure(optimizer, model.structure)


def averaged(state: TrainState) -> TrainState:
    """Replace the parameters by those of evaluation: their averages if the optimizer is a result of `jfit.optim.ema`."""
    if not isinstance(state.opt_state, EmaState):
        return state
    return state._replace(params=ema_params(state.params, state.opt_state))


def _initialized(optimizer: Optimizer, params: Params) -> Any:
    """The initial state of the optimizer: one compiled program, or arrays made on the host (see MAX_ON_HOST)."""
    small, init, spec = sum(x.nbytes for x in params.values()) <= MAX_ON_HOST, optimizer.init, optimizer.state_spec
    if small and spec is None and (state := _constants(init, params)) is not None:
        return state
    if not small or spec is None or any(start is not zeros for start in spec.slots.values()):
        init = Program(init, jax.jit, name="init_optimizer")
    return jax.tree.map(own_buffer, init(params))  # copies, so that no donated buffer is shared


def _constants(init: Callable[[Any], Any], params: Params) -> Any:
    """The result of a function that only fills arrays with constants, as `init` of most optax optimizers; else None."""
    closed, shapes = jax.make_jaxpr(init, return_shape=True)(params)
    fills = {e.outvars[0]: e.invars[0] for e in closed.jaxpr.eqns if e.primitive.name == "broadcast_in_dim"}
    results = [(v.aval, v if is_literal(v) else fills.get(v)) for v in closed.jaxpr.outvars]
    if any(not is_literal(value) or aval.weak_type for aval, value in results):
        return None
    arrays = [own_buffer(np.full(aval.shape, value.val, aval.dtype)) for aval, value in results]  # pyright: ignore
    return jax.tree.unflatten(jax.tree.structure(shapes), arrays)


def _own_float(x: Any) -> Array:
    """Copy a number or a scalar array to a new buffer, float32."""
    return own_buffer(np.asarray(x, np.float32)) if isinstance(x, float | int) else jnp.array(x, jnp.float32)


def typed_key(key: Array) -> Array:
    """Convert PRNG key data to a typed key; a typed key is returned unchanged."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _split_keys(seed: Any) -> tuple[Array, Array]:
    """Return (typed key of the initial values, key data of the run)."""
    init_key, run_key = split_seed(seed) or jax.random.split(_key_of(seed))
    return init_key, jax.random.key_data(run_key)


def _key_of(seed: Any) -> Array:
    """Convert an integer, a typed key or key data to a typed key."""
    is_key = np.ndim(seed) or (isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key))
    return typed_key(jnp.asarray(seed)) if is_key else jax.random.key(seed)


def _base_lr(optimizer: Optimizer, learning_rate: Any) -> Any:
    """Return the initial `state.base_lr`: `learning_rate`, or the default of the optimizer if it is None.

    Returns None if the optimizer is an optax instance with its own learning rate.
    """
    if learning_rate is None:
        return optimizer.learning_rate if optimizer.takes_rate else None
    at_least_0(learning_rate=learning_rate)
    if not optimizer.takes_rate:
        raise ValueError(
            f"learning_rate is {learning_rate}, but the optimizer is an optax instance, whose constructor takes it"
        )
    return learning_rate


def _check_multipliers(optimizer: Optimizer, model: Model, params: Params) -> None:
    """Raise a ValueError if lr_mult or wd_mult has a name that is neither a parameter nor a variable of the graph."""
    variables = set(model.symbol.list_inputs()) if model.symbol is not None else set()
    for kind, names in optimizer.multiplied.items():
        for name in names:
            if name not in params and name not in variables:
                is_pattern = any(c in name for c in "*?[")
                exact = "a dict of multipliers has exact names; for patterns pass a function of the name"
                what_to_do = exact if is_pattern else name_hint(name, params)
                raise ValueError(f"{kind} has {name!r}, which is no parameter of the model; {what_to_do}")


@dataclass(frozen=True)
class _Skipping:
    """An initializer of which parameters in `names` are zeros; the caller replaces them by the values of the user.

    The initializer that a graph file names for such a parameter is not called, because it may not exist in jfit.
    """

    names: frozenset[str]
    start: Any

    def __call__(self, key: Array, desc: InitDesc, shape: tuple[int, ...], dtype: Any) -> Array:
        return jnp.zeros(shape, dtype) if desc.name in self.names else self.start(key, desc, shape, dtype)

    def distribution_of(self, desc: InitDesc, shape: tuple[int, ...]) -> Any:
        return Fixed(np.float32(0)) if desc.name in self.names else distribution_of(self.start, desc, shape)


def _replaced(kind: str, drawn: dict[str, Array], values: Mapping[str, Any] | None) -> dict[str, Array]:
    """Replace arrays drawn by an initializer by copies of the values that the user passed.

    Args:
        kind: "params" or "aux", for error messages.
        drawn: drawn arrays by name.
        values: values of the user by name, or None.
    """
    result = dict(drawn)
    for name, value in (values or {}).items():
        if name not in drawn:
            raise ValueError(f"{kind} has {name!r}, which the model does not have; {name_hint(name, drawn)}")
        if np.shape(value) != drawn[name].shape:
            needed = f"but the model needs {drawn[name].shape} for these inputs"
            raise ValueError(f"{kind}[{name!r}] has shape {np.shape(value)}, {needed}")
        same = isinstance(value, np.ndarray) and value.dtype == drawn[name].dtype
        # jnp.array compiles a program for each shape, even without a conversion.
        result[name] = own_buffer(value) if same else jnp.array(value, drawn[name].dtype)
    return result
