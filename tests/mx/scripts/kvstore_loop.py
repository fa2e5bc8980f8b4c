"""Data parallelism by hand: one executor per device, gradients and weights exchanged through a key-value store."""

import mxnet as mx
import numpy as np

devices = [mx.cpu(0), mx.cpu(1)]
rng = np.random.RandomState(51)
w = rng.normal(size=(7, 3))
x = rng.normal(size=(256, 7)).astype("float32")
y = (x.dot(w) + rng.normal(0, 0.4, (256, 3))).argmax(axis=1).astype("float32")

net = mx.sym.Variable("data")
net = mx.sym.FullyConnected(net, name="fc1", num_hidden=20)
net = mx.sym.Activation(net, act_type="sigmoid")
net = mx.sym.FullyConnected(net, name="fc2", num_hidden=3)
net = mx.sym.SoftmaxOutput(net, name="softmax")

batch_size, share = 64, 32
executors = [net.simple_bind(ctx=device, data=(share, 7), softmax_label=(share,)) for device in devices]
names = [name for name in net.list_arguments() if name not in ("data", "softmax_label")]

store = mx.kv.create("local")
print("type", store.type, "rank", store.rank, "of", store.num_workers)
optimizer = mx.optimizer.SGD(learning_rate=0.3, momentum=0.9, rescale_grad=1.0 / batch_size)
store.set_optimizer(optimizer)
for key, name in enumerate(names):
    shape = executors[0].arg_dict[name].shape
    store.init(key, mx.nd.array(rng.uniform(-0.4, 0.4, shape)))
    store.pull(key, out=[executor.arg_dict[name] for executor in executors])

metric = mx.metric.CrossEntropy()
for epoch in range(6):
    metric.reset()
    for start in range(0, len(x), batch_size):
        for k, executor in enumerate(executors):
            rows = slice(start + k * share, start + (k + 1) * share)
            executor.arg_dict["data"][:] = x[rows]
            executor.arg_dict["softmax_label"][:] = y[rows]
            executor.forward(is_train=True)
            executor.backward()
        for k, executor in enumerate(executors):
            rows = slice(start + k * share, start + (k + 1) * share)
            metric.update([mx.nd.array(y[rows])], executor.outputs)
        for key, name in enumerate(names):
            store.push(key, [executor.grad_dict[name] for executor in executors], priority=-key)
            store.pull(key, [executor.arg_dict[name] for executor in executors], priority=-key)
    print("epoch %d: cross-entropy %.6f" % (epoch, metric.get()[1]))

difference = max(np.abs(executors[0].arg_dict[n].asnumpy() - executors[1].arg_dict[n].asnumpy()).max() for n in names)
print("devices differ by", difference)


def update(key, value, stored):
    stored += value * 2


other = mx.kv.create("device")
other._set_updater(update)
other.init("a", mx.nd.ones((2, 3)))
other.push("a", [mx.nd.ones((2, 3), ctx) for ctx in devices])
out = mx.nd.zeros((2, 3))
other.pull("a", out=out)
print(out.asnumpy())
