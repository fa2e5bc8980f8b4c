"""Devices in MXNet's terms: `mx.cpu(i)`, `mx.gpu(i)`, `mx.tpu(i)`, and the default device of new arrays."""

from __future__ import annotations

import functools
import threading
from typing import Any, ClassVar

import jax

from jfit.mxnet.job import emulate_devices
from jfit.parallel import contexts

__all__ = ["Context", "cpu", "cpu_pinned", "current_context", "gpu", "num_gpus", "tpu"]
_KINDS = {"cpu_pinned": "cpu", "cpu_shared": "cpu"}  # MXNet's CPU memory kinds; jfit does not distinguish them
_local = threading.local()


_current = property(lambda _: current_context(), lambda _, ctx: set_default(ctx))


class _DefaultContext(type(contexts.Context)):
    """Adds the class attribute `Context.default_ctx`."""

    default_ctx = _current


class _Current:
    """What MXNet calls the current context of this thread: `Context._default_ctx.value`."""

    value = _current


class Context(contexts.Context, metaclass=_DefaultContext):
    """A device, given by kind and number; `with ctx:` makes it the default device of new arrays.

    Args:
        device_type: "cpu", "gpu" or "tpu", or a context to copy.
        device_id: number among the devices of this kind, from 0.

    Attributes:
        default_ctx: of the class: the current context of this thread; assigning replaces it.

    Example:
        >>> with Context("cpu", 1):
        ...     current_context()
        cpu(1)
    """

    def __new__(cls, device_type: Any = "cpu", device_id: int = 0):
        if isinstance(device_type, contexts.Context):
            device_type, device_id = device_type
        kind = _KINDS.get(str(device_type), str(device_type))
        if kind == "cpu" and device_id:
            emulate_devices(8)  # the script names contexts before it computes
        return super().__new__(cls, kind, int(device_id))

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
        return self.devstr2type[self.kind]

    @property
    def device_id(self) -> int:
        """Number among the devices of this kind, from 0."""
        return self.index

    def __enter__(self) -> Context:
        _stack().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack().pop()

    devtype2str: ClassVar = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared", 6: "tpu"}  # MXNet has no TPU
    _default_ctx: ClassVar = _Current()
    devstr2type: ClassVar = {name: number for number, name in devtype2str.items()}

    def empty_cache(self) -> None:
        """Do nothing: XLA manages device memory and has no cache to empty."""


def _stack() -> list[Context]:
    """Return the contexts of this thread: the default, then those of all `with ctx:` blocks that are open."""
    return vars(_local).get("stack") or vars(_local).setdefault("stack", [Context("cpu", 0)])


def set_default(ctx: Context) -> None:
    """Make a context the current one of this thread; at the end of an open `with ctx:` block the outer one returns.

    Example:
        >>> set_default(cpu(0))
    """
    _stack()[-1] = Context(ctx)


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
    """Return the context of the innermost `with ctx:` block of this thread; outside of one the default, cpu(0).

    Returns:
        Context.

    Example:
        >>> current_context()
        cpu(0)
    """
    return _stack()[-1]


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
    try:
        device, *others = array.devices()
    except (AttributeError, TypeError):
        return current_context()
    return _context(min((device, *others), key=lambda d: d.id) if others else device)


@functools.cache
def _context(device: Any) -> Context:
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
