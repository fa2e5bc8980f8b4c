"""The operator table, generated from the records: `python -m jfit.ops`, or `python -m jfit.ops --markdown`.

It lists the records, then every name of MXNet 1.9.1's registry: which record answers to it, or why none does.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import Counter

import jfit.ops
from jfit.ops.attributes import REQUIRED
from jfit.ops.registry import ALIASES, REGISTRY, Op
from jfit.ops.scope import REASONS, out_of_scope

COLUMNS = ("operator", "family", "inputs", "attributes", "aliases", "kind", "what it computes")


def load_all() -> None:
    """Import every module of records, so that the registry is complete."""
    for module in pkgutil.iter_modules(jfit.ops.__path__):
        if module.name != "__main__":
            importlib.import_module(f"jfit.ops.{module.name}")


def input_words(op: Op) -> str:
    """Input names; those that hang on attributes are shown for the default attributes, with their count for variadic ones."""
    if op.variadic:
        return f"arg0 ... ({op.variadic} of them)"
    return ", ".join(op.usual_inputs) or "none"


def attribute_words(op: Op) -> str:
    """`name=default` for each attribute, the bare name where one is required."""
    return ", ".join(k if a.default is REQUIRED else f"{k}={a.default!r}" for k, a in op.attrs.items()) or "none"


def table() -> list[tuple[str, ...]]:
    """One row for each operator, by family and name; columns as `COLUMNS`.

    Example:
        >>> load_all()
        >>> next(row for row in table() if row[0] == "relu")[2]
        'data'
    """
    ops = sorted(REGISTRY.values(), key=lambda op: (op.family, op.name.lower(), op.name))
    return [
        (op.name, op.family, input_words(op), attribute_words(op), ", ".join(op.aliases) or "none", op.kind, op.doc)
        for op in ops
    ]


def counts() -> str:
    """How many operators there are, in all and by family."""
    families = Counter(op.family for op in REGISTRY.values())
    names = sum(1 + len(op.aliases) for op in REGISTRY.values())
    parts = ", ".join(f"{n} {family}" for family, n in sorted(families.items()))
    left = Counter(out_of_scope().values())
    left_out = ", ".join(f"{n} {heading}" for heading, n in sorted(left.items()))
    return (
        f"{len(REGISTRY)} operators under {names} names: {parts}.\n{left.total()} names of MXNet are out of scope: {left_out}."
    )


def names() -> list[tuple[str, str]]:
    """Every name: (name, the record that answers to it or why none does), in alphabetical order.

    Example:
        >>> load_all()
        >>> dict(names())["stop_gradient"]
        'supported: BlockGrad'
    """
    found = {name: f"supported: {record}" for name, record in ALIASES.items()}
    found |= {name: f"out of scope ({heading})" for name, heading in out_of_scope().items()}
    return sorted(found.items(), key=lambda item: (item[0].lower(), item[0]))


def markdown() -> str:
    """The table as a Markdown page."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    rows = [(f"`{name}`", *rest[:1], *(_code(c) for c in rest[1:4]), *rest[4:]) for name, *rest in table()]
    head = f"# Operators\n\nMade by `python -m jfit.ops --markdown > docs/operators.md`; do not edit by hand.\n\n{counts()}\n\n"
    records = "\n".join([line(COLUMNS), line(("---",) * len(COLUMNS)), *map(line, rows)])
    why = "\n".join(f"- **{heading}**: {reason}." for heading, reason in REASONS.items() if heading in out_of_scope().values())
    every = "\n".join(["| name | state |", "| --- | --- |", *(f"| `{name}` | {state} |" for name, state in names())])
    return f"{head}{records}\n\n## Every name\n\nWhy a name is out of scope:\n\n{why}\n\n{every}\n"


def _code(cell: str) -> str:
    return "" if cell == "none" else f"`{cell}`"


def plain() -> str:
    """The table as text, an operator a paragraph."""
    parts = []
    for name, family, inputs, attributes, aliases, kind, doc in table():
        parts.append(f"{name}  [{family}, {kind}]  {doc}\n    inputs: {inputs}; attributes: {attributes}; aliases: {aliases}")
    every = [f"{name}: {state}" for name, state in names()]
    return "\n".join([*parts, "", *every, "", counts()]) + "\n"


if __name__ == "__main__":
    load_all()
    sys.stdout.write(markdown() if "--markdown" in sys.argv[1:] else plain())
