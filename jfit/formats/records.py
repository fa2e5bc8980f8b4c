"""RecordIO files: a sequence of byte records (.rec), an index of their offsets (.idx), and headers of image records.

A record is one or more parts.  A part is the magic number, a 32-bit word with its kind (3 bits) and length (29 bits), its
bytes, and zeros up to a multiple of 4.  Data that contains the magic number at a multiple of 4 is split there, and the magic
number is not stored, so that in a file it only occurs at the start of a part.

    kind 0  a whole record        kind 1  first part        kind 2  middle part        kind 3  last part

Source: the RecordIO files of Apache MXNet 1.9.1 (facts of the format only).
"""

from __future__ import annotations

import io
import numbers
import os
import re
import struct
from collections import namedtuple
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from jfit.formats.atomic import FormatError, open_file

MAGIC = b"\x0a\x23\xd7\xce"  # 0xced7230a, little endian
MOST = (1 << 29) - 1  # maximum length of a part in bytes
_HEAD = struct.Struct("<4sI")
_IMAGE = struct.Struct("<IfQQ")
_DAMAGED = "the file is damaged or truncated: restore it from another copy, or write it again."


class _File:
    """A file that is closed at the end of a `with` block, or when it is deleted."""

    _file: io.BufferedIOBase

    def close(self) -> None:
        """Close the file; calling it again has no effect."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class RecordWriter(_File):
    """Write records to a new file; an existing file is overwritten.

    If the process dies, the file contains the records written so far, and the last one may be truncated: `RecordReader` returns
    all complete records and then raises a `FormatError` with the offset of the truncated one.

    Args:
        path: the file to create.

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
        """Append a record.

        Args:
            data: content of the record.

        Returns:
            int: byte offset of the record, for an index.

        Raises:
            TypeError: `data` is not bytes.
            ValueError: a part would be longer than the maximum of the format, 512 MB.
        """
        data = bytes(memoryview(data))  # bytes() alone would take a number as a length
        parts = _split(data)
        longest = max(map(len, parts))
        if longest > MOST:
            raise ValueError(f"{self.path}: a record of {len(data)} bytes is too long, expected parts of at most {MOST} bytes.")
        start = self._file.tell()
        last = len(parts) - 1
        for number, part in enumerate(parts):
            kind = 0 if not last else 1 if not number else 3 if number == last else 2
            self._file.write(_HEAD.pack(MAGIC, kind << 29 | len(part)))
            self._file.write(part)
        self._file.write(bytes(-len(parts[-1]) % 4))  # all other parts have a length that is a multiple of 4
        return start

    def tell(self) -> int:
        """Return the byte offset of the next record."""
        return self._file.tell()

    def flush(self) -> None:
        """Write buffered records to the operating system."""
        self._file.flush()


def _split(data: bytes) -> list[bytes]:
    """Split at magic numbers whose offset is a multiple of 4."""
    # The magic number cannot overlap itself: its first byte occurs in it once.
    places = [found.start() for found in re.finditer(re.escape(MAGIC), data) if found.start() % 4 == 0]
    starts = [0, *(at + len(MAGIC) for at in places)]
    return [data[start:end] for start, end in zip(starts, [*places, len(data)], strict=True)]


class RecordReader(_File):
    """Read records in sequence, or from the byte offset of any record.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: the file does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._file = os.fspath(path), open_file(path)
        self.size = os.fstat(self._file.fileno()).st_size
        self._at, self._pid = 0, os.getpid()

    def read(self) -> bytes | None:
        """Return the next record, or None at the end of the file.

        Raises:
            FormatError: there is no valid record at this offset, or the file ends within it.
        """
        record = self._record(keep=True)
        return None if record is None else MAGIC.join(record[1])

    def skip(self) -> int | None:
        """Skip the next record and return its byte offset, or None at the end of the file."""
        record = self._record(keep=False)
        return None if record is None else record[0]

    def seek(self, at: int) -> None:
        """Go to the byte offset of a record."""
        self._unshare()
        self._at = self._file.seek(at)

    def tell(self) -> int:
        """Return the byte offset of the next record."""
        return self._at

    def _unshare(self) -> None:
        """Reopen the file after a fork, because parent and child would share one file position."""
        if self._pid != os.getpid() and not self._file.closed:
            self._file.close()
            self._file, self._pid = open_file(self.path), os.getpid()
            self._file.seek(self._at)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "at": self._at, "closed": self._file.closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reopen the file at the same position."""
        RecordReader.__init__(self, state["path"])
        self.seek(state["at"])
        if state["closed"]:
            self.close()

    def _record(self, keep: bool) -> tuple[int, list[bytes]] | None:
        """Read the next record and return its byte offset and its parts (each b"" if not `keep`), or None at the end."""
        self._unshare()
        start, kind, parts = self._at, -1, []
        if start == self.size:
            return None
        try:
            while kind not in (0, 3):
                kind, part = self._part(start, keep, first=not parts)
                parts.append(part)
        except FormatError:
            self._at = self._file.seek(start)
            raise
        return start, parts

    def _part(self, start: int, keep: bool, first: bool) -> tuple[int, bytes]:
        """Read the part at the current position and return its kind and bytes.

        start: byte offset of the record.  keep: False: skip the bytes and return b"".  first: whether the part is the first one
        of the record.
        """

        def damaged(problem: str) -> FormatError:
            return FormatError(self.path, f"byte {self._at} (record at byte {start})", problem, _DAMAGED)

        head, left = self._file.read(_HEAD.size), self.size - self._at - _HEAD.size
        magic, word = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
        kind, length = word >> 29, word & MOST
        if magic != MAGIC or kind not in ((0, 1) if first else (2, 3)):
            expected = f"{MAGIC.hex()} and a part of kind {'0 or 1' if first else '2 or 3'}"
            raise damaged(f"the header is {head.hex() or 'missing'}, of kind {kind}; expected {expected}")
        padded = length + -length % 4
        data = self._file.read(padded) if keep and padded <= left else b""
        if padded > left or (keep and len(data) < padded):
            raise damaged(f"a part needs {padded} bytes, {left} are left")
        self._at = self._at + _HEAD.size + padded if keep else self._file.seek(padded, os.SEEK_CUR)
        return kind, data[:length]


def record_offsets(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the byte offsets of all records of a file; reads only their headers.

    Args:
        path: a .rec file.

    Returns:
        (records,) int64.

    Raises:
        FormatError: the file is damaged or truncated.

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
    """Read an index file (.idx): lines of a key, a tab and the byte offset of its record.

    Args:
        path: a .idx file.
        key_type: function from the text of a key to the key, such as int or str.

    Returns:
        dict key -> byte offset, in the order of the file.

    Raises:
        FormatError: a line has another form.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp() + "/a.idx")
        >>> _ = path.write_text("7\\t0\\n9\\t12\\n")
        >>> read_index(path)
        {7: 0, 9: 12}
    """
    offsets: dict[Any, int] = {}
    with io.TextIOWrapper(open_file(path), encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                key, at = line.rstrip("\n").split("\t")[:2]
                offset = int(at)
                if not 0 <= offset < 1 << 63:
                    raise ValueError(at)
                offsets[key_type(key)] = offset
            except ValueError:
                kind = getattr(key_type, "__name__", key_type)
                problem = f"found {line[:60]!r}, expected a key of type {kind}, a tab and a byte offset"
                raise FormatError(path, f"line {number}", problem, "rebuild the index, or pass another key_type.") from None
    return offsets


IRHeader = namedtuple("HEADER", ["flag", "label", "id", "id2"])
IRHeader.__doc__ = """Header of an image record.

Attributes:
    flag: size of the label array, or 0 if the label is one number.
    label: label or labels, float32.
    id: number of the image, unsigned 64-bit.
    id2: high bits of the number, usually 0.

Example:
    >>> IRHeader(0, 4.0, 2574, 0).label
    4.0
"""


def pack(header: Any, s: bytes) -> bytes:
    """Encode header, labels and content as one record.

    Args:
        header: an `IRHeader` or tuple (flag, label, id, id2).  The flag is ignored: it is written as 0 if the label is a
            number, and as n if it is an array of n labels, which are stored as float32 after the header.
        s: bytes of the image file.

    Returns:
        bytes of the record.

    Raises:
        struct.error: id or id2 is not an unsigned 64-bit integer.

    Example:
        >>> pack(IRHeader(0, [1.0, 2.0], 9, 0), b"xyz").hex()
        '0200000000000000090000000000000000000000000000000000803f0000004078797a'
    """
    header = IRHeader(*header)
    labels, flag, label = b"", 0, header.label
    if not isinstance(label, numbers.Number):
        array = np.asarray(label, np.dtype("<f4"))
        labels, flag, label = array.tobytes(), array.size, 0
    return _IMAGE.pack(flag, label, header.id, header.id2) + labels + bytes(s)


def unpack(s: bytes, path: str | os.PathLike[str] = "record", where: str = "header") -> tuple[Any, bytes]:
    """Decode a record written by `pack`.

    Args:
        s: bytes of the record.
        path: file that contains it, for messages.
        where: its position in the file, for messages.

    Returns:
        (IRHeader, content): the label of the header is a float (flag 0) or a (flag,) float32 array.

    Raises:
        FormatError: the record is too short for a header and its labels.

    Example:
        >>> header, content = unpack(pack(IRHeader(0, [1.0, 2.0], 9, 0), b"xyz"))
        >>> header.flag, header.label.tolist(), header.id, content
        (2, [1.0, 2.0], 9, b'xyz')
    """
    needed = _IMAGE.size
    header = None
    if len(s) >= needed:
        header = IRHeader(*_IMAGE.unpack_from(s))
        needed += 4 * header.flag
    if header is None or len(s) < needed:
        labels = "" if header is None else f" with {header.flag} labels"
        problem = f"the header of an image record{labels} has {needed} bytes, the record has {len(s)}"
        raise FormatError(path, where, problem, "the record is damaged or not an image record: create the file again.")
    if not header.flag:
        return header, s[_IMAGE.size :]
    labels = np.frombuffer(s, np.dtype("<f4"), header.flag, _IMAGE.size)
    return header._replace(label=labels), s[needed:]
