"""The generated tables of the pages: `python docs/tables.py operators > docs/operators.md`; optimizers, metrics, converters."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jfit import export
from jfit.metrics import METRICS, create
from jfit.ops.attributes import REQUIRED
from jfit.ops.registry import ALIASES, REGISTRY, Op
from jfit.ops.scope import REASONS, out_of_scope
from jfit.optim.registry import OPTIMIZERS

OPERATOR_COLUMNS = ("operator", "family", "inputs", "attributes", "aliases", "kind", "what it computes")
OPTIMIZER_COLUMNS = ("optimizer", "aliases", "parameters", "state", "what it computes")
METRIC_COLUMNS = ("metric", "aliases", "parameters", "value", "sums", "MXNet", "scikit-learn")
SHARED_PARAMETERS = ("wd", "clip_gradient", "lr_mult", "wd_mult", "multi_precision")
# arguments that add state slots
SLOT_SETTINGS: dict[str, Any] = {"momentum": 0.5, "centered": True, "batch_scale": 2}


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    """Return text in the font of code; "" for no text, or "none"."""
    return "" if text in ("", "none") else f"`{text}`"


def input_words(op: Op) -> str:
    """Format the input names of an operator with default attributes, such as 'data, weight, bias' or 'arg0 ...'."""
    if op.variadic:
        return f"arg0 ... ({op.variadic} of them)"
    return ", ".join(op.usual_inputs) or "none"


def attribute_words(op: Op) -> str:
    """Format the attributes of an operator: `name=default` for each optional one, and `name` for each required one."""
    return ", ".join(k if a.default is REQUIRED else f"{k}={a.default!r}" for k, a in op.attrs.items()) or "none"


def operator_rows() -> list[tuple[str, ...]]:
    """Return one tuple of `OPERATOR_COLUMNS` for each operator, sorted by family and name."""
    ops = sorted(REGISTRY.values(), key=lambda op: (op.family, op.name.lower(), op.name))
    return [
        (op.name, op.family, input_words(op), attribute_words(op), ", ".join(op.aliases) or "none", op.kind, op.doc)
        for op in ops
    ]


def operator_counts() -> str:
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


def operator_names() -> list[tuple[str, str]]:
    """List all operator names of MXNet with their state, "supported: <jfit operator>" or "out of scope (<key of REASONS>)"."""
    states = {name: f"supported: {record}" for name, record in ALIASES.items()}
    states |= {name: f"out of scope ({heading})" for name, heading in out_of_scope().items()}
    return sorted(states.items(), key=lambda item: (item[0].lower(), item[0]))


def optimizer_rows() -> list[tuple[str, ...]]:
    """Return one row of text per optimizer, sorted by name, with the columns `OPTIMIZER_COLUMNS`."""
    names: dict[Callable[..., Any], list[str]] = {}
    for name, entry in OPTIMIZERS.items():
        names.setdefault(entry.make, []).append(name)
    rows = []
    for make, (name, *aliases) in names.items():
        formula = (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")
        rows.append((name, ", ".join(aliases) or "none", _optimizer_parameters(make), _state(make), formula))
    return sorted(rows)


def _optimizer_parameters(make: Callable[..., Any]) -> str:
    """Return `name=default` of each parameter of a factory.

    Parameters that all optimizers share are listed only if their default differs from that of sgd.
    """
    usual = inspect.signature(OPTIMIZERS["sgd"].make).parameters
    parameters = inspect.signature(make).parameters.values()
    return ", ".join(
        f"{p.name}={p.default!r}" for p in parameters if p.name not in SHARED_PARAMETERS or p.default != usual[p.name].default
    )


def _state(make: Callable[..., Any]) -> str:
    """Return the names of the state slots and of the scalars shared by all parameters.

    The argument that adds a slot is shown in brackets after its name.
    """
    settings = {name: value for name, value in SLOT_SETTINGS.items() if name in inspect.signature(make).parameters}
    reasons: dict[str, str] = {}
    for arguments in ({}, *({name: value} for name, value in settings.items()), settings):
        for slot in (slots := _slots(make(**arguments))):
            reasons.setdefault(slot, "".join(f" ({name})" for name in arguments))
    return ", ".join(slot + reasons[slot] for slot in slots) or "none"


def _slots(transform: Any) -> list[str]:
    shared = jax.eval_shape(transform.init, {"w_weight": jax.ShapeDtypeStruct((1, 1), jnp.float32)}).shared
    return [*transform.state_spec.slots, *([f"shared: {', '.join(shared)}"] if shared else [])]


def metric_rows() -> list[tuple[str, ...]]:
    """Return one row per metric: name, aliases, parameters, formula."""
    names_of: dict[Callable[..., Any], list[str]] = {}
    for name, make in METRICS.items():
        names_of.setdefault(make, []).append(name)
    rows = []
    for make, (name, *aliases) in names_of.items():
        formula = (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")
        rows.append((name, ", ".join(aliases), _metric_parameters(make), formula))
    return rows


def _metric_parameters(make: Callable[..., Any]) -> str:
    parameters = inspect.signature(make).parameters.values()
    return ", ".join(f"{p.name}={p.default!r}" for p in parameters if p.name not in ("name", "weighted"))


def operators() -> str:
    """Return docs/operators.md: a table of all operators, and all operator names of MXNet 1.9.1."""
    rows = ((code(name), family, *map(code, cells[:3]), *cells[3:]) for name, family, *cells in operator_rows())
    head = "# Operators\n\nGenerated by `python docs/tables.py operators > docs/operators.md`; do not edit.\n\n"
    why = "\n".join(f"- **{heading}**: {reason}." for heading, reason in REASONS.items() if heading in out_of_scope().values())
    every = markdown_table(("name", "state"), ((code(name), state) for name, state in operator_names()))
    table = f"{operator_counts()}\n\n{markdown_table(OPERATOR_COLUMNS, rows)}"
    return f"{head}{table}\n## Every name\n\nWhy a name is out of scope:\n\n{why}\n\n{every}"


def optimizers() -> str:
    """Return the table at the end of docs/optimizers.md."""
    rows = ((code(n), code(names), code(given), state, code(f)) for n, names, given, state, f in optimizer_rows())
    return markdown_table(OPTIMIZER_COLUMNS, rows)


def metrics() -> str:
    """Return the table at the end of docs/metrics.md, with the number of sums of a metric, and its names elsewhere."""
    rows = []
    for name, aliases, parameters, formula in metric_rows():
        text = inspect.getdoc(METRICS[name]) or ""
        sources = [re.search(pattern, text) for pattern in (r"MXNet 1\.9\.1, `(\w+)`", r"scikit-learn, `(\w+)`")]
        elsewhere = [match[1] if match else "" for match in sources]
        rows.append((f"`{name}`", code(aliases), code(parameters), formula, _size(name), *elsewhere))
    return markdown_table(METRIC_COLUMNS, rows)


def converters() -> str:
    """Return the table of docs/export.md: the operators that have an ONNX converter, by family."""
    families: dict[str, list[str]] = {}
    for name in export.converters():
        if name in REGISTRY:
            families.setdefault(REGISTRY[name].family, []).append(code(name))
    count = sum(map(len, families.values()))
    rows = [(family, ", ".join(names)) for family, names in sorted(families.items())]
    return f"{markdown_table(('family', 'operators'), rows)}\n{count} of {len(REGISTRY)} operators.\n"


def _size(name: str) -> str:
    """Return the number of running sums of the metric `name` as text, a polynomial of the number of classes K."""
    metric = create(name, **({"average": "macro"} if name in ("precision", "recall") else {}))
    if metric.sized is None:
        return str(_count(metric))
    one, two, three = (_count(metric.sized([(8,)], [(8, k)])) for k in (3, 4, 5))
    square = (three - 2 * two + one) // 2
    slope = two - one - 7 * square
    return _polynomial(square, slope, one - 9 * square - 3 * slope)


def _count(metric: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(jax.eval_shape(metric.init)))


def _polynomial(square: int, slope: int, rest: int) -> str:
    def term(factor: int, unit: str) -> str:
        return f"{factor if factor > 1 else ''} {unit}".strip()

    parts = [term(square, "K²")] * (square > 0) + [term(slope, "K")] * (slope > 0) + [str(rest)] * (rest > 0)
    return " + ".join(parts)


if __name__ == "__main__":
    tables = {"operators": operators, "optimizers": optimizers, "metrics": metrics, "converters": converters}
    sys.stdout.write(tables[sys.argv[1]]())
