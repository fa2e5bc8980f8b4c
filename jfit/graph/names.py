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
        lowered: whether a model with parameters of this name was made.
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


Label = str | Derived


def derived(label: Label, suffix: str) -> Label:
    """Append a suffix to a label.

    Example:
        >>> derived("fc1", "_weight")
        'fc1_weight'
    """
    return label + suffix if isinstance(label, str) else Derived(label.auto, label.suffix + suffix)


def mark_lowered(labels: Iterable[Label]) -> None:
    """Note that a model was made of a graph with these labels: if one of them is renamed, `number` warns."""
    for label in labels:
        if not isinstance(label, str):
            label.auto.lowered = True


class Numbering:
    """The names of one graph, to which nodes can be added.

    With it, building a network and reading its names after each layer takes linear time.

    Attributes:
        owner: id of the node whose graph this is.
        chosen: for each automatic name before replacements (`AutoName.origin`), the one that the graph has.
        suffixes: for each of them, the suffixes of its labels.
        given: names that the user chose.
        taken: all names.
        reserved: names that new nodes do not get, see `Graph.reserved`.
        counts: for each hint, a number below which none is free.
    """

    __slots__ = ("chosen", "counts", "given", "owner", "reserved", "suffixes", "taken")

    def __init__(self, given: set[str], suffixes: dict[AutoName, set[str]]) -> None:
        self.given, self.suffixes, self.taken = given, suffixes, set(given)
        self.owner: int | None = None
        self.chosen: dict[AutoName, AutoName] = {}
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
        self.chosen[origin] = name
        return name

    def add(self, labels: Iterable[Label]) -> bool:
        """Add the labels of new nodes and number them; return False, without a change, if `number` is needed instead."""
        given: set[str] = set()
        suffixes: dict[AutoName, set[str]] = {}
        for label in labels:
            if isinstance(label, str):
                if label in self.taken and label not in self.given:
                    return False
                given.add(label)
            elif label.auto.origin not in self.chosen:
                if label.auto.text is not None:  # numbered in another graph
                    return False
                suffixes.setdefault(label.auto, {""}).add(label.suffix)
            elif self.chosen[label.auto.origin] is not label.auto or label.suffix not in self.suffixes[label.auto.origin]:
                return False
        self.given |= given
        self.taken |= given
        self.suffixes.update(suffixes)
        self.reserved.update(*[name.reserved for name in suffixes])
        for name in sorted(suffixes, key=lambda name: name.order):
            self.take_next(name)
        return True


def number(labels: Iterable[Label]) -> tuple[dict[AutoName, AutoName], Numbering]:
    """Number the automatic names among the labels of one graph.

    Args:
        labels: labels of all nodes of the graph and of its subgraphs.

    Returns:
        (replacements, the `Numbering`).  Replacements are of automatic names whose numbers are from another graph and are taken
        in this one: dict of the old name to one with the next free number.  They occur if two graphs are joined after their
        names were used.
    """
    variants: dict[AutoName, dict[AutoName, None]] = {}  # by origin: a graph may have a node and its renamed copy
    suffixes: dict[AutoName, set[str]] = {}
    given: set[str] = set()
    for label in labels:
        if isinstance(label, str):
            given.add(label)
        else:
            origin = label.auto.origin
            variants.setdefault(origin, {})[label.auto] = None
            suffixes.setdefault(origin, {""}).add(label.suffix)
    numbering = Numbering(given, suffixes)
    ordered = sorted(variants, key=lambda origin: origin.order)
    for origin in ordered:
        name = next((name for name in variants[origin] if numbering.take(origin, name.text)), None)
        if name is not None:
            numbering.chosen[origin] = name
    numbering.reserved.update(*{origin.reserved for origin in ordered})
    for origin in ordered:
        if origin not in numbering.chosen:
            numbering.take_next(origin)
    chosen = numbering.chosen
    replacements = {name: chosen[o] for o, names in variants.items() for name in names if name is not chosen[o]}
    _warn_of_renamed(replacements)
    return replacements, numbering


def _warn_of_renamed(replacements: dict[AutoName, AutoName]) -> None:
    """Warn if layers that a model was made of have other names in a joined graph: their parameters are under the old names."""
    renamed = [f"{old.text!r} is {new.text!r}" for old, new in replacements.items() if old.lowered]
    if renamed:
        warnings.warn(
            f"networks whose layers have the same automatic names were joined; in the joined network, {', '.join(renamed[:5])}"
            f"{' ...' if len(renamed) > 5 else ''}. Parameters trained or saved before have the old names; to use them in the "
            "joined network, pass name= to the layers, or build each network under Prefix",
            stacklevel=2,
        )
