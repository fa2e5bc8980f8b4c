"""Models from graphs, and from whatever else a user calls a model.

What a graph means for training: which variables are data, labels and parameters, and what each output is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.graph.in_place import in_place
from jfit.graph.infer import infer
from jfit.graph.nodes import Entry, Graph, GraphError, Node, aux_nodes, topological
from jfit.graph.symbol import Symbol
from jfit.init import InitDesc, default, draw_all, get
from jfit.lowering.function import from_function
from jfit.lowering.interpret import STATE_SLOTS, Names, make_apply
from jfit.lowering.model import Aux, Inputs, Model, Output, Params, Plan, Specs, Trained, flatten_names
from jfit.ops import nearest
from jfit.ops.attributes import DTYPES
from jfit.ops.nn import row_numbers
from jfit.ops.rows import MaybeLayout, RowsLost


def lower(
    symbol: Symbol,
    *,
    inputs: Sequence[str] | None = None,
    capture: str | None = None,
    batch_axes: Mapping[str, int] | None = None,
) -> Model:
    """Lower a graph to pure functions: symbol -> Model(init, apply, outputs).

    Args:
        symbol: the graph.
        inputs: names of the variables that are fed (data and labels); all others are parameters.  Default: variables whose
            name ends in `data` or `label` (where none ends in `data`: those an operator takes as its data), label slots of
            loss heads, begin states of recurrent operators.
        capture: a regular expression; internal outputs whose name matches become further, plain outputs.
        batch_axes: input name -> axis of its rows, where the graph's own layouts do not say it.

    Returns:
        The `Model`.  `model.apply(params, aux, inputs, train=..., key=...)` returns (outputs, new aux).

    Raises:
        GraphError: `inputs` names no variable, two different variables share a name, or nothing matches `capture`.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model = jfit.lower(net)
        >>> params, aux = model.init(jax.random.key(0), {"data": jax.ShapeDtypeStruct((2, 4), "float32")})
        >>> outputs, aux = model.apply(params, aux, {"data": np.ones((2, 4), "float32")})
        >>> outputs[0].shape
        (2, 3)
    """
    heads = symbol.heads if capture is None else _captured(symbol, capture)
    order = topological(heads)
    data, labels = _input_names(order, heads, inputs)
    if any(n.op is not None and n.op.overwritten for n in order):
        heads = in_place(heads, (*data, *labels))
        order = topological(heads)
    variables, operators = [n for n in order if n.op is None], [n for n in order if n.op is not None]
    states, aux_ids = _state_names(order), aux_nodes(order)
    axes = {**_batch_axes(variables, (*data, *labels), states), **(batch_axes or {})}
    names = Names((*data, *labels), labels, axes)
    params = _unique([n for n in variables if id(n) not in aux_ids and n.name not in names.fed])
    aux = _unique([n for n in variables if id(n) in aux_ids])
    apply = make_apply(order, heads, names)
    return Model(
        init=_make_init(Graph(heads), params, aux),
        apply=apply,
        outputs=tuple(_output(h, i < len(symbol.heads), names.fed) for i, h in enumerate(heads)),
        inputs=data,
        labels=labels,
        plan=_make_plan(Graph(heads), params, aux, names, apply),
        batch_axes=names.axes,
        frozen=frozenset(_fixed_gammas(operators)),
        traits=_traits(operators),
        optional=frozenset(states),
        symbol=symbol,
        shown_labels=tuple(n for n in labels if n in {node.name for node in evaluated_nodes(heads)}),
        tables=_tables(order, heads, names, params),
    )


def as_model(model: Any, *, loss: Any = None, params: Any = None, aux: Any = None) -> Model:
    """A Model from whatever `fit` accepts.

    Raises:
        TypeError: it is none of them, or a function without its loss.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, Trained):
        return model.model
    if isinstance(model, Symbol):
        return lower(model)
    if callable(model):
        if loss is None:
            raise TypeError(
                "a function as model needs loss=, a per-example loss such as optax.softmax_cross_entropy_with_integer_labels"
            )
        return from_function(model, loss=loss, params=params, aux=aux)
    raise TypeError(
        f"model is {model!r}; needed a Symbol, a jfit.Model, or a pure function apply(params, x) with loss= and params="
    )


def lower_feeding(symbol: Symbol, names: Iterable[str]) -> Model:
    """A symbol lowered so that these variables, where it has them, are inputs and no parameters, whatever their names."""
    usual, variables = usual_inputs(symbol), set(symbol.list_inputs())
    named = {n for n in names if n in variables}
    return lower(symbol, inputs=None if usual >= named else sorted(usual | named))


def usual_inputs(symbol: Symbol) -> set[str]:
    """Names of the variables, data and labels, that `lower` feeds by default."""
    data, labels = _input_names(symbol.nodes(), symbol.heads, None)
    return {*data, *labels}


def split_trained(model: Any, params: Any, aux: Any) -> tuple[Any, Any, Any]:
    """(model, parameters, auxiliary states): `params` and `aux` take precedence over the model's own values."""
    if not isinstance(model, Trained):
        return model, params, aux
    return model.model, model.params if params is None else params, model.aux if aux is None else aux


def model_and_values(model: Any, loss: Any, params: Any, aux: Any) -> tuple[Model, Any, Any]:
    """(model, initial parameters, initial auxiliary states) from what `fit` was given, values as flat dicts."""
    made = as_model(model, loss=loss, params=params, aux=aux)
    if made is not model and made.symbol is None:
        return made, None, None  # a function's own values are what its init returns
    return made, params and flatten_names(params)[0], aux and flatten_names(aux)[0]


def _traits(operators: Sequence[Node]) -> frozenset[str]:
    ops = [n.op for n in operators if n.op]
    found = {"convolution": any(op.family == "conv" for op in ops), "draws": any(op.needs_rng for op in ops)}
    return frozenset(name for name, there in found.items() if there)


def _captured(symbol: Symbol, pattern: str) -> tuple[Entry, ...]:
    """The outputs, and the internal ones whose name matches."""
    internals = symbol.get_internals()
    shown = {(id(h.node), h.index) for h in symbol.heads}
    extra = [
        h
        for h, name in zip(internals.heads, internals.list_outputs(), strict=True)
        if h.node.op is not None and (id(h.node), h.index) not in shown and re.search(pattern, name)
    ]
    if not extra:
        raise GraphError(f"capture={pattern!r} matches no internal output; they are {internals.list_outputs()[:20]}")
    return (*symbol.heads, *extra)


# ------------------------------------------------------------------------------------------------ what the variables are
def evaluated_nodes(heads: Sequence[Entry]) -> list[Node]:
    """The nodes below the heads, inputs first, without those that only make labels: evaluation looks at no label slot."""
    seen: set[int] = set()
    stack = [h.node for h in heads]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            slots = node.input_names() if node.op else ()
            stack.extend(e.node for s, e in zip(slots, node.inputs, strict=True) if not (node.op and s == node.op.label))
    return [n for n in topological(heads) if id(n) in seen]


def _input_names(
    order: Sequence[Node], heads: Sequence[Entry], given: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(data names, label names) in graph order."""
    variables = list(dict.fromkeys(n.name for n in order if n.op is None))
    used = {n.name for n in evaluated_nodes(heads) if n.op is None}  # an autoencoder's data are its labels too
    labels = {v for v in variables if v.endswith("label")}
    for node in order:
        for slot, entry in zip(node.input_names(), node.inputs, strict=True) if node.op else ():
            if node.op and slot == node.op.label:
                leaves = [n.name for n in topological([entry]) if n.op is None]
                # A label may be made of what the network says (a detector's targets): its parameters are no labels.
                labels.update(leaves if len(leaves) == 1 else (v for v in leaves if v not in used))
    if given is None:
        named = {v for v in variables if v.endswith("data") and v in used} or _data_slots(order) & used
        states = _state_names(order)
        return tuple(v for v in variables if v in named | states), tuple(v for v in variables if v in labels - named)
    for name in given:
        if name not in variables:
            near = nearest(name, variables)
            hint = f"; did you mean {near}?" if near else f"; they are {', '.join(map(repr, variables[:20]))}"
            raise GraphError(f"input {name!r} is no variable of the graph{hint}")
    labels = {v for v in labels if v not in used or v.endswith("label")} & set(given)
    return tuple(v for v in variables if v in set(given) - labels), tuple(v for v in variables if v in labels)


def _data_slots(order: Sequence[Node]) -> set[str]:
    """Variables that some operator takes as its data, for graphs that name their inputs in their own way."""
    slots = [(s, e.node) for n in order if n.op for s, e in zip(n.input_names(), n.inputs, strict=True)]
    return {n.name for s, n in slots if s == "data" and n.op is None and "__init__" not in n.attrs}


def _state_names(order: Sequence[Node]) -> set[str]:
    """Variables in the begin-state slots of recurrent operators."""
    slots = [(s, e) for n in order if n.op and n.op.family == "rnn" for s, e in zip(n.input_names(), n.inputs, strict=False)]
    return {e.node.name for s, e in slots if s in STATE_SLOTS and e.node.op is None}


def _unique(nodes: Sequence[Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for node in nodes:
        other = found.setdefault(node.name, node)
        if other is not node and other.attrs.get("__shape__") != node.attrs.get("__shape__"):
            raise GraphError(
                f"two variables are named {node.name!r} but declare different shapes; rename one, or share one variable"
            )
    return found


def _batch_axes(variables: Sequence[Node], fed: Collection[str], states: Collection[str]) -> dict[str, int]:
    """Where the batch axis of a fed variable is, if not at 0: N of its layout; begin states are (layers, batch, size)."""
    found = {}
    for node in variables:
        layout = node.attrs.get("__layout__", "")
        axis = layout.find("N") if "N" in layout else int(node.name in states)
        if node.name in fed and axis > 0:
            found[node.name] = axis
    return found


def _fixed_gammas(operators: Sequence[Node]) -> list[str]:
    return [
        n.inputs[n.input_names().index("gamma")].node.name
        for n in operators
        if n.params.get("fix_gamma") and "gamma" in n.input_names()
    ]


def _output(head: Entry, visible: bool, fed: Collection[str]) -> Output:
    """What an output means for training; its loss reads the label through the label's own little graph."""
    node, name = head.node, head.node.output_name(head.index)
    op = node.op
    if not visible or op is None or op.kind == "plain" or head.index != 0:
        return Output(name)
    rule = op.loss
    if op.label is None:
        return Output(name, op.kind, None, None if rule is None else lambda out, inputs: rule(node.params, out, None))
    entry = node.inputs[node.input_names().index(op.label)]
    leaves = [n.name for n in topological([entry]) if n.op is None]
    if rule is None or not leaves or not set(leaves) <= set(fed):
        return Output(name, op.kind, leaves[0] if len(leaves) == 1 else None)
    read = make_apply(topological([entry]), [entry], Names(leaves, leaves))

    def loss(out: Array, inputs: Inputs) -> tuple[Array, Array]:
        return rule(node.params, out, read({}, {}, inputs)[0][0])

    classes = None
    if op.name == "SoftmaxOutput":
        classes = -1 if node.params["preserve_shape"] else 1
    ignore = node.params["ignore_label"] if node.params.get("use_ignore") else None
    return Output(name, op.kind, leaves[0], loss, classes, ignore)


# ------------------------------------------------------------------------------------------------ init
def _make_init(symbol: Graph, params: Mapping[str, Node], aux: Mapping[str, Node]):
    def init(key: Array, specs: Specs, initializer: Any = None) -> tuple[Params, Aux]:
        """Parameters and auxiliary states for inputs of these shapes; each drawn from fold_in(key, crc32(name))."""
        start = default() if initializer is None else get(initializer)
        shapes = _variable_specs(symbol, {**params, **aux}, specs)

        wanted = {k: (InitDesc(k, dict(n.attrs)), shapes[k]) for k, n in {**params, **aux}.items()}
        drawn = draw_all(start, key, wanted)
        return {k: drawn[k] for k in params}, {k: drawn[k] for k in aux}

    return init


def _variable_specs(symbol: Graph, wanted: Mapping[str, Node], specs: Specs) -> dict[str, jax.ShapeDtypeStruct]:
    variables = {n.name for n in symbol.nodes() if n.op is None}
    # parameters have the same shapes for any number of rows, which an exported program may leave open
    known = {k: tuple(d if isinstance(d, int) else 2 for d in s.shape) for k, s in specs.items() if k in variables}
    floats = {k: s.dtype for k, s in specs.items() if k in variables and jnp.issubdtype(s.dtype, jnp.floating)}
    shapes, dtypes = infer(symbol, known, floats)
    found = {}
    for name, node in wanted.items():
        shape = shapes.get((id(node), 0))
        if shape is None or 0 in shape:
            raise GraphError(
                f"the shape of {name!r} cannot be inferred from {dict(known)}"
                + (f" (known so far: {shape})" if shape else "")
                + "; give the shapes of all inputs, or shape= to the Variable, or feed it as an input"
            )
        dtype = dtypes.get((id(node), 0)) or DTYPES["float32"]
        found[name] = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))
    return found


def _make_plan(symbol: Graph, params: Mapping[str, Node], aux: Mapping[str, Node], names: Names, apply: Any):
    def plan(specs: Specs) -> Plan:
        """Output shapes, where their rows are, and whether batches may be padded; nothing is computed."""
        size = _rows_of(specs, names)
        made = _variable_specs(symbol, {**params, **aux}, specs)
        values = ({k: made[k] for k in params}, {k: made[k] for k in aux}, dict(specs))
        rows: list[MaybeLayout] = []

        def run(weight, params, aux, inputs):
            key = jax.random.key(0)
            train = all(name in specs for name in names.labels)  # without labels only prediction can be planned
            return apply(params, aux, inputs, key=key, train=train, weight=weight, _rows_out=rows)[0]

        try:
            shapes = jax.eval_shape(run, jax.ShapeDtypeStruct((size,), jnp.float32), *values)
            return Plan(shapes, tuple(rows), paddable=True)
        except RowsLost as error:
            reason = str(error)
        rows.clear()
        shapes = jax.eval_shape(lambda *v: run(None, *v), *values)
        return Plan(shapes, tuple(rows), paddable=False, reason=reason)

    return plan


def _rows_of(specs: Specs, names: Names) -> int:
    """Rows of a batch of these shapes."""
    for name in names.fed:
        axis = names.axes.get(name, 0)
        if name in specs and len(specs[name].shape) > axis:
            return specs[name].shape[axis]
    raise GraphError(f"the batch has the inputs {sorted(specs)}, the model needs {list(names.fed)}")


# ------------------------------------------------------------------------------------------------ tables
def _tables(
    order: Sequence[Node], heads: Sequence[Entry], names: Names, params: Collection[str]
) -> dict[str, Callable[..., Array]]:
    """Parameters of which a batch reads some rows only, because nothing but embeddings with sparse gradients uses them.

    Which rows those are follows from the batch alone, so a step can take them out, differentiate with respect to them, and
    leave the rest of the table in peace.

    Returns:
        Name of each table -> `(inputs, policy=None) -> numbers of the rows that a batch looks up`, int32 (lookups,).
    """
    uses: dict[str, list[Node | None]] = {h.node.name: [None] for h in heads}
    for node in order:
        for slot, entry in enumerate(node.inputs):
            uses.setdefault(entry.node.name, []).append(node if slot == 1 and _is_sparse(node) else None)
    found = {name: [n for n in nodes if n] for name, nodes in uses.items() if name in params and all(nodes)}
    return {name: _reader(nodes, names) for name, nodes in found.items() if all(_known(n, names) for n in nodes)}


def _is_sparse(node: Node) -> bool:
    assert node.op is not None
    return node.op.name == "_contrib_SparseEmbedding" or (node.op.name == "Embedding" and node.params["sparse_grad"])


def _known(node: Node, names: Names) -> bool:
    """Whether the batch alone says which rows a node looks up."""
    below = topological([node.inputs[0]])
    return all(n.name in names.fed if n.op is None else not (n.op.needs_rng or n.op.aux or n.subgraphs) for n in below)


def _reader(nodes: Sequence[Node], names: Names) -> Callable[..., Array]:
    entries = [n.inputs[0] for n in nodes]
    read = make_apply(topological(entries), entries, names)

    def numbers(inputs: Inputs, policy: Any = None) -> Array:
        ids, _ = read({}, {}, inputs, policy=policy)
        return jnp.concatenate([row_numbers(n.params, x).reshape(-1) for n, x in zip(nodes, ids, strict=True)])

    return numbers
