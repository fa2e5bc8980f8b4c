"""`mx.io.ImageRecordIter`: `jfit.data.ImageRecords` with MXNet's arguments and NDArrays in its batches."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.data.images import ImageRecords
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.mxnet.errors import translated
from jfit.mxnet.io.files import MXDataIter, value_of, warn_ignored
from jfit.platforms import cores

_LOG = logging.getLogger(__name__)
# Arguments of `ImageRecords`, and fields of `jfit.data.images.Recipe`, under the same name.
_SAME = (
    "label_width", "shuffle", "seed", "dtype", "data_name", "label_name",
    "resize", "inter_method", "rand_crop", "random_resized_crop", "min_random_area", "max_random_area", "min_aspect_ratio",
    "max_aspect_ratio", "min_crop_size", "max_crop_size", "min_random_scale", "max_random_scale", "pad", "fill_value",
    "mirror", "rand_mirror", "brightness", "contrast", "saturation", "pca_noise", "scale", "max_random_contrast",
    "max_random_illumination", "rotate", "max_rotate_angle", "max_shear_ratio", "min_img_size", "max_img_size",
    "random_h", "random_s", "random_l",
)  # fmt: skip
_NAMES = {"path_imgidx": "path_index", "path_imglist": "path_list", "seed_aug": "seed_augment"} | {n: n for n in _SAME}
_BOOLEANS = ("shuffle", "rand_crop", "random_resized_crop", "mirror", "rand_mirror")
_STRINGS = ("aug_seq", "ctx", "path_imgidx", "path_imglist")  # arguments whose strings are not parsed as numbers
_IGNORED = ("verbose", "device_id", "shuffle_chunk_size", "shuffle_chunk_seed", "ctx")  # do not change the batches
# Unsupported arguments -> the values at which they have no effect, which are accepted.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "aug_seq": ("aug_default",), "mean_a": (0,), "std_a": (1,),
}  # fmt: skip


class ImageRecordIter(MXDataIter, ImageRecords):
    """Iterate over batches of images from a record file, decoded by worker processes.

    Arguments and defaults are those of MXNet 1.9.1.  Values may be strings, as in `batch_size="32"`.  Unknown arguments are
    ignored with a warning.  Unlike in MXNet, every epoch reads all rows (rows that wrap around into the last batch are not
    skipped in the next epoch), `round_batch=False` leaves no undefined rows, and random numbers do not depend on the number of
    workers.

    Args:
        path_imgrec: record file.
        data_shape: (channels, height, width), with 3 or 1 channels.
        batch_size: rows per batch.
        path_imgidx: index file of the record file.
        path_imglist: image list whose labels replace those of the records, matched by id.
        label_width: number of labels per row.
        shuffle: shuffle at each epoch.
        seed: seeds the order, and the augmentations unless `seed_aug` does.
        seed_aug: seeds the augmentations.
        part_index: which of the `num_parts` parts to read.
        num_parts: number of parts; their sizes differ by at most one row.
        round_batch: accepted; the last batch is always filled with rows from the start, and `pad` is their number.
        preprocess_threads: number of worker processes, at most one per core; 0 decodes in this process.
        prefetch_buffer: number of batches prepared in advance.
        dtype: "float32" (default), "uint8" or "int8".
        data_name: name of the images.
        label_name: name of the labels.
        mean_r, mean_g, mean_b, std_r, std_g, std_b: mean and standard deviation per channel, for normalization.
        mean_img: file of the mean image, MXNet's array file with the array "mean_img" (channels, height, width), which is
            subtracted instead of mean_r, mean_g and mean_b.  If the file does not exist, the mean of the iterator's images is
            computed and written to it.
        kwargs: resize, rand_crop, rand_mirror, random_resized_crop, brightness, scale, ...: see `jfit.data.images.Recipe`.

    Raises:
        MXNetError: a file is missing or damaged.
        ValueError: an argument is out of range.
        NotImplementedError: an augmentation of alpha channels.

    Example:
        >>> from jfit.mxnet.image.record_iter import ImageRecordIter
        >>> ImageRecordIter(path_imgrec="missing.rec", data_shape=(3, 8, 8), batch_size=2)
        Traceback (most recent call last):
        ...
        jfit.mxnet.errors.MissingFile: [Errno 2] No such file or directory: 'missing.rec'
    """

    def __init__(
        self,
        path_imgrec: str,
        data_shape: Any,
        batch_size: int | str,
        *,
        part_index: int | str = 0,
        num_parts: int | str = 1,
        round_batch: bool | str = True,
        preprocess_threads: int | str = 4,
        prefetch_buffer: int | str = 4,
        mean_img: str | None = "",
        **kwargs: Any,
    ) -> None:
        self.round_batch = value_of("round_batch", round_batch)
        with translated():
            ImageRecords.__init__(
                self,
                path_imgrec,
                value_of("data_shape", data_shape),
                value_of("batch_size", batch_size),
                part_index=value_of("part_index", part_index),
                num_parts=value_of("num_parts", num_parts),
                workers=min(value_of("preprocess_threads", preprocess_threads), cores()),
                ahead=max(1, value_of("prefetch_buffer", prefetch_buffer)),
                **_arguments(type(self).__name__, kwargs),
            )
            if mean_img:
                self.job = self.job._replace(recipe=self.job.recipe._replace(mean_image=self._mean_image(mean_img)))

    def _mean_image(self, path: str) -> str:
        """Return the mean image of a file, which is written if it is missing, as `Recipe.mean_image`."""
        if not os.path.exists(path):
            _LOG.info("%s does not exist: the mean image is computed, which takes one epoch", path)
            total, rows = np.zeros(self.job.data_shape()), 0
            while ImageRecords.iter_next(self):
                batch = self.current_batch
                count = self.batch_size - batch.pad
                total, rows = total + np.sum(batch.data[0][:count], axis=0, dtype=np.float64), rows + count
            self.seek_batch(0, 0)
            self.close()  # decoders read the recipe when they start
            save_arrays(path, {"mean_img": (total / rows).astype(np.float32)})
        image = np.asarray(dict(load_arrays(path))["mean_img"], "<f4")
        if image.shape != self.job.data_shape():
            raise ValueError(
                f"mean_img: the image in {path} has shape {image.shape}, expected data_shape {self.job.data_shape()}"
            )
        return base64.b64encode(image.tobytes()).decode()


class ImageRecordUInt8Iter(ImageRecordIter):
    """`ImageRecordIter` with images of dtype uint8.

    Args:
        args: see `ImageRecordIter`.
        kwargs: see `ImageRecordIter`.

    Example:
        >>> issubclass(ImageRecordUInt8Iter, ImageRecordIter)
        True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"dtype": "uint8", **kwargs})


class ImageRecordInt8Iter(ImageRecordIter):
    """`ImageRecordIter` with images of dtype int8; pixel values above 127 become 127.

    Args:
        args: see `ImageRecordIter`.
        kwargs: see `ImageRecordIter`.

    Example:
        >>> issubclass(ImageRecordInt8Iter, ImageRecordIter)
        True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"dtype": "int8", **kwargs})


def _arguments(kind: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Convert MXNet's arguments to those of `jfit.data.images.ImageRecords`, and its augmentations to fields of `Recipe`."""
    channels = {f"{kind}_{c}": float(kind == "std") for kind in ("mean", "std") for c in "rgb"}
    fields = {}
    for name, value in kwargs.items():
        if value is None or value == "":  # the default
            continue
        value = value if name in _STRINGS else value_of(name, value)
        if name in _NAMES:
            fields[_NAMES[name]] = bool(value) if name in _BOOLEANS else value
        elif name in channels:
            channels[name] = float(value)
        elif name in _UNSUPPORTED:
            if value not in _UNSUPPORTED[name]:
                default = _UNSUPPORTED[name][0]
                raise NotImplementedError(f"ImageRecordIter: jfit does not support {name}={value!r}; leave it at {default!r}.")
        elif name not in _IGNORED:
            warn_ignored(kind, name, [*_NAMES, *channels], 4)
    return fields | {kind: tuple(channels[f"{kind}_{c}"] for c in "rgb") for kind in ("mean", "std")}
