"""Forward and backward taken apart: for shells whose users call `forward`, `backward` and `update` one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.lowering.model import Aux, Model, Params, Policy, objective
from jfit.step.inputs import Slots, parts_of, slots_of, stand_ins
from jfit.step.slices import of_real_rows, part_key
from jfit.step.tables import hold
from jfit.step.train import mean_aux

Outputs = tuple[Array, ...]


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
        slots, given = _given(model, batch, part_key(key, step, number), axis_name)
        return model.apply(params, aux, slots.inputs, policy=policy, **{**given, "train": train})[0]

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
    holding = model if by_rows else model._replace(tables={})

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
        slots, given = _given(model, batch, part_key(key, step, number), axis_name)
        inputs, known = slots.inputs, {**params, **slots.inputs}
        own, held = hold(holding, _floats(params, wanted), slots, policy)
        given |= held.given

        def loss_of(learns: tuple[dict[str, Array], dict[str, Array]]):
            fed = {**inputs, **learns[1]}
            values, moved = model.apply({**params, **learns[0]}, aux, fed, policy=policy, **given)
            return _objective(model, values, fed, slots.weight, head_gradients), (values, moved)

        found, (values, moved) = jax.grad(loss_of, has_aux=True)((own, _floats(inputs, wanted)))
        gradients, moved = of_real_rows(slots.weight, {**found[0], **found[1]}, moved, aux)
        if axis_name is not None:
            moved = mean_aux(moved, aux, slots.weight, axis_name)
        gradients = held.by_rows(gradients)
        return values, {n: gradients[n] if n in gradients else jnp.zeros_like(known[n]) for n in wrt}, moved

    return step


def _floats(arrays: Mapping[str, Any], wanted: set[str]) -> dict[str, Array]:
    return {k: jnp.asarray(v) for k, v in arrays.items() if k in wanted and jnp.issubdtype(v.dtype, jnp.floating)}


def _given(model: Model, batch: Any, key: Array, axis_name: str | None) -> tuple[Slots, dict[str, Any]]:
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
