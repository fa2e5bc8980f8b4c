"""Batches of sparse rows from text files of `label index:value ...`."""

from __future__ import annotations

import functools
import math
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
    """Batches of equal size from a file with a line `label index:value index:value ...` for each row; read block by block.

    Data come as `jfit.formats.SparseArray` in compressed rows (CSR); `jfit.fit`, `score` and `predict` make a batch dense on
    its way to the devices.  Each epoch begins at the first row, and the last batch is filled up with rows of the start.

    Args:
        data_libsvm: the file, several with `;` between them, or a folder of files; indices count from 0.
        data_shape: (columns,).
        label_libsvm: file of the same format whose rows are the labels, as compressed rows; None (or "NULL"): the label is the
            first number of each line of the data.
        label_shape: (columns,) of the labels; (1,) without a file of their own.
        batch_size: rows of a batch.
        round_batch: True; nothing else is possible.
        num_parts: read one of so many parts of the file, about equal in bytes.
        part_index: which one, from 0.
        dtype: of values and labels.
        data_name: name of the data.
        label_name: name of the labels.

    Raises:
        FormatError: a line is no row; the message names file and line.
        FileNotFoundError: there is no such file.
        ValueError: no rows, fewer labels than rows, or shapes that such a file cannot have.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("x.libsvm").write_text("1 0:0.5 2:1.5\\n-1 1:2\\n")
        >>> batch = LibSVMIter("x.libsvm", (3,), batch_size=2).next()
        >>> batch.data[0].todense().tolist(), batch.label[0].tolist()
        ([[0.5, 0.0, 1.5], [0.0, 2.0, 0.0]], [1.0, -1.0])

    Source: mxnet.io.LibSVMIter of Apache MXNet 1.9.1, whose next epoch leaves out the rows that filled the last batch up.
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
        kind, own = number_type(dtype), label_libsvm is not None and label_libsvm != "NULL"
        columns, label_columns = row_shape(data_shape, "data_shape"), row_shape(label_shape, "label_shape")
        _check(columns, label_columns, own, round_batch)
        readers = [_reader(data_libsvm, columns[0], kind, num_parts, part_index)]
        if own:
            # rows of a part of the labels would not be those of the same part of the data
            if num_parts != 1:
                raise ValueError(
                    "num_parts is above 1 and label_libsvm is given; rows and labels are cut together in one file only."
                )
            readers.append(_reader(label_libsvm, label_columns[0], kind, 1, 0))
        data = [DataDesc(data_name, (batch_size, *columns), kind.type)]
        label = [DataDesc(label_name, (batch_size, *(label_columns if own else ())), kind.type)]
        super().__init__(readers, batch_size, True, data, label)

    def _arrays(self, columns: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        # rows and labels of the data, then those of the labels' own file
        return [columns[0]], list(columns[2:3] or columns[1:2])


def _reader(where: Any, columns: int, dtype: np.dtype[Any], parts: int, part: int) -> RowReader:
    return RowReader(TextFiles(where, parts, part), functools.partial(parse_libsvm, columns=columns, dtype=dtype))


def _check(columns: tuple[int, ...], label_columns: tuple[int, ...], own: bool, round_batch: bool) -> None:
    if len(columns) != 1 or len(label_columns) != 1:
        raise ValueError(f"data_shape is {columns}, label_shape is {label_columns}; rows of this format have one axis.")
    if own and math.prod(label_columns) == 1:
        raise ValueError("label_shape is (1,) and label_libsvm is given; labels of one number are read from data_libsvm.")
    if not own and math.prod(label_columns) != 1:
        raise ValueError(f"label_shape is {label_columns}; without label_libsvm a label is one number, (1,).")
    if not round_batch:
        raise ValueError("round_batch is False; the last batch of sparse rows is always filled up with rows of the start.")
