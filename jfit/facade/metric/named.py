"""The metrics by name, as MXNet's classes: each is a pure metric of `jfit.metrics` with a shell around it."""

from __future__ import annotations

from typing import Any

from jfit import metrics as pure
from jfit.facade.metric.base import alias, register
from jfit.facade.metric.device import DeviceMetric

Names = Any  # list of names, or None


@alias("acc")
class Accuracy(DeviceMetric):
    """correct / count; the prediction is the argmax over `axis`, or the output itself where it is shaped as its label.

    Args:
        axis: where the classes of the output are.
        name: for logs.
        output_names: outputs it sees in `update_dict`; None: all.
        label_names: labels it sees in `update_dict`; None: all.

    Example:
        >>> import numpy as np
        >>> metric = Accuracy()
        >>> metric.update([np.array([1, 0])], [np.array([[0.2, 0.8], [0.3, 0.7]])])
        >>> metric.get()
        ('accuracy', 0.5)

    Source: Apache MXNet 1.9.1, `Accuracy`.
    """

    def __init__(self, axis: int = 1, name: str = "accuracy", output_names: Names = None, label_names: Names = None):
        super().__init__(pure.accuracy, {"axis": axis}, name, output_names, label_names, axis=axis)
        self.axis = axis


@alias("top_k_accuracy", "top_k_acc")
class TopKAccuracy(DeviceMetric):
    """How often the label is among the `top_k` largest of (rows, classes) outputs; the name ends in `_<top_k>`.

    Raises:
        AssertionError: top_k is not more than 1.

    Example:
        >>> TopKAccuracy(3).name
        'top_k_accuracy_3'

    Source: Apache MXNet 1.9.1, `TopKAccuracy`.
    """

    def __init__(self, top_k: int = 1, name: str = "top_k_accuracy", output_names: Names = None, label_names: Names = None):
        if top_k <= 1:
            raise AssertionError(f"Please use Accuracy if top_k is no more than 1; top_k is {top_k}.")
        super().__init__(pure.top_k_accuracy, {"top_k": top_k}, f"{name}_{top_k}", output_names, label_names, top_k=top_k)
        self.top_k = top_k


@register
class F1(DeviceMetric):
    """2 tp / (2 tp + fp + fn) of binary labels; "macro": the mean over updates, "micro": from the totals.

    Example:
        >>> F1(average="micro").name
        'f1'

    Source: Apache MXNet 1.9.1, `F1`.
    """

    def __init__(self, name: str = "f1", output_names: Names = None, label_names: Names = None, average: str = "macro"):
        super().__init__(pure.f1, {"average": average}, name, output_names, label_names)
        self.average = average


@register
class Perplexity(DeviceMetric):
    """exp(-Σ log max(p[label], 1e-10) / count) over the labels that are not `ignore_label`.

    Example:
        >>> Perplexity(ignore_label=0).name
        'perplexity'

    Source: Apache MXNet 1.9.1, `Perplexity`.
    """

    def __init__(
        self,
        ignore_label: int | None,
        axis: int = -1,
        name: str = "perplexity",
        output_names: Names = None,
        label_names: Names = None,
    ):
        settings = {"ignore_label": ignore_label, "axis": axis}
        super().__init__(pure.perplexity, settings, name, output_names, label_names, ignore_label=ignore_label)
        self.ignore_label, self.axis = ignore_label, axis


@register
class MAE(DeviceMetric):
    """Mean over updates of mean |label - output|.

    Example:
        >>> MAE().name
        'mae'

    Source: Apache MXNet 1.9.1, `MAE`, over the whole batch on any number of devices.
    """

    def __init__(self, name: str = "mae", output_names: Names = None, label_names: Names = None):
        super().__init__(pure.mae, {}, name, output_names, label_names)


@register
class MSE(DeviceMetric):
    """Mean over updates of mean (label - output)².

    Example:
        >>> MSE().name
        'mse'

    Source: Apache MXNet 1.9.1, `MSE`, over the whole batch on any number of devices.
    """

    def __init__(self, name: str = "mse", output_names: Names = None, label_names: Names = None):
        super().__init__(pure.mse, {}, name, output_names, label_names)


@register
class RMSE(DeviceMetric):
    """Mean over updates of √(mean (label - output)²).

    Example:
        >>> RMSE().name
        'rmse'

    Source: Apache MXNet 1.9.1, `RMSE`, over the whole batch on any number of devices.
    """

    def __init__(self, name: str = "rmse", output_names: Names = None, label_names: Names = None):
        super().__init__(pure.rmse, {}, name, output_names, label_names)


@alias("ce")
class CrossEntropy(DeviceMetric):
    """-Σ log(p[label] + eps) / count.

    Example:
        >>> CrossEntropy().name
        'cross-entropy'

    Source: Apache MXNet 1.9.1, `CrossEntropy`.
    """

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy", output_names: Names = None, label_names: Names = None):
        super().__init__(pure.cross_entropy, {"eps": eps}, name, output_names, label_names, eps=eps)
        self.eps = eps


@alias("nll_loss")
class NegativeLogLikelihood(DeviceMetric):
    """-Σ log(p[label] + eps) / count, under another name.

    Example:
        >>> NegativeLogLikelihood().name
        'nll-loss'

    Source: Apache MXNet 1.9.1, `NegativeLogLikelihood`.
    """

    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", output_names: Names = None, label_names: Names = None):
        super().__init__(pure.nll_loss, {"eps": eps}, name, output_names, label_names, eps=eps)
        self.eps = eps


@register
class Loss(DeviceMetric):
    """Σ outputs / size; labels are ignored.

    Example:
        >>> import numpy as np
        >>> metric = Loss()
        >>> metric.update(None, [np.array([1.0, 3.0])])
        >>> metric.get()
        ('loss', 2.0)

    Source: Apache MXNet 1.9.1, `Loss`.
    """

    needs_labels = False

    def __init__(self, name: str = "loss", output_names: Names = None, label_names: Names = None):
        super().__init__(pure.loss, {}, name, output_names, label_names)


@register
class Torch(Loss):
    """`Loss` under the name of a Torch criterion."""

    def __init__(self, name: str = "torch", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)


@register
class Caffe(Torch):
    """`Loss` under the name of a Caffe criterion."""

    def __init__(self, name: str = "caffe", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)
