"""The rate of large matrix products on the first device, as JSON: `python -m benchmarks.accelerator.matmul [--quick]`."""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp
import jaxlib
from jax import lax

DTYPES = ("bfloat16", "float32")


def rate(dtype: str, size: int, count: int, rounds: int = 5) -> float:
    """FLOPs per second of products of square matrices: the best of some rounds of `count` products in one program.

    float32 products have JAX's default precision, with which NVIDIA GPUs compute in TF32, and TPUs in bfloat16.
    """
    a, b = (jax.random.normal(jax.random.key(i), (size, size), dtype) * size**-0.5 for i in range(2))  # sizes stay near 1
    products = jax.jit(lambda a, b: lax.fori_loop(0, count, lambda _, x: jnp.dot(x, b), a))
    jax.block_until_ready(products(a, b))
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        jax.block_until_ready(products(a, b))
        seconds.append(time.perf_counter() - begun)
    return 2 * size**3 * count / min(seconds)


def main(quick: bool) -> None:
    """Print the device and the rates."""
    device = jax.local_devices()[0]
    size, count = (512, 4) if quick or device.platform == "cpu" else (8192, 50)
    rates = {dtype: rate(dtype, size, count) for dtype in DTYPES}
    versions = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
    print(json.dumps({"device": device.device_kind, "platform": device.platform, "rates": rates, "size": size} | versions))


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
