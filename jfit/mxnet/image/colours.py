"""Color augmenters, for float images: place them after `CastAug`.  Formulas and units: `jfit.data.images.colour`.

In the equations x is the image, a a random number drawn for each image, and luma the gray value 0.299 R + 0.587 G + 0.114 B.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from jfit.data.images import colour
from jfit.mxnet.image.augmenters import Augmenter, RandomOrderAug
from jfit.mxnet.image.functions import as_float32, color_normalize, on_host


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
        self.mean, self.std = as_float32(mean), as_float32(std)

    def __call__(self, src: Any) -> Any:
        return color_normalize(src, self.mean, self.std)


class RandomGrayAug(Augmenter):
    """Convert to gray with probability `p`; the image still has three channels.

    Args:
        p: probability.

    Example:
        >>> RandomGrayAug(1.0)(np.ones((2, 2, 3), "float32")).shape
        (2, 2, 3)
    """

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: Any) -> Any:
        return on_host(src, colour.gray) if random.random() < self.p else src
