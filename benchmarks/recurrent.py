"""Start and speed of unrolled recurrent networks: `python -m benchmarks.recurrent [model ...] [--unrolled]`.

Each model runs in a fresh process without a compile cache.  `start` is the CPU time from the first node of the graph to the
end of the first training step (for `buckets`, of the first epoch); `step` is the CPU time of a later step (epoch).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import numpy as np

MODELS = ("lstm10", "lstm30", "lstm60", "ocr80", "tagger", "buckets")


def language_model(steps: int, hidden: int = 200, layers: int = 2, words: int = 1000):
    """Return the loss of an LSTM language model over (batch, steps) word numbers, unrolled by `mx.rnn`."""
    from jfit import mx

    stack = mx.rnn.SequentialRNNCell()
    for i in range(layers):
        stack.add(mx.rnn.LSTMCell(hidden, prefix=f"lstm_l{i}_"))
    embedded = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=words, output_dim=hidden, name="embed")
    outputs, _ = stack.unroll(steps, embedded, merge_outputs=True)
    logits = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, hidden)), num_hidden=words, name="pred")
    return mx.sym.SoftmaxOutput(logits, mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,)), name="softmax")


def _module(net, data, label, rng):
    """Return a function that runs one training step of a `Module`; `data` and `label` are (name, shape, largest number)."""
    from jfit import mx

    module = mx.mod.Module(net, data_names=[data[0]], label_names=[label[0]])
    module.bind(data_shapes=[data[:2]], label_shapes=[label[:2]])
    module.init_params(mx.init.Uniform(0.1))
    module.init_optimizer("sgd", optimizer_params={"learning_rate": 0.01})
    arrays = [mx.nd.array(rng.integers(1, high, shape) if high else rng.normal(size=shape)) for _, shape, high in (data, label)]
    batch = mx.io.DataBatch(arrays[:1], arrays[1:])
    name = next(iter(module.get_params()[0]))

    def step():
        module.forward_backward(batch)
        module.update()
        return module.get_params()[0][name].asnumpy()

    return step


def _buckets(rng):
    from jfit import mx

    sentences = [list(rng.integers(1, 1000, n)) for n in rng.integers(5, 61, 1500)]
    data = mx.rnn.BucketSentenceIter(sentences, 32, buckets=[10, 20, 30, 40, 50, 60], invalid_label=0)
    module = mx.mod.BucketingModule(
        lambda steps: (language_model(steps), ("data",), ("softmax_label",)), default_bucket_key=data.default_bucket_key
    )
    metric = mx.metric.Perplexity(0)

    def epoch():
        data.reset()
        module.fit(data, eval_metric=metric, num_epoch=1, optimizer_params={"learning_rate": 0.01})

    return epoch


def build(model: str):
    """Return the function that runs one step (one epoch of `buckets`) of a model."""
    from tests.recurrent_nets import reader, tagger

    rng = np.random.default_rng(0)
    if model.startswith("lstm"):
        steps = int(model.removeprefix("lstm"))
        return _module(language_model(steps), ("data", (32, steps), 1000), ("softmax_label", (32, steps), 1000), rng)
    if model == "ocr80":
        net = reader(80, hidden=100, classes=11, features=30, labels=4)
        return _module(net, ("data", (32, 80, 30), 0), ("label", (32, 4), 11), rng)
    if model == "tagger":
        net = tagger(30, tags=9, words=1000, hidden=50)
        return _module(net, ("data", (32, 30), 1000), ("tags_label", (32, 30), 9), rng)
    return _buckets(rng)


def measure(model: str) -> None:
    """Print the two times of one model."""
    import jfit.mx  # noqa: F401  # the time of the import is not counted

    start = time.process_time()
    step = build(model)
    step()
    first = time.process_time() - start
    times = []
    for _ in range(3 if model == "buckets" else 8):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    print(f"{model:10s} start {first:6.2f} s, step {1e3 * min(times):8.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--unrolled", action="store_true", help="compile every node separately (JFIT_ROLL=0)")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    arguments = parser.parse_args()
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | {"JFIT_CACHE": "0"}
    env |= {"JFIT_ROLL": "0"} if arguments.unrolled else {}
    for model in arguments.models:
        if arguments.here:
            measure(model)
        else:
            subprocess.run([sys.executable, "-m", "benchmarks.recurrent", "--here", model], env=env, check=True)


if __name__ == "__main__":
    main()
