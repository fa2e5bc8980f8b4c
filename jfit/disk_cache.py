"""Compiled programs on disk: JAX's compilation cache in a folder of the user, shared by all processes, of bounded size.

A program that any earlier process compiled is read from the folder, in a few percent of the time of compiling it.  `import
jfit` switches the cache on for the whole process, programs without jfit included, unless the process already has one
(`JAX_COMPILATION_CACHE_DIR`), the environment variable `JFIT_CACHE` is 0, or the folder cannot be written.

>>> compile_cache(False) is None
True
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import re
import stat
import sys
import warnings
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

MAX_BYTES = 1 << 30  # size of the folder above which the programs that were not used for longest are deleted
_OFF, _ON = ("0", "false", "off", "no"), ("", "1", "true", "on", "yes")  # values of JFIT_CACHE that are no folders


# At most one: the folder of the cache that jfit switched on, and its maximum size in bytes.
_active: list[tuple[Path, int]] = []


def compile_cache(folder: bool | str | os.PathLike[str] = True, *, max_bytes: int = MAX_BYTES) -> Path | None:
    """Choose the folder in which JAX keeps compiled programs for later processes, or switch this cache off.

    The cache belongs to the process: programs that are compiled without jfit use it too.  Programs are kept apart by the
    versions of jax and jaxlib and the instruction set of the processor (subfolders), and by everything else that they depend
    on (JAX's keys).  Several processes may use one folder.  When a process ends, it deletes the files that were not used for
    longest until at most `max_bytes` are left.

    Args:
        folder: True for the default folder, `jfit/xla` in the user's cache folder (`XDG_CACHE_HOME` or `~/.cache`; macOS:
            `~/Library/Caches`; Windows: `%LOCALAPPDATA%`); a folder of yours; or False for no cache.
        max_bytes: maximum size of all programs in the folder, in bytes.  Other files are neither counted nor deleted.

    Returns:
        The folder in which programs are stored, or None if there is no cache: because `folder` is False, or because a default
        folder cannot be written (a read-only home).

    Raises:
        PermissionError: `folder` is a path that cannot be created or written, or in which other users can write: whoever
            writes there can run code in this process.
        TypeError: `folder` is neither a bool nor a path.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> compile_cache(folder).is_relative_to(folder)
        True
        >>> compile_cache(False)
    """
    if not isinstance(folder, (bool, str, os.PathLike)) or folder == "":
        raise TypeError(f"folder is {folder!r}; expected True, False or the path of a folder")
    path = _use(folder, max_bytes)
    jax_cache.reset_cache()  # JAX opens its cache once, at the first compile
    return path


def _use(folder: bool | str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Path | None:
    _active.clear()
    path, base = None, _default_folder() if folder is True else Path(folder or "").expanduser().absolute()
    if folder is not False and base is not None:
        path = base / _version()
        problem = _problem(path)
        if problem and folder is not True:
            raise PermissionError(f"compiled programs cannot be kept in {path}: {problem}; choose another folder")
        path = None if problem else path
    jax.config.update("jax_compilation_cache_dir", None if path is None else str(path))
    if path is None:
        return None
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # JAX's default is 1 second, but the dozens of small programs of a run take seconds together.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    _active.append((path.parent, max_bytes))
    return path


def start() -> None:
    """Switch the cache on as `import jfit` does: by `JFIT_CACHE` (0, or a folder), and only if the process has none."""
    choice = os.environ.get("JFIT_CACHE", "")
    if choice.lower() in _OFF or _setting("jax_compilation_cache_dir") or not _setting("jax_enable_compilation_cache"):
        return
    try:
        _use(True if choice.lower() in _ON else choice)
    except PermissionError as error:
        warnings.warn(f"JFIT_CACHE: {error}", stacklevel=2)


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def _default_folder() -> Path | None:
    """Folder of the user's programs; None if the user has no home (a number without an account, as in containers)."""
    home, base = os.path.expanduser("~"), ""
    if sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches")
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    else:
        given = os.environ.get("XDG_CACHE_HOME", "")
        base = given if os.path.isabs(given) else os.path.join(home, ".cache")  # the specification ignores relative paths
    return Path(base, "jfit", "xla") if os.path.isabs(base) else None


_VERSION = re.compile(r"jax-.+-[0-9a-f]{8}")  # names of the subfolders, see `_version`


def _version() -> str:
    """Name of the subfolder: versions of jax and jaxlib, and a checksum of the instruction set that programs are made for."""
    return f"jax-{jax.__version__}-{version('jaxlib')}-{zlib.crc32(_instruction_set().encode()):08x}"


def _instruction_set() -> str:
    """Describe the processor: on Linux the flags of its first core (avx2, avx512f, ...), elsewhere its name."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            text = file.read(8192)  # the first core; a large machine writes megabytes
    except OSError:
        text = ""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return f"{platform.machine()} {flags[1] if flags else platform.processor()}"


def _problem(folder: Path) -> str | None:
    """Create the folder, readable by its owner only, and return why it cannot be used; None if it can."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return error.strerror or str(error)
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return "it belongs to another user"
    parent = folder.parent.stat().st_mode  # others could put a folder of theirs in its place, but for a sticky one such as /tmp
    open_to_others = stat.S_IWGRP | stat.S_IWOTH
    if os.name == "posix" and (status.st_mode & open_to_others or (parent & open_to_others and not parent & stat.S_ISVTX)):
        return "other users can write there, and could run code in this process"
    return None if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else "it is read-only"


@atexit.register
def _delete_oldest() -> None:
    """Delete the files that were not read or written for longest, until the folder has its maximum size."""
    for folder, max_bytes in _active:
        # Other processes delete and write at the same time: a file or a folder that is gone is no error.
        with contextlib.suppress(OSError):
            subfolders = [sub.path for sub in os.scandir(folder) if _VERSION.fullmatch(sub.name) and not sub.is_symlink()]
            entries = [entry for path in subfolders for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)]
            found = sorted((max(s.st_atime, s.st_mtime), s.st_size, e.path) for e in entries for s in [e.stat()])
            excess = sum(size for _, size, _ in found) - max_bytes
            for _, size, path in found:
                if excess <= 0:
                    break
                Path(path).unlink(missing_ok=True)
                excess -= size
