"""Linear regression from scratch: arrays, autograd and an update written by hand."""

import random

import numpy as np
from mxnet import autograd, nd

num_inputs = 2
num_examples = 200
true_w = [2, -3.4]
true_b = 4.2
rng = np.random.RandomState(1)
features = nd.array(rng.normal(scale=1, size=(num_examples, num_inputs)))
labels = true_w[0] * features[:, 0] + true_w[1] * features[:, 1] + true_b
labels += nd.array(rng.normal(scale=0.01, size=labels.shape))


def data_iter(batch_size, features, labels):
    num_examples = len(features)
    indices = list(range(num_examples))
    random.shuffle(indices)
    for i in range(0, num_examples, batch_size):
        j = nd.array(indices[i : min(i + batch_size, num_examples)])
        yield features.take(j), labels.take(j)


w = nd.array(rng.normal(scale=0.01, size=(num_inputs, 1)))
b = nd.zeros(shape=(1,))
w.attach_grad()
b.attach_grad()


def linreg(X, w, b):
    return nd.dot(X, w) + b


def squared_loss(y_hat, y):
    return (y_hat - y.reshape(y_hat.shape)) ** 2 / 2


def sgd(params, lr, batch_size):
    for param in params:
        param[:] = param - lr * param.grad / batch_size


random.seed(2)
lr, num_epochs, batch_size = 0.05, 4, 10
net, loss = linreg, squared_loss
for epoch in range(num_epochs):
    for X, y in data_iter(batch_size, features, labels):
        with autograd.record():
            l = loss(net(X, w, b), y)
        l.backward()
        sgd([w, b], lr, batch_size)
    train_l = loss(net(features, w, b), labels)
    print("epoch %d, loss %f" % (epoch + 1, train_l.mean().asnumpy()[0]))
print(true_w, w.asnumpy().ravel(), true_b, b.asnumpy())

# control flow in Python is recorded as it ran
x = nd.array([1.5, -0.5, 2.0])
x.attach_grad()


def f(a):
    c = a * 2
    while nd.norm(c).asscalar() < 100:
        c = c * 2
    return c if nd.sum(c).asscalar() > 0 else 100 * c


with autograd.record():
    z = f(x)
z.backward(nd.array([1.0, 10.0, 0.1]))
print(z.asnumpy(), x.grad.asnumpy())
