"""Gradient descent and its momenta: SGD, NAG, Signum, DCASGD; Test; and SGLD, which samples from a posterior by noise."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jfit.mxnet.keys import next_key
from jfit.mxnet.optimizer.base import Optimizer, group_size


@Optimizer.register
class SGD(Optimizer):
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
class NAG(Optimizer):
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
class Signum(Optimizer):
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
class DCASGD(Optimizer):
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
class Test(Optimizer):
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


@Optimizer.register
class SGLD(Optimizer):
    """w <- w - lr / 2 * (c(g) + wd * w) + sqrt(lr) * noise, noise from the standard normal distribution.

    The key is drawn from the sequence of `mx.random` when the first update comes, so `mx.random.seed` before it makes a run
    repeatable.  The noise follows from key, update count and parameter: it is the same on any number of devices.

    Args:
        **kwargs: of `Optimizer`.

    Example:
        >>> SGLD(learning_rate=0.1).rule
        'sgld'

    Source: Welling and Teh 2011, https://icml.cc/2011/papers/398_icmlpaper.pdf; Apache MXNet 1.9.1, `SGLD`.
    """

    rule = "sgld"

    def first_shared(self) -> Mapping[str, Any]:
        """The key."""
        return {"key": jax.random.key_data(next_key())}

    def shared_for(self, indices: Sequence[Any]) -> Mapping[str, Any]:
        """The key of these parameters: an update of a list knows them by their place in it only."""
        key = jax.random.wrap_key_data(self.shared.given()["key"])
        return {"key": jax.random.key_data(jax.random.fold_in(key, zlib.crc32(repr(list(indices)).encode())))}

    def keep_shared(self, scalars: Mapping[str, Any]) -> None:
        """The key stays."""
