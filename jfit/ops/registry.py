"""The operator record and the registry: one operator, one record, one place.

A record says everything the rest of jfit needs to know about an operator: its name and aliases, its typed
attributes with defaults, its inputs and auxiliary states, how parameter shapes follow from data shapes, where the
batch axis goes, and one pure JAX function.  Symbols compose records, inference and lowering read them, and the
operator table of the documentation is generated from them.

Adding an operator is one decorated function in the file of its family (and one row in a test of its family):

>>> from jfit.ops.registry import lookup
>>> fc = lookup("FullyConnected")
>>> fc.input_names(fc.parse({"num_hidden": "10"}))
('data', 'weight', 'bias')
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jfit.ops.attributes import REQUIRED, Attr, Attrs
from jfit.ops.rows import RowsRule, elementwise_rows
from jfit.ops.scope import why_not

Shape = tuple[int, ...]
MaybeShape = Shape | None  # None: unknown rank; 0 within a shape: unknown size
NamesRule = Callable[[Attrs], tuple[str, ...]]

# (attributes, input shapes, output shapes) -> input shapes.  Fills what is unknown; raises ValueError with a sentence.
ShapeRule = Callable[[Attrs, list[MaybeShape], list[MaybeShape]], list[MaybeShape]]
# (attributes, input dtypes or None) -> (input dtypes, output dtypes)
TypeRule = Callable[[Attrs, list[Any]], tuple[list[Any], list[Any]]]
# (attributes, input shapes, output shapes) -> (input shapes, output shapes), both as far as they can be known
BothRule = Callable[[Attrs, list[MaybeShape], list[MaybeShape]], tuple[list[MaybeShape], list[MaybeShape]]]
# (attributes, output, label) -> (loss per row, how much each row counts); both (rows,) float32
LossRule = Callable[..., Any]

HEAD_KINDS = ("plain", "head", "loss")


class UnknownOperator(ValueError):
    """No operator of that name is registered; the message lists the nearest names."""


class OutOfScope(UnknownOperator):
    """MXNet has an operator of that name, jfit leaves it out on purpose; the message says why."""


@dataclass(frozen=True, eq=False)
class Op:
    """One operator.  Compared by identity: a name is registered once.

    Attributes:
        name: MXNet's canonical name.
        fn: `fn(ctx, attrs, *inputs)`; with auxiliary states `fn(ctx, attrs, *inputs, *aux) -> (outputs, new_aux)`.
            `outputs` is one array or a tuple of `output_names` length.
        inputs: names of the inputs, or a function of the attributes that returns them.
        aux: names of the auxiliary states (they follow the inputs).
        outputs: names of ALL outputs, or a function of the attributes; hidden ones come last.
        visible: how many of the outputs a Symbol shows, or a function of the attributes; None means all.
        variadic: the attribute that counts the inputs (`num_args`), for operators with any number of inputs.
        fill: the parameter-shape rule, see `ShapeRule`; None leaves the shapes as they are.
        infer_outputs: (attributes, complete input shapes) -> output shapes without tracing `fn`; None: trace.
        shapes: the rule of input and output shapes together, see `BothRule`; it takes the place of `fill` and of tracing.
        types: the dtype rule, see `TypeRule`; None: every input and output has the dtype of the first known input.
        rows: where the batch axis goes, see `jfit.ops.rows`.
        kind: `plain`; `head` makes its own gradient from a label and ignores its cotangent; `loss` is summed.
        label: which input is the label (heads only).
        loss: the true loss value of a head, per row, see `LossRule`.
        needs_rng: the function draws random numbers from `ctx`.
        aux_init: initializer name for each auxiliary state (`zero` or `one`), stamped on its variable as MXNet does.
        aux_at: where MXNet's files list the auxiliary states among the inputs; None: after them.
        layout: "channels" if the function handles `ctx.channels_last` for 4-D data (first input and first output are then
            channels-last, parameters stay as the graph says); "any" if it is elementwise and indifferent to layout.
        hint: prefix of automatic names where it is not the lower-case name.
        graphs: names of the subgraphs a node of it holds (control flow); `attrs.graphs` are the subgraphs, see `Subgraph`.
        overwritten: takes the place of `fn` where MXNet overwrites the gradient from above before the gradient by the
            parameter is computed from it; `jfit.graph.in_place` finds where.
        resolve: the record for these attributes (as given, not parsed), where inputs and states depend on them.
    """

    name: str
    fn: Callable[..., Any]
    inputs: tuple[str, ...] | NamesRule = ("data",)
    aux: tuple[str, ...] = ()
    outputs: tuple[str, ...] | NamesRule = ("output",)
    visible: int | Callable[[Attrs], int] | None = None
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    variadic: str | None = None
    fill: ShapeRule | None = None
    infer_outputs: Callable[[Attrs, Sequence[Shape]], list[Shape] | None] | None = None
    shapes: BothRule | None = None
    types: TypeRule | None = None
    rows: RowsRule = elementwise_rows
    kind: str = "plain"
    label: str | None = None
    loss: LossRule | None = None
    needs_rng: bool = False
    aux_init: tuple[str, ...] = ()
    aux_at: int | None = None
    layout: str | None = None
    hint: str = ""
    family: str = ""
    graphs: tuple[str, ...] = ()
    overwritten: Callable[..., Any] | None = None
    resolve: Callable[[Mapping[str, Any]], Op] | None = None

    @property
    def doc(self) -> str:
        """The first line of the function's docstring: the equation, where there is one."""
        return (self.fn.__doc__ or "").strip().split("\n")[0]

    def parse(self, given: Mapping[str, Any]) -> Attrs:
        """Attribute values, typed, with defaults, from Python values or MXNet's strings."""
        values = {}
        for key, value in given.items():
            if key.startswith("__") and key.endswith("__"):
                continue
            if key not in self.attrs:
                near = nearest(key, self.attrs)
                known = f"did you mean {near}?" if near else f"it has {', '.join(self.attrs) or 'no attributes'}."
                raise ValueError(f"operator {self.name} has no attribute {key!r}; {known}")
            values[key] = self.attrs[key].read(self.name, key, value)
        for key, attr in self.attrs.items():
            if key not in values:
                if attr.default is REQUIRED:
                    raise ValueError(
                        f"operator {self.name} needs the attribute {key!r} ({attr.kind}); pass {self.name}(..., {key}=...)"
                    )
                values[key] = attr.default
        return Attrs(values)

    def input_names(self, attrs: Attrs) -> tuple[str, ...]:
        """Names of the inputs, auxiliary states not included."""
        return self.inputs(attrs) if callable(self.inputs) else self.inputs

    @property
    def usual_inputs(self) -> tuple[str, ...]:
        """Names of inputs and auxiliary states for default attributes, and the first choice of required ones."""
        usual = {k: _usual(a) for k, a in self.attrs.items()}
        return (*self.input_names(Attrs(usual)), *self.aux)

    def output_names(self, attrs: Attrs) -> tuple[str, ...]:
        """Names of all outputs, hidden ones included."""
        return self.outputs(attrs) if callable(self.outputs) else self.outputs

    def num_visible(self, attrs: Attrs) -> int:
        """How many outputs a Symbol of this operator shows."""
        if self.visible is None:
            return len(self.output_names(attrs))
        return self.visible(attrs) if callable(self.visible) else self.visible


def _usual(attr: Attr) -> Any:
    if attr.default is not REQUIRED:
        return attr.default
    return attr.kind.removeprefix("one of ").split(", ")[0] if attr.kind.startswith("one of ") else 1


REGISTRY: dict[str, Op] = {}  # canonical name -> record
ALIASES: dict[str, str] = {}  # any name -> canonical name


def register(op: Op) -> Op:
    """Put a record into the registry under its name and aliases.  Refuses a name that is taken.

    A module may replace a record of its own, as a cell of a notebook that runs again does.
    """
    if op.name in REGISTRY and REGISTRY[op.name].family != op.family:
        raise ValueError(
            f"operator {op.name!r} has a record in {REGISTRY[op.name].family}, it cannot have another in {op.family}; "
            "choose another name, or drop one of them"
        )
    for name in (op.name, *op.aliases):
        if ALIASES.get(name, op.name) != op.name:
            raise ValueError(f"operator name {name!r} is already taken by {ALIASES[name]!r}; choose another name or alias")
    if op.kind not in HEAD_KINDS:
        raise ValueError(f"operator {op.name}: kind is {op.kind!r}, needed one of {HEAD_KINDS}")
    REGISTRY[op.name] = op
    ALIASES.update(dict.fromkeys((op.name, *op.aliases), op.name))
    return op


def operator(name: str, **record: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator form of `register`: the decorated function is the operator's `fn`, its docstring the documentation."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        register(Op(name=name, fn=fn, family=fn.__module__.rsplit(".", 1)[-1], **record))
        return fn

    return add


def lookup(name: str) -> Op:
    """The record of an operator by any of its names.

    Raises:
        UnknownOperator: no such name; the message lists the nearest ones.
        OutOfScope: the name is one of MXNet's that jfit leaves out; the message says why.
    """
    try:
        return REGISTRY[ALIASES[name]]
    except KeyError:
        reason = why_not(name)
        if reason is not None:
            raise OutOfScope(f"operator {name!r} of MXNet is out of scope: {reason}.") from None
        near = nearest(name, ALIASES)
        hint = f"the nearest names are {near}" if near else "python -m jfit.ops lists them all"
        raise UnknownOperator(f"unknown operator {name!r}: {hint}.") from None


def record_for(name: str, attrs: Mapping[str, Any]) -> Op:
    """The record of an operator for these attributes (as given): `lookup`, unless its inputs depend on them (Custom).

    Raises:
        UnknownOperator: no such name.
        ValueError: the attributes do not say what the operator is.
    """
    op = lookup(name)
    return op if op.resolve is None else op.resolve(attrs)


def nearest(name: str, known: Sequence[str] | Mapping[str, Any], count: int = 3) -> str:
    """Up to `count` known names like `name`, quoted and joined; empty when none is near."""
    by_lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=count, cutoff=0.5)
    return ", ".join(repr(by_lower[f]) for f in found)
