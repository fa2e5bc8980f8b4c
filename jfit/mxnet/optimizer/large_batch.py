"""Optimizers for large batches, with layer-wise learning rates or gradient accumulation: LAMB, LARS, LBSGD."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.base import Hyper, Optimizer, group_size

_NOT_ADAPTED = ("gamma", "beta", "bias")


@Optimizer.register
class LAMB(
    Optimizer,
    learning_rate=0.001,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-6,
    lower_bound=None,
    upper_bound=None,
    bias_correction=True,
):
    """LAMB: w <- w - lr * (r / |u|) * u, u = mean' / (sqrt(var') + epsilon) + wd * w, r = clip(|w|, lower, upper).

    mean' and var' are the bias-corrected moving averages of c(g) and c(g)^2, where c rescales and clips the gradient.

    Args:
        learning_rate: learning rate.
        beta1, beta2: decay rates of the moving averages of c(g) and c(g)^2.
        epsilon: added to the square root.
        lower_bound, upper_bound: bounds of r; None or 0 disables a bound.
        bias_correction: divide the moving averages by 1 - beta^t.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> LAMB().epsilon
        1e-06

    Source: You et al. 2020, https://arxiv.org/abs/1904.00962; Apache MXNet 1.9.1, `LAMB`.
    """

    rule = "lamb"
    counts_one_by_one = True
    saved_needs: ClassVar = {**Optimizer.saved_needs, "lower_bound": saved.LIMIT, "upper_bound": saved.LIMIT}

    def _set_up(self) -> None:
        self.aggregate_num = max(1, min(45, group_size(45)))


@Optimizer.register
class LARS(Optimizer, momentum=0.0, lazy_update=True, eta=0.001, eps=0, momentum_correction=True):
    """LARS: m <- momentum * k * m - lr * r * (c(g) + wd * w);  w <- w + m, with r = eta * |w| / (|g| + wd * |w| + eps).

    c rescales and clips the gradient.  r is 1 for names that end in gamma, beta or bias; only names that end in `_weight`
    decay.  k = (learning rate) / (learning rate of the last update) is the momentum correction; as in MXNet it applies only
    to the parameters of the first call after a change of the learning rate: four parameters, or one if a key-value store
    updates.

    Args:
        momentum: momentum; 0 needs no state.
        lazy_update: accepted for compatibility and ignored; gradients are dense.
        eta: trust coefficient, the step size relative to the weight norm.
        eps: added to the denominator of r.
        momentum_correction: False sets k to 1.
        **kwargs: arguments of `Optimizer`.

    Attributes:
        cur_lr, last_lr: learning rates of the last update and of the one before it; None before the first update.

    Example:
        >>> LARS(param_idx2name={0: "bn_gamma"}).wd_mult
        {'bn_gamma': 0.0}

    Source: You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888; Apache MXNet 1.9.1, `LARS`.
    """

    rule = "lars"
    parameters = ("momentum", "eta", "eps", "momentum_correction")
    unwrap_single_slot = True
    master_last = True
    decayed_endings = ("_weight",)
    separate_lr_mult = True

    def _set_up(self) -> None:
        self.aggregate_num = group_size(4)

    @property
    def cur_lr(self) -> float | None:
        """Learning rate of the last update; None before the first update, and without momentum."""
        return self._rate_of("rate")

    @property
    def last_lr(self) -> float | None:
        """Learning rate of the update before the last one; None as for `cur_lr`."""
        return self._rate_of("last")

    def _rate_of(self, name: str) -> float | None:
        if name not in self.shared.values():
            return None
        # 0 means that there was no such update yet; `last` is then the rate of the only update, as in MXNet
        return self.shared.value(name) or self.shared.value("rate") or None

    def shared_of_mxnet(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the shared scalars from the attributes cur_lr and last_lr of an MXNet optimizer."""
        rate, last = attributes.get("cur_lr"), attributes.get("last_lr")
        return {} if rate is None else {"rate": rate, "last": rate if last is None else last}

    def hyper_for_indices(self, indices: Sequence[Any], one_by_one: bool) -> Hyper:
        """Return the hyperparameters adapt (which parameters have a layer-wise rate r) and group.

        group: how many parameters get the momentum correction.
        """
        named = [str(self.idx2name.get(i, i)) for i in indices]
        return (("adapt", tuple(not name.endswith(_NOT_ADAPTED) for name in named)), *self._group(one_by_one))

    def hyper_for_names(self, names: Sequence[str], one_by_one: bool, fixed: Sequence[str] = ()) -> Hyper:
        """Return the hyperparameters order (names in update order), fixed (names without an update) and group.

        group: how many parameters get the momentum correction.
        """
        return (("order", tuple(names)), ("fixed", tuple(fixed)), *self._group(one_by_one))

    def _group(self, one_by_one: bool) -> Hyper:
        return (("group", 1 if one_by_one else max(self.aggregate_num, 1)),)


@Optimizer.register
class LBSGD(
    Optimizer,
    momentum=0.0,
    multi_precision=False,
    warmup_strategy="linear",
    warmup_epochs=5,
    batch_scale=1,
    updates_per_epoch=32,
    begin_epoch=0,
    num_epochs=60,
):
    """SGD on the mean of batch_scale gradients: m <- momentum * m - lr * f * (c(mean of g) + wd * w);  w <- w + m.

    Weights change every batch_scale updates only.  f increases from 1 to batch_scale during the warm-up; strategy "lars" uses
    f = sqrt(|w|^2 / (|g|^2 + wd * |w|^2)) instead, clipped to [0.01, 100], with g before rescale_grad.  As in MXNet the first
    parameter gets the scheduler's rate of the previous update.

    Args:
        momentum: momentum; 0 needs no momentum state.
        multi_precision: as in `Optimizer`.
        warmup_strategy: "linear", "power2", "sqrt" or "lars".
        warmup_epochs, updates_per_epoch: the warm-up takes warmup_epochs * updates_per_epoch updates.
        batch_scale: number of gradients that are averaged.
        begin_epoch: number of epochs already trained, for the warm-up.
        num_epochs: accepted and ignored, as in MXNet.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> LBSGD(batch_scale=2, begin_epoch=3).init_updates
        96

    Source: Goyal et al. 2017 (warm-up), https://arxiv.org/abs/1706.02677; Apache MXNet 1.9.1, `LBSGD`.
    """

    rule = "lbsgd"
    parameters = ("momentum", "warmup_strategy", "warmup_epochs", "batch_scale", "updates_per_epoch", "begin_epoch")
    unwrap_single_slot = True
    hidden_slots = ("sum",)
    rate_before_count = True
    saved_needs: ClassVar = {
        **Optimizer.saved_needs,
        "batch_scale": saved.Need("a whole number of at least 1", lambda n: saved.is_number(n) and n >= 1 and n == int(n)),
        **dict.fromkeys(("warmup_epochs", "updates_per_epoch", "begin_epoch"), saved.FROM_0),
    }

    batch_scale: int
    begin_epoch: int
    updates_per_epoch: int
    warmup_epochs: int
    warmup_strategy: str

    def _set_up(self) -> None:
        values = (self.batch_scale, self.warmup_strategy, self.warmup_epochs)
        logging.info("LBSGD: batch_scale %g, %s warm-up of %d epochs", *values)

    @property
    def init_updates(self) -> int:
        """Number of updates done before begin_epoch, from which the warm-up continues."""
        return self.begin_epoch * self.updates_per_epoch

    def hyper_key(self, extra: Hyper = ()) -> tuple[str, Hyper]:
        """Return (rule name, hyperparameters), the cache key of a compiled update.

        Strategy "lars" includes rescale_grad, because it uses the norm of the raw gradient.
        """
        scaled = (("grad_scale", float(self.rescale_grad)),) if self.warmup_strategy == "lars" else ()
        return super().hyper_key((*scaled, *extra))

    def hyper_for_names(self, names: Sequence[str], one_by_one: bool, fixed: Sequence[str] = ()) -> Hyper:
        """Return the hyperparameter `one_buffer` of `jfit.optim.lbsgd`.

        It is needed because MXNet's first accumulated gradient is the same memory as the Module's gradient buffer.
        """
        return (("one_buffer", True),)
