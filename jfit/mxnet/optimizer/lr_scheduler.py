"""MXNet's learning rate schedulers: stateful callables, update number (from 1) -> learning rate.

They return MXNet 1.9.1's values as Python floats.  Each decay changes `base_lr`, so a later call with a smaller update number
does not return the earlier rate.  The schedules of `jfit.optim` have the same rates and no state.

>>> drop = FactorScheduler(step=5, factor=0.5, base_lr=0.1)
>>> drop(5), drop(6), drop(5)
(0.1, 0.05, 0.05)
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from jfit import checks


class LRScheduler:
    """Base class of the schedulers, with base learning rate and warm-up; subclasses define `__call__(num_update)`.

    Warm-up, while num_update < warmup_steps: begin + (base - begin) * num_update / warmup_steps ("linear"), or begin
    ("constant").

    Args:
        base_lr: base learning rate.
        warmup_steps: updates with a number below this are warm-up.
        warmup_begin_lr: learning rate at update 0.
        warmup_mode: "linear" or "constant".

    Raises:
        AssertionError: warmup_steps is not an int.
        ValueError: base_lr is below warmup_begin_lr, warmup_steps is negative, or the mode is unknown.

    Example:
        >>> class Inverse(LRScheduler):
        ...     def __call__(self, num_update):
        ...         return self.base_lr / num_update
        >>> Inverse(base_lr=1.0)(4)
        0.25

    Source: Apache MXNet 1.9.1, `mxnet.lr_scheduler`.
    """

    def __init__(
        self, base_lr: float = 0.01, warmup_steps: int = 0, warmup_begin_lr: float = 0, warmup_mode: str = "linear"
    ) -> None:
        _whole(self, "warmup_steps", warmup_steps, 0)
        _require(self, base_lr >= warmup_begin_lr, f"a base_lr ({base_lr}) of at least warmup_begin_lr ({warmup_begin_lr})")
        checks.one_of(("linear", "constant"), warmup_mode=warmup_mode)
        self.base_lr = base_lr
        self.warmup_steps = warmup_steps
        self.warmup_begin_lr = warmup_begin_lr
        # not changed when an optimizer's learning_rate replaces base_lr, as in MXNet
        self.warmup_final_lr = base_lr
        self.warmup_mode = warmup_mode

    def get_warmup_lr(self, num_update: int) -> float:
        """Return the learning rate of an update during the warm-up."""
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        increase = (self.warmup_final_lr - self.warmup_begin_lr) * float(num_update) / float(self.warmup_steps)
        return self.warmup_begin_lr + increase

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of update `num_update`; the first update has number 1."""
        raise NotImplementedError(f"{type(self).__name__} has no learning rate; define __call__(self, num_update) in it.")


class FactorScheduler(LRScheduler):
    """Decay every `step` updates: rate = max(base_lr * factor^floor((num_update - 1) / step), stop_factor_lr).

    Args:
        step: number of updates between decays.
        factor: factor of each decay, at most 1.
        stop_factor_lr: lower bound of the learning rate.
        base_lr, warmup_steps, warmup_begin_lr, warmup_mode: as in `LRScheduler`.

    Raises:
        ValueError: step below 1 or factor above 1.

    Example:
        >>> FactorScheduler(step=3, factor=0.5, base_lr=1.0)(7)
        0.25

    Source: Apache MXNet 1.9.1, `FactorScheduler`.
    """

    def __init__(self, step: int, factor: float = 1, stop_factor_lr: float = 1e-8, *base: Any, **others: Any) -> None:
        super().__init__(*base, **others)
        _require(self, step >= 1, f"a step ({step}) of at least 1 update between decays")
        _require(self, factor <= 1, f"a factor ({factor}) of at most 1, so that the rate never increases")
        self.step = step
        self.factor = factor
        self.stop_factor_lr = stop_factor_lr
        self.count = 0

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of update `num_update`; advances `base_lr` and `count`."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        while self.count + self.step < num_update:
            self.count += self.step
            decayed = self.base_lr * self.factor
            self.base_lr = max(decayed, self.stop_factor_lr)
            if decayed < self.stop_factor_lr:
                change = "now learning rate arrived at %0.5e, will not change in the future"
            else:
                change = "Change learning rate to %0.5e"
            logging.info(f"Update[%d]: {change}", num_update, self.base_lr)
        return self.base_lr


class MultiFactorScheduler(LRScheduler):
    """Decay after given updates: rate = base_lr * factor^(number of entries of `step` below num_update).

    Args:
        step: list of update numbers after which the rate decays, strictly increasing, at least 1.
        factor: factor of each decay, at most 1.
        base_lr, warmup_steps, warmup_begin_lr, warmup_mode: as in `LRScheduler`.

    Raises:
        ValueError: no steps, steps below 1 or not increasing, factor above 1.

    Example:
        >>> decay = MultiFactorScheduler([4, 9], factor=0.5, base_lr=1.0)
        >>> decay(4), decay(5), decay(10)
        (1.0, 0.5, 0.25)

    Source: Apache MXNet 1.9.1, `MultiFactorScheduler`.
    """

    def __init__(self, step: Sequence[int], factor: float = 1, *base: Any, **others: Any) -> None:
        super().__init__(*base, **others)
        increases = len(step) > 0 and all(earlier < later for earlier, later in itertools.pairwise([0, *step]))
        _require(self, increases, f"an increasing list of update numbers from 1 as step, found {step}")
        _require(self, factor <= 1, f"a factor ({factor}) of at most 1, so that the rate never increases")
        self.step = list(step)
        self.cur_step_ind = 0
        self.factor = factor
        self.count = 0

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of update `num_update`; advances `base_lr` and `cur_step_ind`."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        while self.cur_step_ind < len(self.step) and self.step[self.cur_step_ind] < num_update:
            self.count = self.step[self.cur_step_ind]
            self.cur_step_ind += 1
            self.base_lr *= self.factor
            logging.info("Update[%d]: Change learning rate to %0.5e", num_update, self.base_lr)
        return self.base_lr


class _ToTheEnd(LRScheduler):
    """Base of schedulers that decay from the constructor's `base_lr` to `final_lr` at `max_update`, then stay constant."""

    _left: Callable[[float], float]  # fraction of the decay that is done -> fraction of the learning rate that is left

    def __init__(self, max_update: int, base_lr: float = 0.01, final_lr: float = 0, *warmup: Any, **others: Any) -> None:
        super().__init__(base_lr, *warmup, **others)
        _whole(self, "max_update", max_update, 1)
        # an optimizer's learning_rate replaces base_lr but not base_lr_orig, so it has no effect, as in MXNet
        self.base_lr_orig = base_lr
        self.max_update = max_update
        self.final_lr = final_lr
        self.max_steps = max_update - self.warmup_steps

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of update `num_update`; after `max_update` the last returned rate."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        if num_update <= self.max_update:
            left = self._left(float(num_update - self.warmup_steps) / float(self.max_steps))
            self.base_lr = self.final_lr + (self.base_lr_orig - self.final_lr) * left
        return self.base_lr


class PolyScheduler(_ToTheEnd):
    """Polynomial decay: rate = final_lr + (base_lr - final_lr) * (1 - (num_update - warm) / (max_update - warm))^pwr.

    warm is warmup_steps.  The rate is constant after max_update.  An optimizer's `learning_rate` does not replace this
    `base_lr`.

    Args:
        max_update: number of the update that reaches `final_lr`.
        base_lr: learning rate before the decay.
        pwr: exponent of the polynomial.
        final_lr: learning rate from `max_update` on.
        warmup_steps, warmup_begin_lr, warmup_mode: as in `LRScheduler`.

    Raises:
        AssertionError: max_update is not an int.
        ValueError: max_update below 1.

    Example:
        >>> PolyScheduler(max_update=20, base_lr=0.4)(10)
        0.1

    Source: Apache MXNet 1.9.1, `PolyScheduler`.
    """

    def __init__(
        self, max_update: int, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0, *warmup: Any, **others: Any
    ) -> None:
        super().__init__(max_update, base_lr, final_lr, *warmup, **others)
        self.power = pwr

    def _left(self, done: float) -> float:
        return pow(1 - done, self.power)


class CosineScheduler(_ToTheEnd):
    """Cosine decay: rate = final_lr + (base_lr - final_lr) * (1 + cos(pi * (num_update - warm) / (max_update - warm))) / 2.

    warm is warmup_steps.  The rate is constant after max_update.  An optimizer's `learning_rate` does not replace this
    `base_lr`.

    Args:
        max_update: number of the update that reaches `final_lr`.
        base_lr: learning rate before the decay.
        final_lr: learning rate from `max_update` on.
        warmup_steps, warmup_begin_lr, warmup_mode: as in `LRScheduler`.

    Raises:
        AssertionError: max_update is not an int.
        ValueError: max_update below 1.

    Example:
        >>> CosineScheduler(max_update=20, base_lr=0.4)(10)
        0.2

    Source: Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983; Apache MXNet 1.9.1, `CosineScheduler`.
    """

    def _left(self, done: float) -> float:
        return (1 + math.cos(math.pi * done)) / 2


def _whole(scheduler: LRScheduler, name: str, value: Any, least: int) -> None:
    assert isinstance(value, int), f"{type(scheduler).__name__}: {name} is {value!r}, expected an int."
    _require(scheduler, value >= least, f"{name} ({value}) of at least {least}")


def _require(scheduler: LRScheduler, holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"{type(scheduler).__name__}: expected {expected}.")
