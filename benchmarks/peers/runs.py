"""The legs, each in a process of its own, and their rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import summary
from benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).resolve().parent.parent.parent
# Steps of an epoch, so that it takes about a second
STEPS = {"w1": 800, "w2": 16, "w3": 3, "w4": 4, "w5": 2}
CLOCKS = {1: "cpu_s", 2: "wall_s"}
SETTINGS = ("default malloc", "memory kept")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A leg: its title, its module and options of `begin`, the workloads it has, and the interpreter that runs it."""

    title: str
    module: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    workloads: tuple[str, ...] = tuple(STEPS)
    python: str = "jfit"  # "jfit", "peers", or "mxnet"


ENTRIES = {
    "jfit": Entry("jfit.fit", "jfit_fit"),
    "function": Entry("jfit.fit of the hand-written function", "jfit_fit", {"attention": "einsum"}, ("w1", "w2")),
    "jfit.mx": Entry("jfit.mx Module.fit", "module_fit", {"package": "jfit.mx"}, ("w4", "w5")),
    "onednn": Entry("jfit.fit, oneDNN", "onednn_fit", workloads=("w2", "w3")),
    "hand": Entry("hand-written JAX", "hand"),
    "torch": Entry("torch eager", "torch_eager", python="peers"),
    "keras": Entry("Keras 3 on JAX", "keras_fit", python="peers"),
    "nnx": Entry("Flax NNX", "nnx", python="peers"),
    "mxnet": Entry("MXNet Module.fit", "module_fit", {"package": "mxnet"}, python="mxnet"),
}


class Ended(Exception):
    """A process ended before it answered; the message is the end of what it wrote."""


class Process:
    """A leg in its own process.

    Args:
        entry: the leg.
        python: path of the interpreter.
        workload: what to train, with the rows of an epoch.
        environment: variables of the process.
        cores: cores to be pinned to; none: it is not pinned.
        keep_memory: whether the allocator keeps freed memory; `import jfit` makes it do so if the environment allows it.
    """

    def __init__(
        self,
        entry: Entry,
        python: str,
        workload: Workload,
        environment: dict[str, str],
        cores: Sequence[int] = (),
        keep_memory: bool = False,
    ) -> None:
        spec = {"module": entry.module, "options": entry.options, "workload": dataclasses.asdict(workload)}
        spec |= {"cores": cores, "keep_memory": keep_memory, "begun": time.time()}
        command = [python, "-m", "benchmarks.peers.child", json.dumps(spec)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors, "text": True}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer of the process."""
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            self._errors.seek(0)
            raise Ended((self._errors.read().strip().splitlines() or [f"exit status {self._process.wait()}"])[-1])
        return json.loads(line)

    def train(self) -> dict[str, Any]:
        """Train an epoch; returns metric, CPU and wall seconds, page faults, and the peak of the memory."""
        with contextlib.suppress(BrokenPipeError):  # `answer` says why the process has ended
            self._process.stdin.write("train\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._errors.close()


def environment() -> dict[str, str]:
    """The variables of this process, without those that change what is measured."""
    # Emulated devices would split the thread pools; a compile cache would hide the start.
    left_out = ("JAX_COMPILATION_CACHE_DIR", "GLIBC_TUNABLES", "LD_PRELOAD", "JFIT_MALLOC")
    kept = {n: value for n, value in os.environ.items() if n not in left_out and not n.startswith("MALLOC_")}
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in f]
    return kept | {"XLA_FLAGS": " ".join(flags), "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT), "JFIT_CACHE": "0"}


def _environment(cores: int, keep_memory: bool) -> dict[str, str]:
    on_cpu = environment() | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(cores)}
    return on_cpu if keep_memory else {**on_cpu, "JFIT_MALLOC": "0"}


@contextlib.contextmanager
def _processes() -> Iterator[dict[tuple[str, str], Process]]:
    """A dict of processes, which are closed at the end."""
    processes: dict[tuple[str, str], Process] = {}
    try:
        yield processes
    finally:
        for process in processes.values():
            process.close()


def say(text: str) -> None:
    """Write what is measured now to stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def measure(
    workload: Workload, cores: int, pythons: dict[str, str], legs: list[str], settings: list[str], rounds: int, steps: int
) -> dict[str, Any]:
    """Measure the legs on a workload: all processes first train an epoch, then they take turns.

    Args:
        workload: what to train.
        cores: 1 or 2.
        pythons: paths of the interpreters, by `Entry.python`; legs without an interpreter are left out.
        legs: names of legs.
        settings: a selection of SETTINGS.
        rounds: number of measured epochs of each process.
        steps: steps of an epoch.

    Returns:
        A dict with "legs": {leg: {setting: record}}, a record being {"missing": reason} or the measured values.
    """
    available = sorted(os.sched_getaffinity(0))
    if len(available) < cores:
        raise SystemExit(f"{cores} cores requested, this process may use {len(available)}.")
    records: dict[str, dict[str, Any]] = {}
    with _processes() as processes:
        for leg in legs:
            entry = ENTRIES[leg]
            if workload.name not in entry.workloads or entry.python not in pythons:
                continue
            for setting in settings:
                say(f"{workload.name}, {cores} core(s): {leg}, {setting}")
                kept = setting == "memory kept"
                where = _environment(cores, kept), available[:cores], kept
                process = Process(entry, pythons[entry.python], workload.resized(steps * workload.batch), *where)
                processes[leg, setting] = process
                records.setdefault(leg, {})[setting] = record = answer(process.answer)
                if "missing" in record:
                    processes.pop((leg, setting)).close()
                    say(record["missing"])
        epochs = _rounds(processes, records, rounds)
    for (leg, setting), measured in epochs.items():
        if "missing" not in records[leg][setting]:
            _complete(records[leg][setting], measured, workload, cores, steps)
    return {
        "workload": workload.name,
        "cores": cores,
        "clock": CLOCKS[cores],
        "steps": steps,
        "rounds": rounds,
        "date": date.today().isoformat(),
        "legs": records,
    }


def answer(ask: Any) -> dict[str, Any]:
    """Call a method of `Process`; {"missing": reason} if the process has ended."""
    try:
        return ask()
    except Ended as reason:
        return {"missing": f"failed: {reason}"}


def _rounds(processes: dict[tuple[str, str], Process], records: dict[str, Any], rounds: int) -> dict[tuple[str, str], Any]:
    """Epochs of every process, interleaved; each round starts with the next process."""
    epochs: dict[tuple[str, str], list[Any]] = {key: [] for key in processes}
    for r in range(rounds):
        keys = list(processes)
        start = r % max(len(keys), 1)
        for leg, setting in keys[start:] + keys[:start]:
            epoch = answer(processes[leg, setting].train)
            if "missing" in epoch:
                records[leg][setting] = epoch
                processes.pop((leg, setting)).close()
                say(f"{leg}, {setting}: {epoch['missing']}")
            epochs[leg, setting].append(epoch)
        say(f"round {r + 1} of {rounds}: {sum(e[-1].get('wall_s', 0) for e in epochs.values()):.0f} s")
    return epochs


def _complete(record: dict[str, Any], epochs: list[Any], workload: Workload, cores: int, steps: int) -> None:
    rows, clock = steps * workload.batch, CLOCKS[cores]
    record["rates"] = [rows / epoch[clock] for epoch in epochs]
    record["last"] = epochs[-1]["metric"]
    record["learned"] = bool(workload.learned(record["metric"], record["last"]))
    record["peak_mb"] = max(epoch["peak_mb"] for epoch in epochs)
    record["faults"] = sorted(epoch["faults"] for epoch in epochs)[len(epochs) // 2] / steps
    # What a process takes to the end of its first step: the first epoch without its other steps
    step = sorted(epoch["cpu_s"] for epoch in epochs)[len(epochs) // 2] / steps
    record["start_cpu_s"] = record.pop("cpu_s") - (steps - 1) * step


def ratio(run: dict[str, Any], leg: tuple[str, str], other: tuple[str, str]) -> dict[str, float] | None:
    """Median and quartiles of the ratios of the rates of two legs within a round; None if one was not measured."""
    first, second = (run["legs"].get(name, {}).get(setting, {}).get("rates") for name, setting in (leg, other))
    if not first or not second:
        return None
    return summary(np.divide(first, second))


def all_workloads() -> list[str]:
    """Names of the workloads that are compared."""
    return [name for name in WORKLOADS if name in STEPS]
