"""The results as Markdown."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from benchmarks.faults.results import Results

OUTCOMES = ("same", "older checkpoint", "noticed", "value in the file")
EVENTS = {"kill": "kill -9", "SIGTERM": "SIGTERM", "Ctrl-C": "Ctrl-C"}
HEADER = "| event | entry | injected | noticed or recovered | failures |"
RULE = "|---|---|---:|---:|---:|"
FILE_HEADER = "| damaged file | injected | same result | older checkpoint | FormatError | value in the file | failures |"
FILE_RULE = "|---|---:|---:|---:|---:|---:|---:|"


def markdown(results: Results) -> str:
    """The page of the results."""
    parts = [_head(results), _signals(results), _others(results), _files(results), failures(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def failures(results: Results) -> str:
    """A list of the failures, each with the command that repeats it."""
    if not results.failures:
        return "No failures."
    lines = [f"{len(results.failures)} failures. Each with the command that repeats it:"]
    for case, problem in results.failures[:50]:
        quoted = "\n".join(f"    {line}" for line in problem.strip().splitlines())
        lines += ["", f"    python -m benchmarks.faults --seed {results.seed} --case {case!r}", quoted]
    return "\n".join(lines)


def _head(results: Results) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib", "numpy"))
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {versions}"
    cost = f"{results.seconds / 60:.1f} minutes, {results.cpu_seconds:.0f} CPU seconds, {results.processes} processes"
    return f"# Faults\n\n`{results.command}`: {cost}. {machine}."


def _row(*cells: Any) -> str:
    return f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in cells)} |"


def _table(header: str, rule: str, rows: Sequence[str]) -> str:
    return "\n".join([header, rule, *rows])


def _signals(results: Results) -> str:
    groups: dict[tuple[str, str], Counter[str]] = {}
    for case in results.cases:
        for number in (case.number, 0):  # 0: all of them
            name = f"{EVENTS[case.event]}{', twice' if number == 2 else ''}"
            key = (f"{name}, all", "") if number == 0 else (name, case.entry)
            groups.setdefault(key, Counter())[case.outcome or "not begun"] += 1
    rows = []
    for (event, entry), counts in sorted(groups.items(), key=lambda item: _order(item[0])):
        done = counts["resumed"] + counts["failed"]
        rows.append(_row(event, entry, done, counts["resumed"], counts["failed"]))
    left = sum(not case.outcome for case in results.cases)
    ends = {name: Counter(c.end for c in results.cases if c.event == event and c.end) for event, name in EVENTS.items()}
    lines = [f"- {name}: {', '.join(f'{n:,} {end}' for end, n in counts.most_common())}" for name, counts in ends.items()]
    how = "How the scripts ended (a signal outside training, or the second one, ends a process at once):\n\n"
    how += "\n".join(lines)
    note = f"\n\nCases that were not begun in time: {left}." if left else ""
    return f"## Signals\n\n{_table(HEADER, RULE, rows)}\n\n{how}{note}"


def _order(key: tuple[str, str]) -> tuple[int, int, str]:
    event = next(i for i, name in enumerate(EVENTS.values()) if key[0].startswith(name))
    return event, ("twice" in key[0]) + 2 * key[0].endswith("all"), key[1]


def _others(results: Results) -> str:
    rows = [_row(each.name, "fit", int(each.done), int(each.done and not each.problem), int(bool(each.problem)))
            for each in results.injected]  # fmt: skip
    return f"## Other faults\n\n{_table(HEADER, RULE, rows)}"


def _files(results: Results) -> str:
    kinds: dict[str, Counter[str]] = {}
    for part in results.damaged:
        counts = kinds.setdefault(part.kind, Counter())
        counts.update(part.counts)
        counts["failures"] += len(part.failures)
    rows = [_row(kind, c.total(), *(c[name] for name in OUTCOMES), c["failures"]) for kind, c in kinds.items()]
    total = sum(kinds.values(), Counter())
    rows.append(_row("all", total.total(), *(total[name] for name in OUTCOMES), total["failures"]))
    note = (
        "Formats of MXNet and safetensors have no checksum of their values, so that a changed value cannot be noticed; the "
        "reader must return exactly what is in the file (value in the file). Checkpoints have checksums."
    )
    return f"## Damaged files\n\n{_table(FILE_HEADER, FILE_RULE, rows)}\n\n{note}"
