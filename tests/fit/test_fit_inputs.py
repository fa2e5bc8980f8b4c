"""Which variables of a graph are inputs of `fit`: by the suffix of their name, by operator slot, by the names in the data."""

import numpy as np
import pytest

import jfit
from jfit import sym

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")


def net(name):
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Variable(name), num_hidden=2, name="fc"), name="softmax")


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("data", [(X, Y), {"image": X, "softmax_label": Y}])
def test_an_input_may_have_any_name(data):
    run = jfit.fit(net("image"), data, num_epoch=1, progress=False)
    assert run.model.inputs == ("image",) and sorted(run.params) == ["fc_bias", "fc_weight"]
    assert run.score(data)["loss"] > 0 and run.predict(X).shape == (64, 2)


def test_a_name_in_the_data_makes_a_variable_an_input():
    scale = sym.Variable("scale", shape=(0, 1))
    scaled = sym.broadcast_mul(sym.Variable("data"), scale)
    out = sym.SoftmaxOutput(sym.FullyConnected(scaled, num_hidden=2, name="fc"), name="softmax")
    assert jfit.lower(out).inputs == ("data",)
    run = jfit.fit(out, {"data": X, "scale": np.ones((64, 1)), "softmax_label": Y}, num_epoch=1, progress=False)
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
