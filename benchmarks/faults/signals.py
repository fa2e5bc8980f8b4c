"""Kills, SIGTERM and Ctrl-C at random moments of small training scripts, and what a resumed script makes of what they left."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

from benchmarks.faults.pool import Died, Worker
from benchmarks.faults.victims import SIGNALS, VICTIMS

DOUBLE, TIMED, COLD, ENDS = 0.3, 0.4, 0.1, 0.15  # shares of the cases
_KEPT = re.compile(r"step-\d{8}|net-symbol\.json|net-\d{4}\.(params|states)")
_LEFTOVER = re.compile(r"\..*\.(tmp|old)")
_MOST_KEPT = 3


@dataclasses.dataclass
class Case:
    """One script that is stopped.

    Attributes:
        event: key of `SIGNALS`.
        entry: key of `VICTIMS`.
        number: 1, or 2 for two signals; a kill is repeated while the script resumes.
        first, gap, unit: when, see `Moment`.
        cold: whether the programs are compiled in the script.
        ends: whether the process ends with the script, so that its exit code is that of a process.
        outcome: "resumed" or "failed".
        end: how the script ended: an exit status, "returned" (by `fit`), "KeyboardInterrupt", or "finished".
        problem: of a failure.
        where: lines of the record: the signals, where they were sent, and whether a handler was installed.
    """

    event: str
    entry: str
    number: int
    first: float
    gap: float
    unit: str
    cold: bool = False
    ends: bool = False
    outcome: str = ""
    end: str = ""
    problem: str = ""
    where: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The argument of --case that repeats this case."""
        flags = "".join(f" {name}" for name in ("cold", "ends") if getattr(self, name))
        return f"{self.event} | {self.entry} | {self.number} | {self.first:.9g} + {self.gap:.9g} {self.unit}{flags}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case of a text."""
        event, entry, number, moment = (part.strip() for part in text.split("|"))
        first, _, gap, unit, *flags = moment.split()
        if event not in SIGNALS or entry not in VICTIMS or unit not in ("line", "s"):
            raise ValueError(f"--case {text!r}: expected an event of {[*SIGNALS]} and a script of {[*VICTIMS]}")
        return cls(event, entry, int(number), float(first), float(gap), unit, "cold" in flags, "ends" in flags)


def cases(event: str, count: int, seed: int, reference: dict[str, dict[str, Any]]) -> list[Case]:
    """Cases at random moments, distributed evenly over the scripts; neighbors are of the same script.

    Args:
        event: key of `SIGNALS`.
        count: number of cases.
        seed: seed of the moments.
        reference: for each script the answer of the task "calibrate".
    """
    draw = random.Random(f"{seed} {event}")
    entries = sorted(list(VICTIMS)[i % len(VICTIMS)] for i in range(count))
    result = []
    for entry in entries:
        unit = "s" if draw.random() < TIMED else "line"
        length = reference[entry]["seconds" if unit == "s" else "lines"]
        double = draw.random() < DOUBLE
        gap = draw.choice([0, 0.002, 0.02, 0.2]) * length * draw.random()
        first = length * draw.random()
        first, gap = (round(first, 4), round(gap, 4)) if unit == "s" else (int(first), int(gap))
        soft = event != "kill"
        case = Case(event, entry, 1 + double, first, gap, unit, soft and draw.random() < COLD, soft and draw.random() < ENDS)
        result.append(case)
    return result


def play(case: Case, worker: Worker, reference: dict[str, Any], folder: Path) -> None:
    """Run a case, and set its outcome.

    Args:
        case: the case.
        worker: a worker; it may be another process afterwards.
        reference: answer of the task "calibrate" for the script.
        folder: an empty folder for the files of the case; it is deleted if there was no problem.
    """
    target, log = folder / "files", folder / "record"
    target.mkdir(parents=True)
    try:
        problem = _kill(case, worker, target, log) if case.event == "kill" else _signal(case, worker, reference, target, log)
        problem = problem or _resume(case, worker, reference, target)
    except Died as error:
        problem = f"{error}\n{worker.errors()}"
    case.where = tuple(log.read_text(encoding="utf-8").splitlines()) if log.exists() else ()
    case.problem, case.outcome = problem, "failed" if problem else "resumed"
    if not problem:
        shutil.rmtree(folder, ignore_errors=True)


def _strike(case: Case, worker: Worker, target: Path, log: Path, first: float, number: int, resume: bool) -> dict[str, Any]:
    how = {"number": number, "resume": resume, "cold": case.cold, "ends": case.ends}
    moment = {"first": first, "gap": case.gap, "unit": case.unit}
    return worker.ask("strike", entry=case.entry, event=case.event, moment=moment, folder=str(target), log=str(log), **how)


def _kill(case: Case, worker: Worker, target: Path, log: Path) -> str:
    """Kill the script; with two kills, also while it resumes.  A script that ends first is run again, and killed earlier."""
    for number in range(case.number):
        first, resume = case.first, bool(number)
        for _ in range(6):
            try:
                answer = _strike(case, worker, target, log, first, 1, resume)
            except Died as error:
                case.end = f"exit {error.code}"
                if error.code != -signal.SIGKILL:
                    return f"{error}, expected {-signal.SIGKILL}\n{worker.errors()}"
                break
            if "error" in answer:
                return f"the script failed before it was killed: {answer['error']}\n{answer['trace']}"
            first /= 2
            if not resume:
                shutil.rmtree(target)
                target.mkdir()
        else:
            return "" if resume else "the script ended before it could be killed"
    return ""


def _signal(case: Case, worker: Worker, reference: dict[str, Any], target: Path, log: Path) -> str:
    """Send Ctrl-C or SIGTERM, and check how the script ended.  A script that ends first is run again, and stopped earlier."""
    answer: dict[str, Any] = {}
    for attempt in range(6):
        if attempt:
            shutil.rmtree(target)
            target.mkdir()
        try:
            answer = _strike(case, worker, target, log, case.first / 2**attempt, case.number, False)
        except Died as error:
            case.end = f"exit {error.code}"
            record = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
            return _wrong_code(case, error.code, [line.endswith("handled") for line in record])
        if "error" in answer or answer["sent"]:
            break
    if "error" in answer:
        return f"{answer['error']}\n{answer['trace']}"
    end = case.end = answer["end"]
    if answer["sent"] and not answer["handlers"]:
        return f"the handlers of SIGINT or SIGTERM are not those of before the script, which ended with {end}"
    if answer["sent"] == 1 and answer["opened"] != answer["closed"]:
        return f"callbacks were opened {answer['opened']} times and closed {answer['closed']} times, with {end}"
    if end == "finished":
        return "" if answer["digest"] == reference["digest"] else "the script ended with other bits"
    expected = ("exit 143",) if case.event == "SIGTERM" else ("returned", "KeyboardInterrupt", "exit 130")
    if end not in expected:
        return f"the script ended with {end}, expected {' or '.join(expected)}"
    if case.event == "Ctrl-C":
        answer = worker.ask("go_on", entry=case.entry)
        if "error" in answer:
            return f"after Ctrl-C, the script cannot go on: {answer['error']}\n{answer['trace']}"
        if answer["digest"] not in (None, reference["digest"]):
            return "after Ctrl-C, the script goes on to other bits"
    return ""


def _wrong_code(case: Case, code: int | None, handled: list[bool]) -> str:
    """The problem with the exit code of a process that signals ended, or "".

    Args:
        case: the case.
        code: its exit code; None: it hung.
        handled: of each signal that was sent, whether a handler was installed.
    """
    if case.event == "Ctrl-C":
        expected = {-signal.SIGINT, 130} if case.ends else set()
    else:
        expected = {143} if case.ends and handled[:1] == [True] else set()
        if False in handled:
            expected.add(-signal.SIGTERM)  # without a handler, or the second one
    return "" if code in expected else f"the process ended with {code}, expected {sorted(expected)}"


def _resume(case: Case, worker: Worker, reference: dict[str, Any], target: Path) -> str:
    """Resume the script, and check bits and files."""
    answer = worker.ask("resume", entry=case.entry, folder=str(target))
    if "error" in answer:
        return f"it cannot be resumed: {answer['error']}\n{answer['trace']}"
    if answer["digest"] != reference["digest"]:
        return "the resumed script ends with other bits"
    leftovers = [name for name in answer["names"] if _LEFTOVER.fullmatch(name)]
    most = 0 if VICTIMS[case.entry].tidies else case.number
    other = [name for name in answer["names"] if not _KEPT.fullmatch(name) and name not in leftovers]
    if other or len(leftovers) > most:
        return f"files left in the folder: {', '.join(other + leftovers)}"
    if sum(name.startswith("step-") for name in answer["names"]) > _MOST_KEPT:
        return f"more than {_MOST_KEPT} checkpoints are left: {', '.join(answer['names'])}"
    return ""
