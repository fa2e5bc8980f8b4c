"""What the engine did, counted: host waits, traces, backend compiles.  The tests and benchmarks read it.

Every wait of the host on a device goes through `wait` or `read`, so that "no host sync in the hot loop" is a number.

>>> from jfit import counters
>>> with counters.counted() as seen:
...     _ = counters.read(3.0)
>>> seen["host_syncs"]
1
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

COUNTS: Counter[str] = Counter()
_listening = threading.Lock()
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if event == _COMPILE_EVENT:
        COUNTS["compiles"] += 1


def listen() -> None:
    """Count backend compiles from now on (once per process; cheap)."""
    if _listening.acquire(blocking=False):
        jax.monitoring.register_event_duration_secs_listener(_on_duration)


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts of the block: `host_syncs`, `compiles`, `traces` and `traces:<program>`."""
    listen()
    before = Counter(COUNTS)
    seen: Counter[str] = Counter()
    try:
        yield seen
    finally:
        seen.update({k: COUNTS[k] - before[k] for k in COUNTS if COUNTS[k] != before[k]})


def count_trace(program: str) -> None:
    """Called while a program is traced, so that each trace counts once."""
    COUNTS["traces"] += 1
    COUNTS[f"traces:{program}"] += 1


def wait(value: Any) -> Any:
    """Wait until a device value is computed, and count the wait."""
    COUNTS["host_syncs"] += 1
    return jax.block_until_ready(value)  # sync: the one place where the host waits


def read(tree: Any) -> Any:
    """A pytree of device values as numpy arrays, counted as one wait."""
    COUNTS["host_syncs"] += 1
    return jax.tree.map(np.asarray, jax.device_get(tree))  # sync: the one place where values come to the host
