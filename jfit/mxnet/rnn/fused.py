"""FusedRNNCell: all layers and directions of a recurrent network as one `RNN` node, with all weights in one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jfit import checks
from jfit.graph.symbol import Symbol
from jfit.init.fused import gate_parts, parts_of
from jfit.mxnet import initializer
from jfit.mxnet import ndarray as nd
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn.base import Arrays, BaseRNNCell, RNNParams
from jfit.mxnet.rnn.cells import BidirectionalCell, DropoutCell, GRUCell, LSTMCell, RNNCell, SequentialRNNCell
from jfit.mxnet.rnn.composed import States
from jfit.mxnet.rnn.sequences import Sequences
from jfit.ops.rnn import GATES


class FusedRNNCell(BaseRNNCell):
    """A multi-layer RNN, LSTM or GRU, optionally bidirectional, as one `RNN` node.

    Args:
        num_hidden: size of the state of each layer and direction.
        num_layers: number of layers.
        mode: "rnn_relu", "rnn_tanh", "lstm" or "gru".
        bidirectional: add a second direction, backward in time; outputs have 2 * num_hidden features.
        dropout: dropout rate between layers.
        get_next_state: True makes `unroll` return the last states, each (layers * directions, batch, num_hidden).
        forget_bias: initial bias of the forget gate, for mode "lstm".
        prefix: prepended to the names of the cell's nodes and weights; "<mode>_" by default.
        params: container of the weights, to share them with another cell; a new one by default.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.rnn.FusedRNNCell(4, num_layers=2, bidirectional=True)
        >>> outputs, _ = cell.unroll(3, mx.sym.Variable("data"), layout="TNC", merge_outputs=True)
        >>> outputs.infer_shape(data=(3, 2, 5))[1]
        [(3, 2, 8)]
    """

    def __init__(
        self,
        num_hidden: int,
        num_layers: int = 1,
        mode: str = "lstm",
        bidirectional: bool = False,
        dropout: float = 0.0,
        get_next_state: bool = False,
        forget_bias: float = 1.0,
        prefix: str | None = None,
        params: RNNParams | None = None,
    ) -> None:
        checks.one_of(tuple(GATES), mode=mode)
        super().__init__(f"{mode}_" if prefix is None else prefix, params)
        self._num_hidden, self._num_layers, self._mode, self._gate_names = num_hidden, num_layers, mode, GATES[mode]
        self._bidirectional, self._dropout, self._get_next_state = bidirectional, dropout, get_next_state
        self._directions = ("l", "r") if bidirectional else ("l",)
        self._sizes = (num_hidden, num_layers, mode, bidirectional)
        init = initializer.FusedRNN(None, *self._sizes, forget_bias)
        self._parameter = self._params.get("parameters", init=init)

    @property
    def state_info(self) -> list[Any]:
        """(layers * directions, batch, num_hidden) for each state: h, and for mode "lstm" also c."""
        shape = (len(self._directions) * self._num_layers, 0, self._num_hidden)
        return [{"shape": shape, "__layout__": "LNC"} for _ in range(1 + (self._mode == "lstm"))]

    # -------------------------------------------------------------------------------- weights
    def unpack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Split the parameter vector into one array per layer, direction and gate: `<prefix>l0_i2h_i_weight`, ...

        Arguments and result as for `BaseRNNCell.unpack_weights`.
        """
        others = dict(args)
        name = self._parameter.name
        assert name is not None
        vector = others.pop(name)
        unpacked, offset = {}, 0
        for part, shape in parts_of(math.prod(vector.shape), *self._sizes, name=name):
            size = math.prod(shape)
            unpacked[self._prefix + part] = vector[offset : offset + size].reshape(shape).copy()
            offset += size
        return {**others, **unpacked}

    def pack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Concatenate the weights of all layers, directions and gates into the vector; the inverse of `unpack_weights`."""
        others = dict(args)
        first = self._prefix + gate_parts(1, *self._sizes)[0][0]
        inputs = others[first].shape[1]
        parts = [others.pop(self._prefix + part).reshape((-1,)) for part, _ in gate_parts(inputs, *self._sizes)]
        return {**others, str(self._parameter.name): nd.concatenate(parts)}

    # -------------------------------------------------------------------------------- unrolling
    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, States]:
        """Apply the network to a sequence as one node; the states are an empty list unless `get_next_state` is True."""
        if sequences.axis not in (0, 1):
            raise ValueError(f"layout is {sequences.layout!r}, a fused cell accepts TNC or NTC")
        data = sequences.one(inputs)
        if sequences.axis == 1:
            data = sym.swapaxes(data, dim1=0, dim2=1)
        outputs, *after = self._node(data, states)
        if sequences.axis == 1:
            outputs = sym.swapaxes(outputs, dim1=0, dim2=1)
        return sequences.arranged(outputs, sequences.merge), after

    def _node(self, data: Symbol, states: States) -> Symbol:
        attrs: dict[str, Any] = {"state_size": self._num_hidden, "num_layers": self._num_layers, "mode": self._mode}
        attrs |= {"bidirectional": self._bidirectional, "p": self._dropout, "state_outputs": self._get_next_state}
        # __layout__ marks the batch axis of the returned states: (layers * directions, batch, num_hidden)
        attrs |= {"__layout__": "LNC"} if self._get_next_state else {}
        inputs = {"data": data, "parameters": self._parameter, **dict(zip(("state", "state_cell"), states, strict=False))}
        return sym.RNN(name=f"{self._prefix}rnn", **inputs, **attrs)

    def unfuse(self) -> Any:
        """Return the same network as a `SequentialRNNCell` of single cells; convert its weights with `unpack_weights`."""
        stack = SequentialRNNCell()
        for layer in range(self._num_layers):
            cells = [self._single(f"{self._prefix}{side}{layer}_") for side in self._directions]
            if self._bidirectional:
                cells = [BidirectionalCell(cells[0], cells[1], output_prefix=f"{self._prefix}bi_l{layer}_")]
            stack.add(cells[0])
            if self._dropout > 0 and layer < self._num_layers - 1:
                stack.add(DropoutCell(self._dropout, prefix=f"{self._prefix}_dropout{layer}_"))
        return stack

    def _single(self, prefix: str) -> BaseRNNCell:
        if self._mode in ("rnn_relu", "rnn_tanh"):
            return RNNCell(self._num_hidden, activation=self._mode.removeprefix("rnn_"), prefix=prefix)
        return (LSTMCell if self._mode == "lstm" else GRUCell)(self._num_hidden, prefix=prefix)
