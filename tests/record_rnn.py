"""Record recurrent cells with MXNet 1.9.1: `python tests/record_rnn.py` writes tests/golden/rnn_cells.json.

Runs in the environment of `record_golden`, but with oneDNN, which MXNet's fused operator needs.  For each case of
tests/cases/rnn_cells.py: each node of the graph as [operator, name, attributes, inputs], for some cases outputs and gradients
for the values of the function `values`.  Also packed and unpacked weights, the output of mx.viz, batches of sentences.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PACKED = {"fused_lstm_both": ("lstm", True), "fused_gru_one": ("gru", False), "fused_rnn_relu_both": ("rnn_relu", True)}


def named(mx: Any, make: Any) -> Any:
    """The symbol of a case, its automatic names counted from 0."""
    with mx.name.NameManager(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(mx)


def graph(symbol: Any) -> dict[str, Any]:
    """The nodes and heads of symbol.json, in short."""
    loaded = json.loads(symbol.tojson())
    nodes = [[n["op"], n["name"], n.get("attrs", {}), [i[:2] for i in n["inputs"]]] for n in loaded["nodes"]]
    return {"nodes": nodes, "heads": [h[:2] for h in loaded["heads"]]}


def values(names: list[str], shapes: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Arrays for the arguments of a graph, the same on every machine."""
    draw = np.random.RandomState(7)
    return {n: draw.uniform(-0.8, 0.8, s).astype("float32") for n, s in zip(names, shapes)}  # noqa: B905


def numbers(mx: Any, symbol: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Outputs and gradients of the sum of outputs times their position."""
    names = symbol.list_outputs()  # an output that is a state too counts once
    symbol = mx.sym.Group([symbol[i] for i, n in enumerate(names) if n not in names[:i]])
    given, _, _ = symbol.infer_shape(**shapes)
    arrays = values(symbol.list_arguments(), given)
    bound = symbol.bind(
        mx.cpu(),
        {n: mx.nd.array(a) for n, a in arrays.items()},
        args_grad={n: mx.nd.zeros(a.shape) for n, a in arrays.items()},
    )
    outputs = [o.asnumpy() for o in bound.forward(is_train=True)]
    bound.backward([mx.nd.array(np.cos(np.arange(o.size)).reshape(o.shape)) for o in outputs])
    mx.nd.waitall()
    grads = {n: g.asnumpy() for n, g in bound.grad_dict.items()}
    return {"outputs": [listed(o) for o in outputs], "grads": {n: listed(g) for n, g in grads.items()}}


def listed(array: np.ndarray) -> list[float]:
    return [float(f"{x:.6g}") for x in array.ravel()]


def packing(mx: Any, mode: str, both: bool) -> dict[str, Any]:
    """A vector of 0, 1, 2, ... cut into the weights of gates, by the fused cell; what the single cells stack of them."""
    cell = mx.rnn.FusedRNNCell(3, num_layers=2, mode=mode, bidirectional=both)
    size = mx.sym.RNN(
        *[mx.sym.Variable(n) for n in ("data", "p", "state", "state_cell")[: 4 if mode == "lstm" else 3]],
        state_size=3, num_layers=2, mode=mode, bidirectional=both,
    ).infer_shape(data=(1, 1, 2))[0][1][0]  # fmt: skip
    vector = mx.nd.array(np.arange(size, dtype="float32"))
    cut = cell.unpack_weights({f"{mode}_parameters": vector, "other": mx.nd.ones(1)})
    back = cell.pack_weights(cut)
    stacked = cell.unfuse().pack_weights(cut)
    return {k: {n: [list(a.shape), listed(a.asnumpy())] for n, a in d.items()} for k, d in
            (("cut", cut), ("back", back), ("stacked", stacked))}  # fmt: skip


def pictures(mx: Any) -> dict[str, Any]:
    """What mx.viz prints and draws of one network with every kind of layer it knows, in several ways."""
    x = mx.sym.Variable("data")
    c = mx.sym.Convolution(x, num_filter=4, kernel=(3, 3), stride=(2, 2), num_group=2, no_bias=True, name="c")
    b = mx.sym.BatchNorm(c, name="b")
    a = mx.sym.LeakyReLU(mx.sym.Activation(b, act_type="tanh", name="a"), act_type="elu", name="l")
    p = mx.sym.Pooling(a, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="p")
    q = mx.sym.Pooling(a, global_pool=True, kernel=(1, 1), pool_type="max", name="q")
    s = mx.sym.SliceChannel(p, num_outputs=2, name="s")
    f = mx.sym.Flatten(mx.sym.Concat(s[0], s[1], p, name="k"), name="f")
    e = mx.sym.Embedding(mx.sym.Variable("word"), input_dim=7, output_dim=5, name="e")
    d = mx.sym.FullyConnected(f, num_hidden=5, no_bias=True, name="d")
    t = mx.sym.FullyConnected(mx.sym.Flatten(q, name="g"), num_hidden=5, name="t")
    net = mx.sym.SoftmaxOutput(mx.sym.Reshape(d + t + e, shape=(-1, 5), name="r"), name="softmax")
    shape = {"data": (2, 2, 13, 13), "word": (2,)}
    found: dict[str, Any] = {}
    for name, options in {
        "plain": {},
        "shapes": {"shape": shape},
        "narrow": {"shape": shape, "line_length": 80, "positions": [30, 50, 60, 80]},
    }.items():
        found[f"table_{name}"] = printed(lambda options=options: mx.viz.print_summary(net, **options))
    found["table_inner"] = printed(lambda: mx.viz.print_summary(s[1], shape={"data": (2, 2, 13, 13)}))
    for name, options in {
        "plain": {},
        "shapes": {"shape": shape, "dtype": {"data": np.float32, "word": np.float32}, "title": "net", "save_format": "svg"},
        "weights": {"hide_weights": False, "node_attrs": {"fixedsize": "false", "shape": "hexagon"}},
    }.items():
        found[f"drawing_{name}"] = [x.strip() for x in mx.viz.plot_network(net, **options).source.strip().splitlines()]
    found["listing"] = net.debug_str().splitlines()
    return found


def batches(mx: Any, layout: str) -> list[Any]:
    """Two epochs of sentences in buckets: [bucket, shape, data, label] of each batch."""
    random.seed(3)
    np.random.seed(4)
    lengths = np.random.randint(1, 8, 40)
    sentences = [list(range(k, k + n)) for k, n in enumerate(lengths.tolist())]
    with contextlib.redirect_stdout(io.StringIO()):
        it = mx.rnn.BucketSentenceIter(sentences, 3, buckets=[6, 2, 4], invalid_label=0, layout=layout)
    found: list[Any] = [it.default_bucket_key, it.buckets, [list(d.shape) for d in (*it.provide_data, *it.provide_label)]]
    for _ in range(2):
        for b in it:
            shapes = [list(b.data[0].shape), list(b.provide_label[0].shape)]
            found.append([b.bucket_key, b.pad, shapes, listed(b.data[0].asnumpy()), listed(b.label[0].asnumpy())])
        it.reset()
    return found


def trained(mx: Any) -> dict[str, Any]:
    """A language model over two buckets, two layers, after two epochs: its parameters and what it scores."""
    random.seed(5)
    np.random.seed(6)
    sentences = [[(s + k) % 5 + 1 for k in range(2 + s % 2)] for s in range(24)]
    data = mx.rnn.BucketSentenceIter(sentences, 4, buckets=[2, 3], invalid_label=0)
    stack = mx.rnn.SequentialRNNCell()
    stack.add(mx.rnn.LSTMCell(3, prefix="a_"))
    stack.add(mx.rnn.ResidualCell(mx.rnn.GRUCell(3, prefix="b_")))

    def sym_gen(length: int) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
        words, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
        embed = mx.sym.Embedding(words, input_dim=6, output_dim=2, name="embed")
        outputs, _ = stack.unroll(length, inputs=embed, merge_outputs=True)
        scores = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 3)), num_hidden=6, name="pred")
        net = mx.sym.SoftmaxOutput(scores, label=mx.sym.Reshape(label, shape=(-1,)), name="softmax")
        return net, ("data",), ("softmax_label",)

    net = sym_gen(3)[0]
    names = net.list_arguments()
    arrays = values(names, net.infer_shape(data=(4, 3), softmax_label=(4, 3))[0])
    start = {n: mx.nd.array(a) for n, a in arrays.items() if n not in ("data", "softmax_label")}
    model = mx.mod.BucketingModule(sym_gen, default_bucket_key=data.default_bucket_key, context=mx.cpu())
    metric = mx.metric.Perplexity(0)
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}
    model.fit(data, eval_metric=metric, optimizer_params=options, arg_params=start, num_epoch=2)
    score = dict(model.score(data, metric))
    return {"score": score, "args": {n: listed(a.asnumpy()) for n, a in sorted(model.get_params()[0].items())}}


def printed(call: Any) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        call()
    return [x.rstrip() for x in out.getvalue().splitlines()]


def compact(graphs: dict[str, Any]) -> dict[str, Any]:
    """Attributes are written once; nodes have their number."""
    texts: list[str] = []
    for found in graphs.values():
        for node in found["nodes"]:
            text = json.dumps(node[2], sort_keys=True)
            if text not in texts:
                texts.append(text)
            node[2] = texts.index(text)
    return {"attrs": [json.loads(t) for t in texts], "graphs": graphs}


def expanded(golden: dict[str, Any], name: str) -> dict[str, Any]:
    """The graph of a case as `graph` gives it."""
    found = golden["graphs"][name]
    return {**found, "nodes": [[op, node, golden["attrs"][k], ins] for op, node, k, ins in found["nodes"]]}


def main() -> None:
    import mxnet as mx  # pyright: ignore[reportMissingImports]
    from cases.rnn_cells import CASES, NUMBERS

    symbols = {name: named(mx, make) for name, make in CASES.items()}
    golden = {
        **compact({name: graph(symbol) for name, symbol in symbols.items()}),
        "numbers": {name: numbers(mx, symbols[name], shapes) for name, shapes in NUMBERS.items()},
        "packing": {name: packing(mx, *options) for name, options in PACKED.items()},
        "pictures": pictures(mx),
        "trained": trained(mx),
        "batches": {layout: batches(mx, layout) for layout in ("NT", "TN")},
    }
    path = HERE / "golden" / "rnn_cells.json"
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size, "bytes,", len(CASES), "graphs,", len(NUMBERS), "with numbers")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
