"""One row of the scaling benchmark: training speed of a model on a number of devices, measured in this process.

In a job of several processes, all of them call `measure` with the same request, and all get the same row.
"""

from __future__ import annotations

import hashlib
import json
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jfit import counters, distributed, optim
from jfit.bench import models
from jfit.lowering import lower
from jfit.parallel import DataParallel, collectives, data_parallel
from jfit.parallel.contexts import job_devices
from jfit.parallel.devices import own_part
from jfit.parallel.whole import host_state
from jfit.step import train_step
from jfit.step.reduce import Reduce
from jfit.step.reduce import get as get_reduce
from jfit.step.state import TrainState, init_state

LEARNING_RATE, MOMENTUM = 0.01, 0.9
DIGEST_STEPS = 3  # the digest of the parameters is taken once, after these steps


# no communication of gradients and losses, to measure what it costs
ALONE = Reduce(lambda gradients: None, lambda gradients, sums, local, axis_name: (gradients, sums, local))


class Trainer:
    """A data-parallel training loop over one batch.

    Args:
        bench: the model.
        rows: the global batch.
        devices: list of `jax.Device`.
        rule: how gradients are reduced.
    """

    def __init__(self, bench: models.Benchmark, rows: dict[str, np.ndarray], devices: list[Any], rule: Any) -> None:
        model, optimizer = lower(bench.net), optim.sgd(learning_rate=LEARNING_RATE, momentum=MOMENTUM)
        self.rows, self.devices, self.rule = rows, devices, get_reduce(rule)
        self.step: DataParallel = data_parallel(train_step(model, optimizer), devices, reduce=self.rule)
        self.state: TrainState = self.step.place(init_state(model, optimizer, rows))

    def train(self, steps: int) -> Any:
        """Run a number of steps, and wait for them."""
        for _ in range(steps):
            self.state, out = self.step(self.state, self.rows)
        return jax.block_until_ready(out.loss)

    def dispatch_seconds(self, repeats: int) -> float:
        """Median time that the host needs to dispatch one step, with no earlier work queued on the devices."""
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.state, out = self.step(self.state, self.rows)
            times.append(time.perf_counter() - start)
            jax.block_until_ready((self.state.step, out.loss))
        return statistics.median(times)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Measure one number of devices.

    Args:
        request: "model", "shapes", "devices" (of all processes), "batch" (global), "reduce", "seconds" (of each measured block)
            and "rounds".

    Returns:
        dict of the columns of the report; times are in seconds per step.  In a job, they are those of the slowest process.

    Raises:
        RuntimeError: the processes of a job have different parameters after the first steps.
    """
    bench = models.load(request["model"], request["shapes"])
    count = request["devices"]
    devices = job_devices(count // distributed.num_processes())
    rows = bench.rows(request["batch"])
    compiled, started = counters.compile_seconds(), time.perf_counter()
    trainer = Trainer(bench, rows, devices, request["reduce"])
    trainer.train(1)
    first, compiled = time.perf_counter() - started, counters.compile_seconds() - compiled
    trainer.train(DIGEST_STEPS - 1)
    result: dict[str, Any] = {"devices": count, "batch": request["batch"], "digest": digest(trainer.state, devices)}
    if distributed.num_processes() > 1:
        hosts = distributed.exchange(socket.gethostname(), "names of hosts")
        result |= {"processes": distributed.num_processes(), "hosts": len(set(hosts))}
    result |= {"compile_s": _slowest(compiled), "first_step_s": _slowest(first), **_compiled_facts(trainer)}
    loops: dict[str, Callable[[int], Any]] = {"jfit": trainer.train}
    if count > 1 and request["reduce"] == "psum":
        loops["alone"] = Trainer(bench, rows, devices, ALONE).train
    times = _interleaved(loops, request["seconds"], request["rounds"])
    seconds = {name: statistics.median(values) for name, values in times.items()}
    host = _slowest(trainer.dispatch_seconds(max(5, min(50, round(request["seconds"] / seconds["jfit"])))))
    result |= {"step_s": seconds["jfit"], "samples_per_s": request["batch"] / seconds["jfit"], "host_s": host}
    if "alone" in loops:
        result["collective_s"] = statistics.median(a - b for a, b in zip(times["jfit"], times["alone"], strict=True))
    return result | {"platform": devices[0].platform, "device": devices[0].device_kind}


def _slowest(seconds: float) -> float:
    """The longest time of all processes."""
    return max(distributed.exchange(seconds, "times of the benchmark"))


def digest(state: TrainState, devices: Sequence[Any]) -> str:
    """Return the first 16 digits of the SHA-256 of parameters, auxiliary states and optimizer state, the same in all processes.

    Args:
        state: on the devices.
        devices: list of `jax.Device`, in a job of several processes those of all.

    Raises:
        RuntimeError: the processes of a job have different ones.
    """
    sha, whole = hashlib.sha256(), host_state(state, devices)
    for leaf in jax.tree.leaves((whole.params, whole.aux, whole.opt_state)):
        sha.update(np.asarray(leaf).tobytes())
    digests = distributed.exchange(sha.hexdigest()[:16], "digests of the benchmark")
    if len(set(digests)) > 1:
        by_rank = ", ".join(f"rank {rank}: {text}" for rank, text in enumerate(digests))
        problem = f"the processes have different parameters after {DIGEST_STEPS} steps ({by_rank})"
        raise RuntimeError(f"{problem}; check that all have the same versions of jax and jfit, and the same kind of device")
    return digests[0]


def _interleaved(loops: dict[str, Callable[[int], Any]], seconds: float, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each loop in each round; in a round, each runs about `seconds`, and another one comes first."""
    names, steps = list(loops), {}
    for name, train in loops.items():
        train(2)  # compiles
        start = time.perf_counter()
        train(3)
        steps[name] = max(3, round(3 * seconds / _slowest(time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            distributed.barrier("a block of the benchmark")
            start = time.perf_counter()
            loops[name](steps[name])
            times[name].append(_slowest(time.perf_counter() - start) / steps[name])
    return times


def _compiled_facts(trainer: Trainer) -> dict[str, Any]:
    """Collectives and memory of the compiled program of a step; of an accelerator, its peak so far.

    Empty for reduce="ordered", whose step is several programs.
    """
    facts: dict[str, Any] = {}
    if trainer.rule.slices is None:
        compiled = trainer.step.lower(trainer.state, trainer.rows).compile()
        sent, memory = collectives(compiled).total, compiled.memory_analysis()
        facts = {"collectives": sent.count, "collective_bytes": sent.wire_bytes}
        if memory is not None:
            sizes = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
            facts["memory_bytes"] = sizes - memory.alias_size_in_bytes
    stats = trainer.devices[own_part(trainer.devices)][0].memory_stats()
    return facts | ({"memory_bytes": stats["peak_bytes_in_use"]} if stats else {})


def main(arguments: list[str]) -> int:
    """Measure one number of devices, and print the result as a line of JSON, in a job once.

    Args:
        arguments: the request as JSON, see `measure`.  Its "join" has the arguments of `jfit.distributed.init` with which this
            process joins a job.

    Returns:
        Exit status.
    """
    request = json.loads(arguments[0])
    if join := request.pop("join", None):
        distributed.init(**join)
    result = measure(request)
    if distributed.is_main():
        print(json.dumps(result), flush=True)
    return 0
