"""`mx.util`: MXNet's switches for NumPy semantics, which are per thread and off at first.

The shape switch changes no result: shape () and axes of size 0 are always supported.  The array switch selects `mx.np.ndarray`
as the class of the arrays that gluon creates.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any


class _State(threading.local):
    shape = array = False


_state = _State()


def is_np_shape() -> bool:
    """Return whether NumPy shape semantics are switched on in this thread.

    Returns:
        bool; False unless switched on.

    Example:
        >>> is_np_shape()
        False
    """
    return _state.shape


def is_np_array() -> bool:
    """Return whether NumPy array semantics are switched on in this thread: gluon then creates `mx.np.ndarray`s.

    Returns:
        bool; False unless switched on.

    Example:
        >>> is_np_array()
        False
    """
    return _state.array


def set_np_shape(active: bool) -> bool:
    """Switch NumPy shape semantics on or off for this thread.

    Args:
        active: the new state.

    Returns:
        The previous state, bool.

    Raises:
        ValueError: they are switched off while NumPy array semantics are on.

    Example:
        >>> set_np_shape(False)
        False
    """
    if not active and _state.array:
        raise ValueError("set_np_shape(False) while NumPy array semantics are on, which need it; call npx.reset_np() for both")
    before, _state.shape = _state.shape, bool(active)
    return before


def set_np(shape: bool = True, array: bool = True) -> None:
    """Switch NumPy shape and array semantics on or off for this thread.

    Args:
        shape: the new state of shape semantics.
        array: the new state of array semantics, which need shape semantics.

    Raises:
        ValueError: `array` without `shape`.

    Example:
        >>> set_np()
        >>> is_np_shape(), is_np_array()
        (True, True)
        >>> reset_np()
    """
    if array and not shape:
        raise ValueError("set_np(shape=False, array=True): NumPy array semantics need NumPy shape semantics; pass shape=True")
    _state.array = bool(array)
    set_np_shape(shape)


def reset_np() -> None:
    """Switch NumPy shape and array semantics off for this thread.

    Example:
        >>> reset_np()
        >>> is_np_array()
        False
    """
    set_np(shape=False, array=False)


class _Scope(contextlib.ContextDecorator):
    """Context manager and decorator that can be entered again while it is entered."""

    _set: Callable[[bool], bool]  # switches, and returns the previous state

    def __init__(self, active: bool = True) -> None:
        self._active, self._before = bool(active), list[bool]()

    def __enter__(self) -> None:
        self._before.append(self._set(self._active))

    def __exit__(self, *exc: object) -> None:
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
    """Context manager and decorator that switches NumPy array semantics on or off.

    Args:
        active: the state inside the block.

    Example:
        >>> with np_array(True):
        ...     is_np_array()
        True
    """

    @staticmethod
    def _set(active: bool) -> bool:
        before, _state.array = _state.array, active
        return before


_NumpyArrayScope = np_array  # its name in MXNet


def _use(scope: Callable[[], Any], func: Any) -> Any:
    """Return a function that runs in `scope()`, or a class whose methods and properties do, inherited ones too."""
    if not callable(func):
        raise TypeError(f"expected a class or a function to decorate, found {type(func).__name__}")
    if not inspect.isclass(func):
        return scope()(func)
    for name in dir(func):
        member = inspect.getattr_static(func, name)
        if inspect.isfunction(member):
            setattr(func, name, scope()(member))
        elif isinstance(member, (staticmethod, classmethod)) and inspect.isfunction(member.__func__):
            setattr(func, name, type(member)(scope()(member.__func__)))
        elif isinstance(member, property):
            get, put, remove = (f and scope()(f) for f in (member.fget, member.fset, member.fdel))
            setattr(func, name, property(get, put, remove, member.__doc__))
    return func


def use_np_shape(func: Any) -> Any:
    """Decorate a function, or all methods and properties of a class, to run with NumPy shape semantics.

    Args:
        func: a function or a class.

    Returns:
        The function that does so, or the class itself.

    Example:
        >>> use_np_shape(is_np_shape)()
        True
    """
    return _use(np_shape, func)


def use_np_array(func: Any) -> Any:
    """Decorate a function, or all methods and properties of a class, to run with NumPy array semantics.

    Args:
        func: a function or a class.

    Returns:
        The function that does so, or the class itself.

    Example:
        >>> use_np_array(is_np_array)()
        True
    """
    return _use(np_array, func)


def use_np(func: Any) -> Any:
    """Decorate a function, or all methods and properties of a class, to run with NumPy shape and array semantics.

    Args:
        func: a function or a class.

    Returns:
        The function that does so, or the class itself.

    Example:
        >>> use_np(lambda: (is_np_shape(), is_np_array()))()
        (True, True)
    """
    return use_np_shape(use_np_array(func))


def getenv(name: str) -> str | None:
    """Return the value of an environment variable.

    Args:
        name: name of the variable.

    Returns:
        str; None if it is not set.

    Example:
        >>> getenv("NO_SUCH_VARIABLE") is None
        True
    """
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Set an environment variable.

    Args:
        name: name of the variable.
        value: the new value; None removes the variable.

    Example:
        >>> setenv("A_VARIABLE", "1")
        >>> getenv("A_VARIABLE")
        '1'
        >>> setenv("A_VARIABLE", None)
    """
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
