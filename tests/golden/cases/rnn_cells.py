"""Graphs of recurrent cells: each case is a function of `mx`, MXNet or `jfit.mx`, that returns a symbol.

Recorded with oneDNN, which MXNet's fused operator needs: each node of the graph as [operator, name, attributes, inputs], for
some cases outputs and gradients for the values of the function `values`.  Also packed and unpacked weights, the output of
mx.viz, batches of sentences, a training.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

CASES: dict[str, Callable[[Any], Any]] = {}
NUMBERS: dict[str, dict[str, tuple[int, ...]]] = {}  # shapes of the inputs of cases whose values are recorded too
NTC, TNC = {"data": (2, 3, 4)}, {"data": (3, 2, 4)}
IMAGES = {"data": (2, 2, 2, 5, 5)}
MERGES = (None, True, False)


def case(name: str, shapes: dict[str, tuple[int, ...]] | None = None) -> Callable[..., Any]:
    def put(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        CASES[name] = make
        if shapes:
            NUMBERS[name] = shapes
        return make

    return put


def flat(mx: Any, *parts: Any) -> Any:
    """One symbol of outputs and states, nested in lists or not."""
    found: list[Any] = []
    for part in parts:
        found += [part] if isinstance(part, mx.sym.Symbol) else flat_list(mx, part)
    return mx.sym.Group(found)


def flat_list(mx: Any, parts: Any) -> list[Any]:
    return [s for p in parts for s in ([p] if isinstance(p, mx.sym.Symbol) else flat_list(mx, p))]


def unrolled(mx: Any, cell: Any, **kwargs: Any) -> Any:
    return flat(mx, *cell.unroll(3, mx.sym.Variable("data"), **kwargs))


def single(kind: str) -> Callable[[Any], Any]:
    made = {"rnn": lambda mx: mx.rnn.RNNCell(3), "lstm": lambda mx: mx.rnn.LSTMCell(3), "gru": lambda mx: mx.rnn.GRUCell(3)}
    return made[kind]


for kind in ("rnn", "lstm", "gru"):
    for merge in MERGES:
        case(f"{kind}_ntc_{merge}")(lambda mx, kind=kind, merge=merge: unrolled(mx, single(kind)(mx), merge_outputs=merge))
    case(f"{kind}_tnc", TNC)(lambda mx, kind=kind: unrolled(mx, single(kind)(mx), layout="TNC", merge_outputs=True))


case("rnn_relu")(lambda mx: unrolled(mx, mx.rnn.RNNCell(3, activation="relu", prefix="a_")))


@case("rnn_function")
def rnn_function(mx):
    return unrolled(mx, mx.rnn.RNNCell(3, activation=functools.partial(mx.sym.LeakyReLU, act_type="elu", slope=0.5)))


case("lstm_forget_bias")(lambda mx: unrolled(mx, mx.rnn.LSTMCell(3, prefix="a_", forget_bias=2.5)))


@case("list_of_inputs")
def list_of_inputs(mx):
    inputs = [mx.sym.Variable(f"x{i}") for i in range(2)]
    return flat(mx, *mx.rnn.GRUCell(3).unroll(2, inputs, merge_outputs=True))


case("one_step")(lambda mx: flat(mx, *mx.rnn.LSTMCell(3).unroll(1, mx.sym.Variable("data"))))


@case("begin_variables")
def begin_variables(mx):
    cell = mx.rnn.LSTMCell(3)
    return unrolled(mx, cell, begin_state=cell.begin_state(func=mx.sym.Variable))


@case("begin_ones")
def begin_ones(mx):
    cell = mx.rnn.LSTMCell(3)
    first = cell.begin_state(func=mx.sym.ones, dtype="float16")
    return flat(mx, first, cell.begin_state())


@case("steps_by_hand", {"x": (2, 4), "y": (2, 4)})
def steps_by_hand(mx):
    cell = mx.rnn.LSTMCell(3)
    a, states = cell(mx.sym.Variable("x"), cell.begin_state())
    b, states = cell(mx.sym.Variable("y"), states)
    return flat(mx, a, b, states)


@case("shared_weights")
def shared_weights(mx):
    params = mx.rnn.RNNParams("s_")
    a, b = mx.rnn.GRUCell(3, prefix="a_", params=params), mx.rnn.GRUCell(3, prefix="b_", params=params)
    return flat(mx, a.unroll(2, mx.sym.Variable("x"))[0], b.unroll(2, mx.sym.Variable("y"))[0])


@case("unrolled_twice")
def unrolled_twice(mx):
    cell = mx.rnn.LSTMCell(3)
    return flat(mx, cell.unroll(2, mx.sym.Variable("x"))[0], cell.unroll(3, mx.sym.Variable("y"))[0])


# ------------------------------------------------------------------------------------------------ fused
def fused(mx: Any, mode: str, both: bool, **kwargs: Any) -> Any:
    return mx.rnn.FusedRNNCell(3, num_layers=2, mode=mode, bidirectional=both, **kwargs)


for mode in ("rnn_relu", "rnn_tanh", "lstm", "gru"):
    for both in (False, True):
        label = f"{mode}_{'both' if both else 'one'}"
        numbers = TNC if both else None
        case(f"fused_{label}", numbers)(
            lambda mx, mode=mode, both=both: unrolled(mx, fused(mx, mode, both, get_next_state=True), layout="TNC")
        )
        case(f"unfused_{label}", NTC if mode == "gru" and both else None)(
            lambda mx, mode=mode, both=both: unrolled(mx, fused(mx, mode, both).unfuse())
        )
for merge in MERGES:
    for layout in ("NTC", "TNC"):
        case(f"fused_{layout}_{merge}")(
            lambda mx, merge=merge, layout=layout: unrolled(mx, fused(mx, "gru", True), layout=layout, merge_outputs=merge)
        )


@case("fused_options")
def fused_options(mx):
    cell = mx.rnn.FusedRNNCell(3, 2, "lstm", dropout=0.3, forget_bias=2.0, prefix="f_", get_next_state=True)
    return unrolled(mx, cell, begin_state=cell.begin_state(func=mx.sym.Variable))


@case("fused_list")
def fused_list(mx):
    inputs = [mx.sym.Variable(f"x{i}") for i in range(2)]
    return flat(mx, *mx.rnn.FusedRNNCell(3).unroll(2, inputs, layout="TNC"))


@case("unfused_dropout")
def unfused_dropout(mx):
    return unrolled(mx, mx.rnn.FusedRNNCell(3, 3, "gru", bidirectional=True, dropout=0.5).unfuse(), merge_outputs=True)


# ------------------------------------------------------------------------------------------------ made of cells
def stack(mx: Any, *cells: Any) -> Any:
    made = mx.rnn.SequentialRNNCell()
    for cell in cells:
        made.add(cell)
    return made


for merge in MERGES:
    case(f"sequential_{merge}")(
        lambda mx, merge=merge: unrolled(
            mx, stack(mx, mx.rnn.LSTMCell(3, prefix="a_"), mx.rnn.GRUCell(2, prefix="b_")), merge_outputs=merge
        )
    )
    case(f"bidirectional_{merge}", NTC if merge else None)(
        lambda mx, merge=merge: unrolled(
            mx, mx.rnn.BidirectionalCell(mx.rnn.LSTMCell(3, prefix="l_"), mx.rnn.GRUCell(2, prefix="r_")), merge_outputs=merge
        )
    )
    case(f"bidirectional_fused_{merge}")(
        lambda mx, merge=merge: unrolled(
            mx,
            mx.rnn.BidirectionalCell(mx.rnn.FusedRNNCell(3, prefix="l_"), mx.rnn.LSTMCell(3, prefix="r_"), output_prefix="o_"),
            layout="TNC",
            merge_outputs=merge,
        )
    )
    case(f"dropout_{merge}")(
        lambda mx, merge=merge: unrolled(
            mx, stack(mx, mx.rnn.DropoutCell(0.2), mx.rnn.RNNCell(3), mx.rnn.DropoutCell(0.4)), merge_outputs=merge
        )
    )
    case(f"residual_{merge}")(lambda mx, merge=merge: unrolled(mx, mx.rnn.ResidualCell(mx.rnn.GRUCell(4)), merge_outputs=merge))
    case(f"zoneout_{merge}")(
        lambda mx, merge=merge: unrolled(mx, mx.rnn.ZoneoutCell(mx.rnn.LSTMCell(3), 0.3, 0.2), merge_outputs=merge)
    )


@case("stepped_stack")
def stepped_stack(mx):
    cell = stack(mx, mx.rnn.LSTMCell(3, prefix="a_"), mx.rnn.DropoutCell(0.5), mx.rnn.RNNCell(2, prefix="b_"))
    return flat(mx, *cell(mx.sym.Variable("x"), cell.begin_state()))


case("dropout_zero")(lambda mx: unrolled(mx, mx.rnn.DropoutCell(0.0)))
case("zoneout_outputs")(lambda mx: unrolled(mx, mx.rnn.ZoneoutCell(mx.rnn.RNNCell(3), zoneout_outputs=0.3)))


@case("zoneout_states")
def zoneout_states(mx):
    return unrolled(mx, stack(mx, mx.rnn.ZoneoutCell(mx.rnn.GRUCell(3), zoneout_states=0.3), mx.rnn.RNNCell(2)))


@case("residual_stack", NTC)
def residual_stack(mx):
    a, b = mx.rnn.ResidualCell(mx.rnn.LSTMCell(4, prefix="a_")), mx.rnn.ResidualCell(mx.rnn.RNNCell(4, prefix="b_"))
    return unrolled(mx, stack(mx, a, b))


@case("residual_bidirectional")
def residual_bidirectional(mx):
    cell = mx.rnn.BidirectionalCell(mx.rnn.RNNCell(2, prefix="l_"), mx.rnn.RNNCell(2, prefix="r_"))
    return flat(mx, mx.rnn.ResidualCell(cell).unroll(3, mx.sym.Variable("data"))[0])


case("residual_fused")(lambda mx: flat(mx, mx.rnn.ResidualCell(mx.rnn.FusedRNNCell(4)).unroll(3, mx.sym.Variable("data"))[0]))


@case("residual_step")
def residual_step(mx):
    cell = mx.rnn.ResidualCell(mx.rnn.RNNCell(4))
    return flat(mx, *cell(mx.sym.Variable("x"), cell.begin_state()))


@case("modifier_begin")
def modifier_begin(mx):
    cell = mx.rnn.ZoneoutCell(mx.rnn.LSTMCell(3, prefix="z_"), 0.5)
    return flat(mx, cell.begin_state(mx.sym.Variable))


# ------------------------------------------------------------------------------------------------ convolutional
for kind in ("ConvRNN", "ConvLSTM", "ConvGRU"):
    case(kind, IMAGES)(
        lambda mx, kind=kind: flat(
            mx,
            *getattr(mx.rnn, f"{kind}Cell")((2, 2, 5, 5), 2).unroll(
                2, mx.sym.Variable("data"), layout="NTCHW", merge_outputs=True
            ),
        )
    )
    case(f"{kind}_options")(
        lambda mx, kind=kind: unrolled(
            mx,
            getattr(mx.rnn, f"{kind}Cell")(
                input_shape=(1, 2, 9, 9), num_hidden=2, h2h_kernel=(5, 3), h2h_dilate=(1, 2), i2h_kernel=(2, 4),
                i2h_stride=(2, 1), i2h_pad=(1, 0), i2h_dilate=(1, 2), i2h_weight_initializer=mx.init.Xavier(),
                h2h_weight_initializer="orthogonal", i2h_bias_initializer="ones", activation="tanh", prefix="c_",
            ),
            layout="NTCHW",
        )
    )  # fmt: skip


case("conv_begin")(lambda mx: flat(mx, mx.rnn.ConvLSTMCell((1, 2, 9, 9), 2, i2h_stride=(2, 2)).begin_state()))


# ------------------------------------------------------------------------------------------------ what is recorded
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
        mx.cpu(), {n: mx.nd.array(a) for n, a in arrays.items()}, args_grad={n: mx.nd.zeros(a.shape) for n, a in arrays.items()}
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


def recorded(mx: Any) -> dict[str, Any]:
    symbols = {name: named(mx, make) for name, make in CASES.items()}
    golden = {
        **compact({name: graph(symbol) for name, symbol in symbols.items()}),
        "numbers": {name: numbers(mx, symbols[name], shapes) for name, shapes in NUMBERS.items()},
        "packing": {name: packing(mx, *options) for name, options in PACKED.items()},
        "pictures": pictures(mx),
        "trained": trained(mx),
        "batches": {layout: batches(mx, layout) for layout in ("NT", "TN")},
    }
    return {"rnn_cells.json": golden}
