"""Stage 3: one update, one evaluation, one prediction, as pure functions.

θ ← θ − η · u( Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ ).  A step is jit-able, vmap-able and knows the name of the device axis: inside pmap it sums
gradients and metric sums over the devices (one all-reduce) and every device computes the same update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from jfit.metrics import Metric
from jfit.model import Aux, Model, Params, Plan, Policy, loss_sums, objective, specs_of
from jfit.ops.rows import RowsLost
from jfit.optim import as_schedule, injected_rate
from jfit.optim import get as get_optimizer
from jfit.state import TrainState, split_params, typed_key
from jfit.totals import Totals, fold, head_arguments, metric_stats


class StepOut(NamedTuple):
    """What a step tells; never donated.

    Attributes:
        fence: a small array that is ready when the step is.
        loss: mean loss of the batch's rows, () float32; nan where the model has no loss value.
        lr: the learning rate that was used, () float32, or None.
        first_bad_step: number of the first step since the metrics were reset whose loss was not finite; -1: none.
        outputs: the model's outputs, per row; None unless asked for.
    """

    fence: Array
    loss: Array
    lr: Array | None
    first_bad_step: Array
    outputs: tuple[Array, ...] | None = None


class Step(Protocol):
    """`step(state, batch) -> (state, out)`."""

    def __call__(self, state: TrainState, batch: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]: ...


def train_step(
    model: Model,
    optimizer: Any = "sgd",
    *,
    metrics: Sequence[Metric] = (),
    schedule: Any = None,
    frozen: Sequence[str] = (),
    micro_batches: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    policy: Policy | str | None = None,
    rescale: float | str = "mean",
    sync_batch_stats: bool = False,
    outputs: bool = False,
) -> Step:
    """θ ← θ − η · u( r · Σᵢ wᵢ ∇ℓᵢ ): one update as a pure function.

    Args:
        model: the model.
        optimizer: name, `jfit.optim` optimizer or any optax transformation.
        metrics: metrics that are folded into `state.metrics`.
        schedule: `schedule(count, base) -> rate` (see `jfit.optim.schedules`) or an optax schedule; None: the base rate.
        frozen: names or glob patterns of parameters that do not learn.
        micro_batches: the batch is cut into so many parts whose gradients are added: the same update, less memory.
        clip_norm: the rescaled gradient is shortened to this global 2-norm.
        clip_value: each value of the rescaled gradient is clipped to ± this.
        policy: mixed precision, `Policy("bfloat16")` or "bfloat16".
        rescale: r: "mean" = 1 / Σᵢ wᵢ over all devices, or a number.
        sync_batch_stats: batch statistics over all devices instead of each device's slice.
        outputs: return the model's outputs in `out.outputs`.

    Returns:
        `step(state, batch, axis_name=None) -> (state, out)`; batch: `jfit.Batch`, or a dict of inputs.
        A batch whose weights sum to 0 changes nothing.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> step = jax.jit(jfit.train_step(model, "sgd"), donate_argnums=0)
        >>> state, out = step(jfit.init_state(model, "sgd", batch), batch)
        >>> int(state.step), out.loss.shape
        (1, ())
    """
    resolved = get_optimizer(optimizer)
    transform = optax.with_extra_args_support(resolved.transform)
    rate_of = None if schedule is None else as_schedule(schedule)
    policy = Policy(policy) if isinstance(policy, str) else policy
    metrics = tuple(metrics)

    def step(state: TrainState, batch: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
        inputs, weight, metric_weight = _parts(batch)
        learns, still = split_params(model, state.params, frozen)
        gradients, aux, sums = _gradients(
            model, learns, still, state, inputs, weight, metric_weight, metrics, micro_batches, policy, axis_name, sync_batch_stats, outputs
        )
        total = sums.rows
        if axis_name is not None:
            aux = _mean_aux(aux, state.aux, weight, axis_name)
            gradients, total, shared = lax.psum((gradients, total, sums.shared), axis_name)
            sums = sums._replace(shared=shared)
        loss_sum, loss_count = sums.shared.loss
        loss = jnp.where(loss_count > 0, loss_sum / jnp.maximum(loss_count, 1e-30), 0.0) if sums.has_loss else jnp.float32(jnp.nan)
        factor = 1 / jnp.maximum(total, 1e-30) if rescale == "mean" else rescale
        gradients = _clip(jax.tree.map(lambda g: g * jnp.asarray(factor, g.dtype), gradients), clip_norm, clip_value)
        rate = state.lr
        if rate_of is not None:
            rate = jnp.asarray(rate_of(state.step + 1, state.lr), jnp.float32)
        extra: dict[str, Any] = {"value": loss}
        if resolved.takes_rate and rate is not None:
            extra["learning_rate"] = rate
        updates, opt_state = transform.update(gradients, state.opt_state, learns, **extra)
        learns = optax.apply_updates(learns, updates)
        params = {k: learns[k] if k in learns else still[k] for k in state.params}
        if weight is not None:  # a step without rows changes nothing
            params, opt_state, aux = jax.tree.map(
                lambda new, old: jnp.where(total > 0, new, old), (params, opt_state, aux), (state.params, state.opt_state, state.aux)
            )
        totals = fold(metrics, state.metrics, sums.shared, state.step, loss)
        reported = rate if resolved.takes_rate else injected_rate(state.opt_state)
        new = state._replace(step=state.step + 1, params=params, aux=aux, opt_state=opt_state, metrics=totals)
        return new, StepOut(loss + 0, loss, reported, totals.first_bad_step, sums.outputs)

    return step


class _Sums(NamedTuple):
    """Sums of one batch on one device; `shared` is what the all-reduce adds."""

    rows: Array  # Σ weight
    shared: Any  # Shared
    has_loss: bool
    outputs: tuple[Array, ...] | None


class Shared(NamedTuple):
    """Sums that are added over micro-batches and devices: (Σ loss, Σ count) and each metric's stats."""

    loss: tuple[Array, Array]
    metrics: tuple[Any, ...]


def _parts(batch: Any) -> tuple[dict[str, Array], Array | None, Array | None]:
    """(inputs, weight, metric weight) of a Batch or of a plain dict of inputs."""
    if isinstance(batch, dict):
        return batch, None, None
    metric_weight = batch.metric_weight if batch.metric_weight is not None else batch.weight
    return dict(batch.inputs), batch.weight, metric_weight


def _rows_of(model: Model, inputs: dict[str, Array]) -> int:
    name = next((n for n in (*model.inputs, *model.labels) if n in inputs), None)
    if name is None:
        raise ValueError(f"the batch has the inputs {sorted(inputs)}, the model needs {[*model.inputs, *model.labels]}")
    return inputs[name].shape[model.batch_axes.get(name, 0)]


def _gradients(model, learns, still, state, inputs, weight, metric_weight, metrics, micro_batches, policy, axis_name, sync, keep):
    """Summed gradients, new aux and sums of one device's slice, over its micro-batches."""
    rows = _rows_of(model, inputs)
    device = 0 if axis_name is None else lax.axis_index(axis_name)
    row_ids = jnp.arange(rows) + device * rows
    key = jax.random.fold_in(typed_key(state.key), state.step)

    def part(aux: Aux, number: Any, inputs: dict[str, Array], weight, metric_weight, row_ids):
        plan = plan_of(model, inputs)
        if weight is not None and not plan.paddable:
            raise RowsLost(plan.reason)

        def loss_of(learns: Params):
            values, new_aux = model.apply(
                {**still, **learns},
                aux,
                inputs,
                key=jax.random.fold_in(key, number),
                train=True,
                weight=weight,
                axis_name=axis_name,
                row_ids=row_ids,
                policy=policy,
                sync_batch_stats=sync,
            )
            return objective(model, values, inputs, weight), (values, new_aux)

        gradients, (values, new_aux) = jax.grad(loss_of, has_aux=True)(learns)
        losses = loss_sums(model, values, inputs, weight, plan.rows)
        stats = metric_stats(metrics, *head_arguments(model, values, inputs, metric_weight, plan.rows))
        count = jnp.sum(weight) if weight is not None else jnp.asarray(float(rows // micro_batches))
        shared = Shared(losses or (jnp.zeros(()), jnp.zeros(())), stats)
        return gradients, new_aux, _Sums(count, shared, losses is not None, values if keep else None)

    if micro_batches == 1:
        return part(state.aux, 0, inputs, weight, metric_weight, row_ids)
    if rows % micro_batches:
        raise ValueError(
            f"micro_batches={micro_batches} does not divide the {rows} rows of a device's batch; "
            "choose a divisor, or let jfit.fit pad the batch"
        )
    if keep:
        raise ValueError("outputs=True needs micro_batches=1: the outputs of all micro-batches would have to be kept")
    return _accumulate(part, model, state.aux, inputs, weight, metric_weight, row_ids, micro_batches)


def _accumulate(part, model, aux, inputs, weight, metric_weight, row_ids, count):
    """Σ over micro-batches, in order; BatchNorm's moving statistics move once per micro-batch."""

    def cut(x: Array, axis: int = 0) -> Array:
        shape = (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    slices = (
        {k: cut(v, model.batch_axes.get(k, 0)) for k, v in inputs.items()},
        None if weight is None else cut(weight),
        None if metric_weight is None else cut(metric_weight),
        cut(row_ids),
    )
    first = jax.tree.map(lambda x: x[0], slices)
    gradients, aux, sums = part(aux, 0, *first)
    add = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731

    def body(carry, item):
        gradients, aux, rows, shared = carry
        number, rest = item
        more, aux, extra = part(aux, number, *rest)
        return (add(gradients, more), aux, rows + extra.rows, add(shared, extra.shared)), None

    carry = (gradients, aux, sums.rows, sums.shared)
    if unrolls(model):
        for i in range(1, count):
            carry, _ = body(carry, (i, jax.tree.map(lambda x, i=i: x[i], slices)))
    else:
        carry, _ = lax.scan(body, carry, (jnp.arange(1, count), jax.tree.map(lambda x: x[1:], slices)))
    gradients, aux, rows, shared = carry
    return gradients, aux, sums._replace(rows=rows, shared=shared)


def unrolls(model: Model) -> bool:
    """True where a loop inside the program must be unrolled: XLA on CPU compiles convolutions in loop bodies badly."""
    return "convolution" in model.traits and jax.default_backend() == "cpu"


def plan_of(model: Model, inputs: dict[str, Array]) -> Plan:
    """The plan for inputs of these shapes."""
    return model.plan(specs_of(inputs))


def _mean_aux(aux: Aux, old: Aux, weight: Array | None, axis_name: str) -> Aux:
    """The mean over the devices that had rows (each device moved its own statistics)."""
    if weight is None:
        return lax.pmean(aux, axis_name)
    has = (jnp.sum(weight) > 0).astype(jnp.float32)
    devices = lax.psum(has, axis_name)
    summed = lax.psum(jax.tree.map(lambda a: jnp.where(has > 0, a, 0), aux), axis_name)
    return jax.tree.map(lambda s, o: jnp.where(devices > 0, s / jnp.maximum(devices, 1).astype(s.dtype), o), summed, old)


def _clip(gradients: Params, norm: float | None, value: float | None) -> Params:
    if norm is not None:
        length = optax.global_norm(gradients)
        scale = jnp.minimum(1.0, norm / jnp.maximum(length, 1e-30))
        gradients = jax.tree.map(lambda g: g * scale.astype(g.dtype), gradients)
    if value is not None:
        gradients = jax.tree.map(lambda g: jnp.clip(g, -value, value), gradients)
    return gradients


def eval_step(model: Model, *, metrics: Sequence[Metric] = (), policy: Policy | str | None = None) -> Callable[..., Totals]:
    """(params, aux, totals, batch) -> totals with this batch folded in; nothing else changes.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> state, acc = jfit.init_state(model, "sgd", batch), jfit.metrics.get("acc")
        >>> totals = jfit.eval_step(model, metrics=acc)(state.params, state.aux, jfit.totals.zero_totals(acc), batch)
        >>> sorted(jfit.totals.values(acc, totals))
        ['accuracy', 'loss']
    """
    metrics = tuple(metrics)
    policy = Policy(policy) if isinstance(policy, str) else policy

    def step(params: Params, aux: Aux, totals: Totals, batch: Any, *, axis_name: str | None = None) -> Totals:
        inputs, _, weight = _parts(batch)
        plan = plan_of(model, inputs)
        values, _ = model.apply(params, aux, inputs, train=False, weight=weight, axis_name=axis_name, policy=policy)
        losses = loss_sums(model, values, inputs, weight, plan.rows)
        stats = metric_stats(metrics, *head_arguments(model, values, inputs, weight, plan.rows))
        shared = Shared(losses or (jnp.zeros(()), jnp.zeros(())), stats)
        if axis_name is not None:
            shared = lax.psum(shared, axis_name)
        return fold(metrics, totals, shared, jnp.zeros((), jnp.int32), jnp.zeros(()))

    return step


def predict_step(model: Model, *, policy: Policy | str | None = None) -> Callable[..., tuple[Array, ...]]:
    """(params, aux, batch) -> outputs, per row; labels are not needed.

    Example:
        >>> import jfit, numpy as np
        >>> model = jfit.lower(jfit.sym.softmax(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3)))
        >>> batch = {"data": np.ones((2, 4), "float32")}
        >>> state = jfit.init_state(model, "sgd", batch)
        >>> jfit.predict_step(model)(state.params, state.aux, batch)[0].shape
        (2, 3)
    """
    policy = Policy(policy) if isinstance(policy, str) else policy

    def step(params: Params, aux: Aux, batch: Any, *, axis_name: str | None = None) -> tuple[Array, ...]:
        inputs, _, _ = _parts(batch)
        data = {k: v for k, v in inputs.items() if k in model.inputs}
        return model.apply(params, aux, data, train=False, axis_name=axis_name, policy=policy)[0]

    return step


__all__ = ["Shared", "Step", "StepOut", "eval_step", "plan_of", "predict_step", "train_step", "unrolls"]
