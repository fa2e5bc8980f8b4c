"""Passes of a network whose `ctx_group`s are on different devices, over batches that are split over several contexts.

There is a replica of the network for each context: a model that runs each group on the device which the group has for this
context.  The parameters are on the devices of the first replica; the programs of the others get copies of them.  Each replica
computes one slice of the batch (`jfit.ops.axis.VirtualSlice`), so that random numbers are those of one device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.data.batch import Batch
from jfit.lowering.model import Aux, Model
from jfit.mxnet.module.grouped import Placement
from jfit.ops.axis import VirtualSlice
from jfit.parallel.devices import AXIS
from jfit.programs import Program
from jfit.step import forward_step, gradient_step
from jfit.step.train import mean_aux


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

    def captured(self, raw: Callable[..., Any], split: bool) -> Callable[..., list[Any]]:
        """Return the function (params, aux, batch, key, step, number[, head gradients]) -> results of `raw` for each context.

        They are computed on `placement.home`, without groups.

        raw: function of the same arguments and axis_name=.  split: as for `forward`.
        """
        count = len(self.models)
        of_slice = lambda index, *args: raw(*args, axis_name=VirtualSlice(index, count) if count > 1 else None)  # noqa: E731
        compiled = Program(of_slice, jax.jit, name="monitor")

        def step(*args: Any, axis_name: VirtualSlice) -> Any:
            return compiled(axis_name.index, *args)

        def run(params: Any, aux: Any, *rest: Any) -> list[Any]:
            params, aux = jax.device_put((params, aux), self.placement.home)
            return [compiled(0, params, aux, *rest)] if count == 1 else _each([step] * count, split, params, aux, *rest)

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
