"""A batch as a step takes it: inputs by name, one weight for each row, and what stands in for rows that do not count."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jfit.lowering.model import Model


def parts_of(batch: Any) -> tuple[dict[str, Array], Array | None, Array | None]:
    """(inputs, weight, metric weight) of a Batch or of a plain dict of inputs; weights float32."""
    if isinstance(batch, dict):
        return batch, None, None
    weight, metric_weight = (None if w is None else jnp.asarray(w, jnp.float32) for w in (batch.weight, batch.metric_weight))
    return dict(batch.inputs), weight, weight if metric_weight is None else metric_weight


def rows_of(model: Model, inputs: dict[str, Array]) -> int:
    name = next((n for n in (*model.inputs, *model.labels) if n in inputs), None)
    if name is None:
        raise ValueError(f"the batch has the inputs {sorted(inputs)}, the model needs {[*model.inputs, *model.labels]}")
    return inputs[name].shape[model.batch_axes.get(name, 0)]


class Slots(NamedTuple):
    """The rows of one slice: inputs, both weights or none for training, and the global number of each row."""

    inputs: dict[str, Array]
    weight: Array | None
    metric_weight: Array | None
    row_ids: Any


def slots_of(model: Model, batch: Any, axis_name: str | None) -> Slots:
    """The slots of a device's slice of a batch.

    Raises:
        ValueError: weights that are not one number per row.
    """
    inputs, weight, metric_weight = parts_of(batch)
    rows = rows_of(model, inputs)
    for name, given in {"weight": weight, "metric_weight": metric_weight}.items():
        if given is not None and given.shape != (rows,):
            raise ValueError(f"{name} has shape {given.shape}, the batch has {rows} rows; pass one number per row, ({rows},)")
    device = 0 if axis_name is None else lax.axis_index(axis_name)
    return Slots(inputs, weight, metric_weight, jnp.arange(rows) + device * rows)


def stand_ins(model: Model, slots: Slots) -> dict[str, Array]:
    """Rows that count nowhere become copies of the first that does: 0 * nan would carry what they hold into the gradient."""
    if slots.weight is None or slots.metric_weight is None:
        return slots.inputs
    counts = (slots.weight > 0) | (slots.metric_weight > 0)

    def real(x: Array, axis: int) -> Array:
        if x.ndim <= axis or x.shape[axis] != counts.shape[0]:
            return x
        shape = [-1 if k == axis else 1 for k in range(x.ndim)]
        return jnp.where(counts.reshape(shape), x, lax.dynamic_index_in_dim(x, jnp.argmax(counts), axis, keepdims=True))

    return {k: real(jnp.asarray(v), model.batch_axes.get(k, 0)) for k, v in slots.inputs.items()}
