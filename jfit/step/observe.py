"""Evaluation and prediction steps: forward passes without gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.data.batch import parts_of
from jfit.lowering.model import STEP, Aux, Model, Params, Policy, plan_of
from jfit.metrics import Metric
from jfit.programs import made
from jfit.step.regularizers import penalty, with_penalty
from jfit.step.slices import BatchShard, forward, part_number, shared_sums
from jfit.step.totals import Totals, fold


@made
def eval_step(
    model: Model,
    *,
    metrics: Sequence[Metric] = (),
    policy: Policy | str | None = None,
    outputs: bool = False,
    regularizers: Mapping[str, Callable[[Array], Any]] | None = None,
) -> Callable[..., Any]:
    """Make an evaluation step, a pure function that adds the loss and metrics of a batch to running sums.

    Args:
        model: the `Model` to evaluate.
        metrics: metrics to compute on the devices.
        policy: mixed precision, `Policy("bfloat16")` or "bfloat16"; None: no casts.
        outputs: also return the outputs of the model.
        regularizers: as for `train_step`, added to the mean loss; patterns choose among all parameters.

    Returns:
        `step(params, aux, totals, batch, number=0, axis_name=None) -> totals`, or `(totals, outputs)` with outputs=True.
        `totals` starts as `jfit.totals.zero_totals(metrics)`, with `losses=model.num_losses` for a model of several losses.
        `aux` has the number of updates, too, if the loss takes it (`jfit.step.observe.evaluated_aux`).
        `number` is the number of the batch: operators that draw random numbers in evaluation mode draw different numbers for
        every batch, and the same ones in every evaluation.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> state, acc = jfit.init_state(model, "sgd", batch), jfit.metrics.get("acc")
        >>> totals = jfit.eval_step(model, metrics=acc)(state.params, state.aux, jfit.totals.zero_totals(acc), batch)
        >>> sorted(jfit.totals.values(acc, totals))
        ['accuracy', 'loss']
    """
    metrics, unbound = tuple(metrics), model
    policy = Policy(policy) if isinstance(policy, str) else policy

    def step(params: Params, aux: Aux, totals: Totals, batch: Any, number: Any = 0, *, axis_name: str | None = None) -> Any:
        inputs, _, weight = parts_of(batch)
        model = unbound.bound(inputs)
        plan, key = plan_of(model, inputs).in_evaluation, _key(model, number)
        shard = BatchShard(inputs, weight, weight, row_ids=None)
        done = forward(model, params, aux, shard, axis_name, aux.get(STEP), key=key, train=False, policy=policy)
        _, shared = shared_sums(model, metrics, done, shard, plan.rows, part_number(axis_name))
        if axis_name is not None:
            shared = lax.psum(shared, axis_name)
        if regularizers:
            shared = with_penalty(shared, penalty(regularizers, params))
        totals = fold(metrics, totals, shared, jnp.zeros((), jnp.int32), jnp.zeros(()))
        return (totals, done.outputs) if outputs else totals

    return step


def evaluated_aux(model: Model, state: Any) -> Aux:
    """The auxiliary states of a `TrainState` for `eval_step`, with the number of updates for a loss that takes it."""
    return {**state.aux, STEP: state.step} if "takes_step" in model.traits else state.aux


@made
def predict_step(model: Model, *, policy: Policy | str | None = None) -> Callable[..., tuple[Array, ...]]:
    """Make a prediction step, a pure function that returns the outputs of the model for a batch.

    Args:
        model: the `Model` to run.
        policy: mixed precision, `Policy("bfloat16")` or "bfloat16"; None: no casts.

    Returns:
        `step(params, aux, batch, number=0, axis_name=None) -> tuple of outputs`.  The batch needs labels only if an output is
        computed from them.  `number` is the number of the batch, as in `eval_step`.

    Example:
        >>> import jfit, numpy as np
        >>> model = jfit.lower(jfit.sym.softmax(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3)))
        >>> batch = {"data": np.ones((2, 4), "float32")}
        >>> state = jfit.init_state(model, "sgd", batch)
        >>> jfit.predict_step(model)(state.params, state.aux, batch)[0].shape
        (2, 3)
    """
    policy, unbound = Policy(policy) if isinstance(policy, str) else policy, model

    def step(params: Params, aux: Aux, batch: Any, number: Any = 0, *, axis_name: str | None = None) -> tuple[Array, ...]:
        inputs, _, _ = parts_of(batch)
        model = unbound.bound(inputs)
        data = {k: v for k, v in inputs.items() if k in model.evaluation_inputs}
        return model.apply(params, aux, data, key=_key(model, number), train=False, axis_name=axis_name, policy=policy)[0]

    return step


def _key(model: Model, number: Any) -> Array | None:
    """Return the PRNG key of batch `number` for models that draw random numbers in evaluation mode, else None."""
    return jax.random.fold_in(jax.random.key(0), number) if "draws" in model.traits else None
