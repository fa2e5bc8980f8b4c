"""Programs that train and evaluate members of a sweep at once: `jax.vmap` over their states.

The states of several members are one `TrainState`, a stack, whose arrays have a leading member axis.  With several devices, a
device axis is before it, and each device has its part of the members.  With one member per device, there is no member axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.data import Batch
from jfit.feed.batches import BatchLayout
from jfit.loop.dispatch import report
from jfit.lowering.model import Model
from jfit.parallel.devices import place, place_split
from jfit.programs import Constants, bound
from jfit.step.observe import evaluated_aux
from jfit.step.state import TrainState, averaged


class Stacking(NamedTuple):
    """How members are stacked on devices.

    Attributes:
        devices: list of devices.
        size: number of members on each of them.
    """

    devices: Sequence[Any]
    size: int

    @property
    def axes(self) -> tuple[int, ...]:
        """Lengths of the leading axes of stacked arrays."""
        return (len(self.devices),) * (len(self.devices) > 1) + (self.size,) * (self.size > 1)

    def place(self, members: Sequence[Any]) -> Any:
        """Stack pytrees of arrays on the host, one for each member, and copy the stack to the devices; it may be donated."""

        def stacked(*xs: Any) -> Any:
            whole = jnp.stack(xs) if isinstance(xs[0], jax.Array) else np.stack(xs)  # NumPy has no typed keys
            return whole.reshape((*self.axes, *whole.shape[1:]))

        tree = jax.tree.map(stacked, *members)
        return place_split(tree, self.devices) if len(self.devices) > 1 else place(tree, self.devices)

    def read(self, stack: Any) -> list[Any]:
        """Copy a stack to the host, as one pytree for each member."""
        count, skipped = len(self.devices) * self.size, len(self.axes)
        flat = jax.tree.map(
            lambda x: x.reshape((count, *x.shape[skipped:])), counters.read(stack)
        )  # sync: at the end of an epoch
        return [jax.tree.map(lambda x, i=i: x[i], flat) for i in range(count)]


class Spec(NamedTuple):
    """What a program computes for each member of a stack, without the data.

    Attributes:
        step: `step(state, numbers, batch, number of the batch) -> (state, report)` of one member, such as `training_step`.
        layout: sizes of the batches.
        tail: argument of `BatchLayout.batch`.
        loops: whether a call may have more than one batch.
        batched: whether the stack has a member axis.
        order_axis: 0 if every member has its own order of the rows; None if they share it.
    """

    step: Callable[..., tuple[TrainState, Array]]
    layout: BatchLayout
    tail: bool | None
    loops: bool
    batched: bool
    order_axis: int | None

    @property
    def data_axes(self) -> dict[str, Any]:
        """Axes of the data of an epoch, for vmap and `compile_spmd`."""
        return {"arrays": None, "weight": None, "order": self.order_axis, "numbers": self.order_axis}


def run_batches(
    spec: Spec, stack: TrainState, numbers: Array, data: Any, first: Any, count: Any, axis_name: Any
) -> tuple[TrainState, Array]:
    """Run a step on `count` batches for every member of a stack.

    Args:
        spec: what is computed.
        stack: states of the members.
        numbers: values of the constants, ([members,] numbers).
        data: "arrays", "weight", "order" ([members,] batches, rows) and "numbers" ([members,] 3), as of
            `DeviceBatches.epoch_data`.
        first: number of the first batch.
        count: number of batches.
        axis_name: unused; every device has its own members.

    Returns:
        (new stack, reports of the last batch ([members,] 2): loss and learning rate).
    """

    def of_member(state: TrainState, numbers: Array, data: Any) -> tuple[TrainState, Array]:
        def step(j: Any, carry: tuple[TrainState, Array]) -> tuple[TrainState, Array]:
            batch = spec.layout.batch(data, first + j, None, tail=spec.tail)
            return spec.step(carry[0], numbers, batch, first + j)

        start = state, jnp.zeros(2)
        return lax.fori_loop(0, count, step, start) if spec.loops else step(0, start)

    of_members = jax.vmap(of_member, (0, 0, spec.data_axes)) if spec.batched else of_member
    return of_members(stack, numbers, data)


def training_step(
    step: Any, constants: Sequence[Constants], state: TrainState, numbers: Array, batch: Batch, _: Any
) -> tuple[TrainState, Array]:
    """Run a training step with the `numbers` of a member in place of the `constants` that it reads."""
    with bound(constants, numbers):
        state, out = step(state, batch, axis_name=None)
    return state, report(out)


def evaluation_step(
    model: Model, step: Any, state: TrainState, _: Array, batch: Batch, number: Any
) -> tuple[TrainState, Array]:
    """Add a batch of the evaluation data to the running sums in the state of a member."""
    used = averaged(state)
    totals = step(used.params, evaluated_aux(model, used), state.metrics, batch, number, axis_name=None)
    return state._replace(metrics=totals), jnp.zeros(2)


def keep_better(better: Array, kept: TrainState, stack: TrainState, axis_name: Any) -> TrainState:
    """Replace the kept states of those members of which `better` is True by their current states."""

    def pick(old: Array, new: Array) -> Array:
        return jnp.where(better.reshape((*better.shape, *(1,) * (new.ndim - better.ndim))), new, old)

    return jax.tree.map(pick, kept, stack)
