"""row_sparse gradients in scripts: updaters and key-value stores update only the stored rows, with MXNet's values."""

import numpy as np

import jfit.mx as mx


def gradient(record, shape):
    return mx.nd.sparse.row_sparse_array((np.asarray(record["values"], "float32"), record["indices"]), shape=shape)


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
