"""Rules that divide by a root of summed or averaged squares: RMSProp, AdaGrad, GroupAdaGrad, AdaDelta, Ftrl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.base import Optimizer


@Optimizer.register
class RMSProp(Optimizer):
    """G = c(g + wd * w);  n <- gamma1 * n + (1 - gamma1) * G^2;  w <- w - lr * G / sqrt(n + epsilon); or Graves' form.

    `learning_rate` has a value always, so a scheduler's `base_lr` is replaced by it, as in MXNet.

    Args:
        learning_rate: rate.
        gamma1: decay of the means.
        gamma2: momentum of the centered form.
        epsilon: inside the root.
        centered: Graves' form.
        clip_weights: clip the new weight to +-clip_weights.
        **kwargs: of `Optimizer`.

    Example:
        >>> RMSProp(centered=True).gamma2
        0.9

    Source: Apache MXNet 1.9.1, `RMSProp`.
    """

    rule = "rmsprop"
    parameters = ("gamma1", "gamma2", "epsilon", "centered", "clip_weights")
    saved_needs: ClassVar = {**Optimizer.saved_needs, "clip_weights": saved.LIMIT}

    def __init__(
        self,
        learning_rate: float = 0.001,
        gamma1: float = 0.9,
        gamma2: float = 0.9,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.gamma1, self.gamma2, self.epsilon = gamma1, gamma2, epsilon
        self.centered, self.clip_weights = centered, clip_weights


@Optimizer.register
class AdaGrad(Optimizer):
    """h <- h + c(g)^2;  w <- w - lr * (c(g) / sqrt(h + eps) + wd * w).

    Args:
        eps: inside the root; the attribute is `float_stable_eps`.
        **kwargs: of `Optimizer`.

    Example:
        >>> AdaGrad().float_stable_eps
        1e-07

    Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html; Apache MXNet 1.9.1, `AdaGrad`.
    """

    rule = "adagrad"
    parameters = ("float_stable_eps",)
    renamed: ClassVar = {"float_stable_eps": "eps"}
    lone_state = True

    def __init__(self, eps: float = 1e-7, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps


@Optimizer.register
class GroupAdaGrad(Optimizer):
    """h <- h + mean of c(g)^2 over each row;  w <- w - lr * c(g) / sqrt(h + eps): one rate for each row of a matrix.

    Args:
        eps: inside the root; the attribute is `float_stable_eps`.
        **kwargs: of `Optimizer`; weight decay must be 0, or switched off by multipliers.

    Raises:
        AssertionError: where a parameter is no matrix, or decays, as soon as that is known.

    Example:
        >>> GroupAdaGrad().float_stable_eps
        1e-05

    Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html; Apache MXNet 1.9.1, `GroupAdaGrad`.
    """

    rule = "groupadagrad"
    parameters = ("float_stable_eps",)
    renamed: ClassVar = {"float_stable_eps": "eps"}
    lone_state = True

    def __init__(self, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps

    def hyper_key(self, turns: Any = ()) -> Any:
        """(rule, its parameters) without the decay, which the rule does not have."""
        rule, hyper = super().hyper_key(turns)
        return rule, tuple((name, value) for name, value in hyper if name != "wd")

    def multipliers(self, indices: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """(rate, decay) multipliers of the indices; refuses decay."""
        lr, wd = super().multipliers(indices)
        if self.wd and wd.any():
            raise AssertionError(
                f"weight decay is {self.wd}; GroupAdaGrad has none: leave wd at 0, or set wd_mult to 0 for its parameters."
            )
        return lr, wd

    def check_weight(self, weight: Any) -> None:
        """Refuse what is no matrix."""
        if len(weight.shape) != 2:
            raise AssertionError(
                f"a weight has shape {tuple(weight.shape)}; GroupAdaGrad needs matrices, as it keeps one rate for each row: "
                "update other parameters with AdaGrad."
            )


@Optimizer.register
class AdaDelta(Optimizer):
    """a <- rho * a + (1 - rho) * c(g)^2;  d = sqrt(b + epsilon) / sqrt(a + epsilon) * c(g);  w <- w - d - wd * w.

    Then b <- rho * b + (1 - rho) * d^2.  There is no rate in it, and the decay is multiplied by none.

    Args:
        rho: decay of the means.
        epsilon: inside both roots.
        **kwargs: of `Optimizer`.

    Example:
        >>> AdaDelta().rho
        0.9

    Source: Zeiler 2012, https://arxiv.org/abs/1212.5701; Apache MXNet 1.9.1, `AdaDelta`.
    """

    rule = "adadelta"
    parameters = ("rho", "epsilon")

    def __init__(self, rho: float = 0.90, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rho, self.epsilon = rho, epsilon


@Optimizer.register
class Ftrl(Optimizer):
    """z <- z + c(g) - (sqrt(n + c(g)^2) - sqrt(n)) * w / lr;  n <- n + c(g)^2.

    w <- (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / lr + wd) where |z| > lamda1, else 0: what w was first does not count.
    `learning_rate` is not told to a scheduler, as in MXNet: give the scheduler its `base_lr`.

    Args:
        lamda1: strength of the 1-norm.
        learning_rate: rate.
        beta: smoothing.
        **kwargs: of `Optimizer`.

    Example:
        >>> Ftrl().learning_rate
        0.1

    Source: McMahan et al. 2013, https://dl.acm.org/citation.cfm?id=2488200; Apache MXNet 1.9.1, `Ftrl`.
    """

    rule = "ftrl"
    parameters = ("lamda1", "beta")

    def __init__(self, lamda1: float = 0.01, learning_rate: float = 0.1, beta: float = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lamda1, self.beta, self.lr = lamda1, beta, learning_rate
