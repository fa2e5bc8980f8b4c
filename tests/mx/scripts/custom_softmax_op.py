"""A softmax output layer written in Python with mx.operator.CustomOp."""

import logging

import mxnet as mx
import numpy as np


class Softmax(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        y = np.exp(x - x.max(axis=1).reshape((x.shape[0], 1)))
        y /= y.sum(axis=1).reshape((x.shape[0], 1))
        self.assign(out_data[0], req[0], mx.nd.array(y))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        l = in_data[1].asnumpy().ravel().astype(int)
        y = out_data[0].asnumpy()
        y[np.arange(l.shape[0]), l] -= 1.0
        self.assign(in_grad[0], req[0], mx.nd.array(y))


@mx.operator.register("softmax")
class SoftmaxProp(mx.operator.CustomOpProp):
    def __init__(self):
        super(SoftmaxProp, self).__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        data_shape = in_shape[0]
        label_shape = (in_shape[0][0],)
        output_shape = in_shape[0]
        return [data_shape, label_shape], [output_shape], []

    def infer_type(self, in_type):
        return in_type, [in_type[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return Softmax()


rng = np.random.RandomState(4)
centers = rng.normal(0, 1, (4, 8))
y = rng.randint(0, 4, 400)
x = (centers[y] + rng.normal(0, 0.7, (400, 8))).astype("float32")
train = mx.io.NDArrayIter(x[:320], y[:320].astype("float32"), 40)
val = mx.io.NDArrayIter(x[320:], y[320:].astype("float32"), 40)

data = mx.symbol.Variable("data")
fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=16)
act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
fc2 = mx.symbol.FullyConnected(data=act1, name="fc2", num_hidden=4)
mlp = mx.symbol.Custom(data=fc2, name="softmax", op_type="softmax")

logging.basicConfig(level=logging.DEBUG)
context = mx.cpu()
mod = mx.mod.Module(mlp, context=context)
shapes = {"fc1_weight": (16, 8), "fc1_bias": (16,), "fc2_weight": (4, 16), "fc2_bias": (4,)}
params = {name: mx.nd.array(rng.normal(0, 0.3, shape)) for name, shape in shapes.items()}
mod.fit(
    train_data=train,
    eval_data=val,
    optimizer="sgd",
    optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.00001},
    arg_params=params,
    num_epoch=4,
    batch_end_callback=mx.callback.Speedometer(40, 4),
)
print(mod.predict(val).asnumpy()[:3])
