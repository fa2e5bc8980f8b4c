"""Input pipeline: batches, arrays in memory, streams of batches, MXNet-style iterators, prefetching."""

import sys
from typing import TYPE_CHECKING

from jfit import lazy as _lazy
from jfit.data.adapters import as_data
from jfit.data.arrays import ArrayData, to_array
from jfit.data.batch import Batch, Names, check_batch, check_labels, pad_rows, rows
from jfit.data.combine import PrefetchingIter, ResizeIter
from jfit.data.ndarray_iter import DataBatch, DataDesc, DataIter, NDArrayIter
from jfit.data.parts import shard
from jfit.data.prefetch import DataTimeout, Prefetch, prefetch
from jfit.data.row_batches import Rows
from jfit.data.stream import StreamData

if TYPE_CHECKING:  # these names, each of which is imported when it is first used
    from jfit.data.files.csv_iter import CSVIter
    from jfit.data.files.libsvm_iter import LibSVMIter
    from jfit.data.files.mnist_iter import MNISTIter
    from jfit.data.images import ImageRecords

__all__ = [
    "ArrayData",
    "Batch",
    "CSVIter",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "DataTimeout",
    "ImageRecords",
    "LibSVMIter",
    "MNISTIter",
    "NDArrayIter",
    "Names",
    "Prefetch",
    "PrefetchingIter",
    "ResizeIter",
    "Rows",
    "StreamData",
    "as_data",
    "check_batch",
    "check_labels",
    "pad_rows",
    "prefetch",
    "rows",
    "shard",
    "to_array",
]

_HOMES = {
    "CSVIter": "jfit.data.files.csv_iter:CSVIter",
    "LibSVMIter": "jfit.data.files.libsvm_iter:LibSVMIter",
    "MNISTIter": "jfit.data.files.mnist_iter:MNISTIter",
    "ImageRecords": "jfit.data.images:ImageRecords",
}

_lazy.attributes(sys.modules[__name__], _HOMES)
