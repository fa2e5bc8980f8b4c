"""Rows of text files, read in blocks of whole lines: several files as one text, or one of several parts of it.

Only one block is in memory at a time, so files may be larger than memory.  The parsed rows of small files are cached for the
next epoch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jfit.data.csr import concatenate, copy_rows, take_rows
from jfit.data.parts import check_part
from jfit.formats.atomic import FormatError, open_file

BLOCK = 8 << 20  # bytes of text per block
NUMBER = 64  # maximum bytes of a number and its separators, in lines longer than a block
CACHE = 256 << 20  # maximum bytes of parsed rows in the cache


class WrongText(ValueError):
    """Parse error in a block of text: line number in the block (from 0), problem and remedy."""

    def __init__(self, line: int, problem: str, remedy: str):
        super().__init__(problem)
        self.line, self.problem, self.remedy = line, problem, remedy


class TextFiles:
    """Lines of one or several files, or of one of `parts` parts of them, about equal in bytes.

    Part k of n has the lines that start after byte ⌈size/n⌉·k and not after byte ⌈size/n⌉·(k + 1); part 0 also has the first
    line.

    Args:
        where: path of a file, several paths separated by ";", or a folder, whose files are read in the order of their names.
        parts: n, number of parts.
        part: k, index of the part, from 0.
        numbers: expected count of numbers in the longest line, which limits its length: parsing takes many times the memory of
            the text, and a file without line ends must not fill the memory.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: the files are empty, or `part` is out of range.

    Example:
        >>> _ = Path("lines.txt").write_text("1\\n2\\n3\\n4\\n")
        >>> [TextFiles("lines.txt", 2, k).block(TextFiles("lines.txt", 2, k).begin)[0] for k in (0, 1)]
        [b'1\\n2\\n3\\n', b'4\\n']

    Source: the parts are those of MXNet's readers, dmlc-core's text input split.
    """

    def __init__(self, where: str | os.PathLike[str], parts: int = 1, part: int = 0, numbers: int = 1):
        check_part(part, parts)
        files = [(path, os.path.getsize(path)) for path in _paths(where)]
        self.paths = [path for path, size in files if size]
        self.ends = np.cumsum([size for _, size in files if size], dtype=np.int64)  # byte where each file ends
        if not self.paths:
            raise ValueError(f"{os.fspath(where)}: the files are empty, expected at least one line.")
        self.size = int(self.ends[-1])
        self._longest = max(BLOCK, NUMBER * numbers)  # bytes of a line
        share = -(-self.size // parts)
        self.begin, self.end = (self._line_behind(min(share * k, self.size)) for k in (part, part + 1))

    def block(self, at: int) -> tuple[bytes, int]:
        """Read whole lines of one file from byte `at`, about `BLOCK` bytes; return (text, byte where the next block starts)."""
        path, first, limit = self._file(at)
        limit = min(limit, self.end)
        with open_file(path) as file:
            file.seek(at - first)
            text = file.read(min(BLOCK, limit - at))
            if not text.endswith(b"\n"):
                text += file.readline(min(self._longest, limit - at - len(text)))
        if not text.endswith(b"\n") and len(text) > self._longest:
            problem = f"found a line of more than {self._longest:,} bytes, expected a row of numbers per line"
            raise FormatError(path, f"byte {at - first}", problem, "check that the file is text with line ends.")
        if not text:
            problem = "the file is shorter than when it was opened"
            raise FormatError(path, f"byte {at - first}", problem, "do not change it while reading.")
        return text, at + len(text)

    def error(self, at: int, wrong: WrongText) -> FormatError:
        """Convert a parse error in the block at byte `at` to a `FormatError` with file and line number."""
        path, first, _ = self._file(at)
        with open_file(path) as file:
            pieces = iter(lambda: file.read(min(1 << 20, at - first - file.tell())), b"")
            before = sum(piece.count(b"\n") for piece in pieces)
        return FormatError(path, f"line {before + wrong.line + 1}", wrong.problem, wrong.remedy)

    def _file(self, at: int) -> tuple[Path, int, int]:
        """File that contains byte `at` of the joined text, with the bytes where the file starts and ends in that text."""
        k = int(np.searchsorted(self.ends, at, side="right"))
        return self.paths[k], int(self.ends[k - 1]) if k else 0, int(self.ends[k])

    def _line_behind(self, at: int) -> int:
        """Byte where the first line starts after byte `at`; a file end is a line end."""
        if at == 0 or at == self.size or at in self.ends:
            return at
        path, first, end = self._file(at)
        with open_file(path) as file:
            file.seek(at - first)
            at += len(file.readline())
            while at < end and file.read(1) in (b"\n", b"\r"):
                at += 1
        return at


def _paths(where: str | os.PathLike[str]) -> list[Path]:
    paths: list[Path] = []
    for name in os.fspath(where).split(";"):
        path = Path(name.removeprefix("file://"))
        if path.is_dir():
            paths += sorted(p for p in path.iterdir() if p.is_file())
        else:
            paths.append(path)
    return paths


class RowReader:
    """Read rows from text files.

    Args:
        files: the lines to read.
        parse: function from the text of a block to a tuple of columns (arrays or CSR matrices with equal numbers of rows); it
            raises `WrongText` for a line that it cannot parse.
    """

    def __init__(self, files: TextFiles, parse: Callable[[bytes], tuple[Any, ...]]):
        self.files, self._parse = files, parse
        self._cache: dict[int, tuple[tuple[Any, ...], int]] = {}
        self._cache_bytes = 0
        self.rewind()

    def rewind(self) -> None:
        """Go to the first row."""
        self._at, self._row = self.files.begin, 0  # byte where the block of the next row starts, and the row in it
        self.number = 0  # rows read so far
        self._columns: tuple[Any, ...] | None = None

    def take(self, count: int) -> tuple[Any, ...] | None:
        """Read the next `count` rows, or fewer at the end; None after the end.  The caller may write into the arrays.

        Raises:
            FormatError: a line cannot be parsed; the message names file and line.
        """
        parts: list[tuple[Any, ...]] = []
        while count:
            columns = self._current()
            if columns is None:
                break
            low, self._row = self._row, min(self._row + count, columns[0].shape[0])
            if self._row > low:  # a block may have comments only
                parts.append(tuple(take_rows(c, slice(low, self._row)) for c in columns))
            self.number, count = self.number + self._row - low, count - (self._row - low)
            if self._row == columns[0].shape[0]:
                self._at, self._row, self._columns = self._next, 0, None
        if len(parts) == 1:
            return tuple(copy_rows(column) for column in parts[0])  # a copy, because the block stays in the cache
        return tuple(concatenate(column) for column in zip(*parts, strict=True)) if parts else None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle files and position without the cache."""
        return {**self.__dict__, "_cache": {}, "_cache_bytes": 0, "_columns": None}

    def _current(self) -> tuple[Any, ...] | None:
        if self._columns is None and self._at < self.files.end:
            known = self._cache.get(self._at)
            self._columns, self._next = known or self._read(self._at)
            size = sum(_bytes(c) for c in self._columns)
            if known is None and self._cache_bytes + size <= CACHE:
                self._cache[self._at] = (self._columns, self._next)
                self._cache_bytes += size
        return self._columns

    def _read(self, at: int) -> tuple[tuple[Any, ...], int]:
        text, end = self.files.block(at)
        try:
            return self._parse(text), end
        except WrongText as wrong:
            raise self.files.error(at, wrong) from None


def _bytes(column: Any) -> int:
    return sum(a.nbytes for a in (column.data, *column.aux)) if hasattr(column, "aux") else column.nbytes
