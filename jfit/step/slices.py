"""One device's slice of a batch: its rows, the table rows it looks up, and its gradients, summed micro-batch by micro-batch.

Nothing here crosses devices: `step.reduce` adds the gradients, `Sums.rows` and `Sums.shared` over them afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.data.batch import parts_of
from jfit.lowering.model import Aux, Model, Params, Policy, loss_sums, objective, plan_of
from jfit.metrics import Metric
from jfit.ops.rows import RowsLost
from jfit.optim.rows import SparseRows, coalesce, read, without
from jfit.step.state import TrainState, typed_key
from jfit.step.totals import head_arguments, metric_stats


# ------------------------------------------------------------------------------------------------ rows
def rows_of(model: Model, inputs: dict[str, Array]) -> int:
    name = next((n for n in (*model.inputs, *model.labels) if n in inputs), None)
    if name is None:
        raise ValueError(f"the batch has the inputs {sorted(inputs)}, the model needs {[*model.inputs, *model.labels]}")
    return inputs[name].shape[model.batch_axes.get(name, 0)]


class Slots(NamedTuple):
    """The rows of one slice: inputs, training and metric weights (None: all 1), the number of each row in the global batch."""

    inputs: dict[str, Array]
    weight: Array | None
    metric_weight: Array | None
    row_ids: Any


def slots_of(model: Model, batch: Any, axis_name: str | None) -> Slots:
    """The slots of a device's slice of a batch.

    Raises:
        ValueError: weights that are not one number per row.
    """
    inputs, weight, metric_weight = parts_of(batch)
    rows = rows_of(model, inputs)
    for name, given in {"weight": weight, "metric_weight": metric_weight}.items():
        if given is not None and given.shape != (rows,):
            raise ValueError(f"{name} has shape {given.shape}, the batch has {rows} rows; pass one number per row, ({rows},)")
    device = 0 if axis_name is None else lax.axis_index(axis_name)
    return Slots(inputs, weight, metric_weight, jnp.arange(rows) + device * rows)


def stand_ins(model: Model, slots: Slots) -> dict[str, Array]:
    """Overwrite zero-weight rows with the first weighted row (0 * nan is nan)."""
    if slots.weight is None or slots.metric_weight is None:
        return slots.inputs
    counts = (slots.weight > 0) | (slots.metric_weight > 0)

    def real(x: Array, axis: int) -> Array:
        if x.ndim <= axis or x.shape[axis] != counts.shape[0]:
            return x
        shape = [-1 if k == axis else 1 for k in range(x.ndim)]
        return jnp.where(counts.reshape(shape), x, lax.dynamic_index_in_dim(x, jnp.argmax(counts), axis, keepdims=True))

    return {k: real(jnp.asarray(v), model.batch_axes.get(k, 0)) for k, v in slots.inputs.items()}


# ------------------------------------------------------------------------------------------------ tables
class TableRows(NamedTuple):
    """The rows of each table that a batch looks up; in one step they take the place of the whole table.

    Attributes:
        numbers: name -> sorted row numbers; the last ones may be out of range.
        trained: name -> the rows that rows of nonzero training weight look up; only these are updated.
    """

    numbers: dict[str, Array]
    trained: dict[str, SparseRows]

    @property
    def apply_args(self) -> dict[str, Any]:
        """Keyword arguments of `model.apply`."""
        return {"table_rows": self.numbers} if self.numbers else {}

    def by_rows(self, gradients: Params) -> dict[str, Any]:
        """The gradients, those of the looked-up rows as `SparseRows` of the whole table."""
        tables = {n: dataclasses.replace(rows, values=gradients[n]) for n, rows in self.trained.items()}
        return {**gradients, **tables}


def table_rows(model: Model, params: Params, slots: Slots, policy: Policy | None) -> tuple[Params, TableRows]:
    """(parameters, of each table only the rows that a batch looks up; which rows these are)."""
    small, looked_up = dict(params), TableRows({}, {})
    tables = {name: model.tables[name] for name in params if name in model.tables}
    if not tables:
        return small, looked_up
    # a row that only metrics look at has no gradient: what it looks up neither decays nor moves on
    used, trained = (stand_ins(model, s) for s in (slots, slots._replace(metric_weight=slots.weight)))
    any_row = slots.weight is None or jnp.any(slots.weight > 0)
    for name, numbers_of in tables.items():
        numbers, size = numbers_of(used, policy), len(params[name])
        rows = coalesce(SparseRows(numbers, jnp.zeros(numbers.shape)), size)
        place = jnp.searchsorted(rows.indices, numbers_of(trained, policy))
        is_trained = jnp.zeros(rows.indices.shape, bool).at[place].set(any_row, mode="drop")
        looked_up.numbers[name], looked_up.trained[name] = rows.indices, without(rows, ~is_trained, size)
        small[name] = read(params[name], rows)
    return small, looked_up


# ------------------------------------------------------------------------------------------------ gradients
class How(NamedTuple):
    """The settings of a step that reach its gradients."""

    model: Model
    metrics: tuple[Metric, ...]
    micro_batches: int
    policy: Policy | None
    sync_batch_stats: bool
    keep_outputs: bool


class Sums(NamedTuple):
    """Sums of one batch on one device; `rows` and `shared` are added over devices."""

    rows: Array  # Σ weight
    shared: Any  # Shared
    has_loss: bool
    outputs: tuple[Array, ...] | None


class Shared(NamedTuple):
    """Sums that are added over micro-batches and devices: (Σ loss, Σ count) and each metric's stats."""

    loss: tuple[Array, Array]
    metrics: tuple[Any, ...]


def gradients_of(how: How, trainable: Params, frozen: Params, state: TrainState, slots: Slots, axis_name: str | None):
    """Summed gradients, new aux and sums of one device's slice, over its micro-batches."""
    trainable, tables = table_rows(how.model, trainable, slots, how.policy)

    def part(aux: Aux, number: Any, slots: Slots):
        key = part_key(state.key, state.step, number)
        return _part(how, trainable, frozen, tables, aux, slots, number, key, axis_name)

    gradients, aux, sums = part(state.aux, 0, slots) if how.micro_batches == 1 else _accumulate(part, how, state.aux, slots)
    return tables.by_rows(gradients), aux, sums


def _part(
    how: How,
    trainable: Params,
    frozen: Params,
    tables: TableRows,
    aux: Aux,
    slots: Slots,
    number: Any,
    key: Array,
    axis_name: str | None,
):
    """Summed gradients, new aux and sums of one micro-batch."""
    model, (inputs, weight, metric_weight, row_ids) = how.model, slots
    plan = plan_of(model, inputs)
    if weight is not None and not plan.paddable:
        raise RowsLost(plan.reason)
    inputs = stand_ins(model, slots)
    apply_args = {"key": key, "train": True, "weight": weight, "axis_name": axis_name, "row_ids": row_ids, "policy": how.policy}
    apply_args |= tables.apply_args

    def loss_of(trainable: Params):
        values, moved = model.apply({**frozen, **trainable}, aux, inputs, sync_batch_stats=how.sync_batch_stats, **apply_args)
        return objective(model, values, inputs, weight), (values, moved)

    gradients, (values, moved) = jax.grad(loss_of, has_aux=True)(trainable)
    gradients, own_aux = of_real_rows(weight, gradients, moved, aux)
    moved = moved if how.sync_batch_stats else own_aux  # synchronised statistics come from the rows of all devices
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
    """(gradients, new aux) of a slice; zeros and the old aux where all its rows are padding."""
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


def part_key(key: Array, step: Any, number: Any = 0) -> Array:
    """The key of micro-batch `number` of a step: fold_in(fold_in(key; step); number)."""
    return jax.random.fold_in(jax.random.fold_in(typed_key(key), step), number)
