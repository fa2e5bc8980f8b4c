"""Training passes of a module whose key-value store has reduce="ordered": the same bits on any number of contexts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.data.batch import Batch, rows
from jfit.parallel.devices import split_batch
from jfit.parallel.ordered import OrderedSteps, process_slices
from jfit.step import StepOut
from jfit.step.state import TrainState


def not_ordered(reason: str) -> NotImplementedError:
    """Return the error for a use of the module that cannot have the same bits on any number of contexts."""
    step = "the kvstore has reduce='ordered', which runs forward, backward and update as one step"
    return NotImplementedError(f"{step}, but {reason}; call forward_backward(batch) and then update(), as fit does")


def ordered_groups() -> NotImplementedError:
    """Return the error for a network whose `ctx_group`s are on different devices."""
    return NotImplementedError("a kvstore with reduce='ordered' splits batches over devices, group2ctxs layers; leave one out")


def check_not_ordered(last: Any) -> None:
    """Raise an error if the recorded pass `last` (a `Pass` or None), whose parts are needed, is an ordered one."""
    if last is not None and last.ordered:
        raise not_ordered("outputs or gradients are needed without update(), or cannot be part of one step")


def slice_rows(batch: Batch, count: int, axes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the number of rows of each virtual slice of a batch, without padding rows; the last slices have fewer.

    Args:
        batch: the whole batch.
        count: number of slices.
        axes: batch axis by input name, for those where it is not axis 0.
    """
    size = rows(batch, axes)
    part = -(-size // count)
    return tuple(min(max(size - j * part, 0), part) for j in range(count))


def padded_batch(batch: Batch, count: int, axes: Mapping[str, int], plan: Any) -> Batch:
    """Pad a batch with rows of weight 0 to a multiple of `count` rows.

    Args:
        batch: the whole batch.
        count: number of slices.
        axes: batch axis by input name, for those where it is not axis 0.
        plan: `Plan` of the graph for a slice.

    Raises:
        ValueError: rows must be added, but rows of the batch affect each other.
    """
    size = rows(batch, axes)
    if size % count and not plan.paddable:
        problem = f"{size} rows, not a multiple of the {count} slices of reduce='ordered'"
        raise ValueError(f"the batch has {problem}, and cannot be padded: {plan.reason}")
    return split_batch(batch, 1, axes, count)


def ordered_program(
    make: Callable[..., Any], devices: Sequence[Any], axes: Mapping[str, int]
) -> Callable[..., tuple[TrainState, StepOut]]:
    """Return the function (state, batch, rescale) -> (state, StepOut), one training step with the same bits on all devices.

    Args:
        make: `make(rescale=...) -> step`, a `train_step` with reduce="ordered" that returns outputs.
        devices: the devices of the state; in a job those of all processes, each of which passes its own rows.
        axes: batch axis by input name, for those where it is not axis 0.
    """
    step = make()
    steps, count = OrderedSteps(step, devices, rescaled=make, gathered=False), step.reduce.slices
    own = process_slices(devices, count, equal=True) or slice(0, count)

    def run(state: TrainState, batch: Batch, rescale: Any) -> tuple[TrainState, StepOut]:
        batch = split_batch(batch, own.stop - own.start, axes, own=slice(None))
        state, out, outputs = steps(state, batch, rescale)
        return state, out._replace(outputs=outputs)

    return run
