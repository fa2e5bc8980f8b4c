"""Collaborative filtering with embeddings: a factorization of synthetic ratings, judged by RMSE."""

import logging

import mxnet as mx
import numpy as np

logging.getLogger().setLevel(logging.DEBUG)
users, items, factors, batch_size = 40, 30, 4, 64


def plain_net(k):
    user = mx.symbol.Variable("user")
    item = mx.symbol.Variable("item")
    score = mx.symbol.Variable("score")
    user = mx.symbol.Embedding(data=user, input_dim=users, output_dim=k, name="user_embedding")
    item = mx.symbol.Embedding(data=item, input_dim=items, output_dim=k, name="item_embedding")
    pred = user * item
    pred = mx.symbol.sum_axis(data=pred, axis=1)
    pred = mx.symbol.Flatten(data=pred)
    return mx.symbol.LinearRegressionOutput(data=pred, label=score)


rng = np.random.RandomState(61)
p, q = rng.normal(1, 0.5, (users, factors)), rng.normal(0.5, 0.5, (items, factors))
u, i = rng.randint(0, users, 1280), rng.randint(0, items, 1280)
rating = ((p[u] * q[i]).sum(axis=1) + rng.normal(0, 0.1, 1280)).astype("float32")


def ratings(rows):
    data = {"user": u[rows].astype("float32"), "item": i[rows].astype("float32")}
    return mx.io.NDArrayIter(data=data, label={"score": rating[rows]}, batch_size=batch_size)


def RMSE(label, pred):
    ret = 0.0
    n = 0.0
    pred = pred.flatten()
    for k in range(len(label)):
        ret += (label[k] - pred[k]) * (label[k] - pred[k])
        n += 1.0
    return np.sqrt(ret / n)


train_iter, test_iter = ratings(slice(0, 1024)), ratings(slice(1024, None))
net = plain_net(factors)
args = {
    "user_embedding_weight": mx.nd.array(rng.normal(0.5, 0.3, (users, factors))),
    "item_embedding_weight": mx.nd.array(rng.normal(0.5, 0.3, (items, factors))),
}
model = mx.module.Module(context=mx.cpu(0), data_names=["item", "user"], label_names=["score"], symbol=net)
model.fit(
    train_iter,
    eval_data=test_iter,
    eval_metric=RMSE,
    arg_params=args,
    optimizer="adagrad",
    optimizer_params={"learning_rate": 0.1, "wd": 1e-4},
    num_epoch=5,
    batch_end_callback=mx.callback.Speedometer(batch_size, 8),
)
prediction = model.predict(test_iter).asnumpy()
print(prediction.shape, "%.6f" % np.sqrt(np.mean((prediction[:, 0] - rating[1024:]) ** 2)))
