"""`MNISTIter`: batches of images and labels from IDX files, the format of the MNIST database."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from jfit.data.files.csv_iter import number_type
from jfit.data.files.file_iter import Positioned
from jfit.data.ndarray_iter import DataBatch, DataDesc
from jfit.data.parts import check_part
from jfit.formats.atomic import FormatError, open_file

_UINT8 = 8  # IDX type code of uint8, the only one that image data sets use
_LARGE = 1 << 28  # bytes; files that are larger after decompression must have a compression ratio below _RATIO
_RATIO = 64  # photographs and digits have about 5


def read_idx(path: str | os.PathLike[str], axes: int) -> np.ndarray:
    """Read a uint8 IDX file; a file without gzip compression is memory-mapped.

    Args:
        path: the file; gzip is recognised by its first bytes.
        axes: expected number of axes.

    Returns:
        uint8 array with `axes` axes.

    Raises:
        FormatError: the file is not an IDX file of `axes` axes, or shorter than its header says.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
        >>> read_idx("labels", 1).tolist()
        [7, 9]

    Source: the IDX format of the MNIST database (LeCun, Cortes and Burges).
    """
    path = Path(path)
    with open_file(path) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else open_file(path) as file:
        head = _read(file, 4 + 4 * axes, path)
        shape = struct.unpack(f">{axes}I", head[4:]) if len(head) == 4 + 4 * axes else ()
        if head[:4] != bytes([0, 0, _UINT8, axes]) or not shape:
            problem = f"found {head[:4].hex(' ') or 'nothing'}, expected 00 00 08 {axes:02x} (uint8, {axes} axes)"
            raise FormatError(path, "byte 0", problem, "pass images as image= and labels as label=.")
        size, file_size = math.prod(shape), path.stat().st_size
        if size > (max(_LARGE, _RATIO * file_size) if packed else file_size - len(head)):
            problem = f"the header gives shape {shape}, {size:,} bytes, but the file has {file_size:,}"
            remedy = "if it is truncated, download it again; if you trust a compressed file, decompress it with gunzip."
            raise FormatError(path, "byte 4", problem, remedy)
        if not packed:
            return np.memmap(path, np.uint8, "r", offset=len(head), shape=shape) if size else np.zeros(shape, np.uint8)
        body = _read(file, size + 1, path)  # one byte more, so that gzip reaches the end and checks its checksum
    if len(body) < size:
        problem = f"found {len(body)} bytes after the header, expected {size}"
        raise FormatError(path, f"byte {len(head)}", problem, "the file is truncated: download it again.")
    return np.frombuffer(body, np.uint8, size).reshape(shape)


def _read(file: Any, size: int, path: Path) -> bytes:
    try:
        return file.read(size)
    except (EOFError, OSError, zlib.error) as error:
        raise FormatError(path, "content", f"the gzip file is damaged or truncated ({error})", "download it again.") from error


def mnist_order(count: int, seed: int) -> np.ndarray:
    """Permutation of the rows by MXNet's MNISTIter with shuffle=True.

    Args:
        count: number of rows.
        seed: any integer, taken modulo 2³².

    Returns:
        (count,) int64, row indices in reading order.

    Example:
        >>> mnist_order(5, 2).tolist()
        [3, 0, 1, 2, 4]

    Source: Fisher and Yates' shuffle in the order of libstdc++, drawing from MT19937 (Matsumoto and Nishimura, 1998).
    """
    twister = np.random.MT19937()
    twister._legacy_seeding(seed % 2**32)  # type: ignore[attr-defined]
    draws = itertools.chain.from_iterable(twister.random_raw(1024).tolist() for _ in itertools.count())
    order = list(range(count))
    for k in range(1, count):
        # As libstdc++ does, whose generator has the range max - min = 2**32 - 1: `share` draws map to each of the k + 1 places,
        # and draws from share * (k + 1) on are rejected.
        share = (2**32 - 1) // (k + 1)
        at = next(draw for draw in draws if draw < share * (k + 1)) // share
        order[k], order[at] = order[at], order[k]
    return np.array(order, np.int64)


class MNISTIter(Positioned):
    """Iterate over the images and labels of MNIST files; x = pixel / 256, and a short last batch is dropped.

    Args:
        image: IDX file of images (3 axes), plain or compressed with gzip.
        label: IDX file of labels (1 axis), plain or compressed with gzip.
        batch_size: number of rows per batch.
        shuffle: whether to shuffle the rows, in one order for all epochs.
        flat: whether batches have the shape (batch_size, height * width) instead of (batch_size, 1, height, width).
        seed: seed of the shuffle; the order is MXNet's order for the same seed.
        silent: False: print the number and size of the images.
        num_parts: number of equal parts of the rows, of which one is read.
        part_index: index of the part to read, from 0.
        dtype: floating dtype of data and labels.
        data_name: name of the data.
        label_name: name of the labels.

    Raises:
        FormatError: a file is truncated or not an IDX file.
        FileNotFoundError: a file does not exist.
        ValueError: unequal numbers of images and labels, fewer images than `batch_size`, or an invalid argument.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("images").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 64, 128, 192]))
        >>> _ = Path("labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
        >>> batch = MNISTIter("images", "labels", batch_size=2, shuffle=False, flat=True, silent=True).next()
        >>> batch.data[0].tolist(), batch.label[0].tolist()
        ([[0.0, 0.25], [0.5, 0.75]], [7.0, 9.0])

    Source: mxnet.io.MNISTIter of Apache MXNet 1.9.1.
    """

    def __init__(
        self,
        image: str | os.PathLike[str] = "./train-images-idx3-ubyte",
        label: str | os.PathLike[str] = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        silent: bool = True,
        num_parts: int = 1,
        part_index: int = 0,
        dtype: Any = np.float32,
        data_name: str = "data",
        label_name: str = "softmax_label",
    ):
        self._dtype = number_type(dtype)
        if self._dtype.kind != "f":
            raise ValueError(f"dtype is {dtype}, expected a floating dtype, because pixels are divided by 256.")
        check_part(part_index, num_parts)
        self._images, self._labels = read_idx(image, 3), read_idx(label, 1)
        count = len(self._images)
        if len(self._labels) != count:
            raise ValueError(f"{image} has {count} images, {label} has {len(self._labels)} labels; expected equal numbers.")
        low, high = (int(count / num_parts * k) for k in (part_index, part_index + 1))
        self._order = low + (mnist_order(high - low, seed) if shuffle else np.arange(high - low))
        height, width = self._images.shape[1:]
        self._shape = (height * width,) if flat else (1, height, width)
        data = [DataDesc(data_name, (batch_size, *self._shape), self._dtype.type)]
        super().__init__(batch_size, data, [DataDesc(label_name, (batch_size,), self._dtype.type)])
        if len(self._order) < batch_size:
            raise ValueError(f"{image}: {len(self._order)} images (of this part) do not fill a batch of {batch_size} rows.")
        if not silent:
            print(f"MNISTIter: {len(self._order)} images of {height} x {width} from {image}, shuffle={shuffle}")

    @property
    def num_batches(self) -> int:
        """Number of batches per epoch."""
        return len(self._order) // self.batch_size

    def skip(self, batches: int) -> None:
        """Skip a number of batches."""
        self.batches_read = min(self.batches_read + batches, self.num_batches)

    def _read(self) -> DataBatch | None:
        at = self.batches_read * self.batch_size
        if self.batches_read == self.num_batches:
            return None
        index = self._order[at : at + self.batch_size]
        data = self._images[index].astype(self._dtype).reshape(-1, *self._shape)
        data *= self._dtype.type(1 / 256)
        return DataBatch([data], [self._labels[index].astype(self._dtype)], 0, index)

    def _about(self) -> dict[str, Any]:
        return {"rows": len(self._order), "first": int(self._order[0])}  # the order depends only on the arguments
