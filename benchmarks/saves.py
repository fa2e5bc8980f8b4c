"""What saving a state of 500 MB costs the training loop.

    python -m benchmarks.saves                        # three rounds
    python -m benchmarks.saves --megabytes 50 --rounds 1

A multilayer perceptron 1024-n-n-10 with Adam, batch size 64; n is chosen so that parameters and the two slots of Adam have the
given size.  An epoch has two saves, one every `--every` steps.  Legs: no saves, saves in the background (the default for states
of this size), and saves for which training waits (`background_bytes=None`).  The legs take turns in one process.

    pause     time for which a save stops the loop, without the wait for the step that is saved
    share     pause / (`--every` steps without saves)
    epoch     wall time of an epoch with two saves, and until the files of the second are on the disk
    CPU       CPU seconds of all threads in that time

Minimum of the rounds.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from typing import Any

import numpy as np

BATCH, INPUTS = 64, 1024


def training(megabytes: int, every: int, folder: str, options: dict[str, Any] | None) -> tuple[Any, list[float]]:
    """A run with compiled programs, and the list to which it appends the pauses of its saves; options None: no saves."""
    import jfit
    from jfit import counters

    parameters = megabytes * 1e6 / 12
    width = int((-INPUTS + (INPUTS**2 + 4 * parameters) ** 0.5) / 2)  # width² + INPUTS * width parameters
    net = jfit.sym.Variable("data")
    for number in range(2):
        net = jfit.sym.Activation(jfit.sym.FullyConnected(net, num_hidden=width, name=f"fc{number}"), act_type="relu")
    net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(net, num_hidden=10, name="out"), name="softmax")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2 * every * BATCH, INPUTS)).astype("float32"), rng.integers(0, 10, 2 * every * BATCH)
    pauses: list[float] = []
    callbacks = []
    if options is not None:
        saves = jfit.callbacks.checkpointing(folder, every, keep=1, **options)

        def on(event: Any, state: Any) -> Any:
            if event.kind == "step":
                counters.wait(event.run.state)  # the step itself is no part of the pause
            started = time.perf_counter()
            state = saves.on(event, state)
            if event.kind == "step":
                pauses.append(time.perf_counter() - started)
            return state

        callbacks.append(saves._replace(on=on))
    common: dict[str, Any] = {"batch_size": BATCH, "optimizer": "adam", "progress": False, "devices": 1}
    return jfit.fit(net, (x, y), num_epoch=1, callbacks=callbacks, **common), pauses


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saves")
    parser.add_argument("--megabytes", type=int, default=500, help="size of the state")
    parser.add_argument("--every", type=int, default=20, help="steps between two saves")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    legs: dict[str, Any] = {"no saves": None, "background": {}, "waiting": {"background_bytes": None}}
    folder = tempfile.mkdtemp(prefix="jfit-saves-")
    try:
        runs = {name: training(options.megabytes, options.every, f"{folder}/{i}", legs[name]) for i, name in enumerate(legs)}
        walls: dict[str, list[float]] = {name: [] for name in legs}
        cpus: dict[str, list[float]] = {name: [] for name in legs}
        for _, pauses in runs.values():
            pauses.clear()
        for _ in range(options.rounds):
            for name, (run, _) in runs.items():
                cpu, wall = time.process_time(), time.perf_counter()
                run.train(1)
                walls[name].append(time.perf_counter() - wall)
                cpus[name].append(time.process_time() - cpu)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    base = min(walls["no saves"])
    print(f"{options.megabytes} MB, {options.every} steps between saves, {base / 2 / options.every * 1e3:.0f} ms per step")
    print("| leg | pause, ms | share | epoch, s | CPU, s |\n|---|---:|---:|---:|---:|")
    for name, (_, pauses) in runs.items():
        pause = min(pauses, default=0.0)
        cells = f"{pause * 1e3:.0f} | {pause / (base / 2) * 100:.1f} % | {min(walls[name]):.2f} | {min(cpus[name]):.2f}"
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
