"""Gradients without an update: forward and backward as separate steps, and mean gradients of a batch or a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.data.batch import parts_of
from jfit.lowering.model import Aux, Model, Params, Policy, objective
from jfit.step.slices import Slots, of_real_rows, part_key, rows_of, slots_of, stand_ins, table_rows
from jfit.step.state import split_params
from jfit.step.train import mean_aux

Outputs = tuple[Array, ...]
Gradients = dict[str, Array]


def forward_step(model: Model, *, train: bool = True, policy: Policy | str | None = None) -> Callable[..., Outputs]:
    """(params, aux, batch, key, step, number) -> outputs; auxiliary states do not move.

    Args:
        model: the model.
        train: training mode; otherwise nothing is random and labels may be left out.
        policy: mixed precision.

    Returns:
        `fn(params, aux, batch, key, step, number, axis_name=None) -> outputs`: `key` is `state.key`, `step` and `number` say
        which step and which of its passes; the same three give `gradient_step` the same random numbers.

    Example:
        >>> import jax, jax.numpy as jnp, jfit
        >>> model = jfit.lower(jfit.sym.Dropout(jfit.sym.Variable("data"), p=0.5))
        >>> fn = jfit.step.forward_step(model)
        >>> sorted(set(fn({}, {}, {"data": jnp.ones((1, 64))}, jax.random.key_data(jax.random.key(0)), 0, 0)[0][0].tolist()))
        [0.0, 2.0]
    """
    policy = Policy(policy) if isinstance(policy, str) else policy

    def step(params: Params, aux: Aux, batch: Any, key: Array, step: Any, number: Any, *, axis_name: str | None = None):
        slots, apply_args = _pass(model, batch, part_key(key, step, number), axis_name)
        return model.apply(params, aux, slots.inputs, policy=policy, **{**apply_args, "train": train})[0]

    return step


def gradient_step(
    model: Model, wrt: Sequence[str], *, policy: Policy | str | None = None, by_rows: bool = False
) -> Callable[..., tuple[Outputs, dict[str, Array], Aux]]:
    """(outputs, Σᵢ wᵢ ∇ℓᵢ by name, new aux) of one device's rows, nothing reduced, nothing updated.

    Args:
        model: the model.
        wrt: names of parameters and inputs whose gradients are wanted; integer ones get zeros.
        policy: mixed precision.
        by_rows: give the gradients of the model's tables as `jfit.optim.SparseRows`.

    Returns:
        `fn(params, aux, batch, key, step, number, head_gradients=None, axis_name=None)`.  Without head gradients the
        objective is differentiated (heads and losses; plain outputs get no gradient); with them, one array for each output,
        Σ output · head gradient is (heads make their own gradient, as MXNet's do).

    Example:
        >>> import jax, jax.numpy as jnp, jfit
        >>> model = jfit.lower(jfit.sym.square(jfit.sym.Variable("data")))
        >>> fn, key = jfit.step.gradient_step(model, ["data"]), jax.random.key_data(jax.random.key(0))
        >>> _, gradients, _ = fn({}, {}, {"data": jnp.array([3.0])}, key, 0, 0, [jnp.ones(1)])
        >>> gradients["data"].tolist()
        [6.0]
    """
    policy, wanted = Policy(policy) if isinstance(policy, str) else policy, set(wrt)
    with_tables = model if by_rows else model._replace(tables={})

    def step(
        params: Params,
        aux: Aux,
        batch: Any,
        key: Array,
        step: Any,
        number: Any,
        head_gradients: Sequence[Array] | None = None,
        *,
        axis_name: str | None = None,
    ) -> tuple[Outputs, dict[str, Array], Aux]:
        slots, apply_args = _pass(model, batch, part_key(key, step, number), axis_name)
        inputs, known = slots.inputs, {**params, **slots.inputs}
        trainable, tables = table_rows(with_tables, _floats(params, wanted), slots, policy)
        apply_args |= tables.apply_args

        def loss_of(trainable: dict[str, Array], floats: dict[str, Array]):
            fed = {**inputs, **floats}
            values, moved = model.apply({**params, **trainable}, aux, fed, policy=policy, **apply_args)
            return _objective(model, values, fed, slots.weight, head_gradients), (values, moved)

        of_both, (values, moved) = jax.grad(loss_of, argnums=(0, 1), has_aux=True)(trainable, _floats(inputs, wanted))
        gradients, moved = of_real_rows(slots.weight, {**of_both[0], **of_both[1]}, moved, aux)
        if axis_name is not None:
            moved = mean_aux(moved, aux, slots.weight, axis_name)
        gradients = tables.by_rows(gradients)
        return values, {n: gradients[n] if n in gradients else jnp.zeros_like(known[n]) for n in wrt}, moved

    return step


def _floats(arrays: Mapping[str, Any], wanted: set[str]) -> dict[str, Array]:
    return {k: jnp.asarray(v) for k, v in arrays.items() if k in wanted and jnp.issubdtype(v.dtype, jnp.floating)}


def _pass(model: Model, batch: Any, key: Array, axis_name: str | None) -> tuple[Slots, dict[str, Any]]:
    """(slots, keyword arguments of apply) of a training pass over a Batch or a dict of inputs."""
    slots = Slots(*parts_of(batch), row_ids=None)
    if any(n in slots.inputs for n in (*model.inputs, *model.labels)):  # a graph without inputs has no rows
        slots = slots_of(model, batch, axis_name)
        slots = slots._replace(inputs=stand_ins(model, slots))
    return slots, {"key": key, "train": True, "weight": slots.weight, "axis_name": axis_name, "row_ids": slots.row_ids}


def _objective(model: Model, values: Outputs, inputs: Any, weight: Array | None, head_gradients: Any) -> Array:
    if head_gradients is None:
        return objective(model, values, inputs, weight)
    total = jnp.zeros((), jnp.float32)
    for value, gradient in zip(values, head_gradients, strict=True):
        if jnp.issubdtype(value.dtype, jnp.floating):
            total = total + jnp.sum((value * jnp.asarray(gradient, value.dtype)).astype(jnp.float32))
    return total


def mean_gradients(
    model: Model, wrt: Sequence[str] | None = None, *, policy: Policy | str | None = None
) -> Callable[..., Gradients]:
    """Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ of a batch, as a pure function; auxiliary states do not move.

    Args:
        model: the model.
        wrt: names of parameters; None: those that are differentiated, all floating ones that the model does not freeze.
        policy: mixed precision.

    Returns:
        `fn(params, aux, batch, key=None, axis_name=None) -> gradients by name`; batch: a `jfit.Batch` or a dict of inputs; key:
        key data, two gradients with the same key draw the same random numbers; with an axis name the mean is over all devices.
        A batch whose weights sum to 0 gives zeros.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> loss = lambda output, label: (output - label) ** 2
        >>> model = jfit.Model.from_function(lambda p, x: x * p["w"], loss=loss, params={"w": jnp.ones(())})
        >>> batch = {"x": jnp.array([1.0, 2.0]), "label": jnp.zeros(2)}
        >>> float(jfit.gradients.mean_gradients(model)({"w": jnp.ones(())}, {}, batch)["w"])
        5.0
    """
    summed = _summed(model, wrt, policy)

    def fn(params: Params, aux: Aux, batch: Any, key: Array | None = None, *, axis_name: str | None = None) -> Gradients:
        gradients, rows = summed(params, aux, batch, _key(key), 0, axis_name)
        return _mean(gradients, rows)

    return fn


def full_gradients(
    model: Model, wrt: Sequence[str] | None = None, *, policy: Policy | str | None = None
) -> Callable[..., Gradients]:
    """Σ wᵢ ∇ℓᵢ / Σ wᵢ over all batches of a data set, at the same parameters.

    Args:
        model: the model.
        wrt, policy: as for `mean_gradients`.

    Returns:
        `fn(params, aux, batches, key=None) -> gradients by name`: goes through an iterable of batches once, one dispatch each,
        and waits for nothing; float32 or wider.  A batch of another shape (a ragged last one) is compiled once more.

    Raises:
        ValueError: there is no batch.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> loss = lambda output, label: (output - label) ** 2
        >>> model = jfit.Model.from_function(lambda p, x: x * p["w"], loss=loss, params={"w": jnp.ones(())})
        >>> batches = [{"x": jnp.array([1.0, 2.0]), "label": jnp.zeros(2)}, {"x": jnp.array([4.0]), "label": jnp.zeros(1)}]
        >>> float(jfit.gradients.full_gradients(model)({"w": jnp.ones(())}, {}, batches)["w"])
        14.0
    """
    summed = _summed(model, wrt, policy)

    @jax.jit
    def first(params: Params, aux: Aux, batch: Any, key: Array, number: Any) -> tuple[Gradients, Array]:
        gradients, rows = summed(params, aux, batch, key, number, None)
        return jax.tree.map(_wide, gradients), rows

    def more(sums: tuple[Gradients, Array], *args: Any) -> tuple[Gradients, Array]:
        return jax.tree.map(jnp.add, sums, first(*args))

    more, mean = jax.jit(more, donate_argnums=0), jax.jit(_mean)

    def fn(params: Params, aux: Aux, batches: Iterable[Any], key: Array | None = None) -> Gradients:
        key, sums = _key(key), None
        for number, batch in enumerate(batches):
            args = (params, aux, batch, key, jnp.int32(number))
            sums = first(*args) if sums is None else more(sums, *args)
        if sums is None:
            raise ValueError("full_gradients found no batch; pass an iterable that starts again, such as a list of batches")
        return mean(*sums)

    return fn


def _summed(model: Model, wrt: Sequence[str] | None, policy: Policy | str | None) -> Callable[..., tuple[Gradients, Array]]:
    """(Σ wᵢ ∇ℓᵢ, Σ wᵢ) of a batch, over the devices of an axis."""

    def fn(params: Params, aux: Aux, batch: Any, key: Array, number: Any, axis_name: str | None) -> tuple[Gradients, Array]:
        names = list(split_params(model, params)[0] if wrt is None else wrt)
        _, gradients, _ = gradient_step(model, names, policy=policy)(params, aux, batch, key, 0, number, axis_name=axis_name)
        inputs, weight, _ = parts_of(batch)
        rows = jnp.asarray(rows_of(model, inputs), jnp.float32) if weight is None else jnp.sum(weight)
        return (gradients, rows) if axis_name is None else lax.psum((gradients, rows), axis_name)

    return fn


def _key(key: Array | None) -> Array:
    return jax.random.key_data(jax.random.key(0)) if key is None else key


def _mean(gradients: Gradients, rows: Array) -> Gradients:
    return jax.tree.map(lambda g: (_wide(g) / jnp.maximum(rows, 1e-30)).astype(g.dtype), gradients)


def _wide(g: Array) -> Array:
    return g.astype(jnp.promote_types(g.dtype, jnp.float32))
