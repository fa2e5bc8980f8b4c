"""Atomic replacement of files and folders: after a crash the path has its old content or its new content, never a mixture."""

import functools
import io
import os
import platform
import shutil
import stat
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# Temporary names contain the process id and 4 digits of the machine: '.<name>.<pid>-<4 hex><8 hex>.tmp'.  '.old' is a folder
# that is being replaced.
_TMP, _OLD = ".tmp", ".old"
_FOREIGN_SECONDS = 3600  # a temporary name of another machine is left over if it has not changed for so long
# Temporary names in use by this process. The process id is not enough: in a container a restarted run often has the same id.
_ACTIVE: set[str] = set()


MOST_CHARACTERS = 1000  # of the message of a FormatError


def printable(text: str) -> str:
    r"""Return text of a file, or a file name, for messages and terminals: all but line ends that cannot be printed is escaped.

    Example:
        >>> print(printable("fc\x1b[2J"))
        fc\x1b[2J
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class FormatError(ValueError):
    """Raised for a file that is damaged or has the wrong format: "path: where: problem; remedy".

    Args:
        path: the file.
        where: position in the file, such as a field or a byte offset.
        problem: what was found and what was expected.
        remedy: what to do about it.

    Example:
        >>> print(FormatError("a.bin", "byte 0", "found b'PK', expected a header", "save it again."))
        a.bin: byte 0: found b'PK', expected a header; save it again.
    """

    def __init__(self, path: str | os.PathLike[str], where: str, problem: str, remedy: str):
        message = f"{os.fspath(path)}: {where}: {problem}; {remedy}"
        if len(message) > MOST_CHARACTERS:  # a message quotes the file, which may hold one name of megabytes
            half = MOST_CHARACTERS // 2 - 5
            message = f"{message[:half]} [...] {message[-half:]}"
        super().__init__(printable(message))
        self.path, self.where, self.problem, self.remedy = os.fspath(path), where, problem, remedy

    def __reduce__(self):
        return type(self), (self.path, self.where, self.problem, self.remedy)


def atomic_write(path: str | os.PathLike[str], data: bytes | str | Callable[[BinaryIO], object]) -> Path:
    """Write a file atomically: a concurrent reader, or a reader after a crash, sees the old content or the new content.

    Args:
        path: the file; its folder is created if necessary.
        data: the content (str is encoded as UTF-8), or a function that writes it to a binary file.

    Returns:
        pathlib.Path of the file.

    Raises:
        OSError: the file cannot be written; the old content is unchanged.

    Example:
        >>> import tempfile
        >>> atomic_write(tempfile.mkdtemp() + "/note.txt", "new").read_text()
        'new'
    """
    with atomic_path(path) as temporary, open(temporary, "xb") as file:
        if callable(data):
            data(file)
        else:
            file.write(data.encode() if isinstance(data, str) else data)
    return Path(path)


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file from outside to read its bytes.  Only regular files: a FIFO waits for a writer, a device may have no end.

    Raises:
        FormatError: it is a FIFO, a device or the like.
        OSError: it cannot be opened.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    if not stat.S_ISREG(mode := os.fstat(file.fileno()).st_mode):
        file.close()
        kind = "a FIFO (named pipe)" if stat.S_ISFIFO(mode) else "a device or the like"
        raise FormatError(path, "type", f"found {kind}, expected a regular file", "copy its content to a file.")
    return file


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file from outside; see `open_file`."""
    with open_file(path) as file:
        return file.read()


@contextmanager
def atomic_path(path: str | os.PathLike[str], sync: bool = True) -> Iterator[Path]:
    """Context manager to write a file atomically by a library that opens the file by its path.

    Args:
        path: the file; its folder is created if necessary.
        sync: whether to wait until the bytes are on the disk (fsync).

    Yields:
        pathlib.Path to write to, in a new temporary folder in the same folder as `path`.  On exit the file replaces `path`;
        after an exception `path` is unchanged.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic_path(target) as path:
        ...     _ = path.write_text("new")
        >>> target.read_text()
        'new'
    """
    path = Path(path)
    with _temporary_folder(path) as folder:  # so that temporary files of the library itself are removed with it
        yield folder / path.name
        if sync:
            _sync_tree(folder)
        # A library may write a temporary file that only its owner can read, and rename it: set the permissions of `open`.
        (folder / path.name).chmod(folder.stat().st_mode & 0o666)
        os.replace(folder / path.name, path)
    if sync:
        _sync_folder(path.parent)


@contextmanager
def atomic_dir(path: str | os.PathLike[str], before_rename: Callable[[], object] | None = None) -> Iterator[Path]:
    """Context manager to create or replace a folder atomically, with all its files.

    Args:
        path: the folder.  An existing folder is renamed, replaced and deleted at the end; `sweep` restores it if the process
            died in between.
        before_rename: called when the files are complete, before the folder gets its name; after an exception in it, `path` is
            unchanged.

    Yields:
        pathlib.Path of a temporary folder to write into.  On exit it replaces `path`; after an exception it is deleted and
        `path` is unchanged.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "saved"
        >>> with atomic_dir(target) as folder:
        ...     _ = (folder / "note.txt").write_text("new")
        >>> (target / "note.txt").read_text()
        'new'
    """
    path = Path(path)
    with _temporary_folder(path) as temporary:
        yield temporary
        _sync_tree(temporary)
        if before_rename is not None:
            before_rename()
        _swap(temporary, path)
    _sync_folder(path.parent)


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """Create a folder beside `path`, which is deleted at the end unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = _temporary(path, _TMP)
    _ACTIVE.add(folder.name)
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _ACTIVE.discard(folder.name)


def sweep(folder: str | os.PathLike[str], *, exclusive: bool = False, prefix: str = "") -> list[str]:
    """Clean up after killed processes: delete their temporary files, and finish or undo interrupted replacements.

    Args:
        folder: folder in which `atomic_write`, `atomic_path`, `atomic_dir` or `trash` were used.  Temporary files of running
            processes are not touched, nor those of other machines that changed within the last hour.
        exclusive: whether this process has the lock of the folder: files of other machines are left over then, and those of
            running processes of this machine if they have not changed for an hour.
        prefix: first characters of the names of the files whose temporary files are looked at.  Default: all.

    Returns:
        list of str: the temporary names that were deleted or restored.

    Example:
        >>> import tempfile
        >>> sweep(tempfile.mkdtemp())
        []
    """
    swept = []
    # Old folders first: they are complete, while the new folder of an interrupted replacement may not be.
    for entry in sorted(leftovers(folder), key=lambda entry: entry.suffix):
        if entry.name in _ACTIVE or not entry.name[1:].startswith(prefix) or _in_use(entry, exclusive):
            continue
        target = entry.with_name(_target(entry.name))
        if entry.suffix == _OLD and not target.exists():
            os.replace(entry, target)
        elif entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
        swept.append(entry.name)
    return swept


def leftovers(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the temporary files and folders in a folder, of running and of killed processes, without changing them.

    Args:
        folder: folder in which `atomic_write`, `atomic_path`, `atomic_dir` or `trash` were used; it need not exist.

    Returns:
        list of pathlib.Path.

    Example:
        >>> import tempfile
        >>> leftovers(tempfile.mkdtemp())
        []
    """
    folder = Path(folder)
    return [entry for entry in (folder.iterdir() if folder.is_dir() else ()) if _owner(entry.name) is not None]


def replaced_folders(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Find folders that are missing because `atomic_dir` is replacing them, or was killed while it did.

    Args:
        folder: folder in which `atomic_dir` was used.

    Returns:
        dict of the missing name -> path of the complete earlier folder, whose temporary name ends in ".old".

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / ".saved.7-0123456789ab.old").mkdir()
        >>> list(replaced_folders(folder))
        ['saved']
    """
    old = {_target(entry.name): entry for entry in leftovers(folder) if entry.suffix == _OLD}
    return {name: entry for name, entry in old.items() if not entry.with_name(name).exists()}


def trash(folder: str | os.PathLike[str]) -> None:
    """Delete a folder so that a crash midway never leaves a part of it under its name (`sweep` deletes the rest).

    Args:
        folder: the folder to delete.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "old"
        >>> folder.mkdir()
        >>> trash(folder)
        >>> folder.exists()
        False
    """
    folder = Path(folder)
    hidden = _temporary(folder, _TMP)
    os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _temporary(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{_machine()}{uuid.uuid4().hex[:8]}{suffix}")


@functools.cache
def _machine() -> str:
    """Four hexadecimal digits of the name of this machine or container, in which process ids are unique."""
    return f"{zlib.crc32(platform.node().encode()) & 0xFFFF:04x}"


def _target(name: str) -> str:
    """The name of which `name` is a temporary name."""
    return name[1:].rsplit(".", 2)[0]


def _swap(temporary: Path, path: Path) -> None:
    if not path.exists():
        os.rename(temporary, path)
        return
    # A rename cannot replace a folder that has files: rename twice; `sweep` undoes the first if the second did not happen.
    old = _temporary(path, _OLD)
    _ACTIVE.add(old.name)
    try:
        os.rename(path, old)
        try:
            os.rename(temporary, path)
        except BaseException:
            os.rename(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        _ACTIVE.discard(old.name)


def _owner(name: str) -> int | None:
    """Process id in a temporary name, or None for any other name."""
    parts = name.rsplit(".", 2)
    if not name.startswith(".") or len(parts) != 3 or f".{parts[2]}" not in (_TMP, _OLD):
        return None
    pid, dash, token = parts[1].partition("-")
    return int(pid) if dash and pid.isdecimal() and len(token) == 12 else None


def _in_use(entry: Path, exclusive: bool = False) -> bool:
    """Whether the process of a temporary name may still be running."""
    token = entry.name.rsplit(".", 2)[1].partition("-")[2]
    is_foreign = token[:4] != _machine()
    if is_foreign and exclusive:
        return False
    if is_foreign or (exclusive and _alive(_owner(entry.name))):  # a save without a lock, or the id of another process since
        try:
            return time.time() - entry.lstat().st_mtime < _FOREIGN_SECONDS
        except OSError:
            return True  # it is gone already
    return _alive(_owner(entry.name))


def _alive(pid: int | None) -> bool:
    if pid is None:
        return True
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _sync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            with open(Path(root) / name, "rb") as file:
                os.fsync(file.fileno())
        _sync_folder(Path(root))


def _sync_folder(folder: Path) -> None:
    # Some file systems do not support fsync of a folder; the rename is done in any case.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
