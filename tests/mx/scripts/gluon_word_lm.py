"""A word language model with tied weights: embedding, GRU or LSTM layers, clipped gradients, a decaying learning rate."""

import argparse
import math
import os
import tempfile

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

parser = argparse.ArgumentParser(description="Word language model")
parser.add_argument("--model", type=str, default="lstm")
parser.add_argument("--emsize", type=int, default=16)
parser.add_argument("--nhid", type=int, default=16)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--lr", type=float, default=8.0)
parser.add_argument("--clip", type=float, default=0.2)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--bptt", type=int, default=10)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--tied", action="store_true", default=True)
parser.add_argument("--log-interval", type=int, default=5)
args = parser.parse_args()
context = mx.cpu(0)


def corpus(length, seed):
    """Words that mostly follow a fixed order."""
    rng, words = np.random.RandomState(seed), [0]
    for _ in range(length - 1):
        words.append((words[-1] * 3 + 1) % 29 if rng.rand() < 0.9 else rng.randint(29))
    return mx.nd.array(words)


def batchify(data, batch_size):
    nbatch = data.shape[0] // batch_size
    return data[: nbatch * batch_size].reshape((batch_size, nbatch)).T


train_data = batchify(corpus(820, 1), args.batch_size).as_in_context(context)
val_data = batchify(corpus(400, 2), args.batch_size).as_in_context(context)
ntokens = 29


class RNNModel(gluon.Block):
    def __init__(self, mode, vocab_size, num_embed, num_hidden, num_layers, dropout=0.5, tie_weights=False, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.drop = nn.Dropout(dropout)
            self.encoder = nn.Embedding(vocab_size, num_embed, weight_initializer=mx.init.Constant(0.0))
            if mode == "lstm":
                self.rnn = rnn.LSTM(num_hidden, num_layers, dropout=dropout, input_size=num_embed)
            elif mode == "gru":
                self.rnn = rnn.GRU(num_hidden, num_layers, dropout=dropout, input_size=num_embed)
            else:
                raise ValueError("Invalid mode %s" % mode)
            if tie_weights:
                self.decoder = nn.Dense(vocab_size, in_units=num_hidden, params=self.encoder.params)
            else:
                self.decoder = nn.Dense(vocab_size, in_units=num_hidden)
            self.num_hidden = num_hidden

    def forward(self, inputs, hidden):
        emb = self.drop(self.encoder(inputs))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output.reshape((-1, self.num_hidden)))
        return decoded, hidden

    def begin_state(self, *args, **kwargs):
        return self.rnn.begin_state(*args, **kwargs)


model = RNNModel(args.model, ntokens, args.emsize, args.nhid, args.nlayers, args.dropout, args.tied)
model.collect_params().initialize(mx.init.Xavier(), ctx=context)
rng = np.random.RandomState(7)
for name, param in model.collect_params().items():
    param.set_data(mx.nd.array(rng.uniform(-0.3, 0.3, param.shape)))
    print(name, param.shape)
trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": args.lr, "momentum": 0, "wd": 0})
loss = gluon.loss.SoftmaxCrossEntropyLoss()


def get_batch(source, i):
    seq_len = min(args.bptt, source.shape[0] - 1 - i)
    data = source[i : i + seq_len]
    target = source[i + 1 : i + 1 + seq_len]
    return data, target.reshape((-1,))


def detach(hidden):
    if isinstance(hidden, (tuple, list)):
        hidden = [i.detach() for i in hidden]
    else:
        hidden = hidden.detach()
    return hidden


def evaluate(data_source):
    total_L, ntotal = 0.0, 0
    hidden = model.begin_state(func=mx.nd.zeros, batch_size=args.batch_size, ctx=context)
    for i in range(0, data_source.shape[0] - 1, args.bptt):
        data, target = get_batch(data_source, i)
        output, hidden = model(data, hidden)
        L = loss(output, target)
        total_L += mx.nd.sum(L).asscalar()
        ntotal += L.size
    return total_L / ntotal


best_val = float("inf")
folder = tempfile.mkdtemp()
path = os.path.join(folder, "model.params")
for epoch in range(args.epochs):
    total_L = 0.0
    hidden = model.begin_state(func=mx.nd.zeros, batch_size=args.batch_size, ctx=context)
    for ibatch, i in enumerate(range(0, train_data.shape[0] - 1, args.bptt)):
        data, target = get_batch(train_data, i)
        hidden = detach(hidden)
        with autograd.record():
            output, hidden = model(data, hidden)
            L = loss(output, target)
            L = L / (args.bptt * args.batch_size)
            L.backward()
        grads = [p.grad(context) for p in model.collect_params().values()]
        gluon.utils.clip_global_norm(grads, args.clip)
        trainer.step(1)
        total_L += mx.nd.sum(L).asscalar()
        if ibatch % args.log_interval == 0 and ibatch > 0:
            cur_L = total_L / args.log_interval
            print("[Epoch %d Batch %d] loss %.2f, ppl %.2f" % (epoch, ibatch, cur_L, math.exp(cur_L)))
            total_L = 0.0
    val_L = evaluate(val_data)
    print("[Epoch %d] valid loss %.3f, valid ppl %.2f" % (epoch, val_L, math.exp(val_L)))
    if val_L < best_val:
        best_val = val_L
        model.save_parameters(path)
    else:
        trainer.set_learning_rate(trainer.learning_rate * 0.25)
model.load_parameters(path, ctx=context)
print("best valid loss %.3f, again %.3f" % (best_val, evaluate(val_data)))
