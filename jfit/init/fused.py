"""`FusedRNN`: initialize the flat parameter vector of a fused recurrent network (the RNN operator) gate by gate.

>>> import jax
>>> initializer = FusedRNN("one", num_hidden=2, num_layers=1, mode="lstm")
>>> initializer(jax.random.key(0), InitDesc("lstm_parameters", {"__init__": initializer.dumps()}), (56,))[40:].tolist()
[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import one_of
from jfit.init.core import InitDesc, InitFn, Initializer, distribution_of, get, register
from jfit.init.sampling import Distribution, Fixed, Piece, Pieces
from jfit.ops.rnn import GATES


@register()
@dataclass(frozen=True)
class FusedRNN(Initializer):
    """Initialize weights and biases of each gate in a flat vector by `init`, biases of LSTM forget gates by `forget_bias`.

    Pass it as initializer of the variable, `Variable("lstm_parameters", init=FusedRNN(...))`: names that end in `parameters`
    have no default rule.

    Args:
        init: initializer of the weights and biases: a name, MXNet's JSON text or an initializer.  None: that of the model.
        num_hidden: size of the hidden state.
        num_layers: number of layers.
        mode: "rnn_relu", "rnn_tanh", "lstm" or "gru".
        bidirectional: whether the network runs in both directions.
        forget_bias: value of the biases of the forget gates of an LSTM (input-to-hidden and hidden-to-hidden).

    Raises:
        ValueError: `mode` is unknown; when values are drawn: no such network has a vector of this length, or `init` is None
            and there is no initializer of the model.

    Example:
        >>> start = FusedRNN("zero", num_hidden=2, num_layers=1, mode="lstm")
        >>> start.draw(jax.random.key(0), "lstm_parameters", (56,)).sum().item()  # 2 * 2 biases of forget gates
        4.0

    Source: Apache MXNet 1.9.1, `mxnet.initializer.FusedRNN`.
    """

    init: Any
    num_hidden: int
    num_layers: int
    mode: str
    bidirectional: bool = False
    forget_bias: float = 1.0

    def __post_init__(self) -> None:
        one_of(tuple(GATES), **{"FusedRNN: mode": self.mode})

    def within(self, outer: Initializer) -> Initializer:
        """Return a copy with `init=outer` if `init` is None."""
        return replace(self, init=outer) if self.init is None else self

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution | None:
        """Return the distributions of the gates in the flat vector; a weight or bias has the key fold_in(key, crc32(name))."""
        start, pieces = self._initializer(name), []
        for part, part_shape in self._parts(name, shape):
            forget = self.mode == "lstm" and part.endswith("_f_bias")
            found = Fixed(np.float32(self.forget_bias)) if forget else distribution_of(start, InitDesc(part), part_shape)
            if found is None or isinstance(found, Pieces):
                return None
            pieces.append(Piece(zlib.crc32(part.encode()), part_shape, found))
        return Pieces(pieces)

    def draw(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        """Draw the flat vector, float32 of `shape`; each weight or bias of a gate has the key fold_in(key, crc32(name))."""
        start, parts = self._initializer(name), self._parts(name, shape)
        flat = [self._part(start, jax.random.fold_in(key, zlib.crc32(n.encode())), n, s).reshape(-1) for n, s in parts]
        return jnp.concatenate(flat).reshape(shape)

    def _initializer(self, name: str) -> InitFn:
        if self.init is None:
            raise ValueError(f"parameter {name!r}: FusedRNN(None, ...) needs the initializer of the model; pass one")
        return get(self.init)

    def _parts(self, name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
        return parts_of(math.prod(shape), self.num_hidden, self.num_layers, self.mode, self.bidirectional, name)

    def _part(self, start: InitFn, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        if self.mode == "lstm" and name.endswith("_f_bias"):
            return jnp.full(shape, self.forget_bias, jnp.float32)
        return start(key, InitDesc(name), shape, jnp.float32)


def parts_of(
    size: int, num_hidden: int, num_layers: int, mode: str, bidirectional: bool = False, name: str = "parameters"
) -> list[tuple[str, tuple[int, ...]]]:
    """List (name, shape) of the weights and biases of all gates in the order of the flat vector: weights, then biases.

    Args:
        size: length of the flat vector; it determines the input size of the network.
        num_hidden, num_layers, mode, bidirectional: as in `FusedRNN`.
        name: name of the vector in error messages.

    Raises:
        ValueError: `mode` is unknown, or no input size leads to a vector of this length.

    Example:
        >>> parts_of(14, 2, 1, "rnn_tanh")
        [('l0_i2h_weight', (2, 3)), ('l0_h2h_weight', (2, 2)), ('l0_i2h_bias', (2,)), ('l0_h2h_bias', (2,))]
    """
    # The length is linear in the input size; `none` is the length for 0 inputs, `one` for 1 input.
    none, one = (sum(math.prod(s) for _, s in gate_parts(n, num_hidden, num_layers, mode, bidirectional)) for n in (0, 1))
    inputs, odd = divmod(size - none, one - none)
    if odd or inputs < 1:
        sizes = f"num_layers={num_layers}, num_hidden={num_hidden}, mode {mode} and {1 + bidirectional} direction(s)"
        raise ValueError(f"{name} has {size} values, which no input size has with {sizes}; pass the sizes of its network.")
    return gate_parts(inputs, num_hidden, num_layers, mode, bidirectional)


def gate_parts(
    inputs: int, num_hidden: int, num_layers: int, mode: str, bidirectional: bool = False
) -> list[tuple[str, tuple[int, ...]]]:
    """List (name, shape) as `parts_of`, for a network with input size `inputs`.

    Example:
        >>> [name for name, _ in gate_parts(3, 2, 1, "rnn_tanh")]
        ['l0_i2h_weight', 'l0_h2h_weight', 'l0_i2h_bias', 'l0_h2h_bias']
    """
    sides, parts = ("l", "r") if bidirectional else ("l",), []
    for what in ("weight", "bias"):
        for layer, side, kind in itertools.product(range(num_layers), sides, ("i2h", "h2h")):
            width = num_hidden if kind == "h2h" else num_hidden * len(sides) if layer else inputs
            shape = (num_hidden, width) if what == "weight" else (num_hidden,)
            parts += [(f"{side}{layer}_{kind}{gate}_{what}", shape) for gate in GATES[mode]]
    return parts


fusedrnn = FusedRNN
