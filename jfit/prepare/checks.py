"""Checks of a model against its data, before anything is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from jfit.data import ArrayData, Batch, StreamData
from jfit.data.batch import is_array, rows
from jfit.feed.batches import labels_of
from jfit.lowering.model import Model, Plan, verified_plan
from jfit.prepare.options import FitOptions
from jfit.step.batch_check import BatchLabels, check_model_labels
from jfit.step.state import TrainState


def checked_plan(model: Model, data: ArrayData | StreamData, probe: Mapping[str, Any], state: TrainState) -> Plan:
    """Infer the shapes of the model for the first batch, and check its heads and the labels before anything is compiled.

    Args:
        model: the `Model` to train.
        data: the training data.  Labels and row indices of all rows are checked if it is an `ArrayData`, else those of the
            first batch.
        probe: inputs of the first batch by name.
        state: parameters and auxiliary states, to test on `probe` whether rows affect each other where that is in question.

    Returns:
        Plan: shapes and row layouts of the outputs.

    Raises:
        ValueError: no output is a loss head, a label is not a valid class index, or an index is not in its table.
    """
    plan = verified_plan(model, state.params, state.aux, probe)
    check_heads(model)
    labels = labels_of(model, data)
    if labels is not None:
        mapped = data.mapped if isinstance(data, ArrayData) else set()  # they are checked when they are read
        check_model_labels(model, {k: v for k, v in labels.items() if k not in mapped}, plan)
    elif isinstance(data, ArrayData):  # labels on disk: the others are checked when they are read
        BatchLabels(model).check(Batch(dict(probe)), "the first batch")
    else:
        BatchLabels(model).check(data.peek(0), "batch 0 of epoch 0")
    return plan


def check_heads(model: Model) -> None:
    """Raise a ValueError if no output of a model is a loss head."""
    if model.joint_loss is None and all(o.kind == "plain" for o in model.outputs):
        raise ValueError(
            f"none of the outputs {[o.name for o in model.outputs]} is a loss head, so there is no gradient to train with; add "
            "a SoftmaxOutput, a RegressionOutput or MakeLoss to the network, or pass a function as model with loss="
        )


def check_trainable(model: Model, state: TrainState) -> None:
    if model.symbol is None and not any(jax.numpy.issubdtype(x.dtype, jax.numpy.inexact) for x in state.params.values()):
        dtypes = {name: str(x.dtype) for name, x in list(state.params.items())[:10]}
        raise ValueError(f"none of the parameters {dtypes} is floating-point, so there is nothing to train; convert them")


def check_host_metrics(metrics: Sequence[Any], micro_batches: int) -> None:
    if metrics and micro_batches > 1:
        raise ValueError(
            f"metric {metrics[0].name!r} runs on the host and needs the outputs of a whole batch, but with micro_batches="
            f"{micro_batches} they are not kept; write it as a jfit.metrics.Metric of JAX functions, or set micro_batches=1"
        )


def rows_of_parts(model: Model, data: Any, probe: Mapping[str, Any], options: FitOptions) -> dict[str, int]:
    """Numbers of rows that are split over the axis "data" of a mesh, by a description for error messages."""
    is_array, batch_size, eval_batch_size = isinstance(data, ArrayData), options.batch_size, options.eval_batch_size
    micro_batches = options.micro_batches
    size = batch_size if is_array else rows(Batch(dict(probe)), model.batch_axes)
    what = f"a batch (batch_size={batch_size})" if is_array else "the first batch"
    if micro_batches > 1 and size % micro_batches == 0:
        what, size = f"each of the {micro_batches} micro-batches of {what}", size // micro_batches
    evaluated = {} if eval_batch_size is None else {f"an evaluation batch (eval_batch_size={eval_batch_size})": eval_batch_size}
    return {what: size} | evaluated


def may_be_labels(data: Any, inputs: Any) -> bool:
    """Whether data is an array or a list of numbers with as many rows as `inputs`, and so may be their labels."""
    flat = isinstance(data, list) and bool(data) and not hasattr(data[0], "__len__")
    if not (flat or (is_array(data) and getattr(data, "ndim", 0))) or isinstance(inputs, tuple | Mapping):
        return False
    return hasattr(inputs, "__len__") and len(data) == len(inputs)


@contextlib.contextmanager
def in_eval_data() -> Iterator[None]:
    """Context manager that adds to a ValueError that it is about the evaluation data."""
    try:
        yield
    except ValueError as error:
        error.add_note("jfit: this error is in eval_data; its rows must have the same shapes as the rows of the training data")
        raise
