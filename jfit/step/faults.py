"""Search for invalid values in batches that are on the devices, inside the program of a step.

The host cannot look at such a batch without waiting for the devices.  So the program of the step carries an array that has the
first invalid value, and the host reads it together with the running sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.data.batch import parts_of
from jfit.data.valid import Valid
from jfit.step.train import of_first_device


class Fault(NamedTuple):
    """The first invalid value of a run, on the host.

    Attributes:
        number: number of the step or batch.
        valid: index in the sequence of `Valid`.
        row: index of the row in the batch.
        column: index within the row, all its axes merged into one.
        value: the invalid value.
    """

    number: int
    valid: int
    row: int
    column: int
    value: float | int


NO_FAULT = np.array([-1, 0, 0, 0, 0, 0], np.int32)


def first_fault(valid: Sequence[Valid], batch: Any, number: Any, fault: Any, axis_name: str | None = None) -> Array:
    """Look for invalid values in a batch, in a traced function.

    Args:
        valid: the arrays to look at, and their valid values.  Rows of weight 0 are not looked at.
        batch: `Batch`, or dict of arrays by input name; the rows of this device.
        number: number of the step or batch.
        fault: the result for earlier batches, int32 (6,); `NO_FAULT` before the first.
        axis_name: name of the device axis, or None.

    Returns:
        int32 (6,), which `decoded` reads: `fault` if that has one already, else the first fault of this batch, or `NO_FAULT`.

    Example:
        >>> found = first_fault([Valid("y", 0, 2, whole=True)], {"y": jnp.array([0.0, 1.5, 7.0])}, 4, NO_FAULT)
        >>> decoded(found)
        Fault(number=4, valid=0, row=1, column=0, value=1.5)
    """
    # The barrier keeps XLA from fusing the search with the step, which must round as it does without it.
    inputs, weight, metric_weight = parts_of(lax.optimization_barrier(batch))
    weights = {"weight": weight, "metric_weight": metric_weight}
    used = [w > 0 for w in weights.values() if w is not None]
    is_used = used[0] | used[-1] if used else None
    fault, none = jnp.asarray(fault), jnp.asarray(NO_FAULT)
    found = none
    for index, one in reversed(list(enumerate(valid))):
        array = weights[one.name] if one.kind == "weight" else inputs.get(one.name)
        if array is not None:
            at = _fault_of(one, array, None if one.kind == "weight" else is_used, axis_name)
            found = jnp.where(at[0] >= 0, jnp.stack([jnp.asarray(number, jnp.int32), jnp.int32(index), *at]), found)
    if axis_name is not None:
        found = of_first_device(found, none, found[0] >= 0, axis_name)
    return jnp.where(fault[0] >= 0, fault, found)


def _fault_of(valid: Valid, array: Array, is_used: Array | None, axis_name: str | None) -> list[Array]:
    """(row, column, value, whether the value is an integer), int32 scalars; the row is -1 if all values are valid."""
    integers = jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == jnp.bool_
    array = jnp.moveaxis(array, valid.axis or 0, 0).astype(jnp.int32 if integers else jnp.float32)
    array = array.reshape(array.shape[0], -1)  # (rows, columns)
    good = (array >= valid.low) & (array <= valid.highest(bool(integers)))  # nan compares false
    if valid.whole and not integers:
        good &= jnp.trunc(array) == array
    for value in valid.ignored:
        good |= array == value
    if is_used is not None and valid.axis is not None:
        good |= ~is_used[:, None]
    at = jnp.argmin(good.reshape(-1)).astype(jnp.int32)
    row, column = at // array.shape[1], at % array.shape[1]
    value = array.reshape(-1)[at]
    bits = value if integers else lax.bitcast_convert_type(value, jnp.int32)
    offset = 0 if axis_name is None else lax.axis_index(axis_name) * array.shape[0]
    return [jnp.where(good.all(), -1, row + offset).astype(jnp.int32), column, bits, jnp.int32(integers)]


def decoded(fault: Any) -> Fault | None:
    """Convert an array of `first_fault` to a `Fault`; None if there is none.

    Example:
        >>> decoded(NO_FAULT) is None
        True
    """
    number, valid, row, column, bits, integers = np.asarray(fault, np.int32)
    if number < 0:
        return None
    value = int(bits) if integers else float(bits.view(np.float32))
    return Fault(int(number), int(valid), int(row), int(column), value)
