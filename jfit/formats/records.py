"""RecordIO: records of bytes one after the other (.rec), an index of where they begin (.idx), headers of image records.

A record is one or more parts.  A part is the magic number, a word that holds its kind and its length, the bytes, and zeros up
to a multiple of 4.  Bytes that hold the magic number at a multiple of 4 are cut there, and the number itself is left out: a
reader that starts anywhere can find the next record.

    kind 0  a whole record        kind 1  first part        kind 2  a part between        kind 3  last part

Source: the RecordIO files of Apache MXNet 1.9.1 (facts of the format only).
"""

from __future__ import annotations

import numbers
import os
import struct
from collections import namedtuple
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from jfit.formats.atomic import FormatError

MAGIC = b"\x0a\x23\xd7\xce"  # 0xced7230a, little endian
MOST = (1 << 29) - 1  # bytes of a part: its length has 29 bits
_HEAD = struct.Struct("<4sI")
_IMAGE = struct.Struct("<IfQQ")
_DAMAGED = "the file is damaged or cut off: restore it from another copy, or write it again."


class RecordWriter:
    """Appends records to a new file (a file of that name is emptied).

    A process that dies leaves the records written so far, the last of them perhaps cut short: reading gives all whole ones and
    then a `FormatError` with the byte at which the cut one begins.

    Args:
        path: the file to make.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/a.rec"
        >>> with RecordWriter(path) as file:
        ...     file.write(b"abc"), file.write(b"")
        (0, 12)
        >>> with RecordReader(path) as file:
        ...     file.read(), file.read(), file.read()
        (b'abc', b'', None)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._file = os.fspath(path), open(path, "wb")  # noqa: SIM115  closed by close()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Appends a record.

        Args:
            data: its content.

        Returns:
            The byte at which it begins, for an index.

        Raises:
            TypeError: no bytes.
            ValueError: a part would be longer than 512 MB, which the format cannot say.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"{self.path}: a record is bytes, found {type(data).__name__}; encode it first, text with .encode()."
            )
        data = bytes(data)
        parts = _cut(data)
        longest = max(map(len, parts))
        if longest > MOST:
            raise ValueError(f"{self.path}: a record of {len(data)} bytes is too long; parts of at most {MOST} bytes fit.")
        start = self._file.tell()
        last = len(parts) - 1
        for number, part in enumerate(parts):
            kind = 0 if not last else 1 if not number else 3 if number == last else 2
            self._file.write(_HEAD.pack(MAGIC, kind << 29 | len(part)))
            self._file.write(part)
        self._file.write(bytes(-len(parts[-1]) % 4))  # the parts before it are multiples of 4 long
        return start

    def tell(self) -> int:
        """The byte at which the next record will begin."""
        return self._file.tell()

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file; may be called again."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _cut(data: bytes) -> list[bytes]:
    """The parts between magic numbers that lie at multiples of 4."""
    parts, start, at = [], 0, data.find(MAGIC)
    while at >= 0:
        if at % 4 == 0:
            parts.append(data[start:at])
            start = at + 4
        at = data.find(MAGIC, start if at % 4 == 0 else at + 1)
    return [*parts, data[start:]]


class RecordReader:
    """Reads records one after the other, or from any byte at which one begins.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._file = os.fspath(path), open(path, "rb")  # noqa: SIM115  closed by close()
        self.size = os.fstat(self._file.fileno()).st_size
        self._at, self._pid = 0, os.getpid()

    def read(self) -> bytes | None:
        """The next record, None at the end of the file.

        Raises:
            FormatError: there is no record, or the file ends within it; sizes are checked before anything is read.
        """
        self._unshare()
        start = self._at
        if start == self.size:
            return None
        kind, part = self._part(start, keep=True)
        if kind == 0:
            return part
        parts = [part]
        while kind != 3:
            kind, part = self._part(start, keep=True, first=False)
            parts.append(part)
        return MAGIC.join(parts)

    def skip(self) -> int | None:
        """Moves behind the next record without reading it; the byte at which it begins, None at the end of the file."""
        self._unshare()
        start = self._at
        if start == self.size:
            return None
        kind, _ = self._part(start, keep=False)
        while kind not in (0, 3):
            kind, _ = self._part(start, keep=False, first=False)
        return start

    def seek(self, at: int) -> None:
        """Moves to a byte at which a record begins.

        Raises:
            FormatError: the file is shorter.
        """
        if not 0 <= at <= self.size:
            raise FormatError(
                self.path, f"byte {at}", f"the file has {self.size} bytes", "the index is of another file: make it again."
            )
        self._unshare()
        self._at = self._file.seek(at)

    def tell(self) -> int:
        """The byte at which the next record begins."""
        return self._at

    def close(self) -> None:
        """Close the file; may be called again."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _unshare(self) -> None:
        """After a fork: opens the file again, since parent and child would move each other's place in it."""
        if self._pid != os.getpid() and not self._file.closed:
            self._file.close()
            self._file, self._pid = open(self.path, "rb"), os.getpid()  # noqa: SIM115  closed by close()
            self._file.seek(self._at)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "at": self._at, "closed": self._file.closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same file at the same place, opened again: in another process too."""
        RecordReader.__init__(self, state["path"])
        self.seek(state["at"])
        if state["closed"]:
            self.close()

    def _part(self, start: int, keep: bool, first: bool = True) -> tuple[int, bytes]:
        """Kind and bytes of the part here; the place moves behind it only where it is whole."""
        where, left = f"byte {self._at} (record at byte {start})", self.size - self._at
        if left < _HEAD.size:
            raise FormatError(self.path, where, f"a part begins with {_HEAD.size} bytes, {left} are left", _DAMAGED)
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise FormatError(self.path, where, "the file ended while it was being read", _DAMAGED)
        magic, word = _HEAD.unpack(head)
        kind, length = word >> 29, word & MOST
        try:
            if magic != MAGIC:
                raise FormatError(self.path, where, f"found {magic.hex()}, needed the magic number {MAGIC.hex()}", _DAMAGED)
            if kind not in ((0, 1) if first else (2, 3)):
                needed = "0 or 1, which begin a record" if first else "2 or 3, which continue one"
                raise FormatError(self.path, where, f"a part of kind {kind}, needed {needed}", _DAMAGED)
            padded = length + -length % 4
            if padded > left - _HEAD.size:
                problem = f"a part needs {padded} bytes, {left - _HEAD.size} are left"
                raise FormatError(self.path, where, problem, _DAMAGED)
            if not keep:
                self._at = self._file.seek(padded, os.SEEK_CUR)
                return kind, b""
            data = self._file.read(padded)
            if len(data) < padded:
                raise FormatError(self.path, where, "the file ended while it was being read", _DAMAGED)
        except FormatError:
            self._at = self._file.seek(start)
            raise
        self._at += _HEAD.size + padded
        return kind, data[:length]


def record_offsets(path: str | os.PathLike[str]) -> np.ndarray:
    """The byte at which each record of a file begins, (records,) int64; reads their heads only.

    Args:
        path: a .rec file.

    Raises:
        FormatError: the file is damaged or cut off.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/a.rec"
        >>> with RecordWriter(path) as file:
        ...     _ = file.write(b"abc"), file.write(b"x")
        >>> record_offsets(path).tolist()
        [0, 12]
    """
    with RecordReader(path) as file:
        return np.fromiter(iter(file.skip, None), np.int64)


def read_index(path: str | os.PathLike[str], key_type: Callable[[str], Any] = int) -> dict[Any, int]:
    """Key -> byte at which its record begins, in the order of an index file: a line is the key, a tab, the byte.

    Args:
        path: a .idx file.
        key_type: makes a key from its text.

    Raises:
        FormatError: a line is not that.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp() + "/a.idx")
        >>> _ = path.write_text("7\\t0\\n9\\t12\\n")
        >>> read_index(path)
        {7: 0, 9: 12}
    """
    found: dict[Any, int] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                key, at = line.rstrip("\n").split("\t")[:2]
                place = int(at)
                if not 0 <= place < 1 << 63:
                    raise ValueError(at)
                found[key_type(key)] = place
            except ValueError:
                kind = getattr(key_type, "__name__", key_type)
                problem = f"found {line[:60]!r}, needed a key of type {kind}, a tab and a byte number"
                raise FormatError(
                    path, f"line {number}", problem, "make the index again, or give the right key_type."
                ) from None
    return found


IRHeader = namedtuple("HEADER", ["flag", "label", "id", "id2"])
"""Header of an image record: number of labels (0: one number in `label`), label or labels, id and its higher bits."""


def pack(header: Any, content: bytes) -> bytes:
    """Header, labels and content as one record.

    Args:
        header: an `IRHeader` or (flag, label, id, id2). A number as label is written with flag 0; an array of n labels as n
          float32 behind a header with flag n. The flag given counts for nothing.
        content: the bytes of the image file.

    Raises:
        ValueError: id or id2 is no unsigned number of 64 bits.

    Example:
        >>> pack(IRHeader(0, [1.0, 2.0], 9, 0), b"xyz").hex()
        '0200000000000000090000000000000000000000000000000000803f0000004078797a'
    """
    header = IRHeader(*header)
    labels, flag, label = b"", 0, header.label
    if not isinstance(label, numbers.Number):
        array = np.asarray(label, np.dtype("<f4"))
        labels, flag, label = array.tobytes(), array.size, 0
    try:
        return _IMAGE.pack(flag, label, header.id, header.id2) + labels + bytes(content)
    except struct.error as error:
        raise ValueError(f"header {header} of a record: {error}; id and id2 are whole numbers from 0 to 2**64 - 1.") from None


def unpack(record: bytes, path: str | os.PathLike[str] = "record", where: str = "header") -> tuple[Any, bytes]:
    """Header and content of a record that `pack` made.

    Args:
        record: the record.
        path: the file it came from, for messages.
        where: its place there, for messages.

    Returns:
        An `IRHeader`, whose label is a number (flag 0) or (flag,) float32, and the content.

    Raises:
        FormatError: the record is too short for a header or for the labels that it announces.

    Example:
        >>> header, content = unpack(pack(IRHeader(0, [1.0, 2.0], 9, 0), b"xyz"))
        >>> header.flag, header.label.tolist(), header.id, content
        (2, [1.0, 2.0], 9, b'xyz')
    """
    needed = _IMAGE.size
    header = None
    if len(record) >= needed:
        header = IRHeader(*_IMAGE.unpack_from(record))
        needed += 4 * header.flag
    if header is None or len(record) < needed:
        labels = "" if header is None else f" with {header.flag} labels"
        problem = f"the header of an image record{labels} takes {needed} bytes, the record has {len(record)}"
        raise FormatError(path, where, problem, "it is no image record, or damaged: pack it again.")
    if not header.flag:
        return header, record[_IMAGE.size :]
    labels = np.frombuffer(record, np.dtype("<f4"), header.flag, _IMAGE.size)
    return header._replace(label=labels), record[needed:]
