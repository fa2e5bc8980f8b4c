"""Cost of an optimizer update when a batch uses few rows of an embedding table: row-sparse against dense gradients.

A table of 1,000,000 x 64 float32, batches of 1,000 random rows, donated state. The leg `rows` passes the optimizer a
`jfit.optim.SparseRows`, the leg `whole` a dense gradient. Both run the same update rule in turn in one process on one core;
CPU time, ratios within a round. For `rows` it also reports what the compiled program copies: bytes of the state aliased between
input and output, bytes of temporaries, and copies of a table in the HLO text.

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
    """One update rule with one kind of gradient: the compiled step, its state, and batches on the device."""

    def __init__(self, rule: str, by_rows: bool, size: int, width: int, rows: int) -> None:
        name, params = RULES[rule]
        optimizer = jfit.optim.get(name, learning_rate=0.01, **params).transform

        def step(weights: Any, state: Any, gradient: Any) -> Any:
            updates, state = optimizer.update({"table_weight": gradient}, state, weights)
            return apply_updates(weights, updates), state

        rng = np.random.default_rng(0)
        numbers = [jnp.asarray(rng.integers(0, size, rows), jnp.int32) for _ in range(8)]
        values = jnp.asarray(rng.normal(size=(rows, width)), jnp.float32)
        # the dense gradient is computed in advance: only the update is timed
        self.batches = [SparseRows(n, values) for n in numbers] if by_rows else [SparseRows(numbers[0], values).dense(size)]
        weights = {"table_weight": jnp.zeros((size, width))}
        self.state = weights, optimizer.init(weights)
        self.compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*self.state, self.batches[0]).compile()
        self.shape = size, width
        self.seconds(2)

    def seconds(self, steps: int) -> float:
        """Seconds per step, the mean over `steps` steps: CPU time of all threads, or wall time on an accelerator."""
        clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
        start = clock()
        for k in range(steps):
            self.state = self.compiled(*self.state, self.batches[k % len(self.batches)])
        jax.block_until_ready(self.state)
        return (clock() - start) / steps

    def memory(self) -> dict[str, int]:
        """Bytes of the state, of buffers aliased between state and result, of temporaries; number of copies of a table."""
        analysis, (size, width) = self.compiled.memory_analysis(), self.shape
        assert analysis is not None
        state = sum(x.nbytes for x in jax.tree.leaves(self.state))
        copies = len(re.findall(rf"= f32\[{size},(?:{width}|1)\]\S* copy\(", self.compiled.as_text() or ""))
        shared, temporary = analysis.alias_size_in_bytes, analysis.temp_size_in_bytes
        return {"state": state, "shared": shared, "temporary": temporary, "copies": copies}


def _round(few: Leg, whole: Leg, first: bool) -> tuple[float, float]:
    if first:
        return few.seconds(50), whole.seconds(3)
    slow = whole.seconds(3)
    return few.seconds(50), slow


def measure(rule: str, rounds: int, size: int, width: int, rows: int) -> dict[str, Any]:
    """Times of both legs, their ratio, and the memory report of the row-sparse one."""
    few, whole = Leg(rule, True, size, width, rows), Leg(rule, False, size, width, rows)
    pairs = np.array([_round(few, whole, first=r % 2 == 0) for r in range(rounds)])  # seconds: (by rows, whole)
    times = {"rows_s": summary(pairs[:, 0]), "whole_s": summary(pairs[:, 1]), "ratio": summary(pairs[:, 1] / pairs[:, 0])}
    return {"rule": rule, **times, **few.memory(), "table": size * width * 4}


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page."""
    about, (size, width, rows) = result["machine"], result["shape"]
    versions = ", ".join(f"{k} {about['versions'][k]}" for k in ("jax", "jaxlib", "numpy"))
    lines = [
        "# Updates by rows",
        "",
        f"{about['processor']}, {about['cores']} cores, {about['system']}; {result['device']}; "
        f"Python {about['python']}; {versions}.",
        "",
        f"Table of {size:,} x {width} float32 ({size * width * 4 / 1e6:.0f} MB), {rows:,} random rows per batch; donated "
        f"state; one core, CPU time, {result['rounds']} rounds, median (quartiles). Bar: the dense update takes at "
        f"least {LEAST_RATIO:.0f} times as long, and the row-sparse program copies no table.",
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
    """Whether the result of one rule meets the bar."""
    in_place = each["copies"] == 0 and each["shared"] >= each["state"] - 64 and each["temporary"] < each["table"] / 20
    return in_place and each["ratio"]["median"] >= LEAST_RATIO


def main() -> None:
    """Measure all rules, print the report, and write it to the files of --json and --markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--cores", type=int, default=1)
    args = parser.parse_args()
    pin(args.cores)
    shape = args.size, args.width, args.rows
    device = jax.devices()[0]
    result = {"machine": machine(), "device": f"{device.platform}: {device.device_kind}", "shape": shape, "rounds": args.rounds}
    result["rules"] = [measure(rule, args.rounds, *shape) for rule in RULES]
    print(markdown(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(markdown(result))
    raise SystemExit(0 if all(passed(each) for each in result["rules"]) else "a rule misses the bar")


if __name__ == "__main__":
    main()
