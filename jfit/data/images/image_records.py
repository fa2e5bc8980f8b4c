"""`ImageRecords`: batches of images out of a record file, decoded in this process or in others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.data.images.codec import pillow
from jfit.data.images.pool import Pool
from jfit.data.images.recipe import Recipe, checked
from jfit.data.images.source import Filler, Job
from jfit.data.ndarray_iter import DataBatch, DataDesc, WholeBatches
from jfit.formats.atomic import FormatError
from jfit.formats.records import read_index, record_offsets

_HANDLES = ("pad", "discard")


class ImageRecords(WholeBatches):
    """Batches of decoded, augmented images and their labels, epoch after epoch.

    The random numbers of a row in an epoch follow from (seed, epoch, row), its place in the order from (seed, epoch): the
    batches are the same for any number of workers, and after `load_state_dict`.

    Args:
        path: the record file (.rec).
        data_shape: (channels, height, width); 1 channel gives grey images.
        batch_size: rows of a batch.
        path_index: index file (.idx), which saves a walk over the file at the start; the rows are in its order.
        path_list: image list (.lst) whose labels replace those of the records, by id.
        label_width: labels of a row.
        shuffle: a new order every epoch.
        seed: fixes orders and augmentations.
        seed_augment: fixes augmentations, instead of `seed`.
        part_index: which part of the file to read, of `num_parts` whose sizes differ by at most one row.
        num_parts: into how many parts the rows are split.
        last_batch_handle: "pad" fills the last batch with rows from the start of the order, which `pad` counts; "discard"
            drops it.
        layout: "NCHW" or "NHWC".
        dtype: "float32", "uint8" or "int8".
        workers: processes that decode; 0 decodes in this one.
        ahead: batches that the workers make in advance.
        data_name: name of the images.
        label_name: name of the labels.
        augment: fields of `Recipe`: resize, rand_crop, rand_mirror, mean, std ...

    Gives:
        `DataBatch` of one (batch, channels, H, W) array, its labels (batch,) or (batch, label_width) float32, and row numbers.

    Raises:
        ImportError: Pillow is not installed.
        FormatError: a file is damaged; the message names the record.
        ValueError: an argument is out of range.

    Example:
        >>> import tempfile
        >>> from jfit.data.images import encode
        >>> from jfit.formats.records import IRHeader, RecordWriter, pack
        >>> path = tempfile.mkdtemp() + "/a.rec"
        >>> with RecordWriter(path) as file:
        ...     for k in range(3):
        ...         _ = file.write(pack(IRHeader(0, k, k, 0), encode(np.full((8, 9, 3), k, "uint8"), 9, ".png")))
        >>> images = ImageRecords(path, (3, 8, 8), batch_size=2)
        >>> [(batch.data[0].shape, batch.label[0].tolist(), batch.pad) for batch in images]
        [((2, 3, 8, 8), [0.0, 1.0], 0), ((2, 3, 8, 8), [2.0, 0.0], 1)]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        data_shape: tuple[int, int, int],
        batch_size: int,
        *,
        path_index: str | os.PathLike[str] | None = None,
        path_list: str | os.PathLike[str] | None = None,
        label_width: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        seed_augment: int | None = None,
        part_index: int = 0,
        num_parts: int = 1,
        last_batch_handle: str = "pad",
        layout: str = "NCHW",
        dtype: str = "float32",
        workers: int = 0,
        ahead: int = 3,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **augment: Any,
    ) -> None:
        super().__init__(batch_size)
        pillow()
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("label_width", label_width, 1),
            ("workers", workers, 0),
            ("ahead", ahead, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}, needed at least {least}.")
        if layout not in ("NCHW", "NHWC") or last_batch_handle not in _HANDLES:
            raise ValueError(
                f"layout is {layout!r}, needed NCHW or NHWC; last_batch_handle {last_batch_handle!r}, needed {_HANDLES}."
            )
        recipe = checked(Recipe(tuple(map(int, data_shape)), layout == "NHWC", dtype, **augment))  # type: ignore[arg-type]
        self.job = Job(
            os.fspath(path),
            None if path_list is None else os.fspath(path_list),
            label_width,
            seed if seed_augment is None else seed_augment,
            recipe,
        )
        self.shuffle, self.seed, self.last_batch_handle, self.layout = shuffle, seed, last_batch_handle, layout
        self.workers, self.ahead = workers, ahead
        self.data_name, self.label_name = data_name, label_name
        offsets = record_offsets(path) if path_index is None else _index(path_index)
        self.rows = _part(len(offsets), part_index, num_parts)  # row numbers of this part
        self._offsets = offsets
        if not len(self.rows):
            raise ValueError(f"{path}: part {part_index} of {num_parts} of {len(offsets)} records is empty; use fewer parts.")
        self.epoch, self.position = 0, 0  # of the next batch
        self._filler: Filler | None = None
        self._pool: Pool | None = None
        self._asked = (0, 0)  # (epoch, position) of the next batch to ask the workers for
        self._orders: dict[int, np.ndarray] = {}

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        whole, rest = divmod(len(self.rows), self.batch_size)
        return whole + bool(rest and self.last_batch_handle == "pad")

    @property
    def provide_data(self) -> list[DataDesc]:
        """Description of the images."""
        return [
            DataDesc(
                self.data_name, (self.batch_size, *self.job.data_shape()), np.dtype(self.job.recipe.dtype).type, self.layout
            )
        ]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Description of the labels."""
        shape = (self.batch_size,) if self.job.label_width == 1 else (self.batch_size, self.job.label_width)
        return [DataDesc(self.label_name, shape, np.float32)]

    @property
    def batches_read(self) -> int:
        """Batches of the current epoch that were read or skipped."""
        return self.position

    def iter_next(self) -> bool:
        """Move on by one batch; False at the end of the epoch."""
        if self.position >= self.num_batches:
            return False
        numbers, pad = self._numbers(self.epoch, self.position)
        self.current_batch = None  # its memory may be wanted
        data, labels = self._made() if self.workers else self._make(numbers)
        self.position += 1
        self.current_batch = DataBatch([data], [labels[:, 0] if self.job.label_width == 1 else labels], pad, numbers)
        return True

    def reset(self) -> None:
        """Start the next epoch."""
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """The place of the next batch: what it takes to continue, with the same files and arguments."""
        return {"epoch": self.epoch, "position": self.position, "rows": len(self.rows), "batch_size": self.batch_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved place.

        Raises:
            ValueError: it was saved with another number of rows or another batch size.
        """
        for name, own in (("rows", len(self.rows)), ("batch_size", self.batch_size)):
            if int(state[name]) != own:
                raise ValueError(f"the saved position is of images with {name}={int(state[name])}, these have {own}.")
        self.seek_batch(int(state["epoch"]), int(state["position"]))

    def seek_batch(self, epoch: int, batch: int) -> None:
        """Go to a batch of an epoch; nothing is read.  `jfit.fit` calls it, also when a training is resumed."""
        self.epoch, self.position = epoch, batch

    def close(self) -> None:
        """End the workers and close the file; the next batch starts them again."""
        if self._pool is not None:
            self._pool.close()
        if self._filler is not None:
            self._filler.close()
        self._pool = self._filler = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy in another process needs; its workers are its own."""
        return {**self.__dict__, "_pool": None, "_filler": None, "current_batch": None}

    def _order(self, epoch: int) -> np.ndarray:
        """Row numbers in the order of an epoch."""
        if not self.shuffle:
            return self.rows
        if epoch not in self._orders:
            mixed = np.random.Generator(np.random.Philox(key=[self.seed & (1 << 64) - 1, epoch], counter=[0, 0, 0, 1]))
            self._orders = {e: o for e, o in self._orders.items() if abs(e - epoch) < 2}
            self._orders[epoch] = mixed.permutation(self.rows)
        return self._orders[epoch]

    def _numbers(self, epoch: int, position: int) -> tuple[np.ndarray, int]:
        """Row numbers of a batch, and how many of them are wrapped from the start of the order."""
        order = self._order(epoch)
        places = np.arange(position * self.batch_size, (position + 1) * self.batch_size)
        return order[places % len(order)], max(0, int(places[-1]) + 1 - len(order))

    def _tasks(self, numbers: np.ndarray) -> list[tuple[int, int]]:
        return list(zip(numbers.tolist(), self._offsets[numbers].tolist(), strict=True))

    def _make(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._filler = self._filler or Filler(self.job)
        data = np.empty((self.batch_size, *self.job.data_shape()), self.job.recipe.dtype)
        labels = np.empty((self.batch_size, self.job.label_width), np.float32)
        self._filler.fill(self._tasks(numbers), self.epoch, data, labels)
        return data, labels

    def _made(self) -> tuple[np.ndarray, np.ndarray]:
        """The batch at the current place from the workers, who go on with those that will come after it."""
        if self._pool is None or self._pool.owner != os.getpid():
            self._pool = Pool(self.job, self.workers, self.batch_size, self.ahead)
            self._asked = (self.epoch, self.position)
        first = self._after(*self._asked, -self._pool.pending)
        if first != (self.epoch, self.position):  # the place has changed: what was made ahead is not wanted
            self._drop()
            self._asked = (self.epoch, self.position)
        try:
            while self._pool.pending < self.ahead:
                self._pool.ask(self._tasks(self._numbers(*self._asked)[0]), self._asked[0])
                self._asked = self._after(*self._asked, 1)
            return self._pool.take()
        except FormatError:
            raise  # one record is damaged: the next batch may be read
        except BaseException:
            self.close()  # a worker has died, or Ctrl-C came between two answers
            raise

    def _after(self, epoch: int, position: int, batches: int) -> tuple[int, int]:
        """The place so many batches on."""
        at = epoch * self.num_batches + position + batches
        return divmod(at, self.num_batches)

    def _drop(self) -> None:
        assert self._pool is not None
        while self._pool.pending:
            try:
                self._pool.take()
            except FormatError:  # of a batch that nobody asked for
                continue


def _index(path: str | os.PathLike[str]) -> np.ndarray:
    return np.fromiter(read_index(path, str).values(), np.int64)


def _part(rows: int, part: int, parts: int) -> np.ndarray:
    """Row numbers of one part; the first `rows % parts` parts have one more."""
    if not 0 <= part < parts:
        raise ValueError(f"part_index is {part}, num_parts {parts}; needed 0 <= part_index < num_parts.")
    whole, rest = divmod(rows, parts)
    start = part * whole + min(part, rest)
    return np.arange(start, start + whole + (part < rest))
