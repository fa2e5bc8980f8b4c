"""Compiled programs that are kept for the whole process, so that equal functions are compiled once.

`Program` compiles a function at its first call for arguments of some shapes and dtypes, unless an equal one was compiled
before:

1. By key, without a trace.  Functions of jfit are values: a training step, for example, is equal to one with an equal graph and
   equal settings.  The key is read at this first call.
2. By text, with a trace.  A function that the user wrote, or an optax transformation, may depend on anything, so it has no key.
   It is traced and lowered, and if an equal text was compiled before, nothing is compiled.  Functions that call Python on the
   host are always compiled.

A function is a value if it is one of these, and then it has a key by its content, however often it was made:

- a function of a module of jfit, or of a library in `TRUSTED`, which does not change;
- what a factory of jfit returned that has the decorator `made`: the key is the factory with its arguments;
- a `functools.partial`, dataclass or NamedTuple of such values;
- an object whose class has the property `program_key`: a value that takes its place, such as a tuple of the fields that matter;
- a module of Flax or Equinox: the key is its class, its structure and its static fields (`key_of_structure`).

All others (functions, objects and arrays of the user) are equal to themselves only, and they may read values that change.  Keys
leave out the numbers of `Constants`: programs take them as an argument, so that programs for other values are the same.

Both tables have at most 128 entries, those by key for 64 signatures (shapes, dtypes, devices, settings of jax) each; the entry
that was used least recently is dropped.  Entries refer neither to the data nor to the parameters of a fit, but they have the
arrays that a function closes over, and the static fields of pytrees that are its arguments.  If the arrays have more than
1 MB, the program is not kept by its text (with several devices: if the text has more than 4 million characters).

A change of the code of jfit, jax, NumPy or optax at run time, such as a method that is replaced, is not in the key: call
`clear_programs` afterwards.  It also drops the programs that are kept.

>>> import jax, jfit, numpy as np
>>> from jfit.programs import Program, clear_programs
>>> def scaled(factor):
...     return Program(lambda x: factor * x, jax.jit, name="scaled")
>>> x = np.float32(2)
>>> with jfit.counters.counted() as counts:
...     results = [float(scaled(factor)(x)) for factor in (3, 3, 5)]
>>> results, counts["compiles"]  # the second has the text of the first
([6.0, 6.0, 10.0], 2)
>>> clear_programs()
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import itertools
import os
import re
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import lax

from jfit import allocator, counters, forks, interrupts, lazy
from jfit.platforms import platform_of, traced_for

# Maximum number of entries of each table; the one that was used least recently is dropped.
MAX_PROGRAMS = 128
# Maximum number of characters of a text, and of bytes of the arrays that its function closes over, which the compiled function
# keeps; programs with more are not kept by their text.
MAX_TEXT, MAX_CONSTANTS = 4 << 20, 1 << 20
MAX_SIGNATURES = 64  # compiled functions of one program, for different shapes
_ENVIRONMENT = ("JFIT_ROLL", "JFIT_CONV_FORMS", "MXNET_BACKWARD_DO_MIRROR")  # variables that programs of jfit depend on
_UNRELATED = ("cache", "log", "traceback", "profil", "dump", "explain")  # settings of jax without effect on programs
# packages whose functions read no global variables that change
TRUSTED = frozenset(
    {"jfit", "jax", "jaxlib", "numpy", "ml_dtypes", "optax", "chex", "builtins", "math", "operator", "functools", "collections"}
)
MAX_ARRAY_BYTES = 4096  # larger arrays are data
_PLAIN = (type(None), bool, int, str, bytes, type(...), type(NotImplemented))
F = TypeVar("F", bound=Callable[..., Any])


class Recent:
    """A dict of limited length that drops the item that was used least recently; safe for several threads.

    Args:
        size: maximum number of items.

    Example:
        >>> recent = Recent(2)
        >>> recent["a"], recent["b"], recent["c"] = 1, 2, 3
        >>> recent.get("a"), recent.get("c"), len(recent)
        (None, 3, 2)
    """

    def __init__(self, size: int) -> None:
        self.size, self._items, self._lock = size, OrderedDict[Any, Any](), threading.Lock()

    def get(self, key: Hashable) -> Any:
        """Return an item, or None."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self.pop(key)
        self.setdefault(key, value)

    def setdefault(self, key: Hashable, value: Any) -> Any:
        """Return the item, which becomes `value` if there is none."""
        with self._lock:
            result = self._items.setdefault(key, value)
            self._items.move_to_end(key)
            while len(self._items) > self.size:
                self._items.popitem(last=False)
            return result

    def pop(self, key: Hashable) -> None:
        """Remove an item if it exists."""
        with self._lock:
            self._items.pop(key, None)

    def values(self) -> list[Any]:
        """Return the values, those used least recently first."""
        with self._lock:
            return list(self._items.values())

    def clear(self) -> None:
        """Remove all items."""
        with self._lock:
            self._items.clear()

    def __len__(self) -> int:
        return len(self._items)


_by_key, _by_text = Recent(MAX_PROGRAMS), Recent(MAX_PROGRAMS)
_caches = [_by_key, _by_text]


def kept(size: int) -> Recent:
    """Make a `Recent` for results that can be computed again; `clear_programs` empties it.

    Args:
        size: maximum number of items.

    Returns:
        Empty `Recent`.

    Example:
        >>> shapes = kept(10)
        >>> len(shapes)
        0
    """
    cache = Recent(size)
    _caches.append(cache)
    return cache


def clear_programs() -> None:
    """Drop the compiled programs and lowered graphs that jfit keeps for the process; those in use continue to work.

    Example:
        >>> import jfit
        >>> jfit.clear_programs()
    """
    for cache in _caches:
        cache.clear()


# ------------------------------------------------------------------------------------------------ keys
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
        `Key`: the content, whether it is complete, and the `Constants`.

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


def key_of_structure(*trees: Any) -> Key:
    """Key of pytrees by their structure with its static fields, small arrays by their content, and other leaves by equality.

    Static fields and other leaves, such as functions, are compared as `jax.jit` compares static arguments: equal ones compute
    the same.  The key also has the text of the structure, because 1 == 1.0 == True.

    Args:
        *trees: pytrees whose parameters have been split off.

    Returns:
        `Key`; incomplete if a leaf is a large array, or a field cannot be hashed.

    Example:
        >>> key_of_structure({"a": max}) == key_of_structure({"a": max}), key_of_structure(1) == key_of_structure(1.0)
        (True, False)
    """
    leaves, structure = jax.tree.flatten(trees)
    arrays = {i: x for i, x in enumerate(map(counters.key_data, leaves)) if isinstance(x, jax.Array | np.ndarray | np.generic)}
    if sum(x.nbytes for x in arrays.values()) > MAX_ARRAY_BYTES:
        return Key(ByIdentity(trees), False, ())
    contents = [(str(leaves[i].dtype), x.shape, x.tobytes()) for i, x in counters.read(arrays).items()]  # sync: before training
    others = [(type(x), repr(x), x) for i, x in enumerate(leaves) if i not in arrays]
    value = structure, str(structure), tuple(arrays), tuple(contents), tuple(others)
    try:
        hash(value)
    except TypeError:
        return Key(ByIdentity(trees), False, ())
    return Key(value, True, ())


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
        if kind is Key:  # it was read before
            self.is_complete &= x.is_complete
            return x.value
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


# ------------------------------------------------------------------------------------------------ programs
def settings() -> tuple[Any, ...]:
    """Read the settings of jax and jfit on which a compiled program depends, such as `jax_enable_x64` and `JFIT_ROLL`.

    Returns:
        Hashable tuple of the values that are in effect on this thread.

    Example:
        >>> settings() == settings()
        True
    """
    values = jax.config.values
    pairs = [(n, getattr(jax.config, n, v)) for n, v in values.items() if not any(word in n for word in _UNRELATED)]
    return (*[v if isinstance(v, Hashable) else repr(v) for _, v in pairs], *map(os.environ.get, _ENVIRONMENT))


class _Untraced(Exception):
    """A compiled function was called in a way for which it was not compiled."""


class _Waiting:
    """A compiled function that calls Python on the host; a call waits for its results.

    XLA's CPU client runs at most 32 programs of a device at once, and one that waits for its inputs counts: Python code that
    runs a program of JAX itself would wait for ever for the programs that wait for it.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, *args: Any) -> Any:
        result = self._run(*args)
        if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(result)):  # pyright: ignore
            counters.wait(result)  # sync: nothing may be dispatched before the Python code has run
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


class _Body:
    """The function that jax traces.  It refers to the function of the user only during its first call."""

    def __init__(self, name: str, constants: Sequence[Constants], has_table: bool, platform: str) -> None:
        self.name, self.constants, self.has_table, self.platform = name, constants, has_table, platform
        self.fn: Callable[..., Any] | None = None
        self.results: Any = None  # structure, shapes, dtypes and weak types of the results

    def __call__(self, *args: Any) -> Any:
        if self.fn is None:
            raise _Untraced
        counters.count_trace(self.name)
        inputs, table = (args[:-1], args[-1]) if self.has_table else (args, None)
        with traced_for(self.platform), bound(self.constants, table) if self.constants else contextlib.nullcontext():
            result = self.fn(*inputs)
        leaves, tree = jax.tree.flatten(result)
        self.results = tree, tuple([repr(jax.typeof(x)) for x in leaves])
        return result

    def function(self) -> Callable[..., Any]:
        """This object as a function with the name of the program, which jax uses in messages."""

        def program(*args: Any) -> Any:
            return self(*args)

        program.__name__ = program.__qualname__ = self.name
        return program


class _Shared:
    """The compiled functions of all programs with one key, by signature of the arguments, and those in preparation."""

    def __init__(self) -> None:
        self.runs, self.prepared, self.lock = Recent(MAX_SIGNATURES), Recent(MAX_SIGNATURES), threading.RLock()


class _Prepared(NamedTuple):
    """A function that is traced and lowered, and that another thread compiles."""

    run: Any
    key: Any  # that of the function when it was traced
    text: Any  # key of the table by text, or None
    is_shared: bool  # whether programs with the same key may use it
    lowered: Any  # as long as it exists, a call of `run` uses what was compiled from it
    compiled: Future[Any]


class _Call(NamedTuple):
    """A call of a `Program` that has no compiled function for its arguments yet, with the `Constants` that it reads."""

    args: tuple[Any, ...]
    table: tuple[Any, ...]  # the array of the constants, if there are any
    constants: Sequence[Constants]
    key: Any
    signature: Any


class _ByShape(NamedTuple):
    """The compiled functions of a program by the shapes and dtypes of arguments.

    Only arguments whose shapes differ between the entries are compared: a training state has hundreds of arrays, and to
    look at all of them in each call would take as long as the call itself.
    """

    positions: tuple[int, ...]  # of these arguments
    entries: Recent  # shapes of these arguments -> (shapes of all arguments, value)

    def get(self, args: tuple[Any, ...]) -> Any:
        """The value for these arguments, or None."""
        entry = self.entries.get(tuple([_shapes(args[i : i + 1]) for i in self.positions]))
        return entry and entry[1]

    def with_entry(self, args: tuple[Any, ...], value: Any) -> _ByShape:
        """A copy with one more entry; replaced as a whole, because other threads may be reading."""
        shapes = tuple([_shapes((x,)) for x in args])
        entries = [e for e in self.entries.values() if e[0] != shapes] + [(shapes, value)]
        columns = itertools.zip_longest(*[e[0] for e in entries], fillvalue=_shapes(()))
        positions = tuple([i for i, column in enumerate(columns) if len(set(column)) > 1])
        result = _ByShape(positions, Recent(MAX_SIGNATURES))
        for entry in entries:
            result.entries[tuple([(entry[0][i : i + 1] or [_shapes(())])[0] for i in positions])] = entry
        return result


def _shapes(args: tuple[Any, ...]) -> Any:
    leaves, tree = jax.tree.flatten(args)
    return tree, tuple([(getattr(x, "shape", ()), getattr(x, "dtype", None)) for x in leaves])


class Program:
    """A function that is compiled at its first call, unless this process has compiled an equal one before.

    Calls with other shapes or dtypes, or under other settings of jax, are first calls, too, as for `jax.jit`.

    Args:
        fn: pure function of positional arguments.
        build: function that returns the compiled version of a function, such as `jax.jit`.
        name: name under which `jfit.counters` counts how often the function is traced.
        static: value with everything on which `build` depends: devices, axes, donated arguments.
        place: function that puts an array on the devices.  The values of the `Constants` that `fn` reads, if any, are then an
            extra last argument of the compiled function, and `build` is called as `build(function, 0 or 1 extra arguments)`.
            None: they are compiled into the program.

    Example:
        >>> def scaled(factor):
        ...     return Program(lambda x: factor * x, jax.jit, name="scaled")
        >>> with counters.counted() as counts:
        ...     results = [float(scaled(2)(np.float32(x))) for x in (3.0, 4.0)]
        >>> results, counts["compiles"]
        ([6.0, 8.0], 1)
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        build: Callable[..., Any],
        *,
        name: str = "program",
        static: Any = (),
        place: Callable[[Any], Any] | None = None,
    ) -> None:
        self._fn, self._build, self._name, self._static, self._place = fn, build, name, static, place
        # The values are (compiled function, tuple of the array of the constants or ()).
        self._runs = Recent(MAX_SIGNATURES)  # by signature
        self._only: Any = None  # the value, as long as there is one only
        self._by_shape = _ByShape((), Recent(0))
        self._unshared = _Shared()  # for a function without a key

    def __call__(self, *args: Any) -> Any:
        """Call the compiled function; returns what `fn` returns."""
        if forks.is_forked:
            forks.check_not_forked(f"the program {self._name!r}")
        known = self._only
        if known is None:
            known = self._by_shape.get(args)
        if known is not None:
            run, table = known
            try:
                return run(*args, *table)
            except _Untraced:
                pass
        return self._first_call(self._read(args))

    def lower(self, *args: Any) -> Any:
        """Lower the function for these arguments, as `jax.jit(fn).lower` does, to look at the program: nothing is kept.

        Args:
            *args: pytrees of arrays or jax.ShapeDtypeStruct.

        Returns:
            `jax.stages.Lowered`, with `as_text()` and `compile()`.

        Example:
            >>> lowered = Program(lambda x: 2 * x, jax.jit).lower(np.ones(3, np.float32))
            >>> "multiply" in lowered.as_text()
            True
        """
        call = self._read(args)
        body, run = self._compiled(call)
        body.fn = self._fn
        return run.lower(*args, *call.table)

    def prepare(self, *args: Any, submit: Callable[..., Future[Any]]) -> None:
        """Trace and lower the function for these arguments now, and compile it on another thread; the first call waits for it.

        Does nothing for a program that is compiled already, and for functions of pmap.  If the other thread fails, the first
        call compiles, and raises its errors.

        Args:
            *args: the arguments, or arrays of equal shapes, dtypes and placement; they are not donated.
            submit: `submit` of a `concurrent.futures.Executor`.

        Example:
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> double, x = Program(lambda x: 2 * x, jax.jit), np.ones(2, np.float32)
            >>> with ThreadPoolExecutor() as threads:
            ...     double.prepare(x, submit=threads.submit)
            >>> with counters.counted() as counts:
            ...     y = double(x)
            >>> counts["compiles"]
            0
        """
        if len(self._runs) or _is_disabled():
            return
        call = self._read(args)
        shared = self._shared(call)
        with shared.lock:
            if call.signature is None or shared.runs.get(call.signature) or self._prepared(call, shared):
                return
            body, run = self._compiled(call)
            if not hasattr(run, "trace"):  # a function of pmap would be compiled once more by its first call
                return
            with counters.compiling(self._name), self._traceable(body):
                lowered, text, is_shared = self._lowered(call, body, run)
                run = _Waiting(run) if tracing.calls_python else run
            earlier = text and _by_text.get(text)
            if earlier is not None:
                self._keep(call, earlier, shared if is_shared else None)
            else:
                entry = _Prepared(run, call.key, text, is_shared, lowered, submit(_compile, lowered, settings()))
                (shared if is_shared else self._unshared).prepared[call.signature] = entry

    def _read(self, args: tuple[Any, ...]) -> _Call:
        """Read the key of the function at the time of the call: a dict in it may have changed since it was made."""
        value, is_complete, constants = read_key((self._fn, self._static, self._name), self._place is not None)
        key, table = value if is_complete else None, ()
        if self._place is not None and any(c.names for c in constants):
            table = (self._place(table_of(constants)),)
        return _Call(args, table, constants, key, _signature((*args, *table)))

    def _compiled(self, call: _Call) -> tuple[_Body, Any]:
        body = _Body(self._name, call.constants, bool(call.table), platform_of(*jax.tree.leaves(call.args)))
        return body, self._build(body.function()) if self._place is None else self._build(body.function(), len(call.table))

    def _shared(self, call: _Call) -> _Shared:
        """The compiled functions of the programs with the key of this call."""
        return self._unshared if call.key is None else _by_key.setdefault(call.key, _Shared())

    def _first_call(self, call: _Call) -> Any:
        if call.signature is None or _is_disabled():  # called by a traced function, or nothing is to be compiled
            body, run = self._compiled(call)
            body.fn = self._fn
            return run(*call.args, *call.table)
        shared = self._shared(call)
        with shared.lock:
            earlier = self._runs.get(call.signature) or (None, ())
            for run, table in (earlier, (shared.runs.get(call.signature), call.table)):
                if run is not None:
                    with contextlib.suppress(_Untraced):  # jax.clear_caches(), or a setting that is not in the signature
                        result = run(*call.args, *table)
                        self._keep(call._replace(table=table), run)
                        return result
            with counters.compiling(self._name):
                prepared = self._prepared(call, shared)
                if prepared is not None:
                    with contextlib.suppress(_Untraced):
                        return self._prepared_call(call, shared, prepared)
                return self._traced_call(call, shared)

    def _prepared(self, call: _Call, shared: _Shared) -> _Prepared | None:
        entries = [group.prepared.get(call.signature) for group in (shared, self._unshared)]
        return next((entry for entry in entries if entry is not None and entry.key == call.key), None)

    def _prepared_call(self, call: _Call, shared: _Shared, prepared: _Prepared) -> Any:
        """Call a function that another thread compiles; if that failed or was cancelled, the call compiles."""
        entries = (shared if prepared.is_shared else self._unshared).prepared
        if prepared.compiled.cancelled() and interrupts.is_watched():
            prepared = entries[call.signature] = prepared._replace(compiled=_compile_in_thread(prepared.lowered))
        # Ctrl-C raises here, but does not stop the compilation: the next call with such arguments waits for the same one
        interrupts.wait_for(prepared.compiled)
        entries.pop(call.signature)
        result = prepared.run(*call.args, *call.table)
        if prepared.text is not None:
            _by_text[prepared.text] = prepared.run
        self._keep(call, prepared.run, shared if prepared.is_shared else None)
        return result

    def _traced_call(self, call: _Call, shared: _Shared) -> Any:
        """Trace and lower the function; compile it unless an equal text was compiled before."""
        body, run = self._compiled(call)
        with self._traceable(body):
            lowered, text, is_shared = self._lowered(call, body, run)
            interrupts.check()
            known = text and _by_text.get(text)
            if known is not None:
                body.fn = None
                with contextlib.suppress(_Untraced):
                    result = known(*call.args, *call.table)
                    self._keep(call, known, shared if is_shared else None)
                    return result
                body.fn = self._fn
            if interrupts.is_watched() and hasattr(run, "trace"):  # so that Ctrl-C does not wait for the compiler
                run = _Waiting(run) if tracing.calls_python else run
                entry = _Prepared(run, call.key, text, is_shared, lowered, _compile_in_thread(lowered))
                (shared if is_shared else self._unshared).prepared[call.signature] = entry
                return self._prepared_call(call, shared, entry)
            result = run(*call.args, *call.table)
            if tracing.calls_python:  # in a job, this is only known now
                run = _Waiting(run)
                counters.wait(result)  # sync: as in `_Waiting`
        if text is not None:
            _by_text[text] = run
        self._keep(call, run, shared if is_shared else None)
        return result

    @contextlib.contextmanager
    def _traceable(self, body: _Body) -> Iterator[None]:
        """Let jax trace a body in this block."""
        body.fn = self._fn
        outer, tracing.incomplete, tracing.calls_python = (tracing.incomplete, tracing.calls_python), False, False
        try:
            yield
        finally:
            body.fn, body.constants = None, ()
            tracing.incomplete, tracing.calls_python = tracing.incomplete or outer[0], tracing.calls_python or outer[1]

    def _lowered(self, call: _Call, body: _Body, run: Any) -> tuple[Any, Any, bool]:
        """Trace and lower a function; return (lowered, key of the table by text or None, whether equal keys may share it)."""
        with lazy.uncollected():
            lowered, digest, complete = _text_of(run, (*call.args, *call.table))
        return (
            lowered,
            digest and (digest, body.results, call.signature, read_key(self._static).value),
            complete and not tracing.incomplete,
        )

    def _keep(self, call: _Call, run: Any, shared: _Shared | None = None) -> None:
        self._runs[call.signature] = run, call.table
        self._by_shape = self._by_shape.with_entry(call.args, (run, call.table))
        self._only = (run, call.table) if len(self._runs) == 1 else None
        if shared is not None:
            shared.runs[call.signature] = run


def _signature(args: tuple[Any, ...]) -> Any:
    """Structure, shapes, dtypes and placement of arguments, and the settings of jax; None if one is a tracer."""
    leaves, tree = jax.tree.flatten(args)
    try:
        return tree, tuple(map(_describe, leaves)), settings()
    except AttributeError:  # tracers have no sharding
        return None


def _describe(x: Any) -> Any:
    if isinstance(x, jax.Array):
        return x.shape, x.dtype, getattr(x, "weak_type", False), x.sharding, x.committed  # keys have no weak_type
    if isinstance(x, np.ndarray | np.generic):
        return x.shape, x.dtype
    return type(x), getattr(x, "shape", None), getattr(x, "dtype", None), getattr(x, "weak_type", None)


def _is_disabled() -> bool:
    return jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


def _compile_in_thread(lowered: Any) -> Future[Any]:
    return interrupts.in_thread(_compile, lowered, settings(), daemon=False)  # XLA must not compile while the process exits


def _compile(lowered: Any, expected: Any) -> None:
    """Compile on another thread, unless settings that the calling thread changed for itself are not in effect here."""
    if settings() == expected:
        lowered.compile()
        allocator.trim()  # what tracing and the compiler have freed, in pieces too small for the arrays of the program


def _text_of(run: Any, args: tuple[Any, ...]) -> tuple[Any, Any, bool]:
    """Trace and lower a function; return (lowered, digest of its text, whether programs may share the compiled function).

    The digest is None if the text does not describe the function completely.  Functions that call Python on the host are not
    shared: the text does not say which Python function they call.
    """
    traced, large, python = None, False, False
    if getattr(run, "lowers_apart", False):  # of several processes: the text would cost a second trace
        return None, None, False
    if hasattr(run, "trace"):  # functions of pmap have none
        traced = run.trace(*args)
        jaxprs = list(_jaxprs(traced.jaxpr, set()))
        large = sum(getattr(x, "nbytes", 0) for jaxpr in jaxprs for x in getattr(jaxpr, "consts", ())) > MAX_CONSTANTS
        python = large and any(op in equation.primitive.name for jaxpr in jaxprs for equation in jaxpr.eqns for op in _HOST)
    lowered = run.lower(*args) if traced is None else traced.lower()
    text = "" if large else lowered.as_text()
    if python or _CALLS.search(text):
        tracing.calls_python = True
        return lowered, None, False
    if large:
        return lowered, None, True
    arguments = _used_arguments(lowered, args)
    if len(text) > MAX_TEXT or arguments is None or jax.config.values.get("jax_use_simplified_jaxpr_constants"):
        return lowered, None, True
    return lowered, (hashlib.sha256(text.encode()).digest(), arguments), True


# operations that communicate with Python, as primitives of jax and in a text
_HOST = ("callback", "infeed", "outfeed")
_CALLS = re.compile(r"custom_call @\w*callback|stablehlo\.(infeed|outfeed|send|recv)\b")


def _jaxprs(jaxpr: Any, visited: set[int]) -> Iterator[Any]:
    """Yield a jaxpr and those in the parameters of its equations, each once."""
    if id(jaxpr) not in visited:
        visited.add(id(jaxpr))
        yield jaxpr
        for equation in jaxpr.eqns:
            for value in equation.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    if hasattr(inner, "eqns"):
                        yield from _jaxprs(inner, visited)


def _used_arguments(lowered: Any, args: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Positions of the array arguments that a lowered function uses; jax leaves out the others, so that the text lacks them.

    jax names the arguments by their paths in `args`, functions of pmap by their positions.  None if the names are ambiguous.
    """
    leaves = jax.tree_util.tree_flatten_with_path(args)[0]
    positions = {jax.tree_util.keystr(path).replace("\\", "\\\\"): i for i, (path, _) in enumerate(leaves)}
    if len(positions) != len(leaves):
        return None
    try:
        functions = lowered.compiler_ir("stablehlo").body.operations
        main = next(f for f in functions if str(getattr(f, "sym_name", "")).strip('"') == "main")
        names = [str(argument.location).removeprefix('loc("').removesuffix('")') for argument in main.arguments]
        if all(name.startswith("flat_args[") for name in names):
            used = tuple([int(name[len("flat_args[") : -1]) for name in names])
        else:
            used = tuple([positions[name.removeprefix("args")] for name in names])
    except (AttributeError, StopIteration, NotImplementedError, KeyError, ValueError):
        return None
    return used if len(set(used)) == len(used) else None


_checked = kept(MAX_PROGRAMS)


def check_shapes(fn: Callable[..., Any], *args: Any) -> None:
    """Trace a function for arguments of these shapes, which raises its errors; do nothing if an equal call succeeded before.

    Args:
        fn: function of arrays.
        *args: pytrees of arrays; only shapes and dtypes are used.

    Example:
        >>> check_shapes(lambda x: x + 1, np.ones(3))
    """
    key, signature = key_of(fn), _signature(args)
    if key is not None and _checked.get((key, signature)):
        return
    jax.eval_shape(fn, *args)
    if key is not None:
        _checked[key, signature] = True
