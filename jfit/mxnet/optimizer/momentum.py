"""SGD and its variants: SGD, NAG, Signum and DCASGD with optional momentum, SGLD with noise; and Test, of MXNet's own tests."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jfit.mxnet.keys import next_key
from jfit.mxnet.optimizer.base import Optimizer, group_size


@Optimizer.register
class SGD(Optimizer, momentum=0.0, lazy_update=True):
    """SGD with momentum: m <- momentum * m - lr * (c(g) + wd * w);  w <- w + m; c rescales and clips the gradient.

    Args:
        momentum: momentum; 0 needs no state.
        lazy_update: with a row_sparse gradient, update only the rows it contains.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> SGD(learning_rate=0.5).learning_rate
        0.5

    Source: Apache MXNet 1.9.1, `SGD`.
    """

    rule = "sgd"
    off_switches = ("lazy_update",)
    unwrap_single_slot = True
    master_last = True

    def _set_up(self) -> None:
        self.aggregate_num = group_size(4)


@Optimizer.register
class ccSGD(SGD):
    """Deprecated alias of `SGD`.

    Args:
        momentum, lazy_update, **kwargs: as in `SGD`.

    Example:
        >>> ccSGD(momentum=0.5).momentum
        0.5
    """


@Optimizer.register
class NAG(Optimizer, momentum=0.0):
    """Nesterov momentum: m' = momentum * m;  w' = w - m' + (1 + momentum) * (m' - lr * (c(g) + wd * w)).

    Then m <- m' - lr * (c(g) + wd * w') and w <- w'.  c rescales and clips the gradient.

    Args:
        momentum: momentum; 0 is plain SGD, without state.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> NAG(momentum=0.9).momentum
        0.9

    Source: Apache MXNet 1.9.1, `NAG`; its kernel computes the new momentum with the already updated weight w'.
    """

    rule = "nag"
    unwrap_single_slot = True
    master_last = True


@Optimizer.register
class Signum(Optimizer, learning_rate=0.01, momentum=0.9, wd_lh=0.0):
    """Signum: m <- momentum * m - (1 - momentum) * (wd * w + c(g));  w <- (1 - lr * wd_lh) * w + lr * sign(m).

    c rescales and clips the gradient.  The sign of NaN is 0, so a weight with a NaN gradient is unchanged (except for
    wd_lh).  `learning_rate` always replaces the `base_lr` of a scheduler, as in MXNet, even at its default.

    Args:
        learning_rate: learning rate.
        momentum: momentum; 0 is signSGD, w <- (1 - lr * wd) * w - lr * sign(g), without state.
        wd_lh: decoupled weight decay, applied to the weight and not to the momentum.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Signum().momentum
        0.9

    Source: Bernstein et al. 2018, https://arxiv.org/abs/1802.04434; Apache MXNet 1.9.1, `Signum`.
    """

    rule = "signum"
    unwrap_single_slot = True


@Optimizer.register
class DCASGD(Optimizer, momentum=0.0, lamda=0.04):
    """Delay-compensated SGD: w <- w - lr * (c(g) + wd * w + lamda * c(g)^2 * (w - previous));  previous <- the old w.

    c rescales and clips the gradient.  The state is (momentum or None, previous).  MXNet fails if momentum is not 0; here
    m <- momentum * m - lr * (...) and w <- w + m.

    Args:
        momentum: momentum; 0 needs no momentum state.
        lamda: strength of the correction of a delayed gradient.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> DCASGD().lamda
        0.04

    Source: Zheng et al. 2017, https://arxiv.org/abs/1609.08326; Apache MXNet 1.9.1, `DCASGD`.
    """

    rule = "dcasgd"

    def nested(self, slots: tuple[Any, ...]) -> Any:
        """Return MXNet's state, (momentum or None, previous weight), from the slots."""
        return slots if len(slots) == 2 else (None, *slots)


@Optimizer.register
class Test(Optimizer):
    """Add the gradient: w <- w + rescale_grad * g; the state is a copy of the weight.  MXNet uses it in its own tests.

    Unlike MXNet's class, this one increments update counts.

    Args:
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Test().rule
        'test'

    Source: Apache MXNet 1.9.1, `Test`.
    """

    __test__ = False  # keeps pytest from collecting a class named Test
    rule = "test"
    unwrap_single_slot = True


@Optimizer.register
class SGLD(Optimizer):
    """Stochastic gradient Langevin dynamics: w <- w - lr / 2 * (c(g) + wd * w) + sqrt(lr) * noise, noise ~ N(0, 1).

    c rescales and clips the gradient.  The PRNG key is the next key of `mx.random` at the first update, so call
    `mx.random.seed` before it for reproducible runs.  The noise depends on the key, the update count and the parameter only,
    not on the number of devices.

    Args:
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> SGLD(learning_rate=0.1).rule
        'sgld'

    Source: Welling and Teh 2011, https://icml.cc/2011/papers/398_icmlpaper.pdf; Apache MXNet 1.9.1, `SGLD`.
    """

    rule = "sgld"

    def first_shared(self) -> Mapping[str, Any]:
        """Return the PRNG key, as uint32 key data."""
        return {"key": jax.random.key_data(next_key())}

    def shared_for(self, indices: Sequence[Any]) -> Mapping[str, Any]:
        """Return the PRNG key folded with the indices, because the rule only has the position of a parameter in the list.

        For lists of one element these positions are all equal.
        """
        key = jax.random.wrap_key_data(self.shared.values()["key"])
        return {"key": jax.random.key_data(jax.random.fold_in(key, zlib.crc32(repr(list(indices)).encode())))}

    def keep_shared(self, scalars: Mapping[str, Any]) -> None:
        """Ignore the key that an update returns, because the key never changes."""
