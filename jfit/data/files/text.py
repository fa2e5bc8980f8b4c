"""Text files as one long text: cut into parts at line ends, read block by block, rows taken from the blocks.

Only one block's rows are needed at a time, so files may be larger than memory; rows of small files are kept for the next
epoch instead of being parsed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jfit.data.csr import cut, own, stack
from jfit.formats.atomic import FormatError

BLOCK = 8 << 20  # bytes of text that are parsed at once
KEPT = 256 << 20  # bytes of parsed rows that are kept for the next epoch


class WrongText(ValueError):
    """What is wrong in a block of text, and in which of its lines (from 0)."""

    def __init__(self, line: int, problem: str, remedy: str):
        super().__init__(problem)
        self.line, self.problem, self.remedy = line, problem, remedy


class TextFiles:
    """The lines of one or several files, or one of several parts of them.

    Part k of n holds the lines that begin behind byte ⌈size/n⌉·k and not behind byte ⌈size/n⌉·(k + 1): of about equal size
    in bytes, not in lines.

    Args:
        where: a file, several with `;` between them, or a folder, whose files are read in the order of their names.
        parts: n, number of parts.
        part: k, from 0.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the files are empty, or there is no such part.

    Example:
        >>> _ = Path("lines.txt").write_text("1\\n2\\n3\\n4\\n")
        >>> [TextFiles("lines.txt", 2, k).block(TextFiles("lines.txt", 2, k).begin)[0] for k in (0, 1)]
        [b'1\\n2\\n3\\n', b'4\\n']

    Source: the parts are those of MXNet's readers, dmlc-core's text input split.
    """

    def __init__(self, where: str | os.PathLike[str], parts: int = 1, part: int = 0):
        if not 0 <= part < parts:
            raise ValueError(f"part_index is {part}, num_parts is {parts}; needed 0 <= part_index < num_parts.")
        files = [(path, os.path.getsize(path)) for path in _paths(where)]
        self.paths = [path for path, size in files if size]
        self.ends = np.cumsum([size for _, size in files if size], dtype=np.int64)  # byte where each file ends
        if not self.paths:
            raise ValueError(f"{os.fspath(where)}: there is nothing in it, at least one line is needed.")
        self.size = int(self.ends[-1])
        share = -(-self.size // parts)
        self.begin, self.end = (self._line_behind(min(share * k, self.size)) for k in (part, part + 1))

    def block(self, at: int) -> tuple[bytes, int]:
        """Whole lines from byte `at` on, about `BLOCK` bytes and of one file; and the byte where the next block begins."""
        path, first, limit = self._file(at)
        limit = min(limit, self.end)
        with open(path, "rb") as file:
            file.seek(at - first)
            text = file.read(min(BLOCK, limit - at))
            while at + len(text) < limit and not text.endswith(b"\n"):
                kept = text.rfind(b"\n") + 1
                if kept:
                    text = text[:kept]
                    break
                more = file.read(min(BLOCK, limit - at - len(text)))
                if not more:
                    break
                text += more
        if not text:
            raise FormatError(
                path, f"byte {at - first}", "it ends here, it was longer before", "do not change it while it is read."
            )
        return text, at + len(text)

    def error(self, at: int, wrong: WrongText) -> FormatError:
        """What is wrong in the block at byte `at`, with file and line."""
        path, first, _ = self._file(at)
        with open(path, "rb") as file:
            before = sum(piece.count(b"\n") for piece in _pieces(file, at - first))
        return FormatError(path, f"line {before + wrong.line + 1}", wrong.problem, wrong.remedy)

    def _file(self, at: int) -> tuple[Path, int, int]:
        """The file that holds byte `at`, the byte where it begins, the byte where it ends."""
        k = int(np.searchsorted(self.ends, at, side="right"))
        return self.paths[k], int(self.ends[k - 1]) if k else 0, int(self.ends[k])

    def _line_behind(self, at: int) -> int:
        """Where the first line begins that does so behind byte `at`; the ends of files are line ends."""
        if at == 0 or at == self.size or at in self.ends:
            return at
        path, first, end = self._file(at)
        with open(path, "rb") as file:
            file.seek(at - first)
            at += len(file.readline())
            while at < end and file.read(1) in (b"\n", b"\r"):
                at += 1
        return at


def _paths(where: str | os.PathLike[str]) -> list[Path]:
    found: list[Path] = []
    for name in os.fspath(where).split(";"):
        path = Path(name.removeprefix("file://"))
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.is_file())
        elif name and path.exists():
            found.append(path)
        else:
            raise FileNotFoundError(f"{name!r}: there is no such file or folder; check the path.")
    return found


def _pieces(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        size -= len(piece)
        yield piece


class RowReader:
    """Rows of text files, so many at a time; its position can be kept and set.

    Args:
        files: the lines.
        parse: the rows of a block of lines, as a tuple of columns (arrays or sparse matrices) of equal row counts; raises
            `WrongText`.
    """

    def __init__(self, files: TextFiles, parse: Callable[[bytes], tuple[Any, ...]]):
        self.files, self._parse = files, parse
        self._kept: dict[int, tuple[tuple[Any, ...], int]] = {}
        self._kept_bytes = 0
        self.seek([files.begin, 0, 0])

    def tell(self) -> list[int]:
        """[byte where the block begins, row in it, number of the row]: where the next `take` begins."""
        return [self._at, self._row, self.number]

    def seek(self, position: Any) -> None:
        """Go to what `tell` said.

        Raises:
            ValueError: the files have no such place.
        """
        at, row, number = (int(v) for v in position)
        if not (self.files.begin <= at <= self.files.end and row >= 0 and number >= 0):
            raise ValueError(
                f"{self.files.paths[0]}: the position (byte {at}, row {row}) does not lie in bytes {self.files.begin} to "
                f"{self.files.end}; it was saved for other files, or another part of them."
            )
        self._at, self._row, self.number = at, row, number
        self._columns: tuple[Any, ...] | None = None

    def rewind(self) -> None:
        """Go to the first row."""
        self.seek([self.files.begin, 0, 0])

    def take(self, count: int) -> tuple[Any, ...] | None:
        """The next `count` rows, fewer at the end, None behind it; the caller may write into them.

        Raises:
            FormatError: a line is no row; the message names file and line.
        """
        parts: list[tuple[Any, ...]] = []
        while count:
            columns = self._current()
            if columns is None:
                break
            low, high = self._row, min(self._row + count, _length(columns))
            if high > low:
                parts.append(tuple(cut(c, slice(low, high)) for c in columns))
            self._row, self.number, count = max(low, high), self.number + max(0, high - low), count - max(0, high - low)
            if self._row >= _length(columns):
                self._at, self._row, self._columns = self._next, 0, None
        if len(parts) == 1:
            return tuple(own(column) for column in parts[0])  # the block's own rows are kept for the next epoch
        return tuple(stack(column) for column in zip(*parts, strict=True)) if parts else None

    def __getstate__(self) -> dict[str, Any]:
        """Files and place: blocks are read again where they are needed."""
        return {**self.__dict__, "_kept": {}, "_kept_bytes": 0, "_columns": None}

    def _current(self) -> tuple[Any, ...] | None:
        if self._columns is None and self._at < self.files.end:
            if self._at not in self._kept:
                self._columns, self._next = self._read(self._at)
                size = sum(_bytes(c) for c in self._columns)
                if self._kept_bytes + size <= KEPT:
                    self._kept[self._at] = (self._columns, self._next)
                    self._kept_bytes += size
            else:
                self._columns, self._next = self._kept[self._at]
        return self._columns

    def _read(self, at: int) -> tuple[tuple[Any, ...], int]:
        text, behind = self.files.block(at)
        try:
            return self._parse(text), behind
        except WrongText as wrong:
            raise self.files.error(at, wrong) from None


def _length(columns: tuple[Any, ...]) -> int:
    return columns[0].shape[0]


def _bytes(column: Any) -> int:
    return sum(a.nbytes for a in (column.data, *column.aux)) if hasattr(column, "aux") else column.nbytes
