"""Word vectors by noise-contrastive estimation, with a profile of the first steps and a progress bar at hand."""

import logging
import os

import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.INFO)
vocab, hidden, num_label, batch = 20, 8, 5, 32
rng = np.random.RandomState(91)


def nce_loss(data, label, label_weight, embed_weight):
    label_embed = mx.sym.Embedding(data=label, input_dim=vocab, weight=embed_weight, output_dim=hidden, name="label_embed")
    data = mx.sym.Reshape(data=data, shape=(-1, 1, hidden))
    pred = mx.sym.broadcast_mul(data, label_embed)
    pred = mx.sym.sum(data=pred, axis=2)
    return mx.sym.LogisticRegressionOutput(data=pred, label=label_weight)


class NceAccuracy(mx.metric.EvalMetric):
    def __init__(self):
        super().__init__("nce-accuracy")

    def update(self, labels, preds):
        label_weight = labels[1].asnumpy()
        pred = preds[0].asnumpy()
        for i in range(label_weight.shape[0]):
            if np.argmax(label_weight[i]) == np.argmax(pred[i]):
                self.sum_metric += 1
            self.num_inst += 1


data = mx.sym.Variable("data")
label = mx.sym.Variable("label")
label_weight = mx.sym.Variable("label_weight")
embed_weight = mx.sym.Variable("embed_weight")
data_embed = mx.sym.Embedding(data=data, input_dim=vocab, weight=embed_weight, output_dim=hidden, name="data_embed")
datavec = mx.sym.SliceChannel(data=data_embed, num_outputs=2, squeeze_axis=1, name="data_slice")
pred = datavec[0] + datavec[1]
net = nce_loss(pred, label, label_weight, embed_weight)

middle = rng.randint(1, vocab - 1, 640)
context = np.stack([middle - 1, middle + 1], axis=1)
negative = rng.randint(0, vocab, (640, num_label - 1))
labels = np.concatenate([middle[:, None], negative], axis=1)
weights = np.zeros((640, num_label))
weights[:, 0] = 1.0
train = mx.io.NDArrayIter({"data": context}, {"label": labels, "label_weight": weights}, batch)

mod = mx.mod.Module(net, data_names=["data"], label_names=["label", "label_weight"])
mod.bind(train.provide_data, train.provide_label)
mod.init_params(arg_params={"embed_weight": mx.nd.array(rng.normal(0, 0.3, (vocab, hidden)))})
mod.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.05})

mx.profiler.set_config(profile_all=True, filename="profile.json", aggregate_stats=False)
mx.profiler.set_state("run")
metric = NceAccuracy()
for epoch in range(4):
    train.reset()
    metric.reset()
    for n, batch_data in enumerate(train):
        mod.forward_backward(batch_data)
        mod.update()
        mod.update_metric(metric, batch_data.label)
        if epoch == 0 and n == 2:
            mx.nd.waitall()
            mx.profiler.set_state("stop")
            mx.profiler.dump()
    logging.info("Epoch[%d] %s=%.5f", epoch, *metric.get())
print("profile written:", os.path.exists("profile.json"))
vectors = mod.get_params()[0]["embed_weight"].asnumpy()
cosine = vectors.dot(vectors.T) / np.outer(np.linalg.norm(vectors, axis=1), np.linalg.norm(vectors, axis=1))
print("similarity of words at distance two: %.5f" % np.mean([cosine[i, i + 2] for i in range(vocab - 2)]))
