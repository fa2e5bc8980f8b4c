"""Small networks and data shared by the tests of `jfit.fit`, its loop, its data transfer and its resumption."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jfit

sym = jfit.sym


def mlp(classes: int = 3, hidden: int = 8, dropout: float = 0.0, batch_norm: bool = False) -> jfit.Symbol:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=hidden, name="fc1")
    if batch_norm:
        net = sym.BatchNorm(net, name="bn", fix_gamma=False)
    net = sym.Activation(net, act_type="relu", name="relu")
    if dropout:
        net = sym.Dropout(net, p=dropout, name="drop")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=classes, name="fc2"), name="softmax")


def convnet(classes: int = 3) -> jfit.Symbol:
    net = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    net = sym.Pooling(sym.Activation(net, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Flatten(net), num_hidden=classes, name="fc"), name="softmax")


def rowmixer(features: int = 4, classes: int = 3) -> jfit.Symbol:
    """A head that sees the batch through a sum over its rows: padding would change what every row gets."""
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=classes, name="fc")
    mixed = sym.broadcast_sub(net, sym.mean(net, axis=0, keepdims=True))
    return sym.SoftmaxOutput(mixed, name="softmax")


def blobs(rows: int = 50, shape: tuple[int, ...] = (4,), classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    x = rng.normal(size=(rows, *shape)) + y.reshape(-1, *[1] * len(shape)) * 1.5
    return x.astype(np.float32), y.astype(np.float32)


def train(net: Any = None, data: Any = None, **given: Any) -> jfit.Run:
    """`jfit.fit` with the small settings of these tests."""
    settings: dict[str, Any] = {"batch_size": 8, "num_epoch": 2, "progress": False}
    settings["optimizer_params"] = {"learning_rate": 0.1, "momentum": 0.9}
    settings |= given
    return jfit.fit(mlp() if net is None else net, blobs() if data is None else data, **settings)


class Killed(Exception):
    """Stands for a process that dies."""


def dies(at_step: int) -> jfit.callbacks.Callback:
    """A callback with which training dies after so many steps."""

    def on(event: Any) -> None:
        if event.step == at_step:
            raise Killed

    return jfit.callbacks.lambda_callback(every=at_step, step=on)


def bits(tree: Any) -> dict[str, bytes]:
    """Every leaf's bytes by path: equal means the same bits."""
    is_key = lambda x: isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    tree = jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


def same(one: jfit.Run, other: jfit.Run) -> bool:
    """Whether two runs hold the same bits: state, and losses and metrics of every epoch."""
    hidden = ("time", "compile_time", "data_time", "samples_per_second")
    rows = [[{k: v for k, v in row.items() if k not in hidden} for row in r.history.epochs] for r in (one, other)]
    return bits(one.state) == bits(other.state) and rows[0] == rows[1]
