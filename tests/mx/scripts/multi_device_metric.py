"""Data parallelism over two contexts, with metrics and callbacks of the user's own."""

import logging

import mxnet as mx
import numpy as np
from mxnet.io import NDArrayIter
from mxnet.metric import EvalMetric

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")


class Confusion(EvalMetric):
    """The share of each class among the errors."""

    def __init__(self, classes):
        self.classes = classes
        super().__init__("confusion")

    def update(self, labels, preds):
        for label, pred in zip(labels, preds):
            label = label.asnumpy().astype("int32")
            pred = mx.nd.argmax(pred, axis=1).asnumpy().astype("int32")
            self.sum_metric += float((label != pred).sum())
            self.num_inst += label.size


rng = np.random.RandomState(8)
x = rng.uniform(-1, 1, (600, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")
train = NDArrayIter({"data": x[:480]}, {"softmax_label": y[:480]}, batch_size=48, last_batch_handle="discard")
val = NDArrayIter(x[480:], y[480:], batch_size=24)

net = mx.sym.Variable("data")
for i, units in enumerate([32, 16]):
    net = mx.sym.FullyConnected(net, num_hidden=units, name="fc%d" % i)
    net = mx.sym.Activation(net, act_type="tanh", name="tanh%d" % i)
net = mx.sym.FullyConnected(net, num_hidden=2, name="out")
net = mx.sym.SoftmaxOutput(net, name="softmax")

arg_shapes, _, _ = net.infer_shape(data=(48, 6))
start = {
    name: mx.nd.array(rng.normal(0, 0.5, shape))
    for name, shape in zip(net.list_arguments(), arg_shapes)
    if name.endswith(("weight", "bias"))
}
seen = []


def count_batches(param):
    seen.append(param.nbatch)


def report(epoch, symbol, arg_params, aux_params):
    logging.info("after epoch %d: |out_weight| = %.5f", epoch, np.abs(arg_params["out_weight"].asnumpy()).sum())


def error_of_probability(label, pred):
    return float(np.mean((label - pred[:, 1]) ** 2))


metric = mx.metric.CompositeEvalMetric()
metric.add(mx.metric.Accuracy())
metric.add(Confusion(2))
metric.add(mx.metric.np(error_of_probability))

mod = mx.mod.Module(net, context=[mx.cpu(0), mx.cpu(1)])
mod.fit(
    train,
    val,
    eval_metric=metric,
    kvstore="local",
    optimizer="nag",
    optimizer_params=(("learning_rate", 0.2), ("momentum", 0.9)),
    arg_params=start,
    num_epoch=5,
    batch_end_callback=[count_batches],
    epoch_end_callback=report,
)
print("batches:", len(seen), "last:", seen[-1])
for name, value in mod.score(val, metric):
    print("%s=%.5f" % (name, value))
