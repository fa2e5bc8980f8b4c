"""What MXNet's initializers share: the two forms of a call, the dispatch on attribute and name, the registry."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit.init.core import own_rule, read_text
from jfit.mxnet.box import unbox
from jfit.mxnet.keys import lent
from jfit.mxnet.ndarray.array import NDArray

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


class TwoForms:
    """`init(desc, array)` writes; `init(key, desc, shape, dtype)` returns, with every draw from that key."""

    describe = InitDesc  # how jfit's modules describe a parameter to it

    def __call__(self, *args: Any) -> Any:
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


class Initializer(TwoForms):
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
            with own_rule(str(desc), desc.attrs["__init__"]):
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
        create("bilinear")._init_weight(name, arr)

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
        ValueError: a text that is not of the form `["name", {}]`.

    Example:
        >>> create('["normal", {"sigma": 0.5}]').dumps()
        '["normal", {"sigma": 0.5}]'
    """
    if not isinstance(spec, str):
        return spec
    if spec.lstrip().startswith("["):
        spec, kwargs = read_text(spec)
    if spec.lower() not in _REGISTRY:
        raise AssertionError(f"initializer {spec[:80]!r} is not registered; known are {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[spec.lower()](*args, **kwargs)
