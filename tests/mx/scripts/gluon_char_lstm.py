"""A character language model: an LSTM layer trained by truncated backpropagation, then sampled greedily."""

import argparse
import logging
import math
import zlib

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

logging.basicConfig(level=logging.INFO)
parser = argparse.ArgumentParser(description="Character-level LSTM")
parser.add_argument("--hidden", type=int, default=20)
parser.add_argument("--bptt", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.02)
args = parser.parse_args()
ctx = mx.cpu()


@mx.init.register
class ByName(mx.init.Initializer):
    """Values that depend on the name only."""

    def _init_weight(self, name, arr):
        rng = np.random.RandomState(zlib.crc32(str(name).encode()) % 2**31)
        arr[:] = rng.uniform(-0.2, 0.2, arr.shape)


text = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 6
vocab = sorted(set(text))
index = {c: i for i, c in enumerate(vocab)}
ids = np.array([index[c] for c in text], "float32")
num_batches = len(ids) // args.batch_size
stream = mx.nd.array(ids[: num_batches * args.batch_size].reshape(args.batch_size, num_batches).T, ctx=ctx)


class CharLM(gluon.Block):
    def __init__(self, vocab_size, hidden, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.vocab_size = vocab_size
            self.lstm = rnn.LSTM(hidden, num_layers=2, input_size=vocab_size)
            self.decoder = nn.Dense(vocab_size, in_units=hidden, flatten=False)

    def forward(self, inputs, state):
        output, state = self.lstm(mx.nd.one_hot(inputs, self.vocab_size), state)
        return self.decoder(output), state

    def begin_state(self, *args, **kwargs):
        return self.lstm.begin_state(*args, **kwargs)


def detach(state):
    if isinstance(state, (tuple, list)):
        return [detach(s) for s in state]
    return state.detach()


model = CharLM(len(vocab), args.hidden)
model.initialize(ByName(), ctx=ctx)
print(model)
trainer = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": args.lr})
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(args.epochs):
    total, count = 0.0, 0
    state = model.begin_state(batch_size=args.batch_size, ctx=ctx)
    for start in range(0, stream.shape[0] - 1 - args.bptt, args.bptt):
        data, target = stream[start : start + args.bptt], stream[start + 1 : start + args.bptt + 1]
        state = detach(state)
        with autograd.record():
            output, state = model(data, state)
            loss = loss_fn(output.reshape((-3, -1)), target.reshape((-1,)))
        loss.backward()
        trainer.step(args.batch_size * args.bptt)
        total += loss.sum().asscalar()
        count += loss.size
    logging.info("epoch %d: loss %.4f, perplexity %.3f", epoch, total / count, math.exp(total / count))

state, char, sampled = model.begin_state(batch_size=1, ctx=ctx), "t", "t"
for _ in range(20):
    output, state = model(mx.nd.array([[index[char]]], ctx=ctx), state)
    char = vocab[int(output[0, 0].argmax(axis=0).asscalar())]
    sampled += char
print("sample:", sampled)
