"""Atomic file writes and safetensors, including malformed files."""

import errno
import json
import os
import pickle
import resource
import struct

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jfit.formats import (
    FormatError,
    atomic,
    atomic_dir,
    atomic_path,
    atomic_write,
    load_tensors,
    save_tensors,
    sweep,
    trash,
)

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
DEAD = 2**22 + 1  # above Linux's largest process id
TOKEN = f"{atomic._machine()}01234567"


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3, 4)])
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_and_shape_round_trips_bit_equal(tmp_path, name, shape):
    array = (np.random.default_rng(0).random(shape) * 100).astype(numpy_dtype(name))
    arrays, metadata = load_tensors(save_tensors(tmp_path / "a.safetensors", {"x": array}, {"by": "test ä"}))
    assert arrays["x"].dtype == array.dtype and arrays["x"].shape == shape
    assert arrays["x"].tobytes() == array.tobytes()
    assert metadata == {"by": "test ä"}
    assert arrays["x"].flags.writeable


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[::-1], lambda x: x.astype(">f4")])
def test_memory_layout_never_changes_values(tmp_path, view):
    array = view(np.arange(12, dtype=np.float32).reshape(3, 4))
    found = load_tensors(save_tensors(tmp_path / "a.safetensors", {"x": array}))[0]["x"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.float32


def test_jax_arrays_and_empty_dicts_are_written(tmp_path):
    found, _ = load_tensors(save_tensors(tmp_path / "a.safetensors", {"x": jnp.ones((2,), jnp.bfloat16)}))
    assert found["x"].dtype == ml_dtypes.bfloat16
    assert load_tensors(save_tensors(tmp_path / "b.safetensors", {})) == ({}, {})


def test_an_unknown_dtype_raises_and_leaves_no_file(tmp_path):
    with pytest.raises(TypeError, match=r"array 'x' has dtype complex64, expected one of bool, .*cast it first"):
        save_tensors(tmp_path / "a.safetensors", {"x": np.ones(2, np.complex64)})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_tensors_has_the_permissions_and_the_names_of_any_other(tmp_path):
    path = save_tensors(tmp_path / "a.safetensors", {"x": np.ones(2)})
    beside = atomic_write(tmp_path / "note.txt", "kept")
    assert path.stat().st_mode == beside.stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["a.safetensors", "note.txt"]


def test_a_failed_write_raises_os_error_and_keeps_the_old_file(tmp_path):
    path = save_tensors(tmp_path / "a.safetensors", {"x": np.ones(2)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"the file cannot be written .*a\.safetensors") as caught:
            save_tensors(path, {"x": np.ones(2000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["a.safetensors"] and load_tensors(path)[0]["x"].tolist() == [1, 1]


def raw(header, data=b""):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header too small"),
        (struct.pack("<Q", 2**60), "header too large"),
        (raw(b"[" * 100_000), "invalid JSON in header"),
        (raw(b'{"a":%b,"a":%b}' % ((json.dumps(entry(shape=(0,), offsets=(0, 0))).encode(),) * 2)), "a name occurs twice"),
        (raw({"__metadata__": {"a": 1}}), "invalid type: integer `1`, expected a string"),
        (raw({"x": entry("F8_E4M3", (8,))}, bytes(8)), "tensor 'x': KeyError: 'F8_E4M3'; expected a safetensors file of BOOL"),
        (raw({"x": entry(offsets=(0, 80))}, bytes(8)), "invalid shape, data type, or offset"),
        (raw({"x": entry(shape=[2**62, 2**62])}, bytes(8)), "overflow computing buffer size"),
        (raw({"x": entry(shape=[0, 2**63], offsets=(0, 0))}), "tensor 'x': ValueError"),
        (raw({"x": entry(shape=[0, 2**30, 2**39], offsets=(0, 0))}), "tensor 'x': ValueError"),
        (raw({"x": entry(shape=[1] * 65, offsets=(0, 4))}, bytes(4)), "tensor 'x': .*dimension"),
        (raw({"x": entry(), "y": entry()}, bytes(8)), "invalid offset for tensor "),
        (raw({"x": entry()}, bytes(9)), "file not fully covered"),
    ],
)
def test_malformed_files_raise_with_file_and_position(tmp_path, content, message):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        load_tensors(path)
    assert str(path) in str(caught.value)
    assert "restore it" in str(caught.value) or "cast it" in str(caught.value)


def test_format_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(FormatError("a", "b", "c", "d")))
    assert str(error) == "a: b: c; d" and error.where == "b"


def test_a_failing_writer_keeps_the_old_file(tmp_path):
    path = atomic_write(tmp_path / "sub" / "a.txt", "old")

    def fail(file):
        file.write(b"new")
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        atomic_write(path, fail)
    assert path.read_text() == "old" and os.listdir(path.parent) == ["a.txt"]
    assert atomic_write(path, b"new").read_bytes() == b"new"


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    target = tmp_path / "saved"
    with atomic_dir(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    with pytest.raises(RuntimeError), atomic_dir(target) as folder:
        (folder / "b").write_text("2")
        raise RuntimeError
    assert os.listdir(target) == ["a"] and os.listdir(tmp_path) == ["saved"]
    with atomic_dir(target) as folder:
        (folder / "c").write_text("3")
    assert os.listdir(target) == ["c"] and os.listdir(tmp_path) == ["saved"]


def test_temporary_files_of_a_killed_process_are_removed(tmp_path):
    folder = tmp_path / f".a.safetensors.{DEAD}-{TOKEN}.tmp"
    folder.mkdir()
    (folder / ".tmpAbCdEf").write_bytes(b"half")
    with atomic_path(tmp_path / "b") as path:
        path.write_bytes(b"whole")
        assert sweep(tmp_path) == [folder.name]
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "b") as path:
        path.write_bytes(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["b"] and (tmp_path / "b").read_bytes() == b"whole"


def test_sweep_removes_leftovers_and_puts_back_a_folder_moved_aside(tmp_path):
    (tmp_path / f".a.txt.{DEAD}-{TOKEN}.tmp").write_text("half")
    (tmp_path / f".b.{DEAD}-{TOKEN}.tmp").mkdir()
    (tmp_path / f".c.{DEAD}-{TOKEN}.old").mkdir()
    (tmp_path / f".d.{os.getppid()}-{TOKEN}.tmp").write_text("a living process writes this")
    (tmp_path / ".keep.tmp").write_text("not ours")
    assert len(sweep(tmp_path)) == 3
    assert sorted(os.listdir(tmp_path)) == [f".d.{os.getppid()}-{TOKEN}.tmp", ".keep.tmp", "c"]
    assert sweep(tmp_path / "missing") == []


def test_sweep_keeps_files_that_this_process_is_writing(tmp_path):
    with atomic_dir(tmp_path / "a") as folder:
        assert sweep(tmp_path) == [] and folder.exists()
    trash(tmp_path / "a")
    assert os.listdir(tmp_path) == []
    # A restarted container often has the same process id as the run that was killed.
    (tmp_path / f".b.{os.getpid()}-{TOKEN}.tmp").mkdir()
    assert len(sweep(tmp_path)) == 1
