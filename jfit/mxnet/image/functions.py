"""Image functions in MXNet's spelling: NDArrays in, NDArrays out; numpy arrays stay numpy arrays, which is faster.

Random places are drawn from Python's `random`, as MXNet does: after `random.seed(n)` both crop the same places.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jfit.data.images import colour, crops
from jfit.data.images import resize as resized
from jfit.data.images.codec import decode
from jfit.data.images.crops import Box, scale_down
from jfit.mxnet.errors import translated
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import as_ndarrays

__all__ = [
    "center_crop",
    "color_normalize",
    "copyMakeBorder",
    "fixed_crop",
    "imdecode",
    "imread",
    "imresize",
    "random_crop",
    "random_size_crop",
    "resize_short",
    "scale_down",
]


_TRIES = 10


def on_host(src: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """What `change` makes of an image: an NDArray of an NDArray, a numpy array of a numpy array."""
    if isinstance(src, MutableArray):
        return as_ndarrays(change(src.asnumpy()))
    return change(np.asarray(src))


def imdecode(buf: Any, flag: int = 1, to_rgb: int | bool = 1, out: Any = None) -> NDArray:
    """The pixels of an image file.

    Args:
        buf: its bytes, or an array of them.
        flag: 1 for three channels, 0 for one (grey).
        to_rgb: red first; else blue first.
        out: written instead of a new array.

    Returns:
        (H, W, 3) or (H, W, 1) uint8.

    Raises:
        ValueError: `buf` is text.
        MXNetError: no image, or a damaged one.

    JPEG decoders differ by a level or two.
    """
    if isinstance(buf, str):
        raise ValueError("buf is text, the bytes of an image file are needed: read the file with open(path, 'rb').")
    content = buf.asnumpy().tobytes() if isinstance(buf, MutableArray) else bytes(buf)
    with translated():
        array = decode(content, "RGB" if flag else "L")
    return _given(array[..., ::-1] if flag and not to_rgb else array, out)


def imread(filename: str | os.PathLike[str], flag: int = 1, to_rgb: int | bool = 1, out: Any = None) -> NDArray:
    """The pixels of an image file by name; see `imdecode`.

    Raises:
        MXNetError: there is no such file, or it is no image.
    """
    with translated(), open(filename, "rb") as file:
        array = decode(file.read(), "RGB" if flag else "L", filename)
    return _given(array[..., ::-1] if flag and not to_rgb else array, out)


def _given(array: np.ndarray, out: Any) -> Any:
    if out is not None:
        out[:] = array
        return out
    return as_ndarrays(array)


def imresize(src: Any, w: int, h: int, interp: int = 1, out: Any = None) -> Any:
    """The image at the size (h, w); `interp`: 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos.

    OpenCV's rules, to a level of 255 where it rounds its weights.
    """
    found = on_host(src, lambda image: resized(image, w, h, interp))
    if out is not None:
        out[:] = found
        return out
    return found


def interpolation_of(interp: int, sizes: Sequence[int] = ()) -> int:
    """The interpolation that a number means for `sizes` = (old height, old width, new height, new width); 10 is drawn."""
    if interp == 9 and not sizes:
        return 2
    return crops.interpolation(interp, tuple(sizes[:2]), tuple(sizes[2:]), random.randint(0, 4) if interp == 10 else 1)  # type: ignore[arg-type]


def resize_short(src: Any, size: int, interp: int = 2) -> Any:
    """The image with a shorter side of `size`, its shape kept."""
    height, width = src.shape[:2]
    new_width, new_height = crops.short_size(width, height, size)
    return imresize(src, new_width, new_height, interpolation_of(interp, (height, width, new_height, new_width)))


def fixed_crop(src: Any, x0: int, y0: int, w: int, h: int, size: tuple[int, int] | None = None, interp: int = 2) -> Any:
    """The part of the image that begins at (x0, y0), resized to `size` = (width, height) where it is given."""
    out = on_host(src, lambda image: crops.crop(image, (x0, y0, w, h)))
    if size is None or (w, h) == tuple(size):
        return out
    return imresize(out, *size, interp=interpolation_of(interp, (h, w, size[1], size[0])))


def random_crop(src: Any, size: tuple[int, int], interp: int = 2) -> tuple[Any, Box]:
    """A part of the image at a random place, resized to `size` where the image is too small; and its box (x, y, w, h)."""
    height, width = src.shape[:2]
    new_width, new_height = scale_down((width, height), size)
    x, y = random.randint(0, width - new_width), random.randint(0, height - new_height)
    return fixed_crop(src, x, y, new_width, new_height, size, interp), (x, y, new_width, new_height)


def center_crop(src: Any, size: tuple[int, int], interp: int = 2) -> tuple[Any, Box]:
    """The middle of the image, resized to `size` where the image is too small; and its box (x, y, w, h)."""
    box = crops.center_box((src.shape[1], src.shape[0]), size)
    return fixed_crop(src, *box, size, interp), box


def random_size_crop(
    src: Any,
    size: tuple[int, int],
    area: float | tuple[float, float],
    ratio: tuple[float, float],
    interp: int = 2,
    **kwargs: Any,
) -> tuple[Any, Box]:
    """A part of random area (of the whole image's 1) and random width / height, resized to `size`; and its box.

    Raises:
        TypeError: an unknown argument.
    """
    height, width = src.shape[:2]
    area = old_name(kwargs, area)
    low, high = area if isinstance(area, Sequence) else (area, 1.0)
    for _ in range(_TRIES):
        part = random.uniform(low, high)
        found = crops.area_box((width, height), part, float(np.exp(random.uniform(np.log(ratio[0]), np.log(ratio[1])))))
        if found is not None:
            x, y = random.randint(0, width - found[0]), random.randint(0, height - found[1])
            return fixed_crop(src, x, y, *found, size, interp), (x, y, *found)
    return center_crop(src, size, interp)


def old_name(kwargs: dict[str, Any], area: Any) -> Any:
    """`area`, or the `min_area` that it was called once."""
    if "min_area" in kwargs:
        warnings.warn("`min_area` is deprecated, pass `area`.", DeprecationWarning, stacklevel=3)
        area = kwargs.pop("min_area")
    if kwargs:
        raise TypeError(
            f"unknown arguments {', '.join(map(repr, kwargs))} of a random crop; there are size, area, ratio, interp."
        )
    return area


def color_normalize(src: Any, mean: Any, std: Any = None) -> Any:
    """(src - mean) / std; what is None is left out."""
    return on_host(src, lambda image: colour.normalize(image, numbers_of(mean), numbers_of(std)))


def numbers_of(value: Any) -> np.ndarray | None:
    """float32 of an array, a list or a number; None stays None."""
    if value is None:
        return None
    return np.asarray(value.asnumpy() if isinstance(value, MutableArray) else value, np.float32)


def copyMakeBorder(
    src: Any, top: int, bot: int, left: int, right: int, type: int = 0, value: float = 0.0, values: Sequence[float] = ()
) -> Any:
    """The image with a border: `type` 0 of one colour, 1 the edge repeated, 2 mirrored, 3 the other side, 4 as 2, no edge."""
    return on_host(src, lambda image: crops.border(image, top, bot, left, right, type, values or value))
