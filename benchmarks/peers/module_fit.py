"""jfit's Module: `Module.fit` over an NDArrayIter, one epoch per call, with the arguments of MXNet's API."""

from __future__ import annotations

from typing import Any

import jfit
from benchmarks.peers.jfit_fit import network
from benchmarks.workloads import LEARNING_RATE, MOMENTUM, Workload
from jfit import counters


class ModuleFit:
    """The leg: each epoch is one call of `fit`, which continues the last; `look` selects the batch callback."""

    def __init__(self, workload: Workload, look: str) -> None:
        self.workload = workload
        self.look: Any = {"never": None, "speedometer": jfit.callback.Speedometer(workload.batch, 50), "each": _nothing}[look]
        self.counts: dict[str, int] = {}
        self.setup_counts: dict[str, int] = {}

    def setup(self) -> None:
        """Build, compile, train one epoch."""
        data, labels = self.workload.shaped("NCHW")
        self._train = jfit.NDArrayIter(data, labels, self.workload.batch, shuffle=True)
        self._module = jfit.Module(network(self.workload.kind))
        with counters.counted() as events:
            self._fit()
        self.setup_counts = dict(events)

    def _fit(self) -> None:
        settings: dict[str, Any] = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
        self._module.fit(
            self._train, num_epoch=1, optimizer_params=settings, batch_end_callback=self.look, initializer=jfit.init.Xavier()
        )

    def epoch(self) -> int:
        """Train one shuffled epoch; the iterator fills up the last batch with rows from the start."""
        with counters.counted() as events:
            self._fit()
        compiles = self.counts.get("compiles", 0) + events["compiles"]
        self.counts = {"host_syncs": events["host_syncs"], "compiles": compiles}
        return self.workload.rows

    @property
    def accuracy(self) -> float:
        """Accuracy of the trained network on the training rows."""
        return self._module.score(self._train, "acc")[0][1]


def _nothing(param: Any) -> None:
    """A batch callback that does nothing."""


def make(workload: Workload, cores: int, *, look: str) -> ModuleFit:
    """Make the Module leg; `look` is "never", "speedometer" (every 50 batches) or "each" (a callback for every batch)."""
    return ModuleFit(workload, look)
