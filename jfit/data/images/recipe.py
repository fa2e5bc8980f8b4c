"""`Recipe`: settings of decoding and augmentation of an image; `decode_into` decodes an image file into a row of a batch.

The random numbers of a row are a function of (seed, epoch, row), so that the result does not depend on the process that decodes
it.  This file must not import JAX: worker processes import it, see `worker.py`.

    decode -> resize -> rotate, shear, scale -> border -> crop (center or random) -> colors -> mirror
        -> ((x - mean) · c + i) · scale / std
"""

from __future__ import annotations

import base64
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from jfit.checks import one_of
from jfit.data.images import colour
from jfit.data.images.codec import INTERPOLATIONS, open_image, pillow, pixels, to_image
from jfit.data.images.crops import Box, area_box, center_box, interpolation, short_size
from jfit.data.images.resample import reach, resample, warp
from jfit.formats.atomic import FormatError

MOST_SIDE = 1 << 17  # limit on a side in pixels after resizing: a very narrow image must not allocate all memory
_TRIES = 10  # number of random crops tried before falling back to a center crop


class Recipe(NamedTuple):
    """Settings of decoding and augmentation of an image.  The names are those of MXNet's ImageRecordIter.

    Attributes:
        data_shape: (channels, height, width) of the result; 1 channel: gray.
        channels_last: whether the result is (height, width, channels) instead.
        dtype: "float32", "uint8" or "int8"; integer results are rounded and clipped to the range of the dtype.
        resize: length of the shorter side after decoding; -1: keep the size.
        inter_method: interpolation: 0 nearest, 1 bilinear, 2 bicubic, 3 area, 4 Lanczos, 9 by size (bicubic if the image grows,
            area if it shrinks, else bilinear), 10 random.
        antialias: whether shrinking uses all pixels (Pillow's filters) instead of the nearest few, as MXNet does.
        draft: whether to decode a JPEG much larger than `resize` at 1/2, 1/4 or 1/8 of its size: faster, slightly different
            pixels.
        rand_crop: random crop instead of a center crop.
        random_resized_crop: crop of a random area and aspect ratio, resized to `data_shape`.
        min_random_area, max_random_area: range of the area of `random_resized_crop`, as a fraction of the image.
        min_aspect_ratio, max_aspect_ratio: range of its aspect ratio width / height, or, without `random_resized_crop`, of a
            random stretching of the image; if the minimum is None, the range is 1 ± max_aspect_ratio.
        min_crop_size, max_crop_size: range of the side of a random square crop, resized to `data_shape`; -1: none.
        min_random_scale, max_random_scale: range of a random factor of the image size before the crop.
        rotate, max_rotate_angle: angle in degrees; if it is not above 0, a random integer from ± max_rotate_angle.
        max_shear_ratio: s: (x, y) moves to (x + m y, y), m random from [-s, s].
        min_img_size, max_img_size: limits of the sides of an image after rotation, shear and scale.
        pad, fill_value: width in pixels and value of a border added before the crop.
        mirror, rand_mirror: horizontal flip of all images, or of each image with probability 1/2.
        brightness, contrast, saturation: s: random factor from [1 - s, 1 + s]; see `jfit.data.images.colour`.
        random_h, random_s, random_l: largest random integer that is added to, or subtracted from, hue, saturation and
            lightness; see `jfit.data.images.colour.shift_hls`.
        pca_noise: standard deviation of the PCA noise; see `jfit.data.images.colour.lighting`.
        mean, std, scale: normalization ((x - mean) · c + i) · scale / std; mean and std have one value per channel.
        mean_image: a mean per pixel (channels, H, W) instead of `mean`: the bytes of its float32 values as base64 text.
        max_random_contrast: s: c is random from [1 - s, 1 + s].
        max_random_illumination: s: i is random from [-s, s].

    Example:
        >>> Recipe((3, 224, 224), resize=256, rand_crop=True).inter_method
        1
    """

    data_shape: tuple[int, int, int]
    channels_last: bool = False
    dtype: str = "float32"
    resize: int = -1
    inter_method: int = 1
    antialias: bool = False
    draft: bool = False
    rand_crop: bool = False
    random_resized_crop: bool = False
    min_random_area: float = 1.0
    max_random_area: float = 1.0
    min_aspect_ratio: float | None = None
    max_aspect_ratio: float = 0.0
    min_crop_size: int = -1
    max_crop_size: int = -1
    min_random_scale: float = 1.0
    max_random_scale: float = 1.0
    rotate: int = -1
    max_rotate_angle: int = 0
    max_shear_ratio: float = 0.0
    min_img_size: float = 0.0
    max_img_size: float = 1e10
    pad: int = 0
    fill_value: int = 255
    mirror: bool = False
    rand_mirror: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    random_h: int = 0
    random_s: int = 0
    random_l: int = 0
    pca_noise: float = 0.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    scale: float = 1.0
    mean_image: str = ""
    max_random_contrast: float = 0.0
    max_random_illumination: float = 0.0


DTYPES = ("float32", "uint8", "int8")
_COLORS = ("brightness", "contrast", "saturation", "random_h", "random_s", "random_l", "pca_noise")
_SHAPES = (
    "min_random_scale", "max_random_scale", "rotate", "max_rotate_angle", "max_shear_ratio", "min_img_size", "max_img_size",
)  # fmt: skip


def check_recipe(recipe: Recipe) -> Recipe:
    """Check the fields of a recipe and return it.

    Raises:
        ValueError: a field is out of range; the message names it.

    Example:
        >>> check_recipe(Recipe((2, 8, 8)))
        Traceback (most recent call last):
        ...
        ValueError: data_shape is (2, 8, 8), expected (channels, height, width) with 1 or 3 channels
    """
    shape = tuple(recipe.data_shape)
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
        raise ValueError(f"data_shape is {shape}, expected (channels, height, width) with 1 or 3 channels")
    one_of(DTYPES, dtype=recipe.dtype)
    one_of((*INTERPOLATIONS, 9, 10), inter_method=recipe.inter_method)
    ranges = {
        "random areas": (recipe.min_random_area, recipe.max_random_area),
        "random scales": (recipe.min_random_scale, recipe.max_random_scale),
        "aspect ratios of random crops": _ratios(recipe),
        "crop sizes": (recipe.min_crop_size, recipe.max_crop_size) if recipe.max_crop_size > 0 else (1, 1),
    }
    for name, (low, high) in ranges.items():
        if not 0 < low <= high:
            raise ValueError(f"the range of {name} is {low} to {high}, expected 0 < minimum <= maximum.")
    return recipe


def random_numbers(seed: int, epoch: int, row: int) -> np.random.Generator:
    """Create the random generator for the augmentation of one row in one epoch.

    Example:
        >>> random_numbers(1, 2, 3).random() == random_numbers(1, 2, 3).random()
        True
    """
    return np.random.Generator(np.random.Philox(key=[seed & (1 << 64) - 1, epoch], counter=[0, 0, row, 0]))


def is_random(recipe: Recipe) -> bool:
    """Return whether a recipe has random augmentations."""
    fields = ("rand_crop", "random_resized_crop", "rand_mirror", *_COLORS)
    ranges = recipe.min_random_scale != recipe.max_random_scale or recipe.min_crop_size != recipe.max_crop_size
    fields += ("max_random_contrast", "max_random_illumination", "max_rotate_angle", "max_shear_ratio", "max_aspect_ratio")
    return ranges or recipe.inter_method == 10 or any(getattr(recipe, name) for name in fields)


def decode_into(
    recipe: Recipe,
    content: bytes,
    rng: np.random.Generator | None,
    out: np.ndarray,
    path: str = "image",
    where: str = "content",
) -> None:
    """Decode and augment an image file into an output array.

    Args:
        recipe: settings of decoding and augmentation.
        content: bytes of the image file.
        rng: random generator; None for a recipe without random augmentations.
        out: output array, (channels, H, W) or, with `channels_last`, (H, W, channels), dtype of the recipe.
        path: file that contains the bytes, for messages.
        where: their position in the file, for messages.

    Raises:
        FormatError: the content is not an image, or is damaged.
    """
    channels, height, width = recipe.data_shape
    image = open_image(content, path, where)
    mode = "L" if channels == 1 else "RGB"
    if recipe.draft and recipe.resize > 0:
        image.draft(mode, short_size(image.width, image.height, recipe.resize))
    sides = max(recipe.resize, width, height) / min(image.size) * recipe.max_random_scale * max(image.size)
    if sides > MOST_SIDE:
        problem = f"{image.width} x {image.height} pixels would grow to a side of {int(sides)}, expected at most {MOST_SIDE}"
        raise FormatError(path, where, problem, "crop the image: it is too narrow.")
    image = _geometry(recipe, pixels(image, mode, path, where), rng, width, height)
    mirrored = recipe.mirror or (recipe.rand_mirror and rng is not None and rng.random() < 0.5)
    if any(getattr(recipe, name) for name in _COLORS):
        planes = _color_jitter(recipe, np.asarray(image), rng)
    elif isinstance(image, np.ndarray):
        planes = [image[..., channel] for channel in range(channels)]
    else:
        planes = [np.asarray(plane) for plane in image.split()]
    if recipe.mean_image:
        means, recipe = _mean_image(recipe.mean_image).reshape(recipe.data_shape), recipe._replace(mean=(0.0,) * 3)
        planes = [plane - mean for plane, mean in zip(planes, means, strict=True)]
    if mirrored:
        planes = [plane[:, ::-1] for plane in planes]
    factors, offsets = _affine(recipe, rng)
    for channel, plane in enumerate(planes):
        target = out[..., channel] if recipe.channels_last else out[channel]
        _write(plane, factors[channel], offsets[channel], target)


def _geometry(recipe: Recipe, image: Any, rng: np.random.Generator | None, width: int, height: int) -> Any:
    """Resize and crop in one pass that computes only the pixels in the crop; returns a Pillow image or an array."""
    size: tuple[int, int] = image.size
    if recipe.resize > 0:
        size = short_size(*size, recipe.resize)
    if recipe.random_resized_crop:
        assert rng is not None
        image = _resample(recipe, rng, image, size, _random_box(recipe, rng, size), (width, height))
        return _transformed(recipe, rng, image) if _transforms(recipe) else image
    if _transforms(recipe):
        image = _transformed(recipe, rng, _resample(recipe, rng, image, size, (0, 0, *size), size))
        size = image.size
    if recipe.pad:
        image = _add_border(recipe, _resample(recipe, rng, image, size, (0, 0, size[0], size[1]), size))
        size = image.size
    if recipe.max_crop_size > 0:
        side = recipe.min_crop_size
        if rng is not None and recipe.max_crop_size > side:
            side = int(rng.integers(side, recipe.max_crop_size + 1))
        side = min(side, *size)
        return _resample(recipe, rng, image, size, _crop_box(recipe, rng, size, (side, side)), (width, height))
    # A too small image grows, keeping its aspect ratio: first to the height, then to the width.
    if size[1] < height:
        size = int(size[0] * height / size[1]), height
    if size[0] < width:
        size = width, int(size[1] * width / size[0])
    return _resample(recipe, rng, image, size, _crop_box(recipe, rng, size, (width, height)), (width, height))


def _transforms(recipe: Recipe) -> bool:
    stretches = _ratios(recipe) != (1.0, 1.0) and not recipe.random_resized_crop
    return stretches or any(getattr(recipe, name) != Recipe._field_defaults[name] for name in _SHAPES)


def _transformed(recipe: Recipe, rng: np.random.Generator | None, image: Any) -> Any:
    """Rotate, shear, scale and stretch an image around its center; returns a Pillow image."""
    array = np.atleast_3d(image)
    shear = _between(rng, -recipe.max_shear_ratio, recipe.max_shear_ratio)
    angle, limit = recipe.rotate, recipe.max_rotate_angle
    if angle <= 0:
        angle = int(rng.integers(-limit, limit + 1)) if limit and rng is not None else 0
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    scale = _between(rng, recipe.min_random_scale, recipe.max_random_scale)
    ratio = 1.0 if recipe.random_resized_crop else _between(rng, *_ratios(recipe))
    down = 2 * scale / (1 + ratio)
    across = ratio * down
    turn = [[down * cosine - shear * sine * across, down * sine + shear * cosine * across], [-sine * across, cosine * across]]
    linear = np.array(turn, np.float32)
    old = np.array(array.shape[1::-1], np.float32)
    new = np.clip(old * np.float32(scale), recipe.min_img_size, recipe.max_img_size).astype(np.float32)
    matrix = np.column_stack([linear, (new - linear @ old) / 2])
    size = max(1, int(new[0])), max(1, int(new[1]))
    drawn = int(rng.integers(5)) if recipe.inter_method == 10 and rng is not None else 1
    kind = interpolation(recipe.inter_method, array.shape[:2], size[::-1], drawn)  # type: ignore[arg-type]
    return to_image(warp(array, matrix, size, kind, recipe.fill_value))


def _crop_box(recipe: Recipe, rng: np.random.Generator | None, size: tuple[int, int], crop: tuple[int, int]) -> Box:
    return _anywhere(rng, size, crop) if recipe.rand_crop and rng is not None else center_box(size, crop)


def _anywhere(rng: np.random.Generator, size: tuple[int, int], crop: tuple[int, int]) -> Box:
    return int(rng.integers(size[0] - crop[0] + 1)), int(rng.integers(size[1] - crop[1] + 1)), *crop


def _random_box(recipe: Recipe, rng: np.random.Generator, size: tuple[int, int]) -> Box:
    low, high = _ratios(recipe)
    for _ in range(_TRIES):
        area = rng.uniform(recipe.min_random_area, recipe.max_random_area)
        crop = area_box(size, area, math.exp(rng.uniform(math.log(low), math.log(high))))
        if crop is not None and min(crop) > 0:
            return _anywhere(rng, size, crop)
    return center_box(size, (min(size), min(size)))


def _ratios(recipe: Recipe) -> tuple[float, float]:
    if recipe.min_aspect_ratio is not None:
        return recipe.min_aspect_ratio, recipe.max_aspect_ratio
    return 1.0 - recipe.max_aspect_ratio, 1.0 + recipe.max_aspect_ratio


def _resample(
    recipe: Recipe, rng: np.random.Generator | None, image: Any, size: tuple[int, int], box: Box, target: tuple[int, int]
) -> Any:
    """Resize `image` to `size`, crop it to `box` and resize that to `target`, computing only the pixels in the box."""
    x, y, width, height = box
    if size == image.size and (width, height) == target:
        return image if box == (0, 0, *size) else image.crop((x, y, x + width, y + height))
    drawn = int(rng.integers(5)) if recipe.inter_method == 10 and rng is not None else 1
    across, down = image.size[0] / size[0], image.size[1] / size[1]
    source = (x * across, y * down, min((x + width) * across, image.size[0]), min((y + height) * down, image.size[1]))
    before = round(source[3] - source[1]), round(source[2] - source[0])
    method = interpolation(recipe.inter_method, before, (target[1], target[0]), drawn)
    if not recipe.antialias:
        # Crop the Pillow image before it becomes an array: much of it may lie outside the box.
        region = reach(image.size, size, method, box) if size != image.size else (x, y, x + width, y + height)
        array = np.atleast_3d(image.crop(region))
        part = resample(array, size, method, box, (image.size, region[:2])) if size != image.size else array
        return part if (width, height) == target else resample(part, target, method)
    return image.resize(target, getattr(pillow().Resampling, INTERPOLATIONS[method]), box=source)


def _add_border(recipe: Recipe, image: Any) -> Any:
    image = to_image(image) if isinstance(image, np.ndarray) else image
    value = recipe.fill_value if image.mode == "L" else (recipe.fill_value,) * 3
    framed = pillow().new(image.mode, (image.width + 2 * recipe.pad, image.height + 2 * recipe.pad), value)
    framed.paste(image, (recipe.pad, recipe.pad))
    return framed


def _between(rng: np.random.Generator | None, low: float, high: float) -> float:
    return low if rng is None or low == high else float(rng.uniform(low, high))


def _color_jitter(recipe: Recipe, array: np.ndarray, rng: np.random.Generator | None) -> list[np.ndarray]:
    """Apply brightness, contrast and saturation in random order, then PCA noise; returns float32 channels in 0 .. 255."""
    assert rng is not None
    image = np.atleast_3d(np.asarray(array, np.float32))
    image = image if image.shape[2] == 3 else np.repeat(image, 3, axis=2)
    jitters = [("brightness", colour.brightness), ("contrast", colour.contrast), ("saturation", colour.saturation)]
    for number in rng.permutation(3):
        name, adjust = jitters[number]
        if getattr(recipe, name):
            image = adjust(image, 1.0 + rng.uniform(-getattr(recipe, name), getattr(recipe, name)))
    limits = np.array([recipe.random_h, recipe.random_l, recipe.random_s])
    if limits.any():
        image = colour.shift_hls(np.clip(image, 0.0, 255.0), (rng.uniform(-1.0, 1.0, 3) * limits).astype(int).tolist())
    if recipe.pca_noise:
        image = colour.lighting(image, rng.normal(0.0, recipe.pca_noise, 3))
    np.clip(image, 0.0, 255.0, out=image)
    return [image[..., channel] for channel in range(recipe.data_shape[0])]


def _affine(recipe: Recipe, rng: np.random.Generator | None) -> tuple[list[np.float32], list[np.float32]]:
    """Return (factors, offsets) per channel so that ((x - mean) · c + i) · scale / std = x · factor + offset, see `Recipe`."""
    shift, factor = 0.0, 1.0
    if rng is not None and (recipe.max_random_contrast or recipe.max_random_illumination):
        factor += rng.uniform(-recipe.max_random_contrast, recipe.max_random_contrast)
        shift = rng.uniform(-recipe.max_random_illumination, recipe.max_random_illumination)
    factors, offsets = [], []
    for mean, std in zip(recipe.mean, recipe.std, strict=True):
        factors.append(np.float32(factor * recipe.scale / std))
        offsets.append(np.float32((shift - mean * factor) * recipe.scale / std))
    return factors, offsets


@functools.lru_cache(maxsize=2)
def _mean_image(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


def _write(plane: np.ndarray, factor: np.float32, offset: np.float32, target: np.ndarray) -> None:
    if target.dtype != np.float32:
        limits = np.iinfo(target.dtype)
        if factor != 1 or offset != 0 or plane.dtype != np.uint8:
            plane = np.rint(plane * factor + offset)
        np.clip(plane, limits.min, limits.max, out=target, casting="unsafe")
        return
    if factor == 1:
        target[...] = plane
    else:
        np.multiply(plane, factor, out=target)
    if offset != 0:
        target += offset
