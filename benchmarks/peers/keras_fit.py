"""Keras 3 on JAX, with `compile` and `fit` as in its documentation."""

from __future__ import annotations

import math
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads its backend once, at import
import keras

from benchmarks.peers import Leg
from benchmarks.workloads import BLOCKS, CLASSES, MOMENTUM, STAGES, Workload

layers = keras.layers


def _unit(x: Any, filters: int, kernel: int, stride: int) -> Any:
    x = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def _resnet20(x: Any) -> Any:
    x = layers.ReLU()(_unit(x, 16, 3, 1))
    for stage, (filters, first) in enumerate(STAGES):
        for block in range(BLOCKS):
            stride = first if block == 0 else 1
            y = _unit(layers.ReLU()(_unit(x, filters, 3, stride)), filters, 3, 1)
            short = x if stage == 0 or block > 0 else _unit(x, filters, 1, stride)
            x = layers.ReLU()(layers.Add()([y, short]))
    return layers.GlobalAveragePooling2D()(x)


class Position(layers.Layer):
    """Adds a trained vector for each position."""

    def build(self, input_shape: Any) -> None:
        """Create the vectors."""
        self.table = self.add_weight(shape=input_shape[1:], initializer="random_normal")

    def call(self, x: Any) -> Any:
        """x + table."""
        return x + self.table


def _transformer(x: Any, w: Workload) -> Any:
    x = Position()(layers.Embedding(w.words, w.width)(x))
    for _ in range(w.layers):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        x = x + layers.MultiHeadAttention(w.heads, w.width // w.heads)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * w.width, activation=keras.activations.gelu)(layers.LayerNormalization(epsilon=1e-5)(x))
        x = x + layers.Dense(w.width)(y)
    return layers.LayerNormalization(epsilon=1e-5)(x)


def _network(w: Workload) -> keras.Model:
    if w.text:
        x = start = keras.Input(w.shape, dtype="int32")
        if w.kind == "transformer":
            return keras.Model(start, layers.Dense(w.words)(_transformer(x, w)))
        x = layers.Embedding(w.words, w.width)(x)
        for _ in range(w.layers):
            x = layers.LSTM(w.width, return_sequences=True)(x)
        return keras.Model(start, layers.Dense(w.words)(x))
    x = start = keras.Input(w.shape if len(w.shape) == 1 else (*w.shape[1:], w.shape[0]))
    widths: list[int] = {"mlp": [128, 64], "lenet": [500], "resnet20": []}[w.kind]
    if w.kind == "resnet20":
        x = _resnet20(x)
    elif w.kind == "lenet":
        for filters in (20, 50):
            x = layers.MaxPooling2D(2)(layers.Conv2D(filters, 5, activation="relu")(x))
        x = layers.Flatten()(x)
    for width in widths:
        x = layers.Dense(width, activation="relu")(x)
    return keras.Model(start, layers.Dense(CLASSES)(x))


def begin(workload: Workload) -> Leg:
    """Prepare the leg."""
    x, y = workload.arrays("NHWC")
    model, rate, optimizers = _network(workload), workload.learning_rate, keras.optimizers
    model.compile(
        optimizer=optimizers.Adam(rate, epsilon=1e-8) if workload.text else optimizers.SGD(rate, momentum=MOMENTUM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[] if workload.text else ["accuracy"],
    )

    def train() -> float:
        log = model.fit(x, y, batch_size=workload.batch, epochs=1, shuffle=True, verbose=0)  # pyright: ignore[reportArgumentType]
        return float(log.history["loss" if workload.text else "accuracy"][-1])

    return Leg(train, lambda: sum(math.prod(v.shape) for v in model.trainable_variables))
