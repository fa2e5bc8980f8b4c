"""Property tests of array files and .states files: round trips, and damaged files raise nothing but FormatError."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jfit.formats import FormatError
from jfit.formats.mxnet_arrays import DTYPES, dumps, loads
from jfit.formats.mxnet_states import dump_states, load_states
from jfit.formats.sparse import SparseArray

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint"
ARRAY_FILES = sorted(p for p in GOLDEN.iterdir() if p.suffix in (".params", ".v0"))
STATE_FILES = sorted(GOLDEN.glob("*.states"))

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw):
    """Any bytes as any dtype: also NaNs with a payload and subnormal numbers."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if dtype == np.bool_:
        return np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool).reshape(shape)
    return np.frombuffer(draw(st.binary(min_size=count, max_size=count)), dtype).reshape(shape)


@st.composite
def sparse(draw):
    rows = sorted(draw(st.sets(st.integers(0, 9))))
    return SparseArray("row_sparse", np.ones((len(rows), 3), "float32"), (np.array(rows, "int64"),), (10, 3))


entries = st.one_of(arrays(), sparse(), st.none())
states = st.recursive(
    st.one_of(entries, st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3),
    max_leaves=5,
)
indices = st.integers(-(2**40), 2**40) | st.text(max_size=10).filter(lambda name: name != "__jfit__")


def check_same(got, want):
    if isinstance(want, SparseArray):
        assert got.stype == want.stype and got.shape == want.shape
        want, got = want.todense(), got.todense()
    if isinstance(want, np.ndarray):
        assert got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()
        assert got.flags.writeable
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check_same(g, w)
    else:
        assert type(got) is type(want) and got == want


@given(st.dictionaries(st.text(max_size=8), entries, min_size=1, max_size=4) | st.lists(entries, max_size=4))
@settings(max_examples=50, deadline=None)
def test_arrays_round_trip_bit_equal(values):
    got = loads(dumps(values))
    if isinstance(values, dict):
        assert list(got) == list(values)
        got, values = list(got.values()), list(values.values())
    check_same(got, values)


@given(
    st.dictionaries(indices, states, max_size=4),
    st.none() | st.dictionaries(indices, st.integers(0, 2**40), max_size=4),
    st.none() | st.integers(0, 2**40),
)
@settings(deadline=None)
def test_states_and_update_counts_round_trip(values, counts, num_update):
    got = load_states(dump_states(values, counts, num_update))
    assert list(got.states) == list(values) and got.counts == counts and got.num_update == num_update
    check_same(list(got.states.values()), list(values.values()))


def survives(read, data):
    """Damage is refused by FormatError or not noticed; nothing else may come out."""
    try:
        read(data, "damaged")
    except FormatError as error:
        assert error.path == "damaged"
        return False
    return True


@pytest.mark.parametrize("path", ARRAY_FILES, ids=lambda path: path.name)
def test_a_truncated_array_file_raises(path):
    data = path.read_bytes()
    assert survives(loads, data)
    assert not [at for at in range(len(data)) if survives(loads, data[:at])]


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("path", STATE_FILES, ids=lambda path: path.name)
def test_a_truncated_states_file_raises(path):
    data = path.read_bytes()
    assert survives(load_states, data)
    assert not [at for at in range(len(data)) if survives(load_states, data[:at])]
