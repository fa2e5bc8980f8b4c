"""Faults in data: masked arrays, row weights, labels and row indices that are invalid, in arrays, streams and evaluation."""

import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import sym
from jfit.data import NDArrayIter

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
    half = np.repeat(np.float32([0, 1]), ROWS // 2)
    assert fit(net(), batches(X, Y, half, form=form)).history.column("loss")[-1] > 0  # single batches may have none
