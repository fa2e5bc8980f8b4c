"""Whole states and parameters, of arrays that are split over the devices of one process or several."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jfit import counters
from jfit.parallel.contexts import Device
from jfit.parallel.devices import is_spread, sharding, spans_processes
from jfit.parallel.mesh import MeshDevices
from jfit.parallel.spmd import GATHERED, compile_spmd, unchanged
from jfit.step.state import TrainState, averaged


def host_state(state: TrainState, devices: Sequence[Device]) -> TrainState:
    """Copy a state to the host as whole NumPy arrays; typed PRNG keys stay keys.

    With reduce="sharded" and others that split arrays over the devices, all processes of a job must call it, and all get the
    same: the parts of the other processes' devices come array by array from the devices.

    Args:
        state: `TrainState` on the devices.
        devices: list of `jax.Device` of all processes, by rank.

    Returns:
        `TrainState` with NumPy arrays, which later steps do not change.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(3)})
        >>> host_state(jfit.init_state(model, "adam"), jax.devices()[:1]).params["w"].tolist()
        [1.0, 1.0, 1.0]
    """
    if not spans_processes(devices):
        return counters.copy(state)
    gather, own = _gathering(tuple(devices)), state._replace(local=None)
    local = jax.tree.map(lambda x: counters.copy(gather(x)), state.local)  # one array of all devices at a time
    return counters.copy(jax.tree.map(lambda x: _of_all(x) if is_spread(x) else x, own))._replace(local=local)


def _of_all(x: jax.Array) -> np.ndarray:
    """The whole array on the host of every process."""
    return multihost_utils.process_allgather(x, tiled=True)


def evaluated_state(state: TrainState, devices: Sequence[Device]) -> TrainState:
    """Replace the parameters by those of evaluation, whole arrays on all devices, as `jfit.step.state.averaged` does.

    With reduce="sharded_parameters", or with averages and reduce="sharded", all processes of a job must call it.

    Args:
        state: `TrainState` on the devices.
        devices: list of `jax.Device` of all processes, by rank.

    Returns:
        The state with whole parameters.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(3)})
        >>> evaluated_state(jfit.init_state(model, "adam"), jax.devices()[:1]).params["w"].shape
        (3,)
    """
    return with_whole_params(averaged(state), devices)


def with_whole_params(state: TrainState, devices: Sequence[Device]) -> TrainState:
    """Return the state with whole parameters on every device: those that reduce="sharded_parameters" splits are gathered.

    Parameters that `shard=` splits over a named mesh stay split.  All processes of a job must call it.

    Args:
        state: `TrainState` on the devices.
        devices: list of `jax.Device` of all processes, by rank.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(3)})
        >>> with_whole_params(jfit.init_state(model, "sgd"), jax.devices()[:1]).params["w"].shape
        (3,)
    """

    def is_split(x: Any) -> bool:
        return isinstance(x, jax.Array) and not x.is_fully_replicated

    def whole(x: Any) -> Any:
        return jax.device_put(_of_all(x) if is_spread(x) else x, sharding(devices)) if is_split(x) else x

    if isinstance(devices, MeshDevices) or not any(map(is_split, jax.tree.leaves(state.params))):
        return state
    return state._replace(params=jax.tree.map(whole, state.params))


def specs_of_all(state: TrainState, devices: Sequence[Device]) -> TrainState:
    """Replace the arrays of `state.local` by their shapes and dtypes in a checkpoint, with the devices of all processes.

    Args:
        state: `TrainState` on the devices.
        devices: list of `jax.Device` of all processes, by rank.

    Returns:
        The state; in a job, its `local` has `jax.ShapeDtypeStruct`s (devices of all processes, ...) in place of arrays.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(3)})
        >>> specs_of_all(jfit.init_state(model, "sgd"), jax.devices()[:1]).local is None
        True
    """
    if state.local is None or not spans_processes(devices):
        return state
    spec = lambda x: jax.ShapeDtypeStruct((len(devices), *x.shape[1:]), x.dtype)  # noqa: E731
    return state._replace(local=jax.tree.map(spec, state.local))


@functools.cache
def _gathering(devices: tuple[Device, ...]) -> Any:
    return compile_spmd(unchanged, devices, (0,), GATHERED, name="gather")
