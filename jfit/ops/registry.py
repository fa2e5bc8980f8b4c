"""The operator record `Op` and the registry of all operators.

One record holds everything that jfit needs about an operator: its name and aliases, its typed attributes with defaults, the
names of its inputs and auxiliary states, the functions that infer shapes and dtypes, the function that tracks the batch axis
(`jfit.ops.rows`), and one pure JAX function that computes it.  Symbols are graphs of records; shape inference, the lowering to
JAX and the generated table docs/operators.md all read the same record.

To add an operator, decorate one function with `operator` in the file of its family, and add one row to a test of that family.

>>> from jfit.ops.registry import lookup
>>> fc = lookup("FullyConnected")
>>> fc.input_names(fc.parse({"num_hidden": "10"}))
('data', 'weight', 'bias')
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jfit.checks import name_hint, nearest
from jfit.ops.attributes import REQUIRED, Attr, Attrs
from jfit.ops.rows import RowsRule, elementwise_rows
from jfit.ops.scope import why_not

Shape = tuple[int, ...]
MaybeShape = Shape | None  # None: unknown rank; a 0 within a shape: unknown size of that axis
NamesRule = Callable[[Attrs], tuple[str, ...]]

# (attributes, input shapes, output shapes) -> input shapes, with unknown ones inferred; raises ValueError on a contradiction
ShapeRule = Callable[[Attrs, list[MaybeShape], list[MaybeShape]], list[MaybeShape]]
# (attributes, input dtypes, None where unknown) -> (input dtypes, output dtypes)
TypeRule = Callable[[Attrs, list[Any]], tuple[list[Any], list[Any]]]
# (attributes, input shapes, output shapes) -> (input shapes, output shapes), both inferred as far as possible
BothRule = Callable[[Attrs, list[MaybeShape], list[MaybeShape]], tuple[list[MaybeShape], list[MaybeShape]]]
# (attributes, output, label) -> (loss of each row, its share in the denominator of the mean loss: 1, or less where labels are
# ignored); both (rows,), float32 or wider
LossRule = Callable[..., Any]


class UnknownOperator(ValueError):
    """No operator with the requested name is registered; the message lists similar names."""


class OutOfScope(UnknownOperator):
    """MXNet has an operator with the requested name that jfit does not support on purpose; the message says why."""


@dataclass(frozen=True, eq=False)
class Op:
    """The record of one operator: names, attributes, inputs, shape and dtype inference, and the JAX function that computes it.

    Records are immutable and compared by identity, because a name is registered only once.

    Attributes:
        name: MXNet's canonical name of the operator.
        fn: the JAX function, `fn(ctx, attrs, *inputs) -> outputs` with ctx a `Ctx` and attrs an `Attrs`; `outputs` is one
            array, or a tuple as long as `output_names`.  An operator with auxiliary states has
            `fn(ctx, attrs, *inputs, *aux) -> (outputs, new_aux)`.
        inputs: names of the inputs, or a function from the attributes to them.
        aux: names of the auxiliary states, which `fn` takes after the inputs.
        outputs: names of ALL outputs, hidden ones last, or a function from the attributes to them.
        visible: number of outputs that a Symbol shows, or a function from the attributes to it; None: all of them.
        attrs: attribute name -> `Attr` (how to parse it, and its default).
        aliases: further names of the operator.
        variadic: name of the attribute that holds the number of inputs (such as `num_args`), for operators that accept any
            number of them; None for a fixed number.
        fill: infers unknown input shapes (mostly those of parameters), see `ShapeRule`; None infers nothing.
        infer_outputs: (attributes, complete input shapes) -> output shapes without tracing `fn`; None: trace.
        shapes: infers input and output shapes together, see `BothRule`; it replaces both `fill` and tracing.
        types: infers dtypes, see `TypeRule`; None: all inputs and outputs have the dtype of the first known input.
        rows: computes the `RowLayout` of each output (the axis that has the batch rows) from those of the inputs, see
            `RowsRule`.
        kind: "plain"; "head": an output head, which computes its own gradient from a label and ignores the incoming cotangent,
            as MXNet's SoftmaxOutput does; "loss": its output is summed into the training loss.
        label: name of the input that is the label (output heads only).
        loss: computes the loss value that the gradient of an output head belongs to, see `LossRule`.
        positions: (attributes, shape of the output) -> number of losses of each row, of which `loss` returns the mean.
        needs_rng: True if `fn` draws random numbers, with `ctx.random` or `ctx.key`.
        init: name of an input or auxiliary state -> initializer in MXNet's JSON text; composing stores it in the attribute
            `__init__` of the variable that is this input, unless it has one, as MXNet does.
        aux_at: position of the auxiliary states among the inputs in MXNet's symbol files; None: after all inputs.
        layout: "channels": for 4-D data `fn` also accepts channels-last arrays when `ctx.channels_last` is set (first input and
            first output only, parameters keep their layout); "any": elementwise, so it computes the same in every layout;
            None: needs the layout that the graph declares.
        hint: prefix of automatic node names; "" means the operator's name in lower case.
        family: name of the module in jfit.ops that registered the record.
        graphs: names of the subgraphs of control-flow operators; `attrs.graphs` holds the subgraphs in this order.
        overwritten: replaces `fn` in the nodes where MXNet overwrites the incoming gradient in place before it computes the
            gradient of the parameter from it, so that jfit matches MXNet; `jfit.graph.in_place` finds these nodes.
        resolve: function from the unparsed attributes to the record to use instead, for operators whose inputs and states
            depend on them (Custom); None: this record is used.

    Example:
        >>> from jfit.ops import lookup
        >>> op = lookup("Concat")
        >>> op.input_names(op.parse({"num_args": 2, "dim": "1"}))
        ('arg0', 'arg1')
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
    positions: Callable[[Attrs, Shape], int] = lambda attrs, shape: 1
    needs_rng: bool = False
    init: Mapping[str, str] = field(default_factory=dict)
    aux_at: int | None = None
    layout: str | None = None
    hint: str = ""
    family: str = ""
    graphs: tuple[str, ...] = ()
    overwritten: Callable[..., Any] | None = None
    resolve: Callable[[Mapping[str, Any]], Op] | None = None

    @property
    def doc(self) -> str:
        """First line of the docstring of `fn`, usually the equation."""
        return (self.fn.__doc__ or "").strip().split("\n")[0]

    def parse(self, raw: Mapping[str, Any]) -> Attrs:
        """Convert Python values or MXNet's strings to typed attribute values, and add the defaults.

        Raises:
            ValueError: an attribute is unknown, has the wrong type, or is required and missing.
        """
        values = {}
        for key, value in raw.items():
            if key.startswith("__") and key.endswith("__"):
                continue
            if key not in self.attrs:
                raise ValueError(f"operator {self.name} has no attribute {key!r}; {name_hint(key, self.attrs)}")
            values[key] = self.attrs[key].read(self.name, key, value)
        for key, attr in self.attrs.items():
            if key not in values:
                if attr.default is REQUIRED:
                    raise ValueError(f"operator {self.name} needs the attribute {key!r} ({attr.kind}); pass {key}=...")
                values[key] = attr.default
        return Attrs(values)

    def run(self, ctx: Any, attrs: Attrs, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], Sequence[Any]]:
        """Call `fn`; returns (all outputs, the new auxiliary states; for control flow, the `RowLayout`s of the outputs)."""
        result = self.fn(ctx, attrs, *arrays)
        outputs, extra = result if self.aux or self.graphs else (result, ())
        return outputs if isinstance(outputs, tuple) else (outputs,), extra

    def input_names(self, attrs: Attrs) -> tuple[str, ...]:
        """Return the names of the inputs, without the auxiliary states."""
        return self.inputs(attrs) if callable(self.inputs) else self.inputs

    def attributes_in(self, args: Sequence[Any]) -> list[Any]:
        """Return the attributes among positional arguments: what follows the arrays, and the None of a missing input."""
        missing = (lambda value: value is None) if callable(self.inputs) else (lambda value: False)
        return list(itertools.dropwhile(missing, args))

    @property
    def usual_inputs(self) -> tuple[str, ...]:
        """Names of the inputs and auxiliary states when every attribute has its default (or first choice, if required)."""
        defaults = {k: _default(a) for k, a in self.attrs.items()}
        return (*self.input_names(Attrs(defaults)), *self.aux)

    def output_names(self, attrs: Attrs) -> tuple[str, ...]:
        """Return the names of all outputs, including hidden ones."""
        return self.outputs(attrs) if callable(self.outputs) else self.outputs

    def num_visible(self, attrs: Attrs) -> int:
        """Return the number of outputs that a Symbol of this operator shows."""
        if self.visible is None:
            return len(self.output_names(attrs))
        return self.visible(attrs) if callable(self.visible) else self.visible


def _default(attr: Attr) -> Any:
    """Return the default value of an attribute; for a required attribute its first choice, or 1."""
    if attr.default is not REQUIRED:
        return attr.default
    return attr.kind.removeprefix("one of ").split(", ")[0] if attr.kind.startswith("one of ") else 1


REGISTRY: dict[str, Op] = {}  # canonical name -> record
ALIASES: dict[str, str] = {}  # any name -> canonical name


def register(op: Op) -> Op:
    """Add a record to the registry under its name and aliases.

    A module may replace a record that it registered itself, so that a notebook cell can run again.

    Args:
        op: the record.

    Returns:
        The same record.

    Raises:
        ValueError: another operator, or one of another module, has one of the names.

    Example:
        >>> from jfit.ops import lookup, register
        >>> register(lookup("relu")).name
        'relu'
    """
    for name in (op.name, *op.aliases):
        taken = REGISTRY.get(ALIASES.get(name, ""))
        if taken is not None and (taken.name, taken.family) != (op.name, op.family):
            raise ValueError(
                f"operator name {name!r} is already taken by {taken.name!r} of {taken.family}; choose another name"
            )
    REGISTRY[op.name] = op
    ALIASES.update(dict.fromkeys((op.name, *op.aliases), op.name))
    return op


def operator(name: str, **record: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a function as an operator; its docstring becomes the operator's documentation.

    Args:
        name: canonical name of the operator.
        **record: the other fields of `Op`, except `fn` (the decorated function) and `family` (the name of its module).  Default
            of `inputs`: the names of the function's arguments after the context and the attributes.

    Returns:
        The decorator; it returns the function unchanged.

    Raises:
        ValueError: the name is taken, see `register`.

    Example:
        >>> from jfit.ops import ALIASES, REGISTRY, operator
        >>> @operator("doc_double")
        ... def double(ctx, attrs, data):
        ...     "y = 2 x."
        ...     return 2 * data
        >>> REGISTRY["doc_double"].doc
        'y = 2 x.'
        >>> _ = REGISTRY.pop("doc_double"), ALIASES.pop("doc_double")  # remove the example again
    """

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        code, fields = inspect.unwrap(fn).__code__, dict(record)  # a signature of each would take a tenth of the import of jfit
        if not code.co_flags & inspect.CO_VARARGS:
            names = code.co_varnames[2 : code.co_argcount]
            fields.setdefault("inputs", tuple(name for name in names if name not in record.get("aux", ())))
        register(Op(name=name, fn=fn, family=fn.__module__.rsplit(".", 1)[-1], **fields))
        return fn

    return add


def lookup(name: str) -> Op:
    """Return the record of an operator by its name or one of its aliases.

    Args:
        name: canonical name or alias, such as "Convolution" or "sum_axis".

    Returns:
        The operator's record.

    Raises:
        UnknownOperator: no operator has this name; the message lists similar names.
        OutOfScope: MXNet has this operator and jfit does not support it on purpose; the message says why.

    Example:
        >>> lookup("stop_gradient").name
        'BlockGrad'
    """
    try:
        return REGISTRY[ALIASES[name]]
    except KeyError:
        reason = why_not(name)
        if reason is not None:
            raise OutOfScope(f"operator {name!r} of MXNet is out of scope: {reason}.") from None
        near = nearest(name, ALIASES)
        hint = f"the nearest names are {near}" if near else "see dir(jfit.sym)"
        raise UnknownOperator(f"unknown operator {name!r}: {hint}.") from None


def record_for(name: str, attrs: Mapping[str, Any]) -> Op:
    """Return the record of an operator with these attributes.

    This is `lookup(name)`, except for operators whose inputs and states depend on the attributes (`Custom`).

    Args:
        name: canonical name or alias.
        attrs: the attributes, not yet parsed.

    Returns:
        The operator's record.

    Raises:
        UnknownOperator: no operator has this name, or no custom operator is registered as `op_type`.
        ValueError: a custom operator cannot be created with these attributes.

    Example:
        >>> record_for("relu", {}) is lookup("relu")
        True
    """
    op = lookup(name)
    return op if op.resolve is None else op.resolve(attrs)
