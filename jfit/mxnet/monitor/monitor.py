"""Monitor: statistics of outputs, arguments and gradients, every so many steps."""

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
    """‖x‖ / √size, or another statistic, of every array whose name matches, on steps 0, interval, 2 interval ...

    Between `tic` and `toc` of such a step the arrays come from a second program (see `jfit.mxnet.monitor.capture`), with the
    random numbers of the step; in between nothing is computed for a monitor.  Nothing waits before `toc`.
    With several devices each name comes once for each device, as in MXNet.

    Args:
        interval: steps from one look to the next.
        stat_func: of one array (with `.asnumpy()`), gives an array, a number, or a list of them.
        pattern: regular expression that matches from the beginning of a name.
        sort: results in the order of names instead of that of the computation.
        monitor_all: look at the inputs of operators too.

    Example:
        >>> monitor = Monitor(2, pattern="fc")
        >>> monitor.tic()
        >>> monitor.collect({"fc_output": np.full((2, 2), 3.0, "float32"), "act_output": np.ones(2)})
        >>> monitor.toc()
        [(1, 'fc_output', '3.0\\t')]
        >>> monitor.tic()
        >>> monitor.active
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
        self.step, self.activated = 0, False
        self.exes: list[Any] = []
        self.queue: list[tuple[int, str, Any]] = []

    @property
    def active(self) -> bool:
        """True from the `tic` of a step that is looked at to its `toc`."""
        return self.activated

    def install(self, exe: Any) -> None:
        """Look at a module or an executor: its arguments and auxiliary states are read at `toc`.

        Args:
            exe: has `monitored() -> (arguments, auxiliary states)` by name, or `arg_dict` and `aux_dict`, or `get_params()`;
                where it has `set_monitor_callback`, that gets `stat_helper`, which listens while the monitor is active.
        """
        self.exes.append(exe)
        if hasattr(exe, "set_monitor_callback"):
            exe.set_monitor_callback(self.stat_helper, self.monitor_all)

    def stat_helper(self, name: Any, array: Any) -> None:
        """Take one array; the callback of an executor."""
        self.collect({name.decode() if isinstance(name, bytes) else str(name): array})

    def collect(self, arrays: Mapping[str, Any]) -> None:
        """Queue the statistic of every array whose name matches; the usual one is a single dispatch for all of them."""
        if not self.activated:
            return
        found = {name: array for name, array in arrays.items() if self.re_pattern.match(name)}
        if self.stat_func is None:
            values: Sequence[Any] = _sizes([as_array(a) for a in found.values()])
        else:
            values = [self.stat_func(self._cell(array)) for array in found.values()]
        self.queue.extend((self.step, name, value) for name, value in zip(found, values, strict=True))

    def tic(self) -> None:
        """A step begins."""
        if self.step % self.interval == 0:
            self.queue, self.activated = [], True
        self.step += 1

    def toc(self) -> list[tuple[int, str, str]]:
        """A step has ended: [(step, name, statistics as text), ...], empty where it was not looked at; waits once."""
        if not self.activated:
            return []
        for exe in self.exes:
            for arrays in _variables(exe):
                self.collect(arrays)
        self.activated = False
        queue, self.queue = self.queue, []
        values = [[as_array(v) for v in (value if isinstance(value, (list, tuple)) else [value])] for _, _, value in queue]
        if any(isinstance(v, jax.Array) for each in values for v in each):
            values = counters.read(values)  # sync: the numbers of the whole step at once
        found = [(step, name, _text(each)) for (step, name, _), each in zip(queue, values, strict=True)]
        return sorted(found, key=lambda item: item[1]) if self.sort else found

    def toc_print(self) -> None:
        """`toc`, and a line in the log for each result."""
        for step, name, text in self.toc():
            logging.info("Batch: %s", f"{step:7d} {name:30s} {text:s}")

    def _cell(self, array: Any) -> Any:
        """What a user's statistic gets."""
        return array if isinstance(array, self.arrays.mutable) else self.arrays.mutable(array)


def _variables(exe: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(arguments, auxiliary states) of a module or an executor."""
    if hasattr(exe, "monitored"):
        return exe.monitored()
    return (exe.arg_dict, exe.aux_dict) if hasattr(exe, "arg_dict") else exe.get_params()


def _sizes(arrays: Sequence[Any]) -> list[Array]:
    """‖x‖ / √size of each, one dispatch for all that live on the same devices."""
    found: list[Any] = [None] * len(arrays)
    places = [frozenset(a.sharding.device_set) if isinstance(a, jax.Array) and a.committed else None for a in arrays]
    for place in dict.fromkeys(places):
        at = [i for i, p in enumerate(places) if p == place]
        for i, value in zip(at, _norms([arrays[i] for i in at]), strict=True):
            found[i] = value
    return found


@jax.jit
def _norms(arrays: list[Array]) -> list[Array]:
    counters.count_trace("monitor")
    return [jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32)))) for x in arrays]


def _text(values: Sequence[Any]) -> str:
    """The values as MXNet writes them, a tab after each."""
    arrays = [np.asarray(v) for v in values]
    return "".join(str(a.reshape(-1)[0] if a.shape in ((), (1,)) else a) + "\t" for a in arrays)
