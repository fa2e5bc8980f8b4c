"""Handlers of the events of an `Estimator`: stopping, metrics, evaluation, logs, checkpoints and updates.

A handler derives from the classes of the events that it handles.  It stops the epoch or the training if it returns True at the
end of a batch or an epoch.  Handlers with a smaller `priority` (0 by default) are called first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jfit import checks
from jfit.mxnet.metric import CompositeEvalMetric, EvalMetric, Loss

__all__ = [
    "BatchBegin", "BatchEnd", "CheckpointHandler", "EarlyStoppingHandler", "EpochBegin", "EpochEnd", "GradientUpdateHandler",
    "LoggingHandler", "MetricHandler", "StoppingHandler", "TrainBegin", "TrainEnd", "ValidationHandler",
]  # fmt: skip


class EventHandler:
    """Base class of all handlers.

    Example:
        >>> class Count(TrainBegin, BatchEnd):
        ...     def train_begin(self, estimator, *args, **kwargs):
        ...         self.batches = 0
        ...     def batch_end(self, estimator, *args, **kwargs):
        ...         self.batches += 1
        ...         return self.batches == 10  # ends the epoch
        >>> issubclass(Count, EventHandler)  # pass Count() to estimator.fit(..., event_handlers=)
        True
    """


class TrainBegin(EventHandler):
    """Handles the begin of a training."""

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Called once, before the first epoch."""


class TrainEnd(EventHandler):
    """Handles the end of a training."""

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Called once, after the last epoch."""


class EpochBegin(EventHandler):
    """Handles the begin of each epoch, and of each evaluation."""

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Called before each epoch."""


class EpochEnd(EventHandler):
    """Handles the end of each epoch, and of each evaluation."""

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Called after each epoch; True ends the training."""


class BatchBegin(EventHandler):
    """Handles the begin of each batch."""

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Called with `batch=` before each batch."""


class BatchEnd(EventHandler):
    """Handles the end of each batch."""

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Called with `batch=`, `pred=`, `label=` and `loss=` after each batch; True ends the epoch."""


def check_class(kind: type, **values: Any) -> None:
    """Raise a ValueError unless each value is an object of a class."""
    for name, value in values.items():
        if not isinstance(value, kind):
            raise ValueError(f"{name} is {checks.shown(value)}; expected an object of the class {kind.__name__}.")


def as_metrics(metrics: Any) -> list[Any]:
    """Return a metric, the parts of a composite one, or a list of metrics, as a list; ValueError for anything else."""
    if isinstance(metrics, CompositeEvalMetric):
        return [m for part in metrics.metrics for m in as_metrics(part)]
    metrics = [metrics] if isinstance(metrics, EvalMetric) else metrics or []
    for metric in metrics:
        check_class(EvalMetric, metric=metric)
    return metrics


class _Counting(TrainBegin, BatchEnd, EpochEnd):
    """Counts the batches and epochs of a training, and calls `_on_period` at the end of each period of them."""

    current_batch = current_epoch = 0
    batch_period: int | None = None
    epoch_period: int | None = None
    _on_period: Callable[[Any], None]

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.current_batch = self.current_epoch = 0

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        if self.batch_period and (self.current_batch + 1) % self.batch_period == 0:
            self._on_period(estimator)
        self.current_batch += 1

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        if self.epoch_period and (self.current_epoch + 1) % self.epoch_period == 0:
            self._on_period(estimator)
        self.current_epoch += 1


class StoppingHandler(_Counting):
    """Stop after the number of epochs or batches with which `Estimator.fit` was called.

    Args:
        max_epoch, max_batch: replaced when the training begins.
    """

    def __init__(self, max_epoch: int | None = None, max_batch: int | None = None) -> None:
        self.max_epoch, self.max_batch, self.stop_training = max_epoch, max_batch, False

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        super().train_begin(estimator)
        self.max_epoch, self.max_batch = estimator.max_epoch, estimator.max_batch

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        super().batch_end(estimator)
        self.stop_training |= self.current_batch == self.max_batch
        return self.stop_training

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        super().epoch_end(estimator)
        self.stop_training |= self.current_epoch == self.max_epoch
        return self.stop_training


class MetricHandler(EpochBegin, BatchEnd):
    """Update metrics after each batch, and reset them at the begin of an epoch.

    Args:
        metrics: metrics; `mx.metric.Loss` gets the loss, others get labels and outputs.
        priority: see the module.
    """

    def __init__(self, metrics: Any, priority: float = -1000) -> None:
        self.metrics, self.priority = as_metrics(metrics), priority

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        for metric in self.metrics:
            metric.reset()

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        for metric in self.metrics:
            arrays = (0, kwargs["loss"]) if isinstance(metric, Loss) else (kwargs["label"], kwargs["pred"])
            metric.update(*arrays)


class ValidationHandler(_Counting):
    """Evaluate after every `epoch_period` epochs and every `batch_period` batches.

    Args:
        val_data: DataLoader.
        eval_fn: function such as `Estimator.evaluate`.
        epoch_period, batch_period: the periods; None: never.
        priority: see the module.
        event_handlers: handlers that `eval_fn` gets.
    """

    def __init__(
        self, val_data: Any, eval_fn: Callable[..., Any], epoch_period: int | None = 1, batch_period: int | None = None,
        priority: float = -1000, event_handlers: Any = None,
    ) -> None:  # fmt: skip
        self.val_data, self.eval_fn, self.priority, self.event_handlers = val_data, eval_fn, priority, event_handlers
        self.epoch_period, self.batch_period = epoch_period, batch_period

    def _on_period(self, estimator: Any) -> None:
        self.eval_fn(val_data=self.val_data, batch_axis=estimator.batch_axis, event_handlers=self.event_handlers)


class LoggingHandler(TrainBegin, TrainEnd, EpochBegin, EpochEnd, BatchEnd):
    """Log the metrics, learning rate and times with `estimator.logger`.

    Args:
        log_interval: "epoch" to log once per epoch, or an int n to log every n batches as well.
        metrics: the metrics to log.
        priority: order among the handlers of an event; lower ones run first.

    Raises:
        ValueError: `log_interval` is neither "epoch" nor an int.
    """

    batch_index = current_epoch = processed_samples = 0

    def __init__(self, log_interval: Any = "epoch", metrics: Any = None, priority: float = np.inf) -> None:
        if log_interval != "epoch" and not isinstance(log_interval, int):
            raise ValueError(f"log_interval is {log_interval!r}, expected a number of batches or 'epoch'.")
        self.metrics, self.priority, self.log_interval = as_metrics(metrics), priority, log_interval

    def _log(self, estimator: Any, text: str) -> None:
        values = ["{}: {:.4f}".format(*metric.get()) for metric in self.metrics]
        estimator.logger.info((text + ", ".join(values)).rstrip(", "))

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.batch_index = self.current_epoch = self.processed_samples = 0
        self.train_start, trainer = time.time(), estimator.trainer
        start = f"Training begin: using optimizer {type(trainer.optimizer).__name__}"
        estimator.logger.info(f"{start} with current learning rate {trainer.learning_rate:.4f} ")
        length = f"{estimator.max_epoch} epochs" if estimator.max_epoch else f"{estimator.max_batch} batches"
        estimator.logger.info(f"Train for {length}.")

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        seconds = int(time.time() - self.train_start)
        self._log(estimator, f"Train finished using total {seconds}s with {self.current_epoch} epochs. ")

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self.log_interval, int):
            self.processed_samples += kwargs["batch"][0].shape[0]
            if self.batch_index % self.log_interval == 0:
                where = f"[Epoch {self.current_epoch}][Batch {self.batch_index}][Samples {self.processed_samples}] "
                self._log(estimator, f"{where}time/interval: {time.time() - self.interval_start:.3f}s ")
                self.interval_start = time.time()
        self.batch_index += 1

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.epoch_start = self.interval_start = time.time()
        if any("training" in metric.name for metric in self.metrics):
            rate = estimator.trainer.learning_rate
            estimator.logger.info("[Epoch %d] Begin, current learning rate: %.4f", self.current_epoch, rate)
        else:
            estimator.logger.info("Validation Begin")

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        seconds = time.time() - self.epoch_start
        self._log(estimator, f"[Epoch {self.current_epoch}] Finished in {seconds:.3f}s, ")
        self.current_epoch += 1
        self.batch_index = 0


class _Monitoring(_Counting):
    """Compares the values of a metric: `_sign` is 1 if larger ones are better, else -1."""

    min_delta = 0.0
    baseline: float | None = None
    _sign = 1

    def __init__(self, monitor: Any, mode: str) -> None:
        check_class(EvalMetric, monitor=monitor)
        self.monitor, self._sign = monitor, -1 if mode == "min" else 1

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        super().train_begin(estimator)
        self.best = -self._sign * np.inf if self.baseline is None else self.baseline

    def _improves(self) -> bool:
        """Return whether the metric is better than `best`, which then becomes its value."""
        value = self.monitor.get()[1]
        better = self._sign * (value - self.best) > self.min_delta
        self.best = value if better else self.best
        return better


class CheckpointHandler(_Monitoring):
    """Write parameters and trainer states to `<model_dir>/<model_prefix>-epoch<k>batch<n>.params` and `.states`.

    The graph of a hybridized net is written after the first batch, to `<model_prefix>-symbol.json`.  To train on from a
    checkpoint, call `net.load_parameters` and `trainer.load_states` before `fit`.

    Args:
        model_dir: folder; it is created if it does not exist.
        model_prefix: first part of the file names.
        monitor: metric of the estimator, for `save_best`.
        verbose: 1 logs each checkpoint.
        save_best: also write `<model_prefix>-best.params` and `.states` whenever `monitor` has improved.
        mode: "min" if smaller values of `monitor` are better; else larger ones are.
        epoch_period, batch_period: epochs and batches between checkpoints; None: none.
        max_checkpoints: number of checkpoints that are kept, besides the best; older ones are deleted.

    Raises:
        ValueError: `save_best` without a metric.
    """

    def __init__(
        self, model_dir: str, model_prefix: str = "model", monitor: Any = None, verbose: int = 0, save_best: bool = False,
        mode: str = "auto", epoch_period: int | None = 1, batch_period: int | None = None, max_checkpoints: int = 5,
    ) -> None:  # fmt: skip
        os.makedirs(model_dir, exist_ok=True)
        if save_best:
            super().__init__(monitor, mode)
        self.model_dir, self.model_prefix, self.verbose, self.save_best = model_dir, model_prefix, verbose, save_best
        self.epoch_period, self.batch_period, self.max_checkpoints = epoch_period, batch_period, max_checkpoints
        self.saved_checkpoints: list[str] = []

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        graph = getattr(estimator.net, "_cached_graph", None)
        if graph and self.current_batch == 0:
            graph[1].save(os.path.join(self.model_dir, f"{self.model_prefix}-symbol.json"))
        super().batch_end(estimator)

    def _on_period(self, estimator: Any) -> None:
        prefix = f"{self.model_prefix}-epoch{self.current_epoch}batch{self.current_batch}"
        self._write(estimator, prefix, f"trained total {self.current_batch + 1} batches, saving")
        self.saved_checkpoints.append(prefix)
        if len(self.saved_checkpoints) > self.max_checkpoints:
            for path in self._files(self.saved_checkpoints.pop(0)):
                Path(path).unlink(missing_ok=True)
        if self.save_best:
            before, name = self.best, self.monitor.get()[0]
            if self._improves():
                text = f"{name} improved from {before:.5f} to {self.best:.5f}, updating best"
                self._write(estimator, f"{self.model_prefix}-best", text)
            else:
                self._log(estimator, f"{name} did not improve from {before:.5f}, skipping updating best model")

    def _log(self, estimator: Any, text: str) -> None:
        if self.verbose > 0:
            estimator.logger.info(f"[Epoch {self.current_epoch}] CheckpointHandler: {text}")

    def _files(self, prefix: str) -> list[str]:
        return [os.path.join(self.model_dir, prefix + end) for end in (".params", ".states")]

    def _write(self, estimator: Any, prefix: str, text: str) -> None:
        params, states = self._files(prefix)
        estimator.net.save_parameters(params)
        estimator.trainer.save_states(states)
        self._log(estimator, f"{text} model at {self.model_dir} with prefix: {prefix}")


class EarlyStoppingHandler(_Monitoring, TrainEnd):
    """Stop after `patience` epochs without an improvement of a metric.

    Args:
        monitor: metric of the estimator, not a composite one.
        min_delta: smallest change that is an improvement.
        patience: number of epochs.
        mode: "min" if smaller values are better; else larger ones are.
        baseline: value that the first one is compared with; None: none.

    Raises:
        ValueError: `monitor` is not a metric.
    """

    def __init__(
        self, monitor: Any, min_delta: float = 0, patience: int = 0, mode: str = "auto", baseline: float | None = None
    ) -> None:
        super().__init__(monitor, mode)
        self.baseline, self.patience, self.min_delta, self.stop_training = baseline, patience, min_delta, False

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        super().train_begin(estimator)
        self.wait, self.stopped_epoch, self.stop_training = 0, 0, False

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        has_value = not np.isnan(self.monitor.get()[1])
        self.wait = 0 if self._improves() else self.wait + has_value
        self.stop_training = 0 < self.wait >= self.patience
        if self.stop_training:
            self.stopped_epoch = self.current_epoch
        super().epoch_end(estimator)
        return self.stop_training

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if self.stopped_epoch > 0:
            reason = f"early stopping due to {self.monitor.get()[0]} not improving"
            # MXNet's spelling, for log parsers
            estimator.logger.info(f"[Epoch {self.stopped_epoch}] EarlyStoppingHanlder: {reason}")


class GradientUpdateHandler(BatchEnd):
    """Update the parameters after each batch: `trainer.step(number of rows)`.

    Args:
        priority: see the module.
    """

    def __init__(self, priority: float = -2000) -> None:
        self.priority = priority

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        loss = kwargs["loss"]
        estimator.trainer.step(sum(part.shape[0] for part in (loss if isinstance(loss, list) else [loss])))
