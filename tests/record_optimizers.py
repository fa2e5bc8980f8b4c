"""Record optimizer trajectories with MXNet 1.9.1: `python tests/record_optimizers.py` writes tests/golden/optimizers.npz.

Runs as `tests/record_golden.py` does.  For each case of tests/cases/optimizers.py an array (steps, n): after each step both
parameters, then the state of each in MXNet's order, all raveled, as float32.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from cases.optimizers import CASES, ORDER, RATES, RESCALE, Case, gradients, start

FOLDER = Path(__file__).parent / "golden"


def flat(state: Any) -> list[Any]:
    """The arrays of a nested state."""
    if state is None:
        return []
    return [x for part in state for x in flat(part)] if isinstance(state, (tuple, list)) else [state]


class Kernel:
    """MXNet has AdamW as a kernel only: what its users wrote around it."""

    def __init__(self, mx: Any, learning_rate: float, wd: float, clip_gradient: float = -1.0, **own: float) -> None:
        self.mx, self.lr, self.wd, self.own = mx, learning_rate, wd, {"clip_gradient": clip_gradient, **own}

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        return self.mx.nd.zeros(weight.shape), self.mx.nd.zeros(weight.shape)

    def set_learning_rate(self, rate: float) -> None:
        self.lr = rate

    def update_multi_precision(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        scale, wd = self.mx.nd.array([RESCALE]), self.wd if ORDER[index].endswith("_weight") else 0.0
        kernel = self.mx.nd.contrib.adamw_update
        kernel(weight, grad, *state, scale, out=weight, lr=1.0, eta=self.lr, wd=wd, **{"epsilon": 1e-6, **self.own})


def trajectory(mx: Any, case: Case) -> np.ndarray:
    """Parameters and states after each step, (steps, n)."""
    names = dict(enumerate(ORDER))
    if case.optimizer == "adamw":
        optimizer: Any = Kernel(mx, **case.settings)
    else:
        optimizer = mx.optimizer.create(case.optimizer, rescale_grad=RESCALE, param_idx2name=names, **case.settings)
    first = case.settings["learning_rate"]
    weights = [mx.nd.array(start(case)[name], dtype=start(case)[name].dtype) for name in ORDER]
    states = [optimizer.create_state_multi_precision(i, w) for i, w in enumerate(weights)]
    rows = []
    for rate, step in zip(RATES, gradients(case)):  # noqa: B905
        optimizer.set_learning_rate(first * rate)
        grads = [mx.nd.array(step[name], dtype=step[name].dtype) for name in ORDER]
        if case.together:
            optimizer.update_multi_precision([0, 1], weights, grads, states)
        else:
            for i in names:
                optimizer.update_multi_precision(i, weights[i], grads[i], states[i])
        mx.nd.waitall()
        rows.append(np.concatenate([x.asnumpy().ravel().astype(np.float32) for x in [*weights, *flat(states)]]))
    return np.stack(rows)


def main() -> None:
    """Record every case."""
    import mxnet as mx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: trajectory(mx, case) for name, case in CASES.items()}
    np.savez_compressed(FOLDER / "optimizers.npz", **found)
    print(len(found), "trajectories")


if __name__ == "__main__":
    main()
