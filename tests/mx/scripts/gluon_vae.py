"""A variational autoencoder as one HybridBlock; the noise of the code is an input."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

rng = np.random.RandomState(37)
n_latent, n_hidden, n_output, batch_size = 3, 24, 12, 25
codes = rng.normal(size=(200, 3))
data = (1 / (1 + np.exp(-codes.dot(rng.normal(size=(3, n_output)) * 2)))).astype("float32")


class VAE(gluon.HybridBlock):
    def __init__(self, n_hidden, n_latent, n_output, act_type="relu", **kwargs):
        self.soft_zero = 1e-10
        self.n_latent = n_latent
        self.output = None
        self.mu = None
        super(VAE, self).__init__(**kwargs)
        with self.name_scope():
            self.encoder = nn.HybridSequential(prefix="encoder")
            self.encoder.add(nn.Dense(n_hidden, activation=act_type))
            self.encoder.add(nn.Dense(n_latent * 2, activation=None))
            self.decoder = nn.HybridSequential(prefix="decoder")
            self.decoder.add(nn.Dense(n_hidden, activation=act_type))
            self.decoder.add(nn.Dense(n_output, activation="sigmoid"))

    def hybrid_forward(self, F, x, eps):
        h = self.encoder(x)
        mu_lv = F.split(h, axis=1, num_outputs=2)
        mu = mu_lv[0]
        lv = mu_lv[1]
        z = mu + F.exp(0.5 * lv) * eps
        y = self.decoder(z)
        KL = 0.5 * F.sum(1 + lv - mu * mu - F.exp(lv), axis=1)
        logloss = F.sum(x * F.log(y + self.soft_zero) + (1 - x) * F.log(1 - y + self.soft_zero), axis=1)
        return -logloss - KL


class Fixed(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.shape[0] * 100 + arr.shape[1]).normal(0, 0.25, arr.shape)


net = VAE(n_hidden, n_latent, n_output)
net.collect_params().initialize(Fixed(), ctx=mx.cpu())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.005})
train_iter = mx.io.NDArrayIter(data={"data": data[:150]}, batch_size=batch_size)
test_iter = mx.io.NDArrayIter(data={"data": data[150:]}, batch_size=batch_size)
noise = np.random.RandomState(41)

for epoch in range(6):
    epoch_loss = 0
    epoch_val_loss = 0
    train_iter.reset()
    test_iter.reset()
    n_batch_train = 0
    for batch in train_iter:
        n_batch_train += 1
        x = batch.data[0].as_in_context(mx.cpu())
        eps = nd.array(noise.normal(size=(batch_size, n_latent)))
        with autograd.record():
            loss = net(x, eps)
        loss.backward()
        trainer.step(x.shape[0])
        epoch_loss += nd.mean(loss).asscalar()
    n_batch_val = 0
    for batch in test_iter:
        n_batch_val += 1
        loss = net(batch.data[0], nd.zeros((batch_size, n_latent)))
        epoch_val_loss += nd.mean(loss).asscalar()
    print(
        "Epoch{}, Training loss {:.4f}, Validation loss {:.4f}".format(
            epoch, epoch_loss / n_batch_train, epoch_val_loss / n_batch_val
        )
    )
print(net.decoder(nd.array([[0, 0, 0], [1, 1, 1]])).asnumpy()[:, :4])
