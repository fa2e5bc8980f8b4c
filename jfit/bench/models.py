"""The models of the scaling benchmark, with synthetic data of the shapes that they are usually trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jfit import sym
from jfit.graph import Symbol


class Input(NamedTuple):
    """An input of a model.

    Attributes:
        shape: shape of one row.
        high: values are integers from 0 to high - 1, stored as float32 as in MXNet; 0: they are drawn from the standard normal
            distribution.

    Example:
        >>> Input((1,), 10).high
        10
    """

    shape: tuple[int, ...]
    high: int = 0


class Benchmark(NamedTuple):
    """A model to measure.

    Attributes:
        net: graph with a loss head.
        inputs: inputs and labels by name.
        batch: default number of rows per device.

    Example:
        >>> load("mlp").inputs["data"].shape
        (784,)
    """

    net: Symbol
    inputs: Mapping[str, Input]
    batch: int

    def rows(self, count: int) -> dict[str, np.ndarray]:
        """Draw `count` rows, always the same, as a dict of float32 arrays."""
        rng = np.random.default_rng(0)
        drawn = {}
        for name, (shape, high) in self.inputs.items():
            values = rng.integers(0, high, (count, *shape)) if high else rng.standard_normal((count, *shape), np.float32)
            drawn[name] = values.astype(np.float32)
        return drawn


def mlp() -> Benchmark:
    """Perceptron 784-512-256-10 (0.5 million parameters).

    Example:
        >>> len(mlp().net.list_arguments())
        8
    """
    net = sym.Variable("data")
    for number, width in enumerate((512, 256)):
        net = sym.Activation(sym.FullyConnected(net, num_hidden=width, name=f"fc{number}"), act_type="relu")
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=10, name="fc2"), name="softmax")
    return Benchmark(net, {"data": Input((784,)), "softmax_label": Input((), 10)}, 64)


def _unit(net: Symbol, filters: int, kernel: int, name: str, stride: int = 1, act: bool = True) -> Symbol:
    size: dict[str, Any] = {"kernel": (kernel, kernel), "pad": (kernel // 2, kernel // 2), "stride": (stride, stride)}
    net = sym.Convolution(net, num_filter=filters, no_bias=True, name=f"{name}_conv", **size)
    net = sym.BatchNorm(net, fix_gamma=False, name=f"{name}_bn")
    return sym.Activation(net, act_type="relu") if act else net


def resnet20() -> Benchmark:
    """ResNet-20 for images of 32 x 32 pixels (0.27 million parameters; He et al. 2015, section 4.2).

    Example:
        >>> sum(name.endswith("_conv_weight") for name in resnet20().net.list_arguments())
        21
    """
    net = _unit(sym.Variable("data"), 16, 3, "stem")
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            name, stride = f"stage{stage}_{block}", 2 if stage and block == 0 else 1
            inner = _unit(_unit(net, width, 3, f"{name}a", stride), width, 3, f"{name}b", act=False)
            same = _unit(net, width, 1, f"{name}skip", stride, act=False) if stride > 1 else net
            net = sym.Activation(inner + same, act_type="relu")
    return _classifier(net, 10, (3, 32, 32), 64)


def resnet50() -> Benchmark:
    """ResNet-50 for images of 224 x 224 pixels (25.6 million parameters; He et al. 2015).

    Example:
        >>> sum(name.endswith("_conv_weight") for name in resnet50().net.list_arguments())
        53
    """
    net = _unit(sym.Variable("data"), 64, 7, "stem", 2)
    net = sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            name, width, stride = f"stage{stage}_{block}", 64 << stage, 2 if stage and block == 0 else 1
            inner = _unit(_unit(net, width, 1, f"{name}a", stride), width, 3, f"{name}b")
            inner = _unit(inner, 4 * width, 1, f"{name}c", act=False)
            same = net if block else _unit(net, 4 * width, 1, f"{name}skip", stride, act=False)
            net = sym.Activation(inner + same, act_type="relu")
    return _classifier(net, 1000, (3, 224, 224), 16)


def _classifier(net: Symbol, classes: int, shape: tuple[int, ...], batch: int) -> Benchmark:
    net = sym.Flatten(sym.Pooling(net, global_pool=True, kernel=(7, 7), pool_type="avg"))
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=classes, name="fc"), name="softmax")
    return Benchmark(net, {"data": Input(shape), "softmax_label": Input((), classes)}, batch)


def lstm(words: int = 10_000, width: int = 200, steps: int = 35) -> Benchmark:
    """Language model: embedding, two LSTM layers, softmax over the words (4.7 million parameters; Zaremba et al. 2014).

    Args:
        words: size of the vocabulary.
        width: size of embedding and LSTM.
        steps: number of words per row.

    Example:
        >>> lstm(steps=5).inputs["data"].shape
        (5,)
    """
    net = sym.Embedding(sym.Variable("data"), input_dim=words, output_dim=width, name="words")
    net = sym.RNN(sym.transpose(net, axes=(1, 0, 2)), state_size=width, num_layers=2, mode="lstm", name="lstm")
    return _words(sym.transpose(net, axes=(1, 0, 2)), words, width, steps, 32)


def _words(net: Symbol, words: int, width: int, steps: int, batch: int) -> Benchmark:
    net = sym.FullyConnected(sym.Reshape(net, shape=(-1, width)), num_hidden=words, name="out")
    net = sym.SoftmaxOutput(net, sym.Reshape(sym.Variable("softmax_label"), shape=(-1,)), name="softmax")
    return Benchmark(net, {"data": Input((steps,), words), "softmax_label": Input((steps,), words)}, batch)


def transformer(words: int = 10_000, width: int = 256, layers: int = 4, heads: int = 4, steps: int = 64) -> Benchmark:
    """Language model: decoder-only transformer with causal attention (8.3 million parameters; Vaswani et al. 2017, pre-norm).

    Args:
        words: size of the vocabulary.
        width: size of the embedding.
        layers: number of blocks.
        heads: number of attention heads.
        steps: number of words per row.

    Example:
        >>> sum(name.endswith("qkv_weight") for name in transformer().net.list_arguments())
        4
    """
    net = sym.Embedding(sym.Variable("data"), input_dim=words, output_dim=width, name="words")
    net = sym.broadcast_add(net, sym.Variable("positions_weight", shape=(1, steps, width)))
    order = sym._arange(start=0, stop=steps)
    past = sym.broadcast_lesser_equal(sym.Reshape(order, shape=(1, 1, steps)), sym.Reshape(order, shape=(1, steps, 1)))
    mask = 1e9 * (past - 1)  # (1, steps, steps): 0 for words up to this one, -1e9 for later ones
    for layer in range(layers):
        name = f"layer{layer}"
        net = net + _attention(sym.LayerNorm(net, name=f"{name}_norm1"), mask, width, heads, name)
        normed = sym.LayerNorm(net, name=f"{name}_norm2")
        up = sym.FullyConnected(normed, num_hidden=4 * width, flatten=False, name=f"{name}_up")
        down = sym.LeakyReLU(up, act_type="gelu")
        net = net + sym.FullyConnected(down, num_hidden=width, flatten=False, name=f"{name}_down")
    return _words(sym.LayerNorm(net, name="norm"), words, width, steps, 16)


def _attention(net: Symbol, mask: Symbol, width: int, heads: int, name: str) -> Symbol:
    """Causal self-attention of (batch, steps, width); scores are scaled by the square root of the width of a head."""
    projected = sym.FullyConnected(net, num_hidden=3 * width, flatten=False, name=f"{name}_qkv")
    projected = sym.transpose(projected, axes=(1, 0, 2))  # (steps, batch, heads * (query, key, value))
    scores = sym._contrib_interleaved_matmul_selfatt_qk(projected, heads=heads)  # (batch * heads, steps, steps)
    attention = sym.softmax(sym.broadcast_add(scores, mask), axis=-1)
    mixed = sym._contrib_interleaved_matmul_selfatt_valatt(projected, attention, heads=heads)
    mixed = sym.transpose(mixed, axes=(1, 0, 2))
    return sym.FullyConnected(mixed, num_hidden=width, flatten=False, name=f"{name}_project")


MODELS: dict[str, Callable[[], Benchmark]] = {make.__name__: make for make in (mlp, resnet20, resnet50, lstm, transformer)}


def load(name: str, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Benchmark:
    """Return a model by name, or of a graph file.

    Args:
        name: one of `MODELS`, or the path of a `symbol.json` file of jfit or MXNet.
        shapes: for a file: shape of one row of each input and label; an input whose shape is not passed is a vector of labels.

    Returns:
        `Benchmark`.

    Raises:
        ValueError: neither a name nor a file, or a file without shapes.

    Example:
        >>> load("lstm").batch
        32
    """
    if name in MODELS and not shapes:
        return MODELS[name]()
    if name in MODELS or not shapes or not Path(name).is_file():
        files = "a symbol.json file with the shape of a row of each of its inputs: --shape data=3,224,224"
        raise ValueError(
            f"--model is {name!r} with --shape {dict(shapes or {})}; expected one of {', '.join(MODELS)}, or {files}"
        )
    net = sym.load(name)
    from_heads = [n for n in net.list_arguments() if n.endswith("label") and n not in shapes]
    inputs = {k: Input(tuple(v)) for k, v in shapes.items()} | {n: Input((), 2) for n in from_heads}
    return Benchmark(net, inputs, 32)
