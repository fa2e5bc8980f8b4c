"""What is trained, and how many floating-point operations a training step of it has, by formula."""

from __future__ import annotations

import dataclasses

from benchmarks.workloads import CLASSES, WORKLOADS, Workload

_W1, _W4, _W5, _RESNET50 = (WORKLOADS[name] for name in ("w1", "w4", "w5", "resnet50"))


def _network(base: Workload, name: str, title: str, steps: int, **changes: object) -> Workload:
    named = dataclasses.replace(base, name=name, title=title, **changes)  # pyright: ignore
    return named.resized(steps * named.batch)


_BASE = {"width": 768, "layers": 12, "heads": 12, "learning_rate": 1e-4, "dtype": "bfloat16", "tied": True}
_ALL = (
    _network(
        _RESNET50, "resnet50", "ResNet-50 on 3 x 224 x 224, 10 classes", 8, shape=(3, 224, 224), batch=256, dtype="bfloat16"
    ),
    _network(
        _W5,
        "bert",
        "encoder of the size of BERT-base: 12 layers of width 768 with 12 heads, 128 tokens of 30,528 words, 15 % masked",
        32,
        shape=(128,),
        batch=128,
        words=30_528,
        causal=False,
        **_BASE,
    ),
    _network(
        _W5,
        "gpt",
        "causal transformer of 124M parameters: 12 layers of width 768 with 12 heads, 1,024 tokens of 50,304 words",
        16,
        shape=(1024,),
        batch=16,
        words=50_304,
        **_BASE,
    ),
    _network(_W4, "lstm", "language model: 2 x LSTM(1024), 35 tokens of 10,000 words", 64, batch=128, width=1024),
    _network(_W1, "mlp", "MLP 784-128-64-10, where the steps are short", 800),
)
NETWORKS = {network.name: network for network in _ALL}

_SMALL = {"width": 32, "layers": 1, "heads": 2, "words": 64, "shape": (16,), "batch": 4}
_SMALLER = {
    "resnet50": {"shape": (3, 32, 32), "batch": 4, "layers": 1},
    "bert": _SMALL,
    "gpt": _SMALL,
    "lstm": {key: value for key, value in _SMALL.items() if key != "heads"},
    "mlp": {},
}


def small(network: Workload) -> Workload:
    """The network in a size with which a CPU trains two steps at once."""
    changed = dataclasses.replace(network, **_SMALLER[network.name])  # pyright: ignore
    return changed.resized(2 * changed.batch)


def _resnet50(network: Workload) -> float:
    channels, size, _ = network.shape
    size = -(-size // 2)
    products, before = 7 * 7 * channels * 64 * size**2, 64.0
    size = size // 2
    for stage, (filters, blocks) in enumerate(network.bottlenecks):
        for block in range(blocks):
            after = -(-size // 2) if stage and not block else size  # the 3 x 3 convolution has the stride
            products += before * filters * size**2 + (9 * filters + 4 * filters) * filters * after**2
            products += 0 if block else before * 4 * filters * after**2
            size, before = after, 4.0 * filters
    return products + before * CLASSES


def _transformer(network: Workload) -> float:
    (tokens,), width = network.shape, network.width
    seen = (tokens + 1) / 2 if network.causal else tokens  # keys of a query, on average
    layer = 12 * width**2 + 2 * seen * width  # four projections, two dense layers; scores and weighted values
    return tokens * (network.layers * layer + width * network.words)


def flops(network: Workload) -> float:
    """Model FLOPs of a training step for one row: three times those of the forward pass, two for each multiplication.

    Counted are matrix products and convolutions, and of causal attention the products that the mask leaves: a program that
    computes the others, or computes values again for its backward pass, gets nothing for that.
    """
    if network.kind == "resnet50":
        products = _resnet50(network)
    elif network.kind == "transformer":
        products = _transformer(network)
    elif network.kind == "lstm":
        (tokens,) = network.shape
        products = tokens * (network.layers * 8 * network.width**2 + network.width * network.words)
    else:
        products = 784 * 128 + 128 * 64 + 64 * CLASSES
    return 6.0 * products
