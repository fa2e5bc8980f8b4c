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

    def __init__(self, before: int, filters: int, kernel: int, stride: int, rngs: nnx.Rngs, dtype: str = "float32") -> None:
        self.conv = nnx.Conv(before, filters, (kernel, kernel), strides=stride, use_bias=False, dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(filters, momentum=0.9, dtype=dtype, rngs=rngs)

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


class Bottleneck(nnx.Module):
    """Three units and the shortcut."""

    def __init__(self, before: int, filters: int, stride: int, rngs: nnx.Rngs, dtype: str) -> None:
        self.a, self.b = Unit(before, filters, 1, 1, rngs, dtype), Unit(filters, filters, 3, stride, rngs, dtype)
        self.c = Unit(filters, 4 * filters, 1, 1, rngs, dtype)
        self.short = Unit(before, 4 * filters, 1, stride, rngs, dtype) if before != 4 * filters else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.c(nnx.relu(self.b(nnx.relu(self.a(x)))))
        return nnx.relu(y + (x if self.short is None else self.short(x)))


class ResNet50(nnx.Module):
    """Stem, max-pool, bottlenecks, mean over the image, a dense layer."""

    def __init__(self, workload: Workload, rngs: nnx.Rngs) -> None:
        self.first, before, blocks = Unit(workload.shape[0], 64, 7, 2, rngs, workload.dtype), 64, []
        for stage, (filters, count) in enumerate(workload.bottlenecks):
            for block in range(count):
                blocks.append(Bottleneck(before, filters, 2 if stage and not block else 1, rngs, workload.dtype))
                before = 4 * filters
        self.blocks = nnx.List(blocks)
        self.last = nnx.Linear(before, CLASSES, dtype=workload.dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.first(x)), window_shape=(2, 2), strides=(2, 2))
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
        width, options = workload.width, {"dtype": workload.dtype, "rngs": rngs}
        self.norm1, self.norm2 = (nnx.LayerNorm(width, epsilon=1e-5, **options) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(workload.heads, width, decode=False, **options)
        self.up, self.down = nnx.Linear(width, 4 * width, **options), nnx.Linear(4 * width, width, **options)

    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=False))


class Transformer(nnx.Module):
    """Embeddings, blocks, a dense layer."""

    def __init__(self, workload: Workload, rngs: nnx.Rngs) -> None:
        words, width, self.causal = workload.words, workload.width, workload.causal
        options: dict[str, Any] = {"dtype": workload.dtype, "rngs": rngs}
        small = {"embedding_init": nnx.initializers.normal(0.02)} if workload.tied else {}
        self.embed, self.position = nnx.Embed(words, width, **small, **options), nnx.Embed(workload.shape[0], width, **options)
        self.blocks = nnx.List(Block(workload, rngs) for _ in range(workload.layers))
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, **options)
        self.last = None if workload.tied else nnx.Linear(width, words, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(x) if self.causal else None
        x = self.embed(x) + self.position.embedding.astype(self.position.dtype)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return self.embed.attend(x) if self.last is None else self.last(x)


NETWORKS = {
    "mlp": Mlp,
    "lenet": LeNet,
    "resnet20": ResNet20,
    "resnet50": ResNet50,
    "lstm": Lstm,
    "transformer": Transformer,
}


def _loss(model: Any, x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    logits = model(x).astype("float32")
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits


@ft.partial(nnx.jit, static_argnames="text")
def _train_step(model: Any, optimizer: nnx.Optimizer, metrics: nnx.MultiMetric, x: Any, y: Any, *, text: bool) -> None:
    (loss, logits), grads = nnx.value_and_grad(_loss, has_aux=True)(model, x, y)
    metrics.update(**({"loss": loss} if text else {"loss": loss, "logits": logits, "labels": y}))
    optimizer.update(model, grads)


def begin(workload: Workload, *, on_device: bool = False) -> Leg:
    """Prepare the leg; batches are rows, of NumPy or (`on_device`) of JAX arrays, indexed by a shuffled order."""
    (x, y), rate, text = workload.arrays("NHWC"), workload.learning_rate, workload.text
    if on_device:
        x, y = jax.device_put((x, y))
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
