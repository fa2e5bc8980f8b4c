"""Compiled programs that are kept for the whole process, by what they compute.

`Program` wraps a function that is to be compiled.  Two tables, both bounded, make sure that equal functions are compiled once:

1. By key.  `read_key` describes a function of jfit by its content (see `jfit.programs.keys`).  Programs with equal keys share
   their compiled functions, and the second is neither traced nor compiled.
2. By text.  A function without a key (such as one that the user wrote) is traced and lowered.  If an equal text was compiled
   before, the result of that is called.

The tables contain compiled functions; they do not refer to the functions they were made of, to models or to data.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit import counters, forks, interrupts
from jfit.programs.keys import Constants, bound, key_of, read_key, table_of, tracing

# Maximum number of entries of each table; the one that was used least recently is dropped.
MAX_PROGRAMS = 128
# Maximum number of characters of a text, and of bytes of the arrays that its function closes over, which the compiled function
# keeps; programs with more are not kept by their text.
MAX_TEXT, MAX_CONSTANTS = 4 << 20, 1 << 20
MAX_SIGNATURES = 64  # compiled functions of one program, for different shapes
_ENVIRONMENT = ("JFIT_ROLL", "JFIT_CONV_FORMS")  # variables that programs of jfit depend on
_UNRELATED = ("cache", "log", "traceback", "profil", "dump", "explain")  # settings of jax without effect on programs


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
        with self._lock:
            self._items.pop(key, None)
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

    def __init__(self, name: str, constants: Sequence[Constants], has_table: bool) -> None:
        self.name, self.constants, self.has_table = name, constants, has_table
        self.fn: Callable[..., Any] | None = None
        self.results: Any = None  # structure, shapes, dtypes and weak types of the results

    def __call__(self, *args: Any) -> Any:
        if self.fn is None:
            raise _Untraced
        counters.count_trace(self.name)
        inputs, table = (args[:-1], args[-1]) if self.has_table else (args, None)
        with bound(self.constants, table) if self.constants else contextlib.nullcontext():
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
        body = _Body(self._name, call.constants, bool(call.table))
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
