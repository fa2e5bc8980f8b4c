"""Samplers: iterables of the numbers of the samples that a `DataLoader` reads, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jfit import checks


class Sampler:
    """Base class; a subclass implements `__iter__`, over the numbers of samples, and `__len__`, how many there are.

    Example:
        >>> class Backwards(Sampler):
        ...     def __iter__(self):
        ...         return iter([2, 1, 0])
        ...     def __len__(self):
        ...         return 3
        >>> list(Backwards())
        [2, 1, 0]
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class _Listed(Sampler):
    """A sampler over a sequence that is known when it is made."""

    _order: Sequence[int]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


class SequentialSampler(_Listed):
    """Samples start, start + 1, ..., start + length - 1.

    Args:
        length: number of samples.
        start: the first of them.

    Example:
        >>> list(SequentialSampler(3, start=2))
        [2, 3, 4]
    """

    def __init__(self, length: int, start: int = 0) -> None:
        self._order = range(start, start + length)


class RandomSampler(SequentialSampler):
    """Samples 0, ..., length - 1 in a random order, drawn anew from `numpy.random` for each iteration.

    Args:
        length: number of samples.

    Example:
        >>> sorted(map(int, RandomSampler(3)))
        [0, 1, 2]
    """

    def __init__(self, length: int) -> None:
        super().__init__(length)

    def __iter__(self) -> Iterator[Any]:
        return iter(np.random.permutation(len(self)))


class FilterSampler(_Listed):
    """Samples of a data set for which a function returns True; the function is called for all samples at once.

    Args:
        fn: function of a sample, returns a bool.
        dataset: the data set.

    Example:
        >>> list(FilterSampler(lambda x: x > 5, [3, 6, 9]))
        [1, 2]
    """

    def __init__(self, fn: Callable[[Any], Any], dataset: Any) -> None:
        self._order = [i for i, sample in enumerate(dataset) if fn(sample)]


class IntervalSampler(_Listed):
    """Every `interval`-th of the samples 0, ..., length - 1; with `rollover` then those that were skipped.

    Args:
        length: number of samples of the data set.
        interval: distance between two samples, at most `length`.
        rollover: start again from the first sample that was skipped until all are visited; otherwise stop at the end.

    Raises:
        AssertionError: `interval` is larger than `length`.

    Example:
        >>> list(IntervalSampler(5, 2)), list(IntervalSampler(5, 2, rollover=False))
        ([0, 2, 4, 1, 3], [0, 2, 4])
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        assert interval <= length, f"interval is {interval}, expected at most the number of samples, {length}."
        self._length = length
        self._order = [k for first in range(interval if rollover else 1) for k in range(first, length, interval)]

    def __len__(self) -> int:
        return self._length  # also without rollover, as in MXNet


class BatchSampler(Sampler):
    """Batches of the samples of another sampler, as lists.

    Args:
        sampler: the other sampler.
        batch_size: number of samples per batch.
        last_batch: what to do with a last batch that is not full: "keep" it, "discard" it, or "rollover" its samples to the
            next iteration.

    Raises:
        ValueError: `last_batch` is something else.

    Example:
        >>> list(BatchSampler(SequentialSampler(5), 2, "keep")), list(BatchSampler(SequentialSampler(5), 2, "discard"))
        ([[0, 1], [2, 3], [4]], [[0, 1], [2, 3]])
    """

    def __init__(self, sampler: Any, batch_size: int, last_batch: str = "keep") -> None:
        checks.one_of(("keep", "discard", "rollover"), last_batch=last_batch)
        self._sampler, self._batch_size, self._last_batch = sampler, batch_size, last_batch
        self._rest: list[Any] = []  # samples that were rolled over

    def __iter__(self) -> Iterator[list[Any]]:
        batch, self._rest = self._rest, []
        for k in self._sampler:
            batch.append(k)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if self._last_batch == "rollover":
            self._rest = batch
        elif batch and self._last_batch == "keep":
            yield batch

    def __len__(self) -> int:
        extra = {"keep": self._batch_size - 1, "discard": 0, "rollover": len(self._rest)}[self._last_batch]
        return (len(self._sampler) + extra) // self._batch_size
