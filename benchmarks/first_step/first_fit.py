"""A first `jfit.fit` of an MLP 64-64-10 against the same training by hand in JAX and optax, for `benchmarks.start --fits`.

Two epochs of 4,096 rows at batch size 64, a new order in each, SGD with momentum 0.9, cross entropy, loss and accuracy of each
epoch, and an evaluation of 1,000 rows after it.  Steps: import; "first fit"; "fit again", the same call; "with a callback" of
every step.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

import numpy as np

from benchmarks.first_step import measure

ROWS, EVAL_ROWS, BATCH, EPOCHS = 4096, 1000, 64, 2
STEPS = ("import", "first fit", "fit again", "with a callback")


def _data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    return rng.standard_normal((rows, 64), dtype=np.float32), rng.integers(0, 10, rows, dtype=np.int32)


def _params() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"w0": (64, 64), "b0": (64,), "w1": (64, 10), "b1": (10,)}
    return {name: (rng.standard_normal(size) * 0.1).astype(np.float32) for name, size in sizes.items()}


def _apply(params: Any, x: Any) -> Any:
    jax = sys.modules["jax"]
    return jax.nn.relu(x @ params["w0"] + params["b0"]) @ params["w1"] + params["b1"]


def _by_jfit(each_step: bool) -> None:
    jfit = sys.modules["jfit"]
    every = jfit.callbacks.Callback(on=lambda event, state: None, events=("step",), every=1)
    rule, callbacks = {"learning_rate": 0.05, "momentum": 0.9}, [every] if each_step else []
    options = {"params": _params(), "loss": "cross_entropy", "eval_metric": "acc", "batch_size": BATCH, "num_epoch": EPOCHS}
    options |= {"eval_data": _data(EVAL_ROWS), "optimizer_params": rule, "progress": False, "callbacks": callbacks}
    jfit.fit(_apply, _data(ROWS), **options)


def _by_hand(each_step: bool) -> None:
    jax, optax = sys.modules["jax"], sys.modules["optax"]
    jnp, rule = jax.numpy, optax.sgd(0.05, momentum=0.9)

    def both(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
        output = _apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(output, y).mean(), (output.argmax(-1) == y).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Any, state: Any, sums: Any, data: Any, order: Any, i: Any) -> Any:
        x, y = (array[order[i]] for array in data)
        (loss, accuracy), gradients = jax.value_and_grad(both, has_aux=True)(params, x, y)
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, sums + jnp.stack([loss, accuracy])

    params = jax.tree.map(jnp.asarray, _params())
    state, data, held_out = rule.init(params), [*map(jnp.asarray, _data(ROWS))], [*map(jnp.asarray, _data(EVAL_ROWS))]
    evaluate, rng, seen = jax.jit(both), np.random.default_rng(0), []
    for _ in range(EPOCHS):
        order, sums = jnp.asarray(rng.permutation(ROWS).reshape(-1, BATCH).astype(np.int32)), jnp.zeros(2)
        for i in range(len(order)):
            params, state, sums = step(params, state, sums, data, order, i)
            seen += [i] if each_step else []
        np.asarray(sums)  # sync: once per epoch
        jax.device_get(evaluate(params, *held_out))  # sync: once per epoch


def main(side: str) -> None:
    """Measure one side, "jfit" or "hand", in this process."""
    fit = {"jfit": _by_jfit, "hand": _by_hand}[side]
    names = ("jax", "jfit.fit", "jfit.callbacks") if side == "jfit" else ("jax", "optax")
    steps = [lambda: [importlib.import_module(name) for name in names], *[functools.partial(fit, n == 2) for n in range(3)]]
    measure(dict(zip(STEPS, steps, strict=True)))
    sys.stdout.flush()
    os._exit(0)  # as in `benchmarks.first_step.main`
