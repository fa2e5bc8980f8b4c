"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

import typing

from . import sparse as sparse
from jfit.mxnet import numpy as np, random as random
from jfit.mxnet.ndarray.array import NDArray as NDArray, invoke as invoke
from jfit.mxnet.ndarray.create import (
    arange as arange, array as array, cast_storage as cast_storage, concatenate as concatenate, empty as empty, eye as eye,
    from_dlpack as from_dlpack, from_numpy as from_numpy, full as full, histogram as histogram, linspace as linspace,
    load as load, load_frombuffer as load_frombuffer, moveaxis as moveaxis, onehot_encode as onehot_encode, ones as ones,
    save as save, split_v2 as split_v2, to_dlpack_for_read as to_dlpack_for_read, to_dlpack_for_write as to_dlpack_for_write,
    waitall as waitall, zeros as zeros,
)
from jfit.mxnet.ndarray.namespaces import contrib as contrib, image as image, linalg as linalg, npx as npx, op as op
from jfit.mxnet.ndarray.sparse import CSRNDArray as CSRNDArray, RowSparseNDArray as RowSparseNDArray

_internal: typing.Any

def __getattr__(name: str) -> typing.Any: ...  # the operators
