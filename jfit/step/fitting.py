"""Metrics that fit a model: what its outputs and labels mean decides which metric "auto" is, and how metrics read them.

Outputs of a graph are read as in MXNet.  Those of a function are described by `jfit.metrics.targets.Target`: its loss says
whether they are logits, and the label values whether labels are one-hot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.lowering.loss_kinds import LossKind, are_classes, are_elements, kind_of, other_values
from jfit.lowering.model import Model, Output, specs_of
from jfit.metrics import OutputMetric, create, sized
from jfit.metrics.by_output import located
from jfit.metrics.targets import AUTO, Target, automatic, target_of
from jfit.step.totals import head_labels, shown_heads


def needs_inputs(metrics: Sequence[Any], model: Model) -> bool:
    """Whether `choose_metrics` needs the inputs of a batch."""
    return any(
        getattr(m, "sized", None) is not None
        or (model.symbol is None and (isinstance(m, OutputMetric) or m is AUTO or getattr(m, "fitted", None) is not None))
        for m in metrics
    )


def choose_metrics(
    metrics: Sequence[Any], model: Model, inputs: Mapping[str, Any], labels: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], str]:
    """Replace "auto" by a metric, adapt the metrics to the outputs of a function, and set numbers of classes.

    Args:
        metrics: metrics as `jfit.metrics.get` returns them.
        model: the model.
        inputs: inputs of one batch by name; only shapes and dtypes are used if `labels` is passed.  May be empty if
            `needs_inputs` is False.
        labels: all label values by name.  Default: those of the batch.

    Returns:
        (metrics, one line that says what "auto" is, or "").

    Raises:
        ValueError: a metric is not defined for these outputs and labels.

    Example:
        >>> import jfit, numpy as np, optax
        >>> model = jfit.Model.from_function(lambda p, x: x * p["w"], loss=optax.l2_loss, params={"w": np.ones(())})
        >>> batch = {"x": np.ones(3, "float32"), "label": np.array([0.5, 1.5, 2.0], "float32")}
        >>> choose_metrics(jfit.metrics.get("auto"), model, batch)[1]
        "eval_metric='auto': mse (labels (rows,): real numbers; outputs (rows,))"
    """
    if model.symbol is not None:
        if named := [m.output for m in metrics if isinstance(m, OutputMetric)]:
            raise ValueError(f"eval_metric is a dict with {named[0]!r}, but the metrics of a graph are of all its heads")
        # "auto" is mse if all heads are regressions, else accuracy
        heads = [model.outputs[i] for i in shown_heads(model, inputs)]
        name = "mse" if heads and all(o.task == "values" for o in heads) else "acc"
        return _sized([create(name) if m is AUTO else m for m in metrics], model, inputs), ""
    metrics, choice = [_of_rows(m) for m in metrics], ""
    if needs_inputs(metrics, model):
        names = [model.outputs[i].name for i in shown_heads(model, inputs)]
        if len(names) > 1:
            metrics = [one for m in metrics for one in ([OutputMetric(n, AUTO) for n in names] if m is AUTO else [m])]
        metrics = located(metrics, names)
        targets = targets_of(model, inputs, inputs if labels is None else labels)
        metrics, choice = _replaced(metrics, targets)
        metrics = _fitted(metrics, targets)
    if metrics and not shown_heads(model, inputs):
        raise ValueError(f"metric {metrics[0].name!r} needs labels, and no output has one; pass eval_metric=None, or labels")
    for metric in metrics:
        if metric.name in model.logged and not (isinstance(metric, OutputMetric) and metric.name.endswith("_loss")):
            raise ValueError(f"loss returned the value {metric.name!r} to log, which is also the name of a metric; rename it")
    return _sized(metrics, model, inputs), choice


def paired(model: Model, metrics: Sequence[Any], inputs: Mapping[str, Any]) -> Model:
    """Assign the only label of a function with several outputs to the outputs for which there are metrics.

    One function `loss(outputs, label)` does not say which output the label belongs to.  A metric by output name does, and else
    the shapes, if the label matches one output only.

    Args:
        model: the model, bound to a batch (`Model.bound`).
        metrics: metrics as `jfit.metrics.get` returns them.
        inputs: inputs of one batch by name.

    Returns:
        `Model` whose outputs have that label; the same model if its outputs have labels, or there is no single label.

    Raises:
        ValueError: a metric is not of an output by name, and the label matches no output or several.
    """
    metrics = [m for m in metrics if m is not AUTO and getattr(m, "metric", None) is not AUTO]
    if model.joint_loss is None or not metrics or len(model.outputs) < 2 or any(o.label for o in model.outputs):
        return model
    labels = [n for n in model.labels if model.structure is None or n not in (model.structure.only_loss or ())]
    if len(labels) != 1 or labels[0] not in inputs:
        return model
    label, names = labels[0], {m.output for m in metrics if isinstance(m, OutputMetric)}
    if not names:
        shapes, shape = model.plan(specs_of(inputs)).shapes, tuple(np.shape(inputs[label]))
        matches = [
            o.name
            for o, s in zip(model.outputs, shapes, strict=True)
            if are_classes(s.shape, shape) or are_elements(s.shape, shape)
        ]
        if len(matches) != 1:
            every, found = [o.name for o in model.outputs], "none of them" if not matches else str(matches)
            raise ValueError(
                f"metric {metrics[0].name}: the model has the outputs {every} and one label of shape {shape}, which matches "
                f"{found}; pass eval_metric={{{(matches or every)[0]!r}: ...}}, the metric by the name of its output"
            )
        names = set(matches)
    return model._replace(outputs=tuple(o._replace(label=label) if o.name in names else o for o in model.outputs))


def _sized(metrics: Sequence[Any], model: Model, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    if all(getattr(m, "sized", None) is None for m in metrics):
        return tuple(metrics)
    outputs = model.plan(specs_of(inputs)).shapes
    shapes = [outputs[i].shape for i in shown_heads(model, inputs)]
    return sized(metrics, [x.shape for x in head_labels(model, inputs)], shapes)


def _of_rows(metric: Any) -> Any:
    """The metric over all rows instead of the mean over batches, if it was chosen by name without `average`."""
    if isinstance(metric, OutputMetric):
        return metric._replace(metric=_of_rows(metric.metric))
    return metric if getattr(metric, "of_rows", None) is None else metric.of_rows


def for_batch(metrics: Sequence[Any], model: Model, heads: Sequence[Any], inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Adapt metrics that were not adapted by `choose_metrics`, in a traced step, where label values are unknown.

    Args:
        metrics: metrics that run on the devices.
        model: the model.
        heads: (labels, outputs, weights) of the loss heads.
        inputs: inputs of the batch by name.
    """
    if model.symbol is not None or not needs_inputs(metrics, model) or len(heads[0]) != len(heads[1]):
        return tuple(metrics)
    shown = [model.outputs[i] for i in shown_heads(model, inputs)]
    each = zip(shown, heads[0], heads[1], strict=True)
    targets = [_target(o, value, label, None) for o, label, value in each]
    return tuple(_fitted(located(metrics, [out.name for out in shown]), targets))


def targets_of(model: Model, inputs: Mapping[str, Any], labels: Mapping[str, Any]) -> list[Target]:
    """What each output with a label means, for a batch of these inputs and these label values."""
    specs = specs_of(inputs)
    outputs, targets = model.plan(specs).shapes, []
    for at in shown_heads(model, inputs):
        out = model.outputs[at]
        if out.label is not None and out.label in inputs:
            targets.append(_target(out, outputs[at], specs[out.label], np.asarray(labels[out.label])))
    return targets


def _target(out: Output, output: Any, label: Any, values: Any) -> Target:
    """What an output and its label mean; `values` are the labels, None if they are unknown."""
    output, label = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (output, label))
    ignored = () if out.ignore_label is None else (int(out.ignore_label),)
    kind, loss, name = LossKind(out.task, out.scores, ignored), out.loss, out.label
    if out.task is None and loss is not None and name is not None:
        others = other_values(values, output.shape[-1]) if values is not None and are_classes(output.shape, label.shape) else ()
        kind = kind_of(lambda o, y: loss(o, {name: y})[0], output, label, others)
        kind = kind._replace(ignored=tuple(dict.fromkeys((*ignored, *kind.ignored))))
    return target_of(kind, output, label, values)


def _fitted(metrics: Sequence[Any], targets: Sequence[Target]) -> list[Any]:
    return [m if getattr(m, "fitted", None) is None else m.fitted(targets) for m in metrics]


def _replaced(metrics: Sequence[Any], targets: Sequence[Target]) -> tuple[list[Any], str]:
    """Replace "auto" by a metric, or by none; also return the line that says so, or ""."""
    result, lines = [], []
    for metric in metrics:
        of_output = isinstance(metric, OutputMetric)
        if (metric.metric if of_output else metric) is not AUTO:
            result.append(metric)
            continue
        name, reason = automatic([t for at, t in enumerate(targets) if not of_output or at == metric.at])
        chosen = [] if name is None else [create(name, **({"average": "micro"} if name == "mse" else {}))]
        chosen = [metric._replace(metric=m) if of_output else m for m in chosen]
        result += chosen
        absent = f"none for {metric.output!r}" if of_output else "none"
        lines.append(f"{chosen[0].name if chosen else absent} ({reason})")
    return result, f"eval_metric='auto': {', '.join(lines)}" if lines else ""
