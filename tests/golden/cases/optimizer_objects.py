"""Trainings by MXNet's optimizer objects, for `test_mxnet_optimizer_named.py`.

`mx` is MXNet or `jfit.mx`: the same code runs on both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SHAPES = {"a_weight": (3, 2), "a_bias": (3,), "b_gamma": (2,), "b_beta": (2,), "c_weight": (2, 3), "other": (2, 2)}
NAMES = tuple(SHAPES)
STEPS = 5
NET = (("z1", 4), ("m", 3), ("a2", 3))  # layers whose names are not in the order of their indices


class Case(NamedTuple):
    """One training of an Updater.

    Attributes:
        optimizer: name.
        settings: parameters.
        scheduler: class name and arguments; None for a fixed rate.
        dtype: of weights and gradients.
        apart: parameters one by one, not as lists.
        mult: rate and decay multipliers are set.
        late: two parameters miss the second step.
        resume: a new updater takes over after three steps, from the bytes of the old one.
    """

    optimizer: str
    settings: dict[str, Any]
    scheduler: tuple[str, dict[str, Any]] | None = None
    dtype: str = "float32"
    apart: bool = False
    mult: bool = False
    late: bool = False
    resume: bool = False


_FACTOR = ("FactorScheduler", {"step": 2, "factor": 0.5, "base_lr": 0.1})
_WARM = ("MultiFactorScheduler", {"step": [2, 4], "factor": 0.3, "base_lr": 0.1, "warmup_steps": 2})
_HALF: dict[str, Any] = {"multi_precision": True, "wd": 0.01, "clip_gradient": 0.3, "rescale_grad": 0.125}
CASES = {
    "sgd_half": Case("sgd", {"momentum": 0.9, "learning_rate": 0.1, **_HALF}, dtype="float16"),
    "plain_sgd_half": Case("sgd", {"learning_rate": 0.1, **_HALF}, dtype="float16", mult=True),
    "nag_half": Case("nag", {"momentum": 0.9, "learning_rate": 0.1, **_HALF}, dtype="float16", resume=True),
    "lars_half": Case("lars", {"momentum": 0.9, "learning_rate": 0.5, "eta": 0.1, **_HALF}, dtype="float16"),
    "lbsgd_half": Case("lbsgd", {"momentum": 0.9, "learning_rate": 0.1, **_HALF}, dtype="float16", apart=True),
    "adam_half": Case("adam", {"learning_rate": 0.02, **_HALF}, dtype="float16", resume=True),
    "lamb_half": Case("lamb", {"learning_rate": 0.02, **_HALF}, dtype="float16"),
    "dcasgd_half": Case("dcasgd", {"learning_rate": 0.1, **_HALF}, dtype="float16"),
    "lars_rates": Case("lars", {"momentum": 0.9, "eta": 0.1, "wd": 0.01}, _FACTOR, mult=True),
    "lars_apart": Case("lars", {"momentum": 0.9, "eta": 0.1}, _WARM, apart=True),
    "lars_uncorrected": Case("lars", {"momentum": 0.9, "eta": 0.1, "momentum_correction": False}, _FACTOR),
    "lbsgd_rates": Case("lbsgd", {"momentum": 0.9, "batch_scale": 2, "warmup_epochs": 1, "updates_per_epoch": 4}, _WARM),
    "lbsgd_lars": Case("lbsgd", {"warmup_strategy": "lars", "learning_rate": 0.1, "rescale_grad": 0.125, "wd": 0.01}),
    "nadam": Case("nadam", {"learning_rate": 0.02, "wd": 0.01}, mult=True),
    "nadam_late": Case("nadam", {"learning_rate": 0.02, "schedule_decay": 0.1}, late=True, apart=True, resume=True),
    "lamb_late": Case("lamb", {"learning_rate": 0.1, "upper_bound": 1.5}, _FACTOR, late=True),
    "ftrl_rates": Case("ftrl", {"learning_rate": 0.05, "wd": 0.01}, _FACTOR, mult=True),
    "signum_mult": Case("signum", {"learning_rate": 0.1, "wd_lh": 0.01, "wd": 0.01}, mult=True, late=True),
    "adadelta_wd": Case("adadelta", {"wd": 0.01, "clip_gradient": 0.3}, mult=True),
    "ftml_begun": Case("ftml", {"learning_rate": 0.1, "begin_num_update": 3}, resume=True),
}
# of a Module: optimizer, parameters, devices, kvstore
MODULES = {
    "nadam": ("nadam", {"learning_rate": 0.05}, 1, "local"),
    "nadam_store": ("nadam", {"learning_rate": 0.05, "wd": 0.01}, 2, "device"),
    "lars": ("lars", {"momentum": 0.9, "eta": 0.1, "wd": 0.01}, 1, "local"),
    "lars_store": ("lars", {"momentum": 0.9, "eta": 0.1, "wd": 0.01}, 2, "local"),
    "lbsgd": ("lbsgd", {"momentum": 0.9, "batch_scale": 2, "warmup_epochs": 1, "updates_per_epoch": 4}, 1, "local"),
    "dcasgd": ("dcasgd", {"learning_rate": 0.3}, 2, None),
}


def value(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Numbers between -1 and 1 that look like none."""
    return np.cos(np.arange(np.prod(shape)) * 1.7 + 0.9 * seed).astype(dtype).reshape(shape)


def flat(state: Any) -> list[Any]:
    """The arrays of a nested state."""
    if state is None:
        return []
    return [x for part in state for x in flat(part)] if isinstance(state, (tuple, list)) else [state]


def settings_of(mx: Any, settings: dict[str, Any], scheduler: Any) -> dict[str, Any]:
    """The parameters, with a scheduler made of its description."""
    return (
        settings if scheduler is None else {**settings, "lr_scheduler": getattr(mx.lr_scheduler, scheduler[0])(**scheduler[1])}
    )


def updates(mx: Any, case: Case) -> np.ndarray:
    """Weights and states after the last step, raveled, and the number of updates."""
    made = settings_of(mx, case.settings, case.scheduler)
    optimizer = mx.optimizer.create(case.optimizer, param_idx2name=dict(enumerate(NAMES)), **made)
    if case.mult:
        optimizer.set_lr_mult({"a_weight": 0.5, 1: 2.0})
        optimizer.set_wd_mult({"a_bias": 1.0})
    updater = mx.optimizer.get_updater(optimizer)
    weights = [mx.nd.array(value(i, SHAPES[n], case.dtype), dtype=case.dtype) for i, n in enumerate(NAMES)]
    for t in range(STEPS):
        if case.resume and t == 3:
            data = updater.get_states(dump_optimizer=True)
            updater = mx.optimizer.get_updater(mx.optimizer.create(case.optimizer, **made))
            updater.set_states(data)
        given = [i for i in range(len(NAMES)) if not (case.late and t == 1 and i in (0, 3))]
        grads = {i: mx.nd.array(value(7 * t + i + 3, SHAPES[NAMES[i]], case.dtype), dtype=case.dtype) for i in given}
        if case.apart:
            for i in given:
                updater(i, grads[i], weights[i])
        else:
            updater(given, [grads[i] for i in given], [weights[i] for i in given])
    states = [part for i in range(len(NAMES)) for part in flat(updater.states[i])]
    found = [x.asnumpy().astype("float32").ravel() for x in [*weights, *states]]
    return np.concatenate([*found, np.float32([updater.optimizer.num_update])])


def trained(mx: Any, name: str) -> np.ndarray:
    """The parameters of a Module after each step, by sorted name, raveled."""
    optimizer, settings, devices, store = MODULES[name]
    out = mx.sym.Variable("data")
    for layer, width in NET:
        out = mx.sym.FullyConnected(out, num_hidden=width, name=layer)
        out = mx.sym.Activation(out, act_type="tanh") if layer != NET[-1][0] else out
    out = mx.sym.SoftmaxOutput(out, name="softmax")
    module = mx.mod.Module(out, context=[mx.cpu(i) for i in range(devices)])
    module.bind([("data", (6, 4))], [("softmax_label", (6,))])
    shapes = dict(zip(out.list_arguments(), out.infer_shape(data=(6, 4))[0]))  # noqa: B905
    first = {n: mx.nd.array(0.5 * value(k, s)) for k, (n, s) in enumerate(sorted(shapes.items())) if n[-2:] not in ("ta", "el")}
    module.init_params(arg_params=first)
    scheduler = None if "learning_rate" in settings else _WARM
    module.init_optimizer(store, optimizer, settings_of(mx, settings, scheduler))
    rows = []
    for t in range(STEPS):
        label = mx.nd.array(np.float32([0, 1, 2, 2, 1, 0]))
        module.forward(mx.io.DataBatch([mx.nd.array(value(5 * t, (6, 4)))], [label], pad=0), is_train=True)
        module.backward()
        module.update()
        rows.append(np.concatenate([v.asnumpy().ravel() for _, v in sorted(module.get_params()[0].items())]))
    return np.stack(rows)


def recorded(mx: Any) -> dict[str, Any]:
    arrays = {name: updates(mx, case) for name, case in CASES.items()}
    return {"shells.npz": arrays | {f"module_{name}": trained(mx, name) for name in MODULES}}
