"""Gradients of one device's shard of a batch, summed over its micro-batches.

Nothing here communicates between devices: afterwards, `jfit.step.reduce` sums the gradients, `Sums.rows` and `Sums.shared` over
devices.
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
def num_rows(model: Model, inputs: dict[str, Array]) -> int:
    """Number of rows of a batch."""
    name = next((n for n in (*model.inputs, *model.labels) if n in inputs), None)
    if name is None:
        raise ValueError(f"the batch has the inputs {sorted(inputs)}, but the model needs {[*model.inputs, *model.labels]}")
    return inputs[name].shape[model.batch_axes.get(name, 0)]


class BatchShard(NamedTuple):
    """One device's shard of a batch.

    Attributes:
        inputs: arrays by input name.
        weight: row weights in the loss, shape (rows,), or None if all are 1.
        metric_weight: row weights in metrics, likewise.
        row_ids: index of each row in the global batch, shape (rows,); random numbers depend on it, not on the device.
    """

    inputs: dict[str, Array]
    weight: Array | None
    metric_weight: Array | None
    row_ids: Any


def shard_of(model: Model, batch: Any, axis_name: str | None) -> BatchShard:
    """Convert a batch, as a device gets it, to a `BatchShard`.

    Raises:
        ValueError: the weights do not have the shape (rows,).
    """
    inputs, weight, metric_weight = parts_of(batch)
    rows = num_rows(model, inputs)
    for name, array in {"weight": weight, "metric_weight": metric_weight}.items():
        if array is not None and array.shape != (rows,):
            raise ValueError(f"{name} has shape {array.shape}, but the batch has {rows} rows; expected shape ({rows},)")
    device = 0 if axis_name is None else lax.axis_index(axis_name)
    return BatchShard(inputs, weight, metric_weight, jnp.arange(rows) + device * rows)


def fill_padding(model: Model, shard: BatchShard) -> dict[str, Array]:
    """Overwrite zero-weight rows with the first weighted row (0 * nan is nan).  Returns the inputs by name."""
    if shard.weight is None or shard.metric_weight is None:
        return shard.inputs
    is_weighted = (shard.weight > 0) | (shard.metric_weight > 0)

    def fill(x: Array, axis: int) -> Array:
        if x.ndim <= axis or x.shape[axis] != is_weighted.shape[0]:
            return x
        shape = [-1 if k == axis else 1 for k in range(x.ndim)]
        return jnp.where(
            is_weighted.reshape(shape), x, lax.dynamic_index_in_dim(x, jnp.argmax(is_weighted), axis, keepdims=True)
        )

    return {k: fill(jnp.asarray(v), model.batch_axes.get(k, 0)) for k, v in shard.inputs.items()}


# ------------------------------------------------------------------------------------------------ embedding tables
class TableRows(NamedTuple):
    """The rows of embedding tables that a batch looks up.  A step is computed with these rows in place of the whole table.

    Attributes:
        numbers: table name -> sorted row indices; the last ones may be out of range.
        trained: table name -> the rows looked up by batch rows with a nonzero loss weight; only these are updated.
    """

    numbers: dict[str, Array]
    trained: dict[str, SparseRows]

    @property
    def apply_args(self) -> dict[str, Any]:
        """Keyword arguments for `model.apply`."""
        return {"table_rows": self.numbers} if self.numbers else {}

    def to_sparse(self, gradients: Params) -> dict[str, Any]:
        """Replace the gradients of looked-up rows by `SparseRows` gradients of the whole tables."""
        tables = {n: dataclasses.replace(rows, values=gradients[n]) for n, rows in self.trained.items()}
        return {**gradients, **tables}


def table_rows(model: Model, params: Params, shard: BatchShard, policy: Policy | None) -> tuple[Params, TableRows]:
    """Cut the tables down to the rows that a batch looks up.  Returns (parameters with the smaller tables, which rows)."""
    small, looked_up = dict(params), TableRows({}, {})
    tables = {name: model.tables[name] for name in params if name in model.tables}
    if not tables:
        return small, looked_up
    # Table rows looked up only by batch rows without loss weight have no gradient: no weight decay and no momentum step either.
    used, trained = (fill_padding(model, s) for s in (shard, shard._replace(metric_weight=shard.weight)))
    any_row = shard.weight is None or jnp.any(shard.weight > 0)
    for name, numbers_of in tables.items():
        numbers, size = numbers_of(used, policy), len(params[name])
        rows = coalesce(SparseRows(numbers, jnp.zeros(numbers.shape)), size)
        place = jnp.searchsorted(rows.indices, numbers_of(trained, policy))
        is_trained = jnp.zeros(rows.indices.shape, bool).at[place].set(any_row, mode="drop")
        looked_up.numbers[name], looked_up.trained[name] = rows.indices, without(rows, ~is_trained, size)
        small[name] = read(params[name], rows)
    return small, looked_up


# ------------------------------------------------------------------------------------------------ gradients
class GradientSettings(NamedTuple):
    """The arguments of `train_step` that affect the gradients."""

    model: Model
    metrics: tuple[Metric, ...]
    micro_batches: int
    policy: Policy | None
    sync_batch_stats: bool
    keep_outputs: bool


class Sums(NamedTuple):
    """Sums over the shard of one device; `rows` and `shared` are later summed over devices."""

    rows: Array  # Σ weight, ()
    shared: Any  # a `Shared`
    has_loss: bool
    outputs: tuple[Array, ...] | None


class Shared(NamedTuple):
    """Sums over micro-batches and devices: (Σ loss, Σ weight) and the stats of each metric.

    Attributes:
        loss: (Σ loss, Σ weight), two float32 scalars.
        metrics: stats of each metric, as `Metric.stats` returns them.

    Example:
        >>> import jax.numpy as jnp
        >>> float(Shared((jnp.float32(6.0), jnp.float32(4.0)), ()).loss[0])
        6.0
    """

    loss: tuple[Array, Array]
    metrics: tuple[Any, ...]


def gradients_of(
    settings: GradientSettings, trainable: Params, frozen: Params, state: TrainState, shard: BatchShard, axis_name: str | None
):
    """Return (summed gradients, new auxiliary states, sums) of one device's shard."""
    trainable, tables = table_rows(settings.model, trainable, shard, settings.policy)

    def part(aux: Aux, number: Any, shard: BatchShard):
        key = part_key(state.key, state.step, number)
        return _micro_batch_gradients(settings, trainable, frozen, tables, aux, shard, number, key, axis_name)

    gradients, aux, sums = (
        part(state.aux, 0, shard) if settings.micro_batches == 1 else _accumulate(part, settings, state.aux, shard)
    )
    return tables.to_sparse(gradients), aux, sums


def _micro_batch_gradients(
    settings: GradientSettings,
    trainable: Params,
    frozen: Params,
    tables: TableRows,
    aux: Aux,
    shard: BatchShard,
    number: Any,
    key: Array,
    axis_name: str | None,
):
    """Return (summed gradients, new auxiliary states, sums) of one micro-batch."""
    model, (inputs, weight, metric_weight, row_ids) = settings.model, shard
    plan = plan_of(model, inputs)
    if weight is not None and not plan.paddable:
        raise RowsLost(plan.reason)
    inputs = fill_padding(model, shard)
    apply_args = {
        "key": key,
        "train": True,
        "weight": weight,
        "axis_name": axis_name,
        "row_ids": row_ids,
        "policy": settings.policy,
    }
    apply_args |= tables.apply_args

    def loss_of(trainable: Params):
        values, new_aux = model.apply(
            {**frozen, **trainable}, aux, inputs, sync_batch_stats=settings.sync_batch_stats, **apply_args
        )
        return objective(model, values, inputs, weight), (values, new_aux)

    gradients, (values, new_aux) = jax.grad(loss_of, has_aux=True)(trainable)
    gradients, local_aux = mask_padding(weight, gradients, new_aux, aux)
    new_aux = new_aux if settings.sync_batch_stats else local_aux  # synchronized statistics include rows of other devices
    losses = loss_sums(model, values, inputs, weight, plan.rows)
    heads = head_arguments(model, values, inputs, metric_weight, plan.rows)
    part, parts = part_number(axis_name, number, settings.micro_batches)
    stats = metric_stats(settings.metrics, *heads, part, parts)
    count = jnp.sum(weight) if weight is not None else jnp.asarray(row_ids.shape[0], jnp.float32)
    shared = Shared(losses or (jnp.zeros(()), jnp.zeros(())), stats)
    return gradients, new_aux, Sums(count, shared, losses is not None, values if settings.keep_outputs else None)


def part_number(axis_name: str | None, number: Any = 0, micro_batches: int = 1) -> tuple[Any, int]:
    """(index of micro-batch `number` of this device among all micro-batches of all devices, their total number)."""
    if axis_name is None:
        return number, micro_batches
    return lax.axis_index(axis_name) * micro_batches + number, lax.psum(1, axis_name) * micro_batches


def mask_padding(weight: Array | None, gradients: Any, new_aux: Aux, aux: Aux) -> tuple[Any, Aux]:
    """Return (gradients, new auxiliary states), but (zeros, old auxiliary states) if the shard contains only padding rows."""
    if weight is None:
        return gradients, new_aux
    any_row = jnp.any(weight > 0)
    return jax.tree.map(lambda g: jnp.where(any_row, g, jnp.zeros_like(g)), gradients), select(any_row, new_aux, aux)


def _accumulate(part: Callable[..., Any], settings: GradientSettings, aux: Aux, shard: BatchShard):
    """Sum over micro-batches, in order; BatchNorm updates its moving statistics once per micro-batch."""
    model, count, rows = settings.model, settings.micro_batches, len(shard.row_ids)
    if rows % count:
        raise ValueError(
            f"micro_batches={count} does not divide the {rows} rows of the batch on each device; "
            "choose a divisor, or use jfit.data_parallel or jfit.fit, which pad the batch"
        )
    if settings.keep_outputs:
        raise ValueError("outputs=True needs micro_batches=1, because the outputs of all micro-batches would have to be stored")

    def cut(x: Array, axis: int = 0) -> Array:
        shape = (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    inputs = {k: cut(v, model.batch_axes.get(k, 0)) for k, v in shard.inputs.items()}
    slices = BatchShard(inputs, *(None if w is None else cut(w) for w in shard[1:]))
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


def select(condition: Array, new: Any, old: Any, always_new: Collection[str] = ()) -> Any:
    """jnp.where(condition, new, old) for every leaf of a pytree; leaves with a dict key in `always_new` are always new."""

    def choose(path: Any, n: Array, o: Array) -> Array:
        return n if path and getattr(path[-1], "key", None) in always_new else jnp.where(condition, n, o)

    return jax.tree_util.tree_map_with_path(choose, new, old)


def unrolls(model: Model) -> bool:
    """Whether loops inside a program must be unrolled: on CPU, XLA compiles convolutions inside loop bodies to slow code.

    Args:
        model: a `Model`.

    Returns:
        bool.

    Example:
        >>> import jfit
        >>> unrolls(jfit.lower(jfit.sym.square(jfit.sym.Variable("data"))))
        False
    """
    return "convolution" in model.traits and jax.default_backend() == "cpu"


def part_key(key: Array, step: Any, number: Any = 0) -> Array:
    """The PRNG key of micro-batch `number` of a step: fold_in(fold_in(key, step), number).

    Args:
        key: PRNG key or key data, as in `TrainState.key`.
        step: number of the step.
        number: number of the micro-batch.

    Returns:
        Typed PRNG key.

    Example:
        >>> import jax
        >>> part_key(jax.random.key(0), 3).shape
        ()
    """
    return jax.random.fold_in(jax.random.fold_in(typed_key(key), step), number)
