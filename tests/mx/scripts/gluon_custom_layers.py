"""Custom layers, a custom loss and an autograd.Function, as in the tutorials."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import HybridBlock, nn
from mxnet.gluon.loss import Loss

rng = np.random.RandomState(43)


class CenteredLayer(nn.Block):
    def __init__(self, **kwargs):
        super(CenteredLayer, self).__init__(**kwargs)

    def forward(self, x):
        return x - x.mean()


class MyDense(HybridBlock):
    """A fully connected layer whose weight is multiplied by a learned scale."""

    def __init__(self, units, in_units=0, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(units, in_units), allow_deferred_init=True)
            self.scale = self.params.get("scale", shape=(1,), init=init.Constant(0.5))
            self.offset = self.params.get_constant("offset", nd.array([0.25]))
            self.units = units

    def infer_shape(self, x, *args):
        self.weight.shape = (self.units, x.shape[1])

    def hybrid_forward(self, F, x, weight, scale, offset):
        linear = F.FullyConnected(
            x, F.broadcast_mul(weight, F.reshape(scale, (1, 1))), None, num_hidden=self.units, no_bias=True
        )
        return F.relu(F.broadcast_add(linear, offset))


class QuantileLoss(Loss):
    def __init__(self, quantile=0.7, weight=1.0, batch_axis=0, **kwargs):
        super().__init__(weight, batch_axis, **kwargs)
        self.quantile = quantile

    def hybrid_forward(self, F, pred, label, sample_weight=None):
        error = F.reshape_like(label, pred) - pred
        loss = F.maximum(self.quantile * error, (self.quantile - 1) * error)
        return F.mean(loss * self._weight, axis=self._batch_axis, exclude=True)


class Swish(autograd.Function):
    def forward(self, x):
        y = 1 / (1 + nd.exp(-x))
        self.save_for_backward(x, y)
        return x * y

    def backward(self, dy):
        x, y = self.saved_tensors
        return dy * (y + x * y * (1 - y))


class Net(gluon.Block):
    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.first = MyDense(8)
            self.middle = nn.HybridLambda(lambda F, x: F.LeakyReLU(x, act_type="elu"))
            self.swap = nn.Lambda("flatten")
            self.last = nn.Dense(1)

    def forward(self, x):
        return self.last(Swish()(self.swap(self.middle(self.first(x)))))


class Start(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.size).normal(0, 0.5, arr.shape)

    def _init_default(self, name, arr):
        arr[:] = 1.0


print(CenteredLayer()(nd.array([1, 2, 3, 4, 5])).asnumpy())
x = nd.array(rng.normal(size=(120, 5)))
y = nd.array(np.abs(x.asnumpy()).sum(axis=1) + rng.normal(0, 0.1, 120))
net = Net()
net.initialize(Start())
net.first.hybridize()
loss_fn = QuantileLoss(0.6)
trainer = gluon.Trainer(net.collect_params(), "nag", {"learning_rate": 0.1, "momentum": 0.8})
for epoch in range(5):
    total = 0.0
    for k in range(0, 120, 30):
        with autograd.record():
            loss = loss_fn(net(x[k : k + 30]), y[k : k + 30])
        loss.backward()
        trainer.step(30)
        total += loss.sum().asscalar()
    print("epoch %d loss %.5f scale %.5f" % (epoch, total / 120, net.first.scale.data().asscalar()))
print(sorted(net.collect_params()))
print(net)
