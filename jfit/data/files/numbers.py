"""Numbers written as text: tables with commas, and lines of `label index:value ...`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.data.files.text import WrongText
from jfit.formats.sparse import SparseArray

_BOM = b"\xef\xbb\xbf"
_OTHER_DTYPE = "pass another dtype= or change the file."


def parse_table(text: bytes, columns: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Lines of numbers with commas between them as an array (lines, columns); empty lines are left out.

    Args:
        text: whole lines.
        columns: numbers in a line.
        dtype: of the array; texts such as `3.0` and `3e2` are whole numbers too.

    Raises:
        WrongText: a line has more or fewer numbers, a cell is no number, or its value is none that the dtype has.

    Example:
        >>> parse_table(b"1,2\\n\\n3,4.5\\n", 2, np.dtype("float32")).tolist()
        [[1.0, 2.0], [3.0, 4.5]]
    """
    text = text.removeprefix(_BOM)
    if not text or text.isspace():
        return np.zeros((0, columns), dtype)
    quick = _even_table(text, columns)
    if quick is not None and not (dtype.kind in "iu" and (np.abs(quick) >= 2**53).any()):
        return _as(quick, dtype, text)
    kinds: list[Any] = [np.float64 if dtype.kind in "iu" or dtype.itemsize == 8 else np.float32]
    if dtype.kind in "iu":  # floats do not hold every whole number of 64 bits
        kinds.insert(0, np.uint64 if dtype == np.uint64 else np.int64)
    found = _loaded(text, columns, kinds)
    if found.shape[1] != columns:
        raise _wrong_cell(text, columns, f"found {found.shape[1]} numbers in a line, needed {columns}")
    return _as(found, dtype, text)


def _even_table(text: bytes, columns: int) -> np.ndarray | None:
    """The table where every line holds `columns` numbers and none is empty, else None."""
    raw = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((raw == ord(",")) | (raw == ord("\n")))
    if not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    if len(ends) % columns:
        return None
    marks = raw.take(ends, mode="clip").reshape(-1, columns)
    marks[-1, -1] = ord("\n")  # the last line may end without
    if (marks[:, -1] != ord("\n")).any() or (marks[:, :-1] != ord(",")).any():
        return None
    starts = np.append(0, ends[:-1] + 1)
    ends = ends - (raw.take(ends - 1, mode="clip") == ord("\r"))
    found = decimals(text, starts, ends)
    return None if found is None else found.reshape(-1, columns)


def _loaded(text: bytes, columns: int, kinds: Sequence[Any]) -> np.ndarray:
    """The table in the first of the dtypes that can be read from all of it."""
    lines = b"\n".join(line for line in text.splitlines() if line.strip())  # a line of blanks is an empty one
    said = ""
    for kind in kinds:
        try:
            return _load(lines, kind)
        except (ValueError, OverflowError) as error:
            said = str(error)
    raise _wrong_cell(text, columns, said)


def _load(text: bytes, kind: Any) -> np.ndarray:
    return np.loadtxt(io.BytesIO(text), kind, delimiter=",", comments=None, ndmin=2, encoding="latin1")


def _as(found: np.ndarray, dtype: np.dtype[Any], text: bytes) -> np.ndarray:
    """The numbers in a dtype that can hold them."""
    narrow, good = _narrowed(found, dtype)
    if good.all():
        return narrow
    lines = [(number, line.split(b",")) for number, line in enumerate(text.splitlines()) if line.strip()]
    for row, column in np.argwhere(~good).tolist():
        number, cells = lines[row]
        if not _means_infinity(cells[column], dtype):
            problem = f"column {column + 1} is {_shown(cells[column].strip())}, which {dtype} cannot hold"
            raise WrongText(number, problem, _OTHER_DTYPE)
    return narrow


def _narrowed(found: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers in a dtype, and which of them it holds; infinite ones count as too large."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            narrow = found.astype(dtype, copy=False)
        return narrow, ~np.isinf(narrow)
    bounds = np.iinfo(dtype)
    if found.dtype.kind in "iu":
        good = (found >= bounds.min) & (found <= bounds.max)
    else:  # the first float behind the bounds is exact, the bound itself need not be
        good = (found >= float(bounds.min)) & (found < float(bounds.max) + 1) & (found == np.trunc(found))
    return np.where(good, found, np.zeros((), found.dtype)).astype(dtype), good


def _means_infinity(word: bytes, dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and b"inf" in word.lower()


def _wrong_cell(text: bytes, columns: int, otherwise: str) -> WrongText:
    """The first line, and the first cell in it, that is not as it should be."""
    for number, line in enumerate(text.splitlines()):
        cells = line.split(b",")
        if not line.strip():
            continue
        if len(cells) != columns:
            problem = f"found {len(cells)} number{'s' * (len(cells) != 1)}, needed {columns}"
            return WrongText(number, problem, "pass the shape of a row of the file as data_shape (label_shape for labels).")
        for k, cell in enumerate(cells):
            if not _is_number(cell):
                remedy = "delete a header line, fill empty cells and write text as numbers."
                return WrongText(number, f"column {k + 1} is {_shown(cell.strip())}, needed a number", remedy)
    return WrongText(0, otherwise, "write one row a line, with commas between the numbers.")


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return b"_" not in text


def _shown(cell: bytes) -> str:
    text = cell[:40].decode("latin1")
    return repr(text) + ("..." if len(cell) > 40 else "") if cell else "empty"


def parse_libsvm(text: bytes, columns: int, dtype: np.dtype[Any]) -> tuple[SparseArray, np.ndarray]:
    """Lines of `label index:value index:value ...` as compressed rows (lines, columns) and labels (lines,).

    Args:
        text: whole lines; what stands behind a `#` is left out, and so are empty lines.
        columns: width of the rows; indices are 0 .. columns - 1.
        dtype: of values and labels.

    Returns:
        The rows, and the first number of each.

    Raises:
        WrongText: a line is written otherwise, an index is not one of the columns, or the dtype cannot hold a number.

    Example:
        >>> rows, labels = parse_libsvm(b"1 0:0.5 2:1.5\\n-1\\n", 3, np.dtype("float32"))
        >>> rows.todense().tolist(), labels.tolist()
        ([[0.5, 0.0, 1.5], [0.0, 0.0, 0.0]], [1.0, -1.0])

    Source: the file format of LIBSVM (Chang and Lin, 2011), with indices from 0 as MXNet reads them.
    """
    text = text.removeprefix(_BOM)
    if b"#" in text:
        text = b"\n".join(line.partition(b"#")[0] for line in text.splitlines())
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    raw = np.frombuffer(text, np.uint8)
    apart = raw <= 32  # blanks and line ends
    starts = np.flatnonzero(~apart & np.concatenate([[True], apart[:-1]]))  # of each word
    if not len(starts):
        return SparseArray("csr", np.zeros(0, dtype), (np.zeros(1, np.int64), np.zeros(0, np.int64)), (0, columns)), np.zeros(
            0, dtype
        )
    line = np.cumsum(raw == ord("\n"))[starts]  # of each word
    ends = np.flatnonzero(~apart & np.concatenate([apart[1:], [True]])) + 1
    colon = np.flatnonzero(raw == ord(":"))
    colons = np.diff(np.searchsorted(colon, np.append(starts, len(raw))))  # in each word
    first = np.concatenate([[True], line[1:] != line[:-1]])
    if (colons != ~first).any():
        raise _wrong_word(text)
    # a colon ends a number as a blank does
    where = _merged(starts, colon + 1), _merged(ends, colon)
    numbers = decimals(text, *where)
    if numbers is None:
        raise _wrong_word(text)
    places = np.cumsum(1 + colons) - 1 - colons  # of each word's first number
    index = numbers[places[~first]]
    good = (index >= 0) & (index < columns) & (index == np.trunc(index))
    if not good.all():
        bad = int(np.argmin(good))
        remedy = f"indices count from 0: if the file's begin at 1, a row has {columns + 1} columns."
        problem = f"found the index {index[bad]:g}, the {columns} columns of data_shape are 0 to {columns - 1}"
        raise WrongText(int(line[~first][bad]), problem, remedy)
    narrow, good = _narrowed(numbers, dtype)
    good[places[~first]] = True  # indices are no values
    for bad in np.flatnonzero(~good).tolist():
        word = text[where[0][bad] : where[1][bad]]
        if not _means_infinity(word, dtype):
            number = int(line[np.searchsorted(places, bad, side="right") - 1])
            raise WrongText(number, f"found {_shown(word)}, which {dtype} cannot hold", _OTHER_DTYPE)
    labels, values = narrow[places[first]], narrow[places[~first] + 1]
    ends = np.append(np.flatnonzero(first)[1:], len(starts)) - np.arange(1, len(labels) + 1)  # pairs up to each row's end
    rows = SparseArray("csr", values, (np.append(0, ends), index.astype(np.int64)), (len(labels), columns))
    return rows, labels


def _merged(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Two increasing arrays as one."""
    return np.sort(np.append(one, other), kind="stable")  # which merges runs that are in order


def _wrong_word(text: bytes) -> WrongText:
    """The first word that is not as it should be."""
    remedy = "write lines as `label index:value index:value`, with indices from 0."
    for number, line in enumerate(text.split(b"\n")):
        for k, word in enumerate(line.split()):
            left, colon, right = word.partition(b":")
            if k == 0 and (colon or not _is_number(word)):
                return WrongText(number, f"word 1 is {_shown(word)}, needed a number, the label", remedy)
            if k and not (colon and _is_number(left) and _is_number(right)):
                return WrongText(number, f"word {k + 1} is {_shown(word)}, needed index:value", remedy)
    return WrongText(0, "it holds no lines of numbers", remedy)


_TENS = 10.0 ** np.arange(19)
_MOST = 17  # characters of a number that is read here: sixteen digits and a point
_EXACT = 1 << 53  # integers below are floats, and so are the powers of ten: their quotient is rounded once
_CHUNK = 1 << 14  # numbers at a time, so that they stay in the cache


def decimals(text: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """The numbers that stand at text[starts:ends], each the nearest float64.

    Args:
        text: where they stand.
        starts: first character of each, increasing.
        ends: character behind each.

    Returns:
        (numbers,) float64; None where one of them is no number.

    Example:
        >>> decimals(b"1.25,-7,3e2", np.array([0, 5, 8]), np.array([4, 7, 11])).tolist()
        [1.25, -7.0, 300.0]
    """
    raw = np.frombuffer(text, np.uint8)
    found = np.empty(len(starts))
    for low in range(0, len(starts), _CHUNK):
        part = slice(low, low + _CHUNK)
        values, odd = _plain(raw, starts[part], ends[part])
        for k in np.flatnonzero(odd).tolist():  # exponents, blanks, nan, many digits
            word = text[starts[low + k] : ends[low + k]]
            try:
                values[k] = float(word)
            except ValueError:
                return None
            if b"_" in word:
                return None
        found[part] = values
    return found


def _plain(raw: np.ndarray, at: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers made of a sign, digits and a point; and which are made of something else."""
    first = raw.take(at, mode="clip")
    sign = (first == ord("-")) | (first == ord("+"))
    at = at + sign
    size = ends - at
    odd = (size < 1) | (size > _MOST)
    digits, point = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    mantissa, pointed = np.zeros(len(at), np.int64), np.zeros(len(at), bool)
    for k in range(min(_MOST, int(size.max(initial=0)))):
        code = raw.take(at + k, mode="clip") - np.uint8(ord("0"))
        inside = k < size
        digit, dot = (code < 10) & inside, (code == 254) & inside  # "." stands two before "0"
        odd |= (inside & ~digit & ~dot) | (dot & pointed)
        np.add(mantissa * 10, code, out=mantissa, where=digit)
        digits += digit
        point += digit & pointed  # digits behind the point
        pointed |= dot
    odd |= (digits < 1) | (mantissa >= _EXACT)
    values = mantissa / _TENS[point]
    return np.where(first == ord("-"), -values, values), odd
