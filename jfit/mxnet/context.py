"""Devices in MXNet's terms: `mx.cpu(i)`, `mx.gpu(i)`, `mx.tpu(i)`, and the default device of new arrays."""

from __future__ import annotations

import threading
from typing import Any

import jax

from jfit.mxnet.mutable import is_tracer
from jfit.parallel import contexts

__all__ = ["Context", "cpu", "cpu_pinned", "current_context", "gpu", "num_gpus", "tpu"]

_local = threading.local()
_TYPE_IDS = {"cpu": 1, "gpu": 2, "tpu": 6}  # MXNet's numbers are 1, 2, 3 and 5; it has no TPU
_KINDS = {"cpu_pinned": "cpu", "cpu_shared": "cpu"}  # MXNet's CPU memory kinds; jfit does not distinguish them


class Context(contexts.Context):
    """A device, given by kind and number; `with ctx:` makes it the default device of new arrays.

    Args:
        device_type: "cpu", "gpu" or "tpu", or a context to copy.
        device_id: number among the devices of this kind, from 0.

    Example:
        >>> with Context("cpu", 1):
        ...     current_context()
        cpu(1)
    """

    def __new__(cls, device_type: Any = "cpu", device_id: int = 0):
        if isinstance(device_type, contexts.Context):
            device_type, device_id = device_type
        kind = str(device_type)
        return super().__new__(cls, _KINDS.get(kind, kind), int(device_id))

    @property
    def device_type(self) -> str:
        """Kind of device: "cpu", "gpu" or "tpu"."""
        return self.kind

    @property
    def device_typeid(self) -> int:
        """MXNet's number for the kind of device: 1 for cpu, 2 for gpu; 6 for tpu, which MXNet does not have.

        Example:
            >>> cpu().device_typeid, gpu(1).device_typeid
            (1, 2)
        """
        return _TYPE_IDS[self.kind]

    @property
    def device_id(self) -> int:
        """Number among the devices of this kind, from 0."""
        return self.index

    def __enter__(self) -> Context:
        _stack().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack().pop()

    def empty_cache(self) -> None:
        """Do nothing: XLA manages device memory and has no cache to empty."""


def _stack() -> list[Context]:
    return _local.__dict__.setdefault("stack", [])


def cpu(device_id: int = 0) -> Context:
    """Return CPU device `device_id`.

    Args:
        device_id: number of the device, from 0.

    Returns:
        Context.

    Example:
        >>> cpu()
        cpu(0)
    """
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """Return CPU device `device_id`; XLA decides itself when to use page-locked (pinned) memory.

    Args:
        device_id: number of the device, from 0.

    Returns:
        Context.

    Example:
        >>> cpu_pinned()
        cpu(0)
    """
    return Context("cpu", device_id)


def gpu(device_id: int = 0) -> Context:
    """Return GPU device `device_id`; it need not exist until it is used.

    Args:
        device_id: number of the device, from 0.

    Returns:
        Context.

    Example:
        >>> gpu(1)
        gpu(1)
    """
    return Context("gpu", device_id)


def tpu(device_id: int = 0) -> Context:
    """Return TPU device `device_id`; it need not exist until it is used.

    Args:
        device_id: number of the device, from 0.

    Returns:
        Context.

    Example:
        >>> tpu()
        tpu(0)
    """
    return Context("tpu", device_id)


def num_gpus() -> int:
    """Return the number of GPUs visible to this process.

    Returns:
        int.

    Example:
        >>> num_gpus() >= 0
        True
    """
    try:
        return len(jax.local_devices(backend="gpu"))
    except RuntimeError:
        return 0


def current_context() -> Context:
    """Return the context of the innermost `with ctx:` block of this thread, or cpu(0) outside of one, as in MXNet.

    Returns:
        Context.

    Example:
        >>> current_context()
        cpu(0)
    """
    return _stack()[-1] if _stack() else Context("cpu", 0)


def context_of(array: Any) -> Context:
    """Return the context of an array's device; for numpy arrays and tracers the current context.

    Args:
        array: jax.Array (for several devices, that with the lowest id is used), numpy array or tracer.

    Returns:
        Context.

    Example:
        >>> import jax.numpy as jnp
        >>> context_of(jnp.ones(2)).device_type in ("cpu", "gpu", "tpu")
        True
    """
    if not isinstance(array, jax.Array) or is_tracer(array):
        return current_context()
    device = min(array.devices(), key=lambda d: d.id)
    kind = "gpu" if device.platform in ("gpu", "cuda", "rocm") else device.platform
    return Context(kind, jax.local_devices(backend=device.platform).index(device))


def place(array: Any, ctx: Any = None) -> jax.Array:
    """Return an array on the device of `ctx` (default: the current context).

    On JAX's default device the array stays uncommitted, so that JAX may still move it to the device of other operands.
    """
    ctx = current_context() if ctx is None else ctx
    device = ctx.device if isinstance(ctx, contexts.Context) else ctx
    if device == jax.local_devices()[0]:
        return array if isinstance(array, jax.Array) else jax.numpy.array(array)
    return jax.device_put(array, device)
