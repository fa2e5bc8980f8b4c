"""The report of a dispatch: loss and learning rate of its last step."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array

from jfit.step import StepOut


def report(out: StepOut) -> Array:
    """Return (loss, learning rate) of a step as one array of shape (2,); an unknown learning rate is nan.

    One array and not two scalars, because each output of a program adds about a microsecond to a dispatch.
    """
    return jnp.stack([out.loss, jnp.nan if out.lr is None else out.lr]).astype(float)


def reported_lr(report: Any) -> dict[str, float]:
    """Return {"lr": learning rate}, or {} if it is unknown.

    Args:
        report: array (loss, learning rate) of a dispatch, on the host; None before the first dispatch.  A learning rate of nan
            is unknown.
    """
    return {} if report is None or math.isnan(report[1]) else {"lr": float(report[1])}
