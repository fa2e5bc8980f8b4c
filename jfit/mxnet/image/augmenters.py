"""Augmenters: objects that change an image, called one after the other.  Sizes, crops, flips, orders, dtypes.

They take and give NDArrays or numpy arrays, (H, W, channels); random numbers come from Python's `random`, drawn as MXNet
draws them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.data.images import crops
from jfit.mxnet.image.functions import (
    center_crop,
    imresize,
    interpolation_of,
    old_name,
    on_host,
    random_crop,
    random_size_crop,
    resize_short,
)
from jfit.mxnet.mutable import MutableArray

__all__ = [
    "Augmenter",
    "CastAug",
    "CenterCropAug",
    "ForceResizeAug",
    "HorizontalFlipAug",
    "RandomCropAug",
    "RandomOrderAug",
    "RandomSizedCropAug",
    "ResizeAug",
    "SequentialAug",
]


class Augmenter:
    """Base: write `__call__(src) -> image`; the arguments given here are what `dumps` tells.

    Example:
        >>> ResizeAug(8).dumps()
        '["resizeaug", {"size": 8, "interp": 2}]'
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = {name: _plain(value) for name, value in kwargs.items()}

    def dumps(self) -> Any:
        """Name and arguments as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, src: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(src) that gives the changed image.")


def _plain(value: Any) -> Any:
    value = value.asnumpy() if isinstance(value, MutableArray) else value
    return value.tolist() if isinstance(value, np.ndarray) else value


class SequentialAug(Augmenter):
    """Augmenters in their order.

    Args:
        ts: list of augmenters.
    """

    def __init__(self, ts: Sequence[Any]) -> None:
        super().__init__()
        self.ts = ts

    def dumps(self) -> Any:
        """Name, and what the augmenters tell."""
        return [type(self).__name__.lower(), [t.dumps() for t in self.ts]]

    def __call__(self, src: Any) -> Any:
        for t in self.ts:
            src = t(src)
        return src


class RandomOrderAug(SequentialAug):
    """Augmenters in a new random order for each image."""

    def __init__(self, ts: Sequence[Any]) -> None:
        super().__init__(list(ts))

    def __call__(self, src: Any) -> Any:
        random.shuffle(self.ts)  # type: ignore[arg-type]
        return super().__call__(src)


class ResizeAug(Augmenter):
    """Shorter side to `size`."""

    def __init__(self, size: int, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: Any) -> Any:
        return resize_short(src, self.size, self.interp)


class ForceResizeAug(Augmenter):
    """To `size` = (width, height), whatever the shape was."""

    def __init__(self, size: tuple[int, int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: Any) -> Any:
        sizes = (src.shape[0], src.shape[1], self.size[1], self.size[0])
        return imresize(src, *self.size, interp=interpolation_of(self.interp, sizes))


class RandomCropAug(Augmenter):
    """A crop of `size` = (width, height) at a random place."""

    def __init__(self, size: tuple[int, int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: Any) -> Any:
        return random_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """A crop of random area and ratio, resized to `size`; see `random_size_crop`."""

    def __init__(self, size: tuple[int, int], area: Any, ratio: tuple[float, float], interp: int = 2, **kwargs: Any) -> None:
        super().__init__(size=size, area=area, ratio=ratio, interp=interp)
        self.size, self.area, self.ratio, self.interp = size, old_name(kwargs, area), ratio, interp

    def __call__(self, src: Any) -> Any:
        return random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


class CenterCropAug(Augmenter):
    """A crop of `size` = (width, height) from the middle."""

    def __init__(self, size: tuple[int, int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: Any) -> Any:
        return center_crop(src, self.size, self.interp)[0]


class HorizontalFlipAug(Augmenter):
    """Left and right exchanged with probability `p`."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: Any) -> Any:
        return on_host(src, crops.flip) if random.random() < self.p else src


class CastAug(Augmenter):
    """To another dtype."""

    def __init__(self, typ: str = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def __call__(self, src: Any) -> Any:
        return src.astype(self.typ)
