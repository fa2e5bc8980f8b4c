"""LeNet as a HybridSequential, hybridized, with a shuffling DataLoader and the accuracy per epoch."""

import mxnet as mx
import numpy as np
from mxnet import autograd as ag
from mxnet import gluon, init, nd
from mxnet.gluon import loss as gloss
from mxnet.gluon import nn

rng = np.random.RandomState(11)


def shapes(count):
    """Images with a horizontal, vertical or diagonal bar."""
    x = rng.uniform(0, 0.3, (count, 16, 16, 1)).astype("float32")
    y = rng.randint(0, 3, count).astype("int32")
    for image, kind in zip(x[..., 0], y):
        k = rng.randint(3, 13)
        if kind == 0:
            image[k] += 0.7
        elif kind == 1:
            image[:, k] += 0.7
        else:
            np.fill_diagonal(image, 1.0)
    return x, y


class FromNumpy(init.Initializer):
    def _init_weight(self, name, data):
        data[:] = np.random.RandomState(data.size).uniform(-0.15, 0.15, data.shape)


net = nn.HybridSequential()
net.add(
    nn.Conv2D(channels=6, kernel_size=5, activation="sigmoid"),
    nn.BatchNorm(),
    nn.MaxPool2D(pool_size=2, strides=2),
    nn.Conv2D(channels=12, kernel_size=3, activation="relu"),
    nn.AvgPool2D(pool_size=2, strides=2),
    nn.Flatten(),
    nn.Dense(24, activation="tanh"),
    nn.Dense(3),
)
net.initialize(force_reinit=True, init=FromNumpy())
net.hybridize()

to_tensor = lambda data, label: (nd.array(data).transpose((2, 0, 1)), label)
np.random.seed(3)
train_set = gluon.data.ArrayDataset(*shapes(320)).transform(to_tensor)
test_set = gluon.data.ArrayDataset(*shapes(96)).transform(to_tensor)
train_iter = gluon.data.DataLoader(train_set, batch_size=32, shuffle=True)
test_iter = gluon.data.DataLoader(test_set, batch_size=32, shuffle=False)


def evaluate_accuracy(data_iter, net):
    acc_sum, n = nd.array([0]), 0
    for X, y in data_iter:
        y = y.astype("float32")
        acc_sum += (net(X).argmax(axis=1) == y).sum()
        n += y.size
    return acc_sum.asscalar() / n


loss = gloss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
for epoch in range(5):
    train_l_sum, train_acc_sum, n = 0.0, 0.0, 0
    for X, y in train_iter:
        with ag.record():
            y_hat = net(X)
            l = loss(y_hat, y).sum()
        l.backward()
        trainer.step(32)
        y = y.astype("float32")
        train_l_sum += l.asscalar()
        train_acc_sum += (y_hat.argmax(axis=1) == y).sum().asscalar()
        n += y.size
    test_acc = evaluate_accuracy(test_iter, net)
    print("epoch %d, loss %.4f, train acc %.3f, test acc %.3f" % (epoch + 1, train_l_sum / n, train_acc_sum / n, test_acc))

X = mx.nd.ones((1, 1, 16, 16))
for layer in net:
    X = layer(X)
    print(layer.name.split("_")[-1], "output shape:\t", X.shape)
