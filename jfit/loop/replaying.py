"""Train a copy of a state up to a step, and compute what this step does node by node: `Run.replay`, `fit(nan=)`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit import counters
from jfit.checkpoints.checkpoint import resumed
from jfit.checkpoints.saved import folders_of, read, step_of
from jfit.data import ArrayData, Batch, StreamData
from jfit.feed.host_batches import HostBatches
from jfit.formats.atomic import FormatError
from jfit.loop.dispatch import reported_lr
from jfit.loop.replayed import FirstBad, NodeValues, ParameterValues, Replay, find_first_bad
from jfit.lowering.taps import Point
from jfit.parallel import place
from jfit.parallel.devices import STATE_AXES
from jfit.parallel.mesh import MeshDevices
from jfit.parallel.ordered import slices_of
from jfit.parallel.spmd import Window, compile_spmd
from jfit.parallel.whole import host_state
from jfit.step.slices import GradientSettings
from jfit.step.state import TrainState
from jfit.step.totals import cleared
from jfit.step.watch import STATISTICS, Statistics, Watch, Watched


class Start(NamedTuple):
    """A state on the host, and its position (epoch, batch, step) in the training."""

    state: TrainState
    position: dict[str, int]


class StepBatch(NamedTuple):
    """The batch of a step on the host, and its place in the data.

    Attributes:
        batch: split over the devices, as `HostBatches.read` yields it.
        rows: number of rows without padding.
        epoch: number of the epoch.
        number: number of the batch in the epoch.
    """

    batch: Batch
    rows: int
    epoch: int
    number: int


class Replayer:
    """Repeats steps of a run on copies of its state.  Its programs are kept, so that another step compiles nothing.

    Args:
        loop: the `Loop` of the run, between two dispatches; its state and position do not change.
    """

    def __init__(self, loop: Any) -> None:
        self._loop, self._dispatcher, self._spec = loop, loop.dispatcher, loop.dispatcher.spec
        alone = isinstance(self._spec.devices, MeshDevices) or slices_of(self._spec.step) is not None
        self._devices = list(self._spec.devices[:1]) if alone else list(self._spec.devices)

    # -------------------------------------------------------------------------------- training up to a step
    def through(self, start: Start, step: int) -> tuple[TrainState, TrainState, StepBatch, Any]:
        """Train a copy of a state up to step number `step`, and do this step.

        Args:
            start: state and position to start from, at or before this step.
            step: number of the step, from 0: the number of updates before it.

        Returns:
            (state before the step, on the host; state after it, on the devices; batch of the step; its report).

        Raises:
            ValueError: the data ended before this step.
        """
        epoch, number, at = (start.position[name] for name in ("epoch", "batch", "step"))
        state, before, window = place(start.state, self._loop.devices), None, Window()
        while True:
            done = at
            if number == 0:
                zeros = cleared(self._loop.metrics, state.metrics)
                state = state._replace(metrics=place(zeros, self._loop.devices))
            with contextlib.closing(self._epoch(epoch, number, at, step)) as dispatches:
                for dispatch, batch in dispatches:
                    before = host_state(state, self._loop.devices) if at == step else None
                    state, report = dispatch.run(state)
                    at, number = at + dispatch.steps, number + dispatch.steps
                    fence = window.push(report)
                    if fence is not None:
                        counters.wait(fence)  # sync: as in the training loop, every eighth dispatch
                    if before is not None:
                        item = self.batch(epoch, number - 1) if batch is None else StepBatch(*batch, epoch, number - 1)
                        return before, state, item, report
            if at == done and number == 0:
                raise ValueError(f"replay: the training data has no batch in epoch {epoch}, so step {step} cannot be reached")
            epoch, number = epoch + 1, 0

    def _epoch(
        self, epoch: int, number: int, at: int, step: int
    ) -> Generator[tuple[Any, tuple[Batch, int] | None], None, None]:
        """Yield (dispatch, its batch; None for data on the devices) from batch `number` of an epoch up to `step`."""
        if isinstance(self._dispatcher.batches, HostBatches):  # batches from the host may be readable only once
            with self._dispatcher.batches.read(epoch, number) as stream:
                for item in stream:
                    for dispatch in self._dispatcher.group_dispatches([item]):
                        yield dispatch, item
        else:
            for dispatch in self._dispatcher.dispatches(epoch, number, at, lambda done: max(step - done, 1)):
                yield dispatch, None

    def batch(self, epoch: int, number: int, parts: int | None = None) -> StepBatch:
        """Read a batch of arrays, split over the devices, or over another number of them."""
        spec, batches = self._spec, self._dispatcher.batches
        paddable = batches.paddable if isinstance(batches, HostBatches) else batches.layout.paddable
        options = {"micro_batches": spec.micro_batches, "paddable": bool(paddable)}
        reader = HostBatches(spec.model, self._dispatcher.data, parts or len(self._devices), spec.batch_size, **options)
        with reader.read(epoch, number) as stream:
            batch, count = next(stream)
            return StepBatch(batch, count, epoch, number)

    # -------------------------------------------------------------------------------- one step, node by node
    def replay(self, start: Start, step: int) -> Replay:
        """Return what step number `step` (from 0) does, starting from an earlier state.

        Args:
            start: state and position, at or before this step.
            step: number of the step.

        Raises:
            ValueError: the data ended before this step.
        """
        before, state, batch, report = self.through(start, step)
        report = counters.read(jax.tree.leaves(report)[0])  # sync: of a replay
        nodes, parameters, bad = self.explain(before, batch, host_state(state, self._loop.devices))
        rate, at = reported_lr(report).get("lr"), start.position["step"]
        return Replay(step, batch.epoch, batch.number, at, float(report[0]), rate, nodes, parameters, bad)

    def explain(
        self, before: TrainState, batch: StepBatch, after: TrainState | None = None
    ) -> tuple[list[NodeValues], list[ParameterValues], FirstBad | None]:
        """Compute the statistics of a step: (of the nodes, of the trainable parameters, the first that is not finite).

        Args:
            before: state before the step, on the host.
            batch: its batch.
            after: state after the step, on the host; None: that before it, the update is not looked at.
        """
        watch, program = self._watching
        small = TrainState(before.step, before.params, before.aux, (), (), None, before.key, None, before.loss_scale)
        watched = counters.read(program(place(small, self._devices), batch.batch))  # sync: of a replay
        total = max(float(watched.total), 1e-30)
        nodes = [_node(p, s, total, batch.rows) for p, s in zip(watch.points, watched.nodes, strict=True)]
        new = (before if after is None else after).params
        parameters = [
            _parameter(k, x, new[k], watched.gradients[k]) for k, x in before.params.items() if k in watched.gradients
        ]
        bad = find_first_bad(nodes, parameters, [name for name, finite in watched.aux.items() if not np.all(finite)])
        if bad is not None and isinstance(self._dispatcher.data, ArrayData):
            order = self._dispatcher.data.order(batch.epoch)[batch.number * self._spec.batch_size :]
            bad = replace(bad, data_rows=tuple(int(order[row]) for row in bad.node.rows))
        return nodes, parameters, bad

    @functools.cached_property
    def _watching(self) -> tuple[Watch, Any]:
        """`Watch` of the training step, and its compiled program."""
        spec, settings, step = self._spec, self._loop.run.settings, self._spec.step
        gradients = GradientSettings(spec.model, (), spec.micro_batches, settings.policy, step.sync_batch_stats)
        watch = Watch(gradients, step.frozen, settings.regularizers)
        out_axes: Any = Watched(0, None, None, 0)  # type: ignore[arg-type]
        return watch, compile_spmd(watch, self._devices, (STATE_AXES, 0), out_axes, name="replay")


def replay_step(loop: Any, step: int, may_start_now: bool, unread: bool = False) -> Replay:
    """Return what a step of the run of a `Loop` does, see `Run.replay`.

    Args:
        loop: the training loop.
        step: number of the step, from 0.
        may_start_now: whether the present state of the run is that of its position.
        unread: whether the run has read none of its data, so that iterators are allowed; it then starts from its present state.

    Raises:
        ValueError: a run that has read data has not reached the step, there is no earlier
            state, or the data is an iterator that cannot be read again.
    """
    loop.thread.check_here("Run.replay", "wait until that training has ended")
    if not hasattr(loop.dispatcher.spec.step, "frozen"):
        raise ValueError("replay: a step with updates= has several backward passes, and cannot be replayed node by node")
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 0:
        raise ValueError(f"replay: step is {step!r}; expected an integer of at least 0, the number of updates before the step")
    last, per_epoch = max(loop.step, loop.nan.reached), loop.dispatcher.num_batches
    if not unread and step > last:
        raise ValueError(f"replay: step is {step}, but the run has done {last}; pass a number from 0 to {last}, or train on")
    num_steps, num_epoch = loop.run.num_steps, loop.run.num_epoch
    if unread and (num_steps or per_epoch is not None):
        # a run may have been continued beyond its `num_epoch`
        end = num_steps or loop.step - loop.batch + max(num_epoch - loop.epoch, 1) * per_epoch
        if step >= end:
            per = "" if num_steps else f" ({per_epoch} per epoch)"
            raise ValueError(f"replay: step is {step}, but training ends after {end} steps{per}")
    start = Start(loop.run.snapshot(), loop.position) if unread and step >= loop.step else _start(loop, step, may_start_now)
    return Replayer(loop).replay(start, int(step))


def _start(loop: Any, step: int, may_start_now: bool) -> Start:
    """Return the newest state at or before a step: of a checkpoint, the present one, or one that `nan=` of `fit` kept."""
    data, checkpoint = loop.dispatcher.data, loop.run.settings.checkpoint
    if isinstance(data, StreamData) and data.resumes_by_counting:
        raise ValueError(
            f"replay: the training data is a {type(data.source).__name__}, which this run reads itself; use "
            "jfit.replay(folder, train_data, step=...) with a new iterator, or pass a callable f(epoch) to fit"
        )
    states = [(loop.position, loop.run.snapshot)] if may_start_now else []
    if loop.nan.kept is not None:
        states.append((loop.nan.kept.position, lambda: loop.nan.kept.state))
    for folder in reversed([] if checkpoint is None else folders_of(Path(checkpoint))):
        if step_of(folder) <= step:
            with contextlib.suppress(FormatError):
                saved = read(folder)
                if "position" in saved.meta:
                    states.append((saved.meta["position"], lambda saved=saved: resumed(saved, loop.state)[0]))
                    break
    earlier = [entry for entry in states if entry[0]["step"] <= step]
    if not earlier:
        steps = ", ".join(str(position["step"]) for position, _ in states) or "none"
        raise ValueError(
            f"replay: no state before step {step} was kept (kept: {steps}); pass checkpoint= to fit, or jfit.replay(None, ...)"
        )
    position, state_of = max(earlier, key=lambda entry: entry[0]["step"])
    return Start(state_of(), dict(position))


# ------------------------------------------------------------------------------------------------ statistics on the host
def _combined(statistics: Any) -> dict[str, Any]:
    """Return `STATISTICS` of an array from those of its parts: (..., 8)."""
    parts = dict(zip(STATISTICS, np.asarray(statistics, np.float64).reshape(-1, len(STATISTICS)).T, strict=True))
    counts = {name: int(parts[name].sum()) for name in ("zeros", "nans", "infinities", "count")}
    finite = counts["count"] - counts["nans"] - counts["infinities"]
    return counts | {
        "minimum": float(parts["minimum"].min()) if finite else math.nan,
        "maximum": float(parts["maximum"].max()) if finite else math.nan,
        "mean": float(parts["sum"].sum() / finite) if finite else math.nan,
        "norm": float(np.linalg.norm(parts["norm"])),
        "nonfinite": counts["nans"] + counts["infinities"],
    }


def _node(point: Point, statistics: Statistics, total: float, rows: int) -> NodeValues:
    is_shared = point.kind in ("parameter", "constant")  # the same array on all devices and in all micro-batches
    values = _combined(np.reshape(statistics.values, (-1, len(STATISTICS)))[: 1 if is_shared else None])
    gradient = None if statistics.gradient is None else _combined(statistics.gradient)
    marks = () if statistics.rows is None else np.ravel(statistics.rows)[:rows]
    return NodeValues(
        *point[:5],
        **{name: values[name] for name in ("minimum", "maximum", "mean", "nans", "infinities")},
        zeros=values["zeros"] / max(values["count"], 1),
        size=values["count"],
        rows=tuple(np.flatnonzero(marks).tolist()),
        gradient_norm=None if gradient is None else gradient["norm"] / total,
        gradient_nonfinite=0 if gradient is None else gradient["nonfinite"],
    )


def _parameter(name: str, before: Any, after: Any, gradient: Any) -> ParameterValues:
    old, new, of_gradient = np.asarray(before, np.float64), np.asarray(after, np.float64), _combined(gradient)
    with np.errstate(all="ignore"):
        norm, update = np.linalg.norm(old), np.linalg.norm(new - old)
        ratio = float(update / norm)
    bad = int((~np.isfinite(new)).sum())
    norms = float(norm), of_gradient["norm"], of_gradient["nonfinite"], float(update)
    return ParameterValues(name, tuple(old.shape), *norms, ratio, bad)
