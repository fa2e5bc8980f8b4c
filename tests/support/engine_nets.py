"""Small networks and batches shared by the tests of the train step and of the devices."""

import functools

import jax
import numpy as np

import jfit
from jfit import sym
from jfit.data import Batch

CLASSES = 3


def dense(data: sym.Symbol, size: int, name: str) -> sym.Symbol:
    return sym.FullyConnected(data, num_hidden=size, name=name)


def headed(net: sym.Symbol) -> jfit.Model:
    return jfit.lower(sym.SoftmaxOutput(dense(net, CLASSES, "fc2"), name="softmax"))


@functools.cache
def mlp(dropout: float = 0.0) -> jfit.Model:
    """4 inputs, 5 hidden units, 3 classes."""
    net = sym.Activation(dense(sym.Variable("data"), 5, "fc1"), act_type="tanh")
    return headed(sym.Dropout(net, p=dropout, name="drop") if dropout else net)


@functools.cache
def batch_norm_net(momentum: float = 0.5) -> jfit.Model:
    """A batch norm over 4 features, then 3 classes."""
    return headed(sym.BatchNorm(sym.Variable("data"), fix_gamma=False, momentum=momentum, eps=1e-3, name="bn"))


@functools.cache
def conv_net() -> jfit.Model:
    """Convolution, pooling and classes over (1, 6, 6) images; no batch statistics."""
    net = sym.Convolution(sym.Variable("data"), num_filter=2, kernel=(3, 3), name="conv")
    net = sym.Pooling(sym.Activation(net, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    return headed(sym.Flatten(net))


def batch_of(rows: int, shape: tuple[int, ...] = (4,), seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(rows, *shape)).astype(np.float32)
    return {"data": data, "softmax_label": rng.integers(0, CLASSES, rows).astype(np.float32)}


def weighted(inputs: dict[str, np.ndarray], weight, metric_weight=None) -> Batch:
    return Batch(
        inputs, np.asarray(weight, np.float32), None if metric_weight is None else np.asarray(metric_weight, np.float32)
    )


def on_host(tree):
    return jax.tree.map(np.array, tree)


def assert_close(got, wanted, tolerance: float = 1e-6) -> None:
    got, wanted = on_host(got), on_host(wanted)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_equal(got, wanted) -> None:
    got, wanted = on_host(got), on_host(wanted)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)
