"""A linear layer with a hinge loss (SVMOutput), watched by a monitor."""

import logging

import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.INFO)
rng = np.random.RandomState(21)
y = rng.randint(0, 3, 300)
x = rng.normal(0, 1, (300, 5)) + np.eye(5)[y] * 2.0
train = mx.io.NDArrayIter(x[:240].astype("float32"), y[:240].astype("float32"), 24, label_name="svm_label")
test = mx.io.NDArrayIter(x[240:].astype("float32"), y[240:].astype("float32"), 20, label_name="svm_label")


def norm_stat(d):
    return mx.nd.norm(d) / np.sqrt(d.size)


for use_linear in (False, True):
    data = mx.symbol.Variable("data")
    fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=16)
    act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
    fc2 = mx.symbol.FullyConnected(data=act1, name="fc2", num_hidden=3)
    svm = mx.symbol.SVMOutput(data=fc2, name="svm", margin=1.0, regularization_coefficient=0.5, use_linear=use_linear)
    mod = mx.mod.Module(context=mx.cpu(0), symbol=svm, label_names=["svm_label"])
    init = np.random.RandomState(22)
    arg_params = {
        "fc1_weight": mx.nd.array(init.normal(0, 0.4, (16, 5))),
        "fc1_bias": mx.nd.zeros((16,)),
        "fc2_weight": mx.nd.array(init.normal(0, 0.3, (3, 16))),
        "fc2_bias": mx.nd.zeros((3,)),
    }
    monitor = mx.mon.Monitor(5, norm_stat, pattern=".*weight.*|fc2_output", sort=True)
    mod.fit(
        train_data=train,
        eval_data=test,
        monitor=monitor,
        arg_params=arg_params,
        optimizer_params={"learning_rate": 0.02, "momentum": 0.9, "wd": 0.00001},
        num_epoch=2,
    )
    train.reset()
    test.reset()
    print("linear" if use_linear else "squared", mod.score(test, mx.metric.Accuracy()))
