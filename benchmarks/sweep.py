"""`jfit.sweep` against `jfit.fit` for each of its members.

    python -m benchmarks.sweep                  both measures, three rounds
    python -m benchmarks.sweep --measure short  32 short runs of an MLP 64-32-10 (5 epochs of digits), start included
    python -m benchmarks.sweep --measure steady 8 members of an MLP 784-128-64-10 at batch size 64, per epoch

"short" is measured in fresh processes without a compile cache, from `import jfit` to the last result; "again" is the same work
once more in the same process, which has compiled its programs.
"steady" runs in one process, where the two sides take turns.  CPU seconds of all threads, and wall time; minimum of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

RATES, SEEDS = (0.02, 0.05, 0.1, 0.2), tuple(range(8))
MEMBERS, ROWS, BATCH, EPOCHS = 8, 6400, 64, 3


def network(*widths: int) -> Any:
    """A multilayer perceptron with these hidden widths, and 10 classes."""
    import jfit

    net = jfit.sym.Variable("data")
    for number, width in enumerate(widths):
        net = jfit.sym.FullyConnected(net, num_hidden=width, name=f"fc{number}")
        net = jfit.sym.Activation(net, act_type="relu")
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(net, num_hidden=10, name="out"), name="softmax")


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def short(leg: str) -> dict[str, float]:
    """32 runs in this process, which has compiled nothing yet."""
    from sklearn.datasets import load_digits

    import jfit

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    train, test = (x[:1437], y[:1437]), (x[1437:], y[1437:])
    common: dict[str, Any] = {"num_epoch": 5, "progress": False}
    scores: list[float] = []

    def sweep() -> None:
        over = {"learning_rate": RATES, "seed": SEEDS}
        result = jfit.sweep(network(32), train, test, over=over, optimizer_params={"momentum": 0.9}, **common)
        scores.extend(row["val_accuracy"] for row in result.table)

    def fits() -> None:
        for rate in RATES:
            for seed in SEEDS:
                params = {"learning_rate": rate, "momentum": 0.9}
                run = jfit.fit(network(32), train, test, seed=seed, optimizer_params=params, **common)
                scores.append(run.history.column("val_accuracy")[-1])

    work = sweep if leg == "sweep" else fits
    (cpu, wall), (cpu_again, wall_again) = timed(work), timed(work)
    return {"cpu": cpu, "wall": wall, "cpu again": cpu_again, "wall again": wall_again, "accuracy": float(np.mean(scores))}


def steady(rounds: int) -> dict[str, dict[str, float]]:
    """Seconds per epoch of 8 members together, and of 8 runs one after the other, all compiled."""
    import jfit

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 784)).astype("float32"), rng.integers(0, 10, ROWS)
    rates = [0.01 * (i + 1) for i in range(MEMBERS)]
    common: dict[str, Any] = {"batch_size": BATCH, "progress": False}

    def sweep(epochs: int) -> None:
        over = {"learning_rate": rates}
        jfit.sweep(network(128, 64), (x, y), over=over, optimizer_params={"momentum": 0.9}, num_epoch=epochs, **common)

    def fits(epochs: int) -> None:
        for rate in rates:
            params = {"learning_rate": rate, "momentum": 0.9}
            jfit.fit(network(128, 64), (x, y), optimizer_params=params, num_epoch=epochs, **common)

    legs = {"sweep": sweep, "fits": fits}
    best: dict[str, dict[str, float]] = {}
    for number in range(rounds + 1):  # the first round compiles
        for name, leg in legs.items():
            one, more = timed(lambda leg=leg: leg(1)), timed(lambda leg=leg: leg(1 + EPOCHS))
            spent = {key: (b - a) / EPOCHS for key, a, b in zip(("cpu", "wall"), one, more, strict=True)}
            if number:
                best[name] = {k: min(v, best.get(name, spent)[k]) for k, v in spent.items()}
    return best


def _fresh(leg: str) -> dict[str, float]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION_CACHE", "XLA_FLAGS"))}
    command = [sys.executable, "-m", "benchmarks.sweep", "--leg", leg]
    output = subprocess.run(command, env=environment | {"JFIT_CACHE": "0"}, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sweep", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--measure", choices=("short", "steady", "all"), default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--leg", choices=("sweep", "fits"), help="internal: one leg of the measure short, in this process")
    given = parser.parse_args()
    if given.leg:
        print(json.dumps(short(given.leg)))
        return
    results: dict[str, Any] = {}
    if given.measure in ("short", "all"):
        legs: dict[str, list[dict[str, float]]] = {"sweep": [], "fits": []}
        for _ in range(given.rounds):
            for leg, runs in legs.items():
                runs.append(_fresh(leg))
        results["short"] = {leg: {k: min(r[k] for r in runs) for k in runs[0]} for leg, runs in legs.items()}
    if given.measure in ("steady", "all"):
        results["steady"] = steady(given.rounds)
    for measure, legs_ in results.items():
        for leg, values in legs_.items():
            print(f"{measure:8}{leg:8}" + "".join(f"{name} {value:8.3f}   " for name, value in values.items()))
        sweep, fits = legs_["sweep"], legs_["fits"]
        print(f"{measure:8}{'sweep / fits':16}" + "".join(f"{k} {sweep[k] / fits[k]:.3f}   " for k in sweep if k != "accuracy"))


if __name__ == "__main__":
    main()
