"""Recurrent nets and a text CNN as MXNet scripts, which run under Apache MXNet 1.9.1 and under `jfit.mx` without a change.

    python benchmarks/first_step/scripts.py mxnet unrolled 30    # by an interpreter that has MXNet
    python benchmarks/first_step/scripts.py jfit.mx unrolled 30

Each script prints a JSON dict: name of a part -> [wall seconds, CPU seconds].  Nothing here imports more than numpy and
the package that is named, because the interpreter of MXNet has no other.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time

import numpy as np

HIDDEN, VOCABULARY, BATCH = 200, 1000, 32
BUCKETS = (10, 20, 30, 40, 50, 60)
BATCHES_PER_BUCKET = 2  # an epoch after the first takes 0.65 CPU seconds


class Clock:
    """Measures the parts of a script: wall seconds, CPU seconds of all threads."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}
        self.last = self.now()

    @staticmethod
    def now() -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), used.ru_utime + used.ru_stime

    def mark(self, part: str) -> None:
        """End a part: what ran since the last one."""
        now = self.now()
        self.parts[part] = [round(a - b, 4) for a, b in zip(now, self.last)]  # noqa: B905 (MXNet's interpreter is old)
        self.last = self.now()


def language_model(mx, length):
    """Two LSTM layers, unrolled: the symbol, and the number of its nodes."""
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(mx.rnn.LSTMCell(num_hidden=HIDDEN, prefix=f"lstm_l{layer}_"))
    words = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=VOCABULARY, output_dim=HIDDEN, name="embed")
    stack.reset()
    outputs, _ = stack.unroll(length, inputs=words, merge_outputs=True)
    scores = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, HIDDEN)), num_hidden=VOCABULARY, name="pred")
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(scores, label, name="softmax")


def _train(mx, symbol, shapes, labels, clock, steps=10, names=("data",), label_names=("softmax_label",), seed=0):
    """A Module on random data: marks "first step" (bind, initial values, one step) and "more steps"."""
    module = mx.mod.Module(symbol, data_names=list(names), label_names=list(label_names), context=mx.cpu())
    module.bind(data_shapes=shapes, label_shapes=labels)
    module.init_params(mx.init.Uniform(0.1))
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.1})
    rng = np.random.RandomState(seed)
    values = [mx.nd.array(rng.randint(0, 9, shape)) for _, shape in [*shapes, *labels]]
    batch = mx.io.DataBatch(data=values[: len(shapes)], label=values[len(shapes) :])

    def step():
        module.forward(batch, is_train=True)
        module.backward()
        module.update()
        module.get_outputs()[0].asnumpy()

    step()
    clock.mark("first step")
    for _ in range(steps):
        step()
    clock.mark(f"{steps} more steps")


def unrolled(mx, clock, length="10"):
    """2 x LSTM(200), unrolled over `length` steps, batch 32."""
    length = int(length)
    symbol = language_model(mx, length)
    nodes = len(json.loads(symbol.tojson())["nodes"])
    clock.mark(f"symbol of {nodes} nodes")
    _train(mx, symbol, [("data", (BATCH, length))], [("softmax_label", (BATCH, length))], clock)


def buckets(mx, clock):
    """The same net in a BucketingModule with six lengths, three epochs."""
    rng = np.random.RandomState(0)
    sentences = [list(rng.randint(1, VOCABULARY, n)) for n in BUCKETS for _ in range(BATCH * BATCHES_PER_BUCKET)]
    data = mx.rnn.BucketSentenceIter(sentences, BATCH, buckets=list(BUCKETS), invalid_label=0)

    def generate(length):
        return language_model(mx, length), ("data",), ("softmax_label",)

    module = mx.mod.BucketingModule(generate, default_bucket_key=data.default_bucket_key, context=mx.cpu())

    def epoch_ends(epoch, *_):
        clock.mark(f"epoch {epoch}")

    module.fit(
        data,
        num_epoch=3,
        eval_metric=mx.metric.Perplexity(0),
        optimizer_params={"learning_rate": 0.01},
        initializer=mx.init.Xavier(),
        epoch_end_callback=epoch_ends,
    )


def ocr(mx, clock, columns="80"):
    """The captcha reader of MXNet's examples: two LSTMs over the columns of an image, CTC over 4 digits."""
    columns, hidden, digits = int(columns), 100, 4
    image = mx.sym.Variable("data")
    slices = mx.sym.SliceChannel(image, num_outputs=columns, squeeze_axis=True, axis=1)
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(mx.rnn.LSTMCell(num_hidden=hidden, prefix=f"l{layer}_"))
    outputs, _ = stack.unroll(columns, inputs=[slices[i] for i in range(columns)], merge_outputs=False)
    scores = mx.sym.FullyConnected(mx.sym.Concat(*outputs, dim=0), num_hidden=11, name="pred")
    scores = mx.sym.Reshape(scores, shape=(columns, -1, 11))
    loss = mx.sym.MakeLoss(mx.sym.contrib.ctc_loss(scores, mx.sym.Variable("label")), name="ctc")
    _train(mx, loss, [("data", (BATCH, columns, 30))], [("label", (BATCH, digits))], clock, label_names=("label",))


def tagger(mx, clock, length="30"):
    """An LSTM-CRF tagger: the forward algorithm over the emissions of a bidirectional LSTM, written as a graph."""
    sym, length, tags, hidden = mx.sym, int(length), 9, 50
    words = sym.Embedding(sym.Variable("data"), input_dim=VOCABULARY, output_dim=hidden, name="embed")
    cell = mx.rnn.BidirectionalCell(mx.rnn.LSTMCell(hidden, prefix="l_"), mx.rnn.LSTMCell(hidden, prefix="r_"))
    outputs, _ = cell.unroll(length, words, merge_outputs=False)
    moves = sym.Variable("transitions", shape=(tags, tags), init=mx.init.Uniform(0.1))
    gold = sym.one_hot(sym.Variable("tags_label"), depth=tags)
    gold = list(sym.SliceChannel(gold, num_outputs=length, axis=1, squeeze_axis=True))
    weight, bias = sym.Variable("tag_weight"), sym.Variable("tag_bias")
    for t in range(length):
        emission = sym.FullyConnected(outputs[t], weight, bias, num_hidden=tags, name=f"emission{t}")
        points = sym.sum(emission * gold[t], axis=1)
        if t == 0:
            alpha, score = emission, points
            continue
        score = score + points + sym.sum(sym.dot(gold[t - 1], moves) * gold[t], axis=1)
        paths = sym.broadcast_add(sym.expand_dims(alpha, axis=2), sym.expand_dims(moves, axis=0))
        largest = sym.max(paths, axis=1)
        rest = sym.exp(sym.broadcast_sub(paths, sym.expand_dims(largest, axis=1)))
        alpha = emission + largest + sym.log(sym.sum(rest, axis=1))
    loss = sym.MakeLoss(sym.log(sym.sum(sym.exp(alpha), axis=1)) - score)
    _train(mx, loss, [("data", (BATCH, length))], [("tags_label", (BATCH, length))], clock, label_names=("tags_label",))


def text_cnn(mx, clock, rows="10000"):
    """Kim's text CNN: filters of 3, 4 and 5 words over the whole width of an embedding; one epoch of `rows` sentences."""
    length, width, filters, classes, batch = 56, 300, 100, 2, 50
    words = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=18758, output_dim=width, name="embed")
    image = mx.sym.Reshape(words, shape=(-1, 1, length, width))
    pooled = []
    for size in (3, 4, 5):
        convolved = mx.sym.Convolution(image, kernel=(size, width), num_filter=filters, name=f"conv{size}")
        active = mx.sym.Activation(convolved, act_type="relu")
        pooled.append(mx.sym.Pooling(active, pool_type="max", kernel=(length - size + 1, 1), stride=(1, 1)))
    joined = mx.sym.Dropout(mx.sym.Flatten(mx.sym.Concat(*pooled, dim=1)), p=0.5)
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(joined, num_hidden=classes, name="fc"), name="softmax")
    steps = int(rows) // batch
    _train(mx, symbol, [("data", (batch, length))], [("softmax_label", (batch,))], clock, steps)


SCRIPTS = {"unrolled": unrolled, "buckets": buckets, "ocr": ocr, "tagger": tagger, "text_cnn": text_cnn}

if __name__ == "__main__":
    package, script, *rest = sys.argv[1:]
    watch = Clock()
    mxnet = importlib.import_module(package)
    watch.mark("import")
    SCRIPTS[script](mxnet, watch, *rest)
    sys.stdout.write(json.dumps(watch.parts) + "\n")
