"""Placement of arrays on devices: replicated, split along the batch axis, in a job on those of this process; concatenation of
per-device slices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jfit.data.batch import Batch, pad_rows, rows
from jfit.distributed import RanksDiffer, exchange
from jfit.ops.rows import MaybeLayout, RowLayout
from jfit.parallel.contexts import Device, resolve
from jfit.parallel.mesh import AXIS, MeshDevices, SplitDevices
from jfit.step.state import TrainState

HOST_ALIGNMENT = 64  # jax shares the memory of numpy arrays that are aligned to this many bytes with a CPU device
STATE_AXES = TrainState(None, None, None, None, None, None, None, 0)  # type: ignore[arg-type]  # pytree prefix: axes of a TrainState for `compile_spmd`


def check_unsharded(kind: str, arrays: Mapping[str, Any]) -> None:
    """Raise an error if an array is sharded over several devices: jfit keeps a whole copy of every parameter on each device.

    Args:
        kind: "params" or "aux", for the message.
        arrays: arrays by name.

    Raises:
        ValueError: an array is sharded; the message names it.

    Example:
        >>> check_unsharded("params", {"w": jnp.ones(2)})
    """
    for name, value in arrays.items():
        sharding = getattr(value, "sharding", None)
        if isinstance(value, jax.Array) and sharding is not None and not sharding.is_fully_replicated:
            count = len(sharding.device_set)
            raise ValueError(
                f"{kind}[{name!r}] is sharded over {count} devices, not by shard= of fit; pass jax.device_get({kind})"
            )


def sharding(devices: Sequence[Device], split: bool = False) -> jax.sharding.Sharding:
    """Make the sharding of arrays that are replicated on devices, or split over them along a leading device axis.

    Args:
        devices: list of `jax.Device`, or the devices of a mesh, on which arrays without a device axis are replicated.
        split: whether axis 0 is split over the devices; False: every device has the whole array.

    Returns:
        `jax.sharding.Sharding`.

    Example:
        >>> import jax
        >>> sharding(jax.devices()[:1]).is_fully_replicated
        True
    """
    if isinstance(devices, MeshDevices):
        return devices.replicated
    if len(devices) == 1:
        return SingleDeviceSharding(devices[0])
    # in a job of several processes, each has arrays of its own, which pmap joins: their sharding has its own devices only
    own = list(devices)[own_part(devices)] if spans_processes(devices) else devices
    return NamedSharding(Mesh(np.array(own), (AXIS,)), PartitionSpec(AXIS) if split else PartitionSpec())


def place(tree: Any, devices: Any = None) -> Any:
    """Replicate a pytree on devices, in the sharding that compiled steps expect (another sharding would compile them again).

    The result never shares memory with `tree`, so it can be donated.  In a `TrainState`, the per-device state `local` is split
    along its leading device axis instead of replicated.

    Args:
        tree: any pytree of arrays, numpy or jax.
        devices: None (the default device), a number, "all" or a list of devices (see `jfit.parallel.resolve`).

    Returns:
        Pytree of `jax.Array` on the devices.

    Raises:
        ValueError: the leading axis of `state.local` is not the number of devices.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.parallel import place
        >>> place({"w": jnp.ones(2)})["w"].shape
        (2,)
    """
    is_known = isinstance(devices, (MeshDevices, SplitDevices))
    return place_on(tree, devices if is_known else resolve(devices))


def place_on(tree: Any, devices: Sequence[Device]) -> Any:
    """Replicate a pytree as `place` does, on the devices of a list."""
    if isinstance(devices, MeshDevices):
        where = devices.shardings(tree) if isinstance(tree, TrainState) else devices.replicated
        return _copied(tree, where)
    if not isinstance(tree, TrainState) or len(devices) == 1:
        return _copied(tree, sharding(devices))
    mine, own = own_slices(tree.local, devices), own_part(devices)
    _check_local(mine, own.stop - own.start)
    local, tree = _copied(mine, sharding(devices, split=True)), tree._replace(local=None)
    where = whole = sharding(devices)
    if isinstance(devices, SplitDevices):
        where = jax.tree.map(lambda x: whole if x.is_fully_replicated else x, devices.shardings(tree))
    return _copied(tree, where)._replace(local=local)


def place_shared(tree: Any, devices: Sequence[Device]) -> Any:
    """Replicate arrays as `place` does, but share the memory of NumPy arrays where JAX can: do not write to them later.

    Args:
        tree: pytree of NumPy arrays.
        devices: list of `jax.Device`.

    Returns:
        Pytree of `jax.Array`, which must not be donated.  On a CPU device, an array whose address is a multiple of 64 bytes
        shares the memory of the NumPy array.

    Example:
        >>> import jax, numpy as np
        >>> place_shared(np.ones(3), jax.devices()[:1]).shape
        (3,)
    """
    where = sharding(devices)
    return jax.tree.map(lambda x: jax.device_put(x, where), tree)


def _copied(tree: Any, where: Any) -> Any:
    """Copy the leaves of a tree; `where` is one sharding, or a tree of them."""

    def own(x: Any, where: jax.sharding.Sharding) -> Any:
        # device_put to several devices shares the buffer on the source device, even with may_alias=False, and device_put of
        # aligned host memory (or of aligned slices) to a CPU device shares that memory.  So copy first: the result must be safe
        # to donate.
        if isinstance(x, jax.Array) and where.is_fully_addressable:
            return jax.device_put(jax.device_put(x, may_alias=False), where)
        if is_spread(x):  # of a split checkpoint, which was read into this sharding
            return jax.device_put(x, where)
        x = np.asarray(x)
        if not where.is_fully_addressable:  # of several processes, each of which has the whole array
            return jax.make_array_from_callback(x.shape, where, lambda index: np.array(x[index]))
        on_cpu = next(iter(where.device_set)).platform == "cpu"  # elsewhere, device_put always copies
        shared = x.ctypes.data % HOST_ALIGNMENT == 0 or not where.is_fully_replicated
        return jax.device_put(x.copy() if on_cpu and shared else x, where)

    if isinstance(where, jax.sharding.Sharding):
        return jax.tree.map(lambda x: own(x, where), tree)
    return jax.tree.map(own, tree, where)


def _check_local(local: Any, count: int) -> None:
    # If the leading axis of `local` were shorter than the list of devices, pmap would use fewer devices without an error.
    for path, leaf in jax.tree_util.tree_leaves_with_path(local):
        if np.shape(leaf)[:1] != (count,):
            name = f"state.local{jax.tree_util.keystr(path)}"
            raise ValueError(f"{name} has shape {np.shape(leaf)}, expected ({count}, ...): one slice per device")


def place_split(tree: Any, devices: Sequence[Device]) -> Any:
    """Put arrays with a leading device axis on devices, one slice per device.

    Args:
        tree: pytree of arrays (devices, ...); with one device, arrays without that axis.
        devices: list of `jax.Device`.

    Returns:
        Pytree of `jax.Array`.

    Example:
        >>> import jax, numpy as np
        >>> place_split(np.ones(3), jax.devices()[:1]).shape
        (3,)
    """
    where = sharding(devices, split=True)
    return jax.tree.map(lambda x: jax.device_put(x, where), own_slices(tree, devices))


def own_slices(tree: Any, devices: Sequence[Device]) -> Any:
    """Take the slices of the devices of this process from arrays with a leading axis of the devices of all processes.

    Args:
        tree: pytree of arrays (devices, ...); arrays whose leading axis has the devices of this process only stay as they are.
        devices: list of `jax.Device`.

    Example:
        >>> import jax
        >>> own_slices(np.ones((1, 3)), jax.devices()[:1]).shape
        (1, 3)
    """
    if not spans_processes(devices):
        return tree
    own = own_part(devices)
    return jax.tree.map(lambda x: x[own] if np.shape(x)[:1] == (len(devices),) else x, tree)


def is_spread(x: Any) -> bool:
    """Return whether an array is split over the devices of several processes, so that to read it needs all of them."""
    return isinstance(x, jax.Array) and not x.is_fully_addressable


def split_rows(x: Any, count: int, axis: int = 0) -> Any:
    """Reshape (batch, ...) to (devices, batch / devices, ...); numpy arrays are not copied if `axis` is 0.

    Args:
        x: array, numpy or jax.
        count: number of devices.
        axis: batch axis of `x`.
    """
    shape = x.shape
    cut = x.reshape((*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]))
    return cut if axis == 0 else np.moveaxis(cut, axis, 0)


def split_batch(
    batch: Batch, count: int, axes: Mapping[str, int] | None = None, multiple: int = 1, *, own: slice | None = None
) -> Batch:
    """Split a batch over devices: every array gets a leading device axis, (devices, rows, ...).

    Args:
        batch: the global batch.
        count: number of devices; with 1, no device axis is added.
        axes: input name -> batch axis, for inputs whose batch axis is not 0; None: all are 0.
        multiple: number by which the number of rows per device must be divisible; if necessary, the batch is padded with
            repeated rows of weight 0.
        own: slices to return, those of the devices of this process, see `own_part`; None: all.

    Returns:
        `Batch`; its row weights are arrays, not None, if the batch was padded.

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
    if count == 1 and own is None:
        return batch
    # jax arrays stay on their device: converting them to numpy would make the host wait.
    part = slice(None) if own is None else own

    def cut(v: Any, axis: int | None = 0) -> Any:
        v = v if isinstance(v, jax.Array) else np.asarray(v)
        if axis is None:  # every device gets the whole array
            return (jnp if isinstance(v, jax.Array) else np).broadcast_to(v, (count, *v.shape))[part]
        return split_rows(v, count, axis)[part]

    split = {k: cut(v, (axes or {}).get(k, 0)) for k, v in batch.inputs.items()}
    return Batch(split, *(None if w is None else cut(w) for w in (batch.weight, batch.metric_weight)))


# ------------------------------------------------------------------------------------------------ jobs of several processes
def own_part(devices: Sequence[Device]) -> slice:
    """Return which consecutive devices of a list belong to this process.

    Args:
        devices: list of `jax.Device`, by rank (see `across`).

    Example:
        >>> import jax
        >>> own_part(jax.local_devices()[:1])
        slice(0, 1, None)
    """
    own = [i for i, device in enumerate(devices) if device.process_index == jax.process_index()]
    return slice(own[0], own[-1] + 1) if own else slice(0, 0)


def spans_processes(devices: Sequence[Device]) -> bool:
    """Whether a list has devices of other processes.

    Args:
        devices: list of `jax.Device`.

    Example:
        >>> import jax
        >>> spans_processes(jax.local_devices())
        False
    """
    own = own_part(devices)
    return own.stop - own.start < len(devices)


def own_positions(devices: Sequence[Device]) -> list[int] | None:
    """Return the positions that the devices of this process have among all of its devices; None if one process has all.

    Args:
        devices: list of `jax.Device` of all processes (see `across`).

    Example:
        >>> own_positions(jax.local_devices()) is None
        True
    """
    if not spans_processes(devices):
        return None
    own = list(devices)[own_part(devices)]
    local = jax.local_devices(backend=own[0].platform)
    return [local.index(device) for device in own]


def check_same_devices(devices: Sequence[Device], entry: str) -> None:
    """Check that all processes of a job use devices at the same positions; do nothing if one process has all devices.

    All processes must call it.

    Args:
        devices: list of `jax.Device` of all processes (see `across`).
        entry: name of the function, for the message.

    Raises:
        RanksDiffer: in all processes, if two differ.

    Example:
        >>> check_same_devices(jax.local_devices(), "jfit.score")
    """
    positions = own_positions(devices)
    if positions is None:
        return
    found = exchange(positions, f"the devices of {entry}")
    other = next((rank for rank, theirs in enumerate(found) if theirs != found[0]), None)
    if other is not None:
        raise RanksDiffer(
            f"{entry}: rank {other} of the job uses {len(found[other])} device(s), number {found[other]} of its process, but "
            f"rank 0 uses {len(found[0])}, number {found[0]}; pass the same devices= in all processes"
        )


def own_slices_of(devices: Sequence[Device]) -> slice | None:
    """Return which slices of a global batch, one per device, this process computes; None if one process has all devices.

    Args:
        devices: list of `jax.Device` of all processes, in the order of their ranks (see `across`).

    Example:
        >>> own_slices_of(jax.local_devices()) is None
        True
    """
    return own_part(devices) if spans_processes(devices) else None


# ------------------------------------------------------------------------------------------------ concatenating slices
# An axis of an output may contain each row several times, as a `RowLayout` describes: the axis is (before, rows, after) merged
# into one.  Slices are concatenated in the shape (..., before, rows, after, ...), in which the rows are a separate axis.
def split_row_axis(array: Any, layout: RowLayout) -> Any:
    """Reshape (..., before * rows * after, ...) to (..., before, rows, after, ...), with the rows as axis `layout.axis + 1`.

    `layout` is a `RowLayout`: before and after are the factors of the axis that merged axes around the rows contribute.
    """
    axis, shape = layout.axis, array.shape
    size = shape[axis] // (layout.before * layout.after)
    return array.reshape((*shape[:axis], layout.before, size, layout.after, *shape[axis + 1 :]))


def concat_slices(slices: Any, layout: RowLayout) -> Any:
    """Concatenate per-device slices along the rows: (devices, ...) -> (..., before, devices * rows, after, ...).

    Args:
        slices: numpy or JAX array with a leading device axis; each slice has the row layout `layout`.
        layout: axis of a slice that contains the rows, and its factors `before` and `after` (see `split_row_axis`).
    """
    lib, axis = np if isinstance(slices, np.ndarray) else jnp, layout.axis
    split = lib.moveaxis(
        split_row_axis(slices, layout._replace(axis=axis + 1)), 0, axis + 1
    )  # (..., before, devices, rows, ...)
    shape = split.shape
    return split.reshape((*shape[: axis + 1], shape[axis + 1] * shape[axis + 2], *shape[axis + 3 :]))


def merge_row_axis(split: Any, axis: int, count: int | None = None) -> Any:
    """Take the first `count` rows of (..., before, rows, after, ...) and merge the three axes into axis `axis`.

    The inverse of `split_row_axis`.  None for `count` takes all rows.
    """
    split = split if count is None else split[(*(slice(None),) * (axis + 1), slice(count))]
    shape = split.shape
    return split.reshape((*shape[:axis], math.prod(shape[axis : axis + 3]), *shape[axis + 3 :]))


@functools.partial(jax.jit, static_argnums=(1, 2))
def merge_outputs(outputs: tuple[jax.Array, ...], rows: tuple[MaybeLayout, ...], real: int) -> tuple[jax.Array, ...]:
    """Concatenate the outputs of all devices to the outputs of the whole batch, without padding rows.

    Args:
        outputs: outputs of the model with a leading device axis.
        rows: row layout of each output.  None: the output does not depend on the batch; that of the first device is returned.
            LOST: the rows cannot be separated, and the output is returned with the device axis.
        real: number of rows of the batch without padding rows.
    """

    def merged(out: jax.Array, layout: MaybeLayout) -> jax.Array:
        if isinstance(layout, RowLayout):
            return merge_row_axis(concat_slices(out, layout), layout.axis, real)
        return out[0] if layout is None else out

    return tuple(merged(out, layout) for out, layout in zip(outputs, rows, strict=True))
