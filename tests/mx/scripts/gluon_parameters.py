"""Parameter management: access, patterns, sharing, initialization, freezing, and a regularizer on the weights."""

import numpy as np
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import nn


class MyInit(init.Initializer):
    def _init_weight(self, name, data):
        print("Init", name, data.shape)
        data[:] = np.random.RandomState(data.size).uniform(low=-1, high=1, size=data.shape)
        data *= data.abs() >= 0.3


net = nn.Sequential(prefix="model_")
with net.name_scope():
    net.add(nn.Dense(6, activation="tanh"))
    net.add(nn.Dense(4, activation="tanh"))
    shared = nn.Dense(4, activation="tanh", in_units=4)
    net.add(shared)
    net.add(nn.Dense(4, activation="tanh", in_units=4, params=shared.params))
    net.add(nn.Dense(1))
net.initialize(MyInit())
try:
    net[0].weight.data()
except gluon.parameter.DeferredInitializationError as error:
    print("deferred:", type(error).__name__)
x = nd.array(np.random.RandomState(2).uniform(size=(8, 5)))
y = net(x)
print("outputs", y.shape, "%.5f" % y.mean().asscalar())

print(net[0].params)
print(net[0].weight, net[0].weight.data().shape)
print("bias", net[0].bias.data().asnumpy())
print("patterns:", list(net.collect_params(".*weight").keys()))
print("shared:", (net[2].weight.data()[0] == net[3].weight.data()[0]).asnumpy(), net[2].weight is net[3].weight)
net[0].weight.initialize(init=init.Constant(0.1), force_reinit=True)
net[1].collect_params().initialize(init.One(), force_reinit=True)
print(net[0].weight.data()[0].asnumpy(), net[1].weight.data()[0].asnumpy())
print("total", sum(int(np.prod(p.shape)) for p in net.collect_params().values()))

target = nd.array(np.random.RandomState(3).uniform(size=(8, 1)))
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
net[4].weight.lr_mult = 0.1
net[1].collect_params().setattr("grad_req", "null")
l2 = gluon.loss.L2Loss()
for step in range(4):
    with autograd.record():
        loss = l2(net(x), target).mean()
        for p in net.collect_params(".*weight").values():
            loss = loss + 0.001 * (p.data() ** 2).sum()
    loss.backward()
    trainer.step(1)
    print("step %d loss %.6f gradient %.6f" % (step, loss.asscalar(), net[2].weight.grad().norm().asscalar()))
print("frozen", net[1].weight.data().sum().asscalar(), "list_grad", len(net[0].weight.list_grad()))

params = gluon.ParameterDict(prefix="own_")
w = params.get("w", shape=(2, 3), init="ones", lr_mult=0.5)
c = params.get_constant("c", [[1, 2], [3, 4]])
params.initialize()
print(params)
print(w.name, w.data().asnumpy().tolist(), c.value.asnumpy().tolist(), w.list_ctx())
params.save("own.params", strip_prefix="own_")
other = gluon.ParameterDict(prefix="other_")
other.get("w", shape=(2, 3))
other.get_constant("c", [[0, 0], [0, 0]])
other.load("own.params", restore_prefix="other_")
print(other["other_w"].data().sum().asscalar(), sorted(other.keys()))
net.collect_params().zero_grad()
print("after zero_grad", net[2].weight.grad().norm().asscalar())
