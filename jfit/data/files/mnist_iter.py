"""Batches of images from the two files of MNIST, and of everything in its format."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jfit.data.files.csv_iter import number_type
from jfit.data.files.file_iter import Positioned
from jfit.data.ndarray_iter import DataDesc
from jfit.formats.atomic import FormatError

_UINT8 = 8  # the type code of bytes; the format has others, data sets of images do not
_DEFLATE = 1032  # deflate makes at most so many bytes of one


def read_idx(path: str | os.PathLike[str], axes: int) -> np.ndarray:
    """The bytes of an IDX file, as an array; compressed with gzip, or mapped from the disk where it is not.

    Args:
        path: the file; gzip is recognised by its first bytes.
        axes: how many axes the array has.

    Returns:
        uint8 array.

    Raises:
        FormatError: it is no such file, or its size is not what its head says.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
        >>> read_idx("labels", 1).tolist()
        [7, 9]

    Source: the IDX format of the MNIST database (LeCun, Cortes and Burges).
    """
    path = Path(path)
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else open(path, "rb") as file:
        head = _read(file, 4 + 4 * axes, path)
        shape = struct.unpack(f">{axes}I", head[4:]) if len(head) == 4 + 4 * axes else ()
        if head[:4] != bytes([0, 0, _UINT8, axes]) or not shape:
            found = f"found {head[:4].hex(' ') or 'nothing'}, needed 00 00 08 {axes:02x} (bytes, {axes} axes)"
            raise FormatError(path, "byte 0", found, "pass images as image= and labels as label=.")
        size, there = math.prod(shape), path.stat().st_size
        most = (there * _DEFLATE if packed else there) - len(head)
        if size > most:
            problem = f"its head says {shape}, {size} bytes, but at most {most} follow"
            raise FormatError(path, "byte 4", problem, "the file is cut off or damaged: download it again.")
        if not packed:
            return np.memmap(path, np.uint8, "r", offset=len(head), shape=shape) if size else np.zeros(shape, np.uint8)
        body = _read(file, size + 1, path)  # the end of the file is reached, and its check sum looked at
    if len(body) < size:
        problem = f"found {len(body)} bytes behind the head, needed {size}"
        raise FormatError(path, f"byte {len(head)}", problem, "the file is cut off: download it again.")
    return np.frombuffer(body, np.uint8, size).reshape(shape)


def _read(file: Any, size: int, path: Path) -> bytes:
    try:
        return file.read(size)
    except (EOFError, OSError, zlib.error) as error:
        raise FormatError(path, "content", f"it is no whole gzip file ({error})", "download it again.") from error


def mnist_order(count: int, seed: int) -> np.ndarray:
    """The order in which MXNet's MNISTIter reads shuffled rows: a function of the number of rows and the seed.

    Args:
        count: number of rows.
        seed: any integer; taken modulo 2³².

    Returns:
        (count,) int64.

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
        share = (2**32 - 1) // (k + 1)  # of the draws, for each of k + 1 places; the rest is drawn again
        at = next(drawn for drawn in draws if drawn < share * (k + 1)) // share
        order[k], order[at] = order[at], order[k]
    return np.array(order, np.int64)


class MNISTIter(Positioned):
    """Batches of images with values 0 .. 255/256 from a file of images and one of labels; what fills no batch is left out.

    x = pixel / 256.

    Args:
        image: file of images, IDX with 3 axes, or such a file compressed with gzip.
        label: file of labels, IDX with 1 axis, or such a file compressed with gzip.
        batch_size: rows of a batch.
        shuffle: one order for all epochs, a function of the seed.
        flat: batches of (batch_size, pixels) instead of (batch_size, 1, height, width).
        seed: fixes the order, the one that MXNet has for this seed.
        silent: say nothing about what was read.
        num_parts: read one of so many parts of the rows.
        part_index: which one, from 0.
        dtype: of data and labels, a floating type.
        data_name: name of the data.
        label_name: name of the labels.

    Raises:
        FormatError: a file is cut off or of another format.
        FileNotFoundError: there is no such file.
        ValueError: unequal numbers of images and labels, or fewer than fill a batch.

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
            raise ValueError(f"dtype is {dtype}, a floating type is needed: pixels become parts of 256.")
        if not 0 <= part_index < num_parts:
            raise ValueError(f"part_index is {part_index}, num_parts is {num_parts}; needed 0 <= part_index < num_parts.")
        self._images, self._labels = read_idx(image, 3), read_idx(label, 1)
        count = len(self._images)
        if len(self._labels) != count:
            raise ValueError(f"{image} holds {count} images, {label} {len(self._labels)} labels; each image needs its label.")
        low, high = (int(count / num_parts * k) for k in (part_index, part_index + 1))
        self._order = low + (mnist_order(high - low, seed) if shuffle else np.arange(high - low))
        height, width = self._images.shape[1:]
        self._shape = (height * width,) if flat else (1, height, width)
        data = [DataDesc(data_name, (batch_size, *self._shape), self._dtype.type)]
        super().__init__(batch_size, data, [DataDesc(label_name, (batch_size,), self._dtype.type)])
        if len(self._order) < batch_size:
            raise ValueError(f"{image}: {len(self._order)} images (of this part) do not fill a batch of {batch_size}.")
        if not silent:
            print(f"MNISTIter: {len(self._order)} images of {height} x {width} from {image}, shuffle={shuffle}")

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return len(self._order) // self.batch_size

    def skip(self, batches: int) -> None:
        """Move on as if so many batches had been read."""
        self.batches_read = min(self.batches_read + batches, self.num_batches)

    def _begin(self) -> None:
        pass  # the position is `batches_read` alone

    def _read(self) -> tuple[list[Any], list[Any], np.ndarray, int] | None:
        at = self.batches_read * self.batch_size
        if self.batches_read == self.num_batches:
            return None
        index = self._order[at : at + self.batch_size]
        data = self._images[index].astype(self._dtype).reshape(-1, *self._shape)
        data *= self._dtype.type(1 / 256)
        return [data], [self._labels[index].astype(self._dtype)], index, 0

    def state_dict(self) -> dict[str, Any]:
        """Where the iterator stands, as plain data; the order is that of the constructor's seed."""
        return {"batch": self.batches_read, "rows": len(self._order), "first": int(self._order[0])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of an iterator over the same files, made with the same arguments.

        Raises:
            ValueError: the rows, or their order, are others.
        """
        mine = self.state_dict()
        if (state["rows"], state["first"]) != (mine["rows"], mine["first"]):
            raise ValueError(
                f"the saved position is of {state['rows']} rows that begin with number {state['first']}, this iterator has "
                f"{mine['rows']} and begins with {mine['first']}; make it with the files, seed and part of then."
            )
        self.reset()
        if state["batch"]:
            self.skip(int(state["batch"]) - 1)
            self.iter_next()  # the current batch again
