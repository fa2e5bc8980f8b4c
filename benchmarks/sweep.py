"""`jfit.sweep` against `jfit.fit` for each of its members, and against a sweep that is written by hand in plain JAX.

    python -m benchmarks.sweep                  both measures, three rounds
    python -m benchmarks.sweep --measure short  32 short runs of an MLP 64-32-10 (5 epochs of digits), start included
    python -m benchmarks.sweep --measure steady 8 members of an MLP 784-128-64-10 at batch size 64, per epoch

"short" is measured in fresh processes: "sweep" is a call of `jfit.sweep`, "fits" are 32 calls of `jfit.fit`, and "hand" is one
jitted `jax.vmap` over runs, with `lax.scan` over epochs and batches, which has no checks, no state and no history.  Three times
are printed for each: "process", from the start of the process to the last result; "imported", the same without imports;
"again", the same work once more in the same process.  "cold": nothing is compiled; "disk": JAX's compile cache on the disk has
the programs of an earlier process.
"steady" runs in one process, where the two sides take turns.  CPU seconds of all threads, and wall time; minimum of the rounds.
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

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


def short(leg: str, data: str) -> dict[str, float]:
    """32 runs in this process; `data` is the file with the digits."""
    with np.load(data) as arrays:
        x, y = arrays["x"], arrays["y"]
    train, test = (x[:1437], y[:1437]), (x[1437:], y[1437:])
    common: dict[str, Any] = {"num_epoch": 5, "batch_size": 32, "progress": False}
    scores: list[float] = []

    def sweep() -> None:
        import jfit

        over = {"learning_rate": RATES, "seed": SEEDS}
        result = jfit.sweep(network(32), train, test, over=over, optimizer_params={"momentum": 0.9}, **common)
        scores.extend(row["val_accuracy"] for row in result.table)

    def fits() -> None:
        import jfit

        for rate in RATES:
            for seed in SEEDS:
                params = {"learning_rate": rate, "momentum": 0.9}
                run = jfit.fit(network(32), train, test, seed=seed, optimizer_params=params, **common)
                scores.append(run.history.column("val_accuracy")[-1])

    if leg == "hand":
        import jax

        call = by_hand(train, test, epochs=5, size=32)
        work = lambda: scores.extend(jax.device_get(call())["val_accuracy"][:, -1])  # noqa: E731
    else:
        import jfit

        jfit.sweep, jfit.fit  # noqa: B018  (names of jfit are imported when they are first used)
        work = {"sweep": sweep, "fits": fits}[leg]
    start = time.process_time(), time.perf_counter()
    work()
    end, again = (time.process_time(), time.perf_counter()), timed(work)
    result: dict[str, float] = {}
    for i, name in enumerate(("cpu", "wall")):
        result |= {
            f"process {name}": end[i] - (0, STARTED)[i],
            f"imported {name}": end[i] - start[i],
            f"again {name}": again[i],
        }
    return result | {"accuracy": float(np.mean(scores))}


def by_hand(train: Any, test: Any, epochs: int, size: int) -> Callable[[], Any]:
    """The same runs in plain JAX: a function of no arguments that trains all of them in one program."""
    import jax
    import jax.numpy as jnp

    (x, y), (x_test, y_test) = train, test
    batches = -(-len(x) // size)
    weights = (np.arange(batches * size) < len(x)).astype(np.float32).reshape(batches, size)

    def loss(params: Any, x: Any, y: Any, weight: Any) -> Any:
        hidden = jax.nn.relu(x @ params["w0"] + params["b0"][None])
        scores = jax.nn.log_softmax(hidden @ params["w1"] + params["b1"][None])
        each = -jnp.take_along_axis(scores, y[:, None], 1)[:, 0]
        return (each * weight).sum() / weight.sum(), ((scores.argmax(1) == y) * weight).sum()

    def run(rate: Any, params: Any, orders: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            (params, momentum), (rows, weight) = state, batch
            (value, hits), gradients = jax.value_and_grad(loss, has_aux=True)(
                params, jnp.asarray(x)[rows], labels[rows], weight
            )
            momentum = jax.tree.map(lambda m, g: 0.9 * m - rate * g, momentum, gradients)
            return (jax.tree.map(jnp.add, params, momentum), momentum), (value, hits)

        def epoch(state: Any, order: Any) -> Any:
            state, (losses, hits) = jax.lax.scan(step, state, (order, weights))
            value, test_hits = loss(state[0], jnp.asarray(x_test), jnp.asarray(y_test, jnp.int32), jnp.ones(len(y_test)))
            logs = {"loss": losses.mean(), "accuracy": hits.sum() / len(x)}
            return state, logs | {"val_loss": value, "val_accuracy": test_hits / len(y_test)}

        labels = jnp.asarray(y, jnp.int32)
        return jax.lax.scan(epoch, (params, jax.tree.map(jnp.zeros_like, params)), orders)[1]

    program = jax.jit(jax.vmap(run))

    def work() -> Any:
        rates, params, orders = [], [], []
        for rate in RATES:
            for seed in SEEDS:
                rng = np.random.default_rng(seed)
                draw = lambda *shape, rng=rng: rng.uniform(-1, 1, shape).astype("float32") * (6 / sum(shape)) ** 0.5  # noqa: E731
                zeros = {"b0": np.zeros(32, "float32"), "b1": np.zeros(10, "float32")}
                params.append({"w0": np.float32(draw(64, 32)), "w1": np.float32(draw(32, 10)), **zeros})
                order = [np.resize(rng.permutation(len(x)), weights.shape).astype(np.int32) for _ in range(epochs)]
                rates, orders = [*rates, np.float32(rate)], [*orders, np.stack(order)]
        return program(np.stack(rates), jax.tree.map(lambda *a: np.stack(a), *params), np.stack(orders))

    return work


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


def measure_short(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """{"cold" or "disk": {leg: {name: minimum over rounds}}} of fresh processes."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    legs = ("sweep", "hand", "fits")
    runs: dict[str, dict[str, list[dict[str, float]]]] = {kind: {leg: [] for leg in legs} for kind in ("cold", "disk")}
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "digits.npz")
        np.savez(data, x=(x / 16).astype("float32"), y=y)
        for leg in legs:
            _fresh(leg, data, f"{folder}/{leg}")  # fills the cache
        for _ in range(rounds):
            for leg in legs:
                runs["cold"][leg].append(_fresh(leg, data, None))
                runs["disk"][leg].append(_fresh(leg, data, f"{folder}/{leg}"))
    return {
        kind: {leg: {k: min(r[k] for r in each) for k in each[0]} for leg, each in of_kind.items()}
        for kind, of_kind in runs.items()
    }


def _fresh(leg: str, data: str, cache: str | None) -> dict[str, float]:
    names = ("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "XLA_FLAGS")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(names)} | {"JFIT_CACHE": "0"}
    if cache is not None:
        limits = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, **limits}
    command = [sys.executable, "-m", "benchmarks.sweep", "--leg", leg, "--data", data]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sweep", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--measure", choices=("short", "steady", "all"), default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--leg", choices=("sweep", "fits", "hand"), help="internal: one leg of the measure short, in this process"
    )
    parser.add_argument("--data", help="internal: the file with the digits")
    given = parser.parse_args()
    if given.leg:
        print(json.dumps(short(given.leg, given.data)))
        return
    results: dict[str, Any] = {}
    if given.measure in ("short", "all"):
        results |= {f"short, {kind}": legs for kind, legs in measure_short(given.rounds).items()}
    if given.measure in ("steady", "all"):
        results["steady"] = steady(given.rounds)
    for measure, legs in results.items():
        for leg, values in legs.items():
            print(f"{measure:12}{leg:12}" + "".join(f"{name} {value:8.3f}   " for name, value in values.items()))
        for other in ("fits", "hand"):
            if other in legs:
                ratios = {k: v / legs[other][k] for k, v in legs["sweep"].items() if k != "accuracy"}
                print(f"{measure:12}sweep / {other:4}" + "".join(f"{k} {v:8.3f}   " for k, v in ratios.items()))


if __name__ == "__main__":
    main()
