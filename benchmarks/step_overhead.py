"""Training speed of jfit's loop, compared with a hand-written JAX loop.

    python -m benchmarks.step_overhead --json out.json --markdown out.md     everything (tens of minutes)
    python -m benchmarks.step_overhead --workload w1 --cores 1               one workload, one measure
    python -m benchmarks.step_overhead --quick                               smoke test (its timings are not meaningful)

Each workload is measured in two fresh processes: pinned to one core (samples per CPU-second) and on two (wall time).
benchmarks/README.md describes the legs (implementations compared) and the method.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))  # makes `benchmarks` importable when this file runs as a script

from benchmarks import measure, report  # noqa: E402
from benchmarks.workloads import WORKLOADS, Workload  # noqa: E402

NAMES = ["w1", "w2", "w3"]
QUICK_ROWS = 640
_IMPORT_PROGRAM = "import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.step_overhead", description="jfit's step against hand-written JAX.")
    parser.add_argument("--workload", choices=NAMES, action="append", help="default: all")
    parser.add_argument("--cores", type=int, choices=sorted(report.CORES), help="1: CPU-seconds, 2: wall time; default: both")
    parser.add_argument("--legs", help="comma-separated names; default: all but the hand-written variants")
    parser.add_argument("--variants", action="store_true", help="also measure the hand-written loop's other forms")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, help="rows of data, instead of the workload's default")
    parser.add_argument("--quick", action="store_true", help=f"one round over {QUICK_ROWS} rows")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--markdown", type=Path, help="write the tables here (they are printed anyway)")
    parser.add_argument("--measure-here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.rounds, arguments.rows = 1, arguments.rows or QUICK_ROWS
    return arguments


class Leg:
    """A leg with the events that jfit counts in its epochs, and its accuracy in the last one."""

    def __init__(self, name: str, workload: Workload) -> None:
        entry = report.ENTRIES[name]
        self.workload, self.counts, self.accuracy = workload, {"compiles": 0, "host_syncs": 0}, 0.0
        self._train = importlib.import_module(f"benchmarks.peers.{entry.module}").begin(workload, **entry.options).train
        self._jfit = entry.module != "hand"
        self.setup_counts = self._counted()

    def _counted(self) -> dict[str, int]:
        if not self._jfit:
            self.accuracy = self._train()
            return {}
        from jfit import counters

        with counters.counted() as events:
            self.accuracy = self._train()
        return dict(events)

    def epoch(self) -> int:
        """Train one shuffled epoch."""
        events = self._counted()
        self.counts = {
            "compiles": self.counts["compiles"] + events.get("compiles", 0),
            "host_syncs": events.get("host_syncs", 0),
        }
        return self.workload.rows


def _set_up(names: list[str], workload: Workload, cores: int) -> tuple[dict[str, Leg], dict[str, Any]]:
    legs: dict[str, Leg] = {}
    records: dict[str, Any] = {}
    for name in names:
        print(f"  {workload.name}, {cores} core(s): setting up {name}", file=sys.stderr, flush=True)
        records[name] = {"title": report.ENTRIES[name].title}
        try:
            legs[name] = Leg(name, workload)
        except ImportError as error:
            if error.name not in report.LOADERS:
                raise
            records[name]["skipped"] = f"{error.name} is not installed"
    return legs, records


def measure_here(workload: Workload, cores: int, names: list[str], rounds: int, *, quick: bool) -> dict[str, Any]:
    """Measure one workload in this process, pinned to `cores` cores; `names` are the legs."""
    pinned = measure.pin(cores)
    legs, records = _set_up(names, workload, cores)
    epochs = measure.interleave(dict(legs), rounds)
    clock = report.CORES[cores]
    for name, leg in legs.items():
        record = records[name]
        record["accuracy"] = float(leg.accuracy)
        record["learned"] = quick or workload.learned(0, leg.accuracy)  # a failed leg does not discard the others' results
        if not record["learned"]:
            print(f"  {name}: training accuracy {record['accuracy']:.3f}", file=sys.stderr)
        record["rates"] = measure.rates(epochs[name], clock).tolist()
        record["rate"] = measure.summary(measure.rates(epochs[name], clock))
        if "hand" in legs:
            record["ratio"] = measure.summary(measure.rates(epochs[name], clock) / measure.rates(epochs["hand"], clock))
        if leg.setup_counts:
            record["steps"], record["setup_counts"], record["counts"] = workload.steps, leg.setup_counts, leg.counts
    head = {
        "workload": workload.name,
        "rows": workload.rows,
        "cores": cores,
        "pinned": pinned,
        "clock": clock,
        "rounds": rounds,
    }
    return {**head, "legs": records}


def _environment() -> dict[str, str]:
    # Emulated devices would split the thread pools.
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in f]
    return {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}


def _in_fresh_process(arguments: argparse.Namespace, workload: str, cores: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "run.json"
        command = [sys.executable, "-m", "benchmarks.step_overhead", "--measure-here", "--workload", workload]
        command += ["--cores", str(cores), "--rounds", str(arguments.rounds), "--json", str(target)]
        command += ["--rows", str(arguments.rows)] if arguments.rows else []
        command += ["--legs", arguments.legs] if arguments.legs else []
        command += ["--quick"] if arguments.quick else []
        command += ["--variants"] if arguments.variants else []
        subprocess.run(command, check=True, cwd=ROOT, env=_environment())
        return json.loads(target.read_text(encoding="utf-8"))


def _ratio(run: dict[str, Any], leg: str, rival: str) -> dict[str, float]:
    pairs = zip(run["legs"][leg]["rates"], run["legs"][rival]["rates"], strict=True)
    return measure.summary(np.array([a / b for a, b in pairs]))


def import_times(repeats: int) -> dict[str, Any] | None:
    """Median seconds of `import jfit` and `import optax` in alternating fresh processes; None if jfit is not in this tree."""
    if not (ROOT / "jfit" / "__init__.py").exists():
        return None
    seconds: dict[str, list[float]] = {"jfit": [], "optax": []}
    for _ in range(repeats):
        for name, values in seconds.items():
            command = [sys.executable, "-c", _IMPORT_PROGRAM.format(name=name)]
            done = subprocess.run(command, check=True, cwd=ROOT, env=_environment(), capture_output=True, text=True)
            values.append(float(done.stdout))
    jfit_s, optax_s = (float(np.median(seconds[n])) for n in ("jfit", "optax"))
    return {"jfit_s": jfit_s, "optax_s": optax_s, "passed": jfit_s <= optax_s + report.MOST_IMPORT_EXTRA_S}


def main(argv: list[str] | None = None) -> None:
    """Run the measurements selected on the command line, print the tables, and write the files."""
    arguments = _arguments(argv)
    workloads = arguments.workload or NAMES
    if arguments.measure_here:
        workload = WORKLOADS[workloads[0]]
        workload = workload.resized(arguments.rows) if arguments.rows else workload
        names = arguments.legs.split(",") if arguments.legs else report.names(workload.name, variants=arguments.variants)
        result = measure_here(workload, arguments.cores, names, arguments.rounds, quick=arguments.quick)
        arguments.json.write_text(json.dumps(result), encoding="utf-8")
        return
    cores = [arguments.cores] if arguments.cores else sorted(report.CORES)
    runs = [_in_fresh_process(arguments, w, c) for w in workloads for c in cores]
    result = {
        "machine": measure.machine(),
        "quick": arguments.quick,
        "runs": runs,
        "bars": report.verdicts(runs, _ratio),
        "imports": import_times(1 if arguments.quick else 5),
    }
    page = report.markdown(result)
    print(page)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
        arguments.markdown.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
