"""A model: pure functions over flat dicts of parameters, from a graph (`jfit.lower`) or from any JAX function.

`apply(params, aux, inputs)` computes; `outputs` says what each output means for training: a head makes its own gradient,
a loss is differentiated, a plain output is only shown.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.rows import LOST, MaybeLayout, RowLayout

Params = dict[str, Array]
Aux = dict[str, Array]
Inputs = Mapping[str, Array]
Specs = Mapping[str, jax.ShapeDtypeStruct]


class Policy(NamedTuple):
    """Mixed precision: parameters stay float32, compute runs in `compute`, heads and losses in float32.

    Example:
        >>> import jfit
        >>> jfit.Policy("bfloat16").compute
        'bfloat16'
    """

    compute: str = "float32"

    def cast(self, x: Array) -> Array:
        """Floating arrays in the compute dtype, others unchanged."""
        return x.astype(self.compute) if jnp.issubdtype(x.dtype, jnp.floating) else x


class Output(NamedTuple):
    """What one output of a model is.

    Attributes:
        name: as `Symbol.list_outputs` gives it.
        kind: `head` (ignores its cotangent, makes its own gradient), `loss` (differentiated per example) or `plain`.
        label: the input that is its label, or None.
        loss: `(output, inputs) -> (loss per row, how much each row counts)`, both (rows,) float32; None if it has none.
        class_axis: axis of the classes where labels are class numbers, else None.
        ignore_label: a label value that means "no label", or None.
    """

    name: str
    kind: str = "plain"
    label: str | None = None
    loss: Callable[[Array, Inputs], tuple[Array, Array]] | None = None
    class_axis: int | None = None
    ignore_label: float | None = None


class Plan(NamedTuple):
    """What one set of input shapes leads to.

    Attributes:
        shapes: the outputs, as jax.ShapeDtypeStruct.
        rows: for each output, where its batch rows are (see `jfit.ops.rows`), or LOST.
        paddable: False where a head or a batch statistic cannot tell rows apart: such batches must not be padded.
        reason: the sentence why not.
    """

    shapes: tuple[jax.ShapeDtypeStruct, ...]
    rows: tuple[MaybeLayout, ...]
    paddable: bool
    reason: str = ""


class ApplyFn(Protocol):
    """`apply(params, aux, inputs) -> (outputs, new aux)`; pure, so jit, grad and vmap apply to it."""

    def __call__(
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
    ) -> tuple[tuple[Array, ...], Aux]: ...


class Model(NamedTuple):
    """A model as pure functions.

    Attributes:
        init: `init(key, specs, initializer=None) -> (params, aux)`; specs: input name -> jax.ShapeDtypeStruct.
        apply: see `ApplyFn`.
        outputs: what each output is, see `Output`.
        inputs: names of the data inputs, in order.
        labels: names of the label inputs, in order.
        optional: inputs that may be left out (begin states: zeros).
        shown_labels: labels that the outputs are made of in evaluation too (a margin at the label's class).
        plan: `plan(specs) -> Plan`.
        batch_axes: axis of the batch for inputs where it is not 0.
        frozen: parameters that never learn (gamma of batch norms with fix_gamma).
        traits: what the loop should know: `convolution`, `draws` (random numbers, in evaluation too where operators say so).
        symbol: the graph it was lowered from, or None.
        tables: parameters that a batch reads rows of -> `(inputs, policy) -> their numbers`, which `apply` takes as `held=`.

    Example:
        >>> import jfit
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model = jfit.lower(net)
        >>> model.inputs, model.labels, model.outputs[0].kind
        (('data',), ('softmax_label',), 'head')
    """

    init: Callable[..., tuple[Params, Aux]]
    apply: ApplyFn
    outputs: tuple[Output, ...]
    inputs: tuple[str, ...] = ("data",)
    labels: tuple[str, ...] = ()
    plan: Callable[[Specs], Plan] = None  # type: ignore[assignment]
    batch_axes: Mapping[str, int] = {}
    frozen: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    symbol: Any = None
    shown_labels: tuple[str, ...] = ()
    tables: Mapping[str, Callable[..., Array]] = {}

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Names of what prediction is made of: the data inputs, and the labels that outputs show."""
        return (*self.inputs, *self.shown_labels)


def specs_of(inputs: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and (canonical) dtypes of arrays, without touching their values.

    Example:
        >>> import numpy as np
        >>> from jfit.lowering.model import specs_of
        >>> specs_of({"data": np.zeros((2, 3))})
        {'data': ShapeDtypeStruct(shape=(2, 3), dtype=float32)}
    """
    return {k: jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in inputs.items()}


def objective(model: Model, outputs: Sequence[Array], inputs: Inputs, weight: Array | None) -> Array:
    """Σ heads + Σᵢ weightᵢ · lossᵢ, a scalar whose gradient is the SUM over rows (heads weigh their own gradient)."""
    total = jnp.zeros((), jnp.float32)
    for out, value in zip(model.outputs, outputs, strict=True):
        if out.kind == "head":
            total = total + jnp.sum(value.astype(jnp.float32))
        elif out.kind == "loss":
            assert out.loss is not None
            losses, _ = out.loss(value, inputs)
            total = total + jnp.sum(losses if weight is None else jnp.where(weight > 0, losses, 0) * weight)
    return total


def loss_sums(
    model: Model, outputs: Sequence[Array], inputs: Inputs, weight: Array | None, rows: Sequence[MaybeLayout]
) -> tuple[Array, Array] | None:
    """(Σ weight·loss, Σ weight) of the true loss of each head, summed over heads; None where no head has one."""
    sums, count, found = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32), False
    for out, value, where in zip(model.outputs, outputs, rows, strict=True):
        if out.loss is None or out.kind == "plain" or (out.label is not None and out.label not in inputs):
            continue
        losses, counts = out.loss(value, inputs)
        w = row_weights(weight, where, losses.shape[0])
        if w is not None:
            # a padded or ignored row must not count, whatever its value (0 * inf is nan)
            losses, counts = jnp.where(w > 0, losses, 0) * w, counts * w
        sums = sums + jnp.sum(jnp.where(counts > 0, losses, 0))
        if not found:
            count = jnp.sum(counts)
        found = True
    return (sums, count) if found else None


def row_weights(weight: Array | None, rows: MaybeLayout, size: int) -> Array | None:
    """Weights of the batch rows (batch,) as weights of the `size` rows of an output's first axis.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.lowering.model import row_weights
        >>> from jfit.ops.rows import RowLayout
        >>> row_weights(jnp.array([1.0, 0.0]), RowLayout(axis=0, before=1, size=2, after=3), 6).tolist()
        [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """
    if weight is None or rows is None or rows is LOST:
        return None
    assert isinstance(rows, RowLayout)
    if rows.axis != 0 or rows.before * rows.size * rows.after != size:
        return None
    return jnp.tile(jnp.repeat(weight, rows.after), rows.before)


def flatten_names(tree: Any) -> tuple[dict[str, Any], Any]:
    """A pytree as a flat dict 'a/b/c' -> leaf, and its structure.  A flat dict of arrays keeps its names.

    Raises:
        ValueError: two leaves would have the same name.

    Example:
        >>> from jfit.lowering.model import flatten_names
        >>> flatten_names({"a": {"b": 1, "c": [2, 3]}})[0]
        {'a/b': 1, 'a/c/0': 2, 'a/c/1': 3}
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = ["/".join(_key_text(k) for k in path) or "value" for path, _ in leaves]
    if len(set(names)) != len(names):
        raise ValueError(
            f"two leaves of the parameter tree have the same name: {sorted(n for n in names if names.count(n) > 1)[0]!r}"
        )
    return {n: leaf for n, (_, leaf) in zip(names, leaves, strict=True)}, structure


def _key_text(key: Any) -> str:
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


def from_function(
    apply: Callable[..., Any],
    *,
    loss: Callable[[Any, Array], Array],
    params: Any = None,
    aux: Any = None,
    init: Callable[..., Any] | None = None,
    inputs: Sequence[str] | None = None,
    label: str = "label",
) -> Model:
    """A Model from a pure JAX function and a per-example loss.

    Args:
        apply: `apply(params, x, ...) -> output`; input names are its positional arguments after `params`.  It may take the
            keywords `key=` (PRNG key), `train=` (bool) and `aux=`; with `aux` it returns (output, new aux).
        loss: `loss(output, label) -> (batch, ...)`, one value per example (further axes are averaged).
        params: the parameters, any pytree of arrays; leaves are named by their path 'a/b/c'.
        aux: non-trained state, any pytree.
        init: `init(key, *specs) -> params` (or (params, aux)) in place of `params`.
        inputs: names of the inputs where the function's own argument names will not do.
        label: name of the label input.

    Raises:
        ValueError: neither or both of params and init are given, or the loss is no per-example loss.

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
    names = tuple(inputs) if inputs else _positional(apply)
    made = _Function(apply, loss, params, aux, init, names, label, frozenset(inspect.signature(apply).parameters))
    out = Output("output", "loss", label, made.loss_of)
    return Model(made.init, made.apply, (out,), names, (label,), made.plan)


class _Function:
    """A foreign function behind the signatures of a Model; remembers how its trees of parameters and state are built."""

    def __init__(self, fn, loss, params, aux, maker, names, label, keywords) -> None:
        self.fn, self.loss, self.maker, self.names, self.label, self.keywords = fn, loss, maker, names, label, keywords
        self.given = (params, aux)
        self.trees: dict[str, tuple[list[str], Any]] = {}
        if maker is None:
            self._flat("params", params)
            self._flat("aux", aux)

    def _flat(self, kind: str, tree: Any) -> dict[str, Any]:
        flat, structure = flatten_names(tree)
        self.trees[kind] = list(flat), structure
        return flat

    def _tree(self, kind: str, flat: Mapping[str, Array]) -> Any:
        # by name: a dict that was put together from parts (frozen and learning parameters) has another order
        names, structure = self.trees[kind]
        missing = [n for n in names if n not in flat]
        if missing:
            raise ValueError(f"{kind} {missing[0]!r} is missing; found {list(flat)[:20]}, needed all of {names[:20]}")
        return jax.tree.unflatten(structure, [flat[n] for n in names])

    def init(self, key: Array, specs: Specs, initializer: Any = None) -> tuple[Params, Aux]:
        """(params, aux) as flat dicts of own copies: the engine donates its buffers, the caller's arrays stay alive."""
        params, aux = self.given
        if self.maker is not None:
            params = self.maker(key, *(specs[n] for n in self.names))
            if "aux" in self.keywords and isinstance(params, tuple):
                params, aux = params
        flat, flat_aux = self._flat("params", params), self._flat("aux", aux)
        return {k: jnp.array(v) for k, v in flat.items()}, {k: jnp.array(v) for k, v in flat_aux.items()}

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
        """See `ApplyFn`; weights reach the loss, not the function."""
        if "params" not in self.trees:
            raise ValueError("call init before apply: this model learns the structure of its parameters there")
        for name in self.names:
            if name not in inputs:
                raise ValueError(f"input {name!r} is missing; the model takes {self.names}, found {tuple(inputs)}")
        cast = policy.cast if policy else lambda x: x
        extra: dict[str, Any] = {"train": train} if "train" in self.keywords else {}
        if "key" in self.keywords:
            extra["key"] = key if key is None or axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        if "aux" in self.keywords:
            extra["aux"] = self._tree("aux", aux)
        given = [cast(jnp.asarray(inputs[n])) for n in self.names]
        result = self.fn(jax.tree.map(cast, self._tree("params", params)), *given, **extra)
        if "aux" not in self.keywords:
            return _as_outputs(result, policy), dict(aux)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(f"apply takes aux, so it must return (output, new aux); it returned a {type(result).__name__}")
        return _as_outputs(result[0], policy), self._moved(result[1], aux)

    def _moved(self, tree: Any, old: Aux) -> Aux:
        names, structure = self.trees["aux"]
        flat, found = flatten_names(tree)
        if found != structure:
            raise ValueError(f"apply returned aux with the leaves {list(flat)}, needed the tree it was given: {names}")
        return {k: v if v.dtype == old[k].dtype else v.astype(old[k].dtype) for k, v in flat.items()}

    def loss_of(self, output: Array, inputs: Inputs) -> tuple[Array, Array]:
        """(loss per row, 1 per row)."""
        if self.label not in inputs:
            raise ValueError(f"the loss needs the input {self.label!r}; found {tuple(inputs)}")
        losses, rows = jnp.asarray(self.loss(output, inputs[self.label])), inputs[self.label].shape[0]
        if losses.ndim == 0 or losses.shape[0] != rows:
            raise ValueError(
                f"loss returned shape {losses.shape}, needed one value per example, ({rows},): padded rows and weights need "
                "them apart; return the losses before averaging"
            )
        losses = losses.astype(jnp.float32).reshape(rows, -1).mean(axis=1)
        return losses, jnp.ones_like(losses)

    def plan(self, specs: Specs) -> Plan:
        """See `Model.plan`: rows are expected on axis 0."""
        params, aux = jax.eval_shape(lambda: self.init(jax.random.key(0), specs))
        data = {n: specs[n] for n in self.names}
        shapes, _ = jax.eval_shape(lambda *v: self.apply(*v, key=jax.random.key(0)), params, aux, data)
        size = data[self.names[0]].shape[0]
        rows = tuple(RowLayout(0, 1, size, 1) if s.shape[:1] == (size,) else LOST for s in shapes)
        return Plan(shapes, rows, paddable=True)


Model.from_function = staticmethod(from_function)  # type: ignore[attr-defined]


def _positional(fn: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [p.name for p in inspect.signature(fn).parameters.values() if p.kind in kinds and p.default is p.empty]
    names = tuple(n for n in found[1:] if n not in ("key", "train", "aux"))
    if not names:
        raise ValueError("apply takes (params, inputs...), but no input was found in its signature; pass inputs=('x',)")
    return names


def _as_outputs(output: Any, policy: Policy | None) -> tuple[Array, ...]:
    """The function's result as a tuple of one array, float32 under a mixed-precision policy."""
    if isinstance(output, (tuple, list, dict)):
        raise ValueError(f"apply returned a {type(output).__name__}, needed one array; return the one the loss takes")
    return (output.astype(jnp.float32),) if policy and jnp.issubdtype(output.dtype, jnp.floating) else (output,)


def count_parameters(params: Mapping[str, Any]) -> int:
    """Number of values in a parameter dict.

    Example:
        >>> import numpy as np
        >>> from jfit.lowering.model import count_parameters
        >>> count_parameters({"w": np.zeros((3, 4)), "b": np.zeros(3)})
        15
    """
    return sum(math.prod(v.shape) for v in params.values())
