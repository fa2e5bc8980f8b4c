"""MXNet's optimizers by name and by class, over the rules of `jfit.optim`.

>>> fast = create("sgd", momentum=0.9, learning_rate=0.5)
>>> fast, fast.hyper_key()[0]
(SGD(momentum=0.9, wd=0.0, clip_gradient=None), 'sgd')
"""

from __future__ import annotations

from typing import Any

from jfit.facade.optimizer.base import Optimizer

register = Optimizer.register
create = Optimizer.create_optimizer


class _Ruled(Optimizer):
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in (*self.parameters, "wd", "clip_gradient"))
        return f"{type(self).__name__}({shown})"


@register
class SGD(_Ruled):
    """m <- momentum * m - lr * (c(g) + wd * w);  w <- w + m.

    Args:
        momentum: 0 keeps no state.
        lazy_update: accepted; gradients are dense.
        **kwargs: of `Optimizer`.

    Example:
        >>> SGD(learning_rate=0.5).learning_rate
        0.5

    Source: Apache MXNet 1.9.1, `SGD`.
    """

    rule = "sgd"
    parameters = ("momentum",)
    lone_state = True
    aggregate_num = 4

    def __init__(self, momentum: float = 0.0, lazy_update: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.lazy_update = lazy_update


@register
class ccSGD(SGD):
    """SGD under its oldest name.

    Example:
        >>> create("ccsgd", momentum=0.5).momentum
        0.5
    """


@register
class NAG(_Ruled):
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

    def __init__(self, momentum: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum


@register
class Adam(_Ruled):
    """G = c(g + wd * w);  w <- w - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * mean / (sqrt(var) + epsilon).

    `learning_rate` has a value always, so a scheduler's `base_lr` is replaced by it, as in MXNet: give the rate to both.

    Args:
        learning_rate: rate.
        beta1, beta2: decay of the means of G and of G^2.
        epsilon: outside the root.
        lazy_update: accepted; gradients are dense.
        **kwargs: of `Optimizer`.

    Example:
        >>> Adam().learning_rate
        0.001

    Source: Apache MXNet 1.9.1, `Adam`.
    """

    rule = "adam"
    parameters = ("beta1", "beta2", "epsilon")

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


@register
class AdamW(_Ruled):
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


@register
class RMSProp(_Ruled):
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
