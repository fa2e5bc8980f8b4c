"""Gradients of virtual slices of a batch, summed in a fixed order: the pure functions behind `jfit.step.reduce.ordered`.

A batch is cut into a fixed number of slices (`VirtualSlice`), whatever the number of devices.  `slice_sums` computes one slice,
`loop_sums` several, `tree_sum` adds all slices, and `reduced` makes the input of the update.  The update belongs to a program
of its own: XLA would fuse it with the sums, and round otherwise (the norm of `clip_norm`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.counters import is_key, key_data
from jfit.lowering.model import Aux, Params
from jfit.ops.axis import VirtualSlice
from jfit.optim.rows import SparseRows
from jfit.step.slices import Sums
from jfit.step.state import TrainState
from jfit.step.train import ShardPass, TrainStep


class SliceSums(NamedTuple):
    """Sums over one slice of a batch, or over several.

    Attributes:
        added: pytree of sums: gradients by name (dense), sums of row weights, losses and metrics, floating-point auxiliary
            states of slices with rows, and the number of these slices.
        tables: name -> `SparseRows` gradient of an embedding table; those of several slices are concatenated.
        first: integer states, boolean states and keys of the first slice with rows, by name.
        has_rows: whether a row has a weight above 0, bool scalar.
        has_loss: whether the model has a loss value, bool scalar.
    """

    added: Any
    tables: Mapping[str, SparseRows]
    first: Aux
    has_rows: Array
    has_loss: Array


def slice_sums(
    step: TrainStep, state: TrainState, batch: Any, index: Array, count: int
) -> tuple[SliceSums, tuple[Array, ...] | None]:
    """Run the forward and backward pass over one slice of a batch.

    Args:
        step: the training step.
        state: `TrainState`; not changed.
        batch: `Batch` or dict, the rows of the slice.
        index: number of the slice in the batch, int32 scalar.
        count: number of slices of the batch.

    Returns:
        (`SliceSums`, outputs of the model; None unless the step returns outputs).
    """
    (gradients, aux, sums), weight = step.shard_pass(state, batch, VirtualSlice(index, count))
    has_rows = jnp.bool_(True) if weight is None else jnp.any(weight > 0)
    means = {k: jnp.where(has_rows, v, jnp.zeros_like(v)) for k, v in aux.items() if jnp.issubdtype(v.dtype, jnp.inexact)}
    tables = {k: g for k, g in gradients.items() if isinstance(g, SparseRows)}
    dense = {k: g for k, g in gradients.items() if k not in tables}
    added = dense, sums.rows, sums.shared, means, has_rows.astype(jnp.float32)
    first = {k: key_data(v) for k, v in aux.items() if k not in means}
    return SliceSums(added, tables, first, has_rows, jnp.bool_(sums.has_loss)), sums.outputs


def _add(a: SliceSums, b: SliceSums) -> SliceSums:
    """Add the sums of neighbouring slices, `a` before `b`."""
    tables = {
        k: SparseRows(jnp.concatenate([rows.indices, b.tables[k].indices]), jnp.concatenate([rows.values, b.tables[k].values]))
        for k, rows in a.tables.items()
    }
    first = jax.tree.map(lambda x, y: jnp.where(a.has_rows, x, y), a.first, b.first)
    added = jax.tree.map(jnp.add, a.added, b.added)
    return SliceSums(added, tables, first, a.has_rows | b.has_rows, a.has_loss | b.has_loss)


def tree_sum(parts: Sequence[SliceSums]) -> SliceSums:
    """Add the sums of all slices as a binary tree, ((0 + 1) + (2 + 3)) + ...; their number is a power of 2.

    Args:
        parts: sums of the slices, in order.
    """
    while len(parts) > 1:
        parts = [_add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def loop_sums(
    of_slice: Callable[[TrainState, Any, Array], tuple[SliceSums, Any]], state: TrainState, batch: Any, span: Array
) -> tuple[SliceSums, Any]:
    """Compute consecutive slices of a batch in a loop, each with the bits of a program of its own, and add them.

    They are added in the order of `tree_sum`, by a loop of two for each level of the tree: only one sum per level is in memory,
    and XLA compiles one addition per level.

    Args:
        of_slice: `of_slice(state, batch of the slice, number of the slice) -> (SliceSums, values)`.
        state: `TrainState`; not changed.
        batch: `Batch` or dict, the rows of the slices, (slices, rows, ...); their number is a power of 2.
        span: number of the first slice and number of slices, int32 (2,); XLA unrolls no loop whose length it does not know.

    Returns:
        (`SliceSums` of all these slices, values with a leading axis of slices).
    """

    def rows(k: Any) -> Any:
        return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, k, keepdims=False), batch)

    def empty(*shape: int) -> Any:
        return jax.tree.map(lambda x: lax.empty((*shape, *x.shape), x.dtype), shapes)

    def one(k: Any, inputs: Any, stacks: Any) -> Any:
        # XLA compiles a branch as a program of its own: it fuses nothing with the code around it, which would round otherwise,
        # and moves nothing out of the loop.  It does both across `lax.optimization_barrier`, on CPU.  The rows are carried
        # because it would move the reshape of a slice into the branch.
        sums, values = lax.cond(span[1] > 0, of_slice, lambda *_: empty(), state, *inputs)
        stacks = jax.tree.map(lambda xs, x: xs.at[k].set(x), stacks, (sums.tables, values))
        return (k + 1, (rows(k + 1), span[0] + k + 1), stacks), sums._replace(tables={})

    def several(size: int, carry: Any) -> Any:
        if size == 1:
            return one(*carry)

        def body(half: Any, carry_and_total: Any) -> Any:
            carry, total = carry_and_total
            carry, sums = several(size // 2, carry)
            return carry, jax.tree.map(lambda x, y: jnp.where(half > 0, x, y), _add(total, sums), sums)

        return lax.fori_loop(0, jnp.minimum(span[1], 2), body, (carry, empty()[0]._replace(tables={})))

    first, size = (rows(0), span[0]), len(jax.tree.leaves(batch)[0])
    shapes = jax.eval_shape(of_slice, state, *first)
    of_rows, values = empty(size)
    (_, _, (tables, values)), sums = several(size, (jnp.int32(0), first, (of_rows.tables, values)))
    # concatenated, as `tree_sum` does
    tables = {k: SparseRows(rows.indices.reshape(-1), lax.collapse(rows.values, 0, 2)) for k, rows in tables.items()}
    return sums._replace(tables=tables), values


def reduced(sums: SliceSums, state: TrainState) -> ShardPass:
    """Convert the sums of all slices to the input of the update.

    Floating-point auxiliary states are means over the slices that have a row of weight above 0.

    Args:
        sums: sums of all slices.
        state: state before the step, whose auxiliary states are kept if no slice has rows.
    """
    dense, rows, shared, totals, slices = sums.added
    aux = {k: jnp.where(slices > 0, v / jnp.maximum(slices, 1).astype(v.dtype), state.aux[k]) for k, v in totals.items()}
    for name, value in sums.first.items():
        old = state.aux[name]
        if is_key(old):
            value = jax.random.wrap_key_data(value, impl=jax.random.key_impl(old))
        aux[name] = jnp.where(sums.has_rows, value, old)
    gradients: Params = {**dense, **sums.tables}  # type: ignore[dict-item]
    return ShardPass(gradients, {k: aux[k] for k in state.aux if k in aux}, Sums(rows, shared, sums.has_loss, None))
