"""Sizes, boxes and borders of (H, W, channels) images; a box is (x, y, width, height), random numbers are arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Box = tuple[int, int, int, int]


def interpolation(interp: int, old: tuple[int, int], new: tuple[int, int], drawn: int = 1) -> int:
    """Resolve an interpolation code of MXNet to one of the codes 0 to 4 of `resize`.

    Args:
        interp: 0 to 4; 9: bicubic if both sides grow, area if both shrink, else bilinear; 10: random, `drawn`.
        old: (height, width) before resizing.
        new: (height, width) after resizing.
        drawn: the code 0 to 4 that the caller drew for `interp=10`.

    Returns:
        int: 0 nearest, 1 bilinear, 2 bicubic, 3 area, 4 Lanczos.

    Example:
        >>> interpolation(9, (4, 4), (8, 8)), interpolation(9, (8, 8), (4, 4)), interpolation(9, (8, 4), (4, 8))
        (2, 3, 1)
    """
    if interp == 9:
        grows = [n > o for n, o in zip(new, old, strict=True)]
        shrinks = [n < o for n, o in zip(new, old, strict=True)]
        return 2 if all(grows) else 3 if all(shrinks) else 1
    return drawn if interp == 10 else interp


def short_size(width: int, height: int, size: int) -> tuple[int, int]:
    """Return (width, height) scaled so that the shorter side is `size`; the longer side is rounded down.

    Example:
        >>> short_size(640, 480, 256)
        (341, 256)
    """
    return (size, size * height // width) if height > width else (size * width // height, size)


def scale_down(src_size: tuple[float, float], size: tuple[float, float]) -> tuple[int, int]:
    """Shrink the crop size (width, height), keeping its aspect ratio, so that it fits into an image of size `src_size`.

    Args:
        src_size: (width, height) of the image.
        size: (width, height) of the crop.

    Returns:
        (width, height) of the smaller crop.

    Example:
        >>> scale_down((640, 480), (720, 120))
        (640, 106)
    """
    (width, height), (max_width, max_height) = size, src_size
    if max_height < height:
        width, height = float(width * max_height) / height, max_height
    if max_width < width:
        width, height = max_width, float(height * max_width) / width
    return int(width), int(height)


def center_box(source: tuple[int, int], size: tuple[int, int]) -> Box:
    """Return the box of a center crop; a crop larger than the image is scaled down by `scale_down`.

    Example:
        >>> center_box((24, 20), (16, 16))
        (4, 2, 16, 16)
    """
    width, height = scale_down(source, size)
    return (source[0] - width) // 2, (source[1] - height) // 2, width, height


def area_box(source: tuple[int, int], area: float, ratio: float) -> tuple[int, int] | None:
    """Return (width, height) of a crop with `area` times the area of the image and width / height = `ratio`, or None.

    None means that a crop of this shape does not fit into the image.

    Example:
        >>> area_box((10, 10), 0.5, 2.0), area_box((10, 10), 1.0, 2.0)
        ((10, 5), None)

    Source: Szegedy et al. 2015, "Going deeper with convolutions", section 6; rounding of Apache MXNet 1.9.1.
    """
    target = area * source[0] * source[1]
    width, height = round(float(np.sqrt(target * ratio))), round(float(np.sqrt(target / ratio)))
    return (width, height) if width <= source[0] and height <= source[1] else None


# OpenCV's border codes -> modes of np.pad.
BORDERS = {0: "constant", 1: "edge", 2: "symmetric", 3: "wrap", 4: "reflect"}


def border(
    image: np.ndarray, top: int, bottom: int, left: int, right: int, kind: int = 0, values: float | Sequence[float] = 0.0
) -> np.ndarray:
    """Add a border around an image.

    Args:
        image: (H, W, channels).
        top: width of the top border in pixels.
        bottom: width of the bottom border.
        left: width of the left border.
        right: width of the right border.
        kind: mode of np.pad: 0 "constant", 1 "edge", 2 "symmetric", 3 "wrap", 4 "reflect".
        values: color for kind 0: a number, or one number per channel.

    Returns:
        (top + H + bottom, left + W + right, channels), dtype of `image`.

    Raises:
        KeyError: an unknown `kind`.

    Example:
        >>> border(np.ones((1, 1, 1), "uint8"), 1, 0, 0, 1, values=9)[..., 0].tolist()
        [[9, 9], [1, 9]]
    """
    around = ((top, bottom), (left, right), (0, 0))
    if kind:
        return np.pad(image, around, BORDERS[kind])  # type: ignore[call-overload]
    height, width, channels = image.shape
    out = np.empty((top + height + bottom, left + width + right, channels), image.dtype)
    out[:] = np.broadcast_to(np.asarray(values, image.dtype), (channels,))
    out[top : top + height, left : left + width] = image
    return out
