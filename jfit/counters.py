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
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

COUNTS: Counter[str] = Counter()
# Errors of the user's Python code inside programs: XLA tells them as text only.
FAILURES: deque[Exception] = deque(maxlen=16)
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


@contextlib.contextmanager
def host_code(sentence: Callable[[Exception], Exception]) -> Iterator[None]:
    """For code that a program calls on the host: what it raises is kept for `explained`, behind a sentence."""
    try:
        yield
    except Exception as error:
        told = sentence(error)
        told.__cause__ = error
        FAILURES.append(told)
        raise told from error


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """For code that runs programs: where one failed because of its host code, raises that error instead of XLA's."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        told = next((f for f in FAILURES if str(f).split("\n")[0] in str(error)), None)
        FAILURES.clear()
        if told is None:
            raise
        raise told from told.__cause__  # what the user's code raised


def wait(value: Any) -> Any:
    """Wait until a device value is computed, and count the wait."""
    COUNTS["host_syncs"] += 1
    with explained():
        return jax.block_until_ready(value)  # sync: the one place where the host waits


def read(tree: Any) -> Any:
    """A pytree of device values as numpy arrays, counted as one wait."""
    COUNTS["host_syncs"] += 1
    with explained():
        return jax.tree.map(np.asarray, jax.device_get(tree))  # sync: the one place where values come to the host
