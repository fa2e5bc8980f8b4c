"""`mx.init`: initializers in MXNet's form, `init(InitDesc(name, attrs), array)` writes into the array.

The values are those of `jfit.init`; the keys come from `mx.random.seed`.  Each is also a function of jfit's form,
`init(key, desc, shape, dtype) -> array`, so it goes wherever jfit takes an initializer.

>>> import jfit.mx as mx
>>> a = mx.nd.zeros((2, 2))
>>> mx.init.Constant(3)(mx.init.InitDesc("fc_weight"), a)
>>> a.asnumpy().tolist()
[[3.0, 3.0], [3.0, 3.0]]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np

from jfit.init import REGISTRY as PURE
from jfit.init.fused import parts_of
from jfit.init.stored import named_arrays
from jfit.mxnet.base import translated
from jfit.mxnet.box import unbox
from jfit.mxnet.initializer.base import InitDesc, Initializer, TwoForms, alias, create, register
from jfit.mxnet.keys import next_key
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.spelling import absent

__all__ = [
    "Bilinear",
    "Constant",
    "FusedRNN",
    "InitDesc",
    "Initializer",
    "LSTMBias",
    "Load",
    "MSRAPrelu",
    "Mixed",
    "Normal",
    "One",
    "Orthogonal",
    "Uniform",
    "Xavier",
    "Zero",
    "alias",
    "create",
    "register",
]


class _Pure(Initializer):
    """Initializers whose weights are those of the class of the same name in `jfit.init`."""

    def _init_weight(self, name: str, arr: Any) -> None:
        rule: Any = PURE[type(self).__name__.lower()](**self._kwargs)
        arr[:] = rule.draw(next_key(), str(name), tuple(arr.shape))


@alias("zeros")
@register
class Zero(_Pure):
    """w = 0."""

    def __init__(self) -> None:
        super().__init__()


@alias("ones")
@register
class One(_Pure):
    """w = 1."""

    def __init__(self) -> None:
        super().__init__()


@register
class Constant(Initializer):
    """w = value, a number or an array that broadcasts."""

    def __init__(self, value: Any) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, name: str, arr: Any) -> None:
        arr[:] = np.asarray(unbox(self.value), np.float32)


@register
class Uniform(_Pure):
    """w ~ U(-scale, scale)."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.scale = scale


@register
class Normal(_Pure):
    """w ~ N(0, sigma²)."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.sigma = sigma


@register
class Orthogonal(_Pure):
    """w = scale · Q with orthonormal rows or columns."""

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale, rand_type=rand_type)
        self.scale, self.rand_type = scale, rand_type


@register
class Xavier(_Pure):
    """w ~ U(-s, s) or N(0, s²) with s = √(magnitude / fan)."""

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self.rnd_type, self.factor_type, self.magnitude = rnd_type, factor_type, float(magnitude)


@register
class MSRAPrelu(_Pure):
    """w ~ N(0, s²) with s = √(2 / (1 + slope²) / fan)."""

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__(factor_type=factor_type, slope=slope)


@register
class Bilinear(_Pure):
    """w[.., y, x] = (1 - |x/f - c|)(1 - |y/f - c|), the kernel of bilinear upsampling."""

    def __init__(self) -> None:
        super().__init__()


@register
class LSTMBias(_Pure):
    """b = 0 but forget_bias in the second quarter, the forget gate."""

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias


@register
class FusedRNN(Initializer):
    """The flat parameters of a fused RNN: each gate's weights by `init`, forget biases of an LSTM by `forget_bias`.

    Args:
        init: initializer of the parts (or its JSON text); None means the one that was asked for the whole.
        num_hidden: size of the state.
        num_layers: layers.
        mode: rnn_relu, rnn_tanh, lstm or gru.
        bidirectional: both directions.
        forget_bias: of the forget gates of an LSTM.
    """

    def __init__(
        self, init: Any, num_hidden: int, num_layers: int, mode: str, bidirectional: bool = False, forget_bias: float = 1.0
    ) -> None:
        self._init = create(init) if init is not None else None
        super().__init__(
            init=None if self._init is None else self._init.dumps(),
            num_hidden=num_hidden,
            num_layers=num_layers,
            mode=mode,
            bidirectional=bidirectional,
            forget_bias=forget_bias,
        )

    def _init_weight(self, name: str, arr: Any) -> None:
        outer = getattr(name, "global_init", None)
        start = self._init or outer
        if start is None:
            raise ValueError(f"{name}: FusedRNN(None, ...) needs the initializer of the whole; pass init=")
        own, found = self._kwargs, []
        sizes = (own["num_hidden"], own["num_layers"], own["mode"], own["bidirectional"])
        for part, shape in parts_of(int(np.prod(arr.shape)), *sizes, name=str(name)):
            box = NDArray(jnp.zeros(shape, jnp.float32))
            if own["mode"] == "lstm" and part.endswith("_f_bias"):
                box[:] = own["forget_bias"]
            else:
                start(InitDesc(part, global_init=outer), box)
            found.append(box.value.reshape(-1))
        arr[:] = jnp.concatenate(found).reshape(arr.shape)


class Load(TwoForms):
    """Values from a dict of arrays or a file, names with or without `arg:` / `aux:`; the rest by `default_init`.

    Raises:
        AssertionError: a shape differs, or a name is missing and there is no `default_init`.
    """

    def __init__(self, param: Any, default_init: Any = None, verbose: bool = False) -> None:
        if not isinstance(param, Mapping):
            with translated():
                param = named_arrays(param)
        self.param = {k[4:] if k.startswith(("arg:", "aux:")) else k: v for k, v in param.items()}
        self.default_init, self.verbose = default_init, verbose

    def _write(self, desc: str, arr: Any) -> None:
        if desc in self.param:
            value = unbox(self.param[desc])
            if tuple(value.shape) != tuple(arr.shape):
                raise AssertionError(
                    f"parameter {desc} cannot be loaded: the loaded array has shape {tuple(value.shape)}, needed {arr.shape}"
                )
            arr[:] = value
        elif self.default_init is None:
            raise AssertionError(f"parameter {desc} is not among the loaded arrays, and there is no default_init")
        else:
            self.default_init(desc, arr)


class Mixed(TwoForms):
    """The initializer of the first regular expression that matches from the start of the name.

    Raises:
        ValueError: none matches.
    """

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Any]) -> None:
        if len(patterns) != len(initializers):
            raise AssertionError(f"{len(patterns)} patterns and {len(initializers)} initializers; one for each is needed")
        self.map = [(re.compile(p), create(i)) for p, i in zip(patterns, initializers, strict=True)]

    def _write(self, desc: str, arr: Any) -> None:
        for pattern, chosen in self.map:
            if pattern.match(desc):
                chosen(desc, arr)
                return
        raise ValueError(f"parameter {desc} matches no pattern; add '.*' as the last one")


def __getattr__(name: str) -> NoReturn:
    absent("mx.init", name, __all__)
