"""Record files: identical to MXNet's for any payload; errors for malformed files; saved positions."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from cases.images import MAGIC, payloads
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit.mx as mx
from jfit.formats import FormatError
from jfit.formats.records import IRHeader, RecordReader, RecordWriter, pack, read_index, record_offsets, unpack

GOLDEN = Path(__file__).parents[1] / "golden" / "images"


def written(path: Path, records) -> Path:
    with RecordWriter(path) as file:
        for record in records:
            file.write(record)
    return path


def read_all(path: Path) -> list[bytes]:
    with RecordReader(path) as file:
        return list(iter(file.read, None))


# ------------------------------------------------------------------------------------------------ the format
def test_files_equal_mxnets_byte_for_byte(tmp_path):
    writer = mx.recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "w")
    for key, content in enumerate(payloads()):
        writer.write_idx(key, content)
    writer.close()
    assert (tmp_path / "a.rec").read_bytes() == (GOLDEN / "parts.rec").read_bytes()
    assert (tmp_path / "a.idx").read_bytes() == (GOLDEN / "parts.idx").read_bytes()


def test_files_of_mxnet_are_read_in_order_and_by_key():
    reader = mx.recordio.MXIndexedRecordIO(GOLDEN / "parts.idx", GOLDEN / "parts.rec", "r")
    assert [reader.read() for _ in reader.keys] == payloads() and reader.read() is None
    assert [reader.read_idx(key) for key in (7, 59, 0)] == [payloads()[key] for key in (7, 59, 0)]


pieces = st.lists(st.one_of(st.binary(max_size=9), st.just(MAGIC), st.just(MAGIC[:3]), st.just(MAGIC * 2)), max_size=6)
records = st.lists(pieces.map(b"".join), max_size=5)


@settings(max_examples=60, deadline=None)
@given(records)
def test_any_bytes_are_read_as_they_were_written(tmp_path_factory, contents):
    path = written(tmp_path_factory.mktemp("rec") / "a.rec", contents)
    assert read_all(path) == contents
    offsets = record_offsets(path)
    with RecordReader(path) as file:
        for content, offset in reversed(list(zip(contents, offsets, strict=True))):
            file.seek(int(offset))
            assert file.tell() == offset and file.read() == content
    assert path.stat().st_size % 4 == 0


@settings(max_examples=60, deadline=None)
@given(records, st.integers(0, 200), st.binary(max_size=20))
def test_a_truncated_or_damaged_file_yields_whole_records_and_then_raises(tmp_path_factory, contents, cut, noise):
    path = written(tmp_path_factory.mktemp("rec") / "a.rec", contents)
    data = path.read_bytes()
    path.write_bytes(data[:cut] + noise)
    try:
        found = read_all(path)
    except FormatError as error:
        assert str(path) in str(error) and "byte" in str(error)
    else:
        assert sum(map(len, found)) <= cut + len(noise)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (bytes(12), "the header is 0000000000000000, of kind 0; expected 0a23d7ce"),
        (struct.pack("<4sI", MAGIC, 1 << 28) + b"abc", "a part needs 268435456 bytes, 3 are left"),
        (MAGIC[:2], "the header is 0a23, of kind 0; expected 0a23d7ce"),
        (struct.pack("<4sI", MAGIC, 2 << 29), ".*of kind 2; expected .* 0 or 1"),
        (struct.pack("<4sI", MAGIC, 1 << 29) * 2, ".*of kind 1; expected .* 2 or 3"),
        (struct.pack("<4sI", MAGIC, 7 << 29), ".*of kind 7"),
    ],
)
def test_a_malformed_file_raises_with_the_byte_offset(tmp_path, data, says):
    path = tmp_path / "bad.rec"
    path.write_bytes(written(tmp_path / "good.rec", [b"good"]).read_bytes() + data)
    for read in (read_all, record_offsets):
        with pytest.raises(FormatError, match=f"bad.rec: byte .*: {says}"):
            read(path)
    reader = mx.recordio.MXRecordIO(str(path), "r")
    assert reader.read() == b"good"
    for _ in range(2):  # the place stays before the damage
        with pytest.raises(mx.MXNetError, match="record at byte 12"):
            reader.read()


def test_an_invalid_line_of_an_index_raises(tmp_path):
    path = tmp_path / "a.idx"
    path.write_text("0\t0\nx\t12\n")
    with pytest.raises(FormatError, match=r"line 2: found 'x.t12.n', expected a key of type int"):
        read_index(path)
    assert read_index(path, str) == {"0": 0, "x": 12}


# ------------------------------------------------------------------------------------------------ headers
@given(
    st.one_of(st.floats(width=32, allow_nan=False), st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4)),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=8),
)
@settings(max_examples=50, deadline=None)
def test_a_header_round_trips(label, number, high, content):
    header, body = unpack(pack(IRHeader(3, label, number, high), content))
    assert (header.id, header.id2, body) == (number, high, content)
    assert header.flag == (len(label) if isinstance(label, list) else 0)
    assert np.array_equal(header.label, label)


def test_a_record_too_short_for_its_labels_raises():
    with pytest.raises(FormatError, match="the header of an image record has 24 bytes, the record has 3"):
        unpack(b"abc")
    with pytest.raises(FormatError, match="with 4294967295 labels has 17179869204 bytes, the record has 24"):
        unpack(struct.pack("<IfQQ", 2**32 - 1, 0, 0, 0))


def test_a_lossless_image_round_trips_in_bgr_order():
    image = np.arange(60, dtype="uint8").reshape(4, 5, 3)
    header, found = mx.recordio.unpack_img(mx.recordio.pack_img(IRHeader(0, 4.0, 1, 0), image, 9, ".png"))
    assert header.label == 4 and np.array_equal(found, image)
    assert mx.recordio.unpack_img(mx.recordio.pack_img((0, 4.0, 1, 0), image), 0)[1].shape == (4, 5)


# ------------------------------------------------------------------------------------------------ MXNet's shells
def test_a_reader_is_reopened_in_another_process(tmp_path):
    reader = mx.recordio.MXRecordIO(str(written(tmp_path / "a.rec", [b"0", b"1"])), "r")
    reader.read()
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.read() == b"0" and reader.read() == b"1"
    indexed = pickle.loads(pickle.dumps(mx.recordio.MXIndexedRecordIO(GOLDEN / "parts.idx", GOLDEN / "parts.rec", "r")))
    assert indexed.read_idx(3) == payloads()[3]
    with pytest.raises(ValueError, match="open for writing"):
        pickle.dumps(mx.recordio.MXRecordIO(str(tmp_path / "b.rec"), "w"))


def test_a_forked_process_has_its_own_position(tmp_path, monkeypatch):
    reader = mx.recordio.MXRecordIO(str(written(tmp_path / "a.rec", [b"0", b"1"])), "r")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="call reset"):
        reader.read()
    reader.reset()
    assert reader.read() == b"0"


def test_reset_tell_flags_and_positions(tmp_path):
    path = str(tmp_path / "a.rec")
    writer = mx.recordio.MXRecordIO(path, "w")
    writer.write(b"lost")
    writer.reset()
    writer.write(b"kept")
    assert writer.tell() == 12
    with pytest.raises(AssertionError, match="flag 'w'"):
        writer.read()
    writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="is closed"):
        writer.write(b"")
    reader = mx.recordio.MXRecordIO(path, "r")
    assert reader.read() == b"kept" and reader.read() is None
    reader.reset()
    assert reader.read() == b"kept"
    with pytest.raises(ValueError, match="expected one of 'r', 'w'"):
        mx.recordio.MXRecordIO(path, "a")
    with pytest.raises(mx.MXNetError, match="No such file"):
        mx.recordio.MXRecordIO(str(tmp_path / "none.rec"), "r")
    with pytest.raises(TypeError, match="a bytes-like object is required, not 'str'"):
        mx.recordio.MXRecordIO(str(tmp_path / "b.rec"), "w").write("text")
    with pytest.raises(KeyError, match="99"):
        mx.recordio.MXIndexedRecordIO(GOLDEN / "parts.idx", GOLDEN / "parts.rec", "r").read_idx(99)
