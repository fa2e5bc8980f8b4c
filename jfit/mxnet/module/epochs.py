"""An epoch of `Module.fit` in few dispatches: where no callback looks between batches, many steps share one.

The arrays of an NDArrayIter stay on the devices; a program gathers its batches by row number, in the iterator's own order,
and the numbers are those of a pass batch by batch.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.data import ArrayData, Batch, NDArrayIter
from jfit.metrics import Metric
from jfit.mxnet.module.passes import Passes
from jfit.mxnet.module.slices import slots_of
from jfit.parallel import Window, place, place_split
from jfit.step.state import TrainState
from jfit.step.totals import zero_totals
from jfit.train.batches import fits_on_device, gather, place_order
from jfit.train.interrupts import StopFlag
from jfit.train.loop import auto_steps_per_call, repeat_steps, report


class EpochRunner:
    """Full batches of an NDArrayIter through a module's train step, several a dispatch.

    Args:
        passes: of the bound module.
        data: the iterator; its arrays are copied to the devices once and stay there.
        counts: rows of each device.
        metrics: pure metrics of the outputs and their labels.
        every: callbacks look at the metrics after each batch whose number is a multiple of this; 0: nobody looks.
    """

    def __init__(
        self, passes: Passes, data: NDArrayIter, counts: Sequence[int], metrics: Sequence[Metric], every: int = 0
    ) -> None:
        self.passes, self.counts, self.every = passes, tuple(counts), every
        self._data = weakref.ref(data, self._drop)
        self.metrics = tuple(metrics)
        # local and global sums differ once a callback resets the local ones
        self._counted = self.metrics * 2 if every else self.metrics
        parameters = passes.parameters
        assert parameters.state is not None
        self.arrays = place(dict([*data.data, *data.label]), parameters.devices)
        self.steps = auto_steps_per_call(passes.programs.model, parameters.state.params, data.batch_size)
        table, real = slots_of(self.counts)  # (devices, slots) both
        self._table = table
        uneven = len(set(self.counts)) > 1
        self._weight = place_split(real, parameters.devices) if uneven else None

    @property
    def data(self) -> Any:
        """The iterator, or None when it is gone: its copy on the devices went with it."""
        return self._data()

    def _drop(self, _: Any) -> None:
        self.arrays = {}

    def run(self, leaves: Sequence[Any], look: Callable[[int], None], flag: StopFlag) -> int:
        """All full batches of the epoch; the metrics `leaves` get their sums.

        Args:
            leaves: an EvalMetric for each of `metrics`.
            look: called with the number of a batch (from 0) after which callbacks look; the leaves hold their sums by then.
            flag: stops the pass between two calls.

        Returns:
            Batches that were done.
        """
        parameters, window = self.passes.parameters, Window()
        self.passes.forget()
        full = len(self.data.epoch_rows()) // self.data.batch_size
        pack, at = self._pack(full), 0
        self._take(leaves)
        try:
            while at < full and not flag.set:
                at += self._call(pack, at, min(self._room(at), full - at), window)
                if self.every and ((at - 1) % self.every == 0 or at == self.data.num_batches):
                    self._give(leaves, keep=True)
                    look(at - 1)
                    self._take(leaves)
        finally:
            self._give(leaves, keep=False)
            assert parameters.state is not None
            parameters.state = parameters.state._replace(metrics=place(zero_totals(), parameters.devices))
        return at

    def _room(self, at: int) -> int:
        """Maximum number of steps from batch `at` before the next callback boundary."""
        return min(self.steps, (-at) % self.every + 1) if self.every else self.steps

    def _call(self, pack: Any, at: int, steps: int, window: Window) -> int:
        parameters = self.passes.parameters
        found = parameters.begin_updates(steps, self.passes.learns, self.passes.counted)
        rates = np.zeros((self.steps, *found.shape[1:]), np.float32)
        rates[:steps] = found
        told = parameters.run(self.passes, self._program(), pack, np.int32(at), rates, np.int32(steps), count=steps)
        fence = window.push(told)
        if fence is not None:
            counters.wait(fence)  # sync: host waits for the call 8 back
        return steps

    def _take(self, leaves: Sequence[Any]) -> None:
        """The sums of the metrics as the programs carry them on."""
        parameters = self.passes.parameters
        assert parameters.state is not None
        running = [(metric, leaf.running()) for metric, leaf in zip(self.metrics, leaves, strict=True)]
        pairs = [[metric.init() if s is None else s for s in pair] for metric, pair in running]
        sums = [local for local, _ in pairs] if self.every else [everything for _, everything in pairs]
        sums += [everything for _, everything in pairs] if self.every else []
        totals = zero_totals(self._counted)._replace(metrics=tuple(sums))
        parameters.state = parameters.state._replace(metrics=place(totals, parameters.devices))

    def _give(self, leaves: Sequence[Any], keep: bool) -> None:
        """The sums so far to the metrics; copies where the programs go on with them."""
        state = self.passes.parameters.state
        assert state is not None
        sums = _copy(state.metrics.metrics) if keep else state.metrics.metrics
        for local, everything, leaf in zip(sums, sums[-len(leaves) :], leaves, strict=False):
            leaf.set_sums(local, everything)

    def _pack(self, full: int) -> dict[str, Any]:
        """What the programs read: the arrays, and the row numbers of every batch."""
        devices, size = self.passes.parameters.devices, self.data.batch_size
        order = self.data.epoch_rows()[: full * size].reshape(full, size).astype(np.int32)
        table = order[:, self._table.reshape(-1)]  # (batches, devices * slots)
        return {"arrays": self.arrays, "order": place_order(table, devices), "weight": self._weight}

    def _program(self) -> Callable[..., tuple[TrainState, Array]]:
        programs = self.passes.programs

        def make():
            axes, pack = programs.axes()[1], {"arrays": None, "order": 0, "weight": 0}
            return self._many(), (axes, pack, None, None, None, None), (axes, None)

        key = ("epoch", programs.setting(), self._counted, self.counts, self.steps)
        return programs.compiled(key, make, "module_epoch", donate=(0,))

    def _many(self) -> Callable[..., tuple[TrainState, Array]]:
        batch_axes = self.passes.programs.model.batch_axes

        def many(
            state: TrainState, pack: Any, begin: Any, rates: Any, count: Any, rescale: Any, *, axis_name: str | None = None
        ):
            step = self.passes.programs.raw_step(rescale, metrics=self._counted)

            def one(state: TrainState, j: Any) -> tuple[TrainState, Array]:
                slots = pack["order"][begin + j]
                batch = Batch(gather(pack["arrays"], slots, batch_axes), pack["weight"], pack["weight"])
                # behind the barrier the step is compiled, and rounded, as it is alone
                state, batch = lax.optimization_barrier((state._replace(base_lr=rates[j]), batch))
                state, out = step(state, batch, axis_name=axis_name)
                several = out.lr is not None and out.lr.ndim  # a report has room for one rate
                return state, report(out._replace(lr=None) if several else out)

            return one(state, 0) if self.steps == 1 else repeat_steps(one)(state, count)

        return many


_copy = jax.jit(lambda tree: jax.tree.map(lambda x: x + 0, tree))  # own buffers: the next call donates the originals


def looks_every(callbacks: Sequence[Any]) -> int | None:
    """After every how many batches some callback looks: 0 for none, None if one wants to see each batch.

    A callback says so by an attribute `every` of its own (`jfit.callback.Speedometer` has one); a class that inherits it may
    look more often, so there it does not count.
    """
    found = []
    for callback in callbacks:
        own = vars(callback) if hasattr(callback, "__dict__") else {}
        if "every" not in own and "every" not in vars(type(callback)):
            return None
        found.append(int(callback.every))
    return math.gcd(*found) if found else 0


def runs_whole(passes: Passes, data: Any, label_names: Sequence[str]) -> bool:
    """True where a pass may run in few dispatches: plain arrays in memory, outputs that are heads with their own labels."""
    if not isinstance(data, NDArrayIter) or "plain" not in vars(type(data)) or data.started or not data.in_memory:
        return False
    parameters, model = passes.parameters, passes.programs.model
    optimizer = parameters.optimizer
    given = [name for name, _ in [*data.data, *data.label]]
    return (
        optimizer is not None
        and optimizer.is_pure
        and set(passes.requests) == set(passes.learns)
        and "add" not in passes.requests.values()
        and [o.label for o in model.outputs] == list(label_names) == [name for name, _ in data.label]
        and set(given) == {*model.inputs, *model.labels}
        and all(model.batch_axes.get(name, 0) == 0 for name in given)
        and fits_on_device(ArrayData(dict([*data.data, *data.label]), shuffle=False), parameters.devices)
    )
