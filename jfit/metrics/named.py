"""The metrics by name.  To add a metric, write a function that returns a `Metric`, and add its names to `METRICS`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from jfit.checks import name_hint
from jfit.metrics.by_output import OutputMetric
from jfit.metrics.classes import accuracy, f1, mcc, top_k_accuracy
from jfit.metrics.confusion import confusion_matrix, pcc, precision, recall
from jfit.metrics.core import Metric
from jfit.metrics.curves import roc_auc
from jfit.metrics.host import HostMetric
from jfit.metrics.likelihood import cross_entropy, loss, nll_loss, perplexity
from jfit.metrics.regression import mae, mse, pearsonr, rmse
from jfit.metrics.targets import AUTO


def torch(name: str = "torch", weighted: bool = False) -> Metric:
    """sum(outputs) / size: `loss` under another name, for MXNet scripts with a Torch criterion.

    Args:
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric`.

    Example:
        >>> torch().name
        'torch'

    Source: Apache MXNet 1.9.1, `Torch`.
    """
    return loss(name, weighted)


def caffe(name: str = "caffe", weighted: bool = False) -> Metric:
    """sum(outputs) / size: `loss` under another name, for MXNet scripts with a Caffe criterion.

    Args:
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric`.

    Example:
        >>> caffe().name
        'caffe'

    Source: Apache MXNet 1.9.1, `Caffe`.
    """
    return loss(name, weighted)


METRICS: dict[str, Callable[..., Any]] = {
    name: make
    for make, names in (
        (accuracy, "acc accuracy"),
        (top_k_accuracy, "top_k_accuracy top_k_acc topkaccuracy"),
        (f1, "f1"),
        (mcc, "mcc"),
        (pcc, "pcc"),
        (cross_entropy, "ce crossentropy cross-entropy"),
        (nll_loss, "nll_loss negativeloglikelihood nll-loss"),
        (perplexity, "perplexity"),
        (mae, "mae"),
        (mse, "mse"),
        (rmse, "rmse"),
        (pearsonr, "pearsonr pearsoncorrelation"),
        (loss, "loss"),
        (torch, "torch"),
        (caffe, "caffe"),
        (precision, "precision"),
        (recall, "recall"),
        (confusion_matrix, "confusion_matrix"),
        (roc_auc, "roc_auc"),
    )
    for name in names.split()
}


def create(name: str, **params: Any) -> Any:
    """Create a metric by name; `top_k_accuracy_5` means `top_k_accuracy` with top_k=5.

    Args:
        name: case-insensitive, one of `METRICS`.
        **params: parameters of the metric; every metric has `name` and `weighted` (weight rows by their row
            weights, like scikit-learn's sample_weight; otherwise all rows with a weight above 0 count equally).

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown name or parameter.

    Example:
        >>> create("top_k_accuracy_5").name
        'top_k_accuracy_5'
    """
    key = name.lower()
    short = re.fullmatch(r"(top_k_acc(?:uracy)?)_(\d+)", key)
    if short:
        return create(short[1], **{"top_k": int(short[2]), **params})
    make = METRICS.get(key)
    if make is None:
        raise ValueError(f"unknown metric {name!r}; {name_hint(name, METRICS)}")
    known = list(inspect.signature(make).parameters)
    for param in params:
        if param not in known:
            raise ValueError(f"metric {name!r} has no parameter {param!r}; {name_hint(param, known)}")
    metric = make(**params)
    if make in (mae, mse, rmse, pearsonr) and not {"average", "weighted"} & set(params):
        metric = metric._replace(of_rows=make(**params, average="micro"))
    return metric


def get(spec: Any, **params: Any) -> tuple[Any, ...]:
    """Convert `spec` to a tuple of metrics.

    Args:
        spec: a name, "auto", a `Metric`, a function `(label, output) -> number` on numpy arrays, a list of these, or None for
            none; or a dict of these by output name, for models of functions.  `fit` and `score` replace "auto" by the metric
            that fits the model and its labels.
        **params: parameters for every named metric in `spec`.

    Returns:
        Tuple of `Metric` and `HostMetric`.

    Raises:
        ValueError: unknown name or parameter.
        TypeError: `spec` is none of the above, or a factory such as `jfit.metrics.accuracy` itself.

    Example:
        >>> [m.name for m in get(["acc", "ce"])]
        ['accuracy', 'cross-entropy']
    """
    if spec is None:
        return ()
    if isinstance(spec, Metric | HostMetric | OutputMetric):
        return (spec,)
    if isinstance(spec, Mapping):
        return tuple(OutputMetric(str(name), m) for name, each in spec.items() for m in get(each, **params))
    if isinstance(spec, str) and spec.lower() == "auto":
        return (AUTO,)
    if isinstance(spec, str):
        return (create(spec, **params),)
    if isinstance(spec, list | tuple):
        return tuple(m for each in spec for m in get(each, **params))
    if spec in METRICS.values():
        raise TypeError(f"{spec.__name__} is a factory, not a metric: pass {spec.__name__!r} or {spec.__name__}(...).")
    if callable(spec):
        name = getattr(spec, "__name__", type(spec).__name__)
        return (HostMetric(f"custom({name})" if "<" in name else name, spec),)
    raise TypeError(f"a metric must be a name, a Metric, a function (label, output) or a list of these, but got {spec!r}.")
