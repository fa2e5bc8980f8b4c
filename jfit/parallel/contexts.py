"""Devices by kind and number (`cpu(0)`), and `devices=` arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.sharding import AxisType

from jfit import forks
from jfit.distributed import num_processes

Device: TypeAlias = Any  # a jax.Device: type checkers do not accept that name as a type


class Context(NamedTuple):
    """A device by kind and number, as in MXNet.  The `jax.Device` is looked up when it is used.

    Attributes:
        kind: "cpu", "gpu" or "tpu".
        index: number of the device, from 0.

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
            ValueError: this machine has no such device; the message explains how to emulate more CPU devices.
        """
        try:
            local = jax.local_devices(backend=self.kind)
        except RuntimeError:
            local = []
        if not 0 <= self.index < len(local):
            raise _not_available(repr(self), self.kind, len(local), self.index + 1)
        return local[self.index]


def cpu(index: int = 0) -> Context:
    """Context of a CPU device, for `devices=` arguments.

    Args:
        index: number of the device, from 0.

    Returns:
        `Context`; the device is looked up when it is used, so it need not exist yet.

    Example:
        >>> import jfit
        >>> jfit.cpu(0)
        cpu(0)
    """
    return Context("cpu", index)


def gpu(index: int = 0) -> Context:
    """Context of a GPU device, for `devices=` arguments.

    Args:
        index: number of the device, from 0.

    Returns:
        `Context`; the device is looked up when it is used, so it need not exist yet.

    Example:
        >>> import jfit
        >>> jfit.gpu(1)
        gpu(1)
    """
    return Context("gpu", index)


def tpu(index: int = 0) -> Context:
    """Context of a TPU device, for `devices=` arguments.

    Args:
        index: number of the device, from 0.

    Returns:
        `Context`; the device is looked up when it is used, so it need not exist yet.

    Example:
        >>> import jfit
        >>> jfit.tpu(3)
        tpu(3)
    """
    return Context("tpu", index)


def resolve(devices: Any = None) -> list[Device]:
    """Convert a `devices=` argument to a list of devices.

    Args:
        devices: None for the default device, a number n for the first n, "all", a `jax.Device`, a `Context`, or a list of
            these two.

    Returns:
        List of `jax.Device`.

    Raises:
        ValueError: more devices than exist, a device twice, or not a device.

    Example:
        >>> from jfit.parallel.contexts import resolve
        >>> len(resolve(None))
        1
    """
    have = jax.local_devices()
    if devices is None:
        return have[:1]
    if isinstance(devices, str) and devices == "all":
        return have
    if isinstance(devices, int | np.integer) and devices > 0:
        if devices > len(have):
            raise _not_available(f"devices={devices}", have[0].platform, len(have), int(devices))
        return have[: int(devices)]
    listed = devices if isinstance(devices, Sequence) and not isinstance(devices, Context) else [devices]
    result = [d.device if isinstance(d, Context) else d for d in listed]
    if not result or not all(isinstance(d, jax.Device) for d in result) or len(set(result)) < len(result):
        choices = 'None, a number from 1, "all", a device such as jfit.cpu(0), or a list of different devices'
        raise ValueError(f"devices={devices!r} is not supported here; pass {choices}")
    return result


def across(devices: Sequence[Device]) -> list[Device]:
    """List the devices of all processes of a job that are at the same positions as `devices` of this process.

    Args:
        devices: list of `jax.Device` of this process; a list that has devices of other processes is returned as it is.

    Returns:
        List of `jax.Device`, by rank; `devices` if there is one process.

    Raises:
        ValueError: another process has fewer devices.

    Example:
        >>> import jax
        >>> across(jax.local_devices()[:1]) == jax.local_devices()[:1]
        True
    """
    count = jax.process_count()
    if count == 1 or not devices or any(d.process_index != jax.process_index() for d in devices):
        return list(devices)
    platform = devices[0].platform
    by_rank = [[d for d in jax.devices(platform) if d.process_index == rank] for rank in range(count)]
    places = [by_rank[jax.process_index()].index(d) for d in devices]
    for rank, have in enumerate(by_rank):
        if len(have) <= max(places):
            raise ValueError(
                f"rank {rank} of the job has {len(have)} {platform} device(s), but rank {jax.process_index()} uses its "
                f"device number {max(places)}; start all processes with the same number of devices, or pass devices={len(have)}"
            )
    return [by_rank[rank][place] for rank in range(count) for place in places]


def is_auto(devices: Any) -> bool:
    """Return whether a `devices=` argument is "auto".

    Example:
        >>> is_auto("auto"), is_auto(2)
        (True, False)
    """
    return isinstance(devices, str) and devices == "auto"


def job_devices(devices: Any = None) -> list[Device]:
    """Convert a `devices=` argument to the devices on which a job computes, those of all its processes.

    Args:
        devices: as for `resolve`, of each process.  None: the default device; in a job of several processes, all devices.

    Returns:
        List of `jax.Device`, by rank.

    Example:
        >>> len(job_devices(1))
        1
    """
    return across(resolve("all" if devices is None and jax.process_count() > 1 else devices))


def check_entry(entry: str, several: bool = False) -> None:
    """Raise an error if this process cannot run `entry`: it was forked, or it is one of several and they are not joined.

    Args:
        entry: name of the function, for the message.
        several: whether `entry` supports jobs of several processes, which `jfit.distributed.init` has joined.

    Raises:
        NotImplementedError: `jax.process_count()` is greater than 1, and `entry` does not support it.
        RuntimeError: this process was forked from one in which JAX ran; or `jax.distributed.initialize` was called instead of
            `jfit.distributed.init`.
        ValueError: a mesh of several devices with axes of type Explicit is in effect (`jax.set_mesh`).

    Example:
        >>> check_entry("jfit.fit")
    """
    if forks.is_forked:
        forks.check_not_forked(entry)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size > 1 and AxisType.Explicit in mesh.axis_types:
        raise ValueError(
            f"{entry} is called within jax.set_mesh, with axes of type Explicit: {dict(mesh.shape)}; pass mesh= to jfit.fit"
        )
    count = jax.process_count()
    if count > 1 and several and num_processes() != count:
        raise RuntimeError(
            f"JAX runs in {count} processes, in which {entry} cannot agree with the others; call jfit.distributed.init()"
        )
    if count > 1 and not several:
        raise NotImplementedError(
            f'{entry} does not support jobs of {count} processes: each would train alone; start one process with devices="all"'
        )


def _not_available(what: str, kind: str, count: int, needed: int) -> ValueError:
    remedy = "pass fewer devices, or install jax with support for that kind of device"
    if kind == "cpu":
        remedy = f"emulate more before jax starts: XLA_FLAGS=--xla_force_host_platform_device_count={needed}"
    devices = f"{count or 'no'} {kind} device{'' if count == 1 else 's'}"
    return ValueError(f"{what} is not available: this machine has {devices}; {remedy}")
