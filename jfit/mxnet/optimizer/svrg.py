"""The optimizers that MXNet's SVRGModule puts into a key-value store: parameters are updated, full gradients are kept."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.mutable import as_array
from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.named import create, register

FULL = "_full"  # a parameter's full gradient has the parameter's name and this
_BASE = (
    "rescale_grad",
    "param_idx2name",
    "wd",
    "clip_gradient",
    "learning_rate",
    "lr_scheduler",
    "sym",
    "begin_num_update",
    "multi_precision",
    "param_dict",
)


@register
class _AssignmentOptimizer(Optimizer):
    """w <- g: what is pushed is kept.

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
        """weight[:] = grad."""
        weight[:] = as_array(grad)


@register
class _SVRGOptimizer(Optimizer):
    """The default optimizer for parameters, assignment for their full gradients, by name.

    Where it differs from MXNet 1.9.1, which assigns to every name that has "full" in it, so that a layer called
    `fullyconnected0`, as layers are called by themselves, never learns: here only `<name>_full` of a parameter `<name>` is
    a full gradient.

    Args:
        default_optimizer: a name, made with all of `kwargs`, or an `Optimizer`, taken as it is.
        **kwargs: of `Optimizer`, and of the default optimizer.

    Attributes:
        default_opt: the default optimizer.
        aux_opt: what assigns.

    Example:
        >>> made = create("_SVRGOptimizer", default_optimizer="sgd", momentum=0.9, param_idx2name={0: "w", 1: "w_full"})
        >>> made.default_opt.momentum, made.is_full(0), made.is_full(1)
        (0.9, False, True)

    Source: Apache MXNet 1.9.1, `_SVRGOptimizer`.
    """

    def __init__(self, default_optimizer: Any, **kwargs: Any) -> None:
        super().__init__(**{k: v for k, v in kwargs.items() if k in _BASE})
        named = isinstance(default_optimizer, str)
        self.default_opt: Any = create(default_optimizer, **kwargs) if named else default_optimizer
        self.aux_opt: Any = create(_AssignmentOptimizer.__name__)

    def is_full(self, index: Any) -> bool:
        """Whether an index, or a name, is that of a full gradient.

        Raises:
            KeyError: it is in no `param_idx2name`.
        """
        names = set(self.idx2name.values())
        if index not in names and index not in self.idx2name:
            raise KeyError(f"_SVRGOptimizer knows no parameter {index!r}; its param_idx2name has {self.idx2name}")
        name = index if index in names else self.idx2name[index]
        return name.endswith(FULL) and name.removesuffix(FULL) in names

    def _of(self, index: Any) -> Any:
        return self.aux_opt if self.is_full(index) else self.default_opt

    def create_state(self, index: Any, weight: Any) -> Any:
        """The state that the optimizer of this index keeps."""
        return self._of(index).create_state(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """One update of one parameter, or a full gradient kept."""
        self._of(index).update(index, weight, grad, state)
