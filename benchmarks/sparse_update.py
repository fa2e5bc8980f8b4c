"""What an update costs when a batch touches few rows of a table: by rows against the whole table, same rule, same process.

A table of 1,000,000 x 64 float32, batches of 1,000 random rows, state donated.  `rows` gives the optimizer a
`jfit.optim.SparseRows`, `whole` a gradient with all rows.  The two take turns on one core, measured in CPU time; ratios are
taken within a round.  The compiled program of `rows` tells what it would copy: bytes that its state shares between input and
output, bytes of temporaries, copies of a table in its text.

    python -m benchmarks.sparse_update --markdown benchmarks/results/<machine>-sparse-update.md
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfit
from benchmarks.measure import machine, pin, summary
from jfit.optim import SparseRows, apply_updates

RULES: dict[str, tuple[str, dict[str, float]]] = {
    "sgd": ("sgd", {"wd": 1e-4}),
    "sgd, momentum": ("sgd", {"momentum": 0.9, "wd": 1e-4}),
    "adam": ("adam", {"wd": 1e-4}),
    "adagrad": ("adagrad", {}),
}
LEAST_RATIO = 50.0


class Leg:
    """One rule, one kind of gradient: the compiled step, its state, and batches that lie on the device."""

    def __init__(self, rule: str, by_rows: bool, size: int, width: int, rows: int) -> None:
        name, params = RULES[rule]
        optimizer = jfit.optim.get(name, learning_rate=0.01, **params).transform

        def step(weights: Any, state: Any, gradient: Any) -> Any:
            updates, state = optimizer.update({"table_weight": gradient}, state, weights)
            return apply_updates(weights, updates), state

        rng = np.random.default_rng(0)
        numbers = [jnp.asarray(rng.integers(0, size, rows), jnp.int32) for _ in range(8)]
        values = jnp.asarray(rng.normal(size=(rows, width)), jnp.float32)
        # the whole gradient is made beforehand: only the update is timed
        self.batches = [SparseRows(n, values) for n in numbers] if by_rows else [SparseRows(numbers[0], values).dense(size)]
        weights = {"table_weight": jnp.zeros((size, width))}
        self.held = weights, optimizer.init(weights)
        self.compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*self.held, self.batches[0]).compile()
        self.shape = size, width
        self.seconds(2)

    def seconds(self, steps: int) -> float:
        """CPU time of one step, of all threads, the mean over `steps` in a row; wall time where there is an accelerator."""
        clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
        start = clock()
        for k in range(steps):
            self.held = self.compiled(*self.held, self.batches[k % len(self.batches)])
        jax.block_until_ready(self.held)
        return (clock() - start) / steps

    def memory(self) -> dict[str, int]:
        """Bytes of the state, of what it shares with the result, of temporaries; copies of a table in the program."""
        told, (size, width) = self.compiled.memory_analysis(), self.shape
        assert told is not None
        state = sum(x.nbytes for x in jax.tree.leaves(self.held))
        copies = len(re.findall(rf"= f32\[{size},(?:{width}|1)\]\S* copy\(", self.compiled.as_text() or ""))
        return {"state": state, "shared": told.alias_size_in_bytes, "temporary": told.temp_size_in_bytes, "copies": copies}


def _round(few: Leg, whole: Leg, first: bool) -> tuple[float, float]:
    if first:
        return few.seconds(50), whole.seconds(3)
    slow = whole.seconds(3)
    return few.seconds(50), slow


def measure(rule: str, rounds: int, size: int, width: int, rows: int) -> dict[str, Any]:
    """Times of both legs and what the program by rows copies."""
    few, whole = Leg(rule, True, size, width, rows), Leg(rule, False, size, width, rows)
    pairs = np.array([_round(few, whole, first=r % 2 == 0) for r in range(rounds)])  # seconds: (by rows, whole)
    found = {"rows_s": summary(pairs[:, 0]), "whole_s": summary(pairs[:, 1]), "ratio": summary(pairs[:, 1] / pairs[:, 0])}
    return {"rule": rule, **found, **few.memory(), "table": size * width * 4}


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    told, (size, width, rows) = result["machine"], result["shape"]
    versions = ", ".join(f"{k} {told['versions'][k]}" for k in ("jax", "jaxlib", "numpy"))
    lines = [
        "# Updates by rows",
        "",
        f"{told['processor']}, {told['cores']} cores, {told['system']}; {result['device']}; "
        f"Python {told['python']}; {versions}.",
        "",
        f"Table of {size:,} x {width} float32 ({size * width * 4 / 1e6:.0f} MB), {rows:,} random rows a batch, state donated; "
        f"one core, CPU time, {result['rounds']} rounds, median (quartiles). Bar: the whole update takes {LEAST_RATIO:.0f} "
        "times as long or longer, and the program by rows copies no table.",
        "",
        "| rule | by rows, µs | whole, µs | whole / by rows | state, MB | shared, MB | temporary, MB | copies of a table | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for each in result["rules"]:
        ratio, times = each["ratio"], [f"{each[k]['median'] * 1e6:,.0f}" for k in ("rows_s", "whole_s")]
        spread = f"{ratio['median']:,.0f} ({ratio['q1']:,.0f} to {ratio['q3']:,.0f})"
        megabytes = [f"{each[k] / 1e6:,.1f}" for k in ("state", "shared", "temporary")]
        cells = [each["rule"], *times, spread, *megabytes, str(each["copies"]), "pass" if passed(each) else "FAIL"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def passed(each: dict[str, Any]) -> bool:
    """Whether a rule meets the bar."""
    in_place = each["copies"] == 0 and each["shared"] >= each["state"] - 64 and each["temporary"] < each["table"] / 20
    return in_place and each["ratio"]["median"] >= LEAST_RATIO


def main() -> None:
    """Measure all rules and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--cores", type=int, default=1)
    told = parser.parse_args()
    pin(told.cores)
    shape = told.size, told.width, told.rows
    device = jax.devices()[0]
    result = {"machine": machine(), "device": f"{device.platform}: {device.device_kind}", "shape": shape, "rounds": told.rounds}
    result["rules"] = [measure(rule, told.rounds, *shape) for rule in RULES]
    print(markdown(result))
    if told.json:
        told.json.write_text(json.dumps(result, indent=1) + "\n")
    if told.markdown:
        told.markdown.write_text(markdown(result))
    raise SystemExit(0 if all(passed(each) for each in result["rules"]) else "a rule misses the bar")


if __name__ == "__main__":
    main()
