"""Networks whose `ctx_group`s are on different devices: where their arrays are, their passes, and their update.

A batch may also be split over several contexts.  There is a replica of the network for each context: a model that runs each
group on the device which the group has for this context.  The parameters are on the devices of the first replica; the programs
of the others get copies of them.  Each replica computes one slice of the batch (`jfit.ops.axis.VirtualSlice`), so that random
numbers are those of one device.  The update runs one program on every device, for the parameters of that device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.data.batch import Batch
from jfit.lowering.model import Aux, Model
from jfit.ops.axis import VirtualSlice
from jfit.optim import OptState
from jfit.parallel import place
from jfit.parallel.devices import AXIS
from jfit.step import forward_step, gradient_step
from jfit.step.state import TrainState
from jfit.step.train import mean_aux


class Placement(NamedTuple):
    """The devices of the arrays of a module.

    Attributes:
        home: the device of scalars, inputs and outputs.
        by_name: parameter or auxiliary state -> its device; empty if all are on `home`.
        groups: for each context, `ctx_group` -> device; empty if `by_name` is.
    """

    home: Any
    by_name: Mapping[str, Any]
    groups: Sequence[Mapping[str, Any]] = ()

    def place(self, tree: Any) -> Any:
        """Copy arrays to their devices: those below the name of a parameter to its device, all others to `home`."""
        return jax.tree_util.tree_map_with_path(lambda path, x: place(x, [self._device(path)]), tree)

    def _device(self, path: Sequence[Any]) -> Any:
        keys = [k.key for k in reversed(path) if isinstance(k, jax.tree_util.DictKey)]
        return next((self.by_name[k] for k in keys if k in self.by_name), self.home)


# ------------------------------------------------------------------------------------------------ passes
class Replicas:
    """The models of all contexts.

    The functions that it makes have the arguments (params, aux, batch, key, step, number) of `jfit.step.forward_step`.  With
    several contexts, arrays of the batch and the results have a leading device axis, and so do parameters if `split`.

    Args:
        models: the model of each context; it runs stage by stage (see `jfit.lowering.groups`).
        placement: the devices of the parameters; `home` is that of the results.
    """

    def __init__(self, models: Sequence[Model], placement: Placement) -> None:
        self.models, self.placement = list(models), placement

    def forward(self, train: bool, split: bool) -> Callable[..., tuple[Array, ...]]:
        """Return the function (params, aux, batch, key, step, number) -> outputs.

        train: training mode.  split: whether each context has parameters of its own.
        """
        steps = [forward_step(model, train=train) for model in self.models]
        if len(steps) == 1:
            return steps[0]
        return lambda *args: _stacked(jax.device_put(_each(steps, split, *args), self.placement.home))

    def gradients(self, wrt: Sequence[str], split: bool) -> Callable[..., tuple[tuple[Array, ...], dict[str, Array], Aux]]:
        """Return the function (params, aux, batch, key, step, number[, head gradients]) -> (outputs, gradients, new aux).

        The new auxiliary states are the mean over the contexts that have rows.

        wrt: names of the parameters and inputs to differentiate with respect to.  split: as for `forward`.
        """
        steps = [gradient_step(model, wrt) for model in self.models]
        if len(steps) == 1:
            return steps[0]

        def run(params: Any, aux: Aux, batch: Batch, *rest: Any) -> tuple[tuple[Array, ...], dict[str, Array], Aux]:
            outputs, gradients, new_aux = zip(*_each(steps, split, params, aux, batch, *rest), strict=True)
            device_of = {n: d for n, d in self.placement.by_name.items() if n in params}
            outputs = _stacked(jax.device_put(outputs, self.placement.home))
            return outputs, self._on_devices(_stacked, gradients, device_of), self._mean(new_aux, aux, batch.weight)

        return run

    def _on_devices(
        self, program: Callable[..., Any], trees: Sequence[Mapping[str, Array]], device_of: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Return `program(trees)`, run on the device of each name for the arrays of all replicas with this name."""
        results, home = {}, self.placement.home
        for device in dict.fromkeys(device_of.get(n, home) for n in trees[0]):
            names = [n for n in trees[0] if device_of.get(n, home) == device]
            results.update(program(jax.device_put([{n: tree[n] for n in names} for tree in trees], device)))
        return results

    def _mean(self, states: Sequence[Aux], old: Aux, weight: Any) -> Aux:
        """Return the mean of the auxiliary states of all contexts, on the devices of `old`; weight: as for `_mean_of`."""
        changed = [n for n in old if any(new[n] is not old[n] for new in states)]
        trees = [{n: tree[n] for n in changed} for tree in (old, *states)]
        return {**old, **self._on_devices(functools.partial(_mean_of, weight=weight), trees, self.placement.by_name)}


def _each(steps: Sequence[Callable[..., Any]], split: bool, params: Any, aux: Any, batch: Any, *rest: Any) -> list[Any]:
    """Call the step of each replica with its slice of the batch, and return the results.

    Args:
        steps: the function of each replica, called with (params, aux, batch, key, step, number[, head gradients], axis_name=).
        split: whether `params` have a leading axis with the values of each replica; otherwise all replicas share them.
        params, aux: parameters and auxiliary states by name.
        batch: the batch, whose arrays have a leading replica axis.
        rest: key, step, number and, if there are any, head gradients with a leading replica axis.
    """
    results = []
    for index, step in enumerate(steps):
        part, heads = jax.tree.map(lambda x, i=index: x[i], (batch, rest[3:]))
        own = jax.tree.map(lambda x, i=index: x[i], params) if split else params
        axis = VirtualSlice(np.int32(index), len(steps))
        results.append(step(own, aux, part, *rest[:3], *heads, axis_name=axis))
    return results


@jax.jit
def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees)


@jax.jit
def _mean_of(trees: Sequence[Aux], weight: Any) -> Aux:
    """Return the mean of auxiliary states over the contexts that have rows.

    trees: the old states, then the new ones of each context.  weight: weights of the rows, (contexts, rows), or None.
    """
    old, states = trees[0], trees[1:]

    def of_context(aux: Aux, weight: Any) -> Aux:
        return mean_aux(aux, old, weight, AXIS)

    axes = (0, None if weight is None else 0)
    return jax.vmap(of_context, axes, None, axis_name=AXIS)(_stacked(states), weight)


# ------------------------------------------------------------------------------------------------ update
class _Owned(NamedTuple):
    """Arrays of the parameters of one device; each update puts new arrays in their place."""

    params: dict[str, Array]
    slots: dict[str, dict[str, Any]]
    local: Any


def update_by_device(
    update: Callable[..., TrainState], placement: Placement, together: bool, contexts: int = 1, split: bool = False
) -> Callable[..., TrainState]:
    """Make an update that runs one program on every device, for the parameters of that device.

    Args:
        update: pure function (state, gradients, rescale, axis_name=) -> state.
        placement: the devices of the parameters.
        together: update all parameters on `placement.home`, because the optimizer has state that they share.
        contexts: number of contexts; if there are several, gradients have a leading axis over them.
        split: whether each context has parameters and optimizer state of its own, along a leading axis.

    Returns:
        Function (state, gradients, rescale) -> state.
    """

    def run(owned: _Owned, rest: TrainState, gradients: Mapping[str, Any], rescale: Any, *, axis_name: str | None = None):
        opt_state = rest.opt_state._replace(slots=owned.slots)
        state = rest._replace(params=owned.params, opt_state=opt_state, local=owned.local)
        new = update(state, gradients, rescale, axis_name=axis_name)
        states = new.opt_state
        return _Owned(new.params, states.slots, new.local), states.count, states.shared, new.step

    compiled = jax.jit(run if contexts == 1 else _over_contexts(run, split), donate_argnums=0)

    def by_device(state: TrainState, gradients: Mapping[str, Any], rescale: Any) -> TrainState:
        order = sorted(gradients)
        device_of = {n: placement.home if together else placement.by_name.get(n, placement.home) for n in order}
        params, old = dict(state.params), state.opt_state
        slots, local = {slot: dict(tree) for slot, tree in old.slots.items()}, state.local and dict(state.local)
        counts: Any = old.count
        by_parameter = counts is not None and counts.ndim > split  # one update count per parameter, not one for all
        shared, step = old.shared, state.step
        for device in dict.fromkeys(device_of.values()):
            at = [i for i, n in enumerate(order) if device_of[n] == device]
            names = [order[i] for i in at]
            moved = jax.device_put((*_parts(state, names, at, split), {n: gradients[n] for n in names}), device)
            new, count, shared, step = compiled(*moved, rescale)
            params.update(_back(new.params, placement, together))
            for slot, tree in new.slots.items():
                slots[slot].update(_back(tree, placement, together))
            if local:
                local.update(_back(new.local, placement, together))
            count = jax.device_put(count, placement.home)
            counts = counts.at[..., np.asarray(at)].set(count) if counts is not None and by_parameter else count
        shared, step = jax.device_put((shared, step), placement.home)
        opt_state = OptState(counts, slots, old.lr_mult, old.wd_mult, shared)
        return state._replace(step=step, params=params, opt_state=opt_state, local=local)

    return by_device


def _over_contexts(run: Callable[..., Any], split: bool) -> Callable[..., Any]:
    """Return `run` for all contexts at once, on one device: what they send to each other are sums over an axis of arrays."""
    axis = 0 if split else None
    owned: Any = _Owned(axis, axis, 0)  # type: ignore[arg-type]
    rest: Any = TrainState(None, None, None, axis, None, None, None, None)  # type: ignore[arg-type]
    with_axis = functools.partial(run, axis_name=AXIS)
    return jax.vmap(with_axis, (owned, rest, 0, None), (owned, axis, axis, None), axis_name=AXIS)


def _back(tree: Mapping[str, Any], placement: Placement, together: bool) -> dict[str, Any]:
    """Return the new arrays of parameters on their own devices."""
    if not together:
        return dict(tree)
    return {n: jax.device_put(v, placement.by_name.get(n, placement.home)) for n, v in tree.items()}


def _parts(state: TrainState, names: Sequence[str], at: Sequence[int], split: bool) -> tuple[_Owned, TrainState]:
    """Return the arrays of the parameters `names`, and the state without arrays of parameters; arguments as for `part_of`."""
    opt_state = part_of(state.opt_state, names, at, split)
    local = state.local and {n: state.local[n] for n in names}
    base_lr, opt_slots = _entries(state.base_lr, at, 0), opt_state.slots
    rest = state._replace(params={}, aux={}, opt_state=opt_state._replace(slots={}), base_lr=base_lr, local=None)
    return _Owned({n: state.params[n] for n in names}, opt_slots, local), rest


def part_of(state: OptState, names: Sequence[str], at: Sequence[int], split: bool) -> OptState:
    """Return the part of an optimizer state for some parameters.

    Args:
        state: the optimizer state.
        names: the parameters.
        at: their positions in the vectors over the parameters.
        split: whether arrays have a leading axis over the contexts.
    """
    count, lr_mult, wd_mult = (_entries(values, at, int(split)) for values in (state.count, state.lr_mult, state.wd_mult))
    slots = {slot: {n: tree[n] for n in names} for slot, tree in state.slots.items()}
    return OptState(count, slots, lr_mult, wd_mult, state.shared)


def _entries(values: Any, at: Sequence[int], axes: int) -> Any:
    """Return the entries `at` of a vector over the parameters; other values, of at most `axes` axes, are unchanged."""
    if isinstance(values, tuple):
        return tuple(values[i] for i in at)
    return values if values is None or values.ndim <= axes else values[..., np.asarray(at, int)]
