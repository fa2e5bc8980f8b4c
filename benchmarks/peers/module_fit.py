"""`Module.fit` over an NDArrayIter, one epoch per call, in MXNet's names: the same source for `jfit.mx` and MXNet 1.9.1."""

from __future__ import annotations

import importlib
import logging
import math
from typing import Any

from benchmarks.peers import Leg
from benchmarks.peers.symbols import network
from benchmarks.workloads import MOMENTUM, Workload


def begin(workload: Workload, *, package: str, look: str = "never") -> Leg:
    """Prepare the leg.

    Args:
        workload: what to train.
        package: "jfit.mx" or "mxnet".
        look: batch callbacks: "never", "speedometer" (every 50 batches), "each" (one for each batch), or "read"
            (one for each batch, which reads the metric).

    Returns:
        The leg.
    """
    mx = importlib.import_module(package)
    logging.getLogger().setLevel(logging.ERROR)  # that the optimizer is initialized already
    data, labels = workload.arrays()
    train_iter = mx.io.NDArrayIter(data, labels, workload.batch, shuffle=True)
    module = mx.mod.Module(network(mx.sym, workload), context=mx.cpu())
    rule: dict[str, Any] = {"learning_rate": workload.learning_rate}
    if workload.text:
        rule["rescale_grad"] = 1 / labels[: workload.batch].size  # the mean over all tokens
        options = {"optimizer": "adam", "initializer": mx.init.Uniform(0.05), "eval_metric": mx.metric.Perplexity(None)}
    else:
        rule["momentum"] = MOMENTUM
        options = {"optimizer": "sgd", "initializer": mx.init.Xavier(), "eval_metric": mx.metric.Accuracy()}
    callbacks = {"never": None, "speedometer": mx.callback.Speedometer(workload.batch, 50), "each": _nothing, "read": _read}
    options |= {"optimizer_params": rule, "batch_end_callback": callbacks[look], "num_epoch": 1}

    def train() -> float:
        module.fit(train_iter, **options)  # continues, since parameters and optimizer exist
        value = options["eval_metric"].get()[1]
        return math.log(value) if workload.text else value

    return Leg(train, lambda: sum(value.size for value in module.get_params()[0].values()))


def _nothing(param: Any) -> None:
    """A batch callback that does nothing."""


def _read(param: Any) -> None:
    """A batch callback that reads the metric."""
    param.eval_metric.get()
