"""Training loops written by the user in MXNet's names, which read the metric after each batch."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peers import Leg
from benchmarks.peers.symbols import network
from benchmarks.workloads import MOMENTUM, Workload


def begin(workload: Workload, *, package: str, loop: str) -> Leg:
    """Prepare the leg.

    Args:
        workload: what to train: images.
        package: "jfit.mx" or "mxnet".
        loop: "module" (`forward_backward`, `update`, `update_metric`), or "executor" (`simple_bind`, `forward`, `backward`, and
            an updater of the optimizer for each parameter).

    Returns:
        The leg.
    """
    mx = importlib.import_module(package)
    data, labels = workload.arrays()
    batches = mx.io.NDArrayIter(data, labels, workload.batch, shuffle=True)
    rule: dict[str, Any] = {"learning_rate": workload.learning_rate, "momentum": MOMENTUM, "rescale_grad": 1 / workload.batch}
    metric, symbol = mx.metric.Accuracy(), network(mx.sym, workload)
    step, count = {"module": _module, "executor": _executor}[loop](mx, symbol, batches, rule, metric)

    def train() -> float:
        batches.reset()
        metric.reset()
        for batch in batches:
            step(batch)
            metric.get()
        return metric.get()[1]

    return Leg(train, count)


def _module(mx: Any, symbol: Any, batches: Any, rule: dict[str, Any], metric: Any) -> Any:
    module = mx.mod.Module(symbol, context=mx.cpu())
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer="sgd", optimizer_params=rule)

    def step(batch: Any) -> None:
        module.forward_backward(batch)
        module.update()
        module.update_metric(metric, batch.label)

    return step, lambda: sum(value.size for value in module.get_params()[0].values())


def _executor(mx: Any, symbol: Any, batches: Any, rule: dict[str, Any], metric: Any) -> Any:
    shapes = dict([*batches.provide_data, *batches.provide_label])
    executor = symbol.simple_bind(mx.cpu(), **shapes)
    trained = [name for name in symbol.list_arguments() if name not in shapes]
    for name in trained:
        mx.init.Xavier()(mx.init.InitDesc(name), executor.arg_dict[name])
    update = mx.optimizer.get_updater(mx.optimizer.create("sgd", **rule))

    def step(batch: Any) -> None:
        inputs = zip(batches.provide_data, batch.data, strict=True)
        labels = zip(batches.provide_label, batch.label, strict=True)
        executor.forward(is_train=True, **{description[0]: array for description, array in [*inputs, *labels]})
        executor.backward()
        for index, name in enumerate(trained):
            update(index, executor.grad_dict[name], executor.arg_dict[name])
        metric.update(batch.label, executor.outputs)

    return step, lambda: sum(executor.arg_dict[name].size for name in trained)
