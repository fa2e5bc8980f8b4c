"""A generative adversarial network of two modules; the generator learns from the gradient of the discriminator's input."""

import logging
import zlib

import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.DEBUG)

batch_size, code, width = 32, 4, 2
ctx = mx.cpu()
lr, beta1 = 0.01, 0.5


class ByName(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(zlib.crc32(name.encode()) % 2**31).normal(0, 0.3, arr.shape)


def make_generator():
    rand = mx.sym.Variable("rand")
    g1 = mx.sym.FullyConnected(rand, name="g1", num_hidden=16, no_bias=True)
    gbn1 = mx.sym.BatchNorm(g1, name="gbn1", fix_gamma=True, eps=1e-5)
    gact1 = mx.sym.Activation(gbn1, name="gact1", act_type="relu")
    return mx.sym.FullyConnected(gact1, name="gout", num_hidden=width)


def make_discriminator():
    data = mx.sym.Variable("data")
    label = mx.sym.Variable("label")
    d1 = mx.sym.FullyConnected(data, name="d1", num_hidden=16)
    dact1 = mx.sym.LeakyReLU(d1, name="dact1", act_type="leaky", slope=0.2)
    d2 = mx.sym.FullyConnected(dact1, name="d2", num_hidden=1)
    return mx.sym.LogisticRegressionOutput(data=d2, label=label, name="dloss")


class RandIter(mx.io.DataIter):
    """Batches of codes."""

    def __init__(self, batch_size, ndim, seed):
        super().__init__()
        self.batch_size = batch_size
        self.rng = np.random.RandomState(seed)
        self.ndim = ndim
        self.provide_data = [("rand", (batch_size, ndim))]
        self.provide_label = []

    def iter_next(self):
        return True

    def getdata(self):
        return [mx.nd.array(self.rng.normal(0, 1.0, size=(self.batch_size, self.ndim)))]

    def getlabel(self):
        return []

    def getpad(self):
        return 0


rng = np.random.RandomState(2)
angle = rng.uniform(0, np.pi, 320)
circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(0, 0.05, (320, 2))
train_iter = mx.io.NDArrayIter(circle.astype("float32"), batch_size=batch_size)
rand_iter = RandIter(batch_size, code, 3)
label = mx.nd.zeros((batch_size,), ctx=ctx)

modG = mx.mod.Module(symbol=make_generator(), data_names=("rand",), label_names=None, context=ctx)
modG.bind(data_shapes=rand_iter.provide_data)
modG.init_params(initializer=ByName())
modG.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": lr, "wd": 0.0, "beta1": beta1})
mods = [modG]

modD = mx.mod.Module(symbol=make_discriminator(), data_names=("data",), label_names=("label",), context=ctx)
modD.bind(data_shapes=train_iter.provide_data, label_shapes=[("label", (batch_size,))], inputs_need_grad=True)
modD.init_params(initializer=ByName())
modD.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": lr, "wd": 0.0, "beta1": beta1})
mods.append(modD)


def facc(label, pred):
    pred = pred.ravel()
    label = label.ravel()
    return ((pred > 0.5) == label).mean()


def fentropy(label, pred):
    pred = pred.ravel()
    label = label.ravel()
    return -(label * np.log(pred + 1e-12) + (1.0 - label) * np.log(1.0 - pred + 1e-12)).mean()


mG, mD, mACC = mx.metric.CustomMetric(fentropy), mx.metric.CustomMetric(fentropy), mx.metric.CustomMetric(facc)

for epoch in range(3):
    train_iter.reset()
    for metric in (mG, mD, mACC):
        metric.reset()
    for batch in train_iter:
        rbatch = rand_iter.next()
        modG.forward(rbatch, is_train=True)
        outG = modG.get_outputs()
        # update the discriminator on fake
        label[:] = 0
        modD.forward(mx.io.DataBatch(outG, [label]), is_train=True)
        modD.backward()
        gradD = [[grad.copyto(grad.context) for grad in grads] for grads in modD._exec_group.grad_arrays]
        modD.update_metric(mD, [label])
        modD.update_metric(mACC, [label])
        # update the discriminator on real
        label[:] = 1
        batch.label = [label]
        modD.forward(batch, is_train=True)
        modD.backward()
        for gradsr, gradsf in zip(modD._exec_group.grad_arrays, gradD):
            for gradr, gradf in zip(gradsr, gradsf):
                gradr += gradf
        modD.update()
        modD.update_metric(mD, [label])
        modD.update_metric(mACC, [label])
        # update the generator
        modD.forward(mx.io.DataBatch(outG, [label]), is_train=True)
        modD.backward()
        diffD = modD.get_input_grads()
        modG.backward(diffD)
        modG.update()
        mG.update([label], modD.get_outputs())
    logging.info("epoch: %d, acc %.5f, D loss %.5f, G loss %.5f", epoch, mACC.get()[1], mD.get()[1], mG.get()[1])

modG.forward(rand_iter.next(), is_train=False)
sample = modG.get_outputs()[0].asnumpy()
print("samples: mean", np.round(sample.mean(axis=0), 4))
