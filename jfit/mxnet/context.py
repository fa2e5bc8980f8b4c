"""`mx.cpu(i)`, `mx.gpu(i)`, `mx.tpu(i)` and the context that arrays are made in."""

from __future__ import annotations

import threading
from typing import Any

import jax

from jfit.mxnet.mutable import is_tracer
from jfit.parallel import devices

_local = threading.local()
_TYPE_IDS = {"cpu": 1, "gpu": 2, "tpu": 6}  # MXNet's numbers; it has no TPU, and uses 1, 2, 3 and 5
_KINDS = {"cpu_pinned": "cpu", "cpu_shared": "cpu"}  # memory kinds of MXNet's CPU, one memory here


class Context(devices.Context):
    """A device by kind and number; `with ctx:` makes it the default of new arrays.

    Args:
        device_type: "cpu", "gpu" or "tpu", or a context to copy.
        device_id: which one of its kind.

    Example:
        >>> with Context("cpu", 1):
        ...     current_context()
        cpu(1)
    """

    def __new__(cls, device_type: Any = "cpu", device_id: int = 0):
        if isinstance(device_type, devices.Context):
            device_type, device_id = device_type
        kind = str(device_type)
        return super().__new__(cls, _KINDS.get(kind, kind), int(device_id))

    @property
    def device_type(self) -> str:
        """ "cpu", "gpu" or "tpu"."""
        return self.kind

    @property
    def device_typeid(self) -> int:
        """MXNet's number of the kind: 1 cpu, 2 gpu; 6 tpu, which MXNet does not have.

        Example:
            >>> cpu().device_typeid, gpu(1).device_typeid
            (1, 2)
        """
        return _TYPE_IDS[self.kind]

    @property
    def device_id(self) -> int:
        """Its number among the devices of its kind."""
        return self.index

    def __enter__(self) -> Context:
        _stack().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack().pop()

    def empty_cache(self) -> None:
        """Nothing to do: XLA keeps no cache that scripts can empty."""


def _stack() -> list[Context]:
    return _local.__dict__.setdefault("stack", [])


def cpu(device_id: int = 0) -> Context:
    """CPU device `device_id`."""
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """The CPU: page-locked memory is XLA's business."""
    return Context("cpu", device_id)


def gpu(device_id: int = 0) -> Context:
    """GPU device `device_id`."""
    return Context("gpu", device_id)


def tpu(device_id: int = 0) -> Context:
    """TPU device `device_id`."""
    return Context("tpu", device_id)


def num_gpus() -> int:
    """How many GPUs this process sees."""
    try:
        return len(jax.local_devices(backend="gpu"))
    except RuntimeError:
        return 0


def current_context() -> Context:
    """The innermost `with ctx:`, else cpu(0), as in MXNet."""
    return _stack()[-1] if _stack() else Context("cpu", 0)


def context_of(array: Any) -> Context:
    """Where an array lives; host arrays, and arrays inside a program, are in the current context.

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
    """The array on a context's device; without one, on the current context's.

    The default device takes it uncommitted, so that it may still move to wherever it is computed with.
    """
    ctx = current_context() if ctx is None else ctx
    device = ctx.device if isinstance(ctx, devices.Context) else ctx
    if device == jax.local_devices()[0]:
        return array if isinstance(array, jax.Array) else jax.numpy.array(array)
    return jax.device_put(array, device)
