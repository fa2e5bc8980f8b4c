"""`LibSVMIter`: batches of sparse rows from text files with lines `label index:value ...`."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from jfit.data.files.csv_iter import number_type, row_shape
from jfit.data.files.file_iter import FileIter
from jfit.data.files.numbers import parse_libsvm
from jfit.data.files.text import RowReader, TextFiles
from jfit.data.ndarray_iter import DataDesc

Path = str | os.PathLike[str]


class LibSVMIter(FileIter):
    """Iterate over LibSVM files, one row `label index:value index:value ...` per line, in batches of equal size.

    The data of a batch is a CSR `jfit.formats.SparseArray`; `jfit.fit`, `score` and `predict` convert it to a dense array
    before the transfer to the device.  Files are read in blocks, every epoch starts at the first row, and a short last batch is
    padded with rows from the start.

    Args:
        data_libsvm: path of a file, several paths separated by ";", or a folder of files; indices start at 0.
        data_shape: shape of one row, (columns,).
        label_libsvm: file of the same format whose rows are the labels (CSR); None (or "NULL"): the label is the first number
            of each line of `data_libsvm`.
        label_shape: shape of one label, (columns,); (1,) without `label_libsvm`.
        batch_size: number of rows per batch.
        round_batch: must be True.
        num_parts: number of parts of the file, about equal in bytes, of which one is read.
        part_index: index of the part to read, from 0.
        dtype: dtype of values and labels.
        data_name: name of the data.
        label_name: name of the labels.

    Raises:
        FormatError: a line cannot be parsed; the message names file and line.
        FileNotFoundError: a file does not exist.
        ValueError: an empty file, fewer labels than rows, or an unsupported combination of arguments.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.libsvm").write_text("1 0:0.5 2:1.5\\n-1 1:2\\n")
        >>> batch = LibSVMIter("x.libsvm", (3,), batch_size=2).next()
        >>> batch.data[0].todense().tolist(), batch.label[0].tolist()
        ([[0.5, 0.0, 1.5], [0.0, 2.0, 0.0]], [1.0, -1.0])

    Source: mxnet.io.LibSVMIter of Apache MXNet 1.9.1 (which skips, in the next epoch, the rows that padded the last batch).
    """

    def __init__(
        self,
        data_libsvm: Path,
        data_shape: tuple[int, ...],
        label_libsvm: Path | None = None,
        label_shape: tuple[int, ...] = (1,),
        batch_size: int = 1,
        round_batch: bool = True,
        num_parts: int = 1,
        part_index: int = 0,
        dtype: Any = np.float32,
        data_name: str = "data",
        label_name: str = "softmax_label",
    ):
        kind, label_file = number_type(dtype), label_libsvm is not None and label_libsvm != "NULL"
        shapes = {"data_shape": row_shape(data_shape), "label_shape": row_shape(label_shape)}
        for name, shape in shapes.items():
            if len(shape) != 1:
                raise ValueError(f"LibSVMIter: {name} is {shape}, expected (columns,): its batches are matrices")
        [columns], [label_columns] = shapes.values()
        # Parts are cut by bytes: part k of the labels would belong to other rows than part k of the data.
        if not round_batch or (label_file and num_parts != 1):
            raise ValueError("LibSVMIter supports neither round_batch=False nor num_parts with label_libsvm")
        readers = [_reader(data_libsvm, columns, kind, num_parts, part_index)]
        if label_file:
            readers.append(_reader(label_libsvm, label_columns, kind, 1, 0))
        data = [DataDesc(data_name, (batch_size, columns), kind.type)]
        label = [DataDesc(label_name, (batch_size, label_columns) if label_file else (batch_size,), kind.type)]
        super().__init__(readers, batch_size, True, data, label)

    def _arrays(self, columns: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        # columns: data rows, labels in the data file and, with a label file, its rows
        return [columns[0]], list(columns[2:3] or columns[1:2])


def _reader(where: Any, columns: int, dtype: np.dtype[Any], parts: int, part: int) -> RowReader:
    return RowReader(TextFiles(where, parts, part, columns), functools.partial(parse_libsvm, columns=columns, dtype=dtype))
