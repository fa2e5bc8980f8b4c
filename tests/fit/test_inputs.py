"""Which arguments of functions and modules are data: those with a default, keyword-only ones, and names such as `key`; which
variables of a graph: by the suffix of their name, by operator slot, by the names in the data."""

from __future__ import annotations

import os
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import jfit
from jfit import sym

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when keras is first imported

RNG = np.random.default_rng(0)
X, M = RNG.normal(size=(12, 4)).astype("float32"), RNG.normal(size=(12, 1)).astype("float32")
Y, W = X @ RNG.normal(size=(4, 2)).astype("float32"), RNG.normal(size=(4, 2)).astype("float32")
OPTIONS: Any = {"loss": "mse", "num_epoch": 1, "batch_size": 6, "shuffle": False, "progress": False, "eval_metric": None}
OPTIONS |= {"optimizer": optax.sgd(0.1)}


def masked(w, x, mask):
    return x @ w * (1 if mask is None else mask)


def by_hand(mask):
    """The weights after one epoch of gradient descent, written by hand."""
    w = jnp.asarray(W)
    for rows in (slice(0, 6), slice(6, 12)):
        part = None if mask is None else mask[rows]
        w = w - 0.1 * jax.grad(lambda w, r=rows, m=part: ((masked(w, X[r], m) - Y[r]) ** 2).mean())(w)
    return np.asarray(w)


def function(p, x, mask=None):
    return masked(p["w"], x, mask)


class Nnx(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.asarray(W))

    def __call__(this, x, mask=None):
        return masked(this.w[...], x, mask)


class Linen(linen.Module):
    @linen.compact
    def __call__(this, x, mask=None):
        return masked(this.param("w", lambda key: jnp.asarray(W)), x, mask)


class Equinox(eqx.Module):
    w: jax.Array

    def __call__(this, x, mask=None):
        return masked(this.w, x, mask)


def haiku(x, mask=None):
    return masked(hk.get_parameter("w", (4, 2), init=lambda *_: jnp.asarray(W)), x, mask)


MODELS = {
    "function": lambda: (function, {"params": {"w": W}}),
    "nnx": lambda: (Nnx(), {}),
    "linen": lambda: (Linen(), {}),
    "equinox": lambda: (Equinox(jnp.asarray(W)), {}),
    "haiku": lambda: (hk.transform(haiku), {}),
}


def weights(run):
    return np.asarray(next(iter(run.named_params.values())))


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", MODELS)
def test_an_argument_with_a_default_is_passed_if_the_data_has_it(name):
    model, options = MODELS[name]()
    run = jfit.fit(model, {"x": X, "mask": M, "label": Y}, **options, **OPTIONS)
    np.testing.assert_allclose(weights(run), by_hand(M), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.predict({"x": X, "mask": M}), run.predict(X) * M, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.predict(X), X @ weights(run), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.score((X, Y))["loss"], ((X @ weights(run) - Y) ** 2).mean(), rtol=1e-5)


def test_a_keyword_only_argument_without_default_is_an_input():
    def scaled(p, x, *, scale):
        return x @ p["w"] * scale

    for data in ({"x": X, "scale": M, "label": Y}, ([X, M], Y)):
        np.testing.assert_allclose(
            weights(jfit.fit(scaled, data, params={"w": W}, **OPTIONS)), by_hand(M), rtol=1e-5, atol=1e-6
        )


def test_inputs_may_have_names_that_other_frameworks_reserve():
    class Attention(Nnx):
        def __call__(self, state, key):
            return masked(self.w[...], state, key)

    class Stateless(Equinox):
        def __call__(self, state, *, rng):
            return masked(self.w, state, rng)

    run = jfit.fit(Attention(), {"state": X, "key": M, "label": Y}, **OPTIONS)
    np.testing.assert_allclose(weights(run), by_hand(M), rtol=1e-5, atol=1e-6)
    run = jfit.fit(Stateless(jnp.asarray(W)), {"state": X, "rng": M, "label": Y}, **OPTIONS)
    np.testing.assert_allclose(weights(run), by_hand(M), rtol=1e-5, atol=1e-6)


def test_key_of_a_function_is_data_if_the_batch_has_it():
    def attention(p, query, key):
        return masked(p["w"], query, key)

    run = jfit.fit(attention, {"query": X, "key": M, "label": Y}, params={"w": W}, **OPTIONS)
    np.testing.assert_allclose(weights(run), by_hand(M), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"'key', which may be a PRNG key or data; pass x as a dict .* inputs="):
        jfit.fit(attention, ([X, M], Y), params={"w": W}, **OPTIONS)
    options = {k: v for k, v in OPTIONS.items() if k != "loss"}
    model = jfit.Model.from_function(attention, loss="mse", params={"w": W}, inputs=("query", "key"))
    np.testing.assert_allclose(weights(jfit.fit(model, ([X, M], Y), **options)), by_hand(M), rtol=1e-5, atol=1e-6)


def test_an_array_with_the_name_of_an_argument_that_jfit_passes_is_refused():
    def excluded(p, x, *, mask):
        return x @ p["w"] * mask[:, None]

    with pytest.raises(ValueError, match=r"the data has 'mask', but jfit passes the argument 'mask' of the model itself"):
        jfit.fit(excluded, {"x": X, "mask": M, "label": Y}, params={"w": W}, **OPTIONS)


@pytest.mark.parametrize("kind", [list, tuple])
def test_predict_takes_the_structure_that_fit_took(kind):
    run = jfit.fit(lambda p, pair: masked(p["w"], *pair), (kind((X, M)), Y), params={"w": W}, **OPTIONS)
    np.testing.assert_allclose(weights(run), by_hand(M), rtol=1e-5, atol=1e-6)
    for data in ([X, M], (X, M), ((X, M),), ([X, M], Y)):
        np.testing.assert_allclose(run.predict(data), masked(weights(run), X, M), rtol=1e-5, atol=1e-6)


def test_a_state_of_an_unbuilt_module_needs_a_batch():
    with pytest.raises(
        ValueError, match=r"input 'inputs' is missing; .* pass a batch, as in jfit.init_state\(model, optimizer, batch\)"
    ):
        jfit.init_state(jfit.Model.from_module(linen.Dense(2), loss="mse"), "sgd")


def test_a_run_of_a_function_is_loaded_with_its_parameters_as_structure(tmp_path):
    run = jfit.fit(function, (X, Y), params={"w": W}, **OPTIONS)
    run.save(tmp_path)
    loaded = jfit.Run.load(tmp_path, function, loss="mse", params={"w": np.zeros_like(W)})
    np.testing.assert_array_equal(loaded.params["w"], run.params["w"])
    np.testing.assert_array_equal(loaded.predict(X), run.predict(X))


def test_a_collection_of_linen_that_grows_is_refused():
    class Sows(linen.Module):
        @linen.compact
        def __call__(self, x):
            self.sow("losses", "size", x.mean())
            return linen.Dense(2)(x)

    with pytest.raises(ValueError, match=r"apply returned aux with the leaves .*losses/size"):
        jfit.fit(Sows(), (X, Y), **OPTIONS)


def test_a_state_of_an_equinox_module_for_each_row_is_refused():
    class Last(eqx.Module):
        w: jax.Array
        index: eqx.nn.StateIndex

        def __init__(self):
            self.w, self.index = jnp.asarray(W), eqx.nn.StateIndex(jnp.zeros(4))

        def __call__(self, x, state):
            return x @ self.w, state.set(self.index, x)

    with pytest.raises(ValueError, match=r"the state that Last returns depends on the row, .*pmean"):
        jfit.fit(eqx.nn.make_with_state(Last)(), (X, Y), **OPTIONS)


def test_classes_and_layers_are_refused():
    import keras

    with pytest.raises(TypeError, match=r"the model is the class Linear of flax.nnx; pass an instance of it"):
        jfit.fit(nnx.Linear, (X, Y), **OPTIONS)
    with pytest.raises(TypeError, match=r"the model is a Dense of keras; pass keras.Sequential"):
        jfit.fit(keras.layers.Dense(2), (X, Y), **OPTIONS)


def test_evaluation_data_that_does_not_divide_over_devices_is_refused_before_training():
    def centred(p, x):
        return (x - x.mean(axis=0, keepdims=True)) @ p["w"]

    epochs = []
    options = {**OPTIONS, "devices": jax.devices()[:2], "callbacks": [lambda event: epochs.append(event)]}
    with pytest.raises(ValueError, match=r"eval_data: a batch of 3 rows does not divide into 2"), pytest.warns(UserWarning):
        jfit.fit(centred, (X, Y), (X[:9], Y[:9]), params={"w": W}, **options)
    assert not epochs


GRAPH_X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
GRAPH_Y = (GRAPH_X[:, 0] > 0).astype("float32")


def net(name):
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Variable(name), num_hidden=2, name="fc"), name="softmax")


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("data", [(GRAPH_X, GRAPH_Y), {"image": GRAPH_X, "softmax_label": GRAPH_Y}])
def test_an_input_may_have_any_name(data):
    run = jfit.fit(net("image"), data, num_epoch=1, progress=False)
    assert run.model.inputs == ("image",) and sorted(run.params) == ["fc_bias", "fc_weight"]
    assert run.score(data)["loss"] > 0 and run.predict(GRAPH_X).shape == (64, 2)


def test_a_name_in_the_data_makes_a_variable_an_input():
    scale = sym.Variable("scale", shape=(0, 1))
    scaled = sym.broadcast_mul(sym.Variable("data"), scale)
    out = sym.SoftmaxOutput(sym.FullyConnected(scaled, num_hidden=2, name="fc"), name="softmax")
    assert jfit.lower(out).inputs == ("data",)
    run = jfit.fit(out, {"data": GRAPH_X, "scale": np.ones((64, 1)), "softmax_label": GRAPH_Y}, num_epoch=1, progress=False)
    assert run.model.inputs == ("data", "scale") and "scale" not in run.params


@pytest.mark.slow
def test_batches_of_a_stream_may_have_their_rows_on_another_axis():
    x = np.random.default_rng(1).normal(size=(24, 5, 3)).astype("float32")  # (rows, time, features)
    y = (x.mean((1, 2)) > 0).astype("float32")
    parameters = sym.Variable("parameters", init="uniform")
    steps = sym.RNN(
        sym.Variable("data", layout="TNC"), parameters, state_size=4, num_layers=1, mode="gru", state_outputs=False, name="gru"
    )
    last = sym.SequenceLast(steps)
    out = sym.SoftmaxOutput(sym.FullyConnected(last, num_hidden=2, name="fc"), name="softmax")
    stream = [{"data": x[i : i + 10].swapaxes(0, 1), "softmax_label": y[i : i + 10]} for i in (0, 10, 20)]
    one = jfit.fit(out, stream, batch_size=10, num_epoch=2, progress=False)
    two = jfit.fit(out, (x, y), batch_size=10, num_epoch=2, shuffle=False, steps_per_call=1, progress=False)
    for name in one.params:
        np.testing.assert_allclose(one.params[name], two.params[name], rtol=1e-5, atol=1e-6)
