"""`mx.io`: MXNet's iterators, their arrays as NDArrays.

>>> import jfit.mx as mx, numpy as np
>>> batch = next(mx.io.NDArrayIter(np.arange(6.0).reshape(3, 2), batch_size=2))
>>> batch.data[0].asnumpy().tolist(), batch.pad
([[0.0, 1.0], [2.0, 3.0]], 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NoReturn

from jfit import data
from jfit.data import DataBatch, DataDesc, DataIter
from jfit.mx.image.record_iter import ImageRecordInt8Iter, ImageRecordIter, ImageRecordUInt8Iter
from jfit.mx.nd.array import NDArray, held
from jfit.mx.spelling import absent

__all__ = [
    "DataBatch",
    "DataDesc",
    "DataIter",
    "ImageRecordInt8Iter",
    "ImageRecordIter",
    "ImageRecordIter_v1",
    "ImageRecordUInt8Iter",
    "ImageRecordUInt8Iter_v1",
    "NDArrayIter",
    "PrefetchingIter",
    "ResizeIter",
]

ImageRecordIter_v1, ImageRecordUInt8Iter_v1 = ImageRecordIter, ImageRecordUInt8Iter  # older readers of the same files


class NDArrayIter(data.NDArrayIter):
    """Batches of equal size from arrays in memory; see `jfit.data.NDArrayIter`, whose arrays these are, boxed.

    Example:
        >>> import numpy as np
        >>> [b.label[0].asnumpy().tolist() for b in NDArrayIter(np.zeros((3, 1)), np.arange(3), batch_size=2)]
        [[0.0, 1.0], [2.0, 0.0]]
    """

    plain = True  # as for jfit's own: batches are rows of the arrays, so an epoch may run without asking for each of them

    def _pick(self, named: list[tuple[str, Any]]) -> list[Any]:
        return [NDArray(held(a, a.dtype)) for a in super()._pick(named)]


class ResizeIter(DataIter):
    """So many batches an epoch, whatever the inner iterator's epoch is; it starts again where it ends.

    Args:
        data_iter: the inner iterator.
        size: batches an epoch.
        reset_internal: `reset` resets the inner iterator too.

    Example:
        >>> import numpy as np
        >>> it = ResizeIter(NDArrayIter(np.arange(4.0), batch_size=2), 3)
        >>> [b.data[0].asnumpy().tolist() for b in it]
        [[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]]
    """

    def __init__(self, data_iter: Any, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter, self.size, self.reset_internal = data_iter, size, reset_internal
        self.cur, self.current_batch = 0, None
        self.provide_data, self.provide_label = data_iter.provide_data, data_iter.provide_label
        if hasattr(data_iter, "default_bucket_key"):
            self.default_bucket_key = data_iter.default_bucket_key

    def reset(self) -> None:
        """Start the next epoch."""
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def next(self) -> DataBatch:
        """The next batch.  Raises StopIteration after `size` of them."""
        if not self.iter_next():
            raise StopIteration
        assert self.current_batch is not None
        return self.current_batch

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

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return self.current_batch.data  # type: ignore[union-attr]

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return self.current_batch.label  # type: ignore[union-attr]

    def getindex(self) -> Any:
        """Row indices of the current batch, where known."""
        return self.current_batch.index  # type: ignore[union-attr]

    def getpad(self) -> int:
        """Padded rows of the current batch."""
        return self.current_batch.pad  # type: ignore[union-attr,return-value]


class PrefetchingIter(DataIter):
    """Several iterators side by side, each read one batch ahead by a thread; their data and labels are put together.

    Args:
        iters: iterator, or list of iterators of equal length and batch size.
        rename_data: for each iterator a dict old name -> new name.
        rename_label: the same for labels.

    Example:
        >>> import numpy as np
        >>> it = PrefetchingIter(NDArrayIter(np.arange(4.0), batch_size=2))
        >>> [b.data[0].asnumpy().tolist() for b in it]
        [[0.0, 1.0], [2.0, 3.0]]
    """

    def __init__(self, iters: Any, rename_data: Any = None, rename_label: Any = None) -> None:
        self.iters: Sequence[Any] = list(iters) if isinstance(iters, Iterable) and not hasattr(iters, "next") else [iters]
        if not self.iters:
            raise ValueError("PrefetchingIter needs at least one iterator")
        self.rename_data, self.rename_label = rename_data, rename_label
        super().__init__(self.provide_data[0].shape[0])
        self._pool = ThreadPoolExecutor(len(self.iters), thread_name_prefix="jfit-prefetch")
        self.current_batch: Any = None
        self._ahead: list[Future[Any]] = []
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
        self._ahead = [self._pool.submit(_next_or_none, it) for it in self.iters]

    def reset(self) -> None:
        """Start the next epoch; what was read ahead is dropped, an error of an iterator too."""
        wait(self._ahead)
        for it in self.iters:
            it.reset()
        self._failed = False
        self._read_ahead()

    def next(self) -> DataBatch:
        """The next batch.  Raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return self.current_batch

    def iter_next(self) -> bool:
        """Move on by one batch; False at the end of the epoch.

        Raises:
            ValueError: the iterators end at different batches, or pad differently.
            Exception: what one of the iterators raised, once; RuntimeError from then on, until `reset`.
        """
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

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return self.current_batch.data

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return self.current_batch.label

    def getindex(self) -> Any:
        """Row indices of the current batch, where known."""
        return self.current_batch.index

    def getpad(self) -> int:
        """Padded rows of the current batch."""
        return self.current_batch.pad


def _next_or_none(it: Any) -> Any:
    try:
        return it.next()
    except StopIteration:
        return None


def _renamed(groups: Sequence[Sequence[Any]], names: Sequence[Mapping[str, str]] | None) -> list[DataDesc]:
    maps = names or [{}] * len(groups)
    found = [(d, m.get(d[0], d[0])) for group, m in zip(groups, maps, strict=True) for d in group]
    return [DataDesc(name, d[1], getattr(d, "dtype", "float32"), getattr(d, "layout", "NCHW")) for d, name in found]


def __getattr__(name: str) -> NoReturn:
    absent("mx.io", name, __all__)
