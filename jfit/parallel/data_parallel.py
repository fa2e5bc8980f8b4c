"""A train step on N devices, called with the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jfit import counters
from jfit.data.batch import Batch, check_batch, rows
from jfit.lowering.model import Model
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.parallel.devices import STATE_AXES, merge_outputs, place, resolve, split_batch
from jfit.parallel.spmd import Window, compile_spmd
from jfit.step import Step, StepOut
from jfit.step.state import TrainState

OUT_AXES = (STATE_AXES, StepOut(None, None, None, None, 0, 0))  # type: ignore[arg-type]


class DataParallel:
    """A train step on N devices: `parallel(state, batch) -> (state, out)` with the global batch.

    At most 16 calls are in flight: at every 8th call the host waits for the call 8 before it.

    Attributes:
        devices: where it runs.
    """

    def __init__(self, step: Step, devices: Any = None, *, batch_axes: Mapping[str, int] | None = None) -> None:
        self.devices = resolve(devices)
        self._model: Model | None = getattr(step, "model", None)
        self._multiple: int = getattr(step, "micro_batches", 1)
        self._axes = batch_axes if batch_axes is not None or self._model is None else self._model.batch_axes
        self._home = set(self.devices)
        self._layouts: dict[Any, tuple[MaybeLayout, ...]] = {}
        self._window = Window()
        self._program = compile_spmd(step, self.devices, (STATE_AXES, 0), OUT_AXES, donate=(0,), name="train_step")

    def place(self, state: TrainState) -> TrainState:
        """A copy of the state on all devices; do it once before the first call."""
        return place(state, self.devices)

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, StepOut]:
        """One update with the global batch; rows that do not divide are padded with weight 0.

        Asynchronous, but never more than 16 calls ahead of the devices.
        """
        whole = check_batch(Batch(dict(batch)) if isinstance(batch, dict) else batch, self._axes)
        if not isinstance(state.step, jax.Array) or state.step.devices() != self._home:
            state = self.place(state)
        count, size = len(self.devices), rows(whole, self._axes)
        split = split_batch(whole, count, self._axes, self._multiple)
        state, out = self._program(state, split)
        fence = self._window.push(_fence_of(state, out))
        if fence is not None and not fence.is_deleted():  # the caller may have donated it
            counters.wait(fence)  # sync: the host waits for the call 8 back
        if count > 1 and getattr(out, "outputs", None) is not None:
            out = out._replace(outputs=merge_outputs(out.outputs, self._rows(split, out.outputs), size))
        return state, out

    def _rows(self, split: Batch, outputs: tuple[jax.Array, ...]) -> tuple[MaybeLayout, ...]:
        """Where the rows of the outputs of one device's slice are."""
        if self._model is None:
            return tuple(RowLayout(0, 1, o.shape[1], 1) if o.ndim > 1 else LOST for o in outputs)
        shapes = {k: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for k, v in split.inputs.items()}
        key = tuple(shapes.items())
        if key not in self._layouts:
            self._layouts[key] = tuple(self._model.plan(shapes).rows)
        return self._layouts[key]


def _fence_of(state: Any, out: Any) -> jax.Array:
    """A small array that is ready when the step is, and that the next call does not donate."""
    if isinstance(out, StepOut):
        return out.fence
    leaves = jax.tree.leaves(out)
    return min(leaves, key=lambda leaf: leaf.nbytes) if leaves else _copy(state.step)


_copy = jax.jit(lambda x: x + 0)


def data_parallel(step: Step, devices: Any = None, *, batch_axes: Mapping[str, int] | None = None) -> DataParallel:
    """g = Σ_devices Σ_rows: the same step through jit on one device and pmap on N.

    Args:
        step: from `jfit.train_step`, or any `step(state, batch, axis_name=None) -> (state, StepOut)`.
        devices: None, a number, "all" or a list (see `jfit.parallel.resolve`).
        batch_axes: input name -> axis of the batch where it is not 0; default: the model's.

    Returns:
        A callable with `.place(state)`; it splits the global batch into equal slices, pads where rows do not divide, and
        merges the outputs where the step returns them.  Calls return before the devices are done; the host is kept from
        running more than 16 calls ahead.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> step = jfit.data_parallel(jfit.train_step(model, "sgd"), devices=1)
        >>> state, out = step(step.place(jfit.init_state(model, "sgd", batch)), batch)
        >>> int(state.step)
        1
    """
    return DataParallel(step, devices, batch_axes=batch_axes)
