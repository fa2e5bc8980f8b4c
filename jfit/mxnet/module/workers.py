"""Sums of a module's gradients over the processes of a job, between its backward pass and its update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.distributed import num_processes, rank
from jfit.mxnet.module.parameters import Parameters
from jfit.parallel import compile_spmd, place_split, sharding
from jfit.parallel.workers import ProcessSums, from_main
from jfit.step.reduce import Reduce, all_reduce


def join_workers(parameters: Parameters, store: Any, trainable: Sequence[str], reduce: Reduce) -> Reduce:
    """Let a module train with those of the other processes of a job, if there are several and the store is a `dist` one.

    All begin with the parameters and auxiliary states of rank 0.  Random numbers, as of dropout, are different in each process.

    Args:
        parameters: the parameters of the module.
        store: the key-value store, or None.
        trainable: names of the parameters that the optimizer updates.
        reduce: how gradients are reduced over devices.

    Returns:
        How gradients are reduced over the devices of this process.
    """
    parameters.workers = None
    if num_processes() == 1 or store is None or "dist" not in store.type:
        return reduce
    params, aux = parameters.arrays()
    named = {**{f"arg:{k}": v for k, v in params.items()}, **{f"aux:{k}": v for k, v in aux.items()}}
    named = from_main(named, "parameters of the module")
    params, aux = {k: named[f"arg:{k}"] for k in params}, {k: named[f"aux:{k}"] for k in aux}
    if rank():
        key = jax.random.wrap_key_data(jax.device_get(parameters.state.key))
        key = jax.random.key_data(jax.random.fold_in(key, rank()))
        parameters.state = parameters.state._replace(key=parameters.place(key))
    parameters.set_arrays(params, aux)
    parameters.workers = Workers(reduce, {k: params[k] for k in trainable}, parameters.devices)
    return all_reduce()


class Workers:
    """The gradients of a module, summed over the devices of each process, then reduced over the processes.

    Args:
        rule: how gradients are reduced over the processes.
        params: the trainable parameters by name.
        devices: the devices of the module in this process.
    """

    def __init__(self, rule: Reduce, params: Mapping[str, Any], devices: Sequence[Any]) -> None:
        self._sums, self._devices = ProcessSums(rule, params), list(devices)
        self._at_home = self._devices == jax.local_devices()[:1]
        self._axis = None if len(devices) == 1 else place_split(np.zeros(len(devices), np.float32), devices)
        self._on_devices = None if len(devices) == 1 else compile_spmd(_over_devices, devices, (0,), None, name="device_sums")

    def reduced(self, parameters: Parameters, gradients: Mapping[str, Any], aux: Sequence[str]) -> dict[str, Any]:
        """Return gradients reduced over all processes; the auxiliary states become the means over all processes.

        Args:
            parameters: the parameters of the module; its auxiliary states are replaced.
            gradients: gradients by name, with a leading device axis if there are several devices.
            aux: names of the auxiliary states of the graph.
        """
        state = parameters.state
        # each process computes moving statistics of its own rows
        states = {k: state.aux[k] for k in aux if jnp.issubdtype(state.aux[k].dtype, jnp.inexact)}
        if self._on_devices is not None:
            if parameters.grouped:
                gradients = {k: jnp.sum(g, axis=0) for k, g in gradients.items()}
            else:
                gradients, states = _first(self._on_devices(dict(gradients))), _first(states)
        total, states = self._sums(gradients, states)
        if parameters.grouped:
            where = parameters.placement
            total = {k: jax.device_put(g, where.by_name.get(k, where.home)) for k, g in total.items()}
            states = {k: jax.device_put(v, where.by_name.get(k, where.home)) for k, v in states.items()}
        elif self._axis is not None or not self._at_home:
            total, states = jax.device_put((total, states), sharding(self._devices))
        if states:
            parameters.state = state._replace(aux={**state.aux, **states})
        return total

    def arguments(self, gradients: Mapping[str, Any], grouped: bool) -> Any:
        """Return the gradients as the program of the update takes them, see `Programs.update`."""
        return gradients if self._axis is None or grouped else (gradients, self._axis)


def _over_devices(gradients: Any, *, axis_name: str | None) -> Any:
    return all_reduce().apply(gradients, (), None, axis_name)[0]


def _first(tree: Any) -> Any:
    """Take the copy of the first device of replicated arrays."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)
