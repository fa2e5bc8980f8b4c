"""`mx.misc`: learning-rate schedules in the form that MXNet had before `mx.lr_scheduler`."""

from __future__ import annotations

import logging


class LearningRateScheduler:
    """Base class: a function from the number of the iteration to its learning rate.

    Attributes:
        base_lr: the first learning rate, 0.01.

    Example:
        >>> LearningRateScheduler().base_lr
        0.01
    """

    def __init__(self) -> None:
        self.base_lr = 0.01

    def __call__(self, iteration: int) -> float:
        """Return the learning rate of an iteration."""
        raise NotImplementedError("define __call__(self, iteration) in the subclass")


class FactorScheduler(LearningRateScheduler):
    """The learning rate base_lr * factor ** floor(iteration / step).

    Args:
        step: number of iterations with the same rate.
        factor: the factor, less than 1.

    Raises:
        ValueError: `step` is less than 1, or `factor` is not less than 1.

    Example:
        >>> FactorScheduler(10, 0.5)(20)
        0.0025
    """

    def __init__(self, step: int, factor: float = 0.1) -> None:
        super().__init__()
        if step < 1 or factor >= 1.0:
            raise ValueError(f"step={step}, factor={factor}: step must be at least 1, and factor less than 1")
        self.step, self.factor = step, factor
        self.old_lr = self.base_lr

    def __call__(self, iteration: int) -> float:
        """Return the learning rate of an iteration, and log a change."""
        rate = self.base_lr * self.factor ** (iteration // self.step)
        if rate != self.old_lr:
            self.old_lr = rate
            logging.info("At Iteration [%d]: Swith to new learning rate %.5f", iteration, rate)
        return rate
