"""Connectionist temporal classification (CTC, Graves et al., 2006): a sequence loss without alignment of labels and data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, choice, flag, integer, several
from jfit.ops.context import Ctx
from jfit.ops.loss import head, need_entries
from jfit.ops.registry import MaybeShape, Shape, operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import accumulating, common_rows, fill_unknown, from_data, label_types

NEVER = -1e30  # logarithm of probability 0: finite, because -inf - (-inf) is NaN
TINY = 1e-37


def _losses(logs: Array, labels: Array, label_lengths: Array, data_lengths: Array, blank: int) -> Array:
    """Return -log P(labels | logs) of each sequence, (batch,); 0, with gradient 0, if the data are too short for the labels.

    Args:
        logs: log probabilities, (time, batch, classes).
        labels: class indices, (batch, length); entries at and after the length of the label are ignored.
        label_lengths: number of labels of each sequence, (batch,).
        data_lengths: number of time steps of each sequence, (batch,).
        blank: index of the blank class.
    """
    batch, longest = labels.shape
    inside = jnp.arange(longest).reshape(1, -1) < label_lengths.reshape(-1, 1)
    labels = jnp.clip(jnp.where(inside, labels, blank), 0, logs.shape[2] - 1)
    # blank, first label, blank, second label, ...; the last blank is appended by jnp.pad
    states = jnp.stack([jnp.full_like(labels, blank), labels], axis=2).reshape(batch, 2 * longest)
    states = jnp.pad(states, ((0, 0), (0, 1)), constant_values=blank)
    emitted = jnp.take_along_axis(logs, states.reshape(1, batch, -1), axis=2)  # (time, batch, states)
    before = jnp.pad(states, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    may_skip = (states != blank) & (states != before)  # the blank between two different labels is optional
    never = jnp.asarray(NEVER, logs.dtype)

    def step(alpha: Array, at: tuple[Array, Array]) -> tuple[Array, None]:
        time, now = at
        from_one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=NEVER)[:, :-1]
        from_two = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=NEVER)[:, :-2]
        total = jnp.logaddexp(jnp.logaddexp(alpha, from_one), jnp.where(may_skip, from_two, never))
        return jnp.where((time < data_lengths).reshape(-1, 1), total + now, alpha), None

    place = jnp.arange(states.shape[1]).reshape(1, -1)
    start = jnp.where(place < 2, emitted[0], never)
    alpha, _ = lax.scan(step, start, (jnp.arange(1, logs.shape[0]), emitted[1:]))
    last = 2 * label_lengths.reshape(-1, 1)
    ends = jnp.where((place == last) | (place == last - 1), alpha, never)
    repeats = jnp.sum((labels[:, 1:] == labels[:, :-1]) & inside[:, 1:], axis=1)
    possible = (label_lengths + repeats <= data_lengths) & (data_lengths > 0)
    return jnp.where(possible, -jax.nn.logsumexp(ends, axis=1), jnp.zeros((), logs.dtype))


# ------------------------------------------------------------------------------------------ CTCLoss
def _names(attrs: Attrs) -> tuple[str, ...]:
    lengths = (("data_lengths", attrs.use_data_lengths), ("label_lengths", attrs.use_label_lengths))
    return ("data", "label", *(name for name, used in lengths if used))


@from_data
def _fill(attrs: Attrs, data: Shape, label: MaybeShape, *lengths: MaybeShape) -> list:
    return [data, fill_unknown(label, (data[1], 0)), *(fill_unknown(each, (data[1],)) for each in lengths)]


def _rows(attrs, rows, shapes, outs):
    first = rows[0]
    if isinstance(first, RowLayout):
        first = first._replace(axis=0) if first.axis == 1 else LOST
    return [common_rows([first, *rows[1:]])]


@operator(
    "CTCLoss",
    inputs=_names,
    attrs=several(flag, use_data_lengths=False, use_label_lengths=False)
    | {"blank_label": choice("first", "last", default="first")},
    outputs=("output0",),
    aliases=("_contrib_CTCLoss", "_contrib_ctc_loss", "ctc_loss"),
    fill=_fill,
    types=label_types,
    rows=_rows,
)
def ctc_loss(ctx: Ctx, attrs: Attrs, data: Array, label: Array, *lengths: Array) -> Array:
    """y[n] = -log Σ P(alignment), P = softmax of x (time, batch, classes), over all alignments of label[n] (batch, length).

    With blank_label=first the blank is class 0, and labels end at the first 0; with blank_label=last it is the last class, and
    labels end at the first -1.  A sequence that is too short for its labels has loss 0 and gradient 0.
    """
    steps, batch, classes = data.shape
    optional = dict(zip(_names(attrs)[2:], lengths, strict=True))
    labels = label.astype(jnp.int32)
    padding = 0 if attrs.blank_label == "first" else -1
    counts = optional.get("label_lengths", jnp.sum(jnp.cumprod((labels != padding).astype(jnp.int32), axis=1), axis=1))
    times = optional.get("data_lengths", jnp.full((batch,), steps))
    times = jnp.clip(times.reshape(batch).astype(jnp.int32), 0, steps)
    inside = jnp.arange(steps).reshape(-1, 1, 1) < times.reshape(1, -1, 1)
    logs = jax.nn.log_softmax(jnp.where(inside, data, 0).astype(accumulating(data.dtype)), axis=2)
    blank = 0 if attrs.blank_label == "first" else classes - 1
    return _losses(logs, labels, counts.reshape(batch).astype(jnp.int32), times, blank).astype(data.dtype)


# ------------------------------------------------------------------------------------------ WarpCTC
def _sizes(attrs: Attrs, rows: int) -> tuple[int, int]:
    """Return (number of time steps, number of sequences) of data (time * batch, classes); `rows` is the size of its axis 0."""
    if attrs.input_length < 1 or attrs.label_length < 1 or rows % attrs.input_length:
        lengths = f"input_length is {attrs.input_length} and label_length {attrs.label_length}, for {rows} rows of data"
        raise ValueError(f"{lengths}; expected lengths of at least 1, and input_length * batch rows")
    return attrs.input_length, rows // attrs.input_length


def _warp_losses(attrs: Attrs, scores: Array, label: Array) -> Array:
    """Return the losses (batch,) of scores (time * batch, classes); labels of 0 are padding, at any position."""
    steps, batch = _sizes(attrs, scores.shape[0])
    labels = label.astype(jnp.int32).reshape(batch, attrs.label_length)
    order = jnp.argsort(labels == 0, axis=1, stable=True)
    labels = jnp.take_along_axis(labels, order, axis=1)
    logs = jax.nn.log_softmax(scores.reshape(steps, batch, -1), axis=2)
    return _losses(logs, labels, jnp.sum(labels != 0, axis=1), jnp.full((batch,), steps), 0)


def _warp_gradient(attrs: Attrs, out: Array, label: Array, weight: Array | None, cotangent: Array) -> Array:
    logs = jnp.log(jnp.maximum(out, TINY))
    return jax.grad(lambda scores: jnp.sum(_warp_losses(attrs, scores, label)))(logs)


_warp = head(
    lambda attrs, data: jax.nn.softmax(data.astype(accumulating(data.dtype)), axis=1).astype(data.dtype), _warp_gradient
)


def _warp_loss(attrs: Attrs, output: Array, label: Array) -> tuple[Array, Array]:
    """Return (CTC loss, weight 1) of each sequence, both (batch,) float32."""
    losses = _warp_losses(attrs, jnp.log(jnp.maximum(output.astype(accumulating(output.dtype)), TINY)), label)
    return losses, jnp.ones(losses.shape, jnp.float32)


def _warp_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data, label = ins
    if data is None or not data[0] or label is not None:
        return ins
    return [data, (_sizes(attrs, data[0])[1] * attrs.label_length,)]


@operator(
    "WarpCTC",
    attrs={"label_length": integer(0), "input_length": integer(0)},
    fill=_warp_fill,
    types=label_types,
    rows=lambda attrs, rows, shapes, outs: list(rows[:1]),
    kind="head",
    label="label",
    loss=_warp_loss,
)
def warp_ctc(ctx: Ctx, attrs: Attrs, data: Array, label: Any = None) -> Array:
    """y = softmax(x), x (time * batch, classes); its gradient is that of the CTC loss with blank 0, whatever the cotangent.

    This is the operator of MXNet's WarpCTC plugin, which MXNet 1.9.1 no longer contains.  Labels have shape
    (batch * label_length,); 0 is padding.
    """
    _, batch = _sizes(attrs, data.shape[0])
    need_entries(label, batch * attrs.label_length, f"{batch} * {attrs.label_length} labels")
    return _warp(attrs, data, label, ctx.row_weight(data.ndim))
