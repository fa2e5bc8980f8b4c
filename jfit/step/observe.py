"""One evaluation, one prediction: forward only, nothing learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.data.batch import parts_of
from jfit.lowering.model import Aux, Model, Params, Policy, loss_sums, plan_of
from jfit.metrics import Metric
from jfit.step.slices import Shared, part_of
from jfit.step.totals import Totals, fold, head_arguments, metric_stats


def eval_step(
    model: Model, *, metrics: Sequence[Metric] = (), policy: Policy | str | None = None, outputs: bool = False
) -> Callable[..., Any]:
    """(params, aux, totals, batch, number=0) -> totals with this batch folded in; nothing else changes.

    `number` counts the batches: operators that draw in evaluation too draw other numbers in each, the same in every pass.
    With outputs=True the result is (totals, outputs).

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

    def step(params: Params, aux: Aux, totals: Totals, batch: Any, number: Any = 0, *, axis_name: str | None = None) -> Any:
        inputs, _, weight = parts_of(batch)
        plan, key = plan_of(model, inputs), _key(model, number)
        values, _ = model.apply(params, aux, inputs, key=key, train=False, weight=weight, axis_name=axis_name, policy=policy)
        losses = loss_sums(model, values, inputs, weight, plan.rows)
        stats = metric_stats(metrics, *head_arguments(model, values, inputs, weight, plan.rows), *part_of(axis_name))
        shared = Shared(losses or (jnp.zeros(()), jnp.zeros(())), stats)
        if axis_name is not None:
            shared = lax.psum(shared, axis_name)
        totals = fold(metrics, totals, shared, jnp.zeros((), jnp.int32), jnp.zeros(()))
        return (totals, values) if outputs else totals

    return step


def predict_step(model: Model, *, policy: Policy | str | None = None) -> Callable[..., tuple[Array, ...]]:
    """(params, aux, batch, number=0) -> outputs, per row; labels are needed only where outputs are made of them.

    `number` counts the batches, as in `eval_step`.

    Example:
        >>> import jfit, numpy as np
        >>> model = jfit.lower(jfit.sym.softmax(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3)))
        >>> batch = {"data": np.ones((2, 4), "float32")}
        >>> state = jfit.init_state(model, "sgd", batch)
        >>> jfit.predict_step(model)(state.params, state.aux, batch)[0].shape
        (2, 3)
    """
    policy = Policy(policy) if isinstance(policy, str) else policy

    def step(params: Params, aux: Aux, batch: Any, number: Any = 0, *, axis_name: str | None = None) -> tuple[Array, ...]:
        inputs, _, _ = parts_of(batch)
        data = {k: v for k, v in inputs.items() if k in model.evaluation_inputs}
        return model.apply(params, aux, data, key=_key(model, number), train=False, axis_name=axis_name, policy=policy)[0]

    return step


def _key(model: Model, number: Any) -> Array | None:
    """The key of one batch for models that draw random numbers; the others get none, it would say that they train."""
    return jax.random.fold_in(jax.random.key(0), number) if "draws" in model.traits else None
