"""`Every`: an interval in steps or in epochs, for evaluations, checkpoints, recorded steps and patience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jfit.checks import positive_integer


@dataclass(frozen=True)
class Every:
    """An interval in steps (updates) or in epochs; `jfit.every` makes it.

    Attributes:
        steps: number of steps, or None.
        epochs: number of epochs, or None.

    Raises:
        ValueError: unless exactly one of the two is given, as an integer of at least 1.

    Example:
        >>> Every(steps=500).count, Every(epochs=2).steps
        (500, None)
    """

    steps: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        passed = {name: value for name, value in vars(self).items() if value is not None}
        if len(passed) != 1:
            raise ValueError(f"every: {' and '.join(passed) or 'nothing'} passed; expected either steps= or epochs=")
        positive_integer(**{f"every: {name}": value for name, value in passed.items()})

    def __str__(self) -> str:
        return f"every(steps={self.steps})" if self.epochs is None else f"every(epochs={self.epochs})"

    @property
    def count(self) -> int:
        """The number of steps or epochs."""
        return int(self.steps or self.epochs or 0)

    def position(self, epoch: int, step: int) -> int:
        """Return the progress in the unit of the interval: `step` (steps done), or `epoch + 1` (`epoch` counts from 0)."""
        return step if self.epochs is None else epoch + 1

    def in_steps(self, name: str, num_batches: int | None) -> int:
        """Return the interval in steps.

        Args:
            name: the argument, for the error message.
            num_batches: number of batches per epoch; None if it is not known.

        Raises:
            ValueError: the interval is in epochs, and `num_batches` is None.
        """
        if self.steps is not None:
            return self.steps
        if num_batches is None:
            raise ValueError(f"{name} is {self}, but the number of batches per epoch is not known; pass every(steps=...)")
        return self.count * num_batches


EPOCH = Every(epochs=1)


def every(*, steps: int | None = None, epochs: int | None = None) -> Every:
    """Return an interval, for `eval_every`, `checkpoint_every` and `log_every` of `jfit.fit`, and `patience` of callbacks.

    Args:
        steps: number of steps (updates).
        epochs: number of epochs.

    Returns:
        Every: the interval.

    Raises:
        ValueError: if not exactly one of `steps` and `epochs` is passed, or if it is not an integer of at least 1.

    Example:
        >>> every(steps=500), str(every(epochs=2))
        (Every(steps=500, epochs=None), 'every(epochs=2)')
    """
    return Every(steps, epochs)


def interval(name: str, value: Any, unit: str) -> Every:
    """Convert an argument to an `Every`: "epoch" means every epoch, an integer counts `unit`: "steps" or "epochs".

    Raises:
        ValueError: `value` is none of these; the message has the `name` of the argument.
    """
    if isinstance(value, Every):
        return value
    if isinstance(value, str) and value == "epoch":
        return EPOCH
    try:
        positive_integer(**{name: value})  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise ValueError(f"{error} ({unit}), 'epoch', jfit.every(steps=...) or jfit.every(epochs=...)") from None
    return Every(**{unit: int(value)})
