"""Image files as arrays and arrays as image files, through Pillow.  (H, W, channels) uint8, red first."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np

from jfit.data.images.resample import resample
from jfit.formats.atomic import FormatError

MOST_PIXELS = 1 << 28  # an image says how large it is before it is decoded; a small file must not take all memory
# What Pillow may read: files of pixels.  It knows kinds that run other programs, which a record from elsewhere must not.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000")
# OpenCV's numbers of interpolations -> Pillow's names.  Pillow's filters widen with the scale when an image shrinks.
INTERPOLATIONS = {0: "NEAREST", 1: "BILINEAR", 2: "BICUBIC", 3: "BOX", 4: "LANCZOS"}


def pillow() -> Any:
    """The module PIL.Image.

    Raises:
      ImportError: Pillow is not installed; the message names the extra.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images are read through Pillow, which is not installed: pip install 'jfit[image]'.") from error
    return Image


def open_image(content: bytes, path: str | os.PathLike[str] = "image", where: str = "content") -> Any:
    """A Pillow image that is not decoded yet, its size checked.

    Args:
      content: the bytes of a file of one of `FORMATS`.
      path: the file they came from, for messages.
      where: their place there, for messages.

    Raises:
      FormatError: no image, or one of more than 2²⁸ pixels.
    """
    image_module = pillow()
    try:
        image = image_module.open(io.BytesIO(content), formats=FORMATS)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:  # where warnings are errors
        raise FormatError(path, where, str(error), "make the image smaller.") from None
    except Exception as error:  # a hostile header makes Pillow's readers raise almost anything
        found = f"{len(content)} bytes that begin with {bytes(content[:8])!r}"
        problem = f"{found} are no image that Pillow can open ({type(error).__name__})"
        raise FormatError(path, where, problem, "the record is damaged or holds something else: pack it again.") from None
    if image.width * image.height > MOST_PIXELS:
        problem = f"an image of {image.width} x {image.height} pixels, at most {MOST_PIXELS} are read"
        raise FormatError(path, where, problem, "make the image smaller.")
    return image


def pixels(image: Any, mode: str | None, path: str | os.PathLike[str] = "image", where: str = "content") -> Any:
    """The Pillow image, decoded and in a mode ("RGB", "L"; None: what it has, as one of these two or "RGBA").

    Raises:
      FormatError: the file is damaged or cut off.

    Of 16 bits the higher 8 are taken, as OpenCV does.
    """
    try:
        if mode == "L" and image.format == "JPEG":
            image.draft("L", image.size)  # a JPEG holds its brightness: no way through the colours
        image.load()
        if image.mode == "I" or image.mode.startswith("I;16"):  # Pillow itself would cut everything above 255 off
            image = to_image(np.clip(np.asarray(image) >> 8, 0, 255).astype(np.uint8))
        if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
            image = image.convert("RGBA")  # the same colours; Pillow warns of the direct way
        if mode is None:
            mode = image.mode if image.mode in ("L", "RGB", "RGBA") else "RGB"
        return image if image.mode == mode else image.convert(mode)
    except Exception as error:
        problem = f"the image cannot be decoded ({type(error).__name__}: {error})"
        raise FormatError(path, where, problem, "it is damaged or cut off: pack it again.") from None


def decode(
    content: bytes, mode: str | None = "RGB", path: str | os.PathLike[str] = "image", where: str = "content"
) -> np.ndarray:
    """The pixels of an image file.

    Args:
      content: the bytes of the file.
      mode: "RGB", "L" (grey) or None for what the file has.
      path: the file they came from, for messages.
      where: their place there, for messages.

    Returns:
      (H, W, channels) uint8, red first; one channel for grey.

    Raises:
      FormatError: no image, or a damaged one.
      ImportError: Pillow is not installed.

    Example:
      >>> decode(encode(np.full((2, 3, 3), 7, "uint8"), 9, ".png"))[0, 0].tolist()
      [7, 7, 7]
    """
    array = np.array(pixels(open_image(content, path, where), mode, path, where))
    return array[..., None] if array.ndim == 2 else array


def encode(array: np.ndarray, quality: int = 95, kind: str = ".jpg") -> bytes:
    """The bytes of an image file.

    Args:
      array: (H, W, 3), (H, W, 1) or (H, W) uint8, red first.
      quality: of JPEG from 1 to 100; compression of PNG from 0 to 9.
      kind: ".jpg" or ".png".

    Raises:
      ValueError: another dtype, shape or kind.

    Example:
      >>> encode(np.zeros((2, 2, 3), "uint8"))[:2].hex()
      'ffd8'
    """
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)):
        raise ValueError(f"an image to write is {array.dtype} {array.shape}, needed uint8 (H, W, 3) or (H, W).")
    image = to_image(array)
    out = io.BytesIO()
    if kind.lower() in (".jpg", ".jpeg"):
        image.save(out, "JPEG", quality=quality)
    elif kind.lower() == ".png":
        image.save(out, "PNG", compress_level=min(quality, 9))
    else:
        raise ValueError(f"images are written as '.jpg' or '.png', found {kind!r}.")
    return out.getvalue()


def to_image(array: np.ndarray) -> Any:
    """The Pillow image of (H, W, channels) or (H, W) uint8."""
    return pillow().fromarray(np.ascontiguousarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array))


def resize(array: np.ndarray, width: int, height: int, interp: int = 2, antialias: bool = False) -> np.ndarray:
    """The image at another size.

    Args:
      array: (H, W, channels) uint8 or float32.
      width: wanted.
      height: wanted.
      interp: 0 nearest, 1 bilinear, 2 bicubic, 3 area, 4 Lanczos.
      antialias: where the image shrinks, look at all pixels that a new one covers (Pillow's filters); else at 2, 4 or 8 on each
        axis, as OpenCV and MXNet.

    Returns:
      (height, width, channels) of the same dtype.

    Raises:
      ValueError: a size below 1 or an unknown interpolation.

    Example:
      >>> resize(np.arange(4, dtype="uint8").reshape(2, 2, 1), 1, 1, interp=3).item()
      2
    """
    if width < 1 or height < 1 or interp not in INTERPOLATIONS:
        raise ValueError(f"resize to {width} x {height} with interpolation {interp}; needed sizes of at least 1, and 0 to 4.")
    if array.shape[:2] == (height, width):
        return array
    if not antialias:
        return resample(array, (width, height), interp)
    method = getattr(pillow().Resampling, INTERPOLATIONS[interp])
    if array.dtype == np.uint8 and array.shape[2] in (1, 3, 4):
        out = np.array(to_image(array).resize((width, height), method))
        return out[..., None] if out.ndim == 2 else out
    # Pillow's images of floats have one channel.
    planes = [pillow().fromarray(np.ascontiguousarray(array[..., c], np.float32)) for c in range(array.shape[2])]
    return np.stack([np.array(plane.resize((width, height), method)) for plane in planes], axis=2).astype(array.dtype)
