"""Layers of gluon.nn without windows: containers, Dense, Embedding, Dropout, normalizations, functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from jfit.mxnet import ndarray, symbol
from jfit.mxnet.gluon.block import Block, rows
from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.nn.weighted import Weighted


class Container(Block):
    """What the blocks of numbered blocks share, those of recurrent cells included."""

    def add(self, *blocks: Any) -> None:
        """Append blocks."""
        for block in blocks:
            self.register_child(block)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(\n{rows(self._children)}\n)"

    def __getitem__(self, key: Any) -> Any:
        layers = list(self._children.values())[key]
        if not isinstance(layers, list):
            return layers
        net = type(self)(prefix=self._prefix)
        with net.name_scope():
            net.add(*layers)
        return net

    def __len__(self) -> int:
        return len(self._children)


class Sequential(Container):
    """Blocks that are called one after the other, each with the output of the one before.

    `net[i]` is a block, `net[i:j]` a Sequential of the same blocks.

    Args:
        prefix, params: as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.gluon.nn.Sequential(prefix="net_")
        >>> with net.name_scope():
        ...     net.add(mx.gluon.nn.Dense(4, activation="relu"), mx.gluon.nn.Dense(2))
        >>> net.initialize()
        >>> net(mx.nd.ones((3, 5))).shape, list(net.collect_params())[0]
        ((3, 2), 'net_dense0_weight')

    Source: Apache MXNet 1.9.1, `mxnet.gluon.nn`, as all layers here.
    """

    _in_summary = False

    def forward(self, x: Any) -> Any:
        """Call the blocks one after the other."""
        for block in self._children.values():
            x = block(x)
        return x

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridize the blocks that are HybridBlocks, each as a program of its own."""
        if self._children and all(isinstance(block, HybridBlock) for block in self._children.values()):
            hint = "use HybridSequential, which compiles them as one program"
            warnings.warn(f"all blocks of the Sequential {self.prefix!r} are HybridBlocks; {hint}.", stacklevel=2)
        super().hybridize(active, **kwargs)


class HybridSequential(Container, HybridBlock):
    """HybridBlocks that are called one after the other, each with the output of the one before.

    Args:
        prefix, params: as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.gluon.nn.HybridSequential()
        >>> net.add(mx.gluon.nn.Dense(4, activation="relu"), mx.gluon.nn.Dense(2))
        >>> net.initialize()
        >>> net.hybridize()
        >>> net(mx.nd.ones((3, 5))).shape
        (3, 2)
    """

    _in_summary = False

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Call the blocks one after the other."""
        for block in self._children.values():
            x = block(x)
        return x


class Dense(Weighted):
    """y = f(x W^T + b), a fully connected layer.

    Args:
        units: size of the output.
        activation: name of the function f, as for `Activation`; None: f is the identity.
        use_bias: whether to add b.
        flatten: whether x is (batch, ...) and all axes but the first are one; else the layer is applied to the last axis.
        dtype: dtype of W and b.
        weight_initializer, bias_initializer: initializers of W and b; None: the initializer of `initialize`.
        in_units: size of the input; 0: it is inferred at the first call.
        **kwargs: prefix and params, as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> layer = Dense(2, weight_initializer="ones")
        >>> layer.initialize()
        >>> layer(mx.nd.ones((1, 3))).asnumpy().tolist(), layer
        ([[3.0, 3.0]], Dense(3 -> 2, linear))
    """

    _op_name = "FullyConnected"

    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: Any = "float32",
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_units: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._kwargs = {"no_bias": not use_bias, "num_hidden": units, "flatten": flatten}
        bias = units if use_bias else None
        self._add_parts((units, in_units), weight_initializer, bias, bias_initializer, activation, dtype=dtype)

    def __repr__(self) -> str:
        units, in_units = self.weight.shape
        return f"{type(self).__name__}({in_units or None} -> {units}, {self.act or 'linear'})"


class Dropout(HybridBlock):
    """While training, set a part of the values to 0 and divide the others by 1 - rate; else y = x.

    Args:
        rate: probability of a value to become 0.
        axes: axes along which all values become 0 or stay together.
        **kwargs: prefix and params, as for `Block`.

    Source: Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html.
    """

    def __init__(self, rate: float, axes: Any = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._rate, self._axes = rate, axes

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Drop values while training."""
        return F.Dropout(x, p=self._rate, axes=self._axes, name="fwd") if self._rate > 0 else F.identity(x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p = {self._rate}, axes={self._axes})"


class Embedding(HybridBlock):
    """y = W[x], rows of a table.

    Args:
        input_dim: number of rows; the values of x are from 0 to input_dim - 1.
        output_dim: size of a row.
        dtype: dtype of the table.
        weight_initializer: initializer of the table; None: the initializer of `initialize`.
        sparse_grad: whether the gradient of the table is row_sparse.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: Any = "float32",
        weight_initializer: Any = None,
        sparse_grad: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._kwargs = {"input_dim": input_dim, "output_dim": output_dim, "dtype": dtype, "sparse_grad": sparse_grad}
        options = {"allow_deferred_init": True, "grad_stype": "row_sparse" if sparse_grad else "default"}
        self.weight = self.params.get("weight", shape=(input_dim, output_dim), init=weight_initializer, dtype=dtype, **options)

    def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
        """Look up rows."""
        return F.Embedding(x, weight, name="fwd", **self._kwargs)

    def __repr__(self) -> str:
        return "{}({input_dim} -> {output_dim}, {dtype})".format(type(self).__name__, **self._kwargs)


class Flatten(HybridBlock):
    """Reshape (batch, a, b, ...) to (batch, a * b * ...)."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Make all axes but the first one axis."""
        return F.flatten(x)

    def __repr__(self) -> str:
        return type(self).__name__


class _Norm(HybridBlock):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta.

    Args:
        settings: what the repr shows.
        size: length of gamma and beta; 0: it is inferred at the first call.
        center, scale: whether beta, gamma are trained.
        beta_initializer, gamma_initializer: initializers of beta and gamma.
        **kwargs: prefix and params, as for `Block`.
    """

    def __init__(
        self, settings: Any, size: int, center: bool, scale: bool, beta_initializer: Any, gamma_initializer: Any, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._kwargs, self._size = settings, size
        self.gamma = self._parameter("gamma", gamma_initializer, scale)
        self.beta = self._parameter("beta", beta_initializer, center)

    def _parameter(self, name: str, init: Any, trained: bool, **options: Any) -> Any:
        req = "write" if trained else "null"
        return self.params.get(name, grad_req=req, shape=(self._size,), init=init, allow_deferred_init=True, **options)

    def __repr__(self) -> str:
        shown = self._kwargs | self._shown_channels()
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    def _shown_channels(self) -> dict[str, Any]:
        return {"in_channels": self.gamma.shape[0]}


class BatchNorm(_Norm):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance per channel over the batch.

    In prediction, running averages take the place of mean and variance; a forward pass in training updates them:
    running = momentum * running + (1 - momentum) * batch.

    Args:
        axis: axis of the channels.
        momentum: factor of the running averages in their update.
        epsilon: number that is added to the variance.
        center: whether beta is trained; else it keeps its initial value.
        scale: whether gamma is trained; else it is 1.
        use_global_stats: whether to use the running averages in training, too.
        beta_initializer, gamma_initializer, running_mean_initializer, running_variance_initializer: initializers.
        in_channels: number of channels; 0: it is inferred at the first call.
        **kwargs: prefix and params, as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> layer = BatchNorm()
        >>> layer.initialize()
        >>> layer(mx.nd.ones((2, 3))).shape, layer.running_mean.shape
        ((2, 3), (3,))

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.
    """

    _operator = "BatchNorm"

    def __init__(
        self,
        axis: int = 1,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        running_mean_initializer: Any = "zeros",
        running_variance_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        settings = {"axis": axis, "eps": epsilon, "momentum": momentum, "fix_gamma": not scale}
        settings["use_global_stats"] = use_global_stats
        super().__init__(settings, in_channels, center, scale, beta_initializer, gamma_initializer, **kwargs)
        if in_channels:
            self.in_channels = in_channels
        self.running_mean = self._parameter("running_mean", running_mean_initializer, False)
        self.running_var = self._parameter("running_var", running_variance_initializer, False)

    def _parameter(self, name: str, init: Any, trained: bool, **options: Any) -> Any:
        return super()._parameter(name, init, trained, differentiable=trained, **options)

    def cast(self, dtype: Any) -> None:
        """Cast the parameters; for float16 they stay float32."""
        super().cast("float32" if np.dtype(dtype).name == "float16" else dtype)

    def _shown_channels(self) -> dict[str, Any]:
        return {"in_channels": self.gamma.shape[0] or None}

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
        """Normalize each channel."""
        operator = attrgetter(self._operator)(F)
        return operator(x, gamma, beta, running_mean, running_var, name="fwd", **self._kwargs)


class BatchNormReLU(BatchNorm):
    """y = max(0, BatchNorm(x)), with the arguments of `BatchNorm`."""

    _operator = "contrib.BatchNormWithReLU"


class _AxisNorm(_Norm):
    """A normalization along or over axes of each row."""

    _axis: int
    _scale = True

    def __init__(
        self,
        axis: int | None = None,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool | None = None,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        scale = self._scale if scale is None else scale
        settings = {"eps": epsilon, "axis": self._axis if axis is None else axis, "center": center, "scale": scale}
        super().__init__(settings, in_channels, center, scale, beta_initializer, gamma_initializer, **kwargs)


class InstanceNorm(_AxisNorm):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance per row and channel.

    Args:
        axis: axis of the channels, by default 1.
        epsilon: number that is added to the variance.
        center, scale: whether beta (by default) and gamma (by default not) are trained.
        beta_initializer, gamma_initializer: initializers of beta and gamma.
        in_channels: number of channels; 0: it is inferred at the first call.
        prefix, params: as for `Block`.

    Source: Ulyanov et al. 2016, https://arxiv.org/abs/1607.08022.
    """

    _axis, _scale = 1, False

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any) -> Any:
        """Normalize each row and channel."""
        axis, eps = self._kwargs["axis"], self._kwargs["eps"]
        if axis == 1:
            return F.InstanceNorm(x, gamma, beta, name="fwd", eps=eps)
        return F.swapaxes(F.InstanceNorm(F.swapaxes(x, 1, axis), gamma, beta, name="fwd", eps=eps), 1, axis)


class LayerNorm(_AxisNorm):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance along one axis.

    Args:
        axis: axis that is normalized, and of gamma and beta; by default the last one.
        epsilon, center, scale, beta_initializer, gamma_initializer, in_channels, prefix, params: as for `InstanceNorm`; by
            default, both beta and gamma are trained.

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450.
    """

    _axis = -1

    def hybrid_forward(self, F: Any, data: Any, gamma: Any, beta: Any) -> Any:
        """Normalize along the axis."""
        return F.LayerNorm(data, gamma=gamma, beta=beta, axis=self._kwargs["axis"], eps=self._kwargs["eps"])


class GroupNorm(_AxisNorm):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance per row and group of channels.

    Args:
        num_groups: number of groups, and length of gamma and beta.
        *args, **kwargs: epsilon, center, scale, beta_initializer, gamma_initializer, prefix and params, as for `LayerNorm`.

    Source: Wu and He 2018, https://arxiv.org/abs/1803.08494.
    """

    def __init__(self, num_groups: int = 1, *args: Any, **kwargs: Any) -> None:
        super().__init__(1, *args, in_channels=num_groups, **kwargs)
        self._kwargs = {"num_groups" if k == "axis" else k: v for k, v in self._kwargs.items()} | {"num_groups": num_groups}

    def hybrid_forward(self, F: Any, data: Any, gamma: Any, beta: Any) -> Any:
        """Normalize each row and group of channels."""
        return F.GroupNorm(data, gamma=gamma, beta=beta, num_groups=self._size, eps=self._kwargs["eps"])

    def _shown_channels(self) -> dict[str, Any]:
        return {}


class _Function(Block):
    """A function as a block; a subclass lists the modules that have functions by name."""

    _modules: tuple[Any, ...]

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None) -> None:
        super().__init__(prefix=prefix)
        self._func, self._func_name = function, getattr(function, "__name__", function)
        known = callable(function) or all(hasattr(module, function) for module in self._modules)
        assert known, f"mx.nd or mx.sym has no function {function!r}; pass a function."

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._func_name})"


class Lambda(_Function):
    """y = function(*inputs).

    Args:
        function: function of NDArrays, or the name of a function of `mx.nd`.
        prefix: as for `Block`.

    Raises:
        AssertionError: there is no function of this name.
        TypeError: `function` is neither a function nor a name.

    Example:
        >>> import jfit.mx as mx
        >>> Lambda("relu")(mx.nd.array([-1, 1])).asnumpy().tolist()
        [0.0, 1.0]
    """

    _modules = (ndarray,)

    def forward(self, *args: Any) -> Any:
        """Call the function."""
        return (getattr(ndarray, self._func) if isinstance(self._func, str) else self._func)(*args)


class HybridLambda(_Function, HybridBlock):
    """y = function(F, *inputs), where F is `mx.nd` or `mx.sym`.

    Args:
        function: function of F and arrays or symbols, or the name of a function of both `mx.nd` and `mx.sym`.
        prefix: as for `Block`.

    Raises:
        AssertionError: there is no function of this name.
        TypeError: `function` is neither a function nor a name.

    Example:
        >>> import jfit.mx as mx
        >>> HybridLambda(lambda F, x: F.relu(x) * 2)(mx.nd.array([-1, 1])).asnumpy().tolist()
        [0.0, 2.0]
    """

    _modules = ndarray, symbol

    def hybrid_forward(self, F: Any, x: Any, *args: Any) -> Any:
        """Call the function."""
        return getattr(F, self._func)(x, *args) if isinstance(self._func, str) else self._func(F, x, *args)
