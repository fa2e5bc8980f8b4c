"""Predictions of few rows: programs of 1, 2, 4, ... rows, padding rows that reach no result, no second compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import counters, sym
from jfit.feed import host_batches

W = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
X = np.random.default_rng(1).normal(size=(70, 6)).astype("float32")


def net():
    return sym.FullyConnected(sym.Variable("data"), num_hidden=5, no_bias=True, name="fc")


def predictor(batch_size=16, devices=1, function=None):
    model, params = (net(), {"fc_weight": W.T}) if function is None else (function, {"w": W})
    return jfit.evaluate.scorer.InferenceModel(model, params, None, batch_size=batch_size, devices=jax.devices()[:devices])


@pytest.mark.parametrize("devices", [1, 3])
def test_any_number_of_rows_has_the_outputs_of_its_rows_alone(devices):
    model = predictor(devices=devices)
    for count in (1, 2, 3, 5, 8, 11, 15, 16, 17, 33, 70):
        np.testing.assert_allclose(model.predict(X[:count]), X[:count] @ W, rtol=2e-6, atol=1e-6)


def test_sizes_in_between_use_the_next_program():
    model = predictor(batch_size=13, function=lambda params, x: jnp.tanh(x @ params["w"]) * 1.25)
    with counters.counted() as counts:
        for count in range(1, 14):
            model.predict(X[:count])
    assert counts["traces:predict"] <= 5  # 1, 2, 4, 8 and 13 rows
    with counters.counted() as counts:
        for count in (*range(1, 14), 26, 40):  # the last batch of more rows is padded to the batch size
            model.predict(X[:count])
    assert counts["compiles"] == counts["traces"] == 0
    assert counts["host_syncs"] == 13 + 2 + 4  # each batch is read once


def test_padding_rows_reach_no_output():
    """1 / x of a padding row that is 0 is infinite; infinite times 0 is NaN."""
    model = predictor(function=lambda params, x: 1 / x[:, :1] + 0 * params["w"][0, 0])
    for count in (3, 5, 7):
        np.testing.assert_allclose(model.predict(X[:count]), 1 / X[:count, :1], rtol=1e-6)


def test_rows_that_affect_each_other_are_not_padded():
    model = predictor(function=lambda params, x: (x - x.mean(0, keepdims=True)) @ params["w"])
    for count in (3, 5):
        x = X[:count]
        np.testing.assert_allclose(model.predict(x), (x - x.mean(0)) @ W, rtol=1e-5, atol=1e-6)


def test_few_rows_need_no_thread_and_results_are_the_callers(monkeypatch):
    model = predictor()
    expected = model.predict(X[:3])

    def no_thread(*args, **kwargs):
        raise AssertionError("a thread prepares batches")

    monkeypatch.setattr(host_batches, "prefetch", no_thread)
    result = model.predict(X[:3])
    result[:] = 0  # writable, and no other result changes
    assert (model.predict(X[:3]) == expected).all() and expected.any()
    with pytest.raises(AssertionError, match="thread"):
        model.predict(X[:17])


def test_errors_of_few_rows_are_those_of_many():
    model = predictor()
    with pytest.raises(ValueError, match="fc_weight has shape"):
        model.predict(np.ones((2, 7), "float32"))
    with pytest.raises(ValueError, match=r"0 rows|empty"):
        model.predict(X[:0])
