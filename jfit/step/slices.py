"""Gradients for the rows of a batch on one device (its shard), summed over micro-batches.

Nothing here communicates between devices: afterwards, `jfit.step.reduce` sums the gradients, `Sums.rows` and `Sums.shared` over
devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.data.batch import parts_of
from jfit.lowering.model import (
    Aux,
    LossSums,
    Model,
    Params,
    Plan,
    Policy,
    RowLosses,
    joint_losses,
    logged_sums,
    loss_sums,
    objective,
    plan_of,
    weight_sum,
)
from jfit.lowering.structure import LABEL_WEIGHT
from jfit.metrics import Metric
from jfit.ops.axis import Axis, axis_index, axis_size
from jfit.ops.rows import MaybeLayout, RowsLost
from jfit.optim.rows import SparseRows, distinct, in_range, read, without
from jfit.platforms import platform_of
from jfit.step.fitting import for_batch
from jfit.step.loss_scale import scale_of, unscaled
from jfit.step.state import TrainState, typed_key
from jfit.step.totals import head_arguments, metric_stats


# ------------------------------------------------------------------------------------------------ rows
def num_rows(model: Model, inputs: dict[str, Array]) -> int:
    """Number of rows of a batch, from the first input of the model in `inputs`.

    Raises:
        ValueError: the batch has none of the inputs of the model.
    """
    names, axes = [n for n in (*model.inputs, *model.labels) if n in inputs], model.batch_axes
    if not names:
        raise ValueError(f"the batch has the inputs {sorted(inputs)}, but the model needs {[*model.inputs, *model.labels]}")
    return next((inputs[n].shape[axes.get(n, 0)] for n in names if axes.get(n, 0) is not None), 1)


class BatchShard(NamedTuple):
    """One device's shard of a batch.

    Attributes:
        inputs: arrays by input name.
        weight: row weights in the loss, shape (rows,), or None if all are 1.
        metric_weight: row weights in metrics, shape (rows,), or None if all are 1.
        row_ids: index of each row in the global batch, shape (rows,); random numbers depend on it, not on the device.
    """

    inputs: dict[str, Array]
    weight: Array | None
    metric_weight: Array | None
    row_ids: Any


def shard_of(model: Model, batch: Any, axis_name: Axis) -> BatchShard:
    """Convert the part of a batch that one device gets to a `BatchShard`.

    Args:
        model: the `Model`, which determines the batch axis of each input.
        batch: `Batch`, or dict of arrays by input name.
        axis_name: name of the device axis; None for one device; or a `VirtualSlice`.

    Raises:
        ValueError: the batch has no rows, or the weights do not have the shape (rows,).
    """
    inputs, weight, metric_weight = parts_of(batch)
    rows = num_rows(model, inputs)
    if rows == 0:
        raise ValueError("the batch has no rows, so its mean loss and its gradient are undefined; leave such batches out")
    for name, array in {"weight": weight, "metric_weight": metric_weight}.items():
        if array is not None and array.shape != (rows,):
            others = "" if model.symbol is not None else f"; weights of positions are the input {LABEL_WEIGHT!r} of the batch"
            raise ValueError(f"{name} has shape {array.shape}, but the batch has {rows} rows; expected shape ({rows},){others}")
    device = 0 if axis_name is None else axis_index(axis_name)
    return BatchShard(inputs, weight, metric_weight, jnp.arange(rows) + device * rows)


def has_padding(model: Model, inputs: dict[str, Array]) -> bool:
    """Whether rows of weight 0 are padding.  If rows affect each other they are not: the other rows depend on them."""
    return model.verify is None or plan_of(model, inputs).paddable


def fill_padding(model: Model, shard: BatchShard) -> dict[str, Array]:
    """Overwrite zero-weight rows with the first weighted row (0 * nan is nan).  Returns the inputs by name."""
    if shard.weight is None or shard.metric_weight is None or not has_padding(model, shard.inputs):
        return shard.inputs
    is_weighted = (shard.weight > 0) | (shard.metric_weight > 0)

    def fill(x: Array, axis: int | None) -> Array:
        if axis is None or x.ndim <= axis or x.shape[axis] != is_weighted.shape[0]:
            return x
        shape = [-1 if k == axis else 1 for k in range(x.ndim)]
        first = lax.dynamic_index_in_dim(x, jnp.argmax(is_weighted), axis, keepdims=True)
        return jnp.where(is_weighted.reshape(shape), x, first)

    return {k: fill(jnp.asarray(v), model.batch_axes.get(k, 0)) for k, v in shard.inputs.items()}


# ------------------------------------------------------------------------------------------------ embedding tables
class TableRows(NamedTuple):
    """The rows of embedding tables that a batch looks up.  A step is computed with these rows in place of the whole table.

    Attributes:
        numbers: name of a table -> sorted indices of the table rows, with duplicates; the last ones may be out of range.
            Tables with at most as many rows as the batch has lookups are passed whole, and are not in it.
        trained: name of a table -> `SparseRows` of the table rows that batch rows with a nonzero loss weight look up; only
            these are updated.  Its values are not used.
    """

    numbers: dict[str, Array]
    trained: dict[str, SparseRows]

    @property
    def apply_args(self) -> dict[str, Any]:
        """Keyword arguments with which `model.apply` uses the smaller tables."""
        return {"table_rows": self.numbers} if self.numbers else {}

    def to_sparse(self, gradients: Params) -> dict[str, Any]:
        """Replace the gradients of looked-up rows by `SparseRows` gradients of the whole tables."""
        tables = {n: dataclasses.replace(rows, values=gradients[n]) for n, rows in self.trained.items()}
        return {**gradients, **tables}


def table_rows(model: Model, params: Params, shard: BatchShard, policy: Policy | None) -> tuple[Params, TableRows]:
    """Replace each embedding table by the rows that a batch looks up, if the table has more rows than there are lookups.

    Args:
        model: the `Model`; `model.tables` computes the row indices of each table.
        params: parameters by name.
        shard: the batch, on one device.
        policy: mixed-precision policy; None: no casts.

    Returns:
        (parameters with the smaller tables, indices of their rows in the whole tables).
    """
    small, looked_up = dict(params), TableRows({}, {})
    tables = {name: model.tables[name] for name in params if name in model.tables}
    if not tables:
        return small, looked_up
    # Table rows that only batch rows of weight 0 look up have no gradient, and get neither weight decay nor a momentum step.
    used, trained = (fill_padding(model, s) for s in (shard, shard._replace(metric_weight=shard.weight)))
    any_row = shard.weight is None or jnp.any(shard.weight > 0)
    for name, numbers_of in tables.items():
        numbers, place, size = numbers_of(used, policy), numbers_of(trained, policy), len(params[name])
        if len(numbers) < size:
            ascending = jnp.sort(in_range(numbers, size))
            place, indices = jnp.searchsorted(ascending, place), distinct(ascending, size)
            looked_up.numbers[name], small[name] = ascending, read(params[name], SparseRows(ascending, ascending))
        else:  # the table has at most as many rows as there are lookups: pass it whole
            indices = jnp.arange(size)
            # Rows that are not looked up become 0, because in a product 0 · nan is nan.
            is_read = _marked(numbers, size, True).reshape(-1, *(1,) * (params[name].ndim - 1))
            small[name] = jnp.where(is_read, params[name], 0)
        rows = SparseRows(indices, jnp.zeros(indices.shape), unique=True)
        looked_up.trained[name] = without(rows, ~_marked(place, len(indices), any_row), size)
    return small, looked_up


def _marked(places: Array, size: int, mark: Any) -> Array:
    """Return a bool array (size,) that has `mark` at these places and is False elsewhere; other places are ignored."""
    return jnp.zeros(size, bool).at[places].set(mark, mode="drop", wrap_negative_indices=False)


# ------------------------------------------------------------------------------------------------ gradients
class GradientSettings(NamedTuple):
    """The arguments of `train_step` that affect the gradients; `keep_outputs` is its argument `outputs`."""

    model: Model
    metrics: tuple[Metric, ...] = ()
    micro_batches: int = 1
    policy: Policy | None = None
    sync_batch_stats: bool = False
    keep_outputs: bool = False


class Sums(NamedTuple):
    """Sums over the rows of a batch on one device; `rows` and `shared` are later summed over devices."""

    rows: Array  # sum of the row weights, scalar
    shared: Any  # `Shared`: sums of losses and metrics
    has_loss: bool | Array  # whether the model has a loss value
    outputs: tuple[Array, ...] | None  # outputs of the model; None unless they are returned by the step


class Shared(NamedTuple):
    """Sums of the losses and metrics of one batch, added over its micro-batches and devices.

    Attributes:
        loss: (Σ weight · loss, Σ weight) over the positions of all rows, see `jfit.lowering.model.LossSums.mean`.
        metrics: for each metric the sums of one batch, as `Metric.stats` returns them.
        logged: name -> (Σ weight · value, Σ weight) of each value that the loss function returned to be logged.

    Example:
        >>> import jax.numpy as jnp
        >>> float(Shared((jnp.float32(6.0), jnp.float32(4.0)), ()).mean_loss)
        1.5
    """

    loss: tuple[Array, Array]
    metrics: tuple[Any, ...]
    logged: Mapping[str, tuple[Array, Array]] = {}

    @property
    def mean_loss(self) -> Array:
        """The mean loss of the batch, Σₖ totalₖ / countₖ over its losses k with a count above 0."""
        total, count = self.loss
        means = jnp.where(count > 0, total / jnp.maximum(count, 1e-30), 0.0)
        return jnp.sum(means) if means.ndim else means


class Forward(NamedTuple):
    """Results of a forward pass over the rows of one device."""

    outputs: tuple[Array, ...]
    aux: Aux  # new auxiliary states
    joint: RowLosses | None  # losses of a model whose loss is a function of all outputs


def forward(
    model: Model, params: Params, aux: Aux, shard: BatchShard, axis_name: Axis, step: Any = None, **options: Any
) -> Forward:
    """Apply a model to the rows of one device; `options` are further keyword arguments of `model.apply`.

    `step` is the number of updates, which the loss may take.
    """
    inputs, weight = shard.inputs, shard.weight
    outputs, new_aux = model.apply(params, aux, inputs, weight=weight, axis_name=axis_name, **options)
    return Forward(outputs, new_aux, joint_losses(model, outputs, inputs, weight, params, new_aux, axis_name, step))


def shared_sums(
    model: Model,
    metrics: Sequence[Metric],
    done: Forward,
    shard: BatchShard,
    rows: Sequence[MaybeLayout],
    part: tuple[Any, int],
) -> tuple[LossSums | None, Shared]:
    """Return the sums of the losses, None if the model has no loss, and all sums that are added over devices.

    Args:
        model: the `Model`.
        metrics: metrics that run on the devices.
        done: results of `forward`.
        shard: the rows of this device.
        rows: row layout of each output.
        part: from `part_number`.
    """
    losses = loss_sums(model, done.outputs, shard.inputs, shard.weight, rows, done.joint)
    stats = ()
    if metrics:
        heads = head_arguments(model, done.outputs, shard.inputs, shard.metric_weight, rows)
        stats = metric_stats(for_batch(metrics, model, heads, shard.inputs), *heads, *part)
    mean = losses.mean if losses else (jnp.zeros(()), jnp.zeros(()))
    return losses, Shared(mean, stats, logged_sums(done.joint, shard.weight))


def gradients_of(
    settings: GradientSettings, params: tuple[Params, Params], state: TrainState, shard: BatchShard, axis_name: Axis
) -> tuple[Params, Aux, Sums]:
    """Compute gradients for the rows of one device, summed over rows and micro-batches.

    Args:
        settings: arguments of `train_step`.
        params: (parameters to differentiate, all others), by name.
        state: the `TrainState`, of which auxiliary states, PRNG key and step number are used.
        shard: the rows of this device.
        axis_name: name of the device axis; None for one device; or a `VirtualSlice`.

    Returns:
        (gradients by name, new auxiliary states, `Sums`), not yet summed over devices.
    """
    model, (trainable, frozen) = settings.model, params
    trainable, tables = table_rows(model, trainable, shard, settings.policy)
    options: dict[str, Any] = {"train": True, "policy": settings.policy, "sync_batch_stats": settings.sync_batch_stats}
    scale = loss_factor(settings.policy, state, shard, axis_name)
    options |= scale_of_heads(model, scale)
    options["step"] = state.step

    def part(aux: Aux, number: Any, shard: BatchShard) -> tuple[Params, Aux, Sums]:
        plan = plan_of(model, shard.inputs)
        if shard.weight is not None and not plan.paddable and not plan.coupled:
            raise RowsLost(plan.reason)  # row weights cannot be applied
        shard = shard._replace(inputs=fill_padding(model, shard))
        drawn = random_numbers(settings, state, number, shard.row_ids)

        def loss_of(trainable: Params) -> tuple[Array, Forward]:
            done = forward(model, {**frozen, **trainable}, aux, shard, axis_name, **options, **drawn, **tables.apply_args)
            loss = objective(model, done.outputs, shard.inputs, shard.weight, done.joint)
            return loss if scale is None else loss * scale, done

        gradients, done = jax.grad(loss_of, has_aux=True)(trainable)
        gradients = gradients if scale is None else unscaled(gradients, scale)
        masked, new_aux = mask_padding(shard.weight, gradients, done.aux, aux)
        # in gathered losses and synchronized statistics, rows of other devices depend on these rows, whatever their weight
        gradients = masked if axis_name is None or has_padding(model, shard.inputs) else gradients
        new_aux = done.aux if settings.sync_batch_stats else new_aux
        at = part_number(axis_name, number, settings.micro_batches)
        losses, shared = shared_sums(model, settings.metrics, done, shard, plan.rows, at)
        rows = weight_sum(model, losses, shard.weight, shard.row_ids.shape[0])
        return gradients, new_aux, Sums(rows, shared, losses is not None, done.outputs if settings.keep_outputs else None)

    whole = settings.micro_batches == 1
    gradients, aux, sums = part(state.aux, 0, shard) if whole else _accumulate(part, settings, state.aux, shard)
    return tables.to_sparse(gradients), aux, sums


def loss_factor(policy: Policy | None, state: TrainState, shard: BatchShard, axis_name: Axis) -> Array | None:
    """The loss scale, divided by the number of rows, because the objective is the sum over rows; None without a loss scale."""
    scale = scale_of(policy, state) if policy else None
    return scale if scale is None else scale / (shard.row_ids.shape[0] * (1 if axis_name is None else axis_size(axis_name)))


def scale_of_heads(model: Model, factor: Array | None) -> dict[str, Array]:
    """The argument of `model.apply` by which heads scale their gradients, because they ignore a factor of the objective."""
    return {} if factor is None or model.symbol is None else {"loss_scale": factor}


def random_numbers(settings: GradientSettings, state: TrainState, number: Any, row_ids: Any) -> dict[str, Any]:
    """The arguments of `model.apply` on which random numbers depend, for micro-batch `number`."""
    if settings.model.symbol is not None and "draws" not in settings.model.traits:
        return {"row_ids": row_ids}
    if "row_keys" not in settings.model.traits:
        return {"key": part_key(state.key, state.step, number), "row_ids": row_ids}
    # a key for the whole batch, from which each row derives its own: micro-batches draw what the whole batch does
    more = {"micro_batch": number} if settings.micro_batches > 1 else {}
    return {"key": part_key(state.key, state.step), "row_ids": row_ids, **more}


def part_number(axis_name: Axis, number: Any = 0, micro_batches: int = 1) -> tuple[Any, int]:
    """Return (index of micro-batch `number` of this device among the micro-batches of all devices, how many these are)."""
    if axis_name is None:
        return number, micro_batches
    return axis_index(axis_name) * micro_batches + number, axis_size(axis_name) * micro_batches


def mask_padding(weight: Array | None, gradients: Any, new_aux: Aux, aux: Aux) -> tuple[Any, Aux]:
    """Return (gradients, new_aux), but (zeros, aux) if the rows of this device are all padding rows.

    Args:
        weight: row weights (rows,), or None if all are 1.
        gradients: pytree of gradients.
        new_aux: auxiliary states after the forward pass.
        aux: auxiliary states before the forward pass.
    """
    if weight is None:
        return gradients, new_aux
    any_row = jnp.any(weight > 0)
    return jax.tree.map(lambda g: jnp.where(any_row, g, jnp.zeros_like(g)), gradients), select(any_row, new_aux, aux)


def _accumulate(part: Callable[..., Any], settings: GradientSettings, aux: Aux, shard: BatchShard):
    """Sum gradients and `Sums` over micro-batches, in order; BatchNorm updates its moving statistics once per micro-batch.

    Args:
        part: `part(aux, number, shard) -> (gradients, new auxiliary states, Sums)` of micro-batch `number`.
        settings: arguments of `train_step`.
        aux: auxiliary states before the batch.
        shard: the rows of this device.
    """
    model, count = settings.model, settings.micro_batches
    if settings.keep_outputs:
        raise ValueError("outputs=True needs micro_batches=1, because the outputs of all micro-batches would have to be stored")
    slices = cut_shard(model, shard, count)
    part_of = lambda i: jax.tree.map(lambda x: x[i], slices)  # noqa: E731
    gradients, aux, sums = part(aux, 0, part_of(0))

    def add_part(carry: Any, item: Any) -> Any:
        gradients, aux, rows, shared = carry
        more, aux, extra = part(aux, *item)
        gradients, shared = jax.tree.map(jnp.add, (gradients, shared), (more, extra.shared))
        return (gradients, aux, rows + extra.rows, shared), None

    carry = (gradients, aux, sums.rows, sums.shared)
    if unrolls(model, plan=plan_of(model, part_of(0).inputs)):
        for i in range(1, count):
            carry, _ = add_part(carry, (i, part_of(i)))
    else:
        carry, _ = lax.scan(add_part, carry, (jnp.arange(1, count), part_of(slice(1, None))))
    gradients, aux, rows, shared = carry
    return gradients, aux, sums._replace(rows=rows, shared=shared)


def cut_shard(model: Model, shard: BatchShard, count: int) -> BatchShard:
    """Cut the rows of a shard into micro-batches: arrays have a leading axis of `count`."""

    def cut(x: Array, axis: int | None = 0) -> Array:
        if axis is None:
            return jnp.broadcast_to(x, (count, *x.shape))
        shape = (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    inputs = {k: cut(jnp.asarray(v), model.batch_axes.get(k, 0)) for k, v in shard.inputs.items()}
    return BatchShard(inputs, *(None if w is None else cut(w) for w in shard[1:]))


def select(condition: Array, new: Any, old: Any, always_new: Collection[str] = ()) -> Any:
    """jnp.where(condition, new, old) for every leaf of a pytree; leaves under a dict key in `always_new` are those of `new`.

    Averages of parameters (`EmaState.ema_params`) change in all rows, so they are always selected.
    """

    def choose(path: Any, n: Array, o: Array) -> Array:
        keep = path and getattr(path[-1], "key", None) in always_new
        return n if keep and all(getattr(p, "name", None) != "ema_params" for p in path) else jnp.where(condition, n, o)

    return jax.tree_util.tree_map_with_path(choose, new, old)


def unrolls(model: Model, devices: Sequence[Any] | None = None, plan: Plan | None = None) -> bool:
    """Whether loops inside a program must be unrolled: on CPU, XLA compiles convolutions inside loop bodies to slow code.

    Args:
        model: the `Model` that the loop body runs.
        devices: the devices that run the program.  None: a program that is being traced.
        plan: the plan of the model, which says whether a JAX function has convolutions; None: a function is taken to have
            none.  Graphs do not need it.

    Returns:
        bool: True for models with convolutions on CPU.

    Example:
        >>> import jfit
        >>> unrolls(jfit.lower(jfit.sym.square(jfit.sym.Variable("data"))))
        False
    """
    convolves = "convolution" in model.traits or (plan is not None and plan.convolutions)
    return convolves and (devices[0].platform if devices else platform_of()) == "cpu"


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
