"""Pack images into a record file, read them with iterators and train a small convolutional network."""

import logging
import os

import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.INFO, format="%(message)s")
rng = np.random.RandomState(6)


def pictures(count):
    """Bright squares in one of the four corners."""
    label = rng.randint(0, 4, count)
    data = rng.randint(0, 90, (count, 20, 20, 3))
    for image, k in zip(data, label):
        row, column = (k // 2) * 10 + rng.randint(0, 3), (k % 2) * 10 + rng.randint(0, 3)
        image[row : row + 7, column : column + 7] += 120
    return data.astype(np.uint8), label


def write(prefix, count):
    record = mx.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "w")
    data, label = pictures(count)
    for i in range(count):
        header = mx.recordio.IRHeader(0, float(label[i]), i, 0)
        record.write_idx(i, mx.recordio.pack_img(header, data[i], quality=3, img_fmt=".png"))
    record.close()


write("train", 160)
write("val", 64)
print("files:", sorted(os.listdir(".")))

train_iter = mx.io.ImageRecordIter(
    path_imgrec="train.rec",
    data_shape=(3, 20, 20),
    batch_size=16,
    mean_r=60.0,
    mean_g=60.0,
    mean_b=60.0,
    scale=0.01,
    preprocess_threads=1,
)
val_iter = mx.image.ImageIter(
    batch_size=16,
    data_shape=(3, 20, 20),
    path_imgrec="val.rec",
    path_imgidx="val.idx",
    aug_list=[
        mx.image.CastAug(),
        mx.image.ColorNormalizeAug(mean=mx.nd.array([60, 60, 60]), std=mx.nd.array([100, 100, 100])),
    ],
)
batch = train_iter.next()
print("batch:", batch.data[0].shape, batch.label[0].asnumpy()[:8], "pad", batch.pad)
print("mean %.5f" % batch.data[0].asnumpy().mean())
train_iter.reset()

data = mx.sym.Variable("data")
net = mx.sym.Convolution(data, kernel=(3, 3), stride=(2, 2), num_filter=8, name="conv1")
net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn1")
net = mx.sym.Activation(net, act_type="relu")
net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=8, name="conv2")
net = mx.sym.Activation(net, act_type="relu")
net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="avg")
net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=4, name="fc")
net = mx.sym.SoftmaxOutput(net, name="softmax")

mod = mx.mod.Module(net, context=mx.cpu())
mod.bind(data_shapes=train_iter.provide_data, label_shapes=train_iter.provide_label)
shapes = dict(zip(net.list_arguments(), net.infer_shape(data=(16, 3, 20, 20))[0]))
weights = {k: mx.nd.array(rng.normal(0, 0.2, s)) for k, s in shapes.items() if k.endswith("weight")}
weights.update({k: mx.nd.zeros(s) for k, s in shapes.items() if k.endswith(("bias", "beta"))})
weights["bn1_gamma"] = mx.nd.ones(shapes["bn1_gamma"])
mod.init_params(arg_params=weights, aux_params={"bn1_moving_mean": mx.nd.zeros(8), "bn1_moving_var": mx.nd.ones(8)})
mod.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.01})
metric = mx.metric.create(["acc", "ce"])
for epoch in range(3):
    train_iter.reset()
    metric.reset()
    for batch in train_iter:
        mod.forward(batch)
        mod.update_metric(metric, batch.label)
        mod.backward()
        mod.update()
    print("epoch %d: %s" % (epoch, ", ".join("%s %.5f" % pair for pair in metric.get_name_value())))
print("validation:", [(name, round(value, 4)) for name, value in mod.score(val_iter, ["acc", "ce"])])
