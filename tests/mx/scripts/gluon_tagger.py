"""A bidirectional tagger: every token gets a tag that depends on its neighbours; cells, weights and masks per token."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

rng = np.random.RandomState(5)
VOCAB, TAGS, LENGTH = 10, 3, 7


class Tagger(gluon.HybridBlock):
    def __init__(self, hidden, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = nn.Embedding(VOCAB, 6)
            self.encoder = rnn.BidirectionalCell(
                rnn.LSTMCell(hidden, input_size=6, prefix="forward_"), rnn.LSTMCell(hidden, input_size=6, prefix="backward_")
            )
            self.tags = nn.Dense(TAGS, flatten=False, in_units=2 * hidden)

    def hybrid_forward(self, F, tokens, valid_length):
        embedded = self.embedding(tokens)
        encoded, _ = self.encoder.unroll(LENGTH, embedded, layout="NTC", merge_outputs=True, valid_length=valid_length)
        return self.tags(encoded)


def batches(count, size):
    for _ in range(count):
        tokens = rng.randint(1, VOCAB, (size, LENGTH))
        lengths = rng.randint(3, LENGTH + 1, size)
        tokens[np.arange(LENGTH) >= lengths[:, None]] = 0
        after = np.pad(tokens, ((0, 0), (0, 1)))[:, 1:]
        before = np.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
        tags = (before > tokens).astype(int) + (after > tokens)
        yield mx.nd.array(tokens), mx.nd.array(tags), mx.nd.array(lengths)


def mask(lengths):
    return mx.nd.SequenceMask(
        mx.nd.ones((lengths.shape[0], LENGTH, 1)), sequence_length=lengths, use_sequence_length=True, axis=1
    )


tagger = Tagger(8, prefix="tagger_")
tagger.initialize(mx.init.Xavier(magnitude=2.24))
for name, param in tagger.collect_params().items():
    if name.endswith("weight"):
        param.set_data(mx.nd.array(rng.uniform(-0.4, 0.4, size=param.shape)))
    else:
        param.wd_mult = 0.0
for name in tagger.collect_params(".*forward.*"):
    print(name)
data = list(batches(16, 8))
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(tagger.collect_params(), "adam", {"learning_rate": 0.02, "wd": 0.001})
for epoch in range(5):
    if epoch == 2:
        tagger.hybridize()
    total, right, words = 0.0, 0.0, 0.0
    for tokens, tags, lengths in data:
        weight = mask(lengths)
        with autograd.record():
            scores = tagger(tokens, lengths)
            loss = loss_fn(scores, tags, weight)
        loss.backward()
        trainer.step(tokens.shape[0])
        total += loss.sum().asscalar()
        right += ((scores.argmax(axis=2) == tags) * weight[:, :, 0]).sum().asscalar()
        words += lengths.sum().asscalar()
    print("epoch %d loss %.4f accuracy %.4f" % (epoch, total / len(data), right / words))
tagger.export("tagger")
symbol, arg_params, aux_params = mx.model.load_checkpoint("tagger", 0)
print(len(arg_params), len(aux_params), symbol.list_arguments()[:4])
