"""Automatic names of nodes: numbered per graph, when the names of a graph are first used.

A node without a name has an `AutoName` until then.  `number` gives the automatic names of one graph their numbers: for each
operator 0, 1, ... in the order in which the nodes were created, without the names that the graph already has.  So a network
that is built a second time in a process has the same names, and with them the same initial values and checkpoints.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

_ORDER = itertools.count()
LOCK = threading.RLock()  # held while names are numbered: graphs of several threads may share nodes


class AutoName:
    """The name of a node for which the user chose none: an operator name and, once `number` has run, a number.

    Attributes:
        hint: name of the operator in lower case, such as "fullyconnected".
        replaced: the name that this one replaces in a joined graph, or None.
        order: position in the order in which the process created automatic names; that of `replaced` if it has one.
        text: the name, such as "fullyconnected0"; None until a graph with the node is numbered.  It does not change afterwards.
        context: outputs that become inputs of the node while it is created, so that an error message has the correct number.
        reserved: names that the graph of this node does not get, see `Graph.reserved`.
        lowered: whether a model with parameters of this name was made; if it is renamed, `number` warns.
    """

    __slots__ = ("context", "hint", "lowered", "order", "replaced", "reserved", "text")

    def __init__(self, hint: str, replaced: AutoName | None = None) -> None:
        self.hint, self.replaced = hint, replaced
        self.order = replaced.order if replaced else next(_ORDER)
        self.text: str | None = None
        self.context: tuple[Any, ...] = ()
        self.reserved: frozenset[str] = frozenset()
        self.lowered = False

    @property
    def origin(self) -> AutoName:
        """The name that this one replaces, or itself."""
        return self.replaced or self


class Derived(NamedTuple):
    """An automatic name followed by a suffix: "" for the node itself, "_weight" for a variable that was created for it."""

    auto: AutoName
    suffix: str


RawName = str | Derived


def derived(raw_name: RawName, suffix: str) -> RawName:
    """Append a suffix to a name.

    Example:
        >>> derived("fc1", "_weight")
        'fc1_weight'
    """
    return raw_name + suffix if isinstance(raw_name, str) else Derived(raw_name.auto, raw_name.suffix + suffix)


class Numbering:
    """The names of one graph, to which nodes can be added.

    With it, building a network and reading its names after each layer takes linear time.

    Attributes:
        owner: id of the node whose graph this is.
        by_origin: for each automatic name before replacements (`AutoName.origin`), the one that the graph has.
        suffixes: for each of them, the suffixes of its names.
        user_names: names that the user chose.
        taken: all names.
        reserved: names that new nodes do not get, see `Graph.reserved`.
        counts: for each hint, a number below which none is free.
    """

    __slots__ = ("by_origin", "counts", "owner", "reserved", "suffixes", "taken", "user_names")

    def __init__(self, user_names: set[str], suffixes: dict[AutoName, set[str]]) -> None:
        self.user_names, self.suffixes, self.taken = user_names, suffixes, set(user_names)
        self.owner: int | None = None
        self.by_origin: dict[AutoName, AutoName] = {}
        self.reserved: set[str] = set()
        self.counts: Counter[str] = Counter()

    def take(self, origin: AutoName, text: str | None, reserved: Set[str] = frozenset()) -> bool:
        """Take the names of a node and its variables, if all are free."""
        names = {f"{text}{suffix}" for suffix in self.suffixes[origin]}
        if text is None or not (self.taken.isdisjoint(names) and reserved.isdisjoint(names)):
            return False
        self.taken |= names
        return True

    def take_next(self, origin: AutoName) -> AutoName:
        """Take the next free number for a node; returns its name, a new one if the node has a number already."""
        counts, hint = self.counts, origin.hint
        while not self.take(origin, text := f"{hint}{counts[hint]}", self.reserved):
            counts[hint] += 1
        name = origin if origin.text is None else AutoName(hint, origin)
        name.text = text
        self.by_origin[origin] = name
        return name

    def add(self, raw_names: Iterable[RawName]) -> bool:
        """Add the names of new nodes and number them; return False, without a change, if `number` is needed instead."""
        user_names: set[str] = set()
        suffixes: dict[AutoName, set[str]] = {}
        for raw_name in raw_names:
            if isinstance(raw_name, str):
                if raw_name in self.taken and raw_name not in self.user_names:
                    return False
                user_names.add(raw_name)
            elif raw_name.auto.origin not in self.by_origin:
                if raw_name.auto.text is not None:  # numbered in another graph
                    return False
                suffixes.setdefault(raw_name.auto, {""}).add(raw_name.suffix)
            elif (
                self.by_origin[raw_name.auto.origin] is not raw_name.auto
                or raw_name.suffix not in self.suffixes[raw_name.auto.origin]
            ):
                return False
        self.user_names |= user_names
        self.taken |= user_names
        self.suffixes.update(suffixes)
        self.reserved.update(*[name.reserved for name in suffixes])
        for name in sorted(suffixes, key=lambda name: name.order):
            self.take_next(name)
        return True


def number(raw_names: Iterable[RawName]) -> tuple[dict[AutoName, AutoName], Numbering]:
    """Number the automatic names of one graph.

    Args:
        raw_names: names of all nodes of the graph and of its subgraphs.

    Returns:
        (replacements, the `Numbering`).  Replacements are of automatic names whose numbers are from another graph and are taken
        in this one: dict of the old name to one with the next free number.  They occur if two graphs are joined after their
        names were used.
    """
    variants: dict[AutoName, dict[AutoName, None]] = {}  # by origin: a graph may have a node and its renamed copy
    suffixes: dict[AutoName, set[str]] = {}
    user_names: set[str] = set()
    for raw_name in raw_names:
        if isinstance(raw_name, str):
            user_names.add(raw_name)
        else:
            origin = raw_name.auto.origin
            variants.setdefault(origin, {})[raw_name.auto] = None
            suffixes.setdefault(origin, {""}).add(raw_name.suffix)
    numbering = Numbering(user_names, suffixes)
    ordered = sorted(variants, key=lambda origin: origin.order)
    for origin in ordered:
        name = next((name for name in variants[origin] if numbering.take(origin, name.text)), None)
        if name is not None:
            numbering.by_origin[origin] = name
    numbering.reserved.update(*{origin.reserved for origin in ordered})
    for origin in ordered:
        if origin not in numbering.by_origin:
            numbering.take_next(origin)
    by_origin = numbering.by_origin
    replacements = {name: by_origin[o] for o, names in variants.items() for name in names if name is not by_origin[o]}
    _warn_of_renamed(replacements)
    return replacements, numbering


def preview(raw_names: Iterable[RawName]) -> dict[AutoName, AutoName]:
    """Number copies of the automatic names of one graph: for texts, which must not decide the numbers.

    Args:
        raw_names: names of all nodes of the graph and of its subgraphs.

    Returns:
        Dict: automatic name -> a copy with the number that it would have in this graph now.
    """
    copies: dict[AutoName, AutoName] = {}

    def copy(name: AutoName) -> AutoName:
        if name not in copies:
            copies[name] = AutoName(name.hint, name.replaced and copy(name.replaced))
            copies[name].order, copies[name].text, copies[name].reserved = name.order, name.text, name.reserved
        return copies[name]

    replacements, _ = number([x if isinstance(x, str) else Derived(copy(x.auto), x.suffix) for x in raw_names])
    return {name: replacements.get(copied, copied) for name, copied in copies.items()}


def _warn_of_renamed(replacements: dict[AutoName, AutoName]) -> None:
    """Warn if layers that a model was made of have other names in a joined graph: their parameters are under the old names."""
    renamed = [f"{old.text!r} is {new.text!r}" for old, new in replacements.items() if old.lowered]
    if renamed:
        warnings.warn(
            f"networks whose layers have the same automatic names were joined; in the joined network, {', '.join(renamed[:5])}"
            f"{' ...' if len(renamed) > 5 else ''}; parameters trained before have the old names: pass name=, or use Prefix",
            stacklevel=2,
        )
