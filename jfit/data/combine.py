"""Iterators that wrap other iterators: `ResizeIter` changes the epoch length, `PrefetchingIter` merges and reads ahead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from jfit.checks import positive_integer
from jfit.data.ndarray_iter import DataBatch, DataDesc, WholeBatches


class ResizeIter(WholeBatches):
    """Iterator with `size` batches per epoch; the inner iterator is reset and continued whenever it ends.

    Args:
        data_iter: the inner iterator (a `DataIter`).
        size: number of batches per epoch.
        reset_internal: whether `reset` also resets the inner iterator.

    Raises:
        ValueError: size is less than 1.

    Example:
        >>> import numpy as np
        >>> from jfit.data import NDArrayIter
        >>> it = ResizeIter(NDArrayIter(np.arange(4.0), batch_size=2), 3)
        >>> [b.data[0].tolist() for b in it]
        [[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]]

    Source: mxnet.io.ResizeIter of Apache MXNet 1.9.1.
    """

    def __init__(self, data_iter: Any, size: int, reset_internal: bool = True) -> None:
        positive_integer(size=size)
        super().__init__(data_iter.batch_size)
        self.data_iter, self.size, self.reset_internal = data_iter, size, reset_internal
        self.cur = 0
        self.provide_data, self.provide_label = data_iter.provide_data, data_iter.provide_label
        self.last_batch_handle = getattr(data_iter, "last_batch_handle", "pad")
        if hasattr(data_iter, "default_bucket_key"):
            self.default_bucket_key = data_iter.default_bucket_key

    def reset(self) -> None:
        """Start the next epoch."""
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def iter_next(self) -> bool:
        """Advance to the next batch; return False at the end of the epoch."""
        if self.cur == self.size:
            return False
        try:
            self.current_batch = self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            self.current_batch = self.data_iter.next()
        self.cur += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Position: number of batches read in this epoch, and the state of the inner iterator."""
        return {"cur": self.cur, "inner": self.data_iter.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of an iterator over the same data."""
        self.data_iter.load_state_dict(state["inner"])
        self.cur = int(state["cur"])


class PrefetchingIter(WholeBatches):
    """Merge the data and labels of several iterators, reading each iterator one batch ahead in its own thread.

    The threads end on `close()` or when the last reference is dropped; `reset` starts them again.

    Args:
        iters: an iterator, or a list of iterators of equal length and batch size.
        rename_data: one dict per iterator, old data name -> new data name; None: keep the names.
        rename_label: the same for label names.

    Example:
        >>> import numpy as np
        >>> from jfit.data import NDArrayIter
        >>> it = PrefetchingIter(NDArrayIter(np.arange(4.0), batch_size=2))
        >>> [b.data[0].tolist() for b in it]
        [[0.0, 1.0], [2.0, 3.0]]

    Source: mxnet.io.PrefetchingIter of Apache MXNet 1.9.1.
    """

    def __init__(self, iters: Any, rename_data: Any = None, rename_label: Any = None) -> None:
        self.iters: Sequence[Any] = list(iters) if isinstance(iters, Iterable) and not hasattr(iters, "next") else [iters]
        self.rename_data, self.rename_label = rename_data, rename_label
        super().__init__(self.provide_data[0].shape[0])
        self.last_batch_handle = getattr(self.iters[0], "last_batch_handle", "pad")
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: list[Future[Any]] = []  # the next batch of each iterator
        self._positions: list[Any] = []  # states of the iterators before the batches in `_ahead` were read
        self._read_ahead()

    @property
    def provide_data(self) -> list[DataDesc]:
        """Descriptions of the data arrays of all iterators."""
        return _renamed([it.provide_data for it in self.iters], self.rename_data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Descriptions of the label arrays of all iterators."""
        return _renamed([it.provide_label for it in self.iters], self.rename_label)

    def _read_ahead(self) -> None:
        resumable = all(hasattr(it, "state_dict") for it in self.iters)
        self._positions = [it.state_dict() for it in self.iters] if resumable else []
        self._pool = self._pool or ThreadPoolExecutor(len(self.iters), thread_name_prefix="jfit-prefetch")
        self._ahead = [self._pool.submit(next, it, None) for it in self.iters]
        self._failed = False

    def reset(self) -> None:
        """Start the next epoch; drop batches read ahead, and a pending error of an iterator."""
        wait(self._ahead)
        for it in self.iters:
            it.reset()
        self._read_ahead()

    def iter_next(self) -> bool:
        """Advance to the next batch; return False at the end of the epoch.

        Raises:
            ValueError: the iterators end at different batches, or have different `pad`.
            RuntimeError: the iterator is closed, or an earlier call raised an iterator's error; call `reset`.
            Exception: an error of one of the iterators, raised once.
        """
        if self._pool is None or self._failed:
            raise RuntimeError("this PrefetchingIter was closed, or one of its iterators raised an error; call reset().")
        wait(self._ahead)
        self._failed = any(future.exception() for future in self._ahead)
        batches = [future.result() for future in self._ahead]
        pads = ["ended" if b is None else b.pad for b in batches]
        if len(set(pads)) > 1:
            raise ValueError(f"the iterators of a PrefetchingIter end at different batches or padding rows: {pads}.")
        if batches[0] is None:
            return False
        self._read_ahead()
        self.current_batch = DataBatch(
            [a for b in batches for a in b.data],
            [a for b in batches for a in b.label or []],
            batches[0].pad,
            batches[0].index,
            provide_data=self.provide_data,
            provide_label=self.provide_label,
        )
        self.current_batch.rolled = getattr(batches[0], "rolled", False)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the positions of the iterators after the last batch returned (batches read ahead are not included)."""
        return {"iters": self._positions or [it.state_dict() for it in self.iters]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of iterators over the same data."""
        wait(self._ahead)
        for it, position in zip(self.iters, state["iters"], strict=True):
            it.load_state_dict(position)
        self._read_ahead()

    def close(self) -> None:
        """End the threads and drop batches read ahead."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._ahead = None, []


def _renamed(groups: Sequence[Sequence[Any]], names: Sequence[Mapping[str, str]] | None) -> list[DataDesc]:
    maps = names or [{}] * len(groups)
    pairs = [(d, m.get(d[0], d[0])) for group, m in zip(groups, maps, strict=True) for d in group]
    return [DataDesc(name, d[1], getattr(d, "dtype", "float32"), getattr(d, "layout", "NCHW")) for d, name in pairs]
