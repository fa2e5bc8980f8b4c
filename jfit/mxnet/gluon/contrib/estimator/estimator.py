"""`Estimator`: training and evaluation loops of a gluon net."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Sequence
from typing import Any

from jfit.mxnet import autograd
from jfit.mxnet.context import Context, cpu, gpu, num_gpus
from jfit.mxnet.gluon.contrib.estimator import event_handler as events
from jfit.mxnet.gluon.data.dataloader import DataLoader
from jfit.mxnet.gluon.loss import Loss, SoftmaxCrossEntropyLoss
from jfit.mxnet.gluon.utils import split_and_load
from jfit.mxnet.metric import create
from jfit.mxnet.ndarray_classes import Trainer


class Estimator:
    """Trains and evaluates a gluon net, and calls handlers of events; a subclass may override `fit_batch` and `evaluate_batch`.

    Args:
        net: the net.
        loss: the loss, a `gluon.loss.Loss`.
        train_metrics: metric or list of them; by default accuracy, if the loss is SoftmaxCrossEntropyLoss, and the loss.
        val_metrics: the same for evaluations; by default copies of `train_metrics`.
        initializer: initializer of the parameters, unless they are initialized already.
        trainer: `gluon.Trainer`; by default SGD with learning rate 0.001.
        context: context or list of them; by default gpu(0) if there is one, else cpu(0).

    Attributes:
        logger: logging.Logger that writes to sys.stdout.
        train_metrics, val_metrics: the metrics, with "training " and "validation " before their names.

    Raises:
        ValueError: an argument of another class.

    Example:
        >>> import jfit.mx as mx, numpy as np
        >>> x = np.random.RandomState(0).rand(40, 3).astype("float32")
        >>> data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, x @ np.array([1, 2, 3], "float32")), 8)
        >>> net = mx.gluon.nn.Dense(1)
        >>> net.initialize()
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        >>> estimator = Estimator(net, mx.gluon.loss.L2Loss(), trainer=trainer)
        >>> estimator.logger.setLevel("WARNING")
        >>> estimator.fit(data, epochs=40)
        >>> net.weight.data().asnumpy().round(1).tolist()
        [[1.0, 2.0, 3.0]]

    Source: Apache MXNet 1.9.1, `mxnet.gluon.contrib.estimator.Estimator`.
    """

    max_epoch: int | None = None
    max_batch: int | None = None
    batch_axis = 0

    def __init__(
        self, net: Any, loss: Any, train_metrics: Any = None, val_metrics: Any = None, initializer: Any = None,
        trainer: Any = None, context: Any = None,
    ) -> None:  # fmt: skip
        events.check_class(Loss, loss=loss)
        self.net, self.loss = net, loss
        self.train_metrics = events.as_metrics(train_metrics) or self._default_metrics()
        for metric in self.train_metrics:
            metric.name = "training " + metric.name
        self.val_metrics = events.as_metrics(val_metrics) or copy.deepcopy(self.train_metrics)
        for metric in self.val_metrics:
            metric.name = "validation " + metric.name.removeprefix("training ")
        self.logger = logging.Logger("Estimator", logging.INFO)
        self.logger.addHandler(logging.StreamHandler(sys.stdout))
        default = gpu(0) if num_gpus() else cpu()
        self.context = context if isinstance(context, list) else [context or default]
        for each in self.context:
            events.check_class(Context, context=each)
        try:
            self.net.collect_params().list_ctx()
        except RuntimeError:
            self.net.initialize(init=initializer or "uniform", ctx=self.context)
        self.trainer = trainer or Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.001})
        events.check_class(Trainer, trainer=self.trainer)

    def _default_metrics(self) -> list[Any]:
        loss = create("loss", name=self.loss.name.rstrip("1234567890"))
        return [create("acc"), loss] if isinstance(self.loss, SoftmaxCrossEntropyLoss) else [loss]

    def _forward(self, batch: Any, batch_axis: int) -> tuple[Any, Any, Any, Any]:
        data, label = (split_and_load(part, self.context, batch_axis) for part in batch[:2])
        pred = [self.net(x) for x in data]
        return data, label, pred, [self.loss(p, y) for p, y in zip(pred, label, strict=True)]

    def evaluate_batch(self, val_batch: Any, batch_axis: int = 0) -> tuple[Any, Any, Any, Any]:
        """Compute the outputs and losses of a batch.

        Args:
            val_batch: (data, labels).
            batch_axis: the batch axis, along which data and labels are split over the contexts.

        Returns:
            (data, labels, outputs, losses), lists with one NDArray per context.
        """
        return self._forward(val_batch, batch_axis)

    def fit_batch(self, train_batch: Any, batch_axis: int = 0) -> tuple[Any, Any, Any, Any]:
        """Compute the outputs, losses and gradients of a batch; `GradientUpdateHandler` updates the parameters.

        Args and result as for `evaluate_batch`.
        """
        with autograd.record():
            results = self._forward(train_batch, batch_axis)
        for loss in results[-1]:
            loss.backward()
        return results

    def evaluate(self, val_data: Any, batch_axis: int = 0, event_handlers: Any = None) -> None:
        """Compute `val_metrics` on a data set.

        Args:
            val_data: DataLoader of (data, labels).
            batch_axis: the batch axis, along which data and labels are split over the contexts.
            event_handlers: handler or list of them; a MetricHandler and a LoggingHandler are added if there are none.

        Raises:
            ValueError: `val_data` is not a DataLoader.
        """
        events.check_class(DataLoader, val_data=val_data)
        for metric in self.val_metrics:
            metric.reset()
        defaults = [events.MetricHandler(self.val_metrics), events.LoggingHandler(metrics=self.val_metrics)]
        handlers = _completed(event_handlers, defaults)
        self._call(handlers, "epoch_begin")
        for batch in val_data:
            self._call(handlers, "batch_begin", batch=batch)
            _, label, pred, loss = self.evaluate_batch(batch, batch_axis)
            self._call(handlers, "batch_end", batch=batch, pred=pred, label=label, loss=loss)
        self._call(handlers, "epoch_end")

    def fit(
        self, train_data: Any, val_data: Any = None, epochs: int | None = None, event_handlers: Any = None,
        batches: int | None = None, batch_axis: int = 0,
    ) -> None:  # fmt: skip
        """Train for a number of epochs or of batches.

        Args:
            train_data: DataLoader of (data, labels).
            val_data: DataLoader that is evaluated after each epoch.
            epochs, batches: the number; pass one of them.
            event_handlers: handler or list of them; a StoppingHandler is added, and a GradientUpdateHandler, MetricHandler,
                ValidationHandler (with `val_data`) and LoggingHandler if there are none.
            batch_axis: the batch axis, along which data and labels are split over the contexts.

        Raises:
            ValueError: a loader or handler of another class, or both or none of `epochs` and `batches`.
        """
        events.check_class(DataLoader, train_data=train_data)
        if bool(epochs) == bool(batches):
            raise ValueError(f"epochs is {epochs} and batches is {batches}; pass one of them.")
        self.max_epoch, self.max_batch, self.batch_axis = epochs, batches, batch_axis
        defaults = [events.StoppingHandler(), events.GradientUpdateHandler(), events.MetricHandler(self.train_metrics)]
        if val_data:
            defaults.append(events.ValidationHandler(val_data, self.evaluate))
        defaults.append(events.LoggingHandler(metrics=self.train_metrics))
        handlers = _completed(event_handlers, defaults)
        self._call(handlers, "train_begin")
        stopped = False
        while not stopped:
            self._call(handlers, "epoch_begin")
            for batch in train_data:
                self._call(handlers, "batch_begin", batch=batch)
                _, label, pred, loss = self.fit_batch(batch, batch_axis)
                if self._call(handlers, "batch_end", batch=batch, pred=pred, label=label, loss=loss):
                    break
            stopped = self._call(handlers, "epoch_end")
        self._call(handlers, "train_end")

    def _call(self, handlers: Sequence[Any], event: str, **kwargs: Any) -> bool:
        """Call the handlers of an event, and return whether one of them stops the epoch or the training."""
        answers = [getattr(h, event)(self, **kwargs) for h in handlers if hasattr(h, event)]
        return any(answers)


def _completed(handlers: Any, defaults: Sequence[Any]) -> list[Any]:
    """Return the handlers, and the default ones of whose class there is none, in the order in which they are called."""
    own = [handlers] if isinstance(handlers, events.EventHandler) else list(handlers or ())
    for handler in own:
        events.check_class(events.EventHandler, handler=handler)
    always = events.StoppingHandler
    added = [d for d in defaults if isinstance(d, always) or not any(isinstance(h, type(d)) for h in own)]
    return sorted([*own, *added], key=lambda handler: getattr(handler, "priority", 0))
