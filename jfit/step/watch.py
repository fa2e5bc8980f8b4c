"""A training step with statistics of every intermediate array and of its gradient: ranges, zeros, nan, infinities.

The forward and backward pass of `jfit.step.train` runs with a tap on each node (see `jfit.lowering.taps`).  Only the statistics
leave the program, so that its memory is that of a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.data.batch import parts_of
from jfit.lowering.interpret import Interpretation, entry_name
from jfit.lowering.model import Aux, Model, Params, Policy, joint_losses, loss_sums, objective, plan_of, weight_sum
from jfit.lowering.taps import Point, run_tapped
from jfit.ops.axis import Axis
from jfit.ops.rows import MaybeLayout, RowLayout
from jfit.step.regularizers import penalty_and_gradients
from jfit.step.slices import BatchShard, fill_padding, mask_padding, part_key, shard_of
from jfit.step.state import TrainState, split_params

VALUES = ("minimum", "maximum", "sum", "zeros", "nans", "infinities", "count")  # of an array; the first two of finite values
GRADIENTS = ("largest", "squares", "nans", "infinities")  # `squares`: sum of the squares, divided by the square of `largest`


class Statistics(NamedTuple):
    """Statistics of an array, on the devices.

    Attributes:
        values: float32 array (..., 7), see `VALUES`.
        rows: bool array (..., rows): the rows with values that are not finite; None if the array has no batch axis.
        gradient: float32 array (..., 4), see `GRADIENTS`, of the gradient of the summed loss; None if there is none.
        gradient_rows: as `rows`, of the gradient.
    """

    values: Array
    rows: Array | None
    gradient: Array | None = None
    gradient_rows: Array | None = None


class Watched(NamedTuple):
    """Result of the program of a `Watch`.

    Attributes:
        nodes: `Statistics` of each of `Watch.points`; with micro-batches, arrays have a leading axis.
        gradients: name of a trainable parameter -> float32 array (4,), see `GRADIENTS`, of the gradient of the mean loss,
            with regularizers, before clipping.
        total: sum of the row weights over all devices, by which gradients of nodes are divided to get those of the mean loss.
        aux: name of an auxiliary state -> number of its values that are not finite after the step on this device.
    """

    nodes: tuple[Statistics, ...]
    gradients: dict[str, Array]
    total: Array
    aux: dict[str, Array]


class Watch:
    """A program that computes the statistics of one training step, without an update.

    Args:
        model: the `Model`.
        frozen: names or glob patterns of parameters that are not trained.
        micro_batches: number of micro-batches of a batch.
        policy: mixed-precision policy, or None.
        sync_batch_stats: compute batch statistics over all devices.
        regularizers: as for `train_step`.

    Attributes:
        points: names and kinds of the arrays, in the order in which they are computed; known after the first trace.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> watch = Watch(model)
        >>> watched = jax.jit(watch)(jfit.init_state(model, "sgd", batch), batch)
        >>> [p.name for p in watch.points if p.kind == "node"], watched.nodes[0].values[0].item()
        (['fullyconnected0', 'softmax'], 1.0)
    """

    def __init__(
        self,
        model: Model,
        *,
        frozen: Sequence[str] = (),
        micro_batches: int = 1,
        policy: Policy | None = None,
        sync_batch_stats: bool = False,
        regularizers: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.model, self.frozen, self.micro_batches, self.policy = model, frozen, micro_batches, policy
        self.sync_batch_stats, self.regularizers = sync_batch_stats, regularizers
        self.points: list[Point] = []

    def __call__(self, state: TrainState, batch: Any, *, axis_name: str | None = None) -> Watched:
        """Return the statistics of the step from `state` with `batch`; arguments as of a training step."""
        model = self.model.bound(parts_of(batch)[0])
        shard = shard_of(model, batch, axis_name)
        trainable, others = split_params(self.model, state.params, self.frozen)

        def part(aux: Aux, number: Any, shard: BatchShard) -> Any:
            key = part_key(state.key, state.step, number)
            return self._part(model, trainable, others, aux, shard, key, axis_name)

        if self.micro_batches == 1:
            gradients, aux, total, nodes = part(state.aux, 0, shard)
        else:
            gradients, aux, total, nodes = self._parts(part, model, state.aux, shard)
        if axis_name is not None:
            gradients, total = lax.psum((gradients, total), axis_name)
        mean = {k: g / jnp.maximum(total, 1e-30).astype(g.dtype) for k, g in gradients.items()}
        if self.regularizers:
            added = penalty_and_gradients(self.regularizers, trainable, self.model.tables)[1]
            mean |= {k: mean[k] + g.astype(mean[k].dtype) for k, g in added.items()}
        floats = {k: x for k, x in aux.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        bad = {k: jnp.sum(~jnp.isfinite(x.astype(jnp.float32)), dtype=jnp.int32) for k, x in floats.items()}
        return Watched(nodes, {k: _of_gradient(g) for k, g in mean.items()}, total, bad)

    def _parts(self, part: Callable[..., Any], model: Model, aux: Aux, shard: BatchShard) -> Any:
        """Call `part` for each micro-batch, one after the other, and return what `_part` returns of them together: sums."""
        count = self.micro_batches

        def cut(x: Array, axis: int = 0) -> Array:
            shape = (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
            return jnp.moveaxis(x.reshape(shape), axis, 0)

        inputs = {k: cut(jnp.asarray(v), model.batch_axes.get(k, 0)) for k, v in shard.inputs.items()}
        weight, metric_weight = (None if w is None else cut(w) for w in (shard.weight, shard.metric_weight))
        slices = BatchShard(inputs, weight, metric_weight, cut(shard.row_ids))

        def body(aux: Aux, item: Any) -> Any:
            gradients, aux, total, nodes = part(aux, *item)
            return aux, (gradients, total, nodes)

        aux, (gradients, total, nodes) = lax.scan(body, aux, (jnp.arange(count), slices))
        return jax.tree.map(lambda g: g.sum(0), gradients), aux, total.sum(), nodes

    def _part(
        self, model: Model, trainable: Params, others: Params, aux: Aux, shard: BatchShard, key: Array, axis_name: Axis
    ) -> Any:
        """Return (gradients summed over rows, new auxiliary states, sum of the row weights, statistics) of a micro-batch."""
        inputs, forward = fill_padding(model, shard), _forward_of_graph if model.symbol is not None else _forward_of_function
        options = {"key": key, "train": True, "weight": shard.weight, "axis_name": axis_name, "row_ids": shard.row_ids}
        options |= {"policy": self.policy, "sync_batch_stats": self.sync_batch_stats}
        rows = shard.row_ids.shape[0]

        def run(trainable: Params, sinks: Sequence[Any]) -> Any:
            recorder = _Recorder(shard.weight, sinks)
            arguments = {**others, **trainable}, aux, inputs
            value, new_aux, losses = forward(model, arguments, options, recorder)
            self.points = recorder.points
            total = weight_sum(model, losses, shard.weight, rows)
            return value, (new_aux, total, tuple(recorder.statistics), tuple(recorder.sinks))

        sinks = jax.eval_shape(lambda p: run(p, ())[1][3], trainable)  # how many there are, and their shapes
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), sinks)
        (gradients, observed), (new_aux, total, nodes, _) = jax.grad(run, argnums=(0, 1), has_aux=True)(trainable, zeros)
        gradients, new_aux = mask_padding(shard.weight, gradients, new_aux, aux)
        nodes = tuple(
            s if g is None else s._replace(gradient=g[0], gradient_rows=g[1] if s.rows is not None else None)
            for s, g in zip(nodes, observed, strict=True)
        )
        return gradients, new_aux, total, nodes


def _forward_of_graph(model: Model, arguments: Any, options: dict[str, Any], recorder: _Recorder) -> Any:
    """Return (objective, new auxiliary states, sums of the losses) of a graph."""
    params, aux, inputs = arguments
    values, new_aux = model.apply(params, aux, inputs, **options, how=Interpretation(tap=recorder))  # type: ignore[call-arg]
    joint = joint_losses(model, values, inputs, options["weight"], params, new_aux, options["axis_name"])
    assert model.symbol is not None
    names = [entry_name(h) for h in model.symbol.heads]
    for out, value, name in zip(model.outputs, values, names, strict=False):
        if out.loss is not None and out.kind != "plain" and (out.label is None or out.label in inputs):
            losses = out.row_losses(value, inputs, options["weight"])[0]
            recorder(_loss_point(f"loss of {name}", (name,), losses, options), losses)
    sums = loss_sums(model, values, inputs, options["weight"], plan_of(model, inputs).rows, joint)
    return objective(model, values, inputs, options["weight"], joint), new_aux, sums


def _forward_of_function(model: Model, arguments: Any, options: dict[str, Any], recorder: _Recorder) -> Any:
    """As `_forward_of_graph`, of a function with its loss."""
    leaves, tree = jax.tree.flatten(arguments)
    points = [
        Point(name, "", kind, rows=_layout(model, kind, name, x, options))
        for kind, group in zip(("parameter", "auxiliary state", "input"), arguments, strict=True)
        for name, x in sorted(group.items())
    ]

    weight = options["weight"]

    def run(*leaves: Any) -> Any:
        params, aux, inputs = jax.tree.unflatten(tree, leaves)
        values, new_aux = model.apply(params, aux, inputs, **options)
        joint = joint_losses(model, values, inputs, weight, params, new_aux, options["axis_name"])
        return objective(model, values, inputs, weight, joint), (values, new_aux, joint)

    (value, (values, new_aux, joint)), names = run_tapped(run, leaves, points, recorder)
    inputs, losses = arguments[2], None if joint is None else joint.losses
    for out, x in zip(model.outputs, values, strict=True):
        if losses is None and out.kind == "loss":
            losses = out.row_losses(x, inputs, weight)[0]
    if losses is not None:
        recorder(_loss_point("loss", names[0], losses, options), losses)
    return value, new_aux, loss_sums(model, values, inputs, weight, plan_of(model, inputs).rows, joint)


def _loss_point(name: str, inputs: tuple[str, ...], losses: Array, options: dict[str, Any]) -> Point:
    is_row = losses.shape == options["row_ids"].shape
    return Point(name, "", "loss", inputs, "", RowLayout(0, 1, len(losses), 1) if is_row else None)


def _layout(model: Model, kind: str, name: str, x: Any, options: dict[str, Any]) -> MaybeLayout:
    axis, rows = model.batch_axes.get(name, 0), options["row_ids"].shape[0]
    return RowLayout(axis, 1, rows, 1) if kind == "input" and x.ndim > axis and x.shape[axis] == rows else None


# ------------------------------------------------------------------------------------------------ statistics
class _Recorder:
    """A tap that computes statistics; `sinks` are zeros whose gradients are the statistics of the gradients of the arrays."""

    def __init__(self, weight: Array | None, sinks: Sequence[Any]) -> None:
        self.weight, self._given = weight, sinks
        self.points: list[Point] = []
        self.statistics: list[Statistics] = []
        self.sinks: list[Any] = []

    def __call__(self, point: Point, x: Any) -> Any:
        x = jnp.asarray(x)
        if not x.size or jnp.issubdtype(x.dtype, jax.dtypes.prng_key) or jnp.issubdtype(x.dtype, jnp.complexfloating):
            return x
        layout = point.rows if isinstance(point.rows, RowLayout) else None
        present = None if self.weight is None or layout is None else _expanded(self.weight > 0, layout, x.ndim)
        self.points.append(point)
        self.statistics.append(_of_values(lax.stop_gradient(x), layout, present))
        if not jnp.issubdtype(x.dtype, jnp.floating) or point.kind != "node":
            self.sinks.append(None)
            return x
        measure = lambda g: (_of_gradient(g), _bad_rows(g, layout))  # noqa: E731
        self.sinks.append(jax.tree.map(lambda s: s.astype(jnp.float32), measure(lax.stop_gradient(x))))
        return _observed(x, self._given[len(self.sinks) - 1], measure) if self._given else x


def _observed(x: Array, sink: Any, measure: Callable[[Array], Any]) -> Array:
    """Return x; the gradient with respect to `sink` is measure(gradient with respect to the result)."""

    @jax.custom_vjp
    def identity(x: Array, sink: Any) -> Array:
        return x

    def backward(_: Any, gradient: Array) -> Any:
        return gradient, jax.tree.map(lambda s: s.astype(jnp.float32), measure(gradient))

    identity.defvjp(lambda x, sink: (x, None), backward)
    return identity(x, sink)


def _of_values(x: Array, layout: RowLayout | None, present: Array | None) -> Statistics:
    """Compute the statistics of an array; `present` is False for padding rows."""
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    values, used = x.astype(jnp.float32), jnp.ones((), bool) if present is None else present
    used = jnp.broadcast_to(used, x.shape)
    nan, infinite = (used & jnp.isnan(values), used & jnp.isinf(values)) if is_float else (jnp.zeros(x.shape, bool),) * 2
    finite = used & ~nan & ~infinite
    total = lambda mask: jnp.sum(mask, dtype=jnp.float32)  # noqa: E731
    numbers = [
        jnp.min(jnp.where(finite, values, jnp.inf)),
        jnp.max(jnp.where(finite, values, -jnp.inf)),
        jnp.sum(jnp.where(finite, values, 0)),
        total(finite & (values == 0)),
        total(nan),
        total(infinite),
        total(used),
    ]
    return Statistics(jnp.stack(numbers), _bad_rows(jnp.where(used, values, 0), layout))


def _of_gradient(g: Array) -> Array:
    values = g.astype(jnp.float32)
    finite = jnp.isfinite(values)
    largest = jnp.max(jnp.where(finite, jnp.abs(values), 0), initial=0)
    scaled = jnp.where(finite, values, 0) / jnp.where(largest > 0, largest, 1)
    counts = [jnp.sum(test(values), dtype=jnp.float32) for test in (jnp.isnan, jnp.isinf)]
    return jnp.stack([largest, jnp.sum(scaled * scaled), *counts])


def _bad_rows(x: Array, layout: RowLayout | None) -> Array | None:
    if layout is None:
        return None
    bad = jnp.moveaxis(~jnp.isfinite(x.astype(jnp.float32)), layout.axis, 0)
    return bad.reshape(layout.before, layout.size, layout.after, -1).any((0, 2, 3))


def _expanded(rows: Array, layout: RowLayout, ndim: int) -> Array:
    """Repeat one value per row to the shape of the axis that the rows are on, with 1 for the other axes."""
    entries = jnp.tile(jnp.repeat(rows, layout.after), layout.before)
    return entries.reshape([-1 if i == layout.axis else 1 for i in range(ndim)])
