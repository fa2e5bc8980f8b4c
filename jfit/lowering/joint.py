"""Losses of functions: of one output, by output name, without labels, of the parameters, or of the whole batch.

A loss is a sum of terms, one for each output name of a dict of losses, or a single one of the pytree of all outputs.  The
arguments of each term follow from its signature (`Form`).  `LossTerms.row_losses` computes the loss of each row of a batch.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfit.checks import name_hint, parameters_of
from jfit.lowering.losses import Loss, as_loss, check_broadcast, check_rows, per_row
from jfit.lowering.model import RowLosses, flatten_names, summed
from jfit.lowering.structure import LABEL_WEIGHT
from jfit.ops.registry import nearest

BATCH = ("batch", "inputs")  # names of the second parameter of a loss that takes the batch instead of a label
EXTRAS = ("params", "aux", "step")
COLUMNS = ("epoch", "batch", "step", "time", "compile_time", "data_time", "samples_per_second", "lr", "loss")  # of the history
LABEL_FIRST = ("y_true", "y_pred")  # names of the first two parameters of a loss that takes the label first


class Form(NamedTuple):
    """Which arguments a loss function takes.

    Attributes:
        second: what its second parameter is: "label", "batch", or "" if there is none.
        extras: those of "params", "aux" and "step" that it takes, by keyword.
        weights: those of "weight" and "mask" that it takes, see `weight_keywords`.
        label_first: whether it is called as `loss(label, output)`, as the losses of Keras and scikit-learn.
    """

    second: str = "label"
    extras: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()
    label_first: bool = False


def form_of(loss: Callable[..., Any]) -> Form:
    """Read the form of a loss from its signature.

    Example:
        >>> form_of(lambda outputs, batch, params: 0.0).second
        'batch'
    """
    parameters = parameters_of(loss)
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters.values() if p.kind in named]
    alone = len(positional) == 1 and all(p.kind is not p.VAR_POSITIONAL for p in parameters.values())
    second = "" if alone else "batch" if positional[1:2] and positional[1] in BATCH else "label"
    fixed = (*positional[:2], *(loss.keywords if isinstance(loss, functools.partial) else ()))
    extras = {n for n, p in parameters.items() if n in EXTRAS and n not in fixed and p.kind is not p.POSITIONAL_ONLY}
    return Form(second, frozenset(extras), weight_keywords(loss), tuple(positional[:2]) == LABEL_FIRST)


def weight_keywords(fn: Callable[..., Any]) -> frozenset[str]:
    """The keywords by which a function takes row weights: `weight` with default None, keyword-only `weight` or `mask`."""
    parameters = parameters_of(fn)
    required = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    return frozenset(
        {n for n, p in parameters.items() if n == "weight" and p.default is None} | (required & {"weight", "mask"})
    )


def row_weight_arguments(keywords: frozenset[str], weight: Array | None, rows: int) -> dict[str, Array]:
    """The row weights by keyword: `weight` 1.0 or 0.0, `mask` True or False."""
    if not keywords:
        return {}
    mask = jnp.ones(rows, bool) if weight is None else weight > 0
    return {n: mask if n == "mask" else mask.astype(jnp.float32) for n in keywords}


class Term(NamedTuple):
    """One term of a loss.

    Attributes:
        output: name of the output (or subtree of outputs) that the term is of; None: the pytree of all outputs.
        loss: the loss function.
        form: its arguments.
        scale: factor of the term in the loss.
    """

    output: str | None
    loss: Callable[..., Any]
    form: Form
    scale: float = 1.0


class LossInputs(NamedTuple):
    """What losses are computed from, as the user's pytrees.

    Attributes:
        outputs: pytree of the outputs of the function.
        batch: argument name or label name -> pytree of arrays.
        params: pytree of the parameters.
        aux: pytree of the auxiliary states after the function.
        step: number of updates before this one, int32 scalar.
    """

    outputs: Any
    batch: Mapping[str, Any]
    params: Any = None
    aux: Any = None
    step: Any = None


Total = Callable[[Array], Array]  # (rows,) -> Σ weight·value over the rows of all devices


class LossTerms:
    """The loss of a function as a sum of terms.

    Args:
        loss: the argument `loss` of `Model.from_function`: a function or name, or a dict (tuple, list) of these by output name.
        loss_weights: factor of each term, in the structure of `loss`; None: all 1.
        per_batch: whether each term returns one scalar for the batch.
        label: name of the label.

    Raises:
        ValueError: unknown names or numbers that are not finite in `loss_weights`, or no term.
    """

    def __init__(self, loss: Any, loss_weights: Any = None, per_batch: bool = False, label: str = "label") -> None:
        self.per_batch, self.label, self.by_name = per_batch, label, isinstance(loss, Mapping | tuple | list)
        if self.by_name:
            named = {n: as_loss(f) for n, f in flatten_names(loss)[0].items() if f is not None}
            scales = _scales(loss_weights, list(named))
            self.terms = tuple(Term(n, f, form_of(f), scales.get(n, 1.0)) for n, f in named.items())
        else:
            if loss_weights is not None:
                raise ValueError("loss_weights= needs a dict of losses by output name; scale a single loss in its function")
            function = as_loss(loss)
            self.terms = (Term(None, function, form_of(function)),)
        if not self.terms:
            raise ValueError("loss is empty, expected a loss for at least one output")

    @property
    def batch_means(self) -> bool:
        """Whether the terms are means over different positions of the batch, because one of several ignores labels."""
        ignoring = [t for t in self.terms if isinstance(t.loss, Loss) and t.loss.ignore_index is not None]
        return len(self.terms) > 1 and bool(ignoring)

    @property
    def promised(self) -> bool:
        """Whether the losses take the row weights, with which they exclude padding rows themselves."""
        return not self.per_batch and all(t.form.weights for t in self.terms)

    @property
    def extras(self) -> frozenset[str]:
        """Those of `EXTRAS` that a loss takes."""
        return frozenset[str]().union(*(t.form.extras for t in self.terms))

    @property
    def plain(self) -> bool:
        """Whether the loss is one function of (output, label)."""
        return not self.by_name and not self.per_batch and self.terms[0].form[:2] == ("label", frozenset())

    def label_name(self, term: Term) -> str:
        """Name of the label of a term, for `Output.label`."""
        return self.label if term.output is None else f"{self.label}/{term.output}"

    def labels(self) -> tuple[str, ...]:
        """Names of the labels that the terms need."""
        return tuple(self.label_name(t) for t in self.terms if t.form.second == "label")

    def needed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the labels of a batch that the terms need; all of them if a term gets the whole label or the batch."""
        if any(t.form.second and (t.output is None or t.form.second == "batch") for t in self.terms):
            return tuple(names)
        paths = [self.label_name(t) for t in self.terms if t.form.second]
        return tuple(n for n in names if any(n in (self.label, path) or n.startswith(f"{path}/") for path in paths))

    def check_outputs(self, outputs: Any) -> None:
        """Raise a ValueError if a loss is of an output that the function does not return."""
        for term in self.terms:
            if term.output is not None and _subtree(outputs, term.output) is None:
                hint = name_hint(term.output, ["output"] if hasattr(outputs, "shape") else flatten_names(outputs)[0])
                raise ValueError(f"loss has a term for {term.output!r}, which the function does not return; {hint}")

    def has_labels(self, batch: Mapping[str, Any]) -> bool:
        """Whether the batch has all labels that the terms need."""
        return all(self._label(t, batch) is not None for t in self.terms if t.form.second == "label")

    def _label(self, term: Term, batch: Mapping[str, Any]) -> Any:
        label = batch.get(self.label)
        alone = term.output is None or (len(self.terms) == 1 and hasattr(label, "shape"))
        return label if alone or label is None else _subtree(label, str(term.output))

    # -------------------------------------------------------------------------------- values
    def row_losses(
        self, values: LossInputs, weight: Array | None, rows: int, label_weight: Array | None = None, total: Total | None = None
    ) -> RowLosses:
        """Compute the loss of each row.

        Args:
            values: outputs, batch, parameters and auxiliary states.
            weight: row weights (rows,) or None; passed only to losses with a keyword argument for them.
            rows: number of rows of the batch.
            label_weight: weight of each position of a row, (rows, positions, ...), or None.
            total: function that sums values of rows over the batch on all devices, for means over positions (`batch_means`).
                None: the losses are only traced, to find out whether rows affect each other, and are not divided.

        Raises:
            ValueError: a label is missing, or a loss does not have one value per row (with `per_batch`: is no scalar).
        """
        if label_weight is not None and len(self.terms) > 1:
            raise ValueError(f"weights {LABEL_WEIGHT!r} of the positions of each row need one loss, or pass weights of rows")
        if self.per_batch and (weight is not None or label_weight is not None):
            raise ValueError("loss_per_batch=True: row weights cannot be applied to one scalar; leave them out")
        losses_of_rows, counts, logged, terms = jnp.zeros(()), jnp.zeros(()), {}, list[tuple[Array, Array]]()
        for at, term in enumerate(self.terms):
            losses, each, positions, more = self.of_term(term, values, weight, rows, label_weight)
            prefix = "" if term.output is None else f"{term.output}_"
            logged |= {f"{term.output}_loss": summed(losses, each, positions)} if self.by_name else {}
            logged |= {f"{prefix}{name}": value for name, value in more.items()}
            scaled = losses if term.scale == 1 else losses * jnp.asarray(term.scale, losses.dtype)
            terms.append(summed(scaled, each, positions))
            if self.batch_means and total is not None:
                # so that the mean over the rows is Σ losses / Σ counted positions of this term
                ones = jnp.ones_like(each)
                scaled, each = scaled * (total(ones) / jnp.maximum(total(each), 1e-30)), ones
            losses_of_rows, counts = (losses_of_rows + scaled, counts) if at else (scaled, each)
        return RowLosses(losses_of_rows, counts, logged, tuple(terms))

    def of_term(
        self, term: Term, values: LossInputs, weight: Array | None, rows: int, label_weight: Array | None = None
    ) -> tuple[Array, Array, int, dict[str, Any]]:
        """Loss of each row and its weight in the mean, both (rows,), the number of its losses, and the values that it logs."""
        output = values.outputs if term.output is None else _subtree(values.outputs, term.output)
        second = self._second(term, values)
        extras = {k: getattr(values, k) for k in term.form.extras}

        def call(output: Any, second: Any, weight: Any, rows: int) -> tuple[Array, Mapping[str, Any]]:
            arguments = (output,) if term.form.second == "" else (output, second)
            arguments = arguments[::-1] if term.form.label_first else arguments
            extra = {**extras, **row_weight_arguments(term.form.weights, weight, rows)}
            try:
                losses, logged = _split(term.loss(*arguments, **extra))
            except KeyError as error:
                error.add_note(f"jfit: raised by the loss; its batch has the arrays {list(values.batch)}")
                raise
            return jnp.asarray(losses), logged

        losses, logged = call(output, second, weight, rows)
        unweighted = lambda o, y, n: call(o, y, None, n)[0]  # noqa: E731
        if self.per_batch:
            check_broadcast(unweighted, output, second, losses, rows)
            losses = _of_batch(losses, rows)
        else:
            check_rows(unweighted, output, second, losses, rows)
        label = second if term.form.second == "label" else None
        return *per_row(term.loss, label, losses, label_weight), {
            k: _logged(k, jnp.asarray(v), rows) for k, v in logged.items()
        }

    def missing_label(self, term: Term, names: Sequence[str]) -> ValueError:
        """The error of a batch with arrays of these names, which has no label of the term."""
        needed = [str(t.output) for t in self.terms if t.form.second == "label"]
        if term.output is None or len(needed) == 1:
            return ValueError(f"the loss needs the label {self.label_name(term)!r}; the batch has {list(names)}")
        each = ", ".join(f"{n!r}: ..." for n in needed)
        remedy = f"the batch has {list(names)}; pass a dict of labels by output name, y={{{each}}}"
        return ValueError(f"the loss of the output {term.output!r} needs a label of this name, but {remedy}")

    def log_unused(self, outputs: Any, labels: Sequence[str]) -> None:
        """Log outputs without loss and label, and labels without loss and output; raise if one is probably misspelled.

        Args:
            outputs: pytree of the outputs.
            labels: names of the labels of the batch.

        Raises:
            ValueError: a label of no output is spelled like an output without label.
        """
        log, prefix = logging.getLogger("jfit").warning, f"{self.label}/"
        if labels and all(t.form.second == "" for t in self.terms):
            log("the loss has no parameter for the labels: not used, except by metrics")
        if not self.by_name or hasattr(outputs, "shape") or any(t.form.second != "label" for t in self.terms):
            return
        leaves, terms = list(flatten_names(outputs)[0]), [str(t.output) for t in self.terms]
        own = [n.removeprefix(prefix) for n in labels if n.startswith(prefix)]
        without = [n for n in dict.fromkeys((*leaves, *terms)) if not _covered(n, own)]
        for name in [n for n in own if not _covered(n, (*leaves, *terms))]:
            near = nearest(name, without)
            if near:
                raise ValueError(f"no output has the name of the label {name!r}, {without} have no label; did you mean {near}?")
            log("the label %r is not used: no output and no loss has this name", name)
        without = [n for n in without if not _covered(n, terms)]
        if without:
            log("the outputs %s have no loss and no label", without)

    def _second(self, term: Term, values: LossInputs) -> Any:
        if term.form.second != "label":
            return values.batch if term.form.second == "batch" else ()
        label = self._label(term, values.batch)
        if label is None:
            raise self.missing_label(term, [n for name, tree in values.batch.items() for n in _leaf_names(name, tree)])
        return label


def _scales(weights: Any, names: Sequence[str]) -> dict[str, float]:
    scales = {} if weights is None else {n: w for n, w in flatten_names(weights)[0].items() if w is not None}
    for name, value in scales.items():
        if name not in names:
            raise ValueError(f"loss_weights has {name!r}, but loss has the outputs {list(names)}")
        if not math.isfinite(value):
            raise ValueError(f"loss_weights[{name!r}] is {value!r}; expected a finite number")
    return scales


def _subtree(tree: Any, name: str) -> Any:
    """The leaf or subtree at a path 'a/b' of a pytree; None if there is none.  The path of a single array is 'output'."""
    if hasattr(tree, "shape"):
        return tree if name == "output" else None
    for key in name.split("/"):
        if isinstance(tree, Mapping):
            tree = tree.get(key, tree.get(int(key)) if key.isdigit() else None)
        elif hasattr(tree, "_fields") and key in tree._fields:
            tree = getattr(tree, key)
        elif isinstance(tree, tuple | list):
            tree = tree[int(key)] if key.isdigit() and int(key) < len(tree) else None
        else:
            tree = getattr(tree, key, None) if not hasattr(tree, "shape") else None
        if tree is None:
            return None
    return tree


def _leaf_names(name: str, tree: Any) -> list[str]:
    return [name] if hasattr(tree, "shape") else [f"{name}/{leaf}" for leaf in flatten_names(tree)[0]]


def _covered(name: str, names: Sequence[str]) -> bool:
    """Whether a path 'a/b' is one of the names, inside of one, or contains one."""
    return any(name == n or name.startswith(f"{n}/") or n.startswith(f"{name}/") for n in names)


def _split(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Split what a loss returned into (losses, values to log)."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        return result
    if result is None or isinstance(result, tuple | list | Mapping):
        kind = "None" if result is None else f"a {type(result).__name__}"
        raise ValueError(
            f"loss returned {kind}, expected an array with the loss of each row, or (losses, dict of logged values)"
        )
    return result, {}


def _of_batch(loss: Array, rows: int) -> Array:
    if loss.ndim:
        raise ValueError(f"loss returned shape {loss.shape}, but with loss_per_batch=True it must return one scalar, its mean")
    return jnp.broadcast_to(loss, (rows,))  # its weighted mean over the rows is the scalar


def _logged(name: str, value: Array, rows: int) -> tuple[Array, Array]:
    """Value of each row and its weight, (rows,); a scalar is the value of every row."""
    if name in COLUMNS:
        raise ValueError(f"loss returned the value {name!r} to log, but the history has another column of this name; rename it")
    if value.ndim and value.shape[0] != rows:
        raise ValueError(f"loss returned the value {name!r} to log with shape {value.shape}; expected () or ({rows},)")
    value = jax.lax.stop_gradient(value.astype(jnp.promote_types(value.dtype, jnp.float32)))
    values = value.reshape(rows, -1).mean(axis=1) if value.ndim else jnp.broadcast_to(value, (rows,))
    return summed(values, jnp.ones_like(values), math.prod(value.shape[1:]))
