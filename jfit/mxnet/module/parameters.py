"""The parameters and states of a bound module: drawn, set, read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfit.mxnet.box import unbox
from jfit.mxnet.module import descs
from jfit.mxnet.module.base import BaseModule
from jfit.mxnet.module.initial import DEFAULT, Initial
from jfit.mxnet.module.passes import Passes
from jfit.mxnet.module.session import Session


class ParameterModule(BaseModule):
    """A module whose parameters live in a `Session`; `BoundModule` says which they are."""

    _symbol: Any
    _session: Session
    _passes: Passes
    _param_names: list[str]
    _aux_names: list[str]
    _fixed_gammas: list[str]
    _state_names: list[str]
    _states: dict[str, Any]
    _specs: dict[str, jax.ShapeDtypeStruct]
    _data_shapes: list[Any]

    def _slices(self, rows: int) -> list[int]:
        raise NotImplementedError

    def _settle(self) -> None:
        raise NotImplementedError

    @property
    def _initial(self) -> Initial:
        """Setting and drawing parameters, over this module's specs."""
        attrs = {n.name: dict(n.attrs) for n in self._symbol.nodes() if n.op is None}
        params = {n: self._specs[n] for n in self._param_names}
        aux = {n: self._specs[n] for n in self._aux_names}
        return Initial(params, aux, attrs, self._fixed_gammas, self.arrays)

    def init_params(
        self,
        initializer: Any = DEFAULT,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters from `arg_params` / `aux_params`, and draw what they lack.

        Args:
            initializer: of the missing ones (and of all, where no values are given); "default" is Uniform(0.01).
            arg_params: values by name.
            aux_params: auxiliary states by name.
            allow_missing: names that the given values lack are drawn; otherwise they raise.
            force_init: do it though there are parameters already.
            allow_extra: unknown names are ignored; otherwise they raise (MXNet ignores them silently).

        Raises:
            RuntimeError: a value is missing.
            ValueError: an unknown name, or a shape that does not fit.
        """
        if self.params_initialized and not force_init:
            warnings.warn("Parameters already initialized and force_init=False. init_params call ignored.", stacklevel=2)
            return
        assert self.binded, "call bind before initializing the parameters"
        self._passes.hold_outputs()
        found = self._initial.drawn(initializer, arg_params, aux_params, allow_missing, allow_extra)
        self._session.set_arrays(*self._merged_with_shared(*found))
        self.params_initialized = True

    def _merged_with_shared(self, params: dict[str, Any], aux: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Modules that share a session may have parameters that this one lacks."""
        if self._session.state is None or set(self._session.state.params) <= set(params):
            return params, aux
        old, old_aux = self._session.arrays()
        return {**old, **params}, {**old_aux, **aux}

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters; with allow_missing those that are not given keep their values."""
        if self.params_initialized and not force_init:
            warnings.warn("Parameters already initialized and force_init=False. set_params call ignored.", stacklevel=2)
            return
        if not allow_missing or not self.params_initialized:
            self.init_params(None, arg_params, aux_params, allow_missing, force_init, allow_extra)
            return
        self._passes.hold_outputs()
        now, aux = self._session.arrays()
        given = self._initial.checked(arg_params, aux_params, allow_extra)
        self._session.set_arrays({**now, **given[0]}, {**aux, **given[1]})

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(parameters, auxiliary states): copies; the mean over devices where each has its own."""
        assert self.binded and self.params_initialized
        self._settle()
        params, aux = self._session.arrays()
        return {n: self.arrays.box(params[n]) for n in self._param_names}, {n: self.arrays.box(aux[n]) for n in self._aux_names}

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The arrays of `state_names`; with merge_multi_context=False one list of slices for each."""
        assert self.binded and self.params_initialized
        if merge_multi_context:
            return [self.arrays.box(self._states[n]) for n in self._state_names]
        counts = self._slices(descs.rows_of_batch(self._data_shapes))
        cut = [np.cumsum(counts)[:-1]] * len(self._state_names)
        axes = [self._passes.programs.model.batch_axes.get(n, 0) for n in self._state_names]
        parts = [np.split(np.asarray(self._states[n]), at, a) for n, at, a in zip(self._state_names, cut, axes, strict=True)]
        return [[self.arrays.box(p) for p in part] for part in parts]

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the state inputs: from arrays (whole, or lists of slices as `get_states` gives them), or all to one number."""
        assert self.binded and self.params_initialized
        if (states is None) == (value is None):
            raise ValueError("set_states takes either states= (arrays, one for each state name) or value= (a number)")
        for name, given in zip(self._state_names, states or [value] * len(self._state_names), strict=True):
            spec = self._specs[name]
            if isinstance(given, (list, tuple)):
                axis = self._passes.programs.model.batch_axes.get(name, 0)
                given = np.concatenate([np.asarray(unbox(g)) for g in given], axis)
            whole = unbox(given) if value is None else np.full(spec.shape, value, spec.dtype)
            if tuple(whole.shape) != tuple(spec.shape):
                raise ValueError(f"state {name!r} has shape {tuple(whole.shape)}, the graph needs {tuple(spec.shape)}")
            self._states[name] = whole
