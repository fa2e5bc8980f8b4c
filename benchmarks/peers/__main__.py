"""Training speed, memory and start of jfit and of every installed peer, on W1 to W5.

    python -m benchmarks.peers --name epyc-2core-cpu-peers --python PATH --mxnet PATH   everything: half an hour
    python -m benchmarks.peers --cores 1 ...                                            one core only: 15 minutes
    python -m benchmarks.peers --workload w3 --cores 1 --legs jfit,torch                a part of it
    python -m benchmarks.peers --quick                                                  does it run?

`--name` writes benchmarks/results/NAME.md, .svg and .json; with `--keep`, workloads that are not measured keep their results
in that file. `--readme` also writes the lines in README. benchmarks/README.md describes the method.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from benchmarks.peers import page, runs
from benchmarks.workloads import WORKLOADS

LEGS = (
    "names, separated by commas; default: %(default)s; also: function; "
    "and onednn, which is an experiment: see benchmarks/peers/onednn_fit.py"
)
NAMED = ("function", "onednn")  # legs that are measured only if `--legs` names them


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=runs.all_workloads(), action="append", help="default: all")
    parser.add_argument("--cores", type=int, choices=sorted(runs.CLOCKS), help="1: CPU-seconds, 2: wall time; default: both")
    parser.add_argument("--legs", default=",".join(name for name in runs.ENTRIES if name not in NAMED), help=LEGS)
    parser.add_argument("--malloc", choices=["both", "keep", "default"], default="both", help="allocator settings to measure")
    parser.add_argument("--python", default=sys.executable, help="interpreter of torch, Keras and Flax; default: this one")
    parser.add_argument("--mxnet", help="interpreter that has Apache MXNet 1.9.1; default: MXNet is left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of short epochs (its timings are not meaningful)")
    parser.add_argument("--name", help="write the page, its plot and the figures to benchmarks/results")
    parser.add_argument("--folder", type=Path, default=runs.ROOT / "benchmarks" / "results", help="default: %(default)s")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else ran on the machine")
    parser.add_argument("--keep", action="store_true", help="keep the results of what is not measured now")
    parser.add_argument("--readme", action="store_true", help="write the lines in README")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.legs.split(",")) - set(runs.ENTRIES)
    if unknown:
        parser.error(f"there is no leg {', '.join(sorted(unknown))}; the legs are {', '.join(runs.ENTRIES)}")
    for python in filter(None, (arguments.python, arguments.mxnet)):
        if shutil.which(python) is None:
            parser.error(f"{python} is no program; give the path of a Python interpreter")
    if (arguments.keep or arguments.readme) and not arguments.name:
        parser.error("--keep and --readme need --name")
    return arguments


def _result(arguments: argparse.Namespace, measured: list[dict[str, Any]], file: Path | None) -> dict[str, Any]:
    kept = []
    if arguments.keep and file is not None and file.exists():
        new = {(run["workload"], run["cores"]) for run in measured}
        old = json.loads(file.read_text(encoding="utf-8"))["runs"]
        kept = [run for run in old if (run["workload"], run["cores"]) not in new]
    both = sorted(kept + measured, key=lambda run: (run["cores"], run["workload"]))
    return {"machine": machine(), "quick": arguments.quick, "note": arguments.note, "runs": both}


def main(argv: list[str] | None = None) -> None:
    """Measure what the command line selects, print the page, and write the files."""
    arguments = _arguments(argv)
    pythons = {"jfit": sys.executable, "peers": arguments.python} | ({"mxnet": arguments.mxnet} if arguments.mxnet else {})
    installed, kept = runs.SETTINGS
    settings = {"both": [installed, kept], "keep": [kept], "default": [installed]}[arguments.malloc]
    rounds = 1 if arguments.quick else arguments.rounds
    file = arguments.folder / f"{arguments.name}.json" if arguments.name else None
    measured, result = [], {}
    for cores in [arguments.cores] if arguments.cores else sorted(runs.CLOCKS):
        for name in arguments.workload or runs.all_workloads():
            steps = 2 if arguments.quick else runs.STEPS[name]
            legs = arguments.legs.split(",")
            measured.append(runs.measure(WORKLOADS[name], cores, pythons, legs, settings, rounds, steps))
            result = _result(arguments, measured, file)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(result, indent=1), encoding="utf-8")
    text = page.markdown(result, f"{arguments.name or 'peers'}.svg")
    print(text)
    if file is not None:
        file.with_suffix(".md").write_text(text, encoding="utf-8")
        page.plot(result, file.with_suffix(".svg"))
    if arguments.readme and file is not None:
        page.write_readme(result, file.with_suffix(".md"))


if __name__ == "__main__":
    main()
