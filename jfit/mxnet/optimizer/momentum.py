"""Gradient descent and its momenta: SGD, NAG, Signum, DCASGD; and Test."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.ruled import Ruled, group_size


@Optimizer.register
class SGD(Ruled):
    """m <- momentum * m - lr * (c(g) + wd * w);  w <- w + m.

    Args:
        momentum: 0 keeps no state.
        lazy_update: of a row_sparse gradient, only the rows that it holds are updated.
        **kwargs: of `Optimizer`.

    Example:
        >>> SGD(learning_rate=0.5).learning_rate
        0.5

    Source: Apache MXNet 1.9.1, `SGD`.
    """

    rule = "sgd"
    parameters, switches = ("momentum",), ("lazy_update",)
    lone_state = True
    master_last = True

    def __init__(self, momentum: float = 0.0, lazy_update: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.lazy_update = lazy_update
        self.aggregate_num = group_size(4)


@Optimizer.register
class ccSGD(SGD):
    """SGD under its oldest name.

    Example:
        >>> ccSGD(momentum=0.5).momentum
        0.5
    """


@Optimizer.register
class NAG(Ruled):
    """m' = momentum * m;  w' = w - m' + (1 + momentum) * (m' - lr * (c(g) + wd * w));  m <- m' - lr * (c(g) + wd * w').

    Args:
        momentum: 0 is plain SGD, without state.
        **kwargs: of `Optimizer`.

    Example:
        >>> NAG(momentum=0.9).momentum
        0.9

    Source: Apache MXNet 1.9.1, `NAG`; the aliased momentum is its kernel's.
    """

    rule = "nag"
    parameters = ("momentum",)
    lone_state = True
    master_last = True

    def __init__(self, momentum: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum


@Optimizer.register
class Signum(Ruled):
    """m <- momentum * m - (1 - momentum) * (wd * w + c(g));  w <- (1 - lr * wd_lh) * w + lr * sign(m).

    The sign of NaN is 0: such a weight rests.  `learning_rate` has a value always, so a scheduler's `base_lr` is replaced by
    it, as in MXNet.

    Args:
        learning_rate: rate.
        momentum: 0 is signSGD, w <- (1 - lr * wd) * w - lr * sign(g), without state.
        wd_lh: decay apart from the momentum.
        **kwargs: of `Optimizer`.

    Example:
        >>> Signum().momentum
        0.9

    Source: Bernstein et al. 2018, https://arxiv.org/abs/1802.04434; Apache MXNet 1.9.1, `Signum`.
    """

    rule = "signum"
    parameters = ("momentum", "wd_lh")
    lone_state = True

    def __init__(self, learning_rate: float = 0.01, momentum: float = 0.9, wd_lh: float = 0.0, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum, self.wd_lh = momentum, wd_lh


@Optimizer.register
class DCASGD(Ruled):
    """w <- w - lr * (c(g) + wd * w + lamda * c(g)^2 * (w - previous));  previous <- the old w.

    Its state is (momentum or None, previous).  MXNet fails with a momentum; here m <- momentum * m + the step above.

    Args:
        momentum: 0 keeps none.
        lamda: how strongly a late gradient is corrected.
        **kwargs: of `Optimizer`.

    Example:
        >>> DCASGD().lamda
        0.04

    Source: Zheng et al. 2017, https://arxiv.org/abs/1609.08326; Apache MXNet 1.9.1, `DCASGD`.
    """

    rule = "dcasgd"
    parameters = ("momentum", "lamda")

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum, self.lamda = momentum, lamda

    def nested(self, slots: tuple[Any, ...]) -> Any:
        """(momentum or None, previous weight)."""
        return slots if len(slots) == 2 else (None, *slots)


@Optimizer.register
class Test(Ruled):
    """w <- w + rescale_grad * g, the gradient added as it is; its state is the weight.  MXNet tests updaters with it.

    It counts its updates, which MXNet's does not.

    Args:
        **kwargs: of `Optimizer`.

    Example:
        >>> Test().rule
        'test'

    Source: Apache MXNet 1.9.1, `Test`.
    """

    __test__ = False  # of pytest
    rule = "test"
    lone_state = True
