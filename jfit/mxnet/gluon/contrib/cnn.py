"""`mx.gluon.contrib.cnn`: convolutions whose windows are moved by offsets that another convolution computes."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.gluon.nn.weighted import Convolution, weight_shape


class DeformableConvolution(Convolution, layouts=("NCHW", "NHWC")):
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
        **kwargs: prefix and params, as for `Block`.

    Source: Dai et al. 2017, https://arxiv.org/abs/1703.06211.
    """

    _op_name, _start = "DeformableConvolution", "deformable_conv_"
    _per_position = 2  # numbers per position of the window that the convolution of the offsets computes: one for each axis
    _offset_first = True  # the parameters of the offsets are the first

    def __init__(
        self,
        channels: int,
        kernel_size: Any = 1,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
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
        **kwargs: Any,
    ) -> None:
        self._offset = offset_weight_initializer, offset_use_bias, offset_bias_initializer, in_channels
        self._groups = num_deformable_group
        inits = weight_initializer, bias_initializer
        windows = kernel_size, strides, padding, dilation, groups, layout
        super().__init__(channels, *windows, activation, use_bias, *inits, **kwargs)
        self._kwargs["num_deformable_group"] = num_deformable_group

    def _add_parameters(self, *args: Any, **options: Any) -> None:
        init, use_bias, bias_init, in_channels = self._offset
        kernel, layout = self._kwargs["kernel"], self._kwargs["layout"]
        positions = kernel[0] * kernel[1] * self._groups
        self._offset_channels, count = 2 * positions, self._per_position * positions
        self._offset_kwargs = self._kwargs | {"num_filter": count, "no_bias": not use_bias}
        shape = weight_shape(count, in_channels // self._kwargs["num_group"], kernel, layout)
        both = [args, ("offset_", shape, init, count if use_bias else None, bias_init)]
        for each in reversed(both) if self._offset_first else both:
            super()._add_parameters(*each)

    def _alias(self) -> str:
        return "deformable_conv"

    def hybrid_forward(  # type: ignore[override]
        self, F: Any, x: Any, offset_weight, deformable_conv_weight, offset_bias=None, deformable_conv_bias=None
    ) -> Any:
        """Compute the offsets, and f(x * W + b) with them."""
        biases = [() if bias is None else (bias,) for bias in (offset_bias, deformable_conv_bias)]
        offset = F.Convolution(x, offset_weight, *biases[0], **self._offset_kwargs)
        arrays = x, *self._inputs(F, offset), deformable_conv_weight, *biases[1]
        out = getattr(F.contrib, self._op_name)(*arrays, name="fwd", **self._kwargs)
        return out if self.act is None else self.act(out)

    def _inputs(self, F: Any, offset: Any) -> tuple[Any, ...]:
        """Return the inputs of the operator that the first convolution computes."""
        return (offset,)


class ModulatedDeformableConvolution(DeformableConvolution):
    """`DeformableConvolution` whose first convolution also computes a factor from 0 to 2 of each value of a window.

    Args:
        *args, **kwargs: as for `DeformableConvolution`.

    Source: Zhu et al. 2019, https://arxiv.org/abs/1811.11168.
    """

    _op_name, _per_position, _offset_first = "ModulatedDeformableConvolution", 3, False

    def _alias(self) -> str:
        return "modulated_deformable_conv"

    def _inputs(self, F: Any, offset: Any) -> tuple[Any, ...]:
        mask = F.slice_axis(offset, axis=1, begin=self._offset_channels, end=None)
        return F.slice_axis(offset, axis=1, begin=0, end=self._offset_channels), F.sigmoid(mask) * 2
