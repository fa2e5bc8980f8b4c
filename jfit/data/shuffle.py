"""The order of the rows in an epoch, as a function of (seed, epoch) that is the same on all machines."""

from __future__ import annotations

import numpy as np

_MASK64 = (1 << 64) - 1


def _generator(seed: int, epoch: int) -> np.random.Philox:
    # Raw draws are the same in all NumPy versions, Generator.permutation is not: a resumed run needs the same order.
    return np.random.Philox(key=np.array([seed & _MASK64, epoch & _MASK64], np.uint64))


def _permuted(generator: np.random.Philox, count: int) -> np.ndarray:
    draws = generator.random_raw(count)
    # The row index in the low bits makes all keys distinct: any sort gives the same order, and is twice as fast as argsort.
    low = np.uint64((1 << (count - 1).bit_length()) - 1)
    keys = np.sort((draws & ~low) | np.arange(count, dtype=np.uint64))
    return (keys & low).astype(np.int32)


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """Permutation of row indices that is a function of (seed, epoch).

    Args:
        count: number of rows, at least 1.
        seed: integer seed.
        epoch: index of the epoch.

    Returns:
        (count,) int32.

    Example:
        >>> sorted(permutation(4, seed=7, epoch=3).tolist())
        [0, 1, 2, 3]

    Source: Philox4x64-10 (Salmon et al., 2011) keyed by (seed, epoch); rows are sorted by their draw.
    """
    return _permuted(_generator(seed, epoch), count)


def block_permutation(count: int, seed: int, epoch: int, block: int, buffer: int) -> np.ndarray:
    """Permutation for data on a disk: blocks of consecutive rows are permuted, then the rows within each buffer of rows.

    Reading a buffer reads whole blocks.  A row can reach any position: its block is anywhere, and the rows of a buffer are
    mixed.

    Args:
        count: number of rows, at least 1.
        seed: integer seed.
        epoch: index of the epoch.
        block: number of consecutive rows that stay in the same buffer.
        buffer: number of rows of a buffer, a multiple of `block`: rows 0 to buffer - 1 of the result are one buffer, and so on.

    Returns:
        (count,) int32.

    Example:
        >>> order = block_permutation(12, seed=7, epoch=0, block=2, buffer=4)
        >>> sorted(order.tolist()) == list(range(12)), [sorted(order[i : i + 4].tolist()) for i in (0, 4)]
        (True, [[2, 3, 8, 9], [4, 5, 6, 7]])
    """
    generator = _generator(seed, epoch)
    blocks = _permuted(generator, -(-count // block))
    order = (blocks[:, None] * block + np.arange(block, dtype=np.int32)).reshape(-1)  # int32: row indices fit
    order = order[order < count]  # the last block may be shorter
    for low in range(0, count, buffer):
        part = order[low : low + buffer]
        order[low : low + buffer] = part[_permuted(generator, len(part))]
    return order
