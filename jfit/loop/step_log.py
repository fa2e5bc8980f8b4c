"""Values of single steps (loss, learning rate, metrics of the batch), read from the devices some dispatches later.

A dispatch may run many steps.  With `DispatchSpec.step_names`, its program also returns one array with a row per step.  The
copy of the array to the host starts at once, and `StepLog` reads it when the host waits for an earlier dispatch anyway.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.step import StepOut


class StepRow(NamedTuple):
    """Values of one step.

    Attributes:
        position: "epoch", "batch" (batches done in the epoch) and "step" (updates done), this step included.
        logs: "loss", "lr" unless it is unknown, and the metrics of the batch, by name.
    """

    position: dict[str, int]
    logs: dict[str, float]


class _Entry(NamedTuple):
    array: Any  # float32 (maximum number of steps, columns); the first `steps` rows are valid
    steps: int
    position: Mapping[str, int]  # before the first step


def step_values(out: StepOut, names: Sequence[str]) -> Array:
    """Return the values of a step, (1, len(names)), in the order of `names`; an unknown learning rate is nan."""
    lr = jnp.float32(jnp.nan) if out.lr is None else out.lr
    return jnp.stack([out.loss, lr, *((out.metrics or {})[name] for name in names[2:])]).astype(float)[None]


class StepLog:
    """Queue of the values of the last dispatches, whose copies to the host are in progress.

    Args:
        names: names of the values, from `step_names`.
        intervals: numbers of steps k; the values of every k-th step are read, and those of other steps are not.
        device: a device of the arrays.
    """

    def __init__(self, names: Sequence[str], intervals: Collection[int], device: Any) -> None:
        self.names, self._intervals, self._queue = tuple(names), tuple(set(intervals)), deque[_Entry | None]()
        self._on_cpu = device.platform == "cpu"  # arrays are in host memory already

    def push(self, result: tuple[Any, Array], steps: int, position: Mapping[str, int]) -> Any:
        """Queue a dispatch: start the copy of its values to the host.

        Args:
            result: pair (first result of the program, array of values, one row per step).
            steps: number of steps of the dispatch.
            position: epoch, batch and step before the dispatch.

        Returns:
            The first entry of `result`.
        """
        (first, array), start = result, position["step"]
        is_read = any((start + steps) // k > start // k for k in self._intervals)
        if is_read and not self._on_cpu:
            array.copy_to_host_async()
        self._queue.append(_Entry(array, steps, dict(position)) if is_read else None)
        return first

    def pop(self, behind: int) -> list[_Entry]:
        """Remove and return all entries but those of the last `behind` dispatches, which may still be running."""
        entries = [self._queue.popleft() for _ in range(len(self._queue) - behind)]
        return [entry for entry in entries if entry is not None]

    def rows(self, entries: Sequence[_Entry], arrays: Sequence[np.ndarray]) -> list[StepRow]:
        """Return a `StepRow` per step to read, in order; `arrays` are the arrays of the entries, copied to the host."""
        result = []
        for (_, steps, start), array in zip(entries, arrays, strict=True):
            for number, values in enumerate(array[:steps].tolist(), 1):
                if all((start["step"] + number) % k for k in self._intervals):
                    continue
                logs = dict(zip(self.names, values, strict=True))
                if math.isnan(logs["lr"]):
                    del logs["lr"]
                position = {"epoch": start["epoch"], "batch": start["batch"] + number, "step": start["step"] + number}
                result.append(StepRow(position, logs))
        return result
