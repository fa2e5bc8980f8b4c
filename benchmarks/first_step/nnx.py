"""Flax NNX and optax, with the documented loop: nnx.jit step, nnx.Optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.typing import ArrayLike

from benchmarks.first_step import BLOCKS, CLASSES, LEARNING_RATE, MOMENTUM, STAGES
from benchmarks.peers.nnx import LeNet, Mlp

LAYOUT = "NHWC"


class Unit(nnx.Module):
    """Convolution and BatchNorm."""

    def __init__(self, before: int, filters: int, kernel: int, stride: int, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(before, filters, (kernel, kernel), strides=stride, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(filters, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class Block(nnx.Module):
    """Two units and the shortcut."""

    def __init__(self, before: int, filters: int, stride: int, rngs: nnx.Rngs) -> None:
        self.a, self.b = Unit(before, filters, 3, stride, rngs), Unit(filters, filters, 3, 1, rngs)
        self.short = Unit(before, filters, 1, stride, rngs) if before != filters else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.b(nnx.relu(self.a(x)))
        return nnx.relu(y + (x if self.short is None else self.short(x)))


class ResNet20(nnx.Module):
    """Nine blocks, mean over the image, a dense layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, before, blocks = Unit(3, 16, 3, 1, rngs), 16, []
        for filters, stride in STAGES:
            for block in range(BLOCKS):
                blocks.append(Block(before, filters, stride if block == 0 else 1, rngs))
                before = filters
        self.blocks = nnx.List(blocks)
        self.last = nnx.Linear(before, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((1, 2)))


def _loss(model: Any, x: ArrayLike, y: ArrayLike) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def _step(model: Any, optimizer: nnx.Optimizer, x: ArrayLike, y: ArrayLike) -> jax.Array:
    value, grads = nnx.value_and_grad(_loss)(model, x, y)
    optimizer.update(model, grads)
    return value


def begin(kind: str, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """Return a function that trains one batch and reads the loss."""
    model = {"mlp": Mlp, "lenet": LeNet, "resnet20": ResNet20}[kind](nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(LEARNING_RATE, MOMENTUM), wrt=nnx.Param)
    return lambda: float(_step(model, optimizer, x, y))  # sync: the step is done
