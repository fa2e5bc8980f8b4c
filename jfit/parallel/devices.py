"""Devices, and arrays on them.

The first half turns `devices=` arguments (`cpu(0)`, a number, "all", a list) into `jax.Device`s.  The second half replicates
arrays on several devices or splits them along the batch axis, and merges the slices again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jfit.data.batch import Batch, pad_rows, rows
from jfit.ops.rows import MaybeLayout, RowLayout
from jfit.step.state import TrainState

Device: TypeAlias = Any  # a jax.Device, which type checkers take for a variable
AXIS = "devices"  # name of the device axis inside a step


class Context(NamedTuple):
    """A device by kind and number; the real one is looked up when it is needed.

    Example:
        >>> import jfit
        >>> jfit.cpu(0)
        cpu(0)
    """

    kind: str
    index: int = 0

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"

    @property
    def device(self) -> Device:
        """The `jax.Device`.

        Raises:
            ValueError: this machine has no such device (says how to emulate more CPU devices).
        """
        found = _local(self.kind)
        if self.index < 0:
            raise ValueError(f"{self!r} was asked for; devices are numbered from 0")
        if self.index >= len(found):
            have = _have(self.kind, len(found))
            raise ValueError(f"{self!r} was asked for, but {have}; {_remedy(self.kind, self.index + 1)}")
        return found[self.index]


def cpu(index: int = 0) -> Context:
    """CPU device `index`; it is looked up when it is used.

    Example:
        >>> import jfit
        >>> jfit.cpu(0)
        cpu(0)
    """
    return Context("cpu", index)


def gpu(index: int = 0) -> Context:
    """GPU device `index`; it is looked up when it is used.

    Example:
        >>> import jfit
        >>> jfit.gpu(1)
        gpu(1)
    """
    return Context("gpu", index)


def tpu(index: int = 0) -> Context:
    """TPU device `index`; it is looked up when it is used.

    Example:
        >>> import jfit
        >>> jfit.tpu(3)
        tpu(3)
    """
    return Context("tpu", index)


def resolve(devices: Any = None) -> list[Device]:
    """What `devices=` means: None = the default device, a number = the first so many, "all", a context, or a list.

    Raises:
        ValueError: more devices than exist, the same one twice, or something that is no device.

    Example:
        >>> from jfit.parallel.devices import resolve
        >>> len(resolve(None))
        1
    """
    if devices is None:
        return [jax.local_devices()[0]]
    if isinstance(devices, str):
        if devices == "all":
            return jax.local_devices()
        raise ValueError(f'devices={devices!r} is not understood; pass None, a number, "all", a device or a list of devices')
    if isinstance(devices, int | np.integer) and not isinstance(devices, bool):
        devices, have = int(devices), jax.local_devices()
        if not 1 <= devices <= len(have):
            kind = have[0].platform
            raise ValueError(f"devices={devices} was asked for, but {_have(kind, len(have))}; {_remedy(kind, devices)}")
        return have[:devices]
    if isinstance(devices, (Context, jax.Device)):
        devices = [devices]
    if not isinstance(devices, Sequence):
        raise ValueError(f'devices={devices!r} is not understood; pass None, a number, "all", a device or a list of devices')
    found = [d.device if isinstance(d, Context) else d for d in devices]
    if not found:
        raise ValueError("devices=[] names no device; pass None for the default device")
    if not all(isinstance(d, jax.Device) for d in found):
        raise ValueError(f"devices={devices!r} holds something that is no device; use jfit.cpu(i), jfit.gpu(i), jax.devices()")
    if len(set(found)) != len(found):
        raise ValueError(f"devices={devices!r} names a device twice; every device computes one slice of the batch")
    return found


def _local(kind: str) -> list[Device]:
    try:
        return jax.local_devices(backend=kind)
    except RuntimeError:
        return []


def _have(kind: str, count: int) -> str:
    return f"this machine has {count or 'no'} {kind} device{'' if count == 1 else 's'}"


def _remedy(kind: str, needed: int) -> str:
    if kind == "cpu":
        return (
            f"emulate more before jax starts: XLA_FLAGS=--xla_force_host_platform_device_count={needed}, or "
            f'jax.config.update("jax_num_cpu_devices", {needed})'
        )
    return "ask for fewer, or install jax with support for that kind of device"


HOST_ALIGNMENT = 64  # host arrays at such addresses are not copied by a CPU device
STATE_AXES = TrainState(None, None, None, None, None, None, None, 0)  # type: ignore[arg-type]  # as compile_spmd's axes


def sharding(devices: Sequence[Device], split: bool = False) -> jax.sharding.Sharding:
    """Where replicated values (or, with split, values with a leading device axis) live."""
    if len(devices) == 1:
        return SingleDeviceSharding(devices[0])
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS) if split else PartitionSpec())


def place(tree: Any, devices: Any = None) -> Any:
    """The same values on every device, in the sharding that compiled programs take: the first call compiles, the others do not.

    The result has buffers of its own: donating them leaves the arguments valid.  Of a `TrainState` on several
    devices, `local` is not replicated but split along its leading device axis.

    Args:
        tree: any pytree of arrays, numpy or jax.
        devices: see `jfit.parallel.resolve`.

    Raises:
        ValueError: `state.local` has a leading axis of another length than there are devices.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.parallel import place
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
    # with a shorter leading axis pmap would use fewer devices without an error
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


# ------------------------------------------------------------------------------------------------ merging
# Rows are put together in the form (..., before, rows, after, ...), which has an axis that counts rows and nothing else.
def rows_apart(array: Any, layout: RowLayout) -> Any:
    """(..., before * rows * after, ...) as (..., before, rows, after, ...): the rows lie on `layout.axis + 1`."""
    axis, shape = layout.axis, array.shape
    size = shape[axis] // (layout.before * layout.after)
    return array.reshape((*shape[:axis], layout.before, size, layout.after, *shape[axis + 1 :]))


def rows_of_slices(slices: Any, layout: RowLayout) -> Any:
    """(devices, ...) as the rows of all devices in order, (..., before, devices * rows, after, ...); numpy or jax."""
    lib, axis = np if isinstance(slices, np.ndarray) else jnp, layout.axis
    apart = lib.moveaxis(rows_apart(slices, layout._replace(axis=axis + 1)), 0, axis + 1)  # (..., before, devices, rows, ...)
    shape = apart.shape
    return apart.reshape((*shape[: axis + 1], shape[axis + 1] * shape[axis + 2], *shape[axis + 3 :]))


def rows_joined(apart: Any, axis: int, count: int | None = None) -> Any:
    """The first `count` rows of (..., before, rows, after, ...), as an array with one axis for the three."""
    apart = apart if count is None else apart[(*(slice(None),) * (axis + 1), slice(count))]
    shape = apart.shape
    return apart.reshape((*shape[:axis], math.prod(shape[axis : axis + 3]), *shape[axis + 3 :]))


@functools.partial(jax.jit, static_argnums=(1, 2))
def merge_outputs(outputs: tuple[jax.Array, ...], rows: tuple[MaybeLayout, ...], real: int) -> tuple[jax.Array, ...]:
    """Outputs with a leading device axis as those of the whole batch of `real` rows, padding cut off.

    An output that does not depend on the batch is that of the first device; one that mixes its rows keeps the device axis.
    """

    def merged(out: jax.Array, layout: MaybeLayout) -> jax.Array:
        if isinstance(layout, RowLayout):
            return rows_joined(rows_of_slices(out, layout), layout.axis, real)
        return out[0] if layout is None else out

    return tuple(merged(out, layout) for out, layout in zip(outputs, rows, strict=True))
