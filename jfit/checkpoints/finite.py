"""Whether arrays on the host, and checkpoints, are free of nan and infinities."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.checkpoints.saved import ARRAYS, TENSORS, Saved, folders_of, is_checkpoint, newest, read, record_of
from jfit.formats.atomic import FormatError
from jfit.step.state import TrainState


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


def newest_finite(directory: str | os.PathLike[str]) -> tuple[Saved, bool]:
    """Read the newest checkpoint of a directory whose parameters and auxiliary states are finite.

    Args:
        directory: the directory, or the folder of one checkpoint, which is read whatever its values.

    Returns:
        (the checkpoint, whether newer ones are not finite), in this case with a warning.
    """
    saved = newest(directory, read)
    bad = _bad_names(saved)
    if not bad or is_checkpoint(Path(directory)):
        return saved, False
    what = f"resume: the checkpoint of step {saved.record['step']} in {directory} has nan or infinite values in {bad[0]}"
    for folder in reversed(folders_of(Path(directory))):
        with suppress(FormatError, OSError):
            if folder != saved.folder and record_of(folder)["meta"].get("finite", True):
                older = read(folder)
                if not _bad_names(older):
                    step = older.record["step"]
                    what = f"{what}; the run continues from step {step}, the newest one without"
                    remedy = "lower the learning rate, or pass nan='skip', or resume_with='clip_norm' and clip_norm="
                    warnings.warn(f"{what}. With the same arguments it gets there again: {remedy}", stacklevel=6)
                    return older, True
    warnings.warn(f"{what}, and no other one in this folder is finite; the run continues from it", stacklevel=6)
    return saved, False


def _bad_names(saved: Saved) -> list[str]:
    """Names of the parameters and auxiliary states of a checkpoint that are not finite."""
    arrays = saved.arrays[TENSORS]
    if ARRAYS in saved.record and not saved.meta.get("finite", True):  # split arrays are not read for this
        return ["a split array"]
    return [repr(name) for name, x in arrays.items() if name.startswith(("params/", "aux/")) and not _is_finite(x)]


def _is_finite(x: Any) -> bool:
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact) or isinstance(x, jax.ShapeDtypeStruct):
        return True
    if isinstance(x, jax.Array):  # perhaps split over the devices
        return bool(counters.read(jnp.isfinite(x).all()))  # sync: of a save
    with np.errstate(all="ignore"):
        total = np.sum(x)  # nan and infinities reach the sum, which reads the array once
        return bool(np.isfinite(total)) or bool(np.isfinite(x).all())
