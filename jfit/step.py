"""Stage 3: one update, one evaluation, one prediction, as pure functions.

θ ← θ − η · u( Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ ).  A step is jit-able, vmap-able and knows the name of the device axis: inside pmap it sums
gradients and metric sums over the devices (one all-reduce) and every device computes the same update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from jfit.metrics import Metric
from jfit.model import Aux, Model, Params, Plan, Policy, loss_sums, objective, specs_of
from jfit.ops.rows import RowsLost
from jfit.optim import as_schedule
from jfit.optim import get as get_optimizer
from jfit.optim.registry import Resolved, used_rate
from jfit.state import TrainState, split_params, typed_key
from jfit.totals import Totals, fold, head_arguments, metric_stats


class StepOut(NamedTuple):
    """What a step tells: its buffers are its own, so they stay alive when the next step donates the state.

    Attributes:
        fence: a small array that is ready when the step is.
        loss: mean loss of the batch's rows, () float32; nan where the model has no loss value.
        lr: the learning rate that was used, () float32, or None.
        first_bad_step: number of the first step since the metrics were reset whose loss was not finite; -1: none.
        outputs: the model's outputs, per row; None unless asked for.

    Example:
        >>> import jax.numpy as jnp
        >>> out = StepOut(fence=jnp.zeros(()), loss=jnp.float32(0.5), lr=None, first_bad_step=jnp.int32(-1))
        >>> float(out.loss), out.outputs
        (0.5, None)
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
        micro_batches: the batch is cut into so many parts whose gradients are added: less memory, and the same update where
            neither batch statistics nor a loss head that normalises by its batch look at the whole batch.
        clip_norm: the rescaled gradient is shortened to this global 2-norm.
        clip_value: each value of the rescaled gradient is clipped to ± this.
        policy: mixed precision, `Policy("bfloat16")` or "bfloat16".
        rescale: r: "mean" = 1 / Σᵢ wᵢ over all devices, or a number.
        sync_batch_stats: batch statistics over all devices instead of each device's slice.
        outputs: return the model's outputs in `out.outputs`.

    Returns:
        `step(state, batch, axis_name=None) -> (state, out)`; batch: `jfit.Batch`, or a dict of inputs.
        A row of weight 0 changes nothing, whatever it holds; a batch whose weights sum to 0 leaves parameters, optimizer
        state and auxiliary states as they are.

    Raises:
        ValueError: a setting that cannot be (micro_batches below 1, a schedule for an optimizer that keeps its own rate).

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
    _check_settings(resolved, schedule, micro_batches, rescale)
    transform = _with_extra_args(resolved.transform)
    rate_of = None if schedule is None else as_schedule(schedule)
    policy = Policy(policy) if isinstance(policy, str) else policy
    metrics = tuple(metrics)
    how = _How(model, metrics, micro_batches, policy, sync_batch_stats, outputs)

    def step(state: TrainState, batch: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
        slots = _Slots(*_parts(batch), row_ids=None)
        learns, still = split_params(model, state.params, frozen)
        gradients, aux, sums = _gradients(how, learns, still, state, slots, axis_name)
        total = sums.rows
        if axis_name is not None:
            aux = _mean_aux(aux, state.aux, slots.weight, axis_name)
            gradients, total, shared = lax.psum((gradients, total, sums.shared), axis_name)
            sums = sums._replace(shared=shared)
        loss = _mean_loss(sums)
        factor = 1 / jnp.maximum(total, 1e-30) if rescale == "mean" else rescale
        gradients = _clip(jax.tree.map(lambda g: g * jnp.asarray(factor, g.dtype), gradients), clip_norm, clip_value)
        rate = state.lr if rate_of is None else jnp.asarray(rate_of(state.step + 1, state.lr), jnp.float32)
        extra = {"value": loss} | ({"learning_rate": rate} if resolved.takes_rate and rate is not None else {})
        updates, opt_state = transform.update(gradients, state.opt_state, learns, **extra)
        reported = used_rate(resolved, rate, state.opt_state, opt_state)
        learns = cast(Params, optax.apply_updates(learns, updates))
        params = {k: learns[k] if k in learns else still[k] for k in state.params}
        if slots.weight is not None:  # a step without rows changes nothing
            params, opt_state, aux = _chosen(total > 0, (params, opt_state, aux), (state.params, state.opt_state, state.aux))
        totals = fold(metrics, state.metrics, sums.shared, state.step, loss)
        new = state._replace(step=state.step + 1, params=params, aux=aux, opt_state=opt_state, metrics=totals)
        return new, StepOut(loss + 0, loss, reported, totals.first_bad_step, sums.outputs)

    step.__dict__.update(model=model, micro_batches=micro_batches)  # what data_parallel asks: how rows divide and merge
    return step


def _check_settings(resolved: Resolved, schedule: Any, micro_batches: int, rescale: Any) -> None:
    if schedule is not None and not resolved.takes_rate:
        raise ValueError(
            f"schedule= needs an optimizer that takes its rate from the state; {resolved.name} is an optax instance and keeps "
            "its own: give the schedule to its constructor, as in optax.adam(schedule), or pass the optimizer by name"
        )
    if micro_batches < 1:
        raise ValueError(f"micro_batches is {micro_batches}; a batch is cut into 1 or more parts")
    if isinstance(rescale, str) and rescale != "mean":
        raise ValueError(f'rescale is {rescale!r}; needed "mean" (1 / sum of weights) or a factor of the summed gradient')


def _with_extra_args(transform: Any) -> Any:
    """`update(gradients, state, params, **extra)` for any transformation; those that take no extra arguments get none."""
    if isinstance(transform, optax.MultiSteps):  # hands them on, though it is no transformation with extra arguments
        return optax.GradientTransformationExtraArgs(transform.init, transform.update)  # type: ignore[arg-type]
    return optax.with_extra_args_support(transform)


def _chosen(condition: Array, new: Any, old: Any) -> Any:
    """`new` where the condition holds, else `old`, leaf by leaf."""
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


class _How(NamedTuple):
    """The settings of a step that reach its gradients."""

    model: Model
    metrics: tuple[Metric, ...]
    micro_batches: int
    policy: Policy | None
    sync_batch_stats: bool
    keep_outputs: bool


class _Slots(NamedTuple):
    """The rows of one device's slice: inputs, weights, and the global number of each."""

    inputs: dict[str, Array]
    weight: Array | None
    metric_weight: Array | None
    row_ids: Any


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
    """(inputs, weight, metric weight) of a Batch or of a plain dict of inputs; weights float32."""
    if isinstance(batch, dict):
        return batch, None, None
    weight, metric_weight = (None if w is None else jnp.asarray(w, jnp.float32) for w in (batch.weight, batch.metric_weight))
    return dict(batch.inputs), weight, weight if metric_weight is None else metric_weight


def _rows_of(model: Model, inputs: dict[str, Array]) -> int:
    name = next((n for n in (*model.inputs, *model.labels) if n in inputs), None)
    if name is None:
        raise ValueError(f"the batch has the inputs {sorted(inputs)}, the model needs {[*model.inputs, *model.labels]}")
    return inputs[name].shape[model.batch_axes.get(name, 0)]


def _check_weights(rows: int, **weights: Array | None) -> None:
    for name, weight in weights.items():
        if weight is not None and weight.shape != (rows,):
            raise ValueError(f"{name} has shape {weight.shape}, the batch has {rows} rows; pass one number per row, ({rows},)")


def _stand_ins(model: Model, inputs: dict[str, Array], counts: Array) -> dict[str, Array]:
    """Rows that count nowhere become copies of the first that does: 0 * nan would carry what they hold into the gradient."""

    def real(x: Array, axis: int) -> Array:
        if x.ndim <= axis or x.shape[axis] != counts.shape[0]:
            return x
        shape = [-1 if k == axis else 1 for k in range(x.ndim)]
        return jnp.where(counts.reshape(shape), x, lax.dynamic_index_in_dim(x, jnp.argmax(counts), axis, keepdims=True))

    return {k: real(jnp.asarray(v), model.batch_axes.get(k, 0)) for k, v in inputs.items()}


def _gradients(how: _How, learns: Params, still: Params, state: TrainState, slots: _Slots, axis_name: str | None):
    """Summed gradients, new aux and sums of one device's slice, over its micro-batches."""
    rows = _rows_of(how.model, slots.inputs)
    _check_weights(rows, weight=slots.weight, metric_weight=slots.metric_weight)
    device = 0 if axis_name is None else lax.axis_index(axis_name)
    slots = slots._replace(row_ids=jnp.arange(rows) + device * rows)
    key = jax.random.fold_in(typed_key(state.key), state.step)

    def part(aux: Aux, number: Any, slots: _Slots):
        return _part(how, learns, still, aux, slots, jax.random.fold_in(key, number), axis_name)

    if how.micro_batches == 1:
        return part(state.aux, 0, slots)
    if rows % how.micro_batches:
        raise ValueError(
            f"micro_batches={how.micro_batches} does not divide the {rows} rows of a device's batch; "
            "choose a divisor, or let jfit.data_parallel or jfit.fit pad the batch"
        )
    if how.keep_outputs:
        raise ValueError("outputs=True needs micro_batches=1: the outputs of all micro-batches would have to be kept")
    return _accumulate(part, how, state.aux, slots)


def _part(how: _How, learns: Params, still: Params, aux: Aux, slots: _Slots, key: Array, axis_name: str | None):
    """Summed gradients, new aux and sums of one micro-batch."""
    model, (inputs, weight, metric_weight, row_ids) = how.model, slots
    plan = plan_of(model, inputs)
    if weight is not None and metric_weight is not None:
        if not plan.paddable:
            raise RowsLost(plan.reason)
        inputs = _stand_ins(model, inputs, (weight > 0) | (metric_weight > 0))
    given = {"key": key, "train": True, "weight": weight, "axis_name": axis_name, "row_ids": row_ids, "policy": how.policy}

    def loss_of(learns: Params):
        values, moved = model.apply({**still, **learns}, aux, inputs, sync_batch_stats=how.sync_batch_stats, **given)
        return objective(model, values, inputs, weight), (values, moved)

    gradients, (values, moved) = jax.grad(loss_of, has_aux=True)(learns)
    if weight is not None:  # a slice without rows has only padding, which must not show
        any_row = jnp.any(weight > 0)
        gradients = jax.tree.map(lambda g: jnp.where(any_row, g, jnp.zeros_like(g)), gradients)
        moved = moved if how.sync_batch_stats else _chosen(any_row, moved, aux)
    losses = loss_sums(model, values, inputs, weight, plan.rows)
    stats = metric_stats(how.metrics, *head_arguments(model, values, inputs, metric_weight, plan.rows))
    count = jnp.sum(weight) if weight is not None else jnp.float32(len(row_ids))
    shared = Shared(losses or (jnp.zeros(()), jnp.zeros(())), stats)
    return gradients, moved, _Sums(count, shared, losses is not None, values if how.keep_outputs else None)


def _accumulate(part: Callable[..., Any], how: _How, aux: Aux, slots: _Slots):
    """Σ over micro-batches, in order; BatchNorm's moving statistics move once per micro-batch."""
    model, count = how.model, how.micro_batches

    def cut(x: Array, axis: int = 0) -> Array:
        shape = (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    inputs = {k: cut(v, model.batch_axes.get(k, 0)) for k, v in slots.inputs.items()}
    slices = _Slots(inputs, *(None if w is None else cut(w) for w in slots[1:]))
    gradients, aux, sums = part(aux, 0, jax.tree.map(lambda x: x[0], slices))
    add = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731

    def body(carry, item):
        gradients, aux, rows, shared = carry
        number, rest = item
        more, aux, extra = part(aux, number, rest)
        return (add(gradients, more), aux, rows + extra.rows, add(shared, extra.shared)), None

    carry = (gradients, aux, sums.rows, sums.shared)
    if unrolls(model):
        for i in range(1, count):
            carry, _ = body(carry, (i, jax.tree.map(lambda x, i=i: x[i], slices)))
    else:
        carry, _ = lax.scan(body, carry, (jnp.arange(1, count), jax.tree.map(lambda x: x[1:], slices)))
    gradients, aux, rows, shared = carry
    return gradients, aux, sums._replace(rows=rows, shared=shared)


def _mean_loss(sums: _Sums) -> Array:
    """Mean loss of the rows that count: 0 where none does, nan where the model has no loss value."""
    total, count = sums.shared.loss
    return jnp.where(count > 0, total / jnp.maximum(count, 1e-30), 0.0) if sums.has_loss else jnp.float32(jnp.nan)


def unrolls(model: Model) -> bool:
    """True where a loop inside the program must be unrolled: XLA on CPU compiles convolutions in loop bodies badly."""
    return "convolution" in model.traits and jax.default_backend() == "cpu"


def plan_of(model: Model, inputs: dict[str, Array]) -> Plan:
    """The plan for inputs of these shapes."""
    return model.plan(specs_of(inputs))


def _mean_aux(aux: Aux, old: Aux, weight: Array | None, axis_name: str) -> Aux:
    """The mean over the devices that had rows (each device moved its own statistics)."""
    # counters and keys move alike on every device: they have no mean
    means = {k: v for k, v in aux.items() if jnp.issubdtype(v.dtype, jnp.inexact)}
    if weight is None:
        return {**aux, **lax.pmean(means, axis_name)}
    has = jnp.any(weight > 0)
    devices = lax.psum(has.astype(jnp.float32), axis_name)
    summed = lax.psum({k: jnp.where(has, v, jnp.zeros_like(v)) for k, v in means.items()}, axis_name)
    found = {k: jnp.where(devices > 0, v / jnp.maximum(devices, 1).astype(v.dtype), old[k]) for k, v in summed.items()}
    return {**aux, **found}


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
