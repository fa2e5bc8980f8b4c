"""Callbacks of the stateful shells with MXNet's names, arguments and log lines.

Batch callbacks get a `BatchEndParam`, epoch callbacks get (epoch, symbol, arg_params, aux_params).  What they log goes to the
root logger.
"""

from __future__ import annotations

import logging
import math
import time
from collections import namedtuple
from collections.abc import Callable, Iterable
from typing import Any

from jfit.mxnet.files import save_checkpoint

BatchEndParam = namedtuple("BatchEndParam", ["epoch", "nbatch", "eval_metric", "locals"])
BatchEndParam.__doc__ = """What a batch callback is told: epoch, number of the batch, metric, local variables of the loop.

>>> BatchEndParam(epoch=0, nbatch=3, eval_metric=None, locals=None).nbatch
3
"""


def scalars(named: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The pairs (name, value) without arrays, such as confusion matrices, which a line has no room for.

    >>> import numpy as np
    >>> scalars([("accuracy", 0.5), ("confusion_matrix", np.eye(2))])
    [('accuracy', 0.5)]
    """
    return [(name, value) for name, value in named if getattr(value, "size", 1) == 1]


def module_checkpoint(mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False) -> Callable[..., None]:
    """An epoch callback that saves a module every `period` epochs, optimizer states too if wanted.

    Args:
        mod: the module, or anything with `save_checkpoint(prefix, epoch, save_optimizer_states)`.
        prefix: path and beginning of the file names.
        period: epochs between two checkpoints.
        save_optimizer_states: write `prefix-%04d.states` too.

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
    period = int(max(1, period))

    def save(iter_no: int, sym: Any = None, arg: Any = None, aux: Any = None) -> None:
        if (iter_no + 1) % period == 0:
            mod.save_checkpoint(prefix, iter_no + 1, save_optimizer_states)

    return save


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """An epoch callback that writes `prefix-symbol.json` and `prefix-%04d.params` every `period` epochs.

    Args:
        prefix: path and beginning of the file names.
        period: epochs between two checkpoints.

    Example:
        >>> import jfit, numpy as np
        >>> from jfit.mxnet.files import load_checkpoint
        >>> do_checkpoint("model")(0, jfit.sym.Variable("x"), {"w": np.ones(2, "float32")}, {})
        >>> load_checkpoint("model", 1)[1]["w"].tolist()
        [1.0, 1.0]

    Source: Apache MXNet 1.9.1.
    """
    period = int(max(1, period))

    def save(iter_no: int, sym: Any, arg: Any, aux: Any) -> None:
        if (iter_no + 1) % period == 0:
            save_checkpoint(prefix, iter_no + 1, sym, arg, aux)

    return save


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[Any], None]:
    """A batch callback that logs `Iter[%d] Batch[%d] Train-%s=%f` every `period` batches.

    Args:
        period: batches between two lines.
        auto_reset: forget the local sums of the metric after each line.

    Example:
        >>> log_train_metric(100)(BatchEndParam(0, 1, None, None))

    Source: Apache MXNet 1.9.1.
    """

    def log(param: Any) -> None:
        if param.nbatch % period or param.eval_metric is None:
            return
        for name, value in scalars(param.eval_metric.get_name_value()):
            logging.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)
        if auto_reset:
            param.eval_metric.reset_local()

    log.every = period  # batches between may share a dispatch
    return log


class Speedometer:
    """Samples per second and metrics, every `frequent` batches.

    The first call only starts the clock, so the first line is over `frequent + 1` batches of metrics, as in MXNet.

    Args:
        batch_size: rows of a batch.
        frequent: batches between two lines.
        auto_reset: forget the local sums of the metric after each line, so that a line tells of its own window.

    Example:
        >>> meter = Speedometer(32, frequent=10)
        >>> meter(BatchEndParam(0, 0, None, None))

    Source: Apache MXNet 1.9.1.
    """

    @property
    def every(self) -> int:
        """It looks after batches whose number is a multiple of this; `Module.fit` may run those between in one dispatch."""
        return self.frequent

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True):
        self.batch_size, self.frequent, self.auto_reset = batch_size, frequent, auto_reset
        self.init, self.tic, self.last_count = False, 0.0, 0

    def __call__(self, param: Any) -> None:
        """One batch has ended."""
        count = param.nbatch
        if self.last_count > count:  # a new epoch
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
            logging.info("Iter[%d] Batch [%d]\tSpeed: %.2f samples/sec", param.epoch, count, self._speed())
            return
        named = scalars(metric.get_name_value())  # waits for the window's last step: the speed is that of work done
        speed = self._speed()
        if self.auto_reset:
            metric.reset_local()
        first = count - self.frequent if self.auto_reset else 0
        line = "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec" + "\t%s=%f" * len(named)
        logging.info(line, param.epoch, first, count, speed, *(part for pair in named for part in pair))

    def _speed(self) -> float:
        seconds = time.time() - self.tic
        return self.frequent * self.batch_size / seconds if seconds else float("inf")


class ProgressBar:
    """A bar of `length` signs in the log, after every batch.

    Args:
        total: batches of an epoch.
        length: signs of the bar.

    Example:
        >>> ProgressBar(total=4)(BatchEndParam(0, 1, None, None))

    Source: Apache MXNet 1.9.1.
    """

    def __init__(self, total: int, length: int = 80):
        self.bar_len, self.total = length, total

    def __call__(self, param: Any) -> None:
        """One batch has ended."""
        done = round(self.bar_len * param.nbatch / float(self.total))
        percent = math.ceil(100.0 * param.nbatch / float(self.total))
        logging.info("[%s] %s%s\r", "=" * done + "-" * (self.bar_len - done), percent, "%")


class LogValidationMetricsCallback:
    """Logs `Epoch[%d] Validation-%s=%f` for each metric at the end of a validation pass.

    Example:
        >>> LogValidationMetricsCallback()(BatchEndParam(0, 1, None, None))

    Source: Apache MXNet 1.9.1.
    """

    def __call__(self, param: Any) -> None:
        """One validation pass has ended."""
        if param.eval_metric is None:
            return
        for name, value in scalars(param.eval_metric.get_name_value()):
            logging.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)
