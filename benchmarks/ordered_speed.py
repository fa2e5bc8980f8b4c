"""Samples per second and first step of `reduce="ordered"` against `"psum"`, on emulated CPU devices.

A process per number of devices runs both rules in turns, `--rounds` times, on the network of W1 (784-128-64-10) and on an
LSTM; the table has the median of each and the ratio of the medians.  The first step is that of a process of its own without
the cache of compiled programs on the disk, from `data_parallel` to its results.

    python -m benchmarks.ordered_speed
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

RULES = ("psum", "ordered")
ROWS, STEPS = 64, 200  # rows of each device; steps of a round


def network(name: str) -> tuple[Any, tuple[int, ...]]:
    """(graph, shape of a row)."""
    import jfit

    sym = jfit.sym
    net = sym.Variable("data")
    if name == "mlp":
        for size in (128, 64):
            net = sym.relu(sym.FullyConnected(net, num_hidden=size))
        shape = (784,)
    else:
        net = sym.RNN(sym.transpose(net, axes=(1, 0, 2)), state_size=64, num_layers=1, mode="lstm", name="lstm")
        net, shape = sym.SequenceLast(net), (20, 32)
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=10), name="softmax"), shape


class Training:
    """A training with one rule: its state, step and batch."""

    def __init__(self, name: str, devices: int, rule: str) -> None:
        import jax
        import numpy as np

        import jfit

        net, shape = network(name)
        rng, rows = np.random.default_rng(0), ROWS * devices
        x = rng.normal(size=(rows, *shape)).astype("float32")
        self.batch = {"data": x, "softmax_label": rng.integers(0, 10, rows).astype("float32")}
        model = jfit.lower(net)
        state = jax.block_until_ready(jfit.init_state(model, "sgd", self.batch))
        started = time.perf_counter()
        self.step = jfit.data_parallel(jfit.train_step(model, "sgd"), devices, reduce=rule)
        self.state = self.step.place(state)
        self.run(1)
        self.first = time.perf_counter() - started

    def run(self, steps: int) -> float:
        """Run steps; return the seconds that they take."""
        started = time.perf_counter()
        for _ in range(steps):
            self.state, out = self.step(self.state, self.batch)
        out.fence.block_until_ready()
        return time.perf_counter() - started


def measure(name: str, devices: int, rules: Sequence[str], rounds: int) -> dict[str, dict[str, Any]]:
    """Results by rule: seconds of the first step, samples per second of each round."""
    trainings = {rule: Training(name, devices, rule) for rule in rules}
    rates: dict[str, list[float]] = {rule: [] for rule in rules}
    for _ in range(rounds):
        for rule, training in trainings.items():
            rates[rule].append(ROWS * devices * STEPS / training.run(STEPS))
    return {rule: {"first": training.first, "rates": rates[rule]} for rule, training in trainings.items()}


def in_process(name: str, devices: int, rules: Sequence[str], rounds: int) -> dict[str, dict[str, Any]]:
    """The results of `measure` in a process of its own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    request = json.dumps([name, devices, rules, rounds])
    command = [sys.executable, "-m", "benchmarks.ordered_speed", "--worker", request]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Run the benchmark; see the docstring of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="mlp,lstm")
    parser.add_argument("--devices", default="1,2,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(*json.loads(options.worker))))
        return
    print("| network, devices | psum samples/s | ordered | ratio | first step psum s | ordered | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in options.networks.split(","):
        for devices in map(int, options.devices.split(",")):
            rates = [median(result["rates"]) for result in in_process(name, devices, RULES, options.rounds).values()]
            alone = [[in_process(name, devices, [rule], 0)[rule]["first"] for rule in RULES] for _ in range(3)]
            first = [median(times) for times in zip(*alone, strict=True)]
            row = [f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[1] / rates[0]:.2f}"]
            row += [f"{first[0]:.2f}", f"{first[1]:.2f}", f"{first[1] / first[0]:.1f}"]
            print(f"| {name}, {devices} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
