"""Rules with running means of the gradient and of its size: Adam, AdamW, Adamax, Nadam, FTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jfit.mxnet.optimizer.base import Hyper, Optimizer


@Optimizer.register
class Adam(Optimizer):
    """G = c(g + wd * w);  w <- w - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * mean / (sqrt(var) + epsilon).

    `learning_rate` has a value always, so a scheduler's `base_lr` is replaced by it, as in MXNet: give the rate to both.

    Args:
        learning_rate: rate.
        beta1, beta2: decay of the means of G and of G^2.
        epsilon: outside the root.
        lazy_update: of a row_sparse gradient, only the rows that it holds are updated.
        **kwargs: of `Optimizer`.

    Example:
        >>> Adam().learning_rate
        0.001

    Source: Apache MXNet 1.9.1, `Adam`.
    """

    rule = "adam"
    parameters, switches = ("beta1", "beta2", "epsilon"), ("lazy_update",)

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.lazy_update = lazy_update


@Optimizer.register
class AdamW(Optimizer):
    """w <- w - lr * (mean' / (sqrt(var') + epsilon) + wd * w) with the moments of c(g), bias-corrected unless told not.

    MXNet 1.9.1 has the kernel only; the defaults are those of `jfit.optim.adamw`.

    Args:
        learning_rate: rate.
        beta1, beta2: decay of the means of g and of g^2.
        epsilon: outside the root.
        wd: decay, decoupled from the moments.
        bias_correction: divide the moments by 1 - beta^t.
        **kwargs: of `Optimizer`.

    Example:
        >>> AdamW().wd
        0.01

    Source: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; Apache MXNet 1.9.1, `_contrib_adamw_update`.
    """

    rule = "adamw"
    parameters = ("beta1", "beta2", "epsilon", "bias_correction")

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        wd: float = 0.01,
        bias_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, wd=wd, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.bias_correction = bias_correction


@Optimizer.register
class Adamax(Optimizer):
    """G = c(g + wd * w);  u <- max(beta2 * u, |G|);  w <- w - lr / (1 - beta1^t) * mean / u.

    Where every gradient so far was 0 the weight stays; MXNet makes it NaN.

    Args:
        learning_rate: rate.
        beta1: decay of the mean of G.
        beta2: decay of its largest size.
        **kwargs: of `Optimizer`.

    Example:
        >>> Adamax().learning_rate
        0.002

    Source: Kingma and Ba 2015, section 7, https://arxiv.org/abs/1412.6980; Apache MXNet 1.9.1, `Adamax`.
    """

    rule = "adamax"
    parameters = ("beta1", "beta2")

    def __init__(self, learning_rate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2 = beta1, beta2


@Optimizer.register
class Nadam(Optimizer):
    """Adam with Nesterov's momentum and a schedule of it; see `jfit.optim.nadam` for the formula.

    One schedule, `m_schedule`, serves all parameters and is multiplied at the turn of each, as in MXNet, so what a parameter
    gets depends on its index.  On several devices of a module it is multiplied once for each parameter, not once for each
    copy of it.

    Args:
        learning_rate: rate.
        beta1, beta2: decay of the means of G and of G^2.
        epsilon: outside the root.
        schedule_decay: how fast the momentum climbs.
        **kwargs: of `Optimizer`.

    Example:
        >>> Nadam().m_schedule
        1.0

    Source: Dozat 2016, https://cs229.stanford.edu/proj2015/054_report.pdf; Apache MXNet 1.9.1, `Nadam`.
    """

    rule = "nadam"
    parameters = ("beta1", "beta2", "epsilon", "schedule_decay")

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        schedule_decay: float = 0.004,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.schedule_decay = schedule_decay

    @property
    def m_schedule(self) -> float:
        """Product of the momenta of all turns so far; waits for it."""
        return self.shared.value("m_schedule")

    @m_schedule.setter
    def m_schedule(self, value: float) -> None:
        self.shared.set_value("m_schedule", value)

    def turns_by_name(self, names: Sequence[str], apart: bool, fixed: Sequence[str] = ()) -> Hyper:
        """The order of the turns, and who has one without an update."""
        return (("order", tuple(names)), ("fixed", tuple(fixed)))


@Optimizer.register
class FTML(Optimizer):
    """G = c(g + wd * w);  d_t = (1 - beta1^t) / lr * (sqrt(v / (1 - beta2^t)) + epsilon);  w <- -z / d_t.

    v is the running mean of G^2, z <- beta1 * z + (1 - beta1) * G - (d_t - beta1 * d) * w.  Its state is (d, v, z).

    Args:
        beta1, beta2: decay of the means.
        epsilon: outside the root.
        **kwargs: of `Optimizer`.

    Example:
        >>> FTML().beta1
        0.6

    Source: Zheng and Kwok 2017, http://proceedings.mlr.press/v70/zheng17a.html; Apache MXNet 1.9.1, `FTML`.
    """

    rule = "ftml"
    parameters = ("beta1", "beta2", "epsilon")

    def __init__(self, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
