"""Faults injected into training runs and files, and what became of them.

    python -m benchmarks.faults --output benchmarks/results/NAME.md   200 kills, 200 SIGTERM, 200 Ctrl-C, 10,000 damaged files
    python -m benchmarks.faults --short                               20 signals, 300 files
    python -m benchmarks.faults --signals 60 --files 2000             other numbers
    python -m benchmarks.faults --case "Ctrl-C | fit | 1 | 17393 + 46 line"      one case again
    python -m benchmarks.faults --case "damage | .params | 17"

A signal is sent at a random moment: a line of jfit's code, or a time.  The script is then resumed, and must end with the bits
of the script that was not stopped.  Moments and damages depend on --seed; what is at a time depends on the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults import table
from benchmarks.faults.damage import SHARES
from benchmarks.faults.injections import INJECTIONS
from benchmarks.faults.pool import Died, Worker, run_all
from benchmarks.faults.results import Damaged, Injected, Results
from benchmarks.faults.signals import Case, cases, play
from benchmarks.faults.victims import VICTIMS

EVENTS = ("kill", "SIGTERM", "Ctrl-C")
FILES_PER_JOB = 100
SHORT = {"kill": 3, "SIGTERM": 8, "Ctrl-C": 9}
SHORT_FILES = 300


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit status, 1 if there was a failure."""
    given = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="jfit-faults-", dir=given.folder))
    started, cpu = time.monotonic(), _cpu_seconds()
    results = Results(given.seed, _command(given))
    try:
        if given.case:
            _one(given.case, given.seed, folder, results)
        else:
            _all(given, folder, results)
    finally:
        if not results.failures:
            shutil.rmtree(folder, ignore_errors=True)
    results.seconds, results.cpu_seconds = time.monotonic() - started, _cpu_seconds() - cpu
    text = table.failures(results) if given.case else table.markdown(results)
    print(text)
    if given.output:
        Path(given.output).write_text(text, encoding="utf-8")
    return 1 if results.failures else 0


def _all(given: argparse.Namespace, folder: Path, results: Results) -> None:
    until = time.monotonic() + 60 * given.minutes
    signals = SHORT if given.short else {event: int(given.signals) for event in EVENTS}
    files = SHORT_FILES if given.short else given.files
    references: dict[str, dict[str, Any]] = {}
    worker = Worker()
    for entry in VICTIMS:
        references[entry] = worker.ask("calibrate", entry=entry, folder=str(folder / f"whole {entry}"))
        if "error" in references[entry]:
            raise RuntimeError(f"{entry} fails without faults: {references[entry]['error']}\n{references[entry]['trace']}")
    worker.close()
    jobs: list[Callable[[Worker], None]] = []
    for event in EVENTS:
        results.cases += cases(event, signals[event], given.seed, references)
    for kind, share in SHARES.items():
        count = max(round(files * share), 1)
        for first in range(0, count, FILES_PER_JOB):
            damaged = Damaged(kind, first, min(FILES_PER_JOB, count - first), given.seed)
            results.damaged.append(damaged)
            jobs.append(_damage_job(damaged, folder / f"files-{len(jobs)}"))
    for name in INJECTIONS:
        injected = Injected(name)
        results.injected.append(injected)
        jobs.append(_injection_job(injected, folder / f"other-{len(jobs)}"))
    for number, case in enumerate(results.cases):
        jobs.append(_case_job(case, references[case.entry], folder / f"case-{number}"))
    results.processes = run_all(jobs, given.workers, until) + 1


def _case_job(case: Case, reference: dict[str, Any], folder: Path) -> Callable[[Worker], None]:
    return lambda worker: play(case, worker, reference, folder)


def _damage_job(damaged: Damaged, folder: Path) -> Callable[[Worker], None]:
    def job(worker: Worker) -> None:
        request = {"kind": damaged.kind, "first": damaged.first, "count": damaged.count, "seed": damaged.seed}
        answer: dict[str, Any]
        try:
            answer = worker.ask("damage", folder=str(folder), **request)
        except Died as error:
            answer = {"error": f"{error}\n{worker.errors()}"}
        if "error" in answer:
            answer = {"counts": {}, "failures": [[damaged.first, "", answer["error"]]]}
        damaged.counts, damaged.failures = answer["counts"], answer["failures"]

    return job


def _injection_job(injected: Injected, folder: Path) -> Callable[[Worker], None]:
    def job(worker: Worker) -> None:
        try:
            answer = worker.ask("inject", name=injected.name, folder=str(folder))
        except Died as error:
            answer = {"error": f"{error}\n{worker.errors()}"}
        injected.done, injected.problem = True, answer.get("error", "") and f"{answer['error']}\n{answer.get('trace', '')}"

    return job


def _one(text: str, seed: int, folder: Path, results: Results) -> None:
    """Repeat the case of a text."""
    kind, _, rest = (part.strip() for part in text.partition("|"))
    worker = Worker()
    if kind == "damage":
        name, _, number = (part.strip() for part in rest.rpartition("|"))
        results.damaged.append(Damaged(name, int(number), 1, seed))
        _damage_job(results.damaged[0], folder)(worker)
    elif kind == "inject":
        results.injected.append(Injected(rest))
        _injection_job(results.injected[0], folder)(worker)
    else:
        case = Case.parse(text)
        results.cases.append(case)
        reference = worker.ask("calibrate", entry=case.entry, folder=str(folder / "whole"))
        play(case, worker, reference, folder / "case")
    worker.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="20 signals and 300 files")
    parser.add_argument("--signals", type=int, default=200, help="number of kills, of SIGTERM, and of Ctrl-C (200)")
    parser.add_argument("--files", type=int, default=10_000, help="number of damaged files (10,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of moments and damages")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 4), help="processes at the same time")
    parser.add_argument("--minutes", type=float, default=30, help="no case is begun later (30)")
    parser.add_argument("--case", help="repeat one case, as a failure of the table names it")
    parser.add_argument("--output", help="also write the table to this file")
    parser.add_argument("--folder", help="where temporary folders are made; that of a run with failures is kept")
    return parser


def _command(given: argparse.Namespace) -> str:
    size = "--short" if given.short else f"--signals {given.signals} --files {given.files}"
    return f"python -m benchmarks.faults {size} --seed {given.seed}"


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main())
