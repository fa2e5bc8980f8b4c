"""Faults in data: masked arrays, row weights, labels and row indices that are invalid, in arrays, streams and evaluation."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import counters, sym
from jfit.data import NDArrayIter
from jfit.data.valid import check_values, valid_indices
from jfit.feed import train_data
from jfit.lowering.lookups import Lookup, lookups_of_function

ROWS, BATCH = 32, 8
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(ROWS, 4)).astype(np.float32), RNG.integers(0, 3, ROWS).astype(np.float32)
FORMS = pytest.mark.parametrize("form", [np.asarray, jnp.asarray], ids=["numpy", "jax"])


def net(**attrs):
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc"), name="softmax", **attrs)


def fit(model, data, **options):
    return jfit.fit(model, data, **{"num_epoch": 1, "batch_size": BATCH, "progress": False, **options})


def batches(*arrays, form=np.asarray):
    """Batches of the rows of arrays, which all have one form."""
    return [tuple(form(a[i : i + BATCH]) for a in arrays) for i in range(0, len(arrays[0]), BATCH)]


@pytest.fixture(scope="module")
def run():
    return fit(net(), (X, Y))


# ------------------------------------------------------------------------------------------------ masked arrays
def masked(array, row):
    """A copy with one masked value in this row."""
    array = np.ma.masked_array(array.copy(), mask=np.zeros(array.shape, bool))
    array[(row, *(0,) * (array.ndim - 1))] = np.ma.masked
    return array


def test_masked_values_in_inputs_labels_and_weights_raise(run):
    ones = np.ones(ROWS, np.float32)
    cases = [
        ("data", 5, lambda: fit(net(), (masked(X, 5), Y))),
        ("softmax_label", 3, lambda: fit(net(), (X, masked(Y, 3)))),
        ("weight", 7, lambda: fit(net(), (X, Y), sample_weight=masked(ones, 7))),
        ("data", 1, lambda: fit(net(), batches(masked(X, 9), Y, form=np.asanyarray))),
        ("data", 2, lambda: fit(net(), (list(masked(X, 6)), Y))),
        ("data", 4, lambda: run.predict(masked(X, 4))),
        ("softmax_label", 6, lambda: run.score((X, masked(Y, 6)))),
        ("data", 4, lambda: run.score({"data": masked(X, 4), "softmax_label": Y})),
    ]
    for name, row, call in cases[:4] + cases[5:]:
        with pytest.raises(ValueError, match=f"input '{name}' is a masked array with 1 masked value .the first in row {row}."):
            call()
    with pytest.raises(ValueError, match="is a masked array with 1 masked value"):  # a row of a list
        cases[4][2]()


def test_a_masked_array_without_masked_values_is_used_as_its_values(run):
    nothing = np.ma.masked_array(X, mask=np.zeros(X.shape, bool))
    assert np.array_equal(run.predict(nothing), run.predict(X))
    assert run.score((nothing, Y)) == run.score((X, Y))


def test_ndarray_iter_drops_masks_as_mxnet_does():
    assert np.array_equal(NDArrayIter(masked(X, 5), batch_size=ROWS).next().data[0], X)


# ------------------------------------------------------------------------------------------------ row weights
@FORMS
def test_an_epoch_without_a_positive_row_weight_raises(run, form):
    data = batches(X, Y, np.zeros(ROWS, np.float32), form=form)
    with pytest.raises(ValueError, match="epoch 0: no row of the data has a weight above 0 in the loss"):
        fit(net(), data)
    with pytest.raises(ValueError, match="evaluation: no row of the data has a weight above 0 in the loss"):
        run.score(data)
    half = np.repeat(np.array([0, 1], np.float32), ROWS // 2)
    assert fit(net(), batches(X, Y, half, form=form)).history.column("loss")[-1] > 0  # single batches may have none


# ------------------------------------------------------------------------------------------------ labels and row indices
IDS = RNG.integers(0, 10, (ROWS, 5)).astype(np.int32)


def lookup_net(shape=None):
    ids = sym.Variable("data") if shape is None else sym.Reshape(sym.Variable("data"), shape=shape)
    rows = sym.Embedding(ids, input_dim=10, output_dim=4, name="table")
    return sym.SoftmaxOutput(sym.FullyConnected(rows, num_hidden=3, name="fc"), name="softmax")


def looked_up(params, x):
    return params["table"][x.astype(jnp.int32)].mean(1) @ params["w"]


FUNCTION = {"loss": "cross_entropy", "params": {"table": np.ones((10, 4), np.float32), "w": np.zeros((4, 3), np.float32)}}


def with_value(array, at, value):
    array = array.astype(np.float32) if isinstance(value, float) else array.copy()
    array[at] = value
    return array


def test_invalid_labels_in_arrays_to_score_raise(run):
    for value in (7.0, -1.0, np.nan, 1.5):
        with pytest.raises(ValueError, match=f"'softmax_label': row 3 is {value}, expected classes 0..2"):
            run.score((X, with_value(Y, 19, value)))
    ignored = fit(net(use_ignore=True, ignore_label=-1), (X, with_value(Y, 19, -1.0)))
    assert ignored.score((X, with_value(Y, 19, -1.0)))["loss"] > 0


INDICES = pytest.mark.parametrize("value", [10, -1, np.nan, 1.5, float(2**24 + 2), -11], ids=str)


@pytest.mark.repetitions(2)
@INDICES
def test_an_index_outside_of_the_table_of_a_graph_raises(value):
    ids, y = with_value(IDS, (19, 2), value), Y
    shown = r"row {}, position \(2,\) is {}.*, expected the index of a row .* a whole number 0..9"
    for data, row in ((ids, y), 19), (batches(ids, y), 3):
        with pytest.raises(ValueError, match="input 'data': " + shown.format(row, value)):
            fit(lookup_net((-1, 5)), data)
    with pytest.raises(ValueError, match="batch 2 of epoch 0: input 'data': " + shown.format(3, value)):
        jfit.score(lookup_net(), (ids, y), params=trained_lookup().params, batch_size=BATCH)


@pytest.mark.repetitions(2)
@INDICES
def test_an_index_outside_of_the_table_of_a_function_raises_and_negative_ones_count_from_the_end(value):
    ids = with_value(IDS, (19, 2), value)
    if value == -1:
        assert fit(looked_up, (ids, Y.astype(int)), **FUNCTION).history.column("loss")[-1] > 0
        return
    for data, row in ((ids, Y.astype(int)), 19), (batches(ids, Y.astype(int)), 3):
        with pytest.raises(ValueError, match=rf"input 'x': row {row}, position \(2,\) is {value}.*a whole number -10..9"):
            fit(looked_up, data, **FUNCTION)


def trained_lookup(cache={}):  # noqa: B006 (one run for all tests)
    if not cache:
        cache["run"] = fit(lookup_net(), (IDS, Y))
    return cache["run"]


def test_float_indices_from_2_to_the_24_on_are_not_exact():
    valid = valid_indices(Lookup("ids", 1 << 25))
    check_values(np.array([(1 << 24) + 1], np.int32), valid)
    check_values(np.array([(1 << 24) - 1], np.float32), valid)
    with pytest.raises(ValueError, match=r"row 1 is 16777216.0, .* below 16777216, as float32 does not have all above"):
        check_values(np.array([3, 1 << 24], np.float32), valid)


def test_indices_that_a_function_clips_or_fills_itself_are_not_checked():
    table, ids = jnp.ones((10, 4)), jnp.zeros((3, 5), jnp.int32)

    def found(function):
        return lookups_of_function(jax.make_jaxpr(function)(table, ids), [None, "ids"])

    checked = (Lookup("ids", 10, True),)
    assert found(lambda t, i: t[i]) == found(lambda t, i: jnp.take(t, i, axis=0)) == checked
    assert found(lambda t, i: jax.vmap(lambda j: t[j])(i.reshape(15))) == checked
    assert found(lambda t, i: jax.jit(lambda t, i: t[:, i])(t, i)) == (Lookup("ids", 4, True),)
    assert found(lambda t, i: jax.vmap(jax.vmap(lambda j: t[j]))(i)) == checked
    assert found(lambda t, i: t[i] + t[:7][i]) == (Lookup("ids", 7, True),), "the smaller table"
    for mode in ("clip", "wrap"):
        assert found(lambda t, i, m=mode: jnp.take(t, i, axis=0, mode=m)) == ()
    assert found(lambda t, i: t.at[i].get(mode="fill", fill_value=0)) == ()
    assert found(lambda t, i: t[jnp.clip(i, 0, 9)]) == found(lambda t, i: t[i % 10]) == found(lambda t, i: t[i + 1]) == ()
    assert found(lambda t, i: t[i[:, 0]]) == (), "only a part of the input"


def test_rows_without_weight_may_have_any_index():
    ids, weight = with_value(IDS, (19, 2), 77), np.ones(ROWS, np.float32)
    weight[19] = 0
    assert fit(lookup_net(), batches(ids, Y, weight)).history.column("loss")[-1] > 0


# ------------------------------------------------------------------------------------------------ batches on the devices
@pytest.mark.repetitions(2)
@pytest.mark.parametrize("value", [7.0, -1.0, np.nan, 1.5], ids=str)
@FORMS
def test_an_invalid_label_in_a_later_batch_of_a_stream_raises(run, form, value):
    data, pattern = batches(X, with_value(Y, 19, value), form=form), f"'softmax_label': row 3 is {value}, expected classes 0..2"
    with pytest.raises(ValueError, match="batch 2 of epoch 0: label " + pattern):
        fit(net(), data)
    with pytest.raises(ValueError, match="batch 2 of (epoch 0|the evaluation data): label " + pattern):
        run.score(data)


def test_an_invalid_row_weight_on_the_device_raises(run):
    for value in (np.nan, -1.0):
        data = batches(X, Y, with_value(np.ones(ROWS, np.float32), 19, value), form=jnp.asarray)
        with pytest.raises(ValueError, match=f"batch 2 of epoch 0: weight of row 3 is {value}; row weights must be finite"):
            fit(net(), data, nan="skip")
        with pytest.raises(ValueError, match=f"weight of row 3 is {value}; row weights must be finite"):
            run.score(data)


@pytest.mark.slow
def test_an_invalid_index_or_label_of_a_function_on_the_device_raises():
    for value in (10, -11):
        data = batches(with_value(IDS, (19, 2), value), Y.astype(np.int32), form=jnp.asarray)
        with pytest.raises(ValueError, match=rf"batch 2 of epoch 0: input 'x': row 3, position \(2,\) is {value}, .* -10..9"):
            fit(looked_up, data, **FUNCTION)
    own_loss = {**FUNCTION, "loss": lambda o, y: -jnp.take_along_axis(jax.nn.log_softmax(o), y[:, None], axis=1)[:, 0]}
    data = batches(IDS, with_value(Y.astype(np.int32), 19, 3), form=jnp.asarray)
    with pytest.raises(ValueError, match=r"batch 2 of epoch 0: label 'label': row 3 is 3, expected classes 0..2"):
        fit(looked_up, data, **own_loss)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    "options",
    [{"devices": 2}, {"steps_per_call": 3}, {"devices": 2, "steps_per_call": 3}, {"reduce": "ordered", "devices": 2}],
    ids=str,
)
def test_faults_are_found_on_several_devices_and_with_several_steps_per_call(options):
    data = batches(X, with_value(with_value(Y, 22, 5.0), 27, 7.0), form=jnp.asarray)
    with pytest.raises(ValueError, match=r"batch 2 of epoch 0: label 'softmax_label': row 6 is 5.0"):
        fit(net(), data, **options)


def test_checks_of_arrays_on_the_device_cost_no_wait_of_the_training_no_program_and_no_bits(monkeypatch):
    used = np.where(np.arange(ROWS) == 19, 0, 1).astype(np.float32)
    forms = {form: batches(X, with_value(Y, 19, np.nan), used, form=form) for form in (np.asarray, jnp.asarray)}
    params, counts = {}, {}
    waits, read = [], counters.read
    monkeypatch.setattr(counters, "read", lambda tree: waits.append(threading.current_thread()) or read(tree))
    for form, data in forms.items():
        fit(net(), data, num_epoch=2)
        waits.clear()
        with counters.counted() as counted:
            params[form] = fit(net(), data, num_epoch=2).params
        here, is_jax = waits.count(threading.current_thread()), form is jnp.asarray
        assert len(waits) - here == is_jax * 2 * len(data)  # one for each batch, on its thread
        counts[form] = counted["compiles"], counted["traces"], here - is_jax  # the first batch is checked before the training
    assert counts[np.asarray] == counts[jnp.asarray]
    for name, value in params[np.asarray].items():
        assert np.array_equal(value, params[jnp.asarray][name]), name


@FORMS
def test_an_index_outside_of_the_table_raises_in_prediction(form):
    run, ids = trained_lookup(), with_value(IDS, (19, 2), 10)
    if form is np.asarray:
        pattern = r"predict: batch {}: input 'data': row {}, position \(2,\) is 10, expected the index of a row"
        for data, size, batch, row in ((ids, BATCH, 2, 3), (ids, ROWS, 0, 19), (batches(ids), None, 2, 3)):
            with pytest.raises(ValueError, match=pattern.format(batch, row)):
                run.predict(data, batch_size=size)
    assert np.isfinite(run.predict(form(IDS), batch_size=BATCH)).all()


# ------------------------------------------------------------------------------------------------ arrays that are changed
def train_and_overwrite(x):
    """Train with arrays on the host, and overwrite x after each epoch."""
    overwrite = lambda event: x.fill(event.epoch + 9.0) if event.kind == "epoch_end" else None  # noqa: E731
    return fit(net(), (x, Y), num_epoch=2, data_on_device=False, callbacks=[overwrite]).params


def test_an_array_that_is_changed_during_training_changes_no_run_or_is_reported(monkeypatch):
    expected = fit(net(), (X, Y), num_epoch=2, data_on_device=False).params
    params = train_and_overwrite(X.copy())
    assert all(np.array_equal(params[name], expected[name]) for name in expected)
    monkeypatch.setattr(train_data, "COPY_BYTES", 0)  # for arrays that are too large to be copied
    with pytest.warns(UserWarning, match="the array of input 'data' was changed before the end of epoch 1, and"):
        train_and_overwrite(X.copy())
