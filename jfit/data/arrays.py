"""`ArrayData`: training data from arrays in memory, shuffled by (seed, epoch) and split into batches.

The position in an epoch is the index of the next batch.  Seed, epoch and position are enough to resume a run exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jfit.data.batch import Batch, check_weights

_MASK64 = (1 << 64) - 1
# JAX without x64 converts 64-bit arrays to 32 bits silently; `to_array` checks that the values fit.
_NARROW = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}


def to_array(value: Any, name: str) -> np.ndarray:
    """Convert an array-like to a NumPy array with a dtype of at most 32 bits.

    Args:
        value: NumPy or JAX array, torch tensor, pandas DataFrame or Series, (nested) list of numbers, or sparse matrix (which
            becomes dense).
        name: name of the input, for messages.

    Returns:
        NumPy array; float64 is converted to float32, int64 to int32, uint64 to uint32; other dtypes are kept.

    Raises:
        ValueError: values that are not numbers, lists of unequal lengths, or values out of range of the 32-bit dtype.

    Example:
        >>> to_array([[1, 2], [3, 4]], "data").dtype
        dtype('int32')
    """
    array = _host(value, name)
    if array.dtype.kind not in "biuf" and not array.dtype.name.startswith(("bfloat16", "float8")):
        raise ValueError(
            f"input {name!r} has dtype {array.dtype}, expected real numbers (float, int or bool); encode text as integers and "
            "convert object columns to numbers."
        )
    return _narrow(array, name)


def _host(value: Any, name: str) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # torch's numpy() does not support bfloat16
            value = value.float()
        return value.numpy()
    if hasattr(value, "to_numpy"):  # pandas, polars
        return np.asarray(value.to_numpy())
    if hasattr(value, "todense"):  # SparseArray, scipy, BCOO
        return np.asarray(value.todense())
    if hasattr(value, "asnumpy"):  # NDArray
        return np.asarray(value.asnumpy())
    try:
        return np.asarray(value)
    except ValueError as err:
        raise ValueError(
            f"input {name!r} is not rectangular ({err}); all rows must have the same shape: pad them to one length."
        ) from err


def _narrow(array: np.ndarray, name: str) -> np.ndarray:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX arrays have native byte order
    target = _NARROW.get(array.dtype.name)
    if target is None:
        return array
    if target is np.float32:
        try:
            with np.errstate(over="raise"):
                return array.astype(np.float32)
        except FloatingPointError:
            low, high = np.finfo(np.float32).min, np.finfo(np.float32).max
    else:
        low, high = np.iinfo(target).min, np.iinfo(target).max
        if array.size == 0 or (array.min() >= low and array.max() <= high):
            return array.astype(target)
    bad = array[(array < low) | (array > high)].flat[0]
    raise ValueError(
        f"input {name!r} ({array.dtype}) contains {bad}, which is out of range of {np.dtype(target)} ({low} to {high}); jfit "
        "uses 32-bit arrays on devices: rescale or re-index the values."
    )


class ArrayData:
    """Training data from arrays in memory; the order of the rows in an epoch is a function of (seed, epoch).

    Args:
        arrays: dict input name -> array-like of n rows (axis 0), labels included.
        shuffle: whether to shuffle the rows in every epoch.
        seed: integer seed of the shuffle.
        weight: (n,) row weights for the loss and metrics, finite and non-negative; None: all 1.

    Raises:
        ValueError: no arrays, no rows, unequal numbers of rows, values that are not numbers, a weight that is nan, infinite or
            negative, or weights that are all 0.

    Example:
        >>> import numpy as np
        >>> data = ArrayData({"data": np.arange(5.0), "label": np.arange(5)}, shuffle=False)
        >>> [b.inputs["data"].tolist() for b in data.batches(epoch=0, batch_size=2)]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
    """

    def __init__(self, arrays: Mapping[str, Any], *, shuffle: bool = True, seed: int = 0, weight: Any | None = None):
        self.arrays = {name: to_array(value, name) for name, value in arrays.items()}
        self.shuffle, self.seed = bool(shuffle), int(seed)
        self.num_rows = _common_rows(self.arrays)
        self.weight = None if weight is None else to_array(weight, "weight").astype(np.float32)
        if self.weight is not None and self.weight.shape != (self.num_rows,):
            raise ValueError(
                f"weight has shape {self.weight.shape}, the data has {self.num_rows} rows; "
                f"pass one number per row, shape ({self.num_rows},)."
            )
        if self.weight is not None:
            check_weights(self.weight, "weight")
            if not self.weight.any():
                raise ValueError(
                    f"all {self.num_rows} row weights are 0, so the mean loss is undefined; expected at least one positive "
                    "weight (without weights every row has weight 1)."
                )

    @property
    def nbytes(self) -> int:
        """Total size of all arrays in bytes."""
        return sum(a.nbytes for a in self.arrays.values())

    @property
    def specs(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Input name -> (shape of one row, dtype)."""
        return {name: (a.shape[1:], a.dtype) for name, a in self.arrays.items()}

    def num_batches(self, batch_size: int) -> int:
        """Number of batches per epoch, a short last batch included."""
        return -(-self.num_rows // _positive(batch_size))

    def order(self, epoch: int) -> np.ndarray:
        """Row indices of an epoch in reading order: a permutation that is a function of (seed, epoch).

        Args:
            epoch: index of the epoch, from 0.

        Returns:
            (num_rows,) int32.

        Example:
            >>> import numpy as np
            >>> data = ArrayData({"data": np.arange(4.0)}, seed=7)
            >>> sorted(data.order(3).tolist()), (data.order(3) == data.order(3)).all().item()
            ([0, 1, 2, 3], True)

        Source: Philox4x64-10 (Salmon et al., 2011) keyed by (seed, epoch); rows are sorted by their draw.
        """
        if not self.shuffle:
            return np.arange(self.num_rows, dtype=np.int32)
        # Raw draws are the same in all NumPy versions, Generator.permutation is not: a resumed run needs the same order.
        draws = np.random.Philox(key=np.array([self.seed & _MASK64, epoch & _MASK64], np.uint64)).random_raw(self.num_rows)
        # The row index in the low bits makes all keys distinct: any sort gives the same order, and is twice as fast as argsort.
        low = np.uint64((1 << (self.num_rows - 1).bit_length()) - 1)
        keys = np.sort((draws & ~low) | np.arange(self.num_rows, dtype=np.uint64))
        return (keys & low).astype(np.int32)

    def batches(self, epoch: int, batch_size: int, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of an epoch, starting at batch `start`; the last batch may be short (no padding).

        Args:
            epoch: index of the epoch, from 0.
            batch_size: number of rows per batch.
            start: index of the first batch, the saved position of an interrupted epoch.

        Returns:
            Iterator of `Batch`.  Without shuffling, the arrays are views of the data: do not write into them.

        Example:
            >>> import numpy as np
            >>> data = ArrayData({"data": np.arange(6.0)}, shuffle=False)
            >>> [b.inputs["data"].tolist() for b in data.batches(0, 4, start=1)]
            [[4.0, 5.0]]
        """
        order = self.order(epoch) if self.shuffle else None
        for low in range(start * _positive(batch_size), self.num_rows, batch_size):
            pick = slice(low, low + batch_size) if order is None else order[low : low + batch_size]
            yield self.take(pick)

    def take(self, pick: slice | np.ndarray) -> Batch:
        """Batch of the rows selected by a slice or an array of row indices."""
        weight = None if self.weight is None else self.weight[pick]
        if isinstance(pick, slice):
            return Batch({name: a[pick] for name, a in self.arrays.items()}, weight, weight)
        return Batch({name: a.take(pick, axis=0) for name, a in self.arrays.items()}, weight, weight)


def _common_rows(arrays: Mapping[str, np.ndarray]) -> int:
    first, count = "", None
    for name, array in arrays.items():
        if array.ndim == 0:
            raise ValueError(f"input {name!r} is the scalar {array}, expected an array with one entry per row.")
        if count is None:
            first, count = name, len(array)
        elif len(array) != count:
            raise ValueError(
                f"input {first!r} has {count} rows, input {name!r} has {len(array)}; "
                "all inputs need the same number of rows (axis 0)."
            )
    if not count:
        raise ValueError(
            f"empty data: {f'input {first!r} has 0 rows' if arrays else 'there are no arrays'}; expected at least one row."
        )
    return count


def _positive(batch_size: int) -> int:
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, expected at least 1.")
    return batch_size
