"""Files and folders that are either the old ones or the new ones, never half of each."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# A temporary name says whose it is: '.<name>.<pid>-<8 hex>.tmp'; '.old' is the folder that is being replaced.
_TMP, _OLD = ".tmp", ".old"
# Names in use by this process. A process id alone does not tell: in containers a restarted run often has the same one.
_ACTIVE: set[str] = set()


class FormatError(ValueError):
    """A file is not what it should be: names the file, the place in it, what was found and what to do.

    Args:
        path: the file.
        where: the field or byte offset.
        problem: found and needed.
        remedy: what to do about it.

    Example:
        >>> print(FormatError("a.bin", "byte 0", "found b'PK', needed a header", "save it again."))
        a.bin: byte 0: found b'PK', needed a header; save it again.
    """

    def __init__(self, path: str | os.PathLike[str], where: str, problem: str, remedy: str):
        super().__init__(f"{os.fspath(path)}: {where}: {problem}; {remedy}")
        self.path, self.where, self.problem, self.remedy = os.fspath(path), where, problem, remedy

    def __reduce__(self):
        return type(self), (self.path, self.where, self.problem, self.remedy)


def atomic_write(path: str | os.PathLike[str], data: bytes | str | Callable[[BinaryIO], object], sync: bool = True) -> Path:
    """Replaces a file as a whole: a reader, or a machine that dies, sees the old content or the new one.

    Args:
        path: the file; its folder is made when missing.
        data: the content (text is written as UTF-8), or a function that writes it to a binary file.
        sync: wait until the bytes are on the disk; without it a power loss may lose the new content.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> atomic_write(tempfile.mkdtemp() + "/note.txt", "kept").read_text()
        'kept'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path, _TMP)
    _ACTIVE.add(temporary.name)
    try:
        with open(temporary, "xb") as file:
            if callable(data):
                data(file)
            else:
                file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        _ACTIVE.discard(temporary.name)
    if sync:
        _sync_folder(path.parent)
    return path


@contextmanager
def atomic_path(path: str | os.PathLike[str], sync: bool = True) -> Iterator[Path]:
    """`atomic_write` for libraries that open the file themselves: replaces a file as a whole.

    Args:
        path: the file; its folder is made when missing.
        sync: wait until the bytes are on the disk.

    Yields:
        The path to write to, alone in a temporary folder beside `path`. After an exception `path` is as it was.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic_path(target) as path:
        ...     _ = path.write_text("kept")
        >>> target.read_text()
        'kept'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder and not only a name: whatever temporary files the library makes of its own are swept with it.
    folder = _beside(path, _TMP)
    _ACTIVE.add(folder.name)
    try:
        folder.mkdir()
        yield folder / path.name
        if sync:
            _sync_tree(folder)
        # Some libraries rename a temporary file, which only its owner may read: give it the permissions of `open`.
        (folder / path.name).chmod(folder.stat().st_mode & 0o666)
        os.replace(folder / path.name, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _ACTIVE.discard(folder.name)
    if sync:
        _sync_folder(path.parent)


@contextmanager
def atomic_dir(path: str | os.PathLike[str], sync: bool = True) -> Iterator[Path]:
    """Makes a folder that appears with all its files or not at all.

    Args:
        path: the folder to make. One that exists is replaced at the end: it is moved aside, and back by `sweep` where the
          process died in between.
        sync: wait until the files are on the disk.

    Yields:
        A temporary folder beside it, to write into. After an exception it is removed and `path` is as it was.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "saved"
        >>> with atomic_dir(target) as folder:
        ...     _ = (folder / "note.txt").write_text("kept")
        >>> (target / "note.txt").read_text()
        'kept'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path, _TMP)
    _ACTIVE.add(temporary.name)
    try:
        temporary.mkdir()
        yield temporary
        if sync:
            _sync_tree(temporary)
        _swap(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        _ACTIVE.discard(temporary.name)
    if sync:
        _sync_folder(path.parent)


def sweep(folder: str | os.PathLike[str]) -> list[str]:
    """Removes what a killed process left behind, and puts back a folder that it had moved aside.

    Args:
        folder: where atomic writes happened. Temporary files of processes that still live are left alone.

    Returns:
        The names that were removed or put back.

    Example:
        >>> import tempfile
        >>> sweep(tempfile.mkdtemp())
        []
    """
    swept = []
    folder = Path(folder)
    # Old folders first: the new one of the same swap may be complete or not, only the old one is known to be.
    leftovers = [entry for entry in (folder.iterdir() if folder.is_dir() else ()) if _owner(entry.name) is not None]
    for entry in sorted(leftovers, key=lambda entry: entry.suffix != _OLD):
        if entry.name in _ACTIVE or _alive(_owner(entry.name)):
            continue
        target = folder / entry.name[1:].rsplit(".", 2)[0]
        if entry.suffix == _OLD and not target.exists():
            entry.rename(target)
        elif entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
        swept.append(entry.name)
    return swept


def trash(folder: str | os.PathLike[str]) -> None:
    """Removes a folder so that a death midway leaves no half of it under its name.

    Args:
        folder: the folder to remove.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "old"
        >>> folder.mkdir()
        >>> trash(folder)
        >>> folder.exists()
        False
    """
    folder = Path(folder)
    hidden = _beside(folder, _TMP)
    os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}{suffix}")


def _swap(temporary: Path, path: Path) -> None:
    if not path.exists():
        os.rename(temporary, path)
        return
    # A folder cannot be renamed over one that has files: two renames, and `sweep` undoes the first when the second never came.
    old = _beside(path, _OLD)
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
    """The process id in a temporary name, None for any other name."""
    parts = name.rsplit(".", 2)
    if not name.startswith(".") or len(parts) != 3 or f".{parts[2]}" not in (_TMP, _OLD):
        return None
    pid, dash, token = parts[1].partition("-")
    return int(pid) if dash and pid.isdecimal() and len(token) == 8 else None


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
    # Some file systems refuse fsync on a folder; the rename itself is done.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
