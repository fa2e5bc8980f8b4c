"""`lr_find`: the sweep of learning rates, its suggestion, and that it leaves model and data unchanged."""

import os
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from fit_support import bits, blobs, mlp

import jfit
from jfit import counters
from jfit.tools.lr_find import RateRange

SHORT = {"batch_size": 8, "steps": 40}


def find(net=None, data=None, **given):
    return jfit.lr_find(mlp() if net is None else net, blobs(100) if data is None else data, **{**SHORT, **given})


# ------------------------------------------------------------------------------------------------ the sweep
def test_each_step_uses_its_learning_rate_as_a_manual_loop_does():
    x, y = blobs(16)
    found = find(data=(x, y), start=0.01, end=1.0, steps=6, shuffle=False, smoothing=0.0, seed=3)
    model = jfit.lower(mlp())
    batches = [{"data": x[i : i + 8], "softmax_label": y[i : i + 8]} for i in (0, 8)]
    state, step = jfit.init_state(model, "sgd", batches[0], seed=3), jax.jit(jfit.train_step(model, "sgd"))
    losses = []
    for i, rate in enumerate(np.geomspace(0.01, 1.0, 6)):
        state, out = step(state._replace(base_lr=jnp.float32(rate)), batches[i % 2])
        losses.append(float(out.loss))
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(found.rates, np.geomspace(0.01, 1.0, 6), rtol=2e-6)
    assert len(found) == len(found.smoothed) == 6 and found.stopped == "end"


def test_equal_seeds_give_equal_sweeps_on_one_device_and_close_ones_on_eight():
    one, again, other = find(), find(), find(seed=1)
    np.testing.assert_array_equal(one.losses, again.losses)
    assert not np.array_equal(one.losses, other.losses)
    np.testing.assert_allclose(find(devices=8, end=0.1).losses, find(end=0.1).losses, rtol=1e-4)


def test_a_diverging_sweep_ends_early():
    found = find(optimizer_params={"momentum": 0.9}, end=1e4, diverge=2.0)
    assert found.stopped == "diverged" and len(found) < 40 and "diverged there" in repr(found)
    assert found.smoothed[-1] > 2 * found.smoothed.min() and found.smoothed[-1] > found.smoothed[0]
    assert (found.smoothed[1:-1] <= np.maximum(2 * np.minimum.accumulate(found.smoothed)[1:-1], found.smoothed[0])).all()


def test_the_host_waits_once_in_eight_steps_and_compiles_once():
    with counters.counted() as seen:
        find(steps=64, end=0.1)
    assert seen["traces:train"] == 1 and seen["traces:train_tail"] == 0
    assert seen["host_syncs"] <= 64 // 8 + 2  # one of them for the initial values


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("lion", marks=pytest.mark.slow)])
def test_a_network_trains_at_the_suggestion(optimizer):
    rows = blobs(400)
    found = find(data=rows, optimizer=optimizer, steps=100)
    given = {"optimizer": optimizer, "optimizer_params": {"learning_rate": found.suggestion}, "progress": False}
    losses = jfit.fit(mlp(), rows, batch_size=8, num_epoch=4, **given).history.column("loss")
    assert losses[-1] < 0.5 * found.smoothed[0], (found, losses)


def test_the_suggestion_is_at_the_steepest_loss_for_any_smoothing():
    rates = np.geomspace(1e-6, 1e2, 200)
    losses = 1 + 2 / (1 + (rates / 1e-2) ** 2)  # falls fastest at 0.01
    for smoothing in (0.0, 0.5, 0.8, 0.9):  # a span of 9 steps is most of this fall: it begins a little before its middle
        assert RateRange(rates, losses, smoothing=smoothing).suggestion == pytest.approx(1e-2, rel=0.3)


def test_noise_of_small_batches_does_not_determine_the_suggestion():
    rates = np.geomspace(1e-6, 1e2, 120)
    for seed in range(10):
        noise = np.random.default_rng(seed).normal(scale=0.2, size=120)
        seen = RateRange(rates, 1 + 2 / (1 + (rates / 1e-2) ** 2) + noise)
        assert 1e-3 < seen.suggestion < 5e-2


# ------------------------------------------------------------------------------------------------ nothing is left behind
def test_arguments_are_not_modified():
    model = jfit.lower(mlp(batch_norm=True))
    state = jfit.init_state(model, "sgd", {"data": blobs(8)[0]})
    before = bits(state)
    find(model, params=state.params, aux=state.aux, steps=10)
    assert bits(state) == before
    params, (x, y) = {"w": jnp.ones((4, 3))}, blobs(16)
    loss = optax.softmax_cross_entropy_with_integer_labels
    find(lambda p, x: x @ p["w"], (x, y.astype("int32")), loss=loss, params=params)
    assert params["w"].tolist() == np.ones((4, 3)).tolist()


def test_an_mxnet_iterator_is_reset_afterwards():
    source = jfit.NDArrayIter(*blobs(40), batch_size=8)
    find(data=source, steps=3)
    assert len(list(source)) == 5


def test_streams_are_supported_and_an_exhausted_one_reports_its_last_step():
    x, y = blobs(40)
    batches = [{"data": x[i : i + 8], "softmax_label": y[i : i + 8]} for i in range(0, 40, 8)]
    whole = find(data=batches, steps=12, end=0.1)
    assert len(whole) == 12
    np.testing.assert_array_equal(find(data=lambda: iter(batches), steps=12, end=0.1).losses, whole.losses)
    with pytest.raises(ValueError, match="exhausted") as caught:
        find(data=iter(batches), steps=12)
    assert any("did 5 of its 12 steps; steps=5" in note for note in caught.value.__notes__)


def test_labels_weights_and_regularizers_are_those_of_fit():
    x, y = blobs(40)
    frame = pd.DataFrame(x).assign(target=y)
    plain, short = find(data=(x, y), steps=4), {"steps": 4}
    np.testing.assert_array_equal(find(data=frame, label="target", **short).losses, plain.losses)
    rows = np.where(y == 1, 5.0, 1.0)
    weighted = find(data=(x, y, rows), **short).losses
    assert (weighted != plain.losses).any()
    np.testing.assert_array_equal(find(data=(x, y), sample_weight=rows, **short).losses, weighted)
    np.testing.assert_array_equal(find(data=(x, y), class_weight={0: 1.0, 1: 5.0, 2: 1.0}, **short).losses, weighted)
    added = find(data=(x, y), regularizers={"*_weight": lambda w: 3.0 + 0 * w.sum()}, **short).losses - plain.losses
    np.testing.assert_allclose(added, added[0], rtol=1e-5)
    assert added[0] > 2.9


def test_ctrl_c_returns_the_partial_sweep():
    x, y = blobs(16)

    def source(epoch):
        if epoch == 9:
            os.kill(os.getpid(), signal.SIGINT)
        yield {"data": x, "softmax_label": y}

    found = find(data=source, steps=500, batch_size=16)
    assert found.stopped == "interrupted" and 9 <= len(found) < 500 and np.isfinite(found.losses).all()
    assert "interrupted" in repr(found)


# ------------------------------------------------------------------------------------------------ what it tells
def curve(losses, **given):
    return RateRange(np.geomspace(1e-5, 1.0, len(losses)), losses, **given)


def test_a_loss_that_never_falls_has_no_suggestion_and_can_be_plotted(tmp_path):
    rising = curve(np.linspace(1, 2, 20))
    with pytest.raises(ValueError, match="the loss never decreased in 20 steps, with rates from 1e-05 to 1; pass"):
        _ = rising.suggestion
    assert "none, the loss never decreased" in repr(rising)
    rising.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_the_curve_has_a_logarithmic_axis_and_marks_the_suggestion():
    seen = curve(3 - 2 / (1 + np.exp(-np.linspace(-8, 4, 60))))
    axis = seen.plot().axes[0]
    assert axis.get_xscale() == "log" and axis.get_xlabel() == "learning rate"
    marked = [line for line in axis.lines if "suggestion" in str(line.get_label())]
    assert marked[0].get_xdata()[0] == seen.suggestion


def test_without_matplotlib_or_steps_plot_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    seen = curve(np.linspace(2, 1, 20))
    with pytest.raises(ImportError, match="lr_find: plot needs matplotlib"):
        seen.plot("a.png")
    with pytest.raises(ValueError, match="nothing to plot"):
        RateRange([], []).plot()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": 0.0}, "start is 0.0; expected a number above 0"),
        ({"start": 1.0, "end": 0.1}, "start is 1.0, end is 0.1, .*; expected start < end"),
        ({"steps": 1}, "steps is 1 .*; expected .*at least 2 steps"),
        ({"smoothing": 1.0}, "smoothing is 1.0; expected a number from 0 to below 1"),
        ({"diverge": 1.0}, "diverge is 1.0; expected .*diverge above 1"),
        ({"optimizer": optax.adam(0.1)}, "lr_find: the optimizer .* contains its learning rate"),
        ({"optimizer": "adm"}, "unknown optimizer 'adm'"),
        (
            {"data": (np.full((16, 4), np.nan, "float32"), np.zeros(16))},
            "the loss of the first step is nan, with rate",
        ),
        ({"data": (np.zeros((0, 4), "float32"), np.zeros(0))}, "row"),
    ],
)
def test_errors_name_the_actual_and_expected_value(given, message):
    with pytest.raises(ValueError, match=message):
        find(**given)
