"""Memory and time of a training step with `remat=`: `python -m benchmarks.rematerialization`.

    python -m benchmarks.rematerialization                          ResNet-20 and a transformer
    python -m benchmarks.rematerialization --workload w3 --remat none --remat full

Each setting trains in a process of its own, one after the other, in rounds. "temp" are the temporary buffers of the step, by
`compiled.memory_analysis()`, "peak" the largest resident size of the process, "arithmetic" what XLA counts, and CPU-seconds are
the median over all steps of all rounds. The digest is that of the parameters after the last step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.workloads import MOMENTUM, WORKLOADS

PATTERNS = {"w3": ["*relu*", "*bn*"], "w5": ["leakyrelu*", "softmax*", "*_n1", "*_n2"]}
STEPS = 6


def _step(name: str, remat: Any) -> dict[str, Any]:
    import jax
    import numpy as np

    import jfit
    from benchmarks.peers.child import peak_mb
    from benchmarks.peers.symbols import network
    from jfit.lowering.remat import KEEP_BARRIERS

    workload = WORKLOADS[name].resized(WORKLOADS[name].batch)
    model, data = jfit.lower(network(jfit.sym, workload)), workload.arrays()
    batch = dict(zip((*model.inputs, *model.labels), data, strict=True))
    rule = jfit.optim.adam(1e-3) if workload.text else jfit.optim.sgd(0.1, momentum=MOMENTUM)
    step = jfit.train_step(model, rule, remat=remat)
    options = KEEP_BARRIERS if step.recomputes and jax.default_backend() == "cpu" else None
    state = jfit.init_state(model, rule, batch)
    batch = jax.device_put(batch)
    compiled = jax.jit(step, donate_argnums=0, compiler_options=options).lower(state, batch).compile()
    seconds = []
    for _ in range(STEPS):
        before = time.process_time()
        state, out = compiled(state, batch)
        jax.block_until_ready(out.loss)
        seconds.append(time.process_time() - before)
    digest = hashlib.sha256(b"".join(np.asarray(v).tobytes() for _, v in sorted(state.params.items()))).hexdigest()
    temp, flops = compiled.memory_analysis().temp_size_in_bytes, compiled.cost_analysis()["flops"]
    return {"temp": temp / 1e6, "peak": peak_mb(), "flops": flops / 1e9, "seconds": seconds[1:], "digest": digest[:8]}


def main(argv: list[str] | None = None) -> None:
    """Measure what the command line selects, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="default: w3 and w5")
    parser.add_argument("--remat", action="append", help='"none", "full" or patterns, separated by commas; default: all three')
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.one:
        return print(json.dumps(_step(*json.loads(arguments.one))))
    print("| workload | remat | temp, MB | peak, MB | arithmetic, GFLOP | CPU-s | digest |\n|---|---|---:|---:|---:|---:|---|")
    for name in arguments.workload or ["w3", "w5"]:
        chosen = [r if r in ("none", "full") else r.split(",") for r in arguments.remat or ()]
        chosen = chosen or ["none", "full", PATTERNS.get(name, ["*relu*"])]
        results: list[list[dict[str, Any]]] = [[] for _ in chosen]
        for _ in range(arguments.rounds):
            for remat, runs in zip(chosen, results, strict=True):
                command = [sys.executable, "-m", "benchmarks.rematerialization", "--one", json.dumps([name, remat])]
                runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        for remat, runs in zip(chosen, results, strict=True):
            seconds = statistics.median(s for run in runs for s in run["seconds"])
            peak = statistics.median(run["peak"] for run in runs)
            first, what = runs[0], remat if isinstance(remat, str) else " ".join(f"`{p}`" for p in remat)
            figures = f"{first['temp']:.0f} | {peak:.0f} | {first['flops']:.1f} | {seconds:.3f} | {first['digest']}"
            print(f"| {name} | {what} | {figures} |", flush=True)
    return None


if __name__ == "__main__":
    main()
