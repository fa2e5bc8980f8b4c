"""Keys of functions: values that are equal only for functions that compute the same.

A function computes the same as another if its code is the same, and everything that the code can read: the values that it
closes over, its defaults, its attributes.  `key_of` follows all of these.  What it cannot describe completely (an array, a
function or an object that the user wrote) has no key, and then the whole function has none.

The code of jfit and of the libraries in `TRUSTED` is not followed into its global variables, because they do not change.

A class can determine the key of its objects by a property `program_key`: a value that replaces the object, such as a tuple of
the fields that matter, or `ByIdentity(object)`.  `assign_key` does so for one function.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Hashable, Mapping, Set
from enum import Enum
from typing import Any

import jax
import numpy as np

from jfit.programs.constants import Constants

# packages whose functions read no global variables that change
TRUSTED = frozenset(
    {"jfit", "jax", "jaxlib", "numpy", "ml_dtypes", "optax", "chex", "builtins", "math", "operator", "functools", "collections"}
)
MAX_ARRAY_BYTES = 4096  # larger arrays are data
_PLAIN = (type(None), bool, int, str, bytes, type(...), type(NotImplemented))


class Unkeyed(Exception):
    """A value has no key."""


def key_of(value: Any) -> Hashable | None:
    """Return a key of a function or value, or None if it cannot be described completely.

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
    return read_function(value, False)[0]


def read_function(value: Any, arguments: bool) -> tuple[Hashable | None, list[Constants]]:
    """Return (the key of a function, None if it has none; the `Constants` that it reads, in an order fixed by the key).

    Args:
        value: the function.
        arguments: whether the numbers of `Constants` are arguments of the program; if not, the key has their values.
    """
    reader = _Reader(arguments)
    try:
        key = reader.read(value)
        hash(key)
    except (TypeError, RecursionError):
        return None, []
    return (key if reader.complete else None), reader.constants


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


class _Assigned:
    """A key with the function that it was assigned to: functools.wraps and jax.jit copy the attributes of functions."""

    def __init__(self, owner: Any, key: Any) -> None:
        self.owner, self.key = owner, key

    def __reduce__(self) -> Any:  # the key of a function that was pickled is not that of its copy
        return _Assigned, (type(None), None)


def assign_key(fn: Any, key: Any) -> None:
    """Assign a key to one Python function; functions that wrap it do not have the key.

    Args:
        fn: function.
        key: value from which the key is read, such as a tuple or `ByIdentity(object)`.

    Example:
        >>> def double(x):
        ...     return 2 * x
        >>> assign_key(double, "double")
        >>> assigned_key(double), assigned_key(functools.wraps(double)(lambda x: double(x) + 1))
        ('double', None)
    """
    fn.__dict__["program_key"] = _Assigned(weakref.ref(fn), key)


def assigned_key(fn: Any) -> Any:
    """Return the value that `assign_key` assigned to this function, or None.

    Args:
        fn: any callable.

    Returns:
        The value; None if there is none, or if `fn` copied it from the function that it wraps.

    Example:
        >>> assigned_key(len) is None
        True
    """
    assigned = getattr(fn, "program_key", None)
    return assigned.key if isinstance(assigned, _Assigned) and assigned.owner() is fn else None


def is_trusted(module: Any) -> bool:
    """Whether a module, by name, belongs to jfit or to a library whose global variables do not change."""
    return isinstance(module, str) and module.split(".")[0] in TRUSTED


class _Reader:
    """Computes the key of one function.

    A function or container that was visited before is replaced by the number of its visit, so that cycles end.
    """

    def __init__(self, arguments: bool) -> None:
        self._arguments = arguments
        self._numbers: dict[int, int] = {}
        self.complete, self.constants = True, list[Constants]()
        self._alive: list[Any] = []  # objects whose ids are in `_numbers`: another object must not get such an id

    def read(self, x: Any) -> Any:
        kind = type(x)
        if kind in _PLAIN:
            return kind.__name__, x
        if kind is float:
            return "float", x.hex()
        if kind is complex:
            return "complex", x.real.hex(), x.imag.hex()
        if isinstance(x, ByIdentity):
            return x
        if kind is tuple:
            return ("tuple", *map(self.read, x))
        if id(x) in self._numbers:
            return "again", self._numbers[id(x)]
        self._numbers[id(x)] = len(self._numbers)
        self._alive.append(x)
        try:
            return self._object(x, kind)
        except Unkeyed:
            self.complete = False  # there is no key; the rest is read for its `Constants`
            return None

    def _object(self, x: Any, kind: type) -> Any:
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if isinstance(x, type):
            return self._type(x)
        if isinstance(x, Constants):
            return self._constants(x)
        own = getattr(kind, "program_key", None)
        if own is not None:
            return "own", self._type(kind), self.read(x.program_key)
        for classes, read in _READERS:
            if isinstance(x, classes):
                return read(self, x)
        if dataclasses.is_dataclass(x):
            return self._type(kind), *[(f.name, self.read(getattr(x, f.name))) for f in dataclasses.fields(x)], self._rest(x)
        return self._library_object(x)

    def _constants(self, x: Constants) -> Any:
        self.constants.append(x)
        if not self._arguments:
            return "constants", self.read(x.values)
        return "constants", x.names, self.read({k: v for k, v in x.values.items() if k not in x.names})

    def _function(self, fn: types.FunctionType) -> Any:
        assigned = assigned_key(fn)
        if assigned is not None:
            return "own", self.read(assigned)
        module = fn.__globals__.get("__name__")  # not fn.__module__, which functools.wraps changes
        if not is_trusted(module):
            raise Unkeyed
        cells = [("empty",) if _is_empty(cell) else self.read(cell.cell_contents) for cell in fn.__closure__ or ()]
        attributes = {k: v for k, v in fn.__dict__.items() if k not in ("__wrapped__", "program_key")}
        return "function", module, fn.__code__, *map(self.read, (fn.__defaults__, fn.__kwdefaults__, attributes)), *cells

    def _type(self, kind: type) -> Any:
        if not is_trusted(kind.__module__):
            raise Unkeyed
        return ByIdentity(kind)

    def _rest(self, x: Any) -> Any:
        """Attributes that are no fields; those of a cached_property are computed from the fields."""
        names = {f.name for f in dataclasses.fields(x)} if dataclasses.is_dataclass(x) else set()
        attributes = {k: v for k, v in getattr(x, "__dict__", {}).items() if k not in names}
        cached = [k for k in attributes if isinstance(getattr(type(x), k, None), functools.cached_property)]
        return self.read({k: v for k, v in attributes.items() if k not in cached})

    def _tuple(self, x: tuple[Any, ...]) -> Any:  # a NamedTuple or another subclass
        return self._type(type(x)), *map(self.read, x), self._rest(x)

    def _mapping(self, x: Mapping[Any, Any]) -> Any:
        default = self.read(getattr(x, "default_factory", None))  # of a defaultdict
        return "mapping", self._type(type(x)), default, *[(self.read(k), self.read(v)) for k, v in x.items()]

    def _set(self, x: Set[Any]) -> Any:
        known = len(self._numbers)
        items = frozenset(self.read(item) for item in x)
        if len(self._numbers) != known:  # objects would be numbered in the order of the set, which is arbitrary
            raise Unkeyed
        return "set", self._type(type(x)), items

    def _partial(self, x: functools.partial[Any]) -> Any:
        return "partial", self._type(type(x)), self._rest(x), self.read(x.func), self.read(x.args), self.read(dict(x.keywords))

    def _array(self, x: np.ndarray[Any, Any] | np.generic) -> Any:
        # subclasses, such as masked arrays, have more data than their bytes, and structured dtypes more than their text
        is_plain = type(x) is np.ndarray or isinstance(x, np.generic)
        if x.nbytes > MAX_ARRAY_BYTES or x.dtype.hasobject or _is_structured(x.dtype) or not is_plain:
            raise Unkeyed
        return "array", self._type(type(x)), x.strides, x.dtype.str, x.dtype.name, x.shape, x.tobytes()

    def _dtype(self, x: np.dtype[Any]) -> Any:
        if _is_structured(x):
            raise Unkeyed
        return "dtype", x.str, x.name

    def _library_object(self, x: Any) -> Any:
        """A function of a library that is not a Python function (such as a jitted one), found there under its name."""
        module, name = getattr(x, "__module__", None), getattr(x, "__qualname__", getattr(x, "__name__", None))
        if isinstance(x, types.ModuleType) and is_trusted(x.__name__):
            return "module", x.__name__
        if not (is_trusted(module) and isinstance(name, str) and callable(x)):
            raise Unkeyed
        found = sys.modules.get(str(module))
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not x:
            raise Unkeyed
        return "library", ByIdentity(x)


_READERS: tuple[tuple[Any, Any], ...] = (
    ((np.ndarray, np.generic), _Reader._array),
    (np.dtype, _Reader._dtype),
    (jax.Device, lambda reader, x: ByIdentity(x)),
    (Enum, lambda reader, x: (reader._type(type(x)), x.name)),
    (tuple, _Reader._tuple),
    (list, lambda reader, x: (reader._type(type(x)), *map(reader.read, x))),
    ((dict, types.MappingProxyType), _Reader._mapping),
    ((set, frozenset), _Reader._set),
    (functools.partial, _Reader._partial),
    (types.MethodType, lambda reader, x: ("method", reader.read(x.__func__), reader.read(x.__self__))),
)


def _is_structured(dtype: np.dtype[Any]) -> bool:
    return dtype.names is not None or dtype.subdtype is not None


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
