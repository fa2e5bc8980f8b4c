"""Callbacks in the tradition of MXNet.jl: classes for batches and for epochs, told where the training stands.

A batch callback is called with the `OptimizationState`, also at batch 0 of every epoch, before its first batch; an epoch
callback with (model, state, metric), also at epoch 0, before the training.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass
class OptimizationState:
    """Where a training stands.

    Attributes:
        batch_size: rows of a batch.
        curr_epoch: number of the epoch, 1 for the first; 0 before the training.
        curr_batch: batches done in this epoch.
        curr_iter: batches done in this training.

    Example:
        >>> OptimizationState(batch_size=32)
        OptimizationState(batch_size=32, curr_epoch=0, curr_batch=0, curr_iter=0)

    Source: MXNet.jl, `OptimizationState`.
    """

    batch_size: int
    curr_epoch: int = 0
    curr_batch: int = 0
    curr_iter: int = 0


class AbstractCallback:
    """What a callback of `FeedForward.train` is; derive from `AbstractBatchCallback` or `AbstractEpochCallback`."""


class AbstractBatchCallback(AbstractCallback):
    """Called with the state after every batch, and at batch 0 of every epoch.

    Example:
        >>> class Count(AbstractBatchCallback):
        ...     def __call__(self, state):
        ...         print(state.curr_batch)
        >>> Count()(OptimizationState(8, curr_epoch=1))
        0
    """

    def __call__(self, state: OptimizationState) -> Any:
        """One batch has ended, or an epoch begins (`state.curr_batch` is 0)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(self, state).")


class AbstractEpochCallback(AbstractCallback):
    """Called with (model, state, metric) after every epoch, and before the first one.

    Example:
        >>> class Tell(AbstractEpochCallback):
        ...     def __call__(self, model, state, metric):
        ...         print(state.curr_epoch, metric)
        >>> Tell()(None, OptimizationState(8), [])
        0 []
    """

    def __call__(self, model: Any, state: OptimizationState, metric: list[tuple[str, float]]) -> Any:
        """One epoch has ended, or the training begins (`state.curr_epoch` is 0, `metric` empty)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(self, model, state, metric).")


class _EveryBatch(AbstractBatchCallback):
    def __init__(self, callback: Callable[[OptimizationState], Any], frequency: int, call_on_0: bool) -> None:
        self.callback, self.frequency, self.call_on_0 = callback, frequency, call_on_0

    def __call__(self, state: OptimizationState) -> None:
        if _is_due(state.curr_batch, self.frequency, self.call_on_0):
            self.callback(state)


class _EveryEpoch(AbstractEpochCallback):
    def __init__(self, callback: Callable[..., Any], frequency: int, call_on_0: bool) -> None:
        self.callback, self.frequency, self.call_on_0 = callback, frequency, call_on_0

    def __call__(self, model: Any, state: OptimizationState, metric: list[tuple[str, float]]) -> None:
        if _is_due(state.curr_epoch, self.frequency, self.call_on_0):
            self.callback(model, state, metric)


def every_n_batch(callback: Callable[[OptimizationState], Any], n: int, call_on_0: bool = False) -> AbstractBatchCallback:
    """A batch callback that calls a function of the state every n batches.

    Args:
        callback: the function.
        n: batches between two calls.
        call_on_0: call it at batch 0 of every epoch too.

    Raises:
        ValueError: n is below 1.

    Example:
        >>> hello = every_n_batch(lambda state: print("batch", state.curr_batch), 2)
        >>> for number in range(4):
        ...     hello(OptimizationState(8, 1, number))
        batch 2

    Source: MXNet.jl.
    """
    return _EveryBatch(callback, _positive(n), call_on_0)


def every_n_epoch(callback: Callable[..., Any], n: int, call_on_0: bool = False) -> AbstractEpochCallback:
    """An epoch callback that calls a function of (model, state, metric) every n epochs.

    Args:
        callback: the function.
        n: epochs between two calls.
        call_on_0: call it before the training too, to look at the fresh parameters.

    Raises:
        ValueError: n is below 1.

    Example:
        >>> every_n_epoch(lambda model, state, metric: print(metric), 1)(None, OptimizationState(8, 1), [("accuracy", 1.0)])
        [('accuracy', 1.0)]

    Source: MXNet.jl.
    """
    return _EveryEpoch(callback, _positive(n), call_on_0)


def speedometer(frequency: int = 50) -> AbstractBatchCallback:
    """A batch callback that logs `Speed: ... samples/sec` every `frequency` batches.

    Args:
        frequency: batches between two lines.

    Example:
        >>> speedometer(10)(OptimizationState(8))

    Source: MXNet.jl.
    """
    started = [0.0]

    def measure(state: OptimizationState) -> None:
        now = time.time()
        if state.curr_batch:
            seconds = now - started[0]
            speed = frequency * state.batch_size / seconds if seconds else float("inf")
            logging.info("Speed: %6.2f samples/sec", speed)
        started[0] = now

    return every_n_batch(measure, frequency, call_on_0=True)


def do_checkpoint(prefix: str, frequency: int = 1, save_epoch_0: bool = False) -> AbstractEpochCallback:
    """An epoch callback that writes `prefix-symbol.json` and `prefix-%04d.params`; the folder is made.

    Args:
        prefix: path and beginning of the file names.
        frequency: epochs between two checkpoints.
        save_epoch_0: save the fresh parameters too.

    Example:
        >>> do_checkpoint("nets/mlp")(None, OptimizationState(8), [])
        >>> os.path.isdir("nets")
        True

    Source: MXNet.jl.
    """
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    return every_n_epoch(lambda model, state, metric: model.save_checkpoint(prefix, state), frequency, save_epoch_0)


def of_kind(callbacks: Sequence[Any], kind: type) -> list[Any]:
    """The callbacks of one kind.

    Raises:
        TypeError: something that is neither a batch nor an epoch callback.

    Example:
        >>> len(of_kind([speedometer()], AbstractEpochCallback))
        0
    """
    for callback in callbacks:
        if not isinstance(callback, (AbstractBatchCallback, AbstractEpochCallback)):
            raise TypeError(
                f"callbacks holds {callback!r}; AbstractBatchCallback or AbstractEpochCallback objects are needed: make one "
                "of a function by every_n_batch(function, n) or every_n_epoch(function, n)."
            )
    return [callback for callback in callbacks if isinstance(callback, kind)]


def _is_due(count: int, frequency: int, on_0: bool) -> bool:
    return on_0 if count == 0 else count % frequency == 0


def _positive(n: int) -> int:
    if n < 1:
        raise ValueError(f"a callback every {n} makes no sense, at least 1 is needed.")
    return n
