"""Initial values of a module's parameters: validate the user's values, and initialize the missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfit import checks
from jfit.init import InitDesc, Uniform, draw_all, get
from jfit.mxnet.array_types import ArrayTypes
from jfit.mxnet.initializer import writes_in_place
from jfit.mxnet.keys import next_key
from jfit.mxnet.module.binding import Binding
from jfit.mxnet.mutable import as_array
from jfit.ops import nearest

DEFAULT = "default"  # MXNet's Uniform(0.01)

Given = Mapping[str, Any] | None
Values = dict[str, Any]


def initialize(
    bound: Binding, initializer: Any, params: Given, aux: Given, missing: bool, arrays: ArrayTypes
) -> tuple[Values, Values]:
    """Return (parameters, auxiliary states) of a graph: the values passed, and the others from `initializer`.

    Args:
        bound: the graph.
        initializer: an initializer of jfit or MXNet, `DEFAULT`, or None.
        params, aux: values by name; unknown names are ignored.
        missing: `allow_missing` of `Module.init_params`.
        arrays: array class passed to initializers with MXNet's signature, which write in place.

    Raises:
        RuntimeError: a name has no value although `missing` is False, or `initializer` is None.
        ValueError: a shape differs.
    """
    values, aux_values = converted(bound, params or {}, aux or {})
    specs = _missing("parameter", bound.params, values, params, missing)
    specs += _missing("auxiliary state", bound.aux, aux_values, aux, missing)
    as_zeros = initializer is None and missing and params is not None
    new = {n: _filled(bound, n, 0) for n in specs} if as_zeros else _draw(bound, initializer, specs, arrays)
    ones = {n: _filled(bound, n, 1) for n in bound.fixed_gammas}
    new_params = {n: values[n] if n in values else new[n] for n in bound.params}
    return {**new_params, **ones}, {n: aux_values[n] if n in aux_values else new[n] for n in bound.aux}


def converted(bound: Binding, params: Mapping[str, Any], aux: Mapping[str, Any]) -> tuple[Values, Values]:
    """Return (parameters, auxiliary states) of the graph's names, with its dtypes; ValueError if a shape differs."""
    first = {n: _converted(n, v, bound.specs[n]) for n, v in params.items() if n in bound.params}
    second = {n: _converted(n, v, bound.specs[n]) for n, v in aux.items() if n in bound.aux}
    return {**first, **{n: _filled(bound, n, 1) for n in bound.fixed_gammas if n in first}}, second


def check_names(bound: Binding, params: Mapping[str, Any], aux: Mapping[str, Any] | None, allow: str) -> None:
    """Raise a ValueError if the network does not have a name; `allow` is the argument that ignores such names."""
    for kind, values, known in (("arg_params", params, bound.arguments), ("aux_params", aux or {}, bound.aux)):
        unknown = next((n for n in values if n not in known), None)
        if unknown is not None:
            problem = f"Find name {unknown!r} in {kind} that is not in the arguments of the network"
            raise ValueError(f"{problem}; {checks.name_hint(unknown, known)} Leave it out, or pass {allow}=True")


def _missing(kind: str, names: list[str], values: Values, source: Any, allow: bool) -> list[str]:
    missing = [n for n in names if n not in values]
    if source is not None and missing and not allow:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        near = nearest(missing[0], [n for n in source if n not in names], 1)
        hint = f", but {near} was passed, which the network does not have" if near else ""
        problem = f"{missing[0]} is not presented{more}: this {kind} has no value{hint}"
        raise RuntimeError(f"{problem}; pass allow_missing=True to initialize it")
    return missing


def _draw(bound: Binding, initializer: Any, names: list[str], arrays: ArrayTypes) -> Values:
    if not names:
        return {}
    if initializer is None:
        raise RuntimeError(f"{min(names)} has no value, and initializer is None; pass an initializer")
    attrs = {n.name: dict(n.attrs) for n in bound.symbol.nodes() if n.op is None}
    described = {n: (InitDesc(n, attrs.get(n)), bound.specs[n]) for n in sorted(names)}
    start: Any = Uniform(0.01) if isinstance(initializer, str) and initializer == DEFAULT else initializer
    if not writes_in_place(start):
        return draw_all(get(start), next_key(), described)
    values = {}
    for name, (description, _) in described.items():
        array = arrays.mutable(_filled(bound, name, 0))
        start(description, array)
        values[name] = as_array(array)
    return values


def _filled(bound: Binding, name: str, value: int) -> np.ndarray:
    return np.full(bound.specs[name].shape, value, bound.specs[name].dtype)


def _converted(name: str, value: Any, spec: jax.ShapeDtypeStruct) -> Any:
    array = as_array(value)
    if tuple(array.shape) != tuple(spec.shape):
        raise ValueError(f"{name}: the value has shape {tuple(array.shape)}, but the network needs {tuple(spec.shape)}")
    return array if array.dtype == spec.dtype else array.astype(spec.dtype)
