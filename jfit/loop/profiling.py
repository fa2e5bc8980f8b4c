"""Trace a range of training steps with JAX's profiler."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jfit import counters
from jfit.distributed import is_main


class StepProfiler:
    """Runs `jax.profiler` from one step to another: `fit(profile=(start, stop))`.

    Args:
        span: (start, stop), the numbers of updates done before the first traced step and after the last one.
        directory: argument `directory` of `fit`; the trace is written to its subfolder `profile`.

    Raises:
        ValueError: `span` is not a pair of integers 0 <= start < stop, or `directory` is None.
    """

    def __init__(self, span: Any, directory: str | Path | None) -> None:
        pair = isinstance(span, (tuple, list)) and len(span) == 2
        if not pair or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in span):
            raise ValueError(f"profile is {span!r}; expected a pair of numbers of steps, such as (10, 20)")
        if not 0 <= span[0] < span[1]:
            raise ValueError(f"profile is {span!r}; expected (start, stop) with 0 <= start < stop")
        if directory is None:
            raise ValueError(
                'profile= needs directory=, the folder of the run: the trace is written to its subfolder "profile", which '
                "TensorBoard and https://ui.perfetto.dev read"
            )
        self.start, self.stop = span
        self.folder = Path(directory) / "profile"
        self._running = self._started = False

    def gap(self, step: int) -> int:
        """Number of steps from `step` (updates done) to the next start or stop, where a dispatch must end."""
        return min((n - step for n in (self.start, self.stop) if n > step), default=1 << 30)

    def before(self, step: int, report: Any) -> None:
        """Start the profiler if the next dispatch is the first of the range; `report` is that of the dispatch before it."""
        if self.start <= step < self.stop and not self._running and is_main():
            if report is not None:
                counters.wait(report)  # sync: once, so that the trace does not contain earlier steps
            self.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self.folder))
            self._running = self._started = True

    def after(self, step: int, report: Any) -> None:
        """Stop the profiler if `step` updates are the end of the range; `report` is that of the last dispatch."""
        if self._running and step >= self.stop:
            counters.wait(report)  # sync: once, so that the trace contains all steps
            self.close(step)

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
