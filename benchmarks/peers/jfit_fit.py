"""jfit's public API: one `jfit.fit`, then `Run.train` for each measured epoch, with the same compiled programs."""

from __future__ import annotations

from typing import Any

import jfit
from benchmarks.peers import Unavailable
from benchmarks.workloads import CLASSES, LEARNING_RATE, MOMENTUM, Workload
from jfit import counters


def network(kind: str) -> Any:
    """The workload's network as a Symbol, for data in NCHW."""
    sym = jfit.sym
    x = sym.Variable("data")
    if kind == "mlp":
        for i, width in enumerate((128, 64), start=1):
            x = sym.FullyConnected(x, num_hidden=width, name=f"fc{i}")
            x = sym.Activation(x, act_type="relu", name=f"relu{i}")
        return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=CLASSES, name="fc3"), name="softmax")
    for i, filters in enumerate((20, 50), start=1):
        x = sym.Convolution(x, kernel=(5, 5), num_filter=filters, name=f"conv{i}")
        x = sym.Activation(x, act_type="relu", name=f"relu{i}")
        x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{i}")
    x = sym.FullyConnected(sym.Flatten(x), num_hidden=500, name="fc1")
    x = sym.Activation(x, act_type="relu", name="relu3")
    return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=CLASSES, name="fc2"), name="softmax")


class JfitFit:
    """The leg: measured epochs continue one Run; `counts` has the host syncs of the last epoch and all compilations."""

    def __init__(self, workload: Workload, steps_per_call: int | str) -> None:
        if not hasattr(jfit, "fit"):
            raise Unavailable("jfit.fit is not in this build")
        self.workload, self.steps_per_call = workload, steps_per_call
        self.counts: dict[str, int] = {}
        self.setup_counts: dict[str, int] = {}

    def setup(self) -> None:
        """Build, compile, train one epoch."""
        self._data = self.workload.shaped("NCHW")
        with counters.counted() as events:
            self._run = jfit.fit(
                network(self.workload.kind),
                self._data,
                batch_size=self.workload.batch,
                num_epoch=1,
                optimizer="sgd",
                optimizer_params={"learning_rate": LEARNING_RATE, "momentum": MOMENTUM},
                eval_metric="acc",
                steps_per_call=self.steps_per_call,
                progress=False,
            )
        self.setup_counts = dict(events)

    def epoch(self) -> int:
        """Train one shuffled epoch; the last batch is padded with rows of weight 0."""
        with counters.counted() as events:
            self._run.train(num_epoch=1)
        compiles = self.counts.get("compiles", 0) + events["compiles"]
        self.counts = {"host_syncs": events["host_syncs"], "compiles": compiles}
        return self.workload.rows

    @property
    def accuracy(self) -> float:
        """Accuracy of the trained network on the training rows."""
        return float(dict(self._run.score(self._data))["accuracy"])


def make(workload: Workload, cores: int, *, steps_per_call: int | str) -> JfitFit:
    """Make the jfit leg with this `steps_per_call`."""
    return JfitFit(workload, steps_per_call)
