"""How long the first training step takes: fresh processes, cold and with compiled programs on disk, against other frameworks.

    python -m benchmarks.start                              # all networks and frameworks, one core
    python -m benchmarks.start --net mlp --rounds 3
    python -m benchmarks.start --compile all                # only training steps: jfit's against hand-written JAX
    python -m benchmarks.start --fits                       # only a first fit, one more, one with a callback, and by hand
    python -m benchmarks.start --imports                    # only `import jfit`, `import jfit.mx`, optax, jax, ...
    python -m benchmarks.start --scripts [--mxnet PATH]     # only MXNet scripts: under jfit.mx, and MXNet's own interpreter
    JFIT_ROLL=0 python -m benchmarks.start --script buckets # one script; every node of unrolled networks compiled separately

Each figure is the minimum over the rounds; the legs take turns within a round.  "cold": an empty compile cache.  "warm": a
second process with the cache that the first one wrote (JAX's cache for every framework on JAX).  CPU seconds of all threads.
Bytecode of Python modules is on the disk, as pip leaves it: the processes of the first round write what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.first_step import main, measure
from benchmarks.workloads import KINDS

# leg -> (module in benchmarks.peers, package that it needs)
LEGS = {
    "jfit": ("jfit_fit", "jfit"),
    "hand-written JAX": ("hand", "jax"),
    "Flax NNX": ("nnx", "flax"),
    "Keras on JAX": ("keras_fit", "keras"),
    "torch": ("torch_eager", "torch"),
}
# The scripts of `benchmarks.first_step.scripts` with their arguments
SCRIPTS = (
    ("unrolled", "10"),
    ("unrolled", "30"),
    ("unrolled", "60"),
    ("buckets",),
    ("ocr", "80"),
    ("tagger", "30"),
    ("text_cnn", "10000"),
)
SCRIPT_NAMES = list(dict.fromkeys(name for name, *_ in SCRIPTS))
NETS = ["mlp", "lenet", "resnet20", "lstm", "transformer"]
IMPORTS = ("numpy", "jax", "optax", "jfit", "jfit.mx", "flax.nnx", "keras", "torch")
STEPS = ("mlp", "lenet", "resnet20", "lstm", "transformer", "resnet50")  # networks of benchmarks.first_step.programs
COLUMNS = ("import", "first step", "ten steps", "again")


def _fresh(command: list[str], folder: str | None, core: int) -> dict[str, Any]:
    """Run a command in a new process on one core; `folder` is its compile cache, None: none."""
    names = ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "JFIT_CACHE", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"KERAS_BACKEND": "jax", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment |= {"JFIT_CACHE": "0"} if folder is None else {"JAX_COMPILATION_CACHE_DIR": folder}
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})  # children inherit it
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def _folders(count: int) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield [os.path.join(folder, str(number)) for number in range(count)]


def _here(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.start", *arguments]


def _least(rounds: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {name: [min(r[name][clock] for r in rounds) for clock in (0, 1)] for name in rounds[0]}


def networks(kinds: list[str], legs: list[str], rounds: int, core: int) -> dict[str, Any]:
    """Measure every leg on every network; return {kind: {leg: {"cold": {step: [wall, CPU]}, "warm": ...}}}."""
    found: dict[str, Any] = {}
    for kind in kinds:
        measured: dict[str, dict[str, list[Any]]] = {leg: {"cold": [], "warm": []} for leg in legs}
        for _ in range(rounds):
            with _folders(len(legs)) as folders:
                for temperature in ("cold", "warm"):
                    for leg, folder in zip(legs, folders, strict=True):
                        measured[leg][temperature].append(_fresh(_here("--leg", leg, "--net", kind), folder, core))
        found[kind] = {leg: {t: _least(values) for t, values in both.items()} for leg, both in measured.items()}
        _print_network(kind, found[kind])
    return found


def _print_network(kind: str, legs: dict[str, Any]) -> None:
    print(f"\n{kind}, batch {KINDS[kind].batch}: CPU seconds, one core")
    print("| | " + " | ".join(f"{column}, {t}" for t in ("cold", "warm") for column in COLUMNS) + " |")
    print("|---|" + "---:|" * (2 * len(COLUMNS)))
    for leg, both in legs.items():
        values = [f"{both[t][column][1]:.2f}" for t in ("cold", "warm") for column in COLUMNS]
        print(f"| {leg} | " + " | ".join(values) + " |", flush=True)


def imports(names: list[str], rounds: int, core: int) -> dict[str, list[float]]:
    """Measure imports in fresh processes that take turns; return {name: [wall, CPU]}, the minima."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(_fresh(_here("--import", name), None, core))
    least = {name: _least(values)["import"] for name, values in found.items()}
    print("\n| import | wall s | CPU s |\n|---|---:|---:|")
    for name, (wall, cpu) in least.items():
        print(f"| {name} | {wall:.3f} | {cpu:.3f} |")
    return least


def scripts(names: list[str], rounds: int, core: int, mxnet: str | None) -> dict[str, Any]:
    """Measure MXNet scripts under jfit.mx, cold and warm, and under MXNet's interpreter `mxnet` (a path, or None)."""
    path, found = os.path.join(os.path.dirname(__file__), "first_step", "scripts.py"), {}
    for script in [s for s in SCRIPTS if s[0] in names]:
        legs: dict[str, list[Any]] = {"jfit.mx, cold": [], "jfit.mx, warm": []} | ({"MXNet": []} if mxnet else {})
        for _ in range(rounds):
            with _folders(1) as (folder,):
                for leg, values in legs.items():
                    jfit = leg != "MXNet"
                    command = [sys.executable if jfit else str(mxnet), path, "jfit.mx" if jfit else "mxnet", *script]
                    values.append(_fresh(command, folder, core))
        found[" ".join(script)] = least = {leg: _least(values) for leg, values in legs.items()}
        for leg, parts in least.items():
            shown = ", ".join(f"{part} {cpu:.2f}" for part, (_, cpu) in parts.items())
            print(f"{' '.join(script)}, {leg}: {shown} (CPU s)", flush=True)
    return found


def steps(kinds: list[str], rounds: int, core: int) -> dict[str, Any]:
    """Lower and compile steps of jfit and by hand, in turns; return {kind: {side: {part: [wall, CPU]}}}, the minima."""
    print("\n| CPU s | lower: jfit | by hand | compile: jfit | by hand | ratio of compile |\n|---|---:|---:|---:|---:|---:|")
    found: dict[str, Any] = {}
    for kind in kinds:
        measured: dict[str, list[Any]] = {"jfit": [], "hand": []}
        for _ in range(rounds):
            for side, values in measured.items():
                values.append(_fresh(_here("--step", kind, side), None, core))
        found[kind] = least = {side: _least(values) for side, values in measured.items()}
        cpu = [least[side][part][1] for part in ("lower", "compile") for side in measured]
        print(f"| {kind} | " + " | ".join(f"{seconds:.2f}" for seconds in cpu) + f" | {cpu[2] / cpu[3]:.2f} |", flush=True)
    return found


def fits(rounds: int, core: int) -> dict[str, Any]:
    """Measure `benchmarks.first_step.first_fit` in turns; return {temperature: {side: {step: [wall, CPU]}}}, the minima."""
    sides, found = ("jfit", "hand"), {}
    measured: dict[str, dict[str, list[Any]]] = {t: {side: [] for side in sides} for t in ("cold", "warm")}
    for _ in range(rounds):
        with _folders(len(sides)) as folders:
            for temperature in measured:
                for side, folder in zip(sides, folders, strict=True):
                    measured[temperature][side].append(_fresh(_here("--fit", side), folder, core))
    print("\n| CPU s | cold: jfit | by hand | ratio | warm: jfit | by hand |\n|---|---:|---:|---:|---:|---:|")
    found = {t: {side: _least(values) for side, values in both.items()} for t, both in measured.items()}
    for step in found["cold"]["jfit"]:
        cold, warm = ([found[t][side][step][1] for side in sides] for t in measured)
        print(
            f"| {step} | {cold[0]:.2f} | {cold[1]:.2f} | {cold[0] / cold[1]:.2f} | {warm[0]:.2f} | {warm[1]:.2f} |", flush=True
        )
    return found


def _available(package: str) -> bool:
    return importlib.util.find_spec(package.split(".")[0]) is not None


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, action="append", help="default: all")
    parser.add_argument("--legs", default=",".join(LEGS), help="frameworks, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--imports", action="store_true", help="measure imports only")
    parser.add_argument("--fits", action="store_true", help="measure a first fit, one more, and one with a callback only")
    parser.add_argument("--scripts", action="store_true", help="measure MXNet scripts only")
    parser.add_argument("--script", choices=sorted(SCRIPT_NAMES), action="append", help="measure this script only")
    parser.add_argument("--compile", action="append", choices=["all", *STEPS], help="measure training steps only")
    parser.add_argument("--mxnet", help="path of a Python interpreter that has Apache MXNet 1.9.1")
    parser.add_argument("--core", type=int, default=0, help="number of the core that every process is pinned to")
    parser.add_argument("--json", help="file to write all figures to")
    parser.add_argument("--leg", help=argparse.SUPPRESS)  # in the measured processes
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--import", dest="package", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def run(argv: list[str] | None = None) -> None:
    """Measure one leg in this process (`--leg`, `--import`), or start the processes and print the tables."""
    arguments = _arguments(argv)
    if arguments.step:
        return importlib.import_module("benchmarks.first_step.programs").main(*arguments.step)
    if arguments.fit:
        return importlib.import_module("benchmarks.first_step.first_fit").main(arguments.fit)
    if arguments.leg or arguments.package:
        if arguments.package:
            return measure({"import": lambda: importlib.import_module(arguments.package)})
        name = LEGS[arguments.leg][0]
        options = {"slices": 1} if name == "hand" else {}  # what takes least to compile
        return main(arguments.net[0], lambda: importlib.import_module(f"benchmarks.peers.{name}"), options)
    legs = [leg for leg in arguments.legs.split(",") if _available(LEGS[leg][1])]
    rounds, core = arguments.rounds, arguments.core
    chosen = arguments.script or (SCRIPT_NAMES if arguments.scripts else [])
    every = not (arguments.imports or chosen or arguments.net or arguments.compile or arguments.fits)
    found: dict[str, Any] = {}
    if arguments.imports or every:
        found["imports"] = imports([n for n in IMPORTS if _available(n)], rounds, core)
    if arguments.net or every:
        found |= networks(arguments.net or NETS, legs, rounds, core)
    if arguments.fits or every:
        found["fits"] = fits(rounds, core)
    if arguments.compile or every:
        some = arguments.compile or ["all"]
        found["compile"] = steps(list(STEPS) if "all" in some else some, rounds, core)
    if chosen or every:
        found["scripts"] = scripts(chosen or SCRIPT_NAMES, rounds, core, arguments.mxnet)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    return None


if __name__ == "__main__":
    run()
