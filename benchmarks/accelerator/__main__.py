"""Training speed on the first accelerator: jfit, hand-written JAX, Flax NNX, torch eager and torch.compile.

    python -m benchmarks.accelerator --name h200-accelerator --python PATH   everything
    python -m benchmarks.accelerator --network gpt --attention cudnn         a part of it
    python -m benchmarks.accelerator --quick                                 does it run? small networks, also on a CPU

`--name` writes benchmarks/results/NAME.md and .json. benchmarks/README.md describes the method.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.accelerator import page
from benchmarks.accelerator.networks import NETWORKS, flops, small
from benchmarks.measure import machine
from benchmarks.peers.runs import ROOT, Entry, Process, answer, environment, say
from benchmarks.workloads import Workload

TRANSFORMERS = ("bert", "gpt")
QUICK = ["jfit", "hand"]


def legs(attention: str) -> dict[str, Entry]:
    """The legs by name; `attention` is the implementation of JAX's function for attention in hand-written functions."""
    all_networks, function = tuple(NETWORKS), {"attention": attention}
    images = {"slices": 1, **function}
    return {
        "jfit": Entry("jfit.fit", "jfit_fit", {}, all_networks),
        "function": Entry("jfit.fit of the hand-written function", "jfit_fit", function, TRANSFORMERS),
        "hand": Entry("hand-written JAX", "hand", images, all_networks),
        "nnx": Entry("Flax NNX", "nnx", {"on_device": True}, all_networks, "peers"),
        "torch": Entry("torch eager", "torch_eager", {}, all_networks, "peers"),
        "compile": Entry("torch.compile", "torch_eager", {"compiled": True}, all_networks, "peers"),
    }


def matmul(quick: bool) -> dict[str, Any]:
    """Measure the rates of matrix products in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.accelerator.matmul", *(["--quick"] if quick else [])]
    return json.loads(subprocess.check_output(command, cwd=ROOT, env=environment(), text=True).splitlines()[-1])


def measure(entry: Entry, python: str, network: Workload, rounds: int) -> dict[str, Any]:
    """Train a leg: one epoch with its start, then some more.

    Returns:
        {"missing": reason}, or the rates of the epochs in rows per second, the peak memory, the seconds to the first step, ...
    """
    process = Process(entry, python, network, environment())
    try:
        record, epochs = answer(process.answer), []
        while "missing" not in record and len(epochs) < rounds:
            epochs.append(answer(process.train))
            record |= {key: value for key, value in epochs[-1].items() if key == "missing"}
    finally:
        process.close()
    if "missing" in record:
        return {"missing": record["missing"]}
    seconds = sorted(epoch["wall_s"] for epoch in epochs)[len(epochs) // 2]
    last = epochs[-1]
    return record | {
        "rates": [network.rows / epoch["wall_s"] for epoch in epochs],
        "learned": bool(network.learned(record["metric"], last["metric"])),
        "last": last["metric"],
        "device": last["device"],
        "peak_mb": last["device_peak_mb"] or last["peak_mb"],
        # from the start of the process, without the making of the data: the first epoch less its other steps
        "start_s": record["wall_s"] - (network.steps - 1) * seconds / network.steps,
    }


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.accelerator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=list(NETWORKS), action="append", help="default: all")
    parser.add_argument("--legs", help=f"some of {','.join(legs(''))}; default: all, with --quick {','.join(QUICK)}")
    parser.add_argument("--attention", choices=["xla", "cudnn"], default="xla", help="of hand-written functions; default: xla")
    parser.add_argument("--python", default=sys.executable, help="interpreter of torch and Flax; default: this one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small networks, one round (its timings are not meaningful)")
    parser.add_argument("--name", help="write the page and the figures to benchmarks/results")
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks" / "results", help="default: %(default)s")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else ran on the machine")
    arguments = parser.parse_args(argv)
    arguments.legs = arguments.legs.split(",") if arguments.legs else QUICK if arguments.quick else list(legs(""))
    unknown = set(arguments.legs) - set(legs(""))
    if unknown:
        parser.error(f"there is no leg {', '.join(sorted(unknown))}; the legs are {', '.join(legs(''))}")
    return arguments


def main(argv: list[str] | None = None) -> None:
    """Measure what the command line selects, print the page, and write the files."""
    arguments = _arguments(argv)
    entries, rates, runs = legs(arguments.attention), matmul(arguments.quick), []
    if rates["platform"] == "cpu" and not arguments.quick:
        raise SystemExit("JAX finds no accelerator here; pass --quick for a short run of small networks on the CPU")
    text = ""
    for name in arguments.network or NETWORKS:
        network, measured = small(NETWORKS[name]) if arguments.quick else NETWORKS[name], {}
        for leg in arguments.legs:
            if name in entries[leg].workloads:
                say(f"{name}: {leg}")
                python = arguments.python if entries[leg].python == "peers" else sys.executable
                measured[leg] = measure(entries[leg], python, network, 1 if arguments.quick else arguments.rounds)
        sizes = {"title": network.title, "batch": network.batch, "dtype": network.dtype, "flops": flops(network)}
        runs.append({"network": name, **sizes, "steps": network.steps, "legs": measured})
        result = {"machine": machine(), "matmul": rates, "quick": arguments.quick, "attention": arguments.attention}
        result |= {"date": date.today().isoformat(), "note": arguments.note, "runs": runs}
        text = page.markdown(result, {leg: entry.title for leg, entry in entries.items()})
        if arguments.name:  # after each network, because the time on an accelerator may end
            arguments.folder.mkdir(parents=True, exist_ok=True)
            (arguments.folder / f"{arguments.name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
            (arguments.folder / f"{arguments.name}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
