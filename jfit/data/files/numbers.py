"""Parsers of numeric text: comma-separated tables, and LibSVM lines `label index:value ...`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jfit.data.files.text import WrongText
from jfit.formats.sparse import SparseArray

_BOM = b"\xef\xbb\xbf"
_NUMBER = rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf(?:inity)?)"
_IS_NUMBER = re.compile(rb"\s*%b\s*" % _NUMBER, re.IGNORECASE)
# possessive (*+): a line of millions of entries needs no memory to go back in it
_SPARSE_LINE = re.compile(rb"\s*%b(?:\s+%b:%b)*+\s*" % (_NUMBER, _NUMBER, _NUMBER), re.IGNORECASE)
Cell = tuple[int, str, bytes]  # number of a line, what stands before the cell in a message, text of the cell


def parse_table(text: bytes, columns: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Parse lines of comma-separated numbers to an array (lines, columns); blank lines are ignored.

    Args:
        text: whole lines.
        columns: expected count of numbers per line.
        dtype: dtype of the array; an integer dtype also accepts whole numbers written as `3.0` or `3e2`.

    Returns:
        (lines, columns) array of `dtype`.

    Raises:
        WrongText: a line has more or fewer numbers, a cell is not a number, or the dtype cannot hold it.

    Example:
        >>> parse_table(b"1,2\\n\\n3,4.5\\n", 2, np.dtype("float32")).tolist()
        [[1.0, 2.0], [3.0, 4.5]]
    """
    lines = [(number, line) for number, line in enumerate(text.removeprefix(_BOM).splitlines()) if line.strip()]
    if not lines:
        return np.zeros((0, columns), dtype)
    values = _loaded(lines, columns, np.float64)
    if dtype.kind in "iu" and (np.abs(values) >= 2**53).any():  # float64 does not represent every 64-bit integer
        with contextlib.suppress(WrongText, OverflowError):
            values = _loaded(lines, columns, np.uint64 if dtype == np.uint64 else np.int64)
    cells = lambda: ((n, f"column {k + 1} is", c) for n, line in lines for k, c in enumerate(line.split(b",")))  # noqa: E731
    return _cast(values, dtype, cells)


def _loaded(lines: list[tuple[int, bytes]], columns: int, kind: Any) -> np.ndarray:
    try:
        values = np.loadtxt((line for _, line in lines), kind, delimiter=",", comments=None, ndmin=2, encoding="latin1")
    except ValueError as error:
        raise _wrong_cell(lines, columns, str(error)) from None
    if values.shape[1] != columns:
        raise _wrong_cell(lines, columns, f"found {values.shape[1]} numbers in a line")
    return values


def _cast(values: np.ndarray, dtype: np.dtype[Any], cells: Callable[[], Iterable[Cell]]) -> np.ndarray:
    """Cast to a dtype; raise WrongText for the first number outside its range.  `cells`: their texts in the file."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            narrow = values.astype(dtype, copy=False)
        valid = ~np.isinf(narrow)
    else:
        bounds = np.iinfo(dtype)
        if values.dtype.kind in "iu":
            valid = (values >= bounds.min) & (values <= bounds.max)
        else:  # max + 1 is a power of two and so exact in float64; max itself may not be
            valid = (values >= float(bounds.min)) & (values < float(bounds.max) + 1) & (values == np.trunc(values))
        narrow = np.where(valid, values, np.zeros((), values.dtype)).astype(dtype)
    if not valid.all():
        for (line, where, text), fits in zip(cells(), valid.flat, strict=True):
            if not fits and not (dtype.kind == "f" and b"inf" in text.lower()):
                raise WrongText(
                    line, f"{where} {_shown(text)}, which {dtype} cannot hold", "pass another dtype= or change the file."
                )
    return narrow


def _wrong_cell(lines: list[tuple[int, bytes]], columns: int, otherwise: str) -> WrongText:
    """Build the error for the first wrong line or cell of a table; its message is `otherwise` if none is wrong."""
    for number, line in lines:
        cells = line.split(b",")
        if len(cells) != columns:
            problem = f"found {len(cells)} number{'s' * (len(cells) != 1)}, expected {columns}"
            return WrongText(number, problem, "pass the shape of a row of the file as data_shape (label_shape for labels).")
        for k, cell in enumerate(cells):
            if not _IS_NUMBER.fullmatch(cell):
                remedy = "delete a header line, fill empty cells and encode text as numbers."
                return WrongText(number, f"column {k + 1} is {_shown(cell)}, expected a number", remedy)
    return WrongText(0, otherwise, "write one row per line, with commas between the numbers.")


def _shown(cell: bytes) -> str:
    cell = cell.strip()
    return repr(cell[:40].decode("latin1")) + ("..." if len(cell) > 40 else "") if cell else "empty"


def parse_libsvm(text: bytes, columns: int, dtype: np.dtype[Any]) -> tuple[SparseArray, np.ndarray]:
    """Parse lines `label index:value index:value ...` to a CSR matrix (lines, columns) and labels (lines,).

    Args:
        text: whole lines; blank lines, and the rest of a line after `#`, are ignored.
        columns: number of columns; indices are 0 .. columns - 1.
        dtype: dtype of values and labels.

    Returns:
        (CSR SparseArray of shape (lines, columns), labels of shape (lines,)).

    Raises:
        WrongText: a line has another form, an index is out of range, or the dtype cannot hold a number.

    Example:
        >>> rows, labels = parse_libsvm(b"1 0:0.5 2:1.5\\n-1\\n", 3, np.dtype("float32"))
        >>> rows.todense().tolist(), labels.tolist()
        ([[0.5, 0.0, 1.5], [0.0, 0.0, 0.0]], [1.0, -1.0])

    Source: the file format of LIBSVM (Chang and Lin, 2011), with indices from 0 as MXNet reads them.
    """
    lines = [line.partition(b"#")[0] for line in text.removeprefix(_BOM).splitlines()]
    numbers = np.array([number for number, line in enumerate(lines) if line.strip()], np.int64)
    for number in numbers:
        if not _SPARSE_LINE.fullmatch(lines[number]):
            raise _wrong_word(number, lines[number])
    counts = np.array([lines[number].count(b":") for number in numbers], np.int64)
    text = b"\n".join([lines[number] for number in numbers])  # of blank lines alone, NumPy would make a number
    found = np.fromstring(text.replace(b":", b" "), sep=" ")  # parses numbers between any white space
    starts = np.concatenate([[0], np.cumsum(counts)])
    labels = 2 * starts[:-1] + np.arange(len(counts))  # where in `found` each line begins
    pairs = np.delete(found, labels).reshape(-1, 2)
    index = pairs[:, 0]
    valid = (index >= 0) & (index < columns) & (index == np.trunc(index))
    if not valid.all():
        bad = int(np.argmin(valid))
        remedy = f"indices start at 0: for a file whose indices start at 1, pass data_shape=({columns + 1},)."
        problem = f"found the index {index[bad]:g}, expected 0 to {columns - 1} because data_shape is ({columns},)"
        raise WrongText(int(np.repeat(numbers, counts)[bad]), problem, remedy)
    words = lambda part: ((n, "found", word) for n in numbers for word in lines[n].replace(b":", b" ").split()[part])  # noqa: E731
    values = _cast(pairs[:, 1], dtype, lambda: words(slice(2, None, 2)))
    matrix = SparseArray("csr", values, (starts, index.astype(np.int64)), (len(counts), columns))
    return matrix, _cast(found[labels], dtype, lambda: words(slice(1)))


def _wrong_word(number: int, line: bytes) -> WrongText:
    """Build the error for the first wrong word of a LibSVM line."""
    remedy = "write lines as `label index:value index:value`, with indices from 0."
    first, *pairs = line.split()
    if not _IS_NUMBER.fullmatch(first):
        return WrongText(number, f"word 1 is {_shown(first)}, expected a number, the label", remedy)
    wrong = lambda pair: pair.count(b":") != 1 or not all(map(_IS_NUMBER.fullmatch, pair.split(b":")))  # noqa: E731
    k = next(k for k, pair in enumerate(pairs) if wrong(pair))
    return WrongText(number, f"word {k + 2} is {_shown(pairs[k])}, expected index:value", remedy)
