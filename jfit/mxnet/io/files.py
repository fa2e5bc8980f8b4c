"""MXNet's iterators over files: its arguments for those of `jfit.data`, their arrays as NDArrays."""

from __future__ import annotations

import ast
import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from jfit import data
from jfit.data import DataBatch, DataIter
from jfit.formats import FormatError
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.ndarray.create import as_ndarrays
from jfit.ops.registry import nearest

# Arguments of MXNet's readers that say how the work is done, or that old scripts pass although they do nothing.
_UNUSED = ("prefetch_buffer", "ctx", "input_shape", "preprocess_threads", "verbose")


class MXDataIter(DataIter):
    """What MXNet's iterators over files have in common: one data and one label array a batch, first batch at hand.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.csv").write_text("1,2\\n3,4\\n")
        >>> it = CSVIter(data_csv="x.csv", data_shape=(2,), batch_size=2)
        >>> isinstance(it, MXDataIter), it.first_batch.data[0].shape, it.next().pad
        (True, (2, 2), 0)
    """

    _skips_load = False

    def next(self) -> DataBatch:
        """The next batch.  Raises StopIteration at the end of the epoch."""
        if self._skips_load and getattr(self, "batches_read", 0):
            return self._batch()
        with _refused():
            if not self.iter_next():
                raise StopIteration
        return self._batch()

    def _batch(self) -> DataBatch:
        return DataBatch([self.getdata()], [self.getlabel()], self.getpad(), self.getindex())

    @property
    def first_batch(self) -> DataBatch | None:
        """The first batch while none was read, then None."""
        if getattr(self, "batches_read", 0):
            return None
        source: Any = self
        start = source.state_dict()
        batch = self.next()
        source.load_state_dict(start)
        return batch

    def debug_skip_load(self) -> None:
        """Give the batch read last again and again: how fast a training is that need not wait for data."""
        self._skips_load = True
        logging.info("Set debug_skip_load to be true, will simply return first batch")

    def getdata(self) -> Any:
        """The data of the current batch: one array."""
        return as_ndarrays(super().getdata()[0])

    def getlabel(self) -> Any:
        """The labels of the current batch: one array."""
        return as_ndarrays(super().getlabel()[0])


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """What MXNet's readers would refuse raises MXNetError, as scripts expect; the sentence stays."""
    try:
        with translated():
            yield
    except (FormatError, MXNetError):
        raise
    except ValueError as error:
        raise MXNetError(str(error)) from error


def _arguments(kind: type, positional: tuple[Any, ...], given: dict[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    """MXNet's arguments as those of `kind`, texts as the values they stand for."""
    name = kind.__name__
    if positional:
        raise TypeError(f"{name} takes keyword arguments only, found {len(positional)} others; name them, as in batch_size=32.")
    missing = [key for key in needed if key not in given]
    if missing:
        raise MXNetError(f"{name}: the argument {', '.join(missing)} is missing; it has no default.")
    known = [key for key in inspect.signature(kind.__init__).parameters if key != "self"]
    found = {}
    for key, value in given.items():
        if key in known:
            found[key] = value_of(key, value)
        elif key not in _UNUSED:
            ignore(name, key, known, 5)
    return found


def ignore(name: str, key: str, known: Sequence[str], level: int) -> None:
    """Warns of an argument that an iterator does not have; MXNet's readers ignore such ones without a word."""
    near = nearest(key, known)
    warnings.warn(f"{name} has no argument {key!r}: ignored{f', did you mean {near}?' if near else ''}", stacklevel=level)


def value_of(key: str, value: Any) -> Any:
    """The value that an argument written as text stands for, as in `batch_size="32"`.

    Raises:
        MXNetError: it stands for none.
    """
    if not isinstance(value, str) or key in ("dtype", "data_name", "label_name") or key.endswith(("_csv", "_libsvm")):
        return value
    if key in ("image", "label"):
        return value
    try:
        return {"true": True, "false": False}.get(value.lower(), ast.literal_eval(value.capitalize()))
    except (ValueError, SyntaxError):
        raise MXNetError(f"{key} is {value!r}; needed a number, a truth value or a shape.") from None


class _FileIter(MXDataIter):
    """An iterator over a file in MXNet's arguments, all of them named, any of them as text."""

    _source: ClassVar[type]
    _needed: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}  # where they are not those of `_source`

    def __init__(self, *args: Any, **kwargs: Any):
        found = _arguments(self._source, args, self._defaults | kwargs, self._needed)
        with _refused():
            self._source.__init__(self, **found)


class CSVIter(_FileIter, data.CSVIter):
    """Batches from a table of numbers; see `jfit.data.CSVIter`, whose arrays these are, as NDArrays.

    Args:
        args: none; arguments are named.
        kwargs: data_csv, data_shape, label_csv="NULL", label_shape=(1,), batch_size, round_batch=True, dtype=None, data_name,
            label_name; prefetch_buffer and ctx are taken and do nothing.

    Raises:
        MXNetError: an argument is missing, a file too or it is damaged.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.csv").write_text("1,2\\n3,4\\n5,6\\n")
        >>> it = CSVIter(data_csv="x.csv", data_shape=(2,), batch_size=2)
        >>> [(b.data[0].asnumpy().tolist(), b.pad) for b in it]
        [([[1.0, 2.0], [3.0, 4.0]], 0), ([[5.0, 6.0], [1.0, 2.0]], 1)]
    """

    _source, _needed = data.CSVIter, ("data_csv", "data_shape", "batch_size")


class LibSVMIter(_FileIter, data.LibSVMIter):
    """Batches of sparse rows; see `jfit.data.LibSVMIter`, whose arrays these are, as NDArrays: data as CSRNDArray.

    Args:
        args: none; arguments are named.
        kwargs: data_libsvm, data_shape, label_libsvm="NULL", label_shape=(1,), batch_size, round_batch=True, num_parts=1,
            part_index=0, dtype=None, data_name, label_name; prefetch_buffer and ctx are taken and do nothing.

    Raises:
        MXNetError: an argument is missing, a file too or it is damaged.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.libsvm").write_text("1 0:0.5 2:1.5\\n-1 1:2\\n")
        >>> batch = LibSVMIter(data_libsvm="x.libsvm", data_shape=(3,), batch_size=2).next()
        >>> batch.data[0].stype, batch.label[0].asnumpy().tolist()
        ('csr', [1.0, -1.0])
    """

    _source, _needed = data.LibSVMIter, ("data_libsvm", "data_shape", "batch_size")


class MNISTIter(_FileIter, data.MNISTIter):
    """Batches of images in MNIST's format; see `jfit.data.MNISTIter`, whose arrays these are, as NDArrays.

    Args:
        args: none; arguments are named.
        kwargs: image, label, batch_size=128, shuffle=True, flat=False, seed=0, silent=False, num_parts=1, part_index=0,
            dtype=None, data_name, label_name; prefetch_buffer, ctx and input_shape are taken and do nothing.

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
