"""`mx.recordio`: MXNet's record files, read and written byte for byte.

>>> import jfit.mx as mx
>>> packed = mx.recordio.pack(mx.recordio.IRHeader(0, 4.0, 2574, 0), b"image")
>>> mx.recordio.unpack(packed)
(HEADER(flag=0, label=4.0, id=2574, id2=0), b'image')
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

import numpy as np

from jfit.data.images.codec import decode, encode
from jfit.formats.records import IRHeader, RecordReader, RecordWriter, pack, read_index, unpack
from jfit.mxnet.errors import translated
from jfit.mxnet.namespaces import absent

__all__ = ["IRHeader", "MXIndexedRecordIO", "MXRecordIO", "pack", "pack_img", "unpack", "unpack_img"]


class MXRecordIO:
    """Reads or writes the records of a file one after the other.

    Args:
        uri: the file.
        flag: "r" to read, "w" to write; writing empties a file that is there.

    Raises:
        ValueError: another flag.
        MXNetError: there is no such file, or (when reading) it is damaged; the message names the byte.

    A reader can be pickled and goes on from its start in the other process; after a fork it refuses to read until `reset`.
    An open writer cannot be pickled (in MXNet the copy empties the file).

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
        if self.flag not in ("r", "w"):
            raise ValueError(f"flag of {self.uri} is {self.flag!r}, needed 'r' to read or 'w' to write.")
        self.writable = self.flag == "w"
        with translated():
            self._file = (RecordWriter if self.writable else RecordReader)(self.uri)
        self.pid, self.is_open = os.getpid(), True

    def close(self) -> None:
        """Close the file; may be called again."""
        if self.is_open:
            self._file.close()
        self.is_open, self.pid = False, None

    def reset(self) -> None:
        """Back to the first record; a file that is being written is emptied."""
        self.close()
        self.open()

    def write(self, buf: bytes) -> None:
        """Append a record."""
        self._check(writing=True)
        self._file.write(buf)

    def read(self) -> bytes | None:
        """The next record, None at the end."""
        self._check(writing=False)
        with translated():
            return self._file.read()

    def tell(self) -> int:
        """The byte at which the next record begins."""
        self._check()
        return self._file.tell()

    def state_dict(self) -> dict[str, int]:
        """The place of a reader."""
        return {"offset": self.tell()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on reading at a saved place."""
        self._check(writing=False)
        with translated():
            self._file.seek(int(state["offset"]))

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self.is_open and self.writable:
            raise ValueError(f"{self.uri} is open for writing: another process would empty it; close it before pickling.")
        return {k: v for k, v in self.__dict__.items() if k not in ("_file", "fidx")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _file=None)
        if self.is_open:
            self.open()

    def _check(self, writing: bool | None = None) -> None:
        if not self.is_open:
            raise ValueError(f"{self.uri} is closed; open() or reset() it first.")
        if writing is not None and writing != self.writable:
            # MXNet asserts this, so scripts that look for it catch an AssertionError.
            raise AssertionError(f"{self.uri} is open with flag {self.flag!r}; needed {'w' if writing else 'r'!r} for this.")
        if self.pid != os.getpid():
            raise RuntimeError(
                f"{self.uri} was opened by process {self.pid}, which shares its place in the file; call reset() here."
            )


class MXIndexedRecordIO(MXRecordIO):
    """Reads or writes the records of a file by key; the index is a text file of its own.

    Args:
        idx_path: the index file.
        uri: the record file.
        flag: "r" or "w".
        key_type: makes a key from its text.

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
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        self.fidx: TextIO | None = None
        super().__init__(uri, flag)

    def open(self) -> None:
        """Open both files."""
        super().open()
        self.idx, self.fidx = {}, None
        if self.writable:
            self.fidx = open(self.idx_path, "w", encoding="utf-8")  # noqa: SIM115  closed by close()
        else:
            with translated():
                self.idx = read_index(self.idx_path, self.key_type)
        self.keys = list(self.idx)

    def close(self) -> None:
        """Close both files."""
        super().close()
        if getattr(self, "fidx", None) is not None:
            self.fidx.close()  # type: ignore[union-attr]

    def seek(self, idx: Any) -> None:
        """Go to the record of a key.

        Raises:
            KeyError: the index has no such key.
        """
        if self.pid is not None and self.pid != os.getpid():
            self.reset()  # as MXNet: a reader by key has no place that processes could share
        self._check(writing=False)
        if idx not in self.idx:
            raise KeyError(f"{self.idx_path} has no key {idx!r}; it has {len(self.keys)}: {str(self.keys[:5])[1:-1]} ...")
        with translated():
            self._file.seek(self.idx[idx])

    def read_idx(self, idx: Any) -> bytes | None:
        """The record of a key."""
        self.seek(idx)
        return self.read()

    def write_idx(self, idx: Any, buf: bytes) -> None:
        """Append a record under a key.  The record is written before its line of the index."""
        key = self.key_type(idx)
        at = self.tell()
        self.write(buf)
        assert self.fidx is not None
        self.fidx.write(f"{key}\t{at}\n")
        self.idx[key] = at
        self.keys.append(key)


def pack_img(header: Any, img: Any, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """An image array as a record.

    Args:
        header: an `IRHeader`.
        img: (H, W, 3) uint8 in OpenCV's order blue, green, red, or (H, W).
        quality: of JPEG from 1 to 100, or compression of PNG from 0 to 9.
        img_fmt: ".jpg" or ".png".

    Raises:
        ImportError: Pillow is not installed.

    The bytes of a JPEG depend on the encoder: other ones than OpenCV writes, of an image as near.  PNG keeps every pixel.

    Example:
        >>> packed = pack_img(IRHeader(0, 1.0, 0, 0), np.zeros((2, 2, 3), "uint8"), 9, ".png")
        >>> unpack_img(packed)[1].shape
        (2, 2, 3)
    """
    array = np.asarray(img.asnumpy() if hasattr(img, "asnumpy") else img)
    return pack(header, encode(array[..., ::-1] if array.ndim == 3 else array, quality, img_fmt))


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[Any, np.ndarray]:
    """Header and image array of a record.

    Args:
        s: the record.
        iscolor: 1 for three channels (blue, green, red), 0 for grey, -1 for what the file has.

    Returns:
        The header and (H, W, 3) or (H, W) uint8.
    """
    header, content = unpack(s)
    mode = {1: "RGB", 0: "L"}.get(iscolor)
    array = decode(content, mode)
    if array.ndim == 3:
        if array.shape[2] == 1:
            return header, array[..., 0]
        order = (2, 1, 0, 3)[: array.shape[2]]
        return header, np.ascontiguousarray(array[..., order])
    return header, array


def __getattr__(name: str) -> NoReturn:
    absent("mx.recordio", name, __all__)
