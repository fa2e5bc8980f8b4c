"""Tables of which a batch reads some rows only: a step takes those rows out and gives their gradient as `SparseRows`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jfit.lowering.model import Model, Params, Policy
from jfit.optim.rows import SparseRows, coalesce, read, without
from jfit.step.inputs import Slots, stand_ins


class Held(NamedTuple):
    """What stands for the tables in one step.

    Attributes:
        numbers: name -> sorted numbers of the rows that stand for the table; the last ones may name no row.
        learns: name -> those of them that a row of the batch with a weight looks up.
    """

    numbers: dict[str, Array]
    learns: dict[str, SparseRows]

    @property
    def given(self) -> dict[str, Any]:
        """What `model.apply` is told of it."""
        return {"held": self.numbers} if self.numbers else {}

    def by_rows(self, gradients: Params) -> dict[str, Any]:
        """Gradients of what stands for the parameters, those of tables as `SparseRows` of the whole."""
        tables = {n: dataclasses.replace(rows, values=gradients[n]) for n, rows in self.learns.items()}
        return {**gradients, **tables}


def hold(model: Model, params: Params, slots: Slots, policy: Policy | None) -> tuple[Params, Held]:
    """(parameters, of each table the rows that a batch looks up; which rows these are)."""
    small, held = dict(params), Held({}, {})
    tables = {name: model.tables[name] for name in params if name in model.tables}
    if not tables:
        return small, held
    # a row that only metrics look at has no gradient: what it looks up neither decays nor moves on
    used, trained = (stand_ins(model, s) for s in (slots, slots._replace(metric_weight=slots.weight)))
    any_row = slots.weight is None or jnp.any(slots.weight > 0)
    for name, numbers_of in tables.items():
        numbers, size = numbers_of(used, policy), len(params[name])
        rows = coalesce(SparseRows(numbers, jnp.zeros(numbers.shape)), size)
        place = jnp.searchsorted(rows.indices, numbers_of(trained, policy))
        found = jnp.zeros(rows.indices.shape, bool).at[place].set(any_row, mode="drop")
        held.numbers[name], held.learns[name] = rows.indices, without(rows, ~found, size)
        small[name] = read(params[name], rows)
    return small, held
