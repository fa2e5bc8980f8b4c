"""Logistic regression with one output, the sigmoid binary cross-entropy and F1 as a second metric."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

rng = np.random.RandomState(13)
train_data_size, val_data_size, batch_size = 400, 100, 20


def get_random_data(size, ctx):
    x = nd.array(rng.normal(0, 1, size=(size, 10)), ctx=ctx)
    y = x.sum(axis=1) > 3
    return x, y


ctx = mx.cpu()
train_x, train_ground_truth_class = get_random_data(train_data_size, ctx)
train_dataset = gluon.data.dataset.ArrayDataset(train_x, train_ground_truth_class)
train_dataloader = gluon.data.DataLoader(train_dataset, batch_size=batch_size)
val_x, val_ground_truth_class = get_random_data(val_data_size, ctx)
val_dataset = gluon.data.dataset.ArrayDataset(val_x, val_ground_truth_class)
val_dataloader = gluon.data.DataLoader(val_dataset, batch_size=batch_size)

net = gluon.nn.HybridSequential()
with net.name_scope():
    net.add(gluon.nn.Dense(units=10, activation="relu"))
    net.add(gluon.nn.Dense(units=10, activation="relu"))
    net.add(gluon.nn.Dense(units=10, activation="relu"))
    net.add(gluon.nn.Dense(units=1))
net.initialize(mx.init.Zero(), ctx=ctx)
net(train_x[:1])  # the deferred initialization happens here
for parameter in net.collect_params().values():
    if parameter.name.endswith("weight"):
        parameter.set_data(nd.array(rng.normal(0, 0.4, parameter.shape)))

trainer = gluon.Trainer(params=net.collect_params(), optimizer="sgd", optimizer_params={"learning_rate": 0.1})
accuracy = mx.metric.Accuracy()
f1 = mx.metric.F1()
loss = gluon.loss.SigmoidBinaryCrossEntropyLoss()


def train_model():
    cumulative_train_loss = 0
    for i, (data, label) in enumerate(train_dataloader):
        with autograd.record():
            output = net(data)
            loss_result = loss(output, label)
        loss_result.backward()
        trainer.step(batch_size)
        cumulative_train_loss += nd.sum(loss_result).asscalar()
    return cumulative_train_loss


def validate_model(threshold):
    cumulative_val_loss = 0
    for i, (val_data, val_ground_truth_class) in enumerate(val_dataloader):
        output = net(val_data)
        cumulative_val_loss += nd.sum(loss(output, val_ground_truth_class)).asscalar()
        prediction = net(val_data)
        prediction = prediction.reshape(-1)
        prediction = mx.nd.sigmoid(prediction)
        prediction = prediction > threshold
        accuracy.update(val_ground_truth_class, prediction)
        probabilities = mx.nd.stack(1 - prediction, prediction, axis=1)
        f1.update(val_ground_truth_class, probabilities)
    return cumulative_val_loss


for e in range(8):
    avg_train_loss = train_model() / train_data_size
    avg_val_loss = validate_model(0.5) / val_data_size
    print(
        "Epoch: %s, Training loss: %.5f, Validation loss: %.5f, Validation accuracy: %.2f, F1 score: %.4f"
        % (e, avg_train_loss, avg_val_loss, accuracy.get()[1], f1.get()[1])
    )
    accuracy.reset()
    f1.reset()
