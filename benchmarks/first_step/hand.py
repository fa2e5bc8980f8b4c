"""Hand-written JAX: functions of a dict of parameters, one jitted step that donates its state."""

from __future__ import annotations

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.first_step import BLOCKS, CLASSES, LEARNING_RATE, MOMENTUM, STAGES

LAYOUT = "NHWC"
Params = dict[str, jax.Array]


def _shapes(kind: str) -> dict[str, tuple[int, ...]]:
    if kind == "mlp":
        return {"fc1": (784, 128), "fc2": (128, 64), "fc3": (64, CLASSES)}
    if kind == "lenet":
        return {"conv1": (5, 5, 1, 20), "conv2": (5, 5, 20, 50), "fc1": (800, 500), "fc2": (500, CLASSES)}
    shapes: dict[str, tuple[int, ...]] = {"conv0": (3, 3, 3, 16)}
    before = 16
    for stage, (width, _) in enumerate(STAGES):
        for block in range(BLOCKS):
            name = f"stage{stage}_block{block}"
            shapes |= {f"{name}_a": (3, 3, before, width), f"{name}_b": (3, 3, width, width)}
            if before != width:
                shapes[f"{name}_short"] = (1, 1, before, width)
            before = width
    return {**shapes, "fc": (before, CLASSES)}


def _init(key: jax.Array, kind: str) -> Params:
    params: Params = {}
    for name, shape in _shapes(kind).items():
        key, sub = jax.random.split(key)
        params[f"{name}_w"] = jax.random.normal(sub, shape) * (2 / int(np.prod(shape[:-1]))) ** 0.5
        params[f"{name}_b"] = jnp.zeros(shape[-1])
        if kind == "resnet20" and len(shape) == 4:
            params[f"{name}_g"] = jnp.ones(shape[-1])
    return params


def _conv(x: jax.Array, w: jax.Array, stride: int = 1, padding: str = "SAME") -> jax.Array:
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _norm(x: jax.Array, p: Params, name: str) -> jax.Array:
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[f"{name}_g"] + p[f"{name}_b"]


def _forward(p: Params, x: jax.Array, kind: str) -> jax.Array:
    if kind == "resnet20":
        x = jax.nn.relu(_norm(_conv(x, p["conv0_w"]), p, "conv0"))
        for stage, (_, first) in enumerate(STAGES):
            for block in range(BLOCKS):
                name, stride = f"stage{stage}_block{block}", first if block == 0 else 1
                y = jax.nn.relu(_norm(_conv(x, p[f"{name}_a_w"], stride), p, f"{name}_a"))
                y = _norm(_conv(y, p[f"{name}_b_w"]), p, f"{name}_b")
                short = f"{name}_short"
                x = jax.nn.relu(y + (_norm(_conv(x, p[f"{short}_w"], stride), p, short) if f"{short}_w" in p else x))
        return x.mean((1, 2)) @ p["fc_w"] + p["fc_b"]
    if kind == "lenet":
        for name in ("conv1", "conv2"):
            x = jax.nn.relu(_conv(x, p[f"{name}_w"], padding="VALID") + p[f"{name}_b"])
            n, h, w, c = x.shape
            x = x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
        x = x.reshape(len(x), -1)
    layers = [name for name in _shapes(kind) if name.startswith("fc")]
    for name in layers[:-1]:
        x = jax.nn.relu(x @ p[f"{name}_w"] + p[f"{name}_b"])
    return x @ p[f"{layers[-1]}_w"] + p[f"{layers[-1]}_b"]


def begin(kind: str, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """Return a function that trains one batch and reads the loss."""

    @ft.partial(jax.jit, donate_argnums=0)
    def step(state: tuple[Params, Params], x: jax.Array, y: jax.Array) -> tuple[tuple[Params, Params], jax.Array]:
        params, momentum = state

        def loss(p: Params) -> jax.Array:
            return -jnp.take_along_axis(jax.nn.log_softmax(_forward(p, x, kind)), y[:, None], 1).mean()

        value, grads = jax.value_and_grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m - LEARNING_RATE * g, momentum, grads)
        return (jax.tree.map(jnp.add, params, momentum), momentum), value

    params = _init(jax.random.key(0), kind)
    state = [(params, jax.tree.map(jnp.zeros_like, params))]

    def train() -> float:
        state[0], value = step(state[0], x, y)
        return float(value)  # sync: the step is done

    return train
