"""Property tests of the data iterators: they hold for all sizes, seeds and positions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jfit.data import ArrayData, Batch, NDArrayIter, pad_rows, rows

SIZES = st.integers(1, 60)
SEEDS = st.integers(-(2**63), 2**63 - 1)
QUICK = settings(max_examples=40, deadline=None)


def epoch_rows(arrays, epoch, batch_size, start=0):
    return [b.inputs["data"].tolist() for b in arrays.batches(epoch, batch_size, start)]


@QUICK
@given(n=SIZES, batch_size=SIZES, seed=SEEDS, epoch=st.integers(0, 1000), shuffle=st.booleans())
def test_an_epoch_contains_every_row_once(n, batch_size, seed, epoch, shuffle):
    arrays = ArrayData({"data": np.arange(n)}, seed=seed, shuffle=shuffle)
    batches = epoch_rows(arrays, epoch, batch_size)
    assert sorted(row for b in batches for row in b) == list(range(n))
    assert len(batches) == arrays.num_batches(batch_size)
    assert all(len(b) == batch_size for b in batches[:-1])


@QUICK
@given(n=SIZES, batch_size=st.integers(1, 10), seed=SEEDS, cut=st.integers(0, 60))
def test_an_epoch_resumed_at_a_batch_goes_on_identically(n, batch_size, seed, cut):
    arrays = ArrayData({"data": np.arange(n)}, seed=seed)
    assert epoch_rows(arrays, 2, batch_size, start=cut) == epoch_rows(arrays, 2, batch_size)[cut:]


@QUICK
@given(n=st.integers(1, 20), more=st.integers(0, 50), weighted=st.booleans(), seed=st.integers(0, 99))
def test_padding_never_changes_weighted_sums(n, more, weighted, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(n, 3)).astype(np.float32), rng.uniform(size=n).astype(np.float32)
    batch = pad_rows(Batch({"data": x}, w if weighted else None), n + more)
    weight = np.ones(n, np.float32) if batch.weight is None else batch.weight
    before = (x * (w if weighted else np.ones_like(w))[:, None]).sum(0)
    np.testing.assert_allclose((batch.inputs["data"] * weight[:, None]).sum(0), before, rtol=1e-5, atol=1e-5)
    assert rows(batch) == n + more
    assert {tuple(r) for r in batch.inputs["data"].tolist()} == {tuple(r) for r in x.tolist()}


@QUICK
@given(n=SIZES, batch_size=st.integers(1, 20), seed=st.integers(0, 99))
def test_rows_that_roll_over_are_never_lost_or_repeated(n, batch_size, seed):
    it = NDArrayIter(np.arange(n), batch_size=batch_size, shuffle=True, last_batch_handle="roll_over", seed=seed)
    seen = []
    for _ in range(4):
        seen += [int(v) for b in it for v in b.data[0]]
        it.reset()
    counts = np.bincount(seen, minlength=n)
    left = 4 * n - len(seen)
    assert left < batch_size and counts.sum() == len(seen) and counts.max(initial=0) <= 4
