"""Layers of gluon.nn with windows: convolutions, transposed convolutions, pooling, padding."""

from __future__ import annotations

import numbers
from typing import Any

from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.nn.weighted import Convolution, Windows, per_axis

_1D, _2D, _3D = ("NCW", "NWC"), ("NCHW", "NHWC"), ("NCDHW", "NDHWC")


class Conv1D(Convolution, layouts=("NCW",)):
    """y = f(x * W + b), a convolution of (batch, channels, width); see `Conv2D`."""


class Conv2D(Convolution, layouts=_2D):
    """y = f(x * W + b), a convolution of (batch, channels, height, width).

    Args:
        channels: number of output channels.
        kernel_size, strides, padding, dilation: int for both axes, or a tuple; padding is added on both sides.
        groups: number of groups of channels; each group of outputs sees one group of inputs.
        layout: axes of x and y, "NCHW" (the default) or "NHWC".
        activation: name of the function f, as for `Activation`; None: f is the identity.
        use_bias: whether to add b.
        weight_initializer, bias_initializer: initializers of W and b; None: the initializer of `initialize`.
        in_channels: number of input channels; 0: it is inferred at the first call.
        prefix, params: as for `Block`.

    Raises:
        AssertionError: the layer does not have the layout, or kernel_size is not one or two numbers.

    Example:
        >>> import jfit.mx as mx
        >>> layer = Conv2D(4, kernel_size=3, padding=1, activation="relu")
        >>> layer.initialize()
        >>> layer(mx.nd.ones((1, 2, 5, 5))).shape, layer.weight.shape
        ((1, 4, 5, 5), (4, 2, 3, 3))
    """


class Conv3D(Convolution, layouts=_3D):
    """y = f(x * W + b), a convolution of (batch, channels, depth, height, width); see `Conv2D`."""


class _ConvTranspose(Convolution):
    """A transposed convolution: the gradient of a convolution as a function of the incoming gradient."""

    _op_name = "Deconvolution"

    def __init__(
        self, channels, kernel_size: Any, strides: Any = 1, padding: Any = 0, output_padding: Any = 0, *args: Any, **rest: Any
    ) -> None:
        super().__init__(channels, kernel_size, strides, padding, *args, adj=output_padding, **rest)


class Conv1DTranspose(_ConvTranspose, layouts=("NCW",)):
    """A transposed convolution of (batch, channels, width); see `Conv2DTranspose`."""


class Conv2DTranspose(_ConvTranspose, layouts=_2D):
    """A transposed convolution of (batch, channels, height, width): output size = (size - 1) * stride - 2 * padding + kernel.

    Args:
        channels: number of output channels.
        kernel_size, strides, padding: as for `Conv2D`, of the convolution that is transposed.
        output_padding: int or tuple that is added to the output size.
        *args, **kwargs: dilation and all arguments after it, as for `Conv2D`.

    Example:
        >>> import jfit.mx as mx
        >>> layer = Conv2DTranspose(3, kernel_size=2, strides=2)
        >>> layer.initialize()
        >>> layer(mx.nd.ones((1, 4, 5, 5))).shape
        (1, 3, 10, 10)
    """


class Conv3DTranspose(_ConvTranspose, layouts=_3D):
    """A transposed convolution of (batch, channels, depth, height, width); see `Conv2DTranspose`."""


class _Pooling(Windows, HybridBlock):
    """The maximum or mean of windows.

    Args:
        pool_size, padding: int for all spatial axes, or a tuple.
        strides: int or tuple; None: pool_size.
        layout: axes of x and y, such as "NCHW" (the default) or "NHWC".
        ceil_mode: whether the output size is rounded up.
        **kwargs: prefix and params, as for `Block`.
    """

    _type = "max"
    _global = False

    def __init__(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: Any = 0,
        layout: Any = None,
        ceil_mode: Any = False,
        count_include_pad: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(layout, bool):  # MaxPool3D, AvgPool2D and AvgPool3D of MXNet have ceil_mode before layout
            layout, ceil_mode = ceil_mode or None, layout
        layout = self._check_layout(layout)
        axes = len(layout) - 2
        size = per_axis(pool_size, axes, "pool_size")
        self._kwargs = {"kernel": size, "stride": size if strides is None else per_axis(strides, axes)}
        self._kwargs |= {"pad": per_axis(padding, axes), "global_pool": self._global, "pool_type": self._type}
        self._kwargs |= {"layout": layout, "pooling_convention": "full" if ceil_mode else "valid"}
        if self._type == "avg" and not self._global:
            self._kwargs["count_include_pad"] = count_include_pad

    def _alias(self) -> str:
        return "pool"

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Reduce the windows."""
        return F.Pooling(x, name="fwd", **self._kwargs)

    def __repr__(self) -> str:
        shown = "{}(size={kernel}, stride={stride}, padding={pad}, ceil_mode={ceil}, global_pool={global_pool}, "
        ceil = self._kwargs["pooling_convention"] == "full"
        return (shown + "pool_type={pool_type}, layout={layout})").format(type(self).__name__, ceil=ceil, **self._kwargs)


class _GlobalPooling(_Pooling):
    """The maximum, or mean, over all spatial axes, which keep size 1."""

    _global = True

    def __init__(self, layout: str | None = None, **kwargs: Any) -> None:
        super().__init__(1, layout=layout, ceil_mode=True, **kwargs)


class _AvgPooling(_Pooling):
    """The mean of windows."""

    _type = "avg"


class MaxPool1D(_Pooling, layouts=_1D):
    """The maximum of windows of (batch, channels, width); see `MaxPool2D`."""


class MaxPool2D(_Pooling, layouts=_2D):
    """The maximum of windows of (batch, channels, height, width).

    Args:
        pool_size, padding: int for both axes, or a tuple; padding is added on both sides and never the maximum.
        strides: int or tuple; None: pool_size.
        layout: axes of x and y, "NCHW" (the default) or "NHWC".
        ceil_mode: whether the output size is rounded up.
        **kwargs: prefix and params, as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> MaxPool2D(pool_size=2, strides=2)(mx.nd.ones((1, 1, 6, 6))).shape
        (1, 1, 3, 3)
    """


class MaxPool3D(_Pooling, layouts=_3D):
    """The maximum of windows of (batch, channels, depth, height, width); see `MaxPool2D`."""


class AvgPool1D(_AvgPooling, layouts=_1D):
    """The mean of windows of (batch, channels, width); see `AvgPool2D`."""


class AvgPool2D(_AvgPooling, layouts=_2D):
    """The mean of windows of (batch, channels, height, width).

    Args:
        pool_size, strides, padding, layout, ceil_mode, **kwargs: as for `MaxPool2D`.
        count_include_pad: whether the zeros of the padding count in the mean.
    """


class AvgPool3D(_AvgPooling, layouts=_3D):
    """The mean of windows of (batch, channels, depth, height, width); see `AvgPool2D`."""


class GlobalMaxPool1D(_GlobalPooling, layouts=_1D):
    """The maximum over all values of a channel, (batch, channels, width) -> (batch, channels, 1)."""


class GlobalMaxPool2D(_GlobalPooling, layouts=_2D):
    """The maximum over all values of a channel, (batch, channels, height, width) -> (batch, channels, 1, 1)."""


class GlobalMaxPool3D(_GlobalPooling, layouts=_3D):
    """The maximum over all values of a channel, of (batch, channels, depth, height, width)."""


class GlobalAvgPool1D(_AvgPooling, _GlobalPooling, layouts=_1D):
    """The mean over all values of a channel, (batch, channels, width) -> (batch, channels, 1)."""


class GlobalAvgPool2D(_AvgPooling, _GlobalPooling, layouts=_2D):
    """The mean over all values of a channel, (batch, channels, height, width) -> (batch, channels, 1, 1)."""


class GlobalAvgPool3D(_AvgPooling, _GlobalPooling, layouts=_3D):
    """The mean over all values of a channel, of (batch, channels, depth, height, width)."""


class ReflectionPad2D(HybridBlock):
    """Pad height and width of (batch, channels, height, width) with the values mirrored at the border.

    Args:
        padding: int for all four sides, or 8 numbers, before and after each axis; those of the first two axes are 0.
        **kwargs: prefix and params, as for `Block`.

    Raises:
        AssertionError: padding is neither a number nor 8 of them.
    """

    def __init__(self, padding: Any = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._padding = (0,) * 4 + (padding,) * 4 if isinstance(padding, numbers.Number) else padding
        assert len(self._padding) == 8, f"ReflectionPad2D(padding={padding!r}): pass a number or 8 of them."

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Pad."""
        return F.pad(x, mode="reflect", pad_width=self._padding)
