"""Monitor: statistics of outputs, arguments and gradients, every `interval` steps."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.mutable import as_array


class Monitor:
    """Computes a statistic, by default ‖x‖ / √size, of a network's internal arrays on steps 0, interval, 2 interval, ...

    On these steps a second program (see `jfit.mxnet.monitor.capture`) computes the arrays, with the random numbers of the
    step; other steps have no overhead.  Only `toc` blocks.  With several devices there is one result per name and device.

    Args:
        interval: number of steps between samples.
        stat_func: function of one array (with `.asnumpy()`) that returns an array, a number, or a list of them; None means
            ‖x‖ / √size.
        pattern: regular expression that must match at the start of an array's name.
        sort: sort results by name; otherwise they are in the order of computation.
        monitor_all: include the inputs of operators.

    Example:
        >>> monitor = Monitor(2, pattern="fc")
        >>> monitor.tic()
        >>> monitor.collect({"fc_output": np.full((2, 2), 3.0, "float32"), "act_output": np.ones(2)})
        >>> monitor.toc()
        [(1, 'fc_output', '3.0\\t')]
        >>> monitor.tic()
        >>> monitor.activated
        False

    Source: mxnet.monitor.Monitor of Apache MXNet 1.9.1.
    """

    arrays: ArrayTypes = PLAIN

    def __init__(
        self,
        interval: int,
        stat_func: Callable[[Any], Any] | None = None,
        pattern: str = ".*",
        sort: bool = False,
        monitor_all: bool = False,
    ) -> None:
        self.interval, self.stat_func, self.sort, self.monitor_all = interval, stat_func, sort, monitor_all
        self.pattern, self.re_pattern = pattern, re.compile(pattern)
        self.step, self.activated = 0, False  # whether the current step is sampled: True from its `tic` to its `toc`
        self.exes: list[Any] = []
        self.queue: list[tuple[int, str, Any]] = []

    def install(self, exe: Any) -> None:
        """Attach to a module or an executor, whose arguments and auxiliary states are included at `toc`.

        Args:
            exe: object with `monitored()` or `get_params()`, which return (arguments, auxiliary states) by name, or with
                `arg_dict` and `aux_dict`.  If it has `set_monitor_callback`, `stat_helper` is registered there.
        """
        self.exes.append(exe)
        if hasattr(exe, "set_monitor_callback"):
            exe.set_monitor_callback(self.stat_helper, self.monitor_all)

    def stat_helper(self, name: Any, array: Any) -> None:
        """Queue the statistic of one array; this is the callback that executors call with (name, array)."""
        self.collect({name.decode() if isinstance(name, bytes) else str(name): array})

    def collect(self, arrays: Mapping[str, Any]) -> None:
        """Queue the statistic of every array whose name matches; the default statistic takes one dispatch for all arrays."""
        if not self.activated:
            return
        matches = {name: array for name, array in arrays.items() if self.re_pattern.match(name)}
        if self.stat_func is None:
            values: Sequence[Any] = _rms_values([as_array(a) for a in matches.values()])
        else:
            mutable = self.arrays.mutable  # that a user's `stat_func` expects, NDArray in `jfit.mx`
            values = [self.stat_func(a if isinstance(a, mutable) else mutable(a)) for a in matches.values()]
        self.queue.extend((self.step, name, value) for name, value in zip(matches, values, strict=True))

    def tic(self) -> None:
        """Begin a step; call it before forward."""
        if self.step % self.interval == 0:
            self.queue, self.activated = [], True
        self.step += 1

    def toc(self) -> list[tuple[int, str, str]]:
        """End a step and return [(step, name, statistics as text), ...]; empty if the step is not sampled."""
        if not self.activated:
            return []
        for exe in self.exes:
            for arrays in _variables(exe):
                self.collect(arrays)
        self.activated = False
        queue, self.queue = self.queue, []
        values = [[as_array(v) for v in (value if isinstance(value, (list, tuple)) else [value])] for _, _, value in queue]
        if any(isinstance(v, jax.Array) for each in values for v in each):
            values = counters.read(values)  # sync: one transfer for all statistics of the step
        results = [(step, name, _text(each)) for (step, name, _), each in zip(queue, values, strict=True)]
        return sorted(results, key=lambda item: item[1]) if self.sort else results

    def toc_print(self) -> None:
        """End a step as `toc` does, and log one line for each result."""
        for step, name, text in self.toc():
            logging.info("Batch: %s", f"{step:7d} {name:30s} {text:s}")


def _variables(exe: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return (arguments, auxiliary states), dicts of arrays by name, of a module or an executor."""
    if hasattr(exe, "monitored"):
        return exe.monitored()
    return (exe.arg_dict, exe.aux_dict) if hasattr(exe, "arg_dict") else exe.get_params()


def _rms_values(arrays: Sequence[Any]) -> list[Array]:
    """Return ‖x‖ / √size of each array, with one dispatch for all arrays on the same devices."""
    results: list[Any] = [None] * len(arrays)
    places = [frozenset(a.sharding.device_set) if isinstance(a, jax.Array) and a.committed else None for a in arrays]
    for place in dict.fromkeys(places):
        at = [i for i, p in enumerate(places) if p == place]
        for i, value in zip(at, _norms([arrays[i] for i in at]), strict=True):
            results[i] = value
    return results


@jax.jit
def _norms(arrays: list[Array]) -> list[Array]:
    counters.count_trace("monitor")
    return [jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32)))) for x in arrays]


def _text(values: Sequence[Any]) -> str:
    """Return the values as text, formatted as MXNet does, with a tab after each."""
    arrays = [np.asarray(v) for v in values]
    return "".join(str(a.reshape(-1)[0] if a.shape in ((), (1,)) else a) + "\t" for a in arrays)
