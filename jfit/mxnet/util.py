"""`mx.util`: MXNet's switches for NumPy shapes and arrays, one pair per thread, and environment variables.

Shape () and axes of size 0 always work.  The shape switch selects how shape inference writes what is unknown: sizes 0 and shape
() when it is off, size -1 and shape None when it is on.  The array switch selects `mx.np.ndarray` where gluon creates arrays.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any

from jfit.mxnet.context import Context, num_gpus

__all__ = [
    "get_gpu_count", "get_gpu_memory", "getenv", "is_np_array", "is_np_shape", "makedirs", "np_array", "np_shape", "reset_np",
    "set_module", "set_np", "set_np_shape", "setenv", "use_np", "use_np_array", "use_np_shape", "wrap_ctx_to_device_func",
]  # fmt: skip

_local = threading.local()


def is_np_shape() -> bool:
    """Return whether NumPy shape semantics are switched on in this thread.

    Returns:
        bool; False unless switched on.

    Example:
        >>> is_np_shape()
        False
    """
    return _local.__dict__.get("shape", False)


def is_np_array() -> bool:
    """Return whether NumPy arrays (`mx.np.ndarray`) are switched on in this thread.

    Returns:
        bool; False unless switched on.

    Example:
        >>> is_np_array()
        False
    """
    return _local.__dict__.get("array", False)


def set_np_shape(active: bool) -> bool:
    """Switch NumPy shape semantics on or off for this thread.

    Args:
        active: the new state.

    Returns:
        The previous state, bool.

    Raises:
        ValueError: they are switched off, but NumPy arrays need them.

    Example:
        >>> set_np_shape(False)
        False
    """
    if not active and is_np_array():
        raise ValueError("NumPy arrays are switched on and need NumPy shapes; call npx.reset_np() to switch both off")
    before, _local.shape = is_np_shape(), bool(active)
    return before


def _set_np_array(active: bool) -> bool:
    before, _local.array = is_np_array(), bool(active)
    return before


def set_np(shape: bool = True, array: bool = True) -> None:
    """Switch NumPy shapes and NumPy arrays on or off for this thread.

    Args:
        shape: whether shape semantics are those of NumPy.
        array: whether gluon creates `mx.np.ndarray`.

    Raises:
        ValueError: arrays are switched on without shapes.

    Example:
        >>> set_np()
        >>> is_np_shape(), is_np_array()
        (True, True)
        >>> reset_np()
    """
    if array and not shape:
        raise ValueError("NumPy arrays need NumPy shapes: call set_np(shape=True, array=True)")
    _set_np_array(array)
    set_np_shape(shape)


def reset_np() -> None:
    """Switch NumPy shapes and NumPy arrays off for this thread."""
    set_np(shape=False, array=False)


class _Scope(contextlib.ContextDecorator):
    _set: Callable[[bool], bool]

    def __init__(self, active: bool = True) -> None:
        self._active = active
        self._before: list[bool] = []

    def __enter__(self) -> Any:
        self._before.append(self._set(self._active))
        return self

    def __exit__(self, *exc: Any) -> None:
        self._set(self._before.pop())


class np_shape(_Scope):
    """Context manager and decorator that switches NumPy shape semantics on or off.

    Args:
        active: the state inside the block.

    Example:
        >>> with np_shape(True):
        ...     is_np_shape()
        True
    """

    _set = staticmethod(set_np_shape)


class np_array(_Scope):
    """Context manager and decorator that switches NumPy arrays on or off.

    Args:
        active: the state inside the block.

    Example:
        >>> with np_array(True):
        ...     is_np_array()
        True
    """

    _set = staticmethod(_set_np_array)


def _use(scope: type[_Scope], func: Any) -> Any:
    if inspect.isclass(func):
        for name, member in inspect.getmembers(func, lambda f: inspect.isroutine(f) or isinstance(f, property)):
            if isinstance(member, property):
                setattr(
                    func, name, property(member.fget and _use(scope, member.fget), member.fset, member.fdel, member.__doc__)
                )
            elif inspect.isfunction(member) or inspect.ismethod(member):
                static = isinstance(inspect.getattr_static(func, name), (staticmethod, classmethod))
                setattr(func, name, staticmethod(_use(scope, member)) if static else _use(scope, member))
        return func
    if not callable(func):
        raise TypeError(f"only a function or a class can be decorated, found {type(func).__name__}")

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with scope(True):
            return func(*args, **kwargs)

    return call


def use_np_shape(func: Any) -> Any:
    """Decorate a function, or all methods and properties of a class, to run with NumPy shape semantics.

    Example:
        >>> use_np_shape(is_np_shape)()
        True
    """
    return _use(np_shape, func)


def use_np_array(func: Any) -> Any:
    """Decorate a function, or all methods and properties of a class, to run with NumPy arrays."""
    return _use(np_array, func)


def use_np(func: Any) -> Any:
    """Decorate a function, or all methods and properties of a class, to run with NumPy shapes and NumPy arrays."""
    return use_np_shape(use_np_array(func))


def set_module(module: str | None) -> Callable[[Any], Any]:
    """Return a decorator that sets `__module__` of a function or class; None leaves it unchanged."""

    def decorate(func: Any) -> Any:
        if module is not None:
            func.__module__ = module
        return func

    return decorate


def wrap_ctx_to_device_func(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function with an argument `ctx` to accept `device=` as well."""

    @functools.wraps(func)
    def call(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        return func(*args, **kwargs, **({} if device is None else {"ctx": device}))

    return call


def getenv(name: str) -> str | None:
    """Return an environment variable; None if it is not set."""
    return os.environ.get(name)


def setenv(name: str, value: Any) -> None:
    """Set an environment variable; None removes it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = str(value)


def makedirs(d: str | os.PathLike[str]) -> None:
    """Create a folder and those above it, unless it exists."""
    os.makedirs(d, exist_ok=True)


def get_gpu_count() -> int:
    """Return the number of GPUs of this process."""
    return num_gpus()


def get_gpu_memory(gpu_dev_id: int) -> tuple[int, int]:
    """Return (free bytes, all bytes) of the memory that JAX may use on a GPU."""
    stats = Context("gpu", gpu_dev_id).device.memory_stats()
    return stats["bytes_limit"] - stats["bytes_in_use"], stats["bytes_limit"]
