"""Group (c): Flax NNX and optax, with the documented training loop: nnx.jit step, nnx.Optimizer, nnx.MultiMetric."""

from __future__ import annotations

import functools as ft

import jax
import numpy as np
import optax
from flax import nnx
from jax.typing import ArrayLike

from benchmarks.workloads import CLASSES, LEARNING_RATE, MOMENTUM, SIDE, Workload


class Mlp(nnx.Module):
    """MLP with layers 784-128-64-10."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.fc1 = nnx.Linear(SIDE * SIDE, 128, rngs=rngs)
        self.fc2 = nnx.Linear(128, 64, rngs=rngs)
        self.fc3 = nnx.Linear(64, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.fc3(nnx.relu(self.fc2(nnx.relu(self.fc1(x)))))


class LeNet(nnx.Module):
    """Two 5x5 convolutions with max-pooling, two dense layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 20, (5, 5), padding="VALID", rngs=rngs)
        self.conv2 = nnx.Conv(20, 50, (5, 5), padding="VALID", rngs=rngs)
        self.pool = ft.partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2))
        self.fc1 = nnx.Linear(800, 500, rngs=rngs)
        self.fc2 = nnx.Linear(500, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.pool(nnx.relu(self.conv1(x)))
        x = self.pool(nnx.relu(self.conv2(x)))
        return self.fc2(nnx.relu(self.fc1(x.reshape(x.shape[0], -1))))


def _loss(model: nnx.Module, x: ArrayLike, y: ArrayLike) -> tuple[jax.Array, jax.Array]:
    logits = model(x)  # pyright: ignore[reportCallIssue]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits


@nnx.jit
def _train_step(model: nnx.Module, optimizer: nnx.Optimizer, metrics: nnx.MultiMetric, x: ArrayLike, y: ArrayLike) -> None:
    (loss, logits), grads = nnx.value_and_grad(_loss, has_aux=True)(model, x, y)
    metrics.update(loss=loss, logits=logits, labels=y)
    optimizer.update(model, grads)


class Nnx:
    """The leg: the documented loop; batches are NumPy rows indexed by a shuffled order."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.accuracy = workload, 0.0

    def setup(self) -> None:
        """Build, compile, train one epoch."""
        self._data = self.workload.shaped("NHWC")
        self._model = (Mlp if self.workload.kind == "mlp" else LeNet)(nnx.Rngs(0))
        self._optimizer = nnx.Optimizer(self._model, optax.sgd(LEARNING_RATE, MOMENTUM), wrt=nnx.Param)
        self._metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
        self._rng = np.random.default_rng(0)
        self.epoch()

    def epoch(self) -> int:
        """Train one shuffled epoch without an incomplete last batch (the documentation's drop_remainder=True)."""
        x, y = self._data
        size = self.workload.batch
        order = self._rng.permutation(self.workload.rows)
        batches = self.workload.rows // size
        for i in range(batches):
            rows = order[i * size : (i + 1) * size]
            _train_step(self._model, self._optimizer, self._metrics, x[rows], y[rows])
        self.accuracy = float(self._metrics.compute()["accuracy"])  # sync: the only read of the epoch
        self._metrics.reset()
        return batches * size


def make(workload: Workload, cores: int) -> Nnx:
    """Make the Flax NNX leg."""
    return Nnx(workload)
