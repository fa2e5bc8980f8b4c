"""Small graphs with partly known shapes and dtypes that MXNet and jfit both build.

`NETS[name](mx, v) -> symbol or list of symbols`, where `v` creates variables; `SHAPES[name]` and `TYPES[name]` are the known
shapes and dtypes.
"""

import numpy as np

NETS, SHAPES, TYPES = {}, {}, {}


def case(name, make, shapes=({},), types=({},)):
    NETS[name], SHAPES[name], TYPES[name] = make, list(shapes), list(types)


def net(name, shapes, types=({},)):
    def add(make):
        case(name, make, shapes, types)
        return make

    return add


HALF = ({}, {"x": "float16"}, {"x": "float64"})
WEIGHT = ({}, {"x": "float16"}, {"w": "float16"}, {"x": "float64"})


def x(*shape):
    return {"x": shape}


def y(*shape):
    return {"y": shape}


def w(*shape):
    return {"w": shape}


X = x(2, 3)

case(
    "dense",
    lambda mx, v: mx.sym.FullyConnected(v("x"), v("w"), num_hidden=4, name="fc"),
    [{}, X, x(0, 3), x(2, 0), w(4, 3), x(0, 0) | w(4, 3), x(2, 3, 5), x(2, 0, 5)],
    types=WEIGHT,
)
case(
    "dense_deep",
    lambda mx, v: mx.sym.FullyConnected(v("x"), v("w"), num_hidden=4, flatten=False, name="fc"),
    [X, x(2, 7, 3), x(0, 7, 3), w(4, 3)],
)
case(
    "dense_add",
    lambda mx, v: mx.sym.FullyConnected(v("x"), num_hidden=4, name="a") + mx.sym.FullyConnected(v("y"), num_hidden=4, name="b"),
    [X, x(2, 3) | y(0, 5), x(0, 3) | y(2, 5)],
)
case(
    "begin_state",
    lambda mx, v: (
        mx.sym.FullyConnected(v("x"), num_hidden=4, name="a")
        + mx.sym.FullyConnected(mx.sym.zeros(shape=(0, 4)), num_hidden=4, name="b")
    ),
    [X, x(0, 3), {}],
)
case("begin_ones", lambda mx, v: mx.sym.ones(shape=(0, 3)) * v("x"), [X, x(0, 3)])
case("begin_gate", lambda mx, v: mx.sym.broadcast_add(mx.sym.zeros(shape=(0, 3)), v("x")), [X])
case("begin_relu", lambda mx, v: mx.sym.tanh(mx.sym.zeros(shape=(0, 3))) + v("x"), [X])
case("begin_scalar", lambda mx, v: (mx.sym.zeros(shape=(0, 3)) * 2 + 1) + v("x"), [X])
case("begin_slice", lambda mx, v: mx.sym.SliceChannel(mx.sym.zeros(shape=(0, 6)), num_outputs=2)[0] + v("x"), [X])
case("begin_concat", lambda mx, v: mx.sym.Concat(mx.sym.zeros(shape=(0, 3)), v("x"), dim=1), [X, x(0, 3)])


@net("begin_lstm", [x(5, 2, 3), x(5, 0, 3)])
def begin_lstm(mx, v):
    h = c = mx.sym.zeros(shape=(0, 4))
    for t, x in enumerate(mx.sym.SliceChannel(v("x"), num_outputs=5, axis=0, squeeze_axis=True)):
        pre = mx.sym.FullyConnected(x, v("i2h_weight"), num_hidden=16, no_bias=True, name=f"i2h{t}") + mx.sym.FullyConnected(
            h, v("h2h_weight"), num_hidden=16, no_bias=True, name=f"h2h{t}"
        )
        i, f, o, u = mx.sym.SliceChannel(pre, num_outputs=4)
        c = mx.sym.sigmoid(f) * c + mx.sym.sigmoid(i) * mx.sym.tanh(u)
        h = mx.sym.sigmoid(o) * mx.sym.tanh(c)
        if t == 1:
            break
    return h


case(
    "conv",
    lambda mx, v: mx.sym.Convolution(v("x"), v("w"), num_filter=4, kernel=(3, 3), pad=(1, 1), name="c"),
    [x(2, 3, 8, 8), x(0, 3, 8, 8), x(2, 3, 0, 8), x(2, 3, 0, 0), w(4, 3, 3, 3), {}],
    types=WEIGHT,
)
case(
    "conv_chain",
    lambda mx, v: mx.sym.Pooling(
        mx.sym.Activation(
            mx.sym.BatchNorm(mx.sym.Convolution(v("x"), num_filter=4, kernel=(3, 3), name="c"), name="bn"), act_type="relu"
        ),
        kernel=(2, 2),
        stride=(2, 2),
        pool_type="max",
    ),
    [x(2, 3, 8, 8), x(0, 3, 8, 8), x(0, 3, 0, 0)],
    types=HALF,
)
case(
    "deconv",
    lambda mx, v: mx.sym.Deconvolution(v("x"), num_filter=4, kernel=(4, 4), stride=(2, 2), pad=(1, 1), name="d"),
    [x(2, 3, 8, 8), x(0, 3, 8, 8), x(2, 3, 0, 8)],
)
case(
    "deconv_target",
    lambda mx, v: mx.sym.Deconvolution(v("x"), num_filter=4, kernel=(3, 3), stride=(2, 2), target_shape=(16, 16), name="d"),
    [x(2, 3, 8, 8), x(0, 3, 8, 8)],
)
case("norm", lambda mx, v: mx.sym.BatchNorm(v("x"), name="bn"), [x(2, 3, 4), x(0, 3, 0), {"bn_gamma": (3,)}], types=HALF)
case("layer_norm", lambda mx, v: mx.sym.LayerNorm(v("x"), name="ln"), [X, x(0, 3)])
case(
    "embedding",
    lambda mx, v: mx.sym.Embedding(v("x"), v("w"), input_dim=9, output_dim=4, name="e"),
    [X, x(0, 3), {}, w(9, 4)],
    types=({}, {"x": "int32"}, {"w": "float16"}),
)
case("add", lambda mx, v: v("x") + v("y"), [X, y(2, 3), x(2, 0) | y(0, 3), x(0, 3), {}], types=HALF)
case("chain_back", lambda mx, v: mx.sym.relu(v("x") * 2) + v("y"), [y(2, 3), x(0, 3) | y(2, 0)])
case("chain_far", lambda mx, v: (v("a") + v("b")) + (v("c") + v("d")), [{"d": (2, 3)}, {"a": (2, 0), "d": (0, 3)}])
case("broadcast", lambda mx, v: mx.sym.broadcast_add(v("x"), v("y")), [x(2, 3) | y(1, 3), X, x(0, 3) | y(1, 3)])
case("broadcast_one", lambda mx, v: mx.sym.broadcast_mul(v("x"), v("y")), [x(0, 3) | y(0, 1), x(2, 3) | y(2, 0)])
case(
    "concat",
    lambda mx, v: mx.sym.Concat(v("x"), v("y"), dim=1),
    [x(2, 3) | y(2, 4), x(2, 3) | y(0, 4), x(0, 3) | y(2, 4), X, x(0, 3) | y(0, 4)],
    types=HALF,
)
case(
    "concat_add",
    lambda mx, v: mx.sym.Concat(v("x"), v("y"), dim=1) + v("z"),
    [
        {"x": (2, 3), "z": (2, 7)},
        {"z": (2, 7)},
        {"x": (0, 3), "y": (0, 4), "z": (2, 0)},
        {"x": (2, 3), "y": (2, 0), "z": (2, 7)},
    ],
)
case("split", lambda mx, v: list(mx.sym.SliceChannel(v("x"), num_outputs=3, axis=1)), [x(2, 6), x(0, 6), x(2, 0)])
case(
    "split_back",
    lambda mx, v: mx.sym.SliceChannel(v("x"), num_outputs=2, axis=1)[0] + v("y"),
    [y(2, 3), x(0, 6) | y(2, 0), x(0, 6) | y(2, 3)],
)
case(
    "squeeze_back",
    lambda mx, v: mx.sym.SliceChannel(v("x"), num_outputs=2, axis=1, squeeze_axis=True)[0] + v("y"),
    [y(2, 3), x(0, 2, 3) | y(2, 3)],
)
case("reshape", lambda mx, v: mx.sym.Reshape(v("x"), shape=(-1, 6)), [x(4, 3), x(2, 3, 4), x(0, 3), {}])
case("reshape_zero", lambda mx, v: mx.sym.Reshape(v("x"), shape=(0, -1)), [x(4, 3, 2), x(0, 3, 2), x(4, 0, 2)])
case("reshape_back", lambda mx, v: mx.sym.Reshape(v("x"), shape=(0, 6)) + v("y"), [x(0, 3, 2) | y(5, 6), y(5, 6)])
case(
    "reshape_infer", lambda mx, v: mx.sym.Reshape(v("x"), shape=(-1, 6)) + v("y"), [x(0, 3, 2) | y(5, 6), x(5, 0, 2) | y(5, 6)]
)
case("flatten", lambda mx, v: mx.sym.Flatten(v("x")), [x(2, 3, 4), x(0, 3, 4), x(2, 0, 4), {}])
case("flatten_back", lambda mx, v: mx.sym.Flatten(v("x")) + v("y"), [x(0, 3, 4) | y(2, 12), y(2, 12)])
case("transpose", lambda mx, v: mx.sym.transpose(v("x"), axes=(1, 0, 2)), [x(2, 3, 4), x(0, 3, 4), {}])
case("transpose_back", lambda mx, v: mx.sym.transpose(v("x"), axes=(1, 0, 2)) + v("y"), [y(2, 3, 4), x(0, 2, 0) | y(0, 5, 4)])
case("swap", lambda mx, v: mx.sym.SwapAxis(v("x"), dim1=0, dim2=1) + v("y"), [x(2, 0) | y(3, 2), y(3, 2)])
case("expand", lambda mx, v: mx.sym.expand_dims(v("x"), axis=1) + v("y"), [x(0, 3) | y(2, 1, 3), y(2, 1, 3)])
case("squeeze", lambda mx, v: mx.sym.squeeze(v("x"), axis=1) + v("y"), [x(0, 1, 3) | y(2, 3), y(2, 3)])
case("slice_axis", lambda mx, v: mx.sym.slice_axis(v("x"), axis=1, begin=0, end=2), [X, x(0, 3), x(2, 0)])
case("stack", lambda mx, v: mx.sym.stack(v("x"), v("y"), axis=0), [X, x(2, 0) | y(0, 3), y(2, 3)])
case("add_n", lambda mx, v: mx.sym.add_n(v("x"), v("y"), v("z")), [y(2, 3), {"x": (2, 0), "z": (0, 3)}], types=HALF)
case("where", lambda mx, v: mx.sym.where(v("c"), v("x"), v("y")), [{"c": (2, 3), "x": (2, 3)}, {"c": (2, 3), "y": (2, 3)}, X])
case("sum", lambda mx, v: mx.sym.sum(v("x"), axis=1), [X, x(0, 3), x(2, 0), x(2, 3, 4)])
case("sum_all", lambda mx, v: mx.sym.sum(v("x")), [X, x(0, 3), {}])
case("mean_keep", lambda mx, v: mx.sym.mean(v("x"), axis=(1, 2), keepdims=True), [x(2, 3, 4), x(0, 3, 4)])
case("dot", lambda mx, v: mx.sym.dot(v("x"), v("y")), [x(2, 3) | y(3, 4), x(0, 3) | y(3, 4), X])
case("batch_dot", lambda mx, v: mx.sym.batch_dot(v("x"), v("y")), [x(5, 2, 3) | y(5, 3, 4), x(0, 2, 3) | y(5, 3, 4)])
case(
    "softmax",
    lambda mx, v: mx.sym.SoftmaxOutput(v("x"), name="s"),
    [X, x(0, 3), {"s_label": (2,)}, x(2, 3, 4)],
    types=({}, {"x": "float16"}, {"s_label": "float16"}, {"s_label": "int32"}),
)
case("softmax_multi", lambda mx, v: mx.sym.SoftmaxOutput(v("x"), multi_output=True, name="s"), [x(2, 3, 4), x(0, 3, 4)])
case("regression", lambda mx, v: mx.sym.LinearRegressionOutput(v("x"), name="r"), [X, x(2, 1), {"r_label": (2, 3)}])
case("activation", lambda mx, v: mx.sym.Activation(v("x"), act_type="tanh") + v("y"), [y(2, 3), x(0, 3)], types=HALF)
case("prelu", lambda mx, v: mx.sym.LeakyReLU(v("x"), act_type="prelu", name="p"), [x(2, 3, 4), x(0, 3), {}])
case("dropout", lambda mx, v: mx.sym.Dropout(v("x"), p=0.5) + v("y"), [y(2, 3), x(0, 3)])
case("cast", lambda mx, v: mx.sym.Cast(v("x"), dtype="float16") + v("y"), [X, y(2, 3)], types=HALF)
case(
    "take",
    lambda mx, v: mx.sym.take(v("x"), v("i")),
    [{"x": (5, 3), "i": (2, 4)}, {"x": (0, 3), "i": (2, 4)}, {"i": (2,)}],
    types=({}, {"i": "int32"}, {"x": "float16"}),
)
case("one_hot", lambda mx, v: mx.sym.one_hot(v("x"), depth=4), [X, x(0, 3)], types=({}, {"x": "int32"}))
case(
    "pooling",
    lambda mx, v: mx.sym.Pooling(v("x"), kernel=(3, 3), stride=(2, 2), pool_type="avg", pooling_convention="full"),
    [x(2, 3, 8, 8), x(0, 3, 8, 8), x(2, 3, 0, 8)],
)
case(
    "global_pool",
    lambda mx, v: mx.sym.Pooling(v("x"), global_pool=True, kernel=(1, 1), pool_type="avg"),
    [x(2, 3, 8, 8), x(2, 3, 0, 0)],
)
case(
    "rnn",
    lambda mx, v: mx.sym.RNN(v("x"), v("p"), v("h"), v("c"), state_size=4, num_layers=2, mode="lstm", name="r"),
    [x(5, 2, 3), x(5, 0, 3), {"x": (5, 2, 3), "h": (2, 0, 4)}],
    types=({}, {"x": "float16"}),
)
case(
    "rnn_begin",
    lambda mx, v: mx.sym.RNN(v("x"), v("p"), mx.sym.zeros(shape=(1, 0, 4)), state_size=4, num_layers=1, mode="gru", name="r"),
    [x(5, 2, 3)],
)
case(
    "two_layers",
    lambda mx, v: mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(
            mx.sym.Activation(mx.sym.FullyConnected(v("x"), num_hidden=5, name="a"), act_type="relu"), num_hidden=4, name="b"
        ),
        name="s",
    ),
    [X, x(0, 3), {"a_weight": (5, 3)}, {"s_label": (2,)}],
    types=HALF,
)
case(
    "tied",
    lambda mx, v: mx.sym.FullyConnected(
        mx.sym.Embedding(v("x"), v("w"), input_dim=9, output_dim=4, name="e"),
        v("w"),
        num_hidden=9,
        flatten=False,
        no_bias=True,
        name="d",
    ),
    [X, {}],
)
case("like", lambda mx, v: mx.sym.zeros_like(v("x")) + v("y"), [X, y(2, 3)])
case("compare", lambda mx, v: (v("x") > v("y")) * v("z"), [X, {"z": (2, 3)}], types=HALF)
case(
    "pad", lambda mx, v: mx.sym.Pad(v("x"), mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 2, 2)), [x(2, 3, 4, 5), x(0, 3, 4, 5)]
)
case("tile", lambda mx, v: mx.sym.tile(v("x"), reps=(2, 1)), [X, x(0, 3)])
case("upsampling", lambda mx, v: mx.sym.UpSampling(v("x"), scale=2, sample_type="nearest"), [x(2, 3, 4, 5), x(0, 3, 4, 5)])
case(
    "length",
    lambda mx, v: mx.sym.SequenceMask(v("x"), v("n"), use_sequence_length=True),
    [x(5, 2, 3), {"x": (5, 0, 3), "n": (2,)}],
)


def build(mx, name):
    """The graph of a case; each variable is made once."""
    made = {}
    symbol = NETS[name](mx, lambda n: made.setdefault(n, mx.sym.Variable(n)))
    return mx.sym.Group(symbol) if isinstance(symbol, list) else symbol


def recorded(mx):
    """For each graph and each set of known shapes (dtypes) the lists of arguments, outputs and auxiliary states, or "error"."""
    found = {}
    for name in NETS:
        symbol = build(mx, name)
        shapes, types = [], []
        for given in SHAPES[name]:
            try:
                shapes.append([[list(s or ()) for s in part] for part in symbol.infer_shape_partial(**given)])
            except mx.base.MXNetError:
                shapes.append("error")
        for given in TYPES[name]:
            try:
                made = symbol.infer_type_partial(**given)
                types.append([[None if t is None else np.dtype(t).name for t in part] for part in made])
            except mx.base.MXNetError:
                types.append("error")
        found[name] = {"arguments": symbol.list_arguments(), "shapes": shapes, "types": types}
    return {"infer.json": found}
