"""Write checkpoints that are complete in memory, on the calling thread or in the background while training goes on.

`jfit.checkpoints.checkpoint` describes the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jfit.checkpoints.locks import check as check_lock
from jfit.checkpoints.saved import META, TENSORS, entry_of, folders_of, path_of, record_of, step_of
from jfit.checkpoints.split import finish_split, save_split
from jfit.distributed import exchange, is_main, num_processes, rank
from jfit.formats.atomic import FormatError, atomic_dir, sweep, trash
from jfit.formats.manifest import dump_sealed
from jfit.formats.tensors import checksum, save_tensors
from jfit.interrupts import in_thread

# Held while a checkpoint gets its name and older ones are deleted: threads of this process do that one after the other.
_renaming = threading.Lock()


class Prepared(NamedTuple):
    """A checkpoint in memory, complete and checked, that `write` writes.

    Attributes:
        path: its folder.
        record: the fields of meta.json without "files".
        trees: pytrees by name, as (arrays by name, names of typed PRNG keys with their implementations); "state" is the state.
        keep, protect: arguments of `jfit.checkpoint.save`.
        parts: the arrays of the state that orbax writes, by name, on the devices; the others are in `trees`.
    """

    path: Path
    record: dict[str, Any]
    trees: dict[str, tuple[dict[str, np.ndarray], dict[str, str]]]
    keep: int | None
    protect: Collection[int]
    parts: Mapping[str, Any] = {}

    @property
    def nbytes(self) -> int:
        """Number of bytes of all arrays."""
        return sum(array.nbytes for arrays, _ in self.trees.values() for array in arrays.values())


class Abandoned(Exception):
    """Raised in `write` if its checkpoint is not wanted any more."""


def write(prepared: Prepared, is_wanted: Callable[[], bool] = lambda: True) -> Path:
    """Write a checkpoint, and delete older ones.

    In a job of several processes, rank 0 writes.  If there are split arrays, all processes must call it.

    Args:
        prepared: the checkpoint.
        is_wanted: called when all files are written, before the folder gets its name.

    Returns:
        Its folder.

    Raises:
        FolderInUse: another process saves its checkpoints in the same directory.
        OSError: the files cannot be written; with split arrays, in all processes.
        Abandoned: `is_wanted` returned False.
    """
    with ExitStack() as stack:
        if prepared.parts:
            enter = lambda: str(stack.enter_context(_folder_of(prepared, is_wanted)))  # noqa: E731
            folder = Path(_agreed(enter if is_main() else str, "making the folder of a checkpoint")[0])
            _agreed(lambda: save_split(folder, prepared.parts), "writing split arrays")
            names = _agreed(lambda: finish_split(folder) if is_main() else [], "finishing split arrays")[0]
            entries = _agreed(lambda: {n: entry_of(folder / n) for n in names[rank() :: num_processes()]}, "checksums")
            end = lambda: (_write_files(prepared, folder, *entries), stack.close())  # noqa: E731
            _agreed(end if is_main() else str, "naming a checkpoint")
        elif is_main():
            _write_files(prepared, stack.enter_context(_folder_of(prepared, is_wanted)))
    return prepared.path


def _agreed(action: Callable[[], Any], name: str) -> list[Any]:
    """Call a function in all processes and return its results by rank; if it raises an exception in one, raise one in all."""
    value = error = problem = None
    try:
        value = action()
    except Exception as raised:
        error, problem = raised, f"rank {rank()} of the job failed in {name}: {raised}"
    results = exchange([value, problem], name)
    if error is not None:
        raise error
    if problem := next((problem for _, problem in results if problem), None):
        raise OSError(problem)
    return [value for value, _ in results]


@contextmanager
def _folder_of(prepared: Prepared, is_wanted: Callable[[], bool]) -> Iterator[Path]:
    """Context manager of a temporary folder; at its end it gets the name of the checkpoint, and older ones are deleted."""
    path, directory = prepared.path, prepared.path.parent
    is_locked = check_lock(directory)
    with suppress(OSError):
        sweep(directory, exclusive=is_locked)
    with ExitStack() as stack:

        def before_rename() -> None:
            stack.enter_context(_renaming)
            if not is_wanted():
                raise Abandoned

        with atomic_dir(path, before_rename=before_rename) as folder:
            yield folder
        if prepared.keep is not None:
            _delete(path, prepared.keep, prepared.protect)


def _write_files(prepared: Prepared, folder: Path, *entries: Mapping[str, Any]) -> None:
    """Write the other files of a checkpoint than those of split arrays, which have the `entries` of meta.json."""
    files = {f"{name}.safetensors": _write(folder, name, *tree) for name, tree in prepared.trees.items()}
    files |= {name: entry for some in entries for name, entry in some.items()}
    (folder / META).write_bytes(dump_sealed({**prepared.record, "files": files}))


def _delete(path: Path, keep: int, protect: Collection[int]) -> None:
    """Delete all checkpoints but `path`, the `keep` - 1 others with the highest steps, and those of the steps in `protect`.

    Copies under the number of a later step, which are never read, take no place of another and are not deleted.
    """
    others = [other for other in reversed(folders_of(path.parent)) if other != path and not _is_misnamed(other, path)]
    protected = {path_of(path.parent, number) for number in protect}
    for other in others[keep - 1 :]:
        if other not in protected:
            trash(other)


def _is_misnamed(other: Path, path: Path) -> bool:
    if step_of(other) <= step_of(path):
        return False
    try:
        record_of(other)
    except (FormatError, OSError):
        return True
    return False


def _write(folder: Path, name: str, arrays: dict[str, np.ndarray], keys: dict[str, str]) -> dict[str, Any]:
    """Write the arrays of a pytree, and return the entry of the file in meta.json."""
    file = folder / f"{name}.safetensors"
    save_tensors(file, arrays, sync=False)
    # The checksum is that of the arrays in memory, not of the file, so that `verify` also detects an error of the write.
    crc, size = checksum(file, arrays)
    return {"bytes": size, "crc32": crc} | ({} if file.name == TENSORS else {"keys": keys})


class BackgroundWrite:
    """A function that writes a checkpoint on a new thread, which starts at once.

    Hashing, writing and fsync leave the interpreter to other threads.  The process may end before the function returns; then
    the temporary folder of `write` is left over, and the next save deletes it.

    Args:
        function: called with a function without arguments, the argument `is_wanted` of `write`.
    """

    def __init__(self, function: Callable[[Callable[[], bool]], Any]) -> None:
        self._wanted, self._named = True, False
        self._future = in_thread(function, self._is_wanted)

    @property
    def done(self) -> bool:
        """Whether the function has returned or raised an exception."""
        return self._future.done()

    def error(self) -> BaseException | None:
        """Wait for the function, and return its exception; None if there is none.  Ctrl-C may end the wait."""
        return self._future.exception()

    def abandon(self) -> bool:
        """Do not wait for the function.  If the checkpoint has no name yet, it never gets one, and the result is False."""
        with _renaming:
            self._wanted = False
        return self._named

    def _is_wanted(self) -> bool:
        self._named = self._wanted  # `write` has locked `_renaming`
        return self._wanted
