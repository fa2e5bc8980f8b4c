"""Keys: values that are equal only for functions that compute the same.

A function is a value if it is one of these, and then it has a key by its content, however often it was made:

- a function of a module of jfit, or of a library in `TRUSTED`, which does not change;
- what a factory of jfit returned that has the decorator `made`: the key is the factory with its arguments;
- a `functools.partial`, dataclass or NamedTuple of such values;
- an object whose class has the property `program_key`: a value that takes its place, such as a tuple of the fields that matter.

All others (functions, objects and arrays of the user) are equal to themselves only, and they may read values that change: what
has one of them in its key is traced again for each program.

Keys leave out the numbers of `Constants`: programs take them as an argument, so that programs for other values are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import lax

# packages whose functions read no global variables that change
TRUSTED = frozenset(
    {"jfit", "jax", "jaxlib", "numpy", "ml_dtypes", "optax", "chex", "builtins", "math", "operator", "functools", "collections"}
)
MAX_ARRAY_BYTES = 4096  # larger arrays are data
_PLAIN = (type(None), bool, int, str, bytes, type(...), type(NotImplemented))
F = TypeVar("F", bound=Callable[..., Any])


class ByIdentity:
    """Key of an object that is equal only to the key of the same object; it keeps the object alive.

    Args:
        value: any object.

    Example:
        >>> a, b = [1], [1]
        >>> ByIdentity(a) == ByIdentity(a), ByIdentity(a) == ByIdentity(b)
        (True, False)
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Key(NamedTuple):
    """Content of a value.

    Attributes:
        value: hashable; equal for equal values.
        is_complete: whether values with this key compute the same.  False if a part is compared by its identity.
        constants: the `Constants` in the value, in an order fixed by the key.
    """

    value: Hashable
    is_complete: bool
    constants: tuple[Constants, ...]


class Made:
    """A function with a key: functions that were made alike compute the same.  `made` returns these.

    Args:
        fn: the function.
        *parts: its key: all that it depends on.

    Example:
        >>> scaled = lambda factor: Made(lambda x: factor * x, "scaled", factor)
        >>> scaled(2)(3), key_of(scaled(2)) == key_of(scaled(2)), key_of(scaled(2)) == key_of(scaled(5))
        (6, True, False)
    """

    def __init__(self, fn: Callable[..., Any], *parts: Any) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._parts = fn, parts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)

    @property
    def program_key(self) -> Any:
        """The parts of the key."""
        return self._parts


def made(make: F) -> F:
    """Decorate a factory: what it returns, a function or a NamedTuple of functions, has the factory and its arguments as key.

    Args:
        make: pure factory; what its result computes depends on nothing but the arguments.

    Returns:
        The factory, with the same arguments.

    Example:
        >>> from jfit.metrics import mse
        >>> key_of(mse()) == key_of(mse()), key_of(mse()) == key_of(mse(average="micro"))
        (True, False)
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def factory(*args: Any, **kwargs: Any) -> Any:
        result, given = make(*args, **kwargs), signature.bind(*args, **kwargs)
        given.apply_defaults()
        return keyed(result, make, given.arguments)

    return factory  # pyright: ignore[reportReturnType]


def keyed(value: Any, *parts: Any) -> Any:
    """Give a function, or the functions of a NamedTuple, a key.

    Args:
        value: function, or NamedTuple of which the fields that are functions get the key.
        *parts: all that they depend on.

    Returns:
        `Made`, or a copy of the NamedTuple.

    Example:
        >>> key_of(keyed(lambda x: x + 1, "next")) == key_of(keyed(lambda x: x + 1, "next"))
        True
    """
    if not isinstance(value, tuple):
        return Made(value, *parts)
    functions = {n: v for n, v in zip(value._fields, value, strict=True) if callable(v)}  # pyright: ignore
    return value._replace(**{name: Made(fn, name, *parts) for name, fn in functions.items()})  # pyright: ignore


def key_of(value: Any) -> Hashable | None:
    """Return a key of a function or value, or None if it depends on objects of the user.

    Args:
        value: function, or a value of Python, NumPy or jfit.

    Returns:
        Hashable value; equal keys mean equal values, and functions that compute the same.

    Example:
        >>> from jfit.optim import adam
        >>> key_of(adam(beta1=0.9)) == key_of(adam(beta1=0.9)), key_of(adam(beta1=0.9)) == key_of(adam(beta1=0.8))
        (True, False)
        >>> key_of([jax.numpy.ones(2)]) is None  # arrays on devices are data
        True
    """
    key = read_key(value)
    return key.value if key.is_complete else None


def read_key(value: Any, arguments: bool = False) -> Key:
    """Read the content of a value.

    Args:
        value: any value.
        arguments: whether the numbers of `Constants` are arguments of programs; if not, the key has their values.

    Returns:
        `jfit.programs.keys.Key`: the content, whether it is complete, and the `Constants`.

    Example:
        >>> from jfit.optim import adam
        >>> read_key(adam(beta1=0.9), arguments=True).value == read_key(adam(beta1=0.8), arguments=True).value
        True
    """
    reader = _Reader(arguments)
    try:
        return Key(reader.read(value), reader.is_complete, tuple(reader.constants))
    except RecursionError:  # a list that contains itself
        return Key(ByIdentity(value), False, ())


def is_trusted(module: Any) -> bool:
    """Whether a module, by name, belongs to jfit or to a library whose global variables do not change."""
    return isinstance(module, str) and module.split(".")[0] in TRUSTED


class _Reader:
    """Reads one value."""

    def __init__(self, arguments: bool) -> None:
        self._arguments, self.is_complete, self.constants = arguments, True, list[Constants]()

    def read(self, x: Any) -> Any:
        kind = type(x)
        if kind in _PLAIN:
            return kind, x
        if kind is float:
            return kind, x.hex()
        if isinstance(x, ByIdentity | jax.Device | np.dtype):
            return x
        if isinstance(x, Constants):
            return self._constants(x)
        if hasattr(kind, "program_key") and (is_trusted(kind.__module__) or "program_key" in vars(kind)):  # not inherited
            return kind, self.read(x.program_key)
        parts = _parts(x, kind) if is_trusted(kind.__module__) else None
        if parts is not None:
            return kind, *[self.read(part) for part in parts]
        if kind in (set, frozenset):
            return kind, frozenset(map(self.read, x))
        self.is_complete &= _is_of_library(x)
        return ByIdentity(x)

    def _constants(self, x: Constants) -> Any:
        known = [i for i, each in enumerate(self.constants) if each is x]
        if known:
            return Constants, known[0]
        self.constants.append(x)
        names = x.names if self._arguments else ()
        return Constants, names, self.read({k: v for k, v in x.values.items() if k not in names})


def _parts(x: Any, kind: type[Any]) -> Any:
    """The values that a container or record consists of; None for other objects."""
    if isinstance(x, tuple | list):
        return x
    if kind in (dict, types.MappingProxyType):
        return x.items()
    if kind is functools.partial:
        return x.func, x.args, x.keywords
    if isinstance(x, Enum):
        return (x.name,)
    if kind is np.ndarray or isinstance(x, np.generic):
        is_data = x.nbytes > MAX_ARRAY_BYTES or x.dtype.hasobject or x.dtype.names is not None
        return None if is_data else (x.dtype, x.shape, x.tobytes())
    return [getattr(x, f.name) for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else None


def _is_of_library(x: Any) -> bool:
    """Whether an object is that which a trusted module has under its name, or one that this wraps (`functools.wraps`)."""
    module, name = getattr(x, "__module__", None), getattr(x, "__qualname__", getattr(x, "__name__", None))
    found = sys.modules.get(str(module)) if is_trusted(module) and isinstance(name, str) else None
    for part in str(name).split("."):
        found = getattr(found, part, None)
    while found is not None and found is not x:
        found = getattr(found, "__wrapped__", None)
    return found is not None


# ------------------------------------------------------------------------------------------------ numbers that keys leave out
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

    The program is then traced by every caller, and kept by its StableHLO text, which has that value.

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
    """Context manager for tracing, in which the numbers of `constants` are the elements of an argument of the program.

    Args:
        constants: the `Constants` in the key of the program.
        table: the argument while it is traced, an array with the numbers in the order of `table_of`; None: they stay Python
            numbers, whose values are then part of the key.
    """
    before, places = tracing.values, [(c, name) for c in constants for name in c.names]
    numbers = [c.values[n] if table is None else lax.convert_element_type(table[i], float) for i, (c, n) in enumerate(places)]
    tracing.values = before | {(id(c), name): number for (c, name), number in zip(places, numbers, strict=True)}
    try:
        yield
    finally:
        tracing.values = before
