"""mx.io's iterators over files and arrays against batches recorded from MXNet 1.9.1, and the deliberate differences."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from cases import iterators

import jfit.mx as mx

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "io" / "iterators.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    iterators.write_files(path)
    return path


def table(folder, name="x.csv", size=4, **more):
    return mx.io.CSVIter(data_csv=folder / name, data_shape=(6,), batch_size=size, **more)


# ------------------------------------------------------------------------------------------------ what MXNet gives
@pytest.mark.parametrize("name", iterators.FILES)
def test_files_give_the_batches_of_mxnet(name, folder):
    want, got = GOLDEN["files"][name], iterators.walk_files(mx, name, folder)
    assert got["described"] == want["described"] and len(got["batches"]) == len(want["batches"])
    for found, recorded in zip(got["batches"], want["batches"], strict=True):
        assert found[2] == recorded[2]
        for mine, theirs in zip(found[:2], recorded[:2], strict=True):
            np.testing.assert_allclose(np.hstack(mine), np.hstack(theirs), rtol=1e-6)  # sums of float32 read from text


@pytest.mark.parametrize("number", range(iterators.WALKS))
def test_arrays_give_the_batches_of_mxnet(number):
    assert iterators.walk_arrays(mx, number) == GOLDEN["arrays"][number]


def test_every_mxnet_name_exists_or_raises():
    for name in ("CSVIter", "DataBatch", "DataDesc", "DataIter", "LibSVMIter", "MNISTIter", "MXDataIter", "NDArrayIter"):
        assert name in dir(mx.io) and hasattr(mx.io, name)
    assert hasattr(mx.io, "PrefetchingIter") and hasattr(mx.io, "ResizeIter") and hasattr(mx.io, "ImageRecordIter")
    with pytest.raises(AttributeError, match=r"mx\.io\.ImageDetRecordIter: jfit does not provide 'ImageDetRecordIter' here"):
        mx.io.ImageDetRecordIter(path_imgrec="a.rec")


def test_the_protocol_of_an_iterator_over_files(folder):
    it = table(folder)
    assert isinstance(it, mx.io.MXDataIter) and isinstance(it, mx.io.DataIter)
    assert it.iter_next() and it.getdata().shape == (4, 6)
    assert it.getlabel().shape == (4,) and it.getpad() == 0 and it.getindex().tolist() == [0, 1, 2, 3]
    assert [b.index.tolist() for b in it] == [[4, 5, 6, 7], [8, 9, 10, 0]]
    with pytest.raises(StopIteration):
        it.next()


def test_sparse_batches_are_csr_and_become_dense_in_operators(folder):
    it = mx.io.LibSVMIter(data_libsvm=str(folder / "b.libsvm"), data_shape=(50,), batch_size=8)
    data = it.next().data[0]
    assert data.stype == "csr" and data.indptr.shape == (9,)
    np.testing.assert_array_equal((data * 2).asnumpy(), 2 * data.asnumpy())


# ------------------------------------------------------------------------------------------------ what jfit decides
def test_an_epoch_of_a_csv_file_has_every_row_once(folder):
    """MXNet leaves out the rows that filled up the last batch of the epoch before (decided.csv_rounds)."""
    for it in (table(folder), mx.io.LibSVMIter(data_libsvm=folder / "b.libsvm", data_shape=(50,), batch_size=16)):
        epochs = []
        for _ in range(3):
            epochs.append([(b.data[0].asnumpy().tolist(), b.pad) for b in it])
            it.reset()
        assert epochs[0] == epochs[1] == epochs[2] and epochs[0][-1][1] > 0


def test_a_batch_larger_than_the_file_repeats_its_rows(folder):
    """MXNet fails (decided.small_files)."""
    for round_batch in (True, False):
        batch = table(folder, size=25, round_batch=round_batch).next()
        rows = batch.data[0].asnumpy()
        assert batch.pad == 14
        np.testing.assert_array_equal(rows, rows[np.arange(25) % 11])


def test_invalid_numbers_in_a_file_raise(folder, tmp_path):
    """MXNet reads what comes before it, or 0 (decided.text_in_tables)."""
    (tmp_path / "x.csv").write_text("1,2\n3,0x10\n")
    with pytest.raises(mx.base.MXNetError, match=r"x\.csv: line 2: column 2 is '0x10', expected a number"):
        mx.io.CSVIter(data_csv=str(tmp_path / "x.csv"), data_shape=(2,), batch_size=1)
    (tmp_path / "y.csv").write_text("1,1.5\n")
    with pytest.raises(mx.base.MXNetError, match=r"line 1: column 2 is '1\.5', which int32 cannot hold"):
        mx.io.CSVIter(data_csv=str(tmp_path / "y.csv"), data_shape=(2,), batch_size=1, dtype="int32")


def test_an_out_of_range_column_index_raises(tmp_path):
    """MXNet gives matrices that read beyond their rows (decided.text_in_tables)."""
    (tmp_path / "a").write_text("1 0:1\n0 4:2\n")
    with pytest.raises(mx.base.MXNetError, match="line 2: found the index 4, expected 0 to 3"):
        mx.io.LibSVMIter(data_libsvm=str(tmp_path / "a"), data_shape=(4,), batch_size=1)


def test_shuffling_keeps_the_dtype_of_arrays():
    """MXNet makes float32 of them (decided.shuffled_dtype)."""
    it = mx.io.NDArrayIter(mx.nd.arange(4), mx.nd.array([0, 1, 2, 3], dtype="int32"), 2, shuffle=True)
    assert it.next().label[0].dtype == np.int32 == it.provide_label[0].dtype


def test_calling_next_again_at_the_end_keeps_rows_that_roll_over():
    """MXNet forgets the tail when next() is called once more behind the end (decided.roll_over_twice)."""
    it = mx.io.NDArrayIter(np.arange(6), None, 5, last_batch_handle="roll_over")
    list(it)
    assert not it.iter_next()
    it.reset()
    assert it.next().data[0].asnumpy().tolist() == [5, 0, 1, 2, 3]


def test_sparse_arrays_support_all_values_of_last_batch_handle():
    """MXNet has `discard` only."""
    matrix = mx.nd.sparse.csr_matrix(([1.0, 2.0, 3.0], [0, 1, 0], [0, 1, 2, 3]), shape=(3, 2))
    for handle, counts in (("discard", [1, 1]), ("pad", [2, 2]), ("roll_over", [1, 2])):
        it = mx.io.NDArrayIter(matrix, np.arange(3), 2, last_batch_handle=handle)
        for count in counts:
            batches = list(it)
            assert len(batches) == count and all(b.data[0].stype == "csr" for b in batches)
            for batch in batches:
                rows = batch.label[0].asnumpy().astype(int)
                np.testing.assert_array_equal(batch.data[0].asnumpy(), matrix.asnumpy()[rows])
            it.reset()


# ------------------------------------------------------------------------------------------------ arguments
def test_arguments_are_keywords_strings_are_parsed_and_unknown_ones_warn(folder):
    with pytest.raises(TypeError, match="positional argument"):
        mx.io.CSVIter(str(folder / "x.csv"), (6,), batch_size=4)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'data_shape'"):
        mx.io.CSVIter(data_csv=str(folder / "x.csv"))
    with pytest.raises(mx.base.MXNetError, match=r"No such file or directory: 'nope\.csv'"):
        mx.io.CSVIter(data_csv="nope.csv", data_shape=(6,), batch_size=4)
    with pytest.raises(mx.base.MXNetError, match="batch_size is 'many'; expected a number"):
        table(folder, size="many")
    assert len(list(table(folder, size="4", round_batch="False", prefetch_buffer=2))) == 3
    with pytest.warns(UserWarning, match="CSVIter has no argument 'round_bach': ignored, did you mean 'round_batch'"):
        table(folder, round_bach=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mx.io.MNISTIter(
            image=str(folder / "images"), label=str(folder / "labels"), input_shape=(30,), batch_size=9, silent=True
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data_shape": (5, 10)}, "LibSVMIter: data_shape is .5, 10., expected .columns,."),
        ({"round_batch": False}, "LibSVMIter supports neither round_batch=False nor"),
        ({"num_parts": 2, "part_index": 2}, "expected 0 <= part_index < num_parts"),
        ({"label_libsvm": "c.libsvm", "label_shape": (50,), "num_parts": 2}, "num_parts with label_libsvm"),
        ({"batch_size": 0}, "batch_size is 0; expected an integer of at least 1"),
    ],
)
def test_malformed_files_raise(given, message, folder):
    with pytest.raises(mx.base.MXNetError, match=message):
        mx.io.LibSVMIter(**{"data_libsvm": str(folder / "b.libsvm"), "data_shape": (50,), "batch_size": 4, **given})
