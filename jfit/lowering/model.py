"""The contract of a model: pure functions over dicts of parameters.

A graph (`jfit.lower`) and any JAX function (`Model.from_function`) become one.

`apply(params, aux, inputs)` computes; `outputs` says what each output means for training: a head makes its own gradient,
a loss is differentiated, a plain output is only shown.
"""

from __future__ import annotations

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
        tables: parameters that a batch reads rows of -> `(inputs, policy) -> their numbers`, which `apply` takes as
            `table_rows=`.

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


class Trained(NamedTuple):
    """A model with its parameters, such as `jfit.load` returns; `fit`, `score` and `predict` take it as a model.

    Attributes:
        model: the model.
        params: parameters by name.
        aux: auxiliary states by name.
    """

    model: Model
    params: Params
    aux: Aux


def specs_of(inputs: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and (canonical) dtypes of arrays, without touching their values.

    Example:
        >>> import numpy as np
        >>> from jfit.lowering.model import specs_of
        >>> specs_of({"data": np.zeros((2, 3))})
        {'data': ShapeDtypeStruct(shape=(2, 3), dtype=float32)}
    """
    return {k: jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in inputs.items()}


def plan_of(model: Model, inputs: dict[str, Array]) -> Plan:
    """The plan for inputs of these shapes."""
    return model.plan(specs_of(inputs))


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


def count_parameters(params: Mapping[str, Any]) -> int:
    """Number of values in a parameter dict.

    Example:
        >>> import numpy as np
        >>> from jfit.lowering.model import count_parameters
        >>> count_parameters({"w": np.zeros((3, 4)), "b": np.zeros(3)})
        15
    """
    return sum(math.prod(v.shape) for v in params.values())
