"""`CSVIter`: batches of rows from comma-separated text files."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import numpy as np

from jfit.data.files.file_iter import FileIter
from jfit.data.files.numbers import parse_table
from jfit.data.files.text import RowReader, TextFiles
from jfit.data.ndarray_iter import DataDesc

Path = str | os.PathLike[str]


class CSVIter(FileIter):
    """Iterate over comma-separated files, one row of numbers per line, in batches of equal size; files are read in blocks.

    Every epoch starts at the first row.  A short last batch is padded to `batch_size` rows, and `pad` is the number of padding
    rows.

    Args:
        data_csv: path of a file, several paths separated by ";", or a folder of files.
        data_shape: shape of one row; each line has prod(data_shape) numbers.
        label_csv: file of labels, one row per line; None (or "NULL"): all labels are 0.
        label_shape: shape of one label; labels of one number have the batch shape (batch_size,).
        batch_size: number of rows per batch.
        round_batch: padding rows of the last batch: True: rows from the start of the file; False: the rows at the same
            positions of the previous batch.
        dtype: dtype of data and labels: float32, float64, float16, or an integer dtype that can hold all numbers.
        data_name: name of the data.
        label_name: name of the labels.

    Raises:
        FormatError: a line cannot be parsed; the message names file, line and column.
        FileNotFoundError: a file does not exist.
        ValueError: an empty file, or fewer labels than rows.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.csv").write_text("1,2\\n3,4\\n5,6\\n")
        >>> [(b.data[0].tolist(), b.pad) for b in CSVIter("x.csv", (2,), batch_size=2)]
        [([[1.0, 2.0], [3.0, 4.0]], 0), ([[5.0, 6.0], [1.0, 2.0]], 1)]

    Source: mxnet.io.CSVIter of Apache MXNet 1.9.1 (which skips, in the next epoch, the rows that padded the last batch).
    """

    def __init__(
        self,
        data_csv: Path,
        data_shape: tuple[int, ...],
        label_csv: Path | None = None,
        label_shape: tuple[int, ...] = (1,),
        batch_size: int = 1,
        round_batch: bool = True,
        dtype: Any = np.float32,
        data_name: str = "data",
        label_name: str = "softmax_label",
    ):
        kind = number_type(dtype)
        self._data_shape, self._label_shape = row_shape(data_shape), row_shape(label_shape)
        if math.prod(self._label_shape) == 1:
            self._label_shape = ()
        self._zeros = np.zeros((max(0, batch_size), *self._label_shape), kind)
        readers = [_reader(data_csv, self._data_shape, kind)]
        if label_csv is not None and label_csv != "NULL":
            readers.append(_reader(label_csv, self._label_shape, kind))
        data = [DataDesc(data_name, (batch_size, *self._data_shape), kind.type)]
        label = [DataDesc(label_name, (batch_size, *self._label_shape), kind.type)]
        super().__init__(readers, batch_size, round_batch, data, label)

    def _arrays(self, columns: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        data = columns[0].reshape(-1, *self._data_shape)
        label = columns[1].reshape(-1, *self._label_shape) if len(columns) > 1 else self._zeros.copy()
        return [data], [label]


def _reader(where: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RowReader:
    columns = math.prod(shape)
    return RowReader(TextFiles(where, numbers=columns), functools.partial(_table, columns=columns, dtype=dtype))


def _table(text: bytes, columns: int, dtype: np.dtype[Any]) -> tuple[np.ndarray]:
    return (parse_table(text, columns, dtype),)


def row_shape(shape: Any) -> tuple[int, ...]:
    """Convert a tuple or a single int to a shape."""
    return tuple(int(size) for size in (shape if isinstance(shape, (tuple, list)) else (shape,)))


def number_type(dtype: Any) -> np.dtype[Any]:
    """Convert a `dtype` argument to a NumPy dtype; None: float32."""
    return np.dtype(np.float32 if dtype in (None, "None") else dtype)
