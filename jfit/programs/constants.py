"""Python numbers that programs take as an argument, so that programs for other values are the same program."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax


class _Tracing(threading.local):
    """State of the program that is being traced on this thread.

    Attributes:
        values: (id of a `Constants`, name) -> traced element of the extra argument, or the Python number if it is compiled in.
        incomplete: whether the program depends on a value that is not in its key.
        calls_python: whether the program calls Python on the host.
        new: the `Constants` that were made in a block of `collected`; None outside of one.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[int, str], Any] = {}
        self.incomplete = self.calls_python = False
        self.new: list[Constants] | None = None


tracing = _Tracing()


def depends_on_more() -> None:
    """Declare, in a function that is being traced, that the program depends on a value that is not in its key.

    The program is then not kept by its key; it is kept by its text, which has that value.

    Example:
        >>> depends_on_more()
    """
    tracing.incomplete = True


class Constants:
    """Named numbers, read as attributes: Python numbers, but scalars of an argument while a `Program` is traced.

    The scalars have the weak type of Python numbers, so that the arithmetic of 16-bit arrays stays in 16 bits.  0, 1, None and
    everything that is no normal float32 number stay Python values, and belong to the program.

    Args:
        **values: the numbers by name, kept in the dict `values`.  Numbers derived from others, such as 1 - beta, are passed
            too: as Python floats they are computed in float64.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.parallel import compile_spmd
        >>> def scaled(factor):
        ...     numbers = Constants(factor=factor)
        ...     return compile_spmd(lambda x, axis_name: numbers.factor * x, jax.devices()[:1], (None,), None)
        >>> scaled(2.5)(jnp.float32(2)).item(), scaled(3.5)(jnp.float32(2)).item()  # compiled once
        (5.0, 7.0)
    """

    def __init__(self, **values: Any) -> None:
        self.values = values
        if tracing.new is not None:
            tracing.new.append(self)

    def __getattr__(self, name: str) -> Any:
        bound = tracing.values.get((id(self), name))
        if bound is not None:
            return bound
        if name == "values" or name not in self.values:
            raise AttributeError(name)
        if is_argument(self.values[name]):
            depends_on_more()  # made while the program is traced, after its key was read
        return self.values[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers that are arguments of programs."""
        return tuple(name for name, value in self.values.items() if is_argument(value))


@contextlib.contextmanager
def collected() -> Iterator[list[Constants]]:
    """Context manager that returns a list, to which the `Constants` are added that are made in its block."""
    outer, tracing.new = tracing.new, (new := [])
    try:
        yield new
    finally:
        tracing.new = outer
        if outer is not None:
            outer.extend(new)


def is_argument(value: Any) -> bool:
    """Whether a number is an argument of programs: a float other than 0 and 1, and a normal number of float32."""
    return type(value) is float and value != 1 and 2.0**-126 <= abs(value) < 2.0**127


def table_of(constants: Sequence[Constants]) -> np.ndarray[Any, Any]:
    """The numbers of some `Constants` as one array, float32 (with jax_enable_x64 float64)."""
    values = [c.values[name] for c in constants for name in c.names]
    wide = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return np.asarray(values, np.float64 if wide else np.float32)


@contextlib.contextmanager
def bound(constants: Sequence[Constants], table: Any) -> Iterator[None]:
    """Context manager for tracing: the numbers of `constants` are scalars of the traced array `table` of `table_of`.

    If `table` is None, they are the Python numbers, which the key of the program has.
    """
    before, places = tracing.values, [(c, name) for c in constants for name in c.names]
    numbers = [c.values[n] if table is None else lax.convert_element_type(table[i], float) for i, (c, n) in enumerate(places)]
    tracing.values = before | {(id(c), name): number for (c, name), number in zip(places, numbers, strict=True)}
    try:
        yield
    finally:
        tracing.values = before
