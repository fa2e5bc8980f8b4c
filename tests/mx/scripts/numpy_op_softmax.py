"""The old way to write an operator in Python: mx.operator.NumpyOp."""

import logging

import mxnet as mx
import numpy as np


class NumpySoftmax(mx.operator.NumpyOp):
    def __init__(self):
        super(NumpySoftmax, self).__init__(False)

    def list_arguments(self):
        return ["data", "label"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        data_shape = in_shape[0]
        label_shape = (in_shape[0][0],)
        output_shape = in_shape[0]
        return [data_shape, label_shape], [output_shape]

    def forward(self, in_data, out_data):
        x = in_data[0]
        y = out_data[0]
        y[:] = np.exp(x - x.max(axis=1).reshape((x.shape[0], 1)))
        y /= y.sum(axis=1).reshape((x.shape[0], 1))

    def backward(self, out_grad, in_data, out_data, in_grad):
        l = in_data[1]
        l = l.reshape((l.size,)).astype(int)
        y = out_data[0]
        dx = in_grad[0]
        dx[:] = y
        dx[np.arange(l.shape[0]), l] -= 1.0


rng = np.random.RandomState(41)
y = rng.randint(0, 3, 240)
x = (np.eye(3, 9)[y] * 2 + rng.normal(0, 0.8, (240, 9))).astype("float32")
train = mx.io.NDArrayIter(x[:180], y[:180].astype("float32"), 30)
val = mx.io.NDArrayIter(x[180:], y[180:].astype("float32"), 30)

data = mx.symbol.Variable("data")
fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=12)
act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
fc2 = mx.symbol.FullyConnected(data=act1, name="fc2", num_hidden=3)
mysoftmax = NumpySoftmax()
mlp = mysoftmax(data=fc2, name="softmax")

logging.basicConfig(level=logging.INFO)
arg_params = {
    "fc1_weight": mx.nd.array(rng.normal(0, 0.3, (12, 9))),
    "fc1_bias": mx.nd.array(np.zeros(12)),
    "fc2_weight": mx.nd.array(rng.normal(0, 0.3, (3, 12))),
    "fc2_bias": mx.nd.array(np.zeros(3)),
}
model = mx.mod.Module(symbol=mlp, context=mx.cpu())
model.fit(
    train_data=train,
    eval_data=val,
    arg_params=arg_params,
    optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.00001},
    num_epoch=4,
)
print(model.predict(val).asnumpy()[:2])
