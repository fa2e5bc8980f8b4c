"""The networks in the operators of Apache MXNet: the same source for jfit and for MXNet 1.9.1."""

from __future__ import annotations

from typing import Any

from benchmarks.workloads import BLOCKS, CLASSES, STAGES, Workload


def _unit(sym: Any, x: Any, filters: int, kernel: int, stride: int, name: str, relu: bool = True) -> Any:
    size: dict[str, Any] = {"kernel": (kernel, kernel), "stride": (stride, stride), "pad": (kernel // 2, kernel // 2)}
    x = sym.Convolution(x, num_filter=filters, no_bias=True, name=f"{name}_conv", **size)
    x = sym.BatchNorm(x, fix_gamma=False, eps=1e-5, name=f"{name}_bn")
    return sym.Activation(x, act_type="relu", name=f"{name}_relu") if relu else x


def _resnet20(sym: Any) -> Any:
    x = _unit(sym, sym.Variable("data"), 16, 3, 1, "conv0")
    for stage, (filters, first) in enumerate(STAGES):
        for block in range(BLOCKS):
            name, stride = f"stage{stage}_block{block}", first if block == 0 else 1
            y = _unit(sym, x, filters, 3, stride, f"{name}_a")
            y = _unit(sym, y, filters, 3, 1, f"{name}_b", False)
            short = x if stage == 0 or block > 0 else _unit(sym, x, filters, 1, stride, f"{name}_short", False)
            x = sym.Activation(y + short, act_type="relu", name=f"{name}_relu")
    return sym.Flatten(sym.Pooling(x, global_pool=True, kernel=(8, 8), pool_type="avg", name="pool"))


def _resnet50(sym: Any, w: Workload) -> Any:
    x = sym.Pooling(_unit(sym, sym.Variable("data"), 64, 7, 2, "stem"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    for stage, (filters, blocks) in enumerate(w.bottlenecks):
        for block in range(blocks):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            y = _unit(sym, _unit(sym, x, filters, 1, 1, f"{name}_a"), filters, 3, stride, f"{name}_b")
            y = _unit(sym, y, 4 * filters, 1, 1, f"{name}_c", False)
            short = x if block else _unit(sym, x, 4 * filters, 1, stride, f"{name}_short", False)
            x = sym.Activation(y + short, act_type="relu", name=f"{name}_relu")
    return sym.Flatten(sym.Pooling(x, global_pool=True, kernel=(2, 2), pool_type="avg"))


def _dense(sym: Any, x: Any, widths: tuple[int, ...]) -> Any:
    for i, width in enumerate(widths, start=1):
        x = sym.Activation(sym.FullyConnected(x, num_hidden=width, name=f"fc{i}"), act_type="relu", name=f"fc{i}_relu")
    return x


def _lenet(sym: Any) -> Any:
    x = sym.Variable("data")
    for i, filters in enumerate((20, 50), start=1):
        x = sym.Convolution(x, kernel=(5, 5), num_filter=filters, name=f"conv{i}")
        x = sym.Activation(x, act_type="relu", name=f"relu{i}")
        x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{i}")
    return _dense(sym, sym.Flatten(x), (500,))


def _lstm(sym: Any, w: Workload) -> Any:
    x = sym.Embedding(sym.Variable("data"), input_dim=w.words, output_dim=w.width, name="embed")
    start = {name: sym.zeros(shape=(w.layers, w.batch, w.width)) for name in ("state", "state_cell")}
    sizes: dict[str, Any] = {"state_size": w.width, "num_layers": w.layers, "mode": "lstm", "name": "lstm"}
    x = sym.RNN(sym.swapaxes(x, dim1=0, dim2=1), parameters=sym.Variable("lstm_weight"), **start, **sizes)
    return sym.Reshape(sym.swapaxes(x, dim1=0, dim2=1), shape=(-1, w.width))


def _tied(sym: Any, w: Workload) -> dict[str, Any]:
    return {"weight": sym.Variable("embed_weight")} if w.tied else {}


def _transformer(sym: Any, w: Workload) -> Any:
    (length,), width, heads = w.shape, w.width, w.heads
    x = sym.Embedding(sym.Variable("data"), **_tied(sym, w), input_dim=w.words, output_dim=width, name="embed")
    x = sym.broadcast_add(x, sym.Variable("position_weight", shape=(1, length, width)))
    x = sym.Reshape(x, shape=(-1, width))
    places = sym.arange(0, length)
    row, column = sym.Reshape(places, shape=(1, length, 1)), sym.Reshape(places, shape=(1, 1, length))
    mask = sym.broadcast_lesser(row, column) * -1e9
    for layer in range(w.layers):
        name = f"l{layer}"
        y = sym.LayerNorm(x, axis=-1, eps=1e-5, name=f"{name}_n1")
        y = sym.FullyConnected(y, num_hidden=3 * width, name=f"{name}_qkv")
        y = sym.transpose(sym.Reshape(y, shape=(-1, length, 3 * heads, width // heads)), axes=(0, 2, 1, 3))
        y = sym.SliceChannel(y, num_outputs=3, axis=1, name=f"{name}_split")
        q, k, v = (sym.Reshape(y[i], shape=(-3, 0, 0)) for i in range(3))  # (rows * heads, tokens, width of a head)
        scores = sym.batch_dot(q, k, transpose_b=True) * (width // heads) ** -0.5
        scores = sym.broadcast_add(scores, mask) if w.causal else scores
        y = sym.Reshape(sym.batch_dot(sym.softmax(scores, axis=-1), v), shape=(-4, -1, heads, 0, 0))
        y = sym.Reshape(sym.transpose(y, axes=(0, 2, 1, 3)), shape=(-1, width))
        x = x + sym.FullyConnected(y, num_hidden=width, name=f"{name}_o")
        y = sym.LayerNorm(x, axis=-1, eps=1e-5, name=f"{name}_n2")
        y = sym.LeakyReLU(sym.FullyConnected(y, num_hidden=4 * width, name=f"{name}_up"), act_type="gelu")
        x = x + sym.FullyConnected(y, num_hidden=width, name=f"{name}_down")
    return sym.LayerNorm(x, axis=-1, eps=1e-5, name="last")


def network(sym: Any, workload: Workload) -> Any:
    """The network of a workload.

    Args:
        sym: `jfit.sym`, `jfit.mx.sym`, or `mxnet.sym`.
        workload: what to train.

    Returns:
        A Symbol that ends in SoftmaxOutput, for "data" in NCHW, or tokens.
    """
    if workload.text:
        x = {"lstm": _lstm, "transformer": _transformer}[workload.kind](sym, workload)
        label = sym.Reshape(sym.Variable("softmax_label"), shape=(-1,))
        last = sym.FullyConnected(x, **_tied(sym, workload), no_bias=workload.tied, num_hidden=workload.words, name="fc_last")
        return sym.SoftmaxOutput(last, label, name="softmax")
    makers = {"mlp": lambda sym: _dense(sym, sym.Variable("data"), (128, 64)), "lenet": _lenet}
    makers |= {"resnet20": _resnet20, "resnet50": lambda sym: _resnet50(sym, workload)}
    x = makers[workload.kind](sym)
    return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=CLASSES, name="fc_last"), name="softmax")
