"""`FitOptions`: the arguments of `fit` besides the model and the data, as one value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jfit.callbacks import Callback, Every, as_callback, check_replicas, checkpointing
from jfit.callbacks import progress as progress_bar
from jfit.callbacks.intervals import interval
from jfit.callbacks.saving import Saver
from jfit.checks import at_least_0, integer, name_hint, one_of, positive, positive_integer
from jfit.data.adapters import MOST_ROWS
from jfit.prepare.updates import check_updates
from jfit.step.updates import Update

NAN_POLICIES = ("warn", "stop", "skip", "rollback")
# Options that decide what is learned: a resumed run has the same, or says so.
DECIDING = ("loss", "loss_weights", "optimizer", "optimizer_params", "schedule", "schedule_params", "ema", "regularizers")
DECIDING += ("batch_size", "micro_batches", "seed", "shuffle", "frozen", "clip_norm", "clip_value", "policy", "steps_per_epoch")
DECIDING += ("class_weight", "sync_batch_stats", "reduce", "gather_outputs", "row_axes", "updates")
# Others that `jfit.verify` and `jfit.replay` need to train the same steps again.
REPEATED = ("num_epoch", "num_steps", "eval_metric", "loss_per_batch", "label", "validation_split")
REPEATED += ("steps_per_call", "data_on_device", "nan", "log", "remat")
_NUMBERS = (int, float, np.integer, np.floating)


@dataclass(frozen=True)
class FitOptions:
    """The keyword arguments of `jfit.fit` as one value.

    Attributes:
        batch_size: and all others: see `jfit.fit`, which has the same names and defaults.

    Example:
        >>> FitOptions(num_epoch=2).checked().batch_size
        32
        >>> FitOptions(num_epoch=0).checked()
        Traceback (most recent call last):
        ValueError: num_epoch is 0; expected an integer of at least 1
    """

    batch_size: int = 32
    num_epoch: Any = None
    num_steps: int | None = None
    optimizer: Any = "sgd"
    optimizer_params: Mapping[str, Any] | None = None
    eval_metric: Any = "auto"
    initializer: Any = None
    devices: Any = None
    label: str | Sequence[str] | None = None
    sample_weight: Any = None
    class_weight: Mapping[int, float] | None = None
    steps_per_epoch: int | None = None
    validation_split: float | None = None
    eval_every: Any = 1
    shuffle: bool = True
    seed: int = 0
    steps_per_call: int | str = "auto"
    callbacks: Sequence[Any] = ()
    checkpoint: str | Path | Callback | None = None
    checkpoint_every: int | str | Every = "epoch"
    checkpoint_best: str | None = None
    resume: bool | str | Path | None = None
    resume_with: str | Sequence[str] = ()
    schedule: Any = None
    schedule_params: Mapping[str, Any] | None = None
    frozen: Sequence[str] = ()
    micro_batches: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    policy: Any = None
    params: Any = None
    aux: Any = None
    loss: Any = None
    loss_weights: Any = None
    loss_per_batch: bool = False
    gather_outputs: bool = False
    row_axes: Any = 0
    eval_batch_size: int | None = None
    directory: str | Path | None = None
    progress: bool | str = "auto"
    data_on_device: bool | str = "auto"
    sync_batch_stats: bool = False
    ema: Any = None
    log_every: Any = None
    log: str | Sequence[str] = ()
    regularizers: Mapping[str, Callable[[Any], Any]] | None = None
    reduce: Any = None
    shard: Mapping[str, Any] | None = None
    mesh: Any = None
    data_timeout: float | None = None
    nan: str = "warn"
    updates: Sequence[Update] | None = None
    remat: str | Sequence[str] = "none"

    @property
    def saves(self) -> bool:
        """Whether the run saves or reads checkpoints."""
        return bool(self.resume) or any(callback.saves for callback in self.callbacks)

    def checked(self, eval_data: Any = None) -> FitOptions:
        """Return these options after checks that need neither model nor data, with all callbacks as `Callback`s.

        Of `num_epoch` and `num_steps` one is None, and `eval_every` and `log_every` are `Every`s.

        Args:
            eval_data: the argument of `fit`.

        Raises:
            ValueError: an option is out of range, or two of them exclude each other.
            TypeError: a callback is neither a `Callback` nor a function.
        """
        positive_integer(batch_size=self.batch_size, micro_batches=self.micro_batches, most=MOST_ROWS)
        optional = {name: getattr(self, name) for name in ("num_epoch", "num_steps", "eval_batch_size", "steps_per_epoch")}
        positive_integer(**{name: value for name, value in optional.items() if value is not None})
        if self.num_epoch is not None and self.num_steps is not None:
            found = f"num_epoch={self.num_epoch} and num_steps={self.num_steps} are both passed"
            raise ValueError(f"{found}; a run ends after a number of epochs or of steps, leave out one of them")
        num_epoch = 10 if self.num_epoch is None and self.num_steps is None else self.num_epoch
        eval_every = interval("eval_every", self.eval_every, "epochs")
        log_every = None if self.log_every is None else interval("log_every", self.log_every, "steps")
        integer(seed=self.seed)
        rate = (self.optimizer_params or {}).get("learning_rate", 0)
        if not callable(rate):
            at_least_0(learning_rate=rate)
        positive(none="no limit", data_timeout=self.data_timeout)
        fraction = self.validation_split
        if fraction is not None and (isinstance(fraction, bool) or not isinstance(fraction, _NUMBERS) or not 0 < fraction < 1):
            raise ValueError(f"validation_split is {fraction!r}; expected a fraction between 0 and 1, such as 0.1")
        if fraction is not None and eval_data is not None:
            raise ValueError("validation_split= and eval_data= are both passed; leave out one of them")
        steps = self.steps_per_call
        if steps != "auto" and (isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1):
            raise ValueError(f'steps_per_call is {steps!r}; expected "auto" or an integer of at least 1')
        one_of(NAN_POLICIES, nan=self.nan)
        if self.checkpoint is None and self.checkpoint_best is not None:
            raise ValueError(f"checkpoint_best={self.checkpoint_best!r} needs checkpoint=, the folder of the checkpoints")
        loss = self.loss
        if self.updates is not None:
            check_updates(self)
            loss = self.updates[0].loss
        row_axes = {"*": None} if self.row_axes is None else self.row_axes  # checkpoints have None for "not set"
        every = {"eval_every": eval_every, "log_every": log_every}
        replaced = {"callbacks": self._all_callbacks(), "checkpoint": self._folder(), "row_axes": row_axes, "loss": loss}
        return replace(self, num_epoch=num_epoch, **every, **replaced)

    def _all_callbacks(self) -> list[Callback]:
        """The callbacks of the user, those of `progress` and `checkpoint`, and in jobs `check_replicas`."""
        passed = [self.callbacks] if callable(self.callbacks) or isinstance(self.callbacks, Callback) else self.callbacks
        callbacks = [as_callback(callback) for callback in passed]
        if isinstance(self.checkpoint, Callback):
            callbacks.append(self.checkpoint)
        elif self.checkpoint is not None:
            best = {} if self.checkpoint_best is None else {"keep_best": 1, "monitor": self.checkpoint_best}
            callbacks.append(checkpointing(self.checkpoint, every=self.checkpoint_every, **best))
        if self.progress:
            callbacks.insert(0, progress_bar(force=self.progress is True))
        if jax.process_count() > 1 and not any(callback.name == "check_replicas" for callback in callbacks):
            callbacks.append(check_replicas())
        # Those that save come last, so that a checkpoint has the states of the others after the same event.
        return sorted(callbacks, key=lambda callback: callback.saves)

    def _folder(self) -> Any:
        """The folder of checkpoints; `checkpoint` may also be the callback that saves them."""
        if not isinstance(self.checkpoint, Callback):
            return self.checkpoint
        saver = getattr(self.checkpoint.on, "__self__", None)
        if not isinstance(saver, Saver) or self.checkpoint_every != "epoch" or self.checkpoint_best is not None:
            expected = "expected checkpointing(folder, every=, keep_best=), without checkpoint_every= and checkpoint_best="
            raise ValueError(f"checkpoint is the callback {self.checkpoint.name}; {expected}")
        return saver.directory


def shared_options(caller: str, names: Collection[str], settings: Mapping[str, Any], **others: Any) -> FitOptions:
    """Return the checked options of a function that takes some arguments of `fit`, those in `names`, as keyword arguments.

    Args:
        caller: name of the function, for messages.
        names: arguments of `fit` that it takes.
        settings: the keyword arguments that were passed.
        **others: further options.

    Raises:
        TypeError: `settings` has another name.
        ValueError: an option is out of range.
    """
    if unknown := [name for name in settings if name not in names]:
        raise TypeError(f"{caller} takes no argument {unknown[0]!r}; {name_hint(unknown[0], names)}")
    return FitOptions(**settings, **others).checked()
