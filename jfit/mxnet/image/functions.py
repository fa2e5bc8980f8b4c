"""MXNet's image functions on NDArrays; NumPy arrays are accepted too, return NumPy arrays and avoid device transfers.

Random positions come from Python's `random`, drawn in MXNet's order, so that `random.seed(n)` gives the same crops as in MXNet.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jfit.data.images import colour, crops
from jfit.data.images import resize as resized
from jfit.data.images.codec import decode
from jfit.data.images.crops import Box, scale_down
from jfit.formats.atomic import read_file
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.mutable import MutableArray, mutable_class
from jfit.mxnet.ndarray.array import NDArray, copy_as, function
from jfit.mxnet.ndarray.create import as_ndarrays
from jfit.mxnet.numpy.arrays import current_kind, write

_MAX_TRIES = 10
_ISOLATED = 16  # OpenCV's flag of a border type, which has no effect on whole images


def on_host(src: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Return `change(image)`, a function of a NumPy array, as an NDArray if the image is one, else as a NumPy array."""
    if isinstance(src, MutableArray):
        return created(change(src.asnumpy()), mutable_class(src))
    return change(np.asarray(src))


def imdecode(buf: Any, flag: int = 1, to_rgb: int | bool = 1, out: Any = None) -> NDArray:
    """Decode the content of an image file.

    JPEG decoders may differ by one or two of 255 levels.

    Args:
        buf: bytes, or an array of bytes.
        flag: 1 for three channels, 0 for one (gray).
        to_rgb: True for the channel order RGB, False for BGR.
        out: NDArray to write into instead of a new one.

    Returns:
        NDArray (height, width, 3) or (height, width, 1), uint8.

    Raises:
        MXNetError: the content is not an image, or damaged.

    Example:
        >>> from jfit.data.images import encode
        >>> imdecode(encode(np.zeros((2, 4, 3), "uint8"), 9, ".png")).shape
        (2, 4, 3)
    """
    content = buf.asnumpy().tobytes() if isinstance(buf, MutableArray) else bytes(buf)
    with translated():
        array = decode(content, "RGB" if flag else "L")
    return write(out, created(array[..., ::-1] if flag and not to_rgb else array, current_kind()))


def imread(filename: str | os.PathLike[str], flag: int = 1, to_rgb: int | bool = 1, out: Any = None) -> NDArray:
    """Read an image file.

    Args:
        filename: path of the file.
        flag: 1 for three channels, 0 for one (gray).
        to_rgb: True for the channel order RGB, False for BGR.
        out: NDArray to write into instead of a new one.

    Returns:
        NDArray (height, width, 3) or (height, width, 1), uint8.

    Raises:
        MXNetError: the file does not exist or is not an image.

    Example:
        >>> from pathlib import Path
        >>> from jfit.data.images import encode
        >>> _ = Path("x.png").write_bytes(encode(np.zeros((2, 4, 3), "uint8"), 9, ".png"))
        >>> imread("x.png", flag=0).shape
        (2, 4, 1)
    """
    with translated():
        array = decode(read_file(filename), "RGB" if flag else "L", filename)
    return write(out, created(array[..., ::-1] if flag and not to_rgb else array, current_kind()))


def created(value: np.ndarray, kind: Any) -> Any:
    """Return a new array of a class with a copy of the value."""
    return kind(copy_as(value, value.dtype))


def imresize(src: Any, w: int, h: int, interp: int = 1, out: Any = None) -> Any:
    """Resize an image to height `h` and width `w`.

    The results are those of OpenCV, up to one of 255 levels for uint8 images.

    Args:
        src: image (height, width, channels).
        w: new width.
        h: new height.
        interp: 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos.
        out: array to write into instead of a new one.

    Returns:
        Image (h, w, channels) of the class and dtype of `src`.

    Example:
        >>> imresize(np.zeros((2, 4, 3), "uint8"), 3, 5).shape
        (5, 3, 3)
    """
    if not 0 <= interp <= 4:
        raise MXNetError(f"imresize: interp is {interp}, expected 0 (nearest) to 4 (Lanczos)")
    return write(out, on_host(src, lambda image: resized(image, w, h, interp)))


def interpolation_of(interp: int, sizes: Sequence[int] = ()) -> int:
    """Return the interpolation 0 to 4 that `interp` stands for: 9 depends on `sizes`, 10 is random, 0 to 4 are unchanged.

    sizes: (old height, old width, new height, new width).
    """
    if interp == 9 and not sizes:
        return 2
    return crops.interpolation(interp, tuple(sizes[:2]), tuple(sizes[2:]), random.randint(0, 4) if interp == 10 else 1)  # type: ignore[arg-type]


def resize_short(src: Any, size: int, interp: int = 2) -> Any:
    """Resize an image so that its shorter side is `size`, keeping the aspect ratio.

    Args:
        src: image (height, width, channels).
        size: new length of the shorter side.
        interp: interpolation, see `imresize`; also 9 (chosen by the sizes) and 10 (random).

    Returns:
        Image of the class and dtype of `src`.

    Example:
        >>> resize_short(np.zeros((4, 8, 3), "uint8"), 2).shape
        (2, 4, 3)
    """
    height, width = src.shape[:2]
    new_width, new_height = crops.short_size(width, height, size)
    return imresize(src, new_width, new_height, interpolation_of(interp, (height, width, new_height, new_width)))


def fixed_crop(src: Any, x0: int, y0: int, w: int, h: int, size: tuple[int, int] | None = None, interp: int = 2) -> Any:
    """Crop the rectangle with corner (x0, y0) and size (w, h), and optionally resize it.

    Args:
        src: image (height, width, channels).
        x0: first column.
        y0: first row.
        w: width of the crop.
        h: height of the crop.
        size: (width, height) to resize to; None keeps (w, h).
        interp: interpolation, see `resize_short`.

    Returns:
        Image of the class and dtype of `src`.

    Example:
        >>> fixed_crop(np.arange(12).reshape(2, 2, 3), 1, 0, 1, 1).tolist()
        [[[3, 4, 5]]]
    """
    out = on_host(src, lambda image: image[y0 : y0 + h, x0 : x0 + w])
    if size is None or (w, h) == tuple(size):
        return out
    return imresize(out, *size, interp=interpolation_of(interp, (h, w, size[1], size[0])))


def random_crop(src: Any, size: tuple[int, int], interp: int = 2) -> tuple[Any, Box]:
    """Crop a rectangle of this size at a random position.

    An image that is smaller than the crop is cropped to the largest rectangle of that aspect ratio, which is resized to `size`.

    Args:
        src: image (height, width, channels).
        size: (width, height).
        interp: interpolation, see `resize_short`.

    Returns:
        (image, (x, y, width, height) of the crop before resizing).

    Example:
        >>> random_crop(np.zeros((2, 2, 3), "uint8"), (2, 2))[1]
        (0, 0, 2, 2)
    """
    height, width = src.shape[:2]
    new_width, new_height = scale_down((width, height), size)
    x, y = random.randint(0, width - new_width), random.randint(0, height - new_height)
    return fixed_crop(src, x, y, new_width, new_height, size, interp), (x, y, new_width, new_height)


def center_crop(src: Any, size: tuple[int, int], interp: int = 2) -> tuple[Any, Box]:
    """Crop a rectangle of this size from the center; an image that is too small is treated as in `random_crop`.

    Args:
        src: image (height, width, channels).
        size: (width, height).
        interp: interpolation, see `resize_short`.

    Returns:
        (image, (x, y, width, height) of the crop before resizing).

    Example:
        >>> center_crop(np.zeros((4, 4, 3), "uint8"), (2, 2))[1]
        (1, 1, 2, 2)
    """
    rectangle = crops.center_box((src.shape[1], src.shape[0]), size)
    return fixed_crop(src, *rectangle, size, interp), rectangle


def random_size_crop(
    src: Any, size: tuple[int, int], area: float | tuple[float, float], ratio: tuple[float, float], interp: int = 2
) -> tuple[Any, Box]:
    """Crop a rectangle of random area and aspect ratio, and resize it to `size`.

    After 10 draws that do not fit the image, it is cropped from the center instead.

    Args:
        src: image (height, width, channels).
        size: (width, height) of the result.
        area: (low, high) of the uniform area as a fraction of the image's area; one number is low, with high 1.
        ratio: (low, high) of the log-uniform width / height.
        interp: interpolation, see `resize_short`.

    Returns:
        (image, (x, y, width, height) of the crop before resizing).

    Example:
        >>> random_size_crop(np.zeros((8, 8, 3), "uint8"), (4, 4), 0.5, (0.75, 1.33))[0].shape
        (4, 4, 3)
    """
    height, width = src.shape[:2]
    low, high = area if isinstance(area, Sequence) else (area, 1.0)
    for _ in range(_MAX_TRIES):
        fraction = random.uniform(low, high)
        shape = crops.area_box((width, height), fraction, float(np.exp(random.uniform(np.log(ratio[0]), np.log(ratio[1])))))
        if shape is not None:
            x, y = random.randint(0, width - shape[0]), random.randint(0, height - shape[1])
            return fixed_crop(src, x, y, *shape, size, interp), (x, y, *shape)
    return center_crop(src, size, interp)


def color_normalize(src: Any, mean: Any, std: Any = None) -> Any:
    """Normalize an image: (src - mean) / std.

    Args:
        src: image (height, width, channels).
        mean: number or (channels,); None skips the subtraction.
        std: number or (channels,); None skips the division.

    Returns:
        Float image of the class of `src`.

    Example:
        >>> color_normalize(np.full((1, 1, 3), 5, "float32"), 1.0, 2.0).tolist()
        [[[2.0, 2.0, 2.0]]]
    """
    return on_host(src, lambda image: colour.normalize(image, as_float32(mean), as_float32(std)))


def as_float32(value: Any) -> np.ndarray | None:
    """Convert an NDArray, list or number to a float32 NumPy array; None stays None."""
    return None if value is None else np.asarray(value, np.float32)


def imrotate(src: Any, rotation_degrees: Any, zoom_in: bool = False, zoom_out: bool = False) -> NDArray:
    """Rotate images around their center, with bilinear interpolation; pixels from outside are 0.

    Args:
        src: NDArray (channels, height, width) or (images, channels, height, width), float32.
        rotation_degrees: the angle, a number, or of several images (images,) an NDArray.
        zoom_in: enlarge the result so that no pixel is from outside.
        zoom_out: shrink the result so that it has the whole image; takes precedence over `zoom_in`.

    Returns:
        NDArray of the shape of `src`.

    Raises:
        TypeError: `src` is not float32.
        ValueError: another number of axes, or another number of angles than of images.

    Example:
        >>> imrotate(as_ndarrays(np.eye(3, dtype="float32")[None]), 90).asnumpy().round(3)[0].tolist()
        [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if np.dtype(src.dtype) != np.float32:
        raise TypeError(f"src has dtype {np.dtype(src.dtype)}, expected float32; call src.astype('float32')")
    if src.ndim == 3:
        return imrotate(src.expand_dims(0), rotation_degrees, zoom_in, zoom_out)[0]
    count, _, height, width = src.shape
    angle = np.radians(np.broadcast_to(np.asarray(rotation_degrees, np.float64), (count,)))
    cosine, sine = np.cos(angle), np.sin(angle)
    # sides of the bounding box of the rotated image relative to those of the image
    reach = [abs(cosine) + abs(sine) * b / a for a, b in ((width, height), (height, width))]
    scale = np.max(reach, axis=0) if zoom_out else 1 / np.max(reach, axis=0) if zoom_in else 1.0
    aspect, zero = (height - 1) / (width - 1), 0 * angle
    rows = [cosine * scale, -sine * aspect * scale, zero, sine / aspect * scale, cosine * scale, zero]
    theta = as_ndarrays(np.stack(rows, axis=1).astype(np.float32))
    grid = function("GridGenerator")(theta, transform_type="affine", target_shape=(height, width))
    return function("BilinearSampler")(src, grid)


def random_rotate(src: Any, angle_limits: tuple[float, float], zoom_in: bool = False, zoom_out: bool = False) -> NDArray:
    """Rotate images by angles drawn from NumPy's generator.

    Args:
        src: see `imrotate`.
        angle_limits: (low, high) of the angles in degrees.
        zoom_in: see `imrotate`.
        zoom_out: see `imrotate`.

    Returns:
        NDArray of the shape of `src`.

    Example:
        >>> random_rotate(as_ndarrays(np.ones((1, 3, 3), "float32")), (-10, 10)).shape
        (1, 3, 3)
    """
    angles = np.random.uniform(*angle_limits, size=None if src.ndim == 3 else src.shape[0])
    return imrotate(src, angles if src.ndim == 3 else as_ndarrays(angles), zoom_in, zoom_out)


def copyMakeBorder(
    src: Any, top: int, bot: int, left: int, right: int, type: int = 0, value: float = 0.0, values: Sequence[float] = ()
) -> Any:
    """Pad an image with a border.

    Args:
        src: image (height, width, channels).
        top: rows above.
        bot: rows below.
        left: columns on the left.
        right: columns on the right.
        type: OpenCV's border type: 0 constant color, 1 repeat the edge, 2 mirror including the edge, 3 wrap around, 4 mirror
            without the edge.
        value: the constant color, of all channels.
        values: the constant color, one number per channel; takes precedence over `value`.

    Returns:
        Image (height + top + bot, width + left + right, channels) of the class and dtype of `src`.

    Example:
        >>> copyMakeBorder(np.zeros((2, 2, 3), "uint8"), 1, 0, 2, 2).shape
        (3, 6, 3)
    """
    return on_host(src, lambda image: crops.border(image, top, bot, left, right, type & ~_ISOLATED, values or value))
