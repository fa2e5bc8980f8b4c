"""Print the table of all operators, generated from the registry: `python -m jfit.ops`.

A second table lists all operator names of MXNet 1.9.1, with the jfit operator that implements each or why none does.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import Counter

import jfit.ops
from jfit.ops.attributes import REQUIRED
from jfit.ops.registry import ALIASES, REGISTRY, Op
from jfit.ops.scope import out_of_scope

COLUMNS = ("operator", "family", "inputs", "attributes", "aliases", "kind", "what it computes")


def load_all() -> None:
    """Import every module of jfit.ops, so that the registry is complete."""
    for module in pkgutil.iter_modules(jfit.ops.__path__):
        if module.name != "__main__":
            importlib.import_module(f"jfit.ops.{module.name}")


def input_words(op: Op) -> str:
    """Format the input names of an operator with default attributes, such as 'data, weight, bias' or 'arg0 ...'."""
    if op.variadic:
        return f"arg0 ... ({op.variadic} of them)"
    return ", ".join(op.usual_inputs) or "none"


def attribute_words(op: Op) -> str:
    """Format the attributes of an operator: `name=default` for each optional one, and `name` for each required one."""
    return ", ".join(k if a.default is REQUIRED else f"{k}={a.default!r}" for k, a in op.attrs.items()) or "none"


def table() -> list[tuple[str, ...]]:
    """Return one tuple of `COLUMNS` for each operator, sorted by family and name.

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
    """Return a text with the number of operators and of unsupported names, in total and by family."""
    families = Counter(op.family for op in REGISTRY.values())
    names = sum(1 + len(op.aliases) for op in REGISTRY.values())
    parts = ", ".join(f"{n} {family}" for family, n in sorted(families.items()))
    excluded = Counter(out_of_scope().values())
    reasons = ", ".join(f"{n} {heading}" for heading, n in sorted(excluded.items()))
    return (
        f"{len(REGISTRY)} operators under {names} names: {parts}.\n"
        f"{excluded.total()} operator names of MXNet are out of scope: {reasons}."
    )


def names() -> list[tuple[str, str]]:
    """List all operator names of MXNet with their state, "supported: <jfit operator>" or "out of scope (<key of REASONS>)".

    Example:
        >>> load_all()
        >>> dict(names())["stop_gradient"]
        'supported: BlockGrad'
    """
    states = {name: f"supported: {record}" for name, record in ALIASES.items()}
    states |= {name: f"out of scope ({heading})" for name, heading in out_of_scope().items()}
    return sorted(states.items(), key=lambda item: (item[0].lower(), item[0]))


def plain() -> str:
    """Return the table as plain text, one paragraph for each operator."""
    parts = []
    for name, family, inputs, attributes, aliases, kind, doc in table():
        parts.append(f"{name}  [{family}, {kind}]  {doc}\n    inputs: {inputs}; attributes: {attributes}; aliases: {aliases}")
    every = [f"{name}: {state}" for name, state in names()]
    return "\n".join([*parts, "", *every, "", counts()]) + "\n"


if __name__ == "__main__":
    load_all()
    sys.stdout.write(plain())
