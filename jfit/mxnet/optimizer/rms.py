"""Optimizers that normalize by accumulated squared gradients: RMSProp, AdaGrad, GroupAdaGrad, AdaDelta, Ftrl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.base import Optimizer


@Optimizer.register
class RMSProp(Optimizer, learning_rate=0.001, gamma1=0.9, gamma2=0.9, epsilon=1e-8, centered=False, clip_weights=None):
    """RMSProp: G = c(g + wd * w);  n <- gamma1 * n + (1 - gamma1) * G^2;  w <- w - lr * G / sqrt(n + epsilon).

    c rescales and clips the gradient.  `learning_rate` always replaces the `base_lr` of a scheduler, as in MXNet, even at
    its default.

    Args:
        learning_rate: learning rate.
        gamma1: decay rate of the moving averages.
        gamma2: momentum of the centered version.
        epsilon: added inside the square root.
        centered: use Graves' version, which subtracts the squared moving average of G from n and has momentum.
        clip_weights: clip the new weight to [-clip_weights, clip_weights]; None or 0 disables it.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> RMSProp(centered=True).gamma2
        0.9

    Source: Apache MXNet 1.9.1, `RMSProp`.
    """

    rule = "rmsprop"
    saved_needs: ClassVar = {**Optimizer.saved_needs, "clip_weights": saved.LIMIT}


@Optimizer.register
class AdaGrad(Optimizer):
    """AdaGrad: h <- h + c(g)^2;  w <- w - lr * (c(g) / sqrt(h + eps) + wd * w); c rescales and clips the gradient.

    Args:
        eps: added inside the square root; stored as `float_stable_eps`.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> AdaGrad().float_stable_eps
        1e-07

    Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html; Apache MXNet 1.9.1, `AdaGrad`.
    """

    rule = "adagrad"
    parameters = ("float_stable_eps",)
    rule_names: ClassVar = {"float_stable_eps": "eps"}
    unwrap_single_slot = True

    def __init__(self, eps: float = 1e-7, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps


@Optimizer.register
class GroupAdaGrad(AdaGrad):
    """AdaGrad per matrix row: h <- h + mean(c(g)^2, axis=1);  w <- w - lr * c(g) / sqrt(h + eps).

    c rescales and clips the gradient.  Updates raise AssertionError for parameters that are not matrices or have weight
    decay.

    Args:
        eps: added inside the square root; stored as `float_stable_eps`.
        **kwargs: arguments of `Optimizer`; weight decay must be 0 for every parameter (wd=0 or wd_mult 0).

    Example:
        >>> GroupAdaGrad().float_stable_eps
        1e-05

    Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html; Apache MXNet 1.9.1, `GroupAdaGrad`.
    """

    rule = "groupadagrad"

    def __init__(self, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(eps, **kwargs)

    def hyper_key(self, extra: Any = ()) -> Any:
        """Cache key of a compiled update, as `Optimizer.hyper_key`, without wd: GroupAdaGrad has no weight decay."""
        rule, hyper = super().hyper_key(extra)
        return rule, tuple((name, value) for name, value in hyper if name != "wd")

    def multipliers(self, indices: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Learning rate and weight decay multipliers of the parameters `indices`, two float32 arrays (len(indices),).

        Raises:
            AssertionError: wd * wd_mult of a parameter is not 0; GroupAdaGrad has no weight decay.
        """
        lr, wd = super().multipliers(indices)
        if self.wd and wd.any():
            raise AssertionError(f"weight decay is {self.wd}, which GroupAdaGrad does not support: set wd=0, or wd_mult 0.")
        return lr, wd

    def check_weight(self, weight: Any) -> None:
        """Raise AssertionError if the weight is not a matrix."""
        if len(weight.shape) != 2:
            raise AssertionError(f"a weight has shape {tuple(weight.shape)}; GroupAdaGrad needs matrices.")


@Optimizer.register
class AdaDelta(Optimizer, rho=0.90, epsilon=1e-5):
    """AdaDelta: a <- rho * a + (1 - rho) * c(g)^2;  d = sqrt(b + epsilon) / sqrt(a + epsilon) * c(g);  w <- w - d - wd * w.

    Then b <- rho * b + (1 - rho) * d^2.  c rescales and clips the gradient.  The learning rate is not used, not
    even for the weight decay.

    Args:
        rho: decay rate of the moving averages.
        epsilon: added inside both square roots.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> AdaDelta().rho
        0.9

    Source: Zeiler 2012, https://arxiv.org/abs/1212.5701; Apache MXNet 1.9.1, `AdaDelta`.
    """

    rule = "adadelta"


@Optimizer.register
class Ftrl(Optimizer):
    """FTRL-Proximal: z <- z + c(g) - (sqrt(n + c(g)^2) - sqrt(n)) * w / lr;  n <- n + c(g)^2.

    Then w <- (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / lr + wd) where |z| > lamda1, else 0, so the initial weight is lost
    in the first update.  c rescales and clips the gradient.  `learning_rate` does not replace a scheduler's `base_lr`, as in
    MXNet: set `base_lr` when creating the scheduler.

    Args:
        lamda1: strength of the L1 regularization.
        learning_rate: learning rate.
        beta: smoothing term of the learning rate.
        **kwargs: arguments of `Optimizer`.

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
