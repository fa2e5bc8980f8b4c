"""Small networks, batches and modules shared by the tests of Module."""

import numpy as np

import jfit
from jfit.data import DataBatch
from jfit.mxnet.module.module import Module

SYM = jfit.sym
V = SYM.Variable


def linear(classes=3):
    """One layer and a softmax: 4 inputs, 3 classes; names fc_weight, fc_bias, softmax_label."""
    return SYM.SoftmaxOutput(SYM.FullyConnected(V("data"), num_hidden=classes, name="fc"), name="softmax")


def normed(**attrs):
    """Two layers with a BatchNorm between them."""
    hidden = SYM.FullyConnected(V("data"), num_hidden=5, name="fc1")
    hidden = SYM.Activation(SYM.BatchNorm(hidden, name="bn", **{"fix_gamma": False, **attrs}), act_type="tanh")
    return SYM.SoftmaxOutput(SYM.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def data_of(rows, seed=0):
    """(x (rows, 4) float32, labels (rows,) of 3 classes)."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, 4)).astype("float32"), draw.integers(0, 3, rows).astype("float32")


def batch_of(rows, seed=0, **kwargs):
    x, y = data_of(rows, seed)
    return DataBatch([x], [y], **kwargs)


def cpus(count):
    return [jfit.cpu(i) for i in range(count)]


def values_for(module, seed=1):
    """Parameters drawn with numpy, so that every module starts alike."""
    draw, specs = np.random.default_rng(seed), module.binding.specs
    params = {n: draw.normal(size=specs[n].shape).astype("float32") for n in module.binding.params}
    return params, {n: np.full(specs[n].shape, float(n.endswith("var")), "float32") for n in module.binding.aux}


def bound(symbol=None, rows=6, devices=1, *, shapes=None, bind=None, **kwargs):
    """A module with parameters, bound to `rows` rows."""
    module = Module(linear() if symbol is None else symbol, context=cpus(devices), **kwargs)
    module.bind(shapes or [("data", (rows, 4))], [("softmax_label", (rows,))], **(bind or {}))
    module.init_params(None, *values_for(module))
    return module


def ready(symbol=None, rows=6, devices=1, *, optimizer="sgd", params=(("learning_rate", 0.5),), kvstore="local", **kwargs):
    """A module with an optimizer too."""
    module = bound(symbol, rows, devices, **kwargs)
    module.init_optimizer(kvstore, optimizer, params)
    return module


def steps(module, count=1, rows=6, seed=0):
    for i in range(count):
        module.forward_backward(batch_of(rows, seed + i))
        module.update()
    return module


def host(arrays):
    return {name: np.array(value) for name, value in arrays.items()}


def softmax(logits):
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def error_of(module, rows=6, seed=0):
    """(outputs - one-hot labels, x) of the linear network, in numpy."""
    x, y = data_of(rows, seed)
    params = host(module.get_params()[0])
    return softmax(x @ params["fc_weight"].T + params["fc_bias"]) - np.eye(3)[y.astype(int)], x
