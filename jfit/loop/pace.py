"""How far the host runs ahead of the devices, and the log points within an epoch."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from jfit import counters
from jfit.distributed import num_processes
from jfit.loop.dispatch import Dispatch, reported_lr
from jfit.parallel.spmd import Window

LOG_SECONDS = 0.5  # minimum time between two "log" events

_SLOW_DATA = (
    "epoch %d: the devices waited for data for %.1f of %.1f s; at %.0f samples/s the loader is slower than the training, which "
    "could do %.0f. Load batches in more worker processes (num_workers= of torch's DataLoader, mp_prefetch() of grain), read "
    "further ahead (jfit.data.prefetch(loader, size=16)), or cache decoded rows."
)


class LogPoint(NamedTuple):
    """Values at a log point (a time at which running sums are copied) that are not read from the devices yet."""

    copied: Any  # (copy of the running sums, report of the last dispatch), arrays on the devices
    logs: dict[str, float]  # values that were known on the host already: samples_per_second
    position: dict[str, int]
    snapshot: int | None  # key of the sums of the host metrics (result of `HostMetrics.snapshot`); None without host metrics


class Pace:
    """Waits for the dispatch 8 before the present one at every 8th dispatch, and sends the "log" events of an epoch.

    Args:
        loop: the `Loop`, at the start of an epoch.

    Attributes:
        compiled: seconds of compilations before the epoch.
    """

    def __init__(self, loop: Any) -> None:
        self._loop, self._window, self._rows = loop, Window(), 0
        self._started = self._logged = time.perf_counter()
        self.compiled = counters.compile_seconds()
        self._pending: LogPoint | None = None  # the last log point, if its values are not read from the devices yet

    def speed(self) -> dict[str, float]:
        """Return {"samples_per_second", "time"} since the start of the epoch; neither includes compilation time.

        With batches of a stream, also "data_time", the part of "time" in which the devices waited for one.
        """
        compiling, stream = counters.compile_seconds() - self.compiled, self._loop.dispatcher.stream
        seconds = max(time.perf_counter() - self._started - compiling, 1e-9)
        waits = {} if stream is None else {"data_time": min(stream.waited, seconds)}
        return {"samples_per_second": self._rows / seconds, "time": seconds} | waits

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context manager whose time is not part of that of the epoch: an evaluation within it."""
        started, compiled = time.perf_counter(), counters.compile_seconds()
        yield
        self._started += time.perf_counter() - started - (counters.compile_seconds() - compiled)

    def after_dispatch(self, dispatch: Dispatch) -> None:
        """Count the rows of a dispatch; if it is the 8th since the last wait, wait for an earlier one, or send a log point."""
        self._rows += dispatch.rows
        fence = self._window.push(self._loop.report)
        if fence is None:
            return
        if time.perf_counter() - self._logged > LOG_SECONDS:
            self._logged = time.perf_counter()
            self._log(fence)
        elif self._loop.readings.queues:
            self._loop.read(fence)  # sync: the host waits for the dispatch 8 before this one
        else:
            counters.wait(fence)  # sync: as above, without the copy to the host that `read` makes

    def _log(self, fence: Any) -> None:
        """Send the "log" event of the previous log point, and copy the running sums of this one.

        The values of a log point are read one log point late: the copy of the running sums is queued on the devices after
        the steps in flight, so reading it now would wait for them.  At the next log point it is computed already.

        Args:
            fence: report of the dispatch 8 before the last, for which the host waits.
        """
        loop, previous = self._loop, self._pending
        # the next step donates the original
        sums = jax.tree.map(lambda x: jax.device_put(x, x.sharding, may_alias=False), loop.state.metrics)
        snapshot = None if loop.readings.host is None else loop.readings.host.snapshot()
        speed = {"samples_per_second": self.speed()["samples_per_second"]}
        self._pending = LogPoint((sums, loop.report), speed, loop.position, snapshot)
        if previous is None:
            loop.read(fence)  # sync: the host waits for the dispatch 8 before this one
            return
        # sync: hardly waits, since the copy to the host began 8 dispatches ago
        self._send(previous, loop.read((previous.copied, fence))[0])

    def flush(self) -> None:
        """Send the "log" event of the last log point, before an event of a later step."""
        point, self._pending = self._pending, None
        if point is not None:
            self._send(point, self._loop.read(point.copied))  # sync: an evaluation follows

    def _send(self, point: LogPoint, values: Any) -> None:
        """Record a log point and send its "log" event; `values` are those of `copied`, on the host."""
        loop, (totals, last_report) = self._loop, values
        logs = point.logs | loop.readings.values(totals, point.snapshot) | reported_lr(last_report)
        # In a job, log points come at other steps in each process.  A policy that goes back, or looks for the cause with
        # programs that need all processes, reacts at the end of the epoch.
        if totals.first_bad_step >= 0 and (num_processes() == 1 or loop.nan.name == "warn"):
            loop.nan.report(loop, int(totals.first_bad_step))
        loop.history.add("points", **point.position, **logs)
        loop.events.send("log", logs, **point.position)


def log_waits(epoch: int, logs: dict[str, Any]) -> bool:
    """Log a warning if the devices waited for data for half of an epoch and at least a second; return whether they did."""
    waited, seconds = logs.get("data_time", 0.0), logs["time"]
    if waited < max(1.0, seconds / 2):
        return False
    speed = logs["samples_per_second"]
    possible = speed * seconds / max(seconds - waited, 1e-3)
    logging.getLogger("jfit").warning(_SLOW_DATA, epoch, waited, seconds, speed, possible)
    return True
