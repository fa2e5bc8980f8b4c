"""`mx.gluon.contrib.nn`: blocks side by side, pixel shuffling, and BatchNorm over several devices."""

from __future__ import annotations

import math
from typing import Any

from jfit.mxnet import ndarray
from jfit.mxnet.context import num_gpus
from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.nn.basic_layers import BatchNorm, Container, HybridSequential, Sequential
from jfit.mxnet.gluon.nn.weighted import per_axis


class _SideBySide(Container):
    """Blocks that are all called with the same input."""

    def __init__(self, axis: int = -1, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self.axis = axis


class Concurrent(_SideBySide, Sequential):
    """The outputs of blocks that are all called with the same input, concatenated.

    Args:
        axis: axis of the concatenation.
        prefix, params: as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> net = Concurrent(axis=1)
        >>> net.add(Identity(), mx.gluon.nn.Dense(2))
        >>> net.initialize()
        >>> net(mx.nd.ones((1, 3))).shape
        (1, 5)
    """

    def forward(self, x: Any) -> Any:
        """Call all blocks and concatenate."""
        return ndarray.concat(*(block(x) for block in self._children.values()), dim=self.axis)


class HybridConcurrent(_SideBySide, HybridSequential):
    """`Concurrent` of HybridBlocks."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Call all blocks and concatenate."""
        return F.concat(*(block(x) for block in self._children.values()), dim=self.axis)


class Identity(HybridBlock):
    """y = x, such as a path of `HybridConcurrent`."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Return x."""
        return x


class SyncBatchNorm(BatchNorm):
    """`BatchNorm` with mean and variance over the batches of several devices.

    Args:
        in_channels: number of channels; 0: it is inferred at the first call.
        num_devices: number of devices; None: the number of GPUs.
        **kwargs: the other arguments of `BatchNorm`, without the axis, which is 1.
    """

    _operator = "contrib.SyncBatchNorm"

    def __init__(self, in_channels: int = 0, num_devices: int | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(1, *args, in_channels=in_channels, **kwargs)
        del self._kwargs["axis"]
        self._kwargs |= {"ndev": num_devices or max(1, num_gpus()), "key": self.prefix}


class _PixelShuffle(HybridBlock):
    """Move channels to the spatial axes: (batch, c * f1 * f2 ..., s1, s2, ...) -> (batch, c, s1 * f1, s2 * f2, ...)."""

    _axes: int

    def __init__(self, factor: Any) -> None:
        super().__init__()
        self._factors = tuple(int(f) for f in per_axis(factor, self._axes, "factor"))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Split the channels, interleave, and merge."""
        axes = self._axes
        x = F.reshape(x, (0, -4, -1, math.prod(self._factors)) + (0,) * axes)
        for i in range(1, axes):  # (batch, c, f1, f2, ..., s1, s2, ...)
            x = F.reshape(x, (0,) * (i + 1) + (-4, self._factors[i - 1], -1) + (0,) * axes)
        pairs = [axis for i in range(axes) for axis in (2 + axes + i, 2 + i)]
        x = F.transpose(x, (0, 1, *pairs))
        return F.reshape(x, (0, 0) + (-3,) * axes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._factors if self._axes > 1 else self._factors[0]})"


class PixelShuffle1D(_PixelShuffle):
    """(batch, c * f, s) -> (batch, c, s * f).

    Args:
        factor: the factor f.
    """

    _axes = 1


class PixelShuffle2D(_PixelShuffle):
    """(batch, c * f1 * f2, s1, s2) -> (batch, c, s1 * f1, s2 * f2).

    Args:
        factor: int for both axes, or the two factors.

    Example:
        >>> import jfit.mx as mx
        >>> PixelShuffle2D((2, 3))(mx.nd.ones((1, 12, 3, 5))).shape
        (1, 2, 6, 15)

    Source: Shi et al. 2016, https://arxiv.org/abs/1609.05158.
    """

    _axes = 2


class PixelShuffle3D(_PixelShuffle):
    """(batch, c * f1 * f2 * f3, s1, s2, s3) -> (batch, c, s1 * f1, s2 * f2, s3 * f3); see `PixelShuffle2D`."""

    _axes = 3
