"""A network with two heads, a weighted sum of losses, metrics per head and a custom sampler."""

import logging

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.data import ArrayDataset, BatchSampler, DataLoader
from mxnet.gluon.data.sampler import Sampler

logging.basicConfig(level=logging.INFO, format="%(message)s")
rng = np.random.RandomState(83)
x = rng.normal(size=(300, 7)).astype("float32")
kind = (x[:, 0] > 0).astype("float32") + (x[:, 1] > 0.5)
size = (x[:, 2] - 0.5 * x[:, 3]).astype("float32")


class EveryOther(Sampler):
    """Even rows, then odd rows."""

    def __init__(self, length):
        self._length = length

    def __iter__(self):
        yield from range(0, self._length, 2)
        yield from range(1, self._length, 2)

    def __len__(self):
        return self._length


class TwoHeads(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential()
            self.features.add(nn.Dense(24), nn.PReLU(), nn.Dense(12), nn.Swish())
            self.kind = nn.Dense(3)
            self.size = nn.Dense(1, use_bias=False)

    def hybrid_forward(self, F, x):
        x = self.features(x)
        return self.kind(x), self.size(x)


class Start(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.size).uniform(-0.3, 0.3, arr.shape)


net = TwoHeads(prefix="two_")
net.initialize(Start())
net.hybridize()
ce, l1 = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L1Loss(weight=0.5)
trainer = gluon.Trainer(net.collect_params(), "rmsprop", {"learning_rate": 0.01, "clip_gradient": 5.0})
sampler = BatchSampler(EveryOther(240), 30, "keep")
loader = DataLoader(ArrayDataset(x[:240], kind[:240].astype("float32"), size[:240]), batch_sampler=sampler)
acc, mae, total = mx.metric.Accuracy(name="kind"), mx.metric.MAE(name="size"), mx.metric.Loss(name="total")
print("batches", len(loader), "samples", len(loader._dataset))

for epoch in range(5):
    for metric in (acc, mae, total):
        metric.reset()
    for data, label_kind, label_size in loader:
        with autograd.record():
            out_kind, out_size = net(data)
            loss = ce(out_kind, label_kind) + l1(out_size, label_size)
        loss.backward()
        trainer.step(data.shape[0])
        acc.update([label_kind], [out_kind])
        mae.update([label_size], [out_size])
        total.update(None, [loss])
    logging.info("epoch %d: " + ", ".join("%s=%.5f" % m.get() for m in (acc, mae, total)), epoch)

held_out = net(mx.nd.array(x[240:]))
mae.reset()
mae.update([mx.nd.array(size[240:])], [held_out[1]])
logging.info("held out: accuracy %.4f, mae %.5f", (held_out[0].asnumpy().argmax(axis=1) == kind[240:]).mean(), mae.get()[1])
net.hybridize(False)
net.apply(lambda block: logging.info("%s", type(block).__name__))
