"""Sequences of different lengths, padded by a DataLoader's batchify function, classified by a bidirectional GRU."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn
from mxnet.gluon.data import ArrayDataset, DataLoader

np.random.seed(3)
rng = np.random.RandomState(11)
CLASSES, VOCAB, LONGEST = 3, 12, 9


def make(count):
    """A sequence belongs to the class whose tokens (modulo 3) are most frequent in it."""
    sequences, labels = [], []
    for _ in range(count):
        label, length = rng.randint(CLASSES), rng.randint(4, LONGEST + 1)
        tokens = rng.randint(VOCAB, size=length)
        own = rng.rand(length) < 0.6
        tokens[own] = tokens[own] // 3 * 3 + label
        sequences.append(np.pad(tokens, (0, LONGEST - length)).astype("float32"))
        labels.append((label, length))
    return ArrayDataset(np.stack(sequences), np.array(labels, "float32"))


def batchify(samples):
    """Cut the batch to its longest sequence, time first."""
    tokens, info = zip(*samples)
    info = np.stack([np.asarray(i) for i in info])
    longest = int(info[:, 1].max())
    data = np.stack([np.asarray(t) for t in tokens])[:, :longest]
    return nd.array(data.T), nd.array(info[:, 0]), nd.array(info[:, 1])


class Classifier(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(VOCAB, 8)
            self.encoder = rnn.GRU(8, bidirectional=True, input_size=8)
            self.output = nn.HybridSequential()
            with self.output.name_scope():
                self.output.add(nn.Dense(8, activation="relu", in_units=16))
                self.output.add(nn.Dense(CLASSES, in_units=8))

    def hybrid_forward(self, F, data, lengths):
        encoded = self.encoder(self.embed(data))
        encoded = F.SequenceMask(encoded, sequence_length=lengths, use_sequence_length=True)
        pooled = F.broadcast_div(F.sum(encoded, axis=0), F.expand_dims(lengths, axis=1))
        return self.output(pooled)


net = Classifier()
net.initialize(mx.init.Normal(0.1))
for param in net.collect_params().values():
    param.set_data(nd.array(rng.normal(0, 0.3, param.shape)))
net.hybridize()
print(net)
train, test = make(96), make(48)
train_data = DataLoader(train, batch_size=16, shuffle=False, batchify_fn=batchify)
test_data = DataLoader(test, batch_size=16, batchify_fn=batchify, last_batch="keep")
trainer = gluon.Trainer(net.collect_params(), "rmsprop", {"learning_rate": 0.01})
loss_fn = gluon.loss.SoftmaxCELoss()
metric = mx.metric.Accuracy()
for epoch in range(6):
    metric.reset()
    cumulative = 0.0
    for data, label, lengths in train_data:
        with autograd.record():
            output = net(data, lengths)
            loss = loss_fn(output, label)
        loss.backward()
        trainer.step(data.shape[1])
        metric.update([label], [output])
        cumulative += loss.mean().asscalar()
    name, accuracy = metric.get()
    print("Epoch %d, loss: %.4f, train %s: %.4f" % (epoch, cumulative / len(train_data), name, accuracy))
metric.reset()
for data, label, lengths in test_data:
    metric.update(label, net(data, lengths))
print("test %s: %.4f" % metric.get())
