"""Distributions of MXNet's initializers.

Random initializers: mean, standard deviation and nine quantiles of many draws, for unusual shapes.  Deterministic ones and
fused RNNs: the values.
"""

import numpy as np

DRAWS = 3_000  # values of each case, at least
SHAPES = [(7, 1), (1, 9), (5, 3, 1), (3, 2, 1, 5), (8, 1, 3, 3), (2, 3, 2, 2, 3)]
RANDOM = [
    ["uniform", {"scale": 0.3}],
    ["normal", {"sigma": 2.0}],
    ["xavier", {}],
    ["xavier", {"rnd_type": "gaussian", "factor_type": "in", "magnitude": 2}],
    ["xavier", {"rnd_type": "uniform", "factor_type": "out", "magnitude": 5}],
    ["msraprelu", {"factor_type": "out", "slope": 0.1}],
    ["orthogonal", {"scale": 1.0, "rand_type": "normal"}],
    ["orthogonal", {}],
]
FIXED = [
    ["bilinear", {}, [1, 1, 4, 4]],
    ["bilinear", {}, [2, 1, 3, 5]],
    ["bilinear", {}, [1, 2, 5, 2]],
    ["bilinear", {}, [1, 1, 1, 7]],
    ["lstmbias", {"forget_bias": 2.5}, [8]],
    ["lstmbias", {}, [10]],
    ["lstmbias", {}, [3]],
]
FUSED = [
    {"num_hidden": 2, "num_layers": 1, "mode": "lstm", "forget_bias": 3.0},
    {"num_hidden": 3, "num_layers": 2, "mode": "lstm", "bidirectional": True},
    {"num_hidden": 2, "num_layers": 2, "mode": "gru"},
    {"num_hidden": 2, "num_layers": 1, "mode": "rnn_tanh", "bidirectional": True},
]
QUANTILES = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]


def drawn(mx, name, kwargs, shape):
    start = mx.init.create(name, **kwargs)
    found = []
    for _ in range(-(-DRAWS // int(np.prod(shape)))):
        a = mx.nd.zeros(shape)
        start(mx.init.InitDesc("w_weight"), a)
        found.append(a.asnumpy().ravel())
    return np.concatenate(found).astype("float64")


def fused(mx, kwargs):
    """The flat vector with 1 in all weights and the biases as they come; 4 inputs."""
    cell = mx.rnn.FusedRNNCell(
        kwargs["num_hidden"], kwargs["num_layers"], kwargs["mode"], kwargs.get("bidirectional", False), prefix=""
    )
    gates, h, b = len(cell._gate_names), kwargs["num_hidden"], 2 if kwargs.get("bidirectional") else 1
    rows = gates * h * b
    size = rows * (4 + h + 2) + (kwargs["num_layers"] - 1) * rows * (h * b + h + 2)
    a = mx.nd.zeros(size)
    mx.init.FusedRNN(mx.init.One(), **kwargs)._init_weight(mx.init.InitDesc("parameters"), a)
    return a.asnumpy().tolist()


def recorded(mx):
    mx.random.seed(0)
    np.random.seed(0)
    random = []
    for name, kwargs in RANDOM:
        for shape in SHAPES:
            v = drawn(mx, name, kwargs, shape)
            quantiles = np.quantile(v, QUANTILES).round(6).tolist()
            random.append({"init": name, "kwargs": kwargs, "shape": shape, "count": v.size, "mean": v.mean(), "std": v.std(),
                           "low": v.min(), "high": v.max(), "quantiles": quantiles})  # fmt: skip
    fixed = []
    for name, kwargs, shape in FIXED:
        a = mx.nd.zeros(tuple(shape))
        mx.init.create(name, **kwargs)._init_weight(mx.init.InitDesc("w_weight"), a)
        fixed.append({"init": name, "kwargs": kwargs, "shape": shape, "value": a.asnumpy().ravel().round(7).tolist()})
    networks = [{"kwargs": kwargs, "value": fused(mx, kwargs)} for kwargs in FUSED]
    found = {"mxnet": mx.__version__, "quantiles": QUANTILES, "random": random, "fixed": fixed, "fused": networks}
    return {"initializer_draws.json": found}
