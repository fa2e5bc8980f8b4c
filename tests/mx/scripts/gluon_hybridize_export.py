"""Hybridize a network, compare it with its imperative form, export it and load it as a SymbolBlock and as a Module."""

import os

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

rng = np.random.RandomState(47)


class Residual(nn.HybridBlock):
    def __init__(self, channels, same_shape=True, **kwargs):
        super(Residual, self).__init__(**kwargs)
        self.same_shape = same_shape
        with self.name_scope():
            strides = 1 if same_shape else 2
            self.conv1 = nn.Conv2D(channels, kernel_size=3, padding=1, strides=strides)
            self.bn1 = nn.BatchNorm()
            self.conv2 = nn.Conv2D(channels, kernel_size=3, padding=1)
            if not same_shape:
                self.conv3 = nn.Conv2D(channels, kernel_size=1, strides=strides)

    def hybrid_forward(self, F, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.conv2(out)
        if not self.same_shape:
            x = self.conv3(x)
        return F.relu(out + x)


net = nn.HybridSequential(prefix="resnet_")
with net.name_scope():
    net.add(Residual(4, same_shape=False), Residual(4), nn.GlobalAvgPool2D(), nn.Dense(3))


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.size).normal(0, 0.3, arr.shape)


net.initialize(ByShape())
x = nd.array(rng.normal(size=(12, 2, 8, 8)))
label = nd.array(rng.randint(0, 3, 12))
imperative = net(x)
net.hybridize(static_alloc=True, static_shape=True)
print("equal: %s" % np.allclose(imperative.asnumpy(), net(x).asnumpy(), atol=1e-5))

loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
for step in range(5):
    with autograd.record():
        loss = loss_fn(net(x), label)
    loss.backward()
    trainer.step(12)
    print("step %d loss %.5f" % (step, loss.mean().asscalar()))

net.export("resnet", epoch=3)
print(sorted(f for f in os.listdir(".")))
expected = net(x).asnumpy()
deployed = gluon.nn.SymbolBlock.imports("resnet-symbol.json", ["data"], "resnet-0003.params", ctx=mx.cpu())
print("SymbolBlock: %s" % np.allclose(deployed(x).asnumpy(), expected, atol=1e-5))
sym, arg_params, aux_params = mx.model.load_checkpoint("resnet", 3)
print("arguments", len(sym.list_arguments()), "auxiliary", sym.list_auxiliary_states())
mod = mx.mod.Module(sym, label_names=None)
mod.bind(for_training=False, data_shapes=[("data", (12, 2, 8, 8))])
mod.set_params(arg_params, aux_params)
mod.forward(mx.io.DataBatch([x]), is_train=False)
print("Module: %s" % np.allclose(mod.get_outputs()[0].asnumpy(), expected, atol=1e-5))

symbol = net(mx.sym.var("data"))
print(symbol.list_outputs(), len(symbol.get_internals().list_outputs()))
net.save_parameters("resnet.params")
again = nn.HybridSequential(prefix="other_")
with again.name_scope():
    again.add(Residual(4, same_shape=False), Residual(4), nn.GlobalAvgPool2D(), nn.Dense(3))
again.load_parameters("resnet.params")
print("load_parameters: %s" % np.allclose(again(x).asnumpy(), expected, atol=1e-5))
print(sorted(nd.load("resnet.params"))[:4])
features = gluon.SymbolBlock(symbol.get_internals()["resnet_pool0_fwd_output"], mx.sym.var("data"), params=net.collect_params())
print("features", features(x).shape)
