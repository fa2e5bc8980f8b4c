"""ONNX's operators in MXNet's: `OPERATORS`, from an operator to a function that composes one `onnx_import.Node`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jfit.export.nodes.core import TYPES
from jfit.export.nodes.elementwise import PLAIN
from jfit.export.nodes.rnn import ORDER
from jfit.mxnet import symbol as S
from jfit.mxnet.namespaces import PAIRS
from jfit.mxnet.symbol.symbol import operator

Node = Any  # onnx_import.Node
Convert = Callable[[Node], Any]  # returns a symbol, or a list with one for each output
Shapes = Sequence[Sequence[int]]  # one for each number in onnx_import.PROBES
FIX = "fix the shapes of the inputs"  # what to do, in errors
HINT = "export it with other operators, or run it in ONNX Runtime"
MOST = float(np.finfo(np.float32).max)
# Attributes for which only one value is supported.
REQUIRED = {
    "allowzero": 0, "antialias": 0, "approximate": "none", "broadcast": 0, "clip": 0.0, "exclusive": 0, "fmod": 0,
    "input_forget": 0, "keep_aspect_ratio_policy": "stretch", "layout": 0, "output_shape": None, "reduction": "none",
    "reverse": 0, "select_last_index": 0, "spatial": 1, "training_mode": 0,
}  # fmt: skip


# ------------------------------------------------------------------------------------------ elementwise, reductions
def _one(name: str, n: Node) -> Any:
    return getattr(S, name)(*n.all)


def _nary(stem: str, n: Node) -> Any:
    both, *scalars = PAIRS[stem]
    for i, name in enumerate(reversed(scalars)) if len(n.inputs) == 2 else ():
        value = n.constant(i)
        if value is not None and value.size == 1 and value.ndim <= n.rank(1 - i):
            return operator(name)(n[1 - i], scalar=value.item() * 1)  # True becomes 1
    return functools.reduce(operator(both), n.all)


def _power(n: Node) -> Any:
    number = n.constant(1)
    if number is not None and number.size == 1 and number >= 0 and number == np.round(number):
        return _nary("power", n)
    base, exponent = (np.dtype(x.infer_type()[1][0]) for x in n.all)
    if base.kind == exponent.kind:
        return _nary("power", n)
    return S.Cast(S.broadcast_power(*(S.Cast(x, dtype="float32") for x in n.all)), dtype=base.name)


def _where(n: Node) -> Any:
    like = functools.reduce(S.broadcast_add, map(S.zeros_like, n.all))
    return S.where(*(S.broadcast_like(x, like) for x in n.all))


def _reduce(name: str, n: Node, before: Any = lambda x: x, after: Any = lambda x: x) -> Any:
    axes, data = n.option("axes", 1) or (), before(n[0])
    kept = not axes and n.get("noop_with_empty_axes")
    return after(data if kept else getattr(S, name)(data, axis=tuple(axes), keepdims=bool(n.get("keepdims", 1))))


def _log_sum_exp(n: Node) -> Any:
    own = {"axis": tuple(n.option("axes", 1) or ()), "keepdims": True}
    n.need(own["axis"] or not n.get("noop_with_empty_axes"), "has noop_with_empty_axes")
    top = S.clip(S.max(n[0], **own), a_min=-MOST, a_max=MOST)
    out = S.broadcast_add(top, S.log(S.sum(S.exp(S.broadcast_sub(n[0], top)), **own)))
    return out if n.get("keepdims", 1) else S.sum(out, axis=own["axis"])


def _arg(name: str, n: Node) -> Any:
    return S.Cast(getattr(S, name)(n[0], axis=n.get("axis", 0), keepdims=bool(n.get("keepdims", 1))), dtype="int64")


def _softmax(name: str, n: Node) -> Any:
    axis = n.get("axis", 1 if n.opset < 13 else -1) % n.rank()
    if n.opset >= 13 or axis == n.rank() - 1:
        return getattr(S, name)(n[0], axis=axis)
    return S.reshape_like(getattr(S, name)(_matrix(n, axis), axis=-1), n[0])  # over this axis and those behind it


# ------------------------------------------------------------------------------------------ shapes
def _reshaped(n: Node, targets: Shapes) -> Any:
    """Reshape input 0 to one shape for each number in PROBES."""
    codes = []
    for axis, sizes in enumerate(zip(*targets, strict=True)):
        kept = all(tuple(old[axis : axis + 1]) == (size,) for old, size in zip(n.shapes(), sizes, strict=True))
        codes.append(sizes[0] if len(set(sizes)) == 1 else 0 if kept else -1)
    if codes.count(-1) > 1:
        like = [x for x in n.reader.symbols.values() if [*map(tuple, targets)] == n.reader.shapes(x)]
        n.need(like, f"reshapes to {codes}, with several unknown sizes", FIX)
        return S.reshape_like(n[0], like[0])
    return S.Reshape(n[0], shape=tuple(codes))


def _reshape(n: Node) -> Any:
    shape = n.constant(1)
    if shape is not None:
        return S.Reshape(n[0], shape=tuple(shape.tolist()) or (1,))
    pairs = [(s, [int(d or s[i]) for i, d in enumerate(v)]) for s, v in zip(n.shapes(), n.values(1), strict=True)]
    return _reshaped(n, [[d if d > 0 else math.prod(s) // -math.prod(v) for d in v] for s, v in pairs])


def _matrix(n: Node, axis: int) -> Any:
    return _reshaped(n, [(math.prod(s[:axis]), math.prod(s[axis:])) for s in n.shapes()])


def _flatten(n: Node) -> Any:
    axis = n.get("axis", 1)
    return S.Flatten(n[0]) if axis == 1 else _matrix(n, axis + n.rank() if axis < 0 else axis)


def _expanded(n: Node, x: Any, olds: Shapes, outs: Shapes) -> Any:
    """Broadcast an array of the shapes `olds` to the shapes `outs`."""
    missing = len(outs[0]) - max(len(olds[0]), 1)
    x = functools.reduce(lambda x, _: S.expand_dims(x, axis=0), range(missing), x)
    for axis, sizes in enumerate(zip(*outs, strict=True)):
        if len(set(sizes)) > 1 and (axis < missing or olds[0][axis - missing] == 1):
            like, at = n.like(sizes)
            x = S.broadcast_like(x, like, lhs_axes=(axis,), rhs_axes=(at,))
    return S.broadcast_to(x, shape=tuple(s[0] if len(set(s)) == 1 else 0 for s in zip(*outs, strict=True)))


def _expand(n: Node) -> Any:
    olds = [s or (1,) for s in n.shapes()]
    return _expanded(n, n[0], olds, [np.broadcast_shapes(s, tuple(v)) for s, v in zip(olds, n.values(1), strict=True)])


def _filled(n: Node) -> Any:
    """Convert ConstantOfShape, if the shape depends on sizes of the inputs."""
    value = n.reader.array(n.attrs["value"]) if "value" in n.attrs else np.zeros(1, np.float32)
    return _expanded(n, S.full((1,), value.item(), dtype=value.dtype.name), [(1,)], n.values(0))


def _range(n: Node) -> Any:
    start, step = n.option("start", 0), n.option("delta", 2)
    like, axis = n.like([math.ceil((end.item() - start) / step) for end in n.values(1)])
    return S.contrib.arange_like(like, axis=axis, start=start, step=step)


def _trilu(n: Node) -> Any:
    numbers = S.Cast(n[0], dtype="float32")  # bool cannot hold the numbers of rows and columns
    rows, columns = (S.contrib.arange_like(numbers, axis=n.rank() + axis) for axis in (-2, -1))
    above = S.broadcast_sub(S.expand_dims(columns, axis=0), S.expand_dims(rows, axis=1)) - n.option("k", 1, 0)
    kept = above >= 0 if n.get("upper", 1) else above <= 0
    return S.where(S.broadcast_like(kept, n[0]), n[0], S.zeros_like(n[0]))


def _unsqueeze(n: Node) -> Any:
    axes = n.option("axes", 1)
    if n.rank() == 0 or n.inputs[0] in n.reader.scalars:
        return S.Reshape(n[0], shape=(1,) * len(axes))
    return functools.reduce(lambda x, axis: S.expand_dims(x, axis=axis), sorted(a % (n.rank() + len(axes)) for a in axes), n[0])


def _split(n: Node) -> Any:
    sizes = n.option("split", 1)
    return S.split_v2(n[0], tuple(np.cumsum(sizes[:-1]).tolist()) if sizes else n.outputs, axis=n.get("axis", 0))


def _slice(n: Node) -> Any:
    starts, ends = (n.values(i) if n.has(i) else [n.attrs[key]] * len(n.shapes()) for key, i in (("starts", 1), ("ends", 2)))
    axes, data, bounds = n.option("axes", 3, range(len(starts[0]))), n[0], [(None, None, None)] * n.rank()
    for k, (axis, step) in enumerate(zip(axes, n.option("steps", 4, [1] * len(axes)), strict=True)):
        first, last = (_bound(n, axis, [int(v[k]) for v in values], values is ends) for values in (starts, ends))
        if last is math.nan:  # its length is that of an axis of another array
            n.need(step == 1 and isinstance(first, int) and first >= 0, "cuts at open sizes, with a step or from the end")
            like, at = n.like([int(b[k] - a[k]) for a, b in zip(starts, ends, strict=True)])
            data = S.SwapAxis(S.slice_axis(data, axis=axis, begin=first, end=None), dim1=0, dim2=axis)
            data = S.SwapAxis(S.slice_like(data, S.SwapAxis(like, dim1=0, dim2=at), axes=(0,)), dim1=0, dim2=axis)
        else:
            if step < 0 and first is not None and len({s[axis] for s in n.shapes()}) == 1:
                first = max(first, -n.shapes()[0][axis])  # backwards from before the data is from its first entry
            bounds[axis] = first, last, step
    return S.slice(data, **dict(zip(("begin", "end", "step"), zip(*bounds, strict=True), strict=True)))


def _bound(n: Node, axis: int, values: Sequence[int], end: bool) -> float | None:
    """Return a bound of a slice: a number, None (the end of the axis), or nan (the size of another axis)."""
    if len({*values}) == 1:
        return values[0]
    behind = [v - s[axis] for v, s in zip(values, n.shapes(), strict=True)]
    n.need(min(values) >= 0 and max(behind) <= end - 1, "has bounds that are negative or behind the data for some sizes", FIX)
    return (behind[0] or None) if len({*behind}) == 1 else math.nan


def _pad(n: Node) -> Any:
    n.need(not n.has(3), "has axes")
    widths, value = np.reshape(n.option("pads", 1), (2, -1)).T, n.option("value", 2, 0)
    begin, end = zip(*[(max(-b, 0) or None, min(e, 0) or None) for b, e in widths.tolist()], strict=True)
    data = S.slice(n[0], begin=begin, end=end) if widths.min() < 0 else n[0]  # negative widths cut entries off
    own = {"pad_width": np.maximum(widths, 0).ravel().tolist(), "constant_value": np.ravel(value)[0]}
    return S.Pad(data, mode=n.get("mode", "constant"), **own)


def _depth_to_space(n: Node) -> Any:
    size = n.attrs["blocksize"]
    if n.get("mode", "DCR") == "DCR":
        return S.depth_to_space(n[0], block_size=size)
    parts = S.Reshape(S.Reshape(n[0], shape=(0, -4, -1, size * size, 0, 0)), shape=(0, 0, -4, size, size, 0, 0))
    return S.Reshape(S.transpose(parts, axes=(0, 1, 4, 2, 5, 3)), shape=(0, 0, -3, -3))


# ------------------------------------------------------------------------------------------ indexing
def _gather(n: Node) -> Any:
    axis, index = n.get("axis", 0), n.constant(1)
    if index is None or index.ndim:
        taken = S.take(n[0], n[1], axis=axis, mode="wrap")
        return taken if n.rank(1) else S.squeeze(taken, axis=(axis,))
    begin = index.item()
    return S.squeeze(S.slice_axis(n[0], axis=axis, begin=begin, end=None if begin == -1 else begin + 1), axis=(axis,))


def _axis_of_indices(n: Node) -> int:
    """Return the axis along which data and indices, input 1, may have different sizes."""
    axis = n.get("axis", 0) % n.rank()
    sizes = [[s[:axis] + s[axis + 1 :] for s in n.shapes(i)] for i in (0, 1)]
    n.need(
        sizes[0] == sizes[1], f"has indices of shape {n.shapes(1)[0]} for data of shape {n.shapes()[0]}, which differ elsewhere"
    )
    return axis


def _gather_elements(n: Node) -> Any:
    axis = _axis_of_indices(n)
    parts = S.SliceChannel(n[1], num_outputs=n.shapes(1)[0][axis], axis=axis, squeeze_axis=True)
    return S.Concat(*(S.pick(n[0], part, axis=axis, keepdims=True, mode="wrap") for part in parts), dim=axis)


def _gather_nd(n: Node) -> Any:
    batch, shape = n.get("batch_dims", 0), n.shapes(1)[0]
    n.need(not batch or (batch == 1 and shape[1:] == (1,)), f"has batch_dims={batch} and indices of shape {shape}")
    if batch:
        n.need(len({s[1] for s in n.shapes()}) == 1, "has batch_dims=1 and an open axis", FIX)
        places = S.Reshape(n[1] % n.shapes()[0][1] + 1, shape=(-1,))
        return S.SequenceLast(n[0], places, use_sequence_length=True, axis=1)
    return S.gather_nd(n[0], S.transpose(n[1], axes=(len(shape) - 1, *range(len(shape) - 1))))


def _scatter_elements(n: Node) -> Any:
    """Scatter along one axis, moved to the end, where one-hot vectors say which update goes to which entry."""
    axis, last = _axis_of_indices(n), n.rank() - 1
    n.need(len({s[axis] for s in n.shapes()}) == 1, "scatters along an open axis", FIX)
    data, indices, updates = (S.SwapAxis(x, dim1=axis, dim2=last) for x in n.all)
    places = S.one_hot(indices % n.shapes()[0][axis], depth=n.shapes()[0][axis])
    # no product of both, because an update may be infinite
    values = S.where(places, S.broadcast_like(S.expand_dims(updates, axis=-1), places), S.zeros_like(places))
    return S.SwapAxis(S.where(S.max(places, axis=last), S.sum(values, axis=last), data), dim1=axis, dim2=last)


def _topk(n: Node) -> Any:
    count, rising = np.ravel(n.option("k", 1)).tolist()[0], not n.get("largest", 1)
    return S.topk(n[0], k=count, axis=n.get("axis", -1), ret_typ="both", is_ascend=rising, dtype="int64")


# ------------------------------------------------------------------------------------------ layers
def _gemm(n: Node) -> Any:
    alpha, beta, flips, rows = n.get("alpha", 1), n.get("beta", 1), (n.get("transA", 0), n.get("transB", 0)), n.shapes(1)[0][0]
    if (alpha, beta, *flips) == (1, 1, 0, 1) and (not n.has(2) or n.shapes(2)[0] == (rows,)):
        return S.FullyConnected(*n.all, num_hidden=rows, no_bias=not n.has(2))
    out = S.dot(n[0], n[1], transpose_a=bool(flips[0]), transpose_b=bool(flips[1])) * alpha
    return S.broadcast_add(out, n[2] * beta) if n.has(2) else out


def _window(n: Node, kernel: Sequence[int]) -> tuple[Any, ...]:
    """Return (strides, dilations, paddings at the begin, at the end) of a convolution or pooling."""
    count, mode = len(kernel), n.get("auto_pad", "NOTSET")
    stride, dilate = (tuple(n.get(key) or (1,) * count) for key in ("strides", "dilations"))
    pads = tuple(n.get("pads") or (0,) * 2 * count)
    if mode.startswith("SAME"):
        open_sizes = len({s[2:] for s in n.shapes()}) > 1 and max(stride) > 1
        n.need(not open_sizes and n.kind != "ConvTranspose", f"has auto_pad={mode} and strides, for images of any size", FIX)
        axes = zip(n.shapes()[0][2:], stride, kernel, dilate, strict=True)
        totals = [max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0) for size, s, k, d in axes]
        small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
        pads = small + large if mode == "SAME_UPPER" else large + small
    return stride, dilate, pads[:count], pads[count:]


def _even(x: Any, begins: Sequence[int], ends: Sequence[int], value: Any = 0) -> tuple[Any, Sequence[int]]:
    """Return (array, symmetric padding); a separate node pads where the sides differ."""
    width = (0, 0, 0, 0, *(p for pair in zip(begins, ends, strict=True) for p in pair))
    even = begins == ends
    return (x, begins) if even else (S.Pad(x, mode="constant", pad_width=width, constant_value=value), (0,) * len(begins))


def _conv(n: Node) -> Any:
    (rows, _, *kernel), group = n.shapes(1)[0], n.get("group", 1)
    stride, dilate, begins, ends = _window(n, kernel)
    data, pad = _even(n[0], begins, ends)
    own = {"kernel": kernel, "stride": stride, "dilate": dilate, "pad": pad}
    return S.Convolution(data, *n.all[1:], num_filter=rows, num_group=group, no_bias=not n.has(2), **own)


def _conv_transpose(n: Node) -> Any:
    """Convert to Deconvolution, whose `pad` crops both sides, and `adj` adds at the end."""
    (_, columns, *kernel), group = n.shapes(1)[0], n.get("group", 1)
    stride, dilate, begins, ends = _window(n, kernel)
    extra = [b - e + o for b, e, o in zip(begins, ends, n.get("output_padding") or [0] * len(kernel), strict=True)]
    own = {"kernel": kernel, "stride": stride, "dilate": dilate, "pad": begins, "adj": [max(e, 0) for e in extra]}
    out = S.Deconvolution(*n.all, num_filter=columns * group, num_group=group, no_bias=not n.has(2), **own)
    cuts = [(axis, size) for axis, size in enumerate(extra, 2) if size < 0]
    return functools.reduce(lambda x, cut: S.slice_axis(x, axis=cut[0], begin=0, end=cut[1]), cuts, out)


def _pool(kind: str, n: Node) -> Any:
    kernel, full, inside = tuple(n.attrs["kernel_shape"]), bool(n.get("ceil_mode")), bool(n.get("count_include_pad"))
    stride, dilate, begins, ends = _window(n, kernel)
    behind = full and any(end + s > k for end, s, k in zip(ends, stride, kernel, strict=True))
    n.need(max(dilate) == 1 and not behind, "has dilations, or ceil_mode and windows behind the data")
    own = {"kernel": kernel, "stride": stride, "pooling_convention": "full" if full else "valid", "p_value": n.get("p", 2)}

    def pooled(x: Any, inside: bool) -> Any:
        x, pad = _even(S.abs(x) if kind == "lp" else x, begins, ends, -MOST if kind == "max" else 0)
        return S.Pooling(x, **own, pad=pad, pool_type=kind, count_include_pad=inside)

    means = kind == "avg" and not inside and begins != ends  # the zeros that the separate node pads do not count
    return pooled(n[0], True) / pooled(S.ones_like(n[0]), True) if means else pooled(n[0], inside)


def _global_pool(kind: str, n: Node) -> Any:
    data, own = S.abs(n[0]) if kind == "lp" else n[0], {"pool_type": kind, "p_value": n.get("p", 2)}
    return S.Pooling(data, global_pool=True, kernel=(1,) * (n.rank() - 2), **own)


def _resize(n: Node) -> Any:
    first, mode, olds = n.opset < 11, n.get("mode", "nearest"), n.shapes()
    how = n.get("coordinate_transformation_mode", "asymmetric" if first else "half_pixel")
    near = n.get("nearest_mode", "floor" if first else "round_prefer_floor")
    n.need(n.get("axes") is None, "has axes")
    if n.has(3):
        news = [tuple(map(float, sizes)) for sizes in n.values(3)]
    else:
        scales = np.array(n.option("scales", 1 if first else 2), np.float32)
        news = [tuple((np.array(old, np.float32) * scales).tolist()) for old in olds]
    factors = [{new[i] / old[i] for old, new in zip(olds, news, strict=True)} for i in range(n.rank())]
    n.need(factors[:2] == [{1}, {1}], "resizes the axes 0 or 1")
    copies = mode == "nearest" and (how, near) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
    if copies and all(len(factor) == 1 and min(factor).is_integer() for factor in factors):
        return functools.reduce(lambda x, i: S.repeat(x, repeats=int(min(factors[i])), axis=i), range(2, n.rank()), n[0])
    linear = mode == "linear" and how in ("align_corners", "half_pixel") and len({new[2:] for new in news}) == 1
    exact = linear and n.rank() == 4 and all(map(float.is_integer, news[0]))
    exact = exact and (how == "align_corners" or 1 not in news[0][2:])
    n.need(exact, f"resizes {olds} to {news}, {mode!r}, {how!r}, {near!r}")
    height, width = map(int, news[0][2:])
    return S.contrib.BilinearResize2D(n[0], height=height, width=width, align_corners=how == "align_corners")


def _roi_align(n: Node) -> Any:
    n.need(n.get("mode", "avg") == "avg", "has mode='max'")
    rois = S.Concat(S.Cast(S.expand_dims(n[2], axis=1), dtype="float32"), n[1], dim=1)
    aligned = n.get("coordinate_transformation_mode", "half_pixel") == "half_pixel" and n.opset >= 16
    own = {"spatial_scale": n.get("spatial_scale", 1.0), "sample_ratio": n.get("sampling_ratio") or -1, "aligned": aligned}
    return S.contrib.ROIAlign(n[0], rois, pooled_size=(n.get("output_height", 1), n.get("output_width", 1)), **own)


def _lrn(n: Node) -> Any:
    n.need(n.attrs["size"] % 2, "has an even size", "export it with an odd one")
    return S.LRN(n[0], alpha=n.get("alpha", 1e-4), beta=n.get("beta", 0.75), knorm=n.get("bias", 1.0), nsize=n.attrs["size"])


def _layer_norm(n: Node) -> Any:
    n.need(n.get("axis", -1) % n.rank() == n.rank() - 1, "normalizes over several axes")
    return S.LayerNorm(n[0], n[1], n[2] if n.has(2) else S.zeros_like(n[1]), axis=-1, eps=n.get("epsilon", 1e-5))


def _recurrent(n: Node) -> Any:
    (directions, _, hidden), names = n.shapes(2)[0], [name.decode() for name in n.get("activations", ())]
    mode = n.kind.lower() if n.kind != "RNN" else f"rnn_{(names or ['Tanh'])[0].lower()}"
    gates = names[:1] if n.kind == "RNN" else ["Sigmoid", "Tanh", "Tanh"][: 2 + (n.kind == "LSTM")]
    usual = names in ([], gates * directions) and mode in ORDER and (n.kind != "GRU" or n.get("linear_before_reset"))
    n.need(usual and n.get("direction") != "reverse" and not n.has(7), "has attributes that MXNet's RNN lacks")
    order, weights = np.argsort(ORDER[mode]), [n.values(i)[0] for i in (1, 2)]
    bias = n.values(3)[0] if n.has(3) else np.zeros((directions, 2 * len(order) * hidden), np.float32)
    parts = [w[d] for d in range(directions) for w in weights] + [half for row in bias for half in np.split(row, 2)]
    values = np.concatenate([part.reshape(len(order), -1)[order].reshape(-1) for part in parts])
    flat = n.reader.parameter(f"{n.name}_parameters", values)
    zeros = S.sum(S.zeros_like(n[0]), axis=(0, 2), keepdims=True)
    states = [n[i] if n.has(i) else S.broadcast_axis(zeros, axis=(0, 2), size=(directions, hidden)) for i in (5, 6)]
    own = {"state_size": hidden, "num_layers": 1, "mode": mode, "bidirectional": directions == 2, "state_outputs": True}
    own |= {"sequence_length": n[4], "use_sequence_length": True} if n.has(4) else {}
    out, *ends = S.RNN(n[0], flat, *states[: 1 + (n.kind == "LSTM")], **own)
    return [S.transpose(S.Reshape(out, shape=(0, 0, -4, directions, -1)), axes=(0, 2, 1, 3)), *ends]


# ------------------------------------------------------------------------------------------ the table
DTYPES = {number: name for name, number in TYPES.items()}
STEMS = """
Add=add Sub=subtract Mul=multiply Div=divide Mod=modulo Max=maximum Min=minimum Sum=add Equal=equal Greater=greater
GreaterOrEqual=greater_equal Less=lesser LessOrEqual=lesser_equal And=logical_and Or=logical_or Xor=logical_xor
"""
POOLS = {"Average": "avg", "Lp": "lp", "Max": "max"}
_of = functools.partial
OPERATORS: dict[str, Convert] = {
    **{theirs: _of(_one, ours) for ours, theirs in reversed(PLAIN.items())},
    **{name: _of(_nary, stem) for name, stem in (pair.split("=") for pair in STEMS.split())},
    **{f"Reduce{name}": _of(_reduce, name.lower()) for name in ("Sum", "Mean", "Prod", "Max", "Min")},
    "ReduceL1": _of(_reduce, "sum", before=S.abs), "ReduceL2": _of(_reduce, "sum", before=S.square, after=S.sqrt),
    "ReduceLogSum": _of(_reduce, "sum", after=S.log), "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": _of(_reduce, "sum", before=S.square), "Softmax": _of(_softmax, "softmax"),
    "LogSoftmax": _of(_softmax, "log_softmax"), "ArgMax": _of(_arg, "argmax"), "ArgMin": _of(_arg, "argmin"),
    "Not": _of(_one, "logical_not"), "Size": _of(_one, "size_array"),
    **{f"{name}Pool": _of(_pool, kind) for name, kind in POOLS.items()},
    **{f"Global{name}Pool": _of(_global_pool, kind) for name, kind in POOLS.items()},
    "Conv": _conv, "ConvTranspose": _conv_transpose, "ConstantOfShape": _filled, "DepthToSpace": _depth_to_space,
    "Expand": _expand, "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd, "Gemm": _gemm,
    "GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent, "LayerNormalization": _layer_norm, "Pad": _pad, "Pow": _power,
    "Range": _range, "Reshape": _reshape, "Resize": _resize, "Upsample": _resize, "RoiAlign": _roi_align, "Slice": _slice,
    "Split": _split, "ScatterElements": _scatter_elements, "TopK": _topk, "Trilu": _trilu, "Unsqueeze": _unsqueeze,
    "Where": _where, "Flatten": _flatten, "LRN": _lrn,
    "BatchNormalization": lambda n: S.BatchNorm(
        *n.all, eps=n.get("epsilon", 1e-5), momentum=n.get("momentum", 0.9), fix_gamma=False),
    "Cast": lambda n: S.Cast(n[0], dtype=DTYPES[n.attrs["to"]]),
    "Clip": lambda n: S.clip(n[0], a_min=n.option("min", 1, -math.inf), a_max=n.option("max", 2, math.inf)),
    "Concat": lambda n: S.Concat(*n.all, dim=n.attrs["axis"]),
    "CumSum": lambda n: S.cumsum(n[0], axis=np.ravel(n.option("axis", 1)).tolist()[0]),
    "Dropout": lambda n: S.Dropout(n[0], p=n.option("ratio", 1, 0.5)),
    "Elu": lambda n: S.LeakyReLU(n[0], act_type="elu", slope=n.get("alpha", 1.0)),
    "Gelu": lambda n: S.LeakyReLU(n[0], act_type="gelu"),
    "HardSigmoid": lambda n: S.hard_sigmoid(n[0], alpha=n.get("alpha", 0.2), beta=n.get("beta", 0.5)),
    "HardSwish": lambda n: n[0] * S.hard_sigmoid(n[0], alpha=1 / 6, beta=0.5),
    "InstanceNormalization": lambda n: S.InstanceNorm(*n.all, eps=n.get("epsilon", 1e-5)),
    "IsNaN": lambda n: S.broadcast_not_equal(n[0], n[0]),
    "LeakyRelu": lambda n: S.LeakyReLU(n[0], act_type="leaky", slope=n.get("alpha", 0.01)),
    "LpNormalization": lambda n: S.broadcast_div(n[0], S.norm(n[0], ord=n.get("p", 2), axis=n.get("axis", -1), keepdims=True)),
    "MatMul": lambda n: S.dot(*n.all) if n.rank(1) < 3 else S.batch_dot(*n.all),
    "MaxRoiPool": lambda n: S.ROIPooling(*n.all, pooled_size=n.attrs["pooled_shape"], spatial_scale=n.get("spatial_scale", 1)),
    "Mean": lambda n: functools.reduce(S.broadcast_add, n.all) / len(n.inputs),
    "Mish": lambda n: n[0] * S.tanh(S.Activation(n[0], act_type="softrelu")),
    "PRelu": lambda n: S.broadcast_add(S.relu(n[0]), S.broadcast_mul(n[1], S.clip(n[0], a_min=-math.inf, a_max=0))),
    "ReverseSequence": lambda n: S.SequenceReverse(n[0], n[1], use_sequence_length=True, axis=n.get("time_axis", 0)),
    "Selu": lambda n: n.get("gamma", 1.050701) * S.LeakyReLU(n[0], act_type="elu", slope=n.get("alpha", 1.6732632)),
    "Shape": lambda n: S.slice_axis(S.shape_array(n[0]), axis=0, begin=n.get("start", 0), end=n.get("end")),
    "Softplus": lambda n: S.Activation(n[0], act_type="softrelu"),
    "SpaceToDepth": lambda n: S.space_to_depth(n[0], block_size=n.attrs["blocksize"]),
    "Squeeze": lambda n: S.squeeze(n[0], axis=n.option("axes", 1)),
    "Tile": lambda n: S.tile(n[0], reps=n.option("repeats", 1)),
    "Transpose": lambda n: S.transpose(n[0], axes=n.get("perm")),
}  # fmt: skip
