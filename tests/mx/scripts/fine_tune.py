"""Fine-tuning: cut a trained network, put a new layer on it, freeze the old ones, predict with a sequential module."""

import logging

import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.INFO, format="%(message)s")
rng = np.random.RandomState(81)


def blobs(classes, seed, count=240):
    r = np.random.RandomState(seed)
    centers = np.random.RandomState(80).normal(0, 1.2, (classes, 6))
    label = r.randint(0, classes, count)
    return (centers[label] + r.normal(0, 0.6, (count, 6))).astype("float32"), label.astype("float32")


def block(data, units, index):
    net = mx.sym.FullyConnected(data, num_hidden=units, no_bias=True, name="fc%d" % index)
    net = mx.sym.BatchNorm(net, name="bn%d" % index, fix_gamma=False, momentum=0.9)
    return mx.sym.Activation(net, act_type="relu", name="relu%d" % index)


data = mx.sym.Variable("data")
net = block(block(data, 24, 1), 12, 2)
net = mx.sym.FullyConnected(net, num_hidden=3, name="fc3")
net = mx.sym.SoftmaxOutput(net, name="softmax")


def initial(symbol, seed):
    r = np.random.RandomState(seed)
    shapes, _, _ = symbol.infer_shape(data=(20, 6))
    make = {"weight": lambda s: r.normal(0, 0.4, s), "gamma": np.ones, "bias": np.zeros, "beta": np.zeros}
    return {
        name: mx.nd.array(make[name.rsplit("_", 1)[1]](shape))
        for name, shape in zip(symbol.list_arguments(), shapes)
        if name not in ("data", "softmax_label")
    }


train = mx.io.NDArrayIter(*blobs(3, 82), batch_size=20)
mod = mx.mod.Module(net)
aux = {}
for index, units in ((1, 24), (2, 12)):
    aux["bn%d_moving_mean" % index] = mx.nd.zeros(units)
    aux["bn%d_moving_var" % index] = mx.nd.ones(units)
mod.fit(train, num_epoch=3, arg_params=initial(net, 83), aux_params=aux, optimizer="adam", eval_metric="ce")
mod.save_checkpoint("base", 3)


def get_fine_tune_model(symbol, arg_params, num_classes, layer_name="relu2"):
    all_layers = symbol.get_internals()
    net = all_layers[layer_name + "_output"]
    net = mx.symbol.FullyConnected(data=net, num_hidden=num_classes, name="fc_new")
    net = mx.symbol.SoftmaxOutput(data=net, name="softmax")
    new_args = {k: arg_params[k] for k in arg_params if "fc3" not in k}
    return net, new_args


sym, arg_params, aux_params = mx.model.load_checkpoint("base", 3)
new_sym, new_args = get_fine_tune_model(sym, arg_params, 5)
fixed = [name for name in new_sym.list_arguments() if name.startswith(("fc1", "bn1"))]
train = mx.io.NDArrayIter(*blobs(5, 84), batch_size=20)
val = mx.io.NDArrayIter(*blobs(5, 85, 100), batch_size=20)
tuned = mx.mod.Module(symbol=new_sym, fixed_param_names=fixed)
tuned.fit(
    train,
    val,
    num_epoch=4,
    arg_params=new_args,
    aux_params=aux_params,
    allow_missing=True,
    initializer=mx.init.Mixed([".*bias", ".*"], [mx.init.Zero(), mx.init.Constant(0.05)]),
    optimizer="sgd",
    optimizer_params={"learning_rate": 0.1, "lr_scheduler": mx.lr_scheduler.MultiFactorScheduler([24, 36], 0.5, base_lr=0.1)},
    eval_metric=["acc", "ce"],
)
after, aux_after = tuned.get_params()
for name in sorted(after):
    change = np.abs(after[name].asnumpy() - new_args[name].asnumpy()).max() if name in new_args else float("nan")
    print("%-12s %s changed by %.5f" % (name, after[name].shape, change))
print("moving mean %.6f" % aux_after["bn1_moving_mean"].asnumpy().mean())
