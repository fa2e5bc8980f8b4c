"""One update as a pure function.

θ ← θ − η · u( Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ ).  A step is jit-able, vmap-able and knows the name of the device axis: inside pmap it sums
gradients and metric sums over the devices (one all-reduce) and every device computes the same update.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from jfit.lowering.model import Aux, Model, Params, Policy
from jfit.metrics import Metric
from jfit.optim import Optimizer, as_schedule
from jfit.optim import get as get_optimizer
from jfit.optim.core import is_small, wide
from jfit.optim.registry import used_rate
from jfit.optim.rows import SparseRows, apply_updates, coalesce, on_values
from jfit.step.reduce import Reduce, all_reduce
from jfit.step.slices import How, Sums, chosen, gradients_of, slots_of
from jfit.step.state import TrainState, split_params
from jfit.step.totals import fold


class StepOut(NamedTuple):
    """What a step reports: its buffers are its own, so they stay alive when the next step donates the state.

    Attributes:
        fence: a small array that is ready when the step is.
        loss: mean loss of the batch's rows, () float32; nan where the model has no loss value.
        lr: the learning rate that was used, () float32, or None.
        first_bad_step: number of the first step since the metrics were reset whose loss was not finite; -1: none.
        outputs: the model's outputs, per row; None unless asked for.
        gradients: name -> gradient summed over this device's rows, before anything is reduced, of the model's tables as
            `jfit.optim.SparseRows`; None unless asked for.

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
    gradients: Params | None = None


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
    rescale: Any = "mean",
    sync_batch_stats: bool = False,
    outputs: bool = False,
    gradients: bool = False,
    reduce: Reduce | None = None,
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
        rescale: r: "mean" = 1 / Σᵢ wᵢ over all devices, or a number (traced, where the step is made inside a trace).
        sync_batch_stats: batch statistics over all devices instead of each device's slice.
        outputs: return the model's outputs in `out.outputs`.
        gradients: return this device's gradients in `out.gradients`.
        reduce: how the devices' gradients become one (see `jfit.step.reduce`); default: their sum.

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
    optimizer = _in_graph(get_optimizer(optimizer), model, frozen)
    _check_settings(optimizer, schedule, micro_batches, rescale)
    policy = Policy(policy) if isinstance(policy, str) else policy
    metrics, reduce = tuple(metrics), reduce or all_reduce()
    how = How(model, metrics, micro_batches, policy, sync_batch_stats, outputs)
    update = _Update.of(optimizer, schedule, rescale, clip_norm, clip_value)

    def step(state: TrainState, batch: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
        slots = slots_of(model, batch, axis_name)
        trainable, frozen_params = split_params(model, state.params, frozen)
        slice_gradients, aux, sums = gradients_of(how, trainable, frozen_params, state, slots, axis_name)
        if axis_name is not None:
            aux = mean_aux(aux, state.aux, slots.weight, axis_name)
        added = (sums.rows, sums.shared)
        reduced, (total, shared), local = reduce.apply(slice_gradients, added, state.local, axis_name)
        sums = sums._replace(shared=shared)
        loss = _mean_loss(sums)
        trainable, opt_state, lr = update(state, trainable, reduced, total, loss)
        params = {k: trainable[k] if k in trainable else frozen_params[k] for k in state.params}
        if slots.weight is not None:  # a step without rows changes nothing
            old = state.params, state.opt_state, state.aux
            params, opt_state, aux = chosen(total > 0, (params, opt_state, aux), old, but=update.by_rows(reduced))
        totals = fold(metrics, state.metrics, sums.shared, state.step, loss)
        new = TrainState(state.step + 1, params, aux, opt_state, totals, state.base_lr, state.key, local)
        kept = slice_gradients if gradients else None
        return new, StepOut(loss + 0, loss, lr, totals.first_bad_step, sums.outputs, kept)

    step.__dict__.update(model=model, micro_batches=micro_batches)  # what data_parallel asks: how rows divide and merge
    return step


def update_step(
    optimizer: Any = "sgd",
    *,
    schedule: Any = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    rescale: Any = 1.0,
    reduce: Reduce | None = None,
) -> Callable[..., TrainState]:
    """θ ← θ − η · u( r · Σ g ): the second half of `train_step`, for gradients that were computed before.

    Args:
        optimizer, schedule, clip_norm, clip_value, reduce: as for `train_step`.
        rescale: r, a number.

    Returns:
        `step(state, gradients, axis_name=None) -> state`; gradients: name -> summed gradient of this device's rows,
        an array or a `jfit.optim.SparseRows`.
        Parameters without a gradient stay as they are.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(2)})
        >>> state = jfit.init_state(model, "sgd", learning_rate=0.5)
        >>> jfit.step.update_step("sgd")(state, {"w": jnp.ones(2)}).params["w"].tolist()
        [0.5, 0.5]
    """
    optimizer = get_optimizer(optimizer)
    _check_settings(optimizer, schedule, 1, rescale)
    update, reduce = _Update.of(optimizer, schedule, rescale, clip_norm, clip_value), reduce or all_reduce()

    def step(state: TrainState, gradients: Params, *, axis_name: str | None = None) -> TrainState:
        gradients, _, local = reduce.apply(gradients, (), state.local, axis_name)
        trainable = {k: state.params[k] for k in gradients}
        trainable, opt_state, _ = update(state, trainable, gradients, jnp.ones(()), jnp.float32(jnp.nan))
        return state._replace(step=state.step + 1, params={**state.params, **trainable}, opt_state=opt_state, local=local)

    return step


class _Update(NamedTuple):
    """From reduced gradients to new parameters: rescale once, clip, ask the optimizer."""

    optimizer: Optimizer
    rate_of: Callable[..., Array] | None
    rescale: Any
    clip_norm: float | None
    clip_value: float | None

    @classmethod
    def of(cls, optimizer: Optimizer, schedule: Any, rescale: Any, norm: float | None, value: float | None) -> _Update:
        return cls(optimizer, None if schedule is None else as_schedule(schedule), rescale, norm, value)

    def by_rows(self, gradients: Params) -> set[str]:
        """Names of the tables of which only some rows are updated."""
        state_spec = self.optimizer.state_spec
        return (
            {name for name, g in gradients.items() if isinstance(g, SparseRows)}
            if state_spec is not None and state_spec.lazy
            else set()
        )

    def __call__(
        self, state: TrainState, trainable: Params, gradients: Params, total: Array, loss: Array
    ) -> tuple[Params, Any, Array | None]:
        """(new parameters, new optimizer state, the rate that was used)."""
        factor = 1 / jnp.maximum(total, 1e-30) if isinstance(self.rescale, str) else self.rescale
        state_spec, tables = self.optimizer.state_spec, {name for name, g in gradients.items() if isinstance(g, SparseRows)}
        lazy = state_spec is not None and state_spec.lazy
        gradients |= {name: _rows_or_table(gradients[name], trainable[name], lazy) for name in tables}

        def change(tree: Params) -> Params:
            scaled = jax.tree.map(lambda g: _scaled(g, factor, state_spec is not None), tree)
            return _clip(scaled, self.clip_norm, self.clip_value)

        gradients = on_values(change, gradients) if tables else change(gradients)
        base = state.base_lr
        lr = base if self.rate_of is None else jnp.asarray(self.rate_of(state.step + 1, base), jnp.float32)
        extra = {"value": loss} | ({"learning_rate": lr} if self.optimizer.takes_rate and lr is not None else {})
        updates, opt_state = self.optimizer.update(gradients, state.opt_state, trainable, **extra)
        lr = used_rate(self.optimizer, lr, state.opt_state, opt_state)
        apply = apply_updates if tables else optax.apply_updates
        return cast(Params, apply(trainable, updates)), opt_state, lr


def _in_graph(optimizer: Optimizer, model: Model, frozen: Sequence[str]) -> Optimizer:
    """The optimizer with the graph's order of parameters, where its rule depends on it (Nadam, LARS by groups)."""
    if optimizer.for_graph is None or model.symbol is None:
        return optimizer
    names = model.symbol.list_arguments()
    # what the user froze is not updated in MXNet either; a gamma with fix_gamma is
    patterns = [frozen] if isinstance(frozen, str) else frozen
    chosen_names = {n for n in names for pattern in patterns if fnmatch.fnmatchcase(n, pattern)}
    return optimizer.for_graph(names, [n for n in names if n in model.frozen - chosen_names])


def _check_settings(optimizer: Optimizer, schedule: Any, micro_batches: int, rescale: Any) -> None:
    if schedule is not None and not optimizer.takes_rate:
        raise ValueError(
            f"schedule= needs an optimizer that takes its rate from the state; {optimizer.name} is an optax instance and keeps "
            "its own: give the schedule to its constructor, as in optax.adam(schedule), or pass the optimizer by name"
        )
    if micro_batches < 1:
        raise ValueError(f"micro_batches is {micro_batches}; a batch is cut into 1 or more parts")
    if isinstance(rescale, str) and rescale != "mean":
        raise ValueError(f'rescale is {rescale!r}; needed "mean" (1 / sum of weights) or a factor of the summed gradient')


def _mean_loss(sums: Sums) -> Array:
    """Mean loss of the rows that count: 0 where none does, nan where the model has no loss value."""
    total, count = sums.shared.loss
    return jnp.where(count > 0, total / jnp.maximum(count, 1e-30), 0.0) if sums.has_loss else jnp.float32(jnp.nan)


def mean_aux(aux: Aux, old: Aux, weight: Array | None, axis_name: str) -> Aux:
    """The mean over the devices that had rows (each device moved its own statistics)."""
    # counters and keys move alike on every device: they have no mean
    means = {k: v for k, v in aux.items() if jnp.issubdtype(v.dtype, jnp.inexact)}
    if weight is None:
        return {**aux, **lax.pmean(means, axis_name)}
    has = jnp.any(weight > 0)
    devices = lax.psum(has.astype(jnp.float32), axis_name)
    summed = lax.psum({k: jnp.where(has, v, jnp.zeros_like(v)) for k, v in means.items()}, axis_name)
    means = {k: jnp.where(devices > 0, v / jnp.maximum(devices, 1).astype(v.dtype), old[k]) for k, v in summed.items()}
    return {**aux, **means}


def _rows_or_table(gradient: SparseRows, weight: Array, lazy: bool) -> SparseRows | Array:
    """Rows listed once each for a lazy rule, which updates those alone; the whole gradient, zeros included, for any other."""
    return coalesce(gradient, len(weight)) if lazy else gradient.dense(len(weight))  # the norm takes each row once


def _scaled(g: Array, factor: Any, exact: bool) -> Array:
    # jfit's own rules compute in float32, so 16-bit gradients keep the digits that a factor of 1 / batch size would cost them
    return wide(g) * factor if exact and is_small(g) else g * jnp.asarray(factor, g.dtype)


def _clip(gradients: Params, norm: float | None, value: float | None) -> Params:
    if norm is not None:
        length = optax.global_norm(gradients)
        scale = jnp.minimum(1.0, norm / jnp.maximum(length, 1e-30))
        gradients = jax.tree.map(lambda g: g * scale.astype(g.dtype), gradients)
    if value is not None:
        gradients = jax.tree.map(lambda g: jnp.clip(g, -value, value), gradients)
    return gradients
