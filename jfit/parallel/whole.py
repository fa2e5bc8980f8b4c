"""Whole states in jobs of several processes, each of which has the per-device state (`local`) of its own devices only."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from jfit import counters
from jfit.optim import EmaState
from jfit.parallel.contexts import Device, spans_processes
from jfit.parallel.spmd import GATHERED, compile_spmd
from jfit.step.sharded import Shard, is_sharded, whole_state
from jfit.step.state import TrainState, averaged


def host_state(state: TrainState, devices: Sequence[Device]) -> TrainState:
    """Copy a state to the host as whole NumPy arrays; typed PRNG keys stay keys.

    With reduce="sharded" and others that have per-device state, all processes of a job must call it, and all get the same:
    the parts of the other processes' devices come array by array from the devices.

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
    if state.local is None or not spans_processes(devices):
        return whole_state(counters.copy(state))
    gather = _gathering(tuple(devices))
    local = jax.tree.map(lambda x: counters.copy(gather(x)), state.local)  # one array of all devices at a time
    return whole_state(counters.copy(state._replace(local=None))._replace(local=local))


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
    return averaged(with_chunks_of_all(state, devices))


def with_chunks_of_all(state: TrainState, devices: Sequence[Device]) -> TrainState:
    """Gather the chunks of parameters, and of their averages, from the devices of all processes of a job.

    Args:
        state: `TrainState` on the devices.
        devices: list of `jax.Device` of all processes, by rank.

    Returns:
        `TrainState` whose `local` has whole arrays of these chunks, (devices, chunk), on all devices of this process, and None
        in place of others; the argument itself if the processes have whole parameters.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(3)})
        >>> with_chunks_of_all(jfit.init_state(model, "sgd"), jax.devices()[:1]).local is None
        True
    """
    if not spans_processes(devices) or not is_sharded(state):
        return state
    averages = state.opt_state.ema_params if isinstance(state.opt_state, EmaState) else ()
    is_shard = lambda x: isinstance(x, Shard)  # noqa: E731
    needed = {x.index for x in jax.tree.leaves((state.params, averages), is_leaf=is_shard) if is_shard(x)}
    gather = _gathering(tuple(devices))
    local: Any = state.local
    return state._replace(local=tuple([gather(x) if i in needed else None for i, x in enumerate(local)]))


def specs_of_all(state: TrainState, devices: Sequence[Device]) -> TrainState:
    """Replace the per-device state by specs of that of the devices of all processes, as it is in checkpoints.

    Args:
        state: `TrainState` on the devices.
        devices: list of `jax.Device` of all processes, by rank.

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
    return compile_spmd(_same, devices, (0,), GATHERED, name="gather")


def _same(x: Any, axis_name: str | None) -> Any:
    del axis_name
    return x
