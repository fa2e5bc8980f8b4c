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
    """The names of one numbered graph, to which `number` can add new nodes: reading a name after each layer takes linear time.

    Attributes:
        owner: id of the node whose graph this is.
        taken: all names.
        chosen: those of them that the user chose.
        reserved: names that new nodes do not get, see `Graph.reserved`.
        counts: for each hint, a number below which none is free.
    """

    __slots__ = ("chosen", "counts", "owner", "reserved", "taken")

    def __init__(self) -> None:
        self.owner: int | None = None
        self.taken: set[str] = set()
        self.chosen: set[str] = set()
        self.reserved: set[str] = set()
        self.counts: Counter[str] = Counter()

    def can_add(self, raw_names: Iterable[RawName]) -> bool:
        """Whether names of new nodes do not change the names of the graph."""
        return all((x in self.chosen or x not in self.taken) if isinstance(x, str) else x.auto.text is None for x in raw_names)


def number(raw_names: Iterable[RawName], numbering: Numbering | None = None) -> dict[AutoName, AutoName]:
    """Number the automatic names of one graph.

    Args:
        raw_names: names of all nodes of the graph and of its subgraphs, or of the nodes to add to those of `numbering`.
        numbering: names of the graph so far, to which these are added; None: there are none.

    Returns:
        Replacements of automatic names whose numbers are from another graph and are taken in this one: dict of the old name to
        one with the next free number.  They occur if two graphs are joined after their names were used.
    """
    variants: dict[AutoName, dict[AutoName, None]] = {}  # by origin: a graph may have a node and its renamed copy
    suffixes: dict[AutoName, set[str]] = {}
    numbering = numbering or Numbering()
    taken, reserved, counts = numbering.taken, numbering.reserved, numbering.counts
    for raw_name in raw_names:
        if isinstance(raw_name, str):
            taken.add(raw_name)
            numbering.chosen.add(raw_name)
        else:
            origin = raw_name.auto.origin
            variants.setdefault(origin, {})[raw_name.auto] = None
            suffixes.setdefault(origin, {""}).add(raw_name.suffix)

    def take(origin: AutoName, text: str | None, reserved: Set[str] = frozenset()) -> bool:
        """Take the names of a node and its variables, if all are free."""
        names = {f"{text}{suffix}" for suffix in suffixes[origin]}
        if text is None or not (taken.isdisjoint(names) and reserved.isdisjoint(names)):
            return False
        taken.update(names)
        return True

    by_origin: dict[AutoName, AutoName] = {}
    ordered = sorted(variants, key=lambda origin: origin.order)
    for origin in ordered:
        name = next((name for name in variants[origin] if take(origin, name.text)), None)
        if name is not None:
            by_origin[origin] = name
    reserved.update(*{origin.reserved for origin in ordered})
    for origin in ordered:
        if origin not in by_origin:
            while not take(origin, text := f"{origin.hint}{counts[origin.hint]}", reserved):
                counts[origin.hint] += 1
            name = by_origin[origin] = origin if origin.text is None else AutoName(origin.hint, origin)
            name.text = text
    replacements = {name: by_origin[o] for o, names in variants.items() for name in names if name is not by_origin[o]}
    _warn_of_renamed(replacements)
    return replacements


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

    replacements = number([x if isinstance(x, str) else Derived(copy(x.auto), x.suffix) for x in raw_names])
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
