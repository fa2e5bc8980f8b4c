"""What an `Estimator` does with one batch."""

from __future__ import annotations

from typing import Any

from jfit.mxnet import autograd
from jfit.mxnet.gluon.utils import split_and_load

__all__ = ["BatchProcessor"]


class BatchProcessor:
    """Forward and backward pass of one batch; a subclass may override `fit_batch` and `evaluate_batch`.

    Example:
        >>> class Doubled(BatchProcessor):
        ...     def fit_batch(self, estimator, train_batch, batch_axis=0):
        ...         return super().fit_batch(estimator, [train_batch[0] * 2, train_batch[1]], batch_axis)
        >>> processor = Doubled()  # for Estimator(..., batch_processor=)
    """

    def _get_data_and_label(self, batch: Any, ctx: Any, batch_axis: int = 0) -> tuple[list[Any], list[Any]]:
        data, label = (split_and_load(part, ctx_list=ctx, batch_axis=batch_axis) for part in (batch[0], batch[1]))
        return data, label

    def evaluate_batch(self, estimator: Any, val_batch: Any, batch_axis: int = 0) -> tuple[Any, Any, Any, Any]:
        """Compute the outputs and losses of a batch.

        Args:
            estimator: the Estimator.
            val_batch: (data, labels).
            batch_axis: the batch axis, along which data and labels are split over the contexts.

        Returns:
            (data, labels, outputs, losses), lists with one NDArray per context.
        """
        data, label = self._get_data_and_label(val_batch, estimator.context, batch_axis)
        pred = [estimator.val_net(x) for x in data]
        return data, label, pred, [estimator.val_loss(p, y) for p, y in zip(pred, label, strict=True)]

    def fit_batch(self, estimator: Any, train_batch: Any, batch_axis: int = 0) -> tuple[Any, Any, Any, Any]:
        """Compute the outputs, losses and gradients of a batch; `GradientUpdateHandler` updates the parameters.

        Args and result as for `evaluate_batch`.
        """
        data, label = self._get_data_and_label(train_batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            loss = [estimator.loss(p, y) for p, y in zip(pred, label, strict=True)]
        for part in loss:
            part.backward()
        return data, label, pred, loss
