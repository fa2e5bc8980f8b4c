"""MXNet's classes over the pure metrics of `jfit.metrics`, under the names that those have there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit import metrics as pure
from jfit.mxnet.metric.device import DeviceMetric, UpdatesMetric
from jfit.mxnet.mutable import as_array

__all__ = [
    "F1",
    "MAE",
    "MCC",
    "MSE",
    "PCC",
    "RMSE",
    "Accuracy",
    "Caffe",
    "CrossEntropy",
    "Loss",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "Perplexity",
    "TopKAccuracy",
    "Torch",
]

Names = Any  # list of names, or None


class Accuracy(DeviceMetric, rule=pure.accuracy):
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
        super().__init__({"axis": axis}, name, output_names, label_names, axis=axis)
        self.axis = axis


class TopKAccuracy(DeviceMetric, rule=pure.top_k_accuracy):
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
        super().__init__({"top_k": top_k}, f"{name}_{top_k}", output_names, label_names, top_k=top_k)
        self.top_k = top_k


class F1(DeviceMetric, rule=pure.f1):
    """2 tp / (2 tp + fp + fn) of binary labels; "macro": the mean over updates, "micro": from the totals.

    Example:
        >>> F1(average="micro").name
        'f1'

    Source: Apache MXNet 1.9.1, `F1`.
    """

    def __init__(self, name: str = "f1", output_names: Names = None, label_names: Names = None, average: str = "macro"):
        super().__init__({"average": average}, name, output_names, label_names)
        self.average = average


class MCC(DeviceMetric, rule=pure.mcc):
    """(tp tn - fp fn) / √((tp + fp)(tp + fn)(tn + fp)(tn + fn)) of binary labels, factors of 0 left out.

    Args:
        name: for logs.
        output_names: outputs it sees in `update_dict`; None: all.
        label_names: labels it sees in `update_dict`; None: all.
        average: "macro": the mean over updates, "micro": from the totals.

    Example:
        >>> MCC(average="micro").name
        'mcc'

    Source: Apache MXNet 1.9.1, `MCC`.
    """

    def __init__(self, name: str = "mcc", output_names: Names = None, label_names: Names = None, average: str = "macro"):
        super().__init__({"average": average}, name, output_names, label_names)
        self.average = average


class Perplexity(DeviceMetric, rule=pure.perplexity):
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
        super().__init__(settings, name, output_names, label_names, ignore_label=ignore_label)
        self.ignore_label, self.axis = ignore_label, axis


class MAE(DeviceMetric, rule=pure.mae):
    """Mean over updates of mean |label - output|.

    Example:
        >>> MAE().name
        'mae'

    Source: Apache MXNet 1.9.1, `MAE`, over the whole batch on any number of devices.
    """

    def __init__(self, name: str = "mae", output_names: Names = None, label_names: Names = None):
        super().__init__({}, name, output_names, label_names)


class MSE(DeviceMetric, rule=pure.mse):
    """Mean over updates of mean (label - output)².

    Example:
        >>> MSE().name
        'mse'

    Source: Apache MXNet 1.9.1, `MSE`, over the whole batch on any number of devices.
    """

    def __init__(self, name: str = "mse", output_names: Names = None, label_names: Names = None):
        super().__init__({}, name, output_names, label_names)


class RMSE(DeviceMetric, rule=pure.rmse):
    """Mean over updates of √(mean (label - output)²).

    Example:
        >>> RMSE().name
        'rmse'

    Source: Apache MXNet 1.9.1, `RMSE`, over the whole batch on any number of devices.
    """

    def __init__(self, name: str = "rmse", output_names: Names = None, label_names: Names = None):
        super().__init__({}, name, output_names, label_names)


class CrossEntropy(DeviceMetric, rule=pure.cross_entropy):
    """-Σ log(p[label] + eps) / count.

    Example:
        >>> CrossEntropy().name
        'cross-entropy'

    Source: Apache MXNet 1.9.1, `CrossEntropy`.
    """

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy", output_names: Names = None, label_names: Names = None):
        super().__init__({"eps": eps}, name, output_names, label_names, eps=eps)
        self.eps = eps


class NegativeLogLikelihood(DeviceMetric, rule=pure.nll_loss):
    """-Σ log(p[label] + eps) / count, under another name.

    Example:
        >>> NegativeLogLikelihood().name
        'nll-loss'

    Source: Apache MXNet 1.9.1, `NegativeLogLikelihood`.
    """

    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", output_names: Names = None, label_names: Names = None):
        super().__init__({"eps": eps}, name, output_names, label_names, eps=eps)
        self.eps = eps


class PearsonCorrelation(UpdatesMetric, rule=pure.pearsonr):
    """cov(output, label) / √(var(output) var(label)); "macro": the mean over updates, "micro": of everything that was seen.

    With "micro" MXNet's `reset_local` keeps what was seen: the local value is nan until the next update, and the global one
    again then.  The global value is that of everything since `reset`, where MXNet gives 0.0.

    Example:
        >>> import numpy as np
        >>> metric = PearsonCorrelation()
        >>> metric.update([np.array([1.0, 2.0, 3.0])], [np.array([2.0, 4.0, 6.0])])
        >>> metric.get()
        ('pearsonr', 1.0)

    Source: Apache MXNet 1.9.1, `PearsonCorrelation`.
    """

    def __init__(self, name: str = "pearsonr", output_names: Names = None, label_names: Names = None, average: str = "macro"):
        self.average = average
        super().__init__({"average": average}, name, output_names, label_names)

    def reset_local(self) -> None:
        """Forget the local value; with "micro" what was seen stays."""
        if self.average == "micro":
            self._updates = (0, self._updates[1])
        else:
            super().reset_local()

    def prepare(self, labels: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Each output counts."""
        self._parts = len(outputs)

    def _value(self, which: int) -> float:
        nothing_since = self.average == "micro" and which == 0 and not self._updates[0]
        return float("nan") if nothing_since else super()._value(which)


class PCC(UpdatesMetric, rule=pure.pcc):
    """Matthews' correlation of many classes, from how often each was said, was true, and was hit.

    The classes are those of the outputs; outputs shaped as their labels are class numbers themselves, which have to be read
    to be counted.  Labels beyond the classes of the outputs count as one class more.

    Args:
        name: for logs.
        output_names: outputs it sees in `update_dict`; None: all.
        label_names: labels it sees in `update_dict`; None: all.
        has_global_stats: False: `get_global` is `get`.

    Attributes:
        k: how many classes there are places for; it grows with what is seen.

    Example:
        >>> import numpy as np
        >>> metric = PCC()
        >>> metric.update([np.array([0, 1, 2])], [np.eye(3)])
        >>> round(metric.get()[1], 6)
        1.0

    Source: Apache MXNet 1.9.1, `PCC`.
    """

    grows = True

    def __init__(
        self, name: str = "pcc", output_names: Names = None, label_names: Names = None, has_global_stats: bool = True
    ) -> None:
        self.k = 2
        super().__init__({"num_classes": self.k}, name, output_names, label_names)
        self._has_global_stats = has_global_stats

    def get_global(self) -> tuple[Any, Any]:
        """(name, value) since the last `reset`; that of `get` without global sums."""
        return super().get_global() if self._has_global_stats else self.get()

    def prepare(self, labels: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Make room for the classes of a batch."""
        needed = self.k
        for label, output in zip(labels, outputs, strict=False):
            label, output = as_array(label), as_array(output)
            if output.ndim > 1 and output.shape != label.shape:
                seen = [output.shape[1] - 1]
            else:
                seen = counters.read((output.max(), label.max())) if output.size else []  # sync: class numbers size the sums
            seen = [*seen, *([label.max()] if isinstance(label, np.ndarray) and label.size else [])]
            needed = max([needed, *(int(x) + 1 for x in seen)])
        if needed > self.k:
            more = needed - self.k
            local, everything = (None if s is None else _widened(s, more) for s in self._sums)
            self._sums = (local, everything)
            self.k, self._host, self._settings = needed, None, (("num_classes", needed),)


def _widened(sums: Any, more: int) -> Any:
    """Counts (3, classes + 1) with places for more classes; the last is for labels beyond them."""
    return jnp.concatenate([sums[:, :-1], jnp.zeros((3, more), sums.dtype), sums[:, -1:]], axis=1)


class Loss(DeviceMetric, rule=pure.loss):
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
        super().__init__({}, name, output_names, label_names)


class Torch(Loss, rule=pure.torch):
    """`Loss` under the name of a Torch criterion."""

    def __init__(self, name: str = "torch", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)


class Caffe(Torch, rule=pure.caffe):
    """`Loss` under the name of a Caffe criterion."""

    def __init__(self, name: str = "caffe", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)
