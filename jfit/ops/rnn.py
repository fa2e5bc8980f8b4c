"""The fused recurrent operator RNN: several layers, one or two directions, all weights in one flat vector.

The vector `parameters` holds first, for each layer and direction, the matrices input -> gates and hidden -> gates (and the
projection), then, in the same order, their two bias vectors. The order of the gates is i, f, c, o (lstm) and r, z, n (gru).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import REQUIRED, choice, flag, integer, maybe_integer, maybe_number, number, several
from jfit.ops.elementwise import tanh
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import common_rows, unify

# mode -> suffix of each gate, in the order of the flat vector
GATES = {"rnn_relu": ("",), "rnn_tanh": ("",), "lstm": ("_i", "_f", "_c", "_o"), "gru": ("_r", "_z", "_o")}
Carry = tuple[Array, ...]  # (hidden,) or (hidden, cell), each (batch, size)


class Weights(NamedTuple):
    """Weights of one layer and direction; in the shapes, outputs = projection size, or hidden size without a projection."""

    i2h: Array  # (gates * hidden, inputs)
    h2h: Array  # (gates * hidden, outputs), outputs = projection or hidden size
    h2r: Array | None  # (outputs, hidden), the projection
    i2h_bias: Array  # (gates * hidden,)
    h2h_bias: Array  # (gates * hidden,)


def layouts(attrs: Any, inputs: int) -> list[list[tuple[int, ...]]]:
    """Return the shapes of the weight matrices of every layer and direction, in the order of the flat vector.

    Args:
        attrs: attributes of an RNN node.
        inputs: size of the last axis of the data.

    Returns:
        For each layer and direction, the shapes of (input -> gates, hidden -> gates, projection if there is one).

    Example:
        >>> from jfit.ops.registry import lookup
        >>> import jfit.ops.rnn
        >>> layouts(lookup("RNN").parse({"state_size": 5, "num_layers": 1, "mode": "lstm"}), 3)
        [[(20, 3), (20, 5)]]
    """
    directions = 2 if attrs.bidirectional else 1
    rows, out = len(GATES[attrs.mode]) * attrs.state_size, attrs.projection_size or attrs.state_size
    result = []
    for layer in range(attrs.num_layers):
        size = inputs if layer == 0 else out * directions
        project = [(out, attrs.state_size)] if attrs.projection_size else []
        result += [[(rows, size), (rows, out), *project]] * directions
    return result


def parameter_count(attrs: Any, inputs: int) -> int:
    """Return the length of the flat vector `parameters`.

    Example:
        >>> from jfit.ops.registry import lookup
        >>> parameter_count(lookup("RNN").parse({"state_size": 5, "num_layers": 1, "mode": "lstm"}), 3)
        200
    """
    return sum(sum(map(math.prod, shapes)) + 2 * shapes[0][0] for shapes in layouts(attrs, inputs))


def unpack(attrs: Any, parameters: Array, inputs: int) -> list[Weights]:
    """Split the flat vector (length `parameter_count`) into the weights of every layer and direction.

    Args:
        attrs: attributes of an RNN node.
        parameters: the flat vector (parameter_count(attrs, inputs),).
        inputs: size of the last axis of the data.

    Returns:
        One `Weights` for each layer and direction; the direction varies fastest.
    """
    end = 0

    def take(*shape: int) -> Array:  # the next entries, in this shape
        nonlocal end
        start, end = end, end + math.prod(shape)
        return parameters[start:end].reshape(shape)

    matrices = [[take(*shape) for shape in shapes] for shapes in layouts(attrs, inputs)]
    return [Weights(i2h, h2h, h2r[0] if h2r else None, take(len(i2h)), take(len(i2h))) for i2h, h2h, *h2r in matrices]


def _affine(x: Array, weight: Array) -> Array:
    return x @ weight.T


def _cell(attrs: Any, w: Weights) -> Callable[[Carry, Array], Carry]:
    """Return the function of one time step: (state, W_i2h x + bias of shape (batch, gates * hidden)) -> new state.

    state: (hidden,) or, for lstm, (hidden, cell), each (batch, size).
    """
    size = attrs.state_size
    low, high = attrs.lstm_state_clip_min, attrs.lstm_state_clip_max

    def lstm(carry: Carry, x: Array) -> Carry:
        gates = x + _affine(carry[0], w.h2h)
        i, f, o = (jax.nn.sigmoid(gates[:, k * size : (k + 1) * size]) for k in (0, 1, 3))
        c = f * carry[1] + i * tanh(gates[:, 2 * size : 3 * size])
        if low is not None and high is not None:
            c = jnp.clip(jnp.nan_to_num(c) if attrs.lstm_state_clip_nan else c, low, high)
        h = o * tanh(c)
        return (h if w.h2r is None else _affine(h, w.h2r)), c

    def gru(carry: Carry, x: Array) -> Carry:
        (h,) = carry
        back = _affine(h, w.h2h)
        r, z = (jax.nn.sigmoid(x[:, k * size : (k + 1) * size] + back[:, k * size : (k + 1) * size]) for k in (0, 1))
        # the reset gate multiplies the candidate's hidden bias too, so that bias cannot be added to the input's in advance
        n = tanh(x[:, 2 * size :] + r * (back[:, 2 * size :] + w.h2h_bias[None, 2 * size :]))
        return (n + z * (h - n),)

    act = jax.nn.relu if attrs.mode == "rnn_relu" else tanh

    def plain(carry: Carry, x: Array) -> Carry:
        return (act(x + _affine(carry[0], w.h2h)),)

    return {"lstm": lstm, "gru": gru}.get(attrs.mode, plain)


def _run(attrs: Any, w: Weights, data: Array, start: Carry, lengths: Array | None, back: bool) -> tuple[Array, Carry]:
    """Run one layer in one direction: data (time, batch, inputs) -> (outputs (time, batch, size), last state).

    start: initial state.  lengths: number of time steps of each sequence, None: all.  back: from the last time step to the
    first.
    """
    steps, batch, inputs = data.shape
    bias = w.i2h_bias + w.h2h_bias
    if attrs.mode == "gru":
        bias = w.i2h_bias + jnp.where(jnp.arange(bias.size) < 2 * attrs.state_size, w.h2h_bias, 0)
    # one large matrix product for all time steps instead of a small one in each
    x = _affine(data.reshape(steps * batch, inputs), w.i2h) + bias[None]
    cell = _cell(attrs, w)

    def step(carry: Carry, inputs_at: tuple[Array, Array]) -> tuple[Carry, Array]:
        now, t = inputs_at
        new = cell(carry, now)
        if lengths is None:
            return new, new[0]
        alive = (t < lengths)[:, None]
        new = tuple(jnp.where(alive, n, c) for n, c in zip(new, carry, strict=True))
        return new, jnp.where(alive, new[0], jnp.zeros_like(new[0]))

    times = jnp.arange(steps, dtype=jnp.int32)
    last, outputs = lax.scan(step, start, (x.reshape(steps, batch, -1), times), reverse=back)
    return outputs, last


def _names(attrs: Any) -> tuple[str, ...]:
    cell = ("state_cell",) if attrs.mode == "lstm" else ()
    return ("data", "parameters", "state", *cell, *(("sequence_length",) if attrs.use_sequence_length else ()))


def _outputs(attrs: Any) -> tuple[str, ...]:
    if not attrs.state_outputs:
        return ("output",)
    return ("output", "state_output", "statecell_output") if attrs.mode == "lstm" else ("output", "state_output")


def _shapes(attrs: Any, ins: list[Any], outs: list[Any]) -> list[Any]:
    data, parameters, state, *rest = ins
    layers, out = attrs.num_layers * (2 if attrs.bidirectional else 1), attrs.projection_size or attrs.state_size
    steps, batch, inputs = data or (0, 0, 0)
    state = unify([(layers, batch, out), state], "the state is (layers * directions, batch, size)")
    assert state is not None
    if data is not None:
        data = (steps, batch or state[1], inputs)
        if inputs:
            why = f"data of input size {inputs} requires that many weights"
            parameters = unify([(parameter_count(attrs, inputs),), parameters], why)
    filled = [data, parameters, state]
    if attrs.mode == "lstm":
        cell = unify([(layers, state[1], attrs.state_size), rest[0]], "the cell state is (layers * directions, batch, size)")
        filled.append(cell)
    if attrs.use_sequence_length:
        filled.append(unify([(state[1],), rest[-1]], "each sequence of the batch has one length"))
    return filled


def _rows(attrs: Any, rows: Any, shapes: Any, outs: Any) -> list[Any]:
    layout = common_rows([rows[0], *rows[2 : 4 if attrs.mode == "lstm" else 3]])
    mixed = rows[1] is not None or (isinstance(layout, RowLayout) and layout.axis != 1)
    return [LOST if mixed else layout] * len(outs)


def _types(attrs: Any, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    floats = len(ins) - attrs.use_sequence_length
    dtype = next((t for t in ins[:floats] if t is not None), None)
    return [dtype] * floats + ins[floats:], [dtype] * len(_outputs(attrs))


def _dropped(ctx: Any, attrs: Any, data: Array, layer: int) -> Array:
    """Apply dropout to the input of every layer but the first, in training only; every layer draws a different mask."""
    if layer == 0 or not ctx.train or attrs.p <= 0:
        return data
    layer_ctx = ctx if ctx.key is None else dataclasses.replace(ctx, key=jax.random.fold_in(ctx.key, layer))
    keep = layer_ctx.random(lambda key, shape: jax.random.bernoulli(key, 1 - attrs.p, shape), data.shape)
    return jnp.where(keep, data / (1 - attrs.p), jnp.zeros_like(data))


@operator(
    "RNN",
    inputs=_names,
    outputs=_outputs,
    attrs=several(integer, state_size=REQUIRED, num_layers=REQUIRED)
    | {"bidirectional": flag(False), "mode": choice("gru", "lstm", "rnn_relu", "rnn_tanh"), "p": number(0.0)}
    | {"state_outputs": flag(False), "projection_size": maybe_integer(None)}
    | several(maybe_number, lstm_state_clip_min=None, lstm_state_clip_max=None)
    | several(flag, lstm_state_clip_nan=False, use_sequence_length=False),
    aliases=("_npx_rnn",),
    fill=_shapes,
    types=_types,
    rows=_rows,
    needs_rng=True,
)
def rnn(ctx, attrs, data, parameters, state, *rest):
    """h(t) = cell(x(t), h(t-1)) for every layer and direction; x (time, batch, inputs), y (time, batch, directions * size)."""
    lengths = rest[-1].astype(jnp.int32) if attrs.use_sequence_length else None
    states = (state, rest[0]) if attrs.mode == "lstm" else (state,)
    weights = unpack(attrs, parameters, data.shape[2])
    directions = 2 if attrs.bidirectional else 1
    ends: list[Carry] = []
    for layer in range(attrs.num_layers):
        data = _dropped(ctx, attrs, data, layer)
        parts = []
        for back in range(directions):
            k = layer * directions + back
            out, last = _run(attrs, weights[k], data, tuple(s[k] for s in states), lengths, bool(back))
            parts.append(out)
            ends.append(last)
        data = parts[0] if directions == 1 else jnp.concatenate(parts, 2)
    if not attrs.state_outputs:
        return data
    return (data, *(jnp.stack(group) for group in zip(*ends, strict=True)))
