"""Latency of predictions of a few rows, against the jitted function alone: `python -m benchmarks.predict_one`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jfit
from jfit import sym
from jfit.data import Batch
from jfit.step import predict_step

CALLS = 500


def milliseconds(run: Callable[[], Any]) -> float:
    """Smallest time of a call, after two calls that compile."""
    run(), run()
    best = float("inf")
    for _ in range(CALLS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return 1000 * best


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(256, 784)).astype(np.float32), rng.integers(10, size=256)
    net = sym.Variable("data")
    for layer, width in enumerate((128, 64)):
        net = sym.Activation(sym.FullyConnected(net, num_hidden=width, name=f"fc{layer}"), act_type="relu")
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=10, name="out"), name="softmax")
    run = jfit.fit(net, (x, y), num_epoch=1, batch_size=64, progress=False)
    step, state = predict_step(run.model), run.state
    alone = jax.jit(lambda params, aux, batch, number: step(params, aux, batch, number))
    print(f"{'rows':>5s}{'jitted ms':>12s}{'run.predict ms':>16s}{'difference':>12s}")
    for rows in (1, 3, 50, 64):
        few = x[:rows]
        one = milliseconds(lambda few=few: np.asarray(alone(state.params, state.aux, Batch({"data": few}), np.int32(0))[0]))
        two = milliseconds(lambda few=few: run.predict(few))
        print(f"{rows:5d}{one:12.3f}{two:16.3f}{two - one:12.3f}")


if __name__ == "__main__":
    main()
