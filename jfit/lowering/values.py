"""Intermediate arrays of a graph with the static facts that lowering tracks: the batch rows and the memory layout."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from jfit.ops.rows import MaybeLayout

NHWC_TO_NCHW, NCHW_TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)  # axes for jnp.transpose


class Value(NamedTuple):
    """One intermediate array; `rows`: where its batch rows are; `channels_last`: stored NHWC although the graph has NCHW."""

    array: Any
    rows: MaybeLayout
    channels_last: bool = False

    def transposed(self) -> Value:
        """Return the value with the 4-D array in the other layout."""
        axes = NHWC_TO_NCHW if self.channels_last else NCHW_TO_NHWC
        return Value(jnp.transpose(self.array, axes), self.rows, not self.channels_last)

    def to_channels_first(self) -> Value:
        """Return the value with the array in the layout of the graph."""
        return self.transposed() if self.channels_last else self
