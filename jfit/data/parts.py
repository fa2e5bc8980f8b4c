"""Parts of data for the processes of a job: each reads its own rows."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np


def job_part(rank: int | None = None, count: int | None = None) -> tuple[int, int]:
    """Return (rank of this process, number of processes) of the job, or what is passed instead; (0, 1) without a job.

    Raises:
        ValueError: the rank is not below the number.

    Example:
        >>> job_part(), job_part(1, 4)
        ((0, 1), (1, 4))
    """
    if rank is None and count is None:
        return (jax.process_index(), jax.process_count()) if jax.distributed.is_initialized() else (0, 1)
    return check_part(rank, count)


def check_part(part_index: Any, num_parts: Any) -> tuple[int, int]:
    """Return both; raise a ValueError unless 0 <= part_index < num_parts."""
    if not 0 <= part_index < num_parts:
        raise ValueError(f"part_index is {part_index}, num_parts is {num_parts}; expected 0 <= part_index < num_parts.")
    return part_index, num_parts


def own_size(batch_size: int) -> int:
    """Return how many of `batch_size` rows this process of a job reads; all together read as many.

    Raises:
        ValueError: there are more processes than rows.

    Example:
        >>> own_size(32)
        32
    """
    rank, count = job_part()
    if batch_size < count:
        raise ValueError(f"batch_size is {batch_size}, but the job has {count} processes; expected at least {count}.")
    return batch_size * (rank + 1) // count - batch_size * rank // count


def own_indices(indices: np.ndarray, batch_size: int) -> np.ndarray:
    """Return the row indices that this process of a job reads, of those of a batch.

    Args:
        indices: row indices of the whole batch, at most `batch_size`.
        batch_size: number of rows of a full batch, by which the parts are determined.

    Example:
        >>> own_indices(np.arange(3), 4)
        array([0, 1, 2])
    """
    rank, count = job_part()
    return indices[batch_size * rank // count : batch_size * (rank + 1) // count]


def shard(data: Any, rank: int | None = None, count: int | None = None) -> Any:
    """Take every `count`-th element of data, from element `rank`: the part that one process of a job reads.

    The parts of all ranks are disjoint, and together they are the data.  `jfit.fit` divides arrays, and data sets with random
    access to their rows, over the processes itself: pass these whole.  This function is for other iterables, whose rows or
    batches `jfit.fit` takes as those of its own process.

    Args:
        data: an array, or a tuple, list or dict of arrays, of which rows are taken; an iterable of rows or batches; or a
            function `f(epoch)` or `f()` that returns one.
        rank: number of the part.  Default: that of this process in the job.
        count: number of parts.  Default: the number of processes of the job.

    Returns:
        Arrays of the same structure, an iterable, or a function, like `data`; `data` itself if there is one part.

    Raises:
        ValueError: one of `rank` and `count` is missing, or `rank` is not below `count`.
        TypeError: the data is an MXNet iterator, which divides its rows itself: pass `part_index=` and `num_parts=` to it.

    Example:
        >>> from jfit.data import shard
        >>> list(shard(range(7), rank=1, count=3)), shard(np.arange(7), 0, 3).tolist()
        ([1, 4], [0, 3, 6])
    """
    rank, count = job_part(rank, count)
    if hasattr(data, "provide_data"):
        raise TypeError(f"a {type(data).__name__} divides its rows itself; pass it part_index={rank}, num_parts={count}.")
    if count == 1:
        return data
    return _part(data, rank, count)


def _part(data: Any, rank: int, count: int) -> Any:
    if isinstance(data, (np.ndarray, jax.Array)):
        return data[rank::count]
    if isinstance(data, Mapping):
        return {name: _part(value, rank, count) for name, value in data.items()}
    if isinstance(data, tuple) and data and all(hasattr(x, "shape") or isinstance(x, (tuple, list, Mapping)) for x in data):
        return tuple(_part(x, rank, count) for x in data)
    if isinstance(data, list) and data and all(hasattr(x, "shape") for x in data):
        return [_part(x, rank, count) for x in data]
    if callable(data) and not hasattr(data, "__iter__"):
        return _part_of_function(data, rank, count)
    return Every(data, rank, count)


class Every:
    """Every `count`-th element of an iterable, from element `rank`.

    Args:
        source: the iterable.
        rank: number of the first element.
        count: distance of two elements.

    Example:
        >>> list(Every("abcde", 1, 2))
        ['b', 'd']
    """

    def __init__(self, source: Any, rank: int, count: int) -> None:
        self.source, self.rank, self.count = source, rank, count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.source, self.rank, None, self.count)

    def __len__(self) -> int:
        return len(range(self.rank, len(self.source), self.count))


def _part_of_function(function: Callable[..., Any], rank: int, count: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def part(*args: Any) -> Any:
        return Every(function(*args), rank, count)

    part.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # whether it takes the number of the epoch
    return part
