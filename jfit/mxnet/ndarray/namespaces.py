"""The namespaces of `mx.nd`: functions of the operators whose names begin alike, by the rest of their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jfit.mxnet.namespaces import PAIRS, Namespace, find, named_power
from jfit.mxnet.ndarray.array import binary_function, function
from jfit.mxnet.ndarray.contrib import FUNCTIONS
from jfit.mxnet.ndarray.control import cond, foreach, while_loop
from jfit.mxnet.numpy import extension as npx  # noqa: F401  mx.nd.npx
from jfit.mxnet.random import registered
from jfit.ops import ALIASES, lookup

contrib = Namespace("mx.nd.contrib", ("_contrib_",), function, (*FUNCTIONS, foreach, while_loop, cond))
linalg = Namespace("mx.nd.linalg", ("_linalg_",), function)
image = Namespace("mx.nd.image", ("_image_",), function)
op = Namespace("mx.nd.op", ("",), function)
_internal = Namespace("mx.nd._internal", ("",), function)


def made(name: str) -> Any:
    """Return the function of an operator, of two operators, for arrays and numbers, of an update, or of a distribution."""
    if name == "_internal":
        return _internal
    if name in PAIRS:
        call = binary_function(*PAIRS[name])
        return named_power(call) if name == "power" else call
    if "_update" in name or name == "multi_lars":
        from jfit.mxnet.ndarray import updates  # it imports the optimizers

        if name in updates.NAMES:
            return updates.update(name)
    drawn = ALIASES.get(name, "")
    if drawn.startswith("_random_") and "ctx" in lookup(drawn).attrs:
        return registered(drawn.removeprefix("_random_"))
    return find("mx.nd", ("",), name, function)


def names() -> Iterable[str]:
    """Names of the functions that `made` returns."""
    from jfit.mxnet.ndarray import updates

    return (*PAIRS, *updates.NAMES, *ALIASES)
