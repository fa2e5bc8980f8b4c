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

import inspect
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import jax.numpy as jnp
import numpy as np

from jfit import init
from jfit.init import InitDesc
from jfit.init.core import read_text, rule_of, variable_init_errors
from jfit.init.fused import parts_of
from jfit.init.stored import named_arrays
from jfit.mxnet.errors import translated
from jfit.mxnet.keys import next_key, use_key
from jfit.mxnet.mutable import as_array
from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray.array import NDArray

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

_REGISTRY: dict[str, type] = {}


class TwoForms:
    """`init(desc, array)` writes; `init(key, desc, shape, dtype)` returns, with every draw from that key."""

    def __call__(self, *args: Any) -> Any:
        if len(args) == 2:
            return self._write(*args)
        if len(args) not in (3, 4):
            raise TypeError(f"an initializer is called as init(desc, array) or init(key, desc, shape, dtype), got {len(args)}")
        key, desc, shape = args[:3]
        box = NDArray(jnp.zeros(tuple(shape), args[3] if len(args) == 4 else jnp.float32))
        with use_key(key):
            self._write(InitDesc(desc, getattr(desc, "attrs", None)), box)
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
        plain = {k: np.asarray(as_array(v)).tolist() if hasattr(v, "shape") else v for k, v in self._kwargs.items()}
        return json.dumps([type(self).__name__.lower(), plain])

    def _write(self, desc: str, arr: Any) -> None:
        if not isinstance(desc, InitDesc):
            warnings.warn(
                f"init({desc!r}, array) is deprecated, as in MXNet; call init(mx.init.InitDesc({desc!r}), array)",
                DeprecationWarning,
                stacklevel=3,
            )
        else:
            if desc.global_init is None:
                desc.global_init = self
            if desc.attrs.get("__init__"):
                with variable_init_errors(str(desc), desc.attrs["__init__"]):
                    return create(desc.attrs["__init__"])._init_weight(desc, arr)
        getattr(self, f"_init_{rule_of(desc)}")(desc, arr)

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


class Drawn(Initializer):
    """Initializers whose weights are those of a class of `jfit.init`, with its arguments."""

    rule: ClassVar[Any]
    __signature__: ClassVar[Any]

    def __init_subclass__(cls, rule: Any = None) -> None:
        super().__init_subclass__()
        cls.__signature__ = None if rule is None else inspect.signature(rule)
        if rule is not None:
            cls.rule, cls.__doc__ = rule, rule.__doc__
            register(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(self.rule).bind(*args, **kwargs)
        given.apply_defaults()
        super().__init__(**given.arguments)
        vars(self).update(given.arguments)

    def _init_weight(self, name: str, arr: Any) -> None:
        arr[:] = self.rule(**self._kwargs).draw(next_key(), str(name), tuple(arr.shape))


@alias("zeros")
class Zero(Drawn, rule=init.Zero):
    pass


@alias("ones")
class One(Drawn, rule=init.One):
    pass


@register
class Constant(Initializer):
    """w = value, a number or an array that broadcasts."""

    def __init__(self, value: Any) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, name: str, arr: Any) -> None:
        arr[:] = np.asarray(as_array(self.value), np.float32)


class Uniform(Drawn, rule=init.Uniform):
    pass


class Normal(Drawn, rule=init.Normal):
    pass


class Orthogonal(Drawn, rule=init.Orthogonal):
    pass


class Xavier(Drawn, rule=init.Xavier):
    pass


class MSRAPrelu(Drawn, rule=init.MSRAPrelu):
    pass


class Bilinear(Drawn, rule=init.Bilinear):
    pass


class LSTMBias(Drawn, rule=init.LSTMBias):
    pass


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
            value = as_array(self.param[desc])
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


def writes_in_place(initializer: Any) -> bool:
    """True for MXNet's form `initializer(desc, array)`; jfit's own are pure: `(key, desc, shape, dtype) -> array`."""
    if isinstance(initializer, (str, Mapping, type)) or not callable(initializer):
        return False
    try:
        parameters = list(inspect.signature(initializer).parameters.values())
    except (TypeError, ValueError):
        return False
    return len([p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]) == 2


def __getattr__(name: str) -> NoReturn:
    absent("mx.init", name, __all__)
