"""Metrics as objects whose sums live on the device: counting never waits, reading a value does."""

from jfit.mxnet.metric.base import EvalMetric
from jfit.mxnet.metric.shells import create

__all__ = ["EvalMetric", "create"]
