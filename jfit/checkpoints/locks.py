"""A lock file in each folder of checkpoints, so that two runs never write into one folder.

The file `.run.lock` names the process that writes: process id, machine, and when the process and the lock began.  A thread of
that process touches the file every `BEAT_SECONDS`, and every save does.  The next run takes a lock over if

- its process is on this machine and has ended, or
- its process is on another machine, or in another container, and has not touched the file for `STALE_SECONDS`.

The lock belongs to an object of this process, a `Run`, and ends with it at the latest.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

LOCK_FILE = ".run.lock"
BEAT_SECONDS = 10.0
STALE_SECONDS = 120.0
LEFT_SECONDS = 3600.0  # after which a temporary file of a lock is deleted
_ENDED = -1


class FolderInUse(RuntimeError):
    """Raised if another run writes into the same folder of checkpoints; the message has its process, machine and age."""


class Holder(NamedTuple):
    """The content of a lock file.

    Attributes:
        pid: id of the process that writes.
        host: name of its machine or container.
        machine: identity within which process ids are unique: host, boot, and namespace of process ids.
        started: when the process started, in clock ticks since boot; None if it is unknown.
        since: time at which the lock was made, in seconds since 1970.
        token: random digits that identify this lock.
    """

    pid: int
    host: str
    machine: str
    started: int | None
    since: float
    token: str


class _Lock(NamedTuple):
    """A lock of this process, and a weak reference to the object that it belongs to."""

    path: Path
    token: str
    owner: Callable[[], Any]


_locks: dict[str, _Lock] = {}
_guard = threading.RLock()
_beating: threading.Thread | None = None
_wake = threading.Event()


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
            lock = _locks.get(str(path))
            if lock is not None and lock.owner() is owner:
                return
            if lock is not None and lock.owner() is not None:
                raise FolderInUse(
                    f"checkpoint: another run of this process is training and saves its checkpoints in {directory}, too; pass "
                    "another folder as checkpoint=, because two runs in one folder would delete each other's checkpoints"
                )
            if lock is not None:
                _release(lock)
            token = _take(path)
            _locks[str(path)] = _Lock(path, token, weakref.ref(owner))
            _start_beating()
    except OSError as error:
        problem = f"files cannot be written in the folder {directory} ({error}), so no checkpoint could be saved"
        raise OSError(error.errno, f"checkpoint: {problem}; pass another folder") from error


def release(owner: Any) -> None:
    """Delete the lock files of an object; do nothing if it has none.

    Args:
        owner: the object that was passed to `acquire`.
    """
    with _guard:
        for lock in [lock for lock in _locks.values() if lock.owner() is owner]:
            _release(lock)


def holder_of(directory: str | os.PathLike[str]) -> Holder | None:
    """Return the living process that has the lock of a folder of checkpoints; None if there is none.  Only reads.

    Args:
        directory: the folder; it need not exist.
    """
    path = Path(directory) / LOCK_FILE
    holder = _read(path)
    if holder is None or any(lock.token == holder.token for lock in list(_locks.values())):
        return holder
    return holder if _is_alive(holder, path, time.time()) else None


def check(directory: str | os.PathLike[str]) -> bool:
    """Check before a save that no other process writes into a folder of checkpoints.

    Args:
        directory: the folder; it need not exist.

    Returns:
        bool: whether this process has the lock of the folder.

    Raises:
        FolderInUse: another process has the lock of the folder, perhaps because it took over that of this process.
    """
    path = Path(directory).resolve() / LOCK_FILE
    with _guard:
        lock, holder = _locks.get(str(path)), _read(path)
        if lock is not None and holder is not None and holder.token == lock.token:
            os.utime(path)
        elif lock is not None and holder is None:
            path.parent.mkdir(parents=True, exist_ok=True)  # somebody deleted the file, perhaps with its folder
            _locks[str(path)] = lock._replace(token=_take(path))
        elif holder is not None and _is_alive(holder, path, time.time()):
            raise FolderInUse(_message(directory, holder, path))
        return lock is not None


def _release(lock: _Lock) -> None:
    del _locks[str(lock.path)]
    holder = _read(lock.path)
    if holder is not None and holder.token == lock.token:
        with contextlib.suppress(OSError):
            lock.path.unlink()


# ------------------------------------------------------------------------------------------------ the file
def _take(path: Path) -> str:
    """Create the lock file, in place of one that is left over, and return its token."""
    token = uuid.uuid4().hex
    holder = Holder(os.getpid(), platform.node(), _machine(), _started(os.getpid()), time.time(), token)
    candidate, now = path.with_name(f"{path.name}.{token}"), time.time()
    try:
        candidate.write_text(json.dumps(holder._asdict()), encoding="utf-8")
        now = candidate.stat().st_mtime  # the clock of the file system, which all machines share
        for _ in range(100):
            if _create(candidate, path):
                return token
            other = _read(path)
            if other is None:
                continue  # it was deleted just now
            if _is_alive(other, path, now):
                raise FolderInUse(_message(path.parent, other, path))
            _remove(path, other, token)
        raise FolderInUse(f"checkpoint: {path} is created and deleted again and again; do several runs use this folder?")
    finally:
        candidate.unlink(missing_ok=True)
        _sweep(path, now)


def _sweep(path: Path, now: float) -> None:
    """Delete the temporary files of processes that ended while they took or removed the lock."""
    for other in path.parent.glob(f"{path.name}.*"):
        with contextlib.suppress(OSError):
            holder = _read(other)
            ended = holder is not None and holder.token and not _is_alive(holder, other, now)
            if ended or now - other.stat().st_mtime > LEFT_SECONDS:
                other.unlink()


def _create(candidate: Path, path: Path) -> bool:
    """Create the lock file with its content in one step; return False if it exists."""
    try:
        os.link(candidate, path)
    except FileExistsError:
        return False
    except OSError:  # the file system has no hard links
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(candidate.read_text(encoding="utf-8"))
        except FileExistsError:
            return False
    return True


def _remove(path: Path, holder: Holder, token: str) -> None:
    """Remove a lock that is left over.  If another process replaced it meanwhile, put its lock back."""
    aside = path.with_name(f"{path.name}.{token}.left")
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    moved = _read(aside)
    if moved is not None and moved.token != holder.token:
        _create(aside, path)
    else:
        logging.getLogger("jfit").warning(
            "checkpoint: %s was locked by process %d on %s, which has ended; this run takes the folder over",
            path.parent,
            holder.pid,
            holder.host,
        )
    aside.unlink(missing_ok=True)


def _read(path: Path) -> Holder | None:
    """Read a lock file; None if there is none.  A damaged one, such as one cut short by a full disk, has no living process."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ValueError  # a FIFO would wait for a writer
        holder = Holder(**json.loads(path.read_text(encoding="utf-8")))
        return holder._replace(pid=int(holder.pid), since=float(holder.since))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError):
        return Holder(0, "an unknown machine", "", None, 0.0, "")


def _message(directory: str | os.PathLike[str], holder: Holder, path: Path) -> str:
    seconds = max(time.time() - holder.since, 0)
    age = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
    wait = (
        ""
        if holder.machine == _machine()
        else f"; if that process has ended, its lock expires {STALE_SECONDS:.0f} s after its last sign of life"
    )
    return (
        f"checkpoint: process {holder.pid} on {holder.host} has been saving its checkpoints in {directory} for {age}{wait}; "
        f"pass another folder as checkpoint=, or stop that process first (its lock is the file {path})"
    )


# ------------------------------------------------------------------------------------------------ processes
def _is_alive(holder: Holder, path: Path, now: float) -> bool:
    """Whether the process of a lock may still write; `now` is the time, by the clock of the file system."""
    if holder.machine == _machine():
        started = _started(holder.pid)
        if holder.pid == os.getpid() or started == _ENDED:
            return False
        if started is not None and holder.started is not None:
            return started == holder.started  # otherwise the id was given to another process since
    try:
        return now - path.stat().st_mtime < STALE_SECONDS
    except OSError:
        return False


@functools.cache
def _machine() -> str:
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; `_ENDED` if there is no such process, None if it is unknown."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return _ENDED
    except OSError:
        pass  # no permission to send signals: the process exists, but belongs to another user
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return _ENDED if fields[0] in "ZX" else int(fields[19])  # Z: ended, but its parent has not noticed yet
    except (OSError, ValueError, IndexError):
        return None


# ------------------------------------------------------------------------------------------------ heartbeat
def _start_beating() -> None:
    global _beating
    _wake.set()
    if _beating is None or not _beating.is_alive():
        _beating = threading.Thread(target=_beat, name="jfit-locks", daemon=True)
        _beating.start()


def _beat() -> None:
    """Touch the lock files of this process, until there are none."""
    global _beating
    while True:
        if _wake.wait(BEAT_SECONDS):
            _wake.clear()
        with _guard:
            for lock in list(_locks.values()):
                if lock.owner() is None:
                    _release(lock)
                    continue
                with contextlib.suppress(OSError):
                    os.utime(lock.path)
            if not _locks:
                _beating = None
                return


def _forget() -> None:
    """In a forked child: the locks are those of the parent, and a thread may have held `_guard`."""
    global _guard, _beating
    _locks.clear()
    _guard, _beating = threading.RLock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
