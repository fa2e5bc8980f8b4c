"""The fused RNN operator: recorded cases, equality with a Python loop, directions, lengths, clipping, dropout, shapes."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from golden_ops import case_id, load_cases, run_case, spread_out

import jfit.ops.rnn as rnn
from jfit.ops.context import Ctx
from jfit.ops.registry import lookup
from jfit.ops.rows import LOST, RowLayout

EVAL = Ctx()
MODES = ["rnn_relu", "rnn_tanh", "lstm", "gru"]


@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("rnn"), each=2), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step_by_hand(mode, w, x, h, c):
    """One step of one layer in NumPy, from the textbook equations."""
    a, b = x @ w.i2h.T + w.i2h_bias, h @ w.h2h.T + w.h2h_bias
    if mode == "lstm":
        i, f, g, o = np.split(a + b, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        return (h if w.h2r is None else h @ w.h2r.T), c
    if mode == "gru":
        (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
        z = sigmoid(az + bz)
        return (1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * h, c
    return (np.maximum(a + b, 0) if mode == "rnn_relu" else np.tanh(a + b)), c


def by_hand(attrs, data, parameters, state, cell, lengths):
    """Outputs of all layers and directions by a plain loop over time and rows."""
    steps, batch, _ = data.shape
    weights = [
        rnn.Weights(*(None if v is None else np.asarray(v) for v in w)) for w in rnn.unpack(attrs, parameters, data.shape[2])
    ]
    directions = 2 if attrs.bidirectional else 1
    ends = []
    for layer in range(attrs.num_layers):
        parts = []
        for back in range(directions):
            k = layer * directions + back
            out = np.zeros((steps, batch, state.shape[2]))
            last_h, last_c = state[k].copy(), cell[k].copy()
            for n in range(batch):
                h, c = state[k][n : n + 1], cell[k][n : n + 1]
                order = range(lengths[n])
                for t in reversed(order) if back else order:
                    h, c = step_by_hand(attrs.mode, weights[k], data[t, n : n + 1], h, c)
                    out[t, n] = h[0]
                last_h[n], last_c[n] = h[0], c[0]
            parts.append(out)
            ends.append((last_h, last_c))
        data = np.concatenate(parts, 2)
    return data, np.stack([e[0] for e in ends]), np.stack([e[1] for e in ends])


def problem(mode, projection=None, lengths=None, layers=2, bidirectional=True, **more):
    attrs = lookup("RNN").parse(
        {"state_size": 3, "num_layers": layers, "mode": mode, "bidirectional": bidirectional, "state_outputs": True}
        | {"projection_size": projection, "use_sequence_length": lengths is not None}
        | more
    )
    rng = np.random.default_rng(7)
    count = layers * (2 if bidirectional else 1)
    data = rng.normal(size=(5, 4, 2)).astype(np.float32)
    parameters = rng.normal(size=rnn.parameter_count(attrs, 2)).astype(np.float32) * 0.5
    state = rng.normal(size=(count, 4, projection or 3)).astype(np.float32)
    cell = rng.normal(size=(count, 4, 3)).astype(np.float32)
    return attrs, data, parameters, state, cell


def call(attrs, data, parameters, state, cell, lengths=None, ctx=EVAL):
    rest = ([jnp.asarray(cell)] if attrs.mode == "lstm" else []) + ([] if lengths is None else [jnp.asarray(lengths)])
    return lookup("RNN").fn(ctx, attrs, jnp.asarray(data), jnp.asarray(parameters), jnp.asarray(state), *rest)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize(
    ("mode", "projection", "lengths"),
    [(m, None, None) for m in MODES] + [("lstm", 2, None), ("lstm", None, [5, 2, 1, 4]), ("gru", None, [3, 5, 2, 1])],
)
def test_equals_a_plain_loop(mode, projection, lengths):
    attrs, *values = problem(mode, projection, lengths)
    got = call(attrs, *values, lengths)
    want = by_hand(attrs, *values, lengths or [5] * 4)
    assert len(got) == (3 if mode == "lstm" else 2)
    for g, w in zip(got, want, strict=False):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_cell_state_stays_within_its_clip():
    attrs, *values = problem("lstm", lstm_state_clip_min=-0.1, lstm_state_clip_max=0.1)
    assert float(jnp.abs(call(attrs, *values)[2]).max()) <= 0.1 + 1e-6


@pytest.mark.slow
def test_dropout_acts_between_layers_in_training_only():
    attrs, *values = problem("gru", bidirectional=False, p=0.5)
    still, one, two = (
        call(attrs, *values, ctx=Ctx(train=t, key=jax.random.key(k), rows=(None,) * 3))[0]
        for t, k in ((False, 0), (True, 0), (True, 1))
    )
    without, *_ = problem("gru", bidirectional=False)
    np.testing.assert_array_equal(still, call(without, *values)[0])
    assert not np.allclose(still, one) and not np.allclose(one, two)


def test_dropout_with_one_layer_has_no_effect():
    attrs, *values = problem("gru", layers=1, p=0.9)
    ctx = Ctx(train=True, key=jax.random.key(0), rows=(None,) * 3)
    np.testing.assert_array_equal(call(attrs, *values)[0], call(attrs, *values, ctx=ctx)[0])


@pytest.mark.slow
def test_the_dropout_mask_of_a_row_does_not_depend_on_the_slice():
    attrs, data, parameters, state, cell = problem("gru", bidirectional=False, p=0.5)
    whole = Ctx(train=True, key=jax.random.key(3), rows=(RowLayout(1, 1, 4, 1),) * 3, row_ids=jnp.arange(4))
    half = dataclasses.replace(whole, rows=(RowLayout(1, 1, 2, 1),) * 3, row_ids=jnp.arange(2, 4))
    full = call(attrs, data, parameters, state, cell, ctx=whole)[0]
    part = call(attrs, data[:, 2:], parameters, state[:, 2:], cell, ctx=half)[0]
    np.testing.assert_allclose(full[:, 2:], part, rtol=1e-5, atol=1e-6)


def test_errors_name_the_actual_and_expected_value():
    op = lookup("RNN")
    attrs = op.parse({"state_size": 5, "num_layers": 1, "mode": "gru"})
    with pytest.raises(ValueError, match=r"expected 3, got 2"):
        op.fill(attrs, [(4, 5), None, None], [None])
    with pytest.raises(ValueError, match=r"shapes \(150,\) and \(7,\) .* data of input size 3 requires that many weights"):
        op.fill(attrs, [(4, 2, 3), (7,), None], [None])


def test_rows_are_tracked_on_axis_one_only():
    op = lookup("RNN")
    attrs = op.parse({"state_size": 5, "num_layers": 1, "mode": "gru", "state_outputs": True})
    shapes, outs = [(4, 2, 3), (150,), (1, 2, 5)], [(4, 2, 5), (1, 2, 5)]
    r = RowLayout(1, 1, 2, 1)
    assert op.rows(attrs, [r, None, None], shapes, outs) == [r, r]
    assert op.rows(attrs, [RowLayout(0, 1, 4, 1), None, None], shapes, outs) == [LOST, LOST]
