"""MXNet's metric classes, each around the pure metric of `jfit.metrics` with the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit import metrics as pure
from jfit.mxnet.metric.base import Names
from jfit.mxnet.metric.device import DeviceMetric, UpdatesMetric
from jfit.mxnet.mutable import as_array


class Accuracy(DeviceMetric, rule=pure.accuracy, axis=1, name="accuracy"):
    """Accuracy: correct / count; the prediction is argmax(output, axis), or the output itself if it has the label's shape.

    Args:
        axis: class axis of the output.
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> import numpy as np
        >>> metric = Accuracy()
        >>> metric.update([np.array([1, 0])], [np.array([[0.2, 0.8], [0.3, 0.7]])])
        >>> metric.get()
        ('accuracy', 0.5)

    Source: Apache MXNet 1.9.1, `Accuracy`.
    """


class TopKAccuracy(DeviceMetric, rule=pure.top_k_accuracy):
    """Top-k accuracy: fraction of rows whose label is among the `top_k` largest entries of a (rows, classes) output.

    Args:
        top_k: number of classes, at least 2.
        name: name of the metric, for logs; `_<top_k>` is appended.
        output_names, label_names: as in `EvalMetric`.

    Raises:
        AssertionError: top_k is at most 1.

    Example:
        >>> TopKAccuracy(3).name
        'top_k_accuracy_3'

    Source: Apache MXNet 1.9.1, `TopKAccuracy`.
    """

    def __init__(self, top_k: int = 1, name: str = "top_k_accuracy", output_names: Names = None, label_names: Names = None):
        if top_k <= 1:
            raise AssertionError(f"Please use Accuracy if top_k is no more than 1; top_k is {top_k}.")
        super().__init__({"top_k": top_k}, f"{name}_{top_k}", output_names, label_names, top_k=top_k)
        self.top_k = top_k


class F1(DeviceMetric, rule=pure.f1, name="f1", average="macro"):
    """F1 score of binary labels: 2 tp / (2 tp + fp + fn).

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.
        average: "macro": mean of the scores of all updates; "micro": score of the summed tp, fp and fn.

    Example:
        >>> F1(average="micro").name
        'f1'

    Source: Apache MXNet 1.9.1, `F1`.
    """


class MCC(DeviceMetric, rule=pure.mcc, name="mcc", average="macro"):
    """Matthews correlation of binary labels: (tp tn - fp fn) / √((tp + fp)(tp + fn)(tn + fp)(tn + fn)).

    Factors of the denominator that are 0 are left out.

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.
        average: "macro": mean of the values of all updates; "micro": value of the summed tp, tn, fp and fn.

    Example:
        >>> MCC(average="micro").name
        'mcc'

    Source: Apache MXNet 1.9.1, `MCC`.
    """


class Perplexity(DeviceMetric, rule=pure.perplexity):
    """Perplexity: exp(-Σ log max(p[label], 1e-10) / count) over the labels other than `ignore_label`.

    Args:
        ignore_label: label of padding positions; None: no label is ignored.
        axis: class axis of the output.
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

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
        super().__init__(settings, name, output_names, label_names, ignore_label=ignore_label)
        self.ignore_label, self.axis = ignore_label, axis


class MAE(DeviceMetric, rule=pure.mae, name="mae"):
    """Mean absolute error: mean over updates of mean |label - output|.

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> MAE().name
        'mae'

    Source: Apache MXNet 1.9.1, `MAE`; on several devices an update is the whole batch, in MXNet each device's part.
    """


class MSE(DeviceMetric, rule=pure.mse, name="mse"):
    """Mean squared error: mean over updates of mean (label - output)².

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> MSE().name
        'mse'

    Source: Apache MXNet 1.9.1, `MSE`; on several devices an update is the whole batch, in MXNet each device's part.
    """


class RMSE(DeviceMetric, rule=pure.rmse, name="rmse"):
    """Root mean squared error: mean over updates of √(mean (label - output)²).

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> RMSE().name
        'rmse'

    Source: Apache MXNet 1.9.1, `RMSE`; on several devices an update is the whole batch, in MXNet each device's part.
    """


class CrossEntropy(DeviceMetric, rule=pure.cross_entropy, eps=1e-12, name="cross-entropy"):
    """Cross-entropy of probabilities: -Σ log(p[label] + eps) / count.

    Args:
        eps: added to the probability before the logarithm.
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> CrossEntropy().name
        'cross-entropy'

    Source: Apache MXNet 1.9.1, `CrossEntropy`.
    """


class NegativeLogLikelihood(DeviceMetric, rule=pure.nll_loss, eps=1e-12, name="nll-loss"):
    """Negative log-likelihood of probabilities: -Σ log(p[label] + eps) / count, the same as `CrossEntropy`.

    Args:
        eps: added to the probability before the logarithm.
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> NegativeLogLikelihood().name
        'nll-loss'

    Source: Apache MXNet 1.9.1, `NegativeLogLikelihood`.
    """


class PearsonCorrelation(UpdatesMetric, rule=pure.pearsonr, name="pearsonr", average="macro"):
    """Pearson correlation: cov(output, label) / √(var(output) var(label)).

    As in MXNet, `reset_local` with average="micro" does not reset the sums: the local value is nan until the next update, and
    then equals the global value.  The global value covers all batches since `reset`; MXNet returns 0.0.

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.
        average: "macro": mean of the correlations of all updates; "micro": correlation over all rows.

    Example:
        >>> import numpy as np
        >>> metric = PearsonCorrelation()
        >>> metric.update([np.array([1.0, 2.0, 3.0])], [np.array([2.0, 4.0, 6.0])])
        >>> metric.get()
        ('pearsonr', 1.0)

    Source: Apache MXNet 1.9.1, `PearsonCorrelation`.
    """

    average: str

    def reset_local(self) -> None:
        """Reset the local value; with average="micro" the sums are unchanged, as in MXNet."""
        if self.average == "micro":
            self._updates = (0, self._updates[1])
        else:
            super().reset_local()

    def prepare(self, labels: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Add 1 to num_inst for each output of the batch."""
        self._parts = len(outputs)

    def _value(self, which: int) -> float:
        no_update = self.average == "micro" and which == 0 and not self._updates[0]
        return float("nan") if no_update else super()._value(which)


class PCC(UpdatesMetric, rule=pure.pcc):
    """Multiclass Matthews correlation, from per-class counts of predictions, labels and correct predictions.

    The number of classes is that of the outputs.  Outputs with the shape of their labels are class numbers; their maximum
    sets the number of classes, so `update` blocks.  Labels beyond the classes of the outputs form one additional class.

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.
        has_global_stats: False: `get_global` returns the same as `get`.

    Attributes:
        k: number of classes in the running sums; increases when a batch has more.

    Example:
        >>> import numpy as np
        >>> metric = PCC()
        >>> metric.update([np.array([0, 1, 2])], [np.eye(3)])
        >>> round(metric.get()[1], 6)
        1.0

    Source: Apache MXNet 1.9.1, `PCC`.
    """

    def __init__(
        self, name: str = "pcc", output_names: Names = None, label_names: Names = None, has_global_stats: bool = True
    ) -> None:
        self.k = 2
        super().__init__({"num_classes": self.k}, name, output_names, label_names)
        self._has_global_stats = has_global_stats

    def get_global(self) -> tuple[Any, Any]:
        """Return (name, value) since the last `reset`; the same as `get` with has_global_stats=False."""
        return super().get_global() if self._has_global_stats else self.get()

    def prepare(self, labels: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Enlarge the running sums if the batch has more classes."""
        classes = self.k
        for label, output in zip(labels, outputs, strict=False):
            label, output = as_array(label), as_array(output)
            if output.ndim > 1 and output.shape != label.shape:
                largest = [output.shape[1] - 1]
            else:
                # sync: the largest class number sets the shape of the sums
                largest = counters.read((output.max(), label.max())) if output.size else []
            largest = [*largest, *([label.max()] if isinstance(label, np.ndarray) and label.size else [])]
            classes = max([classes, *(int(x) + 1 for x in largest)])
        if classes > self.k:
            more = classes - self.k
            local, everything = (None if s is None else _widened(s, more) for s in self._sums)
            self._sums = (local, everything)
            self.k, self._host, self._settings = classes, None, (("num_classes", classes),)


def _widened(sums: Any, more: int) -> Any:
    """Return counts (3, classes + 1) with `more` columns of zeros inserted before the last one, which is for other labels."""
    return jnp.concatenate([sums[:, :-1], jnp.zeros((3, more), sums.dtype), sums[:, -1:]], axis=1)


class Loss(DeviceMetric, rule=pure.loss, name="loss"):
    """Mean of the outputs, for networks whose output is a loss: Σ outputs / number of elements; labels are ignored.

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> import numpy as np
        >>> metric = Loss()
        >>> metric.update(None, [np.array([1.0, 3.0])])
        >>> metric.get()
        ('loss', 2.0)

    Source: Apache MXNet 1.9.1, `Loss`.
    """

    needs_labels = False


class Torch(Loss, rule=pure.torch, name="torch"):
    """Mean of the outputs, as `Loss`, under MXNet's name for a Torch criterion.

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> Torch().name
        'torch'
    """


class Caffe(Torch, rule=pure.caffe, name="caffe"):
    """Mean of the outputs, as `Loss`, under MXNet's name for a Caffe criterion.

    Args:
        name: name of the metric, for logs.
        output_names, label_names: as in `EvalMetric`.

    Example:
        >>> Caffe().name
        'caffe'
    """
