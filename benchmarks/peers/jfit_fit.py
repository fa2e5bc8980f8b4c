"""jfit's public API: one `jfit.fit`, then `Run.train` for each more epoch, with the same compiled programs."""

from __future__ import annotations

from typing import Any

import numpy as np

import jfit
from benchmarks.peers import Leg
from benchmarks.peers.symbols import network
from benchmarks.workloads import MOMENTUM, Workload


def _function(workload: Workload, attention: str) -> tuple[Any, dict[str, Any]]:
    from benchmarks.peers import hand

    slices = hand.SLICES.get(workload.kind, 1)

    def net(params: Any, x: Any) -> Any:
        logits, _ = hand.forward(hand.Values(params), {}, x, workload, slices=slices, attention=attention)
        return logits.reshape(*x.shape, workload.words) if workload.text else logits

    return net, {"params": hand.initial(workload, workload.arrays("NHWC")[0])[0], "loss": "cross_entropy"}


def begin(
    workload: Workload, *, steps_per_call: int | str = "auto", attention: str | None = None, source: str = "arrays"
) -> Leg:
    """Prepare the leg; with `attention`, the network is the hand-written function of JAX arrays instead of a graph.

    `source` are the training data: "arrays", or the same rows from a "generator", "torch" or "grain".
    """
    rate, text = workload.learning_rate, workload.text
    runs: list[Any] = []
    if attention is None:
        data, model, more = batches(workload, source), network(jfit.sym, workload), {}
    else:
        data, (model, more) = workload.arrays("NHWC"), _function(workload, attention)
    rule = ("adam", {"learning_rate": rate}) if text else ("sgd", {"learning_rate": rate, "momentum": MOMENTUM})
    options: dict[str, Any] = {"optimizer": rule[0], "optimizer_params": rule[1], "eval_metric": None if text else "acc"}
    if workload.dtype != "float32":
        options["policy"] = workload.dtype

    def train() -> float:
        if runs:
            runs[0].train(num_epoch=1)
        else:
            fixed: dict[str, Any] = {"num_epoch": 1, "steps_per_call": steps_per_call, "progress": False}
            runs.append(jfit.fit(model, data, batch_size=workload.batch, **options, **fixed, **more))
        return float(runs[0].history.column("loss" if text else "accuracy")[-1])

    return Leg(train, lambda: sum(value.size for value in runs[0].params.values()))


def batches(workload: Workload, source: str) -> Any:
    """The training data of a workload, from the source that `begin` describes."""
    x, y = arrays = workload.arrays()
    if source == "torch":
        import torch

        rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, arrays))
        return torch.utils.data.DataLoader(rows, workload.batch, shuffle=True)
    if source == "grain":
        import grain

        # Whole batches: row by row, grain itself takes 5 ms of CPU time for 128 rows.
        rows: Any = np.random.default_rng(0).permutation(len(x)).reshape(-1, workload.batch)
        return grain.MapDataset.source(rows).shuffle(seed=0).map(lambda at: (x[at], y[at]))
    rng = np.random.default_rng(0)

    def generate(epoch: int) -> Any:
        for rows in rng.permutation(len(x)).reshape(-1, workload.batch):
            yield x[rows], y[rows]

    return generate if source == "generator" else arrays
