"""Trainings with BatchNorm(fix_gamma=True) for `test_fixed_gammas.py`, recorded with MXNET_SUBGRAPH_BACKEND=NONE.

`mx` is MXNet or `jfit.mx`: the same code runs on both.  MXNet's optimizers update the gamma of a BatchNorm with `fix_gamma`
like any other parameter, and BatchNorm overwrites it with 1 on the next forward pass.  The update still changes the state that
parameters share: Nadam's schedule, which parameters are the first four of LARS, which one calls LBSGD's scheduler first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

STEPS = 4
ROWS, FEATURES, CLASSES = 6, 4, 3
FIXED = ("norm_gamma", "b_gamma")  # the first one is the first parameter of the network


class Case(NamedTuple):
    """One training of a Module.

    Attributes:
        optimizer: name.
        settings: parameters.
        scheduler: class name and arguments; None for a fixed rate.
        devices: how many.
        store: the key-value store; "made" is one that was created before, which updates on one device too.
    """

    optimizer: str
    settings: dict[str, Any]
    scheduler: tuple[str, dict[str, Any]] | None = None
    devices: int = 1
    store: str = "local"


_FACTOR = ("FactorScheduler", {"step": 1, "factor": 0.5, "base_lr": 0.2})
_NADAM = {"learning_rate": 0.05, "wd": 0.01}
_LARS = {"momentum": 0.9, "eta": 0.1, "wd": 0.01}
_LBSGD = {"momentum": 0.9, "warmup_epochs": 1, "updates_per_epoch": 4}
CASES = {
    "nadam": Case("nadam", _NADAM),
    "nadam_made": Case("nadam", _NADAM, store="made"),
    "nadam_store": Case("nadam", _NADAM, devices=2, store="device"),
    "nadam_decay": Case("nadam", {"learning_rate": 0.05, "schedule_decay": 2.0}, _FACTOR),
    "lars": Case("lars", _LARS, _FACTOR),
    "lars_made": Case("lars", _LARS, _FACTOR, store="made"),
    "lars_store": Case("lars", _LARS, _FACTOR, devices=2, store="device"),
    "lbsgd": Case("lbsgd", {**_LBSGD, "batch_scale": 2}, _FACTOR),
    "lbsgd_store": Case("lbsgd", _LBSGD, _FACTOR, devices=2, store="device"),
    "lbsgd_lars": Case("lbsgd", {"warmup_strategy": "lars", "wd": 0.01}, _FACTOR),
    "sgd": Case("sgd", {"momentum": 0.9, "wd": 0.01}, _FACTOR, devices=2, store="device"),
    "nag": Case("nag", {"momentum": 0.9, "wd": 0.01}, _FACTOR),
    "signum": Case("signum", {"wd": 0.01, "wd_lh": 0.01}, _FACTOR),
    "dcasgd": Case("dcasgd", {"wd": 0.01}, _FACTOR),
    "adam": Case("adam", {"wd": 0.01}, _FACTOR, devices=2, store="device"),
    "adamax": Case("adamax", {"learning_rate": 0.02, "wd": 0.01}),
    "rmsprop": Case("rmsprop", {"learning_rate": 0.02, "wd": 0.01, "centered": True}),
    "adagrad": Case("adagrad", {"wd": 0.01}, _FACTOR),
    "adadelta": Case("adadelta", {"wd": 0.01}),
    "ftrl": Case("ftrl", {"wd": 0.01}, _FACTOR),
    "ftml": Case("ftml", {"wd": 0.01}, _FACTOR),
    "lamb": Case("lamb", {"wd": 0.01}, _FACTOR),
}


def value(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers between -1 and 1 that look like none."""
    return np.cos(np.arange(np.prod(shape)) * 1.7 + 0.9 * seed).astype("float32").reshape(shape)


def network(mx: Any) -> Any:
    """Two fixed gammas, one of them the first parameter, and a gamma that learns; names are not in the order of indices."""
    out = mx.sym.Activation(mx.sym.BatchNorm(mx.sym.Variable("data"), eps=0.01, name="norm"), act_type="tanh")
    out = mx.sym.FullyConnected(out, num_hidden=4, no_bias=True, name="z")
    out = mx.sym.Activation(mx.sym.BatchNorm(out, eps=0.01, name="b"), act_type="tanh")
    out = mx.sym.FullyConnected(out, num_hidden=4, no_bias=True, name="m")
    out = mx.sym.Activation(mx.sym.BatchNorm(out, fix_gamma=False, eps=0.01, name="y"), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(out, num_hidden=CLASSES, name="a"), name="softmax")


def first_values() -> dict[str, np.ndarray]:
    """Parameters by name; the fixed gammas are 1."""
    shapes = {"z_weight": (4, FEATURES), "m_weight": (4, 4), "a_weight": (CLASSES, 4), "a_bias": (CLASSES,)}
    shapes |= {"norm_beta": (FEATURES,), "b_beta": (4,), "y_beta": (4,)}
    found = {name: 0.5 * value(k, shape) for k, (name, shape) in enumerate(sorted(shapes.items()))}
    return {**found, **{name: np.ones(4, "float32") for name in FIXED}, "y_gamma": 1 + value(9, (4,)) / 4}


def batch(t: int) -> tuple[np.ndarray, np.ndarray]:
    """Data and labels of a step."""
    return value(5 * t, (ROWS, FEATURES)), np.float32([0, 1, 2, 2, 1, 0])


def module_of(mx: Any, case: Case, first: dict[str, np.ndarray]) -> Any:
    """A Module with its optimizer."""
    module = mx.mod.Module(network(mx), context=[mx.cpu(i) for i in range(case.devices)])
    module.bind([("data", (ROWS, FEATURES))], [("softmax_label", (ROWS,))])
    module.init_params(arg_params={name: mx.nd.array(v) for name, v in first.items()}, aux_params=None)
    settings = dict(case.settings)
    if case.scheduler is not None:
        settings["lr_scheduler"] = getattr(mx.lr_scheduler, case.scheduler[0])(**case.scheduler[1])
    module.init_optimizer(mx.kv.create("device") if case.store == "made" else case.store, case.optimizer, settings)
    return module


def step(mx: Any, module: Any, t: int) -> None:
    """One step."""
    data, label = batch(t)
    module.forward(mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)], pad=0), is_train=True)
    module.backward()
    module.update()


def params_of(module: Any) -> dict[str, np.ndarray]:
    """All parameters by name."""
    return {name: v.asnumpy() for name, v in module.get_params()[0].items()}


def raveled(params: dict[str, Any]) -> np.ndarray:
    """All parameters but the fixed gammas, by sorted name."""
    return np.concatenate([np.asarray(v).ravel() for name, v in sorted(params.items()) if name not in FIXED])


def trained(mx: Any, name: str) -> np.ndarray:
    """Parameters after each step, (STEPS, n)."""
    case = CASES[name]
    module, rows = module_of(mx, case, first_values()), []
    for t in range(STEPS):
        step(mx, module, t)
        rows.append(raveled(params_of(module)))
    return np.stack(rows)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    """Data and labels of all steps, one after the other."""
    data, labels = zip(*[batch(t) for t in range(STEPS)])  # noqa: B905
    return np.concatenate(data), np.concatenate(labels)


def fed_forward(mx: Any) -> np.ndarray:
    """Parameters that `FeedForward` has after the same steps as case "nadam"."""
    first = {name: mx.nd.array(v) for name, v in first_values().items()}
    model = mx.model.FeedForward(network(mx), mx.cpu(), 1, optimizer="nadam", arg_params=first, **_NADAM)
    model.fit(mx.io.NDArrayIter(*arrays(), batch_size=ROWS))
    return raveled({name: v.asnumpy() for name, v in model.arg_params.items()})


def own_rule(mx: Any) -> np.ndarray:
    """Parameters after each step with an optimizer class of the user's, whose steps shrink with every call: (STEPS, n)."""

    class Shrinking(mx.optimizer.Optimizer):
        calls = 0

        def create_state(self, index: Any, weight: Any) -> None:
            return None

        def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
            self._update_count(index)
            self.calls += 1
            weight[:] -= self._get_lr(index) * self.rescale_grad / self.calls * grad

    module, rows = module_of(mx, CASES["sgd"]._replace(devices=1, store="local"), first_values()), []
    module.init_optimizer("local", Shrinking(learning_rate=0.5, rescale_grad=1 / ROWS), force_init=True)
    for t in range(STEPS):
        step(mx, module, t)
        rows.append(raveled(params_of(module)))
    return np.stack(rows)


def trainers(mx: Any, on_store: bool) -> np.ndarray:
    """The same of gluon's Trainer, where a parameter between two others asks for no gradient, as a gamma of `scale=False`."""
    contexts = [mx.cpu(0), mx.cpu(1)] if on_store else [mx.cpu()]
    kinds = {"a_weight": "write", "b_gamma": "null", "c_weight": "write"}
    found = [mx.gluon.Parameter(name, grad_req=kind, shape=(3,)) for name, kind in kinds.items()]
    for p in found:
        p.initialize(mx.init.One(), ctx=contexts)
    trainer = mx.gluon.Trainer(found, "nadam", {"learning_rate": 0.05}, "device", update_on_kvstore=on_store)
    rows = []
    for t in range(STEPS):
        for k, p in enumerate(p for p in found if p.grad_req == "write"):
            for context in contexts:
                _give(mx, p, value(3 * t + k, (3,)), context)
        trainer.step(2)
        rows.append(np.concatenate([p.data(contexts[0]).asnumpy() for p in found]))
    return np.stack(rows)


def _give(mx: Any, parameter: Any, gradient: np.ndarray, context: Any) -> None:
    if hasattr(parameter, "set_grad"):  # jfit has no autograd
        parameter.set_grad(mx.nd.array(gradient), context)
        return
    with mx.autograd.record():
        out = parameter.data(context) * mx.nd.array(gradient, ctx=context)
    out.backward()


def recorded(mx: Any) -> dict[str, Any]:
    found = {name: trained(mx, name) for name in CASES} | {"feedforward": fed_forward(mx), "own": own_rule(mx)}
    return {"fixed_gammas.npz": found | {f"trainer_{on_store}": trainers(mx, on_store) for on_store in (False, True)}}
