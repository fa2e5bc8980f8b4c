"""The position of a shard of the batch: on the device axis of pmap or shard_map, or among the virtual slices of a batch.

Functions of a training step get `axis_name`, the name of the device axis, None for one device, or a `VirtualSlice`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import lax


class VirtualSlice(NamedTuple):
    """One of a fixed number of slices of a batch, computed as if a device of its own computed it.

    A device computes several of them one after the other, so that results do not depend on the number of devices.  There is
    no device axis, so collectives such as `lax.psum` are not possible.

    Attributes:
        index: number of the slice in the batch, int32 scalar, may be traced.
        count: number of slices of the batch.

    Example:
        >>> axis_index(VirtualSlice(2, 8)), axis_size(VirtualSlice(2, 8))
        (2, 8)
    """

    index: Any
    count: int


Axis = str | VirtualSlice | None


def device_axis(axis: str | VirtualSlice, what: str) -> str:
    """Return the name of the device axis, for a collective.

    Args:
        axis: name of the device axis, or `VirtualSlice`.
        what: what needs the values of all devices, for the error message.

    Raises:
        ValueError: `axis` is a `VirtualSlice`.
    """
    if isinstance(axis, VirtualSlice):
        problem = f"{what} needs values of the whole batch, but reduce='ordered' computes each slice of the batch alone"
        raise ValueError(f"{problem}; pass another reduce= (the default sums over devices), or leave that setting out")
    return axis


def axis_index(axis: str | VirtualSlice) -> Any:
    """Return the number of this shard of the batch: of the device on the axis, or of the virtual slice.

    Args:
        axis: name of the device axis, or `VirtualSlice`.
    """
    return axis.index if isinstance(axis, VirtualSlice) else lax.axis_index(axis)


def axis_size(axis: str | VirtualSlice) -> int:
    """Return the number of shards of the batch: of devices on the axis, or of virtual slices.

    Args:
        axis: name of the device axis, or `VirtualSlice`.
    """
    return axis.count if isinstance(axis, VirtualSlice) else lax.psum(1, axis)
