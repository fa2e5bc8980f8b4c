"""The gradients of one device's slice of a batch: summed over its rows, micro-batch by micro-batch.

Nothing here crosses devices; what the all-reduce adds is in `Sums.shared`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.lowering.model import Aux, Model, Params, Plan, Policy, loss_sums, objective, specs_of
from jfit.metrics import Metric
from jfit.ops.rows import RowsLost
from jfit.step.inputs import Slots, stand_ins
from jfit.step.state import TrainState, typed_key
from jfit.step.tables import Held, hold
from jfit.step.totals import head_arguments, metric_stats


class How(NamedTuple):
    """The settings of a step that reach its gradients."""

    model: Model
    metrics: tuple[Metric, ...]
    micro_batches: int
    policy: Policy | None
    sync_batch_stats: bool
    keep_outputs: bool


class Sums(NamedTuple):
    """Sums of one batch on one device; `shared` is what the all-reduce adds."""

    rows: Array  # Σ weight
    shared: Any  # Shared
    has_loss: bool
    outputs: tuple[Array, ...] | None


class Shared(NamedTuple):
    """Sums that are added over micro-batches and devices: (Σ loss, Σ count) and each metric's stats."""

    loss: tuple[Array, Array]
    metrics: tuple[Any, ...]


def gradients_of(how: How, learns: Params, still: Params, state: TrainState, slots: Slots, axis_name: str | None):
    """Summed gradients, new aux and sums of one device's slice, over its micro-batches."""
    learns, held = hold(how.model, learns, slots, how.policy)

    def part(aux: Aux, number: Any, slots: Slots):
        key = part_key(state.key, state.step, number)
        return _part(how, learns, still, held, aux, slots, number, key, axis_name)

    gradients, aux, sums = part(state.aux, 0, slots) if how.micro_batches == 1 else _accumulate(part, how, state.aux, slots)
    return held.by_rows(gradients), aux, sums


def _part(
    how: How, learns: Params, still: Params, held: Held, aux: Aux, slots: Slots, number: Any, key: Array, axis_name: str | None
):
    """Summed gradients, new aux and sums of one micro-batch."""
    model, (inputs, weight, metric_weight, row_ids) = how.model, slots
    plan = plan_of(model, inputs)
    if weight is not None and not plan.paddable:
        raise RowsLost(plan.reason)
    inputs = stand_ins(model, slots)
    given = {"key": key, "train": True, "weight": weight, "axis_name": axis_name, "row_ids": row_ids, "policy": how.policy}
    given |= held.given

    def loss_of(learns: Params):
        values, moved = model.apply({**still, **learns}, aux, inputs, sync_batch_stats=how.sync_batch_stats, **given)
        return objective(model, values, inputs, weight), (values, moved)

    gradients, (values, moved) = jax.grad(loss_of, has_aux=True)(learns)
    gradients, rested = of_real_rows(weight, gradients, moved, aux)
    moved = moved if how.sync_batch_stats else rested
    losses = loss_sums(model, values, inputs, weight, plan.rows)
    heads = head_arguments(model, values, inputs, metric_weight, plan.rows)
    part, parts = part_of(axis_name, number, how.micro_batches)
    stats = metric_stats(how.metrics, *heads, part, parts)
    count = jnp.sum(weight) if weight is not None else jnp.asarray(row_ids.shape[0], jnp.float32)
    shared = Shared(losses or (jnp.zeros(()), jnp.zeros(())), stats)
    return gradients, moved, Sums(count, shared, losses is not None, values if how.keep_outputs else None)


def part_of(axis_name: str | None, number: Any = 0, micro_batches: int = 1) -> tuple[Any, int]:
    """(which part of the global batch this is, of how many): micro-batch `number` of this device's slice."""
    if axis_name is None:
        return number, micro_batches
    return lax.axis_index(axis_name) * micro_batches + number, lax.psum(1, axis_name) * micro_batches


def of_real_rows(weight: Array | None, gradients: Any, moved: Aux, aux: Aux) -> tuple[Any, Aux]:
    """(gradients, new aux) of a slice; one without rows has only padding, which must not show."""
    if weight is None:
        return gradients, moved
    any_row = jnp.any(weight > 0)
    return jax.tree.map(lambda g: jnp.where(any_row, g, jnp.zeros_like(g)), gradients), chosen(any_row, moved, aux)


def _accumulate(part: Callable[..., Any], how: How, aux: Aux, slots: Slots):
    """Σ over micro-batches, in order; BatchNorm's moving statistics move once per micro-batch."""
    model, count, rows = how.model, how.micro_batches, len(slots.row_ids)
    if rows % count:
        raise ValueError(
            f"micro_batches={count} does not divide the {rows} rows of a device's batch; "
            "choose a divisor, or let jfit.data_parallel or jfit.fit pad the batch"
        )
    if how.keep_outputs:
        raise ValueError("outputs=True needs micro_batches=1: the outputs of all micro-batches would have to be kept")

    def cut(x: Array, axis: int = 0) -> Array:
        shape = (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    inputs = {k: cut(v, model.batch_axes.get(k, 0)) for k, v in slots.inputs.items()}
    slices = Slots(inputs, *(None if w is None else cut(w) for w in slots[1:]))
    gradients, aux, sums = part(aux, 0, jax.tree.map(lambda x: x[0], slices))
    add = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731

    def body(carry, item):
        gradients, aux, rows, shared = carry
        number, rest = item
        more, aux, extra = part(aux, number, rest)
        return (add(gradients, more), aux, rows + extra.rows, add(shared, extra.shared)), None

    carry = (gradients, aux, sums.rows, sums.shared)
    if unrolls(model):
        for i in range(1, count):
            carry, _ = body(carry, (i, jax.tree.map(lambda x, i=i: x[i], slices)))
    else:
        carry, _ = lax.scan(body, carry, (jnp.arange(1, count), jax.tree.map(lambda x: x[1:], slices)))
    gradients, aux, rows, shared = carry
    return gradients, aux, sums._replace(rows=rows, shared=shared)


def chosen(condition: Array, new: Any, old: Any, but: Collection[str] = ()) -> Any:
    """`new` where the condition holds, else `old`, leaf by leaf; `new` always for leaves of these names."""

    def choose(path: Any, n: Array, o: Array) -> Array:
        return n if path and getattr(path[-1], "key", None) in but else jnp.where(condition, n, o)

    return jax.tree_util.tree_map_with_path(choose, new, old)


def unrolls(model: Model) -> bool:
    """True where a loop inside the program must be unrolled: XLA on CPU compiles convolutions in loop bodies badly."""
    return "convolution" in model.traits and jax.default_backend() == "cpu"


def plan_of(model: Model, inputs: dict[str, Array]) -> Plan:
    """The plan for inputs of these shapes."""
    return model.plan(specs_of(inputs))


def part_key(key: Array, step: Any, number: Any = 0) -> Array:
    """The key of micro-batch `number` of a step: fold_in(fold_in(key; step); number)."""
    return jax.random.fold_in(jax.random.fold_in(typed_key(key), step), number)
