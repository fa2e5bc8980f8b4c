"""Data files from elsewhere run no code, read no other files, and take no more memory than their limits allow."""

import gzip
import io
import os
import resource
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import jfit
from jfit import mx
from jfit.checkpoints import locks
from jfit.data import CSVIter, ImageRecords, LibSVMIter
from jfit.data.files import text
from jfit.data.files.mnist_iter import read_idx
from jfit.data.images import codec, pack
from jfit.data.images.source import read_list
from jfit.formats.atomic import FormatError
from jfit.formats.manifest import load_sealed
from jfit.formats.records import RecordReader, read_index

TEN = Path(__file__).parents[1] / "golden" / "images" / "images.rec"


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The current folder has modules named as those that a decoding worker imports; importing one leaves a file."""
    codec.pillow()  # this process imports it from where it is installed
    for name in ("numpy", "PIL", "json", "types", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\nprint('hello')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_workers_import_nothing_from_the_current_folder_nor_from_that_of_the_data(traps: Path):
    data = traps / "data"
    data.mkdir()
    (data / "ten.rec").write_bytes(TEN.read_bytes())
    (data / "PIL.py").write_text((traps / "PIL.py").read_text())
    sys.path.insert(0, str(data))
    it = ImageRecords(data / "ten.rec", (3, 16, 16), 10, workers=1)
    assert it.next().data[0].shape == (10, 3, 16, 16)
    assert not (traps / "executed").exists()


def test_a_message_of_sitecustomize_is_no_answer_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # -I ignores PYTHONPATH, but site-packages may have a sitecustomize: a wrapper of the interpreter prints in its place.
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\necho 'a message'\nexec {sys.executable} \"$@\"\n")
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))
    it = ImageRecords(TEN, (3, 16, 16), 10, workers=1)
    np.testing.assert_array_equal(it.next().label[0], np.arange(10.0))


@pytest.mark.parametrize("name", ["../secret.png", "{folder}/secret.png", "a/../../secret.png"])
def test_names_of_an_image_list_stay_in_its_folder(tmp_path: Path, name: str):
    name = name.format(folder=tmp_path)
    image = codec.encode(np.zeros((8, 8, 3), "uint8"), 9, ".png")
    (tmp_path / "root").mkdir()
    for path in ("secret.png", "root/good.png"):
        (tmp_path / path).write_bytes(image)
    (tmp_path / "a.lst").write_text(f"0\t1.0\t{name}\n")
    with pytest.raises(ValueError, match=r"outside of the folder '.*root'"):
        pack.pack_list(tmp_path / "a.lst", tmp_path / "root", tmp_path / "a")
    bad = mx.image.ImageIter(1, (3, 8, 8), imglist=[[1.0, name]], path_root=str(tmp_path / "root"))
    with pytest.raises(ValueError, match=r"outside of the folder"):
        bad.next()
    good = mx.image.ImageIter(1, (3, 8, 8), imglist=[[1.0, "./good.png"]], path_root=str(tmp_path / "root"))
    assert good.next().data[0].shape == (1, 3, 8, 8)


@pytest.mark.parametrize("kind", ["csv", "libsvm"])
def test_a_line_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(text, "BLOCK", 1000)
    (tmp_path / "data").write_bytes(b"1," * 3000 if kind == "csv" else b"1 0:" + b"1" * 6000)
    with pytest.raises(FormatError, match=r"data: byte 0: found a line of more than 1,000 bytes.*line ends"):
        if kind == "csv":
            CSVIter(str(tmp_path / "data"), (3,), batch_size=1).next()
        else:
            LibSVMIter(str(tmp_path / "data"), (3,), batch_size=1).next()


def test_long_lines_of_as_many_numbers_as_expected_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text, "BLOCK", 1000)
    (tmp_path / "data").write_text(",".join(["1.5"] * 2000) + "\n" + ",".join(["2.5"] * 2000) + "\n")
    it = CSVIter(str(tmp_path / "data"), (2000,), batch_size=2)
    assert np.asarray(it.next().data[0]).sum() == 2000 * 4.0


def test_a_fifo_or_a_device_is_refused_by_every_reader(tmp_path: Path):
    fifo, device = tmp_path / "fifo", tmp_path / "device"
    os.mkfifo(fifo)
    device.symlink_to("/dev/zero")
    readers = [jfit.formats.load_arrays, jfit.formats.load_tensors, jfit.formats.load_states, jfit.sym.load, RecordReader]
    readers += [read_index, lambda path: read_idx(path, 1), jfit.export.read, read_list, mx.image.imread]
    readers += [lambda path: load_sealed(path, "save it again.")]
    for read in readers:
        for path, kind in ((fifo, "a FIFO"), (device, "a device")):
            with pytest.raises(
                (FormatError, mx.MXNetError), match=f"{path}: type: found {kind}.*, expected a regular file; copy"
            ):
                read(path)
    for read in (CSVIter, LibSVMIter):
        with pytest.raises(ValueError, match="the files are empty"):
            read(str(fifo), (3,), batch_size=1)
    os.mkfifo(tmp_path / locks.LOCK_FILE)
    owner = type("Owner", (), {})()
    with pytest.raises(OSError, match="files cannot be written in the folder"):
        locks.acquire(tmp_path, owner)


def test_the_size_of_an_image_is_checked_before_decoding(monkeypatch: pytest.MonkeyPatch):
    content = io.BytesIO()
    codec.pillow().new("1", (9_000, 9_000)).save(content, "TIFF", compression="group4")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=r"9000 x 9000 pixels, expected at most 67108864; .*JFIT_MOST_PIXELS"):
        codec.decode(content.getvalue())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB; decoded, it would be 243 MB
    monkeypatch.setattr(codec, "MOST_PIXELS", 10**8)
    assert codec.open_image(content.getvalue()).size == (9_000, 9_000)


def test_a_small_gzip_file_of_a_large_array_is_refused(tmp_path: Path):
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 400_000, 28, 28)
    body = gzip.compress(bytes(10 << 20))
    (tmp_path / "images.gz").write_bytes(gzip.compress(head) + body * 30)
    assert os.path.getsize(tmp_path / "images.gz") < 400_000
    with pytest.raises(FormatError, match=r"313,600,000 bytes, but the file has .*gunzip"):
        read_idx(tmp_path / "images.gz", 3)


def test_a_long_error_is_cut_in_the_middle():
    message = str(FormatError("a.bin", "field 'name'", f"found {'x' * 10**6}, expected a number", "save the file again."))
    assert len(message) <= 1000
    assert message.startswith("a.bin: field 'name': found xxx")
    assert message.endswith("xxx, expected a number; save the file again.")
