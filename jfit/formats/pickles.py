"""`Machine`: read a pickle from an untrusted source without importing classes, calling functions or unbounded memory.

Python's unpickler, even with a restricted `find_class`, lets a file decide how much memory is allocated (memo indices, sizes,
repeated copies), and deeply nested keys can overflow the C stack.  Here the standard library's `pickletools` decodes the
operations and checks every size, and each operation is a small Python function.  A class or function is represented by its
dotted name, and the caller's table of allowed names decides which function replaces it.
"""

from __future__ import annotations

import os
import pickletools
from collections.abc import Callable, Mapping
from typing import Any

from jfit.formats.atomic import FormatError

_DAMAGED = "the file is damaged or truncated: restore it from another copy, or save it again."
_DISALLOWED = (
    "only MXNet's arrays, optimizers and schedules, NumPy and plain containers are read, because a pickle can run any code: "
    "make sure that you trust the source of the file, and save its values as these types."
)
_KEYS = (str, bytes, int, float, bool, type(None))
# An array takes about 20 operations. An operation of one byte can create an object of about 100 bytes: this bounds the memory.
MOST_OPERATIONS = 5_000_000


class Name:
    """Class or function used by a pickle, never imported; a call of it becomes a call of `make` (None: not callable)."""

    def __init__(self, name: str, make: Callable[..., Any] | None = None) -> None:
        self.name, self.make = name, make

    def __repr__(self) -> str:
        return f"<name {self.name}>"


class Inert:
    """Object read from a pickle as data: the dotted name of its class, which is not imported, and its attributes.

    Args:
        name: dotted name of the class.
        attributes: dict attribute name -> value.

    Example:
        >>> Inert("mxnet.optimizer.optimizer.SGD", {"lr": 0.1}).attributes["lr"]
        0.1
    """

    def __init__(self, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        self.name, self.attributes = name, dict(attributes or {})

    def set_state(self, state: Any) -> None:
        """Update the attributes from the pickled state, as unpickling does."""
        for part in state if isinstance(state, tuple) else (state,):
            self.attributes = {**self.attributes, **(part or {})}

    # Names only: attributes may contain the object itself.
    def __repr__(self) -> str:
        return f"<{self.name} with {', '.join(map(str, self.attributes)) or 'no attributes'}>"


class Machine:
    """Stack machine that reads one pickle.

    Args:
        data: the pickle.
        path: file that contains it, for messages.
        resolve: function from a dotted name to a `Name`, or to None if the file may not use it.

    Raises:
        FormatError: from `run`: the pickle is damaged or truncated, or uses a name for which `resolve` returns None.

    Example:
        >>> import pickle
        >>> Machine(pickle.dumps({"a": (1, [2.5])}), "a.states", lambda name: None).run()
        {'a': (1, [2.5])}
    """

    def __init__(self, data: bytes, path: str | os.PathLike[str], resolve: Callable[[str], Name | None]) -> None:
        self.data, self.path, self.resolve = data, path, resolve
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.operations = 0
        # An honest file copies its bytes once or twice; more means that it makes copies of copies.
        self.budget = 3 * len(data) + 1024

    def spend(self, count: int) -> None:
        """Subtract bytes allocated by a call from the budget; raise ValueError if it is exceeded."""
        self.budget -= count
        if self.budget < 0:
            raise ValueError("it creates far more data than it contains")

    def run(self) -> Any:
        """Read the pickle and return its object."""
        position = 0
        try:
            for opcode, argument, at in pickletools.genops(self.data):
                position = at or 0
                self.operations += 1
                if self.operations > MOST_OPERATIONS:
                    raise ValueError(f"it has more than {MOST_OPERATIONS} operations")
                if opcode.name == "STOP":
                    break
                step = _STEPS.get(opcode.name)
                if step is None:
                    raise ValueError(f"the pickle operation {opcode.name} is unsupported")
                step(self, argument)
            if position + 1 != len(self.data):
                raise ValueError(f"{len(self.data) - position - 1} bytes follow the end")
            return self.pop()
        except FormatError:
            raise
        except Exception as error:  # an operation that finds other values than it works on raises any kind
            problem = f"the pickle is invalid ({type(error).__name__}: {error})"
            raise FormatError(self.path, f"byte {position}", problem, _DAMAGED) from None

    # ---------------------------------------------------------------------------------------- operations
    def push(self, value: Any) -> None:
        """Push a value on the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Pop the top of the stack."""
        return self.stack.pop()

    def mark(self, _: Any) -> None:
        """Start a new stack on top of the current one."""
        self.marks.append(self.stack)
        self.stack = []

    def above_mark(self) -> list[Any]:
        """Pop all values pushed since the last mark."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        """Pop the top `count` values."""
        return tuple([self.stack.pop() for _ in range(count)][::-1])

    def fill(self, items: list[Any]) -> None:
        """Add the items [key, value, key, value, ...] to the dict on top of the stack."""
        target = self.stack[-1]
        for name, value in zip(items[::2], items[1::2], strict=True):
            target[key(name)] = value

    def remember(self, index: int) -> None:
        """Store the value on top of the stack in the memo."""
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        """Push a value from the memo."""
        self.push(self.memo[index])

    def find(self, module: Any, name: Any) -> None:
        """Push the `Name` of a class or function."""
        full = ".".join((module, name))
        resolved = self.resolve(full)
        if resolved is None:
            raise FormatError(self.path, "class", f"it uses {full[:120]}, which is not allowed", _DISALLOWED)
        self.push(resolved)

    def call(self, arguments: Any) -> None:
        """Replace the `Name` on top of the stack by the result of its `make` function."""
        name = self.pop()
        if not isinstance(name, Name) or name.make is None:
            raise ValueError(f"{name if isinstance(name, Name) else type(name).__name__} is called, which is not allowed")
        self.push(name.make(*arguments))

    def build(self, state: Any) -> None:
        """Set the state of the object on top of the stack."""
        parts = state if isinstance(state, tuple) else (state,)
        self.spend(8 * sum(len(part) for part in parts if isinstance(part, dict)))
        self.stack[-1].set_state(state)


def key(value: Any) -> Any:
    """Check that a value may be a key: a plain value or a tuple of plain values, and return it.

    Hashing deeper tuples could overflow the C stack.

    Raises:
        ValueError: any other value.

    Example:
        >>> key(("data", 0))
        ('data', 0)
    """
    for part in value if isinstance(value, tuple) else (value,):
        if not isinstance(part, _KEYS):
            raise ValueError(f"a {type(part).__name__} is used as a key")
        if isinstance(part, int) and abs(part) >= 2**64:
            raise ValueError("a number of more than 64 bits is used as a key")
    return value


def _new_dict(machine: Machine, _: Any) -> None:
    items = machine.above_mark()
    machine.push({})
    machine.fill(items)


def _append(machine: Machine, items: list[Any]) -> None:
    machine.stack[-1].extend(items)


def _add(machine: Machine, items: list[Any]) -> None:
    machine.stack[-1].update(map(key, items))


_STEPS: dict[str, Callable[[Machine, Any], Any]] = {
    "PROTO": lambda m, a: None,
    "FRAME": lambda m, a: None,
    "POP": lambda m, a: m.pop() if m.stack else m.above_mark(),
    "POP_MARK": lambda m, a: m.above_mark(),
    "DUP": lambda m, a: m.push(m.stack[-1]),
    "MARK": Machine.mark,
    "NONE": lambda m, a: m.push(None),
    "NEWTRUE": lambda m, a: m.push(True),
    "NEWFALSE": lambda m, a: m.push(False),
    "EMPTY_LIST": lambda m, a: m.push([]),
    "EMPTY_TUPLE": lambda m, a: m.push(()),
    "EMPTY_DICT": lambda m, a: m.push({}),
    "EMPTY_SET": lambda m, a: m.push(set()),
    "LIST": lambda m, a: m.push(m.above_mark()),
    "TUPLE": lambda m, a: m.push(tuple(m.above_mark())),
    "TUPLE1": lambda m, a: m.push(m.last(1)),
    "TUPLE2": lambda m, a: m.push(m.last(2)),
    "TUPLE3": lambda m, a: m.push(m.last(3)),
    "DICT": _new_dict,
    "FROZENSET": lambda m, a: m.push(frozenset(map(key, m.above_mark()))),
    "APPEND": lambda m, a: _append(m, [m.pop()]),
    "APPENDS": lambda m, a: _append(m, m.above_mark()),
    "ADDITEMS": lambda m, a: _add(m, m.above_mark()),
    "SETITEM": lambda m, a: m.fill(list(m.last(2))),
    "SETITEMS": lambda m, a: m.fill(m.above_mark()),
    "MEMOIZE": lambda m, a: m.remember(len(m.memo)),
    "GLOBAL": lambda m, a: m.find(*a.partition(" ")[::2]),  # pickletools joins module and name by a space
    "STACK_GLOBAL": lambda m, a: m.find(*m.last(2)),
    "REDUCE": lambda m, a: m.call(m.pop()),
    "NEWOBJ": lambda m, a: m.call(m.pop()),
    "BUILD": lambda m, a: m.build(m.pop()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Machine.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Machine.recall),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"), Machine.push),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), Machine.push),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), Machine.push),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), Machine.push),
}
