"""LeNet with FeedForward.create, a learning-rate schedule and a prediction."""

import logging

import mxnet as mx
import numpy as np

logger = logging.getLogger()
logger.setLevel(logging.INFO)

BATCH = 32
rng = np.random.RandomState(11)


def shapes(count):
    """Images with a horizontal, vertical or diagonal bar."""
    x = rng.uniform(0, 0.3, (count, 1, 16, 16)).astype("float32")
    y = rng.randint(0, 3, count)
    for image, kind in zip(x[:, 0], y):
        k = rng.randint(3, 13)
        if kind == 0:
            image[k] += 0.7
        elif kind == 1:
            image[:, k] += 0.7
        else:
            np.fill_diagonal(image, 1.0)
    return x, y.astype("float32")


def lenet():
    data = mx.sym.Variable("data")
    conv1 = mx.sym.Convolution(data=data, kernel=(5, 5), num_filter=8)
    tanh1 = mx.sym.Activation(data=conv1, act_type="tanh")
    pool1 = mx.sym.Pooling(data=tanh1, pool_type="max", kernel=(2, 2), stride=(2, 2))
    conv2 = mx.sym.Convolution(data=pool1, kernel=(3, 3), num_filter=16)
    tanh2 = mx.sym.Activation(data=conv2, act_type="tanh")
    pool2 = mx.sym.Pooling(data=tanh2, pool_type="max", kernel=(2, 2), stride=(2, 2))
    flatten = mx.sym.Flatten(data=pool2)
    fc1 = mx.sym.FullyConnected(data=flatten, num_hidden=32)
    tanh3 = mx.sym.Activation(data=fc1, act_type="tanh")
    fc2 = mx.sym.FullyConnected(data=tanh3, num_hidden=3)
    return mx.sym.SoftmaxOutput(data=fc2, name="softmax")


x, y = shapes(480)
net = lenet()
arg_shapes, _, _ = net.infer_shape(data=(BATCH, 1, 16, 16))
arg_params = {
    name: mx.nd.array(rng.uniform(-0.12, 0.12, shape))
    for name, shape in zip(net.list_arguments(), arg_shapes)
    if name not in ("data", "softmax_label")
}
model = mx.model.FeedForward(
    ctx=mx.cpu(),
    symbol=net,
    num_epoch=5,
    arg_params=arg_params,
    aux_params={},
    learning_rate=0.05,
    momentum=0.9,
    wd=0.00001,
    lr_scheduler=mx.lr_scheduler.FactorScheduler(step=30, factor=0.9),
)
model.fit(
    X=mx.io.NDArrayIter(x[:384], y[:384], BATCH),
    eval_data=mx.io.NDArrayIter(x[384:], y[384:], BATCH),
    batch_end_callback=mx.callback.Speedometer(BATCH, 5),
)
probability = model.predict(x[384:])
print("shape of predictions", probability.shape)
print("accuracy of predictions", (probability.argmax(axis=1) == y[384:]).mean())
print("score", model.score(mx.io.NDArrayIter(x[384:], y[384:], BATCH)))
for name in sorted(model.arg_params):
    print(name, model.arg_params[name].shape, "%.6f" % float(mx.nd.norm(model.arg_params[name]).asscalar()))
