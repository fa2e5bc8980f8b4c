"""Callbacks for `Module.fit` and `FeedForward.fit` with MXNet's names, arguments and log lines.

Batch callbacks are called with a `BatchEndParam`, epoch callbacks with (epoch, symbol, arg_params, aux_params).  They log to
the root logger.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jfit.mxnet.files import save_checkpoint
from jfit.mxnet.logs import of_worker


class BatchEndParam(NamedTuple):
    """The argument of a batch callback.

    Attributes:
        epoch: number of the epoch, from 0.
        nbatch: number of the batch in its epoch, from 0.
        eval_metric: the training or validation metric, or None.
        locals: dict of the loop's local variables, or None.

    Example:
        >>> BatchEndParam(epoch=0, nbatch=3, eval_metric=None, locals=None).nbatch
        3
    """

    epoch: int
    nbatch: int
    eval_metric: Any
    locals: dict[str, Any] | None


def scalars(named: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Keep the (name, value) pairs with scalar values; arrays such as confusion matrices do not fit into a log line.

    Example:
        >>> import numpy as np
        >>> scalars([("accuracy", 0.5), ("confusion_matrix", np.eye(2))])
        [('accuracy', 0.5)]
    """
    return [(name, value) for name, value in named if getattr(value, "size", 1) == 1]


def every_epochs(period: int, save: Callable[..., None]) -> Callable[..., None]:
    """Return an epoch callback that calls `save(number of epochs, symbol, arg_params, aux_params)` every `period` epochs.

    Example:
        >>> callback = every_epochs(2, lambda done, *_: print(done))
        >>> callback(0)
        >>> callback(1)
        2
    """
    period = int(max(1, period))

    def call(iter_no: int, sym: Any = None, arg: Any = None, aux: Any = None) -> None:
        if (iter_no + 1) % period == 0:
            save(iter_no + 1, sym, arg, aux)

    return call


def module_checkpoint(mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False) -> Callable[..., None]:
    """Return an epoch callback that saves a module every `period` epochs.

    Args:
        mod: a module, or any object with a method `save_checkpoint(prefix, epoch, save_optimizer_states)`.
        prefix: path and first part of the file names.
        period: number of epochs between checkpoints.
        save_optimizer_states: also write the optimizer states to `prefix-%04d.states`.

    Returns:
        Callable `(epoch, symbol, arg_params, aux_params)`.

    Example:
        >>> class Net:
        ...     def save_checkpoint(self, prefix, epoch, states):
        ...         print(prefix, epoch, states)
        >>> save = module_checkpoint(Net(), "net", period=2)
        >>> save(0)
        >>> save(1)
        net 2 False

    Source: Apache MXNet 1.9.1.
    """
    return every_epochs(period, lambda done, *_: mod.save_checkpoint(prefix, done, save_optimizer_states))


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """Return an epoch callback that writes `prefix-symbol.json` and `prefix-%04d.params` every `period` epochs.

    Args:
        prefix: path and first part of the file names.
        period: number of epochs between checkpoints.

    Returns:
        Callable `(epoch, symbol, arg_params, aux_params)`.

    Example:
        >>> import jfit, numpy as np
        >>> from jfit.mxnet.files import load_checkpoint
        >>> do_checkpoint("model")(0, jfit.sym.Variable("x"), {"w": np.ones(2, "float32")}, {})
        >>> load_checkpoint("model", 1)[1]["w"].tolist()
        [1.0, 1.0]

    Source: Apache MXNet 1.9.1.
    """
    return every_epochs(period, functools.partial(save_checkpoint, prefix))


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[Any], None]:
    """Return a batch callback that logs `Iter[%d] Batch[%d] Train-%s=%f` every `period` batches.

    Args:
        period: number of batches between log lines.
        auto_reset: reset the metric's local sums after each line.

    Returns:
        Callable `(param: BatchEndParam)`.

    Example:
        >>> log_train_metric(100)(BatchEndParam(0, 1, None, None))

    Source: Apache MXNet 1.9.1.
    """

    def log(param: Any) -> None:
        if param.nbatch % period or param.eval_metric is None:
            return
        for name, value in scalars(param.eval_metric.get_name_value()):
            logging.info(of_worker("Iter[%d] Batch[%d] Train-%s=%f"), param.epoch, param.nbatch, name, value)
        if auto_reset:
            param.eval_metric.reset_local()

    log.every = period  # lets `Module.fit` run the batches in between in one dispatch
    return log


class Speedometer:
    """Batch callback that logs samples per second and the metrics every `frequent` batches.

    The first call only starts the clock, so the metrics of the first line cover `frequent + 1` batches, as in MXNet.

    Args:
        batch_size: number of rows in a batch.
        frequent: number of batches between log lines.
        auto_reset: reset the metric's local sums after each line, so that a line covers only the batches since the last one.

    Example:
        >>> meter = Speedometer(32, frequent=10)
        >>> meter(BatchEndParam(0, 0, None, None))

    Source: Apache MXNet 1.9.1.
    """

    @property
    def every(self) -> int:
        """Number of batches between log lines; `Module.fit` may run the batches in between in one dispatch."""
        return self.frequent

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True):
        self.batch_size, self.frequent, self.auto_reset = batch_size, frequent, auto_reset
        self.init, self.tic, self.last_count = False, 0.0, 0

    def __call__(self, param: Any) -> None:
        """Log if this batch completes a window of `frequent` batches."""
        count = param.nbatch
        if self.last_count > count:  # nbatch restarts at 0: a new epoch
            self.init = False
        self.last_count = count
        if not self.init:
            self.init, self.tic = True, time.time()
        elif count % self.frequent == 0:
            self._log(param, count)
            self.tic = time.time()

    def _log(self, param: Any, count: int) -> None:
        metric = param.eval_metric
        if metric is None:
            logging.info(of_worker("Iter[%d] Batch [%d]\tSpeed: %.2f samples/sec"), param.epoch, count, self._speed())
            return
        named = scalars(metric.get_name_value())  # sync: without waiting for the steps, only their dispatch would be timed
        speed = self._speed()
        if self.auto_reset:
            metric.reset_local()
        first = count - self.frequent if self.auto_reset else 0
        line = "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec" + "\t%s=%f" * len(named)
        logging.info(of_worker(line), param.epoch, first, count, speed, *(part for pair in named for part in pair))

    def _speed(self) -> float:
        seconds = time.time() - self.tic
        return self.frequent * self.batch_size / seconds if seconds else float("inf")


class ProgressBar:
    """Batch callback that logs a progress bar after every batch.

    Args:
        total: number of batches in an epoch.
        length: width of the bar in characters.

    Example:
        >>> ProgressBar(total=4)(BatchEndParam(0, 1, None, None))

    Source: Apache MXNet 1.9.1.
    """

    def __init__(self, total: int, length: int = 80):
        self.bar_len, self.total = length, total

    def __call__(self, param: Any) -> None:
        """Log the bar after a batch."""
        done = round(self.bar_len * param.nbatch / float(self.total))
        percent = math.ceil(100.0 * param.nbatch / float(self.total))
        logging.info(of_worker("[%s] %s%s\r"), "=" * done + "-" * (self.bar_len - done), percent, "%")


class LogValidationMetricsCallback:
    """Callback that logs `Epoch[%d] Validation-%s=%f` for each metric at the end of a validation pass.

    Example:
        >>> LogValidationMetricsCallback()(BatchEndParam(0, 1, None, None))

    Source: Apache MXNet 1.9.1.
    """

    def __call__(self, param: Any) -> None:
        """Log the metrics of a validation pass that has ended."""
        if param.eval_metric is None:
            return
        for name, value in scalars(param.eval_metric.get_name_value()):
            logging.info(of_worker("Epoch[%d] Validation-%s=%f"), param.epoch, name, value)
