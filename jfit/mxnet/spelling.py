"""What `mx.nd` and `mx.sym` share: operator namespaces, and functions that take two arrays or an array and a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jfit.ops import ALIASES, nearest
from jfit.ops.scope import why_not

# name -> (operator of two arrays with broadcasting, of an array and a number, of a number and an array)
PAIRS: dict[str, tuple[str, str, str]] = {
    "add": ("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "subtract": ("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "multiply": ("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "divide": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "true_divide": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "modulo": ("broadcast_mod", "_mod_scalar", "_rmod_scalar"),
    "power": ("broadcast_power", "_power_scalar", "_rpower_scalar"),
    "pow": ("broadcast_power", "_power_scalar", "_rpower_scalar"),
    "maximum": ("broadcast_maximum", "_maximum_scalar", "_maximum_scalar"),
    "minimum": ("broadcast_minimum", "_minimum_scalar", "_minimum_scalar"),
    "hypot": ("broadcast_hypot", "_hypot_scalar", "_hypot_scalar"),
    "equal": ("broadcast_equal", "_equal_scalar", "_equal_scalar"),
    "not_equal": ("broadcast_not_equal", "_not_equal_scalar", "_not_equal_scalar"),
    "greater": ("broadcast_greater", "_greater_scalar", "_lesser_scalar"),
    "greater_equal": ("broadcast_greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar"),
    "lesser": ("broadcast_lesser", "_lesser_scalar", "_greater_scalar"),
    "lesser_equal": ("broadcast_lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar"),
    "logical_and": ("broadcast_logical_and", "_logical_and_scalar", "_logical_and_scalar"),
    "logical_or": ("broadcast_logical_or", "_logical_or_scalar", "_logical_or_scalar"),
    "logical_xor": ("broadcast_logical_xor", "_logical_xor_scalar", "_logical_xor_scalar"),
}


def split_attributes(indices_or_sections: Any) -> dict[str, Any]:
    """Attributes of `_split_v2`, which counts from a first part that begins at 0."""
    if isinstance(indices_or_sections, int):
        return {"indices": (), "sections": indices_or_sections}
    return {"indices": (0, *indices_or_sections), "sections": 0}


class Namespace:
    """Operators under a shorter name: `mx.sym.contrib.X` is the operator `_contrib_X`."""

    def __init__(
        self, where: str, prefixes: Sequence[str], make: Callable[[str], Any], functions: Sequence[Callable[..., Any]] = ()
    ) -> None:
        self._where, self._prefixes, self._make = where, tuple(prefixes), make
        self.__dict__.update((f.__name__, f) for f in functions)  # what is no operator

    def __getattr__(self, name: str) -> Any:
        return find(self._where, self._prefixes, name, self._make)

    def __dir__(self) -> list[str]:
        return sorted(a[len(p) :] for p in self._prefixes for a in ALIASES if a.startswith(p))


def find(where: str, prefixes: Sequence[str], name: str, make: Callable[[str], Any]) -> Any:
    """The function of the operator `prefix + name`.

    Raises:
        AttributeError: there is none; the nearest names are listed.
    """
    for prefix in prefixes:
        if prefix + name in ALIASES and not name.startswith("__"):
            return make(prefix + name)
    reason = next(filter(None, (why_not(prefix + name) for prefix in prefixes)), None)
    if reason is not None:
        raise AttributeError(f"{where}: MXNet's operator {name!r} is out of scope: {reason}.")
    near = nearest(name, [a[len(p) :] for p in prefixes for a in ALIASES if a.startswith(p)])
    raise AttributeError(f"{where} has no operator {name!r}" + (f"; the nearest names are {near}" if near else ""))


def absent(where: str, name: str, known: Sequence[str]) -> NoReturn:
    """Say that a module does not have what MXNet's may have; for a module's `__getattr__`.

    Raises:
        AttributeError: always, so that `hasattr` is False; the nearest names are listed.

    Example:
        >>> absent("mx", "vis", ["sym", "nd"])
        Traceback (most recent call last):
        ...
        AttributeError: mx.vis: jfit has no 'vis' here, or not yet; there are 'nd', 'sym'
    """
    near = nearest(name, known)
    there = f"the nearest names are {near}" if near else f"there are {', '.join(map(repr, sorted(known)))}"
    raise AttributeError(f"{where}.{name}: jfit has no {name!r} here, or not yet; {there}")
