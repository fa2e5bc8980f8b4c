"""row_sparse gradients in scripts: updaters and key-value stores update only the stored rows, with MXNet's values."""

import json
from pathlib import Path

import numpy as np
import pytest

import jfit.mx as mx

UPDATES = json.loads((Path(__file__).parents[1] / "golden" / "rows.json").read_text())["updates"]


def gradient(record, shape):
    return mx.nd.sparse.row_sparse_array((np.asarray(record["values"], "float32"), record["indices"]), shape=shape)


@pytest.mark.repetitions(5)
@pytest.mark.parametrize("case", UPDATES[5:], ids=lambda c: f"{c['name']}-{c['settings']}")
def test_an_updater_updates_the_rows_of_a_gradient_as_mxnet_does(case):
    optimizer = mx.optimizer.create(case["name"], learning_rate=0.25, rescale_grad=0.5, **case["settings"])
    optimizer.set_lr_mult({0: case["lr_mult"]})
    updater, weight = mx.optimizer.get_updater(optimizer), mx.nd.array(case["before"])
    for each in case["gradients"]:
        updater(0, gradient(each, weight.shape), weight)
    np.testing.assert_allclose(weight.asnumpy(), case["after"], rtol=2e-6, atol=1e-7)
    state = updater.states[0]
    slots = () if state is None else state if isinstance(state, tuple) else (state,)
    for slot, expected in zip(slots, case["slots"], strict=True):
        np.testing.assert_allclose(slot.asnumpy(), expected, rtol=2e-6, atol=1e-7)


def test_a_store_updates_the_rows_that_were_pushed():
    store = mx.kv.create("local")
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, wd=0.5, rescale_grad=1.0))
    store.init("w", mx.nd.ones((4, 1)))
    pushed = [gradient({"values": [[1.0]], "indices": [row]}, (4, 1)) for row in (1, 3)]
    store.push("w", pushed)
    found = mx.nd.zeros((4, 1))
    store.pull("w", out=found)
    assert found.asnumpy()[:, 0].tolist() == [1.0, 0.25, 1.0, 0.25]
    store.push("w", [mx.nd.zeros((4, 1)), pushed[0]])  # a sum with a whole array is a whole array
    store.pull("w", out=found)
    assert found.asnumpy()[0, 0] == 0.75


def test_gradients_with_different_numbers_of_rows_share_few_programs():
    rows = [gradient({"values": [[1.0]] * n, "indices": list(range(n))}, (9, 1)).by_rows for n in (0, 1, 3, 4)]
    assert [len(r.indices) for r in rows] == [1, 1, 4, 4]
    assert [float(r.dense(9).sum()) for r in rows] == [0, 1, 3, 4]


def test_retain_keeps_the_selected_stored_rows():
    some = gradient({"values": [[1.0], [2.0], [3.0]], "indices": [0, 2, 3]}, (5, 1))
    kept = some.retain(mx.nd.array([3, 0, 1]))
    assert kept.indices.asnumpy().tolist() == [0, 3] and kept.asnumpy()[:, 0].tolist() == [1, 0, 0, 3, 0]
