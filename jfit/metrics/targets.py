"""What the outputs and labels of a function mean, and metrics adapted to it.

A metric of MXNet expects class probabilities on axis 1 and class indices as labels.  A function may also return logits, have
its classes on the last axis, and take one-hot, binary or multi-label labels.  `Target` describes one output and its label;
`Metric.fitted` is called with the targets of a model and returns the metric for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfit.lowering.loss_kinds import LossKind, are_classes, are_elements
from jfit.metrics.core import Metric, wide
from jfit.programs import Made, made

FORMS = {
    "classes": "class indices",
    "one-hot": "one-hot or class probabilities",
    "binary": "0 or 1 for each output",
    "same": "class indices, as the outputs",
    "values": "real numbers",
    "unknown": "of unknown meaning",
    "mismatch": "of a shape that does not match",
}
MAX_VALUES = 1 << 22  # number of label values that are read to tell one-hot labels from others


class Target(NamedTuple):
    """What one output of a model and its label mean.

    Attributes:
        form: what the labels are, a key of `FORMS`.
        scores: "logits", "probabilities", or None (unknown, or neither).
        output: shape of the output, with the batch axis.
        label: shape of the label, with the batch axis.
        ignored: class labels that are not counted.
        sure: whether the loss confirms that `form` is meant; shapes and values alone only suggest it.
        looks: form of the label values if the outputs estimate real numbers: "one-hot", "binary" or None.
        fraction: a label value that is not a whole number (of binary labels: not from 0 to 1, nor -1 and 1), or None.

    Example:
        >>> Target("classes", "logits", (8, 3), (8,)).text()
        'labels (rows,): class indices; outputs (rows, 3): logits'
    """

    form: str
    scores: str | None
    output: tuple[int, ...]
    label: tuple[int, ...]
    ignored: tuple[int, ...] = ()
    sure: bool = True
    looks: str | None = None
    fraction: float | None = None

    def text(self) -> str:
        """Describe label and output in one line."""
        form = "0 or 1 for each of the outputs (multi-label)" if _is_multi_label(self) else FORMS[self.form]
        ignored = f", {' and '.join(map(str, self.ignored))} ignored" if self.ignored else ""
        scores = f": {self.scores}" if self.scores else ""
        return f"labels {_rows(self.label)}: {form}{ignored}; outputs {_rows(self.output)}{scores}"


def _rows(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['rows', *map(str, shape[1:])])}{',' if len(shape) == 1 else ''})"


def _is_multi_label(target: Target) -> bool:
    return target.form == "binary" and len(target.output) > 1 and target.output[-1] > 1


def target_of(kind: LossKind, output: Any, label: Any, values: np.ndarray | None = None) -> Target:
    """Describe an output and its label.

    Args:
        kind: what the loss says.
        output: shape and dtype of the output.
        label: shape and dtype of the label.
        values: label values, or None if they are unknown (in a traced function).

    Returns:
        `Target`.

    Example:
        >>> spec = jax.ShapeDtypeStruct
        >>> target_of(LossKind("binary", "logits"), spec((8, 3), jnp.float32), spec((8, 3), jnp.float32)).form
        'binary'
    """
    shapes = output.shape, label.shape
    values = None if values is None else _sample(values).astype(np.float64)
    if values is not None and kind.ignored and shapes[0] != shapes[1]:
        values = values[~np.isin(values, kind.ignored)]
    parts = [] if values is None else values[values != np.floor(values)]
    fraction = float(parts[0]) if len(parts) else None
    if are_classes(*shapes):
        return Target("classes", kind.scores, *shapes, kind.ignored, kind.task == "classes", None, fraction)
    if not are_elements(*shapes):
        return Target("mismatch", kind.scores, *shapes)
    looks = _looks(values, shapes[0])
    if values is not None and kind.task == "binary":
        valid = ((values >= 0) & (values <= 1)) | np.isin(values, kind.ignored) | _is_sign(values)
        fraction = None if valid.all() else float(values[~valid][0])
    forms = {"classes": "one-hot", "binary": "binary", "values": "values", "rising": looks}
    form = forms.get(kind.task or "")
    if form is not None:
        return Target(form, kind.scores, *shapes, kind.ignored, True, looks, fraction)
    if not jnp.issubdtype(output.dtype, jnp.floating):
        return Target("same", None, *shapes, sure=False)
    form = looks if values is None or looks else "values"
    return Target(form or "unknown", None, *shapes, sure=False, fraction=fraction if form == "values" else None)


def _sample(values: np.ndarray) -> np.ndarray:
    """Evenly spaced rows of labels: all of them, unless they are many."""
    step = max(1, math.ceil(values.size / MAX_VALUES))
    return np.asarray(values[::step])


def _looks(values: np.ndarray | None, output: tuple[int, ...]) -> str | None:
    if values is not None and values.size and _is_sign(values):
        return "binary"
    if values is None or not values.size or not ((values == 0) | (values == 1)).all():
        return None
    rows = values.reshape(-1, output[-1]) if len(output) > 1 and output[-1] > 1 else None
    return "one-hot" if rows is not None and (rows.sum(axis=1) == 1).all() else "binary"


def _is_sign(values: np.ndarray) -> bool:
    """Whether all labels are -1 or 1, and some are -1."""
    return bool((np.abs(values) == 1).all() and (values < 0).any())


# ------------------------------------------------------------------------------------------------ metrics of classes
def for_classes(metric: Any, targets: Sequence[Target], from_logits: bool | None = None) -> Any:
    """Adapt a metric of predicted classes: it gets class indices (n,) and scores (n, classes) or predictions 0 or 1, (n,).

    Args:
        metric: metric whose `stats` expect that.
        targets: what each output and label means.
        from_logits: whether binary outputs are logits; None: as the target says.

    Raises:
        ValueError: the labels are not classes, or the threshold of binary outputs is unknown.
    """
    targets = [check_classes(metric.name, _with_scores(t, from_logits)) for t in targets]
    return canonical(metric, targets, _class_arrays)


def canonical(metric: Any, targets: Sequence[Target], arrays: Callable[..., Any]) -> Any:
    """Return the metric with `arrays(target, label, output, weight) -> (label, output, weight)` applied to its arguments."""
    if metric.sized is not None:
        shapes = [_flat_shapes(t) for t in targets]
        metric = made(metric.sized)([label for label, _ in shapes], [output for _, output in shapes])
    stats = metric.stats
    of_targets = lambda labels, outputs, weights: stats(*_converted(arrays, targets, labels, outputs, weights))  # noqa: E731
    return metric._replace(stats=Made(of_targets, "canonical", stats, targets, arrays), fitted=None)


def _converted(arrays: Callable[..., Any], targets: Sequence[Target], labels: Any, outputs: Any, weights: Any) -> Any:
    weights = [None] * len(outputs) if weights is None else weights
    each = [arrays(*one) for one in zip(targets, labels, outputs, weights, strict=True)]
    return tuple(zip(*each, strict=True))


def _flat_shapes(target: Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of label and output after `_class_arrays`."""
    if target.form in ("classes", "one-hot"):
        count = math.prod(target.output[:-1])
        return (count,), (count, target.output[-1])
    count = math.prod(target.output)
    return (count,), (count,)


def _class_arrays(target: Target, label: Any, output: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Label (n,), scores (n, classes) or predictions 0 or 1 (n,), and weights (n,) or None."""
    if target.form in ("classes", "one-hot"):
        label, weight = counted_labels(target, label, output.shape[:-1], weight)
        return label, output.reshape(-1, output.shape[-1]), weight
    each = spread_rows(weight, output.shape)
    if target.form == "same":
        label, each = _without_ignored(target, label.reshape(-1).astype(jnp.int32), each)
        return label, output.reshape(-1), each
    label, each = _without_ignored(target, label.reshape(-1), each)
    positive = output.reshape(-1) > (0.0 if target.scores == "logits" else 0.5)
    return (label > 0.5).astype(jnp.int32), positive.astype(jnp.float32), each


def counted_labels(target: Target, label: Any, shape: tuple[int, ...], weight: Any) -> tuple[Any, Any]:
    """Class indices (n,) and weights (n,) or None, 0 for ignored labels; `shape` is that of the output without classes."""
    if target.form == "one-hot":
        weight = spread_rows(weight, shape)
        counts = label.sum(axis=-1).reshape(-1) > 0  # the one-hot label of an ignored class is 0, and so is its loss
        weight = counts.astype(jnp.float32) if weight is None else jnp.where(counts, weight, 0)
        return jnp.argmax(label, axis=-1).reshape(-1), weight
    return _without_ignored(target, label.reshape(-1).astype(jnp.int32), spread_rows(weight, shape))


def _without_ignored(target: Target, label: Any, weight: Any) -> tuple[Any, Any]:
    """Labels with ignored ones replaced by 0, and weights that are 0 there; both (n,)."""
    if not target.ignored:
        return label, weight
    counts = jnp.ones(label.shape, bool)
    for value in target.ignored:
        counts = counts & (label != value)
    weight = counts.astype(jnp.float32) if weight is None else jnp.where(counts, weight, 0)
    return jnp.where(counts, label, 0), weight


def spread_rows(weight: Any, shape: tuple[int, ...]) -> Any:
    """Repeat weights of rows, or of the first axes of `shape`, for each element of an array of that shape: (n,), or None."""
    if weight is None:
        return None
    return jnp.broadcast_to(weight.reshape(*weight.shape, *(1,) * (len(shape) - weight.ndim)), shape).reshape(-1)


def _with_scores(target: Target, from_logits: bool | None) -> Target:
    return target if from_logits is None else target._replace(scores="logits" if from_logits else "probabilities")


def with_ignored(targets: Sequence[Target], ignore_index: int | None) -> list[Target]:
    """Add the label value that a metric ignores to those that the loss ignores."""
    if ignore_index is None:
        return list(targets)
    return [t._replace(ignored=tuple(dict.fromkeys((*t.ignored, int(ignore_index))))) for t in targets]


def check_classes(name: str, target: Target) -> Target:
    """Return the target with a form of classes that `_class_arrays` accepts, or raise a ValueError that says what to pass."""
    if target.form == "values" and target.looks is not None:
        target = target._replace(form=target.looks, scores="probabilities")
    such = "" if target.fraction is None else f" (such as {target.fraction:.6g})"
    problem = {
        "mismatch": "have another shape; pass class indices, one-hot labels, or 0 and 1 for each output, or for classes on "
        "another axis jfit.metrics.get('acc', axis=1)",
        "values": f"are real numbers{such}, not classes; pass integer class labels, or eval_metric='mse' for a regression",
        "classes": such and f"are not whole numbers{such}; pass integer class labels, or eval_metric='mse'",
        "binary": such and f"are not 0 or 1{such}; pass such labels, or eval_metric='mse' for a regression",
        "unknown": "have no meaning in the loss; pass integer class labels, or a loss such as optax.softmax_cross_entropy",
    }.get(target.form)
    if problem:
        raise ValueError(f"metric {name}: labels {_rows(target.label)} for outputs {_rows(target.output)} {problem}")
    if target.form == "binary" and target.scores is None:
        raise ValueError(unknown_scores(name, target))
    return target


def unknown_scores(name: str, target: Target) -> str:
    """The sentence that asks for `from_logits`."""
    problem = f"the loss does not say whether the outputs {_rows(target.output)} are logits or probabilities"
    return f"metric {name}: {problem}; pass from_logits=True (logits) or from_logits=False (probabilities)"


# ------------------------------------------------------------------------------------------------ metrics of probabilities
def for_likelihood(
    metric: Any, targets: Sequence[Target], penalty: Callable[[Any], Any], from_logits: bool | None, ignore_index: int | None
) -> Any:
    """Adapt a mean of losses, each -log(probability of the label): the metric gets the losses (n,) as its outputs.

    Args:
        metric: metric that is the mean of its outputs.
        targets: what each output and label means.
        penalty: the loss of a probability, such as -log(p + eps).
        from_logits: whether the outputs are logits; None: as the target says.
        ignore_index: class label that is not counted, or None.

    Raises:
        ValueError: the labels are not classes, or it is unknown whether the outputs are logits.
    """
    checked = [_with_scores(check_classes(metric.name, _with_scores(t, from_logits)), from_logits) for t in targets]
    for target, seen in zip(targets, checked, strict=True):
        guessed = target.form == "values" and from_logits is None  # labels of 0 and 1 in a loss of real numbers
        if guessed or seen.scores is None or seen.form == "same":
            raise ValueError(unknown_scores(metric.name, target))
    return canonical(metric, with_ignored(checked, ignore_index), functools.partial(_losses, penalty))


def _losses(penalty: Callable[[Any], Any], target: Target, label: Any, output: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Class indices (n,), losses (n,) and weights (n,) or None."""
    output, logits = wide(output), target.scores == "logits"
    if target.form == "binary":
        true = label.reshape(output.shape).astype(output.dtype)
        no, yes = (jax.nn.softplus(output), jax.nn.softplus(-output)) if logits else (penalty(1 - output), penalty(output))
        label, _, weight = _class_arrays(target, label, output, weight)
        return label, _expected(true, yes, no).reshape(-1), weight
    losses = -jax.nn.log_softmax(output) if logits else penalty(output)
    ids, weight = counted_labels(target, label, output.shape[:-1], weight)
    if target.form == "one-hot":
        return ids, jnp.where(label > 0, label * losses, 0.0).sum(axis=-1).reshape(-1), weight
    return ids, jnp.take_along_axis(losses.reshape(-1, output.shape[-1]), ids[:, None], 1)[:, 0], weight


def _expected(true: Any, yes: Any, no: Any) -> Any:
    """true * yes + (1 - true) * no, where 0 * inf is 0."""
    return jnp.where(true > 0, true * yes, 0.0) + jnp.where(true < 1, (1 - true) * no, 0.0)


# ------------------------------------------------------------------------------------------------ order of scores
def for_scores(make: Callable[[bool], Any], name: str, targets: Sequence[Target], logits: bool | None) -> Any:
    """Adapt a metric of the order of scores; it gets scores (n,) or (n, classes), and class indices (n,).

    Args:
        make: `make(logits) -> metric` for logits or probabilities.
        name: name of the metric.
        targets: what each output and label means.
        logits: whether the outputs are logits; None: as the target says.

    Raises:
        ValueError: the labels are not classes or multi-label, or it is unknown whether the outputs are logits.
    """
    targets = [check_classes(name, _with_scores(t, logits)) for t in targets]
    for target in targets:
        if _is_multi_label(target):
            outputs = f"outputs {_rows(target.output)} are multi-label"
            raise ValueError(f"metric {name}: {outputs}; pass a function (label, output) instead")
        if target.scores is None:
            raise ValueError(unknown_scores(name, target).replace("from_logits=", "logits="))
    return canonical(make(any(t.scores == "logits" for t in targets)), targets, _score_arrays)


def _score_arrays(target: Target, label: Any, output: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Label (n,), scores (n,) or (n, classes), weights (n,) or None."""
    label, _, weight = _class_arrays(target, label, output, weight)
    if target.form == "binary":
        return label, output.reshape(-1), weight
    output = output.reshape(-1, output.shape[-1])
    if target.scores != "logits" or output.shape[-1] == 2:
        return label, output, weight
    # log(p / (1 - p)) of each class, p = softmax(output): comparing logits of different rows would ignore the other classes
    shifted = output - output.max(axis=-1, keepdims=True)
    log_p = shifted - jnp.log(jnp.exp(shifted).sum(axis=-1, keepdims=True))
    return label, log_p - jnp.log(-jnp.expm1(jnp.minimum(log_p, -1e-37))), weight


# ------------------------------------------------------------------------------------------------ eval_metric="auto"
def _undecided(*_: Any) -> Any:
    raise ValueError("eval_metric='auto' is chosen by jfit.fit and jfit.score; pass a name such as 'acc'")


AUTO = Metric("auto", _undecided, _undecided, _undecided, _undecided)


def automatic(targets: Sequence[Target]) -> tuple[str | None, str]:
    """Choose "acc", "mse" or None for these outputs and labels; also return the reason."""
    reason = "; ".join(t.text() for t in targets)
    if targets and all(t.form == "values" and t.sure for t in targets):
        return "mse", reason
    known = ("classes", "one-hot", "binary")
    if targets and all(t.sure and t.form in known and (t.scores or t.form != "binary") for t in targets):
        return "acc", reason
    if not targets:
        return None, "there is no label"
    return None, f"the loss does not say what the outputs mean ({reason}); pass a metric by name, or None"
