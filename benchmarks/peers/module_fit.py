"""MXNet's stateful class: `Module.fit` over an NDArrayIter, one epoch a call, with MXNet's own spelling of everything."""

from __future__ import annotations

from typing import Any

import jfit
from benchmarks.peers.jfit_fit import network
from benchmarks.workloads import LEARNING_RATE, MOMENTUM, Workload
from jfit import counters


class ModuleFit:
    """Each epoch is one `fit`, which continues the one before; `look` says how often a callback wants to see a batch."""

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
        with counters.counted() as seen:
            self._fit()
        self.setup_counts = dict(seen)

    def _fit(self) -> None:
        settings: dict[str, Any] = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
        self._module.fit(
            self._train, num_epoch=1, optimizer_params=settings, batch_end_callback=self.look, initializer=jfit.init.Xavier()
        )

    def epoch(self) -> int:
        """One shuffled epoch, the tail included: the iterator wraps it around."""
        with counters.counted() as seen:
            self._fit()
        compiles = self.counts.get("compiles", 0) + seen["compiles"]
        self.counts = {"host_syncs": seen["host_syncs"], "compiles": compiles}
        return self.workload.rows

    @property
    def accuracy(self) -> float:
        """Accuracy of the trained net on its training rows."""
        return self._module.score(self._train, "acc")[0][1]


def _nothing(param: Any) -> None:
    """A callback that sees each batch and does nothing."""


def make(workload: Workload, cores: int, *, look: str) -> ModuleFit:
    """The Module leg, with one kind of callback."""
    return ModuleFit(workload, look)
