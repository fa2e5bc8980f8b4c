"""The page of results: Markdown, a plot, and the lines for README."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.runs import ENTRIES, ROOT, SETTINGS, ratio
from benchmarks.workloads import WORKLOADS

Run = dict[str, Any]
DEFAULT, KEPT = SETTINGS
OTHERS = tuple(name for name in ENTRIES if not name.startswith("jfit"))
UNITS = {1: "samples per CPU-second, one core", 2: "samples per second, two cores"}


@dataclasses.dataclass(frozen=True)
class Bar:
    """A target on one core: jfit.fit has to be at least `factor` times as fast as the fastest of `others`."""

    workload: str
    factor: float
    others: tuple[str, ...]


BARS = (
    Bar("w1", 1.3, ("hand",)),
    Bar("w1", 1.7, ("keras",)),
    Bar("w1", 2.0, ("nnx", "torch")),
    Bar("w2", 1.0, ("torch", "mxnet")),
    Bar("w3", 0.9, ("torch",)),
    Bar("w3", 1.1, ("mxnet",)),
    Bar("w4", 1.15, OTHERS),
    Bar("w5", 1.0, ("torch",)),
)


def table(corner: str, columns: list[str], rows: dict[str, list[str]]) -> list[str]:
    """Lines of a Markdown table; none without rows."""
    if not rows:
        return []
    lines = [f"| {corner} | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    return [*lines, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()), ""]


def _record(run: Run, leg: str, setting: str) -> dict[str, Any]:
    return run["legs"].get(leg, {}).get(setting, {})


def number(value: Any) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _figures(runs: list[Run], show: Callable[[dict[str, Any]], str]) -> list[str]:
    """A table with a row for each leg, and a column for each run; "-" where a setting was not measured."""
    rows = {}
    for leg in ENTRIES:
        both = [[show(record) if "rates" in (record := _record(run, leg, s)) else "-" for s in SETTINGS] for run in runs]
        if any(cell != ["-", "-"] for cell in both):
            rows[ENTRIES[leg].title] = ["" if cell == ["-", "-"] else " / ".join(cell) for cell in both]
    return table(" / ".join(SETTINGS), [run["workload"].upper() for run in runs], rows)


def _compared(run: Run, other: str, setting: str, long: bool = True) -> str:
    """The cell "median (quartiles)" of jfit's rate with memory kept, divided by that of another leg."""
    value = ratio(run, ("jfit", KEPT), (other, setting))
    if value is None:
        return ""
    return f"{value['median']:.2f}" + (f" ({value['q1']:.2f}-{value['q3']:.2f})" if long else "")


def _speed(runs: list[Run], cores: int) -> list[str]:
    columns = [run["workload"].upper() for run in runs]
    lines = [f"## {UNITS[cores][0].upper()}{UNITS[cores][1:]}", "", *_figures(runs, lambda r: number(np.median(r["rates"])))]
    lines += [
        "Speed of jfit.fit (memory kept) divided by that of the other, median and quartiles; above 1, jfit is faster.",
        "",
    ]
    for setting in SETTINGS:
        rows = {ENTRIES[o].title: [_compared(run, o, setting) for run in runs] for o in ENTRIES if o != "jfit"}
        lines += table(f"jfit.fit / other, {setting}", columns, {name: cells for name, cells in rows.items() if any(cells)})
    return lines


def verdicts(runs: list[Run]) -> list[dict[str, Any]]:
    """Compare the runs on one core with the targets; returns a dict for each bar, its `ratio` None if a leg is missing."""
    found = []
    for bar in BARS:
        for run in (run for run in runs if run["workload"] == bar.workload and run["cores"] == 1):
            ratios = {o: ratio(run, ("jfit", KEPT), (o, DEFAULT)) for o in bar.others}
            least = min((value["median"], other) for other, value in ratios.items() if value) if any(ratios.values()) else None
            found.append({**dataclasses.asdict(bar), "ratio": least and least[0], "against": least and least[1]})
    return found


def _bars(runs: list[Run]) -> list[str]:
    lines = []
    for verdict in verdicts(runs):
        if verdict["ratio"] is not None:
            passed = "met" if verdict["ratio"] >= verdict["factor"] else "**missed**"
            against = ENTRIES[verdict["against"]].title
            line = f"{verdict['workload'].upper()}: {verdict['ratio']:.2f} times the speed of {against}"
            lines.append(f"- {line}, bar {verdict['factor']}: {passed}")
    return ["Bars, for jfit.fit with memory kept against the others with the default malloc:", "", *lines, ""] if lines else []


def _remarks(runs: list[Run], quick: bool) -> list[str]:
    """What was not measured, did not learn, or has another number of parameters."""
    lines = []
    for run in runs:
        head = f"{run['workload'].upper()}, {run['cores']} core(s)"
        records = {(leg, s): record for leg, both in run["legs"].items() for s, record in both.items()}
        for (leg, setting), record in records.items():
            if "missing" in record:
                lines.append(f"- {head}: {ENTRIES[leg].title}, {setting}: {record['missing']}")
            elif not record["learned"] and not quick:
                values = f"{record['metric']:.3f}, then {record['last']:.3f}"
                lines.append(f"- {head}: {ENTRIES[leg].title}, {setting}, **did not learn**: {values}")
        counts: dict[int, list[str]] = {}
        for leg, both in run["legs"].items():
            for count in {record["parameters"] for record in both.values() if "parameters" in record}:
                counts.setdefault(count, []).append(ENTRIES[leg].title)
        if len(counts) > 1 and run["cores"] == 1:
            each = "; ".join(f"{count:,} in {', '.join(legs)}" for count, legs in counts.items())
            lines.append(f"- {run['workload'].upper()}, trained values: {each}")
    return ["## Remarks", "", *lines, ""] if lines else []


def machine_line(result: dict[str, Any]) -> str:
    """The machine and the versions, as a sentence."""
    machine = result["machine"]
    versions: dict[str, str] = {}
    for run in result["runs"]:
        for both in run["legs"].values():
            for record in both.values():
                versions |= record.get("versions", {})
    packages = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    dates = sorted({run["date"] for run in result["runs"]})
    return f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; {packages}; {' and '.join(dates)}."


METHOD = """\
Each leg is a process of its own, pinned to its cores. All train one epoch, then they take turns: a round is one
epoch of every process, the first place rotates, and ratios are taken within a round. Feeding shuffled batches and the metric
(accuracy of images, cross entropy of texts) belong to every leg; all train in float32 with the same layers, sizes, optimizer
(SGD with momentum for images, Adam for texts) and batch size. "memory kept": the process tells glibc's malloc to keep
freed memory. `import jfit` does that, the other frameworks do not.
"""
START = """\
CPU seconds from the start of the process to the end of its first step, without a compile cache: those of the first epoch less
its other steps, without the making of the data.
"""


def markdown(result: dict[str, Any], picture: str) -> str:
    """The page of a result; `picture` is the file name of the plot."""
    lines = ["# jfit and its peers", "", f"`python -m benchmarks.peers`. {machine_line(result)}", "", METHOD]
    lines += ["A quick run: its figures mean nothing.", ""] if result["quick"] else []
    lines += [result["note"], ""] if result["note"] else []
    lines += [*(f"- {WORKLOADS[n].title}" for n in dict.fromkeys(run["workload"] for run in result["runs"])), ""]
    lines += [f"![Speed of the peers relative to jfit]({picture})", ""]
    for cores in UNITS:
        runs = [run for run in result["runs"] if run["cores"] == cores]
        if runs:
            lines += _speed(runs, cores) + (_bars(runs) if cores == 1 else [])
    runs = [run for run in result["runs"] if run["cores"] == 1] or result["runs"]
    lines += ["## Peak memory in MB", "", *_figures(runs, lambda record: number(record["peak_mb"]))]
    lines += ["## Page faults per step", "", *_figures(runs, lambda record: f"{record['faults']:,.0f}")]
    lines += ["## Start", "", START, *_figures(runs, lambda record: f"{record['start_cpu_s']:.2f}")]
    return "\n".join(lines + _remarks(result["runs"], result["quick"]))


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the speed of every leg on one core (or, if that is all there is, on two), divided by that of jfit.fit."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    runs = [run for run in result["runs"] if run["cores"] == 1] or result["runs"]
    legs = [leg for leg in OTHERS if any(leg in run["legs"] for run in runs)]
    with pyplot.rc_context({"svg.hashsalt": "jfit", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(8, 3.4), layout="constrained")
        width = 0.8 / max(len(legs), 1)
        for i, leg in enumerate(legs):
            places = [place - 0.4 + (i + 0.5) * width for place in range(len(runs))]
            for setting in SETTINGS:
                values = [ratio(run, (leg, setting), ("jfit", KEPT)) for run in runs]
                pairs = [(place, value["median"]) for place, value in zip(places, values, strict=True) if value]
                if pairs and setting == DEFAULT:
                    axes.bar(*zip(*pairs, strict=True), width * 0.9, label=ENTRIES[leg].title, color=f"C{i}")
                elif pairs:
                    axes.plot(*zip(*pairs, strict=True), "_k", label=KEPT if i == 0 else None)
        axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(runs)), [run["workload"].upper() for run in runs])
        axes.set_ylabel("speed / speed of jfit.fit")
        axes.set_title(UNITS[runs[0]["cores"]], fontsize=9)
        axes.legend(ncols=3, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.08), frameon=False)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


MARK = re.compile(r"(<!-- peers -->\n).*?(<!-- /peers -->)", re.DOTALL)


def write_readme(result: dict[str, Any], page: Path) -> None:
    """Replace the lines of README between the marks: five lines of ratios, and the machine."""
    runs = [run for run in result["runs"] if run["cores"] == 1]
    others = [other for other in OTHERS if any(ratio(run, ("jfit", KEPT), (other, DEFAULT)) for run in runs)]
    rows = {WORKLOADS[r["workload"]].title: [_compared(r, o, DEFAULT, long=False) for o in others] for r in runs}
    rows = {title: cells for title, cells in rows.items() if any(cells)}
    figures = table("jfit / other", [ENTRIES[other].title for other in others], rows)
    text = "\n".join([*figures, f"Machine: {machine_line(result)} [All figures]({page.relative_to(ROOT)}).", ""])
    readme = ROOT / "README.md"
    before = readme.read_text(encoding="utf-8")
    readme.write_text(MARK.sub(lambda match: match[1] + text + match[2], before), encoding="utf-8")
