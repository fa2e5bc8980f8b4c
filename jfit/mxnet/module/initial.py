"""Initial values of a module's parameters: validate the user's values, and initialize the missing ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit.init import InitDesc, Uniform, draw_all, get
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.initializer import writes_in_place
from jfit.mxnet.keys import next_key
from jfit.mxnet.mutable import as_array
from jfit.ops import nearest

DEFAULT = "default"  # MXNet's Uniform(0.01)

Specs = Mapping[str, jax.ShapeDtypeStruct]
Values = dict[str, Any]


class Initial(NamedTuple):
    """Names, shapes and attributes of a module's parameters, needed to initialize them.

    Attributes:
        params: shape and dtype of each parameter by name.
        aux: the same for auxiliary states.
        attrs: attributes of each variable by name; `__init__` may name an initializer.
        fixed_gammas: names of the gammas that are always 1 (BatchNorm with fix_gamma=True).
        inputs: names of data, labels and states.
        arrays: array class passed to initializers with MXNet's signature, which write in place.
    """

    params: Specs
    aux: Specs
    attrs: Mapping[str, Mapping[str, str]]
    fixed_gammas: Sequence[str] = ()
    inputs: Collection[str] = ()
    arrays: ArrayTypes = PLAIN

    def initialize(
        self, initializer: Any, params: Mapping[str, Any] | None, aux: Mapping[str, Any] | None, missing: bool
    ) -> tuple[Values, Values]:
        """Return (parameters, auxiliary states): the values passed, and the others from `initializer`.

        `missing` is `allow_missing` of `Module.init_params`.  Unknown names are ignored.

        Raises:
            RuntimeError: a name has no value although `missing` is False, or `initializer` is None.
            ValueError: a shape differs.
        """
        values, aux_values = self.converted(params or {}, aux or {})
        specs = self._missing("parameter", self.params, values, params, missing)
        specs |= self._missing("auxiliary state", self.aux, aux_values, aux, missing)
        as_zeros = initializer is None and missing and params is not None
        new = {n: np.zeros(s.shape, s.dtype) for n, s in specs.items()} if as_zeros else self._draw(initializer, specs)
        ones = {n: np.ones(self.params[n].shape, self.params[n].dtype) for n in self.fixed_gammas}
        params = {n: values[n] if n in values else new[n] for n in self.params}
        return {**params, **ones}, {n: aux_values[n] if n in aux_values else new[n] for n in self.aux}

    def check_names(self, params: Mapping[str, Any], aux: Mapping[str, Any] | None, allow: str) -> None:
        """Raise a ValueError if the network does not have a name; `allow` is the argument that ignores such names."""
        for kind, values, known in (
            ("arg_params", params, [*self.params, *self.inputs]),
            ("aux_params", aux or {}, list(self.aux)),
        ):
            unknown = next((n for n in values if n not in known), None)
            if unknown is not None:
                near = nearest(unknown, known)
                hint = f"did you mean {near}? " if near else ""
                problem = f"Find name {unknown!r} in {kind} that is not in the arguments of the network"
                raise ValueError(f"{problem}; {hint}Leave it out, or pass {allow}=True")

    def converted(self, params: Mapping[str, Any], aux: Mapping[str, Any]) -> tuple[Values, Values]:
        """Return (parameters, auxiliary states) of the network's names, with its dtypes; ValueError if a shape differs."""
        first = {n: _converted(n, v, self.params[n]) for n, v in params.items() if n in self.params}
        second = {n: _converted(n, v, self.aux[n]) for n, v in aux.items() if n in self.aux}
        ones = {n: np.ones(self.params[n].shape, self.params[n].dtype) for n in self.fixed_gammas if n in first}
        return {**first, **ones}, second

    @staticmethod
    def _missing(kind: str, specs: Specs, values: Values, source: Any, allow: bool) -> dict[str, jax.ShapeDtypeStruct]:
        missing = {n: s for n, s in specs.items() if n not in values}
        if source is not None and missing and not allow:
            names = list(missing)
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            near = nearest(names[0], [n for n in source if n not in specs], 1)
            hint = f", but {near} was passed, which the network does not have" if near else ""
            problem = f"{names[0]} is not presented{more}: this {kind} has no value{hint}"
            raise RuntimeError(f"{problem}; pass allow_missing=True to initialize it")
        return missing

    def _draw(self, initializer: Any, specs: Specs) -> Values:
        if not specs:
            return {}
        if initializer is None:
            raise RuntimeError(f"{sorted(specs)[0]} has no value, and initializer is None; pass an initializer")
        start: Any = Uniform(0.01) if isinstance(initializer, str) and initializer == DEFAULT else initializer
        if writes_in_place(start):
            return self._run_in_place(start, specs)
        described = {n: (InitDesc(n, self.attrs.get(n)), s) for n, s in sorted(specs.items())}
        return draw_all(get(start), next_key(), described)

    def _run_in_place(self, initializer: Any, specs: Specs) -> Values:
        """Return the values of the parameters `specs` from an initializer of MXNet's signature, which writes into arrays."""
        values = {}
        for name, spec in sorted(specs.items()):
            array = self.arrays.mutable(np.zeros(spec.shape, spec.dtype))
            initializer(InitDesc(name, self.attrs.get(name)), array)
            values[name] = as_array(array)
        return values


def _converted(name: str, value: Any, spec: jax.ShapeDtypeStruct) -> Any:
    array = as_array(value)
    if tuple(array.shape) != tuple(spec.shape):
        needed = f"{tuple(spec.shape)} for the bound shapes"
        raise ValueError(f"{name}: the value has shape {tuple(array.shape)}, but the network needs {needed}")
    return array if array.dtype == spec.dtype else array.astype(spec.dtype)
