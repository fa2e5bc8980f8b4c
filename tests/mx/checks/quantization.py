"""Quantization of networks: graphs, parameters, thresholds and outputs.

MXNet's thresholds are those without the fusion by oneDNN, MXNET_SUBGRAPH_BACKEND=NONE.  Most weights and data are multiples of
1/8, so that the outputs of layers are exact.
"""

import functools
import json
import os
import warnings

import numpy as np
from recorded_checks import raised

os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"


def eighths(seed, shape, low=-16, high=17):
    return np.random.RandomState(seed).randint(low, high, shape).astype("float32") / 8


def mlp(mx):
    x = mx.sym.Variable("data")
    x = mx.sym.FullyConnected(x, num_hidden=16, name="f1")
    x = mx.sym.Activation(x, act_type="relu", name="r1")
    x = mx.sym.FullyConnected(x, num_hidden=4, no_bias=True, name="f2")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def lenet(mx):
    x = mx.sym.Variable("data")
    x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=4, name="c1")
    x = mx.sym.Activation(x, act_type="relu", name="r1")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="p1")
    x = mx.sym.Flatten(x, name="fl")
    x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=8, name="f1"), act_type="tanh", name="t1")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3, name="f2"), name="softmax")


def residual(mx):
    x = mx.sym.Variable("data")
    x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=4, pad=(1, 1), name="c1")
    x = mx.sym.Activation(x, act_type="relu", name="r1")
    y = mx.sym.Convolution(x, kernel=(3, 3), num_filter=4, pad=(1, 1), no_bias=True, name="c2")
    y = mx.sym.BatchNorm(y, fix_gamma=False, name="bn")
    z = mx.sym.elemwise_add(x, y, name="add")
    z = mx.sym.Concat(z, mx.sym.Activation(y, act_type="sigmoid", name="s1"), dim=1, name="cat")
    z = mx.sym.Pooling(z, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="p1")
    parts = mx.sym.SliceChannel(mx.sym.exp(z * 0.125, name="e"), num_outputs=2, name="sl")
    a = mx.sym.Convolution(parts[0], kernel=(1, 1), num_filter=2, name="c3")
    b = mx.sym.Convolution(parts[1], kernel=(1, 1), num_filter=2, name="c4")
    z = mx.sym.elemwise_mul(a, b, name="mul")
    return mx.sym.FullyConnected(z, num_hidden=3, name="fc")


def embedded(mx):
    x = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=10, output_dim=6, name="emb")
    x = mx.sym.FullyConnected(x, num_hidden=5, flatten=False, name="f1")
    return mx.sym.FullyConnected(mx.sym.Reshape(x, shape=(0, -1), name="re"), num_hidden=3, name="f2")


SHAPES = {mlp: (4, 10), lenet: (4, 2, 8, 8), residual: (4, 2, 6, 6), embedded: (4, 3)}


def model(mx, make):
    net = make(mx)
    shapes, _, states = net.infer_shape(data=SHAPES[make])
    names = enumerate(zip(net.list_arguments(), shapes, strict=True))
    args = {n: mx.nd.array(eighths(i, s)) for i, (n, s) in names if n not in ("data", "softmax_label")}
    names = enumerate(zip(net.list_auxiliary_states(), states, strict=True))
    return net, args, {n: mx.nd.array(eighths(i, s, 1, 17)) for i, (n, s) in names}


def data_iter(mx, make, batches=3, low=-16):
    shape = (4 * batches, *SHAPES[make][1:])
    values = np.random.RandomState(9).randint(0, 10, shape) if make is embedded else eighths(9, shape, low)
    label = np.zeros(len(values), "float32") if "softmax_label" in make(mx).list_arguments() else None
    return mx.io.NDArrayIter(values.astype("float32"), label, 4)


def lines(symbol):
    """Return the nodes of a graph, its inputs and its outputs as text; without thresholds."""
    graph = json.loads(symbol.tojson())
    nodes = graph["nodes"]
    found = []
    for node in nodes:
        inputs = [f"{nodes[i]['name']}:{k}" for i, k, *_ in node["inputs"]]
        attrs = {k: v for k, v in sorted(node.get("attrs", {}).items()) if "calib" not in k and k[:2] != "__"}
        if node["op"] != "null":
            found.append(f"{node['op']} {node['name']} {attrs} {inputs}")
    return [*found, symbol.list_arguments(), symbol.list_auxiliary_states(), symbol.list_outputs()]


def thresholds(symbol):
    """Return the calibrated ranges of a graph by node name."""
    nodes = json.loads(symbol.tojson())["nodes"]
    pairs = {n["name"]: [n.get("attrs", {}).get(f"{end}_calib_range") for end in ("min", "max")] for n in nodes}
    return {name: [float(end) for end in pair] for name, pair in pairs.items() if None not in pair}


def quantized(mx, make, **options):
    net, args, aux = model(mx, make)
    return mx.contrib.quantization.quantize_model(net, args, aux, ctx=mx.cpu(), **options)


def outputs(mx, make, symbol, args, aux):
    values = next(iter(data_iter(mx, make))).data
    symbol = symbol.get_internals()[symbol.list_outputs()[0]]
    inputs = {"data": values[0], "softmax_label": mx.nd.zeros(4), **args}
    bound = {n: inputs[n] for n in symbol.list_arguments()}
    return symbol.bind(mx.cpu(), bound, aux_states={n: aux[n] for n in symbol.list_auxiliary_states()}).forward()[0]


def check_graphs(mx):
    found = {}
    for make in SHAPES:
        for mode in ("full", "smart"):
            kept = ["BatchNorm"]
            found[f"{make.__name__} {mode}"] = lines(
                quantized(mx, make, calib_mode="none", quantize_mode=mode, excluded_op_names=kept)[0]
            )
    found["excluded"] = lines(
        quantized(
            mx, residual, excluded_sym_names=["c2", "mul"], excluded_op_names=["Activation", "BatchNorm"], calib_mode=None
        )[0]
    )
    found["excluded first"] = lines(quantized(mx, lenet, excluded_sym_names=["c1"], calib_mode="none", quantize_mode="full")[0])
    for kind in ("uint8", "auto"):
        found[kind] = lines(quantized(mx, lenet, quantized_dtype=kind, calib_mode="none")[0])
    found["channels"] = lines(quantized(mx, mlp, quantize_granularity="channel-wise", calib_mode="none")[0])
    return found


def check_small_graphs(mx):
    S, quantize = mx.sym, mx.contrib.quantization.quantize_model
    x, y = S.Variable("data"), S.Variable("data1")
    image = {"kernel": (2, 2), "name": "o"}
    nets = {
        "sigmoid": S.Activation(x, act_type="sigmoid", name="o"),
        "relu operator": S.FullyConnected(S.relu(x, name="r"), num_hidden=2, name="o"),
        "twice": S.elemwise_add(x, x, name="o"),
        "plus": S.elemwise_add(S.FullyConnected(x, num_hidden=2, name="f"), y, name="o"),
        "broadcast": S.broadcast_add(x, y, name="o"),
        "mul": S.elemwise_mul(x, y, name="o"),
        "concat of rows": S.Concat(x, y, dim=0, name="o"),
        "concat": S.Concat(x, y, dim=2, name="o"),
        "average": S.Pooling(x, pool_type="avg", pooling_convention="full", **image),
        "global": S.Pooling(x, global_pool=True, name="o"),
        "1d": S.Convolution(x, kernel=(3,), num_filter=2, name="o"),
        "3d": S.Convolution(x, kernel=(1, 3, 3), num_filter=2, num_group=2, name="o"),
        "last": S.Convolution(x, layout="NHWC", num_filter=2, **image),
        "flatten": S.Flatten(S.softmax(x, name="sm"), name="o"),
        "lists": S.FullyConnected(
            S.LeakyReLU(S.Dropout(S.Cast(x, dtype="float32", name="ca"), name="d"), name="l"), num_hidden=2, name="o"
        ),
        "operators": S.Concat(
            S.Reshape(x, shape=(0, -1), name="re"), S.transpose(x, name="tr"), S.softmax(x, name="sm"), name="o"
        ),
        "data only": x,
        "outputs": S.Group([S.FullyConnected(x, num_hidden=2, name="f"), S.relu(x, name="r")]),
    }
    found = {}
    for name, net in nets.items():
        names = [n for n in net.list_arguments() if not n.startswith("data")]
        args = {n: mx.nd.ones((1,)) for n in names}
        found[name] = lines(quantize(net, args, {}, calib_mode="none", quantize_mode="full")[0])
    weight = S.Variable("shared_weight")
    net = S.FullyConnected(x, weight=weight, num_hidden=3, no_bias=True, name="f1")
    net = S.FullyConnected(net, weight=weight, num_hidden=3, no_bias=True, name="f2")
    args = {"shared_weight": mx.nd.ones((3, 3))}
    found["shared"] = lines(quantize(net, args, {}, calib_mode="none")[0])
    found["computed weight"] = lines(quantize(net, {}, {}, calib_mode="none")[0])
    return found


def check_parameters(mx):
    found = {}
    for make in (mlp, residual, embedded):
        _, args, aux = quantized(
            mx, make, calib_mode="none", quantize_mode="full", excluded_sym_names=["fc"], excluded_op_names=["BatchNorm"]
        )
        found[f"{make.__name__} names"] = sorted(args)
        found[f"{make.__name__} states"] = sorted(aux)
        found[f"{make.__name__} types"] = {n: [np.dtype(v.dtype).name, list(v.shape)] for n, v in sorted(args.items())}
        for name, value in args.items():
            found[f"{make.__name__} {name}"] = value
    return {n: v for n, v in found.items() if n.count("_") < 3}


def check_naive(mx):
    found = {}
    for make in SHAPES:
        for kind in ("int8", "auto"):
            options = {"calib_mode": "naive", "quantized_dtype": kind, "quantize_mode": "full"}
            symbol = quantized(mx, make, calib_data=data_iter(mx, make, low=0 if kind == "auto" else -16), **options)[0]
            found[f"{make.__name__} {kind}"] = thresholds(symbol)
            if make is residual:
                found[f"normalized {kind}"] = lines(symbol)
    for examples in (1, 4, 5):
        data = data_iter(mx, mlp)
        symbol = quantized(mx, mlp, calib_mode="naive", calib_data=data, num_calib_examples=examples)[0]
        found[f"{examples} examples"] = thresholds(symbol)
    return found


def check_entropy(mx):
    found = {}
    for make in (mlp, lenet):
        kind, low = ("int8", -16) if make is mlp else ("auto", 0)
        options = {"calib_mode": "entropy", "quantized_dtype": kind, "num_calib_examples": 4, "excluded_sym_names": ["f2"]}
        if make is lenet:
            options["excluded_sym_names"].append("f1")
        symbol, args, aux = quantized(mx, make, calib_data=data_iter(mx, make, low=low), **options)
        found[f"{make.__name__} {kind}"] = thresholds(symbol)
        if make is mlp:
            found["output"] = outputs(mx, mlp, symbol, args, aux)
    return found


def check_outputs(mx):
    found = {}
    for mode in ("none", "naive"):
        for kind in ("int8", "auto"):
            symbol, args, aux = quantized(mx, mlp, calib_mode=mode, calib_data=data_iter(mx, mlp), quantized_dtype=kind)
            found[f"{mode} {kind}"] = outputs(mx, mlp, symbol, args, aux)
    for mode in ("full", "smart"):
        options = {"calib_mode": "naive", "calib_data": data_iter(mx, embedded), "quantize_mode": mode}
        found[f"embedded {mode}"] = outputs(mx, embedded, *quantized(mx, embedded, **options))
    net, args, aux = model(mx, residual)
    args = {n: v * 0.7371 for n, v in args.items()}  # no halves, which are rounded up or down
    floats = ["BatchNorm", "Convolution", "FullyConnected"]
    options = {"calib_mode": "naive", "quantize_mode": "full", "excluded_op_names": floats}
    result = mx.contrib.quantization.quantize_model(net, args, aux, calib_data=data_iter(mx, residual), **options)
    found["residual"] = outputs(mx, residual, *result)
    return found


def check_calibrate_entropy(mx):
    found, function = {}, mx.nd.contrib.calibrate_entropy
    draw = np.random.RandomState(4)
    samples = {
        "normal": draw.normal(size=4000), "uniform": draw.uniform(-1, 1, 4000), "few": np.array([0.5, -0.25, 0.125]),
        "outlier": np.append(draw.normal(size=500), 30.0), "positive": np.abs(draw.normal(size=3000)),
    }  # fmt: skip
    for name, values in samples.items():
        values = values.astype("float32")
        size = float(np.abs(values).max())
        for bins, levels in ((601, 255), (301, 127), (1001, 511)):
            hist, edges = np.histogram(values, bins, (-size, size))
            threshold, divergence = function(mx.nd.array(hist), mx.nd.array(edges), num_quantized_bins=levels)
            found[f"{name} {bins}"] = [threshold.asnumpy(), divergence.asnumpy()]
    found["type"] = [type(function(mx.nd.ones(301), mx.nd.ones(302))).__name__, len(function(mx.nd.ones(301), mx.nd.ones(302)))]
    return found


def check_combine_histogram(mx):
    combine, found = mx.contrib.quantization.combine_histogram, {}
    first, edges = np.histogram(eighths(0, 50), 9, (-2, 2))
    for name, factor in (("inside", 0.5), ("same", 1), ("outside", 1.7)):
        values = eighths(1, 40) * factor
        size = max(abs(values.min()), abs(values.max()))
        hist = combine((first, edges, -2.0, 1.5, 2.0), values, values.min(), values.max(), size)
        found[name] = [np.asarray(part) for part in hist]
    return found


def check_collectors(mx):
    quantization, found = mx.contrib.quantization, {}
    for mode in ("naive", "entropy"):
        net, args, aux = model(mx, mlp)
        symbol, qargs, qaux, collector = quantization.quantize_graph(net, args, aux, calib_mode=mode)
        collector.num_bins = 801
        found[f"{mode} layers"] = sorted(collector.include_layer)
        found[f"{mode} parameters"] = sorted(qargs)
        data = data_iter(mx, mlp)
        module = mx.mod.Module(net, context=mx.cpu())
        module.bind(data.provide_data, data.provide_label, for_training=False)
        module.set_params(args, aux)
        module._exec_group.execs[0].set_monitor_callback(collector.collect, monitor_all=True)
        for batch in data:
            module.forward(batch, is_train=False)
            module.get_outputs()[0].wait_to_read()
        if mode == "naive":
            found["ranges"] = {n: [float(v) for v in pair] for n, pair in sorted(collector.min_max_dict.items())}
        else:
            found["bins"] = {
                n: [len(h[0]), int(h[0].sum()), *map(float, h[2:])] for n, h in sorted(collector.hist_dict.items())
            }
        symbol, qargs, qaux = quantization.calib_graph(symbol, args, aux, collector, calib_mode=mode)
        found[f"{mode} thresholds"] = thresholds(symbol)
        found[f"{mode} outputs"] = outputs(mx, mlp, symbol, qargs, qaux)
    found["none"] = quantization.quantize_graph(net, args, aux, calib_mode="none")[3]

    class Ranges:
        def __init__(self):
            self.min_max_dict = {"data": (-3, 3), "f1_output": (-20.5, 18.25)}

        def collect(self, name, array):
            pass

    own = Ranges()
    result = quantization.quantize_graph(net, args, aux, calib_mode="customize", LayerOutputCollector=own)
    found["own"] = result[3] is own
    found["own thresholds"] = thresholds(quantization.calib_graph(result[0], args, aux, own, calib_mode="customize")[0])
    return found


def gluon_net(mx, deferred=False):
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(12, activation="relu", in_units=0 if deferred else 6))
        net.add(mx.gluon.nn.Dense(8, activation="tanh", in_units=12), mx.gluon.nn.Dense(3, in_units=8))
    net.initialize()
    if not deferred:
        for i, param in enumerate(net.collect_params().values()):
            param.set_data(mx.nd.array(eighths(i, param.shape)))
    return net


def quietly(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)

    return call


def check_gluon(mx):
    quantization, found = mx.contrib.quantization, {}
    ctx = mx.cpu(1)  # on cpu(0) MXNet fuses operators
    values = eighths(5, (10, 6))
    arrays = mx.gluon.data.ArrayDataset(values, np.arange(10, dtype="float32"))
    x = mx.nd.array(values[:4], ctx=ctx)
    for mode in ("none", "naive"):
        for quantize in (quietly(quantization.quantize_net), quantization.quantize_net_v2):
            data = mx.gluon.data.DataLoader(arrays, 4, last_batch="discard")
            options = {"calib_mode": mode, "ctx": ctx, "quantized_dtype": "int8", "num_calib_examples": 8}
            net = quantize(gluon_net(mx), calib_data=data, exclude_layers_match=["dense1"], **options)
            name = f"{mode} {quantize.__name__}"
            found[f"{name} type"] = type(net).__name__
            found[f"{name} thresholds"] = thresholds(net(mx.sym.Variable("data")))
            found[f"{name} output"] = net(x)
            found[f"{name} parameters"] = {n: np.dtype(p.dtype).name for n, p in sorted(net.collect_params().items())}
    found["graph"] = lines(net(mx.sym.Variable("data")))
    shapes = [mx.io.DataDesc("data", (4, 6))]
    net = quantization.quantize_net_v2(
        gluon_net(mx), data_shapes=shapes, ctx=ctx, exclude_layers=["net_dense0_fwd"], quantized_dtype="int8"
    )
    found["excluded"] = lines(net(mx.sym.Variable("data")))
    data = mx.io.NDArrayIter(values, None, 5)
    options = {"calib_mode": "naive", "exclude_operators": ["Activation"], "quantized_dtype": "int8"}
    net = quantization.quantize_net_v2(gluon_net(mx), calib_data=data, ctx=ctx, **options)
    found["iterator"] = thresholds(net(mx.sym.Variable("data")))
    found["iterator output"] = net(x)
    return found


def check_errors(mx):
    quantization = mx.contrib.quantization
    net, args, aux = model(mx, mlp)
    data = data_iter(mx, mlp)

    def quantize(**options):
        return raised(quantization.quantize_model, net, args, aux, **{"calib_mode": "none", **options})

    def graph(**options):
        return raised(quantization.quantize_graph, net, args, aux, **{"calib_mode": "naive", **options})

    def fused(**options):
        return raised(quantization.quantize_model_mkldnn, net, args, aux, **options)

    def block(**options):
        return raised(quantization.quantize_net_v2, gluon_net(mx), ctx=mx.cpu(1), **options)

    return {
        "names": quantize(excluded_sym_names=("f1",)),
        "operators": quantize(excluded_op_names="Activation"),
        "dtype": quantize(quantized_dtype="int4"),
        "granularity": quantize(quantize_granularity="row"),
        "mode": quantize(quantize_mode="half"),
        "calibration": quantize(calib_mode="best", calib_data=data),
        "no data": quantize(calib_mode="naive"),
        "list": quantize(calib_mode="naive", calib_data=[mx.nd.ones((4, 10))]),
        "graph contexts": graph(ctx=[mx.cpu()]),
        "graph dtype": graph(quantized_dtype="float16"),
        "graph mode": graph(calib_mode="customize"),
        "graph names": graph(excluded_sym_names="f1"),
        "calib none": raised(quantization.calib_graph, net, args, aux, None, calib_mode="none"),
        "calib best": raised(quantization.calib_graph, net, args, aux, None, calib_mode="best"),
        "fused contexts": fused(ctx=[mx.cpu()]),
        "fused gpu": fused(ctx=mx.gpu()),
        "no shapes": block(),
        "no batches": block(data_shapes=[mx.io.DataDesc("data", (4, 6))], calib_mode="naive"),
        "unknown": block(data_shapes=[mx.io.DataDesc("data", (4, 6))], calib_mode="best"),
    }
