"""Read ONNX files as graphs of MXNet's operators, with the table `onnx_operators.OPERATORS`.

Sizes that a file leaves open, such as that of the batch, are set to several numbers in turn, one for each of `PROBES`.
Nodes that depend only on constants and shapes are evaluated for each, and equal results become constants; on open sizes, this
is done for the operators in `EXACT`, and others, such as `Mod`, become nodes of the graph.

Two limits. The numbers are multiples of the first unit (1, 2, 4, ..., 32) that the network accepts; what is different only for
other sizes is not noticed. A slice with constant bounds, such as `x[:, :512]`, is right for all sizes, but shapes that are
computed from its own shape are those for sizes close to the numbers.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.graph.infer import FLOAT, trace_shapes
from jfit.graph.nodes import Node as GraphNode
from jfit.graph.scopes import Prefix
from jfit.lazy import optional
from jfit.mxnet.contrib.onnx_operators import FIX, HINT, OPERATORS, REQUIRED
from jfit.mxnet.gluon.hybrid import SymbolBlock
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import array
from jfit.mxnet.symbol import Group, Symbol, Variable

# The k-th open size is least + unit * (k * p % 97) for p in PROBES. `_read` looks for (least, unit), because networks that
# halve sizes may need multiples of 2, 4, ...
PROBES = (1, 38, 63)  # with different remainders for the divisors 3, 4 and 8
# Operators that are evaluated for open sizes, since polynomials in sizes stay polynomials, and no size equals -1; of those in
# FIRST, only input 0 may depend on open sizes.
FIRST = ("Gather", "ReduceProd", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze")
EXACT = (*FIRST, "Add", "Cast", "Concat", "Equal", "Identity", "Mul", "Shape", "Size", "Sub", "Where")
Imported = tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]


def import_model(model_file: str) -> Imported:
    """Read an ONNX file as a graph and its parameters.

    As in MXNet, tensors of rank 0 have shape (1,), and comparisons give numbers.

    Args:
        model_file: path of the file, of opset 7 or newer.

    Returns:
        (symbol, arguments by name, auxiliary states by name); nodes and parameters have the names of the file.

    Raises:
        ImportError: the package onnx is not installed.
        NotImplementedError: an operator, or a setting of it, has no form here; the message names the node.

    Example:
        >>> symbol, arguments, states = import_model("net.onnx")  # doctest: +SKIP
    """
    return _read(_load(model_file))[1]


def import_to_gluon(model_file: str, ctx: Any) -> SymbolBlock:
    """Read an ONNX file as a block with its parameters, see `import_model`.

    Args:
        model_file: path of the file.
        ctx: context of the parameters, or a list.

    Returns:
        SymbolBlock; its inputs are those of the file.

    Example:
        >>> import jfit.mx as mx
        >>> net = import_to_gluon("net.onnx", mx.cpu())  # doctest: +SKIP
    """
    reader, (symbol, args, aux) = _read(_load(model_file))
    block = SymbolBlock(symbol, [reader.symbols[name] for name in reader.inputs])
    for name, value in args.items():
        if np.dtype(value.dtype).kind in "biu":  # such as masks
            block.params[name].grad_req = "null"
    block.params.load_dict(args | aux, ctx, cast_dtype=True, dtype_source="saved")
    return block


def get_model_metadata(model_file: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the inputs and outputs of an ONNX file.

    Args:
        model_file: path of the file.

    Returns:
        {"input_tensor_data": [(name, shape, number of the dtype in ONNX), ...], "output_tensor_data": [(name, shape), ...]};
        open sizes are 0, and parameters are not inputs.

    Example:
        >>> get_model_metadata("net.onnx")["input_tensor_data"]  # doctest: +SKIP
        [('data', (1, 3), 1)]
    """
    graph = _load(model_file).graph
    inputs = [(value.name, _shape(value), value.type.tensor_type.elem_type) for value in _inputs(graph)]
    return {"input_tensor_data": inputs, "output_tensor_data": [(value.name, _shape(value)) for value in graph.output]}


def _load(path: str) -> Any:
    return optional("onnx", "mx.contrib.onnx requires the package onnx; pip install 'jfit[export]'").load_model(path)


class _SizeError(NotImplementedError):
    """A node cannot take inputs of the sizes that were tried."""


def _read(model: Any, least: int = 32, unit: int = 1) -> tuple[_Reader, Imported]:
    reader = _Reader(model, least, unit)
    try:
        return reader, reader.result()
    except _SizeError:
        if unit == 32:
            raise
        return _read(model, 224, unit if least < 224 else 2 * unit)


def _equal(values: Sequence[np.ndarray]) -> bool:
    return all(value is values[0] or np.array_equal(values[0], value, equal_nan=True) for value in values)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def _inputs(graph: Any) -> list[Any]:
    return [value for value in graph.input if value.name not in {tensor.name for tensor in graph.initializer}]


class Node:
    """A node of the file, as the functions of `onnx_operators` receive it; `node[i]` is the symbol of input i."""

    def __init__(self, proto: Any, reader: _Reader) -> None:
        self.reader, self.opset, self.inputs, self.outputs = reader, reader.opset, proto.input, len(proto.output)
        self.kind = f"{proto.domain}.{proto.op_type}".removeprefix("ai.onnx").removeprefix(".")
        self.name = proto.name or proto.output[0]
        attrs = {a.name: reader.attribute(a) for a in proto.attribute}
        self.attrs = {key: value.decode() if isinstance(value, bytes) else value for key, value in attrs.items()}

    def __getitem__(self, i: Any) -> Any:
        return self.reader.symbol(self.inputs[i])

    @property
    def all(self) -> list[Symbol]:
        """The symbols of the inputs that the node has."""
        return [self.reader.symbol(name) for name in self.inputs if name]

    def get(self, key: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attrs.get(key, default)

    def has(self, i: int) -> bool:
        """Return whether the node has the optional input i."""
        return i < len(self.inputs) and self.inputs[i] != ""

    def values(self, i: int) -> list[np.ndarray]:
        """Return the values of input i for each number in `PROBES`."""
        values = self.reader.values.get(self.inputs[i], [])
        self.need(values, f"has an input {self.inputs[i]!r} that depends on data or sizes, and must be constant")
        return values

    def constant(self, i: int) -> np.ndarray | None:
        """Return the value of input i, None if it is not constant."""
        values = self.reader.values.get(self.inputs[i], [None])
        return values[0] if _equal(values) else None

    def option(self, key: str, i: int, default: Any = None) -> Any:
        """Return an attribute that is input i in newer versions of the operator."""
        value = self.constant(i) if self.has(i) else None
        self.need(value is not None or not self.has(i), f"has {key} that depend on data or shapes, and must be constant")
        return self.get(key, default) if value is None else value.tolist()

    def shapes(self, i: int = 0) -> list[tuple[int, ...]]:
        """Return the shapes of input i for each number in `PROBES`."""
        values = self.reader.values.get(self.inputs[i])
        return self.reader.shapes(self[i]) if values is None else [value.shape for value in values]

    def rank(self, i: int = 0) -> int:
        """Return the number of axes of input i."""
        return len(self.shapes(i)[0])

    def like(self, sizes: Sequence[int]) -> tuple[Symbol, int]:
        """Return (array, axis) such that the axis has size `sizes[p]` for probe p."""
        arrays = [self.reader.symbol(n) for n in (*self.inputs, *self.reader.inputs) if n not in self.reader.values]
        axes = [(x, i) for x in arrays for i, s in enumerate(zip(*self.reader.shapes(x), strict=True)) if s == tuple(sizes)]
        self.need(bool(axes), "needs a size that no input has", FIX)
        return axes[0]

    def need(self, condition: Any, problem: str, hint: str = HINT) -> None:
        """Raise an error with the name of the node unless the condition holds."""
        if not condition:
            where = f"import_model: node {self.name!r}, {self.kind} of opset {self.opset},"
            raise NotImplementedError(f"{where} {problem}; {hint}.")


class _Reader:
    """Reads the graph of a file.

    Attributes:
        values: name -> value for each number in `PROBES`, of all tensors that do not depend on data.
        symbols: name -> symbol, of the others, and of constants that they use.
        parameters: name -> value of a variable.
        inputs: names of the inputs.
        scalars: names of tensors of rank 0, which have shape (1,) here.
    """

    def __init__(self, model: Any, least: int, unit: int) -> None:
        helper, numpy_helper, inliner = (importlib.import_module(f"onnx.{m}") for m in ("helper", "numpy_helper", "inliner"))
        self.opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
        self.proto = (inliner.inline_local_functions(model) if model.functions else model).graph
        self.array, self.attribute = numpy_helper.to_array, helper.get_attribute_value
        self.values = {tensor.name: [self.array(tensor)] * len(PROBES) for tensor in self.proto.initializer}
        self.symbols: dict[str, Symbol] = {}
        self.parameters: dict[str, np.ndarray] = {}
        self.inputs = [value.name for value in _inputs(self.proto)]
        self._used = {n for node in self.proto.node for n in node.input} | {value.name for value in self.proto.output}
        self._shapes: dict[tuple[int, int], list[tuple[int, ...]]] = {}  # by (id of a node, output)
        inference = importlib.import_module("onnx.shape_inference")
        with contextlib.suppress(inference.InferenceError, ValueError):  # unknown operators, or a file of more than 2 GB
            model = inference.infer_shapes(model)
        types = {value.name: value.type.tensor_type for value in model.graph.value_info}
        self.scalars = {name for name, kind in types.items() if kind.HasField("shape") and not kind.shape.dim}
        self._folded: dict[str, Any] = {}  # output -> node whose value is known and that is not in the graph yet
        opens: dict[Any, int] = {}  # name of an open size -> its number
        for value in _inputs(self.proto):
            dims = enumerate(value.type.tensor_type.shape.dim)
            numbers = [d.dim_value or -opens.setdefault(d.dim_param or (value.name, i), len(opens) + 1) for i, d in dims]
            shapes = [tuple(d if d > 0 else least + unit * (-d * p % 97) for d in numbers) for p in PROBES]
            self._variable(value.name, shapes, helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))

    def result(self) -> Imported:
        """Convert all nodes; return (symbol, arguments, auxiliary states)."""
        for proto in self.proto.node:
            if not self._fold(proto):
                self._convert(proto)
        heads = [self.symbol(value.name) for value in self.proto.output]
        symbol = Group(heads) if len(heads) > 1 else heads[0]
        values = {name: array(value, dtype=value.dtype) for name, value in self.parameters.items()}
        groups = symbol.list_arguments(), symbol.list_auxiliary_states()
        args, aux = ({name: values[name] for name in group if name in values} for group in groups)
        return symbol, args, aux

    def symbol(self, name: str) -> Symbol:
        """Return the symbol of a tensor; a constant becomes a parameter."""
        if name not in self.symbols:
            if _equal(self.values[name]):
                return self.parameter(name, self.values[name][0])
            self._convert(self._folded[name])
        return self.symbols[name]

    def parameter(self, name: str, value: np.ndarray) -> Symbol:
        """Return a new variable with a value."""
        value = self.parameters[name] = value.reshape(value.shape or (1,))
        return self._variable(name, [value.shape] * len(PROBES), value.dtype, shape=value.shape)

    def shapes(self, symbol: Symbol) -> list[tuple[int, ...]]:
        """Return the shapes of a symbol for each number in `PROBES`."""
        head = symbol.heads[0]
        self._infer(head.node)
        return self._shapes[id(head.node), head.index]

    def _infer(self, node: GraphNode) -> None:
        if (id(node), 0) not in self._shapes and node.op is not None:
            for entry in node.inputs:
                self._infer(entry.node)
            ins = [tuple([self._shapes[id(e.node), e.index][i] for e in node.inputs]) for i in range(len(PROBES))]
            try:
                outs = {shapes: trace_shapes(node.op, node.params, shapes, (FLOAT,) * len(shapes)) for shapes in ins}
            except (TypeError, ValueError) as error:
                fails = f"import_model: node {node.name!r} cannot take inputs of shapes {ins[0]}"
                raise _SizeError(f"{fails} ({error}); if the file leaves sizes open, {FIX}.") from error
            self._shapes.update({(id(node), i): [outs[shapes][i] for shapes in ins] for i in range(len(outs[ins[0]]))})

    def _variable(self, name: str, shapes: list[tuple[int, ...]], dtype: Any, **own: Any) -> Symbol:
        symbol = self.symbols[name] = Variable(name, dtype=None if dtype == FLOAT else dtype, **own)
        self._shapes[id(symbol.heads[0].node), 0] = shapes
        return symbol

    def _fold(self, proto: Any) -> bool:
        """Evaluate a node; return False if it depends on data, or on open sizes in a way that the probes do not show."""
        kind, feeds = proto.op_type, dict[str, Any]((n, self.values.get(n)) for n in proto.input if n)
        changing = {n for n, values in feeds.items() if values and not _equal(values)}
        if kind in ("Shape", "Size") and None in feeds.values():  # arrays with these shapes that need no memory
            shapes = self.shapes(self.symbol(proto.input[0]))
            feeds = {proto.input[0]: [np.broadcast_to(np.float32(0), shape) for shape in shapes]}
        known = None not in feeds.values() and (feeds or kind == "Constant")
        whole = all(feeds[n][0].dtype.kind == "i" and not (kind in FIRST and n in proto.input[1:]) for n in changing)
        whole &= kind != "Equal" or any(np.all(np.equal(values, -1)) for values in feeds.values())  # as in files of PyTorch
        odd = changing and (kind not in EXACT or not whole or any(a.i == 9 for a in proto.attribute))  # 9: Cast to bool
        if not known or odd or proto.domain or any(a.HasField("g") for a in proto.attribute):
            return False
        onnx, names = importlib.import_module("onnx"), [n for n in proto.output if n]
        inputs, outputs = ([onnx.ValueInfoProto(name=n) for n in group] for group in (feeds, names))
        graph = onnx.GraphProto(name="folded", node=[proto], input=inputs, output=outputs)
        run = importlib.import_module("onnx.reference").ReferenceEvaluator(graph, opsets={"": self.opset}).run
        results = [run(None, {n: value[p] for n, value in feeds.items()}) for p in range(len(PROBES))]
        self.values.update({n: [np.asarray(r[i]) for r in results] for i, n in enumerate(names)})
        self._folded.update(dict.fromkeys(proto.output, proto))
        return True

    def _convert(self, proto: Any) -> None:
        """Compose what computes the outputs of a node."""
        node = Node(proto, self)
        node.need(node.kind in OPERATORS and self.opset >= 7, "has no form in MXNet's operators")
        odd = {key: node.get(key) for key, value in REQUIRED.items() if node.get(key, value) != value}
        node.need(not odd, f"has {odd}, which MXNet's operators do not compute")
        try:
            with Prefix(f"{node.name}_"):
                results = OPERATORS[node.kind](node)
        except ValueError as error:
            raise _SizeError(f"import_model: node {node.name!r}, {node.kind}: {error}; if sizes are open, {FIX}.") from error
        heads = [results[i].heads[0] for i in range(len(results))]
        missing = [n for n in proto.output[len(heads) :] if n in self._used]
        node.need(not missing, f"has the outputs {missing}, which MXNet's operators do not compute")
        last = heads[0].node
        if (id(last), 0) not in self._shapes and all(head.node is last for head in heads):
            last = last.rebuilt(last.inputs, node.name)
            heads = [head._replace(node=last) for head in heads]
        self.symbols.update({n: Symbol([head]) for n, head in zip(proto.output, heads, strict=False) if n})
