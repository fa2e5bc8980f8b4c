"""Runs on the disk: folders of checkpoints, of which only meta.json and the sizes of files are read."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jfit.checkpoints.fingerprint import named_leaves
from jfit.checkpoints.locks import holder_of
from jfit.checkpoints.saved import STEP, folders_of, record_of, step_of
from jfit.formats.atomic import FormatError
from jfit.history.display import best_epoch
from jfit.history.table import History


@dataclass(frozen=True)
class RunFolder:
    """A folder of checkpoints and the metadata of its newest undamaged one.

    Attributes:
        path: the folder.
        checkpoints: list of (step, bytes of its files), lowest step first.
        saved: time at which the newest checkpoint was written, in seconds since 1970.
        meta: what the run saved with its state: position, history, fingerprint; empty if no checkpoint has it.
        problem: what is wrong with checkpoints that are damaged; "" if none is.

    Example:
        >>> RunFolder(Path("runs/a"), [(8, 1024)], 0.0, {"position": {"epoch": 2, "batch": 0, "step": 8}}, "").step
        8
    """

    path: Path
    checkpoints: list[tuple[int, int]]
    saved: float
    meta: dict[str, Any]
    problem: str

    @property
    def step(self) -> int:
        """Number of updates done at the newest checkpoint."""
        return self.meta.get("position", {}).get("step", self.checkpoints[-1][0])

    @property
    def history(self) -> History:
        """Losses and metrics of the epochs."""
        return History.from_json(self.meta["history"]) if "history" in self.meta else History()

    @property
    def best(self) -> str:
        """The best epoch, such as "3 (val_loss 0.412)"; "" without one."""
        best = best_epoch(self.history)
        return "" if best is None else best[1]

    @property
    def state(self) -> str:
        """ "locked by process 12 on host", "finished", "epoch 3 of 10", "step 30 of 100", "damaged", or "" if it is unknown."""
        holder = holder_of(self.path)
        if holder is not None:
            return f"locked by process {holder.pid} on {holder.host}"
        arguments = self.meta.get("arguments") or {}
        unit = "epoch" if arguments.get("num_steps") is None else "step"
        total = arguments.get("num_epoch" if unit == "epoch" else "num_steps")
        if self.problem and not self.meta:
            return "damaged"
        if total is None or "position" not in self.meta:
            return ""
        done = self.meta["position"][unit]
        return "finished" if done >= total else f"{unit} {done} of {total}"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings, model, data, versions and devices by name; those of nested dicts as "data.x"."""
        values = (self.meta.get("arguments") or {}) | (self.meta.get("fingerprint") or {})
        values |= {"learning_rate": self.meta["learning_rate"]} if "learning_rate" in self.meta else {}
        return dict(named_leaves(values, "."))

    @property
    def metrics(self) -> dict[str, Any]:
        """Loss and metrics of the last epoch, and the best epoch."""
        last = self.history.epochs[-1] if len(self.history) else {}
        return {**last, "step": self.step, "best epoch": self.best}


def open_run(path: str | os.PathLike[str]) -> RunFolder:
    """Read what a folder of checkpoints contains, without its arrays.

    Args:
        path: folder of checkpoints.

    Returns:
        The `RunFolder`.

    Raises:
        FileNotFoundError: the folder has no checkpoint.

    Example:
        >>> import tempfile, jfit
        >>> folder = tempfile.mkdtemp()
        >>> _ = jfit.checkpoint.save(folder, {"step": 7})
        >>> open_run(folder).step
        7
    """
    path = Path(path)
    folders = folders_of(path)
    if not folders:
        remedy = f"pass a folder that was checkpoint= of jfit.fit, or run: python -m jfit.runs list {path}"
        raise FileNotFoundError(f"runs: {path} has no checkpoint (step-...); {remedy}")
    meta, problems = {}, []
    for folder in reversed(folders):
        try:
            meta = record_of(folder)["meta"]
            break
        except (FormatError, OSError) as error:
            problems.append(str(error))
    sizes = [(step_of(folder), sum(_stat(file)[0] for file in folder.iterdir())) for folder in folders]
    return RunFolder(path, sizes, _stat(folders[-1])[1], meta, problems[0] if problems else "")


def _stat(path: Path) -> tuple[int, float]:
    try:
        stat = path.stat()
    except OSError:  # deleted meanwhile
        return 0, time.time()
    return stat.st_size, stat.st_mtime


def find(directory: str | os.PathLike[str]) -> list[RunFolder]:
    """Find all runs in a folder and in the folders below it.

    Args:
        directory: where to search; links to folders are not followed.

    Returns:
        List of `RunFolder`, sorted by path.

    Raises:
        FileNotFoundError: the folder does not exist.

    Example:
        >>> import tempfile, jfit
        >>> folder = tempfile.mkdtemp()
        >>> _ = jfit.checkpoint.save(folder + "/a", {"step": 7})
        >>> [run.path.name for run in find(folder)]
        ['a']
    """
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"runs: {directory} is not a folder; pass the folder below which the runs are")
    runs = []
    for path, names, _ in os.walk(directory):
        if folders_of(Path(path)):
            runs.append(open_run(path))
        names[:] = sorted(name for name in names if not STEP.match(name.removeprefix(".")))
    return runs
