"""Resize images in NumPy as OpenCV does: a new pixel is a weighted sum of a few old pixels along each axis.

The center of new pixel i has the old coordinate c = (i + 1/2) · old / new - 1/2.  Shrinking does not antialias, except with
`AREA`; Pillow's filters (`Recipe.antialias`) do.

Source: OpenCV's documentation of `resize`; Keys 1981, "Cubic convolution interpolation" (a = -3/4); Lanczos with 8 taps.
"""

from __future__ import annotations

import functools

import numpy as np

NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)
_MIXED = 13
Box = tuple[int, int, int, int]
_SHARPNESS = -0.75  # a of the cubic kernel
_DUST = 1e-3  # AREA ignores a smaller overlap with an old pixel, as OpenCV does


def resample(
    image: np.ndarray,
    size: tuple[int, int],
    kind: int,
    box: Box | None = None,
    cut: tuple[tuple[int, int], tuple[int, int]] | None = None,
) -> np.ndarray:
    """Resize an image and crop the result to a box, computing only the pixels in the box.

    Args:
        image: (H, W, channels) uint8 or float32.
        size: (width, height) of the whole image after resizing.
        kind: 0 nearest, 1 linear, 2 cubic, 3 area, 4 Lanczos.
        box: (x, y, width, height) in the resized image; None: all of it.
        cut: if `image` is a crop of a larger image: ((width, height) of the larger image, (x, y) of the crop in it); the crop
            must contain the region returned by `reach`.

    Returns:
        (height, width, channels) of the box, dtype of `image`.

    Example:
        >>> resample(np.array([[[0], [100]]], "uint8"), (4, 1), LINEAR)[0, :, 0].tolist()
        [0, 25, 75, 100]
    """
    height, width, channels = image.shape
    old, (left, top) = cut or ((width, height), (0, 0))
    x, y, across, down = box or (0, 0, *size)
    kind = _kind(old, size, kind)
    rows, row_weights = (part[y : y + down] for part in _taps(old[1], size[1], kind))
    columns, column_weights = (part[x : x + across] for part in _taps(old[0], size[0], kind))
    if cut is not None:
        rows, columns = rows - top, columns - left
    if kind == NEAREST:
        return image[rows[:, 0]][:, columns[:, 0]]
    lines = _mixed(image.reshape(height, width * channels), rows, row_weights[:, :, None], axis=0)  # (down, W · channels)
    places = (columns[:, :, None] * channels + np.arange(channels)).transpose(0, 2, 1).reshape(across * channels, -1)
    out = _mixed(lines, places, np.repeat(column_weights, channels, axis=0), axis=1)  # (down, across · channels)
    if image.dtype == np.uint8:
        whole = old[0] % size[0] == old[1] % size[1] == 0
        # For whole factors OpenCV computes halves exactly, in integers, and rounds them up.
        up = whole and (kind in (LINEAR, _MIXED) or (kind == AREA and old == (2 * size[0], 2 * size[1])))
        out = np.floor(out + np.float32(0.5)) if up else np.rint(out)
        if kind in (CUBIC, LANCZOS):  # negative weights can leave 0..255
            np.clip(out, 0, 255, out=out)
    return out.astype(image.dtype, copy=False).reshape(down, across, channels)


def reach(old: tuple[int, int], size: tuple[int, int], kind: int, box: Box) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of the region of the old image that a box of the resized image depends on.

    Example:
        >>> reach((10, 10), (5, 5), LINEAR, (1, 0, 2, 5))
        (2, 0, 6, 10)
    """
    x, y, across, down = box
    kind = _kind(old, size, kind)
    columns, rows = _taps(old[0], size[0], kind)[0][x : x + across], _taps(old[1], size[1], kind)[0][y : y + down]
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def _kind(old: tuple[int, int], size: tuple[int, int], kind: int) -> int:
    """Return the interpolation to use: `kind`, but OpenCV's variant of linear instead of AREA if an axis grows."""
    return _MIXED if kind == AREA and (size[0] > old[0] or size[1] > old[1]) else kind


def _mixed(image: np.ndarray, places: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    """Return Σₖ weights[:, k] · image[places[:, k]] along an axis, float32."""
    if places.shape[1] == 2:  # a + (b - a) · w has one product less
        out = image.take(places[:, 0], axis).astype(np.float32, copy=False)
        step = image.take(places[:, 1], axis) - out
        step *= weights[:, 1]
        out += step
        return out
    out = image.take(places[:, 0], axis) * weights[:, 0]
    for k in range(1, places.shape[1]):
        out += image.take(places[:, k], axis) * weights[:, k]
    return out


@functools.lru_cache(maxsize=256)
def _taps(old: int, new: int, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (indices, weights float32), (new, taps) each: a new pixel is the sum of weights * old[indices]."""
    scale, number = old / new, np.arange(new)
    if kind == NEAREST:
        places, weights = np.floor(number * scale)[:, None], np.ones((new, 1))
    elif kind == AREA:
        places, weights = _areas(old, new)
    elif kind == _MIXED:
        first = np.floor(number * scale)
        part = (number + 1) - (first + 1) / scale
        part = np.where(part <= 0, 0.0, part - np.floor(part))
        places, weights = first[:, None] + [0, 1], np.stack([1 - part, part], axis=1)
    else:
        centre = (number + 0.5) * scale - 0.5
        steps, weights = _kernel(kind, centre - np.floor(centre))
        places = np.floor(centre)[:, None] + steps
    return np.clip(places, 0, old - 1).astype(np.intp), weights.astype(np.float32)


def _kernel(kind: int, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets of the taps, weights (n, taps)) for n positions that are `part` of a pixel behind a pixel's center."""
    taps, function = {LINEAR: (2, _linear), CUBIC: (4, _cubic), LANCZOS: (8, _lanczos)}[kind]
    steps = np.arange(1 - taps // 2, 1 + taps // 2)
    weights = function(np.abs(steps - part[:, None]))
    return steps, weights / weights.sum(axis=1, keepdims=True)


_WHOLE, _PARTS = 1024, 32  # OpenCV's fixed-point coordinates of a transformed pixel, and the parts of a pixel that it resolves


def warp(image: np.ndarray, matrix: np.ndarray, size: tuple[int, int], kind: int, fill: int) -> np.ndarray:
    """Transform an image: the pixel at (x, y) moves to matrix @ (x, y, 1).

    Args:
        image: (H, W, channels) uint8.
        matrix: (2, 3), invertible in its first two columns.
        size: (width, height) of the result.
        kind: 0 nearest, 1 linear, 2 cubic, 3 as 1, 4 Lanczos.
        fill: value outside of the image.

    Returns:
        (height, width, channels) uint8.

    Example:
        >>> warp(np.array([[[0], [100]]], "uint8"), np.array([[1, 0, 0.5], [0, 1, 0]]), (3, 1), LINEAR, 20)[0, :, 0].tolist()
        [10, 50, 60]

    Source: OpenCV's documentation of `warpAffine`.
    """
    height, width, channels = image.shape
    (a, b, e), (c, d, f) = np.asarray(matrix, np.float64)
    inverse = np.array([[d, -b], [-c, a]]) / (a * d - b * c)
    start = -inverse @ (e, f)
    across = np.rint(inverse[:, :1] * np.arange(size[0]) * _WHOLE)
    down = np.rint((inverse[:, 1:] * np.arange(size[1]) + start[:, None]) * _WHOLE)
    at = (down[:, :, None] + across[:, None, :]).astype(np.int64)  # (x and y, height, width)
    if kind == NEAREST:
        at, part, steps, weights = (at + _WHOLE // 2) // _WHOLE, np.zeros_like(at), np.zeros(1, int), np.ones((1, 1))
    else:
        at, part = np.divmod((at + _WHOLE // _PARTS // 2) // (_WHOLE // _PARTS), _PARTS)
        steps, weights = _kernel(LINEAR if kind == AREA else kind, np.arange(_PARTS) / _PARTS)
    edge = len(steps)
    framed = np.pad(image, ((edge, edge), (edge, edge), (0, 0)), constant_values=fill)
    out = np.full((*at.shape[1:], channels), 0.5, np.float32)  # halves are rounded up
    for i, row_step in enumerate(steps):
        rows = np.clip(at[1] + row_step, -edge, height + edge - 1) + edge
        for j, step in enumerate(steps):
            columns = np.clip(at[0] + step, -edge, width + edge - 1) + edge
            out += framed[rows, columns] * (weights[part[1], i] * weights[part[0], j]).astype(np.float32)[..., None]
    return np.clip(np.floor(out), 0, 255).astype(np.uint8)


def _areas(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Return old indices and weights for AREA: the overlap of each old pixel with a new one."""
    scale = old / new
    low = np.arange(new)[:, None] * scale
    high = np.minimum(low + scale, old)
    places = np.floor(low) + np.arange(int(np.ceil(scale)) + 1)
    covered = np.minimum(places + 1, high) - np.maximum(places, low)
    covered[covered < _DUST] = 0.0
    return places, covered / covered.sum(axis=1, keepdims=True)


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, 1.0 - distance)


def _cubic(distance: np.ndarray) -> np.ndarray:
    near = ((_SHARPNESS + 2) * distance - (_SHARPNESS + 3)) * distance**2 + 1
    far = _SHARPNESS * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _lanczos(distance: np.ndarray) -> np.ndarray:
    return np.where(distance < 4, np.sinc(distance) * np.sinc(distance / 4), 0.0)
