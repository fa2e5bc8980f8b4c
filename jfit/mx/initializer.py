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

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.facade.box import unbox
from jfit.init import REGISTRY as PURE
from jfit.mx.keys import lent, next_key
from jfit.mx.nd.array import NDArray

_REGISTRY: dict[str, type] = {}

# end of the name -> method; MXNet tries them in this order
_SUFFIXES = {
    "weight": "_init_weight",
    "bias": "_init_bias",
    "gamma": "_init_gamma",
    "beta": "_init_beta",
    "min": "_init_zero",
    "max": "_init_one",
    "weight_quantize": "_init_quantized_weight",
    "bias_quantize": "_init_quantized_bias",
}
# the same for names that come as plain strings, as old scripts pass them
_LEGACY = {
    "bias": "_init_bias",
    "gamma": "_init_gamma",
    "beta": "_init_beta",
    "weight": "_init_weight",
    "moving_mean": "_init_zero",
    "moving_var": "_init_one",
    "moving_inv_var": "_init_zero",
    "moving_avg": "_init_zero",
    "min": "_init_zero",
    "max": "_init_one",
}


class InitDesc(str):
    """A parameter's name, with what an initializer may know beside it.

    Args:
        name: the name.
        attrs: attributes of its variable; `__init__` decides before the name does.
        global_init: the initializer that a nested one falls back to.

    Example:
        >>> InitDesc("fc_weight", {"__init__": '["zero", {}]'}).attrs
        {'__init__': '["zero", {}]'}
    """

    attrs: dict[str, Any]
    global_init: Any

    def __new__(cls, name: str, attrs: Mapping[str, Any] | None = None, global_init: Any = None):
        self = super().__new__(cls, name)
        self.attrs, self.global_init = dict(attrs or {}), global_init
        return self


class _TwoForms:
    """`init(desc, array)` writes; `init(key, desc, shape, dtype)` returns, with every draw from that key."""

    describe = InitDesc  # how jfit's modules describe a parameter to it

    def __call__(self, *args: Any) -> Array | None:
        if len(args) == 2:
            return self._write(*args)
        if len(args) not in (3, 4):
            raise TypeError(f"an initializer is called as init(desc, array) or init(key, desc, shape, dtype), got {len(args)}")
        key, desc, shape = args[:3]
        box = NDArray(jnp.zeros(tuple(shape), args[3] if len(args) == 4 else jnp.float32))
        name, attrs = (desc, getattr(desc, "attrs", {})) if isinstance(desc, str) else (desc.name, desc.attrs)
        with lent(key):
            self._write(InitDesc(name, attrs), box)
        return box.value

    def _write(self, desc: str, arr: Any) -> None:
        raise NotImplementedError


class Initializer(_TwoForms):
    """Base of initializers: the `__init__` attribute decides, else the end of the name.  Write `_init_weight(name, arr)`.

    Args:
        kwargs: what `dumps` repeats.

    Example:
        >>> import jfit.mx as mx
        >>> class Half(mx.init.Initializer):
        ...     def _init_weight(self, name, arr):
        ...         arr[:] = 0.5
        >>> w = mx.nd.zeros(2)
        >>> Half()(mx.init.InitDesc("w_weight"), w)
        >>> w.asnumpy().tolist()
        [0.5, 0.5]

    Source: Apache MXNet 1.9.1, `mxnet.initializer.Initializer`.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.dumps() == other.dumps()  # type: ignore[union-attr]

    def __hash__(self) -> int:
        return hash(self.dumps())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._kwargs.items())})"

    def set_verbosity(self, verbose: bool = False, print_func: Callable[[Any], str] | None = None) -> Initializer:
        """Accepted; initial values are not printed."""
        return self

    def dumps(self) -> str:
        """The initializer as JSON text, for a variable's `__init__` attribute."""
        plain = {k: np.asarray(unbox(v)).tolist() if hasattr(v, "shape") else v for k, v in self._kwargs.items()}
        return json.dumps([type(self).__name__.lower(), plain])

    def _write(self, desc: str, arr: Any) -> None:
        if not isinstance(desc, InitDesc):
            return self._legacy(desc, arr)
        if desc.global_init is None:
            desc.global_init = self
        if desc.attrs.get("__init__"):
            return create(desc.attrs["__init__"])._init_weight(desc, arr)
        for suffix, method in _SUFFIXES.items():
            if desc.endswith(suffix):
                return getattr(self, method)(desc, arr)
        return self._init_default(desc, arr)

    def _legacy(self, name: str, arr: Any) -> None:
        warnings.warn(
            f"init({name!r}, array) is deprecated, as in MXNet; call init(mx.init.InitDesc({name!r}), array)",
            DeprecationWarning,
            stacklevel=4,
        )
        if name.startswith("upsampling"):
            return self._init_bilinear(name, arr)
        if name.startswith("stn_loc") and name.endswith(("weight", "bias")):
            return self._init_zero(name, arr) if name.endswith("weight") else self._init_loc_bias(name, arr)
        for suffix, method in _LEGACY.items():
            if name.endswith(suffix):
                return getattr(self, method)(name, arr)
        return self._init_default(name, arr)

    # -------------------------------------------------------------------------------- rules
    def _init_weight(self, name: str, arr: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no rule for weights; it needs a method _init_weight(name, arr)")

    def _init_zero(self, name: str, arr: Any) -> None:
        arr[:] = 0.0

    def _init_one(self, name: str, arr: Any) -> None:
        arr[:] = 1.0

    _init_bias = _init_beta = _init_quantized_bias = _init_quantized_weight = _init_zero
    _init_gamma = _init_one

    def _init_bilinear(self, name: str, arr: Any) -> None:
        Bilinear()._init_weight(name, arr)

    def _init_loc_bias(self, name: str, arr: Any) -> None:
        arr[:] = np.array([1.0, 0, 0, 0, 1.0, 0], np.float32)  # the identity of a spatial transformer

    def _init_default(self, name: str, arr: Any) -> None:
        raise ValueError(
            f'Unknown initialization pattern for {name}: the end of the name has to be "weight", "bias", "gamma" (1.0) or '
            '"beta" (0.0), min or max; give its variable a rule, mx.sym.Variable(init=mx.init.*)'
        )


def register(klass: type) -> type:
    """Class decorator: `create` and `__init__` attributes find it by its lower-case name.

    Example:
        >>> @register
        ... class Third(Initializer):
        ...     def _init_weight(self, name, arr):
        ...         arr[:] = 1 / 3
        >>> create("third").dumps()
        '["third", {}]'
    """
    _REGISTRY[klass.__name__.lower()] = klass
    return klass


def alias(*names: str) -> Callable[[type], type]:
    """Class decorator: further names."""

    def enter(klass: type) -> type:
        _REGISTRY.update((name.lower(), klass) for name in names)
        return klass

    return enter


def create(spec: Any, *args: Any, **kwargs: Any) -> Any:
    """An initializer from its name, its JSON text, or itself.

    Raises:
        AssertionError: no such name is registered.

    Example:
        >>> create('["normal", {"sigma": 0.5}]').dumps()
        '["normal", {"sigma": 0.5}]'
    """
    if not isinstance(spec, str):
        return spec
    if spec.lstrip().startswith("["):
        spec, kwargs = json.loads(spec)
    if spec.lower() not in _REGISTRY:
        raise AssertionError(f"initializer {spec!r} is not registered; known are {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[spec.lower()](*args, **kwargs)


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


_GATES = {"rnn_relu": ("",), "rnn_tanh": ("",), "lstm": ("_i", "_f", "_c", "_o"), "gru": ("_r", "_z", "_o")}


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

    def _parts(self, size: int) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) of every part in the order of the flat vector: all weights, then all biases."""
        own = self._kwargs
        h, layers, gates = own["num_hidden"], own["num_layers"], _GATES[own["mode"]]
        sides = ["l", "r"] if own["bidirectional"] else ["l"]
        b, m = len(sides), len(gates)
        first = size // b // h // m - (layers - 1) * (h + b * h + 2) - h - 2  # size of the input
        weights, biases = [], []
        for layer in range(layers):
            for side in sides:
                for group, width in (("i2h", first if layer == 0 else b * h), ("h2h", h)):
                    weights += [(f"{side}{layer}_{group}{g}_weight", (h, width)) for g in gates]
                    biases += [(f"{side}{layer}_{group}{g}_bias", (h,)) for g in gates]
        return weights + biases

    def _init_weight(self, name: str, arr: Any) -> None:
        outer = getattr(name, "global_init", None)
        start = self._init or outer
        if start is None:
            raise ValueError(f"{name}: FusedRNN(None, ...) needs the initializer of the whole; pass init=")
        found = []
        for part, shape in self._parts(int(np.prod(arr.shape))):
            box = NDArray(jnp.zeros(shape, jnp.float32))
            if self._kwargs["mode"] == "lstm" and part.endswith("_f_bias"):
                box[:] = self._kwargs["forget_bias"]
            else:
                start(InitDesc(part, global_init=outer), box)
            found.append(box.value.reshape(-1))
        flat = jnp.concatenate(found)
        if flat.shape != tuple(arr.shape):
            raise ValueError(f"{name}: the flat parameters have shape {tuple(arr.shape)}, {self!r} makes {flat.shape}")
        arr[:] = flat


class Load(_TwoForms):
    """Values from a dict of arrays or a file, names with or without `arg:` / `aux:`; the rest by `default_init`.

    Raises:
        AssertionError: a shape differs, or a name is missing and there is no `default_init`.
    """

    def __init__(self, param: Any, default_init: Any = None, verbose: bool = False) -> None:
        if not isinstance(param, Mapping):
            from jfit.mx.nd.create import load

            param = load(param)
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


class Mixed(_TwoForms):
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
