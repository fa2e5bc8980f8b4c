"""Operators on NDArrays, and training steps written with gluon, against jax.numpy, a hand-written JAX step, and MXNet.

    python -m benchmarks.gluon_steps                       # jfit and hand-written JAX
    python -m benchmarks.gluon_steps --mxnet PATH          # and MXNet 1.9.1, in its own Python interpreter
    python -m benchmarks.gluon_steps --json

CPU milliseconds of one training step (forward pass, backward pass, `Trainer.step` of SGD, batch 64, the result awaited) of an
MLP (784-128-64-10) and LeNet, as a Block and hybridized; microseconds of one operator on arrays of 4 x 4, which is its
dispatch; milliseconds to record 100 operations.  "In a loop": milliseconds (wall time, on all cores) of a step in a loop
of 20 whose last result is awaited, as in training, where Python prepares the next steps while the device computes.

Medians; the processes take turns for `--rounds` rounds, and the minimum of each figure over the rounds counts.  Operators of
jfit and of jax.numpy are measured in one process, where they take turns.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

BATCH = 64
LOOP = 20


def median_time(run: Any, repeat: int, number: int = 1, clock: Any = time.process_time) -> float:
    """Return the median seconds of one call, CPU time unless another clock is given."""
    times = []
    for _ in range(repeat):
        start = clock()
        for _ in range(number):
            run()
        times.append((clock() - start) / number)
    return sorted(times)[repeat // 2]


def step_time(step: Any, wait: Any, loops: bool) -> float:
    """Return the milliseconds of a step: CPU time, each awaited; with `loops` wall time, of LOOP steps the last awaited."""
    count, repeat, clock = (LOOP, 10, time.perf_counter) if loops else (1, 40, time.process_time)

    def run() -> None:
        for _ in range(count):
            step()
        wait()

    median_time(run, 3 if loops else 5)  # compiles
    return median_time(run, repeat, clock=clock) / count * 1e3


def gluon_figures(mx: Any, loops: bool) -> dict[str, float]:
    """Measure steps and recording, or with `loops` steps in loops, with MXNet's names (of jfit.mx or of MXNet itself)."""
    import numpy as np

    nn, rs, found = mx.gluon.nn, np.random.RandomState(0), {}

    def mlp() -> list[Any]:
        return [nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10)]

    def lenet() -> list[Any]:
        convolutions = [nn.Conv2D(20, 5, activation="tanh"), nn.MaxPool2D(2, 2), nn.Conv2D(50, 5, activation="tanh")]
        return [*convolutions, nn.MaxPool2D(2, 2), nn.Flatten(), nn.Dense(500, activation="tanh"), nn.Dense(10)]

    for name, layers, shape in (("mlp", mlp, (BATCH, 784)), ("lenet", lenet, (BATCH, 1, 28, 28))):
        x, y = mx.nd.array(rs.rand(*shape)), mx.nd.array(rs.randint(0, 10, BATCH))
        for hybrid in (False, True):
            net = nn.HybridSequential()
            net.add(*layers())
            net.initialize(mx.init.Xavier())
            if hybrid:
                net.hybridize()
            loss, trainer = mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.gluon.Trainer(net.collect_params(), "sgd")

            def step(net: Any = net, loss: Any = loss, trainer: Any = trainer, x: Any = x, y: Any = y) -> None:
                with mx.autograd.record():
                    error = loss(net(x), y)
                error.backward()
                trainer.step(BATCH)

            kind = ("hybridized" if hybrid else "step") + " in a loop" * loops
            found[f"{name} {kind}, ms"] = step_time(step, mx.nd.waitall, loops)
    if loops:
        return found
    a, b = mx.nd.array(rs.rand(4, 4)), mx.nd.array(rs.rand(4, 4))
    a.attach_grad()

    def record() -> None:
        with mx.autograd.record():
            z = a
            for _ in range(50):
                z = mx.nd.relu(z * b)

    record()
    found["recording 100 operations, ms"] = median_time(record, 40) * 1e3
    return found


def jax_figures(loops: bool) -> dict[str, float]:
    """Measure hand-written steps, or with `loops` loops of them."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    rs, found = np.random.RandomState(0), {}

    def weights(*shapes: tuple[int, ...]) -> list[Any]:
        return [jnp.asarray(rs.randn(*s) * 0.05, "float32") for s in shapes]

    def dense(w: Any, b: Any, h: Any) -> Any:
        return h @ w + b

    def mlp(p: Any, x: Any) -> Any:
        h = jax.nn.relu(dense(*p[:2], x))
        return dense(*p[4:], jax.nn.relu(dense(*p[2:4], h)))

    def lenet(p: Any, x: Any) -> Any:
        for w, b in (p[:2], p[2:4]):
            x = lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            n, h, v, c = (x := jnp.tanh(x + b)).shape
            x = x.reshape(n, h // 2, 2, v // 2, 2, c).max((2, 4))  # faster than reduce_window
        return dense(*p[6:], jnp.tanh(dense(*p[4:6], x.reshape(BATCH, -1))))

    nets = {
        "mlp": (mlp, (BATCH, 784), weights((784, 128), (128,), (128, 64), (64,), (64, 10), (10,))),
        "lenet": (
            lenet,
            (BATCH, 28, 28, 1),
            weights((5, 5, 1, 20), (20,), (5, 5, 20, 50), (50,), (800, 500), (500,), (500, 10), (10,)),
        ),
    }
    for name, (net, shape, params) in nets.items():
        x, y = jnp.asarray(rs.rand(*shape), "float32"), jnp.asarray(rs.randint(0, 10, BATCH))

        def losses(p: Any, x: Any, y: Any, net: Any = net) -> Any:
            return -jnp.take_along_axis(jax.nn.log_softmax(net(p, x)), y[:, None], 1)

        @jax.jit
        def step(p: Any, x: Any, y: Any, losses: Any = losses) -> Any:
            value, gradients = jax.value_and_grad(lambda p: losses(p, x, y).sum())(p)
            return jax.tree.map(lambda a, g: a - 0.01 / BATCH * g, p, gradients), value

        @jax.jit
        def full_step(p: Any, x: Any, y: Any, losses: Any = losses) -> Any:
            """Return what gluon gives to the user: the loss of each example, and the gradients."""
            each, pull = jax.vjp(lambda p: losses(p, x, y), p)
            (gradients,) = pull(jnp.ones_like(each))
            return jax.tree.map(lambda a, g: a - 0.01 / BATCH * g, p, gradients), each, gradients

        state = [params]

        def run(step: Any, state: Any = state, x: Any = x, y: Any = y) -> float:
            def once() -> None:
                state[0] = step(state[0], x, y)[0]

            return step_time(once, lambda: jax.block_until_ready(state[0]), loops)

        ending = " in a loop" * loops
        found[f"{name} hybridized{ending}, ms"] = found[f"{name} step{ending}, ms"] = run(step)
        found[f"{name}, losses and gradients returned{ending}, ms"] = run(full_step)
    return found


def operations(arrays: Any, nd: Any) -> dict[str, Any]:
    """Return one call of each operator on two arrays; `nd` has the operators: mx.nd or jax.numpy."""
    a, b = arrays
    return {
        "add": lambda: a + b, "scalar": lambda: a * 2.5, "exp": lambda: nd.exp(a), "dot": lambda: nd.dot(a, b),
        "sum": lambda: nd.sum(a, axis=1), "relu": lambda: nd.relu(a), "slice": lambda: a[1:3],
    }  # fmt: skip


def dispatch_times(*groups: dict[str, Any]) -> list[dict[str, float]]:
    """Return the median CPU microseconds of the calls of each group; the groups take turns, every 100 calls."""
    times: list[dict[str, list[float]]] = [{f"{name}, us": [] for name in group} for group in groups]
    for name in groups[0]:
        for repeat in range(41):
            for group, taken in zip(groups, times, strict=True):
                used = median_time(group[name], 1, 100) * 1e6
                taken[f"{name}, us"] += [used] if repeat else []  # the first ones compile
    return [{name: sorted(values)[len(values) // 2] for name, values in taken.items()} for taken in times]


def _measure(leg: str, loops: bool) -> None:
    import numpy as np

    values = np.random.RandomState(0).rand(2, 4, 4).astype("float32")
    if leg == "hand":
        print(json.dumps({leg: jax_figures(loops)}))
    elif loops:
        mx = importlib.import_module("jfit.mx" if leg == "jfit" else "mxnet")
        print(json.dumps({leg: gluon_figures(mx, loops)}))
    elif leg == "jfit":
        import jax
        import jax.numpy as jnp

        import jfit.mx as mx

        by_hand = types.SimpleNamespace(exp=jnp.exp, dot=jnp.dot, sum=jnp.sum, relu=jax.nn.relu)
        own, hand = dispatch_times(
            operations([mx.nd.array(v) for v in values], mx.nd), operations([jnp.asarray(v) for v in values], by_hand)
        )
        print(json.dumps({leg: gluon_figures(mx, loops) | own, "hand": hand}))
    else:
        import mxnet as mx  # type: ignore[import-not-found]

        (own,) = dispatch_times(operations([mx.nd.array(v) for v in values], mx.nd))
        print(json.dumps({leg: gluon_figures(mx, loops) | own}))


def main(argv: list[str] | None = None) -> None:
    """Measure all legs in processes of their own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mxnet", help="path of a Python interpreter that has Apache MXNet 1.9.1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args(argv)
    pythons = {"jfit": sys.executable, "hand": sys.executable} | ({"mxnet": arguments.mxnet} if arguments.mxnet else {})
    one_core = {**os.environ, "OMP_NUM_THREADS": "1"}
    best: dict[str, dict[str, float]] = {leg: {} for leg in pythons}
    for _ in range(arguments.rounds):
        for (leg, python), kind in itertools.product(pythons.items(), ("--leg", "--loops")):
            command = [python, str(Path(__file__).resolve()), kind, leg]
            environment = one_core if kind == "--leg" else None
            output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            for column, figures in json.loads(output.splitlines()[-1]).items():
                for name, value in figures.items():
                    best[column][name] = min(value, best[column].get(name, value))
    if arguments.json:
        print(json.dumps(best))
        return
    print(f"| | {' | '.join(pythons)} | hand / jfit |" + (" mxnet / jfit |" if arguments.mxnet else ""))
    print("|---|" + "---:|" * (len(pythons) + 1 + bool(arguments.mxnet)))
    for name in best["jfit"] | best["hand"]:
        times = [best[leg].get(name) for leg in pythons]
        cells = [f"{time:.3g}" if time else "" for time in times]
        ratios = [f"{time / times[0]:.2f}" if time and times[0] else "" for time in times[1:]]
        print(f"| {' | '.join([name, *cells, *ratios])} |")


if __name__ == "__main__":
    if sys.argv[1:2] in (["--leg"], ["--loops"]):
        loops = sys.argv[1] == "--loops"
        if hasattr(os, "sched_setaffinity") and not loops:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        _measure(sys.argv[2], loops)
    else:
        main()
