"""What the parts of the benchmark found, before it is a table."""

from __future__ import annotations

import dataclasses

from benchmarks.faults.signals import Case


@dataclasses.dataclass
class Damaged:
    """Cases `first` to `first + count - 1` of a kind of damaged files, see `benchmarks.faults.damage.damage`."""

    kind: str
    first: int
    count: int
    seed: int
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: list[list] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Injected:
    """One of the other faults, see `benchmarks.faults.injections`."""

    name: str
    done: bool = False
    problem: str = ""


@dataclasses.dataclass
class Results:
    """All of it.

    Attributes:
        seed: seed of all cases.
        command: the command that repeats all of it.
        cases, damaged, injected: the cases; those that were not begun in time have no outcome.
        seconds, cpu_seconds: how long it took, and the CPU time of all processes.
        processes: number of worker processes that were started.
    """

    seed: int
    command: str
    cases: list[Case] = dataclasses.field(default_factory=list)
    damaged: list[Damaged] = dataclasses.field(default_factory=list)
    injected: list[Injected] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    processes: int = 0

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(text of the case for --case, problem) of every failure."""
        found = [(case.text, "\n".join([case.problem, *case.where])) for case in self.cases if case.problem]
        for part in self.damaged:
            found += [(f"damage | {part.kind} | {number}", f"{problem} ({what})") for number, what, problem in part.failures]
        return found + [(f"inject | {each.name}", each.problem) for each in self.injected if each.problem]
