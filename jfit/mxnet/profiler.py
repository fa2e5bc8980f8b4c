"""`mx.profiler`: MXNet's profiler over JAX's: a trace in Chrome's format, and a table of times by name."""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax

from jfit.mxnet.errors import MXNetError

_OPTIONS = """filename aggregate_stats profile_all profile_symbolic profile_imperative profile_memory profile_api
continuous_dump dump_period profile_process append_mode""".split()  # noqa: SIM905
_file = "profile.json"
_folder: str | None = None  # where JAX writes its trace; None: the profiler is off
_own: list[dict[str, Any]] = []  # events of Task, Counter, ... in Chrome's format
_traced: list[dict[str, Any]] = []  # events of JAX's finished traces


def set_config(**kwargs: Any) -> None:
    """Set options of the profiler.

    Args:
        kwargs: `filename`, the file that `dump` writes (profile.json by default); MXNet's other options are accepted
            and ignored, because JAX records everything.

    Raises:
        MXNetError: an option is unknown.

    Example:
        >>> set_config(profile_all=True, filename="profile.json")
    """
    global _file
    for name in kwargs:
        if name not in _OPTIONS:
            raise MXNetError(f"set_config has no option {name!r}; the options are {_OPTIONS}")
    _file = kwargs.get("filename", _file)


def profiler_set_config(mode: str = "symbolic", filename: str = "profile.json") -> None:
    """Set the file that `dump` writes; an older form of `set_config`.

    Args:
        mode: accepted and ignored; JAX records everything.
        filename: the file.

    Example:
        >>> profiler_set_config(filename="profile.json")
    """
    set_config(filename=filename)


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Start or stop the profiler.

    Args:
        state: "run" or "stop".
        profile_process: accepted and ignored; every process profiles itself.

    Raises:
        KeyError: `state` is another text.

    Example:
        >>> set_state("stop")
    """
    global _folder
    if state not in ("run", "stop"):
        raise KeyError(f"state is {state!r}; expected 'run' or 'stop'")
    if state == "run" and _folder is None:
        _folder = tempfile.mkdtemp(prefix="jfit-profile-")
        jax.profiler.start_trace(_folder)
    elif state == "stop" and _folder is not None:
        jax.profiler.stop_trace()
        for file in Path(_folder).rglob("*.trace.json.gz"):
            _traced.extend(json.loads(gzip.decompress(file.read_bytes())).get("traceEvents", []))
        _folder = None


profiler_set_state = set_state


def pause(profile_process: str = "worker") -> None:
    """Stop recording until `resume`.

    Args:
        profile_process: accepted and ignored.

    Example:
        >>> pause()
    """
    set_state("stop")


def resume(profile_process: str = "worker") -> None:
    """Record again after `pause`.

    Args:
        profile_process: accepted and ignored.

    Example:
        >>> resume()
        >>> set_state("stop")
    """
    set_state("run")


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Write what was recorded to the file of `set_config`, for chrome://tracing and Perfetto.

    Args:
        finished: stop the profiler.
        profile_process: accepted and ignored.

    Example:
        >>> with Task(Domain("training"), "epoch"):
        ...     pass
        >>> dump()
        >>> "epoch" in Path("profile.json").read_text()
        True
    """
    running = _folder is not None
    set_state("stop")
    Path(_file).write_text(json.dumps({"traceEvents": _traced + _own, "displayTimeUnit": "ms"}))
    if running and not finished:
        set_state("run")


def dump_profile() -> None:
    """Stop the profiler and write its file; an older form of `dump`.

    Example:
        >>> dump_profile()
    """
    dump()


def dumps(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """Summarize the times that were recorded, by name, in milliseconds.

    Args:
        reset: forget them afterwards.
        format: "table".
        sort_by: "total", "avg", "min", "max" or "count".
        ascending: smallest first.

    Returns:
        Text: a table.

    Raises:
        AssertionError: another format.
        KeyError: `sort_by` is another one.

    Example:
        >>> with Task(Domain("training"), "a step"):
        ...     pass
        >>> "a step" in dumps(reset=True)
        True
    """
    assert format == "table", f"format is {format!r}, expected 'table'; dump() writes the events as JSON"
    columns = ("count", "total", "min", "max", "avg")
    times = defaultdict(list)
    for event in _traced + _own:
        if event.get("ph") == "X":
            times[event["name"]].append(event.get("dur", 0) / 1000)
    rows: dict[str, Any] = {
        n: dict(zip(columns, (len(t), sum(t), min(t), max(t), sum(t) / len(t)), strict=True)) for n, t in times.items()
    }
    rows = dict(sorted(rows.items(), key=lambda row: row[1][sort_by], reverse=not ascending))
    if reset:
        _traced.clear()
        _own.clear()
    head = f"{'Name':<50}{'Total Count':>12}" + "".join(f"{c.title() + ' (ms)':>14}" for c in columns[1:])
    lines = [f"{name[:48]:<50}{r['count']:>12}" + "".join(f"{r[c]:>14.4f}" for c in columns[1:]) for name, r in rows.items()]
    return "\n".join(["Profile Statistics:", head, *lines, ""])


# ------------------------------------------------------------------------------------------------ objects of scripts
class Domain:
    """A name for a group of tasks, frames, counters and markers.

    Args:
        name: the name.

    Example:
        >>> str(Domain("training").new_task("epoch"))
        'epoch'
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def new_task(self, name: str) -> Task:
        """Return a new `Task` of this domain."""
        return Task(self, name)

    def new_frame(self, name: str) -> Frame:
        """Return a new `Frame` of this domain."""
        return Frame(self, name)

    def new_counter(self, name: str, value: int | None = None) -> Counter:
        """Return a new `Counter` of this domain."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """Return a new `Marker` of this domain."""
        return Marker(self, name)


class _Named:
    def __init__(self, domain: Domain | None, name: str) -> None:
        self.domain, self.name = domain, name

    def __str__(self) -> str:
        return self.name

    def _record(self, kind: str, **fields: Any) -> None:
        now = {"ts": time.perf_counter() * 1e6, "pid": 0, "tid": 0}
        _own.append({"name": self.name, "cat": str(self.domain or ""), "ph": kind, **now, **fields})


class Task(_Named):
    """A named span of time, from `start` to `stop`, or of a `with` block.

    Args:
        domain: its domain.
        name: its name.

    Example:
        >>> with Task(Domain("training"), "epoch"):
        ...     pass
    """

    def start(self) -> None:
        """Begin the span, which is shown in traces of JAX as well."""
        self._began, self._annotation = time.perf_counter(), jax.profiler.TraceAnnotation(self.name)
        self._annotation.__enter__()

    def stop(self) -> None:
        """End the span."""
        self._annotation.__exit__(None, None, None)
        self._record("X", ts=self._began * 1e6, dur=(time.perf_counter() - self._began) * 1e6)

    def __enter__(self) -> Task:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Frame(Task):
    """A `Task` of a part of the program that repeats.

    Args:
        domain: its domain.
        name: its name.

    Example:
        >>> with Frame(Domain("training"), "batch"):
        ...     pass
    """


class Event(Task):
    """A `Task` without a domain.

    Args:
        name: its name.

    Example:
        >>> with Event("evaluation"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        super().__init__(None, name)


class Counter(_Named):
    """A number that changes over time.

    Args:
        domain: its domain.
        name: its name.
        value: the first value.

    Example:
        >>> counter = Counter(Domain("training"), "batches", 1)
        >>> counter += 2
        >>> counter.value
        3
    """

    def __init__(self, domain: Domain, name: str, value: int | None = None) -> None:
        super().__init__(domain, name)
        self.value = 0
        if value is not None:
            self.set_value(value)

    def set_value(self, value: int) -> None:
        """Set the number."""
        self.value = int(value)
        self._record("C", args={self.name: self.value})

    def increment(self, delta: int = 1) -> None:
        """Add to the number."""
        self.set_value(self.value + delta)

    def decrement(self, delta: int = 1) -> None:
        """Subtract from the number."""
        self.set_value(self.value - delta)

    def __iadd__(self, delta: int) -> Counter:
        self.increment(delta)
        return self

    def __isub__(self, delta: int) -> Counter:
        self.decrement(delta)
        return self


class Marker(_Named):
    """A point in time.

    Args:
        domain: its domain.
        name: its name.

    Example:
        >>> Marker(Domain("training"), "loss is nan").mark()
    """

    def mark(self, scope: str = "process") -> None:
        """Record the current time; `scope` is "global", "process", "thread", "task" or "marker"."""
        self._record("i", s={"global": "g", "process": "p"}.get(scope, "t"))
