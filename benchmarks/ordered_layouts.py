"""Bits of `reduce="ordered"` by processes x devices: one digest for all of them, and for a run that moves from one to another.

Four networks are trained by `jfit.fit` in jobs of several processes with several emulated CPU devices each, on 127.0.0.1. A
digest is the first 16 digits of the SHA-256 of the number of steps, the parameters, the moving statistics and the state of the
optimizer, equal on all ranks. The last line of the table stops at a third and at two thirds of the steps, and resumes with
other processes from the checkpoint. A second table has the milliseconds per step of `ordered` and of `psum`.

    python -m benchmarks.ordered_layouts --markdown benchmarks/results/<machine>-ordered.md

The exit status is 1 if the digests of a network differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LAYOUTS = ("1x1", "1x2", "1x4", "1x8", "2x1", "2x2", "2x4", "4x1", "4x2", "3x1", "3x2")
MOVES = ("1x4", "2x2", "4x1")  # of the run that is stopped and resumed
ROWS, BATCH, EPOCHS = 104, 24, 8  # the last batch of an epoch has 8 rows
STEPS = EPOCHS * -(-ROWS // BATCH)
TIMED = (("1x2", "psum"), ("1x2", "ordered"), ("2x1", "psum"), ("2x1", "ordered"))
SECONDS = 1200  # for a job


# ------------------------------------------------------------------------------------------------ in a process of a job
def networks() -> dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]]:
    """(graph, shape of a row, options of `fit`) by name."""
    import jfit

    sym = jfit.sym

    def head(net: Any) -> Any:
        return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=4, name="fc"), name="softmax")

    def mlp() -> Any:
        net = sym.relu(sym.FullyConnected(sym.Variable("data"), num_hidden=64, name="fc1"))
        return head(sym.Dropout(sym.relu(sym.FullyConnected(net, num_hidden=64, name="fc2")), p=0.3, name="drop"))

    def resnet() -> Any:
        def unit(x: Any, name: str, filters: int) -> Any:
            x = sym.relu(sym.BatchNorm(x, fix_gamma=False, name=f"{name}_bn"))
            return sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=filters, no_bias=True, name=f"{name}_conv")

        net = sym.Convolution(sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=16, name="conv0")
        for number in range(2):
            net = net + unit(unit(net, f"a{number}", 16), f"b{number}", 16)
        return head(sym.Flatten(sym.Pooling(net, global_pool=True, pool_type="avg", kernel=(2, 2))))

    def lstm() -> Any:
        net = sym.transpose(sym.Reshape(sym.Variable("data"), shape=(0, 10, 8)), axes=(1, 0, 2))
        return head(sym.SequenceLast(sym.RNN(net, state_size=32, num_layers=1, mode="lstm", name="lstm")))

    def table() -> Any:
        return head(
            sym.Flatten(sym.Embedding(sym.Variable("data"), input_dim=500, output_dim=16, sparse_grad=True, name="table"))
        )

    cosine = jfit.optim.schedules.cosine(max_update=STEPS, base_lr=0.01)
    return {
        "mlp": (mlp(), (20,), {"optimizer": "adam", "schedule": cosine, "clip_norm": 0.5}),
        "resnet": (resnet(), (3, 16, 16), {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.05, "momentum": 0.9}}),
        "lstm": (lstm(), (80,), {"optimizer": "rmsprop", "micro_batches": 3}),
        "table": (table(), (3,), {"optimizer": "adam"}),
    }


def digest(state: Any) -> str:
    """Digest of a `TrainState`."""
    import jax
    import numpy as np

    hasher = hashlib.sha256()
    for leaf in jax.tree.leaves((state.step, state.params, state.aux, state.opt_state)):
        hasher.update(np.asarray(leaf).tobytes())
    return hasher.hexdigest()[:16]


def train(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Train the networks of a request as one process of a job, and yield a result for each."""
    import numpy as np

    import jfit

    several = int(os.environ["WORLD_SIZE"]) > 1
    if several:
        jfit.distributed.init()
    for name, (net, shape, options) in networks().items():
        if name not in request["networks"]:
            continue
        rng = np.random.default_rng(1)
        x = rng.integers(0, 500, (ROWS, *shape)) if name == "table" else rng.normal(size=(ROWS, *shape))
        data = {"data": x.astype("float32"), "softmax_label": rng.integers(0, 4, ROWS).astype("float32")}
        options |= {"batch_size": BATCH, "seed": 3, "progress": False, "devices": "all", "eval_metric": "acc"}
        times: list[float] = []

        def every_step(event: Any, _: Any, times: list[float] = times) -> None:
            times.append(time.perf_counter())
            if event.step == request["stop"]:
                event.run.stop("moves to another job")

        options["callbacks"] = [jfit.callbacks.Callback(on=every_step, events=("step",), every=1, name="clock")]
        if request["folder"]:
            folder = Path(request["folder"]) / name
            options |= {"checkpoint": folder, "checkpoint_every": request["stop"] or STEPS, "resume": True}
        run = jfit.fit(net, data, num_epoch=EPOCHS, reduce=request["reduce"], **options)
        step = float(np.median(np.diff(times[-21:]))) if len(times) > 21 else None
        loss = run.history.epochs[-1]["loss"] if run.history.epochs else None
        yield {"network": name, "steps": int(run.state.step), "digest": digest(run.state), "step_s": step, "loss": loss}
    if several:
        jfit.distributed.shutdown()


# ------------------------------------------------------------------------------------------------ the processes
def job(layout: str, request: Mapping[str, Any], threads: int) -> list[dict[str, Any]]:
    """Run a request as a job, and return the results, which are equal on all ranks but for the times.

    Args:
        layout: "processes x devices", such as "2x4".
        request: argument of `train`.
        threads: value of NPROC, the number of threads that XLA divides sums over.

    Raises:
        RuntimeError: a process failed, or ranks have other digests.
    """
    processes, devices = map(int, layout.split("x"))
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if "force_host_platform_device_count" not in f]
    base = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": str(threads), "WORLD_SIZE": str(processes)}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(random.SystemRandom().randrange(15000, 30000))}
    base["XLA_FLAGS"] = " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"])
    command = [sys.executable, "-m", "benchmarks.ordered_layouts", "--worker", json.dumps(request)]
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(processes):
            own = {**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    for rank, (process, (_, errors)) in enumerate(zip(started, outputs, strict=True)):
        if process.returncode:
            raise RuntimeError(f"rank {rank} of {layout} failed with status {process.returncode}:\n{errors[-3000:]}")
    by_rank = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in outputs]
    for rank, results in enumerate(by_rank):
        for own, first in zip(results, by_rank[0], strict=True):
            if own["digest"] != first["digest"] or own["loss"] != first["loss"]:
                raise RuntimeError(f"rank {rank} of {layout} has another state of {own['network']} than rank 0: {own}, {first}")
    return by_rank[0]


def moved(names: Sequence[str], threads: int) -> list[dict[str, Any]]:
    """Train a third of the steps in each layout of `MOVES`, and return the results of the last."""
    with tempfile.TemporaryDirectory() as folder:
        stops = [STEPS * (i + 1) // len(MOVES) for i in range(len(MOVES) - 1)] + [0]
        for layout, stop in zip(MOVES, stops, strict=True):
            results = job(layout, {"networks": names, "stop": stop, "folder": folder, "reduce": "ordered"}, threads)
            if any(result["steps"] != (stop or STEPS) for result in results):
                raise RuntimeError(f"{layout} did not stop after {stop or STEPS} steps: {results}")
    return results


def main() -> int:
    """Run the benchmark; see the docstring of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="processes x devices, such as 1x4,2x2")
    parser.add_argument("--networks", default="mlp,resnet,lstm,table")
    parser.add_argument("--threads", type=int, default=8, help="NPROC of all processes")
    parser.add_argument("--no-moves", action="store_true", help="leave out the run that is stopped and resumed")
    parser.add_argument("--no-times", action="store_true", help="leave out the times")
    parser.add_argument("--markdown", type=Path, help="file for the report")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        for result in train(json.loads(options.worker)):
            print(json.dumps(result), flush=True)
        return 0
    names, plain = options.networks.split(","), {"stop": 0, "folder": None}
    digests: dict[str, dict[str, str]] = {}

    def add(title: str, results: list[dict[str, Any]]) -> None:
        digests[title] = {result["network"]: result["digest"] for result in results}
        print(title, digests[title], file=sys.stderr, flush=True)

    for layout in options.layouts.split(","):
        add(layout, job(layout, {"networks": names, "reduce": "ordered", **plain}, options.threads))
    if not options.no_moves:
        add(", then ".join(MOVES), moved(names, options.threads))
    different = [name for name in names if len({row[name] for row in digests.values()}) > 1]
    lines = [f"| processes x devices | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [f"| {title} | {' | '.join(row[name] for name in names)} |" for title, row in digests.items()]
    lines += ["", f"One digest per network: {'no, ' + ', '.join(different) if different else 'yes'}."]
    if not options.no_times:
        lines += ["", *times_table(names, options.threads)]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.markdown:
        options.markdown.write_text(report(text, options.threads))
    return int(bool(different))


def times_table(names: Sequence[str], threads: int) -> list[str]:
    """Lines of the table of the times."""
    lines = [f"| processes x devices, reduce | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for layout, reduce in TIMED:
        results = job(layout, {"networks": names, "stop": 0, "folder": None, "reduce": reduce}, threads)
        steps = {result["network"]: f"{1000 * result['step_s']:.1f}" for result in results}
        lines.append(f"| {layout}, {reduce} | {' | '.join(steps[name] for name in names)} |")
    return lines


def report(text: str, threads: int) -> str:
    """The report of a machine in Markdown."""
    from benchmarks.measure import machine

    found = machine()
    where = f"{found['processor']}, {found['cores']} cores, {found['system']}"
    return (
        "# The same bits on any number of processes and devices\n\n"
        f"{where}; emulated CPU devices; jax {found['versions'].get('jax')}.\n\n"
        f'`jfit.fit(..., reduce="ordered")`, 8 slices, {STEPS} steps of {BATCH} rows, `NPROC={threads}`: SHA-256 of step, '
        "parameters, moving statistics and optimizer state. The times are milliseconds per step, the median of 20 steps, "
        "on a machine that all processes share.\n\n"
        f"    python -m benchmarks.ordered_layouts\n\n{text}"
    )


if __name__ == "__main__":
    sys.exit(main())
