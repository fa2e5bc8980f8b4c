"""MXNet.jl's callbacks: classes called after each batch or each epoch with the progress of the training.

A batch callback is called with the `OptimizationState`, also before the first batch of every epoch (batch 0).  An epoch
callback is called with (model, state, metric), also before the first epoch (epoch 0).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from jfit import checks
from jfit.mxnet.logs import of_worker


@dataclasses.dataclass
class OptimizationState:
    """Progress of a training.

    Attributes:
        batch_size: number of rows per batch.
        curr_epoch: number of the current epoch, from 1; 0 before the training.
        curr_batch: number of batches done in this epoch.
        curr_iter: number of batches done in this training.

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
    """Base class of the callbacks of `FeedForward.train`.

    Subclass `AbstractBatchCallback` or `AbstractEpochCallback` instead.

    Example:
        >>> issubclass(AbstractBatchCallback, AbstractCallback)
        True
    """


class AbstractBatchCallback(AbstractCallback):
    """Base class of batch callbacks, called with the state after every batch, and before the first batch of every epoch.

    Subclasses define `__call__(self, state)`; at the beginning of an epoch `state.curr_batch` is 0.

    Example:
        >>> class Count(AbstractBatchCallback):
        ...     def __call__(self, state):
        ...         print(state.curr_batch)
        >>> Count()(OptimizationState(8, curr_epoch=1))
        0
    """


class AbstractEpochCallback(AbstractCallback):
    """Base class of epoch callbacks, called with (model, state, metric) after every epoch, and before the first epoch.

    Subclasses define `__call__(self, model, state, metric)`; before the first epoch `state.curr_epoch` is 0 and `metric` is
    empty.

    Example:
        >>> class Print(AbstractEpochCallback):
        ...     def __call__(self, model, state, metric):
        ...         print(state.curr_epoch, metric)
        >>> Print()(None, OptimizationState(8), [])
        0 []
    """


def _every(kind: type[Any], count: Callable[..., int], callback: Callable[..., Any], n: int, call_on_0: bool) -> Any:
    """Return a callback that calls `callback(*args)` if `count(*args)` is a multiple of n; at count 0 only with `call_on_0`."""
    checks.positive_integer(n=n)

    class Every(kind):
        def __call__(self, *args: Any) -> None:
            at = count(*args)
            if at % n == 0 if at else call_on_0:
                callback(*args)

    return Every()


def every_n_batch(callback: Callable[[OptimizationState], Any], n: int, call_on_0: bool = False) -> AbstractBatchCallback:
    """Create a batch callback that calls a function every n batches.

    Args:
        callback: function of the `OptimizationState`.
        n: number of batches between calls.
        call_on_0: also call it before the first batch of every epoch.

    Returns:
        The callback.

    Raises:
        ValueError: n is less than 1.

    Example:
        >>> hello = every_n_batch(lambda state: print("batch", state.curr_batch), 2)
        >>> for number in range(4):
        ...     hello(OptimizationState(8, 1, number))
        batch 2

    Source: MXNet.jl.
    """
    return _every(AbstractBatchCallback, lambda state: state.curr_batch, callback, n, call_on_0)


def every_n_epoch(callback: Callable[..., Any], n: int, call_on_0: bool = False) -> AbstractEpochCallback:
    """Create an epoch callback that calls a function every n epochs.

    Args:
        callback: function of (model, state, metric).
        n: number of epochs between calls.
        call_on_0: also call it before the first epoch, with the initial parameters.

    Returns:
        The callback.

    Raises:
        ValueError: n is less than 1.

    Example:
        >>> every_n_epoch(lambda model, state, metric: print(metric), 1)(None, OptimizationState(8, 1), [("accuracy", 1.0)])
        [('accuracy', 1.0)]

    Source: MXNet.jl.
    """
    return _every(AbstractEpochCallback, lambda model, state, metric: state.curr_epoch, callback, n, call_on_0)


def speedometer(frequency: int = 50) -> AbstractBatchCallback:
    """Create a batch callback that logs `Speed: ... samples/sec` every `frequency` batches.

    Args:
        frequency: number of batches between log lines.

    Returns:
        The callback.

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
            logging.info(of_worker("Speed: %6.2f samples/sec"), speed)
        started[0] = now

    return every_n_batch(measure, frequency, call_on_0=True)


def do_checkpoint(prefix: str, frequency: int = 1, save_epoch_0: bool = False) -> AbstractEpochCallback:
    """Create an epoch callback that writes `prefix-symbol.json` and `prefix-%04d.params`; creates the folder if needed.

    Args:
        prefix: path and first part of the file names.
        frequency: number of epochs between checkpoints.
        save_epoch_0: also save the initial parameters, before the first epoch.

    Returns:
        The callback.

    Example:
        >>> do_checkpoint("nets/mlp")(None, OptimizationState(8), [])
        >>> os.path.isdir("nets")
        True

    Source: MXNet.jl.
    """
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    return every_n_epoch(lambda model, state, metric: model.save_checkpoint(prefix, state), frequency, save_epoch_0)
