"""Training steps with the same bits on any number of devices (`reduce="ordered"`): several programs per step.

Every program that computes is compiled for one device.  XLA compiles a program for several devices (pmap, shard_map) in another
order of passes, which rounds differently, so that one device and two devices would not agree.  The processes of a job only
exchange sums (`jfit.parallel.ordered_job`); each updates the parameters itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.data.batch import Batch
from jfit.lowering.remat import KEEP_BARRIERS
from jfit.ops.axis import VirtualSlice
from jfit.parallel.devices import own_part, sharding, spans_processes
from jfit.parallel.ordered_job import Gather
from jfit.parallel.spmd import compile_spmd, unchanged
from jfit.platforms import cores
from jfit.programs import Made, Program
from jfit.step import StepOut
from jfit.step.ordered import loop_sums, reduced, slice_sums, tree_sum
from jfit.step.state import TrainState


def slices_of(step: Any) -> int | None:
    """Number of virtual slices of a batch if the step was made with `reduce="ordered"`, else None.

    Args:
        step: a training step.
    """
    return getattr(getattr(step, "reduce", None), "slices", None)


def process_slices(devices: Sequence[Any], count: int, *, equal: bool = False) -> slice | None:
    """Return which virtual slices of a batch this process computes; None if one process computes all.

    Args:
        devices: list of `jax.Device`, in a job those of all processes, by rank.
        count: number of virtual slices.
        equal: whether all processes must have equally many.

    Raises:
        ValueError: they do not.

    Example:
        >>> import jax
        >>> process_slices(jax.devices()[:1], 8) is None
        True
    """
    if not spans_processes(devices):
        return None
    ranks = [device.process_index for device in _owners(devices, count)]
    processes = len({*ranks})
    if equal and count % processes:
        problem = f"{processes} processes with rows of their own cannot share {count} slices equally"
        raise ValueError(f"reduce='ordered': {problem}; pass the same batches in all processes")
    own = ranks.index(jax.process_index())
    return slice(own, own + ranks.count(jax.process_index()))


def _owners(devices: Sequence[Any], count: int) -> list[Any]:
    """The device of each of `count` slices; those of a device are consecutive."""
    return [devices[j * len(devices) // count] for j in range(count)]


def _computing(devices: Sequence[Any]) -> Sequence[Any]:
    """Which devices compute slices: of the emulated CPU devices of one process no more than it has cores.

    A program is compiled for each device, and the bits do not depend on the choice.
    """
    is_emulated = devices[0].platform == "cpu" and not spans_processes(devices)
    return devices[: cores()] if is_emulated else devices


def _is_dense(model: Any) -> bool:
    """Whether a model is known to have no convolutions."""
    return model.symbol is not None and "convolution" not in model.traits


class OrderedSteps:
    """Run training steps made with `reduce="ordered"`: `steps(state, batch) -> (state, result, values)`.

    Each device computes its slices of the batch: on CPU in a loop in one program, which has the bits of a program per slice;
    with a program per slice if the model has convolutions, which XLA's loops make slow, or is a function, which may have
    some, in a job of several processes, or if the devices have unequal numbers of slices.  The first device adds the sums of
    all slices, updates the parameters and copies them to the others.  In a job of several processes, the first device of each
    process does so, with the sums that all processes exchange.  The host waits for the step before the last one, because the
    gradients of all slices of a step are in memory.

    Args:
        step: from `jfit.train_step(..., reduce="ordered")`.
        devices: list of `jax.Device`, at most one per slice; in a job those of all processes, by rank.
        result: function of the `StepOut`, traced into the program of the update; default: the `StepOut`.
        of_slice: `of_slice(outputs, batch, axis) -> pytree`, values of a slice, traced into its program; default: the outputs
            of the model if the step returns them.
        gathered: in a job, whether the values are those of all slices.  False: those of the slices of this process.

    Raises:
        ValueError: the step has a setting that needs the whole batch on every device, or there are more devices than slices.

    Example:
        >>> import jax, jfit, numpy as np
        >>> from jfit.parallel import split_batch
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> steps = OrderedSteps(jfit.train_step(model, "sgd", reduce="ordered"), jax.devices()[:1])
        >>> state, out, _ = steps(jfit.init_state(model, "sgd", batch), split_batch(jfit.data.Batch(batch), 8))
        >>> int(state.step)
        1
    """

    def __init__(
        self,
        step: Any,
        devices: Sequence[Any],
        *,
        result: Callable[[StepOut], Any] = unchanged,
        of_slice: Callable[[Any, Batch, VirtualSlice], Any] | None = None,
        gathered: bool = True,
    ) -> None:
        count = step.reduce.slices
        if step.sync_batch_stats or step.gradients or len(devices) > count:
            raise ValueError(
                f"reduce='ordered' computes each of the {count} slices of a batch alone, and adds their gradients: leave out "
                f"sync_batch_stats=True and gradients=True, and pass at most {count} devices (there are {len(devices)})"
            )
        self._devices, self._is_alone = list(devices)[own_part(devices)], len(devices) == 1
        self._everywhere = sharding(devices)
        # A program computes one slice, or in a loop all slices of a device, whose number is then a power of 2.
        computing = _computing(devices)
        loops = computing[0].platform == "cpu" and not spans_processes(devices) and _is_dense(step.model)
        size = count // len(computing) if loops and count % len(computing) == 0 else 1
        of_parts, own = _owners(computing, count // size), process_slices(devices, count // size)
        self._owners, parts = of_parts[own or slice(None)], range(0, count, size)[own or slice(None)]
        spans = [np.array(first if size == 1 else (first, size), np.int32) for first in parts]
        self._spans = [jax.device_put(span, device) for span, device in zip(spans, self._owners, strict=True)]
        self._parts = [at if size == 1 else slice(at * size, (at + 1) * size) for at in range(len(parts))]

        def one(state: TrainState, batch: Batch, number: Any) -> Any:
            sums, outputs = slice_sums(step, state, batch, number, count)
            return sums, outputs if of_slice is None else of_slice(outputs, batch, VirtualSlice(number, count))

        def several(state: TrainState, batch: Batch, span: Any) -> Any:
            return loop_sums(one, state, batch, span)

        def finish(weighted: bool) -> Program:
            def fn(state: TrainState, sums: Any, axis_name: str | None = None) -> Any:
                state, out = step.finish(state, reduced(sums, state), state.local, weighted)
                return state, result(out)

            # With several devices, the arguments are the first device's buffers of arrays that the caller still has.
            donate = (0,) if self._is_alone else ()
            keyed = Made(fn, "finish", step, weighted, result)
            return compile_spmd(keyed, self._devices[:1], (None, None), None, donate=donate, name="train_update")

        made = Made(one if size == 1 else several, "slice", step, of_slice, count, size)
        options = KEEP_BARRIERS if step.recomputes and computing[0].platform == "cpu" else None
        self._slices = Program(made, functools.partial(jax.jit, compiler_options=options), name="train_slice")
        self._sum: Any = Program(tree_sum, jax.jit, name="train_sum") if len(of_parts) > 1 else lambda sums: sums[0]
        self._joined: Any = _stacked if size == 1 else _concatenated
        if own is not None:
            self._sum = Gather(of_parts, tree_sum, pairs=True, name="train_sum")
        if own is not None and gathered:
            self._joined = Gather(of_parts, self._joined, pairs=False, name="train_values")
        self._finish = {weighted: finish(weighted) for weighted in (False, True)}
        self._before: Any = None  # an array that is ready when the step before is done

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Any, Any]:
        """Run one step.

        Args:
            state: `TrainState`, replicated on the devices; donated if there is one device.
            batch: the slices of this process, (slices, rows, ...), from `split_batch`.

        Returns:
            (new `TrainState`, result, values of the slices with a leading axis (slices, ...)).
        """
        states, first = self._per_device(state), self._devices[0]
        read = {d: s._replace(opt_state=(), metrics=(), base_lr=None, local=None) for d, s in states.items()}
        parts = []
        for at, owner, span in zip(self._parts, self._owners, self._spans, strict=True):
            rows = jax.tree.map(lambda x, at=at, owner=owner: _rows(x, at, owner), batch)
            part = self._slices(read[owner], rows, span)
            parts.append(part if owner == first else jax.device_put(part, first))
        sums, values = zip(*parts, strict=True)
        del parts, read
        total = self._sum(sums)
        if self._before is not None and not self._before.is_deleted():
            counters.wait(self._before)  # sync: the step before, while this one runs; bounds the memory of gradients
        state, result = self._finish[batch.weight is not None](states[first], total)
        self._before = min(jax.tree.leaves(result), key=lambda leaf: leaf.nbytes)
        values = self._joined(values) if jax.tree.leaves(values) else values[0]
        return (state if self._is_alone else jax.device_put(state, self._everywhere)), result, values

    def _per_device(self, state: TrainState) -> dict[Any, TrainState]:
        """The arrays of a replicated state on each of the devices of this process, without copies."""
        if self._is_alone:
            return {self._devices[0]: state}
        leaves, tree = jax.tree.flatten(state)
        # by device: the state may come from a step whose devices are the same in another order
        parts = [{shard.device: shard.data for shard in leaf.addressable_shards} for leaf in leaves]
        return {device: tree.unflatten([of_leaf[device] for of_leaf in parts]) for device in self._devices}


def _rows(array: Any, at: Any, device: Any) -> Any:
    """A part of an array for a program of a device, which copies NumPy arrays to it faster than `jax.device_put`."""
    return array[at] if isinstance(array, np.ndarray) else jax.device_put(array[at], device)


@jax.jit
def _concatenated(values: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *values)


@jax.jit
def _stacked(values: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *xs: jnp.stack(xs), *values)
