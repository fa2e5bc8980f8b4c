"""Iterators over images: same batches for any number of workers, saved positions, end of workers, errors for damaged files."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cases.images import FOLDER, pictures, png
from fit_support import Killed, dies
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
import jfit.mx as mx
from jfit.data import ImageRecords
from jfit.data.images.pack import pack_list
from jfit.data.images.pool import Pool
from jfit.data.images.recipe import Recipe
from jfit.data.images.source import Job, read_list
from jfit.formats import FormatError
from jfit.formats.records import IRHeader, RecordReader, RecordWriter, pack
from jfit.interrupts import StopFlag

pytest.importorskip("PIL.Image")
TEN = FOLDER / "images.rec"
RANDOM = {"shuffle": True, "seed": 4, "rand_crop": True, "rand_mirror": True, "brightness": 0.2, "mean": (1, 2, 3)}


def images(path=TEN, batch_size=4, **fields) -> ImageRecords:
    return ImageRecords(path, (3, 16, 16), batch_size, **(RANDOM | fields))


def contents(batch) -> tuple:
    return batch.data[0].tobytes(), batch.label[0].tolist(), batch.pad, batch.index.tolist()


def epochs(it, count) -> list[tuple]:
    found = []
    for _ in range(count):
        found += [contents(batch) for batch in it]
        it.reset()
    return found


def pids_of(pool):
    return [worker.process.pid for worker in pool._workers]


def ended(pids) -> bool:
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def damaged(tmp_path):
    """Ten records; the sixth holds no image."""
    path = tmp_path / "damaged.rec"
    with RecordReader(TEN) as source, RecordWriter(path) as target:
        for row in range(10):
            record = source.read()
            assert record is not None
            target.write(pack(IRHeader(0, 5.0, 5, 0), b"no image") if row == 5 else record)
    return path


# ------------------------------------------------------------------------------------------------ the same batches
def test_batches_do_not_depend_on_the_number_of_workers():
    wanted = epochs(images(), 3)
    assert len(wanted) == 9 and len({row for row, *_ in wanted}) == 9
    for workers in (1, 3):
        it = images(workers=workers, ahead=2)
        assert epochs(it, 3) == wanted
        it.close()


def test_an_epoch_contains_every_row_once_and_wraps_to_its_first_rows():
    for it in (images(), mx.io.ImageRecordIter(path_imgrec=str(TEN), data_shape=(3, 16, 16), batch_size=4, shuffle=True)):
        for _ in range(3):
            rows = [(int(row), batch.pad) for batch in it for row in batch.index]
            assert sorted(row for row, _ in rows[:10]) == list(range(10))
            assert [row for row, _ in rows[10:]] == [row for row, _ in rows[:2]] and rows[-1][1] == 2
            it.reset()
    assert [batch.pad for batch in images(last_batch_handle="discard")] == [0, 0]
    assert [batch.pad for batch in images(batch_size=25)] == [15]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.sampled_from(["pad", "discard"]), st.booleans())
def test_parts_contain_every_row_once_and_sizes_differ_by_at_most_one(batch_size, parts, handle, shuffle):
    seen = [ImageRecords(TEN, (3, 16, 16), batch_size, num_parts=parts, part_index=k, shuffle=shuffle) for k in range(parts)]
    rows = [it.rows.tolist() for it in seen]
    assert sorted(row for part in rows for row in part) == list(range(10))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 11), st.integers(0, 12), st.sampled_from(["pad", "discard"]))
def test_a_saved_position_continues_in_a_new_iterator(batch_size, read, handle):
    first = images(batch_size=batch_size, last_batch_handle=handle)
    for _ in range(read):
        try:
            first.next()
        except StopIteration:
            first.reset()
    again = images(batch_size=batch_size, last_batch_handle=handle)
    again.load_state_dict(first.state_dict())
    assert epochs(again, 2) == epochs(first, 2)


def test_labels_from_a_list_and_keys_from_an_index(tmp_path):
    lines = tmp_path / "a.lst"
    lines.write_text("".join(f"{key}\t{100 + key}\t{key / 2}\tx.png\n" for key in range(10)))
    it = ImageRecords(TEN, (3, 16, 16), 4, path_list=lines, label_width=2, path_index=FOLDER / "images.idx")
    assert it.provide_label[0].shape == (4, 2)
    assert it.next().label[0].tolist() == [[100 + k, k / 2] for k in range(4)]
    with pytest.raises(FormatError, match=r"line 1: found .*expected a number, 1 labels"):
        ImageRecords(TEN, (3, 16, 16), 4, path_list=lines).next()
    lines.write_text("0\t1.0\tx.png\n")
    with pytest.raises(FormatError, match=r"row 1, byte .* id 1: the image list .* has no line for this id"):
        ImageRecords(TEN, (3, 16, 16), 4, path_list=lines).next()
    with pytest.raises(FormatError, match="1 labels, label_width is 3"):
        ImageRecords(TEN, (3, 16, 16), 4, label_width=3).next()
    assert read_list(lines)[0][1][1] == "x.png"


# ------------------------------------------------------------------------------------------------ worker processes
def test_a_worker_imports_neither_jax_nor_the_users_script():
    code = (
        "import runpy, sys; w = runpy.run_path(sys.argv[1], run_name='worker'); w['bare_packages']();"
        "import jfit.data.images.source; found = [m for m in ('jax', 'optax', 'jfit.ops') if m in sys.modules];"
        "sys.exit(str(found) if found else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(WORKER)], cwd="/", capture_output=True).returncode == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_record_is_named_and_the_next_batch_is_read(damaged, workers):
    it = images(damaged, shuffle=False, workers=workers)
    it.next()
    with pytest.raises(FormatError, match=r"damaged.rec: row 5, byte .*, id 5: 8 bytes that begin with b'no image'"):
        it.next()
    it.position += 1
    assert it.next().index.tolist() == [8, 9, 0, 1]
    it.close()
    with pytest.raises(mx.MXNetError, match="row 5"):
        list(mx.io.ImageRecordIter(path_imgrec=str(damaged), data_shape=(3, 16, 16), batch_size=4, preprocess_threads=0))


@pytest.mark.slow
def test_workers_end_when_the_iterator_is_deleted_and_when_one_of_them_dies():
    it = images(workers=2)
    it.next()
    pids = pids_of(it._pool)
    del it
    gc.collect()
    assert ended(pids)
    it = images(workers=2, ahead=1)
    wanted = contents(it.next())
    pids = pids_of(it._pool)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="ended with status -9"):
        it.next()
    assert ended(pids)
    it.seek_batch(0, 0)
    assert contents(it.next()) == wanted  # new workers
    it.close()


INTERRUPTED = """
import runpy, sys, time
runpy.run_path(sys.argv[2], run_name="worker")["bare_packages"]()  # JAX takes seconds to import, and has no part in this
from jfit.data.images.pool import Pool
from jfit.data.images.recipe import Recipe
from jfit.data.images.source import Job
pool = Pool(Job(sys.argv[1], None, 1, 0, Recipe((3, 16, 16))), 2, 4, 2)
pool.submit([(0, 0)] * 4, 0)
pool.submit([(0, 0)] * 4, 0)
pool.take()
print(*(worker.process.pid for worker in pool._workers), flush=True)
{then}
"""
WORKER = Path(jfit.data.__file__).parent / "images" / "worker.py"


@pytest.mark.parametrize(
    ("number", "then"),
    [(signal.SIGINT, "time.sleep(60)"), (signal.SIGKILL, "time.sleep(60)"), pytest.param(None, "", marks=pytest.mark.slow)],
)
def test_workers_end_with_their_parent_however_it_ends(number, then):
    parent = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(then=then), str(TEN), str(WORKER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert parent.stdout is not None
    with parent.stdout as pipe:
        pids = [int(pid) for pid in pipe.readline().split()]
    assert len(pids) == 2
    if number is not None:
        os.killpg(parent.pid, number)
    assert (parent.wait(60) == 0) == (number is None)
    assert ended(pids)


# ------------------------------------------------------------------------------------------------ training on them
def net():
    flat = jfit.sym.Flatten(jfit.sym.Variable("data"))
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(flat, num_hidden=10, name="fc"), name="softmax")


def trained(data, **given) -> jfit.Run:
    return jfit.fit(net(), data, **({"num_epoch": 3, "optimizer_params": {"learning_rate": 0.001}, "progress": False} | given))


def image_iter() -> mx.image.ImageIter:
    augment = {"shuffle": True, "rand_crop": True, "rand_mirror": True, "brightness": 0.2}
    given = {"path_imgrec": str(TEN), "path_imgidx": str(FOLDER / "images.idx")}
    random.seed(3)
    return mx.image.ImageIter(4, (3, 16, 16), **given, **augment)


@pytest.mark.parametrize("make", [images, pytest.param(image_iter, marks=pytest.mark.slow)])
def test_a_killed_training_continues_bit_for_bit(tmp_path, make):
    with pytest.raises(Killed):
        trained(make(), checkpoint=tmp_path, checkpoint_every=2, callbacks=[dies(5)])
    again = trained(make(), checkpoint=tmp_path, checkpoint_every=2, resume=True)
    straight = trained(make())
    for name, value in straight.params.items():
        assert np.array_equal(value, again.params[name])


# ------------------------------------------------------------------------------------------------ MXNet's arguments
def record_iter(**given):
    return mx.io.ImageRecordIter(**{"path_imgrec": str(TEN), "data_shape": (3, 16, 16), "batch_size": 4, **given})


def test_unsupported_arguments_raise_and_ineffective_ones_are_accepted():
    with pytest.raises(NotImplementedError, match="jfit does not support std_a=10"):
        record_iter(std_a=10)
    with pytest.warns(UserWarning, match="ImageRecordIter has no argument 'rand_corp': ignored, did you mean 'rand_crop'"):
        record_iter(rand_corp=True)
    with pytest.raises(ValueError, match="part_index is 2, num_parts is 2"):
        record_iter(num_parts=2, part_index=2)
    quiet = record_iter(verbose=False, ctx="cpu", rotate=-1, aug_seq="aug_default", mean_img="", preprocess_threads=0)
    assert isinstance(quiet.next().data[0], mx.nd.NDArray)


def test_the_iterators_of_bytes_and_their_older_names():
    given = {"path_imgrec": str(TEN), "data_shape": (3, 16, 16), "batch_size": 4, "preprocess_threads": 0}
    wanted = mx.io.ImageRecordIter_v1(**given).next().data[0].asnumpy()
    found = mx.io.ImageRecordUInt8Iter(**given).next().data[0]
    assert found.dtype == np.uint8 and np.array_equal(found.asnumpy(), wanted)
    assert np.array_equal(mx.io.ImageRecordInt8Iter(**given).next().data[0].asnumpy(), np.minimum(wanted, 127))


# ------------------------------------------------------------------------------------------------ mx.image.ImageIter
@pytest.fixture
def folder(tmp_path):
    for key, image in enumerate(pictures()):
        (tmp_path / f"{key}.png").write_bytes(png(image))
    return tmp_path


def test_images_from_a_folder_by_list(folder):
    names = [[float(key), f"{key}.png"] for key in range(10)]
    (folder / "a.lst").write_text("".join(f"{key}\t{label}\t{name}\n" for key, (label, name) in enumerate(names)))
    first = mx.image.ImageIter(4, (3, 16, 16), imglist=names, path_root=str(folder)).next()
    second = mx.image.ImageIter(4, (3, 16, 16), path_imglist=str(folder / "a.lst"), path_root=str(folder)).next()
    third = mx.image.ImageIter(4, (3, 16, 16), path_imgrec=str(TEN)).next()
    for batch in (second, third):
        assert np.array_equal(first.data[0].asnumpy(), batch.data[0].asnumpy())
        assert batch.label[0].asnumpy().tolist() == [0, 1, 2, 3]
    part = mx.image.ImageIter(1, (3, 16, 16), path_imgrec=str(TEN), num_parts=3, part_index=1)
    assert [batch.label[0].asscalar() for batch in part] == [3, 4, 5]


def test_a_user_augmenter_receives_ndarrays():
    class Twice(mx.image.Augmenter):
        def __call__(self, src):
            assert isinstance(src, mx.nd.NDArray)
            return src.astype("float32") * 2

    it = mx.image.ImageIter(2, (3, 16, 16), path_imgrec=str(TEN), aug_list=[mx.image.CenterCropAug((16, 16)), Twice()])
    plain = mx.image.ImageIter(2, (3, 16, 16), path_imgrec=str(TEN))
    assert np.array_equal(it.next().data[0].asnumpy(), plain.next().data[0].asnumpy() * 2)


def test_image_iter_raises_for_invalid_arguments_and_images(folder, damaged):
    with pytest.raises(ValueError, match="no images to read"):
        mx.image.ImageIter(4, (3, 16, 16))
    with pytest.raises(ValueError, match="part_index is -1, num_parts 3"):
        mx.image.ImageIter(4, (3, 16, 16), path_imgrec=str(TEN), num_parts=3, part_index=-1)
    with pytest.raises(ValueError, match=r"expected .3, height, width."):
        mx.image.ImageIter(4, (1, 16, 16), path_imgrec=str(TEN))
    with pytest.raises(RuntimeError, match="Broken image index: 5"):
        list(mx.image.ImageIter(4, (3, 16, 16), path_imgrec=str(damaged)))
    with pytest.raises(mx.MXNetError, match=r"none.png"):
        mx.image.ImageIter(1, (3, 16, 16), imglist=[[0.0, "none.png"]], path_root=str(folder)).next()
    with pytest.raises(ValueError, match="the augmented image has shape"):
        mx.image.ImageIter(1, (3, 16, 16), path_imgrec=str(TEN), aug_list=[]).next()
    with pytest.raises(ValueError, match="index: 0 has 1 labels, label_width is 2"):
        mx.image.ImageIter(1, (3, 16, 16), path_imgrec=str(TEN), label_width=2).next()


# ------------------------------------------------------------------------------------------------ packing
def test_a_list_is_packed_as_mxnet_reads_it(folder):
    (folder / "a.lst").write_text("".join(f"{key}\t{float(key)}\t{key}.png\n" for key in range(10)))
    assert pack_list(folder / "a.lst", folder, folder / "a") == 10
    assert (folder / "a.rec").read_bytes() == TEN.read_bytes()
    assert (folder / "a.idx").read_bytes() == (FOLDER / "images.idx").read_bytes()


def test_broken_images_raise_while_packing_or_are_skipped(folder, capsys):
    (folder / "3.png").write_bytes(png(pictures()[3])[:-40])
    (folder / "a.lst").write_text("".join(f"{key}\t{key}\t{key / 2}\t{key}.png\n" for key in range(5)))
    with pytest.raises(FormatError, match=r"3.png: content: the image cannot be decoded"):
        pack_list(folder / "a.lst", folder, folder / "a")
    assert not list(folder.glob("*.rec")) and not list(folder.glob(".*"))
    assert pack_list(folder / "a.lst", folder, folder / "a", shorter_side=12, skip_broken=True) == 4
    assert "skipped: " in capsys.readouterr().err
    batch = ImageRecords(folder / "a.rec", (3, 12, 12), 4, label_width=2).next()
    assert batch.label[0].tolist() == [[0, 0], [1, 0.5], [2, 1], [4, 2]]


def test_ctrl_c_ends_the_wait_for_a_stopped_worker_and_closing_kills_it():
    pool = Pool(Job(str(TEN), None, 1, 0, Recipe((3, 16, 16))), 1, 4, 2)
    for pid in pids_of(pool):
        os.kill(pid, signal.SIGSTOP)
    pool.submit([(0, 0)] * 4, 0)
    started = time.monotonic()
    with StopFlag().watching(), pytest.raises(KeyboardInterrupt, match=r"stopped by Ctrl-C"):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        pool.take()
    pool.close()
    assert ended(pids_of(pool)) and time.monotonic() - started < 20


def test_a_task_of_many_rows_for_a_stopped_worker_does_not_block():
    rows = 50_000
    pool = Pool(Job(str(TEN), None, 1, 0, Recipe((1, 1, 1))), 1, rows, 2)
    kill = threading.Timer(5, pool._workers[0].process.kill)  # a task that blocks fails then
    try:
        os.kill(pids_of(pool)[0], signal.SIGSTOP)
        kill.start()
        pool.submit([(row, 0) for row in range(rows)], 0)
        assert kill.is_alive()
        pool._workers[0].process.kill()
        with pytest.raises(RuntimeError, match=r"a worker that decodes .* ended with status -9"):
            pool.take()
    finally:
        kill.cancel()
        pool.close()


def test_a_stopped_worker_is_named_and_continued_and_a_lost_one_is_an_error(monkeypatch, caplog):
    for module in ("jfit.data.prefetch", "jfit.data.images.pool"):  # `jfit.data.prefetch` is a function, too
        monkeypatch.setattr(sys.modules[module], "LOG_SECONDS", 0.2)
    pool = Pool(Job(str(TEN), None, 1, 0, Recipe((3, 16, 16))), 1, 4, 2)
    pid = pids_of(pool)[0]
    limit = threading.Timer(20, pool._workers[0].process.kill)  # fails instead of waiting for ever
    limit.start()
    try:
        os.kill(pid, signal.SIGSTOP)
        pool.submit([(3, 0)] * 4, 0)
        assert pool.take()[0].shape == (4, 3, 16, 16)
        assert f"waiting for worker process {pid}, which decodes {TEN} (rows 3, 3, 3, 3), for 0 s" in caplog.text
        monkeypatch.setattr("jfit.data.images.pool.LOST_SECONDS", 0.1)
        with pytest.raises(RuntimeError, match=rf"process {pid}, which decodes {TEN} \(rows 3\), has given no sign for 0 s"):
            pool._answer(pool._workers[0], [(3, 0)])  # it has no task, and does not answer
        assert ended([pid])
    finally:
        limit.cancel()
        pool.close()
