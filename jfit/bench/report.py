"""Table and plot of the scaling benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def _ms(name: str) -> Callable[[Row], str]:
    return lambda row: f"{1e3 * row[name]:.2f}" if name in row else ""


def _compute(row: Row) -> str:
    return f"{1e3 * (row['step_s'] - row['collective_s']):.2f}" if "collective_s" in row else ""


def _mib(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row[name] / 2**20:.2f}" if name in row else ""


COLUMNS: dict[str, Callable[[Row], str]] = {
    "devices": lambda row: str(row["devices"]),
    "batch": lambda row: str(row["batch"]),
    "samples/s": lambda row: f"{row['samples_per_s']:,.0f}",
    "efficiency": lambda row: f"{row['efficiency']:.2f}",
    "step ms": _ms("step_s"),
    "compute ms": _compute,
    "collective ms": _ms("collective_s"),
    "host ms": _ms("host_s"),
    "collectives": lambda row: str(row.get("collectives", "")),
    "MiB sent/device": _mib("collective_bytes"),
    "MiB/device": _mib("memory_bytes"),
    "compile s": lambda row: f"{row['compile_s']:.1f}",
    "jfit / hand-written pmap": lambda row: f"{row['hand_ratio']:.2f}" if "hand_ratio" in row else "",
    "jfit / torch DDP": lambda row: f"{row['samples_per_s'] / row['torch_per_s']:.2f}" if "torch_per_s" in row else "",
    "digest": lambda row: row["digest"],
}


def with_efficiency(results: Sequence[Row]) -> list[dict[str, Any]]:
    """Add the efficiency: samples per second and device, relative to the first row.

    Args:
        results: rows with "devices" and "samples_per_s".

    Example:
        >>> rows = [{"devices": 1, "samples_per_s": 100}, {"devices": 4, "samples_per_s": 300}]
        >>> [row["efficiency"] for row in with_efficiency(rows)]
        [1.0, 0.75]
    """
    base = results[0]["samples_per_s"] / results[0]["devices"] if results else 1.0
    return [{**row, "efficiency": row["samples_per_s"] / row["devices"] / base} for row in results]


def markdown(title: str, results: Sequence[Row], machine: Mapping[str, Any]) -> str:
    """Return the results as a table in Markdown, with a sentence on the machine.

    Args:
        title: heading.
        results: a dict per number of devices, from `jfit.bench.measure.measure`.
        machine: "cores", "python", "emulated", and versions.
    """
    rows = [[make(row) for make in COLUMNS.values()] for row in with_efficiency(results)]
    shown = [i for i, name in enumerate(COLUMNS) if any(row[i] for row in rows) or name == "devices"]
    lines = [[list(COLUMNS)[i] for i in shown], ["---:"] * len(shown), *[[row[i] for i in shown] for row in rows]]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    device = results[0]["device"] if results else "no device"
    note = f"{device}, {machine['cores']} cores, Python {machine['python']}, jax {machine['jax']}."
    most = max((row["devices"] for row in results), default=1)
    if machine["emulated"] and most > machine["cores"]:
        note += (
            f" The devices are emulated: up to {most} devices share {machine['cores']} cores, so an efficiency of "
            f"{machine['cores'] / most:.2f} is all that {most} devices can have."
        )
    return f"## {title}\n\n{note}\n\n{table}\n"


def plot(title: str, results: Sequence[Row], path: Path) -> None:
    """Draw samples per second over devices, with the line of perfect scaling, into an image file.

    Args:
        title: title of the figure.
        results: rows of the table, one for each number of devices.
        path: the file; its ending decides the format (png, svg, pdf).

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot()
    counts, speeds = [row["devices"] for row in results], [row["samples_per_s"] for row in results]
    axes.plot(counts, speeds, "o-", label="measured")
    axes.plot(counts, [speeds[0] * n / counts[0] for n in counts], "--", color="gray", label="perfect scaling")
    axes.set(xlabel="devices", ylabel="samples/s", title=title)
    axes.legend()
    figure.savefig(path, bbox_inches="tight")
