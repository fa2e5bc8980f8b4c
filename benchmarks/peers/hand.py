"""Group (a): an optimized hand-written JAX loop with one jitted step per batch.

Data, row order, step index and accuracy are on the device; the state is donated; the host reads one number per epoch.
The options select alternative implementations; the defaults are the fastest (see benchmarks/README.md).
"""

from __future__ import annotations

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax

from benchmarks.workloads import CLASSES, LEARNING_RATE, MOMENTUM, Workload

Params = dict[str, jax.Array]
LAYERS = {
    "mlp": {"fc1": (784, 128), "fc2": (128, 64), "fc3": (64, CLASSES)},
    "lenet": {"conv1": (5, 5, 1, 20), "conv2": (5, 5, 20, 50), "fc1": (800, 500), "fc2": (500, CLASSES)},
}
_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def init(key: jax.Array, kind: str) -> Params:
    """He-normal weights and zero biases."""
    params: Params = {}
    for name, shape in LAYERS[kind].items():
        key, sub = jr.split(key)
        fan_in = int(np.prod(shape[:-1]))
        params[f"{name}_w"] = jr.normal(sub, shape) * (2 / fan_in) ** 0.5
        params[f"{name}_b"] = jnp.zeros(shape[-1])
    return params


def _convolve(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=_DIMENSIONS)


@ft.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve_sliced(x: jax.Array, w: jax.Array, slices: int) -> jax.Array:
    """Convolution whose filter gradient is summed over `slices` slices of the batch."""
    return _convolve(x, w)


def _sliced_forward(x: jax.Array, w: jax.Array, slices: int) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(x, w), (x, w)


def _sliced_backward(slices: int, saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = saved
    (dx,) = jax.vjp(lambda v: _convolve(v, w), x)[1](g)
    # XLA:CPU computes a filter gradient several times faster over short batches than over one long one.
    parts = zip(jnp.split(x, slices), jnp.split(g, slices), strict=True)
    dw = sum(jax.vjp(lambda v, xs=xs: _convolve(xs, v), w)[1](gs)[0] for xs, gs in parts)
    return dx, jnp.asarray(dw)


_convolve_sliced.defvjp(_sliced_forward, _sliced_backward)


def _pool(x: jax.Array, how: str) -> jax.Array:
    if how == "window":
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def _dense(p: Params, name: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{name}_w"] + p[f"{name}_b"][None, :]


def forward(p: Params, x: jax.Array, kind: str, pool: str, filter_slices: int) -> jax.Array:
    """Logits (batch, 10)."""
    if kind == "mlp":
        x = jax.nn.relu(_dense(p, "fc1", x))
        x = jax.nn.relu(_dense(p, "fc2", x))
        return _dense(p, "fc3", x)
    for name in ("conv1", "conv2"):
        w = p[f"{name}_w"]
        x = _convolve_sliced(x, w, filter_slices) if filter_slices > 1 else _convolve(x, w)
        x = _pool(jax.nn.relu(x + p[f"{name}_b"][None, None, None, :]), pool)
    x = jax.nn.relu(_dense(p, "fc1", x.reshape(x.shape[0], -1)))
    return _dense(p, "fc2", x)


class Hand:
    """The leg: a donated state (params, momentum, batch index, correct predictions), one dispatch per `steps` batches."""

    def __init__(self, workload: Workload, feed: str, pool: str, filter_slices: int, steps: int) -> None:
        self.workload, self.feed, self.steps, self.accuracy = workload, feed, steps, 0.0
        self.batches = workload.rows // workload.batch
        self._logits = ft.partial(forward, kind=workload.kind, pool=pool, filter_slices=filter_slices)

    def _rows(self, index: jax.Array, data: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        size = self.workload.batch
        if self.feed == "permute":
            x, y = data
            return lax.dynamic_slice_in_dim(x, index * size, size), lax.dynamic_slice_in_dim(y, index * size, size)
        x, y, order = data
        rows = lax.dynamic_slice_in_dim(order, index * size, size)
        # The indices of a permutation are in bounds; without the default clamping W1 is 1.6 % faster.
        return x.at[rows].get(mode="promise_in_bounds"), y.at[rows].get(mode="promise_in_bounds")

    def _step(self, state: tuple[Any, ...], data: tuple[jax.Array, ...]) -> tuple[Any, ...]:
        params, momentum, index, correct = state
        x, y = self._rows(index, data)

        def loss(p: Params) -> tuple[jax.Array, jax.Array]:
            logits = self._logits(p, x)
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
            return -picked.mean(), logits

        (_, logits), grads = jax.value_and_grad(loss, has_aux=True)(params)
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m - LEARNING_RATE * g, momentum, grads)
        params = jax.tree.map(jnp.add, params, momentum)
        correct += (logits.argmax(1) == y).sum(dtype=jnp.int32)
        return params, momentum, index + 1, correct

    def _several(self, state: tuple[Any, ...], data: tuple[jax.Array, ...]) -> tuple[Any, ...]:
        """Up to `steps` steps, to the end of the epoch at most, as one dispatch."""
        left = jnp.minimum(self.steps, self.batches - state[2])
        return lax.fori_loop(0, left, lambda _, s: self._step(s, data), state)

    def setup(self) -> None:
        """Copy the data to the device, compile, train one epoch."""
        x, y = self.workload.shaped("NHWC")
        self._x, self._y = jax.device_put(x), jax.device_put(y)
        self._params = init(jr.key(0), self.workload.kind)
        self._momentum = jax.tree.map(jnp.zeros_like, self._params)
        self._step_program = jax.jit(self._step if self.steps == 1 else self._several, donate_argnums=0)
        self._permute = jax.jit(lambda x, y, order: (x[order], y[order]))
        self._rng = np.random.default_rng(0)
        self.epoch()

    def epoch(self) -> int:
        """Train one shuffled epoch; an incomplete last batch is dropped, so that one program suffices."""
        order = jnp.asarray(self._rng.permutation(self.workload.rows).astype(np.int32))
        data = self._permute(self._x, self._y, order) if self.feed == "permute" else (self._x, self._y, order)
        state = (self._params, self._momentum, jnp.int32(0), jnp.int32(0))
        step = self._step_program
        for _ in range(-(-self.batches // self.steps)):
            state = step(state, data)
        self._params, self._momentum, _, correct = state
        rows = self.batches * self.workload.batch
        self.accuracy = float(correct) / rows  # sync: the only read of the epoch
        return rows


def make(
    workload: Workload, cores: int, *, feed: str = "gather", pool: str = "reshape", filter_slices: int = 16, steps: int = 1
) -> Hand:
    """Make the hand-written leg.

    Args:
        workload: what to train.
        cores: unused.
        feed: "gather" (batches indexed by the shuffled order) or "permute" (data permuted once per epoch).
        pool: max pooling by "reshape" and max, or by reduce_"window".
        filter_slices: slices of the batch over which the filter gradient is summed.
        steps: training steps per dispatch.

    Returns:
        The leg.
    """
    return Hand(workload, feed, pool, filter_slices, steps)
