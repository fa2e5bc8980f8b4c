"""Lower graphs to `Model`s, and convert every other model argument of `fit` to one.

Lowering classifies the variables of a graph as data, labels, parameters and auxiliary states, and its outputs as output heads
(with their own gradient, such as SoftmaxOutput), losses and plain outputs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from jfit.checks import name_hint
from jfit.graph.compose import STORAGE_TYPES
from jfit.graph.in_place import in_place
from jfit.graph.infer import infer
from jfit.graph.nodes import Entry, Graph, GraphError, Node, aux_nodes, description_of, topological
from jfit.graph.symbol import Symbol
from jfit.init import InitDesc, default, draw_all, get
from jfit.lowering.frameworks.dispatch import adapter_of, from_module, no_loss, required_loss
from jfit.lowering.function import from_function
from jfit.lowering.interpret import STATE_SLOTS, InputNames, Interpretation, make_apply
from jfit.lowering.lookups import TABLES, lookups_of_graph
from jfit.lowering.model import Aux, Inputs, Model, Output, Params, Plan, Specs, Trained, flatten_names, values_of
from jfit.lowering.remat import is_mirrored
from jfit.ops.attributes import DTYPES
from jfit.ops.linalg import used_columns
from jfit.ops.nn import row_numbers
from jfit.ops.rows import MaybeLayout, RowsLost
from jfit.programs import ByIdentity, Made, Recent, kept, settings

MAX_PLANS = 64  # sets of input shapes for which the plan of a model is kept


def lower(
    symbol: Any,
    *,
    inputs: Iterable[str] | None = None,
    capture: str | None = None,
    batch_axes: Mapping[str, int] | None = None,
    roll: bool | None = None,
) -> Model:
    """Lower a graph to a `Model`: a NamedTuple of pure functions (`init`, `apply`, `plan`) and of metadata.

    Args:
        symbol: the graph, a Symbol, or a HybridBlock of gluon, whose inputs are "data", or "data0", "data1", ...
        inputs: names of the variables that each batch provides (data and labels); all others are parameters or auxiliary
            states.  Default: variables whose name ends in `data` (if there are none, variables that are the input `data` of
            an operator) or in `label`, labels of output heads (outputs with their own gradient, such as SoftmaxOutput), and
            initial states of recurrent operators.
        capture: regular expression; every internal output whose name it matches is appended to the outputs.
        batch_axes: input name -> batch axis.  Default: position of N in the variable's `layout`, 1 for initial states of
            recurrent operators (layers, batch, size), else 0.
        roll: True: repeated blocks of the graph, such as the time steps of an unrolled recurrent network, run as one
            `lax.scan`, so that the time to compile does not depend on the number of steps.  Blocks with convolutions are
            rolled on accelerators only.  False: every node is compiled separately.  Default: True, unless `capture` is passed
            or the environment variable JFIT_ROLL is "0".

    Returns:
        The `Model`.  `model.apply(params, aux, inputs, train=..., key=...)` returns (outputs, new auxiliary states).

    Raises:
        GraphError: a name in `inputs` is not a variable of the graph, or `capture` matches no internal output.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model = jfit.lower(net)
        >>> params, aux = model.init(jax.random.key(0), {"data": jax.ShapeDtypeStruct((2, 4), "float32")})
        >>> outputs, aux = model.apply(params, aux, {"data": np.ones((2, 4), "float32")})
        >>> outputs[0].shape
        (2, 3)
    """
    if hasattr(symbol, "_lowered"):
        symbol, own = symbol._lowered()
        inputs = own if inputs is None else inputs
    names, axes = (None if inputs is None else tuple(inputs)), (None if batch_axes is None else tuple(batch_axes.items()))
    for node in symbol.nodes():
        if node.op is None and not isinstance(node.raw_name, str):
            node.raw_name.auto.lowered = True
    roll = capture is None and os.environ.get("JFIT_ROLL") != "0" if roll is None else roll
    description = description_of(symbol)
    if description is None:
        return _lowered(symbol, names, capture, batch_axes, roll)
    key = description, names, capture, axes, roll, os.environ.get("MXNET_BACKWARD_DO_MIRROR")
    model = _models.get(key)
    # The graph of the model is compared, too: its attributes are dicts, which may have been changed since.
    if model is None or description_of(model.symbol) != description:
        model = _lowered(symbol, names, capture, batch_axes, roll)
        # programs of equal graphs have this object in their key, which is compared at once
        model = _models[key] = model._replace(apply=cast(Any, Made(model.apply, ByIdentity(object()))))
    # The symbol and the dicts are the caller's own: a network that is composed of `model.symbol` shares the nodes of `symbol`.
    return model._replace(symbol=symbol, batch_axes=dict(model.batch_axes), tables=dict(model.tables))


_models = kept(64)


def _lowered(
    symbol: Symbol, inputs: Sequence[str] | None, capture: str | None, batch_axes: Mapping[str, int] | None, roll: bool
) -> Model:
    visible = symbol.heads
    heads = visible if capture is None else _captured(symbol, capture)
    order = topological(heads)
    data, labels = _input_names(order, heads, inputs)
    if any(n.op is not None and n.op.overwritten for n in order):
        heads = in_place(heads, (*data, *labels))
        order = topological(heads)
    variables, operators = [n for n in order if n.op is None], [n for n in order if n.op is not None]
    states, aux_ids = _state_names(order), aux_nodes(order)
    axes = {**_batch_axes(variables, (*data, *labels), states), **(batch_axes or {})}
    names = InputNames((*data, *labels), labels, axes)
    params = _by_name([n for n in variables if id(n) not in aux_ids and n.name not in names.inputs])
    aux = _by_name([n for n in variables if id(n) in aux_ids])
    apply = make_apply(order, heads, names, roll=roll)
    tables = [n for n in operators if n.op and n.op.name in TABLES]
    lookups = lookups_of_graph(tables, names.inputs) if tables else ()
    return Model(
        init=_make_init(Graph(heads), params, aux),
        apply=apply,
        outputs=tuple(_output(h, i < len(visible), names.inputs) for i, h in enumerate(heads)),
        inputs=data,
        labels=labels,
        plan=_make_plan(Graph(heads), params, aux, names, apply, lookups),
        batch_axes=names.axes,
        frozen=frozenset(_fixed_gammas(operators)),
        traits=_traits(operators),
        optional=frozenset(states),
        symbol=symbol,
        evaluation_labels=tuple(n for n in labels if n in {node.name for node in evaluated_nodes(heads)}),
        tables=_sparse_tables(order, heads, names, params) if any(map(_is_sparse, operators)) else {},
    )


def as_model(
    model: Any, *, loss: Any = None, params: Any = None, aux: Any = None, predict: bool = False, **options: Any
) -> Model:
    """Convert the model argument of `fit` (Model, Trained, Symbol, or a function or module with its `loss`) to a `Model`.

    With `predict=True` a function or module needs no loss.

    `options` are further arguments of `Model.from_function` about the loss, such as `loss_weights`.

    Raises:
        TypeError: `model` has another type, or is a function or module and `loss` is None.
        ValueError: `loss` or an option is passed and `model` is neither a function nor a module.
    """
    loss = loss._as_loss() if hasattr(loss, "_as_loss") else loss  # a block of mx.gluon.loss
    if isinstance(model, Model | Trained | Symbol):
        for name, value in {"loss": loss, **options}.items():
            if value not in (None, False):  # 0 is the default of row_axes
                raise ValueError(_unused_loss(model, name))
    if isinstance(model, Model):
        return model
    if isinstance(model, Trained):
        return model.model
    if isinstance(model, Symbol):
        return lower(model)
    if adapter_of(model) is not None:
        loss = loss if predict else required_loss(loss, "module")
        return from_module(model, loss=loss, params=params, aux=aux, **options)
    if callable(model):
        loss = no_loss if predict and loss is None else required_loss(loss)
        return from_function(model, loss=loss, params=params, aux=aux, **options)
    raise TypeError(
        f"model is {model!r}; expected a Symbol, a jfit.Model, a Flax, Equinox, Haiku or Keras module, or a pure function"
    )


def _unused_loss(model: Model | Trained | Symbol, name: str) -> str:
    """Error message for a loss, or an option of losses, that is passed together with a model that has its own loss."""
    if isinstance(model, Symbol):
        reason = "the model is a Symbol, and its output operators determine its loss"
        remedy = "end the network with a SoftmaxOutput, a RegressionOutput or MakeLoss of your loss"
    else:
        lowered = model.model if isinstance(model, Trained) else model
        reason = f"the model already has a loss, in its outputs {[o.name for o in lowered.outputs if o.kind != 'plain']}"
        remedy = f"pass {name}= to jfit.Model.from_function" if lowered.symbol is None else "change the outputs of its graph"
    return f"{name}= would be ignored: {reason}; leave out {name}=, or {remedy}"


def lower_with_inputs(symbol: Symbol, names: Iterable[str]) -> Model:
    """Lower a graph with these variables as additional inputs; names that the graph does not have are ignored."""
    defaults, variables = default_inputs(symbol), set(symbol.list_inputs())
    named = {n for n in names if n in variables}
    return lower(symbol, inputs=None if defaults >= named else sorted(defaults | named))


def default_inputs(symbol: Symbol) -> set[str]:
    """Return the names of the variables (data and labels) that `lower(symbol)` treats as inputs when `inputs` is None."""
    data, labels = _input_names(symbol.nodes(), symbol.heads, None)
    return {*data, *labels}


def split_trained(model: Any, params: Any, aux: Any) -> tuple[Any, Any, Any]:
    """Split a `Trained` or a Run into (model, params, aux); arguments that are not None take precedence over its values."""
    is_run = hasattr(type(model), "named_params")  # this stage cannot import Run
    return values_of(model, params, aux) if isinstance(model, Trained) or is_run else (model, params, aux)


def model_and_values(model: Any, loss: Any, params: Any, aux: Any, **options: Any) -> tuple[Model, Any, Any]:
    """Convert arguments of `fit` to (Model, initial parameters, initial auxiliary states), the values as flat dicts."""
    lowered = as_model(model, loss=loss, params=params, aux=aux, **options)
    if lowered is not model and lowered.symbol is None:
        return lowered, None, None  # `init` of a model made of a function returns the values passed here
    params, aux = (None if tree is None else flatten_names(tree)[0] for tree in (params, aux))
    return lowered, params, aux


def _traits(operators: Sequence[Node]) -> frozenset[str]:
    ops = [n.op for n in operators if n.op]
    traits = {"convolution": any(op.family == "conv" for op in ops), "draws": any(op.needs_rng for op in ops)}
    traits |= {"row_keys": traits["draws"], "recomputed": any(map(is_mirrored, operators))}
    return frozenset(name for name, present in traits.items() if present)


def _captured(symbol: Symbol, pattern: str) -> tuple[Entry, ...]:
    """Return the outputs of the graph, then the internal outputs whose name matches the regular expression."""
    internals = symbol.get_internals()
    outputs = {(id(h.node), h.index) for h in symbol.heads}
    extra = [
        h
        for h, name in zip(internals.heads, internals.list_outputs(), strict=True)
        if h.node.op is not None and (id(h.node), h.index) not in outputs and re.search(pattern, name)
    ]
    if not extra:
        raise GraphError(f"capture={pattern!r} matches no internal output; the first ones are {internals.list_outputs()[:20]}")
    return (*symbol.heads, *extra)


# ------------------------------------------------------------------------------------------------ classes of variables
def evaluated_nodes(heads: Sequence[Entry]) -> list[Node]:
    """Return the nodes that evaluation computes: those that the outputs `heads` depend on other than through a label input."""
    seen: set[int] = set()
    stack = [h.node for h in heads]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            stack.extend(e.node for at, e in enumerate(node.inputs) if at != node.label_at)
    return [n for n in topological(heads) if id(n) in seen]


def _input_names(
    order: Sequence[Node], heads: Sequence[Entry], inputs: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (data names, label names) in graph order; `inputs` as in `lower`."""
    variables = list(dict.fromkeys(n.name for n in order if n.op is None))
    used = {n.name for n in evaluated_nodes(heads) if n.op is None}  # in an autoencoder one variable is data and label
    labels = {v for v in variables if v.endswith("label")}
    for node in order:
        if node.label_at is not None:
            leaves = [n.name for n in topological([node.inputs[node.label_at]]) if n.op is None]
            # A label may be computed from network outputs (targets of a detector): exclude the network's variables.
            labels.update(leaves if len(leaves) == 1 else (v for v in leaves if v not in used))
    if inputs is None:
        named = {v for v in variables if v.endswith("data") and v in used} or _data_slots(order) & used
        states = _state_names(order)
        return tuple(v for v in variables if v in named | states), tuple(v for v in variables if v in labels - named)
    for name in inputs:
        if name not in variables:
            raise GraphError(f"input {name!r} is not a variable of the graph; {name_hint(name, variables)}")
    labels = {v for v in labels if v not in used or v.endswith("label")} & set(inputs)
    return tuple(v for v in variables if v in set(inputs) - labels), tuple(v for v in variables if v in labels)


def _data_slots(order: Sequence[Node]) -> set[str]:
    """Return the names of the variables that are the input `data` of an operator and declare no initializer."""
    slots = [(s, e.node) for n in order if n.op for s, e in zip(n.input_names(), n.inputs, strict=True)]
    return {n.name for s, n in slots if s == "data" and n.op is None and "__init__" not in n.attrs}


def _state_names(order: Sequence[Node]) -> set[str]:
    """Return the names of the variables that are initial states of recurrent operators."""
    slots = [(s, e) for n in order if n.op and n.op.family == "rnn" for s, e in zip(n.input_names(), n.inputs, strict=False)]
    return {e.node.name for s, e in slots if s in STATE_SLOTS and e.node.op is None}


def _by_name(nodes: Sequence[Node]) -> dict[str, Node]:
    variables: dict[str, Node] = {}
    for node in nodes:
        variables.setdefault(node.name, node)
    return variables


def _batch_axes(variables: Sequence[Node], inputs: Collection[str], states: Collection[str]) -> dict[str, int]:
    """Return batch axes other than 0, by input name: position of N in the layout; 1 for RNN states (layers, batch, size)."""
    axes = {}
    for node in variables:
        layout = node.attrs.get("__layout__", "")
        axis = layout.find("N") if "N" in layout else int(node.name in states)
        if node.name in inputs and axis > 0:
            axes[node.name] = axis
    return axes


def _fixed_gammas(operators: Sequence[Node]) -> list[str]:
    return [
        n.inputs[n.input_names().index("gamma")].node.name
        for n in operators
        if n.params.get("fix_gamma") and "gamma" in n.input_names()
    ]


# (task, scores) of the outputs of heads, see `Output`
_TASKS = {
    "SoftmaxOutput": ("classes", "probabilities"),
    "SVMOutput": ("classes", None),
    "LogisticRegressionOutput": ("binary", "probabilities"),
    "LinearRegressionOutput": ("values", None),
    "MAERegressionOutput": ("values", None),
}


def _output(head: Entry, visible: bool, inputs: Collection[str]) -> Output:
    """Describe one output of the graph as an `Output`; `visible` is False for captured internal outputs."""
    node, name = head.node, head.node.output_name(head.index)
    op = node.op
    if not visible or op is None or op.kind == "plain" or head.index != 0:
        return Output(name)
    rule = op.loss
    if node.label_at is None:
        return Output(name, op.kind) if rule is None else _with_loss(Output(name, op.kind), node, lambda batch: None)
    entry = node.inputs[node.label_at]
    leaves = [n.name for n in topological([entry]) if n.op is None]
    if rule is None or not leaves or not set(leaves) <= set(inputs):
        return Output(name, op.kind, leaves[0] if len(leaves) == 1 else None)
    # The label may be an expression of input variables, such as a reshape: evaluate it on the batch.
    label = make_apply(topological([entry]), [entry], InputNames(leaves, leaves))

    classes = None
    if op.name == "SoftmaxOutput":
        classes = -1 if node.params["preserve_shape"] else 1
    ignore = node.params["ignore_label"] if node.params.get("use_ignore") else None
    task, scores = _TASKS.get(op.name, (None, None))
    output = Output(name, op.kind, leaves[0], None, classes, ignore, task=task, scores=scores)
    return _with_loss(output, node, lambda batch: label({}, {}, batch)[0][0])


def _with_loss(output: Output, node: Any, label: Callable[[Inputs], Any]) -> Output:
    op = node.op

    def loss(out: Array, batch: Inputs) -> tuple[Array, Array]:
        return op.loss(node.params, out, label(batch))

    def sized(out: Array, batch: Inputs) -> tuple[Array, Array, int]:
        return *loss(out, batch), op.positions(node.params, out.shape)

    return output._replace(loss=loss, sized=sized)


# ------------------------------------------------------------------------------------------------ init
def _make_init(symbol: Graph, params: Mapping[str, Node], aux: Mapping[str, Node]):
    def init(key: Array, specs: Specs, initializer: Any = None) -> tuple[Params, Aux]:
        """Draw (params, aux) of the model for inputs of these shapes; each parameter uses the key fold_in(key, crc32(name))."""
        rule = default() if initializer is None else get(initializer)
        shapes = _variable_specs(symbol, {**params, **aux}, specs)

        variables = {k: (InitDesc(k, dict(n.attrs)), shapes[k]) for k, n in {**params, **aux}.items()}
        values = draw_all(rule, key, variables)
        return {k: values[k] for k in params}, {k: values[k] for k in aux}

    return init


def _variable_specs(symbol: Graph, nodes: Mapping[str, Node], specs: Specs) -> dict[str, jax.ShapeDtypeStruct]:
    variables = {n.name for n in symbol.nodes() if n.op is None}
    # A size may be symbolic (jax.export); 2 replaces it, because shapes of parameters do not depend on the batch size.
    known = {k: tuple(d if isinstance(d, int) else 2 for d in s.shape) for k, s in specs.items() if k in variables}
    floats = {k: s.dtype for k, s in specs.items() if k in variables and jnp.issubdtype(s.dtype, jnp.floating)}
    shapes, dtypes = infer(symbol, known, floats)
    inferred = {}
    for name, node in nodes.items():
        shape = shapes.get((id(node), 0))
        if shape is None or 0 in shape:
            raise GraphError(f"the shape of {name!r} cannot be inferred from {dict(known)}; pass the shapes of all inputs")
        dtype = dtypes.get((id(node), 0)) or DTYPES["float32"]
        inferred[name] = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))
    return inferred


def _make_plan(
    symbol: Graph, params: Mapping[str, Node], aux: Mapping[str, Node], names: InputNames, apply: Any, lookups: tuple
):
    plans = Recent(MAX_PLANS)

    def plan(specs: Specs) -> Plan:
        """Compute the `Plan` of the model for inputs of these shapes and dtypes by `jax.eval_shape`, without running it."""
        if not all(isinstance(size, int) for spec in specs.values() for size in spec.shape):  # symbolic, of jax.export
            return compute(specs)
        key = tuple([(name, spec.shape, spec.dtype) for name, spec in specs.items()]), settings()
        result = plans.get(key)
        if result is None:
            result = plans[key] = compute(specs)
        return result

    def compute(specs: Specs) -> Plan:
        size = _batch_size(specs, names)
        variables = _variable_specs(symbol, {**params, **aux}, specs)
        values = ({k: variables[k] for k in params}, {k: variables[k] for k in aux}, dict(specs))
        rows: list[MaybeLayout] = []

        def run(weight, params, aux, inputs):
            key = jax.random.key(0)
            train = all(name in specs for name in names.labels)  # without labels only evaluation mode can be traced
            return apply(params, aux, inputs, key=key, train=train, weight=weight, how=Interpretation(rows=rows))[0]

        try:
            shapes = jax.eval_shape(run, jax.ShapeDtypeStruct((size,), jnp.float32), *values)
            return Plan(shapes, tuple(rows), paddable=True, lookups=lookups)
        except RowsLost as error:
            reason = str(error)
        rows.clear()  # row weights are unsupported by this graph: trace without them
        shapes = jax.eval_shape(lambda *v: run(None, *v), *values)
        return Plan(shapes, tuple(rows), paddable=False, reason=reason, lookups=lookups)

    return plan


def _batch_size(specs: Specs, names: InputNames) -> int:
    for name in names.inputs:
        axis = names.axes.get(name, 0)
        if name in specs and len(specs[name].shape) > axis:
            return specs[name].shape[axis]
    raise GraphError(f"the batch has the inputs {sorted(specs)}, the model needs {list(names.inputs)}")


# ------------------------------------------------------------------------------------------------ embedding tables
def _sparse_tables(
    order: Sequence[Node], heads: Sequence[Entry], names: InputNames, params: Collection[str]
) -> dict[str, Callable[..., Array]]:
    """Find the parameters that are read only as tables of embeddings with sparse gradients, or as factors of a CSR input.

    The rows that a batch looks up in such a table are a function of the batch alone.  A step can therefore gather these rows,
    differentiate with respect to them, and leave all other rows of the table unchanged.  A product with an input in compressed
    sparse rows uses the rows of its factor at the columns that have a nonzero value in the batch.

    Returns:
        Dict: parameter name -> function `(inputs, policy=None) -> row indices that the batch looks up`, int32 (lookups,).
    """
    uses: dict[str, list[Node | None]] = {h.node.name: [None] for h in heads}  # None: a use other than a sparse lookup
    for node in order:
        for slot, entry in enumerate(node.inputs):
            uses.setdefault(entry.node.name, []).append(node if slot == 1 and _is_sparse(node) else None)
    lookups = {name: [n for n in nodes if n] for name, nodes in uses.items() if name in params and all(nodes)}
    return {k: _row_indices(v, names) for k, v in lookups.items() if all(_indices_from_batch(n, names) for n in v)}


def _is_sparse(node: Node) -> bool:
    assert node.op is not None
    if node.op.name == "dot":
        is_csr = node.inputs[0].node.attrs.get("__storage_type__") == str(STORAGE_TYPES["csr"])
        return is_csr and not (node.params["transpose_a"] or node.params["transpose_b"])
    return node.op.name == "_contrib_SparseEmbedding" or (node.op.name == "Embedding" and node.params["sparse_grad"])


def _indices_from_batch(node: Node, names: InputNames) -> bool:
    """Return whether the indices of an embedding lookup depend only on the batch, not on parameters or random numbers."""
    ancestors = topological([node.inputs[0]])
    return all(n.name in names.inputs if n.op is None else not (n.op.needs_rng or n.op.aux or n.subgraphs) for n in ancestors)


def _row_indices(nodes: Sequence[Node], names: InputNames) -> Callable[..., Array]:
    entries = [n.inputs[0] for n in nodes]
    lookups = make_apply(topological(entries), entries, names)

    def indices(inputs: Inputs, policy: Any = None) -> Array:
        ids, _ = lookups({}, {}, inputs, policy=policy)
        read = lambda n, x: row_numbers(n.params, x).reshape(-1) if "input_dim" in n.params else used_columns(x)  # noqa: E731
        return jnp.concatenate([read(*pair) for pair in zip(nodes, ids, strict=True)])

    return indices
