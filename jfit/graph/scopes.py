"""Context managers for automatic names and user attributes of the nodes created in a `with` block (one stack per thread)."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from jfit.graph.nodes import underscored

_local = threading.local()


def _stack(kind: str) -> list[Any]:
    stacks = _local.__dict__.setdefault("stacks", {})
    return stacks.setdefault(kind, [NameManager()] if kind == "name" else [])


class NameManager:
    """Names unnamed nodes `<operator><number>`, numbering each operator from 0; use as a context manager.

    Example:
        >>> import jfit
        >>> with jfit.sym.NameManager():
        ...     jfit.sym.relu(jfit.sym.Variable("x")).name
        'relu0'
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def get(self, name: str | None, hint: str) -> str:
        """Return `name`, or if it is None the next automatic name `<hint><number>`."""
        if name:
            return name
        self._counts[hint] += 1
        return f"{hint}{self._counts[hint] - 1}"

    def __enter__(self):
        _stack("name").append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack("name").pop()

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


class AttrScope:
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

    def __init__(self, **attrs: str) -> None:
        for key, value in attrs.items():
            if not isinstance(value, str):
                raise ValueError(f"attribute {key!r} is {value!r}; attributes of a graph are strings, pass {str(value)!r}")
        self._attrs = underscored(attrs)

    def __enter__(self):
        _stack("attr").append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack("attr").pop()

    @staticmethod
    def current() -> dict[str, str]:
        """Merge the attributes of all active scopes; inner scopes override outer ones."""
        merged: dict[str, str] = {}
        for scope in _stack("attr"):
            merged.update(scope._attrs)
        return merged


def body_name(name: str, mark: str) -> str:
    """Return a unique name for the body of the loop or branch `name`.

    It is `<name><number>`, or `<outer body>$<name><number>` for a loop in the body of another one, whose name is the value of
    the attribute `mark` in the active `AttrScope`.
    """
    outer = AttrScope.current().get(mark)
    name = f"{outer}${name}" if outer else name
    counts: Counter[str] = _local.__dict__.setdefault("bodies", Counter())
    counts[name] += 1
    return f"{name}{counts[name] - 1}"
