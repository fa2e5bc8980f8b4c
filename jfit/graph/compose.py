"""Build graphs: variables, groups, and one function per registered operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jfit.checks import name_hint
from jfit.graph.names import Derived, derived
from jfit.graph.nodes import HIDDEN_KEYS, Entry, G, Graph, GraphError, Node, underscored
from jfit.graph.scopes import AttrScope, raw_name_of
from jfit.ops import Op, lookup, record_for
from jfit.ops.attributes import DTYPES, REQUIRED

_NAMESPACE = re.compile("^_(contrib|image|linalg|sparse)_")  # not part of automatic names: box_nms0, not _contrib_box_nms0
STORAGE_TYPES = {"default": 0, "row_sparse": 1, "csr": 2}


def variable(
    name: str,
    attr: Mapping[str, str] | None = None,
    shape: Sequence[int] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str | None = None,
    *,
    layout: str | None = None,
    cls: type[G],
    **kwargs: str,
) -> G:
    """Create a variable of a graph: a data input, a label, a parameter or an auxiliary state.

    Args:
        name: its name; arrays are matched to variables by name.
        attr: user attributes, a dict of strings.
        shape: its shape, 0 for an unknown size; default: inferred.
        lr_mult: factor of the learning rate of this parameter; default: 1.
        wd_mult: factor of the weight decay of this parameter; default: 1.
        dtype: its dtype; default: inferred, float32 if nothing determines it.
        init: initializer of this parameter, or its JSON text in MXNet's form `'["name", {...}]'`; default: chosen by the name.
        stype: MXNet's storage type: "default", "row_sparse" or "csr".
        layout: one letter per axis, such as "NCHW" or "TNC"; the position of N is the batch axis.
        cls: class of the result.
        kwargs: further attributes with string values; each name is written `__name__`.

    Returns:
        A symbol with one output, named `name`.

    Raises:
        TypeError: `name` is not a string.
        ValueError: `dtype` is unknown, or a keyword is neither an argument nor of the form `__name__`.

    Example:
        >>> import jfit
        >>> jfit.sym.Variable("w", shape=(3, 4), lr_mult=0.5).attr("__shape__")
        '(3, 4)'
    """
    if not isinstance(name, str):
        raise TypeError(f"a variable's name is a string, got {name!r}")
    attrs = AttrScope.current() | underscored(dict(attr or {}))
    if shape is not None:
        attrs["__shape__"] = str(tuple(int(s) for s in np.atleast_1d(np.asarray(shape, int))))
    if lr_mult is not None:
        attrs["__lr_mult__"] = str(lr_mult)
    if wd_mult is not None:
        attrs["__wd_mult__"] = str(wd_mult)
    if dtype is not None:
        kind = np.dtype(dtype).name if not isinstance(dtype, str) else dtype
        # MXNet's code: the position in its list of dtypes, to which bfloat16 was added later
        attrs["__dtype__"] = "12" if kind == "bfloat16" else str([n for n in DTYPES if n != "bfloat16"].index(kind))
    if init is not None:
        attrs["__init__"] = init if isinstance(init, str) else init.dumps()
    if stype is not None:
        attrs["__storage_type__"] = str(STORAGE_TYPES[stype])
    if layout is not None:
        attrs["__layout__"] = layout
    for key, value in kwargs.items():
        if not (key.startswith("__") and key.endswith("__")):
            raise ValueError(f"Variable has no argument {key!r}; pass a user attribute in attr= or as __{key}__=")
        attrs[key] = str(value)
    return cls([Entry(Node(None, name, attrs), 0)])


def group(symbols: Sequence[Graph], cls: type[G]) -> G:
    """Combine several symbols into one with all of their outputs.

    Args:
        symbols: the symbols, in order.
        cls: class of the result.

    Returns:
        A symbol with the outputs of the first symbol, then those of the second, ...

    Raises:
        TypeError: `symbols` is empty.

    Example:
        >>> import jfit
        >>> a, b = jfit.sym.Variable("a"), jfit.sym.Variable("b")
        >>> jfit.sym.Group([a + b, a * b]).list_arguments()
        ['a', 'b']
    """
    symbols = list(symbols)
    if not symbols:
        raise TypeError("Group needs at least one symbol, got an empty list")
    return cls((h for s in symbols for h in s.raw_heads), reserved_by(symbols))


def reserved_by(symbols: Iterable[Graph]) -> frozenset[str]:
    """Union of the names that nodes on top of some symbols do not get, see `Graph.reserved`."""
    reserved = {symbol.reserved for symbol in symbols}
    return next(iter(reserved)) if len(reserved) == 1 else frozenset[str]().union(*reserved)


def text_of(value: Any) -> str:
    """Format an attribute value for symbol.json, as MXNet's Python package does."""
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(text_of(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, np.generic):
        return str(value.item())
    if isinstance(value, (type, np.dtype)):
        return np.dtype(value).name
    return str(value)


def apply_op(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    node_name: str | None = None,
    attr: Mapping[str, str] | None = None,
    cls: type[G],
    subgraphs: tuple[Graph, ...] = (),
) -> G:
    """Create one node of operator `name`; inputs that are not passed become new variables named `<node>_<input>`.

    Args:
        name: operator name.
        args: symbols, then attributes, by position.
        kwargs: symbols and attributes by name.
        node_name: name of the node; None: an automatic name, see `jfit.sym.NameManager`.
        attr: user attributes, a dict of strings.
        cls: class of the result, or the class of the first symbol if that is a subclass of it.
        subgraphs: bodies of a loop or branch.

    Returns:
        A symbol with the visible outputs of the node.

    Raises:
        UnknownOperator: there is no such operator (the message lists the nearest names).
        GraphError: an attribute is missing, unknown or of a wrong type, or the inputs do not match those of the operator.

    Example:
        >>> from jfit.graph import Symbol, Variable
        >>> from jfit.graph.compose import apply_op
        >>> apply_op("clip", (Variable("x"), 0, 1), {}, node_name="c", cls=Symbol).list_attr()
        {'a_min': '0', 'a_max': '1'}
    """
    symbols = [a for a in args if isinstance(a, Graph)]
    named = {k: v for k, v in kwargs.items() if isinstance(v, Graph)}
    custom = lookup(name).resolve is not None  # Custom: its class receives str(argument) of every argument, even None
    text = str if custom else text_of
    kept = {k for k, a in lookup(name).attrs.items() if custom or a.none_differs}
    values = {k: v for k, v in kwargs.items() if not isinstance(v, Graph) and (custom or v is not None or k in kept)}
    op = record_for(name, {k: text(v) for k, v in values.items()} if custom else values)
    last = max((i for i, a in enumerate(args) if isinstance(a, Graph)), default=0)
    if any(a is None for a in args[:last]):
        raise GraphError(f"operator {op.name} got None before another input; leave it out, and pass later inputs by name")
    positional = op.attributes_in([a for a in args if not isinstance(a, Graph)])
    free = [k for k in op.attrs if k not in values]
    if len(positional) > len(free):
        raise GraphError(f"operator {op.name} got {len(positional)} attributes by position, expected at most {len(free)}")
    for key, value in zip(free, positional, strict=False):
        if value is not None or key in kept:
            values[key] = value  # attributes may follow the inputs by position, as in sym.clip(x, 0, 1)
    hidden = {k: text(values.pop(k)) for k in HIDDEN_KEYS if k in values and k not in op.attrs and not custom}
    if op.variadic and op.variadic not in values:
        values[op.variadic] = len(symbols) + len(named) + len(subgraphs)
    for key in values:
        if key not in op.attrs and not (key.startswith("__") and key.endswith("__")):
            known = [*op.attrs, *(op.inputs if not callable(op.inputs) else ())]
            raise GraphError(f"operator {op.name} has no attribute or input {key!r}; {name_hint(key, known)}")
    first = next((type(s) for s in (*symbols, *named.values())), cls)
    result = first if issubclass(first, cls) else cls
    sources = (*symbols, *named.values())
    reserved = reserved_by(sources)
    raw_name = raw_name_of(node_name, _NAMESPACE.sub("", op.hint or name).lower(), result.NAMES_PER_PROCESS)
    if isinstance(raw_name, Derived):
        raw_name.auto.context, raw_name.auto.reserved = tuple([h for s in sources for h in s.raw_heads]), reserved
    texts = {k: text(v) for k, v in values.items()}
    attrs = AttrScope.current() | underscored({**(attr or {}), **hidden}) | texts
    probe = Node(op, raw_name, attrs, (), subgraphs)  # parses the attributes, so that errors have the node's name
    for key in ("num_outputs", op.variadic or ""):
        if key in probe.params and probe.params[key] < 1:
            raise GraphError(f"{probe.text_name}: {op.name} has {key}={probe.params[key]}, expected at least 1")
    inputs = _inputs(op, probe, symbols, named, attrs)
    if isinstance(raw_name, Derived):
        raw_name.auto.context = ()
    node = probe.rebuilt(inputs)
    return result([Entry(node, i) for i in range(op.num_visible(node.params))], reserved)


def _inputs(op: Op, probe: Node, symbols: list[Graph], named: dict[str, Graph], attrs: dict[str, str]) -> tuple[Entry, ...]:
    try:
        names = probe.input_names()
    except ValueError as error:
        raise GraphError(f"{probe.text_name}: {error}") from None
    if len(symbols) > len(names):
        raise GraphError(f"{probe.text_name}: got {len(symbols)} inputs, but {op.name} takes {len(names)}: {', '.join(names)}")
    inputs: dict[str, Graph] = dict(zip(names, symbols, strict=False))
    for key, value in named.items():
        if key not in names:
            raise GraphError(f"{probe.text_name}: {op.name} has no input {key!r}; {name_hint(key, names)}")
        if key in inputs:
            raise GraphError(f"{probe.text_name}: input {key!r} is passed by position and by name; pass it once")
        inputs[key] = value
    entries = []
    for key in names:
        if key in inputs:
            if len(inputs[key]) != 1:
                raise GraphError(f"{probe.text_name}: input {key!r} is a symbol with {len(inputs[key])} outputs; pass one")
            entries.append(inputs[key].raw_heads[0])
        elif op.variadic and key.startswith("arg"):
            raise GraphError(f"{probe.text_name}: {op.name} needs {len(names)} inputs, got {len(inputs)}")
        else:
            entries.append(Entry(Node(None, derived(probe.raw_name, f"_{key}"), attrs), 0))
        if entries[-1].node.op is None:
            entries[-1].node.set_init(op.init.get(key))
    return tuple(entries)


def function(name: str, cls: type[G]) -> Callable[..., G]:
    """Make the function `jfit.sym.<name>`, which creates a node of this operator and returns its outputs as a `cls`.

    Raises:
        UnknownOperator: there is no such operator (the message lists the nearest names).

    Example:
        >>> from jfit.graph import Symbol, Variable
        >>> from jfit.graph.compose import function
        >>> function("relu", Symbol)(Variable("x"), name="r").list_outputs()
        ['r_output']
    """
    op = lookup(name)

    def build(*args: Any, name: str | None = None, attr: Mapping[str, str] | None = None, **kwargs: Any) -> G:
        return apply_op(build.__name__, args, kwargs, node_name=name, attr=attr, cls=cls)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = _document(op)
    return build


def _document(op: Op) -> str:
    rows = [f"    {k}: {a.kind}" + ("" if a.default is REQUIRED else f", default {a.default!r}") for k, a in op.attrs.items()]
    inputs = op.inputs if not callable(op.inputs) else ("see the operator table",)
    return f"{op.doc}\n\nInputs: {', '.join((*inputs, *op.aux))}\nAttributes:\n" + ("\n".join(rows) or "    none")
