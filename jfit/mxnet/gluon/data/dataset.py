"""Data sets: samples by number, which can be filtered, split, chosen and transformed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from jfit.mxnet.gluon.data.sampler import FilterSampler, Sampler, SequentialSampler
from jfit.mxnet.mutable import mutable_class
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.recordio import MXIndexedRecordIO

__all__ = ["ArrayDataset", "Dataset", "RecordFileDataset", "SimpleDataset"]


class Dataset:
    """Base class; a subclass implements `__getitem__`, which returns a sample by number, and `__len__`.

    Example:
        >>> squares = SimpleDataset([1, 2, 3, 4]).filter(lambda x: x % 2 == 0).transform(lambda x: x * x)
        >>> list(squares), len(squares)
        ([4, 16], 2)
    """

    def __getitem__(self, idx: Any) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def filter(self, fn: Callable[[Any], Any]) -> Dataset:
        """Return the data set of the samples for which `fn(sample)` is true; calls it for all samples now."""
        return _Sampled(self, FilterSampler(fn, self))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Return part `index` of `num_shards` parts of neighboring samples; the first parts may have one sample more.

        Raises:
            AssertionError: not 0 <= index < num_shards.
        """
        assert 0 <= index < num_shards, f"index is {index}, num_shards {num_shards}; expected 0 <= index < num_shards."
        size, rest = divmod(len(self), num_shards)
        return _Sampled(self, SequentialSampler(size + (index < rest), size * index + min(index, rest)))

    def take(self, count: int | None) -> Dataset:
        """Return the data set of the first `count` samples, or of all if there are fewer or `count` is None."""
        return _Sampled(self, SequentialSampler(len(self) if count is None else min(count, len(self))))

    def sample(self, sampler: Sampler) -> Dataset:
        """Return the data set of the samples that a sampler chooses; it is iterated over once, now.

        Raises:
            TypeError: the argument is not a `Sampler`.
        """
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler is a {type(sampler).__name__}, expected a gluon.data.Sampler.")
        return _Sampled(self, sampler)

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset:
        """Return the data set of `fn(sample)`, or `fn(*sample)` if samples are tuples.

        Args:
            fn: the function.
            lazy: call it whenever a sample is read; False: once for all samples, now.
        """
        transformed = _Transformed(self, fn)
        return transformed if lazy else SimpleDataset([transformed[i] for i in range(len(transformed))])

    def transform_first(self, fn: Callable[[Any], Any], lazy: bool = True) -> Dataset:
        """Return the data set with `fn` applied to the first element of each sample: to the image, but not to its label.

        Args:
            fn: the function.
            lazy: as in `transform`.
        """
        return self.transform(functools.partial(_on_first, fn), lazy)


def _on_first(fn: Callable[[Any], Any], first: Any, *others: Any) -> Any:
    return (fn(first), *others) if others else fn(first)


class SimpleDataset(Dataset):
    """A data set of a list, an array, or another object with `len` and `[]`.

    Args:
        data: the object.

    Example:
        >>> SimpleDataset(["a", "b"])[1]
        'b'
    """

    def __init__(self, data: Any) -> None:
        self._data = with_fast_rows(data)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        return self._data[idx]


class _Transformed(SimpleDataset):
    def __init__(self, data: Any, fn: Callable[..., Any]) -> None:
        super().__init__(data)
        self._fn = fn

    def __getitem__(self, idx: Any) -> Any:
        item = super().__getitem__(idx)
        return self._fn(*item) if isinstance(item, tuple) else self._fn(item)


class _Sampled(SimpleDataset):
    def __init__(self, data: Any, sampler: Sampler) -> None:
        super().__init__(list(sampler))
        self._samples = data

    def __getitem__(self, idx: Any) -> Any:
        return self._samples[super().__getitem__(idx)]


def with_fast_rows(data: Any) -> Any:
    """Return `Rows` of an NDArray on a CPU, else the object itself; rows of one axis are NDArrays (1,), as in MXNet."""
    return Rows(data) if isinstance(data, NDArray) and data.ndim > 1 and data.context.device_type == "cpu" else data


class Rows:
    """The rows of an NDArray on a CPU, cut out by NumPy: slicing a JAX array takes a hundred times as long.

    Args:
        array: the NDArray; later writes to it are seen.

    Example:
        >>> Rows(NDArray(np.eye(2, dtype="float32")))[1].asnumpy().tolist()
        [0.0, 1.0]
    """

    def __init__(self, array: NDArray) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, idx: Any) -> NDArray:
        return mutable_class(self._array)(np.asarray(self._array.value)[idx])


class ArrayDataset(Dataset):
    """A data set whose sample i is (x[i], y[i], ...).

    Args:
        args: arrays, lists or data sets of equal length; of only one, sample i is x[i].

    Raises:
        AssertionError: no arguments, or of different lengths.

    Example:
        >>> ArrayDataset([1, 2], ["a", "b"])[1]
        (2, 'b')
    """

    def __init__(self, *args: Any) -> None:
        assert args, "ArrayDataset needs at least one array."
        lengths = [len(data) for data in args]
        assert len({*lengths}) == 1, f"the arrays of an ArrayDataset have lengths {lengths}; expected equal lengths."
        # of an array with one axis the samples are numbers, as in MXNet
        self._data = [d.asnumpy() if isinstance(d, NDArray) and d.ndim == 1 else with_fast_rows(d) for d in args]

    def __len__(self) -> int:
        return len(self._data[0])

    def __getitem__(self, idx: Any) -> Any:
        return self._data[0][idx] if len(self._data) == 1 else tuple(data[idx] for data in self._data)


class RecordFileDataset(Dataset):
    """The records of a record file as bytes, in the order of its index, a file of the same name that ends with .idx.

    Args:
        filename: path of the record file.

    Raises:
        MXNetError: a file is missing or damaged.

    Example:
        >>> writer = MXIndexedRecordIO("data.idx", "data.rec", "w")
        >>> writer.write_idx(0, b"first")
        >>> writer.close()
        >>> RecordFileDataset("data.rec")[0]
        b'first'
    """

    def __init__(self, filename: str) -> None:
        self.idx_file, self.filename = os.path.splitext(filename)[0] + ".idx", filename
        self._record = MXIndexedRecordIO(self.idx_file, filename, "r")

    def __len__(self) -> int:
        return len(self._record.keys)

    def __getitem__(self, idx: Any) -> Any:
        return self._record.read_idx(self._record.keys[idx])
