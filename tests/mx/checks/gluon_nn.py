"""Checks of the layers of gluon.nn and gluon.contrib.nn."""

import warnings

import numpy as np
from recorded_checks import raised


def values(shape, start=0.0):
    """Return an array of distinct values between -1 and 1."""
    return np.cos(1.7 * np.arange(int(np.prod(shape))) + start).reshape(shape).astype("float32")


def fill(mx, block):
    """Give the parameters of an initialized block the values of `values`; variances are positive."""
    for i, param in enumerate(block.collect_params().values()):
        value = values(param.shape, i)
        param.set_data(mx.nd.array(np.abs(value) + 0.5 if param.name.endswith("var") else value))


def run(mx, name, block, *shapes, gradient=True, hybrid=True):
    """Return what a layer shows of itself and computes: not hybridized, hybridized, in training, and its gradients."""
    result = {f"{name} repr": repr(block)}
    block.initialize()
    inputs = [mx.nd.array(values(s, 0.3)) for s in shapes]
    block(*inputs)
    fill(mx, block)
    params = block.collect_params()
    if list(params):
        result[f"{name} repr later"] = repr(block)
        result[f"{name} parameters"] = [[p.name, list(p.shape), p.grad_req, np.dtype(p.dtype).name] for p in params.values()]
    result[f"{name} output"] = block(*inputs)
    if gradient:
        inputs[0].attach_grad()
        with mx.autograd.record():
            out = block(*inputs)
            loss = (out * mx.nd.array(values(out.shape, 0.9))).sum()
        loss.backward()
        result[f"{name} in training"] = out
        result[f"{name} gradients"] = [inputs[0].grad] + [p.grad() for p in params.values() if p.grad_req != "null"]
        states = [p.data() for p in params.values() if p.grad_req == "null"]
        result |= {f"{name} states": states} if states else {}
    if hybrid:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            block.hybridize()
        result[f"{name} hybridized"] = block(*inputs)
    return result


def runs(mx, cases, *shapes):
    """Return the results of several layers by name; each entry is a layer, or (layer, shape of its input).

    Two of them are hybridized, because each compiles a program.
    """
    result = {}
    for i, (name, case) in enumerate(cases.items()):
        block, *own = case if isinstance(case, tuple) else (case,)
        result |= run(mx, name, block, *(own or shapes), hybrid=i < 2)
    return result


def check_dense(mx):
    nn = mx.gluon.nn
    cases = {
        "plain": nn.Dense(3, prefix="dense_"),
        "relu": nn.Dense(3, activation="relu", in_units=4, prefix="net_fc_"),
        "no bias": nn.Dense(2, use_bias=False, prefix="d_"),
        "many axes": (nn.Dense(3, prefix="d_"), (2, 2, 2)),
        "last axis": (nn.Dense(3, flatten=False, activation="tanh", prefix="d_"), (2, 3, 4)),
    }
    return runs(mx, cases, (2, 4))


def check_dense_details(mx):
    nn = mx.gluon.nn
    half = nn.Dense(2, dtype="float16", in_units=3, prefix="h_")
    shared = nn.Dense(2, in_units=3, dtype="float16", prefix="one_", params=half.params)
    other = raised(nn.Dense, 2, in_units=3, params=half.params)
    initialized = nn.Dense(2, in_units=2, weight_initializer="ones", bias_initializer=mx.init.Constant(3.0))
    initialized.initialize(mx.init.Zero())
    return {
        "dtype of weight": np.dtype(half.weight.dtype).name,
        "shared": [p.name for p in shared.collect_params().values()],
        "other dtype": other,
        "same array": shared.weight is half.weight,
        "deferred": nn.Dense(2, prefix="x_").weight.shape,
        "initializers": [initialized.weight.data(), initialized.bias.data()],
        "name of activation": nn.Dense(2, activation="relu", prefix="x_").act.name,
        "not initialized": raised(nn.Dense(2, in_units=1), mx.nd.ones((1, 1))),
        "wrong input": raised(initialized, mx.nd.ones((1, 5))),
        "without units": raised(nn.Dense),
    }


def check_sequential(mx):
    nn = mx.gluon.nn
    result = {}
    for kind in (nn.Sequential, nn.HybridSequential):
        net = kind(prefix="model_")
        with net.name_scope():
            net.add(nn.Dense(4, activation="relu"), nn.Dropout(0.5))
            net.add(nn.Dense(2))
        name = kind.__name__
        result |= run(mx, name, net, (3, 5), gradient=False)
        result |= {
            f"{name} length": len(net),
            f"{name} names": list(net.collect_params()),
            f"{name} item": net[0].name,
            f"{name} last": repr(net[-1]),
            f"{name} slice": repr(net[1:]),
            f"{name} class of slice": type(net[:2]).__name__,
            f"{name} slice output": net[:1](mx.nd.array(values((3, 5)))),
            f"{name} iterated": [type(layer).__name__ for layer in net],
            f"{name} index too large": raised(lambda net=net: net[3]),
        }
        outside = kind(prefix="outer_")
        outside.add(nn.Dense(2, prefix="inner_"))
        result[f"{name} names without scope"] = list(outside.collect_params())
    mixed = nn.HybridSequential()
    result["not hybrid"] = raised(mixed.add, nn.Lambda("relu"))
    plain = nn.Sequential()
    plain.add(nn.Dense(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain.hybridize()
    result["warning"] = len(caught)
    return result


def check_nested(mx):
    nn = mx.gluon.nn
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for width in (2, 3):
            part = nn.HybridSequential(prefix=f"part{width}_")
            with part.name_scope():
                part.add(nn.Conv2D(width, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
            net.add(part)
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(2))
    return run(mx, "nested", net, (2, 1, 4, 4)) | {"structure": sorted(net._collect_params_with_prefix())}


def check_activations(mx):
    nn = mx.gluon.nn
    cases = {a: nn.Activation(a, prefix=f"{a}_") for a in ("relu", "sigmoid", "tanh", "softrelu", "softsign")}
    cases |= {
        "leaky": nn.LeakyReLU(0.1),
        "elu": nn.ELU(),
        "elu 0.5": nn.ELU(alpha=0.5),
        "selu": nn.SELU(),
        "gelu": nn.GELU(),
        "swish": nn.Swish(),
        "swish 2": nn.Swish(beta=2.0),
        "prelu": nn.PReLU(prefix="prelu_"),
        "prelu channels": nn.PReLU(mx.init.Constant(0.5), in_channels=4, prefix="prelu_"),
    }
    return runs(mx, cases, (3, 4))


def check_activation_details(mx):
    nn = mx.gluon.nn
    prelu = nn.PReLU()
    prelu.initialize()
    return {
        "negative slope": raised(nn.LeakyReLU, -0.1),
        "slope 0": nn.LeakyReLU(0)(mx.nd.array([-1, 1])),
        "initial slope": prelu.alpha.data(),
        "unknown": raised(nn.Activation("cube"), mx.nd.ones(1)),
        "alias": nn.Activation("tanh").name.rstrip("0123456789"),
        "conv alias": nn.Conv2D(1, 1).name.rstrip("0123456789"),
        "pool alias": nn.AvgPool1D().name.rstrip("0123456789"),
    }


def check_batch_norm(mx):
    nn = mx.gluon.nn
    cases = {
        "plain": nn.BatchNorm(prefix="bn_"),
        "channels": nn.BatchNorm(in_channels=3, momentum=0.8, epsilon=1e-3, prefix="bn_"),
        "not scaled": nn.BatchNorm(scale=False, prefix="bn_"),
        "not centered": nn.BatchNorm(center=False, prefix="bn_"),
        "global": nn.BatchNorm(use_global_stats=True, prefix="bn_"),
        "relu": (nn.BatchNormReLU(prefix="bn_"), (2, 3, 4, 4)),
        "last axis": (nn.BatchNorm(axis=-1, prefix="bn_"), (2, 4, 3)),
        "matrix": (nn.BatchNorm(prefix="bn_"), (5, 3)),
    }
    return runs(mx, cases, (2, 3, 4))


def check_norms(mx):
    nn = mx.gluon.nn
    cases = {
        "instance": nn.InstanceNorm(prefix="in_"),
        "instance scaled": nn.InstanceNorm(scale=True, center=False, epsilon=1e-3, in_channels=4, prefix="in_"),
        "instance axis": nn.InstanceNorm(axis=2, prefix="in_"),
        "layer": nn.LayerNorm(prefix="ln_"),
        "layer axis": nn.LayerNorm(axis=1, epsilon=1e-3, prefix="ln_"),
        "layer plain": nn.LayerNorm(scale=False, center=False, in_channels=3, prefix="ln_"),
        "group": nn.GroupNorm(num_groups=2, prefix="gn_"),
        "group plain": nn.GroupNorm(scale=False, prefix="gn_"),
    }
    return runs(mx, cases, (2, 4, 3))


def check_norm_details(mx):
    nn = mx.gluon.nn
    norm = nn.BatchNorm(in_channels=2, gamma_initializer=mx.init.Constant(2), running_mean_initializer="ones", prefix="bn_")
    norm.initialize()
    norm.cast("float16")
    return {
        "initial": [p.data() for p in norm.collect_params().values()],
        "dtypes": [np.dtype(p.dtype).name for p in norm.collect_params().values()],
        "groups": nn.GroupNorm(num_groups=3).gamma.shape,
        "not divisible": raised(run, mx, "", nn.GroupNorm(num_groups=3), (2, 4, 3)),
        "channels": norm.in_channels,
    }


def check_dropout_and_embedding(mx):
    nn = mx.gluon.nn
    result = run(mx, "dropout", nn.Dropout(0.5), (2, 3), gradient=False)
    result |= run(mx, "no dropout", nn.Dropout(0), (2, 3))
    result["axes"] = repr(nn.Dropout(0.2, axes=(1,)))
    with mx.autograd.record():
        dropped = nn.Dropout(0.5)(mx.nd.ones((50, 4))).asnumpy()
        shared = nn.Dropout(0.5, axes=(1,))(mx.nd.ones((50, 4))).asnumpy()
    result["kept values"] = np.unique(dropped)
    result["shared over axes"] = bool((shared == shared[:, :1]).all())
    result["not shared"] = bool((dropped == dropped[:, :1]).all())
    cases = {"embedding": nn.Embedding(5, 3, prefix="e_")}
    for name, block in cases.items():
        x = mx.nd.array([[0, 4, 2], [2, 2, 1]])
        result[f"{name} repr"] = repr(block)
        block.initialize()
        fill(mx, block)
        result[f"{name} parameters"] = [[p.name, list(p.shape)] for p in block.collect_params().values()]
        with mx.autograd.record():
            y = block(x)
        y.backward()
        result[f"{name} output"] = y
        result[f"{name} gradient"] = block.weight.grad()
        block.hybridize()
        result[f"{name} hybridized"] = block(x)
    sparse = nn.Embedding(5, 3, sparse_grad=True, prefix="e_")
    result["sparse"] = sparse.weight._grad_stype
    return result


def check_lambda_and_flatten(mx):
    nn = mx.gluon.nn

    def twice(F, x):
        return F.broadcast_mul(x, F.ones((1,))) * 2

    def both(x, y):
        return x + y

    result = run(mx, "flatten", nn.Flatten(), (2, 3, 2))
    result |= run(mx, "lambda name", nn.Lambda("tanh"), (2, 3))
    result |= run(mx, "lambda function", nn.Lambda(lambda x: x * 2 + 1), (2, 3))
    result |= run(mx, "hybrid name", nn.HybridLambda("sigmoid"), (2, 3))
    result |= run(mx, "hybrid function", nn.HybridLambda(twice), (2, 3))
    result |= run(mx, "several", nn.Lambda(both), (2, 3), (2, 3))
    result |= run(mx, "several hybrid", nn.HybridLambda(lambda F, x, y: F.concat(x, y, dim=1)), (2, 3), (2, 1))
    result |= {
        "unknown name": raised(nn.Lambda, "no_such_function"),
        "unknown hybrid name": raised(nn.HybridLambda, "no_such_function"),
    }
    return result


def check_conv_1d_3d(mx):
    nn = mx.gluon.nn
    cases = {
        "1d": nn.Conv1D(2, 3, prefix="c_"),
        "1d strides": nn.Conv1D(4, 3, strides=2, padding=1, activation="relu", in_channels=2, prefix="c_"),
        "1d dilation": nn.Conv1D(2, (2,), dilation=2, groups=2, use_bias=False, prefix="c_"),
        "1d transpose": nn.Conv1DTranspose(2, 3, strides=2, padding=1, output_padding=1, prefix="c_"),
        "3d": (nn.Conv3D(2, 2, prefix="c_"), (1, 2, 3, 3, 3)),
        "3d transpose": (nn.Conv3DTranspose(2, 2, strides=(1, 2, 1), in_channels=1, prefix="c_"), (1, 1, 2, 2, 2)),
    }
    return runs(mx, cases, (2, 2, 7))


def check_conv_2d(mx):
    nn = mx.gluon.nn
    cases = {
        "plain": nn.Conv2D(3, 3, prefix="conv_"),
        "strides": nn.Conv2D(2, kernel_size=(3, 2), strides=(2, 1), padding=(1, 0), prefix="conv_"),
        "padding": nn.Conv2D(2, 3, 2, 1, in_channels=2, activation="sigmoid", prefix="conv_"),
        "dilation": nn.Conv2D(2, 2, dilation=2, use_bias=False, prefix="conv_"),
        "groups": nn.Conv2D(4, 1, groups=2, in_channels=2, prefix="conv_"),
        "transpose": nn.Conv2DTranspose(3, 2, strides=2, prefix="deconv_"),
        "transpose padding": nn.Conv2DTranspose(2, 3, strides=2, padding=1, output_padding=1, use_bias=False, prefix="d_"),
        "transpose groups": nn.Conv2DTranspose(4, 2, groups=2, in_channels=2, activation="relu", prefix="d_"),
    }
    return runs(mx, cases, (2, 2, 5, 5))


def check_conv_details(mx):
    nn = mx.gluon.nn
    conv = nn.Conv2D(2, 3, prefix="x_")
    nhwc = nn.Conv2D(2, (3, 1), layout="NHWC", in_channels=4, prefix="x_")
    result = {
        "deferred": conv.weight.shape,
        "weight of NHWC": nhwc.weight.shape,
        "repr of NHWC": repr(nhwc),
        "weight of NDHWC": nn.Conv3D(2, (3, 1, 2), layout="NDHWC", in_channels=4).weight.shape,
        "weight of transpose": nn.Conv2DTranspose(6, 3, groups=2, in_channels=4).weight.shape,
        "deferred transpose": nn.Conv2DTranspose(6, 3).weight.shape,
        "deferred groups": nn.Conv2D(6, 3, groups=2).weight.shape,
        "bias": conv.bias.shape,
        "no bias": nn.Conv2D(2, 3, use_bias=False).bias,
        "activation": nn.Conv2D(2, 3, activation="relu", prefix="x_").act.name,
    }
    result |= {
        "layout": raised(nn.Conv2D, 2, 3, layout="CHWN"),
        "layout 1d": raised(nn.Conv1D, 2, 3, layout="NWC"),
        "layout 3d": raised(nn.Conv3D, 2, 3, layout="NCHW"),
        "kernel 1d": raised(nn.Conv1D, 2, (3, 3)),
        "kernel 2d": raised(nn.Conv2D, 2, (3,)),
        "kernel transpose": raised(nn.Conv2DTranspose, 2, (3, 3, 3)),
        "output padding": raised(nn.Conv2DTranspose, 2, 3, output_padding=(1,)),
        "pool layout": raised(nn.MaxPool2D, 2, layout="NCW"),
        "pool size": raised(nn.AvgPool3D, (2, 2)),
    }
    conv.initialize()
    conv(mx.nd.zeros((1, 5, 4, 4)))
    return result | {"inferred": conv.weight.shape, "other channels": raised(conv, mx.nd.zeros((1, 4, 4, 4)))}


def check_pooling(mx):
    nn = mx.gluon.nn
    square, line, cube = (2, 1, 5, 4), (2, 2, 5), (1, 1, 3, 4, 3)
    cases = {
        "max 1d": (nn.MaxPool1D(), line),
        "max 2d": (nn.MaxPool2D(), square),
        "max 2d strides": (nn.MaxPool2D(3, 2, 1), square),
        "max 2d ceil": (nn.MaxPool2D((2, 3), strides=2, ceil_mode=True), square),
        "max 3d": (nn.MaxPool3D(2, 1), cube),
        "average 1d": (nn.AvgPool1D(3, strides=1, padding=1), line),
        "average 2d": (nn.AvgPool2D(pool_size=3, strides=(2, 1), padding=1), square),
        "average 2d inside": (nn.AvgPool2D(3, 2, padding=1, count_include_pad=False), square),
        "average 3d": (nn.AvgPool3D(), cube),
        "average 2d all": (nn.AvgPool2D(3, 2, 1, True, "NCHW", False), square),
        "global max 1d": (nn.GlobalMaxPool1D(), line),
        "global max 2d": (nn.GlobalMaxPool2D(), square),
        "global max 3d": (nn.GlobalMaxPool3D(), cube),
        "global average 1d": (nn.GlobalAvgPool1D(), line),
        "global average 2d": (nn.GlobalAvgPool2D(), square),
        "global average 3d": (nn.GlobalAvgPool3D(), cube),
    }
    return runs(mx, cases) | {
        "positional 1d": repr(nn.MaxPool1D(3, 1, 1, "NWC", True)),
        "positional 2d": repr(nn.MaxPool2D((3, 2), 1, 1, "NHWC", True)),
        "positional 3d": repr(nn.MaxPool3D(2, 2, 0, True, "NDHWC")),
        "positional average 3d": repr(nn.AvgPool3D(2, None, 0, True)),
        "global": repr(nn.GlobalMaxPool2D("NHWC")),
    }


def check_padding(mx):
    nn = mx.gluon.nn
    cases = {"number": nn.ReflectionPad2D(1), "all": nn.ReflectionPad2D((0, 0, 0, 0, 1, 2, 0, 1))}
    return runs(mx, cases, (1, 2, 3, 3)) | {"length": raised(nn.ReflectionPad2D, (1, 1))}


def check_contrib_nn(mx):
    nn, contrib = mx.gluon.nn, mx.gluon.contrib.nn
    result = {}
    for kind in (contrib.Concurrent, contrib.HybridConcurrent):
        net = kind(axis=1, prefix="paths_")
        with net.name_scope():
            net.add(nn.Dense(2), contrib.Identity(), nn.Dense(1, activation="relu"))
        result |= run(mx, kind.__name__, net, (2, 3)) | {f"{kind.__name__} axis": kind().axis}
    result |= run(mx, "identity", contrib.Identity(), (2, 3))
    sync = contrib.SyncBatchNorm(num_devices=1, in_channels=3, prefix="sync_")
    result |= run(mx, "sync", sync, (2, 3, 4))
    result |= run(mx, "shuffle 1d", contrib.PixelShuffle1D(2), (1, 4, 3))
    result |= run(mx, "shuffle 2d", contrib.PixelShuffle2D((2, 3)), (1, 12, 2, 2))
    result |= run(mx, "shuffle square", contrib.PixelShuffle2D(2), (1, 4, 2, 3))
    result |= run(mx, "shuffle 3d", contrib.PixelShuffle3D((2, 1, 3)), (1, 6, 2, 1, 2))
    result["factors"] = raised(contrib.PixelShuffle2D, (1, 2, 3))
    result["factors 3d"] = raised(contrib.PixelShuffle3D, (1, 2))
    return result


def check_cast(mx):
    nn = mx.gluon.nn
    net = nn.HybridSequential(prefix="net_")
    net.add(nn.BatchNorm(prefix="b_"), nn.LayerNorm(prefix="l_"), nn.PReLU(prefix="p_"))
    net.initialize()
    net(mx.nd.ones((1, 1, 3, 3)))
    fill(mx, net)
    net.cast("float16")
    result = {"dtypes": [np.dtype(p.dtype).name for p in net.collect_params().values()]}
    return result | {"output": net(mx.nd.array(values((1, 1, 3, 3)), dtype="float16"))}


def check_symbols(mx):
    nn = mx.gluon.nn
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(2, 3, activation="relu"), nn.BatchNorm(), nn.MaxPool2D(), nn.Flatten(), nn.Dense(2))
    out = net(mx.sym.var("data"))
    internal = [n for n in out.get_internals().list_outputs() if "flatten" not in n]
    shapes = out.infer_shape(data=(1, 1, 6, 6))
    return {
        "arguments": out.list_arguments(),
        "auxiliary": out.list_auxiliary_states(),
        "internals": internal,
        "output": out.list_outputs(),
        "shapes": [list(map(list, s)) for s in shapes],
    }


def check_numpy_arrays(mx):
    """Layers called with `mx.np.ndarray`s return them."""
    nn, result = mx.gluon.nn, {}
    with mx.util.np_shape(True), mx.util.np_array(True):
        cases = {
            "dense": (nn.Dense(3, activation="relu", prefix="d_"), (2, 4)),
            "conv": (nn.Conv2D(2, 3, prefix="c_"), (1, 2, 5, 5)),
            "pool": (nn.MaxPool2D(), (1, 1, 4, 4)),
            "batch norm": (nn.BatchNorm(prefix="b_"), (2, 3)),
            "layer norm": (nn.LayerNorm(prefix="l_"), (2, 3)),
            "flatten": (nn.Flatten(), (2, 3, 2)),
            "swish": (nn.Swish(), (2, 3)),
            "leaky": (nn.LeakyReLU(0.2), (2, 3)),
            "dropout": (nn.Dropout(0.5), (2, 3)),
            "embedding": (nn.Embedding(3, 2, prefix="e_"), (2, 2)),
        }
        for name, (block, shape) in cases.items():
            block.initialize()
            x = mx.np.array(np.abs(values(shape)))
            block(x)
            for i, param in enumerate(block.collect_params().values()):
                value = values(param.shape, i)
                param.set_data(mx.np.array(np.abs(value) + 0.5 if param.name.endswith("var") else value))
            result[f"{name} output"] = block(x)
            result[f"{name} class"] = type(block(x)).__name__
        net = nn.HybridSequential()
        net.add(nn.Dense(2, in_units=3, weight_initializer="ones"), nn.Activation("tanh"))
        net.initialize()
        net.hybridize()
        x = mx.np.array(values((2, 3)))
        with mx.autograd.record():
            out = net(x)
        out.backward()
        result |= {"hybridized": out, "class": type(out).__name__, "gradient": net[0].weight.grad()}
    return result


def check_module_names(mx):
    nn = mx.gluon.nn
    names = "Block HybridBlock SymbolBlock basic_layers conv_layers activations"
    return {
        "names": [hasattr(nn, n) for n in names.split()],
        "same": [nn.basic_layers.Dense is nn.Dense, nn.conv_layers.Conv2D is nn.Conv2D, nn.activations.GELU is nn.GELU],
        "classes": [issubclass(getattr(nn, n), mx.gluon.HybridBlock) for n in ("Dense", "Conv2D", "GlobalAvgPool1D", "ELU")],
        "plain": [issubclass(getattr(nn, n), mx.gluon.HybridBlock) for n in ("Sequential", "Lambda")],
    }
