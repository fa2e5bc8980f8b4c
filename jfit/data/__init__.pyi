"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.data.adapters import as_data as as_data
from jfit.data.arrays import ArrayData as ArrayData, to_array as to_array
from jfit.data.batch import (
    Batch as Batch, Names as Names, check_batch as check_batch, pad_rows as pad_rows,
    rows as rows,
)
from jfit.data.combine import PrefetchingIter as PrefetchingIter, ResizeIter as ResizeIter
from jfit.data.files.csv_iter import CSVIter as CSVIter
from jfit.data.files.libsvm_iter import LibSVMIter as LibSVMIter
from jfit.data.files.mnist_iter import MNISTIter as MNISTIter
from jfit.data.images import ImageRecords as ImageRecords
from jfit.data.ndarray_iter import (
    DataBatch as DataBatch, DataDesc as DataDesc, DataIter as DataIter, NDArrayIter as NDArrayIter,
)
from jfit.data.parts import shard as shard
from jfit.data.prefetch import DataTimeout as DataTimeout, Prefetch as Prefetch, prefetch as prefetch
from jfit.data.row_batches import Rows as Rows
from jfit.data.stream import StreamData as StreamData
