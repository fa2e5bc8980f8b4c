"""`mx.init`: initializers with MXNet's signature: `init(InitDesc(name, attrs), array)` writes into the array.

The values are those of `jfit.init`, with keys derived from `mx.random.seed`.  Each initializer can also be called with jfit's
signature `init(key, desc, shape, dtype) -> array`, so it is accepted wherever jfit accepts an initializer.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from jfit import init
from jfit.init import InitDesc
from jfit.init.core import VALUES, draw_one, read_text, rule_of, variable_init_errors
from jfit.init.fused import parts_of
from jfit.init.sampling import Distribution, Fixed, Piece, Pieces
from jfit.init.stored import named_arrays
from jfit.mxnet.errors import translated
from jfit.mxnet.keys import next_key, use_key
from jfit.mxnet.mutable import as_array
from jfit.mxnet.ndarray.array import NDArray

_REGISTRY: dict[str, type] = {}


class BothSignatures:
    """Initializer with two signatures: `init(desc, array)` writes in place; `init(key, desc, shape, dtype)` is pure."""

    _write: Callable[[str, Any], Any]

    def __call__(self, *args: Any) -> Any:
        if len(args) == 2:
            return self._write(*args)
        key, desc, shape, *dtype = args
        array = NDArray(jnp.zeros(tuple(shape), *(dtype or [jnp.float32])))
        with use_key(key):
            self._write(InitDesc(desc, getattr(desc, "attrs", None)), array)
        return array.value

    def distribution_of(self, desc: InitDesc, shape: tuple[int, ...]) -> Distribution | None:
        """Return the distribution of the values of the parameter, or None if only the call defines it (see `jfit.init`)."""
        return None


class Initializer(BothSignatures):
    """Base class of initializers; subclasses define `_init_weight(name, arr)`, which writes the initial values into `arr`.

    A parameter whose variable has an attribute `__init__` is initialized by the initializer named there.  Otherwise the suffix
    of its name decides: `_weight` (by `_init_weight`), `_bias` (0), `_gamma` (1), `_beta` (0), ...

    Args:
        kwargs: the constructor arguments of the subclass, which `dumps` writes.

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
        """Accept MXNet's arguments and ignore them: initial values are never printed."""
        return self

    def dumps(self) -> str:
        """Return the initializer as JSON text `["name", {arguments}]`, for a variable's `__init__` attribute."""
        plain = {k: np.asarray(as_array(v)).tolist() if hasattr(v, "shape") else v for k, v in self._kwargs.items()}
        return json.dumps([type(self).__name__.lower(), plain])

    def _write(self, desc: str, arr: Any) -> None:
        if not isinstance(desc, InitDesc):
            message = f"init({desc!r}, array) is deprecated, as in MXNet; call init(mx.init.InitDesc({desc!r}), array)"
            warnings.warn(message, DeprecationWarning, stacklevel=3)
        else:
            if desc.global_init is None:
                desc.global_init = self
            if desc.attrs.get("__init__"):
                with variable_init_errors(str(desc), desc.attrs["__init__"]):
                    return create(desc.attrs["__init__"])._init_weight(desc, arr)
        getattr(self, f"_init_{rule_of(desc)}")(desc, arr)

    def distribution_of(self, desc: InitDesc, shape: tuple[int, ...]) -> Distribution | None:
        chosen, rule = self, rule_of(InitDesc(desc))
        if desc.attrs.get("__init__"):
            with variable_init_errors(str(desc), desc.attrs["__init__"]):
                chosen, rule = create(desc.attrs["__init__"]), "weight"
        if not all(_own_rules(type(i)) for i in (self, chosen)):
            return None
        if rule in VALUES:
            return Fixed(np.float32(VALUES[rule]))
        return chosen._weight_distribution(str(desc), shape, desc.global_init or self) if rule == "weight" else None

    def _weight_distribution(self, name: str, shape: tuple[int, ...], outer: Any) -> Distribution | None:
        """Return the distribution of the values of `_init_weight`; `outer` is the initializer of the network."""
        return None

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
        arr[:] = np.array([1.0, 0, 0, 0, 1.0, 0], np.float32)  # identity transform of a spatial transformer

    def _init_default(self, name: str, arr: Any) -> None:
        ends = '"weight", "bias", "gamma" (1.0), "beta" (0.0), "min" or "max"; or set init= of its variable'
        raise ValueError(f"Unknown initialization pattern for {name}: the name must end with {ends}")


def register(klass: type) -> type:
    """Class decorator that registers an initializer under its lower-case class name, for `create` and `__init__` attributes.

    Args:
        klass: subclass of Initializer.

    Returns:
        The class, unchanged.

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
    """Class decorator that registers an initializer under additional names.

    Args:
        names: the names; case is ignored.

    Returns:
        Decorator that returns the class unchanged.

    Example:
        >>> @alias("quarter")
        ... class Fourth(Initializer):
        ...     pass
        >>> create("quarter").dumps()
        '["fourth", {}]'
    """

    def add(klass: type) -> type:
        _REGISTRY.update((name.lower(), klass) for name in names)
        return klass

    return add


def create(spec: Any, *args: Any, **kwargs: Any) -> Any:
    """Create an initializer from its name or JSON text.

    Args:
        spec: registered name, JSON text `["name", {arguments}]`, or an initializer, which is returned unchanged.
        args: positional arguments of the initializer; ignored for JSON text.
        kwargs: keyword arguments of the initializer; ignored for JSON text.

    Returns:
        An initializer.

    Raises:
        AssertionError: the name is not registered.
        ValueError: the JSON text is not of the form `["name", {}]`.

    Example:
        >>> create('["normal", {"sigma": 0.5}]').dumps()
        '["normal", {"sigma": 0.5}]'
    """
    if not isinstance(spec, str):
        return spec
    if spec.lstrip().startswith("["):
        spec, kwargs = read_text(spec)
    if spec.lower() not in _REGISTRY:
        raise AssertionError(f"initializer {spec[:80]!r} is not registered; available are {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[spec.lower()](*args, **kwargs)


class FromPure(Initializer):
    """Base class of initializers that take arguments and values from a class of `jfit.init` (`rule=`)."""

    rule: ClassVar[Any]
    __signature__: ClassVar[Any]

    def __init_subclass__(cls, rule: Any = None) -> None:
        super().__init_subclass__()
        cls.__signature__ = None if rule is None else inspect.signature(rule)
        if rule is not None:
            cls.rule, cls.__doc__ = rule, rule.__doc__
            register(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(self.rule).bind(*args, **kwargs)
        bound.apply_defaults()
        super().__init__(**bound.arguments)
        vars(self).update(bound.arguments)

    def _init_weight(self, name: str, arr: Any) -> None:
        # an initializer in the attribute `__init__` draws a weight, whatever the name of the parameter is
        desc = InitDesc(str(name), {"__init__": self.rule(**self._kwargs)})
        arr[:] = draw_one(init.Initializer(), next_key(), desc, tuple(arr.shape))

    def _weight_distribution(self, name: str, shape: tuple[int, ...], outer: Any) -> Distribution | None:
        return self.rule(**self._kwargs).distribution(name, shape)


class Zero(FromPure, rule=init.Zero): ...


class One(FromPure, rule=init.One): ...


class Uniform(FromPure, rule=init.Uniform): ...


class Normal(FromPure, rule=init.Normal): ...


class Orthogonal(FromPure, rule=init.Orthogonal): ...


class Xavier(FromPure, rule=init.Xavier): ...


class MSRAPrelu(FromPure, rule=init.MSRAPrelu): ...


class Bilinear(FromPure, rule=init.Bilinear): ...


class LSTMBias(FromPure, rule=init.LSTMBias): ...


alias("zeros")(Zero)
alias("ones")(One)


@register
class Constant(Initializer):
    """Set every parameter to one value.

    Args:
        value: a number, or an array that broadcasts to the shape of the parameter.

    Example:
        >>> Constant(2).dumps()
        '["constant", {"value": 2}]'

    Source: Apache MXNet 1.9.1.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, name: str, arr: Any) -> None:
        arr[:] = np.asarray(as_array(self.value), np.float32)

    def _weight_distribution(self, name: str, shape: tuple[int, ...], outer: Any) -> Distribution | None:
        return Fixed(np.float32(self.value)) if isinstance(self.value, (int, float)) else None


@register
class FusedRNN(Initializer):
    """Initialize the flat parameter vector of the `RNN` operator: each gate's weights and biases separately by `init`.

    Args:
        init: initializer of each part, or its JSON text; None means the initializer of the whole network.
        num_hidden: number of hidden units.
        num_layers: number of layers.
        mode: "rnn_relu", "rnn_tanh", "lstm" or "gru".
        bidirectional: whether the RNN runs in both directions.
        forget_bias: value of the forget-gate biases of an LSTM.

    Example:
        >>> import jfit.mx as mx
        >>> flat = mx.nd.zeros(6)  # 1 hidden unit, 3 inputs: 3 + 1 weights, then 2 biases
        >>> FusedRNN("ones", 1, 1, "rnn_tanh")(mx.init.InitDesc("rnn_weight"), flat)
        >>> flat.asnumpy().tolist()
        [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]

    Source: Apache MXNet 1.9.1.
    """

    def __init__(
        self, init: Any, num_hidden: int, num_layers: int, mode: str, bidirectional: bool = False, forget_bias: float = 1.0
    ) -> None:
        self._init = create(init) if init is not None else None
        self._sizes, self._forget_bias = (num_hidden, num_layers, mode, bidirectional), forget_bias
        sizes = dict(zip(("num_hidden", "num_layers", "mode", "bidirectional"), self._sizes, strict=True))
        super().__init__(init=None if self._init is None else self._init.dumps(), **sizes, forget_bias=forget_bias)

    def _parts(self, size: int, name: str) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """Iterate over (name, shape, whether it is the bias of a forget gate) of the parts."""
        for part, shape in parts_of(size, *self._sizes, name=name):
            yield part, shape, self._sizes[2] == "lstm" and part.endswith("_f_bias")

    def _init_weight(self, name: str, arr: Any) -> None:
        outer = getattr(name, "global_init", None)
        start: Any = self._init or outer
        flat = []
        for part, shape, forget in self._parts(int(np.prod(arr.shape)), str(name)):
            array = NDArray(jnp.zeros(shape, jnp.float32))
            if forget:
                array[:] = self._forget_bias
            else:
                start(InitDesc(part, global_init=outer), array)
            flat.append(array.value.reshape(-1))
        arr[:] = jnp.concatenate(flat).reshape(arr.shape)

    def _weight_distribution(self, name: str, shape: tuple[int, ...], outer: Any) -> Distribution | None:
        start, pieces, count = self._init or outer, [], 0
        if not isinstance(start, FromPure):
            return None
        for part, part_shape, forget in self._parts(int(np.prod(shape)), name):
            count += rule_of(InitDesc(part)) == "weight"  # the number of keys that `next_key` derived: see `use_key`
            found = Fixed(np.float32(self._forget_bias)) if forget else start.distribution_of(InitDesc(part), part_shape)
            if found is None:
                return None
            pieces.append(Piece(count if count > 1 else None, part_shape, found))
        return Pieces(pieces)


class Load(BothSignatures):
    """Initialize parameters with loaded arrays, and those that were not loaded with `default_init`.

    Args:
        param: arrays by name, with or without the prefix `arg:` or `aux:`; or the path of a parameter file.
        default_init: initializer of the other parameters.
        verbose: accepted and ignored.

    Raises:
        AssertionError: a shape differs, or a name is missing and there is no `default_init`.

    Example:
        >>> import jfit.mx as mx
        >>> w = mx.nd.zeros(2)
        >>> Load({"arg:w": mx.nd.ones(2)})(mx.init.InitDesc("w"), w)
        >>> w.asnumpy().tolist()
        [1.0, 1.0]

    Source: Apache MXNet 1.9.1.
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
                raise AssertionError(f"parameter {desc}: the loaded array has shape {tuple(value.shape)}, expected {arr.shape}")
            arr[:] = value
        elif self.default_init is None:
            raise AssertionError(f"parameter {desc} is not among the loaded arrays, and there is no default_init")
        else:
            self.default_init(desc, arr)


class Mixed(BothSignatures):
    """Choose the initializer by parameter name: that of the first pattern that matches the start of the name.

    Args:
        patterns: regular expressions.
        initializers: an initializer, name or JSON text for each pattern.

    Raises:
        AssertionError: there are not as many initializers as patterns.
        ValueError: when called, no pattern matches the name.

    Example:
        >>> import jfit.mx as mx
        >>> b = mx.nd.zeros(2)
        >>> Mixed(["fc_", ".*"], [mx.init.One(), mx.init.Zero()])(mx.init.InitDesc("fc_weight"), b)
        >>> b.asnumpy().tolist()
        [1.0, 1.0]

    Source: Apache MXNet 1.9.1.
    """

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Any]) -> None:
        count = len(initializers)
        assert count == len(patterns), f"{len(patterns)} patterns but {count} initializers; pass one for each pattern"
        self.map = [(re.compile(p), create(i)) for p, i in zip(patterns, initializers, strict=True)]

    def _write(self, desc: str, arr: Any) -> None:
        self._matching(desc)(desc, arr)

    def distribution_of(self, desc: InitDesc, shape: tuple[int, ...]) -> Distribution | None:
        chosen = self._matching(desc) if _own_rules(type(self)) else None
        return chosen.distribution_of(desc, shape) if isinstance(chosen, BothSignatures) else None

    def _matching(self, desc: str) -> Any:
        for pattern, initializer in self.map:
            if pattern.match(desc):
                return initializer
        raise ValueError(f"parameter {desc} matches no pattern; add '.*' as the last pattern")


def _own_rules(cls: type) -> bool:
    """Return whether the values of an initializer class are defined here alone, not by methods that a script overrides."""
    methods = [m for m in dir(cls) if m in ("__call__", "_write", "_matching") or m.startswith("_init_")]
    return issubclass(cls, BothSignatures) and all(getattr(cls, m).__module__ == __name__ for m in methods)


def writes_in_place(initializer: Any) -> bool:
    """Return whether an initializer has MXNet's signature `(desc, array)`, not jfit's `(key, desc, shape, dtype) -> array`."""
    if isinstance(initializer, (str, Mapping, type)) or not callable(initializer):
        return False
    try:
        parameters = list(inspect.signature(initializer).parameters.values())
    except (TypeError, ValueError):
        return False
    return len([p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]) == 2
