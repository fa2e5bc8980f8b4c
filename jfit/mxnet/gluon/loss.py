"""`mx.gluon.loss`: losses of gluon, one value per row of the batch."""

from __future__ import annotations

import math
import numbers
from typing import Any

from jfit.mxnet.gluon.hybrid import HybridBlock


class Loss(HybridBlock):
    """Base class of losses; a subclass defines `hybrid_forward(F, pred, label, ...)`.

    Args:
        weight: number that all values are multiplied by; None: 1.
        batch_axis: axis of the rows, which is kept.
        **kwargs: prefix and params, as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> class Cubic(Loss):
        ...     def hybrid_forward(self, F, pred, label):
        ...         return F.mean(F.abs(pred - label) ** 3, axis=self._batch_axis, exclude=True)
        >>> Cubic(None, 0)(mx.nd.array([[1.0, 2.0]]), mx.nd.zeros((1, 2))).asnumpy().tolist()
        [4.5]

    Source: Apache MXNet 1.9.1, `mxnet.gluon.loss`, as all losses here.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._weight, self._batch_axis = weight, batch_axis

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def _weighted(self, F: Any, values: Any, sample_weight: Any) -> Any:
        values = values if sample_weight is None else F.broadcast_mul(values, sample_weight)
        if self._weight is None:
            return values
        assert isinstance(self._weight, numbers.Number), f"weight of {self.name} must be a number, found {self._weight!r}."
        return values * self._weight

    def _mean(self, F: Any, values: Any, sample_weight: Any) -> Any:
        """Return the mean of the weighted values of each row."""
        return F.mean(self._weighted(F, values, sample_weight), axis=self._batch_axis, exclude=True)


class _ElementwiseLoss(Loss):
    """The mean of a function of each prediction and its label.

    Args:
        weight: number that all values are multiplied by; None: 1.
        batch_axis: axis of the rows.
        **kwargs: prefix and params, as for `Block`.
    """

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Return the loss of each row; `label` has as many values as `pred`, `sample_weight` broadcasts to its shape."""
        return self._mean(F, self._elements(F, pred, F.reshape_like(label, pred)), sample_weight)

    def _elements(self, F: Any, pred: Any, label: Any) -> Any:
        raise NotImplementedError


class _MarginLoss(Loss):
    """A loss with a margin between the classes."""

    def __init__(self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin


class L2Loss(_ElementwiseLoss):
    """The mean of weight / 2 * (label - pred)^2.

    Args:
        weight: number that all values are multiplied by.
        batch_axis: axis of the rows.
        **kwargs: prefix and params, as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> L2Loss()(mx.nd.array([[1.0, 3.0]]), mx.nd.array([[0.0, 0.0]])).asnumpy().tolist()
        [2.5]
    """

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)

    def _elements(self, F: Any, pred: Any, label: Any) -> Any:
        return F.square(label - pred) * 0.5


class L1Loss(_ElementwiseLoss):
    """The mean of |label - pred|."""

    def _elements(self, F: Any, pred: Any, label: Any) -> Any:
        return F.abs(label - pred)


class HuberLoss(_ElementwiseLoss):
    """The mean of |e| - rho / 2 for errors |e| > rho, else e^2 / (2 rho).

    Args:
        rho: error from which the loss is linear.
        weight, batch_axis, **kwargs: as for `L2Loss`.
    """

    def __init__(self, rho: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._rho = rho

    def _elements(self, F: Any, pred: Any, label: Any) -> Any:
        error = F.abs(label - pred)
        return F.where(error > self._rho, error - 0.5 * self._rho, 0.5 / self._rho * F.square(error))


class HingeLoss(_MarginLoss, _ElementwiseLoss):
    """The mean of max(0, margin - pred * label), with labels -1 and 1."""

    def _elements(self, F: Any, pred: Any, label: Any) -> Any:
        return F.relu(self._margin - pred * label)


class SquaredHingeLoss(HingeLoss):
    """The mean, for each sample, of max(0, margin - pred * label)^2; labels are -1 or 1."""

    def _elements(self, F: Any, pred: Any, label: Any) -> Any:
        return F.square(super()._elements(F, pred, label))


def _cross_entropy(F: Any, logits: Any, label: Any) -> Any:
    """-label * log(sigmoid(x)) - (1 - label) * log(1 - sigmoid(x)), without overflow."""
    return F.relu(logits) - logits * label + F.Activation(-F.abs(logits), act_type="softrelu")


class LogisticLoss(_ElementwiseLoss):
    """The mean of log(1 + exp(-pred * label)), with labels -1 and 1.

    Args:
        weight, batch_axis, **kwargs: as for `L2Loss`.
        label_format: "signed", or "binary" for labels 0 and 1.

    Raises:
        ValueError: label_format is another.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, label_format: str = "signed", **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        if label_format not in ("signed", "binary"):
            raise ValueError(f"label_format={label_format!r}: pass 'signed' for labels -1 and 1, or 'binary' for 0 and 1")
        self._label_format = label_format

    def _elements(self, F: Any, pred: Any, label: Any) -> Any:
        return _cross_entropy(F, pred, (label + 1.0) / 2.0 if self._label_format == "signed" else label)


class SigmoidBinaryCrossEntropyLoss(Loss):
    """The mean of -label * log(p) * pos_weight - (1 - label) * log(1 - p), where p = sigmoid(pred).

    Called with (pred, label, sample_weight=None, pos_weight=None); pos_weight, the weight of label 1, broadcasts to pred.

    Args:
        from_sigmoid: whether pred is p itself.
        weight, batch_axis, **kwargs: as for `L2Loss`.

    Example:
        >>> import jfit.mx as mx
        >>> loss = SigmoidBinaryCrossEntropyLoss()
        >>> print(loss(mx.nd.array([[0.0, 0.0]]), mx.nd.array([[0.0, 1.0]])).asnumpy().round(4))
        [0.6931]
    """

    def __init__(self, from_sigmoid: bool = False, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_sigmoid = from_sigmoid

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None, pos_weight: Any = None) -> Any:
        """Return the loss of each row."""
        label = F.reshape_like(label, pred)
        if self._from_sigmoid:
            positive = F.log(pred + 1e-12) * label
            positive = positive if pos_weight is None else F.broadcast_mul(positive, pos_weight)
            values = -(positive + F.log(1.0 - pred + 1e-12) * (1.0 - label))
        elif pos_weight is None:
            values = _cross_entropy(F, pred, label)
        else:
            factor = 1 + F.broadcast_mul(pos_weight - 1, label)
            log_positive = F.Activation(-F.abs(pred), act_type="softrelu") + F.relu(-pred)  # -log(sigmoid(pred))
            values = pred - pred * label + factor * log_positive
        return self._mean(F, values, sample_weight)


SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss


class SoftmaxCrossEntropyLoss(Loss):
    """-log(p[label]) where p = softmax(pred), or -sum(label * log(p)) for labels that are distributions.

    Args:
        axis: axis of the classes.
        sparse_label: whether labels are class indices, of the shape of pred without the axis; else of the shape of pred.
        from_logits: whether pred is log(p) itself.
        weight, batch_axis, **kwargs: as for `L2Loss`.

    Example:
        >>> import jfit.mx as mx
        >>> loss = SoftmaxCrossEntropyLoss()
        >>> print(loss(mx.nd.array([[0.0, 0.0], [0.0, 2.0]]), mx.nd.array([1, 1])).asnumpy().round(4))
        [0.6931 0.1269]
    """

    def __init__(
        self,
        axis: int = -1,
        sparse_label: bool = True,
        from_logits: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._axis, self._sparse_label, self._from_logits = axis, sparse_label, from_logits

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Return the loss of each row."""
        pred = pred if self._from_logits else F.log_softmax(pred, axis=self._axis)
        if self._sparse_label:
            values = -F.pick(pred, label, axis=self._axis, keepdims=True)
        else:
            values = -F.sum(pred * F.reshape_like(label, pred), axis=self._axis, keepdims=True)
        return self._mean(F, values, sample_weight)


SoftmaxCELoss = SoftmaxCrossEntropyLoss


class KLDivLoss(Loss):
    """The Kullback-Leibler divergence sum(label * (log(label) - pred)), where pred is the logarithm of a distribution.

    Args:
        from_logits: whether pred is a logarithm; else it is log(softmax(pred)).
        axis: axis of the softmax.
        weight, batch_axis, **kwargs: as for `L2Loss`.
    """

    def __init__(
        self, from_logits: bool = True, axis: int = -1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits, self._axis = from_logits, axis

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Return the loss of each row."""
        pred = pred if self._from_logits else F.log_softmax(pred, axis=self._axis)
        values = label * (F.log(label + 1e-12) - pred)
        return F.sum(self._weighted(F, values, sample_weight), axis=self._batch_axis, exclude=True)


class CTCLoss(Loss):
    """The negative log probability of a label sequence, summed over its alignments; the last class is the blank.

    Called with (pred, label, pred_lengths=None, label_lengths=None, sample_weight=None); labels end at -1 if their lengths
    are not passed.

    Args:
        layout: axes of pred, "NTC" or "TNC".
        label_layout: axes of label, "NT" or "TN".
        weight: number that all values are multiplied by; None: 1.
        **kwargs: prefix and params, as for `Block`.

    Raises:
        AssertionError: a layout is another.

    Source: Graves et al. 2006, Connectionist temporal classification.
    """

    def __init__(self, layout: str = "NTC", label_layout: str = "NT", weight: float | None = None, **kwargs: Any) -> None:
        assert layout in ("NTC", "TNC"), f"CTCLoss(layout={layout!r}): pass 'NTC' or 'TNC'."
        assert label_layout in ("NT", "TN"), f"CTCLoss(label_layout={label_layout!r}): pass 'NT' or 'TN'."
        self._layout, self._label_layout = layout, label_layout
        super().__init__(weight, label_layout.find("N"), **kwargs)

    def hybrid_forward(
        self, F: Any, pred: Any, label: Any, pred_lengths: Any = None, label_lengths: Any = None, sample_weight: Any = None
    ) -> Any:
        """Return the loss of each row."""
        pred = F.swapaxes(pred, 0, 1) if self._layout == "NTC" else pred
        label = F.swapaxes(label, 0, 1) if self._batch_axis == 1 else label
        lengths = [array for array in (pred_lengths, label_lengths) if array is not None]
        used = {"use_data_lengths": pred_lengths is not None, "use_label_lengths": label_lengths is not None}
        return self._weighted(F, F.CTCLoss(pred, label, *lengths, blank_label="last", **used), sample_weight)


class TripletLoss(_MarginLoss):
    """max(0, margin + |pred - positive|^2 - |pred - negative|^2), called with (pred, positive, negative).

    Args:
        margin: distance that the negatives have to be farther away.
        weight, batch_axis, **kwargs: as for `L2Loss`.
    """

    def hybrid_forward(self, F: Any, pred: Any, positive: Any, negative: Any) -> Any:
        """Return the loss of each row."""
        positive, negative = F.reshape_like(positive, pred), F.reshape_like(negative, pred)
        distance = F.sum(F.square(positive - pred) - F.square(negative - pred), axis=self._batch_axis, exclude=True)
        return self._weighted(F, F.relu(distance + self._margin), None)


class PoissonNLLLoss(Loss):
    """The mean over the whole batch of rate - target * log(rate), the negative log likelihood of counts.

    Called with (pred, target, sample_weight=None, epsilon=1e-08); epsilon is added to rates before the logarithm.

    Args:
        weight: number that all values are multiplied by; None: 1.
        from_logits: whether pred is log(rate); else it is the rate.
        batch_axis: axis of the rows.
        compute_full: add Stirling's approximation of log(target!) for targets above 1.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(
        self,
        weight: float | None = None,
        from_logits: bool = True,
        batch_axis: int = 0,
        compute_full: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits, self._compute_full = from_logits, compute_full

    def hybrid_forward(self, F: Any, pred: Any, target: Any, sample_weight: Any = None, epsilon: float = 1e-8) -> Any:
        """Return the loss, one value."""
        target = F.reshape_like(target, pred)
        values = F.exp(pred) - target * pred if self._from_logits else pred - target * F.log(pred + epsilon)
        if self._compute_full:
            stirling = target * F.log(target) - target + 0.5 * F.log(2 * math.pi * target)
            values = values + F.where(target > 1, stirling, F.zeros_like(target))
        return F.mean(self._weighted(F, values, sample_weight))


class CosineEmbeddingLoss(Loss):
    """1 - cos(x, y) for label 1, max(0, cos(x, y) - margin) for label -1; called with (x, y, label, sample_weight=None).

    Args:
        weight, batch_axis: as for `L2Loss`.
        margin: cosine from which the rows of label -1 have a loss.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, margin: float = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def hybrid_forward(self, F: Any, input1: Any, input2: Any, label: Any, sample_weight: Any = None) -> Any:
        """Return the loss of each row, (batch, 1)."""
        input1, label = F.reshape_like(input1, input2), F.reshape(label, (-1, 1))
        product, norm1, norm2 = (
            F.reshape(v, (-1, 1)) for v in (F.sum(input1 * input2, axis=-1), F.norm(input1, axis=-1), F.norm(input2, axis=-1))
        )
        cosine = product / F.maximum(norm1 * norm2, 1e-12)
        values = (1 - cosine) * (label == 1) + F.relu((label == -1) * (cosine - self._margin))
        return self._weighted(F, values, sample_weight)


class SDMLLoss(Loss):
    """Smoothed deep metric learning: KL divergence of smoothed identity and softmax of the negative distances of all pairs.

    Called with (x1, x2), both (batch, size), where equal rows belong together; NDArrays only.

    Args:
        smoothing_parameter: part of the probability of a row that the other rows get.
        weight, batch_axis, **kwargs: as for `L2Loss`; they have no effect, as in MXNet.

    Source: Bonadiman et al. 2019, https://arxiv.org/abs/1905.12786.
    """

    def __init__(self, smoothing_parameter: float = 0.3, weight: float = 1.0, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self.kl_loss = KLDivLoss(from_logits=True)
        self.smoothing_parameter = smoothing_parameter

    def hybrid_forward(self, F: Any, x1: Any, x2: Any) -> Any:
        """Return the loss of each row."""
        rows, part = x1.shape[0], self.smoothing_parameter
        difference = F.broadcast_sub(F.expand_dims(x1, 1), F.expand_dims(x2, 0))  # (batch, batch, size)
        same = F.eye(rows, ctx=x1.context)
        labels = same * (1 - part) + (1 - same) * part / (rows - 1)
        return self.kl_loss(F.log_softmax(-F.sum(F.square(difference), axis=2), axis=1), labels)
