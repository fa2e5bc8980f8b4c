"""Augmenters of colours, for float images (CastAug comes before them).  Formulas: `jfit.data.images.colour`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from jfit.data.images import colour
from jfit.mxnet.image.augmenters import Augmenter, RandomOrderAug
from jfit.mxnet.image.functions import color_normalize, numbers_of, on_host

__all__ = [
    "BrightnessJitterAug",
    "ColorJitterAug",
    "ColorNormalizeAug",
    "ContrastJitterAug",
    "HueJitterAug",
    "LightingAug",
    "RandomGrayAug",
    "SaturationJitterAug",
]


class BrightnessJitterAug(Augmenter):
    """x · (1 + a), a uniform in ± `brightness`."""

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness=brightness)
        self.brightness = brightness

    def __call__(self, src: Any) -> Any:
        factor = 1.0 + random.uniform(-self.brightness, self.brightness)
        return on_host(src, lambda image: colour.brightness(image, factor))


class ContrastJitterAug(Augmenter):
    """x · f + (1 - f) · mean luma, f = 1 + a, a uniform in ± `contrast`."""

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast=contrast)
        self.contrast = contrast

    def __call__(self, src: Any) -> Any:
        factor = 1.0 + random.uniform(-self.contrast, self.contrast)
        return on_host(src, lambda image: colour.contrast(image, factor))


class SaturationJitterAug(Augmenter):
    """x · f + (1 - f) · luma, f = 1 + a, a uniform in ± `saturation`."""

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation=saturation)
        self.saturation = saturation

    def __call__(self, src: Any) -> Any:
        factor = 1.0 + random.uniform(-self.saturation, self.saturation)
        return on_host(src, lambda image: colour.saturation(image, factor))


class HueJitterAug(Augmenter):
    """Colours turned by π · a around the grey axis, a uniform in ± `hue`."""

    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue

    def __call__(self, src: Any) -> Any:
        turn = random.uniform(-self.hue, self.hue)
        return on_host(src, lambda image: colour.hue(image, turn))


class ColorJitterAug(RandomOrderAug):
    """Brightness, contrast and saturation in a random order; 0 leaves one out."""

    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        kinds = ((BrightnessJitterAug, brightness), (ContrastJitterAug, contrast), (SaturationJitterAug, saturation))
        super().__init__([kind(amount) for kind, amount in kinds if amount > 0])


class LightingAug(Augmenter):
    """A step along the main directions of the colours, its lengths normal with deviation `alphastd` (numpy's generator).

    Args:
        alphastd: standard deviation.
        eigval: (3,) variances.
        eigvec: (3, 3) directions.
    """

    def __init__(self, alphastd: float, eigval: Any, eigvec: Any) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd, self.eigval, self.eigvec = alphastd, eigval, eigvec

    def __call__(self, src: Any) -> Any:
        alphas = np.random.normal(0, self.alphastd, size=(3,))
        return on_host(src, lambda image: colour.lighting(image, alphas, self.eigval, self.eigvec))


class ColorNormalizeAug(Augmenter):
    """(x - mean) / std; None leaves one out."""

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__(mean=mean, std=std)
        self.mean, self.std = numbers_of(mean), numbers_of(std)

    def __call__(self, src: Any) -> Any:
        return color_normalize(src, self.mean, self.std)


class RandomGrayAug(Augmenter):
    """Grey with probability `p`."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: Any) -> Any:
        return on_host(src, colour.gray) if random.random() < self.p else src
