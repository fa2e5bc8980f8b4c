"""One network with two outputs, an iterator with two labels and an accuracy per task."""

import logging
import zlib

import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.DEBUG)
batch_size = 30


def build_network():
    data = mx.symbol.Variable("data")
    fc1 = mx.symbol.FullyConnected(data=data, name="fc1", num_hidden=24)
    act1 = mx.symbol.Activation(data=fc1, name="relu1", act_type="relu")
    fc3 = mx.symbol.FullyConnected(data=act1, name="fc3", num_hidden=5)
    fc4 = mx.symbol.FullyConnected(data=act1, name="fc4", num_hidden=2)
    sm1 = mx.symbol.SoftmaxOutput(data=fc3, name="softmax1")
    sm2 = mx.symbol.SoftmaxOutput(data=fc4, name="softmax2", grad_scale=0.5)
    return mx.symbol.Group([sm1, sm2])


class MultiIter(mx.io.DataIter):
    """Adds the parity of the class as a second label."""

    def __init__(self, data_iter):
        super(MultiIter, self).__init__()
        self.data_iter = data_iter
        self.batch_size = self.data_iter.batch_size

    @property
    def provide_data(self):
        return self.data_iter.provide_data

    @property
    def provide_label(self):
        provide_label = self.data_iter.provide_label[0]
        return [("softmax1_label", provide_label[1]), ("softmax2_label", provide_label[1])]

    def hard_reset(self):
        self.data_iter.hard_reset()

    def reset(self):
        self.data_iter.reset()

    def next(self):
        batch = self.data_iter.next()
        label = batch.label[0]
        return mx.io.DataBatch(
            data=batch.data, label=[label, mx.nd.array(label.asnumpy() % 2)], pad=batch.pad, index=batch.index
        )


class MultiAccuracy(mx.metric.EvalMetric):
    """Accuracy of each output."""

    def __init__(self, num=None):
        super(MultiAccuracy, self).__init__("multi-accuracy")
        self.num = num
        self.reset()

    def reset(self):
        num = getattr(self, "num", None) or 1
        self.num_inst = [0] * num
        self.sum_metric = [0.0] * num

    def reset_local(self):
        self.reset()

    def update(self, labels, preds):
        mx.metric.check_label_shapes(labels, preds)
        for i in range(len(labels)):
            pred_label = mx.nd.argmax_channel(preds[i]).asnumpy().astype("int32")
            label = labels[i].asnumpy().astype("int32")
            self.sum_metric[i] += (pred_label.flat == label.flat).sum()
            self.num_inst[i] += len(pred_label.flat)

    def get(self):
        values = [x / y if y != 0 else float("nan") for x, y in zip(self.sum_metric, self.num_inst)]
        return ["task%d-acc" % i for i in range(self.num)], values


class Start(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(zlib.crc32(name.encode()) % 2**31).normal(0, 0.25, arr.shape)


rng = np.random.RandomState(31)
centers = rng.normal(0, 1.0, (5, 10))
label = rng.randint(0, 5, 450)
data = (centers[label] + rng.normal(0, 0.8, (450, 10))).astype("float32")
train = MultiIter(mx.io.NDArrayIter(data[:300], label[:300].astype("float32"), batch_size))
val = MultiIter(mx.io.NDArrayIter(data[300:], label[300:].astype("float32"), batch_size))

model = mx.mod.Module(
    context=mx.cpu(),
    symbol=build_network(),
    data_names=("data",),
    label_names=("softmax1_label", "softmax2_label"),
)
model.fit(
    train_data=train,
    eval_data=val,
    eval_metric=MultiAccuracy(num=2),
    num_epoch=4,
    initializer=Start(),
    optimizer_params=(("learning_rate", 0.1), ("momentum", 0.9), ("wd", 0.00001)),
    batch_end_callback=mx.callback.Speedometer(batch_size, 5),
)
first, second = model.predict(val)
print(first.shape, second.shape, "%.6f" % float(second.asnumpy()[:, 0].mean()))
