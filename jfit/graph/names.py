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
from collections.abc import Iterable
from typing import Any, NamedTuple

_ORDER = itertools.count()
LOCK = threading.RLock()  # held while names are numbered: graphs of several threads may share nodes


class AutoName:
    """The name of a node for which the user chose none: an operator name and, once `number` has run, a number.

    Attributes:
        hint: name of the operator in lower case, such as "fullyconnected".
        origin: the name that this one replaces in a joined graph; else itself.
        order: position in the order in which the process created automatic names; that of `origin` if it replaces a name.
        text: the name, such as "fullyconnected0"; None until a graph with the node is numbered.  It does not change afterwards.
        context: outputs that become inputs of the node while it is created, so that an error message has the correct number.
        reserved: names that the graph of this node does not get, see `Graph.reserved`.
        lowered: whether a model with parameters of this name was made.
    """

    __slots__ = ("context", "hint", "lowered", "order", "origin", "reserved", "text")

    def __init__(self, hint: str, origin: AutoName | None = None) -> None:
        self.hint, self.origin = hint, origin or self
        self.order = origin.order if origin else next(_ORDER)
        self.text: str | None = None
        self.context: tuple[Any, ...] = ()
        self.reserved: frozenset[str] = frozenset()
        self.lowered = False


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


def number(labels: Iterable[Label]) -> dict[AutoName, AutoName]:
    """Number the automatic names among the labels of one graph.

    Args:
        labels: labels of all nodes of the graph and of its subgraphs.

    Returns:
        Replacements of automatic names whose numbers are from another graph and are taken in this one: dict of the old name to
        one with the next free number.  They occur if two graphs are joined after their names were used.
    """
    variants: dict[AutoName, dict[AutoName, None]] = {}  # by origin: a graph may have a node and its renamed copy
    suffixes: dict[AutoName, set[str]] = {}
    taken: set[str] = set()
    for label in labels:
        if isinstance(label, str):
            taken.add(label)
        else:
            origin = label.auto.origin
            variants.setdefault(origin, {})[label.auto] = None
            suffixes.setdefault(origin, {""}).add(label.suffix)

    def free(origin: AutoName, text: str | None) -> bool:
        names = {f"{text}{suffix}" for suffix in suffixes[origin]}
        if text is None or not taken.isdisjoint(names):
            return False
        taken.update(names)
        return True

    chosen: dict[AutoName, AutoName] = {}  # by origin
    ordered = sorted(variants, key=lambda origin: origin.order)
    for origin in ordered:
        name = next((name for name in variants[origin] if free(origin, name.text)), None)
        if name is not None:
            chosen[origin] = name
    taken.update(*{origin.reserved for origin in ordered})
    counts: Counter[str] = Counter()
    for origin in ordered:
        if origin not in chosen:
            while not free(origin, text := f"{origin.hint}{counts[origin.hint]}"):
                counts[origin.hint] += 1
            chosen[origin] = origin if origin.text is None else AutoName(origin.hint, origin)
            chosen[origin].text = text
    replacements = {name: chosen[o] for o, names in variants.items() for name in names if name is not chosen[o]}
    _warn_of_renamed(replacements)
    return replacements


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
