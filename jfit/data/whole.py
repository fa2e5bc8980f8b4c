"""Iterators whose batches come as a whole, from another iterator or from worker processes."""

from __future__ import annotations

from typing import Any

from jfit.data.ndarray_iter import DataBatch, DataIter


class WholeBatches(DataIter):
    """An iterator whose `iter_next` writes `current_batch`; the rest of the protocol follows.

    Example:
        >>> class Once(WholeBatches):
        ...     def iter_next(self):
        ...         fresh = self.current_batch is None
        ...         self.current_batch = self.current_batch or DataBatch([[1.0]], pad=0)
        ...         return fresh
        >>> [batch.data for batch in Once(1)]
        [[[1.0]]]
    """

    def __init__(self, batch_size: int):
        super().__init__(batch_size)
        self.current_batch: Any = None

    def next(self) -> DataBatch:
        """The next batch.  Raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return self.current_batch

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return self._current().data

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return self._current().label

    def getindex(self) -> Any:
        """Row indices of the current batch, where known."""
        return self._current().index

    def getpad(self) -> int:
        """Padded rows of the current batch."""
        return self._current().pad or 0

    def _current(self) -> DataBatch:
        if self.current_batch is None:
            raise ValueError(f"{type(self).__name__}: there is no current batch before the first next() or iter_next().")
        return self.current_batch
