"""Legs and targets (bars) of the step_overhead benchmark, their verdicts, and the Markdown report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.workloads import WORKLOADS

CLOCKS = {"cpu_s": "samples per CPU-second, one core", "wall_s": "samples per second, two cores"}
CORES = {1: "cpu_s", 2: "wall_s"}
LOADERS = ("torch", "grain")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A leg: its title, its group in the comparison, its module in `benchmarks.peers`, and the options of `begin`."""

    title: str
    group: str
    module: str
    options: dict[str, Any]
    workloads: tuple[str, ...] = ("w1", "w2")


ENTRIES = {
    "jfit_step1": Entry("jfit.fit, steps_per_call=1", "jfit", "jfit_fit", {"steps_per_call": 1}),
    "jfit_auto": Entry("jfit.fit, steps_per_call=auto", "jfit", "jfit_fit", {"steps_per_call": "auto"}, ("w1", "w2", "w3")),
    "stream": Entry("jfit.fit, generator of batches", "stream", "jfit_fit", {"source": "generator"}, ("w2", "w3")),
    "stream_torch": Entry("jfit.fit, torch's DataLoader", "stream", "jfit_fit", {"source": "torch"}, ("w2", "w3")),
    "stream_grain": Entry("jfit.fit, grain", "stream", "jfit_fit", {"source": "grain"}, ("w2", "w3")),
    "module_fit": Entry("Module.fit, NDArrayIter", "module", "module_fit", {"package": "jfit.mx"}),
    "module_speed": Entry(
        "Module.fit, Speedometer every 50 batches", "module", "module_fit", {"package": "jfit.mx", "look": "speedometer"}
    ),
    "module_each": Entry(
        "Module.fit, a callback for each batch", "module", "module_fit", {"package": "jfit.mx", "look": "each"}
    ),
    "module_read": Entry(
        "Module.fit, the metric read after each batch", "reading", "module_fit", {"package": "jfit.mx", "look": "read"}
    ),
    "module_loop": Entry(
        "a loop over Module, which reads a metric", "reading", "loops", {"package": "jfit.mx", "loop": "module"}
    ),
    "executor_loop": Entry(
        "a loop over an Executor, which reads a metric", "reading", "loops", {"package": "jfit.mx", "loop": "executor"}
    ),
    "hand": Entry("(a) hand-written JAX loop", "a", "hand", {}),
    "hand_read": Entry("(b) hand-written JAX loop, the metric read after each batch", "b", "hand", {"read": True}),
    "hand_sorted": Entry("hand-written, data permuted once per epoch", "variant", "hand", {"feed": "permute"}),
    "hand_loop": Entry("hand-written, 24 steps per dispatch in one fori_loop", "variant", "hand", {"steps": 24}, ("w1",)),
    "hand_window": Entry("hand-written, max-pool by reduce_window", "variant", "hand", {"pool": "window"}, ("w2",)),
    "hand_whole": Entry("hand-written, filter gradient in one piece", "variant", "hand", {"slices": 1}, ("w2",)),
}


def names(workload: str, *, variants: bool) -> list[str]:
    """Names of the legs of a workload; with `variants`, also the hand-written loop's other forms."""
    return [name for name, e in ENTRIES.items() if workload in e.workloads and (variants or e.group != "variant")]


@dataclasses.dataclass(frozen=True)
class Bar:
    """A target: on `workload`, `leg` must be at least `factor` times as fast as the fastest leg of `group`."""

    workload: str
    leg: str
    group: str
    factor: float


BARS = (
    Bar("w1", "jfit_step1", "a", 0.97),
    Bar("w2", "jfit_step1", "a", 0.97),
    Bar("w1", "jfit_auto", "a", 1.3),
    Bar("w2", "jfit_auto", "a", 0.97),
    Bar("w1", "module_fit", "jfit", 0.95),
    Bar("w2", "module_fit", "jfit", 0.95),
    *(Bar(workload, leg, "b", 0.8) for leg in ("module_read", "module_loop", "executor_loop") for workload in ("w1", "w2")),
    *(Bar(workload, leg, "jfit", 0.95) for workload in ("w2", "w3") for leg in ("stream", "stream_torch", "stream_grain")),
)
MOST_SYNCS_PER_100_STEPS = 15
MOST_IMPORT_EXTRA_S = 0.3


def _rival(legs: dict[str, Any], group: str) -> str | None:
    """Name of the fastest measured leg of a group, or None; targets compare with a peer's best leg, not its default one."""
    measured = [n for n, leg in legs.items() if leg.get("learned", "rate" in leg) and ENTRIES[n].group == group]
    return max(measured, key=lambda n: legs[n]["rate"]["median"], default=None)


def verdicts(runs: list[dict[str, Any]], ratio: Callable[[dict[str, Any], str, str], dict[str, float]]) -> list[dict[str, Any]]:
    """Compare every run with its targets.

    Args:
        runs: results of `step_overhead.measure_here`, one per process.
        ratio: function (run, leg, rival) -> summary of the per-round ratios of their rates.

    Returns:
        One dict per run and target, with the measured `ratio` and `passed` (both None if a leg is missing).
    """
    records = []
    for run in runs:
        for bar in (b for b in BARS if b.workload == run["workload"]):
            rival = _rival(run["legs"], bar.group)
            record: dict[str, Any] = {**dataclasses.asdict(bar), "clock": run["clock"], "rival": rival}
            record |= {"ratio": None, "passed": None}
            leg = run["legs"].get(bar.leg, {})
            if rival is not None and leg.get("learned", "rate" in leg):
                record["ratio"] = ratio(run, bar.leg, rival)
                record["passed"] = record["ratio"]["median"] >= bar.factor
            records.append(record)
    return records


def _spread(value: dict[str, float], digits: int) -> str:
    return f"{value['median']:,.{digits}f} ({value['q1']:,.{digits}f} to {value['q3']:,.{digits}f})"


def _legs_table(run: dict[str, Any]) -> list[str]:
    lines = [
        "",
        f"### {WORKLOADS[run['workload']].title}: {CLOCKS[run['clock']]}",
        "",
        f"{run['rows']:,} rows, {run['rounds']} rounds, median (quartiles)",
        "",
        "| leg | samples/s | ratio to (a) | accuracy |",
        "|---|---:|---:|---:|",
    ]
    for name, leg in run["legs"].items():
        title = ENTRIES[name].title
        if "rate" not in leg:
            lines.append(f"| {title} | skipped: {leg['skipped']} | | |")
            continue
        ratio = _spread(leg["ratio"], 2) if "ratio" in leg else ""
        lines.append(f"| {title} | {_spread(leg['rate'], 0)} | {ratio} | {leg['accuracy']:.3f} |")
    return lines


def _counts_table(runs: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in runs:
        for name, leg in run["legs"].items():
            if "counts" in leg and ENTRIES[name].group != "reading":  # that waits for every step
                first, later, steps = leg["setup_counts"], leg["counts"], leg["steps"]
                passed = later["compiles"] == 0 and later["host_syncs"] * 100 <= MOST_SYNCS_PER_100_STEPS * max(steps, 100)
                rows.append(
                    f"| {run['workload']} {name} | {run['cores']} | {first.get('compiles', 0)} | {later['compiles']}"
                    f" | {later['host_syncs']} | {steps} | {'pass' if passed else 'FAIL'} |"
                )
    if not rows:
        return []
    title = f"### Compilations and host syncs (bars: no later compilation, {MOST_SYNCS_PER_100_STEPS} syncs per 100 steps)"
    head = "| leg | cores | compilations, first epoch | compilations, later epochs | syncs per epoch | steps | |"
    return ["", title, "", head, "|---|---:|---:|---:|---:|---:|---|", *rows]


def _bars_table(bars: list[dict[str, Any]]) -> list[str]:
    lines = ["", "### Bars", "", "| workload | leg | against | clock | target | ratio | |", "|---|---|---|---|---:|---:|---|"]
    for bar in bars:
        verdict = {True: "pass", False: "FAIL", None: "not measured"}[bar["passed"]]
        ratio = _spread(bar["ratio"], 2) if bar["ratio"] else ""
        against = f"({bar['group']}) {bar['rival'] or ''}".strip()
        lines.append(
            f"| {bar['workload']} | {bar['leg']} | {against} | {bar['clock']} | {bar['factor']:.2f} | {ratio} | {verdict} |"
        )
    return lines


def markdown(result: dict[str, Any]) -> str:
    """The whole result as a Markdown page."""
    machine = result["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
    lines = [
        "# Step overhead",
        "",
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; Python {machine['python']}; {versions}.",
    ]
    if result["quick"]:
        lines += ["", "**Smoke run: one round over few rows. The numbers are not meaningful.**"]
    for run in result["runs"]:
        lines += _legs_table(run)
    lines += _counts_table(result["runs"])
    if result.get("imports"):
        seconds = result["imports"]
        verdict = "pass" if seconds["passed"] else "FAIL"
        times = f"`import jfit` {seconds['jfit_s']:.2f} s, `import optax` {seconds['optax_s']:.2f} s"
        lines += ["", f"{times} (bar: + {MOST_IMPORT_EXTRA_S} s): {verdict}"]
    return "\n".join([*lines, *_bars_table(result["bars"])]) + "\n"
