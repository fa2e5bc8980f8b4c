"""Memory for arrays that are read from files."""

import math
from typing import Any

import numpy as np

# A device on the host takes over memory that begins at such an address, anything else it copies.
ALIGNMENT = 64


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array of undefined values; a large one begins where a device can use it without a copy.

    Example:
      >>> room((1000, 1000), np.dtype("float32")).ctypes.data % ALIGNMENT
      0
    """
    count = math.prod(shape) * dtype.itemsize
    if count < 4096:
        return np.empty(shape, dtype)
    raw = np.empty(count + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count].view(dtype).reshape(shape)
