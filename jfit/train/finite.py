"""Whether arrays on the host, and checkpoints, are free of nan and infinities."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.formats.atomic import FormatError
from jfit.step.state import TrainState
from jfit.train.saved import folders_of, record_of


def is_finite(tree: Any) -> bool:
    """Return whether all floating-point arrays of a pytree of NumPy arrays are free of nan and infinities.

    Of a `TrainState`, only parameters and auxiliary states are looked at: optimizers may use infinity as an initial value.

    Example:
        >>> is_finite({"w": np.ones(3), "n": 3}), is_finite([np.float32("nan")])
        (True, False)
    """
    if isinstance(tree, TrainState):
        tree = tree.params, tree.aux
    return all(_is_finite(x) for x in jax.tree.leaves(tree))


def last_finite(directory: str | os.PathLike[str]) -> list[int]:
    """Return a list of the step of the last checkpoint whose meta has no "finite": False; empty if there is none."""
    for folder in reversed(folders_of(Path(directory))):
        with suppress(FormatError, OSError):
            record = record_of(folder)
            if record["meta"].get("finite", True):
                return [record["step"]]
    return []


def _is_finite(x: Any) -> bool:
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
        return True
    with np.errstate(all="ignore"):
        total = np.sum(x)  # nan and infinities reach the sum, which reads the array once
        return bool(np.isfinite(total)) or bool(np.isfinite(x).all())
