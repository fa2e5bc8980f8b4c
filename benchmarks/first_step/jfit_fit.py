"""jfit: `jfit.fit` of a Symbol for one epoch of one batch; more steps continue the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jfit
from benchmarks.first_step import BLOCKS, CLASSES, LEARNING_RATE, MOMENTUM, STAGES

LAYOUT = "NCHW"
sym = jfit.sym


def _unit(x: Any, filters: int, kernel: int, stride: int, name: str, *, relu: bool = True) -> Any:
    size: dict[str, Any] = {"kernel": (kernel, kernel), "stride": (stride, stride), "pad": (kernel // 2, kernel // 2)}
    x = sym.Convolution(x, num_filter=filters, no_bias=True, name=f"{name}_conv", **size)
    x = sym.BatchNorm(x, fix_gamma=False, eps=1e-5, name=f"{name}_bn")
    return sym.Activation(x, act_type="relu", name=f"{name}_relu") if relu else x


def network(kind: str) -> Any:
    """The network as a Symbol, for data in NCHW."""
    x = sym.Variable("data")
    if kind == "resnet20":
        x = _unit(x, 16, 3, 1, "conv0")
        for stage, (filters, first) in enumerate(STAGES):
            for block in range(BLOCKS):
                name, stride = f"stage{stage}_block{block}", first if block == 0 else 1
                y = _unit(_unit(x, filters, 3, stride, f"{name}_a"), filters, 3, 1, f"{name}_b", relu=False)
                short = x if stage == 0 or block > 0 else _unit(x, filters, 1, stride, f"{name}_short", relu=False)
                x = sym.Activation(y + short, act_type="relu", name=f"{name}_relu")
        x = sym.Flatten(sym.Pooling(x, global_pool=True, kernel=(8, 8), pool_type="avg", name="pool"))
        return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=CLASSES, name="fc"), name="softmax")
    widths = [128, 64]
    if kind == "lenet":
        for i, filters in enumerate((20, 50), start=1):
            x = sym.Activation(sym.Convolution(x, kernel=(5, 5), num_filter=filters, name=f"conv{i}"), act_type="relu")
            x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
        x, widths = sym.Flatten(x), [500]
    for i, width in enumerate(widths, start=1):
        x = sym.Activation(sym.FullyConnected(x, num_hidden=width, name=f"fc{i}"), act_type="relu")
    return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=CLASSES, name="fc_last"), name="softmax")


def begin(kind: str, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """Return a function that trains one epoch of one batch."""
    runs: list[jfit.Run] = []

    def train() -> None:
        if runs:
            runs[0].train(1)
            return
        rule = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
        options: dict[str, Any] = {"num_epoch": 1, "optimizer_params": rule, "progress": False}
        runs.append(jfit.fit(network(kind), (x, y), batch_size=len(x), **options))

    return train
