"""`CreateAugmenter`: the usual list of augmenters from a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from jfit.data.images import colour
from jfit.mxnet.image.augmenters import (
    Augmenter,
    CastAug,
    CenterCropAug,
    HorizontalFlipAug,
    RandomCropAug,
    RandomSizedCropAug,
    ResizeAug,
)
from jfit.mxnet.image.colours import ColorJitterAug, ColorNormalizeAug, HueJitterAug, LightingAug, RandomGrayAug

_AREA, _RATIO = 0.08, (3.0 / 4.0, 4.0 / 3.0)


def CreateAugmenter(
    data_shape: tuple[int, int, int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Augmenter]:
    """Augmenters in MXNet's order: resize, crop, mirror, cast, colours, normalise.

    Args:
        data_shape: (channels, height, width) of the result.
        resize: shorter side first, 0 for none.
        rand_crop: crop at a random place, else in the middle.
        rand_resize: crop of random area (from 0.08) and ratio (3/4 to 4/3); needs `rand_crop`.
        rand_mirror: half of the images mirrored.
        mean: (3,) or (1,) array; True for ImageNet's.
        std: the same.
        brightness: see `BrightnessJitterAug`; `contrast`, `saturation`, `hue`, `rand_gray` alike.
        pca_noise: see `LightingAug`.
        inter_method: see `imresize`; 9 by size, 10 random.

    Raises:
        ValueError: `rand_resize` without `rand_crop`, or a mean of another length.

    Example:
        >>> [type(a).__name__ for a in CreateAugmenter((3, 8, 8), resize=9, rand_mirror=True)]
        ['ResizeAug', 'CenterCropAug', 'HorizontalFlipAug', 'CastAug']
    """
    size = (data_shape[2], data_shape[1])
    found: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        if not rand_crop:
            raise ValueError("rand_resize=True crops at random: pass rand_crop=True too.")
        found.append(RandomSizedCropAug(size, _AREA, _RATIO, inter_method))
    else:
        found.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    if rand_mirror:
        found.append(HorizontalFlipAug(0.5))
    found.append(CastAug())
    if brightness or contrast or saturation:
        found.append(ColorJitterAug(brightness, contrast, saturation))
    if hue:
        found.append(HueJitterAug(hue))
    if pca_noise > 0:
        found.append(LightingAug(pca_noise, np.array(colour.EIGENVALUES), np.array(colour.EIGENVECTORS)))
    if rand_gray > 0:
        found.append(RandomGrayAug(rand_gray))
    mean, std = _channels("mean", mean, colour.IMAGENET_MEAN), _channels("std", std, colour.IMAGENET_STD)
    if mean is not None or std is not None:
        found.append(ColorNormalizeAug(mean, std))
    return found


def _channels(name: str, value: Any, default: tuple[float, ...]) -> Any:
    if value is True:
        return np.array(default, np.float32)
    if value is not None and (not hasattr(value, "shape") or value.shape[0] not in (1, 3)):
        raise ValueError(f"{name} of CreateAugmenter is {value!r}; needed True, None or an array of 1 or 3 numbers.")
    return value
