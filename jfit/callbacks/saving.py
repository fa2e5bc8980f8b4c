"""Callback that saves checkpoints during training."""

import functools
import json
import logging
import math
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from jfit import activity
from jfit.callbacks.base import Callback, Event
from jfit.callbacks.intervals import EPOCH, Every, interval
from jfit.callbacks.monitor import maximizes, monitored
from jfit.checkpoints import checkpoint, locks
from jfit.checkpoints.agreement import from_main
from jfit.checkpoints.finite import is_finite, last_finite
from jfit.checkpoints.saved import check_name
from jfit.checkpoints.split import orbax
from jfit.checkpoints.writing import BackgroundWrite, Prepared, write
from jfit.checks import at_least_0, integer, positive_integer
from jfit.distributed import is_main, num_processes
from jfit.formats.atomic import atomic_dir
from jfit.formats.manifest import dump_sealed

BACKGROUND_BYTES = 1 << 24  # writing fewer bytes takes a few milliseconds


def checkpointing(
    directory: str | os.PathLike[str],
    every: str | int | Every = "epoch",
    keep: int | None = 3,
    *,
    keep_best: int = 0,
    monitor: str = "val_loss",
    mode: str = "auto",
    background_bytes: int | None = BACKGROUND_BYTES,
    split: bool = False,
) -> Callback:
    """Save a checkpoint every N epochs or steps, and at the end.  Optionally keep those with the best values too.

    The state at the end of training is always saved, also after an early stop or Ctrl-C, but not after an exception.

    It saves the state of the run and `run.meta()` (position, history, callback states and graph), which
    `fit(resume=directory)` needs.  `jfit.Run.load(directory, which="best")` loads the best checkpoint, and
    `jfit.checkpoint.best(directory)` is its path.

    Args:
        directory: checkpoint directory of the run.
        every: "epoch", a number of steps, `jfit.every(steps=500)` or `jfit.every(epochs=2)`.
        keep: number of checkpoints to keep, those with the highest steps; None keeps all.
        keep_best: number of checkpoints to keep in addition: those with the best values of `monitor`.  An evaluation within an
            epoch, or the end of an epoch, is saved if it is one of these, besides those that `every` says.
        monitor: name of a logged value: "val_loss", "val_accuracy", which each evaluation has (`eval_every=` of `fit`), or
            "loss" and other values of training, which each epoch has; used with `keep_best`.
        mode: "min", "max", or "auto" (maximize if the name contains "acc", "f1", "auc" or the like and does not end in "loss",
            "mse", "error" or the like, else minimize).
        background_bytes: states of at least so many bytes are written on another thread, while training goes on: only the copy
            of the state to the host interrupts training.  The host needs memory for this copy.  The next save waits until the
            files of the one before are on the disk, and so does the end of training.  A second Ctrl-C abandons the save, and
            the checkpoint before it stays.  Default: 16 MiB.  None: training waits for every save.
        split: write arrays that are split over the devices (`shard`, or `reduce="sharded"`, "sharded_parameters", of `fit`)
            with orbax (`pip install 'jfit[sharded]'`): each process writes the parts on its own devices.  For states that do
            not fit in the memory of one host.  In a job, the folder is one that all hosts see.  Training waits for the save.
            Checkpoints have whole arrays with nan="stop" or "rollback", which copy the state to the host anyway, and, in a job,
            with reduce="2bit".

    Returns:
        A `Callback`; its state is the path of the last checkpoint, a string.  With `keep_best`: {"last": this path or None,
        "best": list of [value, step], best first}, so a resumed run continues with the best ones of the run before.

    During training the folder is locked, so that no other run saves checkpoints in it.  If a checkpoint cannot be written, for
    example because the disk is full, training continues with a warning, and the next one is tried; after the last step the
    failed one is tried again, and raises OSError if it fails.

    Raises:
        ValueError: `every` is not "epoch", an integer of at least 1 or a `jfit.every`, `keep` is below 1, `keep_best` or
            `background_bytes` is below 0, or the name of the folder is empty or has a NUL character.  During training: no
            value called `monitor` is logged, or it is an array.
        FolderInUse: at the start of training, another run saves checkpoints in `directory` (a RuntimeError).
        OSError: at the start of training, files cannot be written in `directory`.
        TypeError: at the start of training, the state of a callback is not JSON-serializable.
        ImportError: `split` is True and orbax is not installed.

    Example:
        >>> checkpointing("runs/a/checkpoints", every=100).every
        100
    """
    check_name(directory, "checkpoint")
    if every is None or (isinstance(every, str) and every != "epoch"):
        raise ValueError(f"checkpointing: every is {every!r}; expected 'epoch', a number of steps or jfit.every(...)")
    every = interval("every", every, "steps")
    steps = every.steps
    positive_integer(**{} if keep is None else {"keep": keep})
    integer(keep_best=keep_best)
    at_least_0(keep_best=keep_best, background_bytes=min(background_bytes or 0, sys.maxsize))  # inf: never in the background
    if split:
        orbax()
    events = ("fit_start", "epoch_end" if steps is None else "step", "log", "fit_end")
    if not keep_best:
        saver = Saver(directory, keep, background_bytes, split, every)
        return Callback(on=saver.on, events=events, every=steps, name="checkpointing", saves=True)
    rule = {"number": keep_best, "monitor": monitor, "maximize": maximizes(monitor, mode)}
    saver = _BestKept(directory, keep, background_bytes, split, every, **rule)
    events = tuple(dict.fromkeys((*events, "evaluation", "epoch_end")))
    init, name = lambda: {"last": None, "best": []}, f"checkpointing({monitor})"
    return Callback(on=saver.on, init=init, events=events, every=steps, name=name, saves=True)


class _InFlight(NamedTuple):
    """A checkpoint that is written in the background: its step, the state of the callback before it, and the write."""

    step: int
    before: Any
    write: BackgroundWrite


class Saver:
    """The function `on` of `checkpointing`.

    At most one checkpoint is written in the background.  Each event at which one is saved first waits for the one before, so
    that checkpoints are written in the order of their steps, and what an event finds on the disk is what it would find if
    nothing were written in the background.

    Attributes:
        failed: whether the last state to save could not be saved; it is tried again at the next one, and at the end of the run.
        alone: whether the other processes of a job may not come to the next save, so that nothing is exchanged.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int | None,
        background_bytes: int | None,
        split: bool,
        every: Every = EPOCH,
    ) -> None:
        self.directory = os.path.abspath(directory)  # the current directory may change meanwhile
        self.keep, self.background_bytes, self.split = keep, background_bytes, split
        self.every, self.failed, self.alone = every, False, False
        self._in_flight: _InFlight | None = None
        self._state_of_run: Any = None
        self._outer: BaseException | None = None  # the exception that was being handled when training began
        self._together = False  # whether all processes of a job wait for the write and raise its error

    def on(self, event: Event, state: Any) -> Any:
        with activity.Doing(activity.SAVING, f"saving a checkpoint in {self.directory}"):
            return self._on(event, state)

    def _on(self, event: Event, state: Any) -> Any:
        self._state_of_run = state
        if event.kind == "fit_start":
            self.failed, self.alone, self._outer = False, False, sys.exception()
            from_main(lambda: locks.acquire(self.directory, event.run), "locking the folder of checkpoints")
            _check_states(event)
            return state
        if event.kind == "log":  # several times per second: a failure is reported soon
            return state if self._in_flight is None or not self._in_flight.write.done else self.finish(state)
        if event.ends_epoch:  # "epoch_end" follows
            return state
        if event.kind != "fit_end":
            return self.update(event, self.finish(state))
        state = self.finish(state, "it is tried again")
        if sys.exception() is not self._outer:  # training failed: the other processes of a job may not come here
            return self.write(event, state) if self.failed and self.can_save_alone(event.run) else state
        # A state that the run restores at its end is marked in the checkpoint, for `Run.load`.
        self.failed = self.failed or event.run.restores_best or not self._has(event.step, state)
        state = self.agree(state)
        if not self.failed:
            return state
        self._together = True
        try:
            return self.write(event, state)
        finally:
            self._together = False

    def _has(self, step: int, state: Any) -> bool:
        """Whether the last checkpoint of this run is that of a step, and exists."""
        last, path = state["last"] if isinstance(state, dict) else state, checkpoint.path_of(self.directory, step)
        return last is not None and Path(last).name == path.name and path.is_dir()

    def can_save_alone(self, run: Any) -> bool:
        """Whether this process writes the checkpoints, and does not need the other processes of the job for that."""
        return is_main() and not _needs_all(run)

    def agree(self, state: Any) -> Any:
        """In a job, return the state of the callback in rank 0, which knows whether the last save failed."""
        state, self.failed = from_main(lambda: [state, self.failed], "whether the last checkpoint was saved")
        return state

    def finish(self, state: Any, then: str = "training continues, and the next checkpoint is tried again") -> Any:
        """Wait for the checkpoint that is written in the background, and return the state of the callback.

        Args:
            state: the state of the callback.
            then: last words of the warning, if the files could not be written (OSError).

        Returns:
            `state`, or, if the files could not be written, the state before that save.

        Raises:
            Exception: what the save raised, but for an OSError.
        """
        if self._in_flight is None:
            return state
        error = self._in_flight.write.error()  # the host waits for the disk
        step, before, _ = self._in_flight
        self._in_flight, self.failed = None, error is not None
        if isinstance(error, OSError):
            warnings.warn(f"{self._problem(step, error)}; {then}", stacklevel=3)
        elif error is not None:
            raise error
        return before if self.failed else state

    def abandon(self, state: Any) -> Any:
        """Stop the save in the background, if its checkpoint has no name yet, and return the state of the callback."""
        if self._in_flight is None:
            return state
        is_named, before = self._in_flight.write.abandon(), self._in_flight.before
        self._in_flight = None
        return state if is_named else before

    def update(self, event: Event, state: Any) -> Any:
        """Save a checkpoint, if it is due, and return the new state of the callback."""
        return self.write(event, state) if self.is_due(event) else state

    def is_due(self, event: Event) -> bool:
        """Whether a checkpoint is saved at an event because of `every`."""
        epochs = self.every.epochs
        return event.kind == "step" or (event.kind == "epoch_end" and epochs is not None and (event.epoch + 1) % epochs == 0)

    def write(self, event: Event, state: Any) -> Any:
        """Save a checkpoint, and return its path; if that fails during training, warn and return the old state."""
        path = str(checkpoint.path_of(self.directory, event.step))
        return self.save(event, self.meta(event, path), state, path)

    def meta(self, event: Event, state: Any) -> dict[str, Any]:
        """Return the meta of the run with `state` as state of this callback; the run still has that before the event."""
        meta = event.run.meta()
        if state is not self._state_of_run:
            meta["callbacks"] = [[name, state if old is self._state_of_run else old] for name, old in meta["callbacks"]]
        return meta

    def save(self, event: Event, meta: dict[str, Any], before: Any, after: Any, protect: Collection[int] = ()) -> Any:
        """Save a checkpoint, a large one in the background, and return the state of the callback: `after`, or `before`.

        Raises:
            OSError: the files cannot be written at the end of the run, when there is no later attempt.
        """
        if not is_main() and not self._together and not _needs_all(event.run):
            return after
        # sync: the host waits until the devices have computed the state of this step, and copies it
        state = event.run.state if self.split and not _needs_whole(event.run) else event.run.snapshot()
        if event.run.keep_finite(state) and not is_finite(state):  # training stops soon, or continues with an earlier state
            logging.getLogger("jfit").warning("checkpoint: step %d is not saved: it is not finite", event.step)
            return before
        options = {"keep": self.keep, "step": event.step, "protect": protect, "extra": event.run.extra(), "split": self.split}
        prepared = checkpoint.prepare(self.directory, state, meta=meta, **options)
        if not is_main() and not self._together and not prepared.parts:
            return after
        limit = None if self.split else self.background_bytes
        if limit is not None and prepared.nbytes >= limit and event.kind != "fit_end":
            prepared.record["meta"] = json.loads(json.dumps(prepared.record["meta"]))  # callbacks may change states in place
            self._in_flight = _InFlight(event.step, before, BackgroundWrite(functools.partial(_write, prepared, state)))
            return after
        try:
            if self._together and not prepared.parts:
                from_main(lambda: _write(prepared, state), "saving the last checkpoint")
            else:
                _write(prepared, state)
        except OSError as error:
            self.failed, problem = True, self._problem(event.step, error)
            if event.kind == "fit_end":
                hint = "jfit.last_run() has it: free some space and call jfit.last_run().save(folder)"
                raise OSError(error.errno, f"{problem}, and training has ended; {hint}") from error
            warnings.warn(f"{problem}; training continues, and the next checkpoint is tried again", stacklevel=2)
            return before
        self.failed = False
        return after

    def _problem(self, step: int, error: OSError) -> str:
        return f"checkpoint: the state of step {step} could not be saved in {self.directory} ({error})"


class _BestKept(Saver):
    """The function `on` of `checkpointing` with `keep_best`."""

    def __init__(self, *options: Any, number: int, monitor: str, maximize: bool) -> None:
        super().__init__(*options)
        self.number, self.monitor, self.maximize = number, monitor, maximize

    def update(self, event: Event, state: dict[str, Any]) -> dict[str, Any]:
        best = self._existing(state, alone=self.alone)
        due = self.is_due(event)
        if event.kind != "step":
            value = monitored("checkpointing: monitor", event, self.monitor, required=not best)
            # the checkpoint of this step is overwritten if the last "step" event saved it
            best = [entry for entry in best if entry[1] != event.step]
            if value is not None and not math.isnan(value):
                best = sorted([*best, [value, event.step]], key=self._rank)[: self.number]
            due |= any(step == event.step for _, step in best)
        return self.write(event, state, best) if due else state

    def _existing(self, state: dict[str, Any], *, alone: bool) -> list[list[Any]]:
        return self._present(state) if alone else from_main(lambda: self._present(state), "which of the best checkpoints exist")

    def _present(self, state: dict[str, Any]) -> list[list[Any]]:
        """Return the entries whose checkpoints exist, after copying those of the folder from which the run was resumed."""
        present = []
        for entry in state["best"]:
            path = checkpoint.path_of(self.directory, entry[1])
            source, problem = Path(state["last"]).parent / path.name, ""
            try:
                if not path.is_dir() and source.is_dir():
                    with atomic_dir(path) as folder:
                        shutil.copytree(source, folder, dirs_exist_ok=True)
                elif not path.is_dir():
                    problem = "was deleted"
            except OSError as error:
                problem = f"could not be copied to {self.directory} ({error})"
            if problem:
                text = "%s, one of the best checkpoints of this run, %s; it is not among its best ones any more"
                logging.getLogger("jfit").warning(text, source, problem)
            else:
                present.append(entry)
        return present

    def _rank(self, entry: list[Any]) -> tuple[float, int]:
        return (-entry[0] if self.maximize else entry[0]), entry[1]

    def write(self, event: Event, state: dict[str, Any], best: list[list[Any]] | None = None) -> dict[str, Any]:
        entries = self._existing(state, alone=not self._together) if best is None else best  # None: the end of training
        new = {"last": str(checkpoint.path_of(self.directory, event.step)), "best": entries}
        meta = self.meta(event, new)
        meta["best"] = {"monitor": self.monitor, "mode": "max" if self.maximize else "min", "checkpoints": entries}
        return self.save(event, meta, state, new, [step for _, step in entries])


def _write(prepared: Prepared, state: Any, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Write a checkpoint of the pytree `state`; the last checkpoint without nan and infinities is not deleted.

    If the state is not finite, "finite": False is added to its meta.
    """
    if not is_finite(state):
        prepared.record["meta"]["finite"] = False
        prepared = prepared._replace(protect=[*prepared.protect, *last_finite(prepared.path.parent)])
    write(prepared, is_wanted)


def _needs_all(run: Any) -> bool:
    """Whether all processes of a job must take part when rank 0 saves a checkpoint, because each has a part of the state."""
    return num_processes() > 1 and (run.saves_together or _needs_whole(run))


def _needs_whole(run: Any) -> bool:
    """Whether a state is copied whole for a save: `nan` of `fit` keeps copies, or each process of a job has residuals."""
    return getattr(getattr(run._loop, "nan", None), "keeps", False) or (num_processes() > 1 and run.state.local is not None)


def _check_states(event: Event) -> None:
    """Check before training that the states of all callbacks can be saved.

    Raises:
        TypeError: the state of a callback is not JSON-serializable.
    """
    for name, state in event.run.meta()["callbacks"]:
        try:
            dump_sealed({"state": state})
        except (TypeError, ValueError) as error:
            remedy = "use numbers, strings, lists and dicts"
            raise TypeError(f"callback {name}: its state is not JSON-serializable ({error}); {remedy}") from error
