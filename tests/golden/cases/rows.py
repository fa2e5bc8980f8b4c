"""MXNet's lazy updates.

Each case updates a table three times with row_sparse gradients; some rows are in more than one of them.  Adam's betas are
chosen such that 1 - beta is exact: MXNet computes it from beta in float32, an error of 5e-5 for 0.999.
"""

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


def updated(mx, name, settings, lr_mult):
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
    case = {"name": name, "settings": settings, "lr_mult": lr_mult}
    return {**case, "before": before.tolist(), "gradients": gradients, "after": weight.asnumpy().tolist(), "slots": slots}


NETS = [
    ("Embedding", "sgd", {"learning_rate": 0.5, "wd": 0.125, "momentum": 0.75}, 1),
    ("Embedding", "sgd", {"learning_rate": 0.5, "wd": 0.125, "momentum": 0.75, "lazy_update": False}, 1),
    ("Embedding", "sgd", {"learning_rate": 0.5, "wd": 0.125, "momentum": 0.75}, 2),
    ("SparseEmbedding", "adam", {"learning_rate": 0.125, "wd": 0.125, **BETAS}, 1),
    ("Embedding", "adagrad", {"learning_rate": 0.5, "eps": 1e-3}, 2),
    ("Embedding", "rmsprop", {"learning_rate": 0.125, "wd": 0.125}, 1),
]
DATA = np.array([[1, 2], [2, 3], [1, 1], [3, 5], [1, 0], [2, 2]], "float32")
LABEL = np.array([0, 1, 0, 1, 1, 0], "float32")


def network(mx, operator):
    """The mean of two rows of a table of 8 x 3, classified."""
    table = mx.sym.Variable("emb_weight")
    make, more = mx.sym.Embedding, {"sparse_grad": True}
    if operator == "SparseEmbedding":
        make, more = mx.sym.contrib.SparseEmbedding, {}
    rows = make(mx.sym.Variable("data"), weight=table, input_dim=8, output_dim=3, name="emb", **more)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.mean(rows, axis=1), num_hidden=2, name="fc"), name="softmax")


def start():
    """Parameters that a training starts with."""
    rng = np.random.RandomState(0)
    return {"emb_weight": rng.uniform(-0.5, 0.5, (8, 3)), "fc_weight": rng.uniform(-0.5, 0.5, (2, 3)), "fc_bias": np.zeros(2)}


def fitted(mx, operator, optimizer, params, devices):
    """The table after two epochs of Module.fit."""
    batches = mx.io.NDArrayIter(DATA, LABEL, batch_size=2)
    module = mx.mod.Module(network(mx, operator), context=[mx.cpu(i) for i in range(devices)])
    given = {name: mx.nd.array(value) for name, value in start().items()}
    module.fit(batches, num_epoch=2, optimizer=optimizer, optimizer_params=params, arg_params=given)
    return module.get_params()[0]["emb_weight"].asnumpy()


def recorded(mx):
    cases = []
    for name, each in SETTINGS.items():
        for settings in each:
            for lazy in LAZY.get(name, (None,)):
                options = settings if lazy is None else {**settings, "lazy_update": lazy}
                cases.append(updated(mx, name, options, 1.0 if len(cases) % 2 else 0.5))
    return {"rows.json": {"updates": cases, "nets": [{"net": net, "after": fitted(mx, *net).tolist()} for net in NETS]}}
