"""Flax NNX and optax, with the documented training loop: nnx.jit step, nnx.Optimizer, nnx.MultiMetric."""

from __future__ import annotations

import functools as ft
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from benchmarks.peers import Leg
from benchmarks.workloads import BLOCKS, CLASSES, MOMENTUM, STAGES, Workload


class Mlp(nnx.Module):
    """MLP with layers 784-128-64-10."""

    def __init__(self, workload: Workload, rngs: nnx.Rngs) -> None:
        self.fc1 = nnx.Linear(workload.shape[0], 128, rngs=rngs)
        self.fc2 = nnx.Linear(128, 64, rngs=rngs)
        self.fc3 = nnx.Linear(64, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.fc3(nnx.relu(self.fc2(nnx.relu(self.fc1(x)))))


class LeNet(nnx.Module):
    """Two 5x5 convolutions with max-pooling, two dense layers."""

    def __init__(self, workload: Workload, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 20, (5, 5), padding="VALID", rngs=rngs)
        self.conv2 = nnx.Conv(20, 50, (5, 5), padding="VALID", rngs=rngs)
        self.pool = ft.partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2))
        self.fc1 = nnx.Linear(800, 500, rngs=rngs)
        self.fc2 = nnx.Linear(500, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.pool(nnx.relu(self.conv1(x)))
        x = self.pool(nnx.relu(self.conv2(x)))
        return self.fc2(nnx.relu(self.fc1(x.reshape(x.shape[0], -1))))


class Unit(nnx.Module):
    """Convolution and BatchNorm."""

    def __init__(self, before: int, filters: int, kernel: int, stride: int, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(before, filters, (kernel, kernel), strides=stride, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(filters, momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class Residual(nnx.Module):
    """Two units and the shortcut."""

    def __init__(self, before: int, filters: int, stride: int, rngs: nnx.Rngs) -> None:
        self.a, self.b = Unit(before, filters, 3, stride, rngs), Unit(filters, filters, 3, 1, rngs)
        self.short = Unit(before, filters, 1, stride, rngs) if before != filters else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.b(nnx.relu(self.a(x)))
        return nnx.relu(y + (x if self.short is None else self.short(x)))


class ResNet20(nnx.Module):
    """Nine blocks, mean over the image, a dense layer."""

    def __init__(self, workload: Workload, rngs: nnx.Rngs) -> None:
        self.first, before, blocks = Unit(workload.shape[0], 16, 3, 1, rngs), 16, []
        for filters, stride in STAGES:
            for block in range(BLOCKS):
                blocks.append(Residual(before, filters, stride if block == 0 else 1, rngs))
                before = filters
        self.blocks = nnx.List(blocks)
        self.last = nnx.Linear(before, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((1, 2)))


class Lstm(nnx.Module):
    """Embedding, LSTM layers, a dense layer."""

    def __init__(self, workload: Workload, rngs: nnx.Rngs) -> None:
        words, width = workload.words, workload.width
        self.embed = nnx.Embed(words, width, rngs=rngs)
        self.layers = nnx.List(nnx.RNN(nnx.OptimizedLSTMCell(width, width, rngs=rngs)) for _ in range(workload.layers))
        self.last = nnx.Linear(width, words, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Block(nnx.Module):
    """Attention and two dense layers, each after a LayerNorm."""

    def __init__(self, workload: Workload, rngs: nnx.Rngs) -> None:
        width = workload.width
        self.norm1, self.norm2 = (nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(workload.heads, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=False))


class Transformer(nnx.Module):
    """Embeddings, causal blocks, a dense layer."""

    def __init__(self, workload: Workload, rngs: nnx.Rngs) -> None:
        words, width = workload.words, workload.width
        self.embed, self.position = nnx.Embed(words, width, rngs=rngs), nnx.Embed(workload.shape[0], width, rngs=rngs)
        self.blocks = nnx.List(Block(workload, rngs) for _ in range(workload.layers))
        self.norm, self.last = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs), nnx.Linear(width, words, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(x)
        x = self.embed(x) + self.position.embedding
        for block in self.blocks:
            x = block(x, mask)
        return self.last(self.norm(x))


NETWORKS = {"mlp": Mlp, "lenet": LeNet, "resnet20": ResNet20, "lstm": Lstm, "transformer": Transformer}


def _loss(model: Any, x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    logits = model(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits


@ft.partial(nnx.jit, static_argnames="text")
def _train_step(model: Any, optimizer: nnx.Optimizer, metrics: nnx.MultiMetric, x: Any, y: Any, *, text: bool) -> None:
    (loss, logits), grads = nnx.value_and_grad(_loss, has_aux=True)(model, x, y)
    metrics.update(**({"loss": loss} if text else {"loss": loss, "logits": logits, "labels": y}))
    optimizer.update(model, grads)


def begin(workload: Workload) -> Leg:
    """Prepare the leg; batches are NumPy rows indexed by a shuffled order."""
    (x, y), rate, text = workload.arrays("NHWC"), workload.learning_rate, workload.text
    model = NETWORKS[workload.kind](workload, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(rate) if text else optax.sgd(rate, MOMENTUM), wrt=nnx.Param)
    accuracy: dict[str, Any] = {} if text else {"accuracy": nnx.metrics.Accuracy()}
    metrics, rng = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), **accuracy), np.random.default_rng(0)

    def train() -> float:
        metrics.reset()
        for rows in rng.permutation(workload.rows).reshape(-1, workload.batch):
            _train_step(model, optimizer, metrics, x[rows], y[rows], text=text)
        return float(metrics.compute()["loss" if text else "accuracy"])  # sync: the only read of the epoch

    return Leg(train, lambda: sum(v.size for v in jax.tree.leaves(nnx.state(model, nnx.Param))))
