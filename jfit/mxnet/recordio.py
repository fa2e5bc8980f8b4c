"""`mx.recordio`: read and write MXNet's record files (RecordIO), byte for byte as MXNet does.

>>> import jfit.mx as mx
>>> packed = mx.recordio.pack(mx.recordio.IRHeader(0, 4.0, 2574, 0), b"image")
>>> mx.recordio.unpack(packed)
(HEADER(flag=0, label=4.0, id=2574, id2=0), b'image')
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from jfit import checks
from jfit.data.images.codec import decode, encode
from jfit.formats.records import IRHeader as IRHeader
from jfit.formats.records import RecordReader, RecordWriter, pack, read_index, unpack
from jfit.mxnet.errors import translated


class MXRecordIO:
    """Sequential reader or writer of a record file.

    A reader can be pickled; the copy starts at the first record.  In a forked process reading raises until `reset` is called,
    because both processes share the file position.  An open writer cannot be pickled (in MXNet the copy empties the file).

    Args:
        uri: path of the file.
        flag: "r" to read, "w" to write; "w" overwrites an existing file.

    Raises:
        ValueError: `flag` is neither "r" nor "w".
        MXNetError: the file does not exist, or (when reading) is damaged; the message gives the byte offset.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/a.rec"
        >>> writer = MXRecordIO(path, "w")
        >>> writer.write(b"record")
        >>> writer.close()
        >>> MXRecordIO(path, "r").read()
        b'record'
    """

    is_open = False

    def __init__(self, uri: str | os.PathLike[str], flag: str) -> None:
        self.uri, self.flag, self.pid = os.fspath(uri), flag, None
        self._file: Any = None
        self.open()

    def open(self) -> None:
        """Open the file."""
        checks.one_of(("r", "w"), flag=self.flag)
        self.writable = self.flag == "w"
        with translated():
            self._file = (RecordWriter if self.writable else RecordReader)(self.uri)
        self.pid, self.is_open = os.getpid(), True

    def close(self) -> None:
        """Close the file; no effect if it is closed."""
        if self.is_open:
            self._file.close()
        self.is_open, self.pid = False, None

    def reset(self) -> None:
        """Close and reopen: a reader returns to the first record, a writer empties its file."""
        self.close()
        self.open()

    def write(self, buf: bytes) -> None:
        """Append a record of any bytes.

        Raises:
            AssertionError: the file is open for reading.
        """
        self._check(writing=True)
        self._file.write(buf)

    def read(self) -> bytes | None:
        """Return the next record as bytes, or None at the end of the file.

        Raises:
            AssertionError: the file is open for writing.
            RuntimeError: the file is closed, or was opened by another process.
            MXNetError: the file is damaged.
        """
        self._check(writing=False)
        with translated():
            return self._file.read()

    def tell(self) -> int:
        """Return the byte offset of the next record."""
        self._check()
        return self._file.tell()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self.is_open and self.writable:
            raise ValueError(f"{self.uri} is open for writing: an unpickled copy would empty it; close it before pickling.")
        return {k: v for k, v in self.__dict__.items() if k not in ("_file", "fidx")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _file=None)
        if self.is_open:
            self.open()

    def _check(self, writing: bool | None = None) -> None:
        flag = f"{self.uri} is open with flag {self.flag!r}; this call needs {'w' if writing else 'r'!r}."
        assert writing in (None, self.writable), flag
        if self.pid != os.getpid():
            raise RuntimeError(f"{self.uri} is closed, or another process opened it and shares its position; call reset().")


class MXIndexedRecordIO(MXRecordIO):
    """Reader or writer of a record file by key, with a separate text file as index.

    Args:
        idx_path: path of the index file.
        uri: path of the record file.
        flag: "r" to read, "w" to write.
        key_type: function from the text of a key in the index to the key.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> writer = MXIndexedRecordIO(folder + "/a.idx", folder + "/a.rec", "w")
        >>> for key in range(3):
        ...     writer.write_idx(key, b"record %d" % key)
        >>> writer.close()
        >>> MXIndexedRecordIO(folder + "/a.idx", folder + "/a.rec", "r").read_idx(2)
        b'record 2'
    """

    def __init__(
        self, idx_path: str | os.PathLike[str], uri: str | os.PathLike[str], flag: str, key_type: Callable[[str], Any] = int
    ) -> None:
        self.idx_path, self.key_type = idx_path, key_type
        super().__init__(uri, flag)

    def open(self) -> None:
        """Open both files."""
        super().open()
        self.idx: dict[Any, int] = {}
        self.fidx: TextIO | None = None
        if self.writable:
            self.fidx = open(self.idx_path, "w", encoding="utf-8")  # noqa: SIM115  closed by close()
        else:
            with translated():
                self.idx = read_index(self.idx_path, self.key_type)
        self.keys: list[Any] = list(self.idx)

    def close(self) -> None:
        """Close both files."""
        super().close()
        if getattr(self, "fidx", None) is not None:
            self.fidx.close()  # type: ignore[union-attr]

    def seek(self, idx: Any) -> None:
        """Move to the record of key `idx`.

        Raises:
            KeyError: the index has no such key.
        """
        if self.pid is not None and self.pid != os.getpid():
            self.reset()  # as in MXNet; safe, because a reader by key does not depend on the current position
        self._check(writing=False)
        offset = self.idx[idx]
        with translated():
            self._file.seek(offset)

    def read_idx(self, idx: Any) -> bytes | None:
        """Return the record of key `idx` as bytes."""
        self.seek(idx)
        return self.read()

    def write_idx(self, idx: Any, buf: bytes) -> None:
        """Append a record under key `idx`; the record is written before its line of the index."""
        key = self.key_type(idx)
        offset = self.tell()
        self.write(buf)
        assert self.fidx is not None
        self.fidx.write(f"{key}\t{offset}\n")
        self.idx[key] = offset
        self.keys.append(key)


def pack_img(header: Any, img: Any, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """Encode an image and pack it with a header into a record.

    JPEG bytes differ from those that OpenCV writes in MXNet, with the same quality; PNG is lossless.

    Args:
        header: an `IRHeader`.
        img: array (height, width, 3) or (height, width), uint8, channels in OpenCV's order blue, green, red.
        quality: JPEG quality from 1 to 100, or PNG compression level from 0 to 9.
        img_fmt: ".jpg" or ".png".

    Returns:
        The record, bytes.

    Raises:
        ImportError: Pillow is not installed.

    Example:
        >>> packed = pack_img(IRHeader(0, 1.0, 0, 0), np.zeros((2, 2, 3), "uint8"), 9, ".png")
        >>> unpack_img(packed)[1].shape
        (2, 2, 3)
    """
    array = np.asarray(img.asnumpy() if hasattr(img, "asnumpy") else img)
    return pack(header, encode(array[..., ::-1] if array.ndim == 3 else array, quality, img_fmt))


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[Any, np.ndarray]:
    """Unpack a record and decode its image.

    Args:
        s: the record, bytes.
        iscolor: 1 for three channels (blue, green, red), 0 for grayscale, -1 for the channels stored in the file.

    Returns:
        (header, image), the image an array (height, width, 3) or (height, width), uint8.

    Raises:
        ImportError: Pillow is not installed.

    Example:
        >>> unpack_img(pack_img(IRHeader(0, 1.0, 0, 0), np.zeros((2, 3), "uint8"), 9, ".png"))[1].shape
        (2, 3)
    """
    header, content = unpack(s)
    array = decode(content, {1: "RGB", 0: "L"}.get(iscolor))
    order = (2, 1, 0, 3)[: array.shape[2]]
    return header, array[..., 0] if len(order) == 1 else np.ascontiguousarray(array[..., order])
