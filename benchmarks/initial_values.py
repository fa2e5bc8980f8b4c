"""Time to draw the initial values of a model, first and again, in a fresh process: `python -m benchmarks.initial_values`."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Shapes = dict[str, tuple[int, ...]]


def residual(counts: tuple[int, ...], widths: tuple[int, ...], parts: int, classes: int) -> Shapes:
    """Parameters of a residual network of blocks with 2 convolutions, or 3, the first two with a quarter of the channels."""
    shapes: Shapes = {"first_weight": (widths[0] // (parts - 1), 3, 7, 7)}
    width = widths[0] // (parts - 1)
    for stage, (count, out) in enumerate(zip(counts, widths, strict=True)):
        for block in range(count):
            name, thin = f"stage{stage}_block{block}", out if parts == 2 else out // 4
            sizes = [(thin, width, 3), (out, thin, 3)] if parts == 2 else [(thin, width, 1), (thin, thin, 3), (out, thin, 1)]
            for number, (rows, columns, kernel) in enumerate(sizes):
                shapes[f"{name}_conv{number}_weight"] = (rows, columns, kernel, kernel)
                shapes |= {f"{name}_norm{number}_{part}": (rows,) for part in ("gamma", "beta")}
            width = out
    return shapes | {"fc_weight": (classes, width), "fc_bias": (classes,)}


def transformer(layers: int = 12, width: int = 768, words: int = 50257) -> Shapes:
    """Parameters of a language model: 124 million with the default sizes."""
    shapes: Shapes = {"words_weight": (words, width), "positions_weight": (1024, width)}
    for layer in range(layers):
        for name, rows, columns in (("qkv", 3, 1), ("project", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            shapes[f"layer{layer}_{name}_weight"] = (rows * width, columns * width)
            shapes[f"layer{layer}_{name}_bias"] = (rows * width,)
        shapes |= {f"layer{layer}_norm{n}_{part}": (width,) for n in (1, 2) for part in ("gamma", "beta")}
    return shapes


MODELS: dict[str, Callable[[], Shapes]] = {
    "MLP": lambda: {"fc1_weight": (128, 784), "fc1_bias": (128,), "fc2_weight": (10, 128), "fc2_bias": (10,)},
    "ResNet-20": lambda: residual((3, 3, 3), (16, 32, 64), 2, 10),
    "ResNet-50": lambda: residual((3, 4, 6, 3), (256, 512, 1024, 2048), 3, 1000),
    "transformer": transformer,
}


def measure(model: str) -> dict[str, Any]:
    """Seconds of the first and of a second drawing, and of `jax.random.normal` of as many values (already compiled)."""
    import jax
    import jax.numpy as jnp

    from jfit.init import InitDesc, default, draw_all

    shapes = MODELS[model]()
    parameters = {name: (InitDesc(name), jax.ShapeDtypeStruct(shape, jnp.float32)) for name, shape in shapes.items()}
    count = sum(map(math.prod, shapes.values()))
    jax.block_until_ready(jax.random.key(1))  # starts the backend

    def seconds(run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - start

    first, again = (seconds(lambda n=n: draw_all(default(), jax.random.key(n), parameters)) for n in (1, 2))
    generator = jax.jit(lambda key: jax.random.normal(key, (count,)))
    _, flat = (seconds(lambda n=n: generator(jax.random.key(n))) for n in (1, 2))
    return {"arrays": len(shapes), "millions": count / 1e6, "first": first, "again": again, "normal": flat}


def main() -> None:
    if len(sys.argv) > 1:
        row = measure(sys.argv[1])
        print(f"{sys.argv[1]:12s}" + "".join(f"{row[k]:12.{d}f}" for k, d in zip(row, (0, 2, 3, 3, 3), strict=True)))
        return
    print(f"{'model':12s}" + "".join(f"{title:>12s}" for title in ("arrays", "millions", "first s", "again s", "normal s")))
    for model in MODELS:
        env = {**os.environ, "JFIT_CACHE": "0"}
        env.pop("JAX_COMPILATION_CACHE_DIR", None)
        subprocess.run([sys.executable, "-m", "benchmarks.initial_values", model], check=True, env=env)


if __name__ == "__main__":
    main()
