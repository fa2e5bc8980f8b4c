"""The flat parameters of a fused recurrent network, drawn gate by gate as if the network were written out.

>>> import jax
>>> start = FusedRNN("one", num_hidden=2, num_layers=1, mode="lstm")
>>> start(jax.random.key(0), InitDesc("lstm_parameters", {"__init__": start.dumps()}), (56,))[40:].tolist()
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
from jax import Array

from jfit.init.core import InitDesc, Initializer, get, register
from jfit.ops.rnn import GATES


@register()
@dataclass(frozen=True)
class FusedRNN(Initializer):
    """Each gate's weights and biases by `init`; the biases of the forget gates of an LSTM are `forget_bias`.

    It is for the variable's own rule, `Variable("lstm_parameters", init=FusedRNN(...))`: the name of a flat vector ends in
    `parameters`, for which there is no rule by name.

    Args:
        init: initializer of the parts: a name, MXNet's JSON text or an initializer; None: the one of the whole model.
        num_hidden: size of the state.
        num_layers: layers.
        mode: "rnn_relu", "rnn_tanh", "lstm" or "gru".
        bidirectional: both directions.
        forget_bias: of the forget gates of an LSTM, added to both biases.

    Raises:
        ValueError: an unknown mode, sizes below 1, a vector that such a network does not have, or no rule for the parts.

    Source: Apache MXNet 1.9.1, `mxnet.initializer.FusedRNN`.
    """

    init: Any
    num_hidden: int
    num_layers: int
    mode: str
    bidirectional: bool = False
    forget_bias: float = 1.0

    def __post_init__(self) -> None:
        _gates(self.mode)
        if self.num_hidden < 1 or self.num_layers < 1:
            raise ValueError(
                f"FusedRNN: num_hidden is {self.num_hidden} and num_layers {self.num_layers}, at least 1 of each is needed."
            )

    def within(self, outer: Initializer) -> Initializer:
        """With `outer` for the parts, where none was given."""
        return replace(self, init=outer) if self.init is None else self

    def draw(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        """Values of the flat vector, float32 of `shape`; each part from fold_in(key, crc32(its name))."""
        if self.init is None:
            raise ValueError(
                f"parameter {name!r}: FusedRNN(None, ...) draws its parts by the initializer of the whole model, and there is "
                "none here; pass init='uniform' or another."
            )
        parts = parts_of(math.prod(shape), self.num_hidden, self.num_layers, self.mode, self.bidirectional, name)
        flat = [self._part(jax.random.fold_in(key, zlib.crc32(n.encode())), n, s).reshape(-1) for n, s in parts]
        return jnp.concatenate(flat).reshape(shape)

    def _part(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        if self.mode == "lstm" and name.endswith("_f_bias"):
            return jnp.full(shape, self.forget_bias, jnp.float32)
        return get(self.init)(key, InitDesc(name), shape, jnp.float32)


def parts_of(
    size: int, num_hidden: int, num_layers: int, mode: str, bidirectional: bool = False, name: str = "parameters"
) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every gate's weights and biases in the order of the flat vector: all weights, then all biases.

    Args:
        size: length of the flat vector; the number of inputs follows from it.
        num_hidden, num_layers, mode, bidirectional: of the network.
        name: how errors call the vector.

    Raises:
        ValueError: an unknown mode, or no number of inputs gives a vector of this length.

    Example:
        >>> parts_of(14, 2, 1, "rnn_tanh")
        [('l0_i2h_weight', (2, 3)), ('l0_h2h_weight', (2, 2)), ('l0_i2h_bias', (2,)), ('l0_h2h_bias', (2,))]
    """
    # the vector is a multiple of the input's size and a rest that is known
    none, one = (sum(math.prod(s) for _, s in gate_parts(n, num_hidden, num_layers, mode, bidirectional)) for n in (0, 1))
    inputs, odd = divmod(size - none, one - none)
    if odd or inputs < 1:
        raise ValueError(
            f"{name} has {size} values, which no size of input gives for {num_layers} layers of {num_hidden} hidden in "
            f"{1 + bidirectional} direction(s) of mode {mode}; give the sizes of the network that it is from."
        )
    return gate_parts(inputs, num_hidden, num_layers, mode, bidirectional)


def gate_parts(
    inputs: int, num_hidden: int, num_layers: int, mode: str, bidirectional: bool = False
) -> list[tuple[str, tuple[int, ...]]]:
    """`parts_of` the vector of a network of so many inputs.

    Example:
        >>> [name for name, _ in gate_parts(3, 2, 1, "rnn_tanh")]
        ['l0_i2h_weight', 'l0_h2h_weight', 'l0_i2h_bias', 'l0_h2h_bias']
    """
    sides, found = ("l", "r") if bidirectional else ("l",), []
    for what in ("weight", "bias"):
        for layer, side, kind in itertools.product(range(num_layers), sides, ("i2h", "h2h")):
            width = num_hidden if kind == "h2h" else num_hidden * len(sides) if layer else inputs
            shape = (num_hidden, width) if what == "weight" else (num_hidden,)
            found += [(f"{side}{layer}_{kind}{gate}_{what}", shape) for gate in _gates(mode)]
    return found


def _gates(mode: str) -> tuple[str, ...]:
    if mode not in GATES:
        raise ValueError(f"FusedRNN: mode is {mode!r}, it needs to be one of {', '.join(map(repr, GATES))}.")
    return GATES[mode]


fusedrnn = FusedRNN
