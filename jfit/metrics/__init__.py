"""Metrics as pure functions that run inside the compiled step.

`stats` sums one batch on one device; the step adds those sums over micro-batches and devices and `update` folds them into
running sums, so a value depends neither on the device count nor on padding: rows of weight 0 never count, whatever they
hold.  With weighted=True the others count by their weights.  Counts are int32, float sums carry their rounding error along.
Names and values are MXNet 1.9.1's; precision, recall, confusion_matrix and roc_auc are scikit-learn's.  `docs/metrics.md`
lists all.

>>> import jax.numpy as jnp
>>> acc = create("acc")
>>> seen = acc.stats((jnp.array([1, 0]),), (jnp.array([[0.2, 0.8], [0.3, 0.7]]),), (None,))
>>> {k: float(v) for k, v in acc.compute(acc.update(acc.init(), seen)).items()}
{'accuracy': 0.5}
"""

from jfit.metrics.classes import accuracy, f1, mcc, top_k_accuracy
from jfit.metrics.confusion import confusion_matrix, pcc, precision, recall
from jfit.metrics.core import Metric, sized
from jfit.metrics.curves import ExactRocAuc, roc_auc
from jfit.metrics.host import HostMetric
from jfit.metrics.likelihood import cross_entropy, loss, nll_loss, perplexity
from jfit.metrics.named import METRICS, caffe, create, get, torch
from jfit.metrics.regression import mae, mse, pearsonr, rmse

__all__ = [
    "METRICS",
    "ExactRocAuc",
    "HostMetric",
    "Metric",
    "accuracy",
    "caffe",
    "confusion_matrix",
    "create",
    "cross_entropy",
    "f1",
    "get",
    "loss",
    "mae",
    "mcc",
    "mse",
    "nll_loss",
    "pcc",
    "pearsonr",
    "perplexity",
    "precision",
    "recall",
    "rmse",
    "roc_auc",
    "sized",
    "top_k_accuracy",
    "torch",
]
