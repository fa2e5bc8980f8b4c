"""`CreateAugmenter`: MXNet's standard list of augmenters."""

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
    """Create a list of augmenters in MXNet's order: resize, crop, mirror, cast to float32, colors, normalize.

    Args:
        data_shape: (channels, height, width) of the result.
        resize: length of the shorter side to resize to first; 0 skips it.
        rand_crop: crop at a random position; False crops from the center.
        rand_resize: crop of random area (from 0.08 of the image) and aspect ratio (3/4 to 4/3); requires `rand_crop`.
        rand_mirror: flip left and right with probability 0.5.
        mean: (3,) or (1,) array to subtract; True for that of ImageNet, None for none.
        std: (3,) or (1,) array to divide by; True for that of ImageNet, None for none.
        brightness: see `BrightnessJitterAug`; 0 skips it.
        contrast: see `ContrastJitterAug`; 0 skips it.
        saturation: see `SaturationJitterAug`; 0 skips it.
        hue: see `HueJitterAug`; 0 skips it.
        pca_noise: standard deviation of `LightingAug`, with ImageNet's eigenvectors; 0 skips it.
        rand_gray: probability of `RandomGrayAug`; 0 skips it.
        inter_method: interpolation, see `imresize`; also 9 (chosen by the sizes) and 10 (random).

    Returns:
        List of augmenters.

    Raises:
        ValueError: `rand_resize` without `rand_crop`, or a mean or std of another length.

    Example:
        >>> [type(a).__name__ for a in CreateAugmenter((3, 8, 8), resize=9, rand_mirror=True)]
        ['ResizeAug', 'CenterCropAug', 'HorizontalFlipAug', 'CastAug']
    """
    size = (data_shape[2], data_shape[1])
    augmenters: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        if not rand_crop:
            raise ValueError("rand_resize=True crops at a random position: pass rand_crop=True too.")
        augmenters.append(RandomSizedCropAug(size, _AREA, _RATIO, inter_method))
    else:
        augmenters.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    if rand_mirror:
        augmenters.append(HorizontalFlipAug(0.5))
    augmenters.append(CastAug())
    if brightness or contrast or saturation:
        augmenters.append(ColorJitterAug(brightness, contrast, saturation))
    if hue:
        augmenters.append(HueJitterAug(hue))
    if pca_noise > 0:
        augmenters.append(LightingAug(pca_noise, np.array(colour.EIGENVALUES), np.array(colour.EIGENVECTORS)))
    if rand_gray > 0:
        augmenters.append(RandomGrayAug(rand_gray))
    mean, std = _channels("mean", mean, colour.IMAGENET_MEAN), _channels("std", std, colour.IMAGENET_STD)
    if mean is not None or std is not None:
        augmenters.append(ColorNormalizeAug(mean, std))
    return augmenters


def _channels(name: str, value: Any, default: tuple[float, ...]) -> Any:
    if value is True:
        return np.array(default, np.float32)
    if value is not None and (not hasattr(value, "shape") or value.shape[0] not in (1, 3)):
        raise ValueError(f"{name} of CreateAugmenter is {value!r}; expected True, None or an array of 1 or 3 numbers.")
    return value
