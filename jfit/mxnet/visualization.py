"""`mx.viz`: networks as MXNet prints and draws them.  `Symbol.summary`, `.mermaid` and `.graphviz` are jfit's own.

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

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.graph.drawing import package
from jfit.graph.nodes import Node
from jfit.graph.symbol import Symbol
from jfit.mxnet.errors import translated

__all__ = ["plot_network", "print_summary"]

COLUMNS = ("Layer (type)", "Output Shape", "Param #", "Previous Layer")
WEIGHT_ENDS = (
    *("_weight", "_bias", "_beta", "_gamma"),
    *("_moving_var", "_moving_mean", "_running_var", "_running_mean"),
)
NODE = {"shape": "box", "fixedsize": "true", "width": "1.3", "height": "0.8034", "style": "filled"}
INPUT_COLOR, OTHER_COLOR = "#8dd3c7", "#fccde5"
COLORS = {
    "Convolution": "#fb8072",
    "FullyConnected": "#fb8072",
    "Activation": "#ffffb3",
    "LeakyReLU": "#ffffb3",
    "BatchNorm": "#bebada",
    "Pooling": "#80b1d3",
    "Concat": "#fdb462",
    "Flatten": "#fdb462",
    "Reshape": "#fdb462",
}
Shapes = Mapping[str, Sequence[int]]


# ------------------------------------------------------------------------------------------------ the table
class _Layer(NamedTuple):
    """One line of the table, and the further inputs on lines of their own."""

    title: str
    shape: str
    params: int
    previous: list[str]


def print_summary(
    symbol: Symbol,
    shape: Shapes | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:
    """Print a table of the layers: name and type, output shape without the batch, parameters, previous layers.

    The numbers are those MXNet prints: it counts the parameters of Convolution, FullyConnected, Embedding and BatchNorm (gamma
    and beta only), takes the second axis of an input for its channels, and shows the variables that come first only.
    `symbol.summary(**shapes)` counts everything.

    Args:
        symbol: the network.
        shape: shapes by input name; without them shapes stay empty.
        line_length: characters in a line.
        positions: where the columns end, in characters or as parts of a line.

    Raises:
        TypeError: `symbol` is none.
        ValueError: the shapes do not tell all shapes.
    """
    _check(symbol)
    known = None if shape is None else _known("shape", symbol, shape)
    ends = [int(line_length * p) for p in positions] if positions[-1] <= 1 else [int(p) for p in positions]
    order = symbol.nodes()
    # MXNet looks for the heads among node number, output number and version of the first head: the first node is always there
    first = symbol.heads[0]
    heads = {order.index(first.node), first.index, 0}
    lasting = {id(order[i]) for i in heads if i < len(order)}
    print("_" * line_length)
    _print_row(COLUMNS, ends)
    print("=" * line_length)
    total = 0
    for i, node in enumerate(order):
        if node.op is None and i > 0:
            continue
        layer = _layer(node, lasting, known)
        total += layer.params
        _print_row((layer.title, layer.shape, layer.params, next(iter(layer.previous), "")), ends)
        for name in layer.previous[1:]:
            _print_row(("", "", "", name), ends)
        print(("=" if i == len(order) - 1 else "_") * line_length)
    print(f"Total params: {total}")
    print("_" * line_length)


def _print_row(fields: Sequence[Any], ends: Sequence[int]) -> None:
    line = ""
    for field, end in zip(fields, ends, strict=True):
        line = f"{line}{field}"[:end].ljust(end)
    print(line)


def _layer(node: Node, lasting: set[int], known: Mapping[Any, Any] | None) -> _Layer:
    sources = [e for e in node.inputs if e.node.op is not None or id(e.node) in lasting]
    shapes = [_single(e.node, known) for e in sources]
    channels = sum(s[1] for s in shapes if s)
    own = _single(node, known) if node.op is not None or id(node) in lasting else None
    title = f"{node.name}({node.op.name if node.op else 'null'})"
    return _Layer(title, _size(own), _params(node, channels, own), [e.node.name for e in sources])


def _single(node: Node, known: Mapping[Any, Any] | None) -> Any:
    """The shape of a node's one output; MXNet finds none for nodes of several."""
    several = node.op is not None and node.op.num_visible(node.params) > 1
    return None if known is None or several else known.get((id(node), 0))


def _params(node: Node, channels: int, shape: Any) -> int:
    attrs = node.params
    match node.op.name if node.op else "null":
        case "Convolution":
            weights = channels * attrs.num_filter // attrs.num_group
            for k in attrs.kernel:
                weights *= k
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
    """The network as a `graphviz.Digraph`, drawn as MXNet draws it.

    Args:
        symbol: the network.
        title: name of the drawing, and of its file.
        save_format: what `render` writes: pdf, png, svg, ...
        shape: shapes by input name; the edges then show them, without the batch.
        dtype: dtypes by input name; the edges then show them.
        node_attrs: graphviz attributes of every node.
        hide_weights: leave out variables whose names end as weights do (`_weight`, `_bias`, ...).

    Raises:
        ImportError: the graphviz package is missing.
        TypeError: `symbol` is none.
        ValueError: the shapes do not tell all shapes.
    """
    gv = package()
    _check(symbol)
    shapes = None if shape is None else _known("shape", symbol, shape)
    types = None if dtype is None else _known("type", symbol, dtype)
    order = symbol.nodes()
    _warn_of_repeated([n.name for n in order])
    dot = gv.Digraph(name=title, format=save_format)
    for node in order:
        if node.op is not None or not node.name.endswith(WEIGHT_ENDS):
            dot.node(name=node.name, label=_label(node), **_look(node, node_attrs or {}))
    for node in order:
        taken = node.inputs[:1] if node.op and node.op.name == "_contrib_BilinearResize2D" else node.inputs
        for entry in taken:
            if entry.node.op is None and entry.node.name.endswith(WEIGHT_ENDS) and hide_weights:
                continue
            label = "" if shapes is None else _size(shapes.get((id(entry.node), entry.index)))
            if types is not None:
                label += f"({np.dtype(types[id(entry.node), entry.index]).name})"
            dot.edge(tail_name=node.name, head_name=entry.node.name, dir="back", arrowtail="open", label=label)
    return dot


def _look(node: Node, own: Mapping[str, str]) -> dict[str, str]:
    if node.op is None:
        return {**NODE, **own, "shape": "oval", "fillcolor": INPUT_COLOR}
    return {**NODE, **own, "fillcolor": COLORS.get(node.op.name, OTHER_COLOR)}


def _label(node: Node) -> str:
    """What stands in a node: its name, or the operator with the attributes that matter most."""
    given = node.attrs
    stride = _size((0, *node.params.stride)) if "stride" in given else "1"
    match node.op.name if node.op else "null":
        case "Convolution":
            return f"Convolution\n{_size((0, *node.params.kernel))}/{stride}, {given['num_filter']}"
        case "FullyConnected":
            return f"FullyConnected\n{given['num_hidden']}"
        case "Activation":
            return f"Activation\n{given['act_type']}"
        case "LeakyReLU":
            return f"LeakyReLU\n{given.get('act_type', 'Leaky')}"
        case "Pooling":
            kernel = _size((0, *node.params.kernel)) if "kernel" in given else "[]"
            return f"Pooling\n{given.get('pool_type', 'max')}, {kernel}/{stride}"
        case "Custom":
            return given["op_type"]
    return node.name


def _warn_of_repeated(names: Sequence[str]) -> None:
    repeated = sorted(n for n, count in Counter(names).items() if count > 1)
    if repeated:
        warnings.warn(
            f"several nodes are named {', '.join(repeated)}; the drawing shows them as one node, and may go in circles",
            RuntimeWarning,
            stacklevel=3,
        )


# ------------------------------------------------------------------------------------------------ both
def _check(symbol: Any) -> None:
    if not isinstance(symbol, Symbol):
        raise TypeError(f"symbol is a {type(symbol).__name__}, needed a Symbol")


def _known(what: str, symbol: Symbol, given: Mapping[str, Any]) -> dict[tuple[int, int], Any]:
    """Shapes or dtypes of every output of every node."""
    internals = symbol.get_internals()
    with translated():
        _, found, _ = getattr(internals, f"infer_{what}")(**given)
    if found is None:
        raise ValueError(f"the {what}s {dict(given)} do not tell all {what}s; give those of all inputs")
    return {(id(h.node), h.index): f for h, f in zip(internals.heads, found, strict=True)}


def _size(shape: Any) -> str:
    """A shape without its first axis, as `3x28x28`."""
    return "x".join(str(s) for s in (shape or ())[1:])
