"""Trace a range of training steps with JAX's profiler."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax

from jfit import counters
from jfit.distributed import is_main


class StepProfiler:
    """Runs `jax.profiler` from one step to another: `fit(profile=(start, stop))`.

    Args:
        span: (start, stop), the numbers of updates done before the first traced step and after the last one.
        directory: argument `directory` of `fit`; the trace is written to its subfolder `profile`.
    """

    def __init__(self, span: tuple[int, int], directory: Any) -> None:
        self.start, self.stop = span
        self.folder = Path(directory) / "profile"
        self._running = self._started = False

    def gap(self, step: int) -> int:
        """Number of steps from `step` (updates done) to the next start or stop, where a dispatch must end."""
        return min((n - step for n in (self.start, self.stop) if n > step), default=1 << 30)

    def before(self, loop: Any) -> None:
        """Start the profiler if the next dispatch of a `Loop` is the first of the range."""
        if self.start <= loop.step < self.stop and not self._running and is_main():
            if loop.report is not None:
                counters.wait(loop.report)  # sync: once, so that the trace does not contain earlier steps
            self.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self.folder))
            self._running = self._started = True

    def after(self, loop: Any) -> None:
        """Stop the profiler if the last dispatch of a `Loop` is the end of the range."""
        if self._running and loop.step >= self.stop:
            counters.wait(loop.report)  # sync: once, so that the trace contains all steps
            self.close(loop.step)

    def close(self, step: int) -> None:
        """Stop the profiler and write the trace, if it is running; log if no step was traced until the update `step`."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
        elif not self._started and is_main():
            logging.getLogger("jfit").warning(
                "profile=(%d, %d): no trace was written: training had none of these steps, and ended after %d updates",
                self.start,
                self.stop,
                step,
            )
