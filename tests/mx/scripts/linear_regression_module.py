"""Linear regression, as in the tutorial: fit, predict and score with a Module."""

import logging

import mxnet as mx
import numpy as np

logging.getLogger().setLevel(logging.DEBUG)

rng = np.random.RandomState(3)
train_data = rng.uniform(0, 1, [100, 2])
train_label = np.array([train_data[i][0] + 2 * train_data[i][1] for i in range(100)])
batch_size = 10
eval_data = np.array([[7, 2], [6, 10], [12, 2]])
eval_label = np.array([11, 26, 16])

train_iter = mx.io.NDArrayIter(train_data, train_label, batch_size, label_name="lin_reg_label")
eval_iter = mx.io.NDArrayIter(eval_data, eval_label, batch_size=1, shuffle=False, label_name="lin_reg_label")

X = mx.sym.Variable("data")
Y = mx.symbol.Variable("lin_reg_label")
fully_connected_layer = mx.sym.FullyConnected(data=X, name="fc1", num_hidden=1)
lro = mx.sym.LinearRegressionOutput(data=fully_connected_layer, label=Y, name="lro")

model = mx.mod.Module(symbol=lro, data_names=["data"], label_names=["lin_reg_label"])
model.fit(
    train_iter,
    eval_iter,
    initializer=mx.init.Constant(0.1),
    optimizer_params={"learning_rate": 0.02, "momentum": 0.9},
    num_epoch=6,
    eval_metric="mse",
    batch_end_callback=mx.callback.Speedometer(batch_size, 2),
)

print(model.predict(eval_iter).asnumpy())
metric = mx.metric.MSE()
mse = model.score(eval_iter, metric)
print(mse)

eval_data = np.array([[7, 2], [6, 10], [12, 2]])
eval_label = np.array([11.1, 26.1, 16.1])  # with 0.1 added to each of the values
eval_iter = mx.io.NDArrayIter(eval_data, eval_label, batch_size=1, shuffle=False, label_name="lin_reg_label")
print(model.score(eval_iter, metric))
