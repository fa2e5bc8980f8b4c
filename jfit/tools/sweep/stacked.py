"""Programs that train and evaluate the members of a sweep at once: `jax.vmap` over their states.

The state of all members is one `TrainState`, a stack, whose arrays have a leading member axis; only `step` is shared.  With
several devices, there is a device axis before it, and each device has its part of the members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.feed.batches import BatchLayout
from jfit.loop.report import report
from jfit.parallel.devices import place, place_split
from jfit.programs import Constants
from jfit.programs.constants import bound
from jfit.step.state import TrainState, averaged
from jfit.step.totals import zero_totals

# axes of a stack, for vmap and compile_spmd: `step` has no member axis, because all members have done the same updates
STACK_AXES: Any = TrainState(None, 0, 0, 0, 0, 0, 0, None)  # pyright: ignore[reportArgumentType]
_STACKED = ("params", "aux", "opt_state", "metrics", "base_lr", "key")


class TrainSpec(NamedTuple):
    """What the training programs of the members of a sweep compute, without the data.

    Attributes:
        step: training step of the first member; those of the others differ in the values of `constants`.
        constants: the `Constants` that the step reads.
        layout: sizes of the batches.
        tail: whether the last batch of a call may be incomplete, argument `tail` of `BatchLayout.batch`.
        metrics: training metrics.
        logged: names of the values that the loss logs.
        losses: number of losses, `Model.num_losses`.
        order_axis: 0 if every member has its own order of the rows; None if they share it.
    """

    step: Any
    constants: tuple[Constants, ...]
    layout: BatchLayout
    tail: bool | None
    metrics: tuple[Any, ...]
    logged: tuple[str, ...]
    losses: int
    order_axis: int | None


class EvalSpec(NamedTuple):
    """What the evaluation program computes, without the data: evaluation step and sizes of the batches; see `TrainSpec`."""

    step: Any
    layout: BatchLayout
    order_axis: int | None


def data_axes(order_axis: int | None) -> dict[str, Any]:
    """`in_axes` of `compile_spmd` for the data of an epoch."""
    return {"arrays": None, "weight": None, "order": order_axis, "numbers": order_axis}


def train_batches(
    spec: TrainSpec,
    loop: bool,
    stack: TrainState,
    numbers: Array,
    data: Mapping[str, Any],
    first: Any,
    count: Any,
    axis_name: Any,
) -> tuple[TrainState, Array]:
    """Train all members of a stack for `count` batches of an epoch.

    Args:
        spec: what is computed.
        loop: whether `count` may be above 1.
        stack: states of the members.
        numbers: values of the constants, (members, numbers).
        data: "arrays", "weight", "order" ([members,] batches, rows) and "numbers" ([members,] 3), as of
            `DeviceBatches.epoch_data`.
        first: value of `stack.step` at the first batch of the epoch.
        count: number of batches.
        axis_name: unused; every device has its own members.

    Returns:
        (new stack, reports of the last batch (members, 2): loss and learning rate).
    """

    zeros = zero_totals(spec.metrics, spec.logged, spec.losses)

    def train_one(state: TrainState, row: Array, order: Array, sizes: Array) -> tuple[TrainState, Array]:
        rows, begins = {**data, "order": order, "numbers": sizes}, state.step == first
        sums = jax.tree.map(lambda zero, x: jnp.where(begins, zero, x), zeros, state.metrics)  # those of the epoch

        def step(_: Any, carry: tuple[TrainState, Array]) -> tuple[TrainState, Array]:
            state = carry[0]
            batch = spec.layout.batch(rows, state.step - first, None, tail=spec.tail)
            with bound(spec.constants, row):
                state, out = spec.step(state, batch, axis_name=None)
            return state, report(out)

        start = state._replace(metrics=sums), jnp.zeros(2)
        return lax.fori_loop(0, count, step, start) if loop else step(0, start)

    axes = (STACK_AXES, 0, spec.order_axis, spec.order_axis)
    train_all = over_members(train_one, axes, (STACK_AXES, 0), len(numbers))
    return train_all(stack, numbers, data["order"], data["numbers"])


def evaluate_batches(
    spec: EvalSpec,
    loop: bool,
    stack: TrainState,
    totals: Any,
    data: Mapping[str, Any],
    first: Any,
    count: Any,
    axis_name: Any,
) -> Any:
    """Evaluate all members of a stack on batches `first`, ..., `first + count - 1`.

    Args:
        spec: what is computed.
        loop: whether `count` may be above 1.
        stack: states of the members.
        totals: running sums of the loss and the metrics, with a leading member axis.
        data: "arrays", "weight", "order" ([members,] batches, rows) and "numbers" ([members,] 3) of the evaluation rows, as of
            `DeviceBatches.epoch_data`.
        first: index of the first batch.
        count: number of batches.
        axis_name: unused; every device has its own members.

    Returns:
        `totals` with these batches added.
    """
    layout = spec.layout

    def evaluate_one(state: TrainState, totals: Any, order: Array, sizes: Array) -> Any:
        state, rows = averaged(state), {**data, "order": order, "numbers": sizes}

        def add(j: Any, totals: Any) -> Any:
            batch = layout.batch(rows, first + j, None, tail=None if layout.paddable else False)
            return spec.step(state.params, state.aux, totals, batch, first + j, axis_name=None)

        return lax.fori_loop(0, count, add, totals) if loop else add(0, totals)

    axes = (STACK_AXES, 0, spec.order_axis, spec.order_axis)
    members = len(jax.tree.leaves(totals)[0])
    return over_members(evaluate_one, axes, 0, members)(stack, totals, data["order"], data["numbers"])


def over_members(fn: Callable[..., Any], in_axes: Sequence[Any], out_axes: Any, members: int) -> Callable[..., Any]:
    """Map a function of one member over the member axis of a stack by `jax.vmap`; for one member, without batching.

    Args:
        fn: function of the state and other arrays of one member.
        in_axes, out_axes: as of `jax.vmap`, with `STACK_AXES` for a state.
        members: length of the member axis.
    """
    if members > 1:
        return jax.vmap(fn, in_axes, out_axes)

    def run(*arguments: Any) -> Any:
        results = fn(*[_each(lambda x: x[0], x, axes) for x, axes in zip(arguments, in_axes, strict=True)])
        if isinstance(out_axes, tuple) and out_axes is not STACK_AXES:
            return tuple(_each(lambda x: x[None], x, axes) for x, axes in zip(results, out_axes, strict=True))
        return _each(lambda x: x[None], results, out_axes)

    return run


def _each(fn: Callable[[Any], Any], x: Any, axes: Any) -> Any:
    """Map a function over the arrays of an argument that have a member axis."""
    if axes is STACK_AXES:
        return x._replace(**{name: jax.tree.map(fn, getattr(x, name)) for name in _STACKED})
    return x if axes is None else jax.tree.map(fn, x)


# ------------------------------------------------------------------------------------------------ stacks on the host
def stack_states(states: Sequence[TrainState]) -> TrainState:
    """Stack the states of members along a new leading axis, on the host; arrays that members share are copied once."""
    arrays = {id(x): x for x in jax.tree.leaves(list(states))}
    on_host = dict(zip(arrays, counters.read(list(arrays.values())), strict=True))  # sync: before training

    def stacked(*xs: Any) -> Any:
        if isinstance(xs[0], jax.Array) and jnp.issubdtype(xs[0].dtype, jax.dtypes.prng_key):
            return jnp.stack(xs)
        return np.stack([on_host[id(x)] for x in xs])

    parts = {name: jax.tree.map(stacked, *(getattr(state, name) for state in states)) for name in _STACKED}
    return states[0]._replace(step=on_host[id(states[0].step)], **parts)


def take_members(stack: TrainState, slots: Any) -> TrainState:
    """Select members of a stack on the host: an array of slots, or one slot, whose state then has no member axis."""
    copied = lambda x: x[slots] if isinstance(x, jax.Array) else np.array(x[slots])  # noqa: E731
    return stack._replace(**{name: jax.tree.map(copied, getattr(stack, name)) for name in _STACKED})


def place_stack(stack: TrainState, devices: Sequence[Any]) -> TrainState:
    """Copy a stack to the devices, split along its member axis, whose length is a multiple of their number."""
    parts = {name: place_members(getattr(stack, name), devices) for name in _STACKED}
    return stack._replace(step=place(stack.step, devices), **parts)


def place_members(tree: Any, devices: Sequence[Any]) -> Any:
    """Copy arrays with a leading member axis to the devices, split along this axis; the copies may be donated."""
    if len(devices) == 1:
        return place(tree, devices)
    count = len(devices)
    cut = jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), tree)
    return place_split(jax.tree.map(lambda x: x if isinstance(x, jax.Array) else x.copy(), cut), devices)


def read_stacks(stacks: Sequence[TrainState], devices: int) -> TrainState:
    """Copy stacks to the host, as one stack with one member axis."""
    on_host = counters.read(list(stacks))  # sync: when members end or move, at the end of an epoch
    parts = {name: join_members([getattr(stack, name) for stack in on_host], devices) for name in _STACKED}
    return on_host[0]._replace(**parts)


def join_members(trees: Sequence[Any], devices: int) -> Any:
    """Concatenate members of several stacks on the host; with `devices` > 1, axes 0 (devices) and 1 (members) are merged."""

    def join(*xs: Any) -> Any:
        merged = xs if devices == 1 else [x.reshape(-1, *x.shape[2:]) for x in xs]
        typed = isinstance(xs[0], jax.Array)  # a typed key, which NumPy does not have
        return merged[0] if len(merged) == 1 else jnp.concatenate(merged) if typed else np.concatenate(merged)

    return jax.tree.map(join, *trees)


def member_of(tree: Any, i: int) -> Any:
    """Element `i` of the member axis of all arrays."""
    return jax.tree.map(lambda x: x[i], tree)
