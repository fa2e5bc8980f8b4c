"""Base class of the initializers, which chooses initial values by the attributes and name of a variable; registry; `get`."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import name_hint
from jfit.init.sampling import Distribution, Fixed, Pieces, draw_arrays, drawable
from jfit.programs import Program

# (key, desc, shape, dtype) -> values: an Initializer, or any function with these arguments
InitFn = Callable[..., Array]

# suffix of a parameter name -> rule: "weight" is `Initializer.draw`, the others are constants (see VALUES)
_RULES = {
    "weight": "weight",
    "bias": "bias",
    "gamma": "gamma",
    "beta": "beta",
    "min": "zero",
    "max": "one",
    "weight_quantize": "quantized_weight",
    "bias_quantize": "quantized_bias",
}
# suffix -> rule for a name passed as a plain str instead of an InitDesc, as in old MXNet scripts
_PLAIN_RULES = {
    **{end: rule for end, rule in _RULES.items() if not end.endswith("_quantize")},
    "moving_mean": "zero",
    "moving_var": "one",
    "moving_inv_var": "zero",
    "moving_avg": "zero",
}
VALUES = {"bias": 0.0, "beta": 0.0, "gamma": 1.0, "zero": 0.0, "one": 1.0, "quantized_weight": 0.0, "quantized_bias": 0.0}

_EXCERPT = 80  # maximum number of characters of user text in an error message
# dtypes to which NumPy and XLA cast float32 with the same rounding
_DTYPES = {np.dtype(t) for t in (np.float32, np.float64, np.float16, jnp.bfloat16)}

REGISTRY: dict[str, Callable[..., Initializer]] = {}
_Class = TypeVar("_Class", bound="type[Initializer]")


class InitDesc(str):
    """A parameter name (a str) with the attributes of its variable, as MXNet passes it to initializers.

    Args:
        name: name of the parameter.
        attrs: attributes of its variable; an initializer in `__init__` takes precedence over the rule by name.
        global_init: the initializer of the whole model.

    Example:
        >>> desc = InitDesc("fc_weight", {"__init__": '["zero", {}]'})
        >>> desc.name, desc.attrs
        ('fc_weight', {'__init__': '["zero", {}]'})
    """

    attrs: dict[str, Any]
    global_init: Any

    def __new__(cls, name: str, attrs: Mapping[str, Any] | None = None, global_init: Any = None):
        self = super().__new__(cls, name)
        self.attrs, self.global_init = dict(attrs or {}), global_init
        return self

    @property
    def name(self) -> str:
        """The name as a plain str."""
        return str(self)


def described(name: str) -> InitDesc:
    """Convert a plain str to an `InitDesc` without attributes; return an `InitDesc` unchanged."""
    return name if isinstance(name, InitDesc) else InitDesc(name)


def rule_of(name: str) -> str:
    """Return how to initialize a parameter by the suffix of its name: "weight", a key of `VALUES`, or "default" (no match).

    "weight" is drawn by the initializer, the keys of `VALUES` are constants.  A plain str instead of an `InitDesc` has MXNet's
    older rules, which also cover moving averages and the prefixes `upsampling` (rule "bilinear") and `stn_loc` (rules "zero"
    and "loc_bias").

    Example:
        >>> rule_of(InitDesc("bn_gamma")), rule_of(InitDesc("bn_moving_var")), rule_of("bn_moving_var")
        ('gamma', 'default', 'one')

    Source: Apache MXNet 1.9.1, `mxnet.initializer.Initializer`.
    """
    if isinstance(name, InitDesc):
        rules = _RULES
    elif name.startswith("upsampling"):
        return "bilinear"
    elif name.startswith("stn_loc") and name.endswith(("weight", "bias")):
        return "zero" if name.endswith("weight") else "loc_bias"
    else:
        rules = _PLAIN_RULES
    return next((rule for end, rule in rules.items() if name.endswith(end)), "default")


@dataclass(frozen=True)
class Initializer:
    """Base class of initializers: subclasses define `draw` for weights; other parameters, such as a bias, are constants.

    Example:
        >>> import jax
        >>> get("one")(jax.random.key(0), InitDesc("fc_bias"), (2,)).tolist()  # a bias is 0 under any initializer
        [0.0, 0.0]

    Source: Apache MXNet 1.9.1, `mxnet.initializer.Initializer`.
    """

    def __call__(self, key: Array, desc: str, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        """Compute the initial values of one parameter.

        Args:
            key: PRNG key of this parameter, scalar.
            desc: name of the parameter, as an `InitDesc` if its variable has attributes.
            shape: shape of the parameter.
            dtype: its dtype; values are drawn in float32 and cast.

        Returns:
            Array of `shape` and `dtype`.

        Raises:
            ValueError: the suffix of the name is unknown (see `rule_of`), or the initializer does not support the shape.
        """
        desc, shape = described(desc), tuple(shape)
        spec = desc.attrs.get("__init__")
        if spec:
            with variable_init_errors(desc.name, spec):
                chosen = get(spec)
                if isinstance(chosen, Initializer):
                    return chosen.within(self).draw(key, desc.name, shape).astype(dtype)
                return chosen(key, desc.name, shape, dtype).astype(dtype)
        return self.by_name(key, desc.name, shape).astype(dtype)

    def distribution_of(self, desc: InitDesc, shape: tuple[int, ...]) -> Distribution | None:
        """Return the distribution of the values that `self(key, desc, shape)` draws, or None if only the call defines it."""
        spec = desc.attrs.get("__init__")
        if not spec:
            return self.named_distribution(desc.name, shape) if own_rules(type(self)) else None
        with variable_init_errors(desc.name, spec):
            chosen = get(spec)
            chosen = chosen.within(self) if isinstance(chosen, Initializer) else chosen
            return chosen.distribution(desc.name, shape) if own_rules(type(chosen)) else None

    def named_distribution(self, name: str, shape: tuple[int, ...]) -> Distribution | None:
        """Return the distribution of the values of `by_name`, or None if only `by_name` defines it."""
        value = self.constant_of(name)
        return self.distribution(name, shape) if value is None else Fixed(np.float32(value))

    def distribution(self, name: str, shape: tuple[int, ...]) -> Distribution | None:
        """Return the distribution of the values of `draw`, or None if only `draw` defines it."""
        return None

    def within(self, outer: Initializer) -> Initializer:
        """Return the initializer to use for a variable whose `__init__` attribute is `self`; `outer` is that of the model."""
        return self

    def by_name(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        """Return initial values chosen by the suffix of the name, for parameters without an `__init__` attribute."""
        value = self.constant_of(name)
        return self.draw(key, name, shape) if value is None else jnp.full(shape, value, jnp.float32)

    def constant_of(self, name: str) -> float | None:
        """Return the constant that the suffix of the name selects, or None if `draw` is to draw the values."""
        rule = rule_of(InitDesc(name))
        if rule == "weight":
            return None
        if rule in VALUES:
            return VALUES[rule]
        problem = f"parameter {name!r}: no initialization rule matches the name; supported suffixes are {str([*_RULES])[1:-1]}"
        raise ValueError(f"{problem}. Rename it, or set its initializer: Variable({name!r}, init='uniform').")

    def draw(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        """Draw the initial values of a weight, float32 of `shape`; subclasses override this or `distribution`."""
        distribution = self.distribution(name, shape)
        if distribution is not None:
            return distribution.draw(key, shape)
        raise NotImplementedError(f"{type(self).__name__} has no rule for weights; define the method draw(key, name, shape).")

    def dumps(self) -> str:
        """Serialize to MXNet's JSON text `["name", {parameters}]`, for the `__init__` attribute of a variable.

        Example:
            >>> get("uniform", scale=0.2).dumps()
            '["uniform", {"scale": 0.2}]'
        """
        values = {f.name: _plain(getattr(self, f.name), self) for f in fields(self) if f.init}
        return json.dumps([type(self).__name__.lower(), values])


def _plain(value: Any, owner: Initializer) -> Any:
    """Convert a parameter of the initializer `owner` to JSON types; nested initializers become their `dumps()` text."""
    if isinstance(value, Initializer):
        return value.dumps()
    if isinstance(value, np.ndarray | np.generic | Array):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(v, owner) for v in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(owner).__name__} cannot be written as JSON text because of its parameter {value!r}")


def read_text(text: str) -> tuple[str, dict[str, Any]]:
    """Parse MXNet's JSON text of an initializer to (name, parameters).

    Raises:
        ValueError: the text is not valid JSON, is nested too deep, or is not of the form ["name", {...}].

    Example:
        >>> read_text('["constant", {"value": 2.0}]')
        ('constant', {'value': 2.0})
    """
    try:
        data = json.loads(text)
        problem = "it is not a list of a name and a dict"
    except ValueError as error:
        data, problem = None, str(error)
    except RecursionError:
        data, problem = None, "it is nested too deep"
    match data:
        case [str(name), dict(values)]:
            return name, values
    raise ValueError(f'initializer text {text[:_EXCERPT]!r} cannot be parsed ({problem}); expected the form ["name", {{}}].')


@contextlib.contextmanager
def variable_init_errors(name: str, spec: Any) -> Iterator[None]:
    """Context manager that adds the variable `name` to errors of its initializer.

    `spec` is the `__init__` attribute of the variable; errors are unchanged if it is not text.
    """
    try:
        yield
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        raise  # an initializer of the user that computes in numpy: draw_all calls it again outside jit
    except Exception as error:
        if not isinstance(spec, str):
            raise
        problem = "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:400].rstrip(".")
        kind = type(error) if type(error) in (AssertionError, NotImplementedError) else ValueError  # MXNet's classes
        problem = f"variable {name!r}: its __init__ attribute {spec[:_EXCERPT]!r} fails: {problem}"
        raise kind(f"{problem}. Set another initializer, Variable(name, init=...), or pass params={{name: array}}.") from error


def own_rules(cls: type) -> bool:
    """Return whether the values of an initializer class are defined by jfit alone, not by methods that a user overrides."""
    methods = ("__call__", "by_name", "draw", "within")
    return all(getattr(getattr(cls, m, None), "__module__", "").startswith("jfit.init.") for m in methods)


def distribution_of(initializer: InitFn, desc: InitDesc, shape: tuple[int, ...]) -> Distribution | None:
    """Return the distribution of the values that `initializer(key, desc, shape)` draws, or None if only the call defines it.

    Args:
        initializer: any initializer; those with a method `distribution_of(desc, shape)` can have a distribution.
        desc: name and attributes of the parameter.
        shape: shape of the parameter.
    """
    find = getattr(initializer, "distribution_of", None)
    return None if find is None or isinstance(initializer, type) else find(desc, shape)


def _known_distribution(initializer: InitFn, desc: InitDesc, spec: Any) -> Distribution | None:
    """Return `distribution_of` a parameter if `draw_arrays` draws the same values of the dtype of `spec` as the initializer."""
    found = distribution_of(initializer, desc, tuple(spec.shape))
    casts = isinstance(found, Fixed) or np.dtype(spec.dtype) in _DTYPES
    return found if found is not None and casts and _plain_scales(found) else None


def _plain_scales(distribution: Distribution) -> bool:
    """Return whether the scales are numbers; arrays, also traced ones, broadcast and promote in the initializer's own call."""
    if isinstance(distribution, Pieces):
        return all(_plain_scales(piece.distribution) for piece in distribution.pieces)
    return isinstance(distribution, Fixed) or type(distribution.scale) in (int, float)


def draw_all(initializer: InitFn, key: Array, parameters: Mapping[str, tuple[InitDesc, Any]]) -> dict[str, Array]:
    """Draw many parameters, each from fold_in(key, crc32(name)), independently of the others.

    Constants, uniform and normal values need only two programs, which are compiled once per process; all other parameters
    are drawn by one compiled program.

    Args:
        initializer: function `(key, desc, shape, dtype) -> array`, such as `get` returns.
        key: PRNG key, scalar.
        parameters: parameter name -> (its `InitDesc`, jax.ShapeDtypeStruct).

    Returns:
        Dict: parameter name -> array of the shape and dtype in `parameters`.

    Example:
        >>> import jax
        >>> spec = jax.ShapeDtypeStruct((2,), jnp.float32)
        >>> draw_all(get("one"), jax.random.key(0), {"w_weight": (InitDesc("w_weight"), spec)})["w_weight"].tolist()
        [1.0, 1.0]
    """
    folds = {name: zlib.crc32(name.encode()) for name in parameters}
    known: dict[str, tuple[Distribution, Any]] = {}
    if drawable(key):
        for name, (desc, spec) in parameters.items():
            distribution = _known_distribution(initializer, desc, spec)
            if distribution is not None:
                known[name] = distribution, spec
    values = draw_arrays(key, known, folds) if known else {}
    others = {name: each for name, each in parameters.items() if name not in known}
    if others:
        values |= _draw_compiled(initializer, key, others, folds)
    return {name: values[name] for name in parameters}


def _draw_compiled(initializer: InitFn, key: Array, parameters: Any, folds: Mapping[str, int]) -> dict[str, Array]:
    """Draw parameters by one compiled program, or without compilation if the initializer computes in NumPy."""

    def draw(key: Array) -> dict[str, Array]:
        keys = {name: jax.random.fold_in(key, folds[name]) for name in parameters}
        return {n: initializer(keys[n], desc, spec.shape, spec.dtype) for n, (desc, spec) in parameters.items()}

    try:
        return Program(draw, jax.jit, name="initial_values")(key)  # one compilation for all parameters
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        return draw(key)  # the initializer computes in numpy and cannot be traced


def draw_one(initializer: InitFn, key: Array, desc: str, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """Return `initializer(key, desc, shape, dtype)`, without a compilation for constants, uniform and normal values.

    Args:
        initializer: function `(key, desc, shape, dtype) -> array`, such as `get` returns.
        key: PRNG key of the parameter, scalar.
        desc: name of the parameter, as an `InitDesc` if its variable has attributes.
        shape: shape of the parameter.
        dtype: its dtype.

    Returns:
        Array of `shape` and `dtype`.
    """
    spec = jax.ShapeDtypeStruct(tuple(shape), dtype)
    distribution = _known_distribution(initializer, described(desc), spec) if drawable(key) else None
    if distribution is None:
        return initializer(key, desc, shape, dtype)
    return draw_arrays(key, {str(desc): (distribution, spec)}, {})[str(desc)]


def register(*aliases: str) -> Callable[[_Class], _Class]:
    """Return a class decorator that registers an initializer under its lower-case class name, for `get` and JSON texts.

    Args:
        aliases: further names.

    Returns:
        The decorator; it returns the class unchanged.

    Example:
        >>> @register()
        ... class Half(Initializer):
        ...     def draw(self, key, name, shape):
        ...         return jnp.full(shape, 0.5)
        >>> get("half").dumps()
        '["half", {}]'
    """

    def enter(cls: _Class) -> _Class:
        REGISTRY.update(dict.fromkeys((cls.__name__.lower(), *aliases), cls))
        return cls

    return enter


def get(spec: Any = None, **params: Any) -> InitFn:
    """Convert an initializer argument (name, JSON text, object, ...) to an initializer.

    Args:
        spec: None (`default()`); a registered name such as "xavier"; MXNet's JSON text `'["name", {...}]'`; an Initializer or
            a subclass; a function `(key, desc, shape, dtype) -> array`; or a dict regular expression -> spec (see `Mixed`).
        **params: parameters of the initializer, if `spec` is a name or a class.

    Returns:
        A callable `(key, desc, shape, dtype) -> array`; an `Initializer` unless `spec` is a function.

    Raises:
        ValueError: the name is unknown.
        TypeError: a parameter is unknown, or `spec` has another type.

    Example:
        >>> get('["constant", {"value": 2.0}]')
        Constant(value=2.0)
    """
    if spec is None:
        return REGISTRY["default"]()
    if isinstance(spec, str):
        return _by_text(spec, params)
    if isinstance(spec, Mapping):
        return REGISTRY["mixed"](tuple(spec), tuple(spec.values()))
    if isinstance(spec, type) and issubclass(spec, Initializer):
        return spec(**params)
    if callable(spec):
        return cast(InitFn, spec)
    raise TypeError(f"expected an initializer: a name, an Initializer or a function (key, desc, shape, dtype); got {spec!r}.")


def _by_text(text: str, params: Mapping[str, Any]) -> Initializer:
    name, values = read_text(text) if text.lstrip().startswith("[") else (text, dict(params))
    cls = REGISTRY.get(name.lower())
    if cls is None:
        raise ValueError(f"unknown initializer {(part := name[:_EXCERPT])!r}; {name_hint(part, sorted(REGISTRY))}")
    return cls(**values)
