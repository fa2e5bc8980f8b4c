"""A linear classifier on a LibSVM file: sparse batches, rows of the weight pulled from a key-value store, lazy updates."""

import mxnet as mx
import numpy as np

rng = np.random.RandomState(4)
features, rows = 50, 64
truth = rng.normal(0, 1, features)
with open("train.libsvm", "w") as file:
    for _ in range(rows):
        columns, values = np.sort(rng.choice(features, 6, replace=False)), rng.uniform(0.1, 1, 6)
        pairs = " ".join(f"{c}:{v:.4f}" for c, v in zip(columns, values))
        file.write(f"{int(values @ truth[columns] > 0)} {pairs}\n")


def linear_model(num_features):
    x = mx.symbol.Variable("data", stype="csr")
    weight = mx.symbol.Variable("weight", shape=(num_features, 2), stype="row_sparse")
    bias = mx.symbol.Variable("bias", shape=(2,))
    scores = mx.symbol.broadcast_add(mx.symbol.sparse.dot(x, weight), bias)
    return mx.symbol.SoftmaxOutput(data=scores, label=mx.symbol.Variable("softmax_label"), name="out")


train = mx.io.LibSVMIter(data_libsvm="train.libsvm", data_shape=(features,), batch_size=16)
print(train.provide_data, train.provide_label)
batch = next(iter(train))
print(batch.data[0].stype, batch.data[0].shape, batch.data[0].indptr.asnumpy()[:4], batch.label[0].asnumpy()[:5])

settings = {"sgd": {"learning_rate": 0.5, "momentum": 0.9}, "adam": {"learning_rate": 0.05, "wd": 0.01}}
for name, options in settings.items():
    mod = mx.mod.Module(symbol=linear_model(features), data_names=["data"], label_names=["softmax_label"])
    mod.bind(data_shapes=train.provide_data, label_shapes=train.provide_label)
    mod.init_params(initializer=mx.init.Zero())
    optimizer = mx.optimizer.create(name, rescale_grad=1.0 / 16, **options)
    mod.init_optimizer(optimizer=optimizer, kvstore=mx.kvstore.create("local"))
    metric = mx.metric.create(["nll_loss", "acc"])
    for epoch in range(3):
        train.reset()
        metric.reset()
        for batch in train:
            mod.prepare(batch, sparse_row_id_fn=lambda b: {"weight": b.data[0].indices})
            mod.forward_backward(batch)
            mod.update()
            mod.update_metric(metric, batch.label)
        print(name, epoch, ", ".join(f"{k} {v:.5f}" for k, v in metric.get_name_value()))
    params, _ = mod.get_params()
    weight = params["weight"].tostype("default").asnumpy()
    print(np.abs(weight).sum(axis=1)[:8].round(5), float(np.abs(weight).sum()), params["bias"].asnumpy())
