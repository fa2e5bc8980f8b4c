"""The options of a training in the tradition of MXNet.jl, and what they say on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jfit.mxnet.module.initial import DEFAULT
from jfit.ops import nearest

DECAYS = ("epoch", "batch")


@dataclasses.dataclass
class TrainingOptions:
    """How `FeedForward.train` trains.

    Attributes:
        initializer: of the parameters that are not there yet; "default" is Uniform(0.01).
        n_epoch: passes over the data.
        eval_data: iterator of validation data with the batch size of the training data, or None.
        eval_metric: name, list of names, function or metric; of training and validation data.
        kvstore: "local", "device", ..., a KVStore, or None; one device needs none.
        force_init: draw all parameters anew.
        callbacks: AbstractBatchCallback and AbstractEpochCallback objects.
        verbosity: 0 nothing, 1 beginning and end, 2 each step of the preparation and each epoch, 3 the metrics too.
        eta_decay: whether the optimizer's lr_scheduler counts epochs or batches, from 1.
        optimizer_params: parameters of an optimizer that is given by name.

    Raises:
        ValueError: an unknown eta_decay, or less than no epoch.

    Example:
        >>> TrainingOptions().n_epoch, TrainingOptions(eta_decay="batch").verbosity
        (10, 3)

    Source: MXNet.jl, `TrainingOptions`.
    """

    initializer: Any = DEFAULT
    n_epoch: int = 10
    eval_data: Any = None
    eval_metric: Any = "acc"
    kvstore: Any = "local"
    force_init: bool = False
    callbacks: Sequence[Any] = ()
    verbosity: int = 3
    eta_decay: str = "epoch"
    optimizer_params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.eta_decay = self.eta_decay.lstrip(":")
        if self.eta_decay not in DECAYS:
            raise ValueError(f"eta_decay is {self.eta_decay!r}, needed one of {', '.join(DECAYS)}.")
        if self.n_epoch < 0:
            raise ValueError(f"n_epoch is {self.n_epoch}, a number of passes over the data is needed.")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TrainingOptions:
        """The options with these names.

        Raises:
            TypeError: an unknown name; the nearest is told.

        Example:
            >>> TrainingOptions.of({"n_epoch": 3}).n_epoch
            3
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"train has no option {name!r}; did you mean {nearest(name, known) or known}?")
        return cls(**given)

    def say(self, level: int, message: str, *values: Any) -> None:
        """Log a message that belongs to a level of verbosity."""
        if self.verbosity >= level:
            logging.info(message, *values)

    def summary(self, title: str, named: Sequence[tuple[str, Any]], seconds: float | None = None) -> None:
        """Log the metrics of a pass, and how long it took."""
        self.say(3, "## %s summary", title)
        for name, value in named:
            self.say(3, "%18s = %.4f", name, value)
        if seconds is not None:
            self.say(3, "%18s = %.4f seconds", "time", seconds)


@contextlib.contextmanager
def decaying(optimizer: Any, eta_decay: str) -> Iterator[Callable[[], None]]:
    """Inside the block, what is yielded sets the rate of the next epoch; with "batch" the scheduler counts updates anyway.

    With "epoch" the scheduler is asked once an epoch, for the number of the epoch over all trainings of this optimizer, and
    taken off the optimizer meanwhile: within an epoch the rate is a plain number.
    """
    scheduler, rate = optimizer.lr_scheduler, optimizer.lr
    if scheduler is None or eta_decay == "batch":
        yield lambda: None
        return

    def begin_epoch() -> None:
        # kept on the optimizer, because a scheduler that has decayed cannot count from 1 again
        optimizer.epochs_begun = getattr(optimizer, "epochs_begun", 0) + 1
        optimizer.lr = float(scheduler(optimizer.epochs_begun))

    optimizer.lr_scheduler = None
    try:
        yield begin_epoch
    finally:
        optimizer.lr_scheduler, optimizer.lr = scheduler, rate
