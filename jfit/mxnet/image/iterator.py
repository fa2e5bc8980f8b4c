"""`mx.image.ImageIter`: an iterator over images in a record file or a folder, augmented by Python callables."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit import checks
from jfit.data import DataBatch, DataDesc, DataIter
from jfit.data.images import decode, read_list
from jfit.data.images.codec import inside
from jfit.data.ndarray_iter import HANDLES
from jfit.formats.atomic import FormatError, read_file
from jfit.formats.records import RecordReader, read_index, record_offsets, unpack
from jfit.mxnet.errors import translated
from jfit.mxnet.image.augmenters import Augmenter, CreateAugmenter
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.ndarray.create import array

_PACKAGE = Augmenter.__module__.rpartition(".")[0]  # augmenters of this package accept NumPy arrays: no device transfers


class ImageIter(DataIter):
    """Iterate over batches of images, decoded and augmented in this process.

    The images come from a record file (`path_imgrec`), or from files listed in `path_imglist` or `imglist`.
    `mx.io.ImageRecordIter` decodes in several processes.

    Args:
        batch_size: rows per batch.
        data_shape: (3, height, width) of the augmented images.
        label_width: number of labels per row.
        path_imgrec: record file.
        path_imglist: list file with tab-separated key, labels and file name; with a record file, it provides the labels.
        path_root: folder of the image files.
        path_imgidx: index file of the record file, which defines the keys and their order; row numbers without it.
        shuffle: shuffle at the start and at each reset.
        part_index: which of the `num_parts` parts to read.
        num_parts: number of parts of rows // num_parts rows each; remaining rows are not read.
        aug_list: augmenters; by default `CreateAugmenter(data_shape, **kwargs)`.
        imglist: list of [label, file name] or [label, label, ..., file name].
        data_name: name of the images.
        label_name: name of the labels.
        dtype: dtype to which labels of a list are cast when read; batches have float32 labels.
        last_batch_handle: "pad", "discard" or "roll_over", see `NDArrayIter`.

    Raises:
        ValueError: there are no images, or an argument is out of range.
        MXNetError: a file is missing or damaged.
        RuntimeError: an image cannot be decoded; raised when its batch is read, the message names the image.

    Example:
        >>> import tempfile, pathlib
        >>> from jfit.data.images import encode
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for k in range(3):
        ...     _ = (folder / f"{k}.png").write_bytes(encode(np.full((9, 8, 3), k, "uint8"), 9, ".png"))
        >>> it = ImageIter(2, (3, 8, 8), imglist=[[k, f"{k}.png"] for k in range(3)], path_root=str(folder))
        >>> [(b.data[0].shape, b.label[0].asnumpy().tolist(), b.pad) for b in it]
        [((2, 3, 8, 8), [0.0, 1.0], 0), ((2, 3, 8, 8), [2.0, 0.0], 1)]
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple[int, int, int],
        label_width: int = 1,
        path_imgrec: str | None = None,
        path_imglist: str | None = None,
        path_root: str | None = None,
        path_imgidx: str | None = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: Sequence[Any] | None = None,
        imglist: list[Any] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "float32",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size)
        checks.one_of(HANDLES, last_batch_handle=last_batch_handle)
        if not 0 <= part_index < num_parts:
            raise ValueError(f"part_index is {part_index}, num_parts {num_parts}; expected 0 <= part_index < num_parts.")
        self.check_data_shape(data_shape)
        self.data_shape, self.label_width, self.shuffle = tuple(data_shape), label_width, shuffle
        self.path_root, self.last_batch_handle = path_root, last_batch_handle
        shape = (batch_size,) if label_width == 1 else (batch_size, label_width)
        self.provide_data = [DataDesc(data_name, (batch_size, *self.data_shape))]
        self.provide_label = [DataDesc(label_name, shape)]
        with translated():
            self.imgrec = RecordReader(path_imgrec) if path_imgrec else None
            self.imglist = _labels(path_imglist, imglist, np.dtype(dtype))
            self._offsets = _offsets(path_imgrec, path_imgidx)
        keys = list(self._offsets if self.imgrec is not None else self.imglist or {})
        count = len(keys) // num_parts
        self.seq = keys[part_index * count : (part_index + 1) * count] if num_parts > 1 else keys
        if not self.seq:
            source = path_imgrec or path_imglist or "imglist"
            raise ValueError(f"no images to read: {source} has {len(keys)}, this is part {part_index} of {num_parts}.")
        self.num_image = len(self.seq)
        self.auglist: list[Any] = list(aug_list) if aug_list is not None else CreateAugmenter(data_shape, **kwargs)
        self.cur, self._ended = 0, False
        self._carry: tuple[np.ndarray, np.ndarray] | None = None  # images, labels of an incomplete batch (roll_over)
        self._shuffle_keys()

    # -------------------------------------------------------------------------------- order and position
    def _shuffle_keys(self) -> None:
        if self.shuffle:
            random.shuffle(self.seq)

    def reset(self) -> None:
        """Start the next epoch; it begins with the rows that rolled over."""
        self._shuffle_keys()
        self._ended = False
        if self._carry is None:
            self.cur = 0

    def hard_reset(self) -> None:
        """Start the next epoch and drop the rows that rolled over."""
        self._carry = None
        self.reset()

    @property
    def num_batches(self) -> int:
        """Number of batches of the current epoch."""
        rows = self.num_image + (0 if self._carry is None else len(self._carry[0]))
        return -(-rows // self.batch_size) if self.last_batch_handle == "pad" else rows // self.batch_size

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the shuffled order, the rows for the next epoch, and the states of the global generators."""
        state = {"cur": self.cur, "ended": self._ended, "order": list(self.seq), "carry": self._carry}
        return state | {"random": random.getstate(), "numpy": np.random.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of an iterator over the same images, and the states of the global random generators.

        Raises:
            ValueError: the number of images differs.
        """
        if len(state["order"]) != self.num_image:
            raise ValueError(f"the saved position is of {len(state['order'])} images, this iterator has {self.num_image}.")
        self.cur, self._ended = int(state["cur"]), bool(state["ended"])
        self.seq, self._carry = list(state["order"]), state["carry"]
        version, numbers, last = state["random"]
        random.setstate((version, tuple(numbers), last))
        np.random.set_state(tuple(state["numpy"]))

    # -------------------------------------------------------------------------------- batches
    def next(self) -> DataBatch:
        """Return the next batch.

        Raises:
            StopIteration: the epoch has ended.
        """
        if self._ended:
            raise StopIteration
        rolls = self.last_batch_handle == "roll_over"
        data = np.zeros((self.batch_size, *self.data_shape), np.float32)
        shape: Any = self.provide_label[0].shape
        labels = np.zeros(shape if len(shape) > 1 else (*shape, 1), np.float32)
        count = pad = 0
        if self._carry is not None:
            count = len(self._carry[0])
            pad = self.batch_size - count
            data[:count], labels[:count] = self._carry
            self._carry = None
        count = self._fill(data, labels, count)
        if count < self.batch_size:
            self._ended = True
            if rolls and count:
                self._carry, self.cur = (data[:count].copy(), labels[:count].copy()), 0
            if self.last_batch_handle != "pad" or not count:
                raise StopIteration
            pad = self.batch_size - count
            while count < self.batch_size:
                self.cur = 0
                count = self._fill(data, labels, count)
        batch = DataBatch([array(data)], [array(labels.reshape(shape))], pad)
        batch.rolled = rolls
        return batch

    def _fill(self, data: np.ndarray, labels: np.ndarray, row: int) -> int:
        """Write samples into the batch in place, from `row` on, until it is full or the epoch ends; return the last row + 1."""
        while row < self.batch_size:
            try:
                image, label = self._sample()
            except StopIteration:
                break
            image = image.asnumpy() if isinstance(image, MutableArray) else image
            if np.shape(image) != self.data_shape:
                problem = f"the augmented image has shape {np.shape(image)}, data_shape is {self.data_shape}"
                raise ValueError(f"{self._image_name()}: {problem}; add a crop or resize to aug_list.")
            data[row], labels[row] = image, label
            row += 1
        return row

    def _sample(self) -> tuple[Any, np.ndarray]:
        """Return (augmented image, label) of the next row."""
        label, content = self.next_sample()
        image = self.imdecode(content)
        self.check_valid_image([image])
        image = self.postprocess_data(self.augmentation_transform(image))
        label = np.asarray(label.asnumpy() if isinstance(label, MutableArray) else label, np.float32).reshape(-1)
        if len(label) != self.label_width:
            problem = f"{len(label)} labels, label_width is {self.label_width}"
            raise ValueError(f"{self._image_name()} has {problem}; pass label_width={len(label)}.")
        return image, label

    # -------------------------------------------------------------------------------- methods that a subclass may override
    def next_sample(self) -> tuple[Any, bytes]:
        """Return (label, file content) of the next image.

        Raises:
            StopIteration: the epoch has ended.
        """
        if self.cur >= self.num_image:
            raise StopIteration
        key = self.seq[self.cur]
        self.cur += 1
        if self.imgrec is None:
            label, name = self.imglist[key]  # type: ignore[index]
            return label, self.read_image(name)
        with translated():
            self.imgrec.seek(self._offsets[key])
            header, content = unpack(self.imgrec.read() or b"", self.imgrec.path, f"key {key}")
            if self.imglist is None:
                return header.label, content
            if key not in self.imglist:
                problem = "the image list has no line for it"
                raise FormatError(self.imgrec.path, f"key {key}", problem, "pass the list it was packed from.")
            return self.imglist[key][0], content

    def imdecode(self, s: bytes) -> Any:
        """Decode the content of an image file to an NDArray, or to a NumPy array if all augmenters accept NumPy arrays.

        Raises:
            RuntimeError: the content cannot be decoded; the message names the image.
        """
        try:
            image = decode(s)
        except FormatError as error:
            raise RuntimeError(f"Broken image {self._image_name()}: {error.problem}; {error.remedy}") from error
        if _accepts_numpy(type(self).augmentation_transform) and all(map(_accepts_numpy, self.auglist)):
            return image
        return array(image, dtype=image.dtype)

    def augmentation_transform(self, data: Any) -> Any:
        """Apply all augmenters in order."""
        for aug in self.auglist:
            data = aug(data)
        return data

    def postprocess_data(self, datum: Any) -> Any:
        """Transpose (height, width, channels) to (channels, height, width)."""
        return datum.transpose((2, 0, 1)) if isinstance(datum, np.ndarray) else datum.transpose(axes=(2, 0, 1))

    def read_image(self, fname: str) -> bytes:
        """Return the content of an image file under `path_root`.

        Raises:
            ValueError: the name leads out of `path_root`.
            MXNetError: the file does not exist.
        """
        with translated():
            return read_file(inside(self.path_root, fname) if self.path_root else fname)

    def check_data_shape(self, data_shape: Sequence[int]) -> None:
        """Raise ValueError unless the shape is (3, height, width)."""
        if len(data_shape) != 3 or data_shape[0] != 3:
            raise ValueError(f"data_shape is {tuple(data_shape)}, expected (3, height, width).")

    def check_valid_image(self, data: Sequence[Any]) -> None:
        """Raise RuntimeError if the image is a scalar, which has no pixels."""
        if not np.ndim(data[0]) if isinstance(data[0], np.ndarray) else not data[0].shape:
            raise RuntimeError("the decoded image is empty: it has no axes; check the image file")

    def _image_name(self) -> str:
        key = self.seq[max(0, self.cur - 1)]
        return f"filename: {self.imglist[key][1]}" if self.imglist is not None and key in self.imglist else f"index: {key}"


def _accepts_numpy(augmenter: Any) -> bool:
    borrowed = [augmenter.augmenter] if hasattr(augmenter, "augmenter") else []
    parts = [*getattr(augmenter, "ts", ()), *getattr(augmenter, "aug_list", ()), *borrowed]
    return augmenter.__module__.startswith(_PACKAGE) and all(map(_accepts_numpy, parts))  # of its class, or of a function


def _offsets(rec: str | None, idx: str | None) -> dict[Any, int]:
    """Return the byte offset of each record by key; without an index file the keys are row numbers."""
    if not rec:
        return {}
    return read_index(idx) if idx else dict(enumerate(record_offsets(rec).tolist()))


def _labels(path: str | None, imglist: list[Any] | None, dtype: np.dtype[Any]) -> dict[Any, tuple[np.ndarray, str]] | None:
    """Return {key: (labels, file name)} from a list file or a list; None if there is neither."""
    if path:
        return {key: (labels.astype(dtype), name) for key, (labels, name) in read_list(path)}
    if not isinstance(imglist, list):
        return None
    entries = {}
    for number, item in enumerate(imglist, 1):
        labels = item[:-1] if len(item) > 2 else item[0]
        entries[str(number)] = (np.atleast_1d(np.asarray(labels, dtype)), item[-1])
    return entries
