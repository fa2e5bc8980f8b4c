"""Rules for large batches, whose rates follow the size of each layer: LAMB, LARS, LBSGD."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.base import Hyper, Optimizer, group_size

_FIXED = ("gamma", "beta", "bias")


@Optimizer.register
class LAMB(Optimizer):
    """w <- w - lr * (r / |u|) * u, with u = mean' / (sqrt(var') + epsilon) + wd * w and r = |w|, kept within the bounds.

    Args:
        learning_rate: rate.
        beta1, beta2: decay of the means of c(g) and of c(g)^2.
        epsilon: outside the root.
        lower_bound, upper_bound: of r; None or 0 for none.
        bias_correction: divide the moments by 1 - beta^t.
        **kwargs: of `Optimizer`.

    Example:
        >>> LAMB().epsilon
        1e-06

    Source: You et al. 2020, https://arxiv.org/abs/1904.00962; Apache MXNet 1.9.1, `LAMB`.
    """

    rule = "lamb"
    parameters = ("beta1", "beta2", "epsilon", "lower_bound", "upper_bound", "bias_correction")
    counts_apart = True
    saved_needs: ClassVar = {**Optimizer.saved_needs, "lower_bound": saved.LIMIT, "upper_bound": saved.LIMIT}

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        bias_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.lower_bound, self.upper_bound = lower_bound, upper_bound
        self.bias_correction = bias_correction
        self.aggregate_num = max(1, min(45, group_size(45)))


@Optimizer.register
class LARS(Optimizer):
    """m <- momentum * k * m - lr * r * (c(g) + wd * w);  w <- w + m, with r = eta * |w| / (|g| + wd * |w| + eps).

    r is 1 for names that end in gamma, beta or bias; names that do not end in `_weight` do not decay.  k is rate / last rate;
    as in MXNet only the parameters of the first call after a change of rate see it: four of them, or one where a
    key-value store updates.

    Args:
        momentum: 0 keeps no state.
        lazy_update: accepted; gradients are dense.
        eta: how large a step is, as a part of the weight.
        eps: added to the divisor.
        momentum_correction: k as above; False: k is 1.
        **kwargs: of `Optimizer`.

    Attributes:
        cur_lr, last_lr: the rate of the last update, and the one before it; None before the first.

    Example:
        >>> LARS(param_idx2name={0: "bn_gamma"}).wd_mult
        {'bn_gamma': 0.0}

    Source: You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888; Apache MXNet 1.9.1, `LARS`.
    """

    rule = "lars"
    parameters = ("momentum", "eta", "eps", "momentum_correction")
    lone_state = True
    master_last = True
    decayed_endings = ("_weight",)
    rates_apart = True

    def __init__(
        self,
        momentum: float = 0.0,
        lazy_update: bool = True,
        eta: float = 0.001,
        eps: float = 0,
        momentum_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.momentum, self.momentum_correction = momentum, momentum_correction
        self.lazy_update, self.eta, self.eps = lazy_update, eta, eps
        self.aggregate_num = group_size(4)

    @property
    def cur_lr(self) -> float | None:
        """The rate of the last update; None before the first, and where no momentum needs it."""
        return self._rate_of("rate")

    @property
    def last_lr(self) -> float | None:
        """The rate of the update before."""
        return self._rate_of("last")

    def _rate_of(self, name: str) -> float | None:
        if name not in self.shared.given():
            return None
        # 0 stands for none: the first rate is its own predecessor
        return self.shared.value(name) or self.shared.value("rate") or None

    def shared_of_mxnet(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The scalars as an optimizer of MXNet, or a `.states` file, holds them."""
        rate, last = attributes.get("cur_lr"), attributes.get("last_lr")
        return {} if rate is None else {"rate": rate, "last": rate if last is None else last}

    def turns(self, indices: Sequence[Any], apart: bool) -> Hyper:
        """Which parameters have a rate of their own, and how many see a change of rate."""
        named = [str(self.idx2name.get(i, i)) for i in indices]
        return (("adapt", tuple(not name.endswith(_FIXED) for name in named)), *self._group(apart))

    def turns_by_name(self, names: Sequence[str], apart: bool, fixed: Sequence[str] = ()) -> Hyper:
        """The order of the turns, who has one without an update, and how many see a change of rate."""
        return (("order", tuple(names)), ("fixed", tuple(fixed)), *self._group(apart))

    def _group(self, apart: bool) -> Hyper:
        return (("group", 1 if apart else max(self.aggregate_num, 1)),)


@Optimizer.register
class LBSGD(Optimizer):
    """Every batch_scale-th update: m <- momentum * m - lr * f * (c(mean of g since then) + wd * w);  w <- w + m.

    f climbs from 1 to batch_scale during the warm-up; strategy "lars" has f = sqrt(|w|^2 / (|g|^2 + wd * |w|^2)) instead,
    within 0.01 and 100, g as it was before rescale_grad.  Updates in between change nothing.  The first parameter gets the
    scheduler's rate for the update before, as in MXNet.

    Args:
        momentum: 0 keeps none.
        multi_precision: of `Optimizer`.
        warmup_strategy: linear, power2, sqrt or lars.
        warmup_epochs, updates_per_epoch: length of the warm-up.
        batch_scale: how many gradients are averaged.
        begin_epoch: epochs that are behind, for the warm-up.
        num_epochs: unused, as in MXNet.
        **kwargs: of `Optimizer`.

    Example:
        >>> LBSGD(batch_scale=2, begin_epoch=3).init_updates
        96

    Source: Goyal et al. 2017 (warm-up), https://arxiv.org/abs/1706.02677; Apache MXNet 1.9.1, `LBSGD`.
    """

    rule = "lbsgd"
    parameters = ("momentum", "warmup_strategy", "warmup_epochs", "batch_scale", "updates_per_epoch", "begin_epoch")
    lone_state = True
    hidden_slots = ("sum",)
    rate_first = True
    saved_needs: ClassVar = {
        **Optimizer.saved_needs,
        "batch_scale": saved.Need("a whole number from 1 on", lambda n: saved.is_number(n) and n >= 1 and n == int(n)),
        **dict.fromkeys(("warmup_epochs", "updates_per_epoch", "begin_epoch"), saved.FROM_0),
    }

    def __init__(
        self,
        momentum: float = 0.0,
        multi_precision: bool = False,
        warmup_strategy: str = "linear",
        warmup_epochs: int = 5,
        batch_scale: int = 1,
        updates_per_epoch: int = 32,
        begin_epoch: int = 0,
        num_epochs: int = 60,
        **kwargs: Any,
    ) -> None:
        super().__init__(multi_precision=multi_precision, **kwargs)
        logging.info("LBSGD: batch_scale %g, %s warm-up of %d epochs", batch_scale, warmup_strategy, warmup_epochs)
        self.momentum, self.warmup_strategy, self.warmup_epochs = momentum, warmup_strategy, warmup_epochs
        self.batch_scale, self.updates_per_epoch = batch_scale, updates_per_epoch
        self.begin_epoch, self.num_epochs = begin_epoch, num_epochs

    @property
    def init_updates(self) -> int:
        """Updates that are behind when the first one comes, for the warm-up."""
        return self.begin_epoch * self.updates_per_epoch

    def hyper_key(self, turns: Hyper = ()) -> tuple[str, Hyper]:
        """(rule, its parameters): strategy "lars" needs to know what gradients are multiplied by."""
        scaled = (("grad_scale", float(self.rescale_grad)),) if self.warmup_strategy == "lars" else ()
        return super().hyper_key((*scaled, *turns))

    def turns_by_name(self, names: Sequence[str], apart: bool, fixed: Sequence[str] = ()) -> Hyper:
        """A module's gradients share a buffer, which MXNet's first sum is: see `jfit.optim.lbsgd`."""
        return (("one_buffer", True),)
