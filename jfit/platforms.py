"""The platform, such as "cpu" or "gpu", for which a function is traced, and the processor cores and threads of this process.

The platform is that of the devices in use, not the one JAX prefers.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax

_exported: contextvars.ContextVar[str | None] = contextvars.ContextVar("platform of an exported program", default=None)


def platform_of(*values: Any) -> str:
    """Return the platform of the first array that was placed on a device; without one, that of JAX's default device.

    A traced array has no device.  `jfit.programs` and `jfit.parallel` trace in `traced_for`, so that the default device has the
    platform of the program; in a function that you compile yourself, use `jax.default_device`.

    Args:
        *values: arrays; everything else is ignored.

    Returns:
        Platform as in `jax.Device.platform`: "cpu", "gpu", "tpu", ...

    Example:
        >>> platform_of(jax.device_put(1.0, jax.devices("cpu")[0]))
        'cpu'
    """
    for value in values:
        if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.committed:  # pyright: ignore
            return next(iter(value.devices())).platform
    default = _exported.get() or jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return jax.default_backend() if default is None else getattr(default, "platform", default)


def traced_for(platform: str) -> contextlib.AbstractContextManager[Any]:
    """Context manager for tracing, in which the default device has this platform; it does nothing if it has it anyway.

    JAX keeps traces of inner functions by this setting, so that those for other platforms are not used.

    Example:
        >>> with traced_for("tpu"):
        ...     platform_of()
        'tpu'
    """
    if platform == platform_of():
        return contextlib.nullcontext()
    # JAX takes these names without a device of the platform
    return jax.default_device(platform if platform in ("cpu", "gpu", "tpu") else jax.local_devices(backend=platform)[0])


@contextlib.contextmanager
def exported_for(platform: str) -> Iterator[None]:
    """Context manager for tracing a program for a platform; this process may have no devices of it.

    Example:
        >>> with exported_for("cuda"):
        ...     platform_of()
        'cuda'
    """
    token = _exported.set(platform)
    try:
        yield
    finally:
        _exported.reset(token)


def placed(run: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that `jax.jit` returned be traced for the platform of its arguments.

    Example:
        >>> placed(jax.jit(lambda x: 2 * x))(3.0).item()
        6.0
    """

    @functools.wraps(run)
    def call(*args: Any) -> Any:
        with traced_for(platform_of(*jax.tree.leaves(args))):
            return run(*args)

    return call


def cores() -> int:
    """Return the number of processor cores that this process may use.

    Example:
        >>> cores() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Return the number of threads of XLA on a CPU: the environment variable PJRT_NPROC or NPROC, else the number of `cores`.

    Example:
        >>> threads() >= 1
        True
    """
    values = [os.environ.get(name, "") for name in ("PJRT_NPROC", "NPROC")]
    return next((int(value) for value in values if value.isdigit() and int(value)), cores())
