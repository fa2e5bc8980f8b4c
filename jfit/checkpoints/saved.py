"""Find checkpoints in a checkpoint directory, check them for damage, and read one of them into memory.

`jfit.checkpoints.checkpoint` describes the files.  Nothing in this file writes, renames or deletes.
"""

from __future__ import annotations

import math
import os
import re
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from jfit.distributed import is_main
from jfit.formats.atomic import FormatError, leftovers, open_file, read_file, replaced_folders
from jfit.formats.manifest import load_sealed
from jfit.formats.tensors import load_tensors

Result = TypeVar("Result")

FORMAT = 3
TENSORS, META, ARRAYS = "state.safetensors", "meta.json", "arrays"
STEP = re.compile(r"step-(\d{8,})")
REMEDY = "restore an older checkpoint of the same directory, or train from the start."
_FIELDS = {"format": int, "step": int, "keys": dict, "meta": dict, "files": dict}
_ATTEMPTS = 100  # how often a checkpoint is searched again if another process replaces or deletes it meanwhile


class Saved(NamedTuple):
    """A checkpoint in memory.  State, position and history are of one checkpoint, also if newer ones are saved meanwhile.

    Attributes:
        folder: the folder that was read.
        record: the fields of meta.json; `record["meta"]` is the `meta` argument of `save`.
        arrays: file name -> arrays by name; the file "state.safetensors" has the state.  Of split arrays, it has shapes and
            dtypes (`jax.ShapeDtypeStruct`), with which `jfit.checkpoints.split.load` reads them.
    """

    folder: Path
    record: dict[str, Any]
    arrays: dict[str, dict[str, Any]]

    @property
    def meta(self) -> dict[str, Any]:
        """The `meta` argument of `save`."""
        return self.record["meta"]


def check_name(directory: str | os.PathLike[str], argument: str) -> None:
    """Raise an error if a path is no path, is "", which pathlib takes for the current folder, or has a NUL character."""
    if not isinstance(directory, str | os.PathLike):
        raise TypeError(f"{argument} is {directory!r}, expected the path of a folder of checkpoints, a str or a Path")
    if os.fspath(directory) == "" or "\0" in str(directory):
        problem = "it has a NUL character" if directory else "it is empty (the current folder is '.')"
        raise ValueError(f"{argument} is {str(directory)!r}, expected the path of a folder of checkpoints: {problem}")


def path_of(directory: str | os.PathLike[str], step: int) -> Path:
    """Return the path of the checkpoint of a step, `directory/step-<step with 8 digits>`."""
    return Path(directory) / f"step-{step:08d}"


def folders_of(directory: Path) -> list[Path]:
    """Return the folders of the checkpoints in a directory, lowest step first.

    A checkpoint that was being replaced when its process died has a temporary name that ends in ".old".
    """
    before, after = None, _listing(directory)
    for _ in range(_ATTEMPTS):  # a folder that is renamed while the directory is read can be missing under both names
        if before == after:
            break
        before, after = after, _listing(directory)
    return [path for _, path in sorted((int(name.partition("-")[2]), path) for name, path in after.items())]


def _listing(directory: Path) -> dict[str, Path]:
    names = {name: path for name, path in replaced_folders(directory).items() if STEP.fullmatch(name)}
    entries = directory.iterdir() if directory.is_dir() else ()
    return names | {entry.name: entry for entry in entries if STEP.fullmatch(entry.name) and entry.is_dir()}


def step_of(folder: Path) -> int:
    """Return the step in the name of the folder of a checkpoint, "step-<number>", or ".step-<number>...old"."""
    return int(folder.name.removeprefix(".").partition("-")[2].partition(".")[0])


def present(path: Path) -> Path:
    """Return the path of a checkpoint, or that of its ".old" folder if only this exists."""
    return path if path.is_dir() else replaced_folders(path.parent).get(path.name, path)


def is_checkpoint(path: Path) -> bool:
    """Whether a path is that of one checkpoint, not of a directory of checkpoints."""
    return bool(STEP.fullmatch(path.name)) or (path / META).is_file()


def warn_of_traces(directory: str | os.PathLike[str]) -> None:
    """Warn that a run starts anew in a directory without checkpoints, if an earlier run left something else there."""
    directory = Path(directory)
    unfinished = sorted(entry.name for entry in leftovers(directory) if STEP.match(entry.name[1:]))
    earlier = sorted(entry.name for entry in directory.glob("*") if folders_of(entry))
    if not unfinished and not earlier:
        return
    parts = [f"checkpoints that were not written completely ({', '.join(unfinished[:3])})"] if unfinished else []
    parts += [f"checkpoints of earlier runs in {', '.join(earlier[:3])}"] if earlier else []
    hint = f"; to continue an earlier run, pass resume={str(directory / earlier[-1])!r}" if earlier else ""
    what = f"resume: {directory} has no checkpoint from which this run can continue, so it starts at step 0"
    warnings.warn(f"{what}; an earlier run left {' and '.join(parts)}{hint}", stacklevel=6)


def newest(path: str | os.PathLike[str], read: Callable[[Path], Result]) -> Result:
    """Return `read(folder)` of the checkpoint `path`, or of the undamaged one with the highest step in the directory `path`.

    Raises:
        FileNotFoundError: there is no checkpoint.
        FormatError: the checkpoint, or every checkpoint of the directory, is damaged.
    """
    path = Path(path)
    is_one = is_checkpoint(path)
    for attempt in range(_ATTEMPTS):
        folders = [present(path)] if is_one else folders_of(path)
        if not folders:
            raise FileNotFoundError(f"checkpoint: no checkpoint (step-...) found in {path}; pass the directory")
        problem: FormatError | None = None
        for folder in reversed(folders):
            before = _identity(folder)
            try:
                result = read(folder)
            except (FormatError, FileNotFoundError) as error:
                changed = _identity(folder) != before or (before is None and not is_one)
                if changed and attempt + 1 < _ATTEMPTS:
                    time.sleep(0.001 * attempt)
                    break  # another process replaced or deleted it: search again
                if is_one or not isinstance(error, FormatError):
                    raise
                problem = problem or error
                continue
            if problem is not None:
                warnings.warn(f"checkpoint: {folders[-1]} is damaged ({problem}) Restored {folder} instead.", stacklevel=3)
            return result
        else:
            raise FormatError(
                path, "all checkpoints", f"each of {len(folders)} is damaged; the newest: {problem}", "train anew."
            )
    raise AssertionError("unreachable: the last attempt returns or raises")


def _identity(folder: Path) -> tuple[int, ...] | None:
    try:
        stat = folder.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def read(folder: Path) -> Saved:
    """Read the checkpoint in a folder into memory, each file once, and check it for damage.

    The files of split arrays are checked, in a job by rank 0, but not read into memory.

    Raises:
        FileNotFoundError: the folder does not exist.
        FormatError: a file is missing or damaged.
    """
    _check_folder(folder)
    record = record_of(folder)
    arrays = {}
    for name, expected in record["files"].items():
        file = folder / name
        _check_size(file, expected)
        if name.startswith(f"{ARRAYS}/"):
            if is_main():
                check_content(file, expected)
            continue
        try:
            content = read_file(file)
        except OSError as error:
            raise FormatError(file, "content", f"the file cannot be read ({error})", REMEDY) from error
        check_content(file, expected, content)
        arrays[name] = load_tensors(file, content)[0]
    arrays[TENSORS] |= _specs(folder, record)
    return Saved(folder, record, arrays)


def _specs(folder: Path, record: dict[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of split arrays by name, if the files have at least as many bytes as such arrays."""
    present = sum(entry["bytes"] for name, entry in record["files"].items() if name.startswith(f"{ARRAYS}/"))
    try:
        specs = {k: jax.ShapeDtypeStruct(tuple(shape), dtype) for k, (shape, dtype) in record.get(ARRAYS, {}).items()}
        needed = sum(abs(math.prod(spec.shape)) * spec.dtype.itemsize for spec in specs.values())
        if needed > present:
            raise ValueError(f"the arrays have {needed} bytes, their files {present}")
    except (AttributeError, TypeError, ValueError) as error:
        raise FormatError(folder / META, f"field {ARRAYS!r}", f"no shapes and dtypes of the files: {error}", REMEDY) from error
    return specs


def check(folder: Path) -> dict[str, Any]:
    """Check the checkpoint in a folder for damage, without its arrays in memory, and return the fields of meta.json.

    Raises:
        FileNotFoundError: the folder does not exist.
        FormatError: a file is missing or damaged.
    """
    _check_folder(folder)
    record = record_of(folder)
    for name, expected in record["files"].items():
        _check_size(folder / name, expected)
        check_content(folder / name, expected)
    return record


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"checkpoint: {folder} is not a folder; pass one such as .../step-00000100.")


def record_of(folder: Path) -> dict[str, Any]:
    """Return the fields of meta.json in a folder, after checking its checksum and the types of the fields.

    Raises:
        FormatError: meta.json is missing or damaged, or was written by another version of jfit.
    """
    file = folder / META
    record = load_sealed(file, REMEDY)
    if isinstance(record.get("format"), int) and record["format"] != FORMAT:
        kind = "a newer jfit" if record["format"] > FORMAT else "a jfit before version 0.1.0"
        problem = f"found {record['format']}, this jfit reads {FORMAT} only"
        raise FormatError(file, "field 'format'", problem, f"{kind} wrote it; use that one.")
    for name, kind in _FIELDS.items():
        if not isinstance(record.get(name), kind):
            raise FormatError(file, f"field {name!r}", f"it is missing or not of type {kind.__name__}", REMEDY)
    if STEP.fullmatch(folder.name) and record["step"] != step_of(folder):
        problem = f"the checkpoint is of step {record['step']}, but the name of its folder says {step_of(folder)}"
        raise FormatError(file, "field 'step'", problem, "a copied or renamed checkpoint keeps its number: rename it.")
    for name, entry in record["files"].items():
        path = Path(name)
        is_inside = path.name == name or (path.parts[:1] == (ARRAYS,) and ".." not in path.parts)
        if not is_inside or not isinstance(entry, dict) or not {"bytes", "crc32"} <= {*entry}:
            raise FormatError(file, f"field 'files', entry {name!r}", "expected a file name with its bytes and crc32", REMEDY)
    if TENSORS not in record["files"]:
        raise FormatError(file, "field 'files'", f"it has no entry for {TENSORS}", REMEDY)
    return record


def _check_size(file: Path, expected: dict[str, Any]) -> None:
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        raise FormatError(file.parent, file.name, "the file is missing", REMEDY) from None
    except OSError as error:
        raise FormatError(file, "size", f"the size of the file cannot be read ({error})", REMEDY) from error
    if size != expected["bytes"]:
        raise FormatError(file, "size", f"found {size} bytes, expected {expected['bytes']} according to {META}", REMEDY)


def check_content(file: Path, expected: dict[str, Any], content: bytes | None = None) -> None:
    """Compare the CRC-32 of a file, or of its `content`, with that in meta.json.

    Raises:
        FormatError: they differ.
    """
    crc = entry_of(file)["crc32"] if content is None else zlib.crc32(content)
    if crc != expected["crc32"]:
        raise FormatError(file, "crc32", f"found {crc}, {META} has {expected['crc32']}: its bytes changed", REMEDY)


def entry_of(file: Path) -> dict[str, int]:
    """Return the size and the CRC-32 of a file, its entry in meta.json.  It is read in blocks."""
    crc = 0
    with open_file(file) as opened:
        while block := opened.read(1 << 20):
            crc = zlib.crc32(block, crc)
        return {"bytes": opened.tell(), "crc32": crc}
