"""`mx.gluon.model_zoo.vision`: nets for images; names, shapes and order of their parameters are MXNet's.

>>> import jfit.mx as mx
>>> net = mx.gluon.model_zoo.vision.get_model("resnet18_v1", classes=10)
>>> net.initialize()
>>> net(mx.nd.ones((1, 3, 32, 32))).shape
(1, 10)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jfit.mxnet.context import cpu
from jfit.mxnet.gluon import nn
from jfit.mxnet.gluon.contrib.nn import HybridConcurrent, Identity
from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.model_zoo.model_store import get_model_file
from jfit.mxnet.initializer import Xavier


def _stack(*blocks: Any, prefix: str | None = "") -> nn.HybridSequential:
    """Return the blocks one after the other; without a prefix they keep the numbers of the scope they were made in."""
    stack = nn.HybridSequential(prefix=prefix)
    stack.add(*blocks)
    return stack


def _relu() -> nn.Activation:
    return nn.Activation("relu")


def _stem(channels: int) -> list[Any]:
    """Return the first layers of ResNet and DenseNet, which divide height and width by 4."""
    return [nn.Conv2D(channels, 7, 2, 3, use_bias=False), nn.BatchNorm(), _relu(), nn.MaxPool2D(3, 2, 1)]


class _Net(HybridBlock):
    """A net of two parts: `features`, and `output` with the classes."""

    features: Any
    output: Any

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Return the scores of the classes."""
        return self.output(self.features(x))


def _hidden(**options: Any) -> list[Any]:
    """Return the two hidden layers of AlexNet and VGG."""
    return [nn.Dense(4096, "relu", **options), nn.Dropout(0.5), nn.Dense(4096, "relu", **options), nn.Dropout(0.5)]


class AlexNet(_Net):
    """AlexNet; source: Krizhevsky 2014, https://arxiv.org/abs/1404.5997.

    Args:
        classes: number of classes.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(self, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # channels, kernel, stride and padding of the convolutions; None is a pooling
        table = [(64, 11, 4, 2), None, (192, 5, 1, 2), None, (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1), None]
        with self.name_scope():
            layers = [nn.MaxPool2D(3, 2) if row is None else nn.Conv2D(*row, activation="relu") for row in table]
            self.features = _stack(*layers, nn.Flatten(), *_hidden())
            self.output = nn.Dense(classes)


class VGG(_Net):
    """VGG; source: Simonyan and Zisserman 2015, https://arxiv.org/abs/1409.1556.

    Args:
        layers: number of convolutions of each stage.
        filters: channels of each stage.
        classes: number of classes.
        batch_norm: whether convolutions are normalized.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(
        self, layers: Sequence[int], filters: Sequence[int], classes: int = 1000, batch_norm: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        assert len(layers) == len(filters), f"VGG: {len(layers)} stages of layers, but {len(filters)} of filters."
        init = Xavier("gaussian", "out", 2)
        with self.name_scope():
            self.features = _stack()
            for count, channels in zip(layers, filters, strict=True):
                for _ in range(count):
                    normalization = [nn.BatchNorm()] if batch_norm else []
                    self.features.add(nn.Conv2D(channels, 3, padding=1, weight_initializer=init), *normalization, _relu())
                self.features.add(nn.MaxPool2D(strides=2))
            self.features.add(*_hidden(weight_initializer="normal"))
            self.output = nn.Dense(classes, weight_initializer="normal")


# ------------------------------------------------------------------------------------------------ ResNet
def _conv1x1(channels: int, stride: int, in_channels: int) -> nn.Conv2D:
    return nn.Conv2D(channels, 1, stride, use_bias=False, in_channels=in_channels)


def _conv3x3(channels: int, stride: int, in_channels: int) -> nn.Conv2D:
    return nn.Conv2D(channels, 3, stride, 1, use_bias=False, in_channels=in_channels)


def _basic(channels: int, stride: int, in_channels: int) -> Sequence[Any]:
    return _conv3x3(channels, stride, in_channels), _conv3x3(channels, 1, channels)


def _bottleneck_v1(channels: int, stride: int, in_channels: int) -> Sequence[Any]:
    inner = channels // 4
    return nn.Conv2D(inner, 1, stride), _conv3x3(inner, 1, inner), nn.Conv2D(channels, 1)


def _bottleneck_v2(channels: int, stride: int, in_channels: int) -> Sequence[Any]:
    inner = channels // 4
    return _conv1x1(inner, 1, 0), _conv3x3(inner, stride, inner), _conv1x1(channels, 1, 0)


class _ResidualV1(HybridBlock):
    """y = relu(body(x) + x), or + downsample(x).

    Args:
        channels: number of output channels.
        stride: stride of the first convolution.
        downsample: whether x goes through a convolution, too.
        in_channels: number of input channels; 0: it is inferred.
        **kwargs: prefix and params, as for `Block`.

    Source: He et al. 2016, https://arxiv.org/abs/1512.03385.
    """

    _convolutions: Callable[..., Sequence[Any]]
    _body_first = True

    def __init__(self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.body = _stack()
        for conv in self._convolutions(channels, stride, in_channels):
            self.body.add(*[_relu()] if self.body else [], conv, nn.BatchNorm())
        self.downsample = _stack(_conv1x1(channels, stride, in_channels), nn.BatchNorm()) if downsample else None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Add the input, or its convolution, to the output of the body."""
        body, residual = self.body(x), self.downsample(x) if self.downsample else x
        total = body + residual if self._body_first else residual + body  # the order of nodes in exported graphs
        return F.Activation(total, act_type="relu")


class BasicBlockV1(_ResidualV1):
    """Two convolutions of ResNetV1 for 18 and 34 layers, with the arguments of `BottleneckV1`."""

    _convolutions, _body_first = staticmethod(_basic), False


class BottleneckV1(_ResidualV1):
    """Three convolutions of ResNetV1 for 50 and more layers: y = relu(body(x) + x), or + downsample(x).

    Args:
        channels: number of output channels.
        stride: stride of the first convolution.
        downsample: whether x goes through a convolution, too.
        in_channels: number of input channels; 0: it is inferred.
        **kwargs: prefix and params, as for `Block`.
    """

    _convolutions = staticmethod(_bottleneck_v1)


class _ResidualV2(HybridBlock):
    """y = body(x) + x, or + downsample of the normalized x; normalization and relu come before each convolution.

    Args: as for `BottleneckV1`.

    Source: He et al. 2016, https://arxiv.org/abs/1603.05027.
    """

    _convolutions: Callable[..., Sequence[Any]]

    def __init__(self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        convolutions = self._convolutions(channels, stride, in_channels)
        self._count = len(convolutions)
        for i, conv in enumerate(convolutions, start=1):
            setattr(self, f"bn{i}", nn.BatchNorm())
            setattr(self, f"conv{i}", conv)
        self.downsample = _conv1x1(channels, stride, in_channels) if downsample else None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Add the input, or its convolution, to the output of the last convolution."""
        residual = x
        for i in range(1, self._count + 1):
            x = F.Activation(getattr(self, f"bn{i}")(x), act_type="relu")
            if self.downsample is not None and i == 1:
                residual = self.downsample(x)
            x = getattr(self, f"conv{i}")(x)
        return x + residual


class BasicBlockV2(_ResidualV2):
    """Two convolutions of ResNetV2 for 18 and 34 layers, with the arguments of `BottleneckV1`."""

    _convolutions = staticmethod(_basic)


class BottleneckV2(_ResidualV2):
    """Three convolutions of ResNetV2 for 50 and more layers, with the arguments of `BottleneckV1`."""

    _convolutions = staticmethod(_bottleneck_v2)


class ResNetV1(_Net):
    """ResNet of blocks that are normalized after each convolution; source: He et al. 2016, https://arxiv.org/abs/1512.03385.

    Args:
        block: `BasicBlockV1` or `BottleneckV1`.
        layers: number of blocks of each stage.
        channels: channels of the first convolution, then of each stage.
        classes: number of classes.
        thumbnail: whether images are small (32 x 32): the first convolution is then 3 x 3, without pooling.
        **kwargs: prefix and params, as for `Block`.

    Raises:
        AssertionError: the lengths of layers and channels do not match.
    """

    _preactivated = False

    def __init__(
        self,
        block: Callable[..., Any],
        layers: Sequence[int],
        channels: Sequence[int],
        classes: int = 1000,
        thumbnail: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        assert len(layers) == len(channels) - 1, f"ResNet: {len(layers)} stages need {len(layers) + 1} channels: {channels}."
        before = self._preactivated
        with self.name_scope():
            self.features = _stack(*[nn.BatchNorm(scale=False, center=False)] if before else [])
            self.features.add(*[_conv3x3(channels[0], 1, 0)] if thumbnail else _stem(channels[0]))
            for i, count in enumerate(layers):
                self.features.add(_stage(block, count, channels[i], channels[i + 1], i + 1))
            self.features.add(*[nn.BatchNorm(), _relu()] if before else [], nn.GlobalAvgPool2D())
            self.features.add(*[nn.Flatten()] if before else [])
            self.output = nn.Dense(classes, in_units=channels[-1])


def _stage(block: Callable[..., Any], count: int, before: int, channels: int, index: int) -> Any:
    """Return the blocks of one stage of a ResNet; all stages but the first halve the image."""
    stage = nn.HybridSequential(prefix=f"stage{index}_")
    with stage.name_scope():
        stage.add(block(channels, 1 if index == 1 else 2, channels != before, in_channels=before, prefix=""))
        stage.add(*(block(channels, 1, False, in_channels=channels, prefix="") for _ in range(count - 1)))
    return stage


class ResNetV2(ResNetV1):
    """ResNet of blocks that are normalized before each convolution, with the arguments of `ResNetV1`.

    Source: He et al. 2016, https://arxiv.org/abs/1603.05027.
    """

    _preactivated = True


# ------------------------------------------------------------------------------------------------ DenseNet, SqueezeNet
def _normalized(channels: int, kernel: int, padding: int = 0) -> list[Any]:
    return [nn.BatchNorm(), _relu(), nn.Conv2D(channels, kernel, padding=padding, use_bias=False)]


class DenseNet(_Net):
    """DenseNet, whose layers get the outputs of all layers before; source: Huang et al. 2017, https://arxiv.org/abs/1608.06993.

    Args:
        num_init_features: channels of the first convolution.
        growth_rate: channels that each layer adds.
        block_config: number of layers of each stage.
        bn_size: channels of the first convolution of a layer, divided by growth_rate.
        dropout: rate of the Dropout after each layer.
        classes: number of classes.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(
        self,
        num_init_features: int,
        growth_rate: int,
        block_config: Sequence[int],
        bn_size: int = 4,
        dropout: float = 0,
        classes: int = 1000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        channels = num_init_features
        with self.name_scope():
            self.features = _stack(*_stem(channels))
            for i, count in enumerate(block_config, start=1):
                stage = nn.HybridSequential(prefix=f"stage{i}_")
                with stage.name_scope():
                    for _ in range(count):
                        new = _stack(*_normalized(bn_size * growth_rate, 1), *_normalized(growth_rate, 3, 1))
                        new.add(*[nn.Dropout(dropout)] if dropout else [])
                        stage.add(_side_by_side(Identity(), new))
                self.features.add(stage)
                channels += count * growth_rate
                if i < len(block_config):
                    channels //= 2
                    self.features.add(_stack(*_normalized(channels, 1), nn.AvgPool2D(2, 2)))
            self.features.add(nn.BatchNorm(), _relu(), nn.AvgPool2D(7), nn.Flatten())
            self.output = nn.Dense(classes)


def _side_by_side(*paths: Any) -> HybridConcurrent:
    both = HybridConcurrent(axis=1, prefix="")
    both.add(*paths)
    return both


# channels and size of the first convolution, then channels of the fire modules; 0 is a pooling
_SQUEEZENET = {
    "1.0": (96, 7, [0, 16, 16, 32, 0, 32, 48, 48, 64, 0, 64]),
    "1.1": (64, 3, [0, 16, 16, 0, 32, 32, 0, 48, 48, 64, 64]),
}


class SqueezeNet(_Net):
    """SqueezeNet; source: Iandola et al. 2016, https://arxiv.org/abs/1602.07360.

    Args:
        version: "1.0" or "1.1".
        classes: number of classes.
        **kwargs: prefix and params, as for `Block`.

    Raises:
        AssertionError: the version is another.
    """

    def __init__(self, version: str, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        assert version in _SQUEEZENET, f"SqueezeNet(version={version!r}): pass '1.0' or '1.1'."
        channels, size, rest = _SQUEEZENET[version]
        with self.name_scope():
            self.features = _stack(nn.Conv2D(channels, size, 2), _relu())
            for squeeze in rest:
                self.features.add(_fire(squeeze) if squeeze else nn.MaxPool2D(3, 2, ceil_mode=True))
            self.features.add(nn.Dropout(0.5))
            self.output = _stack(nn.Conv2D(classes, 1), _relu(), nn.AvgPool2D(13), nn.Flatten())


def _fire(squeeze: int) -> Any:
    first, *both = (
        _stack(nn.Conv2D(c, k, padding=k // 2), _relu()) for c, k in ((squeeze, 1), (4 * squeeze, 1), (4 * squeeze, 3))
    )
    return _stack(first, _side_by_side(*both))


# ------------------------------------------------------------------------------------------------ Inception
def _inception(part: Any) -> Any:
    """Make layers of (channels, kernel, stride, padding), "avg" or "max"; of a list: a sequence; of a tuple of lists: paths."""
    if isinstance(part, str):
        return nn.AvgPool2D(3, 1, 1) if part == "avg" else nn.MaxPool2D(3, 2)
    if isinstance(part, list):
        return _stack(*map(_inception, part))
    if isinstance(part[0], list):
        return _side_by_side(*map(_inception, part))
    return _stack(nn.Conv2D(*part, use_bias=False), nn.BatchNorm(epsilon=0.001), _relu())


def _wide(channels: int) -> tuple[Any, ...]:
    return channels, (1, 7), 1, (0, 3)


def _high(channels: int) -> tuple[Any, ...]:
    return channels, (7, 1), 1, (3, 0)


def _a(pooled: int) -> tuple[Any, ...]:
    return [(64, 1)], [(48, 1), (64, 5, 1, 2)], [(64, 1), (96, 3, 1, 1), (96, 3, 1, 1)], ["avg", (pooled, 1)]


def _c(n: int) -> tuple[Any, ...]:
    paths = [(n, 1), _wide(n), _high(192)], [(n, 1), _high(n), _wide(n), _high(n), _wide(192)]
    return [(192, 1)], *paths, ["avg", (192, 1)]


_SPLIT = [(384, (1, 3), 1, (0, 1))], [(384, (3, 1), 1, (1, 0))]
_B = [(384, 3, 2)], [(64, 1), (96, 3, 1, 1), (96, 3, 2)], ["max"]
_D = [(192, 1), (320, 3, 2)], [(192, 1), _wide(192), _high(192), (192, 3, 2)], ["max"]
_E = [(320, 1)], [[(384, 1)], _SPLIT], [[(448, 1), (384, 3, 1, 1)], _SPLIT], ["avg", (192, 1)]
_INCEPTION = {"A1_": _a(32), "A2_": _a(64), "A3_": _a(64), "B_": _B, "C1_": _c(128), "C2_": _c(160), "C3_": _c(160)}
_INCEPTION |= {"C4_": _c(192), "D_": _D, "E1_": _E, "E2_": _E}


class Inception3(_Net):
    """Inception v3; source: Szegedy et al. 2016, https://arxiv.org/abs/1512.00567.

    Args:
        classes: number of classes.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(self, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = _inception([(32, 3, 2), (32, 3), (64, 3, 1, 1), "max", (80, 1), (192, 3), "max"])
            for prefix, paths in _INCEPTION.items():
                block = HybridConcurrent(axis=1, prefix=prefix)
                with block.name_scope():
                    block.add(*map(_inception, paths))
                self.features.add(block)
            self.features.add(nn.AvgPool2D(8), nn.Dropout(0.5))
            self.output = nn.Dense(classes)


# ------------------------------------------------------------------------------------------------ MobileNet
class RELU6(HybridBlock):
    """y = min(max(x, 0), 6)."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Clip."""
        return F.clip(x, 0, 6, name="relu6")


def _conv(channels: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: Any = _relu) -> list[Any]:
    """Return a normalized convolution with an activation; None: without."""
    conv = nn.Conv2D(channels, kernel, stride, kernel // 2, groups=groups, use_bias=False)
    return [conv, nn.BatchNorm(), *([] if act is None else [act()])]


class LinearBottleneck(HybridBlock):
    """The block of MobileNetV2: y = body(x), + x where shapes are equal.

    Args:
        in_channels, channels: number of input and output channels.
        t: channels between the convolutions, divided by in_channels.
        stride: stride of the second convolution.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(self, in_channels: int, channels: int, t: int, stride: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use_shortcut, inner = stride == 1 and in_channels == channels, in_channels * t
        with self.name_scope():
            self.out = _stack(*_conv(inner, act=RELU6), *_conv(inner, 3, stride, inner, RELU6), prefix=None)
            self.out.add(*_conv(channels, act=None))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Apply three convolutions."""
        return F.elemwise_add(self.out(x), x) if self.use_shortcut else self.out(x)


class MobileNet(_Net):
    """MobileNet; source: Howard et al. 2017, https://arxiv.org/abs/1704.04861.

    Args:
        multiplier: factor of all numbers of channels.
        classes: number of classes.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        widths = [int(c * multiplier) for c in [32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]]
        strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]
        with self.name_scope():
            self.features = _stack(*_conv(widths[0], 3, 2))
            for before, channels, stride in zip(widths, widths[1:], strides, strict=False):
                self.features.add(*_conv(before, 3, stride, before), *_conv(channels))
            self.features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.output = nn.Dense(classes)


class MobileNetV2(_Net):
    """MobileNet v2; source: Sandler et al. 2018, https://arxiv.org/abs/1801.04381.

    Args:
        multiplier: factor of all numbers of channels.
        classes: number of classes.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # expansion, channels, blocks and stride of the first block of each stage
        table = (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
        before = int(32 * multiplier)
        with self.name_scope():
            self.features, self.output = _stack(prefix="features_"), _stack(prefix="output_")
            with self.features.name_scope():
                self.features.add(*_conv(before, 3, 2, act=RELU6))
                for t, width, count, stride in table:
                    for i in range(count):
                        channels = int(width * multiplier)
                        self.features.add(LinearBottleneck(before, channels, t, 1 if i else stride))
                        before = channels
                self.features.add(*_conv(int(1280 * max(1.0, multiplier)), act=RELU6), nn.GlobalAvgPool2D())
            with self.output.name_scope():
                self.output.add(nn.Conv2D(classes, 1, use_bias=False, prefix="pred_"), nn.Flatten())


# ------------------------------------------------------------------------------------------------ nets by name
def _make(net: Any, name: str, *args: Any, pretrained: bool = False, ctx: Any = None, root: Any = None, **kwargs: Any) -> Any:
    """Return a net, with the weights of a local file if it is pretrained."""
    net = net(*args, **kwargs)
    if pretrained:
        net.load_parameters(get_model_file(name, root), ctx=ctx or cpu())
    return net


# layers of each stage
_RESNETS = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3], 101: [3, 4, 23, 3], 152: [3, 8, 36, 3]}


def get_resnet(version: int, num_layers: int, **kwargs: Any) -> Any:
    """Return a ResNet.

    Args:
        version: 1 or 2.
        num_layers: 18, 34, 50, 101 or 152.
        **kwargs: as for `get_model`.

    Returns:
        ResNetV1 or ResNetV2.

    Raises:
        AssertionError: there is no such version or number of layers.

    Example:
        >>> get_resnet(1, 18, classes=10).output
        Dense(512 -> 10, linear)
    """
    assert num_layers in _RESNETS, f"ResNet has no version of {num_layers} layers; pass one of {[*_RESNETS]}."
    assert version in (1, 2), f"ResNet has no version {version}; pass 1 or 2."
    widths, *blocks = [64, 128, 256, 512], BasicBlockV1, BasicBlockV2
    if num_layers >= 50:
        widths, *blocks = [256, 512, 1024, 2048], BottleneckV1, BottleneckV2
    net, name = (ResNetV1, ResNetV2)[version - 1], f"resnet{num_layers}_v{version}"
    return _make(net, name, blocks[version - 1], _RESNETS[num_layers], [64, *widths], **kwargs)


_VGGS = {11: [1, 1, 2, 2, 2], 13: [2, 2, 2, 2, 2], 16: [2, 2, 3, 3, 3], 19: [2, 2, 4, 4, 4]}


def get_vgg(num_layers: int, **kwargs: Any) -> Any:
    """Return a VGG.

    Args:
        num_layers: 11, 13, 16 or 19.
        **kwargs: as for `get_model`, and `batch_norm`.

    Returns:
        VGG.

    Example:
        >>> get_vgg(11, batch_norm=True).features[1]
        BatchNorm(axis=1, eps=1e-05, momentum=0.9, fix_gamma=False, use_global_stats=False, in_channels=None)
    """
    name = f"vgg{num_layers}{'_bn' if kwargs.get('batch_norm') else ''}"
    return _make(VGG, name, _VGGS[num_layers], [64, 128, 256, 512, 512], **kwargs)


def get_mobilenet(multiplier: float, **kwargs: Any) -> Any:
    """Return a MobileNet.

    Args:
        multiplier: factor of all numbers of channels.
        **kwargs: as for `get_model`.

    Returns:
        MobileNet.

    Example:
        >>> get_mobilenet(0.5).features[0]
        Conv2D(None -> 16, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)
    """
    return _make(MobileNet, f"mobilenet{multiplier}", multiplier, **kwargs)


def get_mobilenet_v2(multiplier: float, **kwargs: Any) -> Any:
    """Return a MobileNetV2.

    Args:
        multiplier: factor of all numbers of channels.
        **kwargs: as for `get_model`.

    Returns:
        MobileNetV2.

    Example:
        >>> get_mobilenet_v2(0.5).features[0]
        Conv2D(None -> 16, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)
    """
    return _make(MobileNetV2, f"mobilenetv2_{multiplier}", multiplier, **kwargs)


_DENSENETS = {
    121: (64, 32, [6, 12, 24, 16]),
    161: (96, 48, [6, 12, 36, 24]),
    169: (64, 32, [6, 12, 32, 32]),
    201: (64, 32, [6, 12, 48, 32]),
}
_new = functools.partial
_MODELS: dict[str, Callable[..., Any]] = {
    **{f"resnet{n}_v{v}": _new(get_resnet, v, n) for v in (1, 2) for n in _RESNETS},
    **{f"vgg{n}{end}": _new(get_vgg, n, **bn) for n in _VGGS for end, bn in (("", {}), ("_bn", {"batch_norm": True}))},
    "alexnet": _new(_make, AlexNet, "alexnet"),
    **{f"densenet{n}": _new(_make, DenseNet, f"densenet{n}", *row) for n, row in _DENSENETS.items()},
    **{f"squeezenet{v}": _new(_make, SqueezeNet, f"squeezenet{v}", v) for v in _SQUEEZENET},
    "inceptionv3": _new(_make, Inception3, "inceptionv3"),
    **{f"mobilenet{m}": _new(get_mobilenet, m) for m in (1.0, 0.75, 0.5, 0.25)},
    **{f"mobilenetv2_{m}": _new(get_mobilenet_v2, m) for m in (1.0, 0.75, 0.5, 0.25)},
}
# the functions of MXNet: resnet18_v1, squeezenet1_0, inception_v3, mobilenet_v2_0_5, ...
_FUNCTIONS = {name.replace(".", "_").replace("tv2", "t_v2").replace("nv3", "n_v3"): make for name, make in _MODELS.items()}
_CLASSES = "AlexNet VGG ResNetV1 ResNetV2 BasicBlockV1 BasicBlockV2 BottleneckV1 BottleneckV2 DenseNet SqueezeNet Inception3 "
_OTHERS = "MobileNet MobileNetV2 get_mobilenet get_mobilenet_v2 get_model get_resnet get_vgg"
globals().update(_FUNCTIONS, __all__=[*(_CLASSES + _OTHERS).split(), *_FUNCTIONS])


def get_model(name: str, **kwargs: Any) -> Any:
    """Return a net by name.

    Args:
        name: such as "resnet50_v2", "vgg16_bn", "densenet121", "squeezenet1.1", "inceptionv3", "mobilenetv2_0.5", "alexnet".
        **kwargs: `classes` and the other arguments of the net's class.  `pretrained`: whether to load the weights from a file
            in the folder `root` (nothing is downloaded, see `get_model_file`).  `ctx`: contexts for them, by default cpu().

    Returns:
        HybridBlock with the blocks `features` and `output`.

    Raises:
        ValueError: there is no such net.
        MissingFile: `pretrained` is true, and the folder has no file for this net.

    Example:
        >>> net = get_model("mobilenet0.25", classes=5, prefix="net_")
        >>> net.output, list(net.collect_params())[0]
        (Dense(None -> 5, linear), 'net_conv0_weight')

    Source: Apache MXNet 1.9.1, `mxnet.gluon.model_zoo.vision`.
    """
    if name.lower() not in _MODELS:
        raise ValueError(f"there is no net {name!r}; the names are {', '.join(sorted(_MODELS))}")
    return _MODELS[name.lower()](**kwargs)
