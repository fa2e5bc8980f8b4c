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

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array with channels first, as in the graph."""
        s = self.array.shape
        return (s[0], s[3], s[1], s[2]) if self.channels_last else s

    def to_channels_first(self) -> Value:
        """Return the value with the array transposed to the layout of the graph."""
        return Value(jnp.transpose(self.array, NHWC_TO_NCHW), self.rows) if self.channels_last else self

    def to_channels_last(self) -> Value:
        """Return the value with the 4-D array transposed to NHWC."""
        return self if self.channels_last else Value(jnp.transpose(self.array, NCHW_TO_NHWC), self.rows, True)
