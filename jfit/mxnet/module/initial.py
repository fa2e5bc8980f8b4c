"""Values for a module's parameters: given ones checked, missing ones drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What is known of a module's parameters.

    Attributes:
        params: name -> shape and dtype.
        aux: the same for auxiliary states.
        attrs: attributes of the variables, which may name an initializer.
        ones: gammas that are exactly 1 whatever is given or drawn.
        arrays: what an initializer of the user's, `init(desc, array)`, is told of and writes into.
    """

    params: Specs
    aux: Specs
    attrs: Mapping[str, Mapping[str, str]]
    ones: Sequence[str] = ()
    arrays: ArrayTypes = PLAIN

    def drawn(
        self, initializer: Any, params: Mapping[str, Any] | None, aux: Mapping[str, Any] | None, missing: bool, extra: bool
    ) -> tuple[Values, Values]:
        """(parameters, auxiliary states): the given values, and the rest drawn.

        Raises:
            RuntimeError: a name is missing from given values although `missing` is False, or there is nothing to draw with.
            ValueError: an unknown name (unless `extra`), or a shape that does not fit.
        """
        given, given_aux = self.checked(params or {}, aux or {}, extra)
        absent = self._absent("parameter", self.params, given, params, missing)
        absent |= self._absent("auxiliary state", self.aux, given_aux, aux, missing)
        nothing = initializer is None and missing and params is not None
        fresh = {n: np.zeros(s.shape, s.dtype) for n, s in absent.items()} if nothing else self._draw(initializer, absent)
        ones = {n: np.ones(self.params[n].shape, self.params[n].dtype) for n in self.ones}
        found = {n: given[n] if n in given else fresh[n] for n in self.params}
        return {**found, **ones}, {n: given_aux[n] if n in given_aux else fresh[n] for n in self.aux}

    def checked(self, params: Mapping[str, Any], aux: Mapping[str, Any], extra: bool) -> tuple[Values, Values]:
        """The given values as plain arrays of the needed dtypes, names and shapes checked."""
        found = []
        for kind, given, specs in (("arg_params", params, self.params), ("aux_params", aux, self.aux)):
            unknown = [n for n in given if n not in specs]
            if unknown and not extra:
                near = nearest(unknown[0], list(specs))
                raise ValueError(
                    f"Find name {unknown[0]!r} in {kind} that is not in the arguments of the network; "
                    + (f"did you mean {near}? " if near else "")
                    + "Leave it out, or pass allow_extra=True"
                )
            found.append({n: _fitting(n, v, specs[n]) for n, v in given.items() if n in specs})
        first, second = found
        ones = {n: np.ones(self.params[n].shape, self.params[n].dtype) for n in self.ones if n in first}
        return {**first, **ones}, second

    @staticmethod
    def _absent(kind: str, specs: Specs, given: Values, source: Any, missing: bool) -> dict[str, jax.ShapeDtypeStruct]:
        absent = {n: s for n, s in specs.items() if n not in given}
        if source is not None and absent and not missing:
            names = list(absent)
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise RuntimeError(
                f"{names[0]} is not presented{more}: the given values lack this {kind}; pass allow_missing=True to draw it"
            )
        return absent

    def _draw(self, initializer: Any, wanted: Specs) -> Values:
        if not wanted:
            return {}
        if initializer is None:
            raise RuntimeError(f"{sorted(wanted)[0]} has no value and initializer=None draws none; pass an initializer")
        start: Any = Uniform(0.01) if isinstance(initializer, str) and initializer == DEFAULT else initializer
        if writes_in_place(start):
            return self._written(start, wanted)
        described = {n: (InitDesc(n, self.attrs.get(n)), s) for n, s in sorted(wanted.items())}
        return draw_all(get(start), next_key(), described)

    def _written(self, initializer: Any, wanted: Specs) -> Values:
        """Values from an initializer in MXNet's form: `initializer(desc, array)` writes into the array."""
        found = {}
        for name, spec in sorted(wanted.items()):
            cell = self.arrays.mutable(np.zeros(spec.shape, spec.dtype))
            initializer(InitDesc(name, self.attrs.get(name)), cell)
            found[name] = as_array(cell)
        return found


def _fitting(name: str, value: Any, spec: jax.ShapeDtypeStruct) -> Any:
    array = as_array(value)
    if tuple(array.shape) != tuple(spec.shape):
        raise ValueError(
            f"{name}: the given value has shape {tuple(array.shape)}, the network needs {tuple(spec.shape)} for the bound "
            "shapes; pass matching values, or bind other shapes"
        )
    return array if array.dtype == spec.dtype else array.astype(spec.dtype)
