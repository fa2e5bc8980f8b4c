"""Gradients added up over micro-batches with grad_req='add', and higher-order gradients."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

rng = np.random.RandomState(67)
x, y = rng.normal(size=(96, 5)).astype("float32"), rng.randint(0, 4, 96).astype("float32")


def network(hybridize):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(10, activation="softrelu", in_units=5), nn.LayerNorm(in_channels=10), nn.Dense(4, in_units=10))
    net.initialize(mx.init.One())
    init = np.random.RandomState(68)
    for name, p in net.collect_params(".*weight").items():
        p.set_data(nd.array(init.normal(0, 0.4, p.shape)))
    if hybridize:
        net.hybridize()
    return net


loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()


def train(micro, hybridize):
    net = network(hybridize)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.5})
    for p in net.collect_params().values():
        p.grad_req = "add" if micro > 1 else "write"
    history = []
    for _ in range(4):
        for start in range(0, 96, 48):
            for k in range(start, start + 48, 48 // micro):
                data, label = nd.array(x[k : k + 48 // micro]), nd.array(y[k : k + 48 // micro])
                with autograd.record():
                    loss = loss_fn(net(data), label)
                loss.backward()
            trainer.step(48)
            for p in net.collect_params().values():
                p.zero_grad()
        history.append(loss_fn(net(nd.array(x)), nd.array(y)).mean().asscalar())
    return history


for micro in (1, 3):
    for hybridize in (False, True):
        print(micro, hybridize, " ".join("%.5f" % value for value in train(micro, hybridize)))

x = nd.array([0.5, -1.0, 2.0])
x.attach_grad()
with autograd.record():
    y = nd.sin(x)
    dx = autograd.grad(y, x, create_graph=True, retain_graph=True)[0]
    penalty = (dx * dx).sum()
penalty.backward()
print("dy/dx", dx.asnumpy(), "gradient of the penalty", x.grad.asnumpy())

a, b = nd.array([1.0, 2.0]), nd.array([3.0, 4.0])
ga, gb = nd.zeros((2,)), nd.zeros((2,))
autograd.mark_variables([a, b], [ga, gb], grad_reqs=["write", "add"])
for _ in range(2):
    with autograd.record():
        z = a * b + nd.BlockGrad(a) * b.detach()
    autograd.backward([z], [nd.array([1.0, 0.5])], retain_graph=False)
print(ga.asnumpy(), gb.asnumpy())
