"""Records MXNet 1.9.1's lazy updates: `python tests/record_rows.py tests/golden/rows.json`, in MXNet's own environment.

Each case updates a table three times with row_sparse gradients, some of the rows in more than one of them.  Adam's betas are
such that 1 - beta is exact: MXNet takes it from beta in float32, which is off by 5e-5 for 0.999.
"""

import json
import sys

import mxnet as mx
import numpy as np

SHAPE, STEPS = (7, 3), ([1, 4], [0, 4, 6], [4])
BETAS = {"beta1": 0.75, "beta2": 0.9375}
SETTINGS = {
    "sgd": ({}, {"wd": 0.125}, {"wd": 0.125, "clip_gradient": 0.5}, {"momentum": 0.75, "wd": 0.125, "clip_gradient": 0.5}),
    "adam": (BETAS, {**BETAS, "wd": 0.125, "clip_gradient": 0.5, "epsilon": 1e-3}),
    "adagrad": ({}, {"clip_gradient": 0.5, "eps": 1e-3}),
    "groupadagrad": ({}, {"clip_gradient": 0.5, "eps": 1e-3}),
    "rmsprop": ({"wd": 0.125},),
    "nag": ({"momentum": 0.75, "wd": 0.125},),
}
LAZY = {"sgd": (True, False), "adam": (True, False)}


def recorded(name, settings, lr_mult):
    """Table before, gradients, table after, slots after."""
    rng = np.random.RandomState(0)
    optimizer = mx.optimizer.create(name, learning_rate=0.25, rescale_grad=0.5, **settings)
    optimizer.set_lr_mult({0: lr_mult})
    updater = mx.optimizer.get_updater(optimizer)
    before = rng.normal(size=SHAPE).astype(np.float32)
    weight, gradients = mx.nd.array(before), []
    for rows in STEPS:
        values = rng.normal(size=(len(rows), SHAPE[1])).astype(np.float32)
        updater(0, mx.nd.sparse.row_sparse_array((values, rows), shape=SHAPE), weight)
        gradients.append({"indices": rows, "values": values.tolist()})
    mx.nd.waitall()
    state = updater.states[0]
    slots = [] if state is None else [s.asnumpy().tolist() for s in (state if isinstance(state, tuple) else (state,))]
    told = {"name": name, "settings": settings, "lr_mult": lr_mult}
    return {**told, "before": before.tolist(), "gradients": gradients, "after": weight.asnumpy().tolist(), "slots": slots}


def main(path):
    """Write all cases."""
    cases = []
    for name, each in SETTINGS.items():
        for settings in each:
            for lazy in LAZY.get(name, (None,)):
                told = settings if lazy is None else {**settings, "lazy_update": lazy}
                cases.append(recorded(name, told, 1.0 if len(cases) % 2 else 0.5))
    with open(path, "w") as file:
        json.dump(cases, file)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
