"""Counters of host synchronizations, traces and backend compiles, for tests and benchmarks.

Everything in jfit that blocks the host until a device is done goes through `wait` or `read`, so that a test can count it.

>>> from jfit import counters
>>> with counters.counted() as counts:
...     _ = counters.read(3.0)
>>> counts["host_syncs"]
1
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import activity

COUNTS: Counter[str] = Counter()
# Exceptions of the user's Python callbacks inside compiled programs: XLA reports them as text only.
FAILURES: deque[Exception] = deque(maxlen=16)
SLOW_SECONDS = 2.0  # compilations that take longer are reported
_waiting = activity.Doing(activity.DEVICES, "waiting for the devices")
_listening, _adding = threading.Lock(), threading.Lock()  # programs are compiled on several threads
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_DISK_EVENT = "/jax/compilation_cache/cache_hits"


class _Compiling:
    """State of `compiling`: its seconds, and the functions that it calls.

    Several threads may compile at the same time; these seconds count once.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.past = 0.0  # seconds of the blocks that have ended
        self.blocks, self.since = 0, 0.0  # number of blocks that are open, and since when at least one is
        self.local = threading.local()  # `active`: whether this thread is in a block
        self.watchers: list[tuple[int, Callable[[str, bool], None]]] = []  # (id of a thread, function)

    def enter(self) -> None:
        with self.lock:
            self.blocks += 1
            if self.blocks == 1:
                self.since = time.perf_counter()

    def leave(self) -> None:
        with self.lock:
            self.blocks -= 1
            if self.blocks == 0:
                self.past += time.perf_counter() - self.since

    def seconds(self) -> float:
        with self.lock:
            return self.past + (time.perf_counter() - self.since if self.blocks else 0.0)


_compiling = _Compiling()


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if event == _COMPILE_EVENT:
        activity.compiled()
        with _adding:
            COUNTS["compiles"] += 1


def _on_event(event: str, **_: Any) -> None:
    if event == _DISK_EVENT:
        with _adding:
            COUNTS["disk_hits"] += 1


def listen() -> None:
    """Start counting backend compiles; only the first call in a process has an effect."""
    if _listening.acquire(blocking=False):
        jax.monitoring.register_event_duration_secs_listener(_on_duration)
        jax.monitoring.register_event_listener(_on_event)


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Context manager that counts events in its block: `host_syncs`, `compiles`, `disk_hits`, `traces` and `traces:<program>`.

    `compiles` are programs that JAX asked its compiler for; `disk_hits` are those among them that were read from JAX's cache on
    disk (`jfit.compile_cache`) instead.

    Yields:
        Counter, filled when the block ends.

    Example:
        >>> with counted() as counts:
        ...     _ = wait(jax.numpy.ones(2))
        >>> counts["host_syncs"]
        1
    """
    listen()
    before = Counter(COUNTS)
    counts: Counter[str] = Counter()
    try:
        yield counts
    finally:
        counts.update({k: COUNTS[k] - before[k] for k in COUNTS if COUNTS[k] != before[k]})


def compile_seconds() -> float:
    """Return the seconds that this process has spent in `compiling`; those in which several threads compile count once.

    Example:
        >>> before = compile_seconds()
        >>> with compiling("train"):
        ...     pass
        >>> compile_seconds() >= before
        True
    """
    return _compiling.seconds()


@contextlib.contextmanager
def compiling(program: str) -> Iterator[None]:
    """Context manager around the trace and compilation of a program: measures its time, and reports compilations that are slow.

    After `SLOW_SECONDS`, and once more when the block ends, a sentence is logged to `logging.getLogger("jfit")` at level INFO
    and passed to the functions of `watching_compiles`.  A block within another one on the same thread is part of it.

    Args:
        program: name of the program, such as "train".

    Example:
        >>> with compiling("train"):
        ...     _ = jax.jit(jnp.sin)(1.0)
    """
    if getattr(_compiling.local, "active", False):
        yield
        return
    title, announced = f"the program {program!r}", threading.Lock()
    reports = [watcher for thread, watcher in _compiling.watchers if thread == threading.get_ident()]
    told: list[bool] = []

    def announce() -> None:
        with announced:
            if not told:
                told.append(True)
                _report(reports, f"compiling {title} ({SLOW_SECONDS:g} s so far)", False)

    timer, started, outcome = threading.Timer(SLOW_SECONDS, announce), time.perf_counter(), "stopped compiling"
    timer.daemon = True
    timer.start()
    _compiling.local.active = True
    _compiling.enter()
    try:
        with activity.Doing(activity.COMPILING, f"compiling {title}"):
            yield
        outcome = "compiled"
    finally:
        _compiling.leave()
        _compiling.local.active = False
        timer.cancel()
        with announced:  # a timer that is late says nothing any more
            late, told[:] = bool(told), [True]
        if late:
            _report(reports, f"{outcome} {title} after {time.perf_counter() - started:.1f} s", True)


def _report(watchers: Sequence[Callable[[str, bool], None]], sentence: str, done: bool) -> None:
    logging.getLogger("jfit").info(sentence)
    for watcher in watchers:
        watcher(sentence, done)


@contextlib.contextmanager
def watching_compiles(watcher: Callable[[str, bool], None]) -> Iterator[None]:
    """Context manager that calls `watcher(sentence, done)` for compilations of this thread longer than `SLOW_SECONDS`.

    Args:
        watcher: called on another thread after `SLOW_SECONDS` (`done` is False), and when the program is compiled (True).

    Example:
        >>> with watching_compiles(print):
        ...     _ = jax.jit(jnp.sin)(1.0)
    """
    entry = threading.get_ident(), watcher
    _compiling.watchers.append(entry)
    try:
        yield
    finally:
        _compiling.watchers.remove(entry)


def count_trace(program: str) -> None:
    """Count one trace of a program; call it inside the traced function."""
    COUNTS["traces"] += 1
    COUNTS[f"traces:{program}"] += 1


@contextlib.contextmanager
def host_code(explain: Callable[[Exception], Exception]) -> Iterator[None]:
    """Context manager for Python code called by a compiled program: an exception is explained and stored for `explained`.

    Args:
        explain: function from an exception of the block to the exception that is raised instead.
    """
    try:
        yield
    except Exception as error:
        explanation = explain(error)
        explanation.__cause__ = error
        FAILURES.append(explanation)
        raise explanation from error


class explained:  # lower case: used like a function with `@contextmanager`, but faster
    """Context manager for code that runs compiled programs: raise the exception stored by `host_code`, not XLA's error."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, jax.errors.JaxRuntimeError):
            return
        explanation = next((f for f in FAILURES if str(f).split("\n")[0] in str(error)), None)
        FAILURES.clear()
        if explanation is not None:
            raise explanation from explanation.__cause__  # the exception of the user's code


def wait(value: Any) -> Any:
    """`jax.block_until_ready`, counted as one host sync.

    Args:
        value: pytree of arrays.

    Returns:
        `value`, with all arrays computed.
    """
    COUNTS["host_syncs"] += 1
    with explained(), _waiting:
        return jax.block_until_ready(value)  # sync: the one place where the host waits


def read(tree: Any) -> Any:
    """Copy a pytree of arrays to the host, counted as one host sync.

    Args:
        tree: pytree of arrays.

    Returns:
        The pytree with NumPy arrays; typed PRNG keys, which NumPy does not have, are copied to the default device.
    """
    COUNTS["host_syncs"] += 1
    leaves, structure = jax.tree.flatten(tree)
    with explained(), _waiting:
        for x in leaves:
            if isinstance(x, jax.Array) and next(iter(x.devices())).platform != "cpu":
                x.copy_to_host_async()  # of all, before waiting for the first
        return structure.unflatten(map(_on_host, leaves))  # sync: the one place where arrays are copied to the host


def copy(tree: Any) -> Any:
    """As `read`, but no array of the result shares memory with a device; counted as one host sync.

    On a CPU, an array from `read` may be the memory of a buffer, which the next step overwrites if the buffer is donated to it.
    The arrays are copied one after the other, so that the host needs memory for the result and one more array.

    Args:
        tree: pytree of arrays.

    Returns:
        The pytree with writable NumPy arrays; typed PRNG keys stay keys, as in `read`.
    """
    COUNTS["host_syncs"] += 1
    with explained(), _waiting:
        return jax.tree.map(_copied, tree)  # sync: as in `read`


def is_key(value: Any) -> bool:
    """Whether a value is an array of typed PRNG keys, which NumPy does not have."""
    return jnp.issubdtype(getattr(value, "dtype", int), jax.dtypes.prng_key)


def key_data(value: Any) -> Any:
    """The numbers that typed PRNG keys consist of; other values unchanged."""
    return jax.random.key_data(value) if is_key(value) else value


def _copied(array: Any) -> Any:
    if not isinstance(array, jax.Array):
        return np.array(array, order="C")
    if is_key(array):
        return _on_host(array)
    # A second array of the same buffers: an array keeps the NumPy array that it was once converted to.
    shards = [shard.data for shard in array.addressable_shards]
    values = np.asarray(jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards))
    if not values.flags.owndata:  # it may be memory of the device
        return np.array(values, order="C")
    values.flags.writeable = True  # joined from the parts of several devices
    return values


def _on_host(array: Any) -> Any:
    if not isinstance(array, jax.Array) or isinstance(array.dtype, np.dtype):
        return np.asarray(array)
    data = jnp.array(np.array(jax.random.key_data(array)))  # sync: part of `read`
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
