"""Augmenters: callable objects that transform one image, and `CreateAugmenter`, MXNet's standard list of them.

Images are NDArrays or NumPy arrays (height, width, channels); the result is of the same class.  Random numbers come from
Python's `random`, drawn in MXNet's order, so that `random.seed(n)` gives the same augmentations as in MXNet.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.data.images import colour
from jfit.mxnet.image import functions
from jfit.mxnet.image.functions import on_host
from jfit.mxnet.mutable import MutableArray


class Augmenter:
    """Base class; a subclass implements `__call__(src) -> image`.

    Args:
        kwargs: the arguments of the subclass, which `dumps` returns.

    Example:
        >>> ResizeAug(8).dumps()
        '["resizeaug", {"size": 8, "interp": 2}]'
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = {name: _to_json(value) for name, value in kwargs.items()}

    def dumps(self) -> Any:
        """Return the name and the arguments as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])


def _to_json(value: Any) -> Any:
    value = value.asnumpy() if isinstance(value, MutableArray) else value
    return value.tolist() if isinstance(value, np.ndarray) else value


class SequentialAug(Augmenter):
    """Apply augmenters in order.

    Args:
        ts: list of augmenters.

    Example:
        >>> SequentialAug([CenterCropAug((2, 2)), CastAug()])(np.zeros((4, 4, 3), "uint8")).shape
        (2, 2, 3)
    """

    def __init__(self, ts: Sequence[Any]) -> None:
        super().__init__()
        self.ts = ts

    def dumps(self) -> Any:
        """Return the list [name, [`dumps()` of each augmenter]]."""
        return [type(self).__name__.lower(), [t.dumps() for t in self.ts]]

    def __call__(self, src: Any) -> Any:
        for t in self.ts:
            src = t(src)
        return src


class RandomOrderAug(SequentialAug):
    """Apply augmenters in a random order, drawn anew for each image.

    Args:
        ts: list of augmenters.

    Example:
        >>> RandomOrderAug([CenterCropAug((2, 2)), CastAug()])(np.zeros((4, 4, 3), "uint8")).dtype
        dtype('float32')
    """

    def __init__(self, ts: Sequence[Any]) -> None:
        super().__init__(list(ts))

    def __call__(self, src: Any) -> Any:
        random.shuffle(self.ts)  # type: ignore[arg-type]
        return super().__call__(src)


class _ToSize(Augmenter):
    def __init__(self, size: Any, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp


class WithProbability(Augmenter):
    """Base class of augmenters that change an image with probability `p`."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p


class ResizeAug(_ToSize):
    """Resize an image so that its shorter side has length `size`, keeping the aspect ratio.

    Args:
        size: length of the shorter side.
        interp: interpolation, see `imresize`.

    Example:
        >>> ResizeAug(4)(np.zeros((8, 16, 3), "uint8")).shape
        (4, 8, 3)
    """

    def __call__(self, src: Any) -> Any:
        return functions.resize_short(src, self.size, self.interp)


class ForceResizeAug(_ToSize):
    """Resize an image to `size`, without keeping the aspect ratio.

    Args:
        size: (width, height).
        interp: interpolation, see `imresize`.

    Example:
        >>> ForceResizeAug((5, 4))(np.zeros((8, 16, 3), "uint8")).shape
        (4, 5, 3)
    """

    def __call__(self, src: Any) -> Any:
        sizes = (src.shape[0], src.shape[1], self.size[1], self.size[0])
        return functions.imresize(src, *self.size, interp=functions.interpolation_of(self.interp, sizes))


class RandomCropAug(_ToSize):
    """Crop an image at a random position.

    Args:
        size: (width, height).
        interp: interpolation if the image is smaller than the crop, see `imresize`.

    Example:
        >>> RandomCropAug((5, 4))(np.zeros((8, 16, 3), "uint8")).shape
        (4, 5, 3)
    """

    def __call__(self, src: Any) -> Any:
        return functions.random_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """Crop an image to a random area and aspect ratio, and resize the crop to `size`.

    Args:
        size: (width, height).
        area: (low, high) or low, as a fraction of the image's area.
        ratio: (low, high) of width / height.
        interp: interpolation, see `imresize`.

    Example:
        >>> RandomSizedCropAug((5, 4), 0.5, (0.75, 1.33))(np.zeros((8, 16, 3), "uint8")).shape
        (4, 5, 3)
    """

    def __init__(self, size: tuple[int, int], area: Any, ratio: tuple[float, float], interp: int = 2) -> None:
        super().__init__(size=size, area=area, ratio=ratio, interp=interp)
        self.size, self.area, self.ratio, self.interp = size, area, ratio, interp

    def __call__(self, src: Any) -> Any:
        return functions.random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


class CenterCropAug(_ToSize):
    """Crop the center of an image.

    Args:
        size: (width, height).
        interp: interpolation if the image is smaller than the crop, see `imresize`.

    Example:
        >>> CenterCropAug((5, 4))(np.zeros((8, 16, 3), "uint8")).shape
        (4, 5, 3)
    """

    def __call__(self, src: Any) -> Any:
        return functions.center_crop(src, self.size, self.interp)[0]


class HorizontalFlipAug(WithProbability):
    """Flip an image left and right with probability `p`.

    Args:
        p: probability.

    Example:
        >>> HorizontalFlipAug(1.0)(np.arange(6).reshape(1, 2, 3)).tolist()
        [[[3, 4, 5], [0, 1, 2]]]
    """

    def __call__(self, src: Any) -> Any:
        return on_host(src, np.fliplr) if random.random() < self.p else src


class CastAug(Augmenter):
    """Cast an image to another dtype.

    Args:
        typ: the dtype.

    Example:
        >>> CastAug()(np.zeros((2, 2, 3), "uint8")).dtype
        dtype('float32')
    """

    def __init__(self, typ: str = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def __call__(self, src: Any) -> Any:
        return src.astype(self.typ)


# -------------------------------------------------------------------------------- colors
# For float images, after `CastAug`; formulas and units: `jfit.data.images.colour`.  In the equations x is the image, a a random
# number drawn for each image, and luma the gray value 0.299 R + 0.587 G + 0.114 B.


class BrightnessJitterAug(Augmenter):
    """Random brightness: x · (1 + a), a uniform in [-brightness, brightness].

    Args:
        brightness: maximum relative change.

    Example:
        >>> BrightnessJitterAug(0.0)(np.ones((1, 1, 3), "float32")).tolist()
        [[[1.0, 1.0, 1.0]]]
    """

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness=brightness)
        self.brightness = brightness

    def __call__(self, src: Any) -> Any:
        factor = 1.0 + random.uniform(-self.brightness, self.brightness)
        return on_host(src, lambda image: colour.brightness(image, factor))


class ContrastJitterAug(Augmenter):
    """Random contrast: f·x + (1 - f)·mean(luma), f = 1 + a, a uniform in [-contrast, contrast].

    Args:
        contrast: maximum relative change.

    Example:
        >>> ContrastJitterAug(0.2)(np.ones((2, 2, 3), "float32")).shape
        (2, 2, 3)
    """

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast=contrast)
        self.contrast = contrast

    def __call__(self, src: Any) -> Any:
        factor = 1.0 + random.uniform(-self.contrast, self.contrast)
        return on_host(src, lambda image: colour.contrast(image, factor))


class SaturationJitterAug(Augmenter):
    """Random saturation: f·x + (1 - f)·luma, f = 1 + a, a uniform in [-saturation, saturation].

    Args:
        saturation: maximum relative change.

    Example:
        >>> SaturationJitterAug(0.2)(np.ones((2, 2, 3), "float32")).shape
        (2, 2, 3)
    """

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation=saturation)
        self.saturation = saturation

    def __call__(self, src: Any) -> Any:
        factor = 1.0 + random.uniform(-self.saturation, self.saturation)
        return on_host(src, lambda image: colour.saturation(image, factor))


class HueJitterAug(Augmenter):
    """Random hue: rotate the colors by the angle π·a around the gray axis, a uniform in [-hue, hue].

    Args:
        hue: maximum rotation, in units of π.

    Example:
        >>> HueJitterAug(0.1)(np.ones((2, 2, 3), "float32")).shape
        (2, 2, 3)
    """

    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue

    def __call__(self, src: Any) -> Any:
        angle = random.uniform(-self.hue, self.hue)
        return on_host(src, lambda image: colour.hue(image, angle))


class ColorJitterAug(RandomOrderAug):
    """Random brightness, contrast and saturation, in a random order.

    Args:
        brightness: see `BrightnessJitterAug`; 0 disables it.
        contrast: see `ContrastJitterAug`; 0 disables it.
        saturation: see `SaturationJitterAug`; 0 disables it.

    Example:
        >>> ColorJitterAug(0.1, 0.1, 0.1)(np.ones((2, 2, 3), "float32")).shape
        (2, 2, 3)
    """

    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        kinds = ((BrightnessJitterAug, brightness), (ContrastJitterAug, contrast), (SaturationJitterAug, saturation))
        super().__init__([kind(amount) for kind, amount in kinds if amount > 0])


class LightingAug(Augmenter):
    """Add PCA color noise: x + eigvec @ (a · eigval), with a three normal numbers drawn from NumPy's generator.

    Args:
        alphastd: standard deviation of a; the mean is 0.
        eigval: (3,) eigenvalues of the covariance of the colors.
        eigvec: (3, 3) eigenvectors, as columns.

    Example:
        >>> LightingAug(0.0, np.ones(3), np.eye(3))(np.ones((1, 1, 3), "float32")).tolist()
        [[[1.0, 1.0, 1.0]]]

    Source: Krizhevsky and others, ImageNet Classification with Deep Convolutional Neural Networks, 2012.
    """

    def __init__(self, alphastd: float, eigval: Any, eigvec: Any) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd, self.eigval, self.eigvec = alphastd, eigval, eigvec

    def __call__(self, src: Any) -> Any:
        alphas = np.random.normal(0, self.alphastd, size=(3,))
        return on_host(src, lambda image: colour.lighting(image, alphas, self.eigval, self.eigvec))


class ColorNormalizeAug(Augmenter):
    """Normalize: (x - mean) / std.

    Args:
        mean: number or (3,); None skips the subtraction.
        std: number or (3,); None skips the division.

    Example:
        >>> ColorNormalizeAug([1, 1, 1], [2, 2, 2])(np.full((1, 1, 3), 5, "float32")).tolist()
        [[[2.0, 2.0, 2.0]]]
    """

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__(mean=mean, std=std)
        self.mean, self.std = functions.as_float32(mean), functions.as_float32(std)

    def __call__(self, src: Any) -> Any:
        return functions.color_normalize(src, self.mean, self.std)


class RandomGrayAug(WithProbability):
    """Convert to gray with probability `p`; the image still has three channels.

    Args:
        p: probability.

    Example:
        >>> RandomGrayAug(1.0)(np.ones((2, 2, 3), "float32")).shape
        (2, 2, 3)
    """

    def __call__(self, src: Any) -> Any:
        return on_host(src, colour.gray) if random.random() < self.p else src


# -------------------------------------------------------------------------------- MXNet's standard list

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
        AssertionError: `rand_resize` without `rand_crop`.
        ValueError: a mean or std of another length.

    Example:
        >>> [type(a).__name__ for a in CreateAugmenter((3, 8, 8), resize=9, rand_mirror=True)]
        ['ResizeAug', 'CenterCropAug', 'HorizontalFlipAug', 'CastAug']
    """
    size = (data_shape[2], data_shape[1])
    augmenters: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        assert rand_crop, "rand_resize=True crops at a random position: pass rand_crop=True too."
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
    mean, std = _channels(mean, colour.IMAGENET_MEAN), _channels(std, colour.IMAGENET_STD)
    if mean is not None or std is not None:
        augmenters.append(ColorNormalizeAug(mean, std))
    return augmenters


def _channels(value: Any, default: tuple[float, ...]) -> Any:
    """Return a mean or std as an array, or None; True is `default`, False is None."""
    if value is None or value is False:
        return None
    array: Any = functions.as_float32(default if value is True else value)
    if array.size not in (1, 3):
        raise ValueError(f"a mean or std of CreateAugmenter is {value!r}; expected True, None or an array of 1 or 3 numbers.")
    return array
