"""The rule that selects which cases of a parametrized test run where, so that no list of test ids is needed.

The fast set runs, of each test function, the first case and then the fewest others that use every value of every parameter
once; the slow set runs the other combinations. `@pytest.mark.repetitions(k)` marks values that repeat one property: the fast
set runs k cases of them. `@pytest.mark.slow` puts the whole test into the slow set. `repetitions(k, slow=n)` limits what the CI
server runs as well: n cases, the k of the fast set among them. The others are marked `exhaustive`; `make test-all` runs them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest

Case = tuple[str, frozenset[tuple[str, int]]]  # (test id, what it shows: {(parameter, identity of its value)})


def fast_cases(cases: Sequence[Case], limit: int | None = None) -> set[str]:
    """The ids of one test function's cases that the fast set runs.

    Args:
        cases: all of them, in the order of the file.
        limit: the number of cases to keep at most; None keeps as many as show every value once.

    Returns:
        The first case, then, among those that show the most values not shown yet, the one with the lowest checksum of its id:
        a choice that looks random and is the same on every machine, and that a new case hardly changes.
    """
    left = sorted(cases[1:], key=lambda case: zlib.crc32(case[0].encode()))
    chosen, missing = [cases[0]], set().union(*(values for _, values in cases)) - cases[0][1]
    while left and (missing if limit is None else len(chosen) < limit):
        best = max(left, key=lambda case: len(case[1] & missing))
        chosen.append(best)
        left.remove(best)
        missing -= best[1]
    return {name for name, _ in chosen}


def mark_repetitions(items: Sequence[pytest.Item]) -> None:
    """Marks the cases that the fast set leaves out as slow, and those that the CI server leaves out, too, as exhaustive."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec"):
            functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    for same in functions.values():
        marker = same[0].get_closest_marker("repetitions")
        maybe_fast = [item for item in same if not item.get_closest_marker("slow")]
        if maybe_fast:
            fast = fast_cases(cases_of(maybe_fast), marker.args[0] if marker and marker.args else None)
            mark_others(maybe_fast, fast, pytest.mark.slow)
        if marker and "slow" in marker.kwargs:
            mark_others(same, fast_cases(cases_of(same), marker.kwargs["slow"]), pytest.mark.exhaustive)


def cases_of(items: Sequence[pytest.Item]) -> list[Case]:
    # A value is the same object in all cases that have it; not all values can be compared or hashed.
    return [(item.nodeid, frozenset((k, id(v)) for k, v in item.callspec.params.items())) for item in items]


def mark_others(items: Sequence[pytest.Item], chosen: set[str], mark: pytest.MarkDecorator) -> None:
    for item in items:
        if item.nodeid not in chosen:
            item.add_marker(mark)
