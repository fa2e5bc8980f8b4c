"""The parts of `benchmarks.start`: a first training step of the legs of `benchmarks.peers` in a fresh process, and scripts."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads import KINDS


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


def main(kind: str, load: Callable[[], Any], options: dict[str, Any]) -> None:
    """Measure a leg in this process: import, first step, ten more steps, the same once more from the beginning."""
    modules: list[Any] = []
    trainers: list[Callable[[], Any]] = []
    workload = KINDS[kind].resized(KINDS[kind].batch)

    def begin() -> None:
        trainers.append(modules[0].begin(workload, **options).train)
        trainers[-1]()

    def more() -> None:
        for _ in range(10):
            trainers[-1]()

    measure({"import": lambda: modules.append(load()), "first step": begin, "ten steps": more, "again": begin})
    sys.stdout.flush()
    os._exit(0)  # threads of a framework, and files it deletes at its end, are not measured
