"""Iterators over files: values, saved positions, and the errors for broken files."""

import gc
import gzip
import json
import re
import struct
import threading
import time
import tracemalloc

import numpy as np
import pytest
from cases import iterators
from fit_support import Killed, blobs, dies, same, train
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit.mx as mx
from jfit.data import CSVIter, LibSVMIter, MNISTIter, NDArrayIter, PrefetchingIter, ResizeIter
from jfit.data.csr import pick_rows
from jfit.data.files import text
from jfit.data.files.mnist_iter import mnist_order, read_idx
from jfit.data.files.numbers import parse_libsvm, parse_table
from jfit.data.files.text import TextFiles, WrongText
from jfit.data.positions import decode, encode
from jfit.formats import FormatError, SparseArray

F32 = np.dtype("float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of 40 rows, and those of the recorded cases."""
    path = tmp_path_factory.mktemp("files")
    iterators.write_files(path)
    x, y = blobs(40)
    (path / "x40.csv").write_text("".join(",".join(f"{v:.6f}" for v in row) + "\n" for row in x))
    (path / "y40.csv").write_text("".join(f"{int(v)}\n" for v in y))
    rows = (" ".join(f"{k}:{v:.4f}" for k, v in enumerate(row) if v > 0.5) for row in x)
    (path / "40.libsvm").write_text("".join(f"{int(v)} {row}\n" for v, row in zip(y, rows, strict=True)))
    (path / "images40").write_bytes(iterators.idx((np.abs(x) * 60).clip(0, 255).reshape(40, 2, 2)))
    (path / "labels40").write_bytes(iterators.idx(y))
    return path


def makers(folder, size=8):
    """An iterator of each kind over the 40 rows, made anew by each call."""
    x, y = blobs(40)
    array = lambda handle, shuffle=True: NDArrayIter(x, y, size, shuffle, handle, seed=4)  # noqa: E731
    csv = lambda **more: CSVIter(folder / "x40.csv", (4,), folder / "y40.csv", batch_size=size, **more)  # noqa: E731
    mnist = lambda: MNISTIter(folder / "images40", folder / "labels40", size, flat=True, seed=2)  # noqa: E731
    return {
        "csv": csv,
        "csv kept": lambda: csv(round_batch=False),
        "libsvm": lambda: LibSVMIter(folder / "40.libsvm", (4,), batch_size=size),
        "mnist": mnist,
        "pad": lambda: array("pad"),
        "discard": lambda: array("discard"),
        "roll_over": lambda: array("roll_over"),
        "resized": lambda: ResizeIter(array("pad"), 4),
        "resized on": lambda: ResizeIter(array("roll_over"), 7, reset_internal=False),
        "resized file": lambda: ResizeIter(csv(), 7, reset_internal=False),
        "ahead": lambda: PrefetchingIter(array("roll_over")),
        "side by side": lambda: PrefetchingIter(
            [array("pad"), mnist()], [{}, {"data": "more"}], [{}, {"softmax_label": "other"}]
        ),
        "boxed": lambda: mx.io.CSVIter(data_csv=folder / "x40.csv", data_shape=(4,), batch_size=size),
    }


KINDS = [*makers(None)]


def contents(batch):
    """A batch as numbers."""
    numbers = lambda a: (a.todense() if isinstance(a, SparseArray) else getattr(a, "asnumpy", lambda: a)()).tolist()  # noqa: E731
    return [[numbers(a) for a in batch.data], [numbers(a) for a in batch.label], batch.pad]


def rest_and_next(it):
    """The rest of this epoch and the whole of the next one."""
    found = [contents(b) for b in it]
    it.reset()
    return found, [contents(b) for b in it]


# ------------------------------------------------------------------------------------------------ positions
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(size=st.sampled_from([1, 3, 7, 8, 16, 40]), epochs=st.integers(0, 2), batches=st.integers(0, 14))
def test_a_restored_position_continues_with_the_same_batches(kind, size, epochs, batches, folder):
    make = makers(folder, size)[kind]
    if kind == "side by side" and 40 % size:
        return  # the two end their epochs differently, which is an error of its own
    it = make()
    for _ in range(epochs):
        list(it)
        it.reset()
    for _ in range(batches):
        if next(it, None) is None:
            break
    kept = json.loads(json.dumps(encode(it.state_dict())))
    fresh = make()
    fresh.load_state_dict(decode(kept))
    assert rest_and_next(fresh) == rest_and_next(it)


def test_positions_of_other_data_raise(folder):
    small = makers(folder)
    with pytest.raises(ValueError, match=r"the saved position is of {'bytes': \[1, 2\]}, this iterator has {'bytes'"):
        small["csv"]().load_state_dict({**small["csv"]().state_dict(), "bytes": [1, 2]})
    with pytest.raises(ValueError, match=r"the saved position is of {'rows': 40, 'first': \d+}, this iterator"):
        MNISTIter(folder / "images40", folder / "labels40", 8, seed=3).load_state_dict(small["mnist"]().state_dict())
    with pytest.raises(ValueError, match="of data with 40 rows, this iterator has 4"):
        NDArrayIter(np.ones(4)).load_state_dict(small["pad"]().state_dict())


@pytest.mark.parametrize(
    "damaged",
    [
        {"__array__": "<i8", "shape": [1 << 40], "data": "eJwDAAAAAAE="},
        {"__array__": "|O", "shape": [1], "data": ""},
        {"__array__": "<i8", "shape": [-1], "data": ""},
        {"__array__": "<i8", "shape": [1], "data": "not base64"},
        {"__array__": "<f4", "shape": [10**30], "data": "eJw="},
        {"__array__": "f4,,", "shape": [1], "data": "eJw="},
        {"__array__": "<i8", "data": ""},
    ],
)
def test_damaged_positions_raise(damaged):
    with pytest.raises(ValueError, match="a saved position is damaged"):
        decode({"order": damaged})
    with pytest.raises(TypeError, match="the state of an iterator contains a set"):
        encode({"order": {1}})


# ------------------------------------------------------------------------------------------------ through fit
slowly = lambda *kinds: [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]  # noqa: E731
RESUMED = ["csv", *slowly("roll_over", "ahead", "libsvm", "mnist", "pad", "resized on", "csv kept", "resized file")]


@pytest.mark.repetitions(slow=5)
@pytest.mark.parametrize("kind", RESUMED)
def test_a_killed_training_resumes_with_the_next_batches(kind, folder, tmp_path):
    make = makers(folder)[kind]
    straight = train(data=make(), num_epoch=3)
    with pytest.raises(Killed):
        train(data=make(), num_epoch=3, checkpoint=tmp_path, checkpoint_every=4, callbacks=[dies(9)])
    again = train(data=make(), num_epoch=3, checkpoint=tmp_path, resume=True)
    assert same(again, straight)


@pytest.mark.parametrize("kind", ["libsvm", *slowly("csv", "mnist")])
def test_files_are_trained_scored_and_predicted_on_as_their_arrays_are(kind, folder):
    it = makers(folder, 16)[kind]()
    found = list(it)
    rows = len(found) * 16 - sum(b.pad for b in found)
    x, y = (
        np.concatenate([a.todense() if isinstance(a, SparseArray) else a for a in (getattr(b, side)[0] for b in found)])[:rows]
        for side in ("data", "label")
    )
    run = train(data=it, batch_size=16)  # it stands at its end: it starts again
    assert run.history.epochs[-1]["step"] == 2 * len(found)
    loss = run.score((x, y))
    assert run.score(it) == pytest.approx(loss)  # rows that were wrapped do not count
    assert run.predict(it).shape == (rows, 3)
    np.testing.assert_allclose(run.predict(it), run.predict(x), rtol=1e-6)


# ------------------------------------------------------------------------------------------------ reading ahead
def test_threads_of_several_iterators_end(folder):
    before = set(threading.enumerate())
    new = lambda: {t for t in threading.enumerate() if t not in before and t.name.startswith("jfit-prefetch")}  # noqa: E731
    it = makers(folder)["side by side"]()
    it.next()
    assert new()
    it.close()
    assert not new()
    with pytest.raises(RuntimeError, match=r"was closed, .* call reset\(\)"):
        it.next()
    it.reset()
    assert it.next().pad == 0
    it.close()
    it = makers(folder)["side by side"]()
    it.next()
    del it
    gc.collect()
    deadline = time.monotonic() + 5
    while new() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not new()


# ------------------------------------------------------------------------------------------------ text
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3), min_size=1, max_size=9),
    st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n"]),
)
def test_tables_keep_every_float32(rows, end):
    written = end.join(",".join(repr(v) for v in row) for row in rows)
    found = parse_table(written.encode(), 3, F32)
    np.testing.assert_array_equal(found, np.array(rows, np.float32))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(
            st.floats().map(repr),
            st.floats(-1e9, 1e9).map(lambda v: f"{v:.5f}"),
            st.integers(-(10**20), 10**20).map(str),
            st.sampled_from(["+5", ".5", "5.", "-.25", "-0", "00012", "0.1234567890123456", "9007199254740993", " 7 ", "1E5"]),
        ),
        min_size=1,
    )
)
def test_decimals_are_the_nearest_floats(words):
    found = parse_table(",".join(words).encode(), len(words), np.dtype("float64"))[0]
    want = np.array([float(word) for word in words])
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found[want == 0]), np.signbit(want[want == 0]))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.sampled_from(["\n", "\r\n", " # note\n", "\n\n"]))
def test_sparse_lines_are_the_matrix_they_were_written_from(seed, count, end):
    rng = np.random.default_rng(seed)
    dense = (rng.random((count, 5)) * (rng.random((count, 5)) > 0.5)).astype(np.float32)
    lines = [" ".join([str(k), *(f"{c}:{v!r}" for c, v in enumerate(row.tolist()) if v)]) for k, row in enumerate(dense)]
    rows, labels = parse_libsvm("".join(line + end for line in lines).encode(), 5, F32)
    np.testing.assert_array_equal(rows.todense(), dense)
    assert labels.tolist() == list(range(count))
    pick = rng.integers(0, count, 7) if count else np.zeros(0, int)
    np.testing.assert_array_equal(pick_rows(rows, pick).todense(), dense[pick])
    np.testing.assert_array_equal(pick_rows(rows, slice(1, 4, 2)).todense(), dense[1:4:2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1,2\n3\n", "line 2: found 1 number, expected 2"),
        (b"1,2,3\n4,5,6\n", "line 1: found 3 numbers, expected 2"),
        (b"a,b\n1,2\n", "line 1: column 1 is 'a', expected a number; delete a header line"),
        (b"1,2\n\n3,\n", "line 3: column 2 is empty, expected a number"),
        (b"1,2\n3,1_0\n", "line 2: column 2 is '1_0', expected a number"),
        (b'1,"2"\n', "line 1: column 2 is '\"2\"', expected a number"),
        (b"1,2\n3,1e300\n", "line 2: column 2 is '1e300', which float32 cannot hold"),
        (b"1,\xff\xfe" + b"\0" * 60 + b"\n", "line 1: column 2 is"),
        (b"", "the files are empty"),
    ],
)
def test_broken_csv_files_raise_with_the_line(content, message, tmp_path):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        CSVIter(tmp_path / "x.csv", (2,), batch_size=1)


def test_long_libsvm_lines_need_little_more_memory_than_their_text():
    text = b"1 " + b" ".join(b"%d:0.5" % i for i in range(100_000)) + b"\n-1 3:2\n"
    tracemalloc.start()
    rows, labels = parse_libsvm(text, 100_000, F32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(text)
    assert rows.aux[0].tolist() == [0, 100_000, 100_001] and labels.tolist() == [1, -1]
    assert rows.aux[1].tolist() == [*range(100_000), 3] and rows.data[-2:].tolist() == [0.5, 2]


def test_libsvm_lines_have_any_white_space_and_errors_their_number():
    text = b"\n1 0:5 2:1.5\n\n-1\n \n2 1:3   3:4 \n7\n8\t4:9"
    rows, labels = parse_libsvm(text, 5, F32)
    assert labels.tolist() == [1, -1, 2, 7, 8]
    assert rows.todense().tolist() == [[5, 0, 1.5, 0, 0], [0] * 5, [0, 3, 0, 4, 0], [0] * 5, [0, 0, 0, 0, 9]]
    for blank in (b"", b"\n \n", b"# a header\n\n# of comments\n"):  # a file may begin with such a block
        rows, labels = parse_libsvm(blank, 5, F32)
        assert rows.shape == (0, 5) and not len(labels)
    with pytest.raises(WrongText, match="found the index 6") as info:
        parse_libsvm(text + b"\n1 1:2 6:0", 5, F32)
    assert info.value.line == 8
    with pytest.raises(WrongText, match="word 3 is '2', expected index:value") as info:
        parse_libsvm(text + b"\n1 1:2 2", 5, F32)
    assert info.value.line == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1 0:1\n2 1 0:3\n", "line 2: word 2 is '1', expected index:value"),
        (b"1:2 0:1\n", "line 1: word 1 is '1:2', expected a number, the label"),
        (b"1 0:1: 1:2\n", "line 1: word 2 is '0:1:', expected index:value"),
        (b"1 0: 1:2\n", "line 1: word 2 is '0:', expected index:value"),
        (b"1 0:1\n# note\n1 :1 2:\n", "line 3: word 2 is ':1', expected index:value"),
        (b"1 -1:1\n", "line 1: found the index -1, expected 0 to 3 because data_shape is (4,)"),
        (b"1 1.5:1\n", "line 1: found the index 1.5"),
        (b"1 0:1\n1 4:1\n", "line 2: found the index 4, expected 0 to 3 because data_shape is (4,); indices start at 0"),
        (b"x 0:1\n", "line 1: word 1 is 'x', expected a number, the label"),
    ],
)
def test_broken_libsvm_files_raise_with_the_line(content, message, tmp_path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        LibSVMIter(tmp_path / "x", (4,), batch_size=1)


@pytest.mark.parametrize("shapes", [{"data_shape": (2, 2)}, {"data_shape": (2,), "label_shape": (2, 2)}])
def test_rows_of_libsvm_files_have_one_axis(shapes, tmp_path):
    (tmp_path / "x").write_text("1 0:1\n")
    with pytest.raises(ValueError, match=rf"{list(shapes)[-1]} is \(2, 2\), expected \(columns,\)"):
        LibSVMIter(tmp_path / "x", batch_size=1, **shapes)


def test_more_rows_than_labels_is_an_error_and_more_labels_are_not(folder):
    with pytest.raises(ValueError, match=r"y\.csv: it ends after 11 rows, .*x40\.csv has more"):
        list(CSVIter(folder / "x40.csv", (4,), folder / "y.csv", batch_size=4))
    assert len(list(CSVIter(folder / "y.csv", (1,), folder / "y40.csv", batch_size=4))) == 3


def test_a_file_that_shrinks_while_being_read_raises_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 4)
    monkeypatch.setattr(text, "CACHE", 0)
    (tmp_path / "x.csv").write_text("1\n2\n3\n4\n5\n6\n")
    it = CSVIter(tmp_path / "x.csv", (1,), batch_size=2)
    it.next()
    (tmp_path / "x.csv").write_text("1\n2\n")
    with pytest.raises(FormatError, match=r"x\.csv: byte 4: the file is shorter than when it was opened"):
        it.next()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 60))
def test_parts_contain_every_line_once_for_any_number_of_parts(tmp_path_factory, lengths, parts, block):
    folder = tmp_path_factory.mktemp("parts")
    (folder / "a").write_text("".join("x" * n + "\n" for n in lengths[::2]) or "\n")
    (folder / "b").write_text("\n".join("y" * n for n in lengths[1::2]))
    before, text.BLOCK = text.BLOCK, block
    try:
        found = []
        for part in range(parts):
            files = TextFiles(folder, parts, part)
            at = files.begin
            while at < files.end:
                lines, at = files.block(at)
                found += lines.splitlines()
    finally:
        text.BLOCK = before
    lines = [line for path in files.paths for line in path.read_bytes().splitlines()]
    assert [line for line in found if line] == [line for line in lines if line]


# ------------------------------------------------------------------------------------------------ MNIST's format
def test_the_order_is_a_permutation_and_fixed():
    assert sorted(mnist_order(1000, 9).tolist()) == list(range(1000))
    assert mnist_order(5, 2**32 + 2).tolist() == mnist_order(5, 2).tolist() == [3, 0, 1, 2, 4]  # never change it


HEAD = bytes([0, 0, 8, 1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "byte 0: found nothing, expected 00 00 08 01"),
        (HEAD, "byte 0: found 00 00 08 01"),
        (
            bytes([0, 0, 13, 1]) + struct.pack(">I", 1) + b"abcd",
            "byte 0: found 00 00 0d 01, expected 00 00 08 01 (uint8, 1 axes)",
        ),
        (HEAD + struct.pack(">I", 9) + b"abc", "the header gives shape (9,), 9 bytes, but the file has 11"),
        (HEAD + struct.pack(">I", 2**32 - 1), "4,294,967,295 bytes, but the file has 8"),
        (gzip.compress(HEAD + struct.pack(">I", 2**31), mtime=0), "2,147,483,648 bytes, but the file has"),
        (gzip.compress(HEAD + struct.pack(">I", 9) + b"abc", mtime=0), "byte 8: found 3 bytes after the header, expected 9"),
        (gzip.compress(HEAD + struct.pack(">I", 999) + b"abc" * 333, mtime=0)[:-9], "the gzip file is damaged or truncated"),
        (b"\x1f\x8bnonsense", "the gzip file is damaged or truncated"),
    ],
)
def test_broken_idx_files_raise(content, message, tmp_path):
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(FormatError, match=re.escape(message)):
        read_idx(tmp_path / "labels", 1)


def test_different_numbers_of_images_and_labels_raise(folder, tmp_path):
    with pytest.raises(ValueError, match=r"has 103 images, .* 40 labels"):
        MNISTIter(folder / "images", folder / "labels40")
    with pytest.raises(ValueError, match=r"40 images \(of this part\) do not fill a batch of 41"):
        MNISTIter(folder / "images40", folder / "labels40", 41)
    with pytest.raises(ValueError, match="expected a floating dtype"):
        MNISTIter(folder / "images40", folder / "labels40", dtype="uint8")


# ------------------------------------------------------------------------------------------------ arrays in files
def test_datasets_of_h5py_are_read_batch_by_batch(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["y"] = np.arange(22.0).reshape(11, 2), np.arange(11)
    with h5py.File(tmp_path / "x.h5") as file:
        for handle in ("pad", "discard", "roll_over"):
            args = (4, True, handle)
            lazy = NDArrayIter(file["x"], file["y"], *args, seed=3)
            held = NDArrayIter(file["x"][:], file["y"][:], *args, seed=3)
            assert rest_and_next(lazy) == rest_and_next(held)
            assert not lazy.in_memory and held.in_memory and lazy.provide_data == held.provide_data
