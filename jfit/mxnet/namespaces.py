"""Operator lookup shared by `mx.nd` and `mx.sym`: namespaces such as `contrib`, and functions of arrays or scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jfit.ops import ALIASES, nearest
from jfit.ops.scope import why_not

# function name -> (operator for array, array; for array, scalar; for scalar, array)
PAIRS: dict[str, tuple[str, str, str]] = {
    "add": ("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "subtract": ("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "multiply": ("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "divide": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "true_divide": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "modulo": ("broadcast_mod", "_mod_scalar", "_rmod_scalar"),
    "power": ("broadcast_power", "_power_scalar", "_rpower_scalar"),
    "pow": ("broadcast_power", "_power_scalar", "_rpower_scalar"),
    "greater": ("broadcast_greater", "_greater_scalar", "_lesser_scalar"),
    "greater_equal": ("broadcast_greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar"),
    "lesser": ("broadcast_lesser", "_lesser_scalar", "_greater_scalar"),
    "lesser_equal": ("broadcast_lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar"),
}
_SYMMETRIC = "equal hypot logical_and logical_or logical_xor maximum minimum not_equal"
PAIRS |= {name: (f"broadcast_{name}", f"_{name}_scalar", f"_{name}_scalar") for name in _SYMMETRIC.split()}


def split_attributes(indices_or_sections: Any) -> dict[str, Any]:
    """Convert numpy.split's argument to attributes of the operator `_split_v2`, whose `indices` start with an additional 0."""
    if isinstance(indices_or_sections, int):
        return {"indices": (), "sections": indices_or_sections}
    return {"indices": (0, *indices_or_sections), "sections": 0}


def named_power(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function `power`, whose arguments have the names of MXNet's."""

    def power(base: Any, exp: Any) -> Any:
        """Return base ** exp, with broadcasting."""
        return call(base, exp)

    return power


class Namespace:
    """A namespace of operators without their prefix: `mx.sym.contrib.X` is the operator `_contrib_X`.

    Args:
        where: name of the namespace, for error messages.
        prefixes: operator-name prefixes, tried in order.
        make: from an operator's name to the function that calls it.
        functions: further functions that are not operators.
    """

    def __init__(
        self, where: str, prefixes: Sequence[str], make: Callable[[str], Any], functions: Sequence[Callable[..., Any]] = ()
    ) -> None:
        self._where, self._prefixes, self._make = where, tuple(prefixes), make
        self._functions = {f.__name__: f for f in functions}
        self.__dict__.update(self._functions)

    def __getattr__(self, name: str) -> Any:
        return find(self._where, self._prefixes, name, self._make)

    def __dir__(self) -> list[str]:
        return sorted({*self._functions, *(a[len(p) :] for p in self._prefixes for a in ALIASES if a.startswith(p))})


def find(where: str, prefixes: Sequence[str], name: str, make: Callable[[str], Any]) -> Any:
    """Return `make(prefix + name)` for the first of `prefixes` for which `prefix + name` is an operator.

    where: name of the namespace, for the error message.

    Raises:
        AttributeError: there is no such operator; the message lists similar names.
    """
    for prefix in prefixes:
        if prefix + name in ALIASES and not name.startswith("__"):
            return make(prefix + name)
    reason = next(filter(None, (why_not(prefix + name) for prefix in prefixes)), None)
    near = nearest(name, [a[len(p) :] for p in prefixes for a in ALIASES if a.startswith(p)])
    hint = f"; the nearest names are {near}" if near else ""
    scope = f"{where}: MXNet's operator {name!r} is out of scope: {reason}."
    raise AttributeError(scope if reason else f"{where} has no operator {name!r}{hint}")


def absent(where: str, name: str, known: Sequence[str]) -> NoReturn:
    """Raise the AttributeError of a module's `__getattr__` for a name that jfit lacks, listing similar names.

    Args:
        where: name of the module.
        name: the missing attribute.
        known: names that the module has.

    Raises:
        AttributeError: always, so that `hasattr` returns False.

    Example:
        >>> absent("mx", "vis", ["sym", "nd"])
        Traceback (most recent call last):
        ...
        AttributeError: mx.vis: jfit does not provide 'vis' here; available are 'nd', 'sym'
    """
    near = nearest(name, known)
    names = f"the nearest names are {near}" if near else f"available are {', '.join(map(repr, sorted(known)))}"
    raise AttributeError(f"{where}.{name}: jfit does not provide {name!r} here; {names}")
