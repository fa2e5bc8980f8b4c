"""Convolutions in equivalent forms that run faster than one `lax.conv_general_dilated`.

On every backend, a spatial axis on which the output has one entry is folded into the channels, such as the embedding axis of a
text network with kernels (3, 300) over embeddings of size 300.  If no axis is left, the convolution is a product of matrices.

The other forms are for float32 on CPU, where XLA runs only dense 1-D and 2-D convolutions with an optimized kernel, and their
weight gradients only for some arrangements of the axes.  `python -m benchmarks.convolutions` compares them with torch.

- kernels of size 1: a product of matrices
- depthwise convolutions: a sum over kernel entries of shifted data times weight
- 3-D convolutions: the kernel entries along the first axis become channels of a 2-D convolution
- groups: dense convolutions of several groups each, with zeros in the weight between groups
- few channels: neighbouring columns of the output become filters
- large images on several cores: a row or column more, so that threads share the images, see `_for_threads`
- the gradients of data and weight: see `_Product`

All functions here use channels-last data (batch, *sizes, channels) and weights (*kernel, channels / groups, filters).
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.rules import along
from jfit.platforms import platform_of, threads

MAX_TAPS = 64  # kernel entries up to which a depthwise convolution is written as a sum; each entry adds to the compile time
MIN_BLOCK = 32  # input channels per dense convolution of a grouped one; fewer do not use the width of the CPU's vectors
MAX_BLOCKS = 8  # dense convolutions per grouped one; each adds to the compile time
MAX_SLICES = 16  # at most, of the batch in a weight gradient: sums over a slice are short enough for the cache
SLICE_ROWS = 8  # rows per slice, at least: they are the channels of a convolution, of which a vector has eight
SLICE_POSITIONS = 512  # output positions per slice, at least
NARROW = 16  # if neither input nor output has more channels, XLA does not use its packed kernels
MIN_SHARED = 2**25  # multiplications from which several threads take less time than one


class Window(NamedTuple):
    """The static arguments of a convolution, with one entry per spatial axis."""

    stride: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]  # (low, high); negative: entries are cut off
    dilate: tuple[int, ...]

    def without(self, axis: int) -> Window:
        """Return the window with one spatial axis fewer: without `axis`."""
        return Window._make(entries[:axis] + entries[axis + 1 :] for entries in self)

    def output(self, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
        """Return the spatial sizes of the output for data and kernel of these sizes; 0 in `sizes` is an unknown size."""
        entries = list(zip(sizes, kernel, *self, strict=True))
        outputs = tuple((n + low + high - d * (k - 1) - 1) // s + 1 for n, k, s, (low, high), d in entries)
        if any(isinstance(n, int) and n > 0 >= out for n, out in zip(sizes, outputs, strict=True)):
            around = f"pad {self.pads} (before, after) and dilate {self.dilate}"
            raise ValueError(
                f"kernel {kernel} does not fit {sizes} entries with {around}; use a smaller kernel or a larger pad"
            )
        return outputs


def runs_in_forms(data: Array) -> bool:
    """Return True if the forms for CPU apply: an array of float32 on a CPU, without a symbolic size, as in exported programs.

    The environment variable JFIT_CONV_FORMS=0 turns them off: they have no forward-mode derivatives.
    """
    sizes = data.shape
    if os.environ.get("JFIT_CONV_FORMS") == "0":
        return False
    return data.dtype == jnp.float32 and all(isinstance(n, int) and n > 0 for n in sizes) and platform_of(data) == "cpu"


def varying_alike(*arrays: Array) -> tuple[Array, ...]:
    """Inside `jax.shard_map`, mark arrays that are equal on all devices as varying if another of these arrays varies.

    The gradients that a custom rule returns must vary as its arrays do; JAX then sums those of the marked arrays over devices.
    """
    axes = [_varying_axes(jax.typeof(array)) for array in arrays]
    every = frozenset().union(*axes)
    return tuple(
        lax.pcast(array, tuple(sorted(every - own)), to="varying") if every - own else array
        for array, own in zip(arrays, axes, strict=True)
    )


def _varying_axes(kind: Any) -> frozenset[str]:
    """Return the mesh axes over which an array of this type varies; the attribute has two names in the releases of JAX."""
    axes = getattr(kind, "vma", None)
    return frozenset(getattr(getattr(kind, "manual_axis_type", None), "varying", ()) if axes is None else axes)


def convolve(data: Array, weight: Array, window: Window, groups: int) -> Array:
    """Convolve channels-last data; sizes except the batch size must not be symbolic."""
    cpu = runs_in_forms(data)
    if cpu:
        data, weight = varying_alike(data, weight)
    if cpu and weight.shape[-2] == 1 < groups and math.prod(weight.shape[:-2]) <= MAX_TAPS:  # depthwise
        return _depthwise(data, weight, window)
    data, weight, window, folded = _fold(data, weight, window, groups)
    return jnp.expand_dims(_convolve(data, weight, window, groups, cpu), [1 + axis for axis in folded])


def folds(sizes: tuple[int, ...], kernel: tuple[int, ...], window: Window) -> tuple[int, ...]:
    """Return the spatial axes that `convolve` moves into the channels: the kernel has one position, which is not all padding.

    An axis with a kernel of size 1 is only among them if no other axis would remain.
    """
    if not all(isinstance(n, int) for n in sizes):
        return ()
    single = tuple(
        axis for axis, n in enumerate(window.output(sizes, kernel)) if n == 1 and _overlap(axis, sizes, kernel, window)
    )
    wide = tuple(axis for axis in single if kernel[axis] > 1)
    return single if wide and len(single) == len(sizes) else wide


def _convolve(data: Array, weight: Array, window: Window, groups: int, cpu: bool) -> Array:
    kernel = weight.shape[:-2]
    if not kernel or (cpu and groups == 1 and set(kernel) == {1} and not any(map(any, window.pads))):
        return _multiply(data, weight, window, groups)
    if not cpu:
        return conv(data, weight, window, groups)
    if len(kernel) == 3:
        return _unfold(data, weight, window, groups)
    if groups > 1:
        return _in_blocks(data, weight, window, groups)
    return _DENSE(_Static(window, data.shape[1:-1], kernel))[0](data, weight)


def conv(data: Array, weight: Array, window: Window, groups: int = 1, last: bool = True) -> Array:
    """Compute `lax.conv_general_dilated` of channels-last data and a weight (*kernel, in, out).

    last=False: of channels-first data and a weight (out, in, *kernel).
    """
    axes = "DHW"[-len(window.stride) :]
    layout, order = (f"N{axes}C", f"{axes}IO") if last else (f"NC{axes}", f"OI{axes}")
    data, window = pad_apart(data, weight.shape[:-2] if last else weight.shape[2:], window, 1 if last else 2)
    return lax.conv_general_dilated(
        data,
        weight,
        window.stride,
        window.pads,
        rhs_dilation=window.dilate,
        dimension_numbers=(layout, order, layout),
        feature_group_count=groups,
    )


def pad_apart(data: Array, kernel: tuple[int, ...], window: Window, first: int) -> tuple[Array, Window]:
    """Pad data before a convolution whose data gradient XLA cannot compile; `first` is the first spatial axis.

    On an axis of even size with kernel 2, stride 2 and padding 1, that gradient is a convolution without padding.  If on the
    other axes the kernel has more entries than the output, XLA (jaxlib 0.10) exchanges the two arrays of that convolution, but
    not their sizes on this axis, and aborts the process.
    """
    sizes = data.shape[first : first + len(kernel)]
    outputs = window.output(sizes, kernel)
    axes = zip(sizes, kernel, *window, outputs, strict=True)
    apart = [int(k == s == 2 and d == low == 1 and 2 * out == n + 2) for n, k, s, (low, _), d, out in axes]
    others = [axis for axis, pad in enumerate(apart) if not pad]
    if not any(apart) or math.prod(kernel[a] for a in others) <= math.prod(outputs[a] for a in others):
        return data, window
    data = jnp.pad(data, [(0, 0)] * first + [(pad, 0) for pad in apart] + [(0, 0)] * (2 - first))
    return data, window._replace(pads=tuple((low - pad, high) for pad, (low, high) in zip(apart, window.pads, strict=True)))


# ------------------------------------------------------------------------------------------------ folding and unfolding axes
def _overlap(axis: int, sizes: tuple[int, ...], kernel: tuple[int, ...], window: Window) -> range:
    """Return the kernel entries of the first position of the kernel that are on data instead of padding."""
    low, step = window.pads[axis][0], window.dilate[axis]
    return range(-(-max(low, 0) // step), min((sizes[axis] - 1 + low) // step + 1, kernel[axis]))


def _fold(data: Array, weight: Array, window: Window, groups: int) -> tuple[Array, Array, Window, tuple[int, ...]]:
    """Move each axis of `folds` into the channels; the result has the remaining axes and the indices of the folded ones."""
    axes = folds(data.shape[1:-1], weight.shape[:-2], window)
    for axis in reversed(axes):
        entries = _overlap(axis, data.shape[1:-1], weight.shape[:-2], window)
        step, low = window.dilate[axis], window.pads[axis][0]
        part = lax.slice_in_dim(data, entries[0] * step - low, entries[-1] * step - low + 1, step, axis + 1)
        data = _into_channels(jnp.moveaxis(part, axis + 1, -2), groups)
        weight = _into_channels(
            jnp.moveaxis(lax.slice_in_dim(weight, entries[0], entries[-1] + 1, 1, axis), axis, -3), 1, at=-3
        )
        window = window.without(axis)
    return data, weight, window, axes


def _into_channels(array: Array, groups: int, at: int = -2) -> Array:
    """Merge axis `at` with the next axis, the channels; within each group, the channels stay together."""
    at += array.ndim
    before, (entries, channels), after = array.shape[:at], array.shape[at : at + 2], array.shape[at + 2 :]
    if groups > 1:
        array = jnp.swapaxes(array.reshape(*before, entries, groups, channels // groups, *after), at, at + 1)
    return array.reshape(*before, entries * channels, *after)


def _unfold(data: Array, weight: Array, window: Window, groups: int) -> Array:
    """Convolve 3-D data as 2-D data: the entries of the kernel along the first axis become channels."""
    step, pad, dilate, kernel = window.stride[0], window.pads[0], window.dilate[0], weight.shape[0]
    data = lax.pad(data, jnp.zeros((), data.dtype), ((0, 0, 0), (*pad, 0), *((0, 0, 0),) * 3))
    count = (data.shape[1] - dilate * (kernel - 1) - 1) // step + 1
    parts = [lax.slice_in_dim(data, t * dilate, t * dilate + (count - 1) * step + 1, step, 1) for t in range(kernel)]
    stacked = _into_channels(jnp.stack(parts, -2), groups)  # (batch, count, height, width, kernel * channels)
    images = stacked.reshape(-1, *stacked.shape[2:])
    weight = _into_channels(jnp.moveaxis(weight, 0, -3), 1, at=-3)
    out = _convolve(images, weight, window.without(0), groups, True)
    return out.reshape(data.shape[0], count, *out.shape[1:])


# ------------------------------------------------------------------------------------------------ products of matrices, groups
def _multiply(data: Array, weight: Array, window: Window, groups: int) -> Array:
    """Convolve with a kernel of size 1, or without spatial axes."""
    if any(step > 1 for step in window.stride):
        data = data[(slice(None), *(slice(None, None, step) for step in window.stride))]
    rows, filters = data.shape[:-1], weight.shape[-1]
    weight = weight.reshape(-1, filters)
    if groups == 1:
        return (data.reshape(-1, data.shape[-1]) @ weight).reshape(*rows, filters)
    out = jnp.einsum("ngi,igo->ngo", data.reshape(data.shape[0], groups, -1), weight.reshape(-1, groups, filters // groups))
    return out.reshape(*rows, filters)


def _in_blocks(data: Array, weight: Array, window: Window, groups: int) -> Array:
    """Convolve blocks of groups densely, with zeros in the weight where an input and an output are of different groups."""
    each, kernel = weight.shape[-2], weight.shape[:-2]
    sizes = (m for m in range(1, groups + 1) if groups % m == 0)
    merged = next(m for m in sizes if m == groups or (each * m >= MIN_BLOCK and groups // m <= MAX_BLOCKS))
    blocks = groups // merged
    split = weight.reshape(*kernel, 1, each, blocks, merged, -1)  # (*kernel, 1, inputs, blocks, groups, outputs)
    same = jnp.eye(merged, dtype=bool)[:, None, None, :, None]
    dense = jnp.moveaxis(jnp.where(same, split, 0), -3, 0).reshape(blocks, *kernel, merged * each, -1)
    parts = zip(jnp.split(data, blocks, -1), dense, strict=True)
    return jnp.concatenate([_convolve(x, w, window, 1, True) for x, w in parts], -1)


# ------------------------------------------------------------------------------------------------ products with known gradients
class _Static(NamedTuple):
    """The static arguments of a product."""

    window: Window
    sizes: tuple[int, ...]  # spatial sizes of the data
    kernel: tuple[int, ...]


class _Product(NamedTuple):
    """The three functions of a convolution, each linear in two of (data x, weight w, output y), with each other as gradients.

    y = forward(x, w).  `to_data(y, w)` and `to_weight(x, y)` are the gradients of sum(y * forward(x, w)).
    """

    forward: Callable[[_Static, Array, Array], Array]
    to_data: Callable[[_Static, Array, Array], Array]
    to_weight: Callable[[_Static, Array, Array], Array]

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - there are two products, which live as long as the module
    def __call__(self, static: _Static) -> tuple[Any, Any, Any]:
        """Return (forward, to_data, to_weight) as differentiable functions of two arrays."""
        forward, to_data, to_weight = (jax.custom_vjp(functools.partial(f, static)) for f in self)

        def keep(f):
            return lambda a, b: (f(a, b), (a, b))

        forward.defvjp(keep(forward), lambda saved, y: (to_data(y, saved[1]), to_weight(saved[0], y)))
        to_data.defvjp(keep(to_data), lambda saved, x: (forward(x, saved[1]), to_weight(x, saved[0])))
        to_weight.defvjp(keep(to_weight), lambda saved, w: (to_data(saved[1], w), forward(saved[0], w)))
        return forward, to_data, to_weight


def _packed(data: Array, weight: Array, window: Window) -> Array:
    """Convolve 2-D data in the layout for which XLA's packed kernels are fastest, and other data unchanged."""
    kernel, (channels, filters) = weight.shape[:-2], weight.shape[-2:]
    if len(kernel) != 2:
        return conv(data, weight, window)
    outputs = window.output(data.shape[1:-1], kernel)
    columns = _columns(channels, filters, outputs[1]) if window.dilate[1] == 1 else 1
    if columns > 1:
        step, low = window.stride[1], window.pads[1][0]
        shifts = [(step * k, step * (columns - 1 - k)) for k in range(columns)]
        shifted = [jnp.pad(weight, ((0, 0), shift, (0, 0), (0, 0))) for shift in shifts]
        pads = (window.pads[0], (low, step * (outputs[1] - 1) + kernel[1] - data.shape[2] - low))
        wide = Window((window.stride[0], step * columns), pads, window.dilate)
        return _packed(data, jnp.concatenate(shifted, -1), wide).reshape(-1, *outputs, filters)
    if max(channels, filters) <= NARROW:
        return conv(data, weight, window)
    # XLA's packed kernels take twice as long without padding: pad by one, compute one position more, and cut it off.
    bare = _bare(window.pads, kernel) if channels > 4 else (0, 0)
    bare = _for_threads(data.shape, weight.shape, outputs) or bare
    window = window._replace(
        pads=tuple((low, high + s * b) for (low, high), s, b in zip(window.pads, window.stride, bare, strict=True))
    )
    # The last 49 to 63 filters of a kernel's 64 take up to twice as long as 64.
    spare = -filters % 16 if filters % 64 > 48 else 0
    out = conv(data, jnp.pad(weight, ((0, 0),) * 3 + ((0, spare),)), window)
    return out[:, : outputs[0], : outputs[1], :filters]


def _columns(channels: int, filters: int, width: int) -> int:
    """Return how many neighbouring columns of the output become filters, each with the kernel shifted by its column.

    With few channels and filters XLA does not use its packed kernels; with more filters it does, which is faster although the
    kernel gets wider by zeros.
    """
    least = 64 if channels <= 4 else 32
    counts = (n for n in (8, 4, 2) if width % n == 0 and NARROW < n * filters < 2 * least)
    return next(counts, 1) if max(channels, filters) <= NARROW else 1


def _for_threads(data: tuple[int, ...], weight: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[int, ...]:
    """Return the positions to add to the output on each axis so that threads share a 2-D convolution; () if that does not pay.

    XLA (jaxlib 0.10) computes convolutions with YNNPACK, on one thread for images that are not very wide.  If the output has
    more positions than the data on an axis, it uses Eigen, whose threads share the images.

    Args:
        data: shape (batch, *sizes, channels).
        weight: shape (*kernel, channels, filters).
        outputs: positions of the output on each axis.
    """
    more = [n + 1 - out for n, out in zip(data[1:-1], outputs, strict=True)]
    axis = min(range(len(more)), key=lambda a: more[a] / outputs[a])
    work = data[0] * math.prod((*outputs, *weight))  # multiplications
    ratio = 1 + more[axis] / outputs[axis]  # of the work with the added positions
    # 5/6: one thread of Eigen takes up to 1.2 times as long as YNNPACK.
    if jax.__version_info__ >= (0, 11) or work < MIN_SHARED or not 1 < ratio < 5 / 6 * threads():
        return ()
    return tuple(more[axis] * (a == axis) for a in range(len(more)))


def _bare(pads: tuple[tuple[int, int], ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Return 1 for the axis that gets a position of padding, else 0; no axis does if there is some padding already."""
    wide = [axis for axis, n in enumerate(kernel) if n > 1]
    return tuple(int(wide[:1] == [axis] and not any(map(any, pads))) for axis in range(len(kernel)))


def _dense_forward(static: _Static, data: Array, weight: Array) -> Array:
    window = static.window
    few = data.shape[-1] <= 4 and len(window.stride) == 2 and min(window.stride) > 1 and set(window.dilate) == {1}
    return _strided(static, data, weight) if few else _packed(data, weight, window)


def _strided(static: _Static, data: Array, weight: Array) -> Array:
    """Convolve images with few channels with stride 1, after moving blocks of stride x stride pixels into the channels."""
    (stride, pads, _), sizes, kernel = static
    zero, channels = jnp.zeros((), data.dtype), data.shape[-1]
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    counts = [n + t - 1 for n, t in zip(static.window.output(sizes, kernel), taps, strict=True)]
    around = [(low, c * s - n - low, 0) for (low, _), c, s, n in zip(pads, counts, stride, sizes, strict=True)]
    data = lax.pad(data, zero, ((0, 0, 0), *around, (0, 0, 0)))
    data = data.reshape(-1, counts[0], stride[0], counts[1], stride[1], channels).transpose(0, 1, 3, 2, 4, 5)
    weight = lax.pad(
        weight, zero, (*((0, t * s - k, 0) for t, s, k in zip(taps, stride, kernel, strict=True)), *((0, 0, 0),) * 2)
    )
    weight = weight.reshape(taps[0], stride[0], taps[1], stride[1], channels, -1).transpose(0, 2, 1, 3, 4, 5)
    plain = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
    return _packed(data.reshape(-1, *counts, math.prod(stride) * channels), weight.reshape(*taps, -1, weight.shape[-1]), plain)


def _dense_to_data(static: _Static, grad: Array, weight: Array) -> Array:
    (stride, pads, dilate), sizes, kernel = static
    if len(kernel) == 2 and {*stride, *dilate} == {1}:
        reverse = tuple((k - 1 - low, k - 1 - high) for k, (low, high) in zip(kernel, pads, strict=True))
        weight_back = jnp.swapaxes(jnp.flip(weight, (0, 1)), 2, 3)
        if sizes[0] > grad.shape[1]:
            return _by_rows(grad, weight_back, reverse)
        return _packed(grad, weight_back, Window(stride, reverse, dilate))
    data, _ = varying_alike(jnp.zeros((grad.shape[0], *static.sizes, weight.shape[-2]), grad.dtype), grad)
    return jax.linear_transpose(lambda x: conv(x, weight, static.window), data)(grad)[0]


def _by_rows(data: Array, weight: Array, pads: tuple[tuple[int, int], ...]) -> Array:
    """Convolve with stride 1: the rows of the kernel become filters, whose outputs are added with a shift.

    The output has more rows than the data, so that the rows of padding would take as long as those of data.
    """
    (high, wide, inputs, filters), (low, above) = weight.shape, pads[0]
    data = lax.pad(data, jnp.zeros((), data.dtype), ((0, 0, 0), (0, 0, 0), (*pads[1], 0), (0, 0, 0)))
    weight = jnp.moveaxis(weight, 0, 2).reshape(1, wide, inputs, high * filters)
    parts = jnp.split(_packed(data, weight, Window((1, 1), ((0, 0), (0, 0)), (1, 1))), high, -1)
    zero = jnp.zeros((), data.dtype)
    shifts = [((0, 0, 0), (low - t, above - high + 1 + t, 0), (0, 0, 0), (0, 0, 0)) for t in range(high)]
    return functools.reduce(jnp.add, [lax.pad(part, zero, shift) for part, shift in zip(parts, shifts, strict=True)])


def _dense_to_weight(static: _Static, data: Array, grad: Array) -> Array:
    """Weight gradient, summed over slices of the batch: a convolution with channels as batch and batch rows as channels."""
    (stride, pads, dilate), sizes, kernel = static
    outputs, dims, filters = grad.shape[1:-1], len(stride), grad.shape[-1]
    columns = _columns(NARROW, filters, outputs[-1]) if dims == 2 and dilate[1] == 1 else 1
    step, wide = stride[-1], kernel[-1]
    if columns > 1:  # the weight of one column later is `step` columns further
        kernel = (kernel[0], wide + step * (columns - 1))
        stride, outputs = (stride[0], step * columns), (outputs[0], outputs[1] // columns)
    around = tuple(
        (low, d * (k - 1) + s * (o - 1) + 1 - n - low)
        for (low, _), d, k, s, o, n in zip(pads, dilate, kernel, stride, outputs, sizes, strict=True)
    )
    bare = _bare(around, kernel) if dims == 2 else (0,) * dims
    around = tuple((low, high + s * b) for (low, high), s, b in zip(around, stride, bare, strict=True))  # meets zeros in `part`

    def part(x: Array, y: Array) -> Array:
        # Without the barriers XLA folds the transposes into the convolution, and then does not use its fast kernel for it.
        x = lax.optimization_barrier(jnp.transpose(x, (dims + 1, *range(1, dims + 1), 0)))
        y = y.reshape(-1, *outputs, columns * filters)
        y = jnp.pad(jnp.moveaxis(y, 0, -2), [*((0, b) for b in bare), (0, 0), (0, 0)])
        y = lax.optimization_barrier(y)
        return conv(x, y, Window(dilate, around, stride))  # (channels, *kernel, filters)

    slices = _slices(data.shape[0], math.prod(grad.shape[1:-1])) if dims == 2 else 1
    rows = data.shape[0] // slices

    def add(total: Array, start: Array) -> tuple[Array, None]:
        # Slices of the arrays as they are: for reshaped ones, which scan could slice, XLA would compute the arrays again.
        return total + part(*(lax.dynamic_slice_in_dim(v, start, rows) for v in (data, grad))), None

    if slices == 1:
        total = part(data, grad)
    else:
        total, _ = varying_alike(jnp.zeros((data.shape[-1], *kernel, columns * filters), data.dtype), data)
        # A loop, because its body is compiled once; written out, the slices take several times as long to compile.
        total, _ = lax.scan(add, total, rows * jnp.arange(slices))
    shifted = enumerate(jnp.split(jnp.moveaxis(total, 0, -2), columns, -1))
    return functools.reduce(jnp.add, [lax.slice_in_dim(w, step * k, step * k + wide, 1, dims - 1) for k, w in shifted])


def _slices(rows: int, positions: int) -> int:
    """Return the number of equal slices of the batch in a weight gradient, for output positions per row."""
    most = min(MAX_SLICES, rows // SLICE_ROWS, rows * positions // SLICE_POSITIONS)
    return next((n for n in range(most, 1, -1) if rows % n == 0), 1)


_DENSE = _Product(_dense_forward, _dense_to_data, _dense_to_weight)


def _depthwise(data: Array, weight: Array, window: Window) -> Array:
    """Convolve each channel with kernels of its own; weight (*kernel, 1, channels * multiplier)."""
    weight = weight.reshape(*weight.shape[:-2], -1)
    times = weight.shape[-1] // data.shape[-1]
    if times > 1:
        # A product instead of a broadcast: its gradient is a product, too, while a sum over the minor axis would be slow.
        data = jnp.einsum("...c,m->...cm", data, jnp.ones(times, data.dtype)).reshape(*data.shape[:-1], -1)
    return _DEPTHWISE(_Static(window, data.shape[1:-1], weight.shape[:-1]))[0](data, weight)


def _shifted(static: _Static, data: Array) -> list[Array]:
    """Return for each kernel entry the data that it is multiplied by, one value per output position."""
    (stride, pads, dilate), sizes, kernel = static
    data = lax.pad(data, jnp.zeros((), data.dtype), ((0, 0, 0), *((*p, 0) for p in pads), (0, 0, 0)))
    return at_taps(data, 1, kernel, stride, dilate, static.window.output(sizes, kernel))


def at_taps(
    data: Array,
    first: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilate: tuple[int, ...],
    counts: Sequence[int],
) -> list[Array]:
    """Return for each kernel entry, in C order, the entries of padded data that it meets, one per window.

    `first` is the first spatial axis; `counts` are the numbers of windows along the spatial axes.
    """
    parts = []
    for tap in itertools.product(*map(range, kernel)):
        places = zip(tap, stride, dilate, counts, strict=True)
        cut = tuple(slice(t * d, t * d + (count - 1) * s + 1, s) for t, s, d, count in places)
        parts.append(data[(slice(None),) * first + cut])
    return parts


def _depthwise_forward(static: _Static, data: Array, weight: Array) -> Array:
    taps = weight.reshape(-1, weight.shape[-1])
    # The product with 1 stores the weight in this order.  A transposed weight would be read with a stride in the inner loop.
    taps = jnp.eye(len(taps), dtype=taps.dtype) @ taps
    return functools.reduce(
        jnp.add, [x * along(w, x.ndim - 1, x.ndim) for x, w in zip(_shifted(static, data), taps, strict=True)]
    )


def _depthwise_to_data(static: _Static, grad: Array, weight: Array) -> Array:
    """Convolve the output gradient, with zeros between its entries if the stride is not 1, with the reversed kernel."""
    (stride, pads, dilate), sizes, kernel = static
    around = []
    for n, k, s, (low, _), d, o in zip(sizes, kernel, stride, pads, dilate, grad.shape[1:-1], strict=True):
        first = d * (k - 1) - low
        around.append((first, n + d * (k - 1) - first - s * (o - 1) - 1, s - 1))
    spread = lax.pad(grad, jnp.zeros((), grad.dtype), ((0, 0, 0), *around, (0, 0, 0)))
    ones = (1,) * len(stride)
    plain = _Static(Window(ones, ((0, 0),) * len(ones), dilate), spread.shape[1:-1], kernel)
    return _depthwise_forward(plain, spread, jnp.flip(weight, range(len(kernel))))


def _depthwise_to_weight(static: _Static, data: Array, grad: Array) -> Array:
    """Sum the products of all kernel entries in one loop over the positions."""
    products = [x * grad for x in _shifted(static, data)]
    zeros = [jnp.zeros((), grad.dtype)] * len(products)
    axes = tuple(range(1, grad.ndim - 1))
    sums = lax.reduce(products, zeros, lambda a, b: [x + y for x, y in zip(a, b, strict=True)], axes)
    return jnp.stack([s.sum(0) for s in sums]).reshape(*static.kernel, -1)


_DEPTHWISE = _Product(_depthwise_forward, _depthwise_to_data, _depthwise_to_weight)
