"""Iterators over files of rows: what CSVIter and LibSVMIter have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.data.csr import cut, own, stack
from jfit.data.files.text import RowReader
from jfit.data.ndarray_iter import DataDesc, DataIter


class Positioned(DataIter):
    """An iterator whose batches are read by `_read`; it knows how many were, and can skip some.

    Write `_read() -> (data, label, index, pad)`, None at the end of the epoch, and `_begin()`, which goes back to the start.
    """

    def __init__(self, batch_size: int, provide_data: list[DataDesc], provide_label: list[DataDesc]):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, at least 1 is needed.")
        super().__init__(batch_size)
        self.provide_data, self.provide_label = provide_data, provide_label
        self.batches_read = 0  # of the current epoch
        self._now: tuple[list[Any], list[Any], np.ndarray, int] | None = None

    def _read(self) -> tuple[list[Any], list[Any], np.ndarray, int] | None:
        raise NotImplementedError

    def _begin(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Start the next epoch, wherever this one stands."""
        self.batches_read, self._now = 0, None
        self._begin()

    def iter_next(self) -> bool:
        """Move on by one batch; False at the end of the epoch."""
        found = self._read()
        if found is not None:
            self._now = found
            self.batches_read += 1
        return found is not None

    def skip(self, batches: int) -> None:
        """Move on as if so many batches had been read."""
        for _ in range(batches):
            if not self.iter_next():
                break

    def seek_batch(self, epoch: int, batch: int) -> None:
        """Go to a batch of an epoch, from 0; all epochs are equal.  `jfit.fit` calls it, also when a training is resumed.

        Raises:
            ValueError: an epoch has fewer batches.
        """
        self.reset()
        self.skip(batch)
        if self.batches_read < batch:
            raise ValueError(
                f"cannot continue at batch {batch}: the {type(self).__name__} ended after {self.batches_read}; it must give "
                "the same batches as when the position was saved."
            )

    def getdata(self) -> Any:
        """Data arrays of the current batch."""
        return self._current()[0]

    def getlabel(self) -> Any:
        """Label arrays of the current batch."""
        return self._current()[1]

    def getindex(self) -> np.ndarray:
        """Numbers of the current rows in the file (in its part, where only a part is read), (batch_size,)."""
        return self._current()[2]

    def getpad(self) -> int:
        """Rows at the end of the current batch that do not belong to it."""
        return self._current()[3]

    def _current(self) -> tuple[list[Any], list[Any], np.ndarray, int]:
        if self._now is None:
            raise ValueError(f"{type(self).__name__}: there is no current batch before the first next() or iter_next().")
        return self._now


class FileIter(Positioned):
    """Batches of rows that readers take from files, side by side.

    Args:
        readers: of data and, where they have a file of their own, labels.
        batch_size: rows of a batch.
        round_batch: what fills the last batch up: True, rows from the start; False, those of the batch before.
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
        if self._take(1) is None:  # a file that cannot be read says so now
            raise ValueError(f"{self._name}: there is no row in it (or in its part), at least one is needed.")
        self._begin()

    def _arrays(self, columns: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        """Data and labels of the columns that the readers gave."""
        raise NotImplementedError

    @property
    def _name(self) -> str:
        return str(self._readers[0].files.paths[0])

    def _begin(self) -> None:
        for reader in self._readers:
            reader.rewind()
        self._ended = False
        self._before: list[list[int]] | None = None  # where the current batch begins
        self._last: tuple[Any, ...] | None = None  # the rows of the current batch, where the next may need them

    def _read(self) -> tuple[list[Any], list[Any], np.ndarray, int] | None:
        before = [reader.tell() for reader in self._readers]
        columns = None if self._ended else self._take(self.batch_size)
        if columns is None:
            self._ended = True
            return None
        count = columns[0].shape[0]
        index = before[0][2] + np.arange(self.batch_size)
        pad = self.batch_size - count
        if pad:
            columns = self._filled(columns, count)
            index[count:] = np.arange(pad) % (before[0][2] + count)
            self._ended = True
        self._before = before
        self._last = None if self.round_batch else tuple(own(c) for c in columns)
        return *self._arrays(columns), index, pad

    def _filled(self, columns: tuple[Any, ...], count: int) -> tuple[Any, ...]:
        """A short last batch grown to its size: rows of the start, or those that stood there in the batch before."""
        if self._last is not None:
            return tuple(stack([c, cut(old, slice(count, None))]) for c, old in zip(columns, self._last, strict=True))
        for reader in self._readers:
            reader.rewind()
        first = self._take(self.batch_size - count)
        assert first is not None
        pick = np.arange(self.batch_size - count) % first[0].shape[0]  # all rows may be fewer than are missing
        return tuple(stack([c, cut(start, pick)]) for c, start in zip(columns, first, strict=True))

    def _take(self, count: int) -> tuple[Any, ...] | None:
        """The next rows of all readers; those that the first has fewer of end the others too."""
        first, *others = self._readers
        found = first.take(count)
        if found is None:
            return None
        for reader in others:
            more = reader.take(found[0].shape[0])
            rows = 0 if more is None else more[0].shape[0]
            if more is None or rows < found[0].shape[0]:
                where, behind = reader.files.paths[-1], reader.number
                raise ValueError(
                    f"{where}: it ends after {behind} rows, {self._name} has more; every row of the data needs a row of labels."
                )
            found += more
        return found

    def state_dict(self) -> dict[str, Any]:
        """Where the iterator stands, as plain data: of an iterator over the same files it takes no more to go on."""
        sizes = [reader.files.size for reader in self._readers]
        return {"batch": self.batches_read, "before": self._before, "ended": self._ended, "bytes": sizes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of an iterator over the same files.

        Raises:
            ValueError: the files have another size than they had.
        """
        sizes = [reader.files.size for reader in self._readers]
        if list(state["bytes"]) != sizes:
            raise ValueError(
                f"{self._name}: the saved position is of files with {list(state['bytes'])} bytes, these have {sizes}; resume "
                "with the files that the position was saved for."
            )
        self.reset()
        if state["before"] is not None:
            for reader, position in zip(self._readers, state["before"], strict=True):
                reader.seek(position)
            self.iter_next()  # the current batch again, and with it the place behind it
        self.batches_read, self._ended = int(state["batch"]), bool(state["ended"])
