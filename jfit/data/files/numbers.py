"""Parsers of numeric text: comma-separated tables, and LibSVM lines `label index:value ...`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jfit.data.files.text import WrongText
from jfit.formats.sparse import SparseArray

_BLANK = bytes(range(33))  # ASCII whitespace
_BOM = b"\xef\xbb\xbf"
_OTHER_DTYPE = "pass another dtype= or change the file."


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
    text = text.removeprefix(_BOM)
    if not text or text.isspace():
        return np.zeros((0, columns), dtype)
    quick = _even_table(text, columns)
    if quick is not None and not (dtype.kind in "iu" and (np.abs(quick) >= 2**53).any()):
        return _as(quick, dtype, text)
    kinds: list[Any] = [np.float64 if dtype.kind in "iu" or dtype.itemsize == 8 else np.float32]
    if dtype.kind in "iu":  # float64 does not represent every 64-bit integer
        kinds.insert(0, np.uint64 if dtype == np.uint64 else np.int64)
    values = _loaded(text, columns, kinds)
    if values.shape[1] != columns:
        raise _wrong_cell(text, columns, f"found {values.shape[1]} numbers in a line, expected {columns}")
    return _as(values, dtype, text)


def _even_table(text: bytes, columns: int) -> np.ndarray | None:
    """Parse a table by vectorized code; None unless every line has exactly `columns` nonempty cells and all are numbers."""
    raw = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((raw == ord(",")) | (raw == ord("\n")))
    if not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    if len(ends) % columns:
        return None
    marks = raw.take(ends, mode="clip").reshape(-1, columns)
    marks[-1, -1] = ord("\n")  # the last line may have no line end
    if (marks[:, -1] != ord("\n")).any() or (marks[:, :-1] != ord(",")).any():
        return None
    starts = np.append(0, ends[:-1] + 1)
    ends = ends - (raw.take(ends - 1, mode="clip") == ord("\r"))
    values = decimals(text, starts, ends)
    return None if values is None else values.reshape(-1, columns)


def _loaded(text: bytes, columns: int, kinds: Sequence[Any]) -> np.ndarray:
    """Parse a table by np.loadtxt in the first of `kinds` (dtypes) that accepts all cells."""
    lines = b"\n".join(line for line in text.splitlines() if line.strip())  # drop whitespace-only lines
    message = ""
    for kind in kinds:
        try:
            return np.loadtxt(io.BytesIO(lines), kind, delimiter=",", comments=None, ndmin=2, encoding="latin1")
        except (ValueError, OverflowError) as error:
            message = str(error)
    raise _wrong_cell(text, columns, message)


def _as(values: np.ndarray, dtype: np.dtype[Any], text: bytes) -> np.ndarray:
    """Cast to a dtype; raise WrongText for a number that it cannot hold."""
    narrow, valid = _narrowed(values, dtype)
    if valid.all():
        return narrow
    lines = [(number, line.split(b",")) for number, line in enumerate(text.splitlines()) if line.strip()]
    for row, column in np.argwhere(~valid).tolist():
        number, cells = lines[row]
        if not _means_infinity(cells[column], dtype):
            problem = f"column {column + 1} is {_shown(cells[column].strip())}, which {dtype} cannot hold"
            raise WrongText(number, problem, _OTHER_DTYPE)
    return narrow


def _narrowed(values: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Cast to a dtype and return (cast values, whether each one fits); inf does not fit."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            narrow = values.astype(dtype, copy=False)
        return narrow, ~np.isinf(narrow)
    bounds = np.iinfo(dtype)
    if values.dtype.kind in "iu":
        valid = (values >= bounds.min) & (values <= bounds.max)
    else:  # max + 1 is a power of two and so exact in float64; max itself may not be
        valid = (values >= float(bounds.min)) & (values < float(bounds.max) + 1) & (values == np.trunc(values))
    return np.where(valid, values, np.zeros((), values.dtype)).astype(dtype), valid


def _means_infinity(word: bytes, dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and b"inf" in word.lower()


def _wrong_cell(text: bytes, columns: int, otherwise: str) -> WrongText:
    """Build the error for the first wrong line or cell of a table; its message is `otherwise` if none is wrong."""
    for number, line in enumerate(text.splitlines()):
        cells = line.split(b",")
        if not line.strip():
            continue
        if len(cells) != columns:
            problem = f"found {len(cells)} number{'s' * (len(cells) != 1)}, expected {columns}"
            return WrongText(number, problem, "pass the shape of a row of the file as data_shape (label_shape for labels).")
        for k, cell in enumerate(cells):
            if not _is_number(cell):
                remedy = "delete a header line, fill empty cells and encode text as numbers."
                return WrongText(number, f"column {k + 1} is {_shown(cell.strip())}, expected a number", remedy)
    return WrongText(0, otherwise, "write one row per line, with commas between the numbers.")


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
    text = text.removeprefix(_BOM)
    if b"#" in text:
        text = b"\n".join(line.partition(b"#")[0] for line in text.splitlines())
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    labels, begins, indices, values = [], [], [], []
    line = entries = 0
    begun = False  # whether the line has its label already
    for piece in _pieces_of_words(text):
        try:
            found, begin, index, value = _entries(piece, columns, dtype, begun)
        except WrongText as wrong:
            raise WrongText(line + wrong.line, wrong.problem, wrong.remedy) from None
        if found is None:
            raise _wrong_word(text)
        labels.append(found)
        begins.append(begin + entries)
        indices.append(index)
        values.append(value)
        entries, line = entries + len(index), line + piece.count(b"\n")
        rest = piece[piece.rfind(b"\n") + 1 :]
        begun = bool(rest.strip(_BLANK)) or (begun and len(rest) == len(piece))
    joined = [np.concatenate([np.zeros(0, kind), *parts]) for kind, parts in ((dtype, values), (np.int64, indices))]
    starts, label = np.concatenate([*begins, [entries]]).astype(np.int64), np.concatenate([np.zeros(0, dtype), *labels])
    return SparseArray("csr", joined[0], (starts, joined[1]), (len(label), columns)), label


def _pieces_of_words(text: bytes) -> Iterator[bytes]:
    """Cut a text at whitespace into pieces of about `_PIECE` bytes: parsing takes many times the memory of the text."""
    at = 0
    while at < len(text):
        space = _SPACE.search(text, at + _PIECE)
        end = len(text) if space is None else space.end()
        yield text[at:end]
        at = end


def _entries(text: bytes, columns: int, dtype: np.dtype[Any], begun: bool) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Parse a piece of LibSVM lines.

    Args:
        text: whole words.
        columns, dtype: as for `parse_libsvm`.
        begun: whether the piece starts within a line, behind its label.

    Returns:
        (labels, number of entries before each label, indices, values); the labels are None if a word has another form.
    """
    raw = np.frombuffer(text, np.uint8)
    space = raw <= 32  # ASCII whitespace
    starts = np.flatnonzero(~space & np.concatenate([[True], space[:-1]]))  # first character of each word
    line = np.cumsum(raw == ord("\n"))[starts]  # line number of each word
    ends = np.flatnonzero(~space & np.concatenate([space[1:], [True]])) + 1
    colon = np.flatnonzero(raw == ord(":"))
    colons = np.diff(np.searchsorted(colon, np.append(starts, len(raw))))  # number of colons in each word
    first = np.diff(line, prepend=0 if begun else -1) > 0  # whether a word is the label of its line
    wrong = None, starts, starts, starts
    if (colons != ~first).any():
        return wrong
    # Numbers are separated by whitespace or by a colon: one also ends at each colon, and the next one starts after it.
    where = _merged(starts, colon + 1), _merged(ends, colon)
    numbers = decimals(text, *where)
    if numbers is None:
        return wrong
    places = np.cumsum(1 + colons) - 1 - colons  # position in `numbers` of each word's first number
    index = numbers[places[~first]]
    valid = (index >= 0) & (index < columns) & (index == np.trunc(index))
    if not valid.all():
        bad = int(np.argmin(valid))
        remedy = f"indices start at 0: for a file whose indices start at 1, pass data_shape=({columns + 1},)."
        problem = f"found the index {index[bad]:g}, expected 0 to {columns - 1} because data_shape is ({columns},)"
        raise WrongText(int(line[~first][bad]), problem, remedy)
    narrow, valid = _narrowed(numbers, dtype)
    valid[places[~first]] = True  # indices need not fit the dtype of the values
    for bad in np.flatnonzero(~valid).tolist():
        word = text[where[0][bad] : where[1][bad]]
        if not _means_infinity(word, dtype):
            number = int(line[np.searchsorted(places, bad, side="right") - 1])
            raise WrongText(number, f"found {_shown(word)}, which {dtype} cannot hold", _OTHER_DTYPE)
    begins = np.flatnonzero(first) - np.arange(np.count_nonzero(first))
    return narrow[places[first]], begins, index.astype(np.int64), narrow[places[~first] + 1]


def _merged(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Merge two sorted arrays into one sorted array."""
    return np.sort(np.append(one, other), kind="stable")  # timsort merges sorted runs in linear time


def _wrong_word(text: bytes) -> WrongText:
    """Build the error for the first wrong word of LibSVM lines."""
    remedy = "write lines as `label index:value index:value`, with indices from 0."
    for number, line in enumerate(text.split(b"\n")):
        for k, match in enumerate(_WORD.finditer(line)):
            word = match[0]
            left, colon, right = word.partition(b":")
            if k == 0 and (colon or not _is_number(word)):
                return WrongText(number, f"word 1 is {_shown(word)}, expected a number, the label", remedy)
            if k and not (colon and _is_number(left) and _is_number(right)):
                return WrongText(number, f"word {k + 1} is {_shown(word)}, expected index:value", remedy)
    return WrongText(0, "it has no lines of numbers", remedy)


_TENS = 10.0 ** np.arange(19)
_MOST = 17  # maximum length of a number that `_plain` parses: sixteen digits and a point
_EXACT = 1 << 53  # integers below and powers of ten up to 10**22 are exact in float64: their quotient is correctly rounded
_PIECE = 1 << 18  # bytes of text that `parse_libsvm` parses at once
_SPACE, _WORD = re.compile(rb"[\x00-\x20]"), re.compile(rb"\S+")
_CHUNK = 1 << 14  # numbers per block, so that the temporary arrays stay in the cache


def decimals(text: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Parse the decimal numbers text[starts[k]:ends[k]], each rounded to the nearest float64.

    Args:
        text: the text that contains the numbers.
        starts: (numbers,) index of the first character of each number, increasing.
        ends: (numbers,) index after the last character of each number.

    Returns:
        (numbers,) float64, or None if one of them is not a number.

    Example:
        >>> decimals(b"1.25,-7,3e2", np.array([0, 5, 8]), np.array([4, 7, 11])).tolist()
        [1.25, -7.0, 300.0]
    """
    raw = np.frombuffer(text, np.uint8)
    numbers = np.empty(len(starts))
    for low in range(0, len(starts), _CHUNK):
        part = slice(low, low + _CHUNK)
        values, odd = _plain(raw, starts[part], ends[part])
        for k in np.flatnonzero(odd).tolist():  # exponents, whitespace, nan, many digits
            word = text[starts[low + k] : ends[low + k]]
            try:
                values[k] = float(word)
            except ValueError:
                return None
            if b"_" in word:
                return None
        numbers[part] = values
    return numbers


def _plain(raw: np.ndarray, at: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parse numbers of an optional sign, digits and at most one point; also return which numbers have another form."""
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
        digit, dot = (code < 10) & inside, (code == 254) & inside  # ord(".") - ord("0") = -2 = 254 in uint8
        odd |= (inside & ~digit & ~dot) | (dot & pointed)
        np.add(mantissa * 10, code, out=mantissa, where=digit)
        digits += digit
        point += digit & pointed  # number of digits after the point
        pointed |= dot
    odd |= (digits < 1) | (mantissa >= _EXACT)
    values = mantissa / _TENS[point]
    return np.where(first == ord("-"), -values, values), odd
