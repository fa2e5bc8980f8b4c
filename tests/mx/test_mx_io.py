"""mx.io: iterators with NDArrays, resizing and prefetching."""

import numpy as np
import pytest

import jfit.mx as mx

X, Y = np.arange(20).reshape(10, 2), np.arange(10)


def base(scale=1):
    return mx.io.NDArrayIter(X * scale, Y, 4)


def labels(it):
    return [b.label[0].asnumpy().tolist() for b in it]


def test_batches_are_ndarrays_of_the_described_dtype():
    it = mx.io.NDArrayIter({"b": X, "a": mx.nd.array(Y, dtype="int32")}, Y, 4)
    batch = it.next()
    assert all(isinstance(a, mx.nd.NDArray) for a in batch.data + batch.label)
    assert [(d.name, d.dtype) for d in it.provide_data] == [("a", np.int32), ("b", np.float32)]
    assert [a.dtype for a in batch.data] == [np.int32, np.float32]


def test_writing_into_a_batch_does_not_change_the_data():
    it = base()
    it.next().data[0][:] = -1
    it.reset()
    assert it.next().data[0].asnumpy().min() == 0


def test_resize_iter_wraps_around_and_can_keep_its_position():
    first, second = [0, 1, 2, 3], [4, 5, 6, 7]
    it = mx.io.ResizeIter(base(), 4)
    assert labels(it) == [first, second, [8, 9, 0, 1], first]
    it.reset()
    assert labels(it)[0] == first
    it = mx.io.ResizeIter(base(), 1, reset_internal=False)
    assert labels(it) == [first]
    it.reset()
    assert labels(it) == [second]


def test_prefetching_iter_renames_the_data_of_several_iterators():
    it = mx.io.PrefetchingIter(
        [base(), base(2)],
        rename_data=[{"data": "d1"}, {"data": "d2"}],
        rename_label=[{"softmax_label": "l1"}, {"softmax_label": "l2"}],
    )
    assert [(d.name, d.shape) for d in it.provide_data] == [("d1", (4, 2)), ("d2", (4, 2))]
    batch = it.next()
    np.testing.assert_array_equal(batch.data[1].asnumpy(), 2 * batch.data[0].asnumpy())
    assert len(batch.label) == 2


def test_iterators_of_unequal_length_raise():
    it = mx.io.PrefetchingIter([base(), mx.io.ResizeIter(base(), 2)])
    with pytest.raises(ValueError, match="end at different batches"):
        list(it)


def test_an_iterator_error_raises_once_and_reset_restarts():
    class Broken(mx.io.NDArrayIter):
        reads = 0

        def next(self):
            self.reads += 1
            if self.reads == 2:
                raise OSError("the disk is gone")
            return super().next()

    it = mx.io.PrefetchingIter(
        [base(), Broken(X, Y, 4)], rename_data=[{}, {"data": "d2"}], rename_label=[{}, {"softmax_label": "l2"}]
    )
    it.next()
    with pytest.raises(OSError, match="the disk is gone"):
        it.next()
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        it.next()
    it.reset()
    assert labels(it) == labels(base())
