"""Base classes of the file iterators: `Positioned` (resumable by batch index) and `FileIter` (rows of text files)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.checks import positive_integer
from jfit.data.csr import concatenate, copy_rows, take_rows
from jfit.data.files.text import RowReader
from jfit.data.ndarray_iter import DataBatch, DataDesc, WholeBatches
from jfit.data.positions import Exhausted


class Positioned(WholeBatches):
    """Base class of iterators that count the batches read and can skip batches.

    Override `_read()`, which returns the next `DataBatch`, or None at the end of the epoch, `_begin()`, which goes back to the
    first row, and `_about()`, a dict of numbers that tell the data from other data.
    """

    def __init__(self, batch_size: int, provide_data: list[DataDesc], provide_label: list[DataDesc]):
        positive_integer(batch_size=batch_size)
        super().__init__(batch_size)
        self.provide_data, self.provide_label = provide_data, provide_label
        self.batches_read = 0  # of the current epoch

    def _read(self) -> DataBatch | None: ...

    def _begin(self) -> None: ...

    def _about(self) -> dict[str, Any]: ...

    def reset(self) -> None:
        """Start the next epoch."""
        self.batches_read, self.current_batch = 0, None
        self._begin()

    def iter_next(self) -> bool:
        """Advance to the next batch; return False at the end of the epoch."""
        batch = self._read()
        if batch is not None:
            self.current_batch = batch
            self.batches_read += 1
        return batch is not None

    def skip(self, batches: int) -> None:
        """Skip a number of batches."""
        for _ in range(batches):
            if not self.iter_next():
                break

    def seek_batch(self, epoch: int, batch: int) -> None:
        """Go to a batch of an epoch (all epochs are the same).  `jfit.fit` calls it, also to resume a run.

        Args:
            epoch: index of the epoch, from 0.
            batch: index of the next batch to read, from 0.

        Raises:
            ValueError: an epoch has fewer batches.
        """
        self.reset()
        self.skip(batch)
        if self.batches_read < batch:
            raise Exhausted(batch, self.batches_read, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch as plain numbers, to continue an iterator over the same data."""
        return {"batch": self.batches_read, **self._about()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of an iterator over the same data, created with the same arguments.

        Raises:
            ValueError: the data is different.
        """
        about = self._about()
        if (saved := {name: state[name] for name in about}) != about:
            raise ValueError(f"the saved position is of {saved}, this iterator has {about}; use the same files and arguments")
        self.reset()
        if state["batch"]:
            self.skip(int(state["batch"]) - 1)
            self.iter_next()  # read the current batch again


class FileIter(Positioned):
    """Base class of iterators over the rows of text files: a data file and, optionally, a label file read in parallel.

    Subclasses override `_arrays`, which converts the columns of a batch, as the readers return them, to (data arrays, label
    arrays).

    Args:
        readers: reader of the data and, if labels are in a separate file, reader of the labels.
        batch_size: number of rows per batch.
        round_batch: padding rows of the last batch: True: rows from the start; False: rows of the previous batch.
        provide_data: description of the data.
        provide_label: description of the labels.
    """

    def __init__(
        self,
        readers: Sequence[RowReader],
        batch_size: int,
        round_batch: bool,
        provide_data: list[DataDesc],
        provide_label: list[DataDesc],
    ):
        super().__init__(batch_size, provide_data, provide_label)
        self.round_batch, self._readers = round_batch, list(readers)
        self._begin()
        self._take(1)  # report an unreadable file now, not in the first epoch
        self._begin()

    def _arrays(self, columns: tuple[Any, ...]) -> tuple[list[Any], list[Any]]: ...

    def _begin(self) -> None:
        for reader in self._readers:
            reader.rewind()
        self._ended = False
        self._last: tuple[Any, ...] | None = None  # the rows of the current batch, if the next batch may be padded with them

    def _read(self) -> DataBatch | None:
        before = self._readers[0].number
        columns = None if self._ended else self._take(self.batch_size)
        if columns is None:
            self._ended = True
            return None
        count = columns[0].shape[0]
        index = before + np.arange(self.batch_size)
        pad = self.batch_size - count
        if pad:
            columns = self._filled(columns, count)
            index[count:] = np.arange(pad) % (before + count)
            self._ended = True
        self._last = None if self.round_batch else tuple(copy_rows(c) for c in columns)
        return DataBatch(*self._arrays(columns), pad, index)

    def _filled(self, columns: tuple[Any, ...], count: int) -> tuple[Any, ...]:
        """Pad a short last batch with rows of the start of the file, or of the previous batch."""
        if self._last is not None:
            tail = slice(count, None)
            return tuple(concatenate([c, take_rows(old, tail)]) for c, old in zip(columns, self._last, strict=True))
        for reader in self._readers:
            reader.rewind()
        first = self._take(self.batch_size - count)
        assert first is not None
        pick = np.arange(self.batch_size - count) % first[0].shape[0]  # the file may have fewer rows than the padding
        return tuple(concatenate([c, take_rows(start, pick)]) for c, start in zip(columns, first, strict=True))

    def _take(self, count: int) -> tuple[Any, ...] | None:
        """Read the next `count` rows, or fewer at the end, from all readers; None at the end of the first one."""
        first, *others = self._readers
        columns = first.take(count)
        if columns is None:
            return None
        for reader in others:
            more = reader.take(columns[0].shape[0])
            if more is None or more[0].shape[0] < columns[0].shape[0]:
                where, total = reader.files.paths[-1], reader.number
                longer = first.files.paths[0]
                raise ValueError(f"{where}: it ends after {total} rows, {longer} has more; each data row needs a label")
            columns += more
        return columns

    def _about(self) -> dict[str, Any]:
        return {"bytes": [reader.files.size for reader in self._readers]}
