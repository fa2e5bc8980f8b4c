"""ONNX converter of the fused operator RNN: one LSTM, GRU or RNN node for each layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from jfit.export.nodes.core import At, Graph, Unsupported, converts
from jfit.ops.rnn import Weights, unpack

# Index of each of ONNX's gates in jfit's order of gates: i, o, f, c from i, f, c, o; and z, r, h from r, z, n.
ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_relu": (0,), "rnn_tanh": (0,)}
KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn_relu": "RNN", "rnn_tanh": "RNN"}


def _gates(attrs: Any, matrix: Any) -> np.ndarray:
    """Reorder the gates along the first axis of a weight matrix or bias to ONNX's order."""
    size = attrs.state_size
    return np.concatenate([np.asarray(matrix)[k * size : (k + 1) * size] for k in ORDER[attrs.mode]])


def _check(node: At) -> np.ndarray:
    """Return the constant flat weight vector; raise Unsupported for attributes without an ONNX form."""
    attrs, parameters = node.attrs, node.constant(1)
    if attrs.projection_size or attrs.lstm_state_clip_min is not None or attrs.lstm_state_clip_max is not None:
        raise Unsupported("a projection, or clipping the LSTM's state (ONNX clips the gates instead), has no ONNX form")
    if parameters is None:
        raise Unsupported("its weights depend on the inputs, but must depend on parameters only")
    return parameters


@converts("RNN")
def rnn(graph: Graph, node: At, data: str, parameters: str, state: str = "", *rest: str) -> Any:
    """Convert to one ONNX LSTM, GRU or RNN node per layer, for both directions."""
    attrs, directions = node.attrs, 2 if node.attrs.bidirectional else 1
    weights = unpack(attrs, _check(node), node.sizes(2, 3)[0])  # type: ignore[arg-type]
    cell = rest[0] if attrs.mode == "lstm" and rest else ""
    work = node.outs[0].dtype  # float32 if half-precision data has float32 states
    data = graph.cast(data, work, node.dtype)
    state, cell = (graph.cast(s, work, node.of(i).dtype) if s else "" for i, s in ((2, state), (3, cell)))
    lengths = graph.cast(rest[-1], np.int32, node.of(len(node.ins) - 1).dtype) if attrs.use_sequence_length else ""
    ends: list[list[str]] = []
    for layer in range(attrs.num_layers):
        first = layer * directions
        starts = [graph.slice(s, 0, first, first + directions) if s else "" for s in (state, cell)]
        out, *last = _layer(graph, node, data, weights[first : first + directions], lengths, starts)
        data, ends = _joined(graph, node, out, directions), [*ends, last]
    if not attrs.state_outputs:
        return data
    groups = [[end[i] for end in ends] for i in range(len(ends[0]))]
    return (data, *(graph.add("Concat", *group, axis=0) if len(group) > 1 else group[0] for group in groups))


def _layer(graph: Graph, node: At, data: str, weights: list[Weights], lengths: str, starts: list[str]) -> tuple[str, ...]:
    """Add the node of one layer.

    Return (outputs (time, directions, batch, size), last hidden state), and for an lstm also the last cell state.
    """
    attrs, dtype = node.attrs, node.outs[0].dtype
    forward, recurrent = (graph.const(np.stack([_gates(attrs, w[i]) for w in weights]), dtype) for i in (0, 1))
    biases = [np.concatenate([_gates(attrs, w.i2h_bias), _gates(attrs, w.h2h_bias)]) for w in weights]
    settings: dict[str, Any] = {
        "hidden_size": attrs.state_size,
        "direction": "bidirectional" if len(weights) == 2 else "forward",
    }
    if attrs.mode == "gru":
        settings["linear_before_reset"] = 1
    if attrs.mode == "rnn_relu":
        settings["activations"] = ["Relu"] * len(weights)
    inputs = [data, forward, recurrent, graph.const(np.stack(biases), dtype), lengths, starts[0]]
    lstm = attrs.mode == "lstm"
    return graph.add(KINDS[attrs.mode], *inputs, *(starts[1:] if lstm else []), outputs=3 if lstm else 2, **settings)


def _joined(graph: Graph, node: At, data: str, directions: int) -> str:
    """Concatenate the directions: (time, directions, batch, size) -> (time, batch, directions * size)."""
    if directions == 1:
        return graph.squeeze(data, [1])
    data = graph.transpose(data, [0, 2, 1, 3])
    return graph.reshape(data, (node.shape[0], node.shape[1], directions * node.attrs.state_size))
