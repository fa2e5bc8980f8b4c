"""Metrics as pure functions that run inside the compiled step.

`stats` computes the sums of one batch on one device; the step adds them over micro-batches and devices, and `update` adds
the result to the running sums.  Therefore values depend neither on the number of devices nor on padding: rows of weight 0 are
ignored, even if they contain NaN.  With weighted=True, rows are weighted by their row weights.  Counts are int32, float sums
use compensated summation.
Names and values are those of MXNet 1.9.1, and of scikit-learn for precision, recall, confusion_matrix and roc_auc.
`docs/metrics.md` lists all metrics.

>>> import jax.numpy as jnp
>>> acc = create("acc")
>>> seen = acc.stats((jnp.array([1, 0]),), (jnp.array([[0.2, 0.8], [0.3, 0.7]]),), (None,))
>>> {k: float(v) for k, v in acc.compute(acc.update(acc.init(), seen)).items()}
{'accuracy': 0.5}
"""

from jfit.metrics.by_output import OutputMetric
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
    "OutputMetric",
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
