"""What every initializer shares: the dispatch on attribute and name, the registry, and `get`."""

from __future__ import annotations

import contextlib
import inspect
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.ops.registry import nearest

# (key, desc, shape, dtype) -> values; every Initializer is one, and so may be a function of the user's
InitFn = Callable[..., Array]

# end of a parameter's name -> its rule; "weight" is the initializer's own, the others give one value
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
# the same for names without a description, as MXNet's oldest scripts pass them
_PLAIN_RULES = {
    **{end: rule for end, rule in _RULES.items() if not end.endswith("_quantize")},
    "moving_mean": "zero",
    "moving_var": "one",
    "moving_inv_var": "zero",
    "moving_avg": "zero",
}
VALUES = {"bias": 0.0, "beta": 0.0, "gamma": 1.0, "zero": 0.0, "one": 1.0, "quantized_weight": 0.0, "quantized_bias": 0.0}

_SHOWN = 80  # characters of a text from a file that a message shows
_OF_A_TEXT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)

REGISTRY: dict[str, Callable[..., Initializer]] = {}
_Class = TypeVar("_Class", bound="type[Initializer]")


class InitDesc(str):
    """A parameter's name, with what an initializer may know beside it.

    Args:
        name: the name.
        attrs: attributes of its variable; `__init__` decides before the name does.
        global_init: the initializer that one within it falls back to.

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
        """The name alone."""
        return str(self)


def described(name: str) -> InitDesc:
    """A description as it is; a plain name as one without attributes."""
    return name if isinstance(name, InitDesc) else InitDesc(name)


def rule_of(name: str) -> str:
    """The rule that a parameter's name asks for: "weight", a key of `VALUES`, or "default" where no rule fits the name.

    Names that are no `InitDesc` have MXNet's older rules, which know moving averages, `upsampling` ("bilinear") and
    `stn_loc` ("loc_bias") too.

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
    """Base of the initializers: dispatches on attribute and name, `draw` gives the values of a weight.

    Example:
        >>> import jax
        >>> get("one")(jax.random.key(0), InitDesc("fc_bias"), (2,)).tolist()  # a bias is 0 under any initializer
        [0.0, 0.0]

    Source: Apache MXNet 1.9.1, `mxnet.initializer.Initializer`.
    """

    def __call__(self, key: Array, desc: str, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        """Initial values of one parameter.

        Args:
            key: the parameter's own key, scalar.
            desc: name and attributes; a plain name has no attributes.
            shape: shape of the parameter.
            dtype: its dtype; values are drawn in float32 and cast.

        Returns:
            Array of `shape` and `dtype`.

        Raises:
            ValueError: no rule fits the name, or the shape does not suit the rule.
        """
        desc, shape = described(desc), tuple(shape)
        given = desc.attrs.get("__init__")
        if given:
            with own_rule(desc.name, given):
                chosen = get(given)
                if isinstance(chosen, Initializer):
                    return chosen.within(self).draw(key, desc.name, shape).astype(dtype)
                return chosen(key, desc.name, shape, dtype).astype(dtype)
        return self.by_name(key, desc.name, shape).astype(dtype)

    def within(self, outer: Initializer) -> Initializer:
        """The initializer where it is one variable's own, in a model that starts by `outer`."""
        return self

    def by_name(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        """Values by the end of the name, for parameters without an `__init__` attribute."""
        rule = rule_of(InitDesc(name))
        if rule == "weight":
            return self.draw(key, name, shape)
        if rule in VALUES:
            return jnp.full(shape, VALUES[rule], jnp.float32)
        raise ValueError(
            f"parameter {name!r}: no initialization rule fits the name; names ending in {', '.join(map(repr, _RULES))} "
            f"are known. Rename it, or give its variable one: Variable({name!r}, init='uniform')."
        )

    def draw(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        """Values of a weight, float32 of `shape`."""
        raise NotImplementedError(f"{type(self).__name__} defines no rule for weights; it needs a `draw` method.")

    def dumps(self) -> str:
        """The initializer as MXNet's JSON text, for a variable's `__init__` attribute.

        Example:
            >>> get("uniform", scale=0.2).dumps()
            '["uniform", {"scale": 0.2}]'
        """
        values = {f.name: _plain(getattr(self, f.name), self) for f in fields(self) if f.init}
        return json.dumps([type(self).__name__.lower(), values])


def _plain(value: Any, owner: Initializer) -> Any:
    """A parameter of an initializer as JSON has it; initializers within initializers are texts."""
    if isinstance(value, Initializer):
        return value.dumps()
    if isinstance(value, np.ndarray | np.generic | Array):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(v, owner) for v in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(
        f"{type(owner).__name__} cannot be written as JSON text: it holds {value!r}, which has no text; use initializers by "
        "name, numbers and arrays."
    )


def read_text(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the parameters in MXNet's JSON text.

    Raises:
        ValueError: the text is no JSON, is nested too deep, or holds something else.

    Example:
        >>> read_text('["constant", {"value": 2.0}]')
        ('constant', {'value': 2.0})
    """
    try:
        found = json.loads(text)
        problem = "it is no list of a name and a dict"
    except ValueError as error:
        found, problem = None, str(error)
    except RecursionError:
        found, problem = None, "it is nested too deep"
    match found:
        case [str(name), dict(values)]:
            return name, values
    raise ValueError(f'initializer text {text[:_SHOWN]!r} cannot be read ({problem}); it needs the form ["name", {{}}].')


@contextlib.contextmanager
def own_rule(name: str, rule: Any) -> Iterator[None]:
    """For code that uses the `__init__` attribute `rule` of variable `name`: where it is a text, errors name the variable."""
    try:
        yield
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        raise  # an initializer of the user's that computes in numpy: it is called again without a trace
    except _OF_A_TEXT as error:
        if not isinstance(rule, str):
            raise
        problem = "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:400].rstrip(".")
        kind = type(error) if type(error) in (AssertionError, NotImplementedError) else ValueError  # MXNet's classes
        raise kind(
            f"variable {name!r}: its __init__ attribute {rule[:_SHOWN]!r} gives no values: {problem}. Give the variable "
            "another initializer, Variable(name, init=...), or the parameter a value, params={name: array}."
        ) from error


def draw_all(initializer: InitFn, key: Array, wanted: Mapping[str, tuple[InitDesc, Any]]) -> dict[str, Array]:
    """Values of many parameters in one program; each is drawn from fold_in(key, crc32(name)), whatever the others are.

    Args:
        initializer: from `get`.
        key: the key of all of them.
        wanted: name -> (description, jax.ShapeDtypeStruct).

    Example:
        >>> import jax
        >>> spec = jax.ShapeDtypeStruct((2,), jnp.float32)
        >>> draw_all(get("one"), jax.random.key(0), {"w_weight": (InitDesc("w_weight"), spec)})["w_weight"].tolist()
        [1.0, 1.0]
    """

    def make(key: Array) -> dict[str, Array]:
        own = {name: jax.random.fold_in(key, zlib.crc32(name.encode())) for name in wanted}
        return {n: initializer(own[n], desc, spec.shape, spec.dtype) for n, (desc, spec) in wanted.items()}

    try:
        return jax.jit(make)(key)  # one compile for all parameters
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        return make(key)  # an initializer of the user's that computes in numpy


def register(*aliases: str) -> Callable[[_Class], _Class]:
    """Class decorator: enters an initializer under its lower-case class name and `aliases`.

    Example:
        >>> @register()
        ... class Half(Initializer):
        ...     def draw(self, key, name, shape):
        ...         return jnp.full(shape, 0.5)
        >>> get("half").dumps()
        '["half", {}]'
    """

    def enter(cls: _Class) -> _Class:
        for name in (cls.__name__.lower(), *aliases):
            REGISTRY[name] = cls
        return cls

    return enter


def get(spec: Any = None, **params: Any) -> InitFn:
    """The initializer that `spec` means.

    Args:
        spec: None (`default()`), a name, MXNet's JSON text, an Initializer or its class, any function
            `(key, desc, shape, dtype) -> array`, or a dict pattern -> spec (`Mixed`).
        **params: parameters of a named initializer.

    Returns:
        A callable `(key, desc, shape, dtype) -> array`.

    Raises:
        ValueError: unknown name or parameter.
        TypeError: `spec` is none of the above.

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
    raise TypeError(f"an initializer is a name, an Initializer or a function (key, desc, shape, dtype); found {spec!r}.")


def _by_text(text: str, params: Mapping[str, Any]) -> Initializer:
    name, values = read_text(text) if text.lstrip().startswith("[") else (text, dict(params))
    cls = REGISTRY.get(name.lower())
    if cls is None:
        near = nearest(name[:_SHOWN], REGISTRY) or ", ".join(map(repr, sorted(REGISTRY)))
        raise ValueError(f"unknown initializer {name[:_SHOWN]!r}: the nearest names are {near}.")
    known = list(inspect.signature(cls).parameters)
    for key in values:
        if key not in known:
            hint = nearest(key[:_SHOWN], known) or (", ".join(map(repr, known)) if known else "none")
            raise ValueError(f"initializer {name!r} has no parameter {key[:_SHOWN]!r}; the nearest it has: {hint}.")
    return cls(**values)
