"""Data-parallel training steps, called with the global batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np

from jfit import counters
from jfit.data.batch import Batch, as_batch, check_batch, flat_inputs, rows
from jfit.lowering.coupling import warn_per_device
from jfit.lowering.model import Model, verified_plan
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.parallel.contexts import check_entry, job_devices
from jfit.parallel.devices import (
    STATE_AXES,
    check_same_devices,
    merge_outputs,
    own_part,
    place,
    place_split,
    spans_processes,
    split_batch,
)
from jfit.parallel.mesh import SplitDevices, split_devices
from jfit.parallel.ordered import OrderedSteps, process_slices, slices_of
from jfit.parallel.replicas import shares_buffers
from jfit.parallel.spmd import GATHERED, Window, compile_spmd
from jfit.parallel.whole import host_state, is_spread, with_whole_params
from jfit.step import Step, StepOut
from jfit.step.reduce import Reduce, all_reduce, with_local
from jfit.step.state import TrainState, split_params
from jfit.step.train import TrainStep

OUT_AXES = (STATE_AXES, StepOut(None, None, None, None, 0, 0))  # type: ignore[arg-type]


class DataParallel:
    """Run a training step on N devices: each computes the gradients of its shard of the batch, psum adds them.

    `parallel = data_parallel(step, devices)` is called with the global batch, `parallel(state, batch) -> (state, out)`, after
    its `place(state)`.  It splits the batch into equal shards, pads it with rows of weight 0 if needed, and concatenates the
    outputs if the step returns them.  Calls return before the devices are done; the host waits if more than 16 calls are
    queued.  In a job of several processes all of them call it alike.

    Args:
        step: from `jfit.train_step`, or any function `step(state, batch, axis_name=None) -> (state, StepOut)`.
        devices: None (the default device), a number, "all" or a list of devices (see `jfit.parallel.resolve`).
        batch_axes: input name -> batch axis, for inputs whose batch axis is not 0.  None: those of the model.
        reduce: how the devices reduce their gradients, in place of the rule of a step from `train_step`: "psum", "sharded",
            "ordered" or another name or `Reduce` of `jfit.step.reduce`.  None: the rule of the step.
        own_rows: in a job of several processes, whether each passes its own rows of the global batch, by rank: as many as the
            others, with row weights if the others have them.  The outputs are then those of its own rows.  False: all
            processes pass the same global batch, of which each reads the rows of its own devices.

    Attributes:
        devices: list of `jax.Device`, in a job those of all processes.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> step = jfit.data_parallel(jfit.train_step(model, "sgd"), devices=1)
        >>> state, out = step(step.place(jfit.init_state(model, "sgd", batch)), batch)
        >>> int(state.step), len(step.devices)
        (1, 1)
    """

    def __init__(
        self,
        step: Step,
        devices: Any = None,
        *,
        batch_axes: Mapping[str, int] | None = None,
        reduce: Reduce | str | None = None,
        own_rows: bool = False,
    ) -> None:
        check_entry("jfit.data_parallel", several=True)
        devices = job_devices(devices)
        check_same_devices(devices, "jfit.data_parallel")
        step = step if reduce is None else dataclasses.replace(cast(TrainStep, step), reduce=reduce)
        self.devices = split_devices(devices, step)
        self._model = cast(Model | None, getattr(step, "model", None))
        slices, spans, own = slices_of(step), spans_processes(devices), own_part(devices)
        self._home = set(devices[own])
        self._own_rows = own_rows and spans
        # the parts of a batch that this process computes
        self._own = own if slices is None else process_slices(devices, slices, equal=self._own_rows) or slice(0, slices)
        parts = slices or len(devices)
        self._parts = self._own.stop - self._own.start if self._own_rows else parts  # into how many parts a batch is cut
        # whether its arrays get a leading axis of parts
        self._splits = parts > 1 or slices is not None
        self._multiple: int = getattr(step, "micro_batches", 1)
        self._axes = batch_axes if batch_axes is not None or self._model is None else self._model.batch_axes
        self._frozen = getattr(step, "frozen", ())
        self._syncs: bool = getattr(step, "sync_batch_stats", False)
        self._checked: set[Any] = set()  # sizes of batches; of batches that are padded, the shapes
        self._layouts: dict[Any, tuple[MaybeLayout, ...]] = {}
        self._window = Window()
        self._returned: int | None = None  # id of the state of the last call
        self._rule: Reduce = getattr(step, "reduce", None) or all_reduce()
        self._ordered = None if slices is None else OrderedSteps(step, devices, gathered=not self._own_rows)
        if self._ordered is None:
            state_axes, out_axes = OUT_AXES
            out_axes = (state_axes, out_axes if self._own_rows else out_axes._replace(outputs=GATHERED))
            how = {"donate": (0,), "name": "train_step", "recomputes": getattr(step, "recomputes", False)}
            self._program = compile_spmd(step, self.devices, (STATE_AXES, 0), out_axes, **how)

    def place(self, state: TrainState) -> TrainState:
        """Copy the state to all devices; call it once before the first step.

        Args:
            state: a `TrainState`.

        Returns:
            The replicated `TrainState`.  If the reduction rule has a state, such as the residuals of "2bit", and the state has
            none yet, it is added as `local`, with a leading device axis.  With reduce="sharded", the arrays of the optimizer
            state are split over the devices, with "sharded_parameters" the parameters, too.

        Raises:
            ValueError: `local` has residuals of another number of devices.
        """
        if self._model is not None:
            state = self._whole(state)
            trainable, _ = split_params(self._model, state.params, self._frozen)
            state = with_local(state, self._rule, trainable, len(self.devices))
        return place(state, self.devices)

    def _whole(self, state: TrainState) -> TrainState:
        leaves, count = jax.tree.leaves(state.local), len(self._home)
        is_part = leaves and count < len(self.devices) and all(isinstance(x, jax.Array) and len(x) == count for x in leaves)
        if is_part or any(map(is_spread, jax.tree.leaves((state.params, state.opt_state)))):
            return host_state(state, self.devices)  # from an earlier step: this process has the parts of its own devices only
        return state

    def _split(self, batch: Batch) -> Batch:
        """Split a batch over the devices; of the devices of other processes, this one has no slices."""
        own = (slice(None) if self._own_rows else self._own) if self._splits else None
        split = split_batch(batch, self._parts, self._axes, self._multiple, own=own)
        return place_split(split, self.devices) if isinstance(self.devices, SplitDevices) else split

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, StepOut]:
        """Run one update with the global batch.

        Args:
            state: `TrainState` from `place` or from the previous call; it is donated.
            batch: `jfit.Batch` or dict of arrays by input name.  If the number of rows is not divisible by the number of
                devices (times micro-batches), it is padded with rows of weight 0.  NumPy arrays may be changed after the call:
                for several devices they are copied, because the devices read them later.

        Returns:
            (new `TrainState`, `StepOut`); the call returns before the devices are done.

        Raises:
            ValueError: the batch has no rows, or rows that affect each other and must be padded.
        """
        state, whole = self._prepared(state, batch)
        size = rows(whole, self._axes)
        self._check_rows(state, whole, size)
        split = self._split(whole)  # with a leading axis of its parts, on which the outputs depend
        if self._ordered is None:
            state, out = self._program(state, split)
        else:
            state, out, outputs = self._ordered(state, split)
            out = out._replace(outputs=outputs)
        self._returned = id(state)
        fence = self._window.push(_fence_of(state, out))
        if fence is not None and not fence.is_deleted():  # the caller may have donated the array to another function
            counters.wait(fence)  # sync: at every 8th call, the host waits for the call 8 before it
        outputs = getattr(out, "outputs", None)
        if self._splits and outputs is not None:
            out = out._replace(outputs=merge_outputs(outputs, self._rows(split, outputs), size))
        return state, out

    def _prepared(self, state: TrainState, batch: Any) -> tuple[TrainState, Batch]:
        batch = as_batch(batch)
        whole = check_batch(batch._replace(inputs=dict(flat_inputs(batch.inputs))), self._axes)
        if self._splits:  # programs of several devices read NumPy arrays after the call has returned
            whole = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, whole)
        if not isinstance(state.step, jax.Array) or state.step.devices() != self._home:
            state = self.place(state)
        elif id(state) != self._returned and (
            shares_buffers(state, by_address=self._returned is None) or self._is_split_otherwise(state)
        ):
            state = self.place(state)  # copies: XLA cannot donate a buffer twice, and pmap may then abort the process
        return state, whole

    def _is_split_otherwise(self, state: TrainState) -> bool:
        """Whether the state is that of another rule, so that it would be compiled for, and gathered or split in each call."""
        where = self.devices.shardings(state) if isinstance(self.devices, SplitDevices) else None
        leaves = jax.tree.leaves((state.params, state.opt_state))
        is_whole = [x.is_fully_replicated for x in jax.tree.leaves(where and (where.params, where.opt_state))]
        expected = is_whole or [True] * len(leaves)
        return any(isinstance(x, jax.Array) and x.is_fully_replicated != e for x, e in zip(leaves, expected, strict=True))

    def lower(self, state: TrainState, batch: Any) -> Any:
        """Lower the program of a step with a batch of this size, to look at it or to pass it to `jfit.parallel.collectives`.

        Args:
            state: `TrainState`; not donated.
            batch: `jfit.Batch` or dict of arrays by input name.

        Returns:
            `jax.stages.Lowered`, with `as_text()` and `compile()`.

        Raises:
            ValueError: the step has reduce="ordered", so that it is not one program.

        Example:
            >>> import jax.numpy as jnp, jfit
            >>> model = jfit.Model.from_function(lambda p, x: x * p["w"], loss=jnp.subtract, params={"w": jnp.float32(1)})
            >>> batch, parallel = {"x": jnp.ones(2), "label": jnp.ones(2)}, jfit.data_parallel(jfit.train_step(model))
            >>> "stablehlo" in parallel.lower(jfit.init_state(model, "sgd", batch), batch).as_text()
            True
        """
        if self._ordered is not None:
            raise ValueError(
                "a step with reduce='ordered' consists of several programs of one device each, so there is no program to lower"
            )
        state, whole = self._prepared(state, batch)
        return self._program.lower(state, self._split(whole))

    def _check_rows(self, state: TrainState, batch: Batch, size: int) -> None:
        """Raise an error for batches without rows, or if rows that affect each other must be padded; warn if they are split."""
        model, unit = self._model, self._parts * self._multiple
        key = tuple((name, x.shape) for name, x in batch.inputs.items()) if size % unit else size
        if model is None or model.verify is None or key in self._checked:
            return
        plan = verified_plan(model, with_whole_params(state, self.devices).params, state.aux, batch.inputs)
        if size % unit and not plan.paddable:
            problem = f"{size} rows, which do not divide into {unit} equal parts"
            raise ValueError(f"the batch has {problem}, and it cannot be padded: {plan.reason}")
        if not self._checked:
            warn_per_device(plan, self._parts, stacklevel=3, synced=self._syncs, slices=self._rule.slices)
        self._checked.add(key)

    def _rows(self, split: Batch, outputs: tuple[jax.Array, ...]) -> tuple[MaybeLayout, ...]:
        """Return the row layout of each output of one device, with which the outputs of all devices are concatenated.

        Args:
            split: the batch with a leading device axis.
            outputs: outputs of the step with a leading device axis.
        """
        if self._model is None:
            return tuple(RowLayout(0, 1, o.shape[1], 1) if o.ndim > 1 else LOST for o in outputs)
        shapes = {k: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for k, v in split.inputs.items()}
        key = tuple(shapes.items())
        if key not in self._layouts:
            self._layouts[key] = tuple(self._model.plan(shapes).rows)
        return self._layouts[key]


def _fence_of(state: Any, out: Any) -> jax.Array:
    """Return a small array that is ready when the step is done, and that the next call of the step does not donate."""
    if isinstance(out, StepOut):
        return out.fence
    leaves = jax.tree.leaves(out)
    return min(leaves, key=lambda leaf: leaf.nbytes) if leaves else _copy(state.step)


_copy = jax.jit(lambda x: x + 0)


data_parallel = DataParallel  # the public name
