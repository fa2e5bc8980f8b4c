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
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jfit import counters
from jfit.data.batch import Batch, pad_rows, rows
from jfit.devices import resolve
from jfit.state import TrainState
from jfit.step import Step, StepOut

AXIS = "devices"  # name of the device axis inside a step
SPMD = "pmap"  # or "shard_map"

STATE_AXES = TrainState(None, None, None, None, None, None, None, 0)  # type: ignore[arg-type]
OUT_AXES = (STATE_AXES, StepOut(None, None, None, None, 0))  # type: ignore[arg-type]


def compile_spmd(
    fn: Callable[..., Any],
    devices: Sequence[jax.Device],
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
def sharding(devices: Sequence[jax.Device], split: bool = False) -> jax.sharding.Sharding:
    """Where replicated values (or, with split, values with a leading device axis) live."""
    if len(devices) == 1:
        return SingleDeviceSharding(devices[0])
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS) if split else PartitionSpec())


def place(tree: Any, devices: Any = None) -> Any:
    """The same values on every device, as the programs hold them, so that the first call compiles once.

    The result owns its buffers: what was passed in stays alive when the engine donates.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.parallel import place
        >>> place({"w": jnp.ones(2)})["w"].shape
        (2,)
    """
    where = sharding(resolve(devices))
    # device_put may return the same buffer, and one buffer twice in a donated tree is an error: copy
    return jax.tree.map(lambda x: jax.device_put(x, where, may_alias=False), tree)


def place_split(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """Arrays with a leading device axis, one slice on each device (one device: no such axis)."""
    where = sharding(devices, split=True)
    return jax.tree.map(lambda x: jax.device_put(x, where), tree)


def split_rows(x: Any, count: int, axis: int = 0) -> Any:
    """(batch, ...) as (devices, batch / devices, ...): a free view for numpy arrays on axis 0."""
    shape = x.shape
    cut = x.reshape((*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]))
    return cut if axis == 0 else np.moveaxis(cut, axis, 0)


def split_batch(batch: Batch, count: int, axes: Mapping[str, int] | None = None, multiple: int = 1) -> Batch:
    """A batch for `count` devices, padded to equal slices of a multiple of `multiple` rows (repeated rows, weight 0)."""
    size = rows(batch, axes)
    step = count * multiple
    if size % step:
        batch = pad_rows(batch, -(-size // step) * step, axes)
    if count == 1:
        return batch
    split = {k: split_rows(np.asarray(v), count, (axes or {}).get(k, 0)) for k, v in batch.inputs.items()}
    weights = (None if w is None else split_rows(w, count) for w in (batch.weight, batch.metric_weight))
    return Batch(split, *weights)


class DataParallel:
    """A train step on N devices: `parallel(state, batch) -> (state, out)` with the global batch."""

    def __init__(self, step: Step, devices: Any = None, *, batch_axes: Mapping[str, int] | None = None) -> None:
        self.devices = resolve(devices)
        self._axes = batch_axes
        self._program = compile_spmd(step, self.devices, (STATE_AXES, 0), OUT_AXES, donate=(0,), name="train_step")

    def place(self, state: TrainState) -> TrainState:
        """The state on all devices; do it once before the first call."""
        return place(state, self.devices)

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, StepOut]:
        """One update with the global batch; rows that do not divide are padded with weight 0."""
        whole = Batch(dict(batch)) if isinstance(batch, dict) else batch
        size = rows(whole, self._axes)
        state, out = self._program(state, split_batch(whole, len(self.devices), self._axes))
        if out.outputs is not None and len(self.devices) > 1:
            out = out._replace(outputs=tuple(o.reshape((-1, *o.shape[2:]))[:size] for o in out.outputs))
        return state, out


def data_parallel(step: Step, devices: Any = None, *, batch_axes: Mapping[str, int] | None = None) -> DataParallel:
    """g = Σ_devices Σ_rows: the same step through jit on one device and pmap on N.

    Args:
        step: from `jfit.train_step`, or any `step(state, batch, axis_name=None) -> (state, StepOut)`.
        devices: None, a number, "all" or a list (see `jfit.devices.resolve`).
        batch_axes: input name -> axis of the batch where it is not 0 (`model.batch_axes`).

    Returns:
        A callable with `.place(state)`; it splits the global batch into equal slices, pads where rows do not divide.

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
