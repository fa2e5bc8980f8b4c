"""The networks of `benchmarks.start` in every framework, each as a first training step in a fresh process.

Each module has `begin(kind, x, y)`, which builds the network `kind` with its optimizer (SGD with momentum) and returns a
function that trains one batch, the way the documentation of the framework shows it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

LEARNING_RATE, MOMENTUM, CLASSES = 0.02, 0.9, 10
# kind -> (rows of a batch, shape of a row in NCHW without N)
SHAPES = {"mlp": (64, (784,)), "lenet": (128, (1, 28, 28)), "resnet20": (128, (3, 32, 32))}
# ResNet-20 (He et al. 2015, section 4.2): three stages of three blocks, (filters, stride of the first block)
STAGES = ((16, 1), (32, 2), (64, 2))
BLOCKS = 3


def batch(kind: str, layout: str = "NCHW") -> tuple[np.ndarray, np.ndarray]:
    """One batch of random rows, float32, and its labels, int32."""
    rows, shape = SHAPES[kind]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, *shape), dtype=np.float32)
    y = rng.integers(0, CLASSES, rows, dtype=np.int32)
    return (np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "NHWC" and x.ndim == 4 else x), y


def clocks() -> np.ndarray:
    """(wall seconds, CPU seconds of all threads of this process)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([time.perf_counter(), used.ru_utime + used.ru_stime])


def measure(steps: dict[str, Callable[[], Any]]) -> None:
    """Run the steps in order, and print a JSON dict: name of a step -> [wall seconds, CPU seconds]."""
    found = {}
    for name, run in steps.items():
        before = clocks()
        run()
        found[name] = (clocks() - before).round(4).tolist()
    sys.stdout.write(json.dumps(found) + "\n")


def main(kind: str, load: Callable[[], Any]) -> None:
    """Measure a leg in this process: import, first step, ten more steps, the same once more from the beginning."""
    modules: list[Any] = []
    trainers: list[Callable[[], Any]] = []

    def begin() -> None:
        framework = modules[0]
        trainers.append(framework.begin(kind, *batch(kind, framework.LAYOUT)))
        trainers[-1]()

    def more() -> None:
        for _ in range(10):
            trainers[-1]()

    measure({"import": lambda: modules.append(load()), "first step": begin, "ten steps": more, "again": begin})
    sys.stdout.flush()
    os._exit(0)  # threads of a framework, and files it deletes at its end, are not measured
