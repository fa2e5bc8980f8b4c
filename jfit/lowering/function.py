"""Make a `Model` of a pure JAX function and a per-example loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.lowering.function_rows import FunctionRows
from jfit.lowering.loss_kinds import known_kind
from jfit.lowering.losses import as_loss, check_rows, facts, per_row
from jfit.lowering.model import Aux, Inputs, Model, Output, Params, Policy, Specs, flatten_names
from jfit.lowering.structure import Structure, Tree


def from_function(
    apply: Callable[..., Any],
    *,
    loss: Callable[[Any, Array], Array] | str,
    params: Any = None,
    aux: Any = None,
    init: Callable[..., Any] | None = None,
    inputs: Sequence[str] | None = None,
    label: str = "label",
) -> Model:
    """Make a `Model` of a pure JAX function and a per-example loss.

    Args:
        apply: `apply(params, x, ...) -> output`, one array whose axis 0 is the batch axis.  The names of its positional
            arguments after `params` are the input names.  If its signature has the keywords `key` (PRNG key), `train` (bool)
            or `aux`, they are passed; with `aux` it returns (output, new aux).  Incomplete batches are padded only if the rows
            do not affect each other, which is read from the jaxpr and, where that is not enough, tested on the first batch;
            other models, such as those with batch normalization, run incomplete batches with their own number of rows.  A
            keyword `weight` (float32 (batch,), 0 for padding rows, else 1) promises that the function excludes padding rows
            itself; so does a keyword-only `mask` without default (bool (batch,)).  With `sync_batch_stats=True` a keyword
            `axis_name` is passed, the name of the device axis or None.
        loss: `loss(output, label) -> (batch, ...)`, one value per example, or one per value of an example (these are averaged);
            or the name of one of `jfit.losses`, such as "cross_entropy".  The keywords `weight` and `mask` are passed as to
            `apply`.
        params: parameters, any pytree of arrays (dicts, lists, NamedTuples, registered dataclasses, a Flax nnx.State, the
            arrays of an Equinox module); leaves are named by their path 'a/b/c'.  Leaves that are not floating-point, such as
            typed PRNG keys, are not trained.
        aux: auxiliary (untrained) state, any pytree of arrays; default: none.
        init: `init(key, *specs) -> params` or (params, aux), with a jax.ShapeDtypeStruct for each input; instead of `params`.
        inputs: input names; default: the argument names of `apply`.
        label: name of the label input.

    Returns:
        The `Model`, with one output of kind `loss`.

    Raises:
        ValueError: both or neither of `params` and `init` are passed, `apply` has no input argument, or the name of the loss
            is unknown.

    Example:
        >>> import jax.numpy as jnp, jfit, optax
        >>> def linear(params, x):
        ...     return x @ params["w"]
        >>> model = jfit.Model.from_function(linear, loss=optax.l2_loss, params={"w": jnp.ones(3)})
        >>> model.inputs, model.labels
        (('x',), ('label',))
    """
    if (params is None) == (init is None):
        raise ValueError("a model from a function needs its parameters: pass either params= (a pytree) or init= (key, *specs)")
    names, loss = tuple(inputs) if inputs else _positional(apply), as_loss(loss)
    keywords = frozenset(inspect.signature(apply).parameters) - set(names)
    adapter, kind = _Adapter(apply, loss, params, aux, init, names, label, keywords), known_kind(loss)
    facts_of_loss = {"task": kind.task, "scores": kind.scores, "takes_weight": bool(adapter.loss_weights), **facts(loss)}
    out, rows = Output("output", "loss", label, adapter.row_losses, **facts_of_loss), FunctionRows(adapter)
    return Model(
        adapter.init, adapter.apply, (out,), names, (label,), rows.plan, structure=adapter.structure, verify=rows.verify
    )


class _Adapter:
    """Adapts a user's function on pytrees to the flat dicts of `Model`; keeps their structure."""

    def __init__(self, fn, loss, params, aux, init_fn, names, label, keywords) -> None:
        self.fn, self.loss, self.init_fn, self.names, self.label, self.keywords = fn, loss, init_fn, names, label, keywords
        self.initial = (params, aux)
        self.weights, self.loss_weights = _weight_keywords(fn) & keywords, _weight_keywords(loss)
        self.structure = Structure()
        if init_fn is None:
            self.structure.params, self.structure.aux = Tree(params), Tree(aux)

    def init(self, key: Array, specs: Specs, initializer: Any = None) -> tuple[Params, Aux]:
        """Return (params, aux) as flat dicts of copies: training donates their buffers, and the caller's arrays stay valid."""
        params, aux = self.initial
        if self.init_fn is not None:
            params = self.init_fn(key, *(specs[n] for n in self.names))
            if "aux" in self.keywords and type(params) is tuple:  # not a NamedTuple of parameters
                params, aux = params
        self.structure.params, self.structure.aux = Tree(params), Tree(aux)
        return _copied("params", params), _copied("aux", aux)

    def apply(
        self,
        params: Params,
        aux: Aux,
        inputs: Inputs,
        *,
        key: Array | None = None,
        train: bool = False,
        weight: Array | None = None,
        axis_name: str | None = None,
        row_ids: Array | None = None,
        policy: Policy | None = None,
        sync_batch_stats: bool = False,
    ) -> tuple[tuple[Array, ...], Aux]:
        """Apply the user's function, see `ApplyFn`.  `objective` and `loss_sums` apply `weight` to the losses."""
        if self.structure.params is None:
            raise ValueError("call init before apply: init determines the tree structure of the parameters of this model")
        for name in self.names:
            if name not in inputs:
                raise ValueError(f"input {name!r} is missing; the model takes {self.names}, found {tuple(inputs)}")
        cast = policy.cast if policy else lambda x: x
        extra: dict[str, Any] = {"train": train} if "train" in self.keywords else {}
        if "key" in self.keywords:
            extra["key"] = key if key is None or axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        if "axis_name" in self.keywords:
            extra["axis_name"] = axis_name if sync_batch_stats else None
        elif sync_batch_stats:
            raise ValueError(
                "sync_batch_stats=True needs a function that takes axis_name=, the name of the device axis over which it "
                "averages its batch statistics (as axis_name of flax.nnx.BatchNorm), but this one does not; add the keyword "
                "axis_name to its signature, or leave sync_batch_stats out"
            )
        extra |= _row_weights(self.weights, weight, inputs[self.names[0]].shape[0])
        if "aux" in self.keywords:
            extra["aux"] = _tree_of("aux", self.structure.known("aux"), aux)
        arrays = [cast(jnp.asarray(inputs[n])) for n in self.names]
        result = self.fn(jax.tree.map(cast, _tree_of("params", self.structure.params, params)), *arrays, **extra)
        if "aux" not in self.keywords:
            return _as_outputs(result, policy), dict(aux)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(f"apply takes aux, so it must return (output, new aux); it returned a {type(result).__name__}")
        return _as_outputs(result[0], policy), self._updated_aux(result[1], aux)

    def _updated_aux(self, tree: Any, old: Aux) -> Aux:
        expected = self.structure.known("aux")
        flat, actual = flatten_names(tree)
        if actual != expected.treedef:
            names = list(expected.names)
            raise ValueError(f"apply returned aux with the leaves {list(flat)}, expected the tree it was passed: {names}")
        return {k: v if v.dtype == old[k].dtype else v.astype(old[k].dtype) for k, v in flat.items()}

    def row_losses(self, output: Array, inputs: Inputs, weight: Array | None = None) -> tuple[Array, Array]:
        """Return (loss of each row, weight of each row in the mean), both (batch,) float32; see `Output.loss`."""
        if self.label not in inputs:
            raise ValueError(f"the loss needs the input {self.label!r}; found {tuple(inputs)}")
        label = jnp.asarray(inputs[self.label])
        losses = jnp.asarray(self.loss(output, label, **_row_weights(self.loss_weights, weight, label.shape[0])))
        check_rows(lambda o, y: self.loss(o, y, **_row_weights(self.loss_weights, None, y.shape[0])), output, label, losses)
        return per_row(self.loss, label, losses)


Model.from_function = staticmethod(from_function)  # type: ignore[attr-defined]


def _copied(kind: str, tree: Any) -> dict[str, Array]:
    """Return copies of the leaves by name: training donates their buffers, the caller's arrays stay valid."""
    return {name: _array(kind, name, leaf) for name, leaf in flatten_names(tree)[0].items()}


def _array(kind: str, name: str, leaf: Any) -> Array:
    try:
        return jnp.array(leaf)
    except TypeError as error:
        raise TypeError(
            f"{kind}: {name!r} is a {type(leaf).__name__}, expected an array or a number; keep other leaves outside of {kind}, "
            "as in params, static = equinox.partition(module, equinox.is_array), and combine them inside the function"
        ) from error


def _tree_of(kind: str, structure: Tree, leaves: Any) -> Any:
    if not isinstance(leaves, Mapping):
        raise TypeError(
            f"{kind} is a {type(leaves).__name__}, expected a dict of arrays with the names {list(structure.names)[:20]}; "
            f"pass model.structure.{kind}.flatten(tree), or run.named_{kind}"
        )
    try:
        return structure.unflatten(leaves)
    except ValueError as error:
        raise ValueError(f"{kind} {error}") from None


def _positional(fn: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = [p.name for p in inspect.signature(fn).parameters.values() if p.kind in kinds and p.default is p.empty]
    names = tuple(n for n in arguments[1:] if n not in ("key", "train", "aux", "axis_name"))
    if not names:
        raise ValueError("apply takes (params, inputs...), but no input was found in its signature; pass inputs=('x',)")
    return names


def _as_outputs(output: Any, policy: Policy | None) -> tuple[Array, ...]:
    """Wrap the one output array in a tuple; under a mixed-precision policy it is cast to float32."""
    if isinstance(output, (tuple, list, dict)):
        raise ValueError(f"apply returned a {type(output).__name__}, expected one array; return the one the loss takes")
    return (output.astype(jnp.float32),) if policy and jnp.issubdtype(output.dtype, jnp.floating) else (output,)


def _weight_keywords(fn: Callable[..., Any]) -> frozenset[str]:
    """The keywords by which a function takes row weights: `weight` with default None, keyword-only `weight` or `mask`."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some callables of C have no signature
        return frozenset()
    required = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    return frozenset(
        {n for n, p in parameters.items() if n == "weight" and p.default is None} | (required & {"weight", "mask"})
    )


def _row_weights(keywords: frozenset[str], weight: Array | None, rows: int) -> dict[str, Array]:
    """The row weights by keyword: `weight` 1.0 or 0.0, `mask` True or False."""
    if not keywords:
        return {}
    mask = jnp.ones(rows, bool) if weight is None else weight > 0
    return {n: mask if n == "mask" else mask.astype(jnp.float32) for n in keywords}
