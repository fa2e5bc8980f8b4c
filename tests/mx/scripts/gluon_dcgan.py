"""A deep convolutional GAN on tiny images: transposed convolutions, two trainers, a custom metric."""

import logging
import zlib

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

logging.basicConfig(level=logging.DEBUG)
epochs, batch_size, latent_z_size, nc = 2, 16, 8, 3
ctx = mx.cpu()
lr, beta1 = 0.002, 0.5
rng = np.random.RandomState(19)


def images(count):
    grid = np.linspace(-1, 1, 8)
    centers = rng.uniform(-0.5, 0.5, (count, 2))
    d = (grid[None, :, None] - centers[:, 0, None, None]) ** 2 + (grid[None, None, :] - centers[:, 1, None, None]) ** 2
    color = rng.uniform(0.3, 1, (count, nc, 1, 1))
    return (2 * color * np.exp(-6 * d)[:, None] - 1).astype("float32")


class ByName(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(zlib.crc32(name.encode()) % 2**31).normal(0, 0.1, arr.shape)


netG = nn.Sequential(prefix="generator_")
with netG.name_scope():
    netG.add(nn.Dense(256, use_bias=False), nn.HybridLambda(lambda F, x: F.reshape(x, (-1, 16, 4, 4))))
    netG.add(nn.BatchNorm())
    netG.add(nn.Activation("relu"))
    netG.add(nn.Conv2DTranspose(nc, 4, 2, 1, use_bias=False))  # 8 x 8
    netG.add(nn.Activation("tanh"))

netD = nn.Sequential(prefix="discriminator_")
with netD.name_scope():
    netD.add(nn.Conv2D(8, 4, 2, 1, use_bias=False))
    netD.add(nn.LeakyReLU(0.2))
    netD.add(nn.Conv2D(16, 4, 2, 1, use_bias=False))
    netD.add(nn.BatchNorm())
    netD.add(nn.LeakyReLU(0.2))
    netD.add(nn.Conv2D(1, 2, 1, 0, use_bias=False))

loss = gluon.loss.SigmoidBinaryCrossEntropyLoss()
netG.initialize(ByName(), ctx=ctx)
netD.initialize(ByName(), ctx=ctx)
trainerG = gluon.Trainer(netG.collect_params(), "adam", {"learning_rate": lr, "beta1": beta1})
trainerD = gluon.Trainer(netD.collect_params(), "adam", {"learning_rate": lr, "beta1": beta1})

real_label = mx.nd.ones((batch_size,), ctx=ctx)
fake_label = mx.nd.zeros((batch_size,), ctx=ctx)


def facc(label, pred):
    pred = pred.ravel()
    label = label.ravel()
    return ((pred > 0.5) == label).mean()


metric = mx.metric.CustomMetric(facc)
train_data = mx.io.NDArrayIter(data=images(96), batch_size=batch_size)
noise = np.random.RandomState(23)
for epoch in range(epochs):
    train_data.reset()
    for i, batch in enumerate(train_data):
        # update the discriminator: maximize log(D(x)) + log(1 - D(G(z)))
        data = batch.data[0].as_in_context(ctx)
        latent_z = mx.nd.array(noise.normal(0, 1, (batch_size, latent_z_size)), ctx=ctx)
        with autograd.record():
            output = netD(data).reshape((-1, 1))
            errD_real = loss(output, real_label)
            metric.update([real_label], [output])
            fake = netG(latent_z)
            output = netD(fake.detach()).reshape((-1, 1))
            errD_fake = loss(output, fake_label)
            errD = errD_real + errD_fake
            errD.backward()
            metric.update([fake_label], [output])
        trainerD.step(batch.data[0].shape[0])
        # update the generator: maximize log(D(G(z)))
        with autograd.record():
            fake = netG(latent_z)
            output = netD(fake).reshape((-1, 1))
            errG = loss(output, real_label)
            errG.backward()
        trainerG.step(batch.data[0].shape[0])
        if i % 2 == 0:
            name, acc = metric.get()
            logging.info(
                "discriminator loss = %.5f, generator loss = %.5f, binary training acc = %.5f at iter %d epoch %d",
                mx.nd.mean(errD).asscalar(), mx.nd.mean(errG).asscalar(), acc, i, epoch,
            )  # fmt: skip
    name, acc = metric.get()
    metric.reset()
    logging.info("binary training acc at epoch %d: %s=%.5f", epoch, name, acc)
sample = netG(mx.nd.array(noise.normal(0, 1, (4, latent_z_size))))
print(sample.shape, "%.5f" % sample.mean().asscalar())
