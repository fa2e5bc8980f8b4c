"""A lock file in each folder of checkpoints, so that two runs never write into one folder.

The file `.run.lock` names the process that writes, and that process has a lock of the operating system on it (`flock`).  The
system ends the lock with the process, however that ends, so no lock is ever left over; a file server ends those of a machine
that has vanished.  The lock belongs to an object of this process, a `Run`, and ends with it at the latest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

LOCK_FILE = ".run.lock"
# a FIFO would wait for a writer; a link could name any file, which would be overwritten; Windows has neither flag
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


class FolderInUse(RuntimeError):
    """Raised if another run writes into the same folder of checkpoints; the message has its process, machine and age."""


class Holder(NamedTuple):
    """The content of a lock file.

    Attributes:
        pid: id of the process that writes.
        host: name of its machine or container.
        since: time at which the lock was made, in seconds since 1970.
    """

    pid: int
    host: str
    since: float


@dataclass
class _Lock:
    """A lock of this process: its open file, and a weak reference to the object that it belongs to."""

    path: Path
    file: int
    owner: Callable[[], Any]


_locks: dict[Path, _Lock] = {}
_guard = threading.RLock()


def acquire(directory: str | os.PathLike[str], owner: Any) -> None:
    """Lock a folder of checkpoints for an object; do nothing if this object has the lock already.

    Args:
        directory: the folder; created if necessary.
        owner: the object, a `Run`; only a weak reference is kept.

    Raises:
        FolderInUse: another run, in this or in another process, writes into the folder.
        OSError: the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> folder, owner = Path(tempfile.mkdtemp()), threading.Event()
        >>> acquire(folder, owner)
        >>> (folder / ".run.lock").exists()
        True
        >>> release(owner)
        >>> (folder / ".run.lock").exists()
        False
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        path = Path(directory).resolve() / LOCK_FILE
        with _guard:
            lock = _locks.get(path)
            if lock is not None and lock.owner() is None:  # another thread is about to release it
                _release(lock)
                lock = None
            if lock is None:
                new = _locks[path] = _Lock(path, _take(path), weakref.ref(owner, lambda _: _release(new)))
            elif lock.owner() is not owner:
                raise FolderInUse(
                    f"checkpoint: another run of this process is training and saves in {directory}, too; pass another folder"
                )
    except OSError as error:
        problem = f"files cannot be written in the folder {directory} ({error}), so no checkpoint could be saved"
        raise OSError(error.errno, f"checkpoint: {problem}; pass another folder") from error


def release(owner: Any) -> None:
    """Delete the lock files of an object; do nothing if it has none.

    Args:
        owner: the object that was passed to `acquire`.
    """
    for lock in list(_locks.values()):
        if lock.owner() is owner:
            _release(lock)


def holder_of(directory: str | os.PathLike[str]) -> Holder | None:
    """Return the living process that has the lock of a folder of checkpoints; None if there is none.  Only reads.

    Args:
        directory: the folder; it need not exist.
    """
    try:
        file = os.open(Path(directory) / LOCK_FILE, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return None
    try:
        return None if _flock(file, "LOCK_SH") else _read(file)
    finally:
        os.close(file)


def check(directory: str | os.PathLike[str]) -> bool:
    """Check before a save that no other process writes into a folder of checkpoints.

    Args:
        directory: the folder; it need not exist.

    Returns:
        bool: whether this process has the lock of the folder.

    Raises:
        FolderInUse: another process has the lock of the folder, perhaps because the file of this process was deleted.
    """
    path = Path(directory).resolve() / LOCK_FILE
    with _guard:
        lock = _locks.get(path)
        if lock is not None and not _is_at(lock.file, path):  # somebody deleted the file, perhaps with its folder
            path.parent.mkdir(parents=True, exist_ok=True)
            old, lock.file = lock.file, _take(path)
            os.close(old)
        elif lock is None and (holder := holder_of(directory)) is not None:
            raise FolderInUse(_message(path, holder))
        return lock is not None


def _release(lock: _Lock) -> None:
    with _guard:
        if _locks.get(lock.path) is lock:
            del _locks[lock.path]
            with contextlib.suppress(OSError):
                if _is_at(lock.file, lock.path):
                    lock.path.unlink()
            os.close(lock.file)


# ------------------------------------------------------------------------------------------------ the file
def _take(path: Path) -> int:
    """Create or take over the lock file, and return it open and locked."""
    pauses = iter((0.05, 0.05))
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        try:
            if not _flock(file, "LOCK_EX"):
                pause = next(pauses, None)
                if pause is None:
                    raise FolderInUse(_message(path, _read(file)))
                time.sleep(pause)  # `holder_of` locks the file for a moment
            elif _is_at(file, path):  # otherwise the process that had it has just deleted it
                if os.fstat(file).st_size:
                    text = "checkpoint: %s was locked by process %d on %s, which has ended; this run takes the folder over"
                    logging.getLogger("jfit").warning(text, path.parent, *_read(file)[:2])
                os.ftruncate(file, 0)
                holder = Holder(os.getpid(), platform.node(), time.time())
                os.pwrite(file, json.dumps(holder._asdict()).encode(), 0)
                return os.dup(file)  # the lock stays with the copy
        finally:
            os.close(file)


def _flock(file: int, kind: str) -> bool:
    """Lock an open file unless another process has locked it; return False in that case."""
    try:
        import fcntl  # not on Windows

        fcntl.flock(file, getattr(fcntl, kind) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError) as error:
        text = "checkpoint: this file system has no locks (%s), so a second run in the same folder would not be noticed"
        logging.getLogger("jfit").warning(text, error)
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _read(file: int) -> Holder:
    try:
        holder = Holder(**json.loads(os.read(file, 10_000)))
        return holder._replace(pid=int(holder.pid), since=float(holder.since))
    except (ValueError, TypeError, RecursionError):  # a process that has the lock writes the content a moment later
        return Holder(0, "an unknown machine", time.time())


def _message(path: Path, holder: Holder) -> str:
    seconds = max(time.time() - holder.since, 0)
    age = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
    return (
        f"checkpoint: process {holder.pid} on {holder.host} has been saving its checkpoints in {path.parent} for {age}; "
        f"pass another folder as checkpoint=, or stop that process first (its lock is the file {path})"
    )


def _forget() -> None:
    """In a forked child, forget the locks, which are the parent's, and replace `_guard`, which a thread may have held."""
    global _guard
    for lock in _locks.values():
        os.close(lock.file)  # the lock is that of the open file, which the parent still has
    _locks.clear()
    _guard = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
