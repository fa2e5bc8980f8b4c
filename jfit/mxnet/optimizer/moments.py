"""Optimizers with moving averages of the gradient and of its square: Adam, AdamW, Adamax, Nadam, FTML."""

from __future__ import annotations

from collections.abc import Sequence

from jfit.mxnet.optimizer.base import Hyper, Optimizer


@Optimizer.register
class Adam(Optimizer, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, lazy_update=True):
    """Adam: G = c(g + wd * w);  w <- w - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * mean / (sqrt(var) + epsilon).

    mean and var are moving averages of G and G^2; c rescales and clips the gradient.  `learning_rate` always replaces the
    `base_lr` of a scheduler, as in MXNet, even at its default: pass the learning rate to both.

    Args:
        learning_rate: learning rate.
        beta1, beta2: decay rates of the moving averages of G and G^2.
        epsilon: added to the square root.
        lazy_update: with a row_sparse gradient, update only the rows it contains.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Adam().learning_rate
        0.001

    Source: Apache MXNet 1.9.1, `Adam`.
    """

    rule = "adam"
    off_switches = ("lazy_update",)


@Optimizer.register
class AdamW(Optimizer, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-6, wd=0.01, bias_correction=True):
    """AdamW: w <- w - lr * (mean' / (sqrt(var') + epsilon) + wd * w), with bias-corrected moving averages of c(g), c(g)^2.

    c rescales and clips the gradient.  MXNet 1.9.1 has the operator but no such class; the defaults are those of
    `jfit.optim.adamw`.

    Args:
        learning_rate: learning rate.
        beta1, beta2: decay rates of the moving averages of c(g) and c(g)^2.
        epsilon: added to the square root.
        wd: decoupled weight decay; it does not enter the moving averages.
        bias_correction: divide the moving averages by 1 - beta^t.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> AdamW().wd
        0.01

    Source: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; Apache MXNet 1.9.1, `_contrib_adamw_update`.
    """

    rule = "adamw"


@Optimizer.register
class Adamax(Optimizer, learning_rate=0.002, beta1=0.9, beta2=0.999):
    """Adamax: G = c(g + wd * w);  u <- max(beta2 * u, |G|);  w <- w - lr / (1 - beta1^t) * mean / u.

    mean is the moving average of G; c rescales and clips the gradient.  While all gradients of an element are 0 its weight
    is unchanged; MXNet makes it NaN (0 / 0).

    Args:
        learning_rate: learning rate.
        beta1: decay rate of the moving average of G.
        beta2: decay rate of u, the running maximum of |G|.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Adamax().learning_rate
        0.002

    Source: Kingma and Ba 2015, section 7, https://arxiv.org/abs/1412.6980; Apache MXNet 1.9.1, `Adamax`.
    """

    rule = "adamax"


@Optimizer.register
class Nadam(Optimizer, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, schedule_decay=0.004):
    """Adam with scheduled Nesterov momentum; see `jfit.optim.nadam` for the formula.

    As in MXNet all parameters share one `m_schedule`, which is multiplied by the current momentum before the update of each
    parameter; so the result for a parameter depends on its position in the update order.  A Module on several devices
    multiplies it once per parameter, not once per device.

    Args:
        learning_rate: learning rate.
        beta1, beta2: decay rates of the moving averages of G = c(g + wd * w) and G^2.
        epsilon: added to the square root.
        schedule_decay: how fast the momentum increases.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Nadam().m_schedule
        1.0

    Source: Dozat 2016, https://cs229.stanford.edu/proj2015/054_report.pdf; Apache MXNet 1.9.1, `Nadam`.
    """

    rule = "nadam"

    @property
    def m_schedule(self) -> float:
        """Product of the momenta of all parameter updates so far; blocks until it is computed."""
        return self.shared.value("m_schedule")

    @m_schedule.setter
    def m_schedule(self, value: float) -> None:
        self.shared.set_value("m_schedule", value)

    def hyper_for_names(self, names: Sequence[str], one_by_one: bool, fixed: Sequence[str] = ()) -> Hyper:
        """Return the hyperparameters order (names in update order) and fixed (names that only change m_schedule)."""
        return (("order", tuple(names)), ("fixed", tuple(fixed)))


@Optimizer.register
class FTML(Optimizer, beta1=0.6, beta2=0.999, epsilon=1e-8):
    """FTML: G = c(g + wd * w);  d_t = (1 - beta1^t) / lr * (sqrt(v / (1 - beta2^t)) + epsilon);  w <- -z / d_t.

    v is the moving average of G^2, z <- beta1 * z + (1 - beta1) * G - (d_t - beta1 * d) * w with the previous d.  c rescales
    and clips the gradient.  The state is (d, v, z).

    Args:
        beta1, beta2: decay rates of z and v.
        epsilon: added to the square root.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> FTML().beta1
        0.6

    Source: Zheng and Kwok 2017, http://proceedings.mlr.press/v70/zheng17a.html; Apache MXNet 1.9.1, `FTML`.
    """

    rule = "ftml"
