"""The Module subclasses that FeedForward trains with: one for MXNet's Python API, one for MXNet.jl's."""

from __future__ import annotations

import warnings
from typing import Any

from jfit.mxnet.kvstore.store import select_julia
from jfit.mxnet.module.binding import first_slices
from jfit.mxnet.module.bucketing import BucketingModule
from jfit.mxnet.module.module import Module
from jfit.mxnet.optimizer import Optimizer


class FeedForwardModule(Module):
    """Module for FeedForward, which differs from Module in two ways, as in MXNet.

    Metrics get labels and outputs by position, not by name.  There is no warning if the rescale_grad of an Optimizer object is
    not 1 / batch size.
    """

    def _fold(self, eval_metric: Any, labels: list[Any], outputs: list[Any], weights: Any) -> None:
        eval_metric.fold(labels, outputs, weights)

    def _make_optimizer(self, optimizer: Any, params: dict[str, Any], rows: int, on_store: bool) -> Optimizer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MXNet's FeedForward does not warn about rescale_grad, its Module does
            return super()._make_optimizer(optimizer, params, rows, on_store)


class FeedForwardBucketingModule(BucketingModule):
    """FeedForwardModule for a network that depends on the batch's `bucket_key`."""

    _module_class = FeedForwardModule


class JuliaModule(FeedForwardModule):
    """FeedForwardModule that splits batches over devices as MXNet.jl does: 10 rows on 3 devices are 4, 3, 3."""

    _divide = staticmethod(lambda rows, workloads: first_slices(rows, len(workloads)))

    def _select(self, kvstore: Any, params: dict[str, Any]) -> tuple[Any, bool]:
        return select_julia(kvstore, len(self.binding.devices), params)
