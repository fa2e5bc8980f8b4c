"""The page of results of `benchmarks.accelerator`, as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.page import number, table

Run = dict[str, Any]
# (network or None for all, leg, least speed of jfit.fit relative to it)
BARS = ((None, "hand", 0.97), ("resnet50", "compile", 1.0), ("gpt", "compile", 1.0))
SHARES = {"resnet50": 0.45, "gpt": 0.45}  # least shares of the rate of matrix products

METHOD = """\
Each leg is a process of its own, which has the accelerator for itself: it trains an epoch, then {rounds} more, of which the
median counts. Layers, sizes, optimizer (SGD with momentum for images, Adam for texts), batch size and dtype are equal; data are
on the device, and feeding shuffled batches and the metric belong to every leg. With bfloat16, the layers compute in it, and
parameters, optimizer state, statistics and loss are float32. float32 products have JAX's default precision; torch may use TF32.
`jfit.fit` trains a graph of MXNet's operators, or the hand-written function of the transformers, in which attention is
`jax.nn.dot_product_attention` with the implementation "{attention}".
"""
COMPARED = "For the transformers, the speed of jfit.fit is that of the hand-written function."
SHARE = """\
Model FLOPs per second, divided by the measured rate of matrix products of the dtype. Model FLOPs are three times those of the
matrix products and convolutions of the forward pass, of causal attention only those that the mask leaves.
"""
START = """\
Seconds from the start of the process, without a compile cache: those of the first epoch without its other steps and the data.
"""


def _median(record: dict[str, Any]) -> float:
    return float(np.median(record["rates"]))


def _figures(runs: list[Run], titles: dict[str, str], show: Callable[[Run, dict[str, Any]], str]) -> list[str]:
    """A table with a row for each leg, and a column for each network."""
    rows = {}
    for leg, title in titles.items():
        cells = [show(run, run["legs"][leg]) if "rates" in run["legs"].get(leg, {}) else "" for run in runs]
        if any(cells):
            rows[title] = cells
    return table("", [run["network"] for run in runs], rows)


def _jfit(run: Run) -> dict[str, Any]:
    return run["legs"].get("function" if "function" in run["legs"] else "jfit", {})


def _ratio(run: Run, record: dict[str, Any]) -> float | None:
    """Speed of jfit.fit divided by that of a leg; None if one was not measured."""
    jfit = _jfit(run)
    return _median(jfit) / _median(record) if "rates" in jfit and "rates" in record else None


def _compared(run: Run, record: dict[str, Any]) -> str:
    value = _ratio(run, record)
    return "" if value is None else f"{value:.2f}"


def _bars(runs: list[Run], titles: dict[str, str], share: Callable[..., float]) -> list[str]:
    lines = []
    for name, leg, bar in BARS:
        for run in (run for run in runs if name in (None, run["network"])):
            value = _ratio(run, run["legs"].get(leg, {}))
            if value is not None:
                lines.append(f"- {run['network']}: {value:.2f} times the speed of {titles[leg]}, {_passed(value, bar)}")
    for run in runs:
        if run["network"] in SHARES and "rates" in _jfit(run):
            value = share(run, _jfit(run))
            lines.append(f"- {run['network']}: {value:.2f} of the rate of products, {_passed(value, SHARES[run['network']])}")
    return ["## Bars", "", *lines, ""] if lines else []


def _passed(value: float, bar: float) -> str:
    return f"bar {bar}: {'met' if value >= bar else '**missed**'}"


def _remarks(result: dict[str, Any], titles: dict[str, str]) -> list[str]:
    lines = []
    for run in result["runs"]:
        counts: dict[int, list[str]] = {}
        for leg, record in run["legs"].items():
            head = f"- {run['network']}: {titles[leg]}"
            if "missing" in record:
                lines.append(f"{head}: {record['missing']}")
                continue
            counts.setdefault(record["parameters"], []).append(titles[leg])
            if not record["learned"] and not result["quick"]:
                lines.append(f"{head} **did not learn**: {record['metric']:.3f}, then {record['last']:.3f}")
            if record["device"] != result["matmul"]["device"]:
                lines.append(f"{head} **ran on {record['device']}**")
        each = "; ".join(f"{count:,} in {', '.join(legs)}" for count, legs in counts.items())
        lines += [f"- {run['network']}, trained values: {each}"] if counts else []
    return ["## Remarks", "", *lines, ""] if lines else []


def markdown(result: dict[str, Any], titles: dict[str, str]) -> str:
    """The page of a result; `titles` are those of the legs by name."""
    rates, runs, versions = result["matmul"], result["runs"], {}
    for run in runs:
        for record in run["legs"].values():
            versions |= record.get("versions", {})
    packages = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    cpu = result["machine"]
    rounds = max((len(r["rates"]) for run in runs for r in run["legs"].values() if "rates" in r), default=0)
    measured = " and ".join(f"{rate / 1e12:,.3g} TFLOP/s in {dtype}" for dtype, rate in rates["rates"].items())
    peak = "resident memory of the process" if rates["platform"] == "cpu" else "most memory of the device in use at once"
    lines = ["# jfit and its peers on an accelerator", ""]
    where = f"{rates['device']}; {cpu['processor']}, {cpu['cores']} cores, {cpu['system']}"
    lines += [f"`python -m benchmarks.accelerator`. {where}; {packages}; {result['date']}.", ""]
    lines += [METHOD.format(rounds=rounds, attention=result["attention"])]
    lines += ["A quick run of small networks: its figures mean nothing.", ""] if result["quick"] else []
    lines += [result["note"], ""] if result["note"] else []
    lines += [f"- {r['network']}: {r['title']}, batch {r['batch']}, {r['dtype']}" for r in runs]
    lines += ["", f"Products of matrices of size {rates['size']:,}: {measured}.", ""]
    lines += ["## Samples per second", "", *_figures(runs, titles, lambda run, record: number(_median(record)))]
    lines += ["## Speed of jfit.fit divided by that of the other", "", COMPARED, "", *_figures(runs, titles, _compared)]
    share = lambda run, record: run["flops"] * _median(record) / rates["rates"][run["dtype"]]  # noqa: E731
    shares = _figures(runs, titles, lambda run, record: f"{share(run, record):.1%}")
    lines += ["## Share of the rate of matrix products", "", SHARE, *shares]
    lines += [] if result["quick"] else _bars(runs, titles, share)
    lines += ["## Peak memory in MB", "", f"The {peak}.", "", *_figures(runs, titles, lambda run, r: number(r["peak_mb"]))]
    lines += ["## Time to the first step", "", START, *_figures(runs, titles, lambda run, r: f"{r['start_s']:.2f}")]
    return "\n".join(lines + _remarks(result, titles))
