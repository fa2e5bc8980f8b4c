"""`mx.viz`: print and draw networks exactly as MXNet does.  jfit's equivalents are `Symbol.summary`, `.mermaid`, `.graphviz`.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
>>> mx.viz.print_summary(net, {"data": (2, 5)}, line_length=72)
________________________________________________________________________
Layer (type)                   Output Shape  Param #Previous Layer
========================================================================
data(null)                     5             0
________________________________________________________________________
fc(FullyConnected)             3             18     data
========================================================================
Total params: 18
________________________________________________________________________
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.graph.drawing import package
from jfit.graph.nodes import Node
from jfit.graph.symbol import Symbol
from jfit.mxnet.errors import translated

__all__ = ["plot_network", "print_summary"]

COLUMNS = ("Layer (type)", "Output Shape", "Param #", "Previous Layer")
WEIGHT_SUFFIXES = ("_weight", "_bias", "_beta", "_gamma", "_moving_var", "_moving_mean", "_running_var", "_running_mean")
NODE = {"shape": "box", "fixedsize": "true", "width": "1.3", "height": "0.8034", "style": "filled"}
INPUT_COLOR, OTHER_COLOR = "#8dd3c7", "#fccde5"
COLORS = {"BatchNorm": "#bebada", "Pooling": "#80b1d3"}
COLORS |= dict.fromkeys(("Convolution", "FullyConnected"), "#fb8072") | dict.fromkeys(("Activation", "LeakyReLU"), "#ffffb3")
COLORS |= dict.fromkeys(("Concat", "Flatten", "Reshape"), "#fdb462")
Shapes = Mapping[str, Sequence[int]]


# ------------------------------------------------------------------------------------------------ the table
def print_summary(
    symbol: Symbol,
    shape: Shapes | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:
    """Print a table of the layers: name and type, output shape without the batch axis, number of parameters, previous layers.

    The numbers are those that MXNet prints, which are incomplete: it counts the parameters of Convolution, FullyConnected,
    Embedding and BatchNorm (gamma and beta) only, uses axis 1 of an input as its channels, and omits most variables.
    `symbol.summary(**shapes)` counts everything.

    Args:
        symbol: the network.
        shape: shapes by input name; None leaves the shapes empty.
        line_length: characters per line.
        positions: the end of each of the four columns, in characters or as fractions of the line.

    Raises:
        ValueError: some shapes cannot be inferred from `shape`.

    Example:
        >>> import jfit.mx as mx
        >>> print_summary(mx.sym.Variable("x"), line_length=72)  # doctest: +ELLIPSIS
        ________________________________________________________________________
        Layer (type)                   Output Shape  Param #Previous Layer
        ...
    """
    shapes = None if shape is None else _inferred("shape", symbol, shape)
    ends = [int(line_length * p) for p in positions] if positions[-1] <= 1 else [int(p) for p in positions]
    order = symbol.nodes()
    # Bug kept from MXNet: it takes the first head's (node id, output index, version) for three node ids; the version is 0.
    first = symbol.heads[0]
    head_ids = {order.index(first.node), first.index, 0}
    heads = {id(order[i]) for i in head_ids if i < len(order)}
    print("_" * line_length)
    _print_row(COLUMNS, ends)
    print("=" * line_length)
    total = 0
    for i, node in enumerate(order):
        if node.op is None and i > 0:
            continue
        title, size, params, previous = _layer(node, heads, shapes)
        total += params
        _print_row((title, size, params, next(iter(previous), "")), ends)
        for name in previous[1:]:
            _print_row(("", "", "", name), ends)
        print(("=" if i == len(order) - 1 else "_") * line_length)
    print(f"Total params: {total}")
    print("_" * line_length)


def _print_row(fields: Sequence[Any], ends: Sequence[int]) -> None:
    line = ""
    for field, end in zip(fields, ends, strict=True):
        line = f"{line}{field}"[:end].ljust(end)
    print(line)


def _layer(node: Node, heads: set[int], shapes: Mapping[Any, Any] | None) -> tuple[str, str, int, list[str]]:
    """Return (name and type, output shape, number of parameters, names of the previous layers) of a node."""
    sources = [e for e in node.inputs if e.node.op is not None or id(e.node) in heads]
    input_shapes = [_single(e.node, shapes) for e in sources]
    channels = sum(s[1] for s in input_shapes if s)
    shape = _single(node, shapes) if node.op is not None or id(node) in heads else None
    title = f"{node.name}({node.op.name if node.op else 'null'})"
    return title, _size(shape), _params(node, channels, shape), [e.node.name for e in sources]


def _single(node: Node, shapes: Mapping[Any, Any] | None) -> Any:
    """Return the output shape of a node with one output; None for several outputs, for which MXNet's table has no shape."""
    several = node.op is not None and node.op.num_visible(node.params) > 1
    return None if shapes is None or several else shapes.get((id(node), 0))


def _params(node: Node, channels: int, shape: Any) -> int:
    attrs = node.params
    match node.op.name if node.op else "null":
        case "Convolution":
            weights = channels * attrs.num_filter // attrs.num_group * math.prod(attrs.kernel)
            return weights + (0 if attrs.no_bias else attrs.num_filter)
        case "FullyConnected":
            return (channels + (0 if attrs.no_bias else 1)) * attrs.num_hidden
        case "BatchNorm":
            return 2 * shape[1] if shape else 0
        case "Embedding":
            return attrs.input_dim * attrs.output_dim
    return 0


# ------------------------------------------------------------------------------------------------ the drawing
def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "pdf",
    shape: Shapes | None = None,
    dtype: Mapping[str, Any] | None = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
) -> Any:
    """Draw the network as a `graphviz.Digraph`, as MXNet does.

    Args:
        symbol: the network.
        title: name of the drawing and of its file.
        save_format: file format of `render`: "pdf", "png", "svg", ...
        shape: shapes by input name; if given, edges are labelled with shapes (without the batch axis).
        dtype: dtypes by input name; if given, edges are labelled with dtypes.
        node_attrs: graphviz attributes of every node.
        hide_weights: omit the edges from variables whose names end like parameters (`_weight`, `_bias`, ...).

    Returns:
        graphviz.Digraph.

    Raises:
        ImportError: the graphviz package is not installed.
        ValueError: some shapes or dtypes cannot be inferred.

    Example:
        >>> import jfit.mx as mx
        >>> plot_network(mx.sym.Variable("x") * 2, title="double").name  # doctest: +SKIP
        'double'
    """
    gv = package()
    shapes = None if shape is None else _inferred("shape", symbol, shape)
    types = None if dtype is None else _inferred("type", symbol, dtype)
    order = symbol.nodes()
    dot = gv.Digraph(name=title, format=save_format)
    for node in order:
        if node.op is not None or not node.name.endswith(WEIGHT_SUFFIXES):
            dot.node(name=node.name, label=_label(node), **_style(node, node_attrs or {}))
    for node in order:
        inputs = node.inputs[:1] if node.op and node.op.name == "_contrib_BilinearResize2D" else node.inputs
        for entry in inputs:
            if entry.node.op is None and entry.node.name.endswith(WEIGHT_SUFFIXES) and hide_weights:
                continue
            label = "" if shapes is None else _size(shapes.get((id(entry.node), entry.index)))
            if types is not None:
                label += f"({np.dtype(types[id(entry.node), entry.index]).name})"
            dot.edge(tail_name=node.name, head_name=entry.node.name, dir="back", arrowtail="open", label=label)
    return dot


def _style(node: Node, user_attrs: Mapping[str, str]) -> dict[str, str]:
    if node.op is None:
        return {**NODE, **user_attrs, "shape": "oval", "fillcolor": INPUT_COLOR}
    return {**NODE, **user_attrs, "fillcolor": COLORS.get(node.op.name, OTHER_COLOR)}


def _label(node: Node) -> str:
    """Return the text drawn in a node: its name, or for some operators the operator with its main attributes."""
    attrs = node.attrs
    stride = _size((0, *node.params.stride)) if "stride" in attrs else "1"
    match node.op.name if node.op else "null":
        case "Convolution":
            return f"Convolution\n{_size((0, *node.params.kernel))}/{stride}, {attrs['num_filter']}"
        case "FullyConnected":
            return f"FullyConnected\n{attrs['num_hidden']}"
        case "Activation":
            return f"Activation\n{attrs['act_type']}"
        case "LeakyReLU":
            return f"LeakyReLU\n{attrs.get('act_type', 'Leaky')}"
        case "Pooling":
            kernel = _size((0, *node.params.kernel)) if "kernel" in attrs else "[]"
            return f"Pooling\n{attrs.get('pool_type', 'max')}, {kernel}/{stride}"
        case "Custom":
            return attrs["op_type"]
    return node.name


# ------------------------------------------------------------------------------------------------ both
def _inferred(what: str, symbol: Symbol, inputs: Mapping[str, Any]) -> dict[tuple[int, int], Any]:
    """Infer the shape or dtype of every node output from those of the inputs: {(id(node), output index): shape or dtype}.

    what: "shape" or "dtype".
    """
    internals = symbol.get_internals()
    with translated():
        _, outputs, _ = getattr(internals, f"infer_{what}")(**inputs)
    if outputs is None:
        raise ValueError(f"the {what}s {dict(inputs)} do not determine all {what}s of the network; pass those of all inputs")
    return {(id(h.node), h.index): value for h, value in zip(internals.heads, outputs, strict=True)}


def _size(shape: Any) -> str:
    """Format a shape without its first axis, such as `3x28x28`."""
    return "x".join(str(s) for s in (shape or ())[1:])
