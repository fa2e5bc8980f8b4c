"""Convolutions of many shapes: forward pass and both gradients, CPU milliseconds on one core.

Compares jfit's operator with one `lax.conv_general_dilated` and its gradients ("plain"), and with torch if it is installed.

    python -m benchmarks.convolutions [--only TEXT] [--markdown FILE]

The arrays of 4-D convolutions are channels-last in jfit, as inside a network; torch uses its default layout.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import pin

LIMIT = 3.0  # times torch; slower products are listed with the reason
REASONS = {
    "depthwise": "XLA does not vectorize a reduction over several axes (dw), or a loop over few channels",
    "long depthwise": "torch has a kernel of its own for this data gradient; its forward pass takes 10 to 20 times as long",
    "3-D": "the weight gradient reads the data once per kernel entry of the first axis",
    "column": "XLA's kernel takes longer for the weight gradient of a column than for that of a row",
    "blocks": "the groups of 8 channels run in dense convolutions of 32 channels",
    "few": "few channels fill the vectors of a CPU partly",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One convolution; stride, pad and dilate are the same on all axes unless they are tuples."""

    name: str
    rows: int
    channels: int
    sizes: tuple[int, ...]
    filters: int
    kernel: tuple[int, ...]
    stride: Any = 1
    pad: Any = 0
    dilate: Any = 1
    groups: int = 1
    transposed: bool = False
    reason: str = ""

    def each(self, key: str) -> tuple[int, ...]:
        """An option with one entry per spatial axis."""
        value = getattr(self, key)
        return value if isinstance(value, tuple) else (value,) * len(self.kernel)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Data and weight, channels first."""
        rng = np.random.default_rng(0)
        other = (self.channels if self.transposed else self.filters, self.filters if self.transposed else self.channels)
        data = rng.standard_normal((self.rows, self.channels, *self.sizes), dtype=np.float32)
        return data, rng.standard_normal((other[0], other[1] // self.groups, *self.kernel), dtype=np.float32)


def _images() -> list[Case]:
    return [
        Case("LeNet 1", 128, 1, (28, 28), 20, (5, 5)),
        Case("LeNet-5 1", 128, 1, (28, 28), 6, (5, 5), pad=2),
        Case("LeNet-5 2", 128, 6, (14, 14), 16, (5, 5)),
        Case("LeNet 2", 128, 20, (12, 12), 50, (5, 5)),
        Case("ResNet-20 stem", 128, 3, (32, 32), 16, (3, 3), pad=1),
        Case("ResNet-20 stage 1", 128, 16, (32, 32), 16, (3, 3), pad=1),
        Case("ResNet-20 stage 2", 128, 32, (16, 16), 32, (3, 3), pad=1),
        Case("ResNet-20 stage 3", 128, 64, (8, 8), 64, (3, 3), pad=1),
        Case("ResNet-20 stride", 128, 16, (32, 32), 32, (3, 3), 2, 1),
        Case("ResNet-20 shortcut", 128, 16, (32, 32), 32, (1, 1), 2),
        Case("ResNet-50 stem", 8, 3, (112, 112), 64, (7, 7), 2, 3),
        Case("ResNet-50 reduce", 8, 256, (28, 28), 64, (1, 1)),
        Case("ResNet-50 3x3", 8, 128, (28, 28), 128, (3, 3), pad=1),
        Case("ResNet-50 expand", 8, 64, (28, 28), 256, (1, 1)),
        Case("ResNet-50 shortcut", 8, 256, (28, 28), 512, (1, 1), 2),
        Case("ResNet-50 last", 8, 512, (7, 7), 512, (3, 3), pad=1),
        Case("VGG 1", 8, 3, (64, 64), 64, (3, 3), pad=1),
        Case("AlexNet stem", 8, 3, (112, 112), 64, (11, 11), 4, 2),
        Case("no padding", 128, 32, (18, 18), 32, (3, 3)),
        Case("8 channels", 128, 8, (32, 32), 8, (3, 3), pad=1),
        Case("Inception 1x7", 32, 32, (17, 17), 32, (1, 7), pad=(0, 3)),
        Case("Inception 7x1", 32, 32, (17, 17), 32, (7, 1), pad=(3, 0), reason="column"),
        Case("patches 8x8", 32, 3, (64, 64), 128, (8, 8), 8),
        Case("dilated 2", 32, 32, (28, 28), 32, (3, 3), pad=2, dilate=2),
        Case("dilated 4", 32, 32, (28, 28), 32, (3, 3), pad=4, dilate=4),
        Case("dilated with a stride", 32, 32, (28, 28), 32, (3, 3), 2, 2, 2),
        Case("batch 50", 50, 32, (20, 20), 32, (3, 3), pad=1),
        Case("batch 1", 1, 32, (64, 64), 32, (3, 3), pad=1),
    ]


def _wide() -> list[Case]:
    return [
        *(Case(f"text {k} x 300", 50, 1, (56, 300), 100, (k, 300)) for k in (3, 4, 5)),
        Case("whole map 7x7", 32, 128, (7, 7), 256, (7, 7)),
        Case("whole map 1x1", 64, 512, (1, 1), 256, (1, 1)),
        Case("3x3 on one pixel", 64, 256, (1, 1), 256, (3, 3), pad=1),
        Case("whole height", 32, 32, (16, 40), 64, (16, 3)),
        Case("wide with a stride", 32, 1, (100, 64), 64, (5, 64), (2, 1)),
    ]


def _groups() -> list[Case]:
    return [
        Case("2 groups", 32, 64, (28, 28), 64, (3, 3), pad=1, groups=2),
        Case("4 groups", 32, 32, (28, 28), 32, (3, 3), pad=1, groups=4),
        Case("8 groups, stride", 32, 64, (28, 28), 64, (3, 3), 2, 1, groups=8, reason="blocks"),
        Case("ResNeXt 32 x 4", 8, 128, (28, 28), 128, (3, 3), pad=1, groups=32),
        Case("1x1, 4 groups", 32, 64, (16, 16), 64, (1, 1), groups=4),
        Case("depthwise 3x3", 32, 32, (28, 28), 32, (3, 3), pad=1, groups=32, reason="depthwise"),
        Case("depthwise 3x3, stride", 16, 128, (28, 28), 128, (3, 3), 2, 1, groups=128, reason="depthwise"),
        Case("depthwise 5x5", 32, 64, (14, 14), 64, (5, 5), pad=2, groups=64, reason="depthwise"),
        Case("depthwise 7x7", 8, 96, (28, 28), 96, (7, 7), pad=3, groups=96, reason="depthwise"),
        Case("depthwise dilated", 16, 64, (28, 28), 64, (3, 3), pad=2, dilate=2, groups=64, reason="depthwise"),
        Case("depthwise, 2 filters", 32, 32, (28, 28), 64, (3, 3), pad=1, groups=32),
    ]


def _other_axes() -> list[Case]:
    return [
        Case("1-D 3", 32, 64, (128,), 64, (3,), pad=1),
        Case("1-D 9, stride", 32, 64, (128,), 64, (9,), 2, 4),
        Case("1-D dilated", 32, 64, (128,), 64, (3,), pad=8, dilate=8),
        Case("1-D, 4 groups", 32, 64, (128,), 64, (3,), pad=1, groups=4, reason="few"),
        Case("1-D depthwise 31", 16, 128, (128,), 128, (31,), pad=15, groups=128, reason="long depthwise"),
        Case("1-D audio", 8, 1, (16000,), 64, (80,), 16),
        Case("3-D 3", 4, 16, (16, 16, 16), 16, (3, 3, 3), pad=1, reason="3-D"),
        Case("3-D stride", 4, 16, (16, 16, 16), 32, (3, 3, 3), 2, 1),
        Case("3-D 1x3x3", 4, 16, (16, 16, 16), 16, (1, 3, 3), pad=(0, 1, 1)),
        Case("3-D dilated", 4, 16, (16, 16, 16), 16, (3, 3, 3), pad=2, dilate=2),
        Case("3-D, 4 groups", 4, 16, (16, 16, 16), 16, (3, 3, 3), pad=1, groups=4),
        Case("3-D depthwise", 4, 16, (16, 16, 16), 16, (3, 3, 3), pad=1, groups=16, reason="depthwise"),
    ]


def _transposed() -> list[Case]:
    options: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("4x4, stride", (16, 64, (8, 8), 32, (4, 4), 2, 1), {}),
        ("2x2, stride", (16, 64, (16, 16), 32, (2, 2), 2), {}),
        ("to 4x4", (32, 100, (1, 1), 128, (4, 4)), {}),
        ("4 groups", (16, 32, (16, 16), 32, (4, 4), 2, 1), {"groups": 4}),
        ("depthwise", (8, 16, (16, 16), 16, (4, 4), 2, 1), {"groups": 16}),
        ("3-D", (4, 16, (8, 8, 8), 16, (4, 4, 4), 2, 1), {"reason": "3-D"}),
    ]
    return [Case(f"transposed {name}", *args, transposed=True, **more) for name, args, more in options]


def cases() -> list[Case]:
    """The 65 convolutions."""
    return [*_images(), *_wide(), *_groups(), *_other_axes(), *_transposed()]


def milliseconds(f: Callable[[], Any], seconds: float = 0.05, repeats: int = 3) -> float:
    """The least CPU time of a call: minimum over `repeats` of the mean over about `seconds`."""
    f()
    start = time.process_time()
    f()
    calls = max(1, min(100, int(seconds / max(time.process_time() - start, 1e-6))))
    means = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(calls):
            f()
        means.append((time.process_time() - start) / calls)
    return 1e3 * min(means)


def jfit_times(case: Case, plain: bool) -> list[float]:
    """Milliseconds of (forward, data gradient, weight gradient) of jfit's operator, or of the plain convolution."""
    import jax
    import jax.numpy as jnp

    from jfit.ops import Ctx, lookup

    op = lookup("Deconvolution" if case.transposed else "Convolution")
    options = {key: case.each(key) for key in ("stride", "pad", "dilate")}
    params = op.parse({"kernel": case.kernel, "num_filter": case.filters, "num_group": case.groups, "no_bias": True, **options})
    data, weight = map(jnp.asarray, case.arrays())
    last = data.ndim == 4
    data = jnp.transpose(data, (0, 2, 3, 1)) if last else data

    def forward(data: Any, weight: Any) -> Any:
        return op.fn(Ctx(channels_last=last, plain=plain), params, data, weight)

    def gradient(argument: int) -> Any:
        return jax.jit(lambda arrays, grad: jax.vjp(forward, *arrays)[1](grad)[argument])

    out = jax.jit(forward)(data, weight)
    grad = jax.random.normal(jax.random.key(0), out.shape)
    programs = [
        (jax.jit(forward), (data, weight)),
        (gradient(0), ((data, weight), grad)),
        (gradient(1), ((data, weight), grad)),
    ]
    return [milliseconds(lambda f=f, a=a: f(*a).block_until_ready()) for f, a in programs]  # sync: it is what is measured


def torch_times(case: Case) -> list[float]:
    """Milliseconds of (forward, data gradient, weight gradient) of torch."""
    import torch

    torch.set_num_threads(1)
    data, weight = map(torch.from_numpy, case.arrays())
    stride, pad, dilate = (list(case.each(key)) for key in ("stride", "pad", "dilate"))
    rest = (stride, pad, dilate, case.transposed, [0] * len(case.kernel), case.groups)
    with torch.no_grad():
        grad = torch.randn_like(torch.convolution(data, weight, None, *rest))
        backward = torch.ops.aten.convolution_backward
        return [
            milliseconds(lambda: torch.convolution(data, weight, None, *rest)),
            milliseconds(lambda: backward(grad, data, weight, None, *rest, [True, False, False])),
            milliseconds(lambda: backward(grad, data, weight, None, *rest, [False, True, False])),
        ]


def table(selected: list[Case]) -> list[str]:
    """Markdown table; a case with a product that takes more than LIMIT times as long as in torch has a reason."""
    lines = [
        "| convolution | jfit: forward, data, weight (ms) | plain | torch | jfit / torch | more than 3 x |",
        "|---|---:|---:|---:|---:|---|",
    ]
    torch = importlib.util.find_spec("torch") is not None
    for case in selected:
        ours, plain, theirs = jfit_times(case, False), jfit_times(case, True), torch_times(case) if torch else []
        ratios = [a / b for a, b in zip(ours, theirs, strict=False)]
        slow = "" if max(ratios, default=0) <= LIMIT else REASONS.get(case.reason, "unexplained")
        cells = [", ".join(f"{v:.2f}" for v in times) for times in (ours, plain, theirs)]
        lines.append(f"| {case.name} | {' | '.join(cells)} | {', '.join(f'{r:.1f}' for r in ratios)} | {slow} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    """Read the options, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="measure the convolutions whose name contains this text")
    parser.add_argument("--markdown", help="write the table to this file")
    args = parser.parse_args()
    pin(1)
    text = "\n".join(table([case for case in cases() if args.only in case.name])) + "\n"
    if args.markdown:
        with open(args.markdown, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
