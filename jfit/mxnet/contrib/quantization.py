"""`mx.contrib.quantization`: networks on 8-bit integers, with thresholds from a calibration data set.

`quantize_model` replaces the operators of a graph that have a form on integers, converts their parameters, and measures the
ranges of their outputs on data.  `quantize_net` does the same to a gluon block.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
>>> symbol, params, _ = mx.contrib.quantization.quantize_model(net, {"fc_weight": mx.nd.ones((2, 3))}, {}, calib_mode="none")
>>> [node.name for node in symbol.nodes() if node.op]
['data_quantize', 'quantized_fc', 'requantize_fc', 'fc_dequantize']
>>> params["fc_weight_quantize"].asnumpy().tolist()
[[127, 127, 127], [127, 127, 127]]
"""

from __future__ import annotations

import inspect
import itertools
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jfit.graph.nodes import Entry, Node, replace_nodes, topological
from jfit.mxnet.context import Context, cpu
from jfit.mxnet.errors import MXNetError, as_list
from jfit.mxnet.gluon.hybrid import HybridBlock, SymbolBlock
from jfit.mxnet.io.arrays import DataBatch, DataDesc, DataIter
from jfit.mxnet.ndarray import zeros
from jfit.mxnet.ndarray.invoke import invoke
from jfit.mxnet.ndarray_classes import Module
from jfit.mxnet.symbol import Symbol
from jfit.ops import lookup
from jfit.ops.calibration import entropy_threshold

# ------------------------------------------------------------------------------------------------ graphs
# Operator -> its form on integers, without the prefix `_contrib_quantized_`.
_FORMS = {
    "Activation": "act", "BatchNorm": "batch_norm", "Concat": "concat", "Convolution": "conv", "Embedding": "embedding",
    "Flatten": "flatten", "FullyConnected": "fully_connected", "Pooling": "pooling", "elemwise_add": "elemwise_add",
    "elemwise_mul": "elemwise_mul",
}  # fmt: skip
_LIMITS: dict[str, Callable[[Any], bool]] = {
    "Activation": lambda p: p.act_type == "relu",
    "BatchNorm": lambda p: not p.output_mean_var,
    "Concat": lambda p: p.dim > 0,
    "Pooling": lambda p: p.pool_type in ("avg", "max"),
}
_LAYERS = {"Convolution", "FullyConnected"}  # what "smart" quantizes always, and other operators between two of them
_SUMS = {*_LAYERS, "elemwise_add", "elemwise_mul"}  # operators with int32 outputs
_FLOAT_INPUTS = {"BatchNorm": (1, 2), "Embedding": (0,)}
# MXNet names the outputs of operators with a capital letter, and numbers those of others; these are the exceptions.
_REVERSED = {
    "BlockGrad", "CTCLoss", "Cast", "Embedding", "Flatten", "LinearRegressionOutput", "LogisticRegressionOutput",
    "MAERegressionOutput", "Reshape", "elemwise_add", "im2col", "softmax", "softmin",
}  # fmt: skip


def _op(node: Node) -> str:
    return "" if node.op is None else node.op.name


def _planned(order: Sequence[Node], names: Sequence[str], operators: Sequence[str], mode: str) -> set[Node]:
    """Return the nodes to quantize: all that have an integer form, or with mode "smart" `_LAYERS` and nodes between them."""
    able = [n for n in order if _op(n) in _FORMS and n.name not in names and _op(n) not in operators]
    able = [n for n in able if _LIMITS.get(_op(n), lambda params: True)(n.params)]
    if mode == "full":
        return set(able)
    if mode != "smart":
        raise MXNetError(f"quantize_mode is {mode!r}, expected 'full' or 'smart'")
    after = {n for n in able if _op(n) in _LAYERS}
    before = set(after)
    for node in able:
        if any(e.node in after for e in node.inputs):
            after.add(node)
    for node in reversed(able):
        if node in before:
            before.update({e.node for e in node.inputs} & {*able})
    return after & before


def _quantize_symbol(
    sym: Symbol, names: Sequence[str], operators: Sequence[str], params: Any, dtype: str, mode: str
) -> tuple[Symbol, list[str]]:
    """Return the quantized graph, and the names of the arrays whose ranges it needs; `names` and `operators` stay float."""
    order = topological(sym.heads)
    plan = _planned(order, names, operators, mode)
    new: dict[Node, Node] = {}
    floats: dict[Entry, Entry] = {}
    integers: dict[Entry, list[Entry]] = {}  # the integers, and the two ends of their range

    def made(op: str, name: str, inputs: Sequence[Entry], attrs: Mapping[str, str]) -> list[Entry]:
        node = Node(lookup(f"_contrib_{op}"), name, attrs, tuple(inputs))
        return [Entry(node, i) for i in range(3)]

    def as_float(entry: Entry) -> Entry:
        if entry not in floats:
            if entry.node in plan:
                floats[entry] = made("dequantize", f"{entry.node.name}_dequantize", integers[entry], {})[0]
            else:
                floats[entry] = Entry(new[entry.node], entry.index)
        return floats[entry]

    def as_integer(entry: Entry) -> list[Entry]:
        if entry not in integers:
            node = entry.node
            name = f"{node.name}{_suffix(entry)}_quantize"
            if node.op is None and node.name in params:
                integers[entry] = [Entry(Node(None, name + end, {}), 0) for end in ("", "_min", "_max")]
            else:
                integers[entry] = made("quantize_v2", name, [as_float(entry)], {"out_type": dtype})
        return integers[entry]

    for node in order:
        if node not in plan:
            inputs = tuple(as_float(e) for e in node.inputs)
            new[node] = node if inputs == node.inputs else node.rebuilt(inputs)
            continue
        kept = _FLOAT_INPUTS.get(_op(node), ())
        arrays, states = node.inputs[: node.num_inputs], node.inputs[node.num_inputs :]
        triples = [[as_float(e)] if i in kept else as_integer(e) for i, e in enumerate(arrays)]
        inputs = [*(t[0] for t in triples), *(end for t in triples for end in t[1:]), *map(as_float, states)]
        out = made(f"quantized_{_FORMS[_op(node)]}", f"quantized_{node.name}", inputs, node.attrs)
        if _op(node) in _SUMS:
            out = made("requantize", f"requantize_{node.name}", out, {"out_type": dtype})
        integers[Entry(node, 0)] = out
    heads = [as_float(h) for h in sym.heads]
    return type(sym)(heads), [name for node in topological(heads) if (name := _ranged(node))]


def _suffix(entry: Entry) -> str:
    """Return what MXNet appends to the name of a node for one of its outputs: a name, or a number."""
    name = _op(entry.node)
    if not name:
        return ""
    named = name.removeprefix("_contrib_")[0].isupper() != (name in _REVERSED)
    return entry.node.output_suffix(entry.index) if named else f"_{entry.index}"


def _ranged(node: Node) -> str | None:
    """Return the name of the float array whose range calibrates a node; None if the node needs no range."""
    if _op(node) in ("_contrib_quantize_v2", "_contrib_requantize"):
        source = node.inputs[0]
    elif _op(node) == "_contrib_quantized_batch_norm":
        source = Entry(node, 0)
    else:
        return None
    return source.node.output_name(source.index).removeprefix("quantized_")


def _with_ranges(sym: Symbol, ranges: dict[str, Any]) -> Symbol:
    """Write ranges (minimum, maximum), by name of the float array, into the nodes that need them."""

    def swap(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        pair = ranges.get(_ranged(node) or "")
        if pair is None:
            return None
        low, high = (f"{float(np.asarray(end, np.float32).reshape(())):f}" for end in pair)
        return Node(node.op, node.raw_name, {**node.attrs, "min_calib_range": low, "max_calib_range": high}, inputs)

    return type(sym)(replace_nodes(sym.heads, swap))


def _quantize_params(sym: Symbol, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a quantized graph: int8 arrays with their ranges, and what stays float."""
    result = {}
    for name in sym.list_arguments():
        source = params.get(name.removesuffix("_quantize"))
        if name in params:
            result[name] = params[name]
        elif source is not None:
            arrays = invoke("_contrib_quantize", [source, source.min(), source.max()], {"out_type": "int8"}, kind=type(source))
            result.update(zip((name, f"{name}_min", f"{name}_max"), arrays, strict=True))
    return result


# ------------------------------------------------------------------------------------------------ calibration
def combine_histogram(old_hist: Any, arr: Any, new_min: Any, new_max: Any, new_th: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Add the values of an array to a symmetric histogram, which is extended by bins of the same width if values fall outside.

    Args:
        old_hist: (counts, edges, minimum, maximum, end of the range).
        arr: NumPy array.
        new_min: minimum of the array.
        new_max: maximum of the array.
        new_th: its largest magnitude.

    Returns:
        A tuple as `old_hist`.

    Example:
        >>> hist = combine_histogram((np.array([0, 2, 1]), np.array([-3, -1, 1, 3.0]), -1, 2, 3.0), np.array([4.0]), 4, 4, 4.0)
        >>> hist[0].tolist(), hist[-1]
        ([0, 0, 2, 1, 1], 5.0)
    """
    hist, edges, low, high, end = old_hist
    low, high = min(low, new_min), max(high, new_max)
    if new_th <= end:
        return hist + np.histogram(arr, len(hist), (-end, end))[0], edges, low, high, end
    step = 2 * end / len(hist)
    more = int((new_th - end) // step + 1)
    end = more * step + end
    wide, edges = np.histogram(arr, len(hist) + 2 * more, (-end, end))
    wide[more:-more] += hist
    return wide, edges, low, high, end


class _LayerOutputMinMaxCollector:
    """Collects the minimum and maximum of arrays in `min_max_dict`, as a callback of a monitor."""

    def __init__(self, quantized_dtype: str, include_layer: Sequence[str] | None = None, logger: Any = None) -> None:
        self.include_layer = include_layer or ()
        self.pattern = f"(?:{'|'.join(map(re.escape, self.include_layer))})$"  # with which monitors compute only these arrays
        self.min_max_dict: dict[str, Any] = {}

    def collect(self, name: str, arr: Any) -> None:
        """Add an array to what is known about arrays of this name."""
        if name in self.include_layer:
            values = arr.asnumpy()
            self._add(name, values, values.min(), values.max())

    def _add(self, name: str, values: np.ndarray, low: Any, high: Any) -> None:
        old = self.min_max_dict.get(name, (low, high))
        self.min_max_dict[name] = min(old[0], low), max(old[1], high)


class _LayerHistogramCollector(_LayerOutputMinMaxCollector):
    """Collects histograms of arrays in `hist_dict`, in the form of `combine_histogram`."""

    def __init__(self, num_bins: int = 8001, include_layer: Sequence[str] | None = None, logger: Any = None) -> None:
        super().__init__("int8", include_layer)
        self.num_bins, self.hist_dict = num_bins, {}

    def _add(self, name: str, values: np.ndarray, low: Any, high: Any) -> None:
        size = float(max(abs(low), abs(high)))  # edges in double precision
        old = self.hist_dict.get(name) or (*np.histogram((), self.num_bins, (-size, size)), low, high, size)
        self.hist_dict[name] = combine_histogram(old, values, low, high, size)


def _run_collector(
    sym: Symbol, params: Any, shapes: Any, labels: Any, batches: Iterable[Any], collector: Any, most: int | None, ctx: Any
) -> None:
    """Run a network on `batches`, until `most` examples, with a collector; `shapes` and `labels`: DataDesc of their arrays."""
    module = Module(sym, [d[0] for d in shapes], [d[0] for d in labels or ()], context=ctx)
    module.bind(shapes, labels or None, for_training=False)
    module.set_params(*params)
    module._exec_group.execs[0].set_monitor_callback(collector.collect, monitor_all=True)
    examples = 0
    for batch in batches:
        module.forward(batch, is_train=False)
        examples += len(batch.data[0])
        if most is not None and examples >= most:
            break


def _ranges(collector: Any, mode: str, dtype: str) -> dict[str, Any]:
    """Return the ranges (minimum, maximum) that a collector found, by name."""
    if mode != "entropy":
        return collector.min_max_dict
    ranges = {}
    for name, (hist, edges, low, *_) in collector.hist_dict.items():
        positive = low >= 0 and dtype in ("auto", "uint8")
        threshold = entropy_threshold(hist, edges, 511 if positive else 255)[0]
        ranges[name] = 0 if positive else -threshold, threshold
    return ranges


# ------------------------------------------------------------------------------------------------ networks
def _check_choice(name: str, value: str, *choices: str) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, choices))}")


def quantize_graph(
    sym: Symbol, arg_params: dict[str, Any], aux_params: dict[str, Any], ctx: Any = None,
    excluded_sym_names: list[str] | None = None, excluded_op_names: list[str] | None = None, calib_mode: str | None = "entropy",
    quantized_dtype: str = "int8", quantize_mode: str = "full", quantize_granularity: str = "tensor-wise",
    LayerOutputCollector: Any = None, logger: Any = None,
) -> tuple[Symbol, dict[str, Any], dict[str, Any], Any]:  # fmt: skip
    """Quantize a graph, and make a collector of the ranges of its arrays; `calib_graph` then writes them into the graph.

    Pass `collector.collect` to `set_monitor_callback(..., monitor_all=True)` of an executor of `sym`, and run it on data.
    Without calibration (`calib_mode` "none") BatchNorm stays float; RNN always does.

    Args:
        sym: the graph.
        arg_params: parameters, NDArrays by name.
        aux_params: auxiliary states, NDArrays by name.
        ctx: the context; default: the CPU.
        excluded_sym_names: names of nodes that stay float.
        excluded_op_names: names of operators that stay float.
        calib_mode: "none": ranges are computed from each batch; "naive": minimum and maximum of the data of the calibration;
            "entropy": the range with the least divergence, see `calibrate_entropy`; "customize": your own collector.
        quantized_dtype: "int8", "uint8", or "auto": uint8 for arrays without negative values.  As in MXNet, uint8 convolutions
            give outputs about twice too large.
        quantize_mode: "full": all operators that can be quantized; "smart": dense layers and convolutions, and others where
            they are between two of those.
        quantize_granularity: "tensor-wise"; "channel-wise" does the same, as in MXNet for operators that are not fused.
        LayerOutputCollector: an object with a method `collect(name, array)` and a dict `min_max_dict`, for "customize".
        logger: not used.

    Returns:
        (graph, parameters, auxiliary states, collector, which is None without calibration).

    Raises:
        ValueError: an argument is none of the values above.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
        >>> quantize_graph(net, {"fc_weight": mx.nd.ones((2, 3))}, {}, calib_mode="naive")[3].include_layer
        ['data', 'fc_output']
    """
    for name, value in (("excluded_sym_names", excluded_sym_names), ("excluded_op_names", excluded_op_names)):
        if not isinstance(value, (list, type(None))):
            raise ValueError(f"{name} is a list of names, got {type(value).__name__}")
    if not isinstance(ctx, (Context, type(None))):
        raise ValueError(f"ctx is one context, got {ctx!r}")
    _check_choice("quantized_dtype", quantized_dtype, "int8", "uint8", "auto")
    _check_choice("quantize_granularity", quantize_granularity, "tensor-wise", "channel-wise")
    mode = calib_mode or "none"
    _check_choice("calib_mode", mode, "none", "naive", "entropy", *(() if LayerOutputCollector is None else ("customize",)))
    operators = [*(excluded_op_names or ()), *(("BatchNorm",) if mode == "none" else ())]
    result, layers = _quantize_symbol(sym, excluded_sym_names or (), operators, arg_params, quantized_dtype, quantize_mode)
    collectors = {
        "none": None, "naive": _LayerOutputMinMaxCollector(quantized_dtype, layers), "customize": LayerOutputCollector,
        "entropy": _LayerHistogramCollector(include_layer=layers),
    }  # fmt: skip
    return result, _quantize_params(result, arg_params), aux_params, collectors[mode]


def calib_graph(
    qsym: Symbol, arg_params: dict[str, Any], aux_params: dict[str, Any], collector: Any, calib_mode: str | None = "entropy",
    quantized_dtype: str = "int8", logger: Any = logging,
) -> tuple[Symbol, dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Write the ranges that a collector found into a quantized graph.

    Args:
        qsym: the graph that `quantize_graph` returned.
        arg_params: the parameters that were passed to `quantize_graph`.
        aux_params: auxiliary states, NDArrays by name.
        collector: the collector that `quantize_graph` returned, after passes on data.
        calib_mode, quantized_dtype: as in `quantize_graph`.
        logger: not used.

    Returns:
        (graph, parameters, auxiliary states).

    Raises:
        ValueError: `calib_mode` is not "naive", "entropy" or "customize".

    Example:
        >>> graph = calib_graph(graph, arg_params, aux_params, collector, "naive")[0]  # doctest: +SKIP
    """
    _check_choice("calib_mode", str(calib_mode), "naive", "entropy", "customize")
    ranges = _ranges(collector, str(calib_mode), quantized_dtype)
    return _with_ranges(qsym, ranges), _quantize_params(qsym, arg_params), aux_params


def quantize_model(
    sym: Symbol, arg_params: dict[str, Any], aux_params: dict[str, Any], data_names: Sequence[str] = ("data",),
    label_names: Sequence[str] | None = ("softmax_label",), ctx: Any = None, excluded_sym_names: list[str] | None = None,
    excluded_op_names: list[str] | None = None, calib_mode: str | None = "entropy", calib_data: Any = None,
    num_calib_examples: int | None = None, quantized_dtype: str = "int8", quantize_mode: str = "smart",
    quantize_granularity: str = "tensor-wise", logger: Any = None,
) -> tuple[Symbol, dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Quantize a graph and its parameters, with ranges from data; the result is for predictions only.

    Args:
        sym: the graph.
        arg_params: parameters, NDArrays by name.
        aux_params: auxiliary states, NDArrays by name.
        data_names, label_names: not used: the names are those of `calib_data`.
        ctx: where the float network runs on `calib_data`; default: the CPU.
        calib_data: DataIter.
        num_calib_examples: number of examples after which the calibration ends; default: all.
        excluded_sym_names, excluded_op_names, calib_mode, quantized_dtype, quantize_mode, quantize_granularity: as in
            `quantize_graph`.
        logger: not used.

    Returns:
        (graph, parameters, auxiliary states).

    Raises:
        ValueError: no DataIter for a calibration, or see `quantize_graph`.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
        >>> data = mx.io.NDArrayIter(np.float32([[1, 2, 3]]))
        >>> quantized = quantize_model(net, {"fc_weight": mx.nd.ones((2, 3))}, {}, calib_mode="naive", calib_data=data)[0]
        >>> quantized.attr_dict()["requantize_fc"]["max_calib_range"]
        '6.000000'
    """
    if calib_mode not in (None, "none") and not isinstance(calib_data, DataIter):
        raise ValueError(f"calib_data is {type(calib_data).__name__}; calib_mode {calib_mode!r} needs a DataIter")
    result, params, _, collector = quantize_graph(
        sym, arg_params, aux_params, ctx, excluded_sym_names, excluded_op_names, calib_mode, quantized_dtype, quantize_mode,
        quantize_granularity,
    )  # fmt: skip
    if collector is None:
        return result, params, aux_params
    data: Any = calib_data
    _run_collector(
        sym, (arg_params, aux_params), data.provide_data, data.provide_label, data, collector, num_calib_examples, ctx
    )
    return calib_graph(result, arg_params, aux_params, collector, calib_mode, quantized_dtype)


def quantize_model_mkldnn(*args: Any, **options: Any) -> tuple[Symbol, dict[str, Any], dict[str, Any]]:
    """`quantize_model` on a CPU: the same plain operators, always on int8.

    Args:
        args, options: the arguments of `quantize_model`.

    Returns:
        (graph, parameters, auxiliary states).

    Raises:
        ValueError: the context is no CPU, or see `quantize_model`.

    Example:
        >>> quantize_model_mkldnn(net, arg_params, aux_params, calib_mode="none")  # doctest: +SKIP
    """
    values = inspect.signature(quantize_model).bind(*args, **options).arguments
    ctx = values.get("ctx") or cpu()
    if getattr(ctx, "device_type", "") != "cpu":
        raise ValueError(f"quantize_model_mkldnn is for one CPU, got ctx {ctx!r}; call quantize_model")
    return quantize_model(**{**values, "quantized_dtype": "int8"})


def quantize_net_v2(
    network: HybridBlock, quantized_dtype: str = "auto", quantize_mode: str = "full", quantize_granularity: str = "tensor-wise",
    exclude_layers: list[str] | None = None, exclude_layers_match: list[str] | None = None,
    exclude_operators: list[str] | None = None, calib_data: Any = None, data_shapes: Any = None,
    calib_mode: str | None = "none", num_calib_examples: int | None = None, ctx: Any = None, LayerOutputCollector: Any = None,
    logger: Any = None,
) -> SymbolBlock:  # fmt: skip
    """Quantize a gluon block; the result is for predictions only.

    The operators are those of `quantize_graph`, always on int8, also where MXNet fuses them on CPUs.

    Args:
        network: a HybridBlock.
        quantized_dtype: "int8", "uint8" or "auto", which all mean int8.
        exclude_layers: names of nodes that stay float.
        exclude_layers_match: parts of names; nodes whose name contains one stay float.
        exclude_operators: names of operators that stay float.
        calib_data: DataLoader, DataIter or list of batches, whose first arrays are the inputs of the network.
        data_shapes: DataDesc of the inputs, if there is no `calib_data`.
        num_calib_examples: number of examples after which the calibration ends; default: all.
        ctx: where the calibration runs, and the parameters of the new block are; default: the CPU.
        quantize_mode, quantize_granularity, calib_mode, LayerOutputCollector: as in `quantize_graph`.
        logger: not used.

    Returns:
        SymbolBlock.

    Raises:
        ValueError: no data, or see `quantize_graph`.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.gluon.nn.Dense(2, use_bias=False, in_units=3)
        >>> net.initialize("ones")
        >>> x = mx.nd.array([[1, 2, 3]])
        >>> quantize_net_v2(net, calib_data=[x], calib_mode="naive")(x).round().asnumpy().tolist()
        [[6.0, 6.0]]
    """
    _check_choice("quantized_dtype", quantized_dtype, "int8", "uint8", "auto")
    if calib_data is None and (not data_shapes or calib_mode not in (None, "none")):
        raise ValueError("calib_data is needed; with calib_mode 'none', data_shapes are enough")
    network.hybridize()
    batches = iter(() if calib_data is None else calib_data)
    first = [_arrays(batch) for batch in itertools.islice(batches, 1)]
    if not (first or data_shapes):
        raise ValueError("calib_data has no batches; pass data that has not been used up")
    network(*[zeros(x.shape) for x in (data_shapes or first[0])[: len(network._call_arguments().inputs)]])
    inputs, sym = network._cached_graph
    known = network.collect_params()
    params = {name: known[name].list_data()[0] for name in sym.list_inputs() if name in known}
    aux = {name: params.pop(name) for name in sym.list_auxiliary_states()}
    parts = exclude_layers_match or ()
    excluded = [*(exclude_layers or ()), *(n.name for n in sym.nodes() if any(part in n.name for part in parts))]
    result, values, _, collector = quantize_graph(
        sym, params, aux, ctx, excluded, exclude_operators, calib_mode, "int8", quantize_mode, quantize_granularity,
        LayerOutputCollector,
    )  # fmt: skip
    if collector is not None:
        shapes = [DataDesc(v.name, x.shape, x.dtype) for v, x in zip(inputs, first[0], strict=False)]
        data = (DataBatch(arrays[: len(inputs)]) for arrays in itertools.chain(first, map(_arrays, batches)))
        _run_collector(sym, (params, aux), shapes, None, data, collector, num_calib_examples, ctx)
        result, values, _ = calib_graph(result, params, aux, collector, calib_mode)
    block = SymbolBlock(result, inputs)
    block.collect_params().load_dict({**values, **aux}, ctx or cpu(), cast_dtype=True, dtype_source="saved")
    return block


def _arrays(batch: Any) -> list[Any]:
    return as_list(batch.data if isinstance(batch, DataBatch) else batch)


def quantize_net(network: HybridBlock, *args: Any, **options: Any) -> SymbolBlock:
    """`quantize_net_v2` without `quantize_granularity` and `LayerOutputCollector`, deprecated.

    Args:
        network: a HybridBlock.
        args, options: further arguments of `quantize_net_v2`, in the same order.

    Returns:
        SymbolBlock.

    Example:
        >>> quantize_net(net, calib_data=loader, calib_mode="naive")  # doctest: +SKIP
    """
    warnings.warn("quantize_net is deprecated; call quantize_net_v2", stacklevel=2)
    args = (*args[:2], "tensor-wise", *args[2:]) if len(args) > 2 else args
    return quantize_net_v2(network, *args, **options)
