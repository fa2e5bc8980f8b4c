"""Decode, encode and resize images with Pillow; arrays are (H, W, channels) uint8 in RGB order."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from jfit.checks import one_of
from jfit.data.images.resample import resample
from jfit.formats.atomic import FormatError
from jfit.lazy import optional

# Largest width * height, according to the header, of images that are decoded: a file of kilobytes may decode to gigabytes.
# It is set by an environment variable because worker processes, which decode images too, inherit it.
MOST_PIXELS = int(os.environ.get("JFIT_MOST_PIXELS", 1 << 26))
# Formats that Pillow may open.  Some others run external programs, which a file from an untrusted source must not.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000")
# OpenCV's interpolation codes -> Pillow's resampling filters (which antialias: they widen when an image shrinks).
INTERPOLATIONS = {0: "NEAREST", 1: "BILINEAR", 2: "BICUBIC", 3: "BOX", 4: "LANCZOS"}


def pillow() -> Any:
    """Import and return the module PIL.Image.

    Raises:
        ImportError: Pillow is not installed.
    """
    return optional("PIL.Image", "reading images needs Pillow, which is not installed: pip install 'jfit[image]'.")


def inside(root: str | os.PathLike[str], name: str) -> Path:
    """Path of the file `name` of an image list in the folder `root`.

    Symbolic links in the folder are followed; a name with ".." or an absolute name must stay in the folder.

    Raises:
        ValueError: the name leads out of the folder: a list from elsewhere must not read other files.

    Example:
        >>> inside("images", "cats/1.png").as_posix()
        'images/cats/1.png'
    """
    folder, path = (Path(os.path.abspath(p)) for p in (root, os.path.join(root, name)))
    if not path.is_relative_to(folder):
        raise ValueError(f"the image list has the file name {name!r}, which is outside of the folder {os.fspath(root)!r}.")
    return Path(root, name)


def open_image(content: bytes, path: str | os.PathLike[str] = "image", where: str = "content") -> Any:
    """Open an image without decoding it, and check its size.

    Args:
        content: bytes of an image file in one of `FORMATS`.
        path: file that contains them, for messages.
        where: their position in the file, for messages.

    Returns:
        PIL.Image.Image.

    Raises:
        FormatError: not an image, or more than `MOST_PIXELS` pixels: 2²⁶, or the value of the environment variable
            JFIT_MOST_PIXELS (at most 178,956,970, the limit of Pillow).
    """
    image_module = pillow()
    try:
        image = image_module.open(io.BytesIO(content), formats=FORMATS)
    except Exception as error:  # Pillow raises many kinds of exceptions for a malformed header, or a large image
        content_text = f"{len(content)} bytes that begin with {bytes(content[:8])!r}"
        problem = f"{content_text} are no image that Pillow can open ({type(error).__name__}: {str(error)[:200]})"
        raise FormatError(path, where, problem, "replace the image, or make it smaller.") from None
    if image.width * image.height > MOST_PIXELS:
        problem = f"the image has {image.width} x {image.height} pixels, expected at most {MOST_PIXELS}"
        remedy = "make the image smaller, or set the environment variable JFIT_MOST_PIXELS before importing jfit."
        raise FormatError(path, where, problem, remedy)
    return image


def pixels(image: Any, mode: str | None, path: str | os.PathLike[str] = "image", where: str = "content") -> Any:
    """Decode a Pillow image and convert it to a mode.

    Images with 16 bits per channel keep the high 8 bits, as in OpenCV.

    Args:
        image: result of `open_image`.
        mode: "RGB", "L" (gray), or None to keep the mode of the file if it is "RGB", "L" or "RGBA" and use "RGB" otherwise.
        path: the file, for messages.
        where: position in the file, for messages.

    Returns:
        PIL.Image.Image.

    Raises:
        FormatError: the file is damaged or truncated.
    """
    try:
        if mode == "L" and image.format == "JPEG":
            image.draft("L", image.size)  # decode the luma channel of a JPEG only
        image.load()
        if image.mode == "I" or image.mode.startswith("I;16"):  # Pillow's own conversion clips at 255
            image = to_image(np.clip(np.asarray(image) >> 8, 0, 255).astype(np.uint8))
        if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
            image = image.convert("RGBA")  # the same colors; a direct conversion to RGB makes Pillow warn
        if mode is None:
            mode = image.mode if image.mode in ("L", "RGB", "RGBA") else "RGB"
        return image if image.mode == mode else image.convert(mode)
    except Exception as error:
        problem = f"the image cannot be decoded ({type(error).__name__}: {error})"
        raise FormatError(path, where, problem, "replace the image, or create the record file again.") from None


def decode(
    content: bytes, mode: str | None = "RGB", path: str | os.PathLike[str] = "image", where: str = "content"
) -> np.ndarray:
    """Decode an image file to an array.

    Args:
        content: bytes of the image file.
        mode: "RGB", "L" (gray), or None for the mode of the file ("RGB", "L" or "RGBA").
        path: file that contains the bytes, for messages.
        where: their position in the file, for messages.

    Returns:
        (H, W, channels) uint8 in RGB order; 1 channel for gray.

    Raises:
        FormatError: not an image, or a damaged one.
        ImportError: Pillow is not installed.

    Example:
        >>> decode(encode(np.full((2, 3, 3), 7, "uint8"), 9, ".png"))[0, 0].tolist()
        [7, 7, 7]
    """
    array = np.array(pixels(open_image(content, path, where), mode, path, where))
    return array[..., None] if array.ndim == 2 else array


def encode(array: np.ndarray, quality: int = 95, kind: str = ".jpg") -> bytes:
    """Encode an array as an image file.

    Args:
        array: (H, W, 3), (H, W, 1) or (H, W) uint8, in RGB order.
        quality: JPEG quality from 1 to 100, or PNG compression level from 0 to 9.
        kind: ".jpg" or ".png".

    Returns:
        bytes of the file.

    Raises:
        ValueError: unsupported `kind`.  Pillow raises for an unsupported dtype or shape.

    Example:
        >>> encode(np.zeros((2, 2, 3), "uint8"))[:2].hex()
        'ffd8'
    """
    one_of((".jpg", ".jpeg", ".png"), kind=kind.lower())
    out, is_png = io.BytesIO(), kind.lower() == ".png"
    options = {"compress_level": min(quality, 9)} if is_png else {"quality": quality}
    to_image(array).save(out, "PNG" if is_png else "JPEG", **options)
    return out.getvalue()


def to_image(array: np.ndarray) -> Any:
    """Convert a (H, W, channels) or (H, W) uint8 array to a Pillow image."""
    return pillow().fromarray(np.ascontiguousarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array))


def resize(array: np.ndarray, width: int, height: int, interp: int = 2) -> np.ndarray:
    """Resize an image; a new pixel is computed from 2, 4 or 8 pixels per axis, as in OpenCV and MXNet.

    Args:
        array: (H, W, channels) uint8 or float32.
        width: new width in pixels.
        height: new height in pixels.
        interp: 0 nearest, 1 bilinear, 2 bicubic, 3 area, 4 Lanczos.

    Returns:
        (height, width, channels) of the same dtype.

    Raises:
        KeyError: an unknown interpolation.

    Example:
        >>> resize(np.arange(4, dtype="uint8").reshape(2, 2, 1), 1, 1, interp=3).item()
        2
    """
    if array.shape[:2] == (height, width):
        return array
    return resample(array, (width, height), interp)
