"""Typed operator attributes, parsed from Python values or from the strings of MXNet's symbol files ('(3, 3)', 'True', 'None').

>>> from jfit.ops.attributes import flag, integer, shape
>>> shape().read("Pooling", "kernel", "(2, 2)")
(2, 2)
>>> flag(False).read("FullyConnected", "no_bias", "1")
True
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name)
    for name in (
        ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "int16", "uint16", "uint32", "uint64"]
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
# dtypes that operators can make, as choices of their attribute `dtype`; most of them not bool
CAST_TO = ("bfloat16", "bool", "float16", "float32", "float64", "int32", "int64", "int8", "uint8")
CAST_TO_NUMBERS = tuple(name for name in CAST_TO if name != "bool")


class Attrs(Mapping[str, Any]):
    """The parsed attributes of one node: an immutable, hashable mapping whose values are also Python attributes.

    Args:
        values: attribute name -> parsed, hashable value.

    Example:
        >>> attrs = Attrs({"num_hidden": 10})
        >>> attrs.num_hidden, attrs["num_hidden"]
        (10, 10)
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._hash = hash(tuple(self._values.items()))

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __getattr__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise AttributeError(key) from None

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attrs) and self._values == other._values

    def __repr__(self) -> str:
        return f"Attrs({self._values})"

    def __reduce__(self):
        return Attrs, (self._values,)


class Attr(NamedTuple):
    """The declaration of one operator attribute; the functions of this module (`integer`, `shape`, ...) create it.

    Attributes:
        convert: function from a Python value or string to the typed value; raises ValueError or TypeError on a wrong one.
        default: the default value, or `REQUIRED`.
        kind: the accepted values in words, such as "an int", for error messages and documentation.

    Example:
        >>> from jfit.ops.attributes import integer
        >>> integer(1).read("Convolution", "num_group", "4")
        4
    """

    convert: Callable[[Any], Any]
    default: Any
    kind: str

    def read(self, op: str, key: str, value: Any) -> Any:
        """Convert a value of the attribute to its type.

        Args:
            op: name of the operator, for the error message.
            key: name of the attribute, for the error message.
            value: a Python value or a string.

        Returns:
            The typed value.

        Raises:
            ValueError: the value has the wrong type.
        """
        try:
            return self.convert(value)
        except Exception as error:  # whatever the parser of Python raises for a text
            raise ValueError(f"operator {op}: attribute {key} is {value!r}, expected {self.kind}") from error

    @property
    def none_differs(self) -> bool:
        """Whether None is a value of its own, not another word for the default."""
        return self.default is not None and self.kind.endswith("or None")


def _literal(value: Any) -> Any:
    """Parse a string of a symbol file as a Python literal; the 'L' of Python 2's long integers is dropped."""
    if isinstance(value, str):
        text = value.strip()
        if len(text) > 4096:
            raise ValueError("too long")
        if text in ("nan", "inf", "-inf"):
            return float(text)
        return ast.literal_eval(text.replace("L", "")) if text else None
    return value


def _int(value: Any) -> int:
    value = _literal(value)
    if int(value) != value:
        raise ValueError(value)
    return int(value)


def _bool(value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    return bool(_int(value))


def _shape(value: Any) -> tuple[int, ...]:
    value = _literal(value)
    if value is None:
        return ()
    if isinstance(value, (int, np.integer)):
        return (int(value),)
    return tuple(_int(v) if v is not None else None for v in value)  # type: ignore[misc]


def _numbers(value: Any) -> tuple[float, ...]:
    value = _literal(value)
    if value is None:
        return ()
    return tuple(map(float, value)) if isinstance(value, (tuple, list)) else (float(value),)


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None or (isinstance(value, str) and value.strip() == "None") else convert(value)


def _dtype(value: Any) -> str:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, int):
        return list(DTYPES)[value]
    return DTYPES[value if isinstance(value, str) else np.dtype(value).name].name


def integer(default: Any = REQUIRED) -> Attr:
    """Declare an attribute that is an int."""
    return Attr(_int, default, "an int")


def maybe_integer(default: Any = None) -> Attr:
    """Declare an attribute that is an int or None."""
    return Attr(_optional(_int), default, "an int or None")


def number(default: Any = REQUIRED) -> Attr:
    """Declare an attribute that is a float."""
    return Attr(float, default, "a number")


def maybe_number(default: Any = None) -> Attr:
    """Declare an attribute that is a float or None."""
    return Attr(_optional(float), default, "a number or None")


def flag(default: Any = REQUIRED) -> Attr:
    """Declare an attribute that is a bool: True, False, 1, 0 or these as strings."""
    return Attr(_bool, default, "a bool")


def maybe_flag(default: Any = None) -> Attr:
    """Declare an attribute that is a bool or None."""
    return Attr(_optional(_bool), default, "a bool or None")


def shape(default: Any = REQUIRED) -> Attr:
    """Declare an attribute that is a tuple of ints; a single int becomes a tuple of one, None the empty tuple."""
    return Attr(_shape, default, "a tuple of ints")


def maybe_shape(default: Any = None) -> Attr:
    """Declare an attribute that is a tuple of ints or None."""
    return Attr(_optional(_shape), default, "a tuple of ints or None")


def numbers(default: Any = REQUIRED) -> Attr:
    """Declare an attribute that is a tuple of floats; a single number becomes a tuple of one, None the empty tuple."""
    return Attr(_numbers, default, "a tuple of numbers")


def dtype(default: Any = REQUIRED) -> Attr:
    """Declare an attribute that is a dtype: a name, a NumPy dtype or MXNet's dtype code; all are converted to the name."""
    return Attr(_dtype, default, "a dtype name")


def text(default: Any = REQUIRED) -> Attr:
    """Declare an attribute that is any string."""
    return Attr(str, default, "a string")


def choice(*names: str, default: Any = REQUIRED) -> Attr:
    """Declare an attribute that is one of `names`."""

    def convert(value: Any) -> str:
        name = value if isinstance(value, str) or value is None else np.dtype(value).name
        if name not in names:
            raise ValueError(value)
        return name

    return Attr(convert, default, "one of " + ", ".join(names))


def maybe_choice(*names: str, default: Any = None) -> Attr:
    """Declare an attribute that is one of `names`, or None."""
    required = choice(*names)
    return Attr(_optional(required.convert), default, required.kind + " or None")


def several(kind: Callable[[Any], Attr], **defaults: Any) -> dict[str, Attr]:
    """Return a record of attributes of one kind, with their defaults (REQUIRED: none).

    Example:
        >>> several(flag, transpose_a=False, transpose_b=False)["transpose_b"].default
        False
    """
    return {name: kind(default) for name, default in defaults.items()}
