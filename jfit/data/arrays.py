"""Arrays in memory as training data: checked once, shuffled as a function of (seed, epoch), cut into batches.

The position in an epoch is one integer, the index of the next batch; seed, epoch and position are all that is needed to
continue exactly where a run stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jfit.data.batch import Batch, check_weights

_MASK64 = (1 << 64) - 1
# Without 64-bit types on the device a wider array would be cut silently there; here the cut is checked.
_NARROW = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}


def to_array(value: Any, name: str) -> np.ndarray:
    """A host array with a dtype that devices have, from anything array-like.

    Args:
        value: numpy or jax array, torch tensor, pandas frame or series, (nested) list of numbers; sparse matrices become dense.
        name: the input's name, for messages.

    Returns:
        The array; float64 becomes float32, int64 int32, uint64 uint32; other dtypes, uint8 among them, are kept.

    Raises:
        ValueError: not numbers, lists of unequal lengths, or values that the narrower dtype cannot hold.

    Example:
        >>> to_array([[1, 2], [3, 4]], "data").dtype
        dtype('int32')
    """
    array = _host(value, name)
    if array.dtype.kind not in "biuf" and not array.dtype.name.startswith(("bfloat16", "float8")):
        raise ValueError(
            f"input {name!r} has dtype {array.dtype}, numbers are needed (float, int, uint8 or bool) because devices hold "
            "nothing else; encode text as integers and turn object columns into numbers first."
        )
    return _narrow(array, name)


def _host(value: Any, name: str) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy() of torch knows no bfloat16
            value = value.float()
        return value.numpy()
    if hasattr(value, "to_numpy"):  # pandas, polars
        return np.asarray(value.to_numpy())
    if hasattr(value, "todense"):  # SparseArray, scipy, BCOO
        return np.asarray(value.todense())
    if hasattr(value, "asnumpy"):  # MXNet's box
        return np.asarray(value.asnumpy())
    try:
        return np.asarray(value)
    except ValueError as err:
        raise ValueError(
            f"input {name!r} is not rectangular ({err}); every row needs the same shape: pad the rows to one length."
        ) from err


def _narrow(array: np.ndarray, name: str) -> np.ndarray:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # devices know the machine's own byte order only
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
        f"input {name!r} ({array.dtype}) holds {bad}, which {np.dtype(target)} cannot ({low} to {high}); devices work with "
        "32 bits: rescale or re-index the values."
    )


class ArrayData:
    """Rows of named arrays, batch by batch; epoch e is read in the order f(seed, e).

    Args:
        arrays: input name -> array of n rows (axis 0); labels are inputs too.
        shuffle: a new order every epoch; False keeps the order given.
        seed: integer that fixes all orders.
        weight: how much each row counts in the loss and in metrics, (n,), finite and at least 0; None for all 1.

    Raises:
        ValueError: no arrays, no rows, unequal row counts, values that are not numbers, a weight that is nan, infinite or
            negative, or no weight above 0.

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
                    f"all {self.num_rows} row weights are 0, so nothing can be learned and there is no mean loss; at least one "
                    "row needs a weight above 0 (leave the weights out and every row counts 1)."
                )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together: what keeping them on a device would take."""
        return sum(a.nbytes for a in self.arrays.values())

    @property
    def specs(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Input name -> (shape of one row, dtype)."""
        return {name: (a.shape[1:], a.dtype) for name, a in self.arrays.items()}

    def num_batches(self, batch_size: int) -> int:
        """Batches in an epoch, a short last one included."""
        return -(-self.num_rows // _positive(batch_size))

    def order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in reading order: a permutation that depends on (seed, epoch) only.

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
        # Raw draws are fixed for all NumPy versions, Generator.permutation is not: a resumed run must see the same order.
        draws = np.random.Philox(key=np.array([self.seed & _MASK64, epoch & _MASK64], np.uint64)).random_raw(self.num_rows)
        # The row's number in the low bits makes all keys distinct: any sort gives the same order, and twice as fast as argsort.
        low = np.uint64((1 << (self.num_rows - 1).bit_length()) - 1)
        keys = np.sort((draws & ~low) | np.arange(self.num_rows, dtype=np.uint64))
        return (keys & low).astype(np.int32)

    def batches(self, epoch: int, batch_size: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on; the last may be short, nothing is padded.

        Args:
            epoch: index of the epoch, from 0.
            batch_size: rows of a batch.
            start: index of the first batch to give, the saved position of an interrupted epoch.

        Returns:
            Iterator of `Batch`.  Without shuffling the arrays are views of the data: do not write into them.

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
        """The rows that a slice or an index array picks, as one batch."""
        weight = None if self.weight is None else self.weight[pick]
        if isinstance(pick, slice):
            return Batch({name: a[pick] for name, a in self.arrays.items()}, weight, weight)
        return Batch({name: a.take(pick, axis=0) for name, a in self.arrays.items()}, weight, weight)


def _common_rows(arrays: Mapping[str, np.ndarray]) -> int:
    first, count = "", None
    for name, array in arrays.items():
        if array.ndim == 0:
            raise ValueError(f"input {name!r} is the single number {array}, an array with one entry per row is needed.")
        if count is None:
            first, count = name, len(array)
        elif len(array) != count:
            raise ValueError(
                f"input {first!r} has {count} rows, input {name!r} has {len(array)}; "
                "all inputs need one entry per sample on axis 0."
            )
    if not count:
        raise ValueError(
            f"empty data: {f'input {first!r} has 0 rows' if arrays else 'no arrays were given'}; at least one row is needed."
        )
    return count


def _positive(batch_size: int) -> int:
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, at least 1 is needed.")
    return batch_size
