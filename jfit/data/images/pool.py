"""`Pool`: worker processes that decode batches of images ahead of time into shared memory, in order."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jfit import interrupts
from jfit.data.images.source import Job
from jfit.data.prefetch import LOG_SECONDS, Patience
from jfit.formats.atomic import FormatError

_WORKER = Path(__file__).with_name("worker.py")
LOST_SECONDS = 600.0  # a worker that gives no sign for this long is lost; its part of a batch takes seconds at most
_END_SECONDS = 1.0  # workers that are still alive this long after SIGTERM are killed
_ENVIRONMENT = {
    # One thread per worker: the processes are the parallelism.
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # Let malloc keep freed memory for the next image: returning it to the system costs page faults and zeroing for every
    # array, which takes as long as the arithmetic.
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(1 << 28)),
}
_VIEWS = 2  # number of batches that the user may hold as views of the shared memory; further batches are copies
_ROW = 16  # bytes of a row number and a byte offset
_ALIGN = 64  # XLA's CPU backend uses host memory with this alignment without a copy
RowOffsets = Sequence[tuple[int, int]]  # (row number, byte offset of its record)


class Worker(NamedTuple):
    """A worker process, and the pipe of its tasks and answers."""

    process: subprocess.Popen[bytes]
    pipe: Connection


class SlotArray:
    """Array interface of one batch in the shared memory; its slot becomes free when the last array that uses it is deleted."""

    def __init__(self, memory: mmap.mmap, slot: int, offset: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.slot, self._memory = slot, memory
        array = np.ndarray(shape, dtype, memory, offset)
        self.__array_interface__ = array.__array_interface__


class Pool:
    """Worker processes that decode batches into slots of shared memory; batches are returned in the order of submission.

    The processes end on `close()`, when the last reference to this object is dropped, when the interpreter exits, or when the
    parent process dies.  Ctrl-C interrupts only the parent.  Those that were stopped (SIGSTOP) are continued after a minute.

    Args:
        job: constant settings of the workers.
        workers: number of processes; each decodes an equal share of every batch.
        batch_size: number of rows per batch.
        ahead: maximum number of pending batches.

    Raises:
        OSError: a process cannot be started.
    """

    def __init__(self, job: Job, workers: int, batch_size: int, ahead: int) -> None:
        self.job, self.batch_size = job, batch_size
        row = int(np.prod(job.data_shape())) * np.dtype(job.recipe.dtype).itemsize
        # A slot has the task (row numbers and byte offsets), the labels, and the data; they end at these bytes.
        sizes = (_ROW * batch_size, batch_size * job.label_width * 4, batch_size * row)
        self._labels, self._data, self._slot = itertools.accumulate(-(-size // _ALIGN) * _ALIGN for size in sizes)
        self._row, self._slots = row, ahead + _VIEWS
        self._free = list(range(self._slots))
        self._pending: collections.deque[tuple[int, RowOffsets]] = collections.deque()  # (slot, rows), oldest first
        bounds = [batch_size * k // workers for k in range(workers + 1)]
        self._parts = [(low, high) for low, high in itertools.pairwise(bounds) if high > low]
        total = self._slot * self._slots
        self._workers: list[Worker] = []
        self.owner = os.getpid()  # a forked copy of this process must not use the workers
        self._finalizer = weakref.finalize(self, _stop, self._workers, os.getpid())
        handle = _shared_file(total)
        try:
            self._memory = mmap.mmap(handle, total)
            for _ in self._parts:
                self._workers.append(_start(handle))
        except BaseException:
            self._finalizer()  # stop the workers already started
            raise
        finally:
            os.close(handle)
        setup = {"path": _import_path(self.job.path), "bytes": total, "job": {**job._asdict(), "recipe": job.recipe._asdict()}}
        for worker in self._workers:
            _send(worker, setup)

    @property
    def pending(self) -> int:
        """Number of batches submitted and not taken yet."""
        return len(self._pending)

    def submit(self, rows: RowOffsets, epoch: int) -> None:
        """Start decoding a batch; fewer than `ahead` batches may be pending.

        Args:
            rows: (row number, byte offset of its record) of each row of the batch.
            epoch: index of the epoch.
        """
        slot = self._free.pop()
        self._pending.append((slot, rows))
        start = slot * self._slot
        # In the pipe of a stopped process, which nobody reads, many rows would not fit: writing would wait for ever.
        np.ndarray((self.batch_size, 2), np.int64, self._memory, start)[:] = rows
        for worker, (low, high) in zip(self._workers, self._parts, strict=True):
            places = (low * _ROW, self._labels + low * self.job.label_width * 4, self._data + low * self._row)
            _send(worker, {"at": [start + place for place in places], "count": high - low, "epoch": epoch})

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the oldest pending batch and return (data, labels).

        Returns:
            data: (batch_size, *data_shape), a view of the shared memory, or a copy if the user still holds `_VIEWS` views.
            labels: (batch_size, label_width) float32.

        Raises:
            FormatError: a record of the batch is damaged.
            RuntimeError: a worker died, or gave no sign for `LOST_SECONDS`; the pool is closed.
        """
        slot, rows = self._pending.popleft()
        parts = zip(self._workers, self._parts, strict=True)
        answers = [self._answer(worker, rows[low:high]) for worker, (low, high) in parts]  # all of them, even after an error
        start = slot * self._slot
        failed = next((answer for answer in answers if "done" not in answer), None)
        if failed is not None:
            self._free.append(slot)
            if "format" in failed:
                raise FormatError(*failed["format"])
            raise RuntimeError(f"a worker that decodes {self.job.path} failed:\n{failed['error']}")
        labels = np.ndarray((self.batch_size, self.job.label_width), np.float32, self._memory, start + self._labels).copy()
        shape = (self.batch_size, *self.job.data_shape())
        shared = SlotArray(self._memory, slot, start + self._data, shape, self.job.recipe.dtype)
        views = self._slots - len(self._free) - len(self._pending) - 1
        if views >= _VIEWS:
            data = np.array(shared)
            self._free.append(slot)
        else:
            data = np.asarray(shared)
            weakref.finalize(shared, self._free.append, slot).atexit = False
        return data, labels

    def close(self) -> None:
        """End the processes.  Batches already taken stay valid; calling it again has no effect."""
        self._pending.clear()
        self._finalizer()

    def _answer(self, worker: Worker, rows: RowOffsets) -> dict[str, Any]:
        """Wait for the next answer of a worker that decodes the images with these row numbers, and return it."""
        self._wait(worker, rows)
        try:
            return json.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            self.close()
            status = f"status {worker.process.returncode} (-9: killed, perhaps out of memory)"
            raise RuntimeError(f"a worker that decodes {self.job.path} ended with {status}.") from None

    def _wait(self, worker: Worker, rows: RowOffsets) -> None:
        """Wait until a worker that decodes `rows` answers or ends; raise after `LOST_SECONDS` and at Ctrl-C."""
        seconds, last = 0.0, time.monotonic()
        numbers = ", ".join(str(row) for row, _ in rows[:4]) + ", ..." * (len(rows) > 4)
        where = f"{self.job.path} (rows {numbers})" if rows else self.job.path
        patience = Patience(lambda _: f"worker process {worker.process.pid}, which decodes {where},")
        while not worker.pipe.poll(interrupts.WAIT_SECONDS):
            interrupts.check()
            now = time.monotonic()
            # a pause of this process, such as a suspended job, is no wait for the worker
            seconds, last = seconds + min(now - last, 10 * interrupts.WAIT_SECONDS), now
            patience(0, seconds)
            if seconds >= LOG_SECONDS:
                for each in self._workers:
                    each.process.send_signal(signal.SIGCONT)  # no effect on a process that is only slow
            if seconds >= LOST_SECONDS:
                self.close()
                silent = f"worker process {worker.process.pid}, which decodes {where}, has given no sign for {seconds:.0f} s"
                raise RuntimeError(f"{silent}: its disk may not answer. Training can be resumed from the last checkpoint.")


def _send(worker: Worker, message: Any) -> None:
    with contextlib.suppress(OSError):  # `Pool._answer` detects a dead worker
        worker.pipe.send_bytes(json.dumps(message).encode())


def _shared_file(size: int) -> int:
    """Open an anonymous file of `size` bytes, in memory if the system supports it, and return its file descriptor."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("jfit-images")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle


def _import_path(data: str | os.PathLike[str]) -> list[str]:
    """The folders from which a worker imports NumPy and Pillow.

    The current folder and those of the script and of the data file are left out: files there that are named numpy.py or PIL.py
    would be executed.
    """
    files = [os.fspath(data), getattr(sys.modules.get("__main__"), "__file__", None) or "script"]
    excluded = {os.path.realpath(""), *(os.path.realpath(os.path.dirname(os.path.abspath(file))) for file in files)}
    packages = [str(Path(np.__file__).parents[1])]  # NumPy is imported already, so this folder is trusted
    return packages + [folder for folder in sys.path if os.path.realpath(folder) not in excluded]


def _start(handle: int) -> Worker:
    # In a new session, Ctrl-C in a terminal interrupts only the parent, which then ends the workers.
    # Tasks and answers have a pipe of their own, because what is imported at the start of Python (sitecustomize) may print; -I:
    # Python imports nothing from the current folder, nor from PYTHONPATH.
    pipe, other_end = multiprocessing.Pipe()
    with other_end:
        process = subprocess.Popen(
            [sys.executable, "-I", str(_WORKER), str(handle), str(other_end.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(handle, other_end.fileno()),
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
    return Worker(process, pipe)


def _stop(workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.process.terminate()  # do not wait for a worker to finish its batch
    deadline = time.monotonic() + _END_SECONDS
    for process, pipe in workers:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:  # a stopped process (SIGSTOP) gets SIGTERM when it continues
            process.kill()
            process.wait()
        pipe.close()
