"""What the processes of a job agree on while they train: what rank 0 decides, and which checkpoint they resume from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from jfit import activity
from jfit.checkpoints.finite import newest_finite
from jfit.checkpoints.saved import ARRAYS, META, Saved, check_content, folders_of, present, read, warn_of_traces
from jfit.distributed import JobError, exchange, is_main, num_processes
from jfit.formats.atomic import FormatError, read_file
from jfit.formats.tensors import load_tensors
from jfit.history.plots import TIMES

Result = TypeVar("Result")


def from_main(compute: Callable[[], Result], name: str) -> Result:
    """Call a function in rank 0 only, and return its result in all processes; without a job, just call it.

    Args:
        compute: function without arguments that returns JSON (None, numbers, texts, lists, dicts).
        name: what is computed, for messages.

    Raises:
        Exception: in rank 0, what the function raised.
        JobError: in the other processes, if it raised something.
    """
    if num_processes() == 1:
        return compute()
    if not is_main():
        result = exchange(None, name)[0]
        if "error" in result:
            raise JobError(f"rank 0 failed in {name}: {result['error']}")
        return result["value"]
    try:
        value = compute()
    except BaseException as error:
        exchange({"error": f"{type(error).__name__}: {error}"}, name)
        raise
    exchange({"value": value}, name)
    return value


def equal_times(logs: dict[str, Any]) -> dict[str, Any]:
    """Return the logs of an epoch with the durations of rank 0 of the job, so that callbacks decide the same everywhere."""
    times = exchange({name: logs[name] for name in TIMES if name in logs}, "the end of an epoch")[0]
    return {name: value for name, value in logs.items() if name not in TIMES} | times


# ------------------------------------------------------------------------------------------------ the checkpoint to resume from
def find_checkpoint(directory: str | os.PathLike[str]) -> tuple[Saved, bool] | None:
    """Read the checkpoint from which a run resumes, as `newest_finite`; None, perhaps with a warning, if there is none.

    In a job, rank 0 chooses the checkpoint.  The others read the same one from the same path; if one cannot, for example
    because its host does not share the file system, rank 0 sends the files.

    Args:
        directory: folder of checkpoints, or one checkpoint.

    Raises:
        FileNotFoundError: `directory` does not exist.
    """
    path = Path(directory)
    found: list[tuple[Saved, bool]] = []

    def choose() -> Saved | None:
        if not folders_of(path) and not (present(path) / META).is_file():
            if not path.exists():
                raise FileNotFoundError(f"resume: {str(path)!r} does not exist; pass a folder of checkpoints or a checkpoint")
            warn_of_traces(directory)
            return None
        found.append(newest_finite(directory))
        return found[0][0]

    saved = shared_checkpoint(choose)
    return None if saved is None else (saved, from_main(lambda: found[0][1], "whether newer checkpoints are not finite"))


def shared_checkpoint(choose: Callable[[], Saved | None]) -> Saved | None:
    """Return the same checkpoint in all processes of a job: rank 0 chooses it, and the others read it too (`find_checkpoint`).

    Args:
        choose: function that reads and returns a checkpoint, or None if there is none; only rank 0 calls it.
    """
    if num_processes() == 1:
        return choose()
    saved: Saved | None = None

    def chosen() -> dict[str, Any] | None:
        nonlocal saved
        saved = choose()
        return None if saved is None else {"folder": str(saved.folder), "record": saved.record}

    with activity.Doing(activity.SAVING, "reading a checkpoint"):
        choice = from_main(chosen, "reading the checkpoint")
        return None if choice is None else _same_checkpoint(saved, choice["folder"], choice["record"])


def _same_checkpoint(saved: Saved | None, folder: str, record: dict[str, Any]) -> Saved:
    """Return a checkpoint of rank 0 in all processes of a job.

    Args:
        saved: the checkpoint, in rank 0; None in the others.
        folder: its folder.
        record: its `Saved.record`.
    """
    if saved is None:
        with contextlib.suppress(OSError, FormatError):  # the folder may be on the disk of rank 0 only
            found = read(Path(folder))
            saved = found if found.record == record else None  # another checkpoint of the same name on the disk of this host
    if not any(exchange(saved is None, "which processes have the checkpoint")):
        return saved  # type: ignore[return-value]  (all have it)
    if ARRAYS in record:
        raise JobError(f"the checkpoint {folder} has split arrays, and not all hosts see it; put it where all of them do")
    contents: dict[str, bytes] = {}
    read_files = lambda: contents.update({name: read_file(Path(folder) / name) for name in record["files"]})  # noqa: E731
    from_main(read_files, "reading the checkpoint for other hosts")
    arrays = {}
    for name, expected in record["files"].items():
        content = exchange(contents[name] if is_main() else b"", "the files of a checkpoint")[0]
        if saved is None:
            file = Path(folder) / name
            check_content(file, expected, content)
            arrays[name] = load_tensors(file, content)[0]
    return Saved(Path(folder), record, arrays) if saved is None else saved
