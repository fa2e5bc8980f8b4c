"""ONNX: the graph node by node, in evaluation, for any batch size.

What each tensor's shape and dtype is comes from jfit's own evaluation, traced for several batch sizes: a size that grows
with the rows is times * rows + plus.  The package onnx is imported only where a model is put together.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.export.nodes import CONVERTERS, At, Entry, Graph, Size, Step, Unsupported
from jfit.export.nodes.core import TYPES, Dims
from jfit.export.source import ExportError, Source, batch_rows, check_parameters, source_of, specs_with
from jfit.formats import atomic_write
from jfit.graph.nodes import Entry as Output
from jfit.graph.nodes import Node, topological
from jfit.lowering.build import evaluated_nodes
from jfit.lowering.interpret import Names, make_apply

OPSET = 17
IR_VERSION = 8  # the oldest that has opset 17
MOST_BYTES = 2**31 - 2**24  # what protobuf allows in one message, less room for the nodes
PROBES = (2, 3, 5)  # how many times the rows of the specs a graph is traced with to find out how its sizes grow


def onnx(
    net: Any,
    specs: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    aux: Mapping[str, Any] | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    batch: str | None = "batch",
    name: str = "jfit",
) -> Any:
    """A model as ONNX (opset 17), node by node: parameters become initializers, loss heads what they show in evaluation.

    Args:
        net: Symbol, lowered Model, Run or loaded model.
        specs: name -> shape (or array, or jax.ShapeDtypeStruct) of the inputs; labels are not needed.
        params: parameters by name, where `net` does not hold them.
        aux: auxiliary states by name.
        path: the file to write; None writes none.
        batch: name of the open batch size; None fixes the batch at the rows of `specs`.
        name: name of the graph.

    Returns:
        The onnx.ModelProto.

    Raises:
        ExportError: nodes have no converter (all are listed, before anything is written), parameters are missing, the model
            is no graph, or the graph only fits one batch size.
        ImportError: the package onnx is missing.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
        >>> params = {"fc_weight": np.eye(2, dtype="float32"), "fc_bias": np.zeros(2, "float32")}
        >>> model = jfit.export.onnx(net, {"data": (1, 2)}, params)  # doctest: +SKIP
        >>> [node.op_type for node in model.graph.node]  # doctest: +SKIP
        ['Gemm']
    """
    source = source_of(net, specs, params, aux)
    if source.model.symbol is None:
        raise ExportError("this model is a function, not a graph, so it has no nodes to export; use jfit.export.stablehlo")
    check_parameters(source)
    plan = _Plan.of(source, specs, batch)
    model = _assembled(plan, _convert(plan), batch, name)
    if path is not None:
        atomic_write(path, model.SerializeToString())
    return model


def converters() -> list[str]:
    """Names of the operators that have an ONNX converter, sorted.

    Example:
        >>> import jfit
        >>> "Convolution" in jfit.export.converters()
        True
    """
    return sorted(CONVERTERS)


# ------------------------------------------------------------------------------------------ what is known of the graph
class _Plan(NamedTuple):
    """The nodes that evaluation needs, and what is known of every tensor."""

    source: Source
    heads: tuple[Output, ...]
    nodes: list[Node]  # inputs before their users; labels left out
    fed: dict[str, Entry]  # inputs of the model that evaluation needs
    known: dict[tuple[int, int], Entry]  # (id(node), output)
    rows: tuple[str, int] | None

    @classmethod
    def of(cls, source: Source, specs: Mapping[str, Any], batch: str | None) -> _Plan:
        model, symbol = source.model, source.model.symbol
        nodes = evaluated_nodes(symbol.heads)
        variables = {n.name for n in nodes if n.op is None}
        specs = {k: v for k, v in specs.items() if k in variables}
        names = [n for n in (*model.inputs, *model.labels) if n in variables]
        missing = [n for n in names if n not in specs and n not in model.optional]
        if missing:
            raise ExportError(f"specs has no shape for the inputs {missing}; found {sorted(specs)}, needed {names}")
        size = batch_rows(model, specs)
        counts = [size] if batch is None else [k * size for k in PROBES]
        found = []
        for count in counts:
            try:
                found.append(_traced(source, nodes, specs_with(model, specs, count)))
            except ValueError as error:
                if batch is None or count == size:
                    raise
                raise ExportError(
                    f"the graph cannot be evaluated with {count} rows, so it fits no open batch size ({error}); "
                    f"pass batch=None to export it for the {size} rows of specs"
                ) from error
        merged = {key: _merged(counts, [f[key] for f in found]) for key in found[0]}
        fed = {n.name: merged[id(n), 0] for n in nodes if n.op is None and n.name in specs}
        axis = {n: model.batch_axes.get(n, 0) for n in names if n in specs}
        rows = next(((n, a) for n, a in axis.items() if a < len(fed[n].shape) and fed[n].shape[a] == Size(1)), None)
        return cls(source, symbol.heads, nodes, fed, merged, rows)


def _traced(source: Source, nodes: Sequence[Node], inputs: Mapping[str, Any]) -> dict[tuple[int, int], Entry]:
    """Shape and dtype of every tensor in evaluation, as jfit itself computes it; nothing runs."""
    model = source.model
    heads = [Output(n, i) for n in nodes if n.op for i in range(len(n.op.output_names(n.params)))]
    names = Names((*model.inputs, *model.labels), model.labels, model.batch_axes)
    apply = make_apply(topological(source.model.symbol.heads), heads, names)
    # a label that is data too feeds both; one that is only a label is not given, as in prediction
    outs = jax.eval_shape(lambda p, a, x: apply(p, a, x, key=jax.random.key(0))[0], *_abstract(source), dict(inputs))
    found = {(id(h.node), h.index): Entry(tuple(o.shape), np.dtype(o.dtype)) for h, o in zip(heads, outs, strict=True)}
    for node in nodes:
        if node.op is None:
            given = next((g[node.name] for g in (inputs, source.params, source.aux) if node.name in g), None)
            if given is not None:
                found[id(node), 0] = Entry(tuple(given.shape), np.dtype(jax.dtypes.canonicalize_dtype(given.dtype)))
    return found


def _abstract(source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    def of(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {k: jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in arrays.items()}

    return of(source.params), of(source.aux)


def _merged(counts: Sequence[int], found: Sequence[Entry]) -> Entry:
    """One entry whose sizes say how they grow: those of several traces, with `counts` rows."""
    if len({len(f.shape) for f in found}) > 1:
        raise ExportError(f"a tensor has shapes {[f.shape for f in found]} for {list(counts)} rows; pass batch=None")
    return Entry(tuple(_grown(counts, sizes) for sizes in zip(*(f.shape for f in found), strict=True)), found[0].dtype)


def _grown(counts: Sequence[int], sizes: Sequence[int]) -> int | Size:
    if len(set(sizes)) == 1:
        return sizes[0]
    times, rest = divmod(sizes[1] - sizes[0], counts[1] - counts[0])
    plus = sizes[0] - times * counts[0]
    if rest or any(times * c + plus != s for c, s in zip(counts, sizes, strict=True)):
        raise ExportError(f"a size is {list(sizes)} for {list(counts)} rows, which is no multiple of them; pass batch=None")
    return Size(times, plus)


# ------------------------------------------------------------------------------------------ conversion
class _Converted(NamedTuple):
    graph: Graph
    outputs: list[tuple[str, Entry]]


def _convert(plan: _Plan) -> _Converted:
    """Every node by its converter; what cannot be converted is listed all at once."""
    graph, tensors = Graph(plan.rows), dict[tuple[int, int], str]()
    known, wrong = dict(plan.known), list[str]()
    for node in plan.nodes:
        if node.op is None:
            _variable(plan, graph, node, tensors, known)
    held = counters.read({**plan.source.params, **plan.source.aux})
    values = {k: np.asarray(v, jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in held.items()}
    used, behind = _used(plan), set[int]()  # behind: nodes that read from one without an ONNX form
    for node in plan.nodes:
        if node.op is None:
            continue
        if any(id(e.node) in behind for e in node.inputs) and node.op.name in CONVERTERS:
            behind.add(id(node))
            continue
        try:
            outs = _one(graph, node, tensors, known, values, used.get(id(node), frozenset()))
            tensors.update({(id(node), i): name for i, name in enumerate(outs)})
        except Unsupported as reason:
            wrong.append(f"{node.name!r} ({node.op.name}): {reason}")
            behind.add(id(node))
    if wrong:
        raise ExportError(
            f"{len(wrong)} of {len(plan.nodes)} nodes have no ONNX form: {'; '.join(wrong)}. Cut the graph before them, or use "
            "jfit.export.stablehlo, which takes every operator"
        )
    return _Converted(graph, _outputs(plan, graph, tensors, values))


def _outputs(plan: _Plan, graph: Graph, tensors: Any, values: Any) -> list[tuple[str, Entry]]:
    """The outputs under their public names; what is an input, a parameter or an output already gets a node of its own."""
    outputs: list[tuple[str, Entry]] = []
    for head in plan.heads:
        tensor, wanted = tensors[id(head.node), head.index], head.node.output_name(head.index)
        if tensor != wanted or tensor in plan.fed or tensor in values or tensor in dict(outputs):
            graph.at = wanted
            start = len(graph.steps)
            tensor = _named(graph, graph.add("Identity", tensor), wanted, start)
        outputs.append((tensor, plan.known[id(head.node), head.index]))
    graph.constants = {**values, **graph.constants}
    return outputs


def _variable(plan: _Plan, graph: Graph, node: Node, tensors: dict[tuple[int, int], str], known: Any) -> None:
    """Inputs and parameters keep their names; bytes become floats, as jfit feeds them; what is not fed is ''."""
    here = (id(node), 0)
    if here not in known:
        tensors[here] = ""
        return
    if node.name not in graph._taken:
        graph.name(node.name)
    tensors[here] = node.name
    if node.name in plan.fed and known[here].dtype == np.uint8 and "__dtype__" not in node.attrs:
        graph.at = node.name
        tensors[here] = graph.add("Cast", node.name, to=TYPES["float32"])
        known[here] = known[here]._replace(dtype=np.dtype(np.float32))


def _used(plan: _Plan) -> dict[int, frozenset[int]]:
    """Which outputs of each node somebody reads."""
    found: dict[int, set[int]] = {}
    for entry in (*plan.heads, *(e for n in plan.nodes for e in n.inputs)):
        found.setdefault(id(entry.node), set()).add(entry.index)
    return {k: frozenset(v) for k, v in found.items()}


def _one(graph: Graph, node: Node, tensors: Any, known: Any, values: Any, used: frozenset[int]) -> list[str]:
    """The tensors of one node's outputs, under the names that jfit gives them."""
    assert node.op is not None
    convert = CONVERTERS.get(node.op.name)
    if convert is None:
        raise Unsupported("the operator has no converter")
    graph.at = node.name
    start = len(graph.steps)
    names = [tensors.get((id(e.node), e.index), "") for e in node.inputs]
    ins = [known.get((id(e.node), e.index)) if n else None for e, n in zip(node.inputs, names, strict=True)]
    floats = [e.dtype for e in ins if e is not None and e.dtype.kind not in "iub"]
    if floats and (node.op.types is None or node.op.family == "norm"):  # integers join the floats
        for i, entry in enumerate(ins):
            if entry is not None and entry.dtype.kind in "iub":
                names[i], ins[i] = graph.cast(names[i], floats[0]), entry._replace(dtype=floats[0])
    outs = [known[id(node), i] for i in range(len(node.op.output_names(node.params)))]
    made = convert(
        graph, At(node.name, node.params, tuple(ins), tuple(outs), used, lambda i: _constant(node.inputs[i], values)), *names
    )
    made = [made] if isinstance(made, str) else list(made)
    if used and max(used) >= len(made):
        raise Unsupported(f"its output {node.op.output_names(node.params)[max(used)]!r} has no converter")
    return [_named(graph, tensor, node.output_name(i), start) for i, tensor in enumerate(made)]


def _constant(entry: Output, values: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The value of a tensor that only depends on parameters (gluon joins the weights of a recurrent layer in its graph)."""
    order = topological([entry])
    leaves = [n.name for n in order if n.op is None]
    if not set(leaves) <= set(values):
        return None
    given = {k: jnp.asarray(values[k]) for k in leaves}
    return np.asarray(counters.read(make_apply(order, [entry], Names(()))(given, {}, {})[0][0]))


def _named(graph: Graph, tensor: str, wanted: str, start: int) -> str:
    """The tensor under its public name, where this node made it and the name is free."""
    own = any(tensor in s.outputs for s in graph.steps[start:])
    if not own or graph.name(wanted) != wanted:
        return tensor
    graph.rename(tensor, wanted, start)
    return wanted


# ------------------------------------------------------------------------------------------ the file
def _assembled(plan: _Plan, made: _Converted, batch: str | None, name: str) -> Any:
    steps = _live(made)
    size = sum(v.nbytes for v in made.graph.constants.values())
    if size > MOST_BYTES:
        raise ExportError(
            f"the parameters take {size:,} bytes, an ONNX file holds {MOST_BYTES:,}; cast them to float16, or use "
            "jfit.export.stablehlo and safetensors"
        )
    try:
        helper, numpy_helper = (importlib.import_module(f"onnx.{part}") for part in ("helper", "numpy_helper"))
    except ImportError as error:
        raise ImportError("jfit.export.onnx needs the package onnx; pip install 'jfit[export]'") from error

    def told(tensor: str, entry: Entry) -> Any:
        return helper.make_tensor_value_info(tensor, TYPES[entry.dtype.name], _named_sizes(entry.shape, batch))

    graph = helper.make_graph(
        [helper.make_node(s.kind, list(s.inputs), list(s.outputs), name=s.outputs[0], **s.attrs) for s in steps],
        name,
        [told(n, e) for n, e in plan.fed.items()],
        [told(n, e) for n, e in made.outputs],
        [numpy_helper.from_array(np.ascontiguousarray(v).reshape(v.shape), k) for k, v in made.graph.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="jfit")


def _named_sizes(shape: Dims, batch: str | None) -> list[int | str]:
    """Sizes as numbers and names: `batch`, `5*batch`, `batch+1`."""
    found: list[int | str] = []
    for size in shape:
        if isinstance(size, Size):
            times = f"{size.times}*{batch}" if size.times != 1 else f"{batch}"
            found.append(f"{times}{size.plus:+d}" if size.plus else times)
        else:
            found.append(size)
    return found


def _live(made: _Converted) -> list[Step]:
    """Nodes whose outputs somebody reads."""
    wanted, kept = {n for n, _ in made.outputs}, list[Step]()
    for step in reversed(made.graph.steps):
        if wanted & set(step.outputs):
            wanted.update(step.inputs)
            kept.append(step)
    made.graph.constants = {k: v for k, v in made.graph.constants.items() if k in wanted}
    return kept[::-1]
