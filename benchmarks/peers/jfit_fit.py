"""jfit's public API: one `jfit.fit`, then `Run.train` for each more epoch, with the same compiled programs."""

from __future__ import annotations

from typing import Any

import jfit
from benchmarks.peers import Leg
from benchmarks.peers.symbols import network
from benchmarks.workloads import MOMENTUM, Workload


def _function(workload: Workload, x: Any, attention: str) -> tuple[Any, dict[str, Any]]:
    from benchmarks.peers import hand

    def net(params: Any, tokens: Any) -> Any:
        logits, _ = hand.forward(hand.Values(params), {}, tokens, workload, attention=attention)
        return logits.reshape(*tokens.shape, workload.words)

    return net, {"params": hand.initial(workload, x)[0], "loss": "cross_entropy"}


def begin(workload: Workload, *, steps_per_call: int | str = "auto", attention: str | None = None) -> Leg:
    """Prepare the leg; with `attention`, the network is the hand-written function of JAX arrays instead of a graph."""
    rate, text = workload.learning_rate, workload.text
    data, runs = workload.arrays(), []
    model, more = (network(jfit.sym, workload), {}) if attention is None else _function(workload, data[0], attention)
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
