"""Train a multi-layer perceptron on synthetic digits with Module.fit."""

import argparse
import logging
import zlib

import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.DEBUG)

parser = argparse.ArgumentParser(description="Train an MLP on synthetic digits")
parser.add_argument("--batch-size", type=int, default=50)
parser.add_argument("--num-epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()


class Seeded(mx.init.Initializer):
    """Normal values that depend on the name of the parameter alone."""

    def _init_weight(self, name, arr):
        rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
        arr[:] = rng.normal(0, np.sqrt(2.0 / arr.shape[1]), arr.shape)


def digits(count, seed):
    rng = np.random.RandomState(seed)
    prototypes = np.random.RandomState(7).uniform(0, 1, (10, 1, 12, 12))
    label = rng.randint(0, 10, count)
    data = prototypes[label] + rng.normal(0, 0.35, (count, 1, 12, 12))
    return data.astype("float32"), label.astype("float32")


def get_symbol():
    data = mx.symbol.Variable("data")
    data = mx.sym.Flatten(data=data)
    fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=64)
    act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
    fc2 = mx.symbol.FullyConnected(data=act1, name="fc2", num_hidden=32)
    act2 = mx.symbol.Activation(data=fc2, name="relu2", act_type="relu")
    fc3 = mx.symbol.FullyConnected(data=act2, name="fc3", num_hidden=10)
    return mx.symbol.SoftmaxOutput(data=fc3, name="softmax")


train = mx.io.NDArrayIter(*digits(1000, 1), batch_size=args.batch_size)
val = mx.io.NDArrayIter(*digits(300, 2), batch_size=args.batch_size)
mod = mx.mod.Module(symbol=get_symbol(), context=mx.cpu())
mod.fit(
    train_data=train,
    eval_data=val,
    initializer=Seeded(),
    optimizer="sgd",
    optimizer_params={"learning_rate": args.lr, "momentum": 0.9, "wd": 0.0001},
    eval_metric=["accuracy", "ce"],
    batch_end_callback=mx.callback.Speedometer(args.batch_size, 10),
    num_epoch=args.num_epochs,
)
print("final", mod.score(val, mx.metric.create(["acc", mx.metric.TopKAccuracy(top_k=3)])))
