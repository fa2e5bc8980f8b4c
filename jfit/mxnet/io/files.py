"""MXNet's iterators over files: the iterators of `jfit.data` with MXNet's arguments and NDArrays in their batches."""

from __future__ import annotations

import ast
import contextlib
import inspect
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from jfit import data
from jfit.data import DataBatch, DataIter
from jfit.formats import FormatError
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.ndarray.create import as_ndarrays
from jfit.ops.registry import nearest

# Arguments of MXNet's iterators that do not change the batches; accepted and ignored.
_IGNORED = ("prefetch_buffer", "ctx", "input_shape", "preprocess_threads", "verbose")
# Arguments that are strings.
_TEXTS = ("dtype", "data_name", "label_name", "image", "label", "data_csv", "label_csv", "data_libsvm", "label_libsvm")


class MXDataIter(DataIter):
    """Base of MXNet's iterators over files: one data array and one label array per batch.

    Args:
        args: those of the subclass.
        kwargs: those of the subclass.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.csv").write_text("1,2\\n3,4\\n")
        >>> it = CSVIter(data_csv="x.csv", data_shape=(2,), batch_size=2)
        >>> isinstance(it, MXDataIter), it.next().data[0].shape
        (True, (2, 2))
    """

    def next(self) -> DataBatch:
        """Return the next batch.

        Raises:
            StopIteration: the epoch has ended.
        """
        with _as_mxnet_error():
            if not self.iter_next():
                raise StopIteration
        return DataBatch([self.getdata()], [self.getlabel()], self.getpad(), self.getindex())

    def getdata(self) -> Any:
        """Return the data of the current batch, one NDArray."""
        return as_ndarrays(super().getdata()[0])

    def getlabel(self) -> Any:
        """Return the labels of the current batch, one NDArray."""
        return as_ndarrays(super().getlabel()[0])


@contextlib.contextmanager
def _as_mxnet_error() -> Iterator[None]:
    """Re-raise a ValueError as MXNetError with the same message, which MXNet scripts expect."""
    try:
        with translated():
            yield
    except (FormatError, MXNetError):
        raise
    except ValueError as error:
        raise MXNetError(str(error)) from error


def warn_ignored(name: str, key: str, parameters: Sequence[str], stacklevel: int) -> None:
    """Warn that an iterator has no argument `key` and ignores it; MXNet ignores such arguments silently."""
    near = nearest(key, parameters)
    warnings.warn(f"{name} has no argument {key!r}: ignored{f', did you mean {near}?' if near else ''}", stacklevel=stacklevel)


def value_of(key: str, value: Any) -> Any:
    """Parse an argument that may be a string, as in `batch_size="32"`; names and paths are returned unchanged.

    Raises:
        MXNetError: the string is not a Python literal.
    """
    if not isinstance(value, str) or key in _TEXTS:
        return value
    try:
        return {"true": True, "false": False}.get(value.lower(), ast.literal_eval(value.capitalize()))
    except (ValueError, SyntaxError):
        raise MXNetError(f"{key} is {value!r}; expected a number, a boolean or a shape.") from None


class _FileIter(MXDataIter):
    """Base of the iterators over a file: MXNet's keyword arguments, whose values may be strings."""

    _source: ClassVar[type]
    _defaults: ClassVar[dict[str, Any]] = {}  # MXNet's defaults that differ from those of `_source`

    def __init__(self, **kwargs: Any):
        parameters, arguments = list(inspect.signature(self._source).parameters), {}
        for key, value in (self._defaults | kwargs).items():
            if key in parameters:
                arguments[key] = value_of(key, value)
            elif key not in _IGNORED:
                warn_ignored(self._source.__name__, key, parameters, 4)
        with _as_mxnet_error():
            self._source.__init__(self, **arguments)


class CSVIter(_FileIter, data.CSVIter):
    """Iterate over batches of rows of a CSV file: `jfit.data.CSVIter` with MXNet's arguments and NDArrays in its batches.

    Args:
        kwargs: data_csv, data_shape, label_csv="NULL", label_shape=(1,), batch_size, round_batch=True, dtype=None, data_name,
            label_name: see `jfit.data.CSVIter`.  prefetch_buffer and ctx are accepted and ignored.

    Raises:
        MXNetError: a file is missing or damaged.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.csv").write_text("1,2\\n3,4\\n5,6\\n")
        >>> it = CSVIter(data_csv="x.csv", data_shape=(2,), batch_size=2)
        >>> [(b.data[0].asnumpy().tolist(), b.pad) for b in it]
        [([[1.0, 2.0], [3.0, 4.0]], 0), ([[5.0, 6.0], [1.0, 2.0]], 1)]
    """

    _source = data.CSVIter


class LibSVMIter(_FileIter, data.LibSVMIter):
    """Iterate over batches of sparse rows of a LibSVM file: `jfit.data.LibSVMIter` with a CSRNDArray as data.

    Args:
        kwargs: data_libsvm, data_shape, label_libsvm="NULL", label_shape=(1,), batch_size, round_batch=True, num_parts=1,
            part_index=0, dtype=None, data_name, label_name: see `jfit.data.LibSVMIter`.  prefetch_buffer and ctx are accepted
            and ignored.

    Raises:
        MXNetError: a file is missing or damaged.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.libsvm").write_text("1 0:0.5 2:1.5\\n-1 1:2\\n")
        >>> batch = LibSVMIter(data_libsvm="x.libsvm", data_shape=(3,), batch_size=2).next()
        >>> batch.data[0].stype, batch.label[0].asnumpy().tolist()
        ('csr', [1.0, -1.0])
    """

    _source = data.LibSVMIter


class MNISTIter(_FileIter, data.MNISTIter):
    """Iterate over batches of images in MNIST's file format: `jfit.data.MNISTIter` with NDArrays in its batches.

    Args:
        kwargs: image, label, batch_size=128, shuffle=True, flat=False, seed=0, silent=False, num_parts=1, part_index=0,
            dtype=None, data_name, label_name: see `jfit.data.MNISTIter`.  prefetch_buffer, ctx and input_shape are accepted
            and ignored.

    Raises:
        MXNetError: a file is missing or damaged.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("images").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 64, 128, 192]))
        >>> _ = Path("labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
        >>> MNISTIter(image="images", label="labels", batch_size=2, silent=True).next().data[0].shape
        (2, 1, 1, 2)
    """

    _source = data.MNISTIter
    _defaults: ClassVar = {"silent": False}
