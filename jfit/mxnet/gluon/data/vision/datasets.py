"""Image data sets in local files; nothing is downloaded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jfit.data.files.mnist_iter import read_idx
from jfit.formats.atomic import FormatError, read_file
from jfit.mxnet.errors import MissingFile, data_dir, translated
from jfit.mxnet.gluon.data.dataset import Dataset, RecordFileDataset, with_fast_rows
from jfit.mxnet.image.functions import imdecode, imread
from jfit.mxnet.numpy.arrays import current_kind
from jfit.mxnet.recordio import unpack

_Transform = Callable[[Any, Any], Any] | None


class _InMemory(Dataset):
    """Images (rows, height, width, channels) uint8 and labels (rows,) int32, of which a sample is one row.

    root: folder of the files; None: `datasets/<_folder>` in the folder `$MXNET_HOME`, or `~/.mxnet`.
    """

    _folder: str
    _read: Callable[[], tuple[np.ndarray, np.ndarray]]

    def __init__(self, root: str | os.PathLike[str] | None = None, train: bool = True, transform: _Transform = None) -> None:
        self._root = Path(data_dir(), "datasets", self._folder) if root is None else Path(root).expanduser()
        self._train, self._transform = train, transform
        with translated():
            images, labels = self._read()
        if len(images) != len(labels):
            problem = f"{len(images)} images, but {len(labels)} labels"
            raise ValueError(f"{type(self).__name__}: the files in {self._root} have {problem}; get them again.")
        self._data, self._label = current_kind()(images), labels.astype(np.int32)
        self._rows = with_fast_rows(self._data)

    def _path(self, *names: str) -> Path:
        """Return the path of the first of these files that exists."""
        for path in (self._root / name for name in names):
            if path.exists():
                return path
        problem = f"{type(self).__name__}: the folder {self._root} has no file {' nor '.join(names)}"
        raise MissingFile(f"{problem}. jfit does not download data: put the file there, or pass root=, its folder.")

    def __len__(self) -> int:
        return len(self._label)

    def __getitem__(self, idx: Any) -> Any:
        sample = self._rows[idx], self._label[idx]
        return sample if self._transform is None else self._transform(*sample)


class MNIST(_InMemory):
    """Handwritten digits: samples (image (28, 28, 1) uint8, label int32).

    Args:
        root: folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
            `t10k-labels-idx1-ubyte`, plain or compressed (`.gz`); None is `~/.mxnet/datasets/mnist`.
        train: the 60,000 training samples, else the 10,000 test samples.
        transform: function of image and label, applied to each sample.

    Raises:
        MXNetError: a file is missing (then also a FileNotFoundError) or damaged.

    Example:
        >>> MNIST("missing")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        jfit.mxnet.errors.MissingFile: MNIST: the folder missing has no file train-images-idx3-ubyte.gz nor ...
    """

    _folder = "mnist"

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        part = "train" if self._train else "t10k"
        names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
        images, labels = (read_idx(self._path(name + ".gz", name), axes) for name, axes in zip(names, (3, 1), strict=True))
        return images[..., None], labels


class FashionMNIST(MNIST):
    """Images of clothes, in files like those of `MNIST`; the default folder is `~/.mxnet/datasets/fashion-mnist`."""

    _folder = "fashion-mnist"


class CIFAR10(_InMemory):
    """Photographs of ten classes: samples (image (32, 32, 3) uint8, label int32).

    Args:
        root: folder with `data_batch_1.bin`, ..., `data_batch_5.bin` and `test_batch.bin`; None is `~/.mxnet/datasets/cifar10`.
        train: the 50,000 training samples, else the 10,000 test samples.
        transform: function of image and label, applied to each sample.

    Raises:
        MXNetError: a file is missing (then also a FileNotFoundError) or damaged.

    Example:
        >>> rows = np.arange(2 * 3073, dtype="uint8").reshape(2, 3073)
        >>> _ = Path("test_batch.bin").write_bytes(rows.tobytes())
        >>> image, label = CIFAR10(".", train=False)[1]
        >>> image.shape, int(label)
        ((32, 32, 3), 1)
    """

    _folder = "cifar10"
    _files = ([f"data_batch_{k}.bin" for k in range(1, 6)], ["test_batch.bin"])
    _labels, _label_at = 1, 0  # bytes before the pixels of a row, and which of them is the label

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        rows = np.concatenate([self._rows_of(name) for name in self._files[not self._train]])
        pixels = rows[:, self._labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), rows[:, self._label_at]

    def _rows_of(self, name: str) -> np.ndarray:
        path, size = self._path(name), self._labels + 3 * 32 * 32
        content = read_file(path)
        if len(content) % size:
            problem = f"found {len(content)} bytes, expected a multiple of {size}"
            raise FormatError(path, "content", problem, "the file is truncated: get it again.")
        return np.frombuffer(content, np.uint8).reshape(-1, size)


class CIFAR100(CIFAR10):
    """`CIFAR10` with 100 classes in 20 groups, in the files `train.bin` and `test.bin`.

    Args:
        root: folder of the files; None is `~/.mxnet/datasets/cifar100`.
        fine_label: labels are the 100 classes, else the 20 groups.
        train, transform: as for `CIFAR10`.
    """

    _folder = "cifar100"
    _files, _labels = (["train.bin"], ["test.bin"]), 2

    def __init__(
        self, root: str | None = None, fine_label: bool = False, train: bool = True, transform: _Transform = None
    ) -> None:
        self._label_at = int(fine_label)
        super().__init__(root, train, transform)


class ImageRecordDataset(RecordFileDataset):
    """Images and labels of a record file: samples (image (height, width, channels) uint8, label as in the record).

    Args:
        filename: path of the record file; its index has the same name and ends with .idx.
        flag: 1 for three channels, 0 for one (gray).
        transform: function of image and label, applied to each sample.
    """

    def __init__(self, filename: str, flag: int = 1, transform: _Transform = None) -> None:
        super().__init__(filename)
        self._flag, self._transform = flag, transform

    def __getitem__(self, idx: Any) -> Any:
        header, content = unpack(super().__getitem__(idx))
        sample = imdecode(content, self._flag), header.label
        return sample if self._transform is None else self._transform(*sample)


class ImageFolderDataset(Dataset):
    """Image files in one folder per class, `root/class/image.jpg`: samples (image (height, width, channels) uint8, label).

    Args:
        root: the folder of the class folders.  Anything else in it is ignored with a warning, and so are files in a class
            folder that are not .jpg, .jpeg or .png.
        flag: 1 for three channels, 0 for one (gray).
        transform: function of image and label, applied to each sample.

    Attributes:
        synsets: names of the classes, sorted; the label of an image is the index of its class in this list.
        items: list of (path, label), sorted.

    Raises:
        FileNotFoundError: `root` does not exist.
    """

    def __init__(self, root: str, flag: int = 1, transform: _Transform = None) -> None:
        self._flag, self._transform = flag, transform
        self.synsets: list[str] = []
        self.items: list[tuple[str, int]] = []
        for folder in sorted(Path(root).expanduser().iterdir()):
            if not folder.is_dir():
                warnings.warn(f"{folder} is ignored: it is not a folder.", stacklevel=2)
                continue
            for file in sorted(folder.iterdir()):
                if file.suffix.lower() in (".jpg", ".jpeg", ".png"):
                    self.items.append((str(file), len(self.synsets)))
                else:
                    warnings.warn(f"{file} is ignored: images are .jpg, .jpeg or .png files.", stacklevel=2)
            self.synsets.append(folder.name)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, idx: Any) -> Any:
        path, label = self.items[idx]
        sample = imread(path, self._flag), label
        return sample if self._transform is None else self._transform(*sample)
