"""Batches of data whose elements are single rows: torch and Hugging Face data sets, lists of rows, iterables of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.data.arrays import host_array, permutation
from jfit.data.batch import Batch, Names, is_array
from jfit.data.parts import own_indices, own_size


class Rows:
    """Mark data whose elements are single rows, not batches; `fit`, `score` and `predict` collate them to batches.

    Needed only where jfit cannot see it: elements are taken as rows if they contain scalars, or if the data is a torch or
    Hugging Face data set.

    Args:
        source: an iterable of rows, or an object with `__len__` and `__getitem__` that returns one row, which is shuffled.

    Example:
        >>> import numpy as np
        >>> from jfit.data import as_data
        >>> data = as_data(Rows([(np.ones(3), np.ones(2))] * 6), batch_size=4, input_names=["x"], label_names=["y"])
        >>> [batch.inputs["x"].shape for batch in data.batches(0)]
        [(4, 3), (2, 3)]
    """

    def __init__(self, source: Any) -> None:
        self.source = source


class RowBatches:
    """Batches of a data set with random access to its rows, shuffled by (seed, epoch) as arrays are; a source of `StreamData`.

    The processes of a job all have the data set, and each reads its own rows of every batch.

    Args:
        source: object with `__len__`, the number of rows, and `__getitem__`, which returns one row.
        batch_size: number of rows per batch.
        keys: names of the values of a row to keep, if rows are dicts.  None: all.
        shuffle: whether to shuffle the rows in every epoch.
        seed: integer seed of the shuffle.

    Example:
        >>> batches = RowBatches([([1.0, 2.0], 0), ([3.0, 4.0], 1), ([5.0, 6.0], 0)], 2, shuffle=False)
        >>> [labels.tolist() for _, labels in batches]
        [[0, 1], [0]]
    """

    def __init__(
        self, source: Any, batch_size: int, *, keys: Iterable[str] | None = None, shuffle: bool = False, seed: int = 0
    ) -> None:
        self.source, self.batch_size, self.shuffle, self.seed = source, batch_size, shuffle, seed
        self.keys = None if keys is None else set(keys)
        self.num_rows = len(source)
        own_size(batch_size)  # a job has at most as many processes as a batch has rows
        self._position = (0, 0)  # epoch and number of the first batch of the next iterator
        if _is_kind(source, "datasets", "Dataset"):
            if self.keys is not None:  # other columns, such as images, are not decoded
                source = source.select_columns([name for name in source.column_names if name in self.keys])
            if (source.format or {}).get("type") is None:
                source = source.with_format("numpy")
            self.source = source

    @property
    def num_batches(self) -> int:
        """Number of batches per epoch, a short last batch included."""
        return -(-self.num_rows // self.batch_size)

    def seek_batch(self, epoch: int, batch: int) -> None:
        """Start the next iterator at a batch of an epoch."""
        self._position = (epoch, batch)

    def __iter__(self) -> Iterator[Any]:
        epoch, start = self._position
        order = permutation(self.num_rows, self.seed, epoch) if self.shuffle else np.arange(self.num_rows)
        for low in range(start * self.batch_size, self.num_rows, self.batch_size):
            rows = own_indices(order[low : low + self.batch_size], self.batch_size)
            if len(rows):  # in a job, the incomplete last batch may have none for this process
                yield self._batch(rows.tolist())

    def _batch(self, indices: list[int]) -> Any:
        if _is_kind(self.source, "datasets", "Dataset"):  # indexing by rows returns a dict of column -> values
            columns = self.source[indices]
            return {k: _joined(list(v), k) for k, v in columns.items()}
        if hasattr(self.source, "__getitems__"):  # torch's convention for several rows in one call
            return collate(self.source.__getitems__(indices), self.keys)
        return collate([self.source[i] for i in indices], self.keys)


def collate(elements: Sequence[Any], keys: set[str] | None = None, where: str = "") -> Any:
    """Stack rows to a batch: tuples, lists and dicts field by field, numbers and arrays along a new axis 0.

    Args:
        elements: the rows, all of the same structure.
        keys: keys of dicts to keep.  None: all.
        where: place of the elements in the rows, for messages; "": they are the rows.

    Returns:
        A batch of the structure of a row; jax arrays stay on their device, all others become NumPy arrays.

    Raises:
        ValueError: rows differ in structure or shape.

    Example:
        >>> collate([{"x": [1.0, 2.0], "y": 0}, {"x": [3.0, 4.0], "y": 1}])["x"].shape
        (2, 2)
    """
    first = elements[0]
    if isinstance(first, Mapping):
        names = [k for k in first if keys is None or k in keys]
        return {k: collate([e[k] for e in elements], keys, k) for k in names}
    if isinstance(first, (tuple, list)) and (not where or any(is_array(value) for value in first)):
        fields = [collate(e, keys, f"{where}[{i}]") for i, e in enumerate(zip(*elements, strict=True))]
        if hasattr(first, "_fields"):
            return type(first)(*fields)
        return fields if where else tuple(fields)
    return _joined(elements, where)


def _joined(values: Sequence[Any], where: str) -> Any:
    if all(isinstance(v, jax.Array) for v in values):
        return jnp.stack(values)
    arrays = [host_array(v, where or "x") for v in values]
    shapes = list(dict.fromkeys(a.shape for a in arrays))
    if len(shapes) > 1:
        place = f"{where!r} of " if where else ""
        raise ValueError(f"{place}the rows of a batch have different shapes, {shapes[0]} and {shapes[1]}; pad or crop them.")
    return np.stack(arrays)


def collated(rows: Iterator[Any], batch_size: int) -> Iterator[Any]:
    """Yield batches of `batch_size` rows of an iterator of rows; the last one may be short."""
    while group := list(itertools.islice(rows, batch_size)):
        yield collate(group)


# ------------------------------------------------------------------------------------------------ rows or batches
def _is_kind(value: Any, package: str, *classes: str) -> bool:
    """Whether a class of these names in a package is among the base classes of a value; the package is not imported."""
    bases = type(value).__mro__
    return any(c.__name__ in classes and f"{c.__module__}.".startswith(package + ".") for c in bases)


def has_rows_by_type(data: Any) -> bool:
    """Return whether data consists of rows, not batches, by its type: a data set of torch or Hugging Face, or `Rows`."""
    return (
        isinstance(data, Rows)
        or _is_kind(data, "torch.utils.data", "Dataset", "IterableDataset")
        or _is_kind(data, "datasets", "Dataset", "IterableDataset")
    )


def has_random_access(data: Any) -> bool:
    """Return whether the elements of a data set can be read by index: it has `__getitem__` and `__len__`."""
    if not hasattr(data, "__getitem__") or _is_kind(data, "torch.utils.data", "IterableDataset"):
        return False
    try:
        return len(data) < 1 << 62  # endless data sets of grain have the length sys.maxsize
    except (TypeError, NotImplementedError):
        return False


def is_row(element: Any, names: Names, labels: Sequence[str] = ()) -> bool:
    """Return whether an element is one row and cannot be a batch, because it contains a scalar, which has no batch axis.

    Args:
        element: element of an iterable of rows or batches.
        names: names of the model's inputs and labels.
        labels: keys of dict elements that are labels too, in addition to those in `names`.

    Returns:
        bool.

    Example:
        >>> names = Names.of(["x"], ["y"])
        >>> is_row(([1.0, 2.0], 1), names), is_row(([1.0, 2.0], [0, 1]), names)
        (True, False)
    """
    if isinstance(element, Batch) or (names.axes and None in names.axes.values()):
        return False
    if isinstance(element, Mapping):
        return any(_is_scalar(v) for k, v in element.items() if k in names.all or k in labels)
    if isinstance(element, list) and all(np.isscalar(v) for v in element):
        return False  # a batch of numbers
    if not isinstance(element, (tuple, list)):
        return _is_scalar(element)
    fields = [v for part in element for v in _parts(part)]
    return any(_is_scalar(v) for v in fields)


def _parts(field: Any) -> list[Any]:
    if isinstance(field, Mapping):
        return list(field.values())
    if isinstance(field, (list, tuple)):
        return [v for v in field if is_array(v)]  # a list of numbers is one array
    return [field]


def _is_scalar(value: Any) -> bool:
    return np.isscalar(value) or (is_array(value) and np.ndim(value) == 0)
