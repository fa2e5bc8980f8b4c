"""How stale the gradients are that a server applies: versions of its parameters, and a bound on the staleness."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from jfit.distributed.channel import JobError


class StalenessClock:
    """Counts the updates of a server, and knows from which version each worker computes its gradient.

    The staleness of a gradient is the number of updates by others between the version that it was computed from and its own
    update.  With a bound, workers wait: nobody begins a gradient, and no update is made, after which the gradient of another
    worker would be too stale.  The oldest gradient is always applied, so that the workers cannot wait for each other.

    Call the methods with `changed` acquired; where they wait, it is released.

    Args:
        max_staleness: the bound, at least 0; None: none, nobody waits.
        version: number of updates that were made before.

    Attributes:
        changed: `threading.Condition` around what the server does.
        version: number of updates so far.

    Example:
        >>> clock = StalenessClock()
        >>> with clock.changed:
        ...     clock.begin(0), clock.begin(1), clock.finish(1), clock.finish(0)
        (0, 0, 0, 1)
    """

    def __init__(self, max_staleness: int | None = None, version: int = 0) -> None:
        self.changed, self.version = threading.Condition(), version
        self._most, self._computing, self._closed = max_staleness, dict[int, int](), False

    def begin(self, worker: int) -> int:
        """Wait until a worker may compute a gradient from the newest version; return this version."""
        self._computing.pop(worker, None)
        self._wait(lambda: self._bounded(self.version, [*self._computing.values(), self.version]))
        self._computing[worker] = self.version
        self.changed.notify_all()
        return self.version

    def finish(self, worker: int) -> int:
        """Wait until the gradient of a worker may be applied; count the update, and return the staleness of the gradient.

        Raises:
            JobError: the worker did not begin, or was given up.
        """
        if worker not in self._computing:
            raise JobError(f"worker {worker} sent a gradient, but the server does not count on it any more")
        self._wait(lambda: self._bounded(self.version + 1, [v for k, v in self._computing.items() if k != worker]))
        staleness = self.version - self._computing.pop(worker)
        self.version += 1
        self.changed.notify_all()
        return staleness

    def leave(self, worker: int) -> None:
        """Do not wait for a worker any more, which has ended or was lost."""
        self._computing.pop(worker, None)
        self.changed.notify_all()

    def close(self) -> None:
        """Let everything that waits raise JobError."""
        self._closed = True
        self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of the server holds.

        Raises:
            JobError: the server was closed.
        """
        self.changed.wait_for(lambda: self._closed or condition())
        if self._closed:
            raise JobError("the server has ended")

    def _wait(self, condition: Callable[[], bool]) -> None:
        self.wait(lambda: self._most is None or condition())

    def _bounded(self, version: int, computing: Iterable[int]) -> bool:
        """Whether all gradients could be applied one after the other, the oldest first, and none would be too stale."""
        assert self._most is not None
        return all(version + place - begun <= self._most for place, begun in enumerate(sorted(computing)))
