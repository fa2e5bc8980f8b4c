"""Sparse arrays in files: read as stored parts or dense."""

import struct

import numpy as np
import pytest

from jfit.formats import FormatError, SparseArray, load_arrays, save_arrays
from jfit.formats.mxnet_arrays import loads

ROWS = SparseArray("row_sparse", np.float32([[1, 2], [3, 4]]), (np.array([1, 3]),), (5, 2))
CUBE = SparseArray("row_sparse", np.ones((1, 2, 3), "float32"), (np.array([2]),), (4, 2, 3))
MATRIX = SparseArray("csr", np.float32([1, 2, 3]), (np.array([0, 2, 2, 3]), np.array([0, 2, 1])), (3, 3))
ALL = {"rows": ROWS, "cube": CUBE, "matrix": MATRIX, "dense": np.ones(2, "float32")}


@pytest.fixture
def path(tmp_path):
    return save_arrays(tmp_path / "s.params", ALL)


def test_sparse_arrays_are_kept_or_become_dense(path):
    sparse, dense = load_arrays(path), load_arrays(path, sparse="dense")
    for name in ("rows", "cube", "matrix"):
        assert isinstance(sparse[name], SparseArray) and sparse[name].stype == ALL[name].stype
        assert isinstance(dense[name], np.ndarray)
        np.testing.assert_array_equal(sparse[name].todense(), ALL[name].todense())
        np.testing.assert_array_equal(dense[name], ALL[name].todense())
    assert sparse["dense"].tolist() == [1, 1]
    assert save_arrays(path.with_name("b.params"), sparse).read_bytes() == path.read_bytes()
    with pytest.raises(ValueError, match="sparse is 'csr'; expected one of 'keep', 'dense'"):
        load_arrays(path, sparse="csr")


def test_the_number_of_rows_follows_from_the_indices_where_mxnet_wrote_none():
    # storage shape (0, 2) though two rows follow: MXNet saved before it had waited for the array
    record = struct.pack("<Iiiqq", 0xF993FAC9, 1, 2, 0, 2) + struct.pack("<iqq", 2, 5, 2) + struct.pack("<iii", 1, 0, 0)
    record += struct.pack("<iiq", 6, 1, 2) + ROWS.data.tobytes() + ROWS.aux[0].tobytes()
    data = struct.pack("<QQQ", 0x112, 0, 1) + record + struct.pack("<Q", 0)
    assert loads(data)[0].todense().tolist() == ROWS.todense().tolist()
    with pytest.raises(FormatError, match="needs"):
        loads(data.replace(struct.pack("<iiq", 6, 1, 2), struct.pack("<iiq", 6, 1, 2**40)))
