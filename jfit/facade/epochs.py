"""A pass of fit as few programs as possible: where nobody looks between batches, many steps share a dispatch.

The arrays of an NDArrayIter stay on the devices; a program gathers its batches by row number, in the iterator's own order,
and the numbers are those of a pass batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.data import ArrayData, Batch, NDArrayIter
from jfit.facade.passes import Passes
from jfit.feed import auto_steps_per_call, fits_on_device, repeat_steps, report
from jfit.loop import StopFlag, Window
from jfit.metrics import Metric
from jfit.parallel import place, place_split, slots_of
from jfit.state import TrainState
from jfit.totals import zero_totals


class EpochRunner:
    """Full batches of an NDArrayIter through a module's train step, several a dispatch.

    Args:
        passes: of the bound module.
        data: the iterator; its arrays are copied to the devices once and stay there.
        counts: rows of each device.
        metrics: pure metrics of the outputs and their labels.
    """

    def __init__(self, passes: Passes, data: NDArrayIter, counts: Sequence[int], metrics: Sequence[Metric]) -> None:
        self.passes, self.data, self.counts, self.metrics = passes, data, tuple(counts), tuple(metrics)
        session = passes.session
        assert session.state is not None
        self.arrays = place(dict([*data.data, *data.label]), session.devices)
        self.steps = auto_steps_per_call(passes.programs.model, session.state.params, data.batch_size)
        table, real = slots_of(self.counts)  # (devices, slots) both
        self._table = table
        uneven = len(set(self.counts)) > 1
        self._weight = place_split(real if len(self.counts) > 1 else real[0], session.devices) if uneven else None

    def run(self, flag: StopFlag) -> tuple[tuple[Any, ...], int]:
        """All full batches from the iterator's position on: (sums of each metric, batches done); stops early on the flag."""
        session, size = self.passes.session, self.data.batch_size
        state = session.state
        assert state is not None
        full = len(self.data.epoch_rows()) // size
        pack = self._pack(full)
        session.state = state._replace(metrics=place(zero_totals(self.metrics), session.devices))
        window, at = Window(), 0
        try:
            while at < full and not flag.set:
                steps = min(self.steps, full - at)
                rates = np.zeros(self.steps, np.float32)
                rates[:steps] = session.begin_updates(steps)
                view = self.passes.view()
                new, told = self._program()(view, pack, np.int32(at), rates, np.int32(steps))
                session.commit(new, self.passes.learns)
                at += steps
                fence = window.push(told)
                if fence is not None:
                    counters.wait(fence)  # sync: host waits for the call 8 back
        finally:
            state = session.state
            session.state = state._replace(metrics=place(zero_totals(), session.devices))
        return state.metrics.metrics, at

    def _pack(self, full: int) -> dict[str, Any]:
        """What the programs read: the arrays, and the row numbers of every batch."""
        devices, size = self.passes.session.devices, self.data.batch_size
        order = self.data.epoch_rows()[: full * size].reshape(full, size).astype(np.int32)
        table = order[:, self._table.reshape(-1)]  # (batches, devices * slots)
        if len(devices) > 1:
            table = table.reshape(full, len(devices), -1).swapaxes(0, 1)
        return {"arrays": self.arrays, "order": place_split(table, devices), "weight": self._weight}

    def _program(self) -> Callable[..., tuple[TrainState, Array]]:
        programs = self.passes.programs

        def make():
            axes, pack = programs.axes()[1], {"arrays": None, "order": 0, "weight": 0}
            fn = self._many(programs.raw_step(outputs=False, metrics=self.metrics))
            return fn, (axes, pack, None, None, None), (axes, None)

        key = ("epoch", programs.setting(), self.metrics, self.counts, self.steps)
        return programs.compiled(key, make, "module_epoch", donate=(0,))

    def _many(self, step: Any) -> Callable[..., tuple[TrainState, Array]]:
        batch_axes = self.passes.programs.model.batch_axes

        def many(state: TrainState, pack: Any, begin: Any, rates: Any, count: Any, *, axis_name: str | None = None):
            def one(state: TrainState, j: Any) -> tuple[TrainState, Array]:
                slots = pack["order"][begin + j]
                take = lambda x: x.at[slots].get(mode="promise_in_bounds")  # noqa: E731
                inputs = {k: jnp.moveaxis(take(v), 0, batch_axes.get(k, 0)) for k, v in pack["arrays"].items()}
                batch = Batch(inputs, pack["weight"], pack["weight"])
                # behind the barrier the step is compiled, and rounded, as it is alone
                state, batch = lax.optimization_barrier((state._replace(lr=rates[j]), batch))
                state, out = step(state, batch, axis_name=axis_name)
                return state, report(out)

            return one(state, 0) if self.steps == 1 else repeat_steps(one)(state, count)

        return many


def runs_whole(passes: Passes, data: Any, label_names: Sequence[str]) -> bool:
    """True where a pass may run in few dispatches: plain arrays in memory, outputs that are heads with their own labels."""
    if not isinstance(data, NDArrayIter) or "plain" not in vars(type(data)) or data.started:
        return False
    session, model = passes.session, passes.programs.model
    optimizer = session.optimizer
    given = [name for name, _ in [*data.data, *data.label]]
    return (
        optimizer is not None
        and optimizer.is_pure
        and not passes.keep_gradients
        and set(passes.requests) == set(passes.learns)
        and "add" not in passes.requests.values()
        and [o.label for o in model.outputs] == list(label_names) == [name for name, _ in data.label]
        and set(given) == {*model.inputs, *model.labels}
        and all(model.batch_axes.get(name, 0) == 0 for name in given)
        and fits_on_device(ArrayData(dict([*data.data, *data.label]), shuffle=False), session.devices)
    )
