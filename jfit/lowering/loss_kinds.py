"""What a loss function of (output, label) says about the outputs of a model: class scores, binary scores or real values.

A known optax loss is recognized by identity, any other by its gradient at random outputs: that of the cross entropy of logits
is softmax(output) - label, for example.  Metrics need this: the cross entropy of logits is another function than that of
probabilities, and the threshold of a binary prediction is 0 or 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jfit import counters
from jfit.lowering.losses import known_loss

ROWS = 32  # of the random outputs
MAX_SIZE = 64  # longer axes of the random outputs are cut to this length
MAY_BE_IGNORED = (-1, -100, 0)  # labels that losses commonly ignore
UNUSUAL = 255  # the label that segmentation data sets ignore, -1 as an unsigned byte
MAX_OTHERS = 32  # maximum number of label values that are tested for being ignored
TOLERANCE = 1e-3


class LossKind(NamedTuple):
    """What a loss says about the outputs.

    Attributes:
        task: "classes" (axis -1 of the output contains a score per class), "binary" (each output is the score of a label 0 or
            1), "values" (each output estimates the label), "rising" (outputs rise with labels 0 or 1, of classes or binary),
            or None (unknown).
        scores: "logits", "probabilities", or None (neither, or unknown).
        ignored: class labels without influence on the loss.
    """

    task: str | None = None
    scores: str | None = None
    ignored: tuple[int, ...] = ()


UNKNOWN = LossKind()
VALUES = ("mse", "l2", "mae", "huber", "log_cosh")  # losses of `jfit.losses` whose output estimates the label
OPTAX_VALUES = ("squared_error", "l2_loss", "huber_loss", "log_cosh")


def known_kind(loss: Any) -> LossKind:
    """The kind of a loss of jfit or optax, `UNKNOWN` for any other function.

    Example:
        >>> known_kind(optax.l2_loss).task
        'values'
    """
    if any(loss is getattr(optax, name) for name in OPTAX_VALUES):
        return LossKind("values")
    known = known_loss(loss)
    if known is None:
        return UNKNOWN
    if known.name in VALUES:
        return LossKind("values")
    if known.scores is None:
        return UNKNOWN
    ignored = () if known.ignore_index is None else (known.ignore_index,)
    return LossKind("classes" if known.classes else "binary", "logits", ignored)  # log-probabilities are logits, too


def are_classes(output: tuple[int, ...], label: tuple[int, ...]) -> bool:
    """Whether the label has one class index for the scores on the last axis of the output."""
    return len(output) > 1 and output[-1] > 1 and label in (output[:-1], (*output[:-1], 1))


def are_elements(output: tuple[int, ...], label: tuple[int, ...]) -> bool:
    """Whether the label has one value per output: equal shapes, except that one of them may have a last axis of length 1."""
    return output == label or output == (*label, 1) or label == (*output, 1)


def not_classes(labels: np.ndarray, classes: int) -> np.ndarray:
    """Where labels are not class indices from 0 to classes - 1; NaN and fractions are not."""
    return ~((labels >= 0) & (labels < classes) & (np.trunc(labels) == labels))


def other_values(labels: np.ndarray, classes: int) -> tuple[int, ...]:
    """The whole numbers in labels that are no class indices, at most `MAX_OTHERS` of them."""
    others = np.unique(labels[not_classes(labels, classes)])
    others = others[np.isfinite(others) & (np.trunc(others) == others)]
    return tuple(int(v) for v in others[:MAX_OTHERS])


def kind_of(
    loss: Callable[[Any, Any], Any], output: jax.ShapeDtypeStruct, label: jax.ShapeDtypeStruct, others: Sequence[int] = ()
) -> LossKind:
    """Recognize a loss by its gradient at random outputs.

    Args:
        loss: `loss(output, label) -> losses`, an array.
        output: shape and dtype of the output.
        label: shape and dtype of the label.
        others: label values that are no class indices, to find out whether the loss ignores them.

    Returns:
        `LossKind`; `UNKNOWN` if the loss is not recognized or raises an error for these shapes.

    Example:
        >>> spec = jax.ShapeDtypeStruct
        >>> kind_of(optax.sigmoid_binary_cross_entropy, spec((8, 3), jnp.float32), spec((8, 3), jnp.float32))
        LossKind(task='binary', scores='logits', ignored=())
    """
    classes = are_classes(output.shape, label.shape)
    if not (classes or are_elements(output.shape, label.shape)) or not jnp.issubdtype(output.dtype, jnp.floating):
        return UNKNOWN
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.15, 0.85, _small(output.shape)).astype(np.float32)

    def summed(o: Any, y: Any) -> tuple[Any, Any]:
        losses = loss(o, y)
        return jnp.sum(losses), jnp.max(jnp.abs(losses))

    program = jax.jit(jax.grad(summed, has_aux=True))

    def both(labels: np.ndarray) -> tuple[np.ndarray, float]:
        with jax.ensure_compile_time_eval():  # the caller may be tracing a step
            # sync: a small program, once before training
            gradient, largest = counters.read(program(scores, labels.astype(label.dtype)))
            return np.asarray(gradient, np.float64), float(largest)

    try:
        return (_of_classes if classes else _of_elements)(
            both, scores.astype(np.float64), _small(label.shape), label.dtype, rng, others
        )
    except Exception:  # an error of the user's loss: the program of the step raises it, where its cause can be read
        return UNKNOWN


# The gradient of a loss at fixed outputs, and the largest absolute loss, as a function of the labels.
_Probe = Callable[[np.ndarray], tuple[np.ndarray, float]]


def _small(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (ROWS, *(min(n, MAX_SIZE) for n in shape[1:]))


def _of_classes(
    gradient: _Probe, scores: np.ndarray, shape: tuple[int, ...], dtype: Any, rng: Any, others: Sequence[int]
) -> LossKind:
    """Kind of a loss whose labels are class indices of this shape."""
    classes = scores.shape[-1]
    labels = rng.integers(1 if classes > 2 else 0, classes, shape)  # not 0, which the loss may ignore
    found, _ = gradient(labels)
    kind = _class_kind(found, scores, np.eye(classes)[labels.reshape(scores.shape[:-1])])
    if kind.task is None:
        return kind
    candidates = [c for c in MAY_BE_IGNORED if c or classes > 2]
    ignored = _ignored(gradient, labels, candidates, dtype)
    unusual = [v for v in others if v not in candidates]
    if unusual:
        # The label of a loss with one_hot(label) may be any number outside of the classes: its loss is then 0, by mistake.
        mistakes = _ignored(gradient, labels, [classes, classes + 7], dtype)
        ignored += _ignored(gradient, labels, [v for v in unusual if not mistakes or v == UNUSUAL], dtype)
    return kind._replace(ignored=ignored)


def _ignored(gradient: _Probe, labels: np.ndarray, candidates: Sequence[int], dtype: Any) -> tuple[int, ...]:
    """The candidates that make the gradient 0 where they are the label, and only there, and the loss 0."""
    if jnp.issubdtype(dtype, jnp.unsignedinteger) or jnp.issubdtype(dtype, jnp.bool_):
        candidates = [c for c in candidates if c >= 0]
    at, ignored = np.arange(labels.size) % 2 == 0, []
    for candidate in candidates:
        found, mixed = gradient(np.where(at.reshape(labels.shape), candidate, labels))
        found = found.reshape(labels.size, -1)
        if found[at].any() or not found[~at].any(axis=1).all():
            continue
        # The gradient of reading an array out of its bounds is 0, too.  A mean over no position is NaN.
        largest = gradient(np.full(labels.shape, candidate))[1]
        if largest == 0 or (np.isnan(largest) and np.isfinite(mixed)):
            ignored.append(candidate)
    return tuple(ignored)


def _of_elements(
    gradient: _Probe, scores: np.ndarray, shape: tuple[int, ...], dtype: Any, rng: Any, others: Sequence[int]
) -> LossKind:
    """Kind of a loss whose labels, of this shape, have one value per output."""
    wide = scores.ndim > 1 and scores.shape[-1] > 1
    labels = np.eye(scores.shape[-1])[rng.integers(0, scores.shape[-1], scores.shape[:-1])] if wide else np.ones(scores.shape)
    if not wide:
        labels[::2] = 0.0
    found, _ = gradient(labels.reshape(shape))
    kind = _class_kind(found, scores, labels) if wide else UNKNOWN
    if kind.scores is not None:
        return kind
    sigmoid = 1 / (1 + np.exp(-scores))
    if _spans(found, labels * (sigmoid - 1), (1 - labels) * sigmoid):
        return LossKind("binary", "logits", _ignored(gradient, labels.reshape(shape), MAY_BE_IGNORED[:2], dtype))
    if _spans(found, -labels / scores, (1 - labels) / (1 - scores)):
        return LossKind("binary", "probabilities", _ignored(gradient, labels.reshape(shape), MAY_BE_IGNORED[:2], dtype))
    if _spans(found, scores - labels):
        return LossKind("values")
    if jnp.issubdtype(dtype, jnp.floating):
        labels = rng.uniform(0, 1, scores.shape)
        if np.array_equal(np.sign(gradient(labels.reshape(shape))[0]), np.sign(scores - labels)):
            return LossKind("values")  # smallest where the output is the label
    return LossKind("rising") if _rises(found, labels) else kind


def _class_kind(gradient: np.ndarray, scores: np.ndarray, one_hot: np.ndarray) -> LossKind:
    """Kind of a loss of class scores from its gradient, (..., classes)."""
    softmax = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    centered = np.abs(gradient.sum(-1)).max() <= TOLERANCE * np.abs(gradient).max()
    basis = np.stack([softmax.reshape(-1), one_hot.reshape(-1), np.ones(one_hot.size)], 1)  # the last: smoothed labels
    factors = np.linalg.lstsq(basis, gradient.reshape(-1), rcond=None)[0]
    of_softmax = centered and factors[0] > 0 > factors[1] and _close(basis @ factors, gradient.reshape(-1))
    if of_softmax or _spans(gradient, -one_hot):  # of logits, or of log-probabilities, which are also logits
        return LossKind("classes", "logits")
    if _spans(gradient, -one_hot / scores):
        return LossKind("classes", "probabilities")
    return LossKind("classes") if _rises(gradient, one_hot) else UNKNOWN


def _rises(gradient: np.ndarray, labels: np.ndarray) -> bool:
    """Whether the loss falls if an output with label 1 rises, and does not fall if one with label 0 rises."""
    return bool((gradient[labels == 1] < 0).all() and (gradient[labels == 0] >= 0).all())


def _spans(gradient: np.ndarray, *parts: np.ndarray) -> bool:
    """Whether the gradient is a sum of the parts with positive factors."""
    basis = np.stack([p.reshape(-1) for p in parts], 1)
    factors = np.linalg.lstsq(basis, gradient.reshape(-1), rcond=None)[0]
    return bool((factors > 0).all()) and _close(basis @ factors, gradient.reshape(-1))


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() <= TOLERANCE * np.abs(b).max())
