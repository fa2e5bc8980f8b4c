"""The workloads of step_overhead: two networks and their synthetic training data.

Images are class prototypes plus noise: training reaches a high accuracy within one epoch, so a leg that silently skips its
updates is detected. Nothing here imports a framework, because the process must be pinned to its cores before.
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
    """A network (`kind` is "mlp" or "lenet") with its number of training rows and batch size."""

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
        """(images, labels) with images of shape (rows, 784) for `mlp`, else of the layout "NCHW" or "NHWC"."""
        images, labels = self.arrays()
        if self.kind == "mlp":
            return images.reshape(self.rows, SIDE * SIDE), labels
        shape = (self.rows, 1, SIDE, SIDE) if layout == "NCHW" else (self.rows, SIDE, SIDE, 1)
        return images.reshape(shape), labels

    def resized(self, rows: int) -> Workload:
        """The same workload with another number of rows."""
        return dataclasses.replace(self, rows=rows)


WORKLOADS = {
    "w1": Workload("w1", "mlp", 60_000, 64, "W1: MLP 784-128-64-10, batch 64"),
    "w2": Workload("w2", "lenet", 12_800, 128, "W2: LeNet 28x28, batch 128"),
}
