"""A language model over sentences of several lengths: BucketingModule with stacked LSTM cells."""

import argparse
import logging
import random
import zlib

import mxnet as mx
import numpy as np

parser = argparse.ArgumentParser(description="Train a small language model")
parser.add_argument("--num-layers", type=int, default=2)
parser.add_argument("--num-hidden", type=int, default=16)
parser.add_argument("--num-embed", type=int, default=12)
parser.add_argument("--kv-store", type=str, default="local")
parser.add_argument("--num-epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--disp-batches", type=int, default=5)
args = parser.parse_args()

logging.basicConfig(level=logging.DEBUG, format="%(asctime)-15s %(message)s")
random.seed(1)
np.random.seed(1)


@mx.init.register
class ByName(mx.init.Initializer):
    def _init_weight(self, name, arr):
        rng = np.random.RandomState(zlib.crc32(str(name).encode()) % 2**31)
        arr[:] = rng.uniform(-0.2, 0.2, arr.shape)


def sentences(count, seed):
    """Counting upwards, modulo 9, from some number in steps of 1 or 2."""
    rng = np.random.RandomState(seed)
    result = []
    for _ in range(count):
        start, step, length = rng.randint(9), rng.randint(1, 3), rng.choice([4, 6, 9])
        result.append([str((start + step * k) % 9) for k in range(length)])
    return result


buckets = [5, 10]
start_label, invalid_label = 1, 0
train_sent, vocab = mx.rnn.encode_sentences(sentences(240, 1), invalid_label=invalid_label, start_label=start_label)
val_sent, _ = mx.rnn.encode_sentences(sentences(64, 2), vocab=vocab, invalid_label=invalid_label, start_label=start_label)
data_train = mx.rnn.BucketSentenceIter(train_sent, args.batch_size, buckets=buckets, invalid_label=invalid_label)
data_val = mx.rnn.BucketSentenceIter(val_sent, args.batch_size, buckets=buckets, invalid_label=invalid_label)

stack = mx.rnn.SequentialRNNCell()
for i in range(args.num_layers):
    stack.add(mx.rnn.LSTMCell(num_hidden=args.num_hidden, prefix="lstm_l%d_" % i))


def sym_gen(seq_len):
    data = mx.sym.Variable("data")
    label = mx.sym.Variable("softmax_label")
    embed = mx.sym.Embedding(data=data, input_dim=len(vocab), output_dim=args.num_embed, name="embed")
    stack.reset()
    outputs, states = stack.unroll(seq_len, inputs=embed, merge_outputs=True)
    pred = mx.sym.Reshape(outputs, shape=(-1, args.num_hidden))
    pred = mx.sym.FullyConnected(data=pred, num_hidden=len(vocab), name="pred")
    label = mx.sym.Reshape(label, shape=(-1,))
    pred = mx.sym.SoftmaxOutput(data=pred, label=label, name="softmax")
    return pred, ("data",), ("softmax_label",)


model = mx.mod.BucketingModule(sym_gen=sym_gen, default_bucket_key=data_train.default_bucket_key, context=mx.cpu())
model.fit(
    train_data=data_train,
    eval_data=data_val,
    eval_metric=mx.metric.Perplexity(invalid_label),
    kvstore=args.kv_store,
    optimizer="adam",
    optimizer_params={"learning_rate": args.lr, "wd": 0.0},
    initializer=ByName(),
    num_epoch=args.num_epochs,
    batch_end_callback=mx.callback.Speedometer(args.batch_size, args.disp_batches, auto_reset=False),
)
