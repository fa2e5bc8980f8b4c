"""Color augmentations of (H, W, 3) float32 RGB images: pure functions, random numbers are passed as arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
GRAY = np.array([0.21, 0.72, 0.07], np.float32)
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_FROM_YIQ = np.array([[1.0, 0.956, 0.621], [1.0, -0.272, -0.647], [1.0, -1.107, 1.705]])
# Eigenvalues and eigenvectors of the covariance of ImageNet's RGB values (Krizhevsky et al. 2012, section 4.1).
EIGENVALUES = (55.46, 4.794, 1.148)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
IMAGENET_MEAN, IMAGENET_STD = (123.68, 116.28, 103.53), (58.395, 57.12, 57.375)


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    """x · factor.

    Example:
        >>> brightness(np.ones((1, 1, 3), "float32"), 2.0).ravel().tolist()
        [2.0, 2.0, 2.0]
    """
    return image * np.float32(factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """x · factor + (1 - factor) · mean(luma), where luma = 0.299 r + 0.587 g + 0.114 b and the mean is over the image.

    Example:
        >>> contrast(np.full((2, 2, 3), 8, "float32"), 0.5).ravel()[:3].round(3).tolist()
        [8.0, 8.0, 8.0]
    """
    mean = float((image.reshape(-1, 3).mean(axis=0, dtype=np.float64) * LUMA).sum())
    return image * np.float32(factor) + np.float32((1.0 - factor) * mean)


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
    """x · factor + (1 - factor) · luma, where luma = 0.299 r + 0.587 g + 0.114 b of each pixel.

    Example:
        >>> saturation(np.array([[[10, 20, 30]]], "float32"), 0.0).ravel().round(2)
        array([18.15, 18.15, 18.15], dtype=float32)
    """
    return image * np.float32(factor) + (image @ LUMA)[..., None] * np.float32(1.0 - factor)


def hue(image: np.ndarray, turn: float) -> np.ndarray:
    """x Tᵀ, T = Y⁻¹ R(π · turn) Y: rotate the hue by the angle π · turn in YIQ color space.

    Example:
        >>> hue(np.full((1, 1, 3), 10, "float32"), 0.3).ravel().round(1).tolist()
        [10.0, 10.0, 10.0]
    """
    u, w = math.cos(turn * math.pi), math.sin(turn * math.pi)
    rotation = np.array([[1.0, 0.0, 0.0], [0.0, u, -w], [0.0, w, u]])
    return image @ (_FROM_YIQ @ rotation @ _YIQ).T.astype(np.float32)


def lighting(
    image: np.ndarray,
    alphas: Sequence[float] | np.ndarray,
    values: Sequence[float] | np.ndarray = EIGENVALUES,
    vectors: Sequence[Sequence[float]] | np.ndarray = EIGENVECTORS,
) -> np.ndarray:
    """x + V (α · λ): add a random combination of the principal components of the RGB values (PCA noise of AlexNet).

    Args:
        image: (H, W, 3) float32.
        alphas: (3,) α, random numbers drawn by the caller.
        values: (3,) λ, eigenvalues of the covariance of the RGB values.
        vectors: (3, 3) V, eigenvectors as columns.

    Returns:
        (H, W, 3) float32.

    Example:
        >>> lighting(np.zeros((1, 1, 3), "float32"), (0.0, 0.0, 0.0)).ravel().tolist()
        [0.0, 0.0, 0.0]

    Source: Krizhevsky, Sutskever, Hinton 2012, "ImageNet classification with deep convolutional neural networks", 4.1.
    """
    return image + (np.asarray(vectors) * np.asarray(alphas) @ np.asarray(values)).astype(np.float32)


def shift_hls(image: np.ndarray, shifts: Sequence[int]) -> np.ndarray:
    """Add numbers to hue (0 .. 180, half degrees), lightness and saturation (0 .. 255), which are rounded and clipped.

    Example:
        >>> shift_hls(np.array([[[200, 100, 100]]], "float32"), (60, 0, 0)).ravel().tolist()
        [100.0, 200.0, 100.0]

    Source: OpenCV's documentation of color conversions, RGB to HLS.
    """
    rgb = np.rint(image).astype(np.float32) * np.float32(1 / 255)
    high, low = rgb.max(axis=-1), rgb.min(axis=-1)
    total, chroma = high + low, high - low
    step = np.where(chroma > 0, chroma, 1)
    differences = np.roll(rgb, -1, axis=-1) - np.roll(rgb, -2, axis=-1)  # g - b, b - r, r - g
    largest = rgb.argmax(axis=-1)
    hue = 30 * (np.take_along_axis(differences, largest[..., None], axis=-1)[..., 0] / step + 2 * largest) % 180
    saturation = chroma / np.where(chroma > 0, np.where(total < 1, total, 2 - total), 1)
    hls = np.rint(np.stack([hue, total * 127.5, saturation * 255], axis=-1)) + np.asarray(shifts)
    hue, lightness, saturation = np.moveaxis(np.clip(hls, 0, (180, 255, 255)) / (30, 255, 255), -1, 0)
    reach = saturation * np.minimum(lightness, 1 - lightness)
    places = (np.array([0, 4, 2]) + hue[..., None]) % 6  # of each channel on the hue circle
    wave = np.clip(2 * np.abs(places - 3) - 3, -1, 1)  # 1 where the channel is largest, -1 where it is smallest
    return np.rint(255 * (lightness[..., None] + reach[..., None] * wave)).astype(np.float32)


def gray(image: np.ndarray) -> np.ndarray:
    """Convert to gray: all three channels are 0.21 r + 0.72 g + 0.07 b.

    Example:
        >>> gray(np.array([[[100, 100, 100]]], "float32")).ravel().round(1).tolist()
        [100.0, 100.0, 100.0]
    """
    return image @ np.repeat(GRAY[:, None], 3, axis=1)


def normalize(image: np.ndarray, mean: np.ndarray | None, std: np.ndarray | None = None) -> np.ndarray:
    """Return (x - mean) / std; None means a mean of 0 or a std of 1.

    Example:
        >>> normalize(np.full((1, 1, 3), 4, "float32"), np.float32([1, 2, 3]), np.float32([2, 2, 2])).ravel().tolist()
        [1.5, 1.0, 0.5]
    """
    if mean is not None:
        image = image - mean
    return image if std is None else image / std
