"""Softmax regression from scratch and with gluon, on mx.np arrays."""

import numpy as onp
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()

rng = onp.random.RandomState(97)
num_inputs, num_outputs, batch_size, lr = 16, 4, 32, 0.2
centers = rng.normal(0, 1, (num_outputs, num_inputs))
labels = rng.randint(0, num_outputs, 320)
features = np.array(centers[labels] + rng.normal(0, 1.2, (320, num_inputs)), dtype="float32")
labels = np.array(labels.astype("int32"))

W = np.array(rng.normal(0, 0.01, (num_inputs, num_outputs)), dtype="float32")
b = np.zeros(num_outputs)
W.attach_grad()
b.attach_grad()


def softmax(X):
    X_exp = np.exp(X)
    partition = X_exp.sum(axis=1, keepdims=True)
    return X_exp / partition


def net(X):
    return softmax(np.dot(X.reshape((-1, W.shape[0])), W) + b)


def cross_entropy(y_hat, y):
    return -np.log(y_hat[np.arange(len(y_hat)), y])


def accuracy(y_hat, y):
    if len(y_hat.shape) > 1 and y_hat.shape[1] > 1:
        y_hat = y_hat.argmax(axis=1)
    return float((y_hat.astype(y.dtype) == y).sum())


def batches():
    for i in range(0, 320, batch_size):
        yield features[i : i + batch_size], labels[i : i + batch_size]


for epoch in range(4):
    total, correct = 0.0, 0.0
    for X, y in batches():
        with autograd.record():
            y_hat = net(X)
            l = cross_entropy(y_hat, y)
        l.backward()
        for param in [W, b]:
            param[:] = param - lr * param.grad / batch_size
        total += float(l.sum())
        correct += accuracy(y_hat, y)
    print(f"epoch {epoch + 1}, loss {total / 320:.5f}, accuracy {correct / 320:.4f}")

concise = nn.Sequential()
concise.add(nn.Dense(12, activation="relu"), nn.Dense(num_outputs))
concise.initialize(init.One())
concise(features)
for name, parameter in concise.collect_params(".*weight").items():
    parameter.set_data(np.array(rng.normal(0, 0.2, parameter.shape), dtype="float32"))
loss = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(concise.collect_params(), "sgd", {"learning_rate": 0.5})
for epoch in range(4):
    total, correct = 0.0, 0.0
    for X, y in batches():
        with autograd.record():
            y_hat = concise(X)
            l = loss(y_hat, y)
        l.backward()
        trainer.step(batch_size)
        total += float(l.sum())
        correct += accuracy(y_hat, y)
    print(f"epoch {epoch + 1}, loss {total / 320:.5f}, accuracy {correct / 320:.4f}")
print(type(concise(features)).__name__, np.linalg.norm(W).item() > 0, npx.relu(np.array([-1.0, 2.0])))
