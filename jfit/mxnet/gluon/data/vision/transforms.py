"""Transforms of images, as blocks; images are (height, width, channels) before `ToTensor`, (channels, height, width) after."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.mxnet.gluon.block import Block
from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.nn.basic_layers import HybridSequential, Sequential
from jfit.mxnet.image import functions as image
from jfit.mxnet.ndarray.array import NDArray
from jfit.ops import lookup
from jfit.ops.image import new_size


class Compose(Sequential):
    """Apply transforms in order; neighboring HybridBlocks are joined and hybridized.

    Args:
        transforms: list of blocks.

    Example:
        >>> import jfit.mx as mx
        >>> transform = Compose([Resize(4), ToTensor(), Normalize(0.5, 0.5)])
        >>> transform(mx.nd.ones((8, 6, 3)).astype("uint8")).shape
        (3, 4, 4)
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__()
        for hybrid, group in itertools.groupby(transforms, lambda block: isinstance(block, HybridBlock)):
            blocks = list(group)
            if hybrid and len(blocks) > 1:
                joined = HybridSequential()
                joined.add(*blocks)
                # A compiled graph has one input shape, but images are resized because their shapes differ.
                joined.hybridize(not any(isinstance(block, Resize) for block in blocks))
                blocks = [joined]
            self.add(*blocks)


class _Operator(HybridBlock):
    """y = F.image.<name>(x, *args)."""

    def __init__(self, name: str, *args: Any) -> None:
        super().__init__()
        self._operator, self._args = name, args

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return getattr(F.image, self._operator)(x, *self._args)


class Cast(HybridBlock):
    """Cast to another dtype.

    Args:
        dtype: the dtype.
    """

    def __init__(self, dtype: Any = "float32") -> None:
        super().__init__()
        self._dtype = dtype

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.cast(x, self._dtype)


class ToTensor(_Operator):
    """y[c, h, w] = x[h, w, c] / 255 in float32; also batches of images, (rows, height, width, channels)."""

    def __init__(self) -> None:
        super().__init__("to_tensor")


class Normalize(_Operator):
    """y = (x - mean[c]) / std[c], of images (channels, height, width) or batches of them.

    Args:
        mean, std: one number, or one per channel.
    """

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        super().__init__("normalize", mean, std)


class Resize(_Operator):
    """Resize images (height, width, channels), or batches of them.

    Args:
        size: (width, height), or one number for both.
        keep_ratio: with one number, the length of the shorter side; the aspect ratio is kept.
        interpolation: 0 nearest, 1 linear, 2 cubic, 3 area, 4 Lanczos.
    """

    def __init__(self, size: Any, keep_ratio: bool = False, interpolation: int = 1) -> None:
        super().__init__("resize", size, keep_ratio, interpolation)

    def forward(self, x: Any, *args: Any) -> Any:
        """Resize; single images on the host, because the operator compiles a program for each shape."""
        if not isinstance(x, NDArray) or x.ndim != 3:
            return super().forward(x, *args)
        size, keep_ratio, interpolation = self._args
        attrs = lookup("_image_resize").parse({"size": size, "keep_ratio": keep_ratio})
        height, width = new_size(attrs, *x.shape[:2])
        return image.imresize(x, width, height, interpolation)


class CropResize(HybridBlock):
    """Crop the rectangle with corner (x, y), of images (height, width, channels) or batches of them; then resize, if asked for.

    Args:
        x, y: left and upper end of the rectangle.
        width, height: its size.
        size: (width, height) to resize to, or one number for both; None keeps the size of the crop.
        interpolation: as for `Resize`; None is 1.
    """

    def __init__(self, x: int, y: int, width: int, height: int, size: Any = None, interpolation: int | None = None) -> None:
        super().__init__()
        self._box, self._size, self._interpolation = (x, y, width, height), size, interpolation

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        crop = F.image.crop(x, *self._box)
        return F.image.resize(crop, self._size, False, self._interpolation) if self._size else crop


class CenterCrop(Block):
    """Crop the center of an image (height, width, channels); an image that is too small is resized, see `mx.image.center_crop`.

    Args:
        size: (width, height), or one number for both.
        interpolation: as for `Resize`.
    """

    def __init__(self, size: Any, interpolation: int = 1) -> None:
        super().__init__()
        self._args = _pair(size), interpolation

    def forward(self, x: Any) -> Any:
        return image.center_crop(x, *self._args)[0]


class RandomResizedCrop(Block):
    """Crop a random rectangle of an image (height, width, channels), and resize it, see `mx.image.random_size_crop`.

    Args:
        size: (width, height) of the result, or one number for both.
        scale: (low, high) of the area, as a fraction of the image's.
        ratio: (low, high) of width / height.
        interpolation: as for `Resize`.
    """

    def __init__(
        self, size: Any, scale: Any = (0.08, 1.0), ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0), interpolation: int = 1
    ) -> None:
        super().__init__()
        self._args = _pair(size), scale, ratio, interpolation

    def forward(self, x: Any) -> Any:
        return image.random_size_crop(x, *self._args)[0]


def _pair(size: Any) -> Any:
    return (size, size) if np.isscalar(size) else size


class Rotate(Block):
    """Rotate float32 images (channels, height, width), or a batch of them, see `mx.image.imrotate`.

    Args:
        rotation_degrees: the angle.
        zoom_in: enlarge so that the result has no empty corners.
        zoom_out: shrink so that the result has the whole image.

    Raises:
        TypeError: the images are not float32; raised by the call.
    """

    def __init__(self, rotation_degrees: float, zoom_in: bool = False, zoom_out: bool = False) -> None:
        super().__init__()
        self._args = rotation_degrees, zoom_in, zoom_out

    def forward(self, x: Any) -> Any:
        return image.imrotate(x, *self._args)


class RandomRotation(Block):
    """Rotate an image by a random angle, as `Rotate` does.

    Args:
        angle_limits: (low, high); the angle is uniform between them, in degrees.
        zoom_in, zoom_out: as for `Rotate`.
        rotate_with_proba: probability that an image is rotated.
    """

    def __init__(
        self, angle_limits: tuple[float, float], zoom_in: bool = False, zoom_out: bool = False, rotate_with_proba: float = 1.0
    ) -> None:
        super().__init__()
        self._args, self._probability = (angle_limits, zoom_in, zoom_out), rotate_with_proba

    def forward(self, x: Any) -> Any:
        return x if np.random.random() > self._probability else image.random_rotate(x, *self._args)


# The operators of random transforms draw from the generator that `mx.random.seed` seeds, not from that of MXNet.


class RandomFlipLeftRight(_Operator):
    """Flip an image (height, width, channels) left to right with probability 0.5."""

    def __init__(self) -> None:
        super().__init__("random_flip_left_right")


class RandomFlipTopBottom(_Operator):
    """Flip an image (height, width, channels) upside down with probability 0.5."""

    def __init__(self) -> None:
        super().__init__("random_flip_top_bottom")


class _Jitter(_Operator):
    """The operator `name` with a factor uniform in [max(0, 1 - amount), 1 + amount]."""

    def __init__(self, name: str, amount: float) -> None:
        super().__init__(name, max(0, 1 - amount), 1 + amount)


class RandomBrightness(_Jitter):
    """y = f x, f uniform in [max(0, 1 - brightness), 1 + brightness]."""

    def __init__(self, brightness: float) -> None:
        super().__init__("random_brightness", brightness)


class RandomContrast(_Jitter):
    """y = f x + (1 - f) (mean gray value of x), f uniform in [max(0, 1 - contrast), 1 + contrast]."""

    def __init__(self, contrast: float) -> None:
        super().__init__("random_contrast", contrast)


class RandomSaturation(_Jitter):
    """Change the saturation by a factor uniform in [max(0, 1 - saturation), 1 + saturation]."""

    def __init__(self, saturation: float) -> None:
        super().__init__("random_saturation", saturation)


class RandomHue(_Jitter):
    """Rotate the hue by a part of the color circle uniform in [max(0, 1 - hue), 1 + hue], as MXNet does."""

    def __init__(self, hue: float) -> None:
        super().__init__("random_hue", hue)


class RandomColorJitter(_Operator):
    """Change brightness, contrast and saturation by factors in 1 ± amount, hue by a shift in 0 ± amount, in random order.

    Args:
        brightness, contrast, saturation, hue: the amounts; a change with amount 0 is skipped.
    """

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        super().__init__("random_color_jitter", brightness, contrast, saturation, hue)


class RandomLighting(_Operator):
    """Add PCA color noise of standard deviation `alpha`, see the operator `_image_random_lighting`."""

    def __init__(self, alpha: float) -> None:
        super().__init__("random_lighting", alpha)


class RandomApply(Sequential):
    """Apply a block with probability `p`, drawn from Python's `random`.

    Args:
        transforms: the block.
        p: the probability.
    """

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        super().__init__()
        self.transforms, self.p = transforms, p

    def forward(self, x: Any) -> Any:
        return x if self.p < random.random() else self.transforms(x)
