"""Interleaved measurement of several legs (implementations to compare) in one process, and its statistics.

A round trains one epoch with every leg, so that a slow period of the machine affects all of them; only ratios within a round
are compared. Each round starts with the next leg, so that the order of the legs has no effect on average.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import platform
import sys
import time
from importlib import metadata
from typing import Any, Protocol

import numpy as np

PACKAGES = ("jax", "jaxlib", "optax", "numpy", "keras", "flax", "torch")


class Leg(Protocol):
    """A compared implementation."""

    def epoch(self) -> int:
        """Train one shuffled epoch and wait until it has finished; returns the number of rows trained."""
        ...


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One measured epoch: rows trained, CPU seconds of the whole process, wall seconds."""

    rows: int
    cpu_s: float
    wall_s: float


def pin(cores: int) -> list[int]:
    """Bind the process to its first `cores` cores; call it before a framework creates its thread pools.

    Args:
        cores: number of cores.

    Returns:
        Indices of the cores in use; empty if the system does not support pinning.
    """
    if not hasattr(os, "sched_setaffinity"):
        return []
    available = sorted(os.sched_getaffinity(0))
    if len(available) < cores:
        raise SystemExit(f"{cores} cores requested, this process may use {len(available)}; pass --cores {len(available)}.")
    os.sched_setaffinity(0, available[:cores])
    return available[:cores]


def measure_epoch(leg: Leg) -> Epoch:
    """Train one epoch with a leg; returns its rows, CPU and wall seconds."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    rows = leg.epoch()
    return Epoch(rows, time.process_time() - cpu, time.perf_counter() - wall)


def interleave(legs: dict[str, Leg], rounds: int) -> dict[str, list[Epoch]]:
    """Measure `rounds` epochs of every leg, interleaved; entry r of each list belongs to round r."""
    names = list(legs)
    epochs: dict[str, list[Epoch]] = {name: [] for name in names}
    for r in range(rounds):
        start = r % len(names)
        for name in names[start:] + names[:start]:
            epochs[name].append(measure_epoch(legs[name]))
        print(f"  round {r + 1} of {rounds}: {sum(epochs[n][-1].wall_s for n in names):.0f} s", file=sys.stderr, flush=True)
    return epochs


def rates(epochs: list[Epoch], clock: str) -> np.ndarray:
    """Rows per second of `clock` ("cpu_s" or "wall_s"), one per round."""
    return np.array([e.rows / getattr(e, clock) for e in epochs])


def summary(values: np.ndarray) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = (float(v) for v in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": middle, "q1": low, "q3": high}


def machine() -> dict[str, Any]:
    """Processor, cores, system, Python version, and versions of the compared packages (None: not installed)."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
