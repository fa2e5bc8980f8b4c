"""Object detection: augmenters that change an image together with its boxes, and an iterator over images with boxes.

A label is a NumPy array (objects, 5 or more) of [class, left, top, right, bottom, ...], coordinates as fractions of the image.
Random numbers come from Python's `random`, drawn in MXNet's order, so that `random.seed(n)` gives the same augmentations as in
MXNet.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from jfit.data import DataDesc
from jfit.mxnet.image.augmenters import Augmenter, CreateAugmenter, ForceResizeAug, ResizeAug, WithProbability
from jfit.mxnet.image.functions import copyMakeBorder, fixed_crop, on_host
from jfit.mxnet.image.iterator import ImageIter
from jfit.mxnet.mutable import MutableArray

_LOG = logging.getLogger(__name__)
_CONSTANT = 0  # OpenCV's code of a border of one color


class DetAugmenter(Augmenter):
    """Base class; a subclass implements `__call__(src, label) -> (image, label)`.

    Args:
        kwargs: the arguments of the subclass, which `dumps` returns.

    Example:
        >>> DetHorizontalFlipAug(0.5).dumps()
        '["dethorizontalflipaug", {"p": 0.5}]'
    """


class DetBorrowAug(DetAugmenter):
    """Apply an augmenter that does not move pixels relative to the image's borders; the label stays as it is.

    Args:
        augmenter: an `Augmenter`, such as `ResizeAug` or `CastAug`.

    Example:
        >>> DetBorrowAug(ForceResizeAug((2, 2)))(np.zeros((4, 4, 3), "uint8"), np.zeros((1, 5)))[0].shape
        (2, 2, 3)
    """

    def __init__(self, augmenter: Augmenter) -> None:
        super().__init__()
        self.augmenter: Any = augmenter

    def dumps(self) -> Any:
        """Return the list [name, `dumps()` of the augmenter]."""
        return [type(self).__name__.lower(), self.augmenter.dumps()]

    def __call__(self, src: Any, label: Any) -> tuple[Any, Any]:
        return self.augmenter(src), label


class DetRandomSelectAug(DetAugmenter):
    """Apply one augmenter of a list, drawn for each image, or none.

    Args:
        aug_list: a DetAugmenter or a list of them.
        skip_prob: probability to apply none.

    Example:
        >>> DetRandomSelectAug([DetHorizontalFlipAug(1)]).dumps()
        ['detrandomselectaug', ['["dethorizontalflipaug", {"p": 1}]']]
    """

    def __init__(self, aug_list: Any, skip_prob: float = 0) -> None:
        super().__init__(skip_prob=skip_prob)
        self.aug_list = list(aug_list) if isinstance(aug_list, (list, tuple)) else [aug_list]
        self.skip_prob = skip_prob if self.aug_list else 1

    def dumps(self) -> Any:
        """Return the list [name, [`dumps()` of each augmenter]]."""
        return [type(self).__name__.lower(), [aug.dumps() for aug in self.aug_list]]

    def __call__(self, src: Any, label: Any) -> tuple[Any, Any]:
        if random.random() < self.skip_prob:
            return src, label
        random.shuffle(self.aug_list)
        return self.aug_list[0](src, label)


class DetHorizontalFlipAug(WithProbability, DetAugmenter):
    """Flip an image and its boxes left and right with probability `p`; the label is changed in place.

    Args:
        p: probability.

    Example:
        >>> image, label = DetHorizontalFlipAug(1)(np.zeros((2, 2, 3)), np.array([[0, 0.25, 0, 0.5, 1]]))
        >>> label.tolist()
        [[0.0, 0.5, 0.0, 0.75, 1.0]]
    """

    def __call__(self, src: Any, label: Any) -> tuple[Any, Any]:
        if random.random() < self.p:
            src = on_host(src, np.fliplr)
            label[:, [1, 3]] = 1.0 - label[:, [3, 1]]
        return src, label


class _DetRandomArea(DetAugmenter):
    """Crop or pad to a rectangle of random shape: the ranges, and the loop that draws until a rectangle fits.

    A subclass defines `_rectangle(ratio, heights, areas, label, height, width)`, which draws one rectangle of this width /
    height, and returns (x, y, width, height, new label) or, if it does not fit, None.
    """

    _smallest = 0.0  # what the area range must exceed
    _rectangle: Callable[..., Any]

    def __init__(self, aspect_ratio_range: Any, area_range: Any, max_attempts: int, **others: Any) -> None:
        ratios, areas = (v if isinstance(v, (list, tuple)) else (v, v) for v in (aspect_ratio_range, area_range))
        super().__init__(aspect_ratio_range=ratios, area_range=areas, max_attempts=max_attempts, **others)
        self.aspect_ratio_range, self.area_range, self.max_attempts = ratios, areas, max_attempts
        self.enabled = self._smallest < areas[1] >= areas[0] and 0 < ratios[0] <= ratios[1]
        if not self.enabled:
            text = f"aspect_ratio_range is {ratios}, area_range {areas}; expected minimum <= maximum, above 0 and "
            warnings.warn(f"{type(self).__name__} does nothing: {text}{self._smallest}.", stacklevel=3)

    def _proposal(self, label: np.ndarray, height: int, width: int) -> Any:
        """Return (x, y, width, height, new label) of the first rectangle that fits, or None."""
        if not self.enabled or height <= 0 or width <= 0:
            return None
        low, high = (fraction * height * width for fraction in self.area_range)
        for _ in range(self.max_attempts):
            ratio = random.uniform(*self.aspect_ratio_range)
            heights = round(sqrt(low / ratio)), round(sqrt(high / ratio))
            found = self._rectangle(ratio, heights, (low, high), label, height, width)
            if found is not None:
                return found
        return None


def _drawn(low: int, high: int) -> int:
    """Return a random integer from low to high, or high, without drawing, if low is not smaller."""
    return random.randint(low, high) if low < high else high


class DetRandomCropAug(_DetRandomArea):
    """Crop an image at random so that enough of its objects stays in it; boxes are cut, those with too little left removed.

    After `max_attempts` draws that leave no object the image stays as it is.

    Args:
        min_object_covered: the part of each object that the crop touches must exceed this fraction of it.
        aspect_ratio_range: (low, high) of width / height, or one number.
        area_range: (low, high) of the area as a fraction of the image's area, or one number.
        min_eject_coverage: objects of which a smaller fraction is left are removed.
        max_attempts: number of draws.

    Example:
        >>> image, label = DetRandomCropAug(area_range=(0.5, 0.9))(np.zeros((9, 9, 3)), np.array([[0, 0.2, 0.2, 0.8, 0.8]]))
        >>> image.ndim, label.shape
        (3, (1, 5))

    Source: Liu and others, SSD: Single Shot MultiBox Detector, 2016, section 2.2.
    """

    def __init__(
        self, min_object_covered: float = 0.1, aspect_ratio_range: Any = (0.75, 1.33), area_range: Any = (0.05, 1.0),
        min_eject_coverage: float = 0.3, max_attempts: int = 50,
    ) -> None:  # fmt: skip
        covered = {"min_object_covered": min_object_covered, "min_eject_coverage": min_eject_coverage}
        super().__init__(aspect_ratio_range, area_range, max_attempts, **covered)
        self.min_object_covered, self.min_eject_coverage = min_object_covered, min_eject_coverage

    def __call__(self, src: Any, label: Any) -> tuple[Any, Any]:
        found = self._proposal(label, *src.shape[:2])
        return (fixed_crop(src, *found[:4]), found[4]) if found else (src, label)

    def _rectangle(self, ratio: float, heights: Any, areas: Any, label: np.ndarray, height: int, width: int) -> Any:
        smallest, largest = heights
        if round(largest * ratio) > width:
            largest = int((width + 0.4999999) / ratio)
        h = _drawn(smallest, min(largest, height))
        w = round(h * ratio)
        if w * h < areas[0]:
            h, w = h + 1, round((h + 1) * ratio)
        if w * h > areas[1]:
            h, w = h - 1, round((h - 1) * ratio)
        if not (areas[0] <= w * h <= areas[1] and 0 <= w <= width and 0 <= h <= height):
            return None
        y, x = random.randint(0, height - h), random.randint(0, width - w)
        new = self._cropped(label, (x / width, y / height), (w / width, h / height), height * width) if w * h >= 2 else None
        return None if new is None else (x, y, w, h, new)

    def _cropped(self, label: np.ndarray, corner: Sequence[float], size: Sequence[float], pixels: int) -> np.ndarray | None:
        """Return the label of the crop with this corner and size, fractions of the image; None if too little is in it."""
        low, high = np.array([corner, np.add(corner, size)])
        boxes, areas = label[:, 1:5], _areas(label[:, 1:5])
        large = areas * pixels > 2
        inside = _areas(np.concatenate([np.maximum(boxes[:, :2], low), np.minimum(boxes[:, 2:], high)], axis=1))
        covered = inside[large] / areas[large]
        covered = covered[covered > 0]
        if not covered.size or covered.min() <= self.min_object_covered:
            return None
        out = label.copy()
        corners, sizes = (np.tile(np.asarray(v, label.dtype), 2) for v in (corner, size))
        out[:, 1:5] = new = np.clip((boxes - corners) / sizes, 0, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = _areas(new) * size[0] * size[1] / areas
        out = out[(new[:, 2] > new[:, 0]) & (new[:, 3] > new[:, 1]) & (left > self.min_eject_coverage)]
        return out if len(out) else None


def _areas(boxes: np.ndarray) -> np.ndarray:
    return np.maximum(0, boxes[:, 2] - boxes[:, 0]) * np.maximum(0, boxes[:, 3] - boxes[:, 1])


class DetRandomPadAug(_DetRandomArea):
    """Put an image at a random place into a larger rectangle of one color; boxes are scaled.

    Args:
        aspect_ratio_range: (low, high) of width / height, or one number.
        area_range: (low, high) of the area as a multiple of the image's area, or one number; high is above 1.
        max_attempts: number of draws; after as many that do not fit, the image stays as it is.
        pad_val: the color, one number or one per channel.

    Example:
        >>> DetRandomPadAug(area_range=(2.0, 3.0))(np.zeros((9, 9, 3)), np.ones((1, 5)))[0].size > 2 * 9 * 9 * 3 - 30
        True

    Source: Liu and others, SSD: Single Shot MultiBox Detector, 2016, section 3.6.
    """

    _smallest = 1.0

    def __init__(
        self, aspect_ratio_range: Any = (0.75, 1.33), area_range: Any = (1.0, 3.0), max_attempts: int = 50,
        pad_val: Any = (128, 128, 128),
    ) -> None:  # fmt: skip
        super().__init__(aspect_ratio_range, area_range, max_attempts, pad_val=pad_val)
        self.pad_val = pad_val

    def __call__(self, src: Any, label: Any) -> tuple[Any, Any]:
        height, width = src.shape[:2]
        found = self._proposal(label, height, width)
        if not found:
            return src, label
        x, y, w, h, label = found
        color: Any = {"value" if np.isscalar(self.pad_val) else "values": self.pad_val}
        return copyMakeBorder(src, y, h - y - height, x, w - x - width, _CONSTANT, **color), label

    def _rectangle(self, ratio: float, heights: Any, areas: Any, label: np.ndarray, height: int, width: int) -> Any:
        smallest, largest = heights
        if round(smallest * ratio) < width:
            smallest = int((width + 0.499999) / ratio)
        h = _drawn(max(smallest, height), largest)
        w = round(h * ratio)
        if h - height < 2 or w - width < 2:
            return None
        y, x = random.randint(0, h - height), random.randint(0, w - width)
        out = label.copy()
        out[:, 1:5:2] = (out[:, 1:5:2] * width + x) / w
        out[:, 2:5:2] = (out[:, 2:5:2] * height + y) / h
        return x, y, w, h, out


def CreateMultiRandCropAugmenter(
    min_object_covered: Any = 0.1, aspect_ratio_range: Any = (0.75, 1.33), area_range: Any = (0.05, 1.0),
    min_eject_coverage: Any = 0.3, max_attempts: Any = 50, skip_prob: float = 0,
) -> DetRandomSelectAug:  # fmt: skip
    """Create several `DetRandomCropAug`, of which one is drawn for each image.

    Args:
        min_object_covered: see `DetRandomCropAug`; this and the next arguments may be lists, one entry per augmenter.
        aspect_ratio_range: see `DetRandomCropAug`.
        area_range: see `DetRandomCropAug`.
        min_eject_coverage: see `DetRandomCropAug`.
        max_attempts: see `DetRandomCropAug`.
        skip_prob: probability not to crop.

    Returns:
        DetRandomSelectAug.

    Raises:
        AssertionError: lists of different lengths.

    Example:
        >>> len(CreateMultiRandCropAugmenter(min_object_covered=[0.1, 0.5, 0.9]).aug_list)
        3
    """
    arguments = (min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts)
    lists = [v if isinstance(v, list) else [v] for v in arguments]
    count = max(map(len, lists))
    assert all(len(v) in (1, count) for v in lists), f"lists of different lengths: {[len(v) for v in lists]}; pass equal ones"
    each = zip(*(v * (count // len(v)) for v in lists), strict=True)
    return DetRandomSelectAug([DetRandomCropAug(*settings) for settings in each], skip_prob)


def CreateDetAugmenter(
    data_shape: tuple[int, int, int], resize: int = 0, rand_crop: float = 0, rand_pad: float = 0, rand_gray: float = 0,
    rand_mirror: bool = False, mean: Any = None, std: Any = None, brightness: float = 0, contrast: float = 0,
    saturation: float = 0, pca_noise: float = 0, hue: float = 0, inter_method: int = 2, min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33), area_range: Any = (0.05, 3.0), min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50, pad_val: Any = (127, 127, 127),
) -> list[DetAugmenter]:  # fmt: skip
    """Create a list of augmenters for detection: resize, crop, mirror, pad, resize to `data_shape`, then colors.

    Args:
        data_shape: (channels, height, width) of the result.
        resize: length of the shorter side to resize to first; 0 skips it.
        rand_crop: probability of `CreateMultiRandCropAugmenter`.
        rand_pad: probability of `DetRandomPadAug`.
        rand_gray: see `CreateAugmenter`, as all arguments for colors.
        rand_mirror: flip left and right with probability 0.5.
        mean: see `CreateAugmenter`.
        std: see `CreateAugmenter`.
        brightness: see `CreateAugmenter`.
        contrast: see `CreateAugmenter`.
        saturation: see `CreateAugmenter`.
        pca_noise: see `CreateAugmenter`.
        hue: see `CreateAugmenter`.
        inter_method: interpolation, see `imresize`; also 9 (chosen by the sizes) and 10 (random).
        min_object_covered: see `DetRandomCropAug`.
        aspect_ratio_range: see `DetRandomCropAug`; also of the padding.
        area_range: see `DetRandomCropAug`; its maximum also of the padding.
        min_eject_coverage: see `DetRandomCropAug`.
        max_attempts: see `DetRandomCropAug`; also of the padding.
        pad_val: color of the padding.

    Returns:
        List of DetAugmenters.

    Example:
        >>> [type(a).__name__ for a in CreateDetAugmenter((3, 8, 8), rand_mirror=True)]
        ['DetHorizontalFlipAug', 'DetBorrowAug', 'DetBorrowAug']
    """
    augmenters: list[DetAugmenter] = [DetBorrowAug(ResizeAug(resize, inter_method))] if resize > 0 else []
    if rand_crop > 0:
        limits = (min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts)
        augmenters.append(CreateMultiRandCropAugmenter(*limits, skip_prob=1 - rand_crop))
    if rand_mirror:
        augmenters.append(DetHorizontalFlipAug(0.5))
    if rand_pad > 0:
        pad = DetRandomPadAug(aspect_ratio_range, (1.0, area_range[1]), max_attempts, pad_val)
        augmenters.append(DetRandomSelectAug([pad], 1 - rand_pad))
    augmenters.append(DetBorrowAug(ForceResizeAug((data_shape[2], data_shape[1]), inter_method)))
    colors = CreateAugmenter(
        data_shape, 0, mean=mean, std=std, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue,
        pca_noise=pca_noise, rand_gray=rand_gray,
    )  # fmt: skip
    return augmenters + [DetBorrowAug(aug) for aug in colors[1:]]  # without its crop


class ImageDetIter(ImageIter):
    """Iterate over batches of images with boxes, augmented by `DetAugmenter`s.

    The labels of an image in a record or list are the numbers [width of the header, width of an object, rest of the header,
    object, object, ...], where an object is [class, left, top, right, bottom, ...].  A batch has labels (batch_size, most
    objects of an image, width of an object), filled with -1.  Images without a valid box are skipped.

    Args:
        batch_size: rows per batch.
        data_shape: (3, height, width) of the augmented images.
        aug_list: augmenters; by default `CreateDetAugmenter(data_shape, **kwargs)`.
        label_name: name of the labels.
        options: further arguments of `ImageIter` (path_imgrec, path_imglist, path_root, path_imgidx, shuffle, part_index,
            num_parts, imglist, data_name, last_batch_handle) and of `CreateDetAugmenter`.

    Raises:
        RuntimeError: the labels of an image do not have this form.

    Example:
        >>> from jfit.data.images import encode
        >>> with open("box.png", "wb") as file:
        ...     _ = file.write(encode(np.zeros((9, 9, 3), "uint8"), 9, ".png"))
        >>> it = ImageDetIter(2, (3, 8, 8), imglist=[[2, 5, 1, 0.1, 0.1, 0.5, 0.5, "box.png"]] * 2, path_root=".")
        >>> it.next().label[0].shape
        (2, 1, 5)
    """

    def __init__(
        self, batch_size: int, data_shape: tuple[int, int, int], path_imgrec: str | None = None,
        path_imglist: str | None = None, path_root: str | None = None, path_imgidx: str | None = None, shuffle: bool = False,
        part_index: int = 0, num_parts: int = 1, aug_list: Sequence[Any] | None = None, imglist: list[Any] | None = None,
        data_name: str = "data", label_name: str = "label", last_batch_handle: str = "pad", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            batch_size, data_shape, 1, path_imgrec, path_imglist, path_root, path_imgidx, shuffle, part_index, num_parts,
            CreateDetAugmenter(data_shape, **options) if aug_list is None else aug_list, imglist, data_name, label_name,
            last_batch_handle=last_batch_handle,
        )  # fmt: skip
        self.label_shape = self._estimate_label_shape()
        self.provide_label = [DataDesc(label_name, (batch_size, *self.label_shape))]

    def _estimate_label_shape(self) -> tuple[int, int]:
        """Return (most objects of an image, width of an object)."""
        self.reset()
        shapes = [self._parse_label(self.next_sample()[0]).shape for _ in self.seq]
        self.reset()
        return max(shape[0] for shape in shapes), shapes[-1][1]

    def _parse_label(self, label: Any) -> np.ndarray:
        """Return the objects (objects, width) of a raw label; those whose box is empty are left out."""
        raw = np.ravel(label.asnumpy() if isinstance(label, MutableArray) else label)
        if raw.size < 7:
            raise RuntimeError(f"a label has {raw.size} numbers, expected at least 7: 2 of the header, 5 of an object")
        header, width = int(raw[0]), int(raw[1])
        if (raw.size - header) % width:
            raise RuntimeError(f"a label has {raw.size} numbers; without a header of {header} that is no multiple of {width}")
        objects = raw[header:].reshape(-1, width)
        objects = objects[(objects[:, 3] > objects[:, 1]) & (objects[:, 4] > objects[:, 2])]
        if not len(objects):
            raise RuntimeError("an image has no valid box: right > left and bottom > top")
        return objects

    def _sample(self) -> tuple[Any, np.ndarray]:
        while True:
            label, content = self.next_sample()
            image = self.imdecode(content)
            try:
                self.check_valid_image([image])
                image, label = self.augmentation_transform(image, self._parse_label(label))
                if not ((label[:, 0] >= 0) & (label[:, 3] > label[:, 1]) & (label[:, 4] > label[:, 2])).any():
                    raise RuntimeError("an augmented label has no valid box")
            except RuntimeError as error:
                _LOG.debug("%s is skipped: %s", self._image_name(), error)
                continue
            padded = np.full(self.label_shape, -1, np.float32)
            padded[: len(label)] = label
            return self.postprocess_data(image), padded

    def augmentation_transform(self, data: Any, label: Any = None) -> Any:
        """Apply all augmenters in order; returns (image, label)."""
        for aug in self.auglist:
            data, label = aug(data, label)
        return data, label

    def reshape(self, data_shape: tuple[int, int, int] | None = None, label_shape: tuple[int, int] | None = None) -> None:
        """Change the shapes of the next batches.

        Args:
            data_shape: (3, height, width), which the augmenters must return; None keeps it.
            label_shape: (objects, width of an object); None keeps it.

        Raises:
            ValueError: fewer objects than an image has, or another width.
        """
        if data_shape is not None:
            self.check_data_shape(data_shape)
            self.data_shape = tuple(data_shape)
            self.provide_data = [DataDesc(self.provide_data[0].name, (self.batch_size, *data_shape))]
        if label_shape is not None:
            self.check_label_shape(label_shape)
            self.label_shape = tuple(label_shape)
            self.provide_label = [DataDesc(self.provide_label[0].name, (self.batch_size, *label_shape))]

    def check_label_shape(self, label_shape: Sequence[int]) -> None:
        """Raise ValueError unless the shape is (at least as many objects as now, the same width)."""
        objects, width = self.label_shape
        if len(label_shape) != 2 or label_shape[0] < objects or label_shape[1] != width:
            raise ValueError(f"label_shape is {tuple(label_shape)}, expected ({objects} or more, {width}).")

    def sync_label_shape(self, it: ImageDetIter, verbose: bool = False) -> ImageDetIter:
        """Give two iterators, such as those of training and validation, the larger of their numbers of objects.

        Args:
            it: the other iterator.
            verbose: accepted and ignored.

        Returns:
            `it`.

        Raises:
            ValueError: the objects of `it` have another width.
        """
        objects = max(self.label_shape[0], it.label_shape[0])
        for each in (self, it):
            each.reshape(None, (objects, self.label_shape[1]))
        return it
