"""Trainings with SVRGModule: log lines and callbacks in order, parameters after each epoch, full gradients at the end."""

from __future__ import annotations

import importlib
import logging
import re
from typing import Any

import numpy as np

# name -> devices, key-value store, rows, network, optimizer and its parameters, epochs between full gradients
CASES: dict[str, dict[str, Any]] = {
    "one": {"rows": 24, "net": "linear", "optimizer": "sgd", "params": {"learning_rate": 0.1}, "freq": 2},
    "momentum": {
        "rows": 24, "net": "mlp", "optimizer": "sgd", "freq": 3,
        "params": {"learning_rate": 0.2, "momentum": 0.5, "wd": 0.01, "clip_gradient": 0.3},
    },
    "padded": {"rows": 22, "net": "linear", "optimizer": "adam", "params": {"learning_rate": 0.05}, "freq": 1},
    "two": {"devices": 2, "rows": 24, "net": "mlp", "optimizer": "sgd", "params": {"learning_rate": 0.2}, "freq": 2},
    "two_zeros": {"devices": 2, "rows": 24, "net": "linear", "optimizer": "sgd", "params": {"learning_rate": 0.1}, "freq": 2},
    "two_apart": {
        "devices": 2, "store": None, "rows": 22, "net": "linear", "optimizer": "sgd", "freq": 2,
        "params": {"learning_rate": 0.1, "momentum": 0.5},
    },
}  # fmt: skip
# where MXNet's devices would hold zeros by the first batch: the recording sets the parameters again
RESTORED = ("two",)
EPOCHS, BATCH = 4, 6


def network(mx: Any, name: str) -> Any:
    """A symbol with one head."""
    data, label = mx.sym.Variable("data"), mx.sym.Variable("label")
    if name == "linear":
        return mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(data, num_hidden=1, name="fc"), label, name="out")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=5, name="fc1"), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), label, name="out")


def arrays(case: dict[str, Any], zeros: bool) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """(data, labels, first parameters), the same on every machine."""
    draw, linear = np.random.RandomState(3), case["net"] == "linear"
    x = draw.uniform(-1, 1, (case["rows"], 4)).astype("float32")
    y = x @ np.array([1, -2, 3, 0.5]) + x[:, 0] ** 2 if linear else (x[:, 0] > 0) * 1.0 + (x[:, 1] > 0)
    shapes = {"fc": (1, 4)} if linear else {"fc1": (5, 4), "fc2": (3, 5)}
    first = {f"{n}_weight": draw.uniform(-0.5, 0.5, s) for n, s in shapes.items()}
    first |= {f"{n}_bias": draw.uniform(-0.5, 0.5, s[:1]) for n, s in shapes.items()}
    return x, y.astype("float32"), {n: (a * (not zeros)).astype("float32") for n, a in first.items()}


def train(mx: Any, module_class: Any, name: str) -> dict[str, Any]:
    """One training: what was logged and called in order, parameters after each epoch, full gradients at the end."""
    case = CASES[name]
    x, y, first = arrays(case, name.endswith("zeros"))
    order: list[str] = []
    logger = logging.Logger(f"svrg {name}")
    handler = logging.Handler()
    handler.emit = lambda record: order.append(re.sub(r"cost=.*", "cost", record.getMessage()))
    logger.addHandler(handler)
    devices = [mx.cpu(i) for i in range(case.get("devices", 1))]
    module = module_class(
        network(mx, case["net"]), data_names=["data"], label_names=["label"], logger=logger, context=devices,
        update_freq=case["freq"],
    )  # fmt: skip
    params: list[dict[str, Any]] = []

    def at_batch(param: Any) -> None:
        order.append(f"batch {param.epoch} {param.nbatch}")

    def at_epoch(epoch: int, symbol: Any, arg: dict[str, Any], aux: dict[str, Any]) -> None:
        order.append(f"epoch {epoch} {sorted(arg)}")
        params.append({n: listed(a.asnumpy()) for n, a in arg.items()})

    module.fit(
        mx.io.NDArrayIter(x, y, batch_size=BATCH, label_name="label"),
        eval_data=mx.io.NDArrayIter(x[:BATCH], y[:BATCH], batch_size=BATCH, label_name="label"),
        eval_metric="mse" if case["net"] == "linear" else "acc",
        batch_end_callback=at_batch,
        epoch_end_callback=at_epoch,
        eval_end_callback=lambda param: order.append(f"evaluated {param.epoch}"),
        eval_batch_end_callback=lambda param: order.append(f"evaluated batch {param.epoch} {param.nbatch}"),
        kvstore=case.get("store", "local"),
        optimizer=case["optimizer"],
        optimizer_params=case["params"],
        arg_params={n: mx.nd.array(a) for n, a in first.items()},
        aux_params={},
        num_epoch=EPOCHS,
    )
    full = [{n: listed(a.asnumpy()) for n, a in of.items()} for of in module._param_dict]
    return {"order": order, "params": params, "full": full}


def listed(array: np.ndarray) -> list[float]:
    """Eight digits of each number."""
    return [float(f"{x:.8g}") for x in array.ravel()]


def recorded(mx: Any) -> dict[str, Any]:
    """Where the key-value store updates, MXNet overwrites the devices' parameters with zeros when the optimizer is created,
    until the first update; the cases in RESTORED set them again."""
    real = importlib.import_module("mxnet.contrib.svrg_optimization.svrg_module").SVRGModule

    class Restored(real):
        def init_optimizer(self, *args: Any, **kwargs: Any) -> None:
            super().init_optimizer(*args, **kwargs)
            self.set_params(*self.get_params())

    found = {n: train(mx, Restored if n in RESTORED else real, n) for n in CASES}
    mx.nd.waitall()
    return {"svrg.json": found}
