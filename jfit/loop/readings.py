"""Values that the host reads while the devices train: running sums, values of single steps, inputs of host metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from jfit import counters
from jfit.evaluate.host_metrics import HostMetrics
from jfit.history.table import History
from jfit.loop.dispatch import Dispatch, DispatchSpec
from jfit.loop.events import Events
from jfit.loop.step_log import StepLog, StepRow
from jfit.metrics.core import on_devices, on_host
from jfit.parallel.ordered import slices_of
from jfit.parallel.spmd import WAIT_EVERY
from jfit.prepare import Problem
from jfit.step.totals import joined, values


class Readings:
    """Queues of the values of single batches, which are read when the host waits for an earlier dispatch anyway.

    Args:
        problem: what is trained, with its metrics, its callbacks, of which those with "step_log" events get the values of
            steps, and `log_every`.
        spec: settings of the dispatches, which say what a program returns beside its report.

    Attributes:
        host: the `HostMetrics`, or None.
        queues: whether values of single batches are read at all, beside the running sums.
    """

    def __init__(self, problem: Problem, spec: DispatchSpec) -> None:
        metrics, devices, log_every = problem.settings.metrics, problem.settings.devices, problem.options.log_every
        self._metrics, on_the_host = on_devices(metrics), on_host(metrics)
        self.host = HostMetrics(on_the_host, slices_of(spec.step) or len(devices)) if on_the_host else None
        self._receivers = [(i, c.every) for i, c in enumerate(problem.options.callbacks) if "step_log" in c.events and c.every]
        intervals = [every for _, every in self._receivers] + ([log_every] if log_every else [])
        self._steps = StepLog(spec.step_names, intervals, devices[0]) if spec.step_names else None
        self._log_every = log_every
        self._unsent: deque[StepRow] = deque()  # values of steps that are read, for "step_log" events
        self._sending = False  # whether "step_log" events are being sent
        self.queues = self.host is not None or self._steps is not None

    def take(self, result: Any, dispatch: Dispatch, loop: Any) -> Any:
        """Queue what a program returned beside the report, and return the report.

        Args:
            result: the second result of `Dispatch.run`.
            dispatch: the dispatch.
            loop: the `Loop`, at the position before it.
        """
        if self._steps is not None:
            result = self._steps.push(result, dispatch.steps, loop.position)
        return result if self.host is None else self.host.push(result)

    def read(self, value: Any, history: History, events: Events, *, behind: int = WAIT_EVERY) -> Any:
        """Copy arrays to the host, and record the values of earlier batches that wait to be read.

        Args:
            value: pytree of arrays.
            history: gets the values of the steps.
            events: sends the "step_log" events.
            behind: number of the last dispatches whose batches are left for later, because they may not be finished.
        """
        batches = [] if self.host is None else self.host.pop(behind)
        entries = [] if self._steps is None else self._steps.pop(behind)
        # sync: one wait for all; the callers say how often
        read, batches, arrays = counters.read((value, batches, [entry.array for entry in entries]))
        if self.host is not None:
            self.host.update(batches)
        if self._steps is not None and entries:
            self._record(self._steps.rows(entries, arrays), history, events)
        return read

    def values(self, totals: Any, snapshot: int | None = None) -> dict[str, Any]:
        """Return loss, metrics and host metrics by name.

        Args:
            totals: running sums, copied to the host.
            snapshot: result of `HostMetrics.snapshot` at the time of `totals`; None: host metrics over all batches so far.
        """
        result = values(self._metrics, totals)
        return result if self.host is None else joined(result, self.host.values(snapshot))

    def _record(self, rows: Sequence[StepRow], history: History, events: Events) -> None:
        for row in rows:
            if self._log_every is not None and row.position["step"] % self._log_every == 0:
                history.add("steps", **row.position, **row.logs)
        self._unsent.extend(rows if self._receivers else ())
        if self._sending:  # a callback saves a checkpoint: its own event is sent first, then those of later steps
            return
        self._sending = True
        try:
            while self._unsent:
                row = self._unsent.popleft()
                for i, every in self._receivers:
                    if row.position["step"] % every == 0:
                        events.send_to(i, "step_log", row.logs, **row.position)
        finally:
            self._sending = False
