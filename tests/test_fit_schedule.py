"""fit's schedules by name: defaults from the run."""

import numpy as np
import pytest

import jfit
from jfit import sym


def rates(**given):
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("float32")
    net = sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc"), name="softmax")
    data = given.pop("data", (x, y))
    run = jfit.fit(net, data, batch_size=16, num_epoch=4, optimizer_params={"learning_rate": 0.2}, progress=False, **given)
    return run.history.column("lr")


def test_a_named_schedule_starts_at_the_optimizers_rate_and_ends_with_the_run():
    found = rates(schedule="cosine")
    # the rate of the last update of each epoch: updates 4, 8, 12, 16 of 16
    np.testing.assert_allclose(found, 0.1 * (1 + np.cos(np.pi * np.arange(4, 17, 4) / 16)), atol=1e-6)


def test_parameters_of_a_named_schedule_are_taken():
    np.testing.assert_allclose(rates(schedule="factor", schedule_params={"step": 8, "factor": 0.5}), [0.2, 0.2, 0.1, 0.1])


def test_parameters_without_a_name_are_refused():
    with pytest.raises(ValueError, match="goes with a schedule by name"):
        rates(schedule=jfit.optim.cosine(16), schedule_params={"max_update": 3})


def test_an_endless_stream_must_tell_how_long_the_schedule_is():
    def stream():
        yield {"data": np.ones((16, 4), "float32"), "softmax_label": np.zeros(16, "float32")}

    with pytest.raises(ValueError, match="needs the number of updates"):
        rates(schedule="cosine", data=stream)


def test_an_unknown_schedule_lists_the_nearest():
    with pytest.raises(ValueError, match="unknown schedule 'cosin': the nearest names are 'cosine'"):
        rates(schedule="cosin")
