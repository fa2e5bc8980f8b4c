"""Context managers for automatic names and user attributes of the nodes created in a `with` block (one stack per thread)."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Container
from typing import Any

from jfit.graph.names import AutoName, Derived, RawName
from jfit.graph.nodes import underscored

_local = threading.local()


def _stack(kind: str) -> list[Any]:
    stacks = _local.__dict__.setdefault("stacks", {})
    return stacks.setdefault(kind, [NameManager()] if kind == "name" else [])


class _Current:
    """What MXNet calls the current scope of this thread, `NameManager._current.value`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def value(self) -> Any:
        return AttrScope(**AttrScope.current()) if self.kind == "attr" else _stack("name")[-1]

    @value.setter
    def value(self, scope: Any) -> None:
        _stack(self.kind)[-1:] = [scope]


class _Scope:
    """A scope that is the current one of its kind in a `with` block."""

    _current: _Current

    def __enter__(self):
        _stack(self._current.kind).append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack(self._current.kind).pop()


class NameManager(_Scope):
    """Names unnamed nodes `<operator><number>`, numbering each operator from 0; use as a context manager.

    The numbers count the nodes created in the `with` block.  Without a manager, each graph numbers its nodes when its names are
    first used, so the same code creates the same names again.  `mx.sym` counts the nodes of the process, as MXNet does.

    Example:
        >>> import jfit
        >>> with jfit.sym.NameManager():
        ...     jfit.sym.relu(jfit.sym.Variable("x")).name
        'relu0'
    """

    _current = _Current("name")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def get(self, name: str | None, hint: str) -> str:
        """Return `name`, or if it is None the next automatic name `<hint><number>`."""
        if name:
            return name
        self._counts[hint] += 1
        return f"{hint}{self._counts[hint] - 1}"

    @staticmethod
    def current() -> NameManager:
        """The innermost active manager."""
        return _stack("name")[-1]


class Prefix(NameManager):
    """A `NameManager` that prepends a prefix to all names, automatic or not, of nodes created in its `with` block.

    Args:
        prefix: the prefix.

    Example:
        >>> import jfit
        >>> with jfit.sym.Prefix("net_"):
        ...     jfit.sym.relu(jfit.sym.Variable("x")).name
        'net_relu0'
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        """`NameManager.get` with the prefix prepended."""
        return self._prefix + super().get(name, hint)


class AttrScope(_Scope):
    """Context manager that sets user attributes on all nodes created in its block; nested scopes are merged.

    Args:
        attrs: attributes as keyword arguments, all values strings; `lr_mult` and `wd_mult` scale the learning rate and weight
            decay of variables.

    Raises:
        ValueError: a value is not a string.

    Example:
        >>> import jfit
        >>> with jfit.sym.AttrScope(lr_mult="0.1"):
        ...     jfit.sym.Variable("w").attr("lr_mult")
        '0.1'
    """

    _current = _Current("attr")

    def __init__(self, **attrs: str) -> None:
        self._attr = underscored(attrs)

    def get(self, attr: dict[str, str] | None) -> dict[str, str]:
        """Return the attributes of this scope, overridden by `attr`."""
        return {**self._attr, **(attr or {})}

    @staticmethod
    def current() -> dict[str, str]:
        """Merge the attributes of all active scopes; inner scopes override outer ones."""
        merged: dict[str, str] = {}
        for scope in _stack("attr"):
            merged.update(scope._attr)
        return merged


def raw_name_of(name: str | None, hint: str, per_process: bool) -> RawName:
    """Return the name of a new node: `name`, the next name of the active manager, or a name that its graph numbers.

    Args:
        name: name that the user chose, or None.
        hint: name of the operator in lower case.
        per_process: number outside of all managers as MXNet does: one counter for all graphs of the process (and thread).
    """
    manager = NameManager.current()
    if name or per_process or len(_stack("name")) > 1:
        return manager.get(name, hint)
    return Derived(AutoName(hint), "")


def body_name(name: str, mark: str, earlier: Container[str] | None) -> str:
    """Return a name for the body of the loop or branch `name`.

    It is `<name><number>`, or `<outer body>$<name><number>` for a loop in the body of another one, whose name is the value of
    the attribute `mark` in the active `AttrScope`.

    Args:
        name: name of the loop or branch.
        mark: key of the attribute.
        earlier: names of bodies in the graph that the loop reads, which are not used again; None: count those of the process.
    """
    outer = AttrScope.current().get(mark)
    name = f"{outer}${name}" if outer else name
    if earlier is not None:
        return next(text for text in map(f"{name}{{}}".format, itertools.count()) if text not in earlier)
    counts: Counter[str] = _local.__dict__.setdefault("bodies", Counter())
    counts[name] += 1
    return f"{name}{counts[name] - 1}"
