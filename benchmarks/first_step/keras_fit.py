"""Keras 3 on JAX: `compile` and `fit` of one batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads its backend once, at import
import keras

from benchmarks.first_step import BLOCKS, CLASSES, LEARNING_RATE, MOMENTUM, SHAPES, STAGES

LAYOUT = "NHWC"
layers = keras.layers


def _unit(x: Any, filters: int, kernel: int, stride: int) -> Any:
    return layers.BatchNormalization()(layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x))


def _network(kind: str) -> keras.Model:
    shape = SHAPES[kind][1]
    x = start = keras.Input(shape if len(shape) == 1 else (*shape[1:], shape[0]))
    widths = [128, 64]
    if kind == "resnet20":
        x = layers.ReLU()(_unit(x, 16, 3, 1))
        for stage, (filters, first) in enumerate(STAGES):
            for block in range(BLOCKS):
                stride = first if block == 0 else 1
                y = _unit(layers.ReLU()(_unit(x, filters, 3, stride)), filters, 3, 1)
                short = x if stage == 0 or block > 0 else _unit(x, filters, 1, stride)
                x = layers.ReLU()(layers.Add()([y, short]))
        x, widths = layers.GlobalAveragePooling2D()(x), []
    elif kind == "lenet":
        for filters in (20, 50):
            x = layers.MaxPooling2D(2)(layers.Conv2D(filters, 5, activation="relu")(x))
        x, widths = layers.Flatten()(x), [500]
    for width in widths:
        x = layers.Dense(width, activation="relu")(x)
    return keras.Model(start, layers.Dense(CLASSES)(x))


def begin(kind: str, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """Return a function that trains one batch."""
    model = _network(kind)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM), loss=loss)
    return lambda: model.fit(x, y, batch_size=len(x), epochs=1, verbose=0)  # pyright: ignore[reportArgumentType]
