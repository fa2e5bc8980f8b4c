"""Convolution and transposed convolution in one, two and three dimensions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, flag, integer, maybe_choice, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import Shape, operator
from jfit.ops.rules import CHANNELS_FIRST, along, batch_rows

LAYOUTS = ("NCDHW", "NCHW", "NCW", "NDHWC", "NHWC")


def _spatial(attrs: Attrs, key: str, default: int) -> tuple[int, ...]:
    """An attribute with one entry per spatial axis; empty means the default."""
    given, dims = attrs[key], len(attrs.kernel)
    if given and len(given) != dims:
        raise ValueError(f"{key} is {given}, needed {dims} entries because kernel is {attrs.kernel}")
    return given or (default,) * dims


def _layout(op: str, attrs: Attrs) -> str:
    dims = len(attrs.kernel)
    if dims not in CHANNELS_FIRST:
        raise ValueError(f"{op}: kernel is {attrs.kernel}, needed one to three entries")
    layout = attrs.layout or CHANNELS_FIRST[dims]
    if len(layout) != dims + 2:
        raise ValueError(f"{op}: layout is {layout} and kernel is {attrs.kernel}; needed one kernel entry per spatial axis")
    return layout


def _channels(op: str, attrs: Attrs, data: tuple[int, ...]) -> int:
    layout = _layout(op, attrs)
    if len(data) != len(layout):
        raise ValueError(
            f"{op}: data has shape {data}, needed {len(layout)} axes {layout} because kernel is {attrs.kernel}; "
            "reshape the data or fix kernel"
        )
    channels = data[layout.index("C")]
    for what, count in (("data channels", channels), ("num_filter", attrs.num_filter)):
        if count % max(attrs.num_group, 1):
            raise ValueError(
                f"{op}: {what} {count} cannot be split into num_group={attrs.num_group} groups; change one of them"
            )
    return channels


def _weight_shape(layout: str, first: int, second: int, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Channels-last layouts keep their second channel axis at the end of the weight too."""
    return (first, second, *kernel) if layout[1] == "C" else (first, *kernel, second)


def _bias(attrs: Attrs) -> list:
    return [] if attrs.no_bias else [(attrs.num_filter,)]


def _inputs(attrs: Attrs) -> tuple[str, ...]:
    return ("data", "weight") if attrs.no_bias else ("data", "weight", "bias")


def _batch_known(data: tuple[int, ...] | None, outs: list) -> tuple[int, ...] | None:
    """The data with the batch of the output where its own is open (begin states of convolutional cells)."""
    if data and not data[0] and outs and outs[0]:
        return (outs[0][0], *data[1:])
    return data


def _conv_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data = _batch_known(ins[0], outs)
    if data is None:
        return [None, ins[1], *_bias(attrs)]
    per_group = _channels("Convolution", attrs, data) // attrs.num_group
    weight = _weight_shape(_layout("Convolution", attrs), attrs.num_filter, per_group, attrs.kernel)
    return [data, weight, *_bias(attrs)]


def _deconv_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data = _batch_known(ins[0], outs)
    if data is None:
        return [None, ins[1], *_bias(attrs)]
    channels = _channels("Deconvolution", attrs, data)
    weight = _weight_shape(_layout("Deconvolution", attrs), channels, attrs.num_filter // attrs.num_group, attrs.kernel)
    return [data, weight, *_bias(attrs)]


def _attributes(workspace: int, no_bias: bool) -> dict:
    return {
        "kernel": shape(),
        "stride": shape(()),
        "dilate": shape(()),
        "pad": shape(()),
        "num_filter": integer(),
        "num_group": integer(1),
        "workspace": integer(workspace),
        "no_bias": flag(no_bias),
        "cudnn_tune": maybe_choice("fastest", "limited_workspace", "off"),
        "cudnn_off": flag(False),
        "layout": maybe_choice(*LAYOUTS),
    }


def _runs_in(ctx: Ctx, layout: str) -> str:
    """The layout the data really has: the lowering may hand over (N, H, W, C) for a graph that says (N, C, H, W)."""
    return "NHWC" if ctx.channels_last else layout


def _kernel_last(weight: Array) -> Array:
    """(out, in, *kernel) -> (*kernel, in, out)."""
    return jnp.transpose(weight, (*range(2, weight.ndim), 1, 0))


def _convolve(data: Array, weight: Array, layout: str, stride, pads, dilate, groups: int, spread=None) -> Array:
    """Convolve with a weight of shape (out, in / groups, *kernel), whatever the layout of the data."""
    last = layout[-1] == "C"
    axes = layout.strip("NC")
    spec = (layout, axes + "IO" if last else "OI" + axes, layout)
    return lax.conv_general_dilated(
        data,
        _kernel_last(weight) if last else weight,
        stride,
        pads,
        lhs_dilation=spread,
        rhs_dilation=dilate,
        dimension_numbers=spec,
        feature_group_count=groups,
    )


SLICES = 8  # of the batch, in the weight gradient on CPU; 16 are 3 to 5 % faster and compile twice as long


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve_sliced(pads: tuple[tuple[int, int], ...], data: Array, weight: Array) -> Array:
    """Stride-1 convolution of (N, H, W, C) whose weight gradient is summed over slices of the batch.

    On CPU that gradient is the slowest part of a step; summed slice by slice it takes half the time (LeNet, batch 128).
    """
    return _convolve(data, weight, "NHWC", (1, 1), pads, (1, 1), 1)


def _sliced_forward(pads, data, weight):
    return _convolve_sliced(pads, data, weight), (data, weight)


def _sliced_backward(pads, kept, grad):
    data, weight = kept
    d_data = jax.vjp(lambda x: _convolve(x, weight, "NHWC", (1, 1), pads, (1, 1), 1), data)[1](grad)[0]

    def part(x: Array, g: Array) -> Array:
        # Channels become the batch and rows the channels.  Without the barriers XLA folds the transposes into the
        # convolution, which then misses its fast form inside a loop.
        x = lax.optimization_barrier(jnp.transpose(x, (3, 1, 2, 0)))
        g = lax.optimization_barrier(jnp.transpose(g, (1, 2, 0, 3)))
        return lax.conv_general_dilated(x, g, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    # Written out and not a scan: the slices then run beside each other on several cores (LeNet on two: 0.99 of the
    # speed of a hand-written loop, the scan 0.92).
    parts = zip(jnp.split(data, SLICES), jnp.split(grad, SLICES), strict=True)
    total = functools.reduce(jnp.add, [part(x, g) for x, g in parts])  # (channels, *kernel, filters)
    return d_data, jnp.transpose(total, (3, 0, 1, 2))


_convolve_sliced.defvjp(_sliced_forward, _sliced_backward)


def _slices_help(data: Array, runs: str, stride, dilate, groups: int) -> bool:
    """Where the sliced gradient was measured to be faster: large batches of (N, H, W, C) on CPU in float32."""
    plain = groups == 1 and stride == (1, 1) and dilate == (1, 1)
    rows = data.shape[0]
    even = isinstance(rows, int) and rows >= 4 * SLICES and rows % SLICES == 0  # an exported program may leave rows open
    return plain and even and runs == "NHWC" and data.dtype == jnp.float32 and jax.default_backend() == "cpu"


def _conv_made(attrs: Attrs, shapes: Sequence[Shape]) -> list[Shape] | None:
    """The output of a convolution that fits; any other is traced, which says what is wrong."""
    data, layout = shapes[0], _layout("Convolution", attrs)
    if list(shapes) != _conv_fill(attrs, [data, None, None], []):
        return None
    axes = [layout.index(letter) for letter in layout if letter not in "NC"]
    options = zip(
        axes, attrs.kernel, *(_spatial(attrs, k, d) for k, d in (("stride", 1), ("pad", 0), ("dilate", 1))), strict=True
    )
    out = [attrs.num_filter if letter == "C" else size for letter, size in zip(layout, data, strict=True)]
    for axis, kernel, stride, pad, dilate in options:
        out[axis] = (data[axis] + 2 * pad - dilate * (kernel - 1) - 1) // stride + 1
    return [tuple(out)] if min(out) > 0 else None


@operator(
    "Convolution_v1",
    inputs=_inputs,
    attrs=_attributes(1024, no_bias=False),
    fill=_conv_fill,
    rows=batch_rows,
    layout="channels",
)
@operator(
    "Convolution",
    inputs=_inputs,
    attrs=_attributes(1024, no_bias=False),
    aliases=("_npx_convolution",),
    fill=_conv_fill,
    made=_conv_made,
    rows=batch_rows,
    layout="channels",
)
def convolution(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, bias: Array | None = None) -> Array:
    """y[o] = Σᵢ w[o, i] ⋆ x[i] + b[o] (cross-correlation), weight (num_filter, channels / num_group, *kernel)."""
    layout = _layout("Convolution", attrs)
    if layout[-1] == "C":
        weight = jnp.moveaxis(weight, -1, 1)
    runs = _runs_in(ctx, layout)
    stride, dilate = _spatial(attrs, "stride", 1), _spatial(attrs, "dilate", 1)
    pads = tuple((p, p) for p in _spatial(attrs, "pad", 0))
    weight = weight.astype(data.dtype)
    if _slices_help(data, runs, stride, dilate, attrs.num_group):
        out = cast(Array, _convolve_sliced(pads, data, weight))
    else:
        out = _convolve(data, weight, runs, stride, pads, dilate, attrs.num_group)
    return out if bias is None else out + along(bias.astype(out.dtype), runs.index("C"), out.ndim)


def _deconv_pads(attrs: Attrs, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """(pad, adj) of each spatial axis; target_shape, where given, decides both."""
    stride, dilate = _spatial(attrs, "stride", 1), _spatial(attrs, "dilate", 1)
    if not any(attrs.target_shape):
        adj = _spatial(attrs, "adj", 0)
        for a, s in zip(adj, stride, strict=True):
            if a >= s:
                raise ValueError(f"Deconvolution: adj is {adj}, needed less than stride {stride} on every axis")
        return list(zip(_spatial(attrs, "pad", 0), adj, strict=True))
    found = []
    for n, s, d, k, target in zip(sizes, stride, dilate, attrs.kernel, _spatial(attrs, "target_shape", 0), strict=True):
        full = s * (n - 1) + d * (k - 1) + 1
        if target > full:
            raise ValueError(
                f"Deconvolution: target_shape is {attrs.target_shape}, but {n} entries with stride {s} reach only {full}; "
                "make target_shape smaller or stride larger"
            )
        found.append(((full - target + 1) // 2, (full - target) % 2))
    return found


@operator(
    "Deconvolution",
    inputs=_inputs,
    attrs=_attributes(512, no_bias=True) | {"adj": shape(()), "target_shape": shape(())},
    aliases=("_npx_deconvolution",),
    fill=_deconv_fill,
    rows=batch_rows,
    layout="channels",
)
def deconvolution(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, bias: Array | None = None) -> Array:
    """y = Convolutionᵀ(x) of size (n - 1) stride - 2 pad + dilate (k - 1) + 1 + adj, weight (channels, num_filter / g, *k)."""
    layout = _layout("Deconvolution", attrs)
    if layout[-1] == "C":
        weight = jnp.moveaxis(weight, -1, 1)
    runs, groups, dims = _runs_in(ctx, layout), attrs.num_group, len(attrs.kernel)
    stride, dilate = _spatial(attrs, "stride", 1), _spatial(attrs, "dilate", 1)
    start = runs.index("C") + 1 if runs[1] == "C" else 1
    pads = _deconv_pads(attrs, data.shape[start : start + dims])
    out = transposed(data, weight, stride, dilate, pads, groups, runs)
    return out if bias is None else out + along(bias.astype(out.dtype), runs.index("C"), out.ndim)


def transposed(data: Array, weight: Array, stride, dilate, pads, groups: int, runs: str = "NCHW") -> Array:
    """The transposed convolution with weight (channels, filters / groups, *kernel); `pads` is (pad, adj) of each axis."""
    kernel = weight.shape[2:]
    dims = len(kernel)
    around = [(d * (k - 1) - p, d * (k - 1) - p + a) for (p, a), d, k in zip(pads, dilate, kernel, strict=True)]
    # (groups * in, out, *k) -> (groups * out, in, *k), turned round: the weight of the equivalent convolution
    split = weight.astype(data.dtype).reshape(groups, -1, *weight.shape[1:])
    turned = jnp.flip(jnp.swapaxes(split, 1, 2), range(3, 3 + dims))
    turned = turned.reshape(groups * weight.shape[1], -1, *kernel)
    return _convolve(data, turned, runs, (1,) * dims, around, dilate, groups, spread=stride)
