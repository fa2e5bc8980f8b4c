"""`mx.io.ImageRecordIter`: MXNet's arguments for `jfit.data.ImageRecords`, its arrays as NDArrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jfit.data.images import ImageRecords
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.io.files import MXDataIter, ignore, value_of

# Arguments that are fields of a recipe under the same name.
_SAME = (
    "resize", "inter_method", "rand_crop", "random_resized_crop", "min_random_area", "max_random_area", "min_aspect_ratio",
    "max_aspect_ratio", "min_crop_size", "max_crop_size", "min_random_scale", "max_random_scale", "pad", "fill_value",
    "mirror", "rand_mirror", "brightness", "contrast", "saturation", "pca_noise", "scale", "max_random_contrast",
    "max_random_illumination",
)  # fmt: skip
_SWITCHES = ("rand_crop", "random_resized_crop", "mirror", "rand_mirror")
# Arguments that say how MXNet does its work, not what comes out.
_TEXTS = ("aug_seq", "mean_img", "ctx")  # arguments that are no numbers
_UNUSED = ("verbose", "device_id", "shuffle_chunk_size", "shuffle_chunk_seed", "ctx")
# Arguments that jfit does not have -> values that ask for nothing.
_ABSENT: Mapping[str, tuple[Any, ...]] = {
    "aug_seq": ("aug_default",), "max_rotate_angle": (0,), "rotate": (-1, 0), "max_shear_ratio": (0,), "random_h": (0,),
    "random_s": (0,), "random_l": (0,), "mean_img": ("", None), "max_img_size": (1e10,), "min_img_size": (0,),
    "mean_a": (0,), "std_a": (1,),
}  # fmt: skip


class ImageRecordIter(MXDataIter, ImageRecords):
    """Batches of images out of a record file, decoded by worker processes; arguments and defaults are MXNet 1.9.1's.

    Args:
        path_imgrec: the record file.
        data_shape: (channels, height, width), 3 or 1 channels.
        batch_size: rows of a batch.
        path_imgidx: its index.
        path_imglist: image list whose labels replace those of the records, by id.
        label_width: labels of a row.
        shuffle: a new order every epoch.
        seed: fixes orders, and augmentations unless `seed_aug` does.
        seed_aug: fixes augmentations.
        part_index: which of `num_parts` parts to read.
        num_parts: parts of equal size, or one row more.
        round_batch: the last batch is filled with rows from the start either way, and `pad` counts them.
        preprocess_threads: worker processes, at most one a core; 0 decodes in this process.
        prefetch_buffer: batches made in advance.
        dtype: None or "float32", "uint8", "int8".
        mean_r, mean_g, mean_b, std_r, std_g, std_b: of each channel.
        kwargs: resize, rand_crop, rand_mirror, random_resized_crop, brightness, scale ...: fields of `jfit.data.images.Recipe`.

    Raises:
        MXNetError: a file is missing or damaged.
        ValueError: an argument is out of range.
        NotImplementedError: one that jfit does not have: rotation, shear, HSL noise, mean images.

    Texts stand for values, as in `batch_size="32"`; an argument that neither has is ignored, with a warning.

    Unlike in MXNet, every epoch has all rows: what a batch wraps is not left out of the next epoch, `round_batch=False` gives
    no undefined rows, and random numbers do not depend on the number of workers.

    Example:
        >>> from jfit.mxnet.image.record_iter import ImageRecordIter
        >>> ImageRecordIter(path_imgrec="missing.rec", data_shape=(3, 8, 8), batch_size=2)
        Traceback (most recent call last):
        ...
        jfit.mxnet.errors.MissingFile: [Errno 2] No such file or directory: 'missing.rec'
    """

    def __init__(
        self,
        path_imgrec: str = "",
        data_shape: Any = None,
        batch_size: int | str | None = None,
        path_imgidx: str = "",
        path_imglist: str = "",
        label_width: int | str = 1,
        shuffle: bool | str = False,
        seed: int | str = 0,
        seed_aug: int | str | None = None,
        part_index: int | str = 0,
        num_parts: int | str = 1,
        round_batch: bool | str = True,
        preprocess_threads: int | str = 4,
        prefetch_buffer: int | str = 4,
        dtype: str | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **kwargs: Any,
    ) -> None:
        if not path_imgrec or data_shape is None or batch_size is None:
            raise MXNetError("ImageRecordIter needs path_imgrec, data_shape and batch_size.")
        self.round_batch = value_of("round_batch", round_batch)
        threads = value_of("preprocess_threads", preprocess_threads)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with translated():
            ImageRecords.__init__(
                self,
                path_imgrec,
                value_of("data_shape", data_shape),
                value_of("batch_size", batch_size),
                path_index=path_imgidx or None,
                path_list=path_imglist or None,
                label_width=value_of("label_width", label_width),
                shuffle=bool(value_of("shuffle", shuffle)),
                seed=value_of("seed", seed),
                seed_augment=value_of("seed_aug", seed_aug),
                part_index=value_of("part_index", part_index),
                num_parts=value_of("num_parts", num_parts),
                dtype=dtype or "float32",
                workers=min(threads, cores),
                ahead=max(1, value_of("prefetch_buffer", prefetch_buffer)),
                data_name=data_name,
                label_name=label_name,
                **_augment(type(self).__name__, kwargs),
            )


class ImageRecordUInt8Iter(ImageRecordIter):
    """`ImageRecordIter` with batches of uint8."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"dtype": "uint8", **kwargs})


class ImageRecordInt8Iter(ImageRecordIter):
    """`ImageRecordIter` with batches of int8, values above 127 cut."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"dtype": "int8", **kwargs})


def _augment(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Fields of the recipe from MXNet's arguments."""
    channels = {f"{kind}_{c}": float(kind == "std") for kind in ("mean", "std") for c in "rgb"}
    fields = {}
    for name, value in given.items():
        value = value if name in _TEXTS else value_of(name, value)
        if name in _SAME:
            fields[name] = bool(value) if name in _SWITCHES else value
        elif name in channels:
            channels[name] = float(value)
        elif name in _ABSENT:
            if value not in _ABSENT[name]:
                raise NotImplementedError(
                    f"ImageRecordIter: jfit does not have {name}={value!r}; leave it at {_ABSENT[name][0]!r}, or use "
                    "mx.image.ImageIter with an augmenter of your own."
                )
        elif name not in _UNUSED:
            ignore(kind, name, [*_SAME, *channels], 4)
    if fields.get("max_aspect_ratio") and not fields.get("random_resized_crop"):
        raise NotImplementedError("ImageRecordIter: jfit has max_aspect_ratio with random_resized_crop=True only.")
    return fields | {kind: tuple(channels[f"{kind}_{c}"] for c in "rgb") for kind in ("mean", "std")}
