"""Loaders with worker processes and threads; tests/mx/checks/gluon_data.py compares batches with those of MXNet."""

import multiprocessing
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from jfit.mx.gluon.data import ArrayDataset, BatchSampler, DataLoader, SequentialSampler, SimpleDataset
from jfit.mx.gluon.data.vision import transforms

import jfit.mx as mx


def slow(x):
    time.sleep(30 if x == 2 else 0)
    return x


def fails_at_3(x):
    if x == 3:
        raise KeyError(x)
    return x


class CannotBeUnpickled(Exception):
    def __init__(self, where, what):
        super().__init__(f"{what} at {where}")


def fails_unpicklably(x):
    raise CannotBeUnpickled(x, "an error")


def dies_at_3(x):
    if x == 3:
        os._exit(1)
    return x


def drawn(x):
    return random.random(), np.random.rand(), float(mx.nd.random.uniform(shape=1).asscalar())


def where(x):
    return os.getpid()


def values(loader):
    return [[part.asnumpy().tolist() for part in batch] for batch in loader]


PAIRS = ArrayDataset(mx.nd.array(np.arange(20).reshape(10, 2)), np.arange(10))
IMAGES = mx.nd.array(np.random.RandomState(0).randint(0, 256, (5, 8, 8, 3)), dtype="uint8")


def test_workers_make_the_batches_that_this_process_makes():
    np.random.seed(3)
    expected = [values(DataLoader(PAIRS, 3, shuffle=True, last_batch="rollover")) for _ in range(2)]
    np.random.seed(3)
    found = [values(DataLoader(PAIRS, 3, shuffle=True, last_batch="rollover", num_workers=2)) for _ in range(2)]
    assert found == expected


def test_workers_are_other_processes_and_stay_for_the_next_pass():
    loader = DataLoader(SimpleDataset(list(range(8))).transform(where), 2, num_workers=1)
    first, second = ([set(batch.asnumpy().tolist()) for batch in loader] for _ in range(2))
    assert first == second
    assert {os.getpid()} not in first


def test_workers_apply_transforms_that_are_blocks():
    steps = [transforms.Resize(6), transforms.CenterCrop(4), transforms.ToTensor(), transforms.Normalize(0.5, 0.25)]
    data = ArrayDataset(IMAGES, [0, 1, 2, 3, 4]).transform_first(transforms.Compose(steps))
    for one, other in zip(DataLoader(data, 2), DataLoader(data, 2, num_workers=2), strict=True):
        np.testing.assert_allclose(one[0].asnumpy(), other[0].asnumpy(), rtol=1e-6)
        assert other[0].context == mx.cpu()


@pytest.mark.slow
def test_random_numbers_of_workers_do_not_depend_on_their_number_and_differ_between_batches():
    data, found = SimpleDataset(list(range(4))).transform(drawn), []
    for workers in (1, 2):
        random.seed(1), np.random.seed(1), mx.random.seed(1)
        loader = DataLoader(data, 2, num_workers=workers)
        found.append([values(loader), values(loader)])
    assert found[0] == found[1]
    assert len({str(batch) for one_pass in found[0] for batch in one_pass}) == 4


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "thread_pool": True}])
def test_an_error_keeps_its_type_and_names_the_sample(options):
    loader = DataLoader(SimpleDataset([1, 2, 3, 4]).transform(fails_at_3), 1, **options)
    batches = iter(loader)
    assert [next(batches).asscalar(), next(batches).asscalar()] == [1, 2]
    with pytest.raises(KeyError, match="3") as caught:
        next(batches)
    assert "raised by sample 2 of the data set" in caught.value.__notes__[0]


def test_an_error_of_a_worker_that_cannot_be_unpickled_becomes_a_runtime_error():
    loader = DataLoader(SimpleDataset([7]).transform(fails_unpicklably), 1, num_workers=1)
    with pytest.raises(RuntimeError, match="CannotBeUnpickled: an error at 7"):
        list(loader)


def test_a_pass_can_be_left_and_another_begun():
    loader = DataLoader(PAIRS, 2, num_workers=2)
    next(iter(loader))
    assert values(loader) == values(DataLoader(PAIRS, 2))


def test_a_worker_that_takes_too_long():
    loader = DataLoader(SimpleDataset([1, 2]).transform(slow), 1, num_workers=1, timeout=5, thread_pool=True)
    batches = iter(loader)
    next(batches)
    loader._timeout = 0.1
    with pytest.raises(multiprocessing.TimeoutError, match=r"did not make its batch within 0.1 s; pass a larger timeout="):
        next(batches)


def test_a_worker_that_is_killed():
    loader = DataLoader(SimpleDataset([1, 3]).transform(dies_at_3), 1, num_workers=1)
    for _ in range(2):  # the second pass has a new worker
        batches = iter(loader)
        assert next(batches).asscalar() == 1
        with pytest.raises(RuntimeError, match=r"a worker process ended while it made a batch; .* pass a smaller num_workers="):
            next(batches)


def test_a_data_set_that_cannot_be_pickled_is_read_here_with_a_warning():
    data = SimpleDataset([1, 2, 3]).transform(lambda x: x * 2)
    with pytest.warns(UserWarning, match=r"num_workers=2, but the data set.*cannot be copied.*pass thread_pool=True"):
        assert [batch.asnumpy().tolist() for batch in DataLoader(data, 2, num_workers=2)] == [[2, 4], [6]]


SCRIPT = """
import multiprocessing, sys
import jfit.mx as mx
print("script", flush=True)
def double(x):
    return x * 2
data = mx.gluon.data.SimpleDataset(mx.nd.ones((3, 2)))
if __name__ == "__main__":
    if sys.argv[1:]:
        multiprocessing.set_start_method(sys.argv[1])
        data = data.transform(double)
    print([batch.asnumpy().tolist() for batch in mx.gluon.data.DataLoader(data, 2, num_workers=1)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", [None, "spawn", "forkserver"])
def test_a_script_is_run_once_unless_it_chose_a_start_method(method, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, "script.py", *filter(None, [method])], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    value = 2.0 if method else 1.0
    assert str([[[value] * 2] * 2, [[value] * 2]]) in run.stdout
    assert run.stdout.count("script") == 1 + bool(method)
    assert not run.stderr


def test_batches_of_lists_of_numbers():
    loader = DataLoader(PAIRS, batch_sampler=BatchSampler(SequentialSampler(4), 2), num_workers=1, prefetch=0)
    assert [labels for _, labels in values(loader)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "thread_pool": True}])
def test_batches_are_numpy_arrays_if_these_are_switched_on(options):
    mx.npx.set_np()
    try:
        data = ArrayDataset(mx.np.ones((3, 2)), np.arange(3))
        assert [type(part) for batch in DataLoader(data, 2, **options) for part in batch] == [mx.np.ndarray] * 4
    finally:
        mx.npx.reset_np()
