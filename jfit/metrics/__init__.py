"""Metrics as pure functions that run inside the compiled step.

`stats` sums one batch on one device; the step adds those sums over micro-batches and devices and `update` folds them into
running sums, so a value depends neither on the device count nor on padding: rows of weight 0 never count, whatever they
hold.  Counts are int32, float sums carry their rounding error along.  Names and values are MXNet 1.9.1's.

>>> import jax.numpy as jnp
>>> acc = create("acc")
>>> seen = acc.stats((jnp.array([1, 0]),), (jnp.array([[0.2, 0.8], [0.3, 0.7]]),), (None,))
>>> {k: float(v) for k, v in acc.compute(acc.update(acc.init(), seen)).items()}
{'accuracy': 0.5}
"""

from jfit.metrics.core import HostMetric, Metric
from jfit.metrics.named import (
    METRICS,
    accuracy,
    create,
    cross_entropy,
    f1,
    get,
    loss,
    mae,
    mse,
    nll_loss,
    perplexity,
    rmse,
    top_k_accuracy,
)

__all__ = [
    "METRICS",
    "HostMetric",
    "Metric",
    "accuracy",
    "create",
    "cross_entropy",
    "f1",
    "get",
    "loss",
    "mae",
    "mse",
    "nll_loss",
    "perplexity",
    "rmse",
    "top_k_accuracy",
]
