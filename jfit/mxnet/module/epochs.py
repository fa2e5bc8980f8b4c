"""Run many steps of `Module.fit` in one dispatch, between the batches at which a callback reads the metrics.

The arrays of an NDArrayIter are copied to the devices once; the compiled program gathers each batch by row indices, in the
iterator's order.  The results equal those of training batch by batch.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jfit import counters
from jfit.data import ArrayData, Batch, NDArrayIter
from jfit.feed.batches import fits_on_device, gather, place_order
from jfit.interrupts import StopFlag, defer_interrupts
from jfit.loop.dispatch import auto_steps_per_call, repeat_steps, report
from jfit.metrics import Metric
from jfit.mxnet.deferred import Deferred
from jfit.mxnet.module.passes import GatheredPass, Passes
from jfit.mxnet.module.slices import row_table
from jfit.parallel import place, place_split
from jfit.programs import Made
from jfit.step.state import TrainState
from jfit.step.totals import zero_totals


class EpochRunner:
    """Trains a module on the full batches of an NDArrayIter, several steps in one dispatch.

    Args:
        passes: the `Passes` of the bound module.
        data: the iterator; its arrays are copied to the devices once.
        counts: number of rows of each device, without padding.
        metrics: pure metrics of the outputs and their labels.
        every: callbacks read the metrics after each batch whose number is a multiple of this; 0 means never; None: after each
            batch, and they may read anything.  A dispatch is then one step and keeps its outputs and gradients, or, until a
            callback has read or changed more than metrics, several steps, which can be repeated.
    """

    def __init__(
        self, passes: Passes, data: NDArrayIter, counts: Sequence[int], metrics: Sequence[Metric], every: int | None = 0
    ) -> None:
        self.passes, self.counts, self.asked, self.every = passes, tuple(counts), every, 1 if every is None else every
        self._data = weakref.ref(data, self._drop)
        self.metrics = tuple(metrics)
        # Callbacks may reset the local sums, so local and global sums are separate; without callbacks they are equal.
        self._metric_sums_of = self.metrics * 2 if self.every else self.metrics
        parameters = passes.parameters
        self.arrays = place(dict([*data.sources[0], *data.sources[1]]), parameters.devices)
        model, params = passes.programs.model, parameters.state.params
        steps = auto_steps_per_call(model, params, data.batch_size, parameters.devices)
        self.steps = 1 if every is None else steps
        # of a dispatch that may be repeated; on other devices its program takes long to compile
        self.ahead = steps if every is None and parameters.devices[0].platform == "cpu" else 1
        self._table, weight = row_table(self.counts)  # both (devices, slots)
        self._weight = place_split(weight, parameters.devices) if len(set(self.counts)) > 1 else None

    @property
    def data(self) -> Any:
        """The iterator, or None once it is garbage-collected, which also frees the copy of its arrays on the devices."""
        return self._data()

    def _drop(self, _: Any) -> None:
        self.arrays = {}

    def run(
        self, leaves: Sequence[Any], on_batch: Callable[[int], bool], flag: StopFlag | None, batch_of: Callable[[int], Any]
    ) -> int:
        """Train on all full batches of the epoch and add the metric sums to `leaves`.

        Args:
            leaves: an EvalMetric for each of `metrics`.
            on_batch: called with the batch number (from 0) after each batch at which callbacks run; `leaves` are up to date.
                It returns whether to go on; otherwise the rest of the epoch is left to the caller.
            flag: stops training between two dispatches.
            batch_of: returns a function that makes a batch, by its number, for callbacks that run further passes on it.

        Returns:
            Number of batches that were run.
        """
        parameters = self.passes.parameters
        parameters.pending.materialize()
        self.passes.discard_results()
        full = len(self.data.epoch_rows()) // self.data.batch_size
        pack, at, going = self._pack(full), 0, True
        self._load_sums(leaves)
        if parameters.optimizer.lr_scheduler is not None or parameters.shared_scalars():
            self.ahead = 1  # a callback may look at what changes with each step

        def keep(number: int, results: Callable[[], Any]) -> Deferred:
            return self.passes.keep(GatheredPass(batch_of(number), self.counts, True, 0), results)

        try:
            while at < full and going and not flag:
                # The first batch has compiled what repeats steps, and the last one leaves its outputs and gradients.
                steps = min(self.ahead, full - 1 - at)
                if at and steps > 1:
                    at, going = self._look_ahead(leaves, on_batch, flag, keep, pack, at, steps)
                    continue
                steps = min(self._steps_to_boundary(at), full - at)
                sums, results = self._call(pack, at, steps)
                at += steps
                if self.every and ((at - 1) % self.every == 0 or at == self.data.num_batches):
                    if results:
                        keep(at - 1, functools.partial(tuple, results))
                    going = self._look(leaves, sums, on_batch, at - 1)
        finally:
            self.passes.gather()
            if parameters.state.metrics is not None:
                with defer_interrupts():  # the programs of single steps do not accept a state with sums of metrics
                    self._store_sums(leaves, parameters.state.metrics.metrics)
                    parameters.state = parameters.state._replace(metrics=None)
        return at

    def _look(self, leaves: Sequence[Any], sums: Any, on_batch: Callable[[int], bool], nbatch: int) -> bool:
        """Call `on_batch` with copies of the sums in `leaves`, and load them again if a callback changed them."""
        parameters = self.passes.parameters
        self._store_sums(leaves, sums)
        before, totals = [x for leaf in leaves for x in leaf.running()], parameters.state.metrics
        parameters.state = parameters.state._replace(metrics=None)
        if not on_batch(nbatch):
            return False
        parameters.pending.materialize()  # passes of the callback
        if all(a is b for a, b in zip(before, [x for leaf in leaves for x in leaf.running()], strict=True)):
            parameters.state = parameters.state._replace(metrics=totals)
        else:
            self._load_sums(leaves)
        return True

    def _look_ahead(
        self, leaves: Sequence[Any], on_batch: Any, flag: StopFlag | None, keep: Any, pack: Any, at: int, steps: int
    ) -> tuple[int, bool]:
        """Run steps in one dispatch, and call `on_batch` for each, with the sums of the metrics at that time.

        If it reads anything else or changes a setting, the steps up to its batch are repeated one by one, and it was the last
        such dispatch.  Returns the number of batches that were run, and whether to go on.
        """
        passes, parameters, optimizer = self.passes, self.passes.parameters, self.passes.parameters.optimizer
        parameters.sync_multipliers()
        start, single, scale, setting = parameters.state, self._program(), np.float32(optimizer.rescale_grad), self._setting()
        rates = np.full(self.ahead, optimizer.rate(), np.float32)
        with defer_interrupts():
            table = passes.run(self._program(ahead=True), pack, np.int32(at), rates, np.int32(steps), count=0)
            end, parameters.state = parameters.state, start._replace(metrics=None)
        table = counters.read(table)  # sync: the callbacks may read the metrics

        def repeat(number: int) -> Any:
            parameters.state, results = start, ()
            with defer_interrupts():
                for i in range(at, number + 1):
                    step = lambda *args: single(*args[:-1], scale)  # noqa: E731
                    _, _, *results = passes.run(step, pack, np.int32(i), rates[:1], np.int32(1), count=0)
                parameters.state = parameters.state._replace(metrics=None)
            return results

        last: Any = None
        try:
            for number in range(at, at + steps):
                parameters.begin_updates(1, passes.trainable, passes.updated)
                last = keep(number, functools.partial(repeat, number))
                self._store_sums(leaves, jax.tree.map(lambda x: x[number - at, ...], table))  # noqa: B023
                before = [x for leaf in leaves for x in leaf.running()]
                going = on_batch(number)
                same = all(a is b for a, b in zip(before, [x for leaf in leaves for x in leaf.running()], strict=True))
                if not (going and same and self._setting() == setting) or last.is_done or flag:
                    self.ahead = 1
                    return number + 1, going
            parameters.state, last = end, None
            passes.discard_results()
        finally:
            if last is not None:
                last.settle()
                self._load_sums(leaves)
        return at + steps, True

    def _setting(self) -> Any:
        """Return what the steps of a dispatch depend on, besides the state."""
        optimizer = self.passes.parameters.optimizer
        numbers = optimizer.rate(), optimizer.rescale_grad, dict(optimizer.lr_mult), dict(optimizer.wd_mult)
        return self.passes.programs.setting(), optimizer.lr_scheduler, numbers

    def _steps_to_boundary(self, at: int) -> int:
        """Number of steps of the next dispatch, from batch `at` up to and including the next batch after which callbacks run.

        Callbacks run after batches 0, every, 2 * every, ...; a dispatch has at most `self.steps` steps.
        """
        return min(self.steps, (-at) % self.every + 1) if self.every else self.steps

    def _call(self, pack: Any, at: int, steps: int) -> tuple[Any, tuple[Any, ...]]:
        """Run steps; return copies of the metric sums, and (outputs, gradients) if they are kept."""
        parameters = self.passes.parameters
        with defer_interrupts():  # the host's update counts and the state change together
            step_rates = parameters.begin_updates(steps, self.passes.trainable, self.passes.updated)
            rates = np.zeros((self.steps, *step_rates.shape[1:]), np.float32)
            rates[:steps] = step_rates
            result = self.passes.run(self._program(), pack, np.int32(at), rates, np.int32(steps), count=steps)
        fence, sums, *results = result
        self.passes.limit_queue(fence)
        return sums, tuple(results)

    def _load_sums(self, leaves: Sequence[Any]) -> None:
        """Copy the metric sums from `leaves` into the TrainState, where the compiled program adds to them."""
        parameters = self.passes.parameters
        running = [(metric, leaf.running()) for metric, leaf in zip(self.metrics, leaves, strict=True)]
        pairs = [[metric.init() if s is None else s for s in pair] for metric, pair in running]
        local_sums = [local for local, _ in pairs] if self.every else []
        totals = zero_totals(self._metric_sums_of)._replace(metrics=(*local_sums, *(total for _, total in pairs)))
        parameters.state = parameters.state._replace(metrics=place(totals, parameters.devices))

    def _store_sums(self, leaves: Sequence[Any], sums: Any) -> None:
        for local, total, leaf in zip(sums, sums[-len(leaves) :], leaves, strict=False):
            leaf.set_sums(local, total)

    def _pack(self, full: int) -> dict[str, Any]:
        """Return the inputs of the program: the data arrays, and for every batch the row indices of each device.

        full: number of batches that the program trains on; a smaller last batch is not one of them.
        """
        devices, size = self.passes.parameters.devices, self.data.batch_size
        order = self.data.epoch_rows()[: full * size].reshape(full, size).astype(np.int32)
        table = order[:, self._table.reshape(-1)]  # (batches, devices * slots)
        return {"arrays": self.arrays, "order": place_order(table, devices), "weight": self._weight}

    def _program(self, ahead: bool = False) -> Callable[..., tuple[TrainState, Any]]:
        """Return the program of steps; with `ahead`, it keeps its argument and returns the metric sums after each step."""
        programs = self.passes.programs

        def make():
            axes, pack = programs.axes()[1], {"arrays": None, "order": 0, "weight": 0}
            results = (None, None, 0, 0) if self.asked is None and not ahead else None
            return self._many(self.ahead if ahead else 0), (axes, pack, None, None, None, None), (axes, results)

        steps = self.ahead if ahead else self.steps
        key = ("epoch", programs.setting(), self._metric_sums_of, self.counts, steps, self.asked is None, ahead)
        return programs.compiled(key, make, "module_epoch", donate=() if ahead else (0,))

    def _many(self, ahead: int) -> Callable[..., tuple[TrainState, Any]]:
        # not `self`: programs must not keep the arrays of the iterator alive
        batch_axes, single = dict(self.passes.programs.model.batch_axes), self.steps == 1
        kept = self.asked is None and not ahead
        train = self.passes.programs.raw_step(metrics=self._metric_sums_of, outputs=kept, gradients=kept)

        def many(
            state: TrainState, pack: Any, begin: Any, rates: Any, count: Any, rescale: Any, *, axis_name: str | None = None
        ):
            step = train(rescale=rescale)

            def one(state: TrainState, j: Any) -> tuple[TrainState, Any]:
                slots = pack["order"][begin + j]
                batch = Batch(gather(pack["arrays"], slots, batch_axes), pack["weight"], pack["weight"])
                # The barrier keeps XLA from fusing the step with the gather, so results are bitwise those of a single step.
                state, batch = lax.optimization_barrier((state._replace(base_lr=rates[j]), batch))
                state, out = step(state, batch, axis_name=axis_name)
                # With one learning rate per parameter the report, the array (loss, learning rate), has none (nan).
                several = out.lr is not None and out.lr.ndim
                reported = report(out._replace(lr=None) if several else out)
                return state, (reported, out.outputs, out.gradients) if kept else reported

            if ahead:

                def add_row(j: Any, carry: Any) -> Any:
                    state, _ = one(carry[0], j)
                    return state, jax.tree.map(lambda rows, x: rows.at[j].set(x), carry[1], state.metrics.metrics)

                rows = jax.tree.map(lambda x: jnp.zeros((ahead, *x.shape), x.dtype), state.metrics.metrics)
                return lax.fori_loop(0, count, add_row, (state, rows))
            state, result = one(state, 0) if single else repeat_steps(one, state, count)
            fence, *results = result if kept else (result,)
            # New buffers: the next call donates those of the state.
            return state, (fence, jax.tree.map(lambda x: x + 0, state.metrics.metrics), *results)

        return Made(many, "epoch", train, batch_axes, single, kept, ahead)


def callback_period(callbacks: Sequence[Any]) -> int | None:
    """Return the number of batches between calls of callbacks that have an effect: 0 without callbacks, None if it is unknown.

    A callback declares it with an attribute `every`, as `jfit.callback.Speedometer` does.  An inherited `every` is ignored,
    because the subclass may need every batch.
    """
    periods = []
    for callback in callbacks:
        attributes = vars(callback) if hasattr(callback, "__dict__") else {}
        if "every" not in attributes and "every" not in vars(type(callback)):
            return None
        periods.append(int(callback.every))
    return math.gcd(*periods) if periods else 0


def can_run_many_steps(passes: Passes, data: Any, label_names: Sequence[str]) -> bool:
    """Return whether EpochRunner supports this training.

    The arrays must be in memory and fit on the devices, every output must have a label, and a step must be one program, which
    it is not with `ctx_group`s on different devices, or a `dist` store of several processes.  After a training pass without an
    update, the next step has other random numbers.
    """
    if not isinstance(data, NDArrayIter) or "plain" not in vars(type(data)) or data.started or not data.in_memory:
        return False
    parameters, model = passes.parameters, passes.programs.model
    names = [name for name, _ in [*data.sources[0], *data.sources[1]]]
    return (
        passes.is_one_program
        and not parameters.passes
        and [o.label for o in model.outputs] == list(label_names) == [name for name, _ in data.sources[1]]
        and set(names) == {*model.inputs, *model.labels}
        and all(model.batch_axes.get(name, 0) == 0 for name in names)
        and fits_on_device(ArrayData(dict([*data.sources[0], *data.sources[1]]), shuffle=False), parameters.devices)
    )
