"""Optimizers for SVRGModule's key-value store: parameters are updated, full-batch gradients are stored unchanged."""

from __future__ import annotations

import inspect
from typing import Any

from jfit.mxnet.mutable import as_array
from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.named import create, register

FULL = "_full"  # suffix of a parameter's full-batch gradient
_BASE = inspect.signature(Optimizer).parameters


@register
class _AssignmentOptimizer(Optimizer):
    """Store the pushed value: w <- g.

    Args:
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> from jfit.mxnet.mutable import MutableArray
        >>> import numpy as np
        >>> weight = MutableArray(np.zeros(2, "float32"))
        >>> create("_AssignmentOptimizer").update(0, weight, np.ones(2, "float32"), None)
        >>> weight.asnumpy().tolist()
        [1.0, 1.0]

    Source: Apache MXNet 1.9.1, `_AssignmentOptimizer`.
    """

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Replace the weight by the gradient in place: weight[:] = grad."""
        weight[:] = as_array(grad)


@register
class _SVRGOptimizer(Optimizer):
    """Update parameters with the default optimizer; assign to their full-batch gradients, recognized by name.

    Unlike MXNet 1.9.1, only `<name>_full` is the full-batch gradient of a parameter `<name>`.  MXNet assigns to every name
    that contains "full", so a layer with the automatic name `fullyconnected0` is never trained.

    Args:
        default_optimizer: a registered name, created with all of `kwargs`, or an `Optimizer` object.
        **kwargs: arguments of `Optimizer` and of the default optimizer.

    Attributes:
        default_opt: the optimizer of the parameters.
        aux_opt: the optimizer that assigns full-batch gradients.

    Example:
        >>> svrg = create("_SVRGOptimizer", default_optimizer="sgd", momentum=0.9, param_idx2name={0: "w", 1: "w_full"})
        >>> svrg.default_opt.momentum, svrg.is_full(0), svrg.is_full(1)
        (0.9, False, True)

    Source: Apache MXNet 1.9.1, `_SVRGOptimizer`.
    """

    def __init__(self, default_optimizer: Any, **kwargs: Any) -> None:
        super().__init__(**{k: v for k, v in kwargs.items() if k in _BASE})
        named = isinstance(default_optimizer, str)
        self.default_opt: Any = create(default_optimizer, **kwargs) if named else default_optimizer
        self.aux_opt: Any = create(_AssignmentOptimizer.__name__)

    def is_full(self, index: Any) -> bool:
        """Return whether an index or name belongs to a full-batch gradient."""
        names = set(self.idx2name.values())
        name = index if index in names else self.idx2name[index]
        return name.endswith(FULL) and name.removesuffix(FULL) in names

    def _of(self, index: Any) -> Any:
        return self.aux_opt if self.is_full(index) else self.default_opt

    def create_state(self, index: Any, weight: Any) -> Any:
        """Create the state of one index: the default optimizer's, or None for a full-batch gradient."""
        return self._of(index).create_state(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update one parameter, or store one full-batch gradient."""
        self._of(index).update(index, weight, grad, state)
