"""`ArrayData`: training data from arrays in memory, shuffled by (seed, epoch) and split into batches.

The position in an epoch is the index of the next batch.  Seed, epoch and position are enough to resume a run exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jfit.data.batch import Axes, Batch, check_weights, equal_rows, row_axis
from jfit.data.valid import unmasked
from jfit.formats.mxnet_arrays import empty_aligned

# Memory maps of more bytes than this stay on the disk, and their rows are read and converted batch by batch.
MAPPED_BYTES = 16 << 20
# Memory maps of more bytes than this are shuffled in blocks of BLOCK_BYTES, mixed in a buffer of BUFFER_BYTES.
BLOCK_SHUFFLE_BYTES, BLOCK_BYTES, BUFFER_BYTES = 1 << 30, 1 << 20, 64 << 20
# JAX without x64 converts 64-bit arrays to 32 bits silently; `to_array` checks that the values fit.
_MASK64 = (1 << 64) - 1
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
    array = host_array(value, name)
    _check_dtype(array, name)
    return _narrow(array, name)


def _check_dtype(array: np.ndarray, name: str) -> None:
    if array.dtype.kind not in "biuf" and not array.dtype.name.startswith(("bfloat16", "float8")):
        raise ValueError(f"input {name!r} has dtype {array.dtype}, expected real numbers; convert it to numbers.")


def host_array(value: Any, name: str) -> np.ndarray:
    """Convert an array, tensor, frame or list of any library to a NumPy array, without conversion of its dtype.

    Args:
        value: the values; tensors of torch are detached, bfloat16 ones become float32.
        name: name of the input, for messages.

    Returns:
        NumPy array, a view of `value` where possible.

    Raises:
        ValueError: a list whose rows have different lengths, or a masked array with masked values.

    Example:
        >>> host_array([1, 2], "data").dtype
        dtype('int64')
    """
    if isinstance(value, np.ndarray):
        return value if type(value) is np.ndarray else unmasked(value, name)
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
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "filled"):
        value = [unmasked(row, name) for row in value]
    return np.asarray(value)


def _narrow(array: np.ndarray, name: str) -> np.ndarray:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX arrays have native byte order
    target = _NARROW.get(array.dtype.name)
    if target is None:
        return array
    if target is np.float32:
        try:
            with np.errstate(over="raise"):
                return _cast(array, target)
        except FloatingPointError:
            low, high = np.finfo(np.float32).min, np.finfo(np.float32).max
    else:
        low, high = np.iinfo(target).min, np.iinfo(target).max
        if array.size == 0 or (array.min() >= low and array.max() <= high):
            return _cast(array, target)
    bad = array[(array < low) | (array > high)].flat[0]
    raise ValueError(
        f"input {name!r} ({array.dtype}) contains {bad}, which is out of range of {target.__name__} ({low} to {high})."
    )


def _cast(array: np.ndarray, dtype: Any) -> np.ndarray:
    result = empty_aligned(array.shape, dtype)
    np.copyto(result, array, casting="unsafe")
    return result


def is_mapped(value: Any) -> bool:
    """Return whether an array is a memory map (`numpy.memmap`, or a view of one) of more than `MAPPED_BYTES`.

    Example:
        >>> import numpy as np
        >>> is_mapped(np.ones(3))
        False
    """
    if not isinstance(value, np.ndarray) or value.nbytes <= MAPPED_BYTES:
        return False
    base: Any = value
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap)


class ArrayData:
    """Training data from arrays in memory or on disk; the order of the rows in an epoch is a function of (seed, epoch).

    Rows of large memory maps (`numpy.memmap`) are read and converted to 32-bit dtypes batch by batch.  Memory maps of more than
    1 GiB are shuffled in blocks: blocks of consecutive rows are read in random order into a buffer of 64 MiB, whose rows are
    mixed, so that the file is read sequentially.

    Args:
        arrays: dict input name -> array-like of n rows (axis 0), labels included.
        shuffle: whether to shuffle the rows in every epoch.
        seed: integer seed of the shuffle.
        weight: (n,) row weights for the loss and metrics, finite and non-negative; None: all 1.
        steps_per_epoch: maximum number of batches per epoch; None: all rows.
        axes: input name -> None for arrays without rows, which are whole in every batch.  If no array has rows, all of them are
            one batch.

    Attributes:
        arrays: dict input name -> NumPy array; memory maps have the dtype of their file.
        constant: names of the arrays without rows.
        mapped: names of the arrays that stay on the disk.
        private: names of the arrays that nobody else writes to, because conversion copied them or they are jax arrays.  Devices
            may share their memory.
        columns: the columns of a DataFrame or dict that became these arrays, or None.

    Raises:
        ValueError: no arrays, no rows, unequal numbers of rows, values that are not numbers, a weight that is nan, infinite or
            negative, or weights that are all 0.

    Example:
        >>> import numpy as np
        >>> data = ArrayData({"data": np.arange(5.0), "label": np.arange(5)}, shuffle=False)
        >>> [b.inputs["data"].tolist() for b in data.batches(epoch=0, batch_size=2)]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
    """

    columns: Any = None
    timeout = None  # arrays do not wait

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        shuffle: bool = True,
        seed: int = 0,
        weight: Any | None = None,
        steps_per_epoch: int | None = None,
        axes: Axes | None = None,
    ):
        self.axes, self.constant = axes, {name for name in arrays if row_axis(name, axes) is None}
        self.mapped = {name for name, value in arrays.items() if is_mapped(value)}
        self.arrays: dict[str, np.ndarray] = {}
        self.private: set[str] = set()
        for name, value in arrays.items():
            self._add(name, value)
        self.shuffle, self.seed, self.steps_per_epoch = bool(shuffle), int(seed), steps_per_epoch
        self.num_rows = self._common_rows()
        self.weight: np.ndarray | None = None
        if weight is not None:
            self.set_weight(weight)
        self._blocks = self._block_sizes()

    def _add(self, name: str, value: Any) -> None:
        host = host_array(value, name)
        if name in self.mapped:
            _check_dtype(host, name)
            self.arrays[name] = host
            self.private.add(name)  # `whole` returns a copy
            return
        self.arrays[name] = to_array(host, name)
        if isinstance(value, (jax.Array, list)) or not np.may_share_memory(host, self.arrays[name]):
            self.private.add(name)

    def set_weight(self, weight: Any) -> None:
        """Set the row weights, (rows,); raise a ValueError if one is negative or not finite, or all are 0."""
        self.weight = to_array(weight, "weight").astype(np.float32)
        if self.weight.shape != (self.num_rows,):
            raise ValueError(f"weight has shape {self.weight.shape}, the data has {self.num_rows} rows; pass one for each")
        check_weights(self.weight, "weight")
        if not self.weight.any():
            raise ValueError(f"all {self.num_rows} row weights are 0, so the mean loss is undefined; expected a positive one")

    def _common_rows(self) -> int:
        counts = {name: len(array) for name, array in self.arrays.items() if name not in self.constant}
        count = 1 if self.arrays and not counts else equal_rows(counts, axes=self.axes)
        if not count:
            first = f"input {next(iter(counts))!r} has 0 rows" if counts else "there are no arrays"
            raise ValueError(f"empty data: {first}; expected at least one row.")
        return count

    def drop(self, names: Iterable[str]) -> None:
        """Remove arrays."""
        for name in names:
            del self.arrays[name]
            self.mapped.discard(name)

    def part(self, rows: slice) -> ArrayData:
        """Return the data of some rows; the arrays are views."""
        weight = None if self.weight is None else self.weight[rows]
        options: dict[str, Any] = {name: getattr(self, name) for name in ("shuffle", "seed", "steps_per_epoch", "axes")}
        arrays = {name: array if name in self.constant else array[rows] for name, array in self.arrays.items()}
        result = ArrayData(arrays, weight=weight, **options)
        result.columns = self.columns
        result.private |= self.private - self.mapped  # a small part of a memory map is a view of the file
        return result

    def _block_sizes(self) -> tuple[int, int] | None:
        """Number of rows of a block and of a buffer, or None if the rows are not shuffled in blocks."""
        if not self.shuffle or sum(self.arrays[name].nbytes for name in self.mapped) <= BLOCK_SHUFFLE_BYTES:
            return None
        block = max(1, BLOCK_BYTES * self.num_rows // self.nbytes)
        return block, block * max(1, BUFFER_BYTES * self.num_rows // (self.nbytes * block))

    @property
    def nbytes(self) -> int:
        """Total size of all arrays in bytes, after conversion to 32-bit dtypes."""
        return sum(a.size * narrow_dtype(a.dtype).itemsize for a in self.arrays.values())

    def num_batches(self, batch_size: int) -> int:
        """Number of batches per epoch, a short last batch included."""
        count = -(-self.num_rows // batch_size)
        if self.steps_per_epoch is not None and self.steps_per_epoch > count:
            raise ValueError(
                f"steps_per_epoch is {self.steps_per_epoch}, but the data has {count} batches of {batch_size} rows"
            )
        return self.steps_per_epoch or count

    def described(self, batch: int, epoch: int) -> str:
        """Return the name of a batch for messages."""
        return f"batch {batch} of epoch {epoch}"

    def epoch_rows(self, batch_size: int) -> int:
        """Number of rows that an epoch uses: all, unless `steps_per_epoch` is less than the number of batches."""
        return min(self.num_rows, self.num_batches(batch_size) * batch_size)

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
        """
        if not self.shuffle:
            return np.arange(self.num_rows, dtype=np.int32)
        if self._blocks is None:
            return permutation(self.num_rows, self.seed, epoch)
        return block_permutation(self.num_rows, self.seed, epoch, *self._blocks)

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
        end, read = self.epoch_rows(batch_size), self.reader(epoch)
        for low in range(start * batch_size, end, batch_size):
            yield read(slice(low, min(low + batch_size, end)))

    def reader(self, epoch: int | None = None) -> Callable[[slice | np.ndarray], Batch]:
        """Return a function from positions in the order of an epoch, a slice or an array, to a `Batch` of these rows.

        Args:
            epoch: index of the epoch; None: the order of the arrays.
        """
        if epoch is None or not self.shuffle:
            return self.take
        order = self.order(epoch)
        mapped = self.mapped - self.constant
        buffers = {n: _BufferedRows(self.arrays[n], order, self._blocks[1]) for n in mapped} if self._blocks else {}

        def read(positions: slice | np.ndarray) -> Batch:
            loaded = {n: b.rows(positions) for n, b in buffers.items()} if isinstance(positions, slice) else {}
            return self.take(order[positions], loaded)

        return read

    def take(self, pick: slice | np.ndarray, loaded: Mapping[str, np.ndarray] = {}) -> Batch:
        """Batch of the rows selected by a slice or an array of row indices; `loaded` has those that are read already."""
        weight = None if self.weight is None else self.weight[pick]
        inputs = {}
        for name, array in self.arrays.items():
            if name in self.constant:
                part = array
            else:
                part = loaded[name] if name in loaded else array[pick] if isinstance(pick, slice) else array.take(pick, axis=0)
            inputs[name] = to_array(np.asarray(part), name) if name in self.mapped else part
        return Batch(inputs, weight, weight)

    def whole(self, name: str) -> np.ndarray:
        """Return all rows of one array with a dtype of at most 32 bits; a memory map is read in parts, to one copy."""
        array = self.arrays[name]
        if name not in self.mapped:
            return array
        result = empty_aligned(array.shape, narrow_dtype(array.dtype))
        step = max(1, BLOCK_BYTES * len(array) // array.nbytes)
        for low in range(0, len(array), step):
            result[low : low + step] = to_array(np.asarray(array[low : low + step]), name)
        return result


class _BufferedRows:
    """Rows of a memory map in a given order, read buffer by buffer in runs of consecutive rows.

    Args:
        array: the memory map.
        order: row indices in reading order.
        size: number of rows per buffer: positions 0 to size - 1 of `order` are the first buffer, and so on.
    """

    def __init__(self, array: np.ndarray, order: np.ndarray, size: int) -> None:
        self.array, self.order, self.size = array, order, size
        self._number, self._rows = -1, np.empty(0)

    def rows(self, positions: slice) -> np.ndarray:
        """Return the rows at consecutive positions of the order, in an array (positions, ...)."""
        parts = []
        for number in range(positions.start // self.size, (positions.stop - 1) // self.size + 1):
            first = number * self.size
            low, high = max(positions.start, first), min(positions.stop, first + self.size)
            parts.append(self._buffer(number)[low - first : high - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _buffer(self, number: int) -> np.ndarray:
        if number != self._number:
            self._rows = np.empty(0)  # free the last buffer before the next is read
            wanted = self.order[number * self.size : (number + 1) * self.size]
            by_row = np.argsort(wanted)
            ordered = wanted[by_row]
            ends = np.flatnonzero(np.diff(ordered, append=-2) != 1) + 1  # ends of runs of consecutive rows
            rows, low = np.empty((len(wanted), *self.array.shape[1:]), self.array.dtype), 0
            for high in ends:
                rows[by_row[low:high]] = self.array[ordered[low] : ordered[high - 1] + 1]
                low = high
            self._number, self._rows = number, rows
        return self._rows


def narrow_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype, of at most 32 bits and native byte order, to which `to_array` converts."""
    native = dtype.newbyteorder("=")
    return np.dtype(_NARROW.get(native.name, native))


# ------------------------------------------------------------------------------------------------ order of the rows
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
