"""Steps with several updates, one after the other, each of its own parameters by its own loss: GANs, actor and critic."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.checks import matching, positive_integer
from jfit.metrics.core import added, exact
from jfit.optim import EmaState, Optimizer
from jfit.optim.core import StateSpec
from jfit.step.state import TrainState, typed_key
from jfit.step.totals import Totals, zero_totals
from jfit.step.train import StepOut, TrainStep


@dataclasses.dataclass(frozen=True)
class Update:
    """One of several updates of a step: θ_k ← θ_k − η · u_k( Σᵢ wᵢ ∂ℓ_kᵢ/∂θ_k / Σᵢ wᵢ ) for the parameters θ_k that it trains.

    `jfit.fit(model, data, updates=[...])` trains with a list of these, for a model that is a function or a module:

    - One step is one batch.  It runs the updates in their order, all with this batch; a later update sees the parameters and
      auxiliary states that earlier ones of the same step have written.  `state.step`, schedules and callbacks count steps.
    - An update with `every=k` runs in the steps k, 2k, 3k, ... (counted from 1).  In the others it costs nothing, neither its
      forward nor its backward pass.  The first update runs in every step.
    - Each update differentiates its own loss with respect to its own parameters; all others are constants.  Parameters that no
      update trains are not trained.  A parameter may be trained by several updates.
    - The updates share the parameters and the auxiliary states.  Each has its own optimizer state, with the count of its own
      updates.  Update number k, from 0, draws its random numbers with `jax.random.fold_in(state.key, k)` in place of the key of
      the run: its key in a step is that folded with the number of the step, and then with the number of the micro-batch.
    - `state.base_lr` is the learning rate of the first optimizer by name.  Those of the other optimizers by name keep their
      ratio to it; a `schedule` or `run.set_base_lr` changes all of them by the same factor.  If the first update has an
      optimizer by name, the history has its learning rate as "lr".
    - "loss", the metrics and the evaluation are those of the first update.  The mean loss of each update over the steps in
      which it ran is logged as "<name>_loss", and values that its loss function returns as "<name>_<value>", in "log" events
      and rows of epochs.  Rows of single steps (`log_every`) have only the loss and the values of the first update.
    - `clip_norm`, `clip_value`, `regularizers` and `micro_batches` of `fit` are those of each update.  `ema` averages the
      parameters after all updates of a step.
    - The state of all updates is in the `TrainState`, so that a resumed run has the same bits.

    Args:
        params: name or glob pattern, or a list of these, of the parameters that it trains (names as in `run.named_params`).
        loss: the loss, as the argument `loss` of `jfit.fit`.
        optimizer: the optimizer, as the argument of `jfit.fit`.
        optimizer_params: parameters of an optimizer by name, as the argument of `jfit.fit`.
        every: number of steps from one run of the update to the next, an integer: 2 runs it in the steps 2, 4, 6, ...
        name: name in the history.  Default: the first pattern, without "*", "/", "." and "_" at its end: "critic" for
            "critic/*".

    Raises:
        ValueError: `every` is no positive integer.

    Example:
        >>> import jax, jax.numpy as jnp, jfit, numpy as np, optax
        >>> def gan(params, x, key):
        ...     fake = params["generator"] * jax.random.normal(key, x.shape)
        ...     return {"real": x * params["critic"], "fake": fake * params["critic"]}
        >>> run = jfit.fit(gan, {"x": np.ones((64, 1), "float32")}, params={"critic": jnp.ones(()), "generator": jnp.ones(())},
        ...     num_epoch=2, progress=False, updates=[
        ...         jfit.Update("critic", lambda out, batch: (out["fake"] - out["real"])[:, 0], optax.adam(1e-2)),
        ...         jfit.Update("generator", lambda out, batch: -out["fake"][:, 0], "sgd", every=2)])
        >>> sorted(name for name in run.history.epochs[-1] if "loss" in name)
        ['critic_loss', 'generator_loss', 'loss']
    """

    params: str | Sequence[str]
    loss: Any = None
    optimizer: Any = "sgd"
    optimizer_params: Mapping[str, Any] | None = None
    every: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        positive_integer(every=self.every)
        first = self.params if isinstance(self.params, str) else self.params[0]
        vars(self)["name"] = self.name or first.rstrip("*").rstrip("/._") or "update"

    def select(self, names: Sequence[str]) -> list[str]:
        """Return the names of the parameters that this update trains; a ValueError is raised for a pattern without any."""
        patterns = [self.params] if isinstance(self.params, str) else self.params
        found = {n for p in patterns for n in matching(p, names, f"update {self.name!r}: {p!r} matches no trainable parameter")}
        return [name for name in names if name in found]


def states_of(updates: Sequence[Update], optimizers: Sequence[Optimizer]) -> Optimizer:
    """Make the `Optimizer` whose `init` makes the states of all updates, a tuple; a `UpdatesStep` updates them.

    Args:
        updates: the updates.
        optimizers: their optimizers of parameters by name.
    """

    def init(params: Mapping[str, Array]) -> tuple[Any, ...]:
        names = list(params)
        parts = [{n: params[n] for n in u.select(names)} for u in updates]
        return tuple([o.init(part) for o, part in zip(optimizers, parts, strict=True)])

    def update(*_: Any, **__: Any) -> Any:
        raise TypeError("the updates of a step have an optimizer each")

    base = next((o.base_lr for o in optimizers if o.takes_rate), None)
    name = ", ".join(f"{u.name}: {o.name}" for u, o in zip(updates, optimizers, strict=True))
    spec = StateSpec({}, False, None)  # as optimizers of parameters by name, which `in_structure` does not wrap
    multiplied = {kind: [n for o in optimizers for n in o.multiplied.get(kind, ())] for kind in ("lr_mult", "wd_mult")}
    fields = {"takes_rate": base is not None, "base_lr": base, "name": name, "state_spec": spec, "multiplied": multiplied}
    made = Optimizer(init, update, **fields)
    return made.keyed(states_of, tuple(u.params for u in updates), tuple(optimizers))


@dataclasses.dataclass(frozen=True)
class UpdatesStep:
    """A training step of several updates, see `Update`: called as `step(state, batch, axis_name=None) -> (state, out)`.

    Attributes:
        steps: the training step of each update, in which the parameters of the others are frozen.
        names: name of each update.
        every: number of steps from one run of each update to the next; 1 for the first one.
        average: `average(state, params, inner) -> EmaState` if the parameters are averaged, else None.
    """

    steps: tuple[TrainStep, ...]
    names: tuple[str, ...]
    every: tuple[int, ...]
    average: Any = None

    @property
    def reduce(self) -> Any:
        """How gradients are reduced over devices, see `TrainStep`."""
        return self.steps[0].reduce

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass of an update computes values again."""
        return any(step.recomputes for step in self.steps)

    @property
    def logged(self) -> list[str]:
        """Names of the values that are logged: the loss of each update, and what its loss function returns."""
        return [f"{n}_{key}" for n, step in zip(self.names, self.steps, strict=True) for key in ("loss", *step.model.logged)]

    def __call__(self, state: TrainState, batch: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
        """Compute all updates of one step: (new state, results of the first update)."""
        averages = state.opt_state if isinstance(state.opt_state, EmaState) else None
        inner = list(state.opt_state if averages is None else averages.inner)
        current, counted, outs, sums = state, state.loss_scale, list[StepOut](), list[Totals]()
        for i, (step, every) in enumerate(zip(self.steps, self.every, strict=True)):
            blank = zero_totals((), step.model.logged, step.model.num_losses)
            of_batch = blank._replace(metrics=() if i else state.metrics.metrics)
            key = jax.random.fold_in(typed_key(state.key), i)
            # each update counts the steps, without those that the first one skipped because of an overflow in float16
            scale = current.loss_scale and current.loss_scale._replace(skipped=state.loss_scale.skipped)  # pyright: ignore
            before = current._replace(step=state.step, opt_state=inner[i], metrics=of_batch, key=key, loss_scale=scale)
            run = functools.partial(step, batch=batch, axis_name=axis_name)
            if every == 1:
                current, out = run(before)
                outs.append(out)
            else:
                is_turn = (state.step + 1) % every == 0
                current = lax.cond(is_turn, lambda s, run=run: run(s)[0], lambda s: s._replace(step=s.step + 1), before)
            counted = counted if i else current.loss_scale
            inner[i] = current.opt_state
            sums.append(current.metrics)
        opt_state: Any = tuple(inner)
        if averages is not None:
            opt_state = self.average(averages, {name: current.params[name] for name in averages.ema_params}, opt_state)
        totals = self._folded(state.metrics, sums)
        scale = counted and current.loss_scale._replace(skipped=counted.skipped)  # pyright: ignore
        after = current._replace(opt_state=opt_state, metrics=totals, key=state.key, loss_scale=scale)
        return after, outs[0]._replace(first_bad_step=totals.first_bad_step)

    def _folded(self, totals: Totals, sums: Sequence[Totals]) -> Totals:
        """Add the sums of one batch, those of each update, to the running sums."""
        logged, bad = dict(totals.logged), totals.first_bad_step
        for name, of_batch in zip(self.names, sums, strict=True):
            total, count = exact(of_batch.loss)
            if count.ndim:  # the sum of several mean losses
                total, count = jnp.sum(total / jnp.maximum(count, 1e-30)) * count[0], count[0]
            values = {"loss": jnp.stack([total, count])} | {key: exact(x) for key, x in of_batch.logged.items()}
            logged |= {f"{name}_{key}": added(logged[f"{name}_{key}"], x) for key, x in values.items()}
            bad = jnp.where(bad < 0, of_batch.first_bad_step, bad)
        return Totals(added(totals.loss, exact(sums[0].loss)), bad, sums[0].metrics, logged)
