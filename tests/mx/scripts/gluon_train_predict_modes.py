"""Dropout and batch normalization in training and in prediction: modes, moving statistics, grad_req."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

rng = np.random.RandomState(17)
net = nn.Sequential()
with net.name_scope():
    net.add(nn.Dense(16, use_bias=False), nn.BatchNorm(momentum=0.8), nn.Activation("relu"))
    net.add(nn.Dropout(0.5))
    net.add(nn.Dense(8, use_bias=False), nn.BatchNorm(scale=False), nn.LeakyReLU(0.1))
    net.add(nn.Dense(2))
net.initialize(mx.init.One())
x = nd.array(rng.normal(1.0, 2.0, (64, 6)))
y = nd.array((rng.uniform(size=64) > 0.5).astype("float32"))
net(x)
for name, p in sorted(net.collect_params(".*weight").items()):
    p.set_data(nd.array(rng.normal(0, 0.3, p.shape)))

print("training outside record:", autograd.is_training(), "recording:", autograd.is_recording())
with autograd.record():
    print("training inside record:", autograd.is_training(), "recording:", autograd.is_recording())
    with autograd.predict_mode():
        print("predict_mode:", autograd.is_training(), autograd.is_recording())
    with autograd.pause():
        print("pause:", autograd.is_training(), autograd.is_recording())
with autograd.record(train_mode=False):
    print("record(train_mode=False):", autograd.is_training(), autograd.is_recording())

dropped = nn.Dropout(0.5)
with autograd.train_mode():
    kept = dropped(nd.ones((4000,)))
print(
    "values under dropout:",
    sorted(set(kept.asnumpy().tolist())),
    "share kept near one half:",
    abs(kept.mean().asscalar() - 1) < 0.1,
)
print("in prediction:", dropped(nd.ones((4,))).asnumpy())

before = net(x).asnumpy()
loss_fn = gluon.loss.SoftmaxCELoss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.001})
net[3]._rate = 0.0  # without dropout the numbers are the same in every run
for step in range(6):
    with autograd.record():
        out = net(x)
        loss = loss_fn(out, y)
    loss.backward()
    trainer.step(x.shape[0])
    print("step %d loss %.5f" % (step, loss.mean().asscalar()))
after = net(x).asnumpy()
print("outputs moved by %.5f" % np.abs(after - before).max())
for name, p in sorted(net.collect_params().items()):
    print(name.split("_", 1)[1], p.shape, p.grad_req, "%.5f" % p.data().norm().asscalar())

net.collect_params(".*dense.*").setattr("grad_req", "null")
with autograd.record():
    loss = loss_fn(net(x), y)
loss.backward()
print("with gradients:", sorted(n.split("_", 1)[1] for n, p in net.collect_params().items() if p.grad_req != "null"))
with autograd.record(train_mode=False):
    loss = loss_fn(net(x), y)
print("loss in prediction mode %.5f" % loss.mean().asscalar())
