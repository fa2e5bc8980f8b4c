"""Devices by kind and number: `cpu(0)`, `gpu(1)`, `tpu(3)`, and what people pass as `devices=`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

Device: TypeAlias = Any  # a jax.Device, which type checkers take for a variable


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
