"""`mx.io`: MXNet's data iterators, whose batches contain NDArrays.

>>> import jfit.mx as mx, numpy as np
>>> batch = next(mx.io.NDArrayIter(np.arange(6.0).reshape(3, 2), batch_size=2))
>>> batch.data[0].asnumpy().tolist(), batch.pad
([[0.0, 1.0], [2.0, 3.0]], 0)
"""

from __future__ import annotations

from typing import Any, NoReturn

from jfit import data
from jfit.data import DataBatch, DataDesc, DataIter, PrefetchingIter, ResizeIter
from jfit.mxnet.image.record_iter import ImageRecordInt8Iter, ImageRecordIter, ImageRecordUInt8Iter
from jfit.mxnet.io.files import CSVIter, LibSVMIter, MNISTIter, MXDataIter
from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray.create import as_ndarrays, from_host

__all__ = [
    "CSVIter", "DataBatch", "DataDesc", "DataIter", "ImageRecordInt8Iter", "ImageRecordIter", "ImageRecordIter_v1",
    "ImageRecordUInt8Iter", "ImageRecordUInt8Iter_v1", "LibSVMIter", "MNISTIter", "MXDataIter", "NDArrayIter",
    "PrefetchingIter", "ResizeIter",
]  # fmt: skip

ImageRecordIter_v1, ImageRecordUInt8Iter_v1 = ImageRecordIter, ImageRecordUInt8Iter  # MXNet's older names


class NDArrayIter(data.NDArrayIter):
    """Iterate over batches of arrays in memory: `jfit.data.NDArrayIter` with NDArrays in its batches.

    Args:
        data: and all other arguments (label, batch_size, shuffle, last_batch_handle, ...): see `jfit.data.NDArrayIter`.

    Example:
        >>> import numpy as np
        >>> [b.label[0].asnumpy().tolist() for b in NDArrayIter(np.zeros((3, 1)), np.arange(3), batch_size=2)]
        [[0.0, 1.0], [2.0, 0.0]]
    """

    plain = True  # as in the base class: batches are rows of the arrays, so `fit` may read the arrays instead of the batches

    @property
    def data(self) -> list[tuple[str, Any]]:
        """The data: a list of (name, NDArray)."""
        return [(name, as_ndarrays(a)) for name, a in self.sources[0]]

    @property
    def label(self) -> list[tuple[str, Any]]:
        """The labels: a list of (name, NDArray)."""
        return [(name, as_ndarrays(a)) for name, a in self.sources[1]]

    @property
    def cursor(self) -> int:
        """Number of rows before the current batch; -batch_size before the first one, minus the number of rows rolled over."""
        return self._position * self.batch_size - len(self._carry)

    @cursor.setter
    def cursor(self, rows: int) -> None:
        self._position = (rows + len(self._carry)) // self.batch_size

    @property
    def idx(self) -> Any:
        """Row indices in reading order, without rows that were rolled over; (rows,) int64.

        As in MXNet, the data keeps its order if another array is assigned.
        """
        return self._order

    @idx.setter
    def idx(self, order: Any) -> None:
        pass

    def _pick(self, named: list[tuple[str, Any]]) -> list[Any]:
        return [from_host(a if getattr(a, "base", None) is None else a.copy()) for a in super()._pick(named)]


def __getattr__(name: str) -> NoReturn:
    absent("mx.io", name, __all__)
