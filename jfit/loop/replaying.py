"""Train a copy of a state up to a step, and compute what this step does node by node: `Run.replay`, `fit(nan=)`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit import counters
from jfit.checkpoints.checkpoint import resumed
from jfit.checkpoints.finite import is_finite
from jfit.checkpoints.saved import Saved, folders_of, read, step_of
from jfit.data import ArrayData, Batch, StreamData
from jfit.feed.host_batches import HostBatches
from jfit.formats.atomic import FormatError
from jfit.loop.replayed import FirstBad, NodeValues, ParameterValues, Replay, find_first_bad
from jfit.parallel import place
from jfit.parallel.devices import STATE_AXES
from jfit.parallel.mesh import MeshDevices
from jfit.parallel.ordered import slices_of
from jfit.parallel.spmd import Window, compile_spmd
from jfit.step.sharded import whole_state
from jfit.step.state import TrainState, split_params
from jfit.step.totals import cleared
from jfit.step.watch import Statistics, Watch, Watched


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
        self._loop = loop
        self._watch: Watch | None = None
        self._program: Any = None

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
        state, before, window = self._loop.run._placed(start.state), None, Window()
        while True:
            done = at
            if number == 0:
                zeros = cleared(self._loop.metrics, state.metrics)
                state = state._replace(metrics=place(zeros, self._loop.devices))
            with contextlib.closing(self._epoch(epoch, number, at, step)) as dispatches:
                for dispatch, batch in dispatches:
                    before = whole(state) if at == step else None
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
        dispatcher = self._loop.dispatcher
        if isinstance(dispatcher.batches, HostBatches):  # batches from the host may be readable only once
            with dispatcher.batches.read(epoch, number) as stream:
                for item in stream:
                    for dispatch in dispatcher.group_dispatches([item]):
                        yield dispatch, item
            return
        limit = lambda done: max(step - done, 1)  # noqa: E731
        with contextlib.closing(dispatcher.dispatches(epoch, number, at, limit)) as dispatches:
            for dispatch in dispatches:
                yield dispatch, None

    def batch(self, epoch: int, number: int) -> StepBatch:
        """Read a batch of arrays."""
        dispatcher = self._loop.dispatcher
        spec = dispatcher.spec
        options = {"micro_batches": spec.micro_batches, "paddable": paddable_of(dispatcher)}
        batches = HostBatches(spec.model, dispatcher.data, len(self._devices()), spec.batch_size, **options)
        with batches.read(epoch, number) as stream:
            batch, rows = next(iter(stream))
        return StepBatch(batch, rows, epoch, number)

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
        after = whole(state)
        loss, rate = _numbers(report)
        nodes, gradients, aux = self.values(before, batch)
        parameters = self._parameters(before, after, gradients)
        bad = self._first_bad(nodes, parameters, aux, batch)
        learning_rate, at = None if math.isnan(rate) else rate, start.position["step"]
        return Replay(step, batch.epoch, batch.number, at, loss, learning_rate, nodes, parameters, bad)

    def explain(self, state: TrainState, batch: StepBatch) -> tuple[FirstBad | None, list[str]]:
        """Return (the first array of a step that is not finite, names of the parameters whose gradients are not).

        Args:
            state: state before the step, on the host.
            batch: its batch.
        """
        nodes, gradients, aux = self.values(state, batch)
        parameters = self._parameters(state, state, gradients)
        names = [p.name for p in parameters if p.gradient_nonfinite]
        return self._first_bad(nodes, parameters, aux, batch), names

    def values(self, state: TrainState, batch: StepBatch) -> tuple[list[NodeValues], dict[str, Any], list[str]]:
        """Compute the statistics of a step.

        Args:
            state: state before the step, on the host.
            batch: its batch.

        Returns:
            (statistics of the nodes, name of a parameter -> `GRADIENTS` of its gradient, names of the auxiliary states that are
            not finite after the step).
        """
        devices = self._devices()
        if self._watch is None:
            spec, settings = self._loop.dispatcher.spec, self._loop.run.settings
            step: Any = spec.step
            options = {"frozen": step.frozen, "micro_batches": spec.micro_batches, "policy": settings.policy}
            options |= {"sync_batch_stats": step.sync_batch_stats, "regularizers": settings.regularizers}
            self._watch = Watch(spec.model, **options)
            out_axes = Watched(0, None, None, 0)  # type: ignore[arg-type]
            self._program = compile_spmd(self._watch, devices, (STATE_AXES, 0), out_axes, name="replay")
        small = TrainState(state.step, state.params, state.aux, (), (), None, state.key)
        watched = counters.read(self._program(place(small, devices), batch.batch))  # sync: of a replay
        points = self._watch.points
        total = float(watched.total)
        values = [_node(p, s, total, batch.rows) for p, s in zip(points, watched.nodes, strict=True)]
        bad = [name for name, x in watched.aux.items() if np.any(x)]
        return values, watched.gradients, bad

    def _devices(self) -> list[Any]:
        spec = self._loop.dispatcher.spec
        alone = isinstance(spec.devices, MeshDevices) or slices_of(spec.step) is not None
        return list(spec.devices[:1]) if alone else list(spec.devices)

    def _parameters(self, before: TrainState, after: TrainState, gradients: Mapping[str, Any]) -> list[ParameterValues]:
        step: Any = self._loop.dispatcher.spec.step
        trainable = split_params(self._loop.dispatcher.spec.model, before.params, step.frozen)[0]
        return [_parameter(name, before.params[name], after.params[name], gradients[name]) for name in trainable]

    def _first_bad(self, nodes: Any, parameters: Any, aux: list[str], batch: StepBatch) -> FirstBad | None:
        bad = find_first_bad(nodes, parameters, aux)
        data, size = self._loop.dispatcher.data, self._loop.dispatcher.spec.batch_size
        if bad is None or not isinstance(data, ArrayData) or not bad.node.rows:
            return bad
        order = data.order(batch.epoch)[batch.number * size :]
        return FirstBad(bad.what, bad.node, bad.inputs, tuple(int(order[r]) for r in bad.node.rows))


def paddable_of(dispatcher: Any) -> bool:
    """Return whether batches of a `ResidentDispatcher` or `StreamDispatcher` are padded."""
    batches = dispatcher.batches
    return bool(batches.paddable if isinstance(batches, HostBatches) else batches.layout.paddable)


def whole(state: TrainState) -> TrainState:
    """Return a copy of a state on the devices as whole NumPy arrays."""
    read = counters.read(state)  # sync: of a replay
    return whole_state(jax.tree.map(lambda x: x if isinstance(x, jax.Array) else np.array(x), read))


def _numbers(report: Any) -> tuple[float, float]:
    """Loss and learning rate in the result of a dispatch."""
    while isinstance(report, tuple):
        report = report[0]
    loss, rate = counters.read(report)  # sync: of a replay
    return float(loss), float(rate)


def replay_step(loop: Any, step: int, may_start_now: bool, unread: bool = False) -> Replay:
    """Return what a step of the run of a `Loop` does, see `Run.replay`.

    Args:
        loop: the training loop.
        step: number of the step, from 0.
        may_start_now: whether the present state of the run is that of its position.
        unread: whether the run has read none of its data, so that iterators are allowed; it then starts from its present state.

    Raises:
        ValueError: a run that has read data has not reached the step; or as `nearest_start`.
    """
    loop.thread.check_here("Run.replay", "wait until that training has ended")
    step, last = _checked_step(step), max(loop.step, loop.nan.reached)
    if not unread and step > last:
        raise ValueError(
            f"replay: step is {step}, but the run has done {last} step{'s' * (last != 1)}; pass a number from 0 to {last}, "
            "which is the next step, or train the run further"
        )
    if unread and loop.dispatcher.num_batches is not None:
        epochs = max(loop.run.settings.num_epoch - loop.epoch, 1)  # a run may have been continued beyond its `num_epoch`
        end = loop.step - loop.batch + epochs * loop.dispatcher.num_batches
        if step >= end:
            raise ValueError(
                f"replay: step is {step}, but training ends after {end} steps ({loop.dispatcher.num_batches} per epoch); pass "
                f"a number from 0 to {end - 1}, or a larger num_epoch="
            )
    if unread and step >= loop.step:
        return Replayer(loop).replay(Start(loop.run.snapshot(), loop.position), step)
    present = (loop.run.snapshot, loop.position) if may_start_now else None
    return Replayer(loop).replay(nearest_start(loop, step, loop.run.settings.checkpoint, present), step)


def nearest_start(
    loop: Any, step: int, checkpoint: Any, present: tuple[Callable[[], TrainState], dict[str, int]] | None
) -> Start:
    """Return the newest state at or before a step.

    Args:
        loop: the `Loop` of the run.
        step: number of the step, from 0.
        checkpoint: folder of the checkpoints of the run, or None.
        present: (function that copies the present state to the host, its position); None: it may not be used.

    Raises:
        ValueError: there is none, or the data is an iterator that cannot be read again.
    """
    data = loop.dispatcher.data
    if isinstance(data, StreamData) and data.resumes_by_counting:
        raise ValueError(
            f"replay: the training data is a {type(data.source).__name__}, which this run reads itself, so it cannot be read "
            "again from an earlier batch; use jfit.replay(folder, train_data, step=...) with a new iterator, or pass a "
            "callable f(epoch) to fit"
        )
    states = [] if present is None else [(present[1], present[0])]
    kept = loop.nan.kept
    states += [] if kept is None else [(kept.position, lambda: kept.state)]
    folders = [] if checkpoint is None else folders_of(Path(checkpoint))
    for folder in reversed(folders):
        if step_of(folder) <= step:
            with contextlib.suppress(FormatError):
                saved = read(folder)
                if "position" in saved.meta:
                    states.append((saved.meta["position"], functools.partial(_state_of, saved, loop)))
                    break
    earlier = [(position["step"], i) for i, (position, _) in enumerate(states) if position["step"] <= step]
    if not earlier:
        steps = ", ".join(str(position["step"]) for position, _ in states) or "none"
        raise ValueError(
            f"replay: no state before step {step} was kept (states at steps: {steps}); pass checkpoint= to fit, or train from "
            f"the start with jfit.replay(None, train_data, model, step={step}, ...) and the arguments of fit"
        )
    position, state_of = states[max(earlier)[1]]
    return Start(state_of(), dict(position))


def _checked_step(step: Any) -> int:
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 0:
        raise ValueError(f"replay: step is {step!r}; expected an integer of at least 0, the number of updates before the step")
    return int(step)


def _state_of(saved: Saved, loop: Any) -> TrainState:
    return resumed(saved, loop.state)[0]


# ------------------------------------------------------------------------------------------------ statistics on the host
def _node(point: Any, statistics: Statistics, total: float, rows: int) -> NodeValues:
    parts = np.asarray(statistics.values, np.float64).reshape(-1, 7)
    is_shared = point.kind in ("parameter", "constant")  # the same array on all devices and in all micro-batches
    parts = parts[:1] if is_shared else parts
    minimum, maximum = parts[:, 0].min(), parts[:, 1].max()
    summed, zeros, nans, infinities, size = parts[:, 2:].sum(0)
    finite = size - nans - infinities
    marks = np.zeros(0, bool) if statistics.rows is None else np.asarray(statistics.rows).ravel()[:rows]
    norm, nonfinite = None, 0
    if statistics.gradient is not None and point.kind == "node":
        norm, nonfinite = _gradient(np.asarray(statistics.gradient))
        norm /= max(total, 1e-30)
    return NodeValues(
        point.name,
        point.operator,
        point.kind,
        point.inputs,
        point.source,
        minimum=float(minimum) if finite else math.nan,
        maximum=float(maximum) if finite else math.nan,
        mean=float(summed / finite) if finite else math.nan,
        zeros=float(zeros / size) if size else 0.0,
        nans=int(nans),
        infinities=int(infinities),
        size=int(size),
        rows=tuple(np.flatnonzero(marks).tolist()),
        gradient_norm=norm,
        gradient_nonfinite=nonfinite,
    )


def _gradient(values: np.ndarray) -> tuple[float, int]:
    """Return (2-norm of the finite values, number of the others) from `GRADIENTS` of the parts of a gradient."""
    parts = values.astype(np.float64).reshape(-1, 4)
    return float(np.sqrt((parts[:, 0] ** 2 * parts[:, 1]).sum())), int(parts[:, 2:].sum())


def _parameter(name: str, before: Any, after: Any, gradient: Any) -> ParameterValues:
    old, new = np.asarray(before, np.float64), np.asarray(after, np.float64)
    norm, nonfinite = _gradient(np.asarray(gradient))
    with np.errstate(all="ignore"):
        length, update = float(np.linalg.norm(old)), float(np.linalg.norm(new - old))
        ratio = float(np.float64(update) / np.float64(length))
    bad = 0 if is_finite({"after": new}) else int((~np.isfinite(new)).sum())
    return ParameterValues(name, tuple(old.shape), length, norm, nonfinite, update, ratio, bad)
