"""A multi-layer perceptron as a Block, trained with a Trainer; the loop of the MNIST example."""

import argparse
import logging
import zlib

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

logging.basicConfig(level=logging.DEBUG)
parser = argparse.ArgumentParser(description="Gluon digits")
parser.add_argument("--batch-size", type=int, default=40)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--log-interval", type=int, default=5)
opt = parser.parse_args()


class ByName(mx.init.Initializer):
    def _init_weight(self, name, arr):
        rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
        arr[:] = rng.normal(0, np.sqrt(1.0 / arr.shape[1]), arr.shape)


class Net(gluon.Block):
    def __init__(self, **kwargs):
        super(Net, self).__init__(**kwargs)
        with self.name_scope():
            self.dense0 = nn.Dense(64, activation="relu")
            self.dense1 = nn.Dense(32, activation="relu")
            self.dense2 = nn.Dense(10)

    def forward(self, x):
        return self.dense2(self.dense1(self.dense0(x)))


def digits(count, seed):
    rng = np.random.RandomState(seed)
    prototypes = np.random.RandomState(7).uniform(0, 1, (10, 8, 8))
    label = rng.randint(0, 10, count)
    return (prototypes[label] + rng.normal(0, 0.4, (count, 8, 8))).astype("float32"), label.astype("float32")


def transformer(data, label):
    return data.reshape((-1,)) - 0.5, label


train_data = gluon.data.DataLoader(
    gluon.data.ArrayDataset(*digits(600, 1)).transform(transformer), batch_size=opt.batch_size, last_batch="discard"
)
val_data = gluon.data.DataLoader(gluon.data.ArrayDataset(*digits(200, 2)).transform(transformer), batch_size=opt.batch_size)


def test(net, ctx):
    metric = mx.metric.Accuracy()
    for data, label in val_data:
        data = data.as_in_context(ctx)
        label = label.as_in_context(ctx)
        output = net(data)
        metric.update([label], [output])
    return metric.get()


def train(net, epochs, ctx):
    net.initialize(ByName(), ctx=ctx)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": opt.lr, "momentum": opt.momentum})
    metric = mx.metric.Accuracy()
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(epochs):
        metric.reset()
        for i, (data, label) in enumerate(train_data):
            data = data.as_in_context(ctx)
            label = label.as_in_context(ctx)
            with autograd.record():
                output = net(data)
                L = loss(output, label)
                L.backward()
            trainer.step(data.shape[0])
            metric.update([label], [output])
            if i % opt.log_interval == 0 and i > 0:
                name, acc = metric.get()
                print("[Epoch %d Batch %d] Training: %s=%f, loss=%f" % (epoch, i, name, acc, L.mean().asscalar()))
        name, acc = metric.get()
        print("[Epoch %d] Training: %s=%f" % (epoch, name, acc))
        name, val_acc = test(net, ctx)
        print("[Epoch %d] Validation: %s=%f" % (epoch, name, val_acc))
    net.save_parameters("mnist.params")


net = Net(prefix="mlp_")
train(net, opt.epochs, mx.cpu())
print(net)
again = Net(prefix="mlp_")
again.load_parameters("mnist.params", ctx=mx.cpu())
print("loaded:", test(again, mx.cpu()))
