"""Iterators made of iterators: epochs of another length, several side by side and read ahead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from jfit.data.ndarray_iter import DataBatch, DataDesc, WholeBatches


def position_of(source: Any) -> Any:
    """The `state_dict()` of an iterator.

    Raises:
        ValueError: it keeps no position.
    """
    if not hasattr(source, "state_dict"):
        raise ValueError(f"a {type(source).__name__} has no state_dict, so its position cannot be kept; give it one.")
    return source.state_dict()


class ResizeIter(WholeBatches):
    """So many batches an epoch, whatever the inner iterator's epoch is; it starts again where it ends.

    Args:
        data_iter: the inner iterator.
        size: batches an epoch.
        reset_internal: `reset` resets the inner iterator too.

    Raises:
        ValueError: size is below 1.

    Example:
        >>> import numpy as np
        >>> from jfit.data import NDArrayIter
        >>> it = ResizeIter(NDArrayIter(np.arange(4.0), batch_size=2), 3)
        >>> [b.data[0].tolist() for b in it]
        [[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]]

    Source: mxnet.io.ResizeIter of Apache MXNet 1.9.1.
    """

    def __init__(self, data_iter: Any, size: int, reset_internal: bool = True) -> None:
        if size < 1:
            raise ValueError(f"size of a ResizeIter is {size}, at least 1 batch an epoch is needed.")
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
        """Move on by one batch; False at the end of the epoch."""
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
        """Batches of the epoch, and the inner iterator's position."""
        return {"cur": self.cur, "inner": position_of(self.data_iter)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of an iterator over the same data."""
        self.data_iter.load_state_dict(state["inner"])
        self.cur = int(state["cur"])


class PrefetchingIter(WholeBatches):
    """Several iterators side by side, each read one batch ahead by a thread; their data and labels are put together.

    The threads end with `close()`, or when the last reference is dropped; `reset` starts them again.

    Args:
        iters: iterator, or list of iterators of equal length and batch size.
        rename_data: for each iterator a dict old name -> new name.
        rename_label: the same for labels.

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
        if not self.iters:
            raise ValueError("PrefetchingIter needs at least one iterator")
        self.rename_data, self.rename_label = rename_data, rename_label
        super().__init__(self.provide_data[0].shape[0])
        self.last_batch_handle = getattr(self.iters[0], "last_batch_handle", "pad")
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: list[Future[Any]] = []
        self._positions: list[Any] = []  # of the iterators, behind what was handed out
        self._failed = False
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
        kept = all(hasattr(it, "state_dict") for it in self.iters)
        self._positions = [it.state_dict() for it in self.iters] if kept else []
        self._pool = self._pool or ThreadPoolExecutor(len(self.iters), thread_name_prefix="jfit-prefetch")
        self._ahead = [self._pool.submit(_next_or_none, it) for it in self.iters]

    def reset(self) -> None:
        """Start the next epoch; what was read ahead is dropped, an error of an iterator too."""
        wait(self._ahead)
        for it in self.iters:
            it.reset()
        self._failed = False
        self._read_ahead()

    def iter_next(self) -> bool:
        """Move on by one batch; False at the end of the epoch.

        Raises:
            ValueError: the iterators end at different batches, or pad differently.
            Exception: what one of the iterators raised, once; RuntimeError from then on, and after `close`, until `reset`.
        """
        if self._pool is None:
            raise RuntimeError("this PrefetchingIter was closed; call reset()")
        if self._failed:
            raise RuntimeError("an iterator of this PrefetchingIter has raised, and the others went on; call reset()")
        wait(self._ahead)
        self._failed = any(future.exception() for future in self._ahead)
        found = [future.result() for future in self._ahead]
        ended = [b is None for b in found]
        if any(ended):
            if not all(ended):
                raise ValueError("the iterators of a PrefetchingIter end at different batches; give them equal lengths")
            return False
        if len({b.pad for b in found}) > 1:
            raise ValueError(f"the iterators of a PrefetchingIter pad differently: {[b.pad for b in found]} rows")
        self._read_ahead()
        self.current_batch = DataBatch(
            [a for b in found for a in b.data],
            [a for b in found for a in b.label or []],
            found[0].pad,
            found[0].index,
            provide_data=self.provide_data,
            provide_label=self.provide_label,
        )
        self.current_batch.rolled = getattr(found[0], "rolled", False)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Positions of the iterators behind the batch that was handed out last; what was read ahead does not count.

        Raises:
            ValueError: an iterator keeps no position.
        """
        return {"iters": self._positions or [position_of(it) for it in self.iters]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of iterators over the same data."""
        wait(self._ahead)
        for it, position in zip(self.iters, state["iters"], strict=True):
            it.load_state_dict(position)
        self._failed = False
        self._read_ahead()

    def close(self) -> None:
        """End the threads; what was read ahead is dropped."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._ahead = None, []


def _next_or_none(it: Any) -> Any:
    try:
        return it.next()
    except StopIteration:
        return None


def _renamed(groups: Sequence[Sequence[Any]], names: Sequence[Mapping[str, str]] | None) -> list[DataDesc]:
    maps = names or [{}] * len(groups)
    found = [(d, m.get(d[0], d[0])) for group, m in zip(groups, maps, strict=True) for d in group]
    return [DataDesc(name, d[1], getattr(d, "dtype", "float32"), getattr(d, "layout", "NCHW")) for d, name in found]
