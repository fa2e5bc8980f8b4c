"""Handlers of the events of an `Estimator`: stopping, metrics, evaluation, logs, checkpoints and updates.

A handler derives from the classes of the events that it handles.  It stops the epoch or the training if it returns True at the
end of a batch or an epoch.  Handlers with a smaller `priority` (0 by default) are called first.
"""

from __future__ import annotations

import os
import re
import time
import warnings
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
        self,
        val_data: Any,
        eval_fn: Callable[..., Any],
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        priority: float = -1000,
        event_handlers: Any = None,
    ) -> None:
        self.val_data, self.eval_fn, self.priority, self.event_handlers = val_data, eval_fn, priority, event_handlers
        self.epoch_period, self.batch_period = epoch_period, batch_period

    def _on_period(self, estimator: Any) -> None:
        self.eval_fn(val_data=self.val_data, batch_axis=estimator.batch_axis, event_handlers=self.event_handlers)


class LoggingHandler(TrainBegin, TrainEnd, EpochBegin, EpochEnd, BatchBegin, BatchEnd):
    """Log the metrics, learning rate and times with `estimator.logger`.

    Args:
        log_interval: "epoch" to log once per epoch, or an int n to log every n batches as well.
        metrics: the metrics to log.
        priority: order among the handlers of an event; lower ones run first.

    Raises:
        ValueError: `log_interval` is neither "epoch" nor an int.
    """

    batch_index = current_epoch = processed_samples = 0
    log_interval_time = 0.0

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

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.batch_start = time.time()

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self.log_interval, int):
            self.processed_samples += kwargs["batch"][0].shape[0]
            self.log_interval_time += time.time() - self.batch_start
            if self.batch_index % self.log_interval == 0:
                where = f"[Epoch {self.current_epoch}][Batch {self.batch_index}][Samples {self.processed_samples}] "
                self._log(estimator, f"{where}time/interval: {self.log_interval_time:.3f}s ")
                self.log_interval_time = 0.0
        self.batch_index += 1

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.epoch_start = time.time()
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


class _Monitoring(EventHandler):
    """Compares the values of a metric: `_sign` is 1 if larger ones are better, else -1."""

    def __init__(self, monitor: Any, mode: str) -> None:
        check_class(EvalMetric, monitor=monitor)
        if mode not in ("min", "max"):
            meaning = f"larger values of {monitor.get()[0]} are taken as better, as MXNet does for every metric"
            message = f"{type(self).__name__}: mode is {mode!r}: {meaning}; pass mode='min' or mode='max'."
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        self.monitor, self._sign = monitor, -1 if mode == "min" else 1

    def _value(self) -> float:
        name, value = self.monitor.get()
        if np.isnan(value):
            homes = "estimator.train_metrics or estimator.val_metrics"
            warnings.warn(f"{name} has no value yet; monitor a metric of {homes}.", RuntimeWarning, stacklevel=4)
        return value


class CheckpointHandler(_Counting, _Monitoring):
    """Write parameters and trainer states to `<model_dir>/<model_prefix>-epoch<k>batch<n>.params` and `.states`.

    The graph of a hybridized net is written after the first batch, to `<model_prefix>-symbol.json`.

    Args:
        model_dir: folder; it is created if it does not exist.
        model_prefix: first part of the file names.
        monitor: metric of the estimator, for `save_best`.
        verbose: 1 logs each checkpoint.
        save_best: also write `<model_prefix>-best.params` and `.states` whenever `monitor` has improved.
        mode: "min" or "max": which values of `monitor` are better; "auto" is "max".
        epoch_period, batch_period: epochs and batches between checkpoints; None: none.
        max_checkpoints: number of checkpoints that are kept, besides the best; older ones are deleted.
        resume_from_checkpoint: load the newest checkpoint in the folder, if there is one, and train what remains.

    Raises:
        ValueError: `save_best` without a metric; when the training begins: it is finished already.
        AssertionError: resuming a training counted in epochs (batches) without exactly that period.
    """

    def __init__(
        self,
        model_dir: str,
        model_prefix: str = "model",
        monitor: Any = None,
        verbose: int = 0,
        save_best: bool = False,
        mode: str = "auto",
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        max_checkpoints: int = 5,
        resume_from_checkpoint: bool = False,
    ) -> None:
        os.makedirs(model_dir, exist_ok=True)
        self.monitor = monitor
        if save_best:
            super().__init__(monitor, mode)
        self.model_dir, self.model_prefix, self.verbose, self.save_best = model_dir, model_prefix, verbose, save_best
        self.epoch_period, self.batch_period, self.max_checkpoints = epoch_period, batch_period, max_checkpoints
        self.resume_from_checkpoint, self.saved_checkpoints = resume_from_checkpoint, list[str]()
        self.trained_epoch = self.trained_batch = -1

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        super().train_begin(estimator)
        if self.save_best:
            self.best = -self._sign * np.inf
        if self.resume_from_checkpoint:
            self._resume(estimator)

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if self.current_batch == 0:
            self._save_symbol(estimator)
        super().batch_end(estimator)

    def _save_symbol(self, estimator: Any) -> None:
        path = os.path.join(self.model_dir, f"{self.model_prefix}-symbol.json")
        graph = getattr(estimator.net, "_cached_graph", None)
        if graph:
            graph[1].save(path)
        else:
            estimator.logger.info("There is no graph to save as %s: hybridize() the net before fit().", path)

    def _on_period(self, estimator: Any) -> None:
        epoch, batch = self.current_epoch, self.current_batch
        if self.resume_from_checkpoint:  # at the end of an epoch, its batches are counted already
            epoch, batch = epoch + self.trained_epoch + 1, batch + self.trained_batch + (not estimator.max_epoch)
        prefix = f"{self.model_prefix}-epoch{epoch}batch{batch}"
        self._write(estimator, prefix)
        self.saved_checkpoints.append(prefix)
        if len(self.saved_checkpoints) > self.max_checkpoints:
            for path in self._files(self.saved_checkpoints.pop(0)):
                Path(path).unlink(missing_ok=True)
        where = f"saving model at {self.model_dir} with prefix: {prefix}"
        self._log(estimator, f"trained total {self.current_batch + 1} batches, {where}")
        if self.save_best:
            self._save_best(estimator)

    def _save_best(self, estimator: Any) -> None:
        value, name, prefix = self._value(), self.monitor.get()[0], f"{self.model_prefix}-best"
        if self._sign * value > self._sign * self.best:
            self._write(estimator, prefix)
            before, self.best = self.best, value
            result = f"improved from {before:.5f} to {value:.5f}, updating best model at {self.model_dir} with prefix: {prefix}"
        else:
            result = f"did not improve from {self.best:.5f}, skipping updating best model"
        self._log(estimator, f"{name} {result}")

    def _log(self, estimator: Any, text: str) -> None:
        if self.verbose > 0:
            estimator.logger.info(f"[Epoch {self.current_epoch}] CheckpointHandler: {text}")

    def _files(self, prefix: str) -> list[str]:
        return [os.path.join(self.model_dir, prefix + end) for end in (".params", ".states")]

    def _write(self, estimator: Any, prefix: str) -> None:
        params, states = self._files(prefix)
        estimator.net.save_parameters(params)
        estimator.trainer.save_states(states)

    def _resume(self, estimator: Any) -> None:
        unit, units = ("epoch", "epochs") if estimator.max_epoch else ("batch", "batches")
        periods = (bool(self.epoch_period), bool(self.batch_period))
        needed = f"a training counted by {unit} resumes from checkpoints of {unit}_period= alone"
        assert periods == (bool(estimator.max_epoch), bool(estimator.max_batch)), f"{needed}; set the other to None."
        pattern = re.compile(re.escape(self.model_prefix) + r"-epoch(\d+)batch(\d+)\.params")
        found = sorted((int(m[1]), int(m[2]), m[0]) for m in map(pattern.fullmatch, os.listdir(self.model_dir)) if m)
        total = getattr(estimator, f"max_{unit}")
        if not found:
            estimator.logger.info(f"CheckpointHandler: No checkpoint found, training from scratch for {total} {units}")
            return
        self.saved_checkpoints = [name.removesuffix(".params") for *_, name in found]
        self.trained_epoch, self.trained_batch = found[-1][:2]
        done = 1 + getattr(self, f"trained_{unit}")
        if done >= total:
            problem = f"{self.model_dir} has a checkpoint of {unit} {done - 1}, and the training is of {total} {units}"
            raise ValueError(f"CheckpointHandler: {problem}: it is finished; pass resume_from_checkpoint=False to train again.")
        setattr(estimator, f"max_{unit}", total - done)
        params, states = self._files(self.saved_checkpoints[-1])
        estimator.net.load_parameters(params, ctx=estimator.context)
        estimator.trainer.load_states(states)
        where = f"epoch {self.trained_epoch} batch {self.trained_batch}"
        text = f"CheckpointHandler: Checkpoint resumed from {where}, continue to train for {total - done} {units} "
        estimator.logger.warning(text)


class EarlyStoppingHandler(_Counting, TrainEnd, _Monitoring):
    """Stop after `patience` epochs without an improvement of a metric.

    Args:
        monitor: metric of the estimator.
        min_delta: smallest change that is an improvement.
        patience: number of epochs.
        mode: "min" or "max": which values are better; "auto" is "max".
        baseline: value that the first one is compared with; None: none.

    Raises:
        ValueError: `monitor` is not a metric, or a composite one.
    """

    def __init__(
        self, monitor: Any, min_delta: float = 0, patience: int = 0, mode: str = "auto", baseline: float | None = None
    ) -> None:
        if isinstance(monitor, CompositeEvalMetric):
            raise ValueError("EarlyStoppingHandler: monitor is a CompositeEvalMetric; pass one of its metrics.")
        super().__init__(monitor, mode)
        self.baseline, self.patience, self.min_delta = baseline, patience, self._sign * min_delta

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        super().train_begin(estimator)
        self.wait = self.stopped_epoch = 0
        self.stop_training = False
        self.best = -self._sign * np.inf if self.baseline is None else self.baseline

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        value = self._value()
        if self._sign * (value - self.min_delta) > self._sign * self.best:
            self.best, self.wait = value, 0
        elif not np.isnan(value):
            self.wait += 1
            if self.wait >= self.patience:
                self.stopped_epoch, self.stop_training = self.current_epoch, True
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
