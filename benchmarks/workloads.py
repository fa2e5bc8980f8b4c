"""The two networks that every leg trains, and their synthetic, learnable data.

Images are class prototypes in noise: a net that learns reaches a high training accuracy within one epoch, so a leg that
silently skips its update is caught.  Nothing here imports a framework: the process is pinned before any of them starts.
"""

from __future__ import annotations

import dataclasses

import numpy as np

CLASSES = 10
SIDE = 28
LEARNING_RATE = 0.02
MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Workload:
    """One network with its batch size and number of rows; `kind` is "mlp" or "lenet"."""

    name: str
    kind: str
    rows: int
    batch: int
    title: str

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Images (rows, 28, 28) float32 and labels (rows,) int32, the same for every leg and run."""
        rng = np.random.default_rng(0)
        prototypes = rng.standard_normal((CLASSES, SIDE, SIDE), dtype=np.float32)
        labels = rng.integers(0, CLASSES, self.rows, dtype=np.int32)
        images = rng.standard_normal((self.rows, SIDE, SIDE), dtype=np.float32)
        images *= 0.3
        images += 0.3 * prototypes[labels]
        return images, labels

    def shaped(self, layout: str) -> tuple[np.ndarray, np.ndarray]:
        """The arrays as rows (`mlp`), or with the channel where `layout` ("NCHW" or "NHWC") wants it."""
        images, labels = self.arrays()
        if self.kind == "mlp":
            return images.reshape(self.rows, SIDE * SIDE), labels
        shape = (self.rows, 1, SIDE, SIDE) if layout == "NCHW" else (self.rows, SIDE, SIDE, 1)
        return images.reshape(shape), labels

    def resized(self, rows: int) -> Workload:
        """The same workload on another number of rows."""
        return dataclasses.replace(self, rows=rows)


WORKLOADS = {
    "w1": Workload("w1", "mlp", 60_000, 64, "W1: MLP 784-128-64-10, batch 64"),
    "w2": Workload("w2", "lenet", 12_800, 128, "W2: LeNet 28x28, batch 128"),
}
