"""`ImageRecords`: batches of images from a record file (.rec), decoded in this process or in worker processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.checks import at_least_0, one_of, positive_integer
from jfit.data.images.codec import pillow
from jfit.data.images.pool import Pool
from jfit.data.images.recipe import Recipe, check_recipe
from jfit.data.images.source import Job, RowDecoder
from jfit.data.ndarray_iter import DataBatch, DataDesc, WholeBatches
from jfit.data.parts import check_part, job_part
from jfit.formats.atomic import FormatError
from jfit.formats.records import read_index, record_offsets


class ImageRecords(WholeBatches):
    """Iterate over decoded, augmented images of a record file and their labels.

    A batch is a `DataBatch` with one data array (batch_size, channels, H, W), or (batch_size, H, W, channels) for NHWC, one
    label array (batch_size,) or (batch_size, label_width) float32, and the row indices.  The order of an epoch is a function of
    (seed, epoch), the augmentation of a row a function of (seed, epoch, row): batches do not depend on the number of workers,
    and a resumed run continues with the same ones.

    Args:
        path: record file (.rec).
        data_shape: (channels, height, width) of an image; 1 channel: gray.
        batch_size: number of rows per batch.
        path_index: index file (.idx): its order is the order of the rows, and the record file need not be scanned.
        path_list: image list (.lst) whose labels replace those of the records with the same id.
        label_width: number of labels per row.
        shuffle: whether to shuffle the rows in every epoch.
        seed: seed of orders and augmentations.
        seed_augment: seed of the augmentations; None: `seed`.
        part_index: index of the part to read, from 0.  None: in a job of several processes, the rank of this one, else 0.
        num_parts: number of parts into which the rows are split; their sizes differ by at most one row.  None: the number of
            processes of the job.
        last_batch_handle: "pad": pad the last batch with rows from the start of the epoch; "discard": drop it.
        layout: "NCHW" or "NHWC".
        dtype: "float32", "uint8" or "int8".
        workers: number of decoding processes; 0: decode in this process.
        ahead: number of batches that the workers decode ahead.
        data_name: name of the images.
        label_name: name of the labels.
        augment: fields of `Recipe`, such as resize, rand_crop, rand_mirror, mean, std.

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
        part_index: int | None = None,
        num_parts: int | None = None,
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
        positive_integer(batch_size=batch_size, label_width=label_width, ahead=ahead)
        at_least_0(workers=workers)
        one_of(("NCHW", "NHWC"), layout=layout)
        one_of(("pad", "discard"), last_batch_handle=last_batch_handle)
        recipe = check_recipe(Recipe(tuple(map(int, data_shape)), layout == "NHWC", dtype, **augment))  # type: ignore[arg-type]
        list_path = None if path_list is None else os.fspath(path_list)
        self.job = Job(os.fspath(path), list_path, label_width, seed if seed_augment is None else seed_augment, recipe)
        self.shuffle, self.seed, self.last_batch_handle, self.layout = shuffle, seed, last_batch_handle, layout
        self.workers, self.ahead = workers, ahead
        self.data_name, self.label_name = data_name, label_name
        offsets = record_offsets(path) if path_index is None else np.fromiter(read_index(path_index, str).values(), np.int64)
        if part_index is None and num_parts is None:
            part_index, num_parts = job_part()
        part_index, num_parts = check_part(part_index or 0, 1 if num_parts is None else num_parts)
        self.rows = np.array_split(np.arange(len(offsets)), num_parts)[part_index]  # row indices of this part
        self._offsets = offsets
        self.epoch, self.position = 0, 0  # of the next batch
        self._decoder: RowDecoder | None = None
        self._pool: Pool | None = None
        self._submit_at = (0, 0)  # (epoch, position) of the next batch to submit to the workers
        self._orders: dict[int, np.ndarray] = {}

    @property
    def num_batches(self) -> int:
        """Number of batches per epoch."""
        whole, rest = divmod(len(self.rows), self.batch_size)
        return whole + bool(rest and self.last_batch_handle == "pad")

    @property
    def provide_data(self) -> list[DataDesc]:
        """Description of the images."""
        shape, dtype = (self.batch_size, *self.job.data_shape()), np.dtype(self.job.recipe.dtype).type
        return [DataDesc(self.data_name, shape, dtype, self.layout)]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Description of the labels."""
        shape = (self.batch_size,) if self.job.label_width == 1 else (self.batch_size, self.job.label_width)
        return [DataDesc(self.label_name, shape, np.float32)]

    @property
    def batches_read(self) -> int:
        """Number of batches of the current epoch that were read or skipped."""
        return self.position

    def iter_next(self) -> bool:
        """Advance to the next batch; return False at the end of the epoch."""
        if self.position >= self.num_batches:
            return False
        numbers, pad = self._numbers(self.epoch, self.position)
        self.current_batch = None  # free its slot in the shared memory
        data, labels = self._from_workers() if self.workers else self._decode(numbers)
        self.position += 1
        self.current_batch = DataBatch([data], [labels[:, 0] if self.job.label_width == 1 else labels], pad, numbers)
        return True

    def reset(self) -> None:
        """Start the next epoch."""
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position of the next batch, to continue an iterator over the same files with the same arguments."""
        return {"epoch": self.epoch, "position": self.position, "rows": len(self.rows), "batch_size": self.batch_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises:
            ValueError: the state was saved with a different number of rows or batch size.
        """
        saved, found = ({name: of[name] for name in ("rows", "batch_size")} for of in (state, self.state_dict()))
        if saved != found:
            raise ValueError(f"the saved position is of images with {saved}, these have {found}.")
        self.seek_batch(int(state["epoch"]), int(state["position"]))

    def seek_batch(self, epoch: int, batch: int) -> None:
        """Go to a batch of an epoch without reading.  `jfit.fit` calls it, also to resume a run."""
        self.epoch, self.position = epoch, batch

    def close(self) -> None:
        """End the workers and close the file; reading another batch reopens them."""
        if self._pool is not None:
            self._pool.close()
        if self._decoder is not None:
            self._decoder.close()
        self._pool = self._decoder = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without workers and open files: a copy opens new ones."""
        return {**self.__dict__, "_pool": None, "_decoder": None, "current_batch": None}

    def _order(self, epoch: int) -> np.ndarray:
        """Return the row indices in the reading order of an epoch."""
        if not self.shuffle:
            return self.rows
        if epoch not in self._orders:
            rng = np.random.Generator(np.random.Philox(key=[self.seed & (1 << 64) - 1, epoch], counter=[0, 0, 0, 1]))
            self._orders = {e: o for e, o in self._orders.items() if abs(e - epoch) < 2}
            self._orders[epoch] = rng.permutation(self.rows)
        return self._orders[epoch]

    def _numbers(self, epoch: int, position: int) -> tuple[np.ndarray, int]:
        """Return (row indices of a batch, number of padding rows at its end)."""
        order = self._order(epoch)
        places = np.arange(position * self.batch_size, (position + 1) * self.batch_size)
        return order[places % len(order)], max(0, int(places[-1]) + 1 - len(order))

    def _tasks(self, numbers: np.ndarray) -> list[tuple[int, int]]:
        return list(zip(numbers.tolist(), self._offsets[numbers].tolist(), strict=True))

    def _decode(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._decoder = self._decoder or RowDecoder(self.job)
        data = np.empty((self.batch_size, *self.job.data_shape()), self.job.recipe.dtype)
        labels = np.empty((self.batch_size, self.job.label_width), np.float32)
        self._decoder.decode(self._tasks(numbers), self.epoch, data, labels)
        return data, labels

    def _from_workers(self) -> tuple[np.ndarray, np.ndarray]:
        """Take the batch at the current position from the workers, and submit the following ones."""
        if self._pool is None or self._pool.owner != os.getpid():
            self._pool = Pool(self.job, self.workers, self.batch_size, self.ahead)
            self._submit_at = (self.epoch, self.position)
        first = self._after(*self._submit_at, -self._pool.pending)
        if first != (self.epoch, self.position):  # the position has changed: drop the batches decoded ahead
            self._drop()
            self._submit_at = (self.epoch, self.position)
        try:
            while self._pool.pending < self.ahead:
                self._pool.submit(self._tasks(self._numbers(*self._submit_at)[0]), self._submit_at[0])
                self._submit_at = self._after(*self._submit_at, 1)
            return self._pool.take()
        except BaseException as error:
            if not isinstance(error, FormatError):  # one damaged record: later batches can still be read
                self.close()  # a worker died, or Ctrl-C left answers unread
            raise

    def _after(self, epoch: int, position: int, batches: int) -> tuple[int, int]:
        """Return the (epoch, position) that is `batches` batches ahead."""
        at = epoch * self.num_batches + position + batches
        return divmod(at, self.num_batches)

    def _drop(self) -> None:
        assert self._pool is not None
        while self._pool.pending:
            with contextlib.suppress(FormatError):  # the batch is dropped anyway
                self._pool.take()
