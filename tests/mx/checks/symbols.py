"""`mx.sym`: inference of partly known shapes, attributes, operators of Python, executors."""

import warnings

import numpy as np
from recorded_checks import raised


def _shapes(symbol, **known):
    """Return the partly inferred shapes of arguments and outputs by name, or the type of the error."""
    error = raised(symbol.infer_shape_partial, **known)
    if error != "no error":
        return error
    args, outs, _ = symbol.infer_shape_partial(**known)
    names = symbol.list_arguments() + [f"output{i}" for i in range(len(outs))]
    return {n: s and list(s) for n, s in zip(names, args + outs, strict=True)}


def check_partial_shapes_of_elementwise(mx):
    a, b, c = (mx.sym.Variable(n) for n in "abc")
    fixed = mx.sym.Variable("a", shape=(0, 10))
    return {
        "declared": _shapes(fixed + mx.sym.Variable("b", shape=(12, 0))),
        "sum": _shapes(a + b, a=(0, 3), b=(2, 0)),
        "chain": _shapes((a + b) * c, a=(0, 3), c=(4, 0)),
        "relu": _shapes(mx.sym.relu(a), a=(0, 3)),
        "unknown": _shapes(a + b),
        "complete": [None if v is None else [list(s) for s in v] for v in (a + b).infer_shape(a=(2, 3))],
        "incomplete": [v is None for v in (a + b).infer_shape(a=(0, 3))],
        "conflict": raised((a + b).infer_shape, a=(2, 3), b=(2, 4)),
        "override": _shapes(fixed, a=(5, 10)),
        "override_other": [[list(s) for s in v] for v in fixed.infer_shape(a=(5, 7))],
        "override_rank": [[list(s) for s in v] for v in fixed.infer_shape(a=(5, 7, 2))],
        "override_in_sum": [[list(s) for s in v] for v in (fixed + b).infer_shape(a=(5, 7))],
    }


def check_partial_shapes_of_layers(mx):
    d, w = mx.sym.Variable("data"), mx.sym.Variable("w")
    fc = mx.sym.FullyConnected(d, num_hidden=4, name="fc")
    flat = mx.sym.FullyConnected(d, num_hidden=4, flatten=False, name="fc")
    conv = mx.sym.Convolution(d, kernel=(3, 3), num_filter=8, name="conv", no_bias=True)
    padded = mx.sym.Convolution(d, kernel=(3, 3), pad=(1, 1), num_filter=8, name="conv", no_bias=True)
    strided = mx.sym.Convolution(d, kernel=(3, 3), stride=(2, 2), num_filter=8, name="conv", no_bias=True)
    pool = mx.sym.Pooling(d, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    embed = mx.sym.Embedding(d, input_dim=10, output_dim=4, name="embed")
    two = mx.sym.FullyConnected(mx.sym.Activation(fc, act_type="relu"), num_hidden=3, name="top")
    return {
        "fc_batch": _shapes(fc, data=(0, 5)),
        "fc_size": _shapes(fc, data=(6, 0)),
        "fc_weight": _shapes(fc, fc_weight=(4, 7)),
        "fc_weight_rank": _shapes(fc, data=(0, 0), fc_weight=(4, 7)),
        "fc_not_flat": _shapes(flat, data=(0, 3, 5)),
        "fc_output": _shapes(fc + w, data=(0, 5), w=(9, 4)),
        "two": _shapes(two, data=(0, 5)),
        "conv": _shapes(conv, data=(0, 3, 10, 10)),
        "conv_image": _shapes(conv, data=(2, 3, 0, 10)),
        "conv_images": _shapes(conv, data=(2, 3, 0, 0)),
        "conv_strided": _shapes(strided, data=(2, 3, 0, 11)),
        "conv_output": _shapes(padded + w, data=(0, 3, 0, 10), w=(5, 8, 10, 10)),
        "conv_channels": _shapes(conv, data=(2, 0, 10, 10)),
        "pool": _shapes(pool, data=(0, 3, 10, 10)),
        "pool_image": _shapes(pool, data=(2, 3, 0, 10)),
        "embed": _shapes(embed, data=(0, 3)),
        "embed_output": _shapes(embed + w, data=(0, 0), w=(2, 3, 4)),
        "embed_output_alone": _shapes(embed + w, w=(2, 3, 4)),
        "norm": _shapes(mx.sym.BatchNorm(d, name="bn"), data=(0, 3, 0, 0)),
        "flatten": _shapes(mx.sym.Flatten(d), data=(0, 3, 2)),
        "dropout": _shapes(mx.sym.Dropout(d, name="drop"), data=(0, 3)),
        "softmax": _shapes(mx.sym.SoftmaxOutput(d, name="softmax"), data=(0, 3)),
    }


def check_partial_shapes_of_splits(mx):
    d, w = mx.sym.Variable("data"), mx.sym.Variable("w")
    split = mx.sym.SliceChannel(d, num_outputs=3, axis=1, name="split")
    squeezed = mx.sym.SliceChannel(d, num_outputs=3, axis=1, squeeze_axis=True, name="split")
    return {
        "split": _shapes(split, data=(0, 6)),
        "split_axis": _shapes(split, data=(4, 0)),
        "split_squeezed": _shapes(squeezed, data=(0, 3, 2)),
        "split_output": _shapes(split[0] + w, data=(0, 6), w=(5, 2)),
        "split_output_axis": _shapes(split[0] + w, data=(0, 0), w=(5, 2)),
        "split_output_alone": _shapes(split[1] + w, w=(5, 2)),
        "split_squeezed_output": _shapes(squeezed[0] + w, data=(0, 3, 0), w=(5, 2)),
        "concat": _shapes(mx.sym.Concat(d, w, dim=1), data=(0, 3), w=(4, 0)),
        "concat_rows": _shapes(mx.sym.Concat(d, w, dim=1), data=(0, 3), w=(4, 2)),
        "concat_known": _shapes(mx.sym.Concat(d, w, dim=1), data=(4, 3), w=(0, 2)),
        "slice_axis": _shapes(mx.sym.slice_axis(d, axis=1, begin=0, end=2), data=(0, 6)),
        "reshape": _shapes(mx.sym.reshape(d, shape=(0, -1)), data=(4, 3, 2)),
        "reshape_minus": _shapes(mx.sym.reshape(d, shape=(-1, 6)), data=(4, 3, 2)),
    }


def check_partial_shapes_of_products(mx):
    a, b, w = (mx.sym.Variable(n) for n in ("a", "b", "w"))
    dot, left = mx.sym.dot(a, b), mx.sym.dot(a, b, transpose_a=True)
    right, batch = mx.sym.dot(a, b, transpose_b=True), mx.sym.batch_dot(a, b)
    return {
        "dot": _shapes(dot, a=(2, 3), b=(3, 4)),
        "dot_rows": _shapes(dot, a=(0, 3), b=(3, 4)),
        "dot_inner": _shapes(dot, a=(2, 0), b=(3, 0)),
        "dot_output": _shapes(dot + w, a=(0, 3), b=(3, 0), w=(2, 4)),
        "dot_output_inner": _shapes(dot + w, a=(0, 3), b=(0, 0), w=(2, 4)),
        "dot_left": _shapes(left, a=(3, 0), b=(3, 4)),
        "dot_right": _shapes(right, a=(2, 3), b=(0, 3)),
        "dot_unknown": _shapes(dot, a=(2, 3)),
        "batch": _shapes(batch, a=(0, 2, 3), b=(5, 3, 4)),
        "batch_size": _shapes(batch, a=(5, 2, 3), b=(0, 3, 4)),
        "batch_output": _shapes(batch + w, a=(0, 0, 3), b=(0, 3, 0), w=(5, 2, 4)),
        "batch_known": _shapes(batch, a=(5, 2, 3), b=(5, 3, 4)),
        "broadcast": _shapes(mx.sym.broadcast_add(a, b), a=(2, 1), b=(1, 3)),
        "transpose": _shapes(mx.sym.transpose(a), a=(0, 3)),
        "transpose_axes": _shapes(mx.sym.transpose(a, axes=(0, 2, 1)), a=(0, 3, 4)),
        "transpose_output": _shapes(mx.sym.transpose(a, axes=(1, 0)) + w, a=(0, 3), w=(3, 5)),
        "transpose_output_default": _shapes(mx.sym.transpose(a) + w, a=(0, 0), w=(3, 5)),
        "swap": _shapes(mx.sym.SwapAxis(a, dim1=0, dim2=1), a=(2, 3)),
        "where": _shapes(mx.sym.where(a, b, w), a=(2, 3), b=(2, 0), w=(0, 3)),
        "where_branches": _shapes(mx.sym.where(a, b, w), b=(2, 3)),
        "where_rows": _shapes(mx.sym.where(a, b, w), a=(2,), b=(0, 3), w=(2, 0)),
        "where_condition": _shapes(mx.sym.where(a, b, w), a=(2, 3)),
    }


def check_partial_shapes_of_numpy(mx):
    a, b, c = (mx.sym.Variable(n) for n in "abc")
    fc = mx.sym.FullyConnected(a, num_hidden=4, name="fc")
    conv = mx.sym.Convolution(a, kernel=(3, 3), num_filter=8, name="conv", no_bias=True)
    with mx.np_shape():
        return {
            "declared": _shapes(mx.sym.Variable("a", shape=(-1, 10)) + mx.sym.Variable("b", shape=(12, -1))),
            "sum": _shapes(a + b, a=(-1, 3), b=(2, -1)),
            "relu": _shapes(mx.sym.relu(a), a=(-1, 3)),
            "unknown": _shapes(a + b),
            "incomplete": [v is None for v in (a + b).infer_shape(a=(-1, 3))],
            "complete": [[list(s) for s in v] for v in (a + b).infer_shape(a=(2, 3))],
            "zero": _shapes(a + b, a=(0, 3)),
            "zero_complete": [[list(s) for s in v] for v in mx.sym.sin(a).infer_shape(a=(0, 2, 3))],
            "zero_concat": _shapes(mx.sym.Concat(a, b, dim=0), a=(0, 3), b=(2, 3)),
            "zero_reshape": _shapes(mx.sym.reshape(a, shape=(-1, 6)), a=(0, 2, 3)),
            "scalar": _shapes(mx.sym.sin(a), a=()),
            "fc": _shapes(fc, a=(-1, 5)),
            "fc_output": _shapes(fc + c, a=(-1, 5), c=(9, 4)),
            "conv": _shapes(conv, a=(-1, 3, 10, 10)),
            "dot": _shapes(mx.sym.dot(a, b) + c, a=(-1, 3), b=(3, -1), c=(2, 4)),
            "batch_dot": _shapes(mx.sym.batch_dot(a, b), a=(5, 2, 3), b=(5, 3, 4)),
            "transpose": _shapes(mx.sym.transpose(a, axes=(1, 0)) + c, a=(-1, 3), c=(3, 5)),
            "split": _shapes(mx.sym.SliceChannel(a, num_outputs=2, axis=1)[0] + c, a=(-1, 6), c=(5, 3)),
            "where": _shapes(mx.sym.where(a, b, c), a=(2, 3), b=(2, -1), c=(-1, 3)),
            "embedding": _shapes(mx.sym.Embedding(a, input_dim=10, output_dim=4, name="e"), a=(-1, 3)),
        }


def check_symbol_operators(mx):
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    x = np.array([-1.5, 0.0, 2.0], "float32")
    value = lambda s: s.eval(a=mx.nd.array(x), b=mx.nd.array(x + 1))[0].asnumpy()  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "bool": raised(bool, a),
            "if": raised(lambda: 1 if a > b else 2),
            "abs": value(abs(a)),
            "abs_name": abs(a).list_outputs()[0][:3],
            "neg": value(-a),
            "add": value(a + b),
            "radd": value(1 + a),
            "rsub": value(1 - a),
            "rdiv": value(1 / b),
            "mod": value(b % 2),
            "pow": value(b**2),
            "rpow": value(mx.sym.pow(2, a)),
            "gt": value(a > 0),
            "ge": value(a >= b),
            "lt": value(a < 1),
            "le": value(a <= b),
            "eq": value(a == 0),
            "ne": value(a != 0),
            "maximum": value(mx.sym.maximum(a, 0)),
            "len": len(mx.sym.Group([a, b])),
            "iter": [s.name for s in mx.sym.Group([a, b])],
            "index": mx.sym.Group([a, b])["b"].name,
            "index_wrong": raised(lambda: mx.sym.Group([a, b])["c"]),
            "copy": value(a.__copy__()),
            "sort": value(mx.sym.sort(a)),
            "split_v2": value(a.split_v2(3)[2]),
            "split_v2_at": [len(a.split_v2(indices_or_sections=(1,))), value(a.split_v2((1,), axis=0)[1])],
            "split_v2_arrays": [p.asnumpy() for p in mx.nd.array(x).split_v2(3, axis=0)],
        }


def check_topk(mx):
    x = mx.nd.array(np.random.RandomState(1).permutation(12).reshape(3, 4))
    out = {}
    for k in (1, 2, 4, 0, -1):
        out[f"{k}"] = mx.nd.topk(x, k=k).asnumpy()
        out[f"{k}_value"] = mx.nd.topk(x, k=k, ret_typ="value").asnumpy()
        out[f"{k}_both"] = [o.asnumpy() for o in mx.nd.topk(x, k=k, ret_typ="both", is_ascend=True)]
        out[f"{k}_mask"] = mx.nd.topk(x, k=k, ret_typ="mask", axis=0).asnumpy() if k < 4 else 0
    for k in (1, 3, 12, 0):
        out[f"all_{k}"] = mx.nd.topk(x, k=k, axis=None).asnumpy()
        out[f"all_{k}_value"] = mx.nd.topk(x, k=k, axis=None, ret_typ="value").asnumpy()
    out["all_mask"] = mx.nd.topk(x, k=5, axis=None, ret_typ="mask").asnumpy()
    out["infer"] = [list(s) for s in mx.sym.topk(mx.sym.Variable("a"), k=2).infer_shape(a=(3, 4))[1]]
    for axis in (-1, 0, None):
        out[f"over_{axis}"] = raised(lambda a=axis: mx.nd.topk(x, k=13, axis=a).asnumpy())
        out[f"over_{axis}_symbol"] = raised(mx.sym.topk(mx.sym.Variable("a"), k=13, axis=axis).infer_shape, a=(3, 4))
    return out


def check_executor(mx):
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    ex = (a * b).simple_bind(mx.cpu(), a=(2, 3), b=(2, 3))
    out = {
        "shape_before": list(ex.outputs[0].shape),
        "dtype_before": np.dtype(ex.outputs[0].dtype).name,
        "count_before": len(ex.outputs),
        "dict_before": len(ex.output_dict),
    }
    before = ex.outputs[0]
    ex.forward(a=np.ones((2, 3)), b=np.full((2, 3), 2.0))
    out["after"] = ex.outputs[0].asnumpy()
    out["shape_after"] = list(before.shape)
    norm = mx.sym.BatchNorm(a, name="bn", fix_gamma=True)
    free = mx.sym.BatchNorm(a, name="bn", fix_gamma=False)
    for name, net in {"fixed": norm, "free": free, "deep": mx.sym.FullyConnected(norm, num_hidden=2, name="fc")}.items():
        ex = net.simple_bind(mx.cpu(), a=(4, 3))
        out[f"grads_{name}"] = [g is None for g in ex.grad_arrays]
        out[f"grad_dict_{name}"] = [ex.grad_dict[n] is None for n in net.list_arguments()]
    ex = norm.simple_bind(mx.cpu(), grad_req="null", a=(4, 3))
    out["grads_null"] = [g is None for g in ex.grad_arrays]
    ex = (a * 2).bind(mx.cpu(), {"a": mx.nd.ones((2, 2))}, {"a": mx.nd.zeros((2, 2))})
    ex.forward(is_train=True)
    out["backward_without_heads"] = raised(ex.backward)
    ex.forward(is_train=True)
    ex.backward(mx.nd.ones((2, 2)) * 3)
    out["backward_with_head"] = ex.grad_arrays[0].asnumpy()
    ex = mx.sym.sum(a).simple_bind(mx.cpu(), a=(2, 2))
    ex.forward(is_train=True)
    out["backward_sum"] = raised(ex.backward)
    ex = mx.sym.Group([mx.sym.BlockGrad(a * 2), mx.sym.MakeLoss(a * 3)]).simple_bind(mx.cpu(), a=(2,))
    ex.forward(is_train=True)
    ex.backward()
    out["backward_group"] = ex.grad_arrays[0].asnumpy()
    ex = mx.sym.BlockGrad(a).simple_bind(mx.cpu(), a=(2,))
    ex.forward(is_train=True)
    out["backward_blocked"] = raised(ex.backward)
    return out


def check_labels_of_regressions(mx):
    d, label = mx.sym.Variable("data"), mx.sym.Variable("label")
    x = np.random.RandomState(2).rand(4, 1).astype("float32")
    out = {}
    for head in ("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"):
        net = getattr(mx.sym, head)(d, label)
        ex = net.simple_bind(mx.cpu(), data=(4, 1))
        out[f"{head}_label"] = list(ex.arg_dict["label"].shape)
        ex.forward(is_train=True, data=x, label=np.ones(ex.arg_dict["label"].shape))
        ex.backward()
        out[f"{head}_grad"] = ex.grad_dict["data"].asnumpy()
        ex = net.simple_bind(mx.cpu(), data=(4, 1), label=(4,))
        ex.forward(is_train=True, data=x, label=np.arange(4.0))
        ex.backward()
        out[f"{head}_flat"] = ex.grad_dict["data"].asnumpy()
    net = mx.sym.LinearRegressionOutput(d, label)
    out["column_label"] = [list(v) for v in net.infer_shape(data=(6,), label=(6, 1))[0]]
    out["wide_label"] = list(net.infer_shape(data=(4, 3))[0][1])
    out["wide_conflict"] = raised(net.infer_shape, data=(4, 3), label=(5, 3))
    return out


def check_attributes_reach_variables(mx):
    d = mx.sym.Variable("data")
    fc = mx.sym.FullyConnected(d, num_hidden=3, name="fc", lr_mult=2.0, wd_mult=0.5)
    conv = mx.sym.Convolution(d, kernel=(1, 1), num_filter=2, name="conv", attr={"__lr_mult__": "3", "__mood__": "calm"})
    weight = mx.sym.Variable("own", lr_mult=5.0)
    mixed = mx.sym.FullyConnected(d, weight=weight, num_hidden=3, name="fc", lr_mult=2.0)
    with mx.AttrScope(ctx_group="stage1", __lr_mult__="7"):
        scoped = mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=2, name="sc")
    out = {}
    for name, net in {"fc": fc, "conv": conv, "mixed": mixed, "scoped": scoped}.items():
        attrs = net.attr_dict()
        for node in sorted(attrs):
            out[f"{name}_{node}"] = {k: v for k, v in sorted(attrs[node].items()) if k.startswith("__") or k == "mood"}
    out["attr"] = fc.attr("__lr_mult__")
    out["list_attr"] = {k: v for k, v in fc.list_attr().items() if k.startswith("__")}
    out["wrong"] = raised(mx.sym.FullyConnected, d, num_hidden=3, attr={"a": 1})
    out["unknown"] = raised(mx.sym.FullyConnected, d, num_hidden=3, colour=1)
    out["scope_wrong"] = raised(mx.AttrScope, a=1)
    opt = mx.optimizer.SGD(learning_rate=1.0, sym=fc, param_idx2name={0: "fc_weight", 1: "fc_bias"})
    opt.set_lr_mult({})
    opt.set_wd_mult({})
    out["lr_mult"] = {k: float(v) for k, v in sorted(opt.lr_mult.items())}
    out["wd_mult"] = {k: float(v) for k, v in sorted(opt.wd_mult.items())}
    return out


def check_created_symbols(mx):
    value = lambda s, **k: s.eval(**k)[0].asnumpy()  # noqa: E731
    return {
        "eye": value(mx.sym.eye(3)),
        "eye_shifted": value(mx.sym.eye(2, 4, 1)),
        "zeros": value(mx.sym.zeros((2, 3))),
        "ones": value(mx.sym.ones((2,), dtype="int32")),
        "full": value(mx.sym.full((2, 2), 7)),
        "arange": value(mx.sym.arange(5)),
        "arange_step": value(mx.sym.arange(2, 8, 2.0, repeat=2)),
        "linspace": value(mx.sym.linspace(0, 1, 5)),
        "linspace_open": value(mx.sym.linspace(0, 1, 4, endpoint=False)),
        "histogram": value(mx.sym.histogram(mx.sym.Variable("a"), bins=3, range=(0, 3)), a=mx.nd.array([0, 1, 1, 2.5])),
        "histogram_bins": value(
            mx.sym.histogram(mx.sym.Variable("a"), bins=mx.sym.Variable("b")),
            a=mx.nd.array([0, 1, 1, 2.5]),
            b=mx.nd.array([0, 1, 3]),
        ),
        "hypot": value(mx.sym.hypot(mx.sym.Variable("a"), 4), a=mx.nd.array([3.0])),
        "concat": value(mx.sym.concat(mx.sym.ones((1, 2)), mx.sym.zeros((1, 2)), dim=0)),
    }


def check_automatic_names(mx):
    x, y, z = (mx.sym.Variable(n) for n in "xyz")
    with mx.name.NameManager():
        made = [
            mx.sym.contrib.DeformableConvolution(x, y, kernel=(3, 3), num_filter=2),
            mx.sym.contrib.MultiBoxTarget(x, y, z),
            mx.sym.contrib.box_nms(x),
            mx.sym.contrib.SparseEmbedding(x, input_dim=3, output_dim=2),
            mx.sym.linalg.gemm2(x, y),
            mx.sym.linalg_gemm2(x, y),
            mx.sym.sparse.FullyConnected(x, num_hidden=3),
            mx.sym.FullyConnected(x, num_hidden=3),
            mx.sym.sparse.dot(x, y),
            mx.sym.image.to_tensor(x),
            mx.sym.random.uniform(shape=(2,)),
            mx.sym.maximum(x, 2),
            mx.sym.minimum(2, x),
            mx.sym.power(x, 2),
            mx.sym.pow(2, x),
            mx.sym.hypot(x, 2),
            2**x,
            x > 1,
        ]
    return {str(i): [s.list_arguments(), s.list_outputs()] for i, s in enumerate(made)}
