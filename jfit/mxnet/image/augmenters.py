"""Augmenters: callable objects that transform one image.  This file: resizing, cropping, flipping, casting, composition.

Images are NDArrays or NumPy arrays (height, width, channels); the result is of the same class.  Random numbers come from
Python's `random`, drawn in MXNet's order, so that `random.seed(n)` gives the same augmentations as in MXNet.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.data.images import crops
from jfit.mxnet.image.functions import (
    area_argument,
    center_crop,
    imresize,
    interpolation_of,
    on_host,
    random_crop,
    random_size_crop,
    resize_short,
)
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

    def __call__(self, src: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must implement __call__(src), which returns the transformed image.")


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
        return resize_short(src, self.size, self.interp)


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
        return imresize(src, *self.size, interp=interpolation_of(self.interp, sizes))


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
        return random_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """Crop an image to a random area and aspect ratio, and resize the crop to `size`.

    Args:
        size: (width, height).
        area: (low, high) or low, as a fraction of the image's area.
        ratio: (low, high) of width / height.
        interp: interpolation, see `imresize`.
        kwargs: `min_area`, a deprecated name of `area`.

    Example:
        >>> RandomSizedCropAug((5, 4), 0.5, (0.75, 1.33))(np.zeros((8, 16, 3), "uint8")).shape
        (4, 5, 3)
    """

    def __init__(self, size: tuple[int, int], area: Any, ratio: tuple[float, float], interp: int = 2, **kwargs: Any) -> None:
        super().__init__(size=size, area=area, ratio=ratio, interp=interp)
        self.size, self.area, self.ratio, self.interp = size, area_argument(kwargs, area), ratio, interp

    def __call__(self, src: Any) -> Any:
        return random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


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
        return center_crop(src, self.size, self.interp)[0]


class HorizontalFlipAug(Augmenter):
    """Flip an image left and right with probability `p`.

    Args:
        p: probability.

    Example:
        >>> HorizontalFlipAug(1.0)(np.arange(6).reshape(1, 2, 3)).tolist()
        [[[3, 4, 5], [0, 1, 2]]]
    """

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: Any) -> Any:
        return on_host(src, crops.flip) if random.random() < self.p else src


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
