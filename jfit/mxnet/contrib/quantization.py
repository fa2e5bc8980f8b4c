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

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jfit.graph.nodes import Entry, Node, replace_nodes, topological
from jfit.mxnet.context import Context, cpu
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.gluon.hybrid import HybridBlock, SymbolBlock
from jfit.mxnet.io.arrays import DataBatch, DataDesc, DataIter
from jfit.mxnet.ndarray import zeros
from jfit.mxnet.ndarray.invoke import invoke
from jfit.mxnet.ndarray_classes import Module
from jfit.mxnet.symbol import Symbol
from jfit.ops import lookup
from jfit.ops.calibration import entropy_threshold

__all__ = [
    "calib_graph", "combine_histogram", "quantize_graph", "quantize_model", "quantize_model_mkldnn", "quantize_net",
    "quantize_net_v2",
]  # fmt: skip

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
_SUMS = {*_LAYERS, "elemwise_add", "elemwise_mul"}  # operators whose integers have 32 bits
_FLOAT_INPUTS = {"BatchNorm": (1, 2), "Embedding": (0,)}
_UNCALIBRATED = ("_contrib_quantize_v2", "_contrib_requantize")  # operators whose range is that of their input
# Operators whose outputs have no names in MXNet, only numbers; the others are those that begin with a capital letter.
_UNNAMED = {"BlockGrad", "CTCLoss", "Cast", "Embedding", "Flatten", "Reshape"} | {
    f"{kind}RegressionOutput" for kind in ("Linear", "Logistic", "MAE")
}
_NAMED = {"elemwise_add", "im2col", "softmax", "softmin"}


def _planned(order: Sequence[Node], names: Sequence[str], operators: Sequence[str], mode: str) -> set[Node]:
    """Return the nodes to quantize: all with a form on integers, or with mode "smart" layers and what is between layers."""

    def possible(node: Node) -> bool:
        op = "" if node.op is None else node.op.name
        allowed = op in _FORMS and node.name not in names and op not in operators
        return allowed and (op not in _LIMITS or _LIMITS[op](node.params))

    able = [node for node in order if possible(node)]
    if mode == "full":
        return set(able)
    if mode != "smart":
        raise MXNetError(f"quantize_mode is {mode!r}, expected 'full' or 'smart'")
    after = {n for n in able if n.op is not None and n.op.name in _LAYERS}
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
    """Return the quantized graph, and the names of the arrays whose ranges it needs."""
    order = topological(sym.heads)
    plan = _planned(order, names, operators, mode)
    new: dict[Node, Node] = {}
    floats: dict[Entry, Entry] = {}
    integers: dict[Entry, tuple[Entry, Entry, Entry]] = {}

    def made(op: str, name: str, inputs: Sequence[Entry], attrs: Mapping[str, str]) -> tuple[Entry, Entry, Entry]:
        node = Node(lookup(op), name, attrs, tuple(inputs))
        return Entry(node, 0), Entry(node, 1), Entry(node, 2)

    def as_float(entry: Entry) -> Entry:
        if entry not in floats:
            source = new[entry.node]
            floats[entry] = Entry(source, entry.index)
            if entry.node in plan:
                floats[entry] = made("_contrib_dequantize", f"{entry.node.name}_dequantize", integers[entry], {})[0]
        return floats[entry]

    def as_integer(entry: Entry) -> tuple[Entry, Entry, Entry]:
        if entry not in integers:
            node = entry.node
            if node.op is None and node.name in params:
                variables = [Node(None, f"{node.name}_quantize{end}", {}) for end in ("", "_min", "_max")]
                integers[entry] = Entry(variables[0], 0), Entry(variables[1], 0), Entry(variables[2], 0)
            else:
                name = f"{node.name}{_suffix(entry)}_quantize"
                integers[entry] = made("_contrib_quantize_v2", name, [as_float(entry)], {"out_type": dtype})
        return integers[entry]

    for node in order:
        if node not in plan:
            inputs = tuple(as_float(e) for e in node.inputs)
            new[node] = node if inputs == node.inputs else node.rebuilt(inputs)
            continue
        assert node.op is not None
        kept = _FLOAT_INPUTS.get(node.op.name, ())
        arrays, states = node.inputs[: node.num_inputs], node.inputs[node.num_inputs :]
        triples = [(as_float(e),) if i in kept else as_integer(e) for i, e in enumerate(arrays)]
        inputs = [t[0] for t in triples] + [end for t in triples for end in t[1:]] + [as_float(e) for e in states]
        out = made(f"_contrib_quantized_{_FORMS[node.op.name]}", f"quantized_{node.name}", inputs, node.attrs)
        if node.op.name in _SUMS:
            out = made("_contrib_requantize", f"requantize_{node.name}", out, {"out_type": dtype})
        integers[Entry(node, 0)] = out
        new[node] = out[0].node
    heads = [as_float(h) for h in sym.heads]
    return type(sym)(heads), [name for node in topological(heads) if (name := _ranged(node))]


def _suffix(entry: Entry) -> str:
    """Return what MXNet appends to the name of a node for one of its outputs: a name, or a number."""
    if entry.node.op is None:
        return ""
    op = entry.node.op.name.removeprefix("_contrib_")
    named = op in _NAMED or (op[0].isupper() and op not in _UNNAMED)
    return entry.node.output_suffix(entry.index) if named else f"_{entry.index}"


def _ranged(node: Node) -> str | None:
    """Return the name of the float array that has the calibrated range of a node; None if it has no such range."""
    if node.op is None or node.op.name not in (*_UNCALIBRATED, "_contrib_quantized_batch_norm"):
        return None
    source = node.inputs[0] if node.op.name in _UNCALIBRATED else Entry(node, 0)
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
    """Add the values of an array to a histogram of symmetric range, which gets bins of the same size where they are outside.

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


class _Collector:
    """Reads the arrays of a network by name, as a callback of a monitor."""

    def __init__(self, include_layer: Sequence[str] | None, logger: Any) -> None:
        self.include_layer, self.logger = include_layer or (), logger

    @property
    def pattern(self) -> str:
        """Regular expression of the names, with which monitors compute only these arrays."""
        return f"(?:{'|'.join(map(re.escape, self.include_layer))})$"

    def collect(self, name: str, arr: Any) -> None:
        """Add an array to what is known about arrays of this name."""
        if name in self.include_layer:
            values = arr.asnumpy()
            self._add(name, values, values.min(), values.max())
            if self.logger:
                self.logger.debug("Collected %s of shape %s", name, values.shape)

    def _add(self, name: str, values: np.ndarray, low: Any, high: Any) -> None:
        raise NotImplementedError


class _LayerOutputMinMaxCollector(_Collector):
    """Collects the minimum and maximum of arrays in `min_max_dict`."""

    def __init__(self, quantized_dtype: str, include_layer: Sequence[str] | None = None, logger: Any = None) -> None:
        super().__init__(include_layer, logger)
        self.quantized_dtype, self.min_max_dict = quantized_dtype, {}

    def _add(self, name: str, values: np.ndarray, low: Any, high: Any) -> None:
        old = self.min_max_dict.get(name, (low, high))
        self.min_max_dict[name] = min(old[0], low), max(old[1], high)


class _LayerHistogramCollector(_Collector):
    """Collects histograms of arrays in `hist_dict`, in the form of `combine_histogram`."""

    def __init__(self, num_bins: int = 8001, include_layer: Sequence[str] | None = None, logger: Any = None) -> None:
        super().__init__(include_layer, logger)
        self.num_bins, self.hist_dict = num_bins, {}

    def _add(self, name: str, values: np.ndarray, low: Any, high: Any) -> None:
        size = float(max(abs(low), abs(high)))  # edges in double precision
        if name in self.hist_dict:
            self.hist_dict[name] = combine_histogram(self.hist_dict[name], values, low, high, size)
        else:
            self.hist_dict[name] = *np.histogram(values, self.num_bins, (-size, size)), low, high, size


def _collector(mode: str, dtype: str, layers: list[str], own: Any, logger: Any) -> Any:
    """Return the collector of a calibration mode, which MXNet calls "naive", "entropy" or "customize"."""
    if mode == "entropy":
        return _LayerHistogramCollector(include_layer=layers, logger=logger)
    if mode == "naive":
        return _LayerOutputMinMaxCollector(dtype, layers, logger)
    if mode != "customize" or own is None:
        raise ValueError(
            f"calib_mode is {mode!r}, expected 'none', 'naive' or 'entropy', or 'customize' with a LayerOutputCollector"
        )
    return own


def _run_collector(sym: Symbol, params: Any, labels: Any, ctx: Any, data: Any, collector: Any, most: Any, logger: Any) -> None:
    """Call the collector for the arrays of a network in prediction mode, on the batches of `data`."""
    module = Module(sym, [name for name, *_ in data.provide_data], labels, context=ctx)
    module.bind(data.provide_data, data.provide_label or None, for_training=False)
    module.set_params(*params)
    module._exec_group.execs[0].set_monitor_callback(collector.collect, monitor_all=True)
    examples = 0
    for batch in data:
        module.forward(batch, is_train=False)
        examples += data.batch_size
        if most is not None and examples >= most:
            break
    if logger:
        logger.info("Collected the ranges of arrays from %d examples", examples)


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


class _Batches:
    """The first arrays of each batch of a DataIter, DataLoader or list, as a DataIter of a network with these inputs."""

    provide_label = None

    def __init__(self, source: Any, names: Sequence[str]) -> None:
        self._source, self._count = source, len(names)
        first = _first_arrays(source)
        self.provide_data = [DataDesc(n, a.shape, a.dtype) for n, a in zip(names, first, strict=False)]
        self.batch_size = first[0].shape[0]

    def __iter__(self) -> Iterator[DataBatch]:
        return (DataBatch(_arrays(batch)[: self._count]) for batch in self._source)


def _arrays(batch: Any) -> list[Any]:
    batch = batch.data if isinstance(batch, DataBatch) else batch
    return list(batch) if isinstance(batch, (list, tuple)) else [batch]


def _first_arrays(source: Any) -> list[Any]:
    """Return arrays of the shapes and dtypes of the first batch."""
    return list(source.provide_data) if isinstance(source, DataIter) else _arrays(next(iter(source)))


# ------------------------------------------------------------------------------------------------ networks
def _check(**options: Any) -> None:
    """Raise ValueError for an argument that no function here accepts."""
    dtypes, sizes = ("int8", "uint8", "auto"), ("tensor-wise", "channel-wise")
    for name, value in options.items():
        choices = {"quantized_dtype": dtypes, "quantize_granularity": sizes}.get(name)
        if choices and value not in choices:
            raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, choices))}")
        if name == "ctx" and not isinstance(value, Context):
            raise ValueError(f"ctx is one context, got {value!r}")
        if name.startswith("excluded") and not isinstance(value, (list, type(None))):
            raise ValueError(f"{name} is a list of names, got {type(value).__name__}")


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
            "entropy": the range for which integers have almost the same distribution; "customize": your own collector.
        quantized_dtype: "int8", "uint8", or "auto": uint8 for arrays without negative values.  As in MXNet, uint8 convolutions
            give about twice their values.
        quantize_mode: "full": all operators that can be quantized; "smart": dense layers and convolutions, and others where
            they are between two of those.
        quantize_granularity: "tensor-wise"; "channel-wise" does the same, as in MXNet for operators that are not fused.
        LayerOutputCollector: an object with a method `collect(name, array)` and a dict `min_max_dict`, for "customize".
        logger: a logger, or None.

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
    _check(
        excluded_sym_names=excluded_sym_names, excluded_op_names=excluded_op_names, ctx=cpu() if ctx is None else ctx,
        quantized_dtype=quantized_dtype, quantize_granularity=quantize_granularity,
    )  # fmt: skip
    calibrated = calib_mode not in (None, "none")
    operators = [*(excluded_op_names or ()), *(() if calibrated else ("BatchNorm",))]
    params = set(arg_params)
    result, layers = _quantize_symbol(sym, excluded_sym_names or (), operators, params, quantized_dtype, quantize_mode)
    collector = _collector(calib_mode, quantized_dtype, layers, LayerOutputCollector, logger) if calibrated else None
    return result, _quantize_params(result, arg_params), aux_params, collector


def calib_graph(
    qsym: Symbol, arg_params: dict[str, Any], aux_params: dict[str, Any], collector: Any, calib_mode: str | None = "entropy",
    quantized_dtype: str = "int8", logger: Any = logging,
) -> tuple[Symbol, dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Write the ranges that a collector found into a quantized graph.

    Args:
        qsym: the graph that `quantize_graph` returned.
        arg_params: the float parameters, NDArrays by name.
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
    if calib_mode not in ("naive", "entropy", "customize"):
        raise ValueError(f"calib_mode is {calib_mode!r}, expected 'naive', 'entropy' or 'customize'")
    return _with_ranges(qsym, _ranges(collector, calib_mode, quantized_dtype)), _quantize_params(qsym, arg_params), aux_params


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
        data_names: not used: the names are those of `calib_data`.
        label_names: names of the labels.
        ctx: where the float network runs on `calib_data`; default: the CPU.
        calib_data: DataIter.
        num_calib_examples: number of examples after which the calibration ends; default: all.
        excluded_sym_names, excluded_op_names, calib_mode, quantized_dtype, quantize_mode, quantize_granularity, logger: as in
            `quantize_graph`.

    Returns:
        (graph, parameters, auxiliary states).

    Raises:
        ValueError: no DataIter for a calibration, or see `quantize_graph`.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
        >>> data = mx.io.NDArrayIter(np.float32([[1, 2, 3]]))
        >>> options = {"label_names": None, "calib_mode": "naive", "calib_data": data}
        >>> quantized = quantize_model(net, {"fc_weight": mx.nd.ones((2, 3))}, {}, **options)[0]
        >>> quantized.attr_dict()["requantize_fc"]["max_calib_range"]
        '6.000000'
    """
    if calib_mode not in (None, "none") and not isinstance(calib_data, DataIter):
        raise ValueError(f"calib_data is {type(calib_data).__name__}; calib_mode {calib_mode!r} needs a DataIter")
    ctx = cpu() if ctx is None else ctx
    result, params, _, collector = quantize_graph(
        sym, arg_params, aux_params, ctx, excluded_sym_names, excluded_op_names, calib_mode, quantized_dtype, quantize_mode,
        quantize_granularity, None, logger,
    )  # fmt: skip
    if collector is None:
        return result, params, aux_params
    _run_collector(sym, (arg_params, aux_params), label_names, ctx, calib_data, collector, num_calib_examples, logger)
    return calib_graph(result, arg_params, aux_params, collector, calib_mode, quantized_dtype)


def quantize_model_mkldnn(
    sym: Symbol, arg_params: dict[str, Any], aux_params: dict[str, Any], *args: Any, ctx: Any = None,
    quantized_dtype: str = "int8", **options: Any,
) -> tuple[Symbol, dict[str, Any], dict[str, Any]]:  # fmt: skip
    """`quantize_model` on a CPU: the same plain operators, always on int8.

    Args:
        sym: the graph.
        arg_params: parameters, NDArrays by name.
        aux_params: auxiliary states, NDArrays by name.
        args, options: further arguments of `quantize_model`.
        ctx: a CPU, where the float network runs on `calib_data`.
        quantized_dtype: not used.

    Returns:
        (graph, parameters, auxiliary states).

    Raises:
        ValueError: the context is no CPU, or see `quantize_model`.

    Example:
        >>> quantize_model_mkldnn(net, arg_params, aux_params, calib_mode="none")  # doctest: +SKIP
    """
    if ctx is not None and getattr(ctx, "device_type", "") != "cpu":
        raise ValueError(f"quantize_model_mkldnn is for one CPU, got ctx {ctx!r}; call quantize_model")
    return quantize_model(sym, arg_params, aux_params, *args, ctx=ctx, **options)


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
        quantize_mode, quantize_granularity, calib_mode, LayerOutputCollector, logger: as in `quantize_graph`.

    Returns:
        SymbolBlock.

    Raises:
        ValueError: neither shapes nor data, no data for a calibration, or see `quantize_graph`.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.gluon.nn.Dense(2, use_bias=False, in_units=3)
        >>> net.initialize("ones")
        >>> x = mx.nd.array([[1, 2, 3]])
        >>> quantize_net_v2(net, calib_data=[x], calib_mode="naive")(x).round().asnumpy().tolist()
        [[6.0, 6.0]]
    """
    _check(quantized_dtype=quantized_dtype)
    if calib_data is None and not data_shapes:
        raise ValueError("data_shapes are needed where there is no calib_data")
    network.hybridize()
    first = (data_shapes or _first_arrays(calib_data))[: len(network._call_arguments().inputs)]
    network(*[zeros(x.shape) for x in first])
    inputs, sym = network._cached_graph
    params = {name: p.list_data()[0] for name, p in network.collect_params().items()}
    aux = {name: params.pop(name) for name in sym.list_auxiliary_states()}
    parts = exclude_layers_match or ()
    excluded = [*(exclude_layers or ()), *(n.name for n in sym.nodes() if any(part in n.name for part in parts))]
    ctx = cpu() if ctx is None else ctx
    result, values, _, collector = quantize_graph(
        sym, params, aux, ctx, excluded, exclude_operators, calib_mode, "int8", quantize_mode, quantize_granularity,
        LayerOutputCollector, logger,
    )  # fmt: skip
    if collector is not None:
        if calib_data is None:
            raise ValueError(f"calib_mode {calib_mode!r} needs calib_data")
        data = _Batches(calib_data, [v.name for v in inputs])
        _run_collector(sym, (params, aux), None, ctx, data, collector, num_calib_examples, logger)
        result, values, _ = calib_graph(result, params, aux, collector, calib_mode)
    block = SymbolBlock(result, inputs)
    block.collect_params().load_dict({**values, **aux}, ctx, cast_dtype=True, dtype_source="saved")
    return block


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
