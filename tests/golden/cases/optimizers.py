"""Trajectories of optimizers, for `test_optim_golden.py`.

For each case an array (steps, n): after each step both parameters, then the state of each in MXNet's order, all raveled, as
float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

STEPS = 6
RESCALE = 0.5
# the rate of each step, as a part of the first
RATES = (1.0, 1.0, 0.5, 0.5, 2.0, 2.0)
SHAPE = (3, 2)
ORDER = ("fc_weight", "fc_bias")  # of turns, which is not the order of leaves


class Case(NamedTuple):
    """One trajectory.

    Attributes:
        optimizer: name, in MXNet and in jfit.
        settings: parameters, in both.
        together: all parameters are updated by one call (MXNet's lists), not one by one.
        half: parameters are float16.
        extra: parameters that only jfit's rule has.
    """

    optimizer: str
    settings: dict[str, Any]
    together: bool = False
    half: bool = False
    extra: dict[str, Any] = {}  # noqa: RUF012


_RATE = {
    "adagrad": 0.1,
    "groupadagrad": 0.1,
    "adam": 0.05,
    "adamw": 0.05,
    "adamax": 0.05,
    "nadam": 0.05,
    "ftrl": 0.3,
    "lamb": 0.05,
    "signum": 0.1,
    "lars": 0.5,
    "rmsprop": 0.05,
}
# what each rule has of its own, and the decay that suits it
_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "sgd": {"momentum": {"momentum": 0.9}},
    "nag": {"momentum": {"momentum": 0.9}},
    "signum": {"signs": {"momentum": 0.0}, "apart": {"wd_lh": 0.2, "momentum": 0.5}},
    "adam": {"betas": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.01}},
    "adamw": {"betas": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.01}},
    "adamax": {"betas": {"beta1": 0.5, "beta2": 0.9}},
    "nadam": {"betas": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.01, "schedule_decay": 5.0}},
    "rmsprop": {
        "bound": {"gamma1": 0.5, "epsilon": 0.01, "clip_weights": 0.9},
        "centered": {"centered": True, "gamma1": 0.5, "gamma2": 0.3, "clip_weights": 0.9},
    },
    "adagrad": {"eps": {"eps": 0.1}},
    "groupadagrad": {"eps": {"eps": 0.1}},
    "adadelta": {"rho": {"rho": 0.5, "epsilon": 0.01}},
    "ftrl": {"sparse": {"lamda1": 0.6, "beta": 0.5}},
    "ftml": {"betas": {"beta1": 0.3, "beta2": 0.9, "epsilon": 0.01}},
    "dcasgd": {"lamda": {"lamda": 2.0}},
    "lamb": {
        "plain_moments": {"bias_correction": False, "beta1": 0.5, "beta2": 0.9, "epsilon": 0.01},
        "bounds": {"lower_bound": 2.0, "upper_bound": 3.0},
    },
    "lars": {
        "momentum": {"momentum": 0.9, "eta": 0.1, "eps": 0.1},
        "as_it_is": {"momentum": 0.9, "eta": 0.1, "momentum_correction": False},
    },
    "lbsgd": {
        "momentum": {"momentum": 0.9},
        "linear": {"momentum": 0.9, "batch_scale": 2, "updates_per_epoch": 1, "warmup_epochs": 5},
        "power2": {"batch_scale": 3, "warmup_strategy": "power2", "updates_per_epoch": 2, "warmup_epochs": 4},
        "sqrt": {"batch_scale": 2, "warmup_strategy": "sqrt", "updates_per_epoch": 2, "warmup_epochs": 2, "begin_epoch": 1},
        "lars": {"batch_scale": 2, "warmup_strategy": "lars", "momentum": 0.5},
        "unknown": {"batch_scale": 2, "warmup_strategy": "none", "warmup_epochs": 1, "updates_per_epoch": 3},
    },
    "test": {},
}
_HALVES = (
    "sgd",
    "nag",
    "signum",
    "adam",
    "rmsprop",
    "adagrad",
    "adamax",
    "nadam",
    "ftrl",
    "ftml",
    "lamb",
    "lars",
    "adadelta",
    "dcasgd",
    "groupadagrad",
)


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}

    def enter(name: str, optimizer: str, settings: dict[str, Any], together: bool = False, half: bool = False) -> None:
        settings = {"learning_rate": _RATE.get(optimizer, 0.1), **settings}
        extra: dict[str, Any] = {"order": ORDER} if optimizer in ("nadam", "lars") else {}
        if optimizer == "lars":
            extra["group"] = None if together else 1
        if optimizer == "lbsgd":
            extra["grad_scale"] = RESCALE
        if optimizer == "adamw":
            extra["bias_correction"] = False  # MXNet has the kernel only
        found[name] = Case(optimizer, settings, together, half, extra)

    for optimizer, options in _OPTIONS.items():
        decay = {} if optimizer in ("groupadagrad", "test") else {"wd": 0.1}
        clipped = {**decay, "clip_gradient": 0.3}
        # AdamW has a decay unless told not
        enter(f"{optimizer}_plain", optimizer, {"wd": 0.0} if optimizer == "adamw" else {})
        if optimizer != "test":
            enter(f"{optimizer}_clipped", optimizer, clipped)
        for name, own in options.items():
            enter(f"{optimizer}_{name}", optimizer, {**decay, **own})
            enter(f"{optimizer}_{name}_clipped", optimizer, {**clipped, **own})
    for optimizer, name in (("lars", "momentum"), ("lamb", "bounds"), ("sgd", "momentum")):
        enter(f"{optimizer}_{name}_together", optimizer, {"wd": 0.1, **_OPTIONS[optimizer][name]}, together=True)
    for optimizer in _HALVES:
        for name, own in {"plain": {}, **_OPTIONS[optimizer]}.items():
            decay = {} if optimizer == "groupadagrad" else {"wd": 0.1}
            settings = {"multi_precision": True, **decay, "clip_gradient": 0.3, **own}
            # one by one MXNet's LAMB forgets to update its masters
            enter(f"{optimizer}_{name}_half", optimizer, settings, together=optimizer == "lamb", half=True)
    return found


CASES = _cases()


def start(case: Case) -> dict[str, np.ndarray]:
    """The parameters at first; of one shape, so that each operation compiles once for both."""
    draw = np.random.RandomState(3)
    dtype = np.float16 if case.half else np.float32
    return {name: draw.uniform(-1, 1, SHAPE).astype(dtype) for name in ORDER}


def gradients(case: Case) -> list[dict[str, np.ndarray]]:
    """The gradients of each step, before RESCALE."""
    draw = np.random.RandomState(4)
    return [{k: draw.normal(size=v.shape).astype(v.dtype) for k, v in start(case).items()} for _ in range(STEPS)]


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


def recorded(mx: Any) -> dict[str, Any]:
    return {"optimizers.npz": {name: trajectory(mx, case) for name, case in CASES.items()}}
