"""Sparse arrays in files: read as stored parts, as BCOO or dense, and written from BCOO."""

import struct

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO

from jfit.formats import FormatError, SparseArray, load_arrays, save_arrays
from jfit.formats.mxnet_arrays import loads

ROWS = SparseArray("row_sparse", np.float32([[1, 2], [3, 4]]), (np.array([1, 3]),), (5, 2))
CUBE = SparseArray("row_sparse", np.ones((1, 2, 3), "float32"), (np.array([2]),), (4, 2, 3))
MATRIX = SparseArray("csr", np.float32([1, 2, 3]), (np.array([0, 2, 2, 3]), np.array([0, 2, 1])), (3, 3))
ALL = {"rows": ROWS, "cube": CUBE, "matrix": MATRIX, "dense": np.ones(2, "float32")}


@pytest.fixture
def path(tmp_path):
    return save_arrays(tmp_path / "s.params", ALL)


def test_sparse_arrays_are_kept_or_become_bcoo_or_dense(path):
    assert isinstance(load_arrays(path)["rows"], SparseArray)
    sparse, dense = load_arrays(path, sparse="bcoo"), load_arrays(path, sparse="dense")
    for name in ("rows", "cube", "matrix"):
        want = ALL[name].todense()
        assert isinstance(sparse[name], BCOO) and isinstance(dense[name], np.ndarray)
        np.testing.assert_array_equal(sparse[name].todense(), want)
        np.testing.assert_array_equal(dense[name], want)
    assert (sparse["rows"].n_sparse, sparse["rows"].n_dense) == (1, 1) and sparse["matrix"].n_sparse == 2
    assert sparse["dense"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="sparse is 'csr'; expected one of 'keep', 'bcoo', 'dense'"):
        load_arrays(path, sparse="csr")


def test_a_bcoo_is_written_as_mxnet_has_it(path):
    again = loads(save_arrays(path.with_name("b.params"), load_arrays(path, sparse="bcoo")).read_bytes())
    assert [again[name].stype for name in ("rows", "cube", "matrix")] == ["row_sparse", "row_sparse", "csr"]
    for name in ("rows", "cube", "matrix"):
        np.testing.assert_array_equal(again[name].todense(), ALL[name].todense())
    assert path.with_name("b.params").read_bytes() == path.read_bytes()


def test_duplicate_and_out_of_range_indices_are_normalized(tmp_path):
    twice = BCOO((jnp.float32([1, 2, 4, 8]), jnp.array([[1, 0], [0, 1], [1, 0], [2, 2]])), shape=(2, 2))
    got = load_arrays(save_arrays(tmp_path / "t.params", [twice]))[0]
    assert got.todense().tolist() == [[0, 2], [5, 0]] and got.data.size == 2
    cube = BCOO((jnp.ones(1), jnp.zeros((1, 3), int)), shape=(2, 2, 2))
    with pytest.raises(ValueError, match=r"n_sparse=3 cannot be written: MXNet has rows .* and matrices"):
        save_arrays(tmp_path / "c.params", [cube])


def test_the_number_of_rows_follows_from_the_indices_where_mxnet_wrote_none():
    # storage shape (0, 2) though two rows follow: MXNet saved before it had waited for the array
    record = struct.pack("<Iiiqq", 0xF993FAC9, 1, 2, 0, 2) + struct.pack("<iqq", 2, 5, 2) + struct.pack("<iii", 1, 0, 0)
    record += struct.pack("<iiq", 6, 1, 2) + ROWS.data.tobytes() + ROWS.aux[0].tobytes()
    data = struct.pack("<QQQ", 0x112, 0, 1) + record + struct.pack("<Q", 0)
    assert loads(data)[0].todense().tolist() == ROWS.todense().tolist()
    with pytest.raises(FormatError, match="needs"):
        loads(data.replace(struct.pack("<iiq", 6, 1, 2), struct.pack("<iiq", 6, 1, 2**40)))
