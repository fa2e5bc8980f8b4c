"""Callback that saves checkpoints during training."""

import logging
import math
import os
import shutil
import warnings
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from jfit.formats.atomic import atomic_dir
from jfit.formats.manifest import dump_sealed
from jfit.train import checkpoint, locks
from jfit.train.callbacks.base import Callback, Event
from jfit.train.callbacks.monitor import maximizes, monitored
from jfit.train.finite import is_finite, last_finite


def checkpointing(
    directory: str | os.PathLike[str],
    every: str | int = "epoch",
    keep: int | None = 3,
    *,
    keep_best: int = 0,
    monitor: str = "val_loss",
    mode: str = "auto",
) -> Callback:
    """Save a checkpoint after each epoch, or every N steps.  Optionally keep those of the best epochs too.

    It saves the state of the run and `run.meta()` (position, history, callback states and graph), which
    `fit(resume=directory)` needs.  `jfit.Run.load(directory, which="best")` loads the best checkpoint, and
    `jfit.checkpoint.best(directory)` is its path.

    Args:
        directory: checkpoint directory of the run.
        every: "epoch", or a number of steps.
        keep: number of checkpoints to keep, those with the highest steps; None keeps all.
        keep_best: number of checkpoints to keep in addition: those of the epochs with the best values of `monitor`.  With a
            number of steps as `every`, the end of an epoch is saved if it is one of these.
        monitor: name of the value in the logs of an epoch, such as "val_loss" or "val_accuracy"; used with `keep_best`.
        mode: "min", "max", or "auto" (maximize if the name contains "acc", "f1", "auc" or the like and does not end in "loss",
            "mse", "error" or the like, else minimize).

    Returns:
        A `Callback`; its state is the path of the last checkpoint, a string.  With `keep_best`: {"last": this path or None,
        "best": list of [value, step], best first}, so a resumed run continues with the best epochs of the run before.

    During training the folder is locked, so that no other run saves checkpoints in it.  If a checkpoint cannot be written, for
    example because the disk is full, training continues with a warning, and the next one is tried; after the last step the
    failed one is tried again, and raises OSError if it fails.

    Raises:
        ValueError: `every` is neither "epoch" nor an integer of at least 1, `keep` is below 1, or `keep_best` below 0.  During
            training: the first epoch logs no value called `monitor`, or an array.
        FolderInUse: at the start of training, another run saves checkpoints in `directory` (a RuntimeError).
        OSError: at the start of training, files cannot be written in `directory`.
        TypeError: at the start of training, the state of a callback is not JSON-serializable.

    Example:
        >>> checkpointing("runs/a/checkpoints", every=100).every
        100
    """
    steps = _steps(every)
    if keep is not None and keep < 1:
        raise ValueError(f"checkpointing: keep is {keep}, expected at least 1, or None to keep all.")
    if isinstance(keep_best, bool) or not isinstance(keep_best, int) or keep_best < 0:
        raise ValueError(f"checkpointing: keep_best is {keep_best!r}, expected a number of checkpoints of at least 0.")
    events = ("fit_start", "epoch_end" if steps is None else "step", "fit_end")
    if keep_best:
        best = _BestKept(directory, keep, keep_best, monitor, maximizes("checkpointing", monitor, mode), steps is None)
        events = tuple(dict.fromkeys((*events, "epoch_end")))
        return Callback(on=best.on, init=_no_best, events=events, every=steps, name=f"checkpointing({monitor})")
    return Callback(on=_Saving(directory, keep).on, events=events, every=steps, name="checkpointing")


class _Saving:
    """The function `on` of `checkpointing`.

    Attributes:
        failed: whether the last save failed; it is tried again at the next one, and at the end of the run.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int | None) -> None:
        self._passed, self.keep, self.failed = directory, keep, False
        self._home: str | None = None  # current directory when training began

    @property
    def directory(self) -> str | os.PathLike[str]:
        """The folder as it was passed; its absolute path if the current directory has changed since training began."""
        if self._home is None or os.path.isabs(self._passed):
            return self._passed
        with suppress(OSError):
            if os.getcwd() == self._home:
                return self._passed
        return os.path.join(self._home, self._passed)

    def on(self, event: Event, state: Any) -> Any:
        if event.kind == "fit_start":
            self.failed, self._home = False, os.getcwd()
            locks.acquire(self.directory, event.run)
            _check_states(event)
            return state
        if event.kind != "fit_end":
            return self.update(event, state)
        return self.write(event, state) if self.failed else state

    def update(self, event: Event, state: Any) -> Any:
        """Save a checkpoint, and return the new state of the callback."""
        return self.write(event, state)

    def write(self, event: Event, state: Any) -> Any:
        """Save a checkpoint, and return its path; if that fails during training, warn and return the old state."""
        # sync: the host waits until the devices have computed the state of this step
        path = self.save(event, _meta(event))
        return state if path is None else str(path)

    def save(self, event: Event, meta: dict[str, Any], protect: Collection[int] = ()) -> Path | None:
        """Call `checkpoint.save`; None if the files cannot be written.

        Raises:
            OSError: the files cannot be written at the end of the run, when there is no later attempt.
        """
        try:
            state = event.run.snapshot()
            goes_back = hasattr(event.run, "keep_finite") and event.run.keep_finite(state)
            if not is_finite(state):
                if goes_back:  # training stops soon, or continues with an earlier state
                    logging.getLogger("jfit").warning("checkpoint: step %d is not saved: it is not finite", event.step)
                    return None
                meta["finite"] = False
                protect = [*protect, *last_finite(self.directory)]
            options = {"keep": self.keep, "step": event.step, "protect": protect, "extra": _extra(event)}
            path = checkpoint.save(self.directory, state, meta=meta, **options)
        except OSError as error:
            self.failed = True
            what = f"checkpoint: the state of step {event.step} could not be saved in {self.directory} ({error})"
            if event.kind == "fit_end":
                hint = "jfit.last_run() has it: free some space and call jfit.last_run().save(folder)"
                raise OSError(error.errno, f"{what}, and training has ended; {hint}") from error
            warnings.warn(f"{what}; training continues, and the next checkpoint is tried again", stacklevel=2)
            return None
        self.failed = False
        return path


class _BestKept(_Saving):
    """The function `on` of `checkpointing` with `keep_best`; `per_epoch` is whether every epoch is saved."""

    def __init__(self, directory: Any, keep: int | None, number: int, monitor: str, maximize: bool, per_epoch: bool) -> None:
        super().__init__(directory, keep)
        self.number, self.per_epoch, self.monitor, self.maximize = number, per_epoch, monitor, maximize

    def update(self, event: Event, state: dict[str, Any]) -> dict[str, Any]:
        best, due = self._present(state), event.kind == "step" or self.per_epoch
        if event.kind == "epoch_end":
            value = monitored("checkpointing", event, self.monitor, required=not best)
            # the checkpoint of this step is overwritten if the last "step" event saved it
            best = [entry for entry in best if entry[1] != event.step]
            if value is not None and not math.isnan(value):
                best = sorted([*best, [value, event.step]], key=self._rank)[: self.number]
            due |= any(step == event.step for _, step in best)
        return self.write(event, state, best) if due else state

    def _present(self, state: dict[str, Any]) -> list[list[Any]]:
        """Return the entries whose checkpoints exist, after copying those of the folder from which the run was resumed."""
        present = []
        for entry in state["best"]:
            path = checkpoint.path_of(self.directory, entry[1])
            if not path.is_dir():
                source = Path(state["last"]).parent / path.name
                if not source.is_dir():
                    logging.getLogger("jfit").warning(
                        "%s, one of the best checkpoints of this run, was deleted; it is not among its best ones any more",
                        source,
                    )
                    continue
                try:
                    with atomic_dir(path) as folder:
                        shutil.copytree(source, folder, dirs_exist_ok=True)
                except OSError as error:
                    logging.getLogger("jfit").warning(
                        "%s, one of the best checkpoints of this run, could not be copied to %s (%s); it is not among its best "
                        "ones any more",
                        source,
                        self.directory,
                        error,
                    )
                    continue
            present.append(entry)
        return present

    def _rank(self, entry: list[Any]) -> tuple[float, int]:
        return (-entry[0] if self.maximize else entry[0]), entry[1]

    def write(self, event: Event, state: dict[str, Any], best: list[list[Any]] | None = None) -> dict[str, Any]:
        entries = state["best"] if best is None else best
        new = {"last": str(checkpoint.path_of(self.directory, event.step)), "best": entries}
        meta = _meta(event)
        meta["best"] = {"monitor": self.monitor, "mode": "max" if self.maximize else "min", "checkpoints": entries}
        # The checkpoint must contain the new state of this callback; the run still has its state before this event.
        meta["callbacks"] = [[name, new if old is state else old] for name, old in meta.get("callbacks", [])]
        # sync: the host waits until the devices have computed the state of this step
        return state if self.save(event, meta, [step for _, step in entries]) is None else new


def _no_best() -> dict[str, Any]:
    return {"last": None, "best": []}


def _steps(every: str | int) -> int | None:
    if every == "epoch":
        return None
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"checkpointing: every is {every!r}, expected 'epoch' or a number of steps of at least 1.")
    return every


def _check_states(event: Event) -> None:
    """Check before training that the states of all callbacks can be saved.

    Raises:
        TypeError: the state of a callback is not JSON-serializable.
    """
    for name, state in _meta(event).get("callbacks", []):
        try:
            dump_sealed({"state": state})
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"callback {name}: its state is not JSON-serializable ({error}), so it could not be saved in a checkpoint; use "
                "numbers, strings, lists and dicts"
            ) from error


def _meta(event: Event) -> dict[str, Any]:
    run_meta: Any = getattr(event.run, "meta", None)
    if run_meta is not None:
        return dict(run_meta())
    return {"position": dict(event.run.position), "history": event.run.history.to_json()}


def _extra(event: Event) -> dict[str, Any]:
    run_extra: Any = getattr(event.run, "extra", None)
    return {} if run_extra is None else run_extra()
