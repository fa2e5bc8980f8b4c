"""Worker processes and the memory they share: batches of images made ahead, in their order."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import mmap
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from jfit.data.images.source import Job
from jfit.formats.atomic import FormatError

_WORKER = Path(__file__).with_name("worker.py")
_END_SECONDS = 2.0  # a worker that has not ended so long after its input did is killed
_ENVIRONMENT = {
    # One thread a worker: the workers are the parallelism.
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # The C library keeps freed memory for the next image: otherwise it goes back to the system and comes, zeroed, from there
    # for every array, which takes as long as the arithmetic.
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(1 << 28)),
}
_LENT = 2  # batches that may be in the user's hands without a copy; of more the user gets copies
_ALIGN = 64  # a device on the host takes over memory that begins at such an address
RowLayout = Sequence[tuple[int, int]]


class Lent:
    """Memory of the ring that a batch lives in; it goes back to the ring when the last array on it is gone."""

    def __init__(self, memory: mmap.mmap, slot: int, offset: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.slot, self._memory = slot, memory
        array = np.ndarray(shape, dtype, memory, offset)
        self.__array_interface__ = array.__array_interface__


class Pool:
    """Worker processes that fill batches in a ring of shared memory.

    Args:
        job: what they have to know.
        workers: how many processes; each makes an equal part of every batch.
        batch_size: rows of a batch.
        ahead: batches in the making at most.

    Batches come out in the order they were asked for.  The processes end with `close()`, with the last reference to this
    object, with the interpreter, or when the parent dies in any other way; Ctrl-C reaches the parent alone.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, job: Job, workers: int, batch_size: int, ahead: int) -> None:
        self.job, self.batch_size = job, batch_size
        self._labels = -(-batch_size * job.label_width * 4 // _ALIGN) * _ALIGN  # bytes of a slot's labels
        row = int(np.prod(job.data_shape())) * np.dtype(job.recipe.dtype).itemsize
        # A slot is the labels, then the data.
        self._slot = self._labels + -(-batch_size * row // _ALIGN) * _ALIGN
        self._row, self._slots = row, ahead + _LENT
        self._free = list(range(self._slots))
        self._asked: collections.deque[int] = collections.deque()  # slots, the oldest batch first
        bounds = [batch_size * k // workers for k in range(workers + 1)]
        self._parts = [(low, high) for low, high in itertools.pairwise(bounds) if high > low]
        total = self._slot * self._slots
        self._processes: list[subprocess.Popen[bytes]] = []
        self.owner = os.getpid()  # whose workers they are: not those of a process forked from it
        self._finalizer = weakref.finalize(self, _stop, self._processes, os.getpid())
        handle = _shared_file(total)
        try:
            self._memory = mmap.mmap(handle, total)
            for _ in self._parts:
                self._processes.append(_start(handle))
        except BaseException:
            self._finalizer()  # those that did start
            raise
        finally:
            os.close(handle)
        setup = {"path": sys.path, "bytes": total, "job": {**job._asdict(), "recipe": job.recipe._asdict()}}
        for process in self._processes:
            _send(process, setup)

    @property
    def pending(self) -> int:
        """Batches asked for and not taken yet."""
        return len(self._asked)

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [process.pid for process in self._processes]

    def ask(self, rows: RowLayout, epoch: int) -> None:
        """Have a batch made; call it while fewer than `ahead` are pending.

        Args:
            rows: (row number, byte of its record) of each of the batch's rows.
            epoch: index of the epoch.
        """
        slot = self._free.pop()
        self._asked.append(slot)
        start = slot * self._slot
        for process, (low, high) in zip(self._processes, self._parts, strict=True):
            labels, data = start + low * self.job.label_width * 4, start + self._labels + low * self._row
            _send(process, {"rows": rows[low:high], "count": high - low, "epoch": epoch, "labels": labels, "data": data})

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """The oldest batch asked for: data, lent from the ring or copied where it runs low, and labels (rows, label_width).

        Raises:
            FormatError: a record of it is damaged.
            RuntimeError: a worker died; the pool is closed.
        """
        slot = self._asked.popleft()
        answers = [self._answer(process) for process in self._processes]  # all of them, so that the next batch is the next
        start = slot * self._slot
        failed = next((answer for answer in answers if "done" not in answer), None)
        if failed is not None:
            self._free.append(slot)
            if "format" in failed:
                raise FormatError(*failed["format"])
            raise RuntimeError(f"a worker that decodes {self.job.path} failed:\n{failed['error']}")
        labels = np.ndarray((self.batch_size, self.job.label_width), np.float32, self._memory, start).copy()
        shape = (self.batch_size, *self.job.data_shape())
        lent = Lent(self._memory, slot, start + self._labels, shape, self.job.recipe.dtype)
        in_hands = self._slots - len(self._free) - len(self._asked) - 1
        if in_hands >= _LENT:
            data = np.array(lent)
            self._free.append(slot)
        else:
            data = np.asarray(lent)
            weakref.finalize(lent, self._free.append, slot).atexit = False
        return data, labels

    def close(self) -> None:
        """End the processes; may be called again.  Batches already taken stay as they are."""
        self._asked.clear()
        self._finalizer()

    def _answer(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        line = _pipe(process.stdout).readline()
        if not line:
            self.close()
            code = process.returncode
            raise RuntimeError(
                f"a worker that decodes {self.job.path} ended with status {code}; its last words are on standard error. "
                "A negative status is a signal (-9: killed, perhaps for memory: use fewer workers or smaller batches)."
            )
        return json.loads(line)


def _shared_file(size: int) -> int:
    """A file without a name, in memory where the system can do that."""
    if sys.platform == "win32":
        raise OSError("worker processes need a POSIX system; on this one decode in the process, with workers=0.")
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("jfit-images")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle


def _start(handle: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **_ENVIRONMENT}
    # A session of its own: Ctrl-C in a terminal interrupts the parent, who decides what happens to the worker.
    return subprocess.Popen(
        [sys.executable, str(_WORKER), str(handle)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(handle,),
        env=environment,
        start_new_session=True,
    )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _send(process: subprocess.Popen[bytes], message: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # a worker that has died is found out by its missing answer
        pipe = _pipe(process.stdin)
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()


def _stop(processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    if os.getpid() != owner:
        return
    for process in processes:
        with contextlib.suppress(BrokenPipeError):
            _pipe(process.stdin).close()
    for process in processes:
        # A worker in the middle of a batch need not finish it.
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _pipe(process.stdout).close()
