"""Table and plot of the scaling benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jfit.history.plots import new_axes, save_figure

Row = Mapping[str, Any]


def _scaled(name: str, factor: float) -> Callable[[Row], str]:
    return lambda row: f"{factor * row[name]:.2f}" if name in row else ""


def _layout(row: Row) -> str:
    return f"{row['processes']} x {row['devices'] // row['processes']}" if "processes" in row else ""


COLUMNS: dict[str, Callable[[Row], str]] = {
    "processes x devices": _layout,
    "devices": lambda row: "" if "processes" in row else str(row["devices"]),
    "batch": lambda row: str(row["batch"]),
    "samples/s": lambda row: f"{row['samples_per_s']:,.0f}",
    "efficiency": _scaled("efficiency", 1),
    "step ms": _scaled("step_s", 1e3),
    "compute ms": _scaled("compute_s", 1e3),
    "collective ms": _scaled("collective_s", 1e3),
    "host ms": _scaled("host_s", 1e3),
    "collectives": lambda row: str(row.get("collectives", "")),
    "MiB sent/device": _scaled("collective_bytes", 2**-20),
    "MiB/device": _scaled("memory_bytes", 2**-20),
    "compile s": lambda row: f"{row['compile_s']:.1f}",
    "digest": lambda row: row["digest"],
}


def with_efficiency(results: Sequence[Row]) -> list[dict[str, Any]]:
    """Add the efficiency, samples per second and device relative to the first row, and the time without communication.

    Args:
        results: at least one row with "devices" and "samples_per_s", maybe "step_s" and "collective_s".

    Example:
        >>> rows = [{"devices": 1, "samples_per_s": 100}, {"devices": 4, "samples_per_s": 300}]
        >>> [row["efficiency"] for row in with_efficiency(rows)]
        [1.0, 0.75]
    """
    base = results[0]["samples_per_s"] / results[0]["devices"]
    rows = [{**row, "efficiency": row["samples_per_s"] / row["devices"] / base} for row in results]
    return [row | ({"compute_s": row["step_s"] - row["collective_s"]} if "collective_s" in row else {}) for row in rows]


def markdown(title: str, results: Sequence[Row], machine: Mapping[str, Any]) -> str:
    """Return the results as a table in Markdown, with a sentence on the machine.

    Args:
        title: heading.
        results: a dict per number of devices, from `jfit.bench.measure.measure`.
        machine: "cores", "python", "emulated", "malloc" (`jfit.allocator.state`), and versions.
    """
    rows = [[make(row) for make in COLUMNS.values()] for row in with_efficiency(results)]
    shown = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    lines = [[list(COLUMNS)[i] for i in shown], ["---:"] * len(shown), *[[row[i] for i in shown] for row in rows]]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    hosts = max(row.get("hosts", 1) for row in results)
    cores = f"{hosts} hosts with {machine['cores']} cores each" if hosts > 1 else f"{machine['cores']} cores"
    note = f"{results[0]['device']}, {cores}, Python {machine['python']}, jax {machine['jax']}; {machine['malloc']}."
    # devices share the cores of their host, and other rows may have fewer hosts
    share, most = min((row.get("hosts", 1) * machine["cores"] / row["devices"], row["devices"]) for row in results)
    if machine["emulated"] and share < 1:
        note += (
            f" The devices are emulated: up to {most} devices share {round(share * most)} cores, so an efficiency of "
            f"{share:.2f} is all that {most} devices can have."
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
    figure, (axes,) = new_axes("jfit.bench", 1, path, None)
    counts, speeds = [row["devices"] for row in results], [row["samples_per_s"] for row in results]
    axes.plot(counts, speeds, "o-", label="measured")
    axes.plot(counts, [speeds[0] * n / counts[0] for n in counts], "--", color="gray", label="perfect scaling")
    axes.set(xlabel="devices", ylabel="samples/s", title=title)
    axes.legend()
    save_figure(figure, path)
