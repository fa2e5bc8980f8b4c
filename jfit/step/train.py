"""The training step as a pure function: θ ← θ − η · u( Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ ).

θ: parameters, η: learning rate, u: update rule of the optimizer, wᵢ and ℓᵢ: weight and loss of row i.

A step can be transformed by jit and vmap.  With `axis_name`, inside pmap or shard_map, it sums gradients and metric sums over
devices in one all-reduce, and every device computes the same update.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from jfit.checks import one_of, positive
from jfit.data.batch import parts_of
from jfit.lowering.model import Aux, Model, Params, Policy
from jfit.lowering.remat import remat_of, with_remat
from jfit.metrics import Metric
from jfit.ops.axis import Axis
from jfit.optim import Optimizer, as_schedule
from jfit.optim.core import apply_updates, is_small, wide
from jfit.optim.registry import own_rate
from jfit.optim.rows import SparseRows, coalesce, on_values
from jfit.optim.schedules import Schedule
from jfit.programs import ByIdentity, Constants, depends_on_more, made, read_key
from jfit.step.layout import WHOLE, Layout, mesh_size, on_each_device
from jfit.step.loss_scale import all_finite, scale_of
from jfit.step.reduce import Reduce
from jfit.step.reduce import get as get_reduce
from jfit.step.regularizers import penalty_and_gradients, with_penalty
from jfit.step.skipping import counting_updates, unless_bad, unless_overflow
from jfit.step.slices import GradientSettings, Sums, gradients_of, select, shard_of
from jfit.step.state import TrainState, optimizer_of, split_params
from jfit.step.totals import batch_metrics as metrics_of
from jfit.step.totals import fold, norms_of


class StepOut(NamedTuple):
    """Results of a training step besides the new state, in buffers that stay valid when the state is donated.

    Attributes:
        fence: a small array that is ready when the step is done: `out.fence.block_until_ready()` waits for the step.
        loss: mean loss of the batch, a scalar of the dtype of its computation, at least float32; NaN if the model has no loss
            value.
        lr: learning rate of the update, float32 scalar; None if it is unknown (an optax instance with its own learning rate).
        first_bad_step: number of the first step with a loss that was not finite since `state.metrics` was reset, int32 scalar;
            -1 if there is none; None for a state without running sums.
        outputs: outputs of the model; None unless the step was made by `train_step(..., outputs=True)`.
        gradients: gradients by name, summed over the rows of this device, before the reduction over devices; those of
            embedding tables are `jfit.optim.SparseRows`.  None unless the step was made with gradients=True.
        metrics: metrics of this batch over all devices, values that its loss logs, and norms (`log`), name -> scalar.  None
            unless the step was made with batch_metrics=True; with `log` alone, only the norms.

    Example:
        >>> import jax.numpy as jnp
        >>> out = StepOut(fence=jnp.zeros(()), loss=jnp.float32(0.5), lr=None, first_bad_step=jnp.int32(-1))
        >>> float(out.loss), out.outputs
        (0.5, None)
    """

    fence: Array
    loss: Array
    lr: Array | None
    first_bad_step: Array | None
    outputs: tuple[Array, ...] | None = None
    gradients: Params | None = None
    metrics: dict[str, Array] | None = None


class ShardPass(NamedTuple):
    """What the rows of one shard of a batch contribute to an update; after the reduction, what the whole batch does.

    Attributes:
        gradients: gradients by name, summed over rows.
        aux: new auxiliary states by name.
        sums: sums over the rows.
    """

    gradients: Params
    aux: Aux
    sums: Sums


class Step(Protocol):
    """Type of training steps: `step(state, batch, axis_name=None) -> (state, out)`.

    Args:
        state: a `TrainState`.
        batch: `jfit.Batch`, or dict of arrays by input name.
        axis_name: name of the device axis inside pmap or shard_map, else None.

    Example:
        >>> import jfit
        >>> step: Step = jfit.train_step(jfit.lower(jfit.sym.MakeLoss(jfit.sym.Variable("data"))), "sgd")
    """

    def __call__(self, state: TrainState, batch: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class TrainStep:
    """A training step, a pure function that computes one update: θ ← θ − η · u( r · Σᵢ wᵢ ∇ℓᵢ ).

    θ: parameters, η: learning rate, u: update rule of the optimizer, r: `rescale`, wᵢ and ℓᵢ: weight and loss of row i.

    It is called as `step(state, batch, axis_name=None) -> (state, out)`; batch: `jfit.Batch`, or a dict of inputs.
    Rows of weight 0 do not affect the result, even if they contain NaN: in graphs, whose batch statistics apply the row
    weights too, and in functions whose rows are independent.  In a function whose rows affect each other, such as one with
    its own batch normalization, they are replaced by a weighted row, which still takes part (see `Plan.coupled`).
    A batch whose weights sum to 0 leaves parameters, optimizer state and auxiliary states unchanged.

    Steps are values, equal if their settings are: graphs by their content; optimizers, metrics and schedules of jfit by their
    settings.  A step with a function of the user or an optax transformation is equal to itself only.  Programs of jfit are
    found by the same values without the numbers that they take as arguments (see `jfit.programs.Constants`).
    `dataclasses.replace(step, reduce="ordered")` makes the step with another setting.

    Args:
        model: the `Model` to train.
        optimizer: name (of optax's optimizer for functions and modules, of MXNet's for graphs), `jfit.optim` optimizer, any
            optax transformation, or a dict of these by patterns of parameter names, see `jfit.fit`.
        metrics: metrics of each batch, which are added to the running sums `state.metrics`; the same as for `init_state`.
        schedule: learning-rate schedule, `schedule(count, base) -> rate` (see `jfit.optim.schedules`) or an optax schedule;
            None uses `state.base_lr`.
        frozen: names or glob patterns of parameters that are not trained.
        micro_batches: number of parts of the batch whose gradients are computed one after the other and summed.  It saves
            memory and does not change the update, up to rounding, except for layers that use the whole batch: batch
            normalization, and loss heads that normalize by the batch.  Random numbers of rows (dropout) are those of the whole
            batch in graphs, Equinox modules, and functions that take `row_ids`; in others, each part has its own `key`.
        clip_norm: maximum global L2 norm of the rescaled gradients; None: no limit.
        clip_value: maximum absolute value of each element of the rescaled gradients; None: no limit.
        policy: mixed precision, `Policy("bfloat16")` or "bfloat16"; None: no casts.  "float16" needs a state made by
            `init_state(..., policy="float16")`: a step whose reduced gradients are not all finite leaves parameters, optimizer
            state and auxiliary states unchanged, and halves the loss scale in the state (see `Policy`).  `state.step` counts
            it, schedules and the optimizer do not.
        rescale: r, "mean" for 1 / Σᵢ wᵢ over all devices, or a number, which may be traced.
        sync_batch_stats: compute batch statistics over all devices instead of over each device's shard of the batch.
        outputs: return the outputs of the model in `out.outputs`.
        gradients: return the gradients of the rows of each device, before the reduction, in `out.gradients`.
        reduce: how gradients are reduced over devices: a `Reduce`, or a name such as "psum" or "sharded" (see
            `jfit.step.reduce`); None: "psum", they are summed.
        batch_metrics: return the metrics of the batch that are scalars, and the values that its loss logs, in `out.metrics`.
        regularizers: name or glob pattern of trainable parameters -> function of one parameter that returns a scalar, such as
            `jfit.regularizers.l2(1e-4)`.  Their sum is added to the mean loss, and its gradient to the rescaled gradients
            before clipping; None: no regularizers.
        skip_nonfinite: leave parameters, optimizer state, auxiliary states and running sums unchanged if the loss, or one of
            these, is nan or infinite after the update; `out.first_bad_step` is then the number of the step.
        log: names of further values to return in `out.metrics` and to add to the running sums: "grad_norm", ‖g‖₂ of the
            rescaled gradients g over all parameters and devices, before clipping and weight decay; "update_norm", ‖θ' − θ‖₂ of
            what the step added to the parameters.  "lr" is accepted; it is `out.lr` in any case.
        remat: which values the backward pass computes again, to save memory, see `jfit.fit`: "none", "full", or patterns.  XLA
            does so on a CPU only if it is told to: `jax.jit(step, compiler_options=jfit.lowering.remat.KEEP_BARRIERS)`.

    Raises:
        ValueError: an invalid argument (a limit of gradients that is not above 0, a schedule for an optimizer that has its
            own learning rate).  The step raises one, when it is traced, for a batch without rows, if `frozen` leaves nothing to
            train, and if the state has no loss scale, but the policy needs one.
        TypeError: by the step, when it is traced: the batch has another type.

    Example:
        >>> import dataclasses, jax, jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> step = jax.jit(jfit.train_step(model, "sgd"), donate_argnums=0)
        >>> state, out = step(jfit.init_state(model, "sgd", batch), batch)
        >>> int(state.step), out.loss.shape
        (1, ())
        >>> step, again = (jfit.train_step(model, jfit.optim.sgd(0.1, momentum=0.9)) for _ in range(2))
        >>> step == again, dataclasses.replace(step, reduce="ordered") == again
        (True, False)
    """

    model: Model
    optimizer: Any = "sgd"
    _: dataclasses.KW_ONLY
    metrics: Sequence[Metric] = ()
    schedule: Any = None
    frozen: Sequence[str] = ()
    micro_batches: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    policy: Policy | str | None = None
    rescale: Any = "mean"
    sync_batch_stats: bool = False
    outputs: bool = False
    gradients: bool = False
    reduce: Reduce | str | None = None
    batch_metrics: bool = False
    regularizers: Mapping[str, Callable[[Array], Any]] | None = None
    skip_nonfinite: bool = False
    log: str | Sequence[str] = ()
    remat: str | Sequence[str] = "none"

    def __post_init__(self) -> None:
        policy, reduce = Policy(self.policy) if isinstance(self.policy, str) else self.policy, get_reduce(self.reduce)
        reasons = {
            "loss_per_batch": "with loss_per_batch=True the loss of a batch is not the sum of the losses of its parts",
            "batch_means": "several losses, one with an ignore_index, are means over different positions of the whole batch",
        }
        for trait, reason in reasons.items():
            if trait in self.model.traits and self.micro_batches != 1:
                raise ValueError(f"micro_batches is {self.micro_batches}, but {reason}; set micro_batches=1")
        norms = norms_of(self.log) if self.log else ()
        scaled = policy is not None and policy.scaling is not None
        if (norms or scaled) and not reduce.shared:
            what = f"log has {norms[0]!r}" if norms else f"policy {policy.compute!r} has a loss scale"  # pyright: ignore
            raise ValueError(f"{what}, but with this reduce= every device has its own gradients; leave out one of the two")
        vars(self).update(policy=policy, reduce=reduce, metrics=tuple(self.metrics), log=norms, remat=remat_of(self.remat))
        self.rule  # noqa: B018, checks the settings of the update

    @functools.cached_property
    def rule(self) -> UpdateRule:
        """The update of the parameters, with an optimizer for parameters by name."""
        optimizer = _in_graph(optimizer_of(self.optimizer, self.model), self.model, self.frozen)
        return UpdateRule.of(optimizer, self.schedule, self.rescale, self.clip_norm, self.clip_value)

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass computes values again, see `jfit.lowering.remat`."""
        return self.remat != "none" or "recomputed" in self.model.traits

    @property
    def program_key(self) -> Any:
        """The settings, with the rule of the update in place of its numbers; see `jfit.programs.read_key`."""
        names = ("optimizer", "schedule", "clip_norm", "clip_value", "rescale")
        return self.rule, *[getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in names]

    @functools.cached_property
    def _key(self) -> Any:
        # With all numbers, because `jax.jit(step)` and `lax.scan(step, ...)` look programs up by equality, and compile them in.
        # Functions of the user may read values that change: a step with one is equal to itself only.
        rates = self.rule.optimizer.base_lr, getattr(self.rule.rate_of, "base_lr", None)
        key = read_key((self, rates))
        return key.value if key.is_complete else ByIdentity(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStep) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, state: TrainState, batch: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
        """Compute one update: (new state, results)."""
        reduce = cast(Reduce, self.reduce)
        count = mesh_size(axis_name) if reduce.sharded else 1
        layout = None if count == 1 else Layout.of(self, state, cast(str, axis_name), count)

        def of_batch(split: bool, state: TrainState, batch: Any) -> tuple[ShardPass, Any, Params | None]:
            (of_shard, aux, sums), weight = self.shard_pass(state, batch, axis_name)
            if axis_name is not None:
                aux = mean_aux(aux, state.aux, weight, axis_name)
            if split and layout is not None:
                total, (rows, shared) = layout.scattered(of_shard, (sums.rows, sums.shared))
                local = state.local
            else:
                total, (rows, shared), local = reduce.apply(of_shard, (sums.rows, sums.shared), state.local, axis_name)
            return ShardPass(total, aux, sums._replace(rows=rows, shared=shared)), local, of_shard if self.gradients else None

        if layout is None:
            reduced, local, of_shard = of_batch(False, state, batch)
        else:
            state = layout.constrained(state)  # also within a loop over steps, for which XLA would choose a layout
            trainable, _ = split_params(self.model, state.params, self.frozen)
            specs = {name: layout.specs.get(name, WHOLE) for name in trainable}
            results = ShardPass(specs, WHOLE, Sums(WHOLE, WHOLE, WHOLE, 0)), 0, 0  # type: ignore[arg-type]
            needed = state._replace(opt_state=(), metrics=(), base_lr=None)
            reduced, local, of_shard = on_each_device(of_batch, layout.axis_name, results)(needed, batch)
        state, out = self.finish(state, reduced, local, parts_of(batch)[1] is not None, layout)
        return state, out._replace(gradients=of_shard)

    def shard_pass(self, state: TrainState, batch: Any, axis: Axis) -> tuple[ShardPass, Array | None]:
        """The first half of the step, forward and backward pass over a shard: (`ShardPass`, row weights or None)."""
        model = with_remat(self.model.bound(parts_of(batch)[0]), cast(Any, self.remat))
        metrics, policy = cast(Any, self.metrics), cast(Any, self.policy)
        settings = GradientSettings(model, metrics, self.micro_batches, policy, self.sync_batch_stats, self.outputs)
        shard, params = shard_of(model, batch, axis), split_params(self.model, state.params, self.frozen)
        return ShardPass(*gradients_of(settings, params, state, shard, axis)), shard.weight

    def finish(
        self, state: TrainState, reduced: ShardPass, local: Any, weighted: bool, layout: Layout | None = None
    ) -> tuple[TrainState, StepOut]:
        """The second half of the step, the update.

        Args:
            state: state before the step.
            reduced: `ShardPass` of the whole batch.
            local: new `TrainState.local`.
            weighted: whether the batch has row weights.
            layout: how the update is split over devices; None if it is not.
        """
        gradients, aux, sums = reduced
        trainable, frozen = split_params(self.model, state.params, self.frozen)
        trainable = trainable if layout is None else layout.cut(trainable)
        shared, penalties = sums.shared, {}
        if self.regularizers:
            extra, penalties = penalty_and_gradients(self.regularizers, trainable, self.model.tables)
            shared = with_penalty(shared, extra)
        loss = _mean_loss(sums._replace(shared=shared))
        counted, good, is_new = state, None, True
        if self.policy and scale_of(cast(Policy, self.policy), state) is not None:
            counted, good = counting_updates(state), all_finite(gradients)
        trainable, opt_state, lr, norms = self.rule(counted, trainable, gradients, sums.rows, loss, penalties, self.log)
        trainable = trainable if layout is None else layout.cut(trainable)
        params = {k: trainable[k] if k in trainable else frozen[k] for k in state.params}
        if weighted:  # a batch whose weights sum to 0 changes nothing
            by_rows = _tables(gradients) if self.rule.by_rows else ()
            learned, old = (params, opt_state, aux), (state.params, state.opt_state, state.aux)
            params, opt_state, aux = select(sums.rows > 0, learned, old, always_new=by_rows)
        if norms:  # their means are over the batches with an update
            done = sums.rows > 0 if good is None else good & (sums.rows > 0)
            logged = {name: (jnp.where(done, x, 0), done.astype(float)) for name, x in norms.items()}
            shared = shared._replace(logged={**shared.logged, **logged})
        totals = None if state.metrics is None else fold(self.metrics, state.metrics, shared, state.step, loss)
        after = TrainState(state.step + 1, params, aux, opt_state, totals, state.base_lr, state.key, local, state.loss_scale)
        if good is not None:
            after = unless_overflow(after, state, good, cast(Policy, self.policy))
        if self.skip_nonfinite:
            after, is_new = unless_bad(after, state, loss, jnp.sum(shared.loss[1]))
        if "update_norm" in norms:
            norms["update_norm"] = jnp.where(done & is_new, norms["update_norm"], 0)
        after = after if layout is None else layout.constrained(after)
        of_batch = metrics_of(self.metrics, shared) | norms if self.batch_metrics else norms or None
        first_bad_step = None if totals is None else after.metrics.first_bad_step
        return after, StepOut(loss + 0, loss, lr, first_bad_step, sums.outputs, None, of_batch)


train_step = TrainStep  # the public name


@made
def update_step(
    optimizer: Any = "sgd",
    *,
    schedule: Any = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    rescale: Any = 1.0,
    reduce: Reduce | str | None = None,
    model: Model | None = None,
) -> Callable[..., TrainState]:
    """Make the second half of `train_step`, θ ← θ − η · u( r · g ), for gradients g that are already computed.

    θ: parameters, η: learning rate, u: update rule of the optimizer, r: `rescale`.

    Args:
        optimizer, schedule, clip_norm, clip_value: as for `train_step`.
        reduce: as for `train_step`; the sharded rules split a state only in a whole training step, here they sum gradients.
        rescale: r, a number.
        model: the model, if it is made of a function: names are then optax's optimizers, which see its tree of parameters.

    Returns:
        `step(state, gradients, axis_name=None) -> state`.  `gradients` is a dict by parameter name of gradients summed over the
        rows of this device, arrays or `jfit.optim.SparseRows`.  Parameters without a gradient are unchanged.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(2)})
        >>> state = jfit.init_state(model, "sgd", learning_rate=0.5)
        >>> jfit.step.update_step("sgd", model=model)(state, {"w": jnp.ones(2)}).params["w"].tolist()
        [0.5, 0.5]
    """
    rule = UpdateRule.of(optimizer_of(optimizer, model), schedule, rescale, clip_norm, clip_value)
    reduce = get_reduce(reduce)

    def step(state: TrainState, gradients: Params, *, axis_name: str | None = None) -> TrainState:
        gradients, _, local = reduce.apply(gradients, (), state.local, axis_name)
        trainable = {k: state.params[k] for k in gradients}
        trainable, opt_state, _, _ = rule(state, trainable, gradients, jnp.ones(()), jnp.float32(jnp.nan))
        return state._replace(step=state.step + 1, params={**state.params, **trainable}, opt_state=opt_state, local=local)

    return step


class UpdateRule(NamedTuple):
    """Compute new parameters from gradients that are reduced over devices: rescale, clip, apply the optimizer.

    Attributes:
        optimizer: computes the updates that are added to the parameters.
        rate_of: learning-rate schedule `(number of the update, base learning rate) -> rate`; None: the base learning rate.
        rescale: "mean" or a factor for the summed gradients.
        limits: the numbers `norm`, maximum global L2 norm, and `value`, maximum absolute value of an element; None: no limit.
    """

    optimizer: Optimizer
    rate_of: Schedule | None
    rescale: Any
    limits: Constants

    @classmethod
    def of(cls, optimizer: Optimizer, schedule: Any, rescale: Any, norm: float | None, value: float | None) -> UpdateRule:
        if schedule is not None and not optimizer.takes_rate:
            raise ValueError("schedule= needs an optimizer by name; an optax instance takes a schedule in its constructor")
        if isinstance(rescale, str):
            one_of(("mean",), rescale=rescale)
        positive(none="no limit", clip_norm=norm, clip_value=value)
        rate_of = schedule if schedule is None or isinstance(schedule, Schedule) else as_schedule(schedule)
        return cls(optimizer, rate_of, rescale, Constants(norm=norm, value=value))

    @property
    def program_key(self) -> Any:
        """The rule without the base learning rate of its schedule: that in the state takes its place."""
        rate_of = None if self.rate_of is None else vars(self.rate_of) | {"base_lr": None}
        return self.optimizer, rate_of, self.rescale, self.limits

    @property
    def by_rows(self) -> bool:
        """Whether of embedding tables with row-sparse gradients only the rows with a gradient are updated."""
        return self.optimizer.state_spec is not None and self.optimizer.state_spec.lazy

    def __call__(
        self,
        state: TrainState,
        trainable: Params,
        gradients: Params,
        total: Array,
        loss: Array,
        added: Params | None = None,
        log: Sequence[str] = (),
    ) -> tuple[Params, Any, Array | None, dict[str, Array]]:
        """Return (new trainable parameters, new optimizer state, learning rate of the update or None if it is unknown, norms).

        Args:
            state: state before the update.
            trainable: parameters to update, by name.
            gradients: gradients by name, summed over rows and devices.
            total: sum of the row weights over all devices.
            loss: mean loss of the batch, which optax passes to optimizers that use it; nan if it is unknown.
            added: gradients by name that are added to the rescaled gradients, those of regularizers; None: none.
            log: names of the norms to compute, of `jfit.step.totals.NORMS`.
        """
        base = state.base_lr
        if base is None and self.rate_of is not None:
            depends_on_more()  # on the base learning rate of the schedule
        lr = base if self.rate_of is None else jnp.asarray(self.rate_of(state.step + 1, base), jnp.float32)
        factor = 1 / jnp.maximum(total, 1e-30) if isinstance(self.rescale, str) else self.rescale
        is_exact = self.optimizer.state_spec is not None or self.optimizer.multi_precision
        tables: dict[str, Any] = {}
        for name, g in _tables(gradients).items():
            size = len(trainable[name])  # duplicate rows are summed, because clip_norm must not add the norm of a row twice
            tables[name] = coalesce(g, size) if self.by_rows else g.dense(size)

        def mean(tree: Params, added: Params) -> Params:
            scaled = jax.tree.map(lambda g: _scaled(g, factor, is_exact), tree)
            return scaled | {name: scaled[name] + g.astype(scaled[name].dtype) for name, g in added.items()}

        def change(tree: Params) -> Params:
            return _clip(mean(tree, added or {}), self.limits.norm, self.limits.value)

        summed = {**gradients, **tables} if tables else gradients
        gradients = on_values(change, summed) if tables else change(summed)
        passed = self.optimizer.takes_rate and lr is not None
        extra = {"value": loss} | ({"learning_rate": lr} if passed else {})
        updates, opt_state = self.optimizer.update(gradients, state.opt_state, trainable, **extra)
        lr = lr if passed else own_rate(self.optimizer, state.opt_state, opt_state)
        new, norms = apply_updates(trainable, updates), dict[str, Array]()
        # Without the barriers, XLA fuses norms and update, which then rounds differently.
        if "grad_norm" in log:
            values = {name: g.values if isinstance(g, SparseRows) else g for name, g in summed.items()}
            norms["grad_norm"] = _norm(mean(*lax.optimization_barrier((values, added or {}))))
        if "update_norm" in log:
            rows = {name: _within(u, len(new[name])) for name, u in _tables(cast(Params, updates)).items()}
            dense = {name: (new[name], trainable[name]) for name in new if name not in rows}
            norms["update_norm"] = _norm(rows | {k: wide(x) - wide(y) for k, (x, y) in lax.optimization_barrier(dense).items()})
        return new, opt_state, lr, norms


def _tables(gradients: Mapping[str, Any]) -> dict[str, SparseRows]:
    """The row-sparse gradients, those of embedding tables."""
    return {name: g for name, g in gradients.items() if isinstance(g, SparseRows)}


def _in_graph(optimizer: Optimizer, model: Model, frozen: Sequence[str]) -> Optimizer:
    """Make the optimizer update parameters in the order of the graph, if it depends on the order (Nadam, LARS with `group`)."""
    if optimizer.for_graph is None or model.symbol is None:
        return optimizer
    names = model.symbol.list_arguments()
    # MXNet does not update parameters that the user froze, but it does update gammas with fix_gamma.
    patterns = [frozen] if isinstance(frozen, str) else frozen
    chosen_names = {n for n in names for pattern in patterns if fnmatch.fnmatchcase(n, pattern)}
    return optimizer.in_order(names, [n for n in names if n in model.frozen - chosen_names])


def _mean_loss(sums: Sums) -> Array:
    """Return the weighted mean loss of the batch: 0 if all weights are 0, NaN if the model has no loss value."""
    if isinstance(sums.has_loss, bool) and not sums.has_loss:
        return jnp.float32(jnp.nan)
    loss = sums.shared.mean_loss
    return loss if isinstance(sums.has_loss, bool) else jnp.where(sums.has_loss, loss, jnp.nan)


def mean_aux(aux: Aux, old: Aux, weight: Array | None, axis_name: str) -> Aux:
    """Mean of auxiliary states (moving statistics) over the devices that had rows with a weight above 0.

    Args:
        aux: new auxiliary states of this device, by name.
        old: auxiliary states before the step, returned if no device had such rows.
        weight: weights of the rows of this device (rows,), or None if all are 1.
        axis_name: name of the device axis.
    """
    means = {k: v for k, v in aux.items() if jnp.issubdtype(v.dtype, jnp.inexact)}
    # integers, bools and keys differ between devices if they depend on the rows or on the key, which is folded with the device
    rest, has = {k: v for k, v in aux.items() if k not in means}, jnp.bool_(True) if weight is None else jnp.any(weight > 0)
    rest = of_first_device(rest, {k: old[k] for k in rest}, has, axis_name) if rest else {}
    if weight is None:
        return {**lax.pmean(means, axis_name), **rest}
    devices = lax.psum(has.astype(jnp.float32), axis_name)
    summed = lax.psum({k: jnp.where(has, v, jnp.zeros_like(v)) for k, v in means.items()}, axis_name)
    means = {k: jnp.where(devices > 0, v / jnp.maximum(devices, 1).astype(v.dtype), old[k]) for k, v in summed.items()}
    return {**means, **rest}


def of_first_device(values: Any, otherwise: Any, has: Array, axis_name: str) -> Any:
    """Return the values of the first device for which `has` is true, on all devices; `otherwise` if there is none.

    Args:
        values: pytree of integers, bools and keys of this device.
        otherwise: the same pytree, equal on all devices.
        has: bool scalar of this device.
        axis_name: name of the device axis.
    """
    number, count = lax.axis_index(axis_name), lax.psum(1, axis_name)
    first = lax.pmin(jnp.where(has, number, count), axis_name)

    def broadcast(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(broadcast(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        values = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
        return lax.psum(jnp.where(number == first, values, jnp.zeros_like(values)), axis_name).astype(x.dtype)

    return jax.tree.map(lambda x, other: jnp.where(first < count, broadcast(x), other), values, otherwise)


def _scaled(g: Array, factor: Any, exact: bool) -> Array:
    # jfit's optimizers compute in float32: rescale 16-bit gradients in float32 too, to keep their precision.
    g = wide(g) if exact and is_small(g) else g
    return g * jnp.asarray(factor, g.dtype)


def _norm(arrays: Params) -> Array:
    return optax.global_norm(jax.tree.map(wide, arrays)).astype(float)


def _within(rows: SparseRows, size: int) -> Array:
    """The values of coalesced rows, with zeros for those that are not in the table."""
    return jnp.where((rows.indices < size).reshape(-1, *(1,) * (rows.values.ndim - 1)), rows.values, 0)


def _clip(gradients: Params, norm: Any, value: Any) -> Params:
    if norm is not None:
        scale = jnp.minimum(1.0, norm / jnp.maximum(optax.global_norm(gradients), 1e-30))
        gradients = jax.tree.map(lambda g: g * scale.astype(g.dtype), gradients)
    if value is not None:
        gradients = jax.tree.map(lambda g: jnp.clip(g, -value, value), gradients)
    return gradients
