"""Tables of which a batch reads some rows only: a step takes those rows out and gives their gradient as `Rows`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jfit.model import Model, Params, Policy
from jfit.optim.rows import Rows, coalesce, read, without
from jfit.step.inputs import stand_ins


class Held(NamedTuple):
    """What stands for the tables in one step.

    Attributes:
        numbers: name -> sorted numbers of the rows that `params` holds of it; the last ones may name no row.
        trained: name -> which of them a row of the batch with a weight looks up.
        sizes: name -> rows of the whole table.
    """

    numbers: dict[str, Array]
    trained: dict[str, Array]
    sizes: dict[str, int]

    @property
    def given(self) -> dict[str, Any]:
        """What `model.apply` is told of it."""
        return {"held": self.numbers} if self.numbers else {}

    def by_rows(self, gradients: Params) -> dict[str, Any]:
        """Gradients of what `params` holds, those of tables as `Rows` of the whole."""

        def found(name: str, gradient: Array) -> Any:
            if name not in self.numbers:
                return gradient
            return without(Rows(self.numbers[name], gradient, unique=True), ~self.trained[name], self.sizes[name])

        return {name: found(name, gradient) for name, gradient in gradients.items()}


def hold(
    model: Model, params: Params, inputs: dict[str, Array], weight: Any, metric_weight: Any, policy: Policy | None
) -> tuple[Params, Held]:
    """(parameters, of each table the rows that a batch looks up; which rows these are)."""
    small, held = dict(params), Held({}, {}, {})
    tables = {name: model.tables[name] for name in params if name in model.tables}
    if not tables:
        return small, held
    trained, any_row = inputs, jnp.bool_(True)
    if weight is not None:
        # a row that only metrics look at has no gradient: what it looks up neither decays nor moves on
        trained, any_row = stand_ins(model, inputs, weight > 0), jnp.any(weight > 0)
        inputs = stand_ins(model, inputs, (weight > 0) | (metric_weight > 0))
    for name, numbers_of in tables.items():
        numbers, size = numbers_of(inputs, policy), len(params[name])
        rows = coalesce(Rows(numbers, jnp.zeros(numbers.shape)), size)
        place = jnp.searchsorted(rows.indices, numbers_of(trained, policy))
        held.numbers[name], held.sizes[name] = rows.indices, size
        held.trained[name] = jnp.zeros(rows.indices.shape, bool).at[place].set(any_row, mode="drop")
        small[name] = read(params[name], rows)
    return small, held
