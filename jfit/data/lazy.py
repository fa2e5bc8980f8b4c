"""Arrays that stay in their file: rows are read when a batch asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np


class LazyRows:
    """A dataset of h5py as rows of float32.

    Args:
        source: something with a shape and a dtype whose rows are read by a slice or by increasing indices.

    Example:
        >>> LazyRows(np.arange(6.0).reshape(3, 2))[np.array([2, 0, 2])].tolist()
        [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]
    """

    def __init__(self, source: Any):
        self.source, self.shape, self.dtype = source, tuple(source.shape), np.dtype(np.float32)

    def __getitem__(self, pick: slice | np.ndarray) -> np.ndarray:
        if isinstance(pick, slice):
            return np.asarray(self.source[pick], np.float32)
        once, back = np.unique(pick, return_inverse=True)  # such files want increasing indices
        return np.asarray(self.source[once], np.float32)[back]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.source[:], dtype or np.float32)


def as_lazy(value: Any) -> LazyRows | None:
    """The rows of a dataset of h5py, None where it is something else."""
    return LazyRows(value) if type(value).__module__.startswith("h5py.") and hasattr(value, "chunks") else None
