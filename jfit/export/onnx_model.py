"""Export to ONNX: the graph in evaluation mode, node by node, for any batch size.

The shapes and dtypes of all tensors come from tracing jfit's own evaluation for several batch sizes. A size that depends on the
number of rows is represented as times * rows + plus (`Size`). The package onnx is imported only to build the final model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.distributed import is_main
from jfit.export.nodes import CONVERTERS, At, Entry, Graph, Size, Step, Unsupported
from jfit.export.nodes.core import TYPES, Dims
from jfit.export.source import ExportError, Source, batch_rows, check_parameters, shapes, source_of, specs_with
from jfit.formats import atomic_write
from jfit.graph.nodes import Entry as Output
from jfit.graph.nodes import Node, topological
from jfit.lazy import optional
from jfit.lowering.build import evaluated_nodes
from jfit.lowering.interpret import InputNames, make_apply

OPSET = 17
IR_VERSION = 8  # the oldest version that has opset 17
MOST_BYTES = 2**31 - 2**24  # limit for the parameters: protobuf's limit for a message, minus 16 MiB for the nodes
PROBES = (2, 3, 5)  # multiples of the batch size for which the graph is traced, to see how sizes depend on it


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
    """Convert a model in evaluation mode to ONNX (opset 17), one operator at a time.

    Parameters become initializers; heads such as SoftmaxOutput become what they compute in evaluation.

    Args:
        net: a Symbol, lowered Model, Run or loaded model.
        specs: input name -> shape (or array, or jax.ShapeDtypeStruct), including the batch axis; labels are not needed.
        params: parameters by name; default: those of `net`, if it is a Run or loaded model.
        aux: auxiliary states by name; default: those of `net`, if it is a Run or loaded model.
        path: the file to write; None writes no file.  In a job of several processes, rank 0 writes it.
        batch: name of the dynamic batch dimension; None fixes the batch size to the one in `specs`.
        name: name of the ONNX graph.

    Returns:
        The onnx.ModelProto.

    Raises:
        ExportError: a node has no ONNX form (all such nodes are listed, and no file is written), parameters are missing, `net`
            was built from a function instead of a graph, or the graph only supports one batch size.
        ImportError: the package onnx is not installed.

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
        raise ExportError("the model is a function, not a graph, so it has no nodes to convert; use jfit.export.stablehlo")
    check_parameters(source)
    plan = _Plan.of(source, specs, batch)
    model = _assembled(plan, *_convert(plan), batch, name)
    if path is not None and is_main():
        atomic_write(path, model.SerializeToString())
    return model


def converters() -> list[str]:
    """Return the names of all operators that have an ONNX converter, sorted.

    Returns:
        Canonical operator names, as in `jfit.ops.REGISTRY`.

    Example:
        >>> import jfit
        >>> "Convolution" in jfit.export.converters()
        True
    """
    return sorted(CONVERTERS)


# ------------------------------------------------------------------------------------------ shapes and dtypes of all tensors
class _Plan(NamedTuple):
    """The nodes needed in evaluation, with the shape and dtype of every tensor."""

    source: Source
    heads: tuple[Output, ...]
    nodes: list[Node]  # topologically sorted; without labels
    inputs: dict[str, Entry]  # inputs of the model that evaluation needs
    entries: dict[tuple[int, int], Entry]  # (id(node), output index) -> shape and dtype
    rows: tuple[str, int] | None  # (input, axis) whose size is the number of rows

    @classmethod
    def of(cls, source: Source, specs: Mapping[str, Any], batch: str | None) -> _Plan:
        model, symbol = source.model, source.model.symbol
        nodes = evaluated_nodes(symbol.heads)
        variables = {n.name for n in nodes if n.op is None}
        specs = {k: v for k, v in specs.items() if k in variables}
        names = [n for n in (*model.inputs, *model.labels) if n in variables]
        missing = [n for n in names if n not in specs and n not in model.optional]
        if missing:
            raise ExportError(f"specs has no shape for the inputs {missing}; found {sorted(specs)}, expected {names}")
        size = batch_rows(model, specs)
        counts = [size] if batch is None else [k * size for k in PROBES]
        traces = []
        for count in counts:
            try:
                traces.append(_traced(source, nodes, specs_with(model, specs, count)))
            except ValueError as error:
                if batch is None or count == size:
                    raise
                problem = f"the graph cannot be evaluated with {count} rows, so its batch size cannot be dynamic ({error})"
                raise ExportError(f"{problem}; pass batch=None to export it for the {size} rows of specs") from error
        merged = {key: _merged(counts, [t[key] for t in traces]) for key in traces[0]}
        inputs = {n.name: merged[id(n), 0] for n in nodes if n.op is None and n.name in specs}
        axis = {n: model.batch_axes.get(n, 0) for n in names if n in specs}
        rows = next(((n, a) for n, a in axis.items() if a < len(inputs[n].shape) and inputs[n].shape[a] == Size(1)), None)
        return cls(source, symbol.heads, nodes, inputs, merged, rows)


def _traced(source: Source, nodes: Sequence[Node], inputs: Mapping[str, Any]) -> dict[tuple[int, int], Entry]:
    """Return the shape and dtype of every tensor in evaluation, by abstract evaluation (jax.eval_shape).

    The keys are (id of a node, index of its output).
    """
    model = source.model
    heads = [Output(n, i) for n in nodes if n.op for i in range(len(n.op.output_names(n.params)))]
    names = InputNames((*model.inputs, *model.labels), model.labels, model.batch_axes)
    apply = make_apply(topological(source.model.symbol.heads), heads, names)
    # as in prediction: labels are not passed, except one that is also an input
    values = shapes(source.params), shapes(source.aux)
    outs = jax.eval_shape(lambda p, a, x: apply(p, a, x, key=jax.random.key(0))[0], *values, dict(inputs))
    entries = {(id(h.node), h.index): Entry(tuple(o.shape), np.dtype(o.dtype)) for h, o in zip(heads, outs, strict=True)}
    for node in nodes:
        if node.op is None:
            array = next((g[node.name] for g in (inputs, source.params, source.aux) if node.name in g), None)
            if array is not None:
                entries[id(node), 0] = Entry(tuple(array.shape), np.dtype(jax.dtypes.canonicalize_dtype(array.dtype)))
    return entries


def _merged(counts: Sequence[int], traces: Sequence[Entry]) -> Entry:
    """Merge the shapes of one tensor, traced with counts[i] rows each, into one whose sizes are functions of the rows."""
    return Entry(tuple(_size_of_rows(counts, sizes) for sizes in zip(*(t.shape for t in traces), strict=True)), traces[0].dtype)


def _size_of_rows(counts: Sequence[int], sizes: Sequence[int]) -> int | Size:
    """Return the size of an axis as a function of the number of rows: `Size(times, plus)`, or an int if it is constant.

    Args:
        counts: the numbers of rows that the graph was traced with.
        sizes: the size of the axis for each of them.

    Raises:
        ExportError: the sizes are not exactly times * rows + plus.
    """
    if len(set(sizes)) == 1:
        return sizes[0]
    times, rest = divmod(sizes[1] - sizes[0], counts[1] - counts[0])
    plus = sizes[0] - times * counts[0]
    if rest or any(times * c + plus != s for c, s in zip(counts, sizes, strict=True)):
        raise ExportError(f"a size is {list(sizes)} for {list(counts)} rows, which is not linear in them; pass batch=None")
    return Size(times, plus)


# ------------------------------------------------------------------------------------------ conversion
def _convert(plan: _Plan) -> tuple[Graph, list[tuple[str, Entry]]]:
    """Convert every node; raise one ExportError that lists all nodes without an ONNX form."""
    graph, tensors = Graph(plan.rows), dict[tuple[int, int], str]()
    entries, failures = dict(plan.entries), list[str]()
    for node in plan.nodes:
        if node.op is None:
            _variable(plan, graph, node, tensors, entries)
    arrays = counters.read({**plan.source.params, **plan.source.aux})
    values = {k: np.asarray(v, jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in arrays.items()}
    used, behind = _used(plan), set[int]()  # behind: nodes downstream of one without an ONNX form
    for node in plan.nodes:
        if node.op is None:
            continue
        if any(id(e.node) in behind for e in node.inputs) and node.op.name in CONVERTERS:
            behind.add(id(node))
            continue
        try:
            outs = _convert_node(graph, node, tensors, entries, values, used.get(id(node), frozenset()))
            tensors.update({(id(node), i): name for i, name in enumerate(outs)})
        except Unsupported as reason:
            failures.append(f"{node.name!r} ({node.op.name}): {reason}")
            behind.add(id(node))
    if failures:
        raise ExportError(f"{len(failures)} nodes have no ONNX form: {'; '.join(failures)}; use jfit.export.stablehlo")
    return graph, _outputs(plan, graph, tensors, values)


def _outputs(plan: _Plan, graph: Graph, tensors: Any, values: Any) -> list[tuple[str, Entry]]:
    """Return (name, shape and dtype) of each output of the model, under jfit's output names.

    ONNX requires distinct outputs: one that is also an input, a parameter or an earlier output gets an Identity node.
    """
    outputs: list[tuple[str, Entry]] = []
    for head in plan.heads:
        tensor, name = tensors[id(head.node), head.index], head.node.output_name(head.index)
        if tensor != name or tensor in plan.inputs or tensor in values or tensor in dict(outputs):
            graph.at = name
            start = len(graph.steps)
            tensor = _named(graph, graph.add("Identity", tensor), name, start)
        outputs.append((tensor, plan.entries[id(head.node), head.index]))
    graph.constants = {**values, **graph.constants}
    return outputs


def _variable(plan: _Plan, graph: Graph, node: Node, tensors: dict[tuple[int, int], str], entries: Any) -> None:
    """Set the tensor name of an input or parameter in `tensors` ('' if it has no value); uint8 inputs are cast to float32."""
    here = (id(node), 0)
    if here not in entries:
        tensors[here] = ""
        return
    graph._taken.add(node.name)
    tensors[here] = node.name
    if node.name in plan.inputs and entries[here].dtype == np.uint8 and "__dtype__" not in node.attrs:
        graph.at = node.name
        tensors[here] = graph.add("Cast", node.name, to=TYPES["float32"])
        entries[here] = entries[here]._replace(dtype=np.dtype(np.float32))


def _used(plan: _Plan) -> dict[int, frozenset[int]]:
    """Return, by id(node), the indices of its outputs that another node or the model's outputs use."""
    used: dict[int, set[int]] = {}
    for entry in (*plan.heads, *(e for n in plan.nodes for e in n.inputs)):
        used.setdefault(id(entry.node), set()).add(entry.index)
    return {k: frozenset(v) for k, v in used.items()}


def _convert_node(graph: Graph, node: Node, tensors: Any, entries: Any, values: Any, used: frozenset[int]) -> list[str]:
    """Convert one node and return the names of the tensors of its outputs, which are jfit's output names."""
    assert node.op is not None
    convert = CONVERTERS.get(node.op.name)
    if convert is None:
        raise Unsupported("the operator has no converter")
    graph.at = node.name
    start = len(graph.steps)
    names = [tensors.get((id(e.node), e.index), "") for e in node.inputs]
    ins = [entries.get((id(e.node), e.index)) if n else None for e, n in zip(node.inputs, names, strict=True)]
    floats = [e.dtype for e in ins if e is not None and e.dtype.kind not in "iub"]
    if floats and (node.op.types is None or node.op.family == "norm"):  # promote integers to the float dtype, as JAX does
        for i, entry in enumerate(ins):
            if entry is not None and entry.dtype.kind in "iub":
                names[i], ins[i] = graph.cast(names[i], floats[0]), entry._replace(dtype=floats[0])
    outs = [entries[id(node), i] for i in range(len(node.op.output_names(node.params)))]
    results = convert(
        graph, At(node.name, node.params, tuple(ins), tuple(outs), used, lambda i: _constant(node.inputs[i], values)), *names
    )
    results = [results] if isinstance(results, str) else list(results)
    if used and max(used) >= len(results):
        raise Unsupported(f"its output {node.op.output_names(node.params)[max(used)]!r} has no converter")
    return [_named(graph, tensor, node.output_name(i), start) for i, tensor in enumerate(results)]


def _constant(entry: Output, values: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the value of a tensor that depends only on parameters, else None (gluon concatenates RNN weights in its graph)."""
    order = topological([entry])
    leaves = [n.name for n in order if n.op is None]
    if not set(leaves) <= set(values):
        return None
    arrays = {k: jnp.asarray(values[k]) for k in leaves}
    return np.asarray(counters.read(make_apply(order, [entry], InputNames(()))(arrays, {}, {})[0][0]))


def _named(graph: Graph, tensor: str, name: str, start: int) -> str:
    """Rename a tensor to `name` if a node from index `start` on computes it and the name is free; return its final name."""
    computed = any(tensor in s.outputs for s in graph.steps[start:])
    if not computed or graph.name(name) != name:
        return tensor
    graph.rename(tensor, name, start)
    return name


# ------------------------------------------------------------------------------------------ the file
def _assembled(plan: _Plan, converted: Graph, outputs: list[tuple[str, Entry]], batch: str | None, name: str) -> Any:
    """Build the onnx.ModelProto."""
    steps = _live(converted, {name for name, _ in outputs})
    size = sum(v.nbytes for v in converted.constants.values())
    if size > MOST_BYTES:
        raise ExportError(f"the parameters have {size:,} bytes, the limit of ONNX is {MOST_BYTES:,}; cast them to float16")
    problem = "jfit.export.onnx requires the package onnx; pip install 'jfit[export]'"
    helper, numpy_helper = (optional(f"onnx.{part}", problem) for part in ("helper", "numpy_helper"))

    def value_info(tensor: str, entry: Entry) -> Any:
        return helper.make_tensor_value_info(tensor, TYPES[entry.dtype.name], _named_sizes(entry.shape, batch))

    graph = helper.make_graph(
        [helper.make_node(s.kind, list(s.inputs), list(s.outputs), name=s.outputs[0], **s.attrs) for s in steps],
        name,
        [value_info(n, e) for n, e in plan.inputs.items()],
        [value_info(n, e) for n, e in outputs],
        [numpy_helper.from_array(np.ascontiguousarray(v).reshape(v.shape), k) for k, v in converted.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="jfit")


def _named_sizes(shape: Dims, batch: str | None) -> list[int | str]:
    """Return the sizes of a shape as ONNX dimensions: ints, and names for dynamic ones (`batch`, `5*batch`, `batch+1`)."""

    def named(size: Size) -> str:
        times = f"{size.times}*{batch}" if size.times != 1 else f"{batch}"
        return f"{times}{size.plus:+d}" if size.plus else times

    return [named(size) if isinstance(size, Size) else size for size in shape]


def _live(graph: Graph, used: set[str]) -> list[Step]:
    """Return the nodes that the outputs depend on, and drop unused constants from the graph in place."""
    live: list[Step] = []
    for step in reversed(graph.steps):
        if used & set(step.outputs):
            used.update(step.inputs)
            live.append(step)
    graph.constants = {k: v for k, v in graph.constants.items() if k in used}
    return live[::-1]
