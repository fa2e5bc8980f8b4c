"""Data parallelism with split_and_load over two contexts, and the norm of all gradients clipped."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, utils

ctx = [mx.cpu(0), mx.cpu(1)]
rng = np.random.RandomState(53)
x = rng.normal(size=(256, 8)).astype("float32")
y = (x[:, :3].sum(axis=1) > 0).astype("float32") + (x[:, 3] > 1)


class Start(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.size).uniform(-0.4, 0.4, arr.shape)


net = nn.HybridSequential(prefix="mlp_")
with net.name_scope():
    net.add(nn.Dense(16, activation="tanh", in_units=8), nn.Dense(3, in_units=16))
net.initialize(Start(), ctx=ctx)
net.hybridize()
print("contexts", net[0].weight.list_ctx(), len(net[0].weight.list_data()))
trainer = gluon.Trainer(
    net.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.9}, kvstore="device", update_on_kvstore=False
)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
metric = mx.metric.Accuracy()
batches = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y.astype("float32")), batch_size=64)

for epoch in range(5):
    metric.reset()
    total = 0.0
    for data, label in batches:
        data_list = utils.split_and_load(data, ctx)
        label_list = utils.split_and_load(label, ctx)
        with autograd.record():
            outputs = [net(X) for X in data_list]
            losses = [loss_fn(out, Y) for out, Y in zip(outputs, label_list)]
        for loss in losses:
            loss.backward()
        trainer.allreduce_grads()
        for device in ctx:
            norm = utils.clip_global_norm([p.grad(device) for p in net.collect_params().values()], 16.0)
        trainer.update(data.shape[0])
        metric.update(label_list, outputs)
        total += sum(loss.sum().asscalar() for loss in losses)
    print("[Epoch %d] %s=%.4f loss %.5f last norm %.4f" % (epoch, *metric.get(), total / len(x), norm))
nd.waitall()
weights = [w.asnumpy() for w in net[0].weight.list_data()]
print("devices differ by", np.abs(weights[0] - weights[1]).max())
print([part.shape for part in utils.split_data(nd.zeros((5, 2)), 2, even_split=False)])
