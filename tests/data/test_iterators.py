"""Iterators used directly: writes into batches, copies by pickle, positions, extreme values."""

import io
import multiprocessing
import pickle
import random
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from cases.images import FOLDER, png

import jfit.mx as mx
from jfit.data import CSVIter, ImageRecords, LibSVMIter, NDArrayIter, ResizeIter
from jfit.data.files.numbers import parse_libsvm, parse_table
from jfit.data.images import decode, read_list
from jfit.data.images.pool import Pool
from jfit.formats import FormatError
from jfit.formats.records import read_index

TEN = str(FOLDER / "images.rec")
F32 = np.dtype("float32")


@pytest.fixture
def folder(tmp_path):
    """Ten rows as a table, and as sparse lines."""
    rows = np.arange(30.0).reshape(10, 3)
    (tmp_path / "x.csv").write_text("".join(",".join(f"{v:g}" for v in row) + "\n" for row in rows))
    (tmp_path / "x.libsvm").write_text("".join(f"{k % 2} 0:{row[0]:g} 2:{row[2]:g}\n" for k, row in enumerate(rows)))
    return tmp_path


def makers(folder):
    return {
        "csv": lambda: CSVIter(folder / "x.csv", (3,), batch_size=4),
        "csv kept": lambda: CSVIter(folder / "x.csv", (3,), folder / "x.csv", (3,), batch_size=4, round_batch=False),
        "libsvm": lambda: LibSVMIter(folder / "x.libsvm", (3,), batch_size=4),
        "boxed": lambda: mx.io.CSVIter(data_csv=folder / "x.csv", data_shape=(3,), batch_size=4),
        "resized": lambda: ResizeIter(NDArrayIter(np.arange(9.0), batch_size=2), 3),
        "sentences": lambda: mx.rnn.BucketSentenceIter([[1, 2], [3, 4], [5, 6]], 1, buckets=[2]),
        "images": lambda: ImageRecords(TEN, (3, 8, 8), 4, shuffle=True, rand_crop=True, seed=2),
        "images of workers": lambda: mx.io.ImageRecordIter(path_imgrec=TEN, data_shape=(3, 8, 8), batch_size=4),
        "image iter": lambda: mx.image.ImageIter(4, (3, 8, 8), path_imgrec=TEN),
    }


KINDS = [*makers(None)]


def dense(array) -> np.ndarray:
    return np.array(array.todense() if hasattr(array, "todense") else getattr(array, "asnumpy", lambda: array)())


def contents(batch) -> list:
    return [dense(a).tolist() for a in (*batch.data, *batch.label)]


@pytest.mark.parametrize("kind", ["csv", "csv kept", "libsvm", "images"])
def test_writing_into_a_batch_changes_no_other_batch(kind, folder):
    make = makers(folder)[kind]
    wanted = [contents(batch) for batch in make()]
    it = make()
    for number, batch in enumerate(it):
        assert contents(batch) == wanted[number]
        for array in (*batch.data, *batch.label):
            (array if isinstance(array, np.ndarray) else array.data)[...] = 77
    it.reset()
    if kind != "images":  # whose next epoch is another one
        assert [contents(batch) for batch in it] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_copy_continues_at_the_iterators_position(kind, folder):
    it = makers(folder)[kind]()
    it.next()
    copy = pickle.loads(pickle.dumps(it))
    copy.workers = 0  # the same batches, and faster
    assert contents(copy.next()) == contents(it.next())
    for one in (it, copy):
        getattr(one, "close", lambda: None)()


def test_image_record_iter_supports_mxnets_iterator_protocol():
    texts = {"data_shape": "(3, 8, 8)", "batch_size": "4", "shuffle": "False", "preprocess_threads": "0", "scale": "0.5"}
    it = mx.io.ImageRecordIter(path_imgrec=TEN, **texts)
    assert isinstance(it, mx.io.MXDataIter)
    found = []
    while it.iter_next():
        found.append((it.getdata().asnumpy(), it.getlabel().asnumpy().tolist(), it.getpad(), it.getindex().tolist()))
    assert len(found) == 3
    it.reset()
    for (data, label, pad, index), batch in zip(found, it, strict=True):
        np.testing.assert_array_equal(batch.data[0].asnumpy(), data)
        assert (batch.label[0].asnumpy().tolist(), batch.pad, batch.index.tolist()) == (label, pad, index)
    with pytest.raises(mx.MXNetError, match="batch_size is 'many'; expected a number"):
        mx.io.ImageRecordIter(path_imgrec=TEN, data_shape=(3, 8, 8), batch_size="many")


def test_started_workers_end_when_another_fails_to_start(monkeypatch):
    from jfit.data.images import pool

    started = []

    def start(handle):
        if started:
            raise OSError("no more processes")
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return pool.Worker(started[0], multiprocessing.Pipe()[0])

    monkeypatch.setattr(pool, "_start", start)
    with pytest.raises(OSError, match="no more processes"):
        Pool(ImageRecords(TEN, (3, 8, 8), 4).job, 2, 4, 1)
    assert started[0].returncode is not None


# ------------------------------------------------------------------------------------------------ numbers and files
@pytest.mark.parametrize(
    ("line", "dtype", "message"),
    [
        ("1 0:1e300", "float32", "found '1e300', which float32 cannot hold"),
        ("1 0:1 1:2.5", "int32", "found '2.5', which int32 cannot hold"),
        ("1.5 0:1", "int64", "found '1.5', which int64 cannot hold"),
        ("nan 0:1", "int8", "found 'nan', which int8 cannot hold"),
        ("1 0:128", "int8", "found '128', which int8 cannot hold"),
    ],
)
def test_sparse_values_out_of_range_of_the_dtype_raise(line, dtype, message, tmp_path):
    (tmp_path / "x").write_text(f"1 0:1\n{line}\n")
    with pytest.raises(FormatError, match=re.escape(f"line 2: {message}")):
        LibSVMIter(tmp_path / "x", (2,), batch_size=1, dtype=dtype).next()


def test_infinite_values_are_read_and_overflowing_ones_raise():
    assert parse_table(b"inf,-Infinity\n", 2, F32).tolist() == [[np.inf, -np.inf]]
    assert parse_libsvm(b"inf 0:-inf\n", 1, F32)[1].tolist() == [np.inf]
    with pytest.raises(ValueError, match="column 2 is '1e39', which float32 cannot hold"):
        parse_table(b"inf,1\n1,1e39\n", 2, F32)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_of_64_bits_are_read_exactly(dtype):
    bounds = np.iinfo(dtype)
    written = f"{bounds.min},{bounds.max}\n".encode()
    assert parse_table(written, 2, np.dtype(dtype)).tolist() == [[bounds.min, bounds.max]]
    assert parse_table(b"3.0,3e2\n", 2, np.dtype(dtype)).tolist() == [[3, 300]]
    with pytest.raises(ValueError, match=f"column 2 is '{bounds.max + 1}', which {dtype} cannot hold"):
        parse_table(f"1,2\n1,{bounds.max + 1}\n".encode(), 2, np.dtype(dtype))


@pytest.mark.parametrize("place", ["-5", "9" * 25])
def test_an_index_with_invalid_offsets_raises(place, tmp_path):
    (tmp_path / "a.idx").write_text(f"0\t{place}\n")
    with pytest.raises(FormatError, match="line 1: found"):
        read_index(tmp_path / "a.idx")


def test_lists_are_read_with_names_of_any_encoding(tmp_path):
    (tmp_path / "a.lst").write_bytes(b"0\t1.0\tcaf\xe9.png\n")
    (tmp_path / "caf\udce9.png").write_bytes(b"here")
    name = read_list(tmp_path / "a.lst")[0][1][1]
    assert (tmp_path / name).read_bytes() == b"here"
    (tmp_path / "b.lst").write_text("0\t1e300\ta.png\n")
    with pytest.raises(FormatError, match="line 1: found"):
        read_list(tmp_path / "b.lst")


# ------------------------------------------------------------------------------------------------ kinds of images
def saved(image, kind, **how) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_images_are_reduced_to_their_high_bytes_as_in_mxnet(kind):
    image = pytest.importorskip("PIL.Image")
    deep = (np.arange(600).reshape(20, 30) * 109).astype(np.uint16)
    content = saved(image.fromarray(deep), kind)
    for mode in ("L", "RGB", None):
        np.testing.assert_array_equal(decode(content, mode)[..., 0], deep >> 8)


def test_a_palette_with_transparency_keeps_its_colors_without_a_warning():
    image = pytest.importorskip("PIL.Image")
    rng = random.Random(0)
    palette = image.frombytes("P", (4, 4), bytes(rng.randrange(4) for _ in range(16)))
    palette.putpalette([rng.randrange(256) for _ in range(12)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode(saved(palette, "PNG", transparency=bytes([0, 100, 255, 7])))
    np.testing.assert_array_equal(found, np.asarray(palette.convert("RGB")))


def test_an_image_that_pillow_warns_about_raises_too_large_where_warnings_are_errors(monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(FormatError, match=r"Image size \(144 pixels\) exceeds limit of 100 pixels.*make it smaller"):
        decode(png(np.zeros((12, 12, 3), "uint8")))
