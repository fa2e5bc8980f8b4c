"""Gradients without an update: forward and backward as separate steps, and the mean gradient of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.data.batch import parts_of
from jfit.lowering.model import Aux, Model, Params, Policy, joint_losses, loss_sums, objective, plan_of, weight_sum
from jfit.ops.axis import Axis
from jfit.optim.core import wide
from jfit.programs import made
from jfit.step.slices import BatchShard, fill_padding, has_padding, mask_padding, num_rows, part_key, shard_of, table_rows
from jfit.step.state import split_params
from jfit.step.train import mean_aux

Outputs = tuple[Array, ...]
Gradients = dict[str, Array]


@made
def forward_step(model: Model, *, train: bool = True, policy: Policy | str | None = None) -> Callable[..., Outputs]:
    """Make the forward pass of a model as a pure function.  Auxiliary states are not updated.

    Args:
        model: the `Model` to run.
        train: run in training mode (dropout, batch statistics); with False labels may be left out of the batch.
        policy: mixed precision, `Policy("bfloat16")` or "bfloat16"; None: no casts.

    Returns:
        `fn(params, aux, batch, key, step, number, axis_name=None) -> outputs`, a tuple of arrays.  Random numbers are drawn
        with the PRNG key `part_key(key, step, number)`: `key` is PRNG key data (uint32), such as `TrainState.key`,
        `step` the number of the training step and `number` that of the forward pass within the step.  `axis_name` is the name
        of the device axis inside pmap or shard_map, else None, or a `jfit.ops.axis.VirtualSlice`.  `gradient_step` draws the
        same random numbers for equal values.

    Example:
        >>> import jax, jax.numpy as jnp, jfit
        >>> model = jfit.lower(jfit.sym.Dropout(jfit.sym.Variable("data"), p=0.5))
        >>> fn = jfit.step.forward_step(model)
        >>> sorted(set(fn({}, {}, {"data": jnp.ones((1, 64))}, jax.random.key_data(jax.random.key(0)), 0, 0)[0][0].tolist()))
        [0.0, 2.0]
    """
    policy, unbound = Policy(policy) if isinstance(policy, str) else policy, model

    def step(params: Params, aux: Aux, batch: Any, key: Array, step: Any, number: Any, *, axis_name: Axis = None):
        model = unbound.bound(parts_of(batch)[0])
        shard, apply_args = _pass(model, batch, part_key(key, step, number), axis_name)
        return model.apply(params, aux, shard.inputs, policy=policy, **{**apply_args, "train": train})[0]

    return step


@made
def gradient_step(
    model: Model, wrt: Sequence[str], *, policy: Policy | str | None = None, by_rows: bool = False
) -> Callable[..., tuple[Outputs, dict[str, Array], Aux]]:
    """Make a pure function that returns outputs and gradients Σᵢ wᵢ ∇ℓᵢ for the rows of one device, without an update.

    wᵢ and ℓᵢ are weight and loss of row i.  The gradients are not summed over devices.

    Args:
        model: the `Model` to differentiate.
        wrt: names of the parameters and inputs to differentiate; integer arrays get zero gradients.
        policy: mixed precision, `Policy("bfloat16")` or "bfloat16"; None: no casts.
        by_rows: return the gradients of embedding tables as `jfit.optim.SparseRows`.

    Returns:
        `fn(params, aux, batch, key, step, number, head_gradients=None, axis_name=None) -> (outputs, gradients by name, new
        auxiliary states)`.  Without `head_gradients`, the training objective is differentiated (outputs that are neither heads
        nor losses have no gradient).  With `head_gradients`, one array per output, Σ output · head gradient is differentiated;
        heads such as SoftmaxOutput ignore them and use their own gradient, as in MXNet.  On several devices, the new auxiliary
        states are the mean over devices; with a `jfit.ops.axis.VirtualSlice` as `axis_name`, they are those of the slice.

    Example:
        >>> import jax, jax.numpy as jnp, jfit
        >>> model = jfit.lower(jfit.sym.square(jfit.sym.Variable("data")))
        >>> fn, key = jfit.step.gradient_step(model, ["data"]), jax.random.key_data(jax.random.key(0))
        >>> _, gradients, _ = fn({}, {}, {"data": jnp.array([3.0])}, key, 0, 0, [jnp.ones(1)])
        >>> gradients["data"].tolist()
        [6.0]
    """
    policy, names = Policy(policy) if isinstance(policy, str) else policy, set(wrt)
    unbound = model

    def step(
        params: Params,
        aux: Aux,
        batch: Any,
        key: Array,
        step: Any,
        number: Any,
        head_gradients: Sequence[Array] | None = None,
        *,
        axis_name: Axis = None,
    ) -> tuple[Outputs, dict[str, Array], Aux]:
        model = unbound.bound(parts_of(batch)[0])
        shard, apply_args = _pass(model, batch, part_key(key, step, number), axis_name)
        inputs, arrays = shard.inputs, {**params, **shard.inputs}
        with_tables = model if by_rows else model._replace(tables={})
        trainable, tables = table_rows(with_tables, _floats(params, names), shard, policy)
        apply_args |= tables.apply_args

        def loss_of(trainable: dict[str, Array], floats: dict[str, Array]):
            all_inputs, values_of_params = {**inputs, **floats}, {**params, **trainable}
            values, new_aux = model.apply(values_of_params, aux, all_inputs, policy=policy, **apply_args)
            if head_gradients is not None:
                return _with_head_gradients(values, head_gradients), (values, new_aux)
            joint = joint_losses(model, values, all_inputs, shard.weight, values_of_params, new_aux, axis_name, step)
            return objective(model, values, all_inputs, shard.weight, joint), (values, new_aux)

        both, (values, new_aux) = jax.grad(loss_of, argnums=(0, 1), has_aux=True)(trainable, _floats(inputs, names))
        gradients = {**both[0], **both[1]}
        masked, new_aux = mask_padding(shard.weight, gradients, new_aux, aux)
        gradients = masked if axis_name is None or has_padding(model, inputs) else gradients
        if isinstance(axis_name, str):
            new_aux = mean_aux(new_aux, aux, shard.weight, axis_name)
        gradients = tables.to_sparse(gradients)
        return values, {n: gradients[n] if n in gradients else jnp.zeros_like(arrays[n]) for n in wrt}, new_aux

    return step


def _floats(arrays: Mapping[str, Any], names: set[str]) -> dict[str, Array]:
    return {k: jnp.asarray(v) for k, v in arrays.items() if k in names and jnp.issubdtype(v.dtype, jnp.floating)}


def _pass(model: Model, batch: Any, key: Array, axis_name: Axis) -> tuple[BatchShard, dict[str, Any]]:
    """Return (`BatchShard`, keyword arguments of `model.apply`) for a training pass over the rows of one device.

    Args:
        model: the `Model` to run.
        batch: `Batch` or dict of arrays by input name.
        key: PRNG key of this pass.
        axis_name: name of the device axis; None for one device; or a `VirtualSlice`.
    """
    shard = BatchShard(*parts_of(batch), row_ids=None)
    if any(n in shard.inputs for n in (*model.inputs, *model.labels)):  # a graph without inputs and labels has no rows
        shard = shard_of(model, batch, axis_name)
        shard = shard._replace(inputs=fill_padding(model, shard))
    return shard, {"key": key, "train": True, "weight": shard.weight, "axis_name": axis_name, "row_ids": shard.row_ids}


def _with_head_gradients(values: Outputs, head_gradients: Sequence[Array]) -> Array:
    total = jnp.zeros((), jnp.float32)
    for value, gradient in zip(values, head_gradients, strict=True):
        if jnp.issubdtype(value.dtype, jnp.floating):
            total = total + jnp.sum((value * jnp.asarray(gradient, value.dtype)).astype(jnp.float32))
    return total


def mean_gradients(
    model: Model, wrt: Sequence[str] | None = None, *, policy: Policy | str | None = None
) -> Callable[..., Gradients]:
    """Make a pure function that returns the mean gradient of a batch, Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ.

    wᵢ and ℓᵢ are weight and loss of row i.  Auxiliary states are not updated.

    Args:
        model: the `Model` to differentiate.
        wrt: names of parameters; None: all trainable ones (floating dtype, not frozen by the model).
        policy: mixed precision, `Policy("bfloat16")` or "bfloat16"; None: no casts.

    Returns:
        `fn(params, aux, batch, key=None, axis_name=None) -> gradients by name`; batch: a `jfit.Batch` or a dict of inputs; key:
        PRNG key data, calls with the same key draw the same random numbers.  With `axis_name`, the mean is over the rows of all
        devices.  The gradients of a batch whose weights sum to 0 are zeros.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> loss = lambda output, label: (output - label) ** 2
        >>> model = jfit.Model.from_function(lambda p, x: x * p["w"], loss=loss, params={"w": jnp.ones(())})
        >>> batch = {"x": jnp.array([1.0, 2.0]), "label": jnp.zeros(2)}
        >>> float(jfit.gradients.mean_gradients(model)({"w": jnp.ones(())}, {}, batch)["w"])
        5.0
    """

    def fn(params: Params, aux: Aux, batch: Any, key: Array | None = None, *, axis_name: str | None = None) -> Gradients:
        key = jax.random.key_data(jax.random.key(0)) if key is None else key
        names = list(split_params(model, params)[0] if wrt is None else wrt)
        step = gradient_step(model, names, policy=policy)
        values, gradients, new_aux = step(params, aux, batch, key, 0, 0, axis_name=axis_name)
        inputs, weight, _ = parts_of(batch)
        bound, losses = model.bound(inputs), None
        if bound.symbol is None:
            joint = joint_losses(bound, values, inputs, weight, params, new_aux, axis_name)
            losses = loss_sums(bound, values, inputs, weight, plan_of(bound, inputs).rows, joint)
        rows = weight_sum(bound, losses, weight, num_rows(bound, inputs))
        if axis_name is not None:
            gradients, rows = lax.psum((gradients, rows), axis_name)
        return jax.tree.map(lambda g: (wide(g) / jnp.maximum(rows, 1e-30)).astype(g.dtype), gradients)

    return fn
