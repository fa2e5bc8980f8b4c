"""A batch as a step takes it: inputs by name, one weight for each row, and what stands in for rows that do not count."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from jfit.model import Model


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


def check_weights(rows: int, **weights: Array | None) -> None:
    for name, weight in weights.items():
        if weight is not None and weight.shape != (rows,):
            raise ValueError(f"{name} has shape {weight.shape}, the batch has {rows} rows; pass one number per row, ({rows},)")


def stand_ins(model: Model, inputs: dict[str, Array], counts: Array) -> dict[str, Array]:
    """Rows that count nowhere become copies of the first that does: 0 * nan would carry what they hold into the gradient."""

    def real(x: Array, axis: int) -> Array:
        if x.ndim <= axis or x.shape[axis] != counts.shape[0]:
            return x
        shape = [-1 if k == axis else 1 for k in range(x.ndim)]
        return jnp.where(counts.reshape(shape), x, lax.dynamic_index_in_dim(x, jnp.argmax(counts), axis, keepdims=True))

    return {k: real(jnp.asarray(v), model.batch_axes.get(k, 0)) for k, v in inputs.items()}
