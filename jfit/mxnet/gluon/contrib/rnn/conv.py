"""gluon's convolutional cells: the steps of the RNN, LSTM and GRU cells with convolutions instead of matrix products."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.gluon.rnn.cells import GatedCell, GRUCell, LSTMCell, RNNCell, initializers
from jfit.mxnet.rnn.steps import Step

Sizes = int | tuple[int, ...]


class ConvCell(GatedCell):
    """Base of the convolutional cells, whose gates are W * x + b + U * h + d, with convolutions *.

    Args:
        input_shape: shape of the input of a step without the batch axis, such as (channels, height, width).
        hidden_channels: number of channels of the states and of the output.
        i2h_kernel: kernel of the input's convolution, an int or one per axis, as are all sizes below.
        h2h_kernel: kernel of the state's convolution; sizes must be odd, because the state keeps its shape.
        i2h_pad: padding of the input's convolution.
        i2h_dilate: dilation of the input's convolution.
        h2h_dilate: dilation of the state's convolution.
        i2h_weight_initializer, h2h_weight_initializer: initializers of the weights; None: that of `initialize`.
        i2h_bias_initializer, h2h_bias_initializer: initializers of the biases.
        conv_layout: layout of the convolutions, such as "NCHW" (the default) or "NHWC".
        activation: a name of the operator Activation, a block, or a function.
        prefix, params: as for `mx.gluon.rnn.RecurrentCell`.

    Raises:
        AssertionError: sizes for another number of axes, or an even h2h_kernel.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.gluon.contrib.rnn.Conv2DLSTMCell((3, 8, 8), 4, i2h_kernel=3, h2h_kernel=3, i2h_pad=1)
        >>> cell.initialize()
        >>> output, states = cell(mx.nd.ones((2, 3, 8, 8)), cell.begin_state(batch_size=2))
        >>> output.shape, len(states)
        ((2, 4, 8, 8), 2)

    Source: Shi and others, Convolutional LSTM Network, 2015.
    """

    _dims = 0

    def __init__(
        self,
        input_shape: tuple[int, ...],
        hidden_channels: int,
        i2h_kernel: Sizes,
        h2h_kernel: Sizes,
        i2h_pad: Sizes = 0,
        i2h_dilate: Sizes = 1,
        h2h_dilate: Sizes = 1,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        conv_layout: str | None = None,
        activation: Any = "tanh",
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        self._hidden_channels, self._input_shape = hidden_channels, input_shape
        self._conv_layout = conv_layout or ["NCW", "NCHW", "NCDHW"][self._dims - 1]
        self._axis = self._conv_layout.find("C")
        i2h = {"kernel": i2h_kernel, "pad": i2h_pad, "dilate": i2h_dilate}
        h2h = {"kernel": h2h_kernel, "dilate": h2h_dilate}
        self._i2h, self._h2h = ({k: self._sizes(k, v) for k, v in of.items()} for of in (i2h, h2h))
        assert all(k % 2 for k in self._h2h["kernel"]), f"h2h_kernel is {h2h_kernel}; only odd sizes keep the state's shape."
        self._h2h["pad"] = tuple(d * (k - 1) // 2 for k, d in zip(self._h2h["kernel"], self._h2h["dilate"], strict=True))
        channels, sizes = input_shape[self._axis - 1], list(input_shape)
        del sizes[self._axis - 1]
        parts = zip(sizes, *(self._i2h[k] for k in ("kernel", "pad", "dilate")), strict=True)
        self._state_shape = self._with_channels(hidden_channels, tuple(x and x + 2 * p - d * (k - 1) for x, k, p, d in parts))
        shapes = self._with_channels(channels, self._i2h["kernel"]), self._with_channels(hidden_channels, self._h2h["kernel"])
        inits = initializers(i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        GatedCell.__init__(self, hidden_channels, *shapes, inits, prefix, params)
        self._activation = activation

    def _sizes(self, what: str, size: Any) -> tuple[int, ...]:
        sizes = (size,) * self._dims if isinstance(size, int) else tuple(size)
        assert len(sizes) == self._dims, f"{what} is {size}; {type(self).__name__} needs an int or {self._dims} of them."
        return sizes

    def _with_channels(self, channels: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (channels, *sizes) if self._axis == 1 else (*sizes, channels)

    def _alias(self) -> str:
        return f"conv_{super()._alias()}"

    def _mapping(self) -> str:
        rows, *rest = self.i2h_weight.shape
        return f"{rest[0 if self._axis == 1 else -1] or None} -> {rows}, {self._activation}, {self._conv_layout}"

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape of each state, that of the input's convolution."""
        return [{"shape": (batch_size, *self._state_shape), "__layout__": self._conv_layout} for _ in range(self._states)]

    def _step(self, F: Any, **options: Any) -> Step:
        return super()._step(F, named=False, axis=self._axis, **options)

    def _project(self, step: Step, name: str, x: Any, weights: dict[str, Any]) -> Any:
        options = {"num_filter": self._gates * self._hidden_size, "layout": self._conv_layout, "stride": (1,) * self._dims}
        options |= {**(self._i2h if name == "i2h" else self._h2h), **step.name(name)}
        return step.F.Convolution(x, weights[f"{name}_weight"], weights[f"{name}_bias"], **options)


def _cell(dims: int, base: Any) -> Any:
    """Return the convolutional class of a cell."""
    name = f"Conv{dims}D{base.__name__}"
    doc = f"`mx.gluon.rnn.{base.__name__}` with {dims}D convolutions; arguments: see `ConvCell`."
    return type(name, (ConvCell, base), {"_dims": dims, "__doc__": doc, "__module__": __name__, "__qualname__": name})


Conv1DRNNCell, Conv2DRNNCell, Conv3DRNNCell = (_cell(dims, RNNCell) for dims in (1, 2, 3))
Conv1DLSTMCell, Conv2DLSTMCell, Conv3DLSTMCell = (_cell(dims, LSTMCell) for dims in (1, 2, 3))
Conv1DGRUCell, Conv2DGRUCell, Conv3DGRUCell = (_cell(dims, GRUCell) for dims in (1, 2, 3))

__all__ = [
    "Conv1DGRUCell",
    "Conv1DLSTMCell",
    "Conv1DRNNCell",
    "Conv2DGRUCell",
    "Conv2DLSTMCell",
    "Conv2DRNNCell",
    "Conv3DGRUCell",
    "Conv3DLSTMCell",
    "Conv3DRNNCell",
]
