"""Which variables of a graph are fed: by the ending of their name, by their slot, by what the data names."""

import numpy as np
import pytest

import jfit
from jfit import sym

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")


def net(name):
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Variable(name), num_hidden=2, name="fc"), name="softmax")


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
