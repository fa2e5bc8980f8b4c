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

from jfit.counters import is_key
from jfit.data.batch import parts_of
from jfit.lowering.interpret import Interpretation, entry_name
from jfit.lowering.model import Aux, Model, Params, joint_losses, loss_sums, objective, plan_of, weight_sum
from jfit.lowering.taps import Point, run_tapped
from jfit.ops.rows import MaybeLayout, RowLayout, broadcast_weight
from jfit.step.loss_scale import unscaled
from jfit.step.regularizers import penalty_and_gradients
from jfit.step.slices import (
    BatchShard,
    GradientSettings,
    cut_shard,
    fill_padding,
    loss_factor,
    mask_padding,
    random_numbers,
    scale_of_heads,
    shard_of,
)
from jfit.step.state import TrainState, split_params

STATISTICS = ("minimum", "maximum", "sum", "norm", "zeros", "nans", "infinities", "count")  # the first four of finite values


class Statistics(NamedTuple):
    """Statistics of an array, on the devices.  All have a leading axis of micro-batches.

    Attributes:
        values: float32 array (..., 8), see `STATISTICS`.
        rows: bool array (..., rows): the rows with values that are not finite; None if the array has no batch axis.
        gradient: as `values`, of the gradient of the summed loss; None if there is none.
    """

    values: Array
    rows: Array | None
    gradient: Array | None = None


class Watched(NamedTuple):
    """Result of the program of a `Watch`.

    Attributes:
        nodes: `Statistics` of each of `Watch.points`.
        gradients: name of a trainable parameter -> float32 array (8,), see `STATISTICS`, of the gradient of the mean loss,
            with regularizers, before clipping.
        total: sum of the row weights over all devices, times the factor of the loss if the policy has a loss scale, by which
            gradients of nodes are divided to get those of the mean loss.
        aux: name of an auxiliary state -> whether it is finite after the step on this device.
    """

    nodes: tuple[Statistics, ...]
    gradients: dict[str, Array]
    total: Array
    aux: dict[str, Array]


class Watch:
    """A program that computes the statistics of one training step, without an update.

    Args:
        settings: model, micro-batches, precision and batch statistics of the training step.
        frozen, regularizers: as for `train_step`.

    Attributes:
        points: names and kinds of the arrays, in the order in which they are computed; known after the first trace.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> watch = Watch(GradientSettings(model))
        >>> watched = jax.jit(watch)(jfit.init_state(model, "sgd", batch), batch)
        >>> [p.name for p in watch.points if p.kind == "node"], watched.nodes[0].values[0, 0].item()
        (['fullyconnected0', 'softmax'], 1.0)
    """

    def __init__(
        self,
        settings: GradientSettings,
        frozen: Sequence[str] = (),
        regularizers: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.settings, self.model, self.frozen, self.regularizers = settings, settings.model, frozen, regularizers
        self.points: list[Point] = []

    def __call__(self, state: TrainState, batch: Any, *, axis_name: str | None = None) -> Watched:
        """Return the statistics of the step from `state` with `batch`; arguments as of a training step."""
        model = self.model.bound(parts_of(batch)[0])
        shard = shard_of(model, batch, axis_name)
        trainable, others = split_params(self.model, state.params, self.frozen)
        factor = loss_factor(self.settings.policy, state, shard, axis_name)

        def part(aux: Aux, numbered: tuple[Array, BatchShard]) -> Any:
            number, shard = numbered
            drawn = random_numbers(self.settings, state, number, shard.row_ids)
            drawn |= {"axis_name": axis_name, "step": state.step}
            return self._part(model, trainable, others, aux, shard, drawn, factor)

        parts = jnp.arange(self.settings.micro_batches), cut_shard(model, shard, self.settings.micro_batches)
        aux, (gradients, totals, nodes) = lax.scan(part, state.aux, parts)
        gradients, total = jax.tree.map(lambda x: x.sum(0), (gradients, totals))
        if axis_name is not None:
            gradients, total = lax.psum((gradients, total), axis_name)
        mean = {k: g / jnp.maximum(total, 1e-30).astype(g.dtype) for k, g in gradients.items()}
        if self.regularizers:
            added = penalty_and_gradients(self.regularizers, trainable, self.model.tables)[1]
            mean |= {k: mean[k] + g.astype(mean[k].dtype) for k, g in added.items()}
        finite = {k: jnp.isfinite(x).all() for k, x in aux.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        total = total if factor is None else total * factor
        return Watched(nodes, {k: _statistics(g) for k, g in mean.items()}, total, finite)

    def _part(
        self,
        model: Model,
        trainable: Params,
        others: Params,
        aux: Aux,
        shard: BatchShard,
        options: dict[str, Any],
        factor: Array | None,
    ) -> Any:
        """Return (new auxiliary states, (gradients summed over rows, sum of the row weights, statistics)) of a micro-batch."""
        options |= {"train": True, "weight": shard.weight, "policy": self.settings.policy}
        options |= {"sync_batch_stats": self.settings.sync_batch_stats, **scale_of_heads(model, factor)}
        inputs, rows = fill_padding(model, shard), shard.row_ids.shape[0]

        def run(trainable: Params, sinks: Mapping[str, Array]) -> Any:
            recorder = _Recorder(shard.weight, sinks)
            value, new_aux, losses = _forward(model, ({**others, **trainable}, aux, inputs), options, recorder)
            self.points = recorder.points
            value = value if factor is None else value * factor
            return value, (new_aux, weight_sum(model, losses, shard.weight, rows), recorder.statistics, recorder.observed)

        names = jax.eval_shape(lambda p: run(p, {})[1][3], trainable)
        sinks = dict.fromkeys(names, jnp.zeros(len(STATISTICS)))
        (gradients, observed), (new_aux, total, statistics, _) = jax.grad(run, argnums=(0, 1), has_aux=True)(trainable, sinks)
        gradients = gradients if factor is None else unscaled(gradients, factor)
        gradients, new_aux = mask_padding(shard.weight, gradients, new_aux, aux)
        nodes = [s._replace(gradient=observed.get(p.name)) for p, s in zip(self.points, statistics, strict=True)]
        return new_aux, (gradients, total, tuple(nodes))


def _forward(model: Model, arguments: tuple[Params, Aux, Any], options: dict[str, Any], recorder: _Recorder) -> Any:
    """Return (objective, new auxiliary states, sums of the losses), with a tap on the nodes of the graph or function."""
    weight, inputs = options["weight"], arguments[2]
    step, options = options["step"], {name: value for name, value in options.items() if name != "step"}
    tap: dict[str, Any] = {} if model.symbol is None else {"how": Interpretation(tap=recorder)}

    def run(params: Params, aux: Aux, inputs: Any) -> Any:
        values, new_aux = model.apply(params, aux, inputs, **options, **tap)
        joint = joint_losses(model, values, inputs, weight, params, new_aux, options["axis_name"], step)
        return objective(model, values, inputs, weight, joint), (values, new_aux, joint)

    if model.symbol is None:
        groups = zip(("parameter", "auxiliary state", "input"), arguments, strict=True)
        points = [
            Point(k, "", kind, rows=_layout(model, kind, k, x, options))
            for kind, group in groups
            for k, x in sorted(group.items())
        ]
        (value, (values, new_aux, joint)), sources = run_tapped(run, arguments, points, recorder)
        named = [("loss", sources[0])] * len(values)
    else:
        value, (values, new_aux, joint) = run(*arguments)
        named = [(f"loss of {name}", (name,)) for name in map(entry_name, model.symbol.heads)]
    losses = [] if joint is None else [("loss", named[0][1], joint.losses)]
    for out, x, (name, sources) in zip(model.outputs, values, named, strict=False):
        if joint is None and out.loss is not None and out.kind != "plain" and (out.label is None or out.label in inputs):
            losses.append((name, sources, out.row_losses(x, inputs, weight)[0]))
    for name, sources, x in losses:
        is_row = x.shape == options["row_ids"].shape
        recorder(Point(name, "", "loss", sources, "", RowLayout(0, 1, len(x), 1) if is_row else None), x)
    return value, new_aux, loss_sums(model, values, inputs, weight, plan_of(model, inputs).rows, joint)


def _layout(model: Model, kind: str, name: str, x: Any, options: dict[str, Any]) -> MaybeLayout:
    axis, rows = model.batch_axes.get(name, 0), options["row_ids"].shape[0]
    if kind != "input" or axis is None or x.ndim <= axis or x.shape[axis] != rows:
        return None
    return RowLayout(axis, 1, rows, 1)


# ------------------------------------------------------------------------------------------------ statistics
class _Recorder:
    """A tap that computes statistics; `sinks` are zeros whose gradients are the statistics of the gradients of the nodes."""

    def __init__(self, weight: Array | None, sinks: Mapping[str, Array]) -> None:
        self.weight, self._sinks = weight, sinks
        self.points: list[Point] = []
        self.statistics: list[Statistics] = []
        self.observed: dict[str, Array] = {}  # the sinks that are used, by name of the node

    def __call__(self, point: Point, x: Any) -> Any:
        x = jnp.asarray(x)
        if not x.size or is_key(x) or jnp.issubdtype(x.dtype, jnp.complexfloating):
            return x
        layout, stopped = point.rows if isinstance(point.rows, RowLayout) else None, lax.stop_gradient(x)
        present = jnp.ones((), bool)
        if self.weight is not None and layout is not None:
            present = broadcast_weight(self.weight > 0, layout, x.ndim)
        self.points.append(point)
        self.statistics.append(Statistics(_statistics(stopped, present), _bad_rows(stopped, present, layout)))
        if point.kind != "node" or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        sink = self.observed[point.name] = self._sinks.get(point.name, jnp.zeros(len(STATISTICS)))
        return _observed(x, sink)


@jax.custom_vjp
def _observed(x: Array, sink: Array) -> Array:
    """Return x; the gradient with respect to `sink` is the statistics of the gradient with respect to x."""
    return x


_observed.defvjp(lambda x, sink: (x, None), lambda _, gradient: (gradient, _statistics(gradient)))


def _statistics(x: Array, present: Array | bool = True) -> Array:
    """Compute the `STATISTICS` of an array; `present` is False for padding rows."""
    values, used = x.astype(jnp.float32), jnp.broadcast_to(present, x.shape)
    finite = used & jnp.isfinite(values)
    largest = jnp.max(jnp.abs(values), where=finite, initial=0)
    scale = jnp.where(largest > 0, largest, 1)  # squares of large and small numbers are not in the range of float32
    counts = (finite & (values == 0), used & jnp.isnan(values), used & jnp.isinf(values), used)
    numbers = [
        jnp.min(values, where=finite, initial=jnp.inf),
        jnp.max(values, where=finite, initial=-jnp.inf),
        jnp.sum(values, where=finite),
        scale * jnp.sqrt(jnp.sum(jnp.square(values / scale), where=finite)),
    ]
    return jnp.stack([*numbers, *(jnp.sum(mask, dtype=jnp.float32) for mask in counts)])


def _bad_rows(x: Array, present: Array, layout: RowLayout | None) -> Array | None:
    if layout is None:
        return None
    bad = jnp.moveaxis(present & ~jnp.isfinite(x.astype(jnp.float32)), layout.axis, 0)
    return bad.reshape(layout.before, layout.size, layout.after, -1).any((0, 2, 3))
