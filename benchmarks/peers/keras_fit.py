"""Group (b): Keras 3 on JAX, with `compile` and `fit` as in its documentation."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads its backend once, at import
import keras

from benchmarks.workloads import CLASSES, LEARNING_RATE, MOMENTUM, SIDE, Workload


def _network(kind: str) -> keras.Model:
    layers = keras.layers
    if kind == "mlp":
        body = [layers.Dense(128, activation="relu"), layers.Dense(64, activation="relu")]
        return keras.Sequential([keras.Input((SIDE * SIDE,)), *body, layers.Dense(CLASSES)])
    body = [
        layers.Conv2D(20, 5, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(50, 5, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(500, activation="relu"),
    ]
    return keras.Sequential([keras.Input((SIDE, SIDE, 1)), *body, layers.Dense(CLASSES)])


class KerasFit:
    """The leg: one `fit(epochs=1)` per measured epoch; the model caches its compiled programs."""

    def __init__(self, workload: Workload, steps_per_execution: int) -> None:
        self.workload, self.steps, self.accuracy = workload, steps_per_execution, 0.0

    def setup(self) -> None:
        """Build, compile, train one epoch."""
        self._data = self.workload.shaped("NHWC")
        self._model = _network(self.workload.kind)
        self._model.compile(
            optimizer=keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=self.steps,
        )
        self.epoch()

    def epoch(self) -> int:
        """Train one shuffled epoch, including an incomplete last batch."""
        x, y = self._data
        log = self._model.fit(x, y, batch_size=self.workload.batch, epochs=1, shuffle=True, verbose=0)  # pyright: ignore[reportArgumentType]
        self.accuracy = float(log.history["accuracy"][-1])
        return self.workload.rows


def make(workload: Workload, cores: int, *, steps_per_execution: int) -> KerasFit:
    """Make the Keras leg with this `steps_per_execution`."""
    return KerasFit(workload, steps_per_execution)
