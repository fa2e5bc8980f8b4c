"""The initializers, one class each; the lower-case names are aliases of the classes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import one_of
from jfit.init import sampling
from jfit.init.core import InitDesc, InitFn, Initializer, described, distribution_of, get, own_rules, register
from jfit.init.sampling import Distribution, Fixed, gauss


@register("zeros")
@dataclass(frozen=True)
class Zero(Initializer):
    """w = 0.

    Example:
        >>> import jax
        >>> Zero()(jax.random.key(0), "fc_weight", (2,)).tolist()
        [0.0, 0.0]
    """

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        return Fixed(np.float32(0))


@register("ones")
@dataclass(frozen=True)
class One(Initializer):
    """w = 1.

    Example:
        >>> import jax
        >>> One()(jax.random.key(0), "fc_weight", (2,)).tolist()
        [1.0, 1.0]
    """

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        return Fixed(np.float32(1))


@register()
@dataclass(frozen=True)
class Constant(Initializer):
    """w = value.

    Args:
        value: number, or array of the shape of the parameter.

    Raises:
        ValueError: the array has another shape (raised when values are drawn).

    Example:
        >>> import jax
        >>> Constant(0.5)(jax.random.key(0), "fc_weight", (2,)).tolist()
        [0.5, 0.5]
    """

    value: Any = 0.0

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        value = np.asarray(self.value, np.float32)
        if value.ndim and value.shape != shape:
            raise ValueError(f"parameter {name!r}: the constant has shape {value.shape}, the parameter has {shape}.")
        return Fixed(value)


@register()
@dataclass(frozen=True)
class Uniform(Initializer):
    """w ~ U(-scale, scale).

    Args:
        scale: half width of the interval.

    Example:
        >>> import jax
        >>> bool(abs(Uniform(0.1)(jax.random.key(0), "fc_weight", (4, 3))).max() <= 0.1)
        True
    """

    scale: float = 0.07

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        return sampling.Uniform(self.scale)


@register()
@dataclass(frozen=True)
class Normal(Initializer):
    """w ~ N(0, sigma^2).

    Args:
        sigma: standard deviation.

    Example:
        >>> import jax
        >>> Normal(0.02)(jax.random.key(0), "fc_weight", (4, 3)).shape
        (4, 3)
    """

    sigma: float = 0.01

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        return sampling.Normal(self.sigma)


@register()
@dataclass(frozen=True)
class Orthogonal(Initializer):
    """w = scale * Q, Q with orthonormal rows or columns, from the SVD of a random (shape[0], prod(shape[1:])) matrix.

    Args:
        scale: factor of the orthonormal matrix.
        rand_type: distribution of the random matrix, "uniform" (-1, 1) or "normal".

    Raises:
        ValueError: `rand_type` is neither "uniform" nor "normal".

    Example:
        >>> import jax
        >>> q = Orthogonal(scale=1.0)(jax.random.key(0), "fc_weight", (2, 3))
        >>> bool(abs(q @ q.T - jnp.eye(2)).max() < 1e-5)
        True

    Source: Saxe et al. 2014, https://arxiv.org/abs/1312.6120.
    """

    scale: float = 1.414
    rand_type: str = "uniform"

    def __post_init__(self) -> None:
        one_of(("uniform", "normal"), **{"Orthogonal: rand_type": self.rand_type})

    def draw(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        flat = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
        raw = jax.random.uniform(key, flat, jnp.float32, -1, 1) if self.rand_type == "uniform" else gauss(key, flat)
        u, _, v = jnp.linalg.svd(raw, full_matrices=False)
        return self.scale * (u if u.shape == flat else v).reshape(shape)


def _xavier(name: str, shape: tuple[int, ...], rnd_type: str, factor_type: str, magnitude: float) -> Distribution:
    if len(shape) < 2:
        problem = f"parameter {name!r}: Xavier needs at least 2 dimensions (out, in, ...), the shape is {shape}"
        raise ValueError(f"{problem}; set another initializer on its variable: Variable({name!r}, init='uniform').")
    receptive = math.prod(shape[2:])
    fan_in, fan_out = shape[1] * receptive, shape[0] * receptive
    factor = {"avg": (fan_in + fan_out) / 2.0, "in": fan_in, "out": fan_out}[factor_type]
    scale = math.sqrt(magnitude / factor) if factor else 0.0
    return sampling.Uniform(scale) if rnd_type == "uniform" else sampling.Normal(scale)


@register()
@dataclass(frozen=True)
class Xavier(Initializer):
    """w ~ U(-s, s) or N(0, s^2) for a weight w, with s = sqrt(magnitude / fan).

    With weights of shape (out, in, *kernel): fan_in = in * prod(kernel) and fan_out = out * prod(kernel).

    Args:
        rnd_type: distribution, "uniform" or "gaussian".
        factor_type: the fan: "in" (fan_in), "out" (fan_out) or "avg" (their mean).
        magnitude: numerator of s^2.

    Raises:
        ValueError: `rnd_type` or `factor_type` is none of these, or (when values are drawn) the shape has less than 2
            dimensions.

    Example:
        >>> import jax
        >>> Xavier("gaussian", "in", 2)(jax.random.key(0), "conv_weight", (8, 3, 3, 3)).shape
        (8, 3, 3, 3)

    Source: Glorot and Bengio 2010, http://proceedings.mlr.press/v9/glorot10a.html.
    """

    rnd_type: str = "uniform"
    factor_type: str = "avg"
    magnitude: float = 3

    def __post_init__(self) -> None:
        one_of(("uniform", "gaussian"), **{"Xavier: rnd_type": self.rnd_type})
        one_of(("avg", "in", "out"), **{"Xavier: factor_type": self.factor_type})

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        return _xavier(name, shape, self.rnd_type, self.factor_type, self.magnitude)


@register()
@dataclass(frozen=True)
class MSRAPrelu(Initializer):
    """w ~ N(0, s^2) with s = sqrt(2 / ((1 + slope^2) * fan)).

    Args:
        factor_type: the fan as in `Xavier`: "in", "out" or "avg".
        slope: slope of the PReLU for negative inputs.

    Raises:
        ValueError: `factor_type` is none of these, or (when values are drawn) the shape has less than 2 dimensions.

    Example:
        >>> import jax
        >>> MSRAPrelu("in", slope=0.0)(jax.random.key(0), "fc_weight", (4, 3)).shape
        (4, 3)

    Source: He et al. 2015, https://arxiv.org/abs/1502.01852.
    """

    factor_type: str = "avg"
    slope: float = 0.25

    def __post_init__(self) -> None:
        one_of(("avg", "in", "out"), **{"MSRAPrelu: factor_type": self.factor_type})

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        return _xavier(name, shape, "gaussian", self.factor_type, 2.0 / (1 + self.slope**2))


@register()
@dataclass(frozen=True)
class Bilinear(Initializer):
    """w[.., y, x] = (1 - |x/f - c|)(1 - |y/f - c|), f = ceil(width / 2), c = (2f - 1 - f mod 2) / (2f): bilinear upsampling.

    For 4-D weights (out, in, height, width) of a deconvolution.

    Raises:
        ValueError: the shape does not have 4 dimensions (raised when values are drawn).

    Example:
        >>> import jax
        >>> Bilinear()(jax.random.key(0), "up_weight", (1, 1, 4, 4))[0, 0, 0].tolist()
        [0.0625, 0.1875, 0.1875, 0.0625]
    """

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        if len(shape) != 4:
            raise ValueError(f"parameter {name!r}: Bilinear needs 4 dimensions (out, in, height, width), the shape is {shape}.")
        f = math.ceil(shape[3] / 2.0)
        c = (2 * f - 1 - f % 2) / (2.0 * f)
        x, y = (1 - np.abs(np.arange(n) / f - c) for n in (shape[3], shape[2]))
        return Fixed(np.outer(y, x).astype(np.float32))


@register()
@dataclass(frozen=True)
class LSTMBias(Initializer):
    """b = forget_bias in the second quarter, the forget gate (gates in the order i, f, c, o), and 0 elsewhere.

    Pass it as initializer of the bias of an LSTM cell, `Variable("lstm_bias", init=LSTMBias())`: a variable whose name ends in
    `bias` is 0 without an initializer.

    Args:
        forget_bias: bias of the forget gate.

    Example:
        >>> import jax
        >>> from jfit.init import InitDesc
        >>> desc = InitDesc("lstm_bias", {"__init__": LSTMBias().dumps()})
        >>> LSTMBias()(jax.random.key(0), desc, (8,)).tolist()
        [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]

    Source: Jozefowicz et al. 2015, http://proceedings.mlr.press/v37/jozefowicz15.html.
    """

    forget_bias: float = 1.0

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution:
        quarter = shape[0] // 4
        values = np.zeros(shape, np.float32)
        values[quarter : 2 * quarter] = self.forget_bias
        return Fixed(values)


@register()
@dataclass(frozen=True)
class Mixed(Initializer):
    """Choose the initializer by regular expressions on the parameter name; the first that matches (`re.match`) is used.

    Args:
        patterns: regular expressions.
        initializers: an initializer for each pattern: anything that `get` accepts.

    Raises:
        ValueError: when values are drawn: no pattern matches, or the lengths differ.

    Example:
        >>> import jax
        >>> start = Mixed([".*gate.*", ".*"], [Constant(2.0), "one"])
        >>> start(jax.random.key(0), "my_gate_weight", (2,)).tolist()
        [2.0, 2.0]
    """

    patterns: Sequence[str]
    initializers: Sequence[Any]

    def __call__(self, key: Array, desc: str, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        desc = described(desc)
        return self._matching(desc)(key, desc, shape, dtype)

    def distribution_of(self, desc: InitDesc, shape: tuple[int, ...]) -> Distribution | None:
        return distribution_of(self._matching(desc), desc, shape) if own_rules(type(self)) else None

    def _matching(self, desc: InitDesc) -> InitFn:
        for pattern, chosen in zip(self.patterns, self.initializers, strict=True):
            if re.match(pattern, desc.name):
                return get(chosen)
        raise ValueError(f"parameter {desc.name!r} matches none of the patterns {str(self.patterns)[1:-1]}; add '.*' to them")


@register()
@dataclass(frozen=True)
class Default(Initializer):
    """w ~ N(0, 2 / fan_in) for two or more dimensions, else U(-0.07, 0.07); see `default`.

    Example:
        >>> import jax
        >>> Default()(jax.random.key(0), "fc_weight", (4, 3)).shape
        (4, 3)
    """

    def constant_of(self, name: str) -> float | None:
        # "parameters", the name of the flat vector of a fused RNN, has no known suffix in MXNet
        return None if name.endswith("parameters") else super().constant_of(name)

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution | None:
        return (Xavier("gaussian", "in", 2) if len(shape) > 1 else Uniform(0.07)).distribution(name, shape)


def default() -> Initializer:
    """Return the default initializer of `jfit.fit`: w ~ N(0, 2 / fan_in) for two or more dimensions, else U(-0.07, 0.07).

    The flat `parameters` vector of a fused RNN is drawn from U(-0.07, 0.07).  The classes of `jfit.mx` keep MXNet's default,
    `Uniform(0.01)`, with which networks of more than a few layers hardly train.

    Returns:
        A `Default`.

    Example:
        >>> import jax
        >>> default()(jax.random.key(0), "conv_weight", (8, 3, 3, 3)).shape
        (8, 3, 3, 3)

    Source: He et al. 2015, https://arxiv.org/abs/1502.01852.
    """
    return Default()


zero, one, constant, uniform, normal, orthogonal = Zero, One, Constant, Uniform, Normal, Orthogonal
xavier, msraprelu, bilinear, lstmbias, mixed = Xavier, MSRAPrelu, Bilinear, LSTMBias, Mixed
