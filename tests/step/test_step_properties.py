"""Property tests: for any rows, weights and number of devices, the update equals that of one device on the unpadded batch."""

import functools

import numpy as np
import pytest
from engine_nets import assert_close, assert_equal, batch_of, mlp, on_host, weighted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jfit
from jfit.data.batch import pad_rows
from jfit.parallel import split_batch

SIZES = (3, 13)  # few, so that few programs are compiled
OPTIMIZER = jfit.optim.sgd(0.1, momentum=0.9)
ACC = jfit.metrics.get("acc")
relaxed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
some_weights = st.sampled_from(SIZES).flatmap(lambda n: st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=n, max_size=n))


@functools.cache
def program(devices: int) -> jfit.parallel.DataParallel:
    return jfit.data_parallel(jfit.train_step(mlp(0.5), OPTIMIZER, metrics=ACC), devices)


@functools.cache
def first_state():
    return on_host(jfit.init_state(mlp(0.5), OPTIMIZER, batch_of(SIZES[0]), metrics=ACC))


def updated(devices: int, batch):
    state, out = program(devices)(program(devices).place(first_state()), batch)
    return on_host((state.params, state.opt_state, state.metrics, out.loss))


@pytest.mark.slow
@relaxed
@given(weight=some_weights, devices=st.sampled_from([2, 8]), seed=st.integers(0, 100))
def test_the_update_does_not_depend_on_the_number_of_devices(weight, devices, seed):
    batch = weighted(batch_of(len(weight), seed=seed), weight)
    assert_close(updated(devices, batch), updated(1, batch), 1e-5)


@pytest.mark.slow
@relaxed
@given(weight=some_weights, devices=st.sampled_from([1, 2, 8]), junk=st.sampled_from([np.nan, np.inf, -1e30, 5.0]))
def test_padding_rows_have_no_effect_for_any_values(weight, devices, junk):
    batch = weighted(batch_of(len(weight)), weight, weight)
    padded = pad_rows(batch, 16)
    for name, fill in (("data", junk), ("softmax_label", -1)):
        values = np.array(padded.inputs[name])
        values[padded.weight == 0] = fill
        padded.inputs[name] = values
    assert_close(updated(devices, padded), updated(1, batch), 1e-5)


@relaxed
@given(rows=st.integers(1, 40), devices=st.sampled_from([1, 2, 4, 8]), multiple=st.sampled_from([1, 2, 3]))
def test_a_split_contains_every_row_once_and_padding_has_weight_zero(rows, devices, multiple):
    numbers = np.arange(rows, dtype=np.float32)
    cut = split_batch(weighted({"data": numbers}, np.ones(rows)), devices, multiple=multiple)
    data, weight = np.reshape(cut.inputs["data"], -1), np.reshape(cut.weight, -1)
    assert cut.inputs["data"].shape[-1] % multiple == 0 and len(data) < rows + devices * multiple
    assert_equal(data[weight > 0], numbers)
    assert set(data) <= set(numbers) and weight.sum() == rows
