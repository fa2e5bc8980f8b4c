"""A denoising autoencoder, trained layer by layer with executors and an updater."""

import mxnet as mx
import numpy as np

rng = np.random.RandomState(5)
basis = rng.normal(size=(4, 24))
data = np.tanh(rng.normal(size=(256, 4)).dot(basis)).astype("float32")
sizes = [24, 12, 4]
batch = 32


def layer(depth, inputs):
    x = mx.sym.Variable("data")
    encoded = mx.sym.FullyConnected(x, num_hidden=sizes[depth + 1], name="encoder_%d" % depth)
    if depth < len(sizes) - 2:
        encoded = mx.sym.Activation(encoded, act_type="tanh", name="encoder_act_%d" % depth)
    decoded = mx.sym.FullyConnected(encoded, num_hidden=inputs, name="decoder_%d" % depth)
    return encoded, mx.sym.LinearRegressionOutput(decoded, mx.sym.Variable("target"), name="loss")


def train(net, inputs, epochs, lr):
    width = inputs.shape[1]
    executor = net.simple_bind(ctx=mx.cpu(), grad_req="write", data=(batch, width), target=(batch, width))
    for name, array in executor.arg_dict.items():
        if name not in ("data", "target"):
            array[:] = np.random.RandomState(len(name) + array.size).uniform(-0.3, 0.3, array.shape)
    optimizer = mx.optimizer.create("adam", learning_rate=lr, rescale_grad=1.0 / batch)
    updater = mx.optimizer.get_updater(optimizer)
    noise = np.random.RandomState(17)
    for epoch in range(epochs):
        metric = mx.metric.MSE()
        for start in range(0, len(inputs), batch):
            clean = inputs[start : start + batch]
            executor.arg_dict["data"][:] = clean * (noise.uniform(size=clean.shape) > 0.1)
            executor.arg_dict["target"][:] = clean
            executor.forward(is_train=True)
            executor.backward()
            for index, name in enumerate(net.list_arguments()):
                if name not in ("data", "target"):
                    updater(index, executor.grad_dict[name], executor.arg_dict[name])
            metric.update([mx.nd.array(clean)], executor.outputs)
        print("epoch %d %s %.6f" % (epoch, *metric.get()))
    return executor


inputs = data
for depth in range(len(sizes) - 1):
    print("layer %d: %d -> %d" % (depth, sizes[depth], sizes[depth + 1]))
    encoded, net = layer(depth, sizes[depth])
    executor = train(net, inputs, epochs=6, lr=0.02)
    weights = {name: array for name, array in executor.arg_dict.items() if name in encoded.list_arguments()}
    weights["data"] = mx.nd.array(inputs)
    encoder = encoded.bind(mx.cpu(), weights)
    inputs = encoder.forward()[0].asnumpy()
    print("codes: mean %.5f, deviation %.5f" % (inputs.mean(), inputs.std()))
