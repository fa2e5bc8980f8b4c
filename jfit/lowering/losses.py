"""Losses by name for models of functions, and the check that a loss returns values of single rows.

>>> from jfit.lowering.losses import get
>>> get("cross_entropy", ignore_index=-100).name
'cross_entropy'
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from jfit.checks import name_hint
from jfit.lowering.dependence import Mixed, batch_rows, row_layouts


@dataclass(frozen=True)
class Loss:
    """A loss function with the facts that labels and metrics depend on; called as `loss(output, label)`.

    Attributes:
        name: its name, such as "cross_entropy".
        function: `function(output, label, **options) -> losses`, one value per row or per position of a row.
        scores: what the model outputs: "logits" (of a softmax over the last axis if `classes`, of a sigmoid otherwise),
            "log_probabilities", or None for values of a regression.
        classes: whether integer labels are class indices, and the last axis of the output is the classes.
        label_range: smallest and largest valid label of a loss without classes; None: any.
        ignore_index: label value of positions without loss; None: there is no such value.
        options: other keyword arguments of `function`, as (name, value) pairs.

    Example:
        >>> import jax.numpy as jnp
        >>> get("mse")(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0])).tolist()
        [0.0, 4.0]
    """

    name: str
    function: Callable[..., Array]
    scores: str | None = None
    classes: bool = False
    label_range: tuple[float, float] | None = None
    ignore_index: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, output: Any, label: Any) -> Array:
        """Compute the losses: 0 where the label is `ignore_index`."""
        if self.ignore_index is None:
            return self.function(output, label, **dict(self.options))
        label = jnp.asarray(label)
        ignored = label == self.ignore_index
        losses = self.function(output, jnp.where(ignored, 0, label), **dict(self.options))
        if losses.shape != label.shape:
            raise ValueError(f"{self.name!r} with ignore_index= needs class indices {losses.shape}, not labels {label.shape}")
        return jnp.where(ignored, 0, losses)


# ------------------------------------------------------------------------------------------------ the losses
def cross_entropy(output: Any, label: Any, *, label_smoothing: float = 0.0) -> Array:
    """-Σ_k p_k log softmax(output)_k, where p is the label: a class index (p is one-hot) or a distribution.

    Args:
        output: logits (rows, ..., classes).
        label: class indices (rows, ...), integers or whole floats, or probabilities (rows, ..., classes), such as one-hot.
        label_smoothing: α: p is replaced by (1 - α) p + α / classes.

    Returns:
        Array (rows, ...), float32 or wider.

    Raises:
        ValueError: the label has neither of these shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(v), 3) for v in cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3]))]
        [1.386, 1.386]
    """
    output, label = _float32(output), jnp.asarray(label)
    if label.shape == output.shape:
        label = _float32(label)
    else:
        label = _indices("cross_entropy", output, label, " or probabilities")
        if not label_smoothing:
            return optax.losses.softmax_cross_entropy_with_integer_labels(output, label)
        label = jax.nn.one_hot(label, output.shape[-1])
    return optax.losses.softmax_cross_entropy(output, optax.losses.smooth_labels(label, label_smoothing))


def nll(output: Any, label: Any) -> Array:
    """-output[label]: the negative log-likelihood of class indices, for log-probabilities.

    Args:
        output: log-probabilities (rows, ..., classes), such as those of `jax.nn.log_softmax`.
        label: class indices (rows, ...), integers or whole floats.

    Returns:
        Array (rows, ...), float32 or wider.

    Raises:
        ValueError: the label has another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(v), 3) for v in nll(jnp.log(jnp.array([[0.25, 0.75]])), jnp.array([1]))]
        [0.288]
    """
    output = _float32(output)
    return -jnp.take_along_axis(output, _indices("nll", output, jnp.asarray(label))[..., None], axis=-1)[..., 0]


def binary_cross_entropy(output: Any, label: Any) -> Array:
    """-y log σ(output) - (1 - y) log(1 - σ(output)), for one or several independent yes-no labels per row.

    Args:
        output: logits (rows, ...).
        label: 0, 1 or a probability, of the same shape (axes of size 1 at the end may differ).

    Returns:
        Array of the shape of the output, float32 or wider.

    Raises:
        ValueError: the shapes do not match.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(v), 3) for v in binary_cross_entropy(jnp.zeros(2), jnp.array([0, 1]))]
        [0.693, 0.693]
    """
    return optax.losses.sigmoid_binary_cross_entropy(*_aligned("binary_cross_entropy", output, label))


def mse(output: Any, label: Any) -> Array:
    """(output - label)².

    Args:
        output: values (rows, ...).
        label: values of the same shape (axes of size 1 at the end may differ).

    Returns:
        Array of the shape of the output, float32 or wider.

    Raises:
        ValueError: the shapes do not match.

    Example:
        >>> import jax.numpy as jnp
        >>> mse(jnp.ones((2, 1)), jnp.array([1.0, 3.0])).tolist()
        [[0.0], [4.0]]
    """
    return optax.losses.squared_error(*_aligned("mse", output, label))


def l2(output: Any, label: Any) -> Array:
    """½ (output - label)², as `optax.l2_loss`.

    Args:
        output: values (rows, ...).
        label: values of the same shape (axes of size 1 at the end may differ).

    Returns:
        Array of the shape of the output, float32 or wider.

    Raises:
        ValueError: the shapes do not match.

    Example:
        >>> import jax.numpy as jnp
        >>> l2(jnp.ones(2), jnp.array([1.0, 3.0])).tolist()
        [0.0, 2.0]
    """
    return optax.losses.l2_loss(*_aligned("l2", output, label))


def mae(output: Any, label: Any) -> Array:
    """|output - label|.

    Args:
        output: values (rows, ...).
        label: values of the same shape (axes of size 1 at the end may differ).

    Returns:
        Array of the shape of the output, float32 or wider.

    Raises:
        ValueError: the shapes do not match.

    Example:
        >>> import jax.numpy as jnp
        >>> mae(jnp.ones(2), jnp.array([1.0, 3.0])).tolist()
        [0.0, 2.0]
    """
    output, label = _aligned("mae", output, label)
    return jnp.abs(output - label)


def huber(output: Any, label: Any, *, delta: float = 1.0) -> Array:
    """½ d² if |d| ≤ δ, else δ (|d| - ½ δ), where d = output - label.

    Args:
        output: values (rows, ...).
        label: values of the same shape (axes of size 1 at the end may differ).
        delta: δ, at least 0.

    Returns:
        Array of the shape of the output, float32 or wider.

    Raises:
        ValueError: the shapes do not match.

    Example:
        >>> import jax.numpy as jnp
        >>> huber(jnp.zeros(2), jnp.array([1.0, 3.0])).tolist()
        [0.5, 2.5]
    """
    return optax.losses.huber_loss(*_aligned("huber", output, label), delta=delta)


def log_cosh(output: Any, label: Any) -> Array:
    """log cosh(output - label).

    Args:
        output: values (rows, ...).
        label: values of the same shape (axes of size 1 at the end may differ).

    Returns:
        Array of the shape of the output, float32 or wider.

    Raises:
        ValueError: the shapes do not match.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(v), 3) for v in log_cosh(jnp.zeros(2), jnp.array([0.0, 1.0]))]
        [0.0, 0.434]
    """
    return optax.losses.log_cosh(*_aligned("log_cosh", output, label))


def hinge(output: Any, label: Any) -> Array:
    """max(0, 1 - s · output), where s is 1 if the label is positive, else -1: labels are 0 and 1, or -1 and 1.

    Args:
        output: scores (rows, ...), positive for label 1.
        label: labels of the same shape (axes of size 1 at the end may differ).

    Returns:
        Array of the shape of the output, float32 or wider.

    Raises:
        ValueError: the shapes do not match.

    Example:
        >>> import jax.numpy as jnp
        >>> hinge(jnp.array([0.5, 0.5]), jnp.array([0, 1])).tolist()
        [1.5, 0.5]
    """
    output, label = _aligned("hinge", output, label)
    return optax.losses.hinge_loss(output, jnp.where(label > 0, 1.0, -1.0))


def poisson(output: Any, label: Any) -> Array:
    """exp(output) - label · output: the negative log-likelihood of counts whose log rate is the output, without log(label!).

    Args:
        output: logarithms of rates (rows, ...).
        label: counts of the same shape (axes of size 1 at the end may differ).

    Returns:
        Array of the shape of the output, float32 or wider.

    Raises:
        ValueError: the shapes do not match.

    Example:
        >>> import jax.numpy as jnp
        >>> poisson(jnp.zeros(2), jnp.array([0, 3])).tolist()
        [1.0, 1.0]
    """
    output, label = _aligned("poisson", output, label)
    return jnp.exp(output) - label * output


def _float32(x: Any) -> Array:
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _indices(name: str, output: Array, label: Array, others: str = "") -> Array:
    """Return class indices as int32; raise unless there is one for the scores on the last axis of the output."""
    _check(name, label.shape == output.shape[:-1], output, label, f"class indices of shape {output.shape[:-1]}{others}")
    return label.astype(jnp.int32)


def _aligned(name: str, output: Any, label: Any) -> tuple[Array, Array]:
    """Cast both to float32 or wider, and give the label the shape of the output if they differ by axes of size 1 at the end."""
    output, label = _float32(output), _float32(label)
    fits = _without_ones(output.shape) == _without_ones(label.shape)
    _check(name, fits, output, label, "equal shapes, because others would be broadcast, each output to all labels")
    return output, label.reshape(output.shape)


def _check(name: str, fits: bool, output: Array, label: Array, expected: str) -> None:
    if not fits:
        raise ValueError(f"loss {name!r}: the output has shape {output.shape} and the label {label.shape}; expected {expected}")


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    last = max((i for i, n in enumerate(shape) if n != 1 or i == 0), default=-1)
    return shape[: last + 1]


# ------------------------------------------------------------------------------------------------ by name
# fmt: off
_LOSSES = (
    Loss("cross_entropy", cross_entropy, "logits", classes=True),
    Loss("nll", nll, "log_probabilities", classes=True),
    Loss("binary_cross_entropy", binary_cross_entropy, "logits", label_range=(0, 1)),
    Loss("mse", mse), Loss("l2", l2), Loss("mae", mae), Loss("huber", huber), Loss("log_cosh", log_cosh),
    Loss("hinge", hinge, label_range=(-1, 1)), Loss("poisson", poisson, label_range=(0, math.inf)),
)
# fmt: on
LOSSES: dict[str, Loss] = {loss.name: loss for loss in _LOSSES}
ALIASES = {"ce": "cross_entropy", "bce": "binary_cross_entropy", "l1": "mae"}

# Losses of optax that are passed as functions: name in `LOSSES` of the loss with the same outputs and labels.
_OPTAX = {
    "softmax_cross_entropy_with_integer_labels": "cross_entropy",
    "softmax_cross_entropy": "cross_entropy",
    "sigmoid_binary_cross_entropy": "binary_cross_entropy",
}


def get(spec: str, *, ignore_index: int | None = None, **options: Any) -> Loss:
    """Return a loss by name, with options.

    Args:
        spec: name in `LOSSES` or an alias of one: "ce", "bce" and "l1".
        ignore_index: label value of positions that have no loss, such as -100 for padding tokens.  The mean loss is over the
            other positions.
        options: keyword arguments of the loss function, such as `label_smoothing` of `cross_entropy`.

    Returns:
        The `Loss`; pass it to `jfit.fit` as `loss=`.

    Raises:
        ValueError: unknown name or option.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = get("cross_entropy", ignore_index=-1)
        >>> [round(float(v), 3) for v in loss(jnp.zeros((2, 2)), jnp.array([0, -1]))]
        [0.693, 0.0]
    """
    name = ALIASES.get(spec.lower(), spec.lower())
    if name not in LOSSES:
        raise ValueError(f"loss {spec!r} is unknown; {name_hint(spec, LOSSES | ALIASES)} Or pass loss(output, label).")
    loss = LOSSES[name]
    known = [p for p in inspect.signature(loss.function).parameters if p not in ("output", "label")]
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ValueError(f"loss {name!r} has no option {unknown[0]!r}; its options are {', '.join([*known, 'ignore_index'])}")
    return Loss(name, loss.function, loss.scores, loss.classes, loss.label_range, ignore_index, tuple(sorted(options.items())))


def known_loss(loss: Any) -> Loss | None:
    """Return the facts about a loss function: a `Loss`, a function of this module (also as functools.partial) or of optax.

    Args:
        loss: function or `Loss`.

    Returns:
        The `Loss` with the same outputs and labels; None for any other function.

    Example:
        >>> import optax
        >>> known_loss(optax.softmax_cross_entropy_with_integer_labels).scores, known_loss(optax.l2_loss)
        ('logits', None)
    """
    if isinstance(loss, Loss):
        return loss
    function, options = loss, {}
    if isinstance(loss, functools.partial) and not loss.args:
        function, options = loss.func, loss.keywords
    for record in _LOSSES:
        if record.function is function:
            return get(record.name, **options)
    for name, same in _OPTAX.items():
        if function is getattr(optax.losses, name) and "axis" not in options:
            return LOSSES[same]
    return None


def as_loss(loss: Any) -> Callable[[Any, Array], Array]:
    """Convert the argument `loss` of `fit`, a name or a function, to a function.

    The softmax cross entropies of optax become "cross_entropy", which has their values, in float32 also for bfloat16 outputs,
    and takes the labels of both: class indices, or probabilities such as one-hot.

    Raises:
        ValueError: unknown name.
        TypeError: neither a name nor a function.

    Example:
        >>> as_loss("mse").name
        'mse'
    """
    if isinstance(loss, str):
        return get(loss)
    plain = isinstance(loss, functools.partial) and not loss.args and loss.keywords in ({}, {"axis": -1})
    function = loss.func if plain else loss
    if function is optax.softmax_cross_entropy or function is optax.softmax_cross_entropy_with_integer_labels:
        return LOSSES["cross_entropy"]
    if any(c.__name__ == "Loss" and c.__module__.partition(".")[0] == "keras" for c in type(loss).__mro__):
        return _of_keras(loss)
    if not callable(loss):
        raise TypeError(f"loss is {loss!r}; expected a function loss(output, label), or one of {', '.join(map(repr, LOSSES))}")
    return loss  # type: ignore[return-value]


def _of_keras(loss: Any) -> Callable[[Any, Any], Any]:
    """The losses of single rows of a `keras.losses.Loss`, whose own call reduces them to one number."""
    reduction = getattr(loss, "reduction", None)
    if reduction not in (None, "none", "mean", "mean_with_sample_weight", "sum_over_batch_size"):
        raise ValueError(f"loss is a Keras {type(loss).__name__} with {reduction=}, but fit minimizes the mean; leave it out")

    def keras_loss(y_true: Any, y_pred: Any) -> Any:  # its names say that the label is first
        return loss.call(y_true, y_pred)

    return keras_loss


# ------------------------------------------------------------------------------------------------ losses of rows
def per_row(loss: Callable[..., Any], label: Any, losses: Array, weight: Array | None = None) -> tuple[Array, Array, int]:
    """Reduce losses (rows, ...) to (loss of each row, weight of each row in the mean, number of losses of a row).

    The first two are (rows,), float32 or wider.

    The loss of a row is the mean of its losses.  With `ignore_index`, ignored positions count as 0 in it, and the weight of a
    row is the fraction of its positions that are not ignored, so that Σ losses / Σ weights is the mean over these positions.
    So it is with a weight of each position, (rows, positions, ...): losses are multiplied by it, and counted with it.

    Raises:
        ValueError: the first axes of the losses do not have the shape of `weight`.
    """
    rows = losses.shape[0]
    losses, positions = _float32(losses), math.prod(losses.shape[1:])
    means = losses.reshape(rows, -1).mean(axis=1)
    ignore = loss.ignore_index if isinstance(loss, Loss) else None
    if weight is None and ignore is None:
        return means, jnp.ones_like(means), positions
    counted = jnp.ones(losses.shape, losses.dtype) if ignore is None else (label != ignore).astype(losses.dtype)
    if weight is not None:
        if losses.shape[: weight.ndim] != weight.shape:
            raise ValueError(f"weights have shape {weight.shape}, with which the shape of the losses {losses.shape} must begin")
        counted = counted * weight.reshape(*weight.shape, *(1,) * (losses.ndim - weight.ndim))
        # select before multiplying: the loss of a position of weight 0 may be inf, and 0 * inf is nan
        means = (jnp.where(counted > 0, losses, 0) * counted).reshape(rows, -1).mean(axis=1)
    return means, counted.reshape(rows, -1).mean(axis=1), positions


def check_rows(loss: Callable[[Any, Any, int], Array], output: Any, label: Any, losses: Array, rows: int) -> None:
    """Raise an error unless losses (rows, ...) can be one or several values of each row.

    `(o - l)**2` of shapes (n, 1) and (n,) has shape (n, n): each output is compared with the labels of all rows, and training
    fits the mean of the labels.  Such a loss is recognized by an axis that grows with the number of rows, or by more values
    per row than output and label have.

    Args:
        loss: `loss(output, label, number of rows) -> losses`.
        output: array, or pytree of arrays.
        label: array, or pytree of arrays.
        losses: result of `loss`.
        rows: number of rows.

    Raises:
        ValueError: the losses are not values of single rows.
    """
    if losses.ndim == 0 or losses.shape[0] != rows:
        remedy = ", or pass loss_per_batch=True for a loss that is one scalar for the batch" if losses.ndim == 0 else ""
        expected = f"one value per example, ({rows},), before averaging"
        raise ValueError(f"loss returned shape {losses.shape}, expected {expected}{remedy}")
    values = math.prod(losses.shape[1:])
    explained = max((math.prod(x.shape[1:]) for x in jax.tree.leaves((output, label))), default=1)
    if _grows(loss, output, label, losses) or values > explained:
        raise _broadcast_error(output, label, losses, f"one value per example, ({rows},), or one per value of an example")
    check_broadcast(loss, output, label, losses, rows)


def check_broadcast(loss: Callable[[Any, Any, int], Array], output: Any, label: Any, losses: Array, rows: int) -> None:
    """Raise an error if output (n, 1) and label (n,) are broadcast to (n, n) inside a loss, which then averages an axis.

    The loss is traced with these shapes, and with output and label of the same shape.  If it combines every row with every
    other one in the first trace only, broadcasting is the cause.  A contrastive loss does so in both, and raises nothing.

    Args:
        loss, output, label, losses, rows: as for `check_rows`.

    Raises:
        ValueError: the loss compares rows with the labels of other rows.
    """
    leaves, treedef = jax.tree.flatten((output, label))
    shapes = [tuple(x.shape) for x in leaves]
    aligned = [max((s for s in shapes if s[: len(own)] == own and set(s[len(own) :]) <= {1}), key=len) for own in shapes]
    if rows < 2 or aligned == shapes:
        return

    def pairs(shapes: list[tuple[int, ...]]) -> bool:
        specs = [jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, leaves, strict=True)]
        closed = jax.make_jaxpr(lambda o, y: loss(o, y, rows))(*jax.tree.unflatten(treedef, specs))
        found = row_layouts(closed, [batch_rows(rows) if s[:1] == (rows,) else None for s in shapes])[0]
        return isinstance(found, Mixed) and "every row with every other row" in found.reason

    try:
        broadcast = pairs(shapes) and not pairs(aligned)
    except Exception:  # the loss is written for these shapes only
        return
    if broadcast:
        raise _broadcast_error(output, label, losses, "a loss in which each row is compared with its own label")


def _broadcast_error(output: Any, label: Any, losses: Array, expected: str) -> ValueError:
    shapes = [jax.tree.map(lambda x: tuple(x.shape), tree) for tree in (output, label)]
    return ValueError(
        f"loss returned shape {losses.shape} for an output of shape {shapes[0]} and a label of shape {shapes[1]}: expected "
        f"{expected}. Output and label are probably broadcast against each other; give both the same shape (such as "
        "output[:, 0] or label[:, None]), or reduce the loss to one value per example"
    )


def _grows(loss: Callable[[Any, Any, int], Array], output: Any, label: Any, losses: Array) -> bool:
    """Whether an axis of the losses other than the first depends on the number of rows."""
    rows, trailing, arrays = losses.shape[0], losses.shape[1:], jax.tree.leaves((output, label))
    if not trailing or all(x.shape[:1] != (rows,) for x in jax.tree.leaves(output)):
        return False
    other = max(size for x in arrays for size in x.shape) + 1  # a number of rows that no other axis has
    resized = [
        jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((other, *x.shape[1:]) if x.shape[:1] == (rows,) else x.shape, x.dtype), tree
        )
        for tree in (output, label)
    ]
    try:
        return jax.eval_shape(lambda o, y: loss(o, y, other), *resized).shape[1:] != trailing
    except Exception:  # also an assert of the user
        # (n, k) with (n,) is broadcast only if n is k: for another number of rows it is an error
        return rows in trailing


def facts(loss: Any) -> Mapping[str, Any]:
    """Fields of the `Output` of a model with this loss that follow from the loss."""
    known = known_loss(loss)
    if known is None:
        return {}
    axis = -1 if known.classes else None
    return {"class_axis": axis, "ignore_label": known.ignore_index, "label_range": known.label_range}
