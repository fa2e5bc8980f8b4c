"""Stage 4: the same step on N devices.  Split the batch, place the state once, pmap, psum.

This is the only file that names pmap.  Parameters are ONE replicated array of natural shape (out_axes=None): no leading device
axis, nothing to unreplicate.  `SPMD` chooses the twin: pmap is in maintenance upstream, and jit(shard_map) behind the same
signature is what replaces it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jfit import counters
from jfit.data.batch import Batch, check_batch, pad_rows, rows
from jfit.lowering.model import Model
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.parallel.devices import Device, resolve
from jfit.parallel.window import Window
from jfit.step import Step, StepOut
from jfit.step.state import TrainState

AXIS = "devices"  # name of the device axis inside a step
SPMD = "pmap"  # or "shard_map"

HOST_ALIGNMENT = 64  # host arrays at such addresses are not copied by a CPU device

STATE_AXES = TrainState(None, None, None, None, None, None, None, 0)  # type: ignore[arg-type]
OUT_AXES = (STATE_AXES, StepOut(None, None, None, None, 0, 0))  # type: ignore[arg-type]


def compile_spmd(
    fn: Callable[..., Any],
    devices: Sequence[Device],
    in_axes: tuple[Any, ...],
    out_axes: Any,
    *,
    donate: tuple[int, ...] = (),
    name: str = "program",
) -> Callable[..., Any]:
    """`fn(*args, axis_name=...)` as one program: jit on one device, one copy per device on several.

    Args:
        fn: pure; gets axis_name=None on one device, else the name of the device axis.
        devices: where it runs.
        in_axes: for each argument None (replicated) or 0 (a leading device axis), as pytree prefixes.
        out_axes: the same for the results.
        donate: arguments whose buffers are given up.
        name: what its traces are counted under.
    """
    axis = AXIS if len(devices) > 1 else None

    @functools.wraps(fn)
    def traced(*args: Any) -> Any:
        counters.count_trace(name)
        return fn(*args, axis_name=axis)

    if axis is None:
        return jax.jit(traced, donate_argnums=donate)
    twin = jax.pmap if SPMD == "pmap" else _shard_map
    return twin(traced, axis_name=AXIS, devices=list(devices), in_axes=in_axes, out_axes=out_axes, donate_argnums=donate)


def _shard_map(fn, *, axis_name, devices, in_axes, out_axes, donate_argnums):
    """The twin of pmap on jit(shard_map): same arguments, same results."""
    mesh = Mesh(np.array(devices), (axis_name,))
    is_none = lambda a: a is None  # noqa: E731
    spec = lambda a: PartitionSpec(axis_name) if a == 0 else PartitionSpec()  # noqa: E731

    def inner(*args: Any) -> Any:
        squeezed = [_each(lambda x, a: x[0] if a == 0 else x, arg, axes) for arg, axes in zip(args, in_axes, strict=True)]
        result = fn(*squeezed)
        return _each(lambda x, a: x[None] if a == 0 else x, result, out_axes)

    specs = (jax.tree.map(spec, in_axes, is_leaf=is_none), jax.tree.map(spec, out_axes, is_leaf=is_none))
    # check_vma=False: with it on, gradients of replicated parameters are psummed a second time
    mapped = jax.shard_map(inner, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    return jax.jit(mapped, donate_argnums=donate_argnums)


def _each(fn: Callable[[Any, Any], Any], tree: Any, axes: Any) -> Any:
    """`fn(leaf, axis)` over a pytree whose axes are given as a prefix tree."""
    is_none = lambda a: a is None  # noqa: E731
    return jax.tree.map(lambda a, sub: jax.tree.map(lambda x: fn(x, a), sub), axes, tree, is_leaf=is_none)


# ------------------------------------------------------------------------------------------------ placing
def sharding(devices: Sequence[Device], split: bool = False) -> jax.sharding.Sharding:
    """Where replicated values (or, with split, values with a leading device axis) live."""
    if len(devices) == 1:
        return SingleDeviceSharding(devices[0])
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS) if split else PartitionSpec())


def place(tree: Any, devices: Any = None) -> Any:
    """The same values on every device, as the programs hold them, so that the first call compiles once.

    The result owns its buffers: what was passed in stays alive when the engine donates.  Of a `TrainState` on several
    devices, `local` is not replicated but split along its leading device axis.

    Args:
        tree: any pytree of arrays, numpy or jax.
        devices: see `jfit.parallel.resolve`.

    Raises:
        ValueError: `state.local` has a leading axis of another length than there are devices.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.parallel.spmd import place
        >>> place({"w": jnp.ones(2)})["w"].shape
        (2,)
    """
    devices = resolve(devices)
    if isinstance(tree, TrainState) and tree.local is not None and len(devices) > 1:
        _check_local(tree.local, len(devices))
        local = _copied(tree.local, sharding(devices, split=True))
        return _copied(tree._replace(local=None), sharding(devices))._replace(local=local)
    return _copied(tree, sharding(devices))


def _copied(tree: Any, where: jax.sharding.Sharding) -> Any:
    def own(x: Any) -> Any:
        # Putting an array on several devices shares its buffer with the one it lies on, even with may_alias=False, and putting
        # aligned host memory on a CPU shares that memory: only copies made first may be donated and outlive the original.
        if isinstance(x, jax.Array):
            return jax.device_put(jax.device_put(x, may_alias=False), where)
        x = np.asarray(x)
        return jax.device_put(x.copy() if x.ctypes.data % HOST_ALIGNMENT == 0 else x, where)

    return jax.tree.map(own, tree)


def _check_local(local: Any, count: int) -> None:
    # a shorter leading axis would run on fewer devices without a word
    for path, leaf in jax.tree_util.tree_leaves_with_path(local):
        if np.shape(leaf)[:1] != (count,):
            raise ValueError(
                f"state.local{jax.tree_util.keystr(path)} has shape {np.shape(leaf)}, needed ({count}, ...): one slice for "
                "each of the devices; stack it along a leading device axis"
            )


def place_split(tree: Any, devices: Sequence[Device]) -> Any:
    """Arrays with a leading device axis, one slice on each device (one device: no such axis)."""
    where = sharding(devices, split=True)
    return jax.tree.map(lambda x: jax.device_put(x, where), tree)


def split_rows(x: Any, count: int, axis: int = 0) -> Any:
    """(batch, ...) as (devices, batch / devices, ...): a free view for numpy arrays on axis 0."""
    shape = x.shape
    cut = x.reshape((*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]))
    return cut if axis == 0 else np.moveaxis(cut, axis, 0)


def split_batch(batch: Batch, count: int, axes: Mapping[str, int] | None = None, multiple: int = 1) -> Batch:
    """A batch for `count` devices: every input gets a leading device axis.

    Args:
        batch: the global batch.
        count: number of devices; 1: no device axis.
        axes: input name -> axis of its rows where it is not 0.
        multiple: rows of a slice are a multiple of this; missing rows are repeated ones of weight 0.

    Example:
        >>> import numpy as np
        >>> from jfit.data import Batch
        >>> cut = split_batch(Batch({"data": np.arange(3.0)}), 2)
        >>> cut.inputs["data"].tolist(), cut.weight.tolist()
        ([[0.0, 1.0], [2.0, 0.0]], [[1.0, 1.0], [1.0, 0.0]])
    """
    size = rows(batch, axes)
    step = count * multiple
    if size % step:
        batch = pad_rows(batch, -(-size // step) * step, axes)
    if count == 1:
        return batch
    # arrays of a device stay there: reading them would make the host wait
    cut = lambda v, axis=0: split_rows(v if isinstance(v, jax.Array) else np.asarray(v), count, axis)  # noqa: E731
    split = {k: cut(v, (axes or {}).get(k, 0)) for k, v in batch.inputs.items()}
    return Batch(split, *(None if w is None else cut(w) for w in (batch.weight, batch.metric_weight)))


@functools.partial(jax.jit, static_argnums=(1, 2))
def merge_outputs(outputs: tuple[jax.Array, ...], rows: tuple[MaybeLayout, ...], real: int) -> tuple[jax.Array, ...]:
    """Outputs with a leading device axis as those of the whole batch of `real` rows, padding cut off.

    An output that does not depend on the batch is that of the first device; one that mixes its rows keeps the device axis.
    """
    return tuple(_merged(out, where, real) for out, where in zip(outputs, rows, strict=True))


def _merged(out: jax.Array, where: MaybeLayout, real: int) -> jax.Array:
    if not isinstance(where, RowLayout):
        return out[0] if where is None else out
    axis, shape = where.axis, out.shape[1:]
    apart = out.reshape((out.shape[0], *shape[:axis], where.before, -1, *shape[axis + 1 :]))
    side_by_side = jnp.moveaxis(apart, 0, axis + 1).reshape((*shape[:axis], where.before, -1, *shape[axis + 1 :]))
    kept = jax.lax.slice_in_dim(side_by_side, 0, real * where.after, axis=axis + 1)
    return kept.reshape((*shape[:axis], -1, *shape[axis + 1 :]))


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
        self._found: dict[Any, tuple[MaybeLayout, ...]] = {}
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
        if key not in self._found:
            self._found[key] = tuple(self._model.plan(shapes).rows)
        return self._found[key]


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
        merges the outputs that the step was told to return.  Calls return before the devices are done; the host is kept from
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
