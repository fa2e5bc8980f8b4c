"""Hand-written data-parallel training loops, to compare jfit's steps with: the same networks in plain JAX with `jax.pmap`.

A loop is written as one would without jfit: parameters replicated (`out_axes=None`), buffers donated, gradients summed by
one psum, SGD with momentum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.parallel import place
from jfit.parallel.devices import own_part

LEARNING_RATE, MOMENTUM = 0.01, 0.9
Params = dict[str, Array]


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5).astype(np.float32)


def _mlp_params() -> dict[str, np.ndarray]:
    rng, sizes = np.random.default_rng(0), (784, 512, 256, 10)
    weights = {f"w{i}": _normal(rng, b, a) for i, (a, b) in enumerate(itertools.pairwise(sizes))}
    return weights | {f"b{i}": np.zeros(size, np.float32) for i, size in enumerate(sizes[1:])}


def _mlp(params: Params, stats: Params, x: Array) -> tuple[Array, Params]:
    for i in range(2):
        x = jax.nn.relu(x @ params[f"w{i}"].T + params[f"b{i}"][None])
    return x @ params["w2"].T + params["b2"][None], stats


def _units() -> list[tuple[str, int, int, int, int]]:
    """(name, input channels, channels, kernel, stride) of the convolutions of ResNet-20."""
    units, width = [("stem", 3, 16, 3, 1)], 16
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(3):
            name, stride = f"s{stage}{block}", 2 if stage and block == 0 else 1
            units += [(f"{name}a", width, channels, 3, stride), (f"{name}b", channels, channels, 3, 1)]
            units += [(f"{name}c", width, channels, 1, stride)] if stride > 1 else []
            width = channels
    return units


def _resnet20_params() -> dict[str, np.ndarray]:
    rng, params = np.random.default_rng(0), {}
    for name, before, channels, kernel, _ in _units():
        params[name] = _normal(rng, channels, before, kernel, kernel)
        params[f"{name}_gamma"], params[f"{name}_beta"] = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    return params | {"w": _normal(rng, 10, 64), "b": np.zeros(10, np.float32)}


def _resnet20(params: Params, stats: Params, x: Array) -> tuple[Array, Params]:
    new, strides = {}, {unit[0]: unit[4] for unit in _units()}

    def unit(x: Array, name: str) -> Array:
        kernel, stride = params[name], strides[name]
        pad = kernel.shape[2] // 2
        x = lax.conv_general_dilated(x, kernel, (stride, stride), [(pad, pad), (pad, pad)])
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        for kind, value in (("mean", mean), ("var", var)):
            new[f"{name}_{kind}"] = 0.9 * stats[f"{name}_{kind}"] + 0.1 * lax.stop_gradient(value)
        scale = params[f"{name}_gamma"] * lax.rsqrt(var + 1e-3)
        mean, scale, shift = (v[None, :, None, None] for v in (mean, scale, params[f"{name}_beta"]))
        return (x - mean) * scale + shift

    x = jax.nn.relu(unit(x, "stem"))
    for stage in range(3):
        for block in range(3):
            name = f"s{stage}{block}"
            inner = unit(jax.nn.relu(unit(x, f"{name}a")), f"{name}b")
            x = jax.nn.relu(inner + (unit(x, f"{name}c") if f"{name}c" in params else x))
    return x.mean((2, 3)) @ params["w"].T + params["b"][None], new


def _resnet20_stats() -> dict[str, np.ndarray]:
    return {f"{u[0]}_{kind}": np.full(u[2], kind == "var", np.float32) for u in _units() for kind in ("mean", "var")}


NETS: Mapping[str, Any] = {
    "mlp": (_mlp, _mlp_params, dict),
    "resnet20": (_resnet20, _resnet20_params, _resnet20_stats),
}


def pmap_loop(name: str, rows: Mapping[str, np.ndarray], devices: Sequence[Any]) -> Callable[[int], Any] | None:
    """Make a hand-written training loop.

    Args:
        name: model, a key of `NETS`.
        rows: one global batch: "data" and "softmax_label".
        devices: list of `jax.Device`, in a job of several processes those of all.

    Returns:
        `train(steps)`, which runs that many steps on the batch and waits for them; None if the model has no loop.

    Example:
        >>> pmap_loop("lstm", {}, jax.devices()) is None
        True
    """
    if name not in NETS:
        return None
    forward, make, make_stats = NETS[name]
    count, axis = len(devices), "devices" if len(devices) > 1 else None

    def step(state: Any, batch: tuple[Array, Array]) -> tuple[Any, Array]:
        params, momentum, stats = state
        x, label = batch
        size = label.shape[0] * count

        def loss_of(params: Params) -> tuple[Array, Params]:
            logits, new = forward(params, stats, x)
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), label.astype(jnp.int32)[:, None], 1)
            return -picked.sum() / size, new

        (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        if axis is not None:
            (gradients, loss), stats = lax.psum((gradients, loss), axis), lax.pmean(stats, axis)
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m - LEARNING_RATE * g, momentum, gradients)
        return (jax.tree.map(jnp.add, params, momentum), momentum, stats), loss

    if axis is None:
        run = jax.jit(step, donate_argnums=0)
    else:
        run = jax.pmap(step, axis, in_axes=(None, 0), out_axes=None, donate_argnums=0, devices=devices)
    params = make()
    # on the devices of this process, in the sharding of the results: arrays that a job of several processes reshards are lost
    state = place((params, jax.tree.map(np.zeros_like, params), make_stats()), devices)
    own = own_part(devices)

    def split(x: np.ndarray) -> np.ndarray:
        return x if count == 1 else x.reshape((count, -1, *x.shape[1:]))[own]

    def train(steps: int) -> Any:
        nonlocal state
        queue: list[Any] = []
        for _ in range(steps):
            state, loss = run(state, (split(rows["data"]), split(rows["softmax_label"])))
            queue.append(loss)
            if len(queue) > 8:
                queue.pop(0).block_until_ready()  # more than 16 queued calls abort emulated devices
        return jax.block_until_ready(queue[-1])

    return train
