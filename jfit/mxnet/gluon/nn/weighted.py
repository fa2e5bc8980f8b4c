"""What layers with a weight and a bias share: their parameters, and the geometry of windows."""

from __future__ import annotations

import functools
import numbers
from typing import Any

from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.nn.activations import Activation


class Weighted(HybridBlock):
    """y = f(operator(x, W, b)): the part that `Dense` and the convolutions share."""

    _op_name: str
    _kwargs: dict[str, Any]

    def _add_parts(self, shape: Any, init: Any, channels: int | None, bias_init: Any, activation: Any, **options: Any) -> None:
        """Add the parameters `weight` of this shape and `bias` (channels,), and f; `channels` None: no bias."""
        new = functools.partial(self.params.get, allow_deferred_init=True, **options)
        self.weight = new("weight", shape=shape, init=init)
        self.bias = None if channels is None else new("bias", shape=(channels,), init=bias_init)
        with self.name_scope():
            self.act = None if activation is None else Activation(activation, prefix=f"{activation}_")

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        """Apply the operator, and f."""
        arrays = (x, weight) if bias is None else (x, weight, bias)
        out = getattr(F, self._op_name)(*arrays, name="fwd", **self._kwargs)
        return out if self.act is None else self.act(out)


def per_axis(value: Any, count: int, name: str | None = None) -> Any:
    """Return a number as a tuple of `count` equal numbers, other values as they are; with `name` their length is checked."""
    sizes = (value,) * count if isinstance(value, numbers.Number) else value
    assert name is None or len(sizes) == count, f"{name}={value!r}: pass a number or {count} of them."
    return sizes


class Windows:
    """A layer of windows; each of its classes names the layouts it has, the default first."""

    _layouts: tuple[str, ...]

    def __init_subclass__(cls, layouts: tuple[str, ...] | None = None) -> None:
        cls._layouts = layouts or getattr(cls, "_layouts", ())

    def _check_layout(self, layout: str | None) -> str:
        layout = layout or self._layouts[0]
        assert layout in self._layouts, f"{type(self).__name__}: layout {layout!r} is not {' or '.join(self._layouts)}."
        return layout


def weight_shape(outer: int, inner: int, kernel: Any, layout: str) -> tuple[int, ...]:
    """Return the shape of the weight of a convolution: (outer, inner, *kernel), or (outer, *kernel, inner) channels-last.

    Example:
        >>> weight_shape(8, 3, (5, 5), "NHWC")
        (8, 5, 5, 3)
    """
    return (outer, *kernel, inner) if layout[-1] == "C" else (outer, inner, *kernel)


class Convolution(Windows, Weighted):
    """A convolution: y = f(x * W + b), * over windows of x.

    Args:
        channels: number of output channels.
        kernel_size, strides, padding, dilation: int for all spatial axes, or a tuple; padding is added on both sides.
        groups: number of groups of channels; each group of outputs sees one group of inputs.
        layout: axes of x and y, such as "NCHW" (the default) or "NHWC".
        activation: name of the function f, as for `Activation`; None: f is the identity.
        use_bias: whether to add b.
        weight_initializer, bias_initializer: initializers of W and b; None: the initializer of `initialize`.
        in_channels: number of input channels; 0: it is inferred at the first call.
        op_name: operator; None: that of the class.
        adj: output padding of a transposed convolution.
        **kwargs: prefix and params, as for `Block`.

    Raises:
        AssertionError: the layer does not have the layout, or kernel_size has another length than the spatial axes.
    """

    _op_name = "Convolution"

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        layout: str | None = None,
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        op_name: str | None = None,
        adj: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        layout = self._check_layout(layout)
        axes = len(layout) - 2
        self._op_name = op_name or self._op_name
        sizes = {"stride": strides, "dilate": dilation, "pad": padding}
        self._kwargs = {"kernel": per_axis(kernel_size, axes, "kernel_size")}
        self._kwargs |= {name: per_axis(size, axes) for name, size in sizes.items()}
        self._kwargs |= {"num_filter": channels, "num_group": groups, "no_bias": not use_bias, "layout": layout}
        self._kwargs |= {} if adj is None else {"adj": per_axis(adj, axes, "output_padding")}
        ends = (in_channels, channels) if self._op_name == "Deconvolution" else (channels, in_channels)
        shape = weight_shape(ends[0], ends[1] // groups, self._kwargs["kernel"], layout)
        self._add_parts(shape, weight_initializer, channels if use_bias else None, bias_initializer, activation)

    def _alias(self) -> str:
        return "conv"

    def __repr__(self) -> str:
        settings = self._kwargs
        ones = (1,) * len(settings["kernel"])
        parts = [f"{self.weight.shape[1] or None} -> {self.weight.shape[0]}", "kernel_size={kernel}", "stride={stride}"]
        parts += ["padding={pad}"] if settings["pad"] != (0,) * len(ones) else []
        parts += ["dilation={dilate}"] if settings["dilate"] != ones else []
        parts += ["groups={num_group}"] if settings["num_group"] != 1 else []
        parts += ["bias=False"] if settings["no_bias"] else []
        return f"{type(self).__name__}({', '.join(parts)}".format(**settings) + (f", {self.act})" if self.act else ")")
