"""`mx.gluon.contrib.cnn`: convolutions whose windows are moved by offsets that another convolution computes."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.nn.activations import activation_named
from jfit.mxnet.gluon.nn.conv_layers import add_parameters, check_layout, describe, per_axis, weight_shape

__all__ = ["DeformableConvolution", "ModulatedDeformableConvolution"]


class DeformableConvolution(HybridBlock):
    """y = f(x * W + b), where each value of a window is read at an offset that a convolution of x computes.

    Args:
        channels: number of output channels.
        kernel_size, strides, padding, dilation: int for both axes, or a tuple.
        groups: number of groups of channels.
        num_deformable_group: number of groups of channels with offsets of their own.
        layout: "NCHW".
        use_bias, offset_use_bias: whether this convolution, and that of the offsets, adds a bias.
        in_channels: number of input channels; 0: it is inferred at the first call.
        activation: name of the function f, as for `Activation`; None: f is the identity.
        weight_initializer, bias_initializer, offset_weight_initializer, offset_bias_initializer: initializers.
        op_name, adj: accepted and ignored.
        prefix, params: as for `Block`.

    Source: Dai et al. 2017, https://arxiv.org/abs/1703.06211.
    """

    deformable_conv_weight: Any
    deformable_conv_bias: Any
    _values = 2  # numbers per position of the window that the first convolution computes: offsets in both axes
    _order = ("offset_", "deformable_conv_")  # of the parameters

    def __init__(
        self,
        channels: int,
        kernel_size: Any = (1, 1),
        strides: Any = (1, 1),
        padding: Any = (0, 0),
        dilation: Any = (1, 1),
        groups: int = 1,
        num_deformable_group: int = 1,
        layout: str = "NCHW",
        use_bias: bool = True,
        in_channels: int = 0,
        activation: str | None = None,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        offset_weight_initializer: Any = "zeros",
        offset_bias_initializer: Any = "zeros",
        offset_use_bias: bool = True,
        op_name: str | None = None,
        adj: Any = None,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(prefix, params)
        check_layout(self, layout, ("NCHW", "NHWC"))
        sizes = {"kernel": kernel_size, "stride": strides, "dilate": dilation, "pad": padding}
        shared = {k: per_axis(v, 2) for k, v in sizes.items()} | {"num_group": groups, "layout": layout}
        kernel = shared["kernel"]
        positions = kernel[0] * kernel[1] * num_deformable_group
        self._offsets = 2 * positions
        self._kwargs_offset = shared | {"num_filter": self._values * positions, "no_bias": not offset_use_bias}
        self._kwargs_deformable_conv = shared | {"num_filter": channels, "no_bias": not use_bias}
        self._kwargs_deformable_conv["num_deformable_group"] = num_deformable_group
        offset_shape = weight_shape(self._values * positions, in_channels // groups, kernel, layout)
        offset_bias = self._values * positions if offset_use_bias else None
        weight, bias = weight_shape(channels, 0, kernel, "NCHW"), channels if use_bias else None
        parameters = {
            "offset_": (offset_shape, offset_weight_initializer, offset_bias, offset_bias_initializer),
            "deformable_conv_": (weight, weight_initializer, bias, bias_initializer),
        }
        with self.name_scope():
            for start in self._order:
                add_parameters(self, start, *parameters[start])
            self.act = activation_named(activation)

    def _alias(self) -> str:
        return "deformable_conv"

    def hybrid_forward(
        self,
        F: Any,
        x: Any,
        offset_weight: Any,
        deformable_conv_weight: Any,
        offset_bias: Any = None,
        deformable_conv_bias: Any = None,
    ) -> Any:
        """Compute the offsets, and f(x * W + b) with them."""
        arrays = (x, offset_weight) if offset_bias is None else (x, offset_weight, offset_bias)
        offset = F.Convolution(*arrays, **self._kwargs_offset)
        bias = () if deformable_conv_bias is None else (deformable_conv_bias,)
        out = self._convolve(F, x, offset, deformable_conv_weight, *bias)
        return out if self.act is None else self.act(out)

    def _convolve(self, F: Any, x: Any, offset: Any, *weights: Any) -> Any:
        return F.contrib.DeformableConvolution(x, offset, *weights, name="fwd", **self._kwargs_deformable_conv)

    def __repr__(self) -> str:
        settings, bias = self._kwargs_deformable_conv, self.deformable_conv_bias
        return describe(type(self).__name__, self.deformable_conv_weight, settings, bias, self.act)


class ModulatedDeformableConvolution(DeformableConvolution):
    """`DeformableConvolution` whose first convolution also computes a factor from 0 to 2 of each value of a window.

    Args:
        *args, **kwargs: as for `DeformableConvolution`.

    Source: Zhu et al. 2019, https://arxiv.org/abs/1811.11168.
    """

    _values, _order = 3, ("deformable_conv_", "offset_")

    def _alias(self) -> str:
        return "modulated_deformable_conv"

    def _convolve(self, F: Any, x: Any, offset: Any, *weights: Any) -> Any:
        mask = F.sigmoid(F.slice_axis(offset, axis=1, begin=self._offsets, end=None)) * 2
        offset = F.slice_axis(offset, axis=1, begin=0, end=self._offsets)
        options = self._kwargs_deformable_conv
        return F.contrib.ModulatedDeformableConvolution(x, offset, mask, *weights, name="fwd", **options)
