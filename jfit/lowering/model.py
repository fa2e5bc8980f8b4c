"""`Model`: the interface between networks and training, a NamedTuple of pure functions over flat dicts of arrays.

`jfit.lower` makes one of a graph, `Model.from_function` of a JAX function.  `apply(params, aux, inputs)` computes the outputs;
`outputs` has the kind of each: an output head has its own gradient (such as MXNet's SoftmaxOutput), a loss is differentiated,
and a plain output takes no part in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from jfit.graph import html
from jfit.ops.axis import Axis
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.programs import ByIdentity, Made

Params = dict[str, Array]
Aux = dict[str, Array]
Inputs = Mapping[str, Array]
Specs = Mapping[str, jax.ShapeDtypeStruct]
STEP = "__step__"  # name of the number of updates, among the auxiliary states that a loss gets


class Policy(NamedTuple):
    """Mixed-precision policy: parameters are stored in float32, operators run in `compute`, losses in float32.

    Output heads (outputs with their own gradient, such as SoftmaxOutput) run in float32 too.

    Numbers below 6e-8 are 0 in float16.  So the mean loss is multiplied by a loss scale, gradients are divided by it in
    float32, and a step with a gradient that is not finite changes nothing.  A dynamic loss scale is then halved (to at least
    1), and doubled after a number of updates in a row.  It is in `TrainState.loss_scale`.

    Args:
        compute: name of the compute dtype, such as "bfloat16".
        loss_scale: None: with "float16" the dynamic loss scale (2**15, 2000), with other dtypes none.  A pair (first scale,
            number of updates in a row after which it is doubled): a dynamic loss scale.  A number: a fixed loss scale.

    Example:
        >>> import jfit
        >>> jfit.Policy("bfloat16").compute, jfit.Policy("bfloat16").scaling, jfit.Policy("float16", 1024.0).scaling
        ('bfloat16', None, (1024.0, None))
    """

    compute: str = "float32"
    loss_scale: float | tuple[float, int] | None = None

    @property
    def scaling(self) -> tuple[float, int | None] | None:
        """(first loss scale, number of updates after which it is doubled, None: never); None: there is no loss scale."""
        if self.loss_scale is None:
            return (2.0**15, 2000) if jnp.dtype(self.compute) == jnp.float16 else None
        return self.loss_scale if isinstance(self.loss_scale, tuple) else (self.loss_scale, None)

    def cast(self, x: Array) -> Array:
        """Cast a floating-point array to the compute dtype; return other arrays unchanged."""
        return x.astype(self.compute) if jnp.issubdtype(x.dtype, jnp.floating) else x


class Output(NamedTuple):
    """Description of one output of a model.

    Attributes:
        name: name as in `Symbol.list_outputs`, such as `softmax_output`.
        kind: `head` (its backward pass ignores the cotangent and computes MXNet's own gradient), `loss` (a per-example loss
            that is differentiated) or `plain` (no part of the objective, or only through `Model.joint_loss`).
        label: name of the input that is its label, or None.
        loss: `(output, inputs) -> (losses, weights)`, where `inputs` is a dict of the arrays of the batch, labels included.
            Both results are (rows,), float32 or wider: the loss of each row, and its weight in the mean (0 where the label is
            `ignore_label`).  None if the output has no loss.
        sized: as `loss`, with a third result: the number of losses of each row (an int), of which the loss of the row is the
            mean.  None: 1.
        class_axis: axis of the class scores in the output if its labels are class indices, else None.
        ignore_label: rows with this label value have no loss and no gradient; None: there is no such value.
        label_range: smallest and largest valid label if labels are not class indices; None: any.
        task: what the output estimates, as in `jfit.lowering.loss_kinds.LossKind`: "classes", "binary", "values" or None
            (unknown).
        scores: "logits", "probabilities", or None (neither, or unknown).
        takes_weight: `loss` has a third argument, the row weights (rows,) or None, with which it excludes padding rows itself.

    Example:
        >>> import jfit
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.Variable("data"), name="softmax")
        >>> out = jfit.lower(net).outputs[0]
        >>> out.name, out.kind, out.label, out.class_axis
        ('softmax_output', 'head', 'softmax_label', 1)
    """

    name: str
    kind: str = "plain"
    label: str | None = None
    loss: Callable[..., tuple[Array, Array]] | None = None
    class_axis: int | None = None
    ignore_label: float | None = None
    label_range: tuple[float, float] | None = None
    task: str | None = None
    scores: str | None = None
    takes_weight: bool = False
    sized: Callable[..., tuple[Array, Array, int]] | None = None

    def row_losses(self, value: Array, inputs: Inputs, weight: Array | None) -> tuple[Array, Array, int]:
        """Call `sized` or `loss`, with the row weights if they take them: (losses, weights, number of losses of a row)."""
        function: Any = self.loss if self.sized is None else self.sized
        result = function(value, inputs, weight) if self.takes_weight else function(value, inputs)
        return result if self.sized is not None else (*result, 1)


class RowLosses(NamedTuple):
    """The loss of each row of a batch, and values to log; computed by `Model.joint_loss`.

    Attributes:
        losses: loss of each row, (rows,), float32 or wider.
        weights: weight of each row in the mean, (rows,).
        logged: name -> (sum over the positions of each row, weight of the sum), both (rows,); their ratio over all rows is
            logged.
        terms: the same of each term of the loss.  The reported loss is the sum of their ratios, so that batches with rows of
            different length, or with different numbers of ignored labels, count by their positions.
    """

    losses: Array
    weights: Array
    logged: Mapping[str, tuple[Array, Array]]
    terms: tuple[tuple[Array, Array], ...]


class Plan(NamedTuple):
    """Static facts about a model for one set of input shapes; `Model.plan` computes them without running the model.

    Attributes:
        shapes: shape and dtype of each output.
        rows: for each output its `RowLayout` (on which axis the batch rows are), None if it does not depend on the batch, or
            LOST if its rows cannot be distinguished any more (see `jfit.ops.rows`).
        paddable: whether batches may contain padding rows.  False if an output head or a batch statistic is computed from
            an array whose rows are LOST, so that row weights cannot be applied.
        reason: why batches may not be padded; "" if they may.
        coupled: how rows affect each other in a model of a JAX function, such as by batch normalization; "" if they do not,
            and for graphs.  Row weights then scale the loss of a row, and a row of weight 0 still affects the other rows.
        in_loss: whether only the loss combines rows, of which `coupled` says how.
        gathered: whether the loss then combines the rows of all devices (`gather_outputs=True`).
        evaluation: the same facts for evaluation mode if they differ, else None; `in_evaluation` reads it.
        of_loss: how the loss combines rows, also where the outputs do; "" if it does not, and for graphs.
        lookups: inputs that are row indices of tables, each a `jfit.lowering.lookups.Lookup`.
        convolutions: whether a JAX function or its loss computes convolutions, those aside that only the backward rule of a
            `jax.custom_vjp` computes; graphs have the trait "convolution" instead.
    """

    shapes: tuple[jax.ShapeDtypeStruct, ...]
    rows: tuple[MaybeLayout, ...]
    paddable: bool
    reason: str = ""
    coupled: str = ""
    in_loss: bool = False
    gathered: bool = False
    evaluation: Any = None
    of_loss: str = ""
    lookups: tuple[Any, ...] = ()
    convolutions: bool = False

    @property
    def in_evaluation(self) -> Plan:
        """The plan for evaluation mode; the plan itself is that for training mode."""
        return self if self.evaluation is None else self.evaluation


class ApplyFn(Protocol):
    """Signature of `Model.apply`: `(params, aux, inputs, ...) -> (outputs, new auxiliary states)`.  Pure.

    Args:
        params: parameters by name.
        aux: auxiliary states by name.
        inputs: data and labels by name.  Labels may be missing if `train` is False, initial states of recurrent operators
            always (default zeros).
        key: PRNG key; each operator derives its own.  None: operators that draw random numbers raise.
        train: training mode: dropout is active, BatchNorm uses batch statistics and updates its moving statistics.
        weight: row weights (batch,), 0 for padding rows; batch statistics and gradients of output heads apply them.  None: all
            1.
        axis_name: name of the mapped device axis if the function is mapped over devices, else None.
        row_ids: global index of each row (batch,), int32, so that random numbers do not depend on the number of devices.
            Default: `arange(batch)`, plus the offset of the device.
        policy: mixed-precision policy; None: no casts.
        sync_batch_stats: compute batch statistics over all devices of `axis_name` and not per device.
        micro_batch: number of the micro-batch, int or int32 scalar, for random numbers that do not belong to rows.  None: the
            batch is not divided.
    """

    def __call__(
        self,
        params: Params,
        aux: Aux,
        inputs: Inputs,
        *,
        key: Array | None = None,
        train: bool = False,
        weight: Array | None = None,
        axis_name: Axis = None,
        row_ids: Array | None = None,
        policy: Policy | None = None,
        sync_batch_stats: bool = False,
        micro_batch: Any = None,
    ) -> tuple[tuple[Array, ...], Aux]: ...


class Model(NamedTuple):
    """A network as pure functions over flat dicts of arrays, with the metadata that training needs.

    Attributes:
        init: `init(key, specs, initializer=None) -> (params, aux)` draws initial values; `specs` is a dict of input name ->
            jax.ShapeDtypeStruct, `initializer` anything that `jfit.init.get` accepts.
        apply: `apply(params, aux, inputs, *, key, train, weight, ...) -> (outputs, new aux)`, see `ApplyFn`.
        outputs: an `Output` for each output: its kind, label and loss.
        inputs: names of the data inputs, in order.
        labels: names of the label inputs, in order.
        plan: `plan(specs) -> Plan`: shapes of the outputs and where their batch rows are, for inputs of these shapes.
        batch_axes: input name -> batch axis, for inputs whose batch axis is not 0; None for those without rows.
        frozen: names of parameters that are never updated (gamma of BatchNorm with fix_gamma).
        traits: subset of {"convolution", "recomputed", "draws", "row_keys", "loss_per_batch", "batch_means", "takes_step"}: it
            contains convolutions; nodes that the backward pass runs again because of MXNet's mirroring; operators that draw
            random numbers, some of them in evaluation too; random numbers of a row depend on its `row_ids`, so that all
            micro-batches get the same key; the loss is one scalar for the batch; it is a sum of means over different positions
            of the batch; it takes the number of updates.
        optional: names of inputs that may be missing: initial states of recurrent operators, by default zeros.
        symbol: the graph that the model was lowered from, or None.
        evaluation_labels: labels that the outputs depend on in evaluation too, such as a margin loss at the label's class.
        verify: `verify(params, aux, inputs)` tests on one batch whether rows affect each other, for later results of `plan`, if
            that cannot be read from the model.  None: not needed.
        tables: embedding tables with sparse gradients, and factors of CSR inputs: parameter name -> `(inputs, policy=None) ->
            row indices that the batch looks up`.  `apply` accepts an embedding table as a slice of rows with
            `table_rows={name: sorted row indices}`.
        structure: for models made of functions, the pytrees of their parameters, auxiliary states, inputs and outputs, a
            `jfit.lowering.structure.Structure`; None for graphs, whose parameters are a dict.
        bind: `bind(model, specs) -> Model` for models made of functions, whose inputs, labels and outputs are known by name
            only when the first batch is (see `bound`).  None: they are known.
        joint_loss: `joint_loss(outputs, inputs, weight, params, aux, axis_name) -> RowLosses | None`: the loss of the rows if
            it is not the sum of `Output.loss`: losses by output name, of several outputs, without a label, of the parameters,
            or of the whole batch.  None of the result: a label is missing.  None: the outputs have the losses.
        logged: names of the values that `joint_loss` logs.
        num_terms: number of terms of `joint_loss`; 0 without one.
        module: for models made of a module of a JAX framework, a `jfit.lowering.frameworks.Adapted`; else None.

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
    batch_axes: Mapping[str, Any] = {}
    frozen: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    symbol: Any = None
    evaluation_labels: tuple[str, ...] = ()
    tables: Mapping[str, Callable[..., Array]] = {}
    structure: Any = None
    verify: Callable[[Params, Aux, Inputs], None] | None = None
    bind: Callable[[Model, Specs], Model] | None = None
    joint_loss: Callable[..., RowLosses | None] | None = None
    logged: tuple[str, ...] = ()
    num_terms: int = 0
    module: Any = None

    def bound(self, inputs: Mapping[str, Any]) -> Model:
        """Return the model with the names of the inputs, labels and outputs for a batch (arrays, tracers or specs by name)."""
        return self if self.bind is None else self.bind(self, specs_of(inputs))

    @property
    def num_losses(self) -> int:
        """Number of losses whose sums are kept apart, the argument `losses` of `jfit.totals.zero_totals`."""
        return self.num_terms or max(1, sum(o.loss is not None and o.kind != "plain" for o in self.outputs))

    @property
    def evaluation_inputs(self) -> tuple[str, ...]:
        """Names of the inputs that prediction needs: the data inputs and `evaluation_labels`."""
        return (*self.inputs, *self.evaluation_labels)

    @property
    def program_key(self) -> Any:
        """What programs of this model depend on: the graph, by the key that `lower` gave to `apply`, and the metadata."""
        values = (*self.tables.values(), *(o.loss for o in self.outputs), self.plan)
        functions = [f if isinstance(f, Made) else ByIdentity(f) for f in values]
        outputs = tuple([o._replace(loss=None, sized=None) for o in self.outputs])
        names = self.inputs, self.labels, self.batch_axes, self.frozen, self.traits, self.optional, self.evaluation_labels
        own = self.apply, self.bind, self.joint_loss, functions  # a function of the user has no key
        return own, tuple(self.tables), outputs, names, self.logged

    def __repr__(self) -> str:
        # Some models of functions have outputs only when the first batch is known.
        return f"<Model: {', '.join(self.inputs)} -> {', '.join(out.name for out in self.outputs) or '...'}>"

    def _repr_html_(self) -> str:
        axes = {name: f"batch axis {axis}" for name, axis in self.batch_axes.items()}
        rows = [("input", name, axes.get(name, "optional" if name in self.optional else "")) for name in self.inputs]
        rows += [("label", name, axes.get(name, "")) for name in self.labels]
        rows += [("output", out.name, out.kind + (f", label {out.label}" if out.label else "")) for out in self.outputs]
        rows += [("frozen parameter", name, "") for name in sorted(self.frozen)]
        return html.title(repr(self)) + html.table(rows)


class Trained(NamedTuple):
    """A model with its parameters, such as `jfit.load` returns; `fit`, `score` and `predict` accept it as the model.

    Attributes:
        model: the functions and metadata of the network.
        params: parameters by name.
        aux: auxiliary states by name.
    """

    model: Model
    params: Params
    aux: Aux


def specs_of(inputs: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and canonical dtypes (float64 -> float32 without x64) of arrays, by name; never reads their values.

    Example:
        >>> import numpy as np
        >>> from jfit.lowering.model import specs_of
        >>> specs_of({"data": np.zeros((2, 3))})
        {'data': ShapeDtypeStruct(shape=(2, 3), dtype=float32)}
    """
    return {k: jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in inputs.items()}


def plan_of(model: Model, inputs: dict[str, Array]) -> Plan:
    """Compute the `Plan` of a model for a batch of inputs, without running the model.

    Args:
        model: the model.
        inputs: data (and labels) by name; only shapes and dtypes are used, so tracers are accepted.

    Returns:
        The `Plan`: shapes of the outputs, where their batch rows are, and whether batches may be padded.

    Example:
        >>> import jfit, numpy as np
        >>> model = jfit.lower(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3))
        >>> plan_of(model, {"data": np.zeros((2, 5), "float32")}).shapes
        (ShapeDtypeStruct(shape=(2, 3), dtype=float32),)
    """
    return model.plan(specs_of(inputs))


def verified_plan(model: Model, params: Any, aux: Any, inputs: Mapping[str, Any]) -> Plan:
    """Compute the `Plan` for a batch, after a test on this batch if independence of its rows is in question.

    Args:
        model: the model.
        params: parameters by name, on any devices.
        aux: auxiliary states by name.
        inputs: the batch: NumPy or JAX arrays by name.

    Returns:
        `Plan`.

    Example:
        >>> import jax.numpy as jnp, numpy as np, jfit
        >>> model = jfit.Model.from_function(lambda p, x: x * p["w"], loss=jnp.subtract, params={"w": jnp.ones(())})
        >>> verified_plan(model, {"w": jnp.ones(())}, {}, {"x": np.ones((4, 2), "float32"), "label": np.ones((4, 2))}).paddable
        True
    """
    if model.verify is not None:
        model.verify(params, aux, inputs)
    return plan_of(model, dict(inputs))


def joint_losses(
    model: Model,
    outputs: Sequence[Array],
    inputs: Inputs,
    weight: Array | None,
    params: Params,
    aux: Aux,
    axis_name: Axis = None,
    step: Any = None,
) -> RowLosses | None:
    """Call `Model.joint_loss`; None if the model has none, or a label is missing.  `step` is the number of updates, or None."""
    aux = aux if step is None else {**aux, STEP: step}
    return None if model.joint_loss is None else model.joint_loss(outputs, inputs, weight, params, aux, axis_name)


def objective(
    model: Model, outputs: Sequence[Array], inputs: Inputs, weight: Array | None, joint: RowLosses | None = None
) -> Array:
    """Scalar to differentiate: Σ output heads + Σᵢ weightᵢ · lossᵢ.  Its gradient is a sum over rows, not a mean.

    Output heads are outputs with their own gradient, such as SoftmaxOutput: their backward pass ignores the cotangent and
    applies the row weights itself, so that their values are irrelevant here.  `joint` has the losses of the rows if the model
    has a `joint_loss`.
    """
    total = jnp.zeros((), jnp.float32)
    if joint is not None:
        return jnp.sum(weighted(joint.losses, weight))
    for out, value in zip(model.outputs, outputs, strict=True):
        if out.kind == "head":
            total = total + jnp.sum(value.astype(jnp.float32))
        elif out.kind == "loss":
            losses = out.row_losses(value, inputs, weight)[0]
            total = total + jnp.sum(losses if weight is None else jnp.where(weight > 0, losses, 0) * weight)
    if model.joint_loss is not None:
        raise ValueError(f"the loss needs the labels {list(model.labels)}, but the batch has {list(inputs)}")
    return total


def weighted(values: Array, weight: Array | None) -> Array:
    """Values of rows times their weights, (rows,); values of rows with weight 0 may be inf or nan, and become 0."""
    return values if weight is None else jnp.where(weight > 0, values, 0) * weight


def summed(mean: Array, weight: Array, positions: int) -> tuple[Array, Array]:
    """Convert the means over the positions of each row, and their weights, to sums over the positions."""
    return (mean, weight) if positions == 1 else (mean * positions, weight * positions)


def logged_sums(joint: RowLosses | None, weight: Array | None) -> dict[str, tuple[Array, Array]]:
    """Name -> (Σ weight·value, Σ weight) of the values that a `Model.joint_loss` logs, scalars."""
    logged = {} if joint is None else joint.logged
    return {k: (jnp.sum(weighted(v, weight)), jnp.sum(weighted(w, weight))) for k, (v, w) in logged.items()}


class LossSums(NamedTuple):
    """Sums of the losses of a batch.

    Attributes:
        mean: (Σ weight · loss, Σ weight) over the positions of all rows; scalars, or (losses,) if the model has several losses.
            The reported loss is the sum of their ratios.
        share: Σ weight over rows, a scalar: the denominator of mean gradients if the loss ignores labels.
    """

    mean: tuple[Array, Array]
    share: Array


def loss_sums(
    model: Model,
    outputs: Sequence[Array],
    inputs: Inputs,
    weight: Array | None,
    rows: Sequence[MaybeLayout],
    joint: RowLosses | None = None,
) -> LossSums | None:
    """Sum the losses of a batch.  None if no output has a loss whose label is in `inputs`.

    `rows` says where the batch rows are in each output (`Plan.rows`), `joint` has the losses of a model with a `joint_loss`.
    """
    if model.joint_loss is not None:
        if joint is None:
            return None
        pairs = [(jnp.sum(weighted(v, weight)), jnp.sum(weighted(w, weight))) for v, w in joint.terms]
        return _loss_sums(pairs, jnp.sum(weighted(joint.weights, weight)))
    pairs, share = [], None
    for out, value, where in zip(model.outputs, outputs, rows, strict=True):
        if out.loss is None or out.kind == "plain":
            continue
        if out.label is not None and out.label not in inputs:
            pairs.append((jnp.zeros(()), jnp.zeros(())))
            continue
        losses, counts, positions = out.row_losses(value, inputs, weight)
        # the loss of a function has one value per row, wherever the rows are in its output
        w = row_weights(weight, where, losses.shape[0]) if model.symbol is not None or weight is None else weight
        if w is not None:
            # select before multiplying: the loss of a padding row may be inf, and 0 * inf is nan
            losses, counts = jnp.where(w > 0, losses, 0) * w, counts * w
        total, count = jnp.sum(jnp.where(counts > 0, losses, 0)), jnp.sum(counts)
        share = count if share is None else share
        pairs.append(summed(total, count, positions))
    return None if share is None else _loss_sums(pairs, share)


def _loss_sums(pairs: Sequence[tuple[Array, Array]], share: Array) -> LossSums:
    if len(pairs) == 1:
        return LossSums(pairs[0], share)
    return LossSums((jnp.stack([total for total, _ in pairs]), jnp.stack([count for _, count in pairs])), share)


def weight_sum(model: Model, losses: LossSums | None, weight: Array | None, rows: int) -> Array:
    """The denominator of mean gradients: Σᵢ weightᵢ, or the weight of the positions that a function's loss does not ignore.

    Args:
        model: the model.
        losses: from `loss_sums`.
        weight: row weights (rows,), or None.
        rows: number of rows.

    Returns:
        Scalar of the default float dtype, or of that of the losses.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.lower(jfit.sym.MakeLoss(jfit.sym.Variable("data")))
        >>> float(weight_sum(model, None, jnp.array([1.0, 0.5]), 2))
        1.5
    """
    ignores = model.symbol is None and any(o.ignore_label is not None for o in model.outputs)
    if losses is not None and (ignores or model.joint_loss is not None):
        return losses.share
    return jnp.asarray(rows, float) if weight is None else jnp.sum(weight.astype(float))


def row_weights(weight: Array | None, rows: MaybeLayout, size: int) -> Array | None:
    """Expand row weights (batch,) to the first axis of an output, (size,), along which a row may occur several times.

    Returns:
        Array (size,); None if there are no weights or the first axis of the output does not consist of batch rows.

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
    if rows.axis != 0 or rows.length != size:
        return None
    return jnp.tile(jnp.repeat(weight, rows.after), rows.before)


def flatten_names(tree: Any) -> tuple[dict[str, Any], Any]:
    """Flatten a pytree to (dict of path 'a/b/c' -> leaf, treedef).  A flat dict keeps its names.

    The array of a Flax nnx variable has the name of the variable, 'a/kernel' and not 'a/kernel/value'.

    Raises:
        ValueError: two leaves have the same path, as in {"a/b": 1, "a": {"b": 2}}.

    Example:
        >>> from jfit.lowering.model import flatten_names
        >>> flatten_names({"a": {"b": 1, "c": [2, 3]}})[0]
        {'a/b': 1, 'a/c/0': 2, 'a/c/1': 3}
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    variables = {
        path for path, x in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_nnx_variable)[0] if _is_nnx_variable(x)
    }
    paths = [path[:-1] if path[:-1] in variables else path for path, _ in leaves]
    names = ["/".join(_key_text(k) for k in path) or "value" for path in paths]
    if len(set(names)) != len(names):
        raise ValueError(f"two leaves of the pytree have the same name: {sorted(n for n in names if names.count(n) > 1)[0]!r}")
    return {n: leaf for n, (_, leaf) in zip(names, leaves, strict=True)}, structure


def named(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by name; the names and the order of a dict of arrays stay the same.

    Example:
        >>> from jfit.lowering.model import named
        >>> named({"w": 1.0, "b": 2.0}), named([1.0, 2.0])
        ({'w': 1.0, 'b': 2.0}, {'0': 1.0, '1': 2.0})
    """
    if isinstance(tree, Mapping) and jax.tree_util.all_leaves(tree.values()):
        return dict(tree)
    return flatten_names(tree)[0]


def values_of(net: Any, params: Any, aux: Any) -> tuple[Any, Any, Any]:
    """Return (model, params, aux) of an object with these attributes, such as a Run; arguments that are not None win."""
    own_params, own_aux = (getattr(net, f"named_{kind}", getattr(net, kind)) for kind in ("params", "aux"))
    model = net.functions if hasattr(net, "functions") else net.model  # a Run has both
    return model, own_params if params is None else params, own_aux if aux is None else aux


def _is_nnx_variable(x: Any) -> bool:
    return any(kind.__module__.startswith("flax.nnx.variable") for kind in type(x).__mro__)  # Flax is not imported here


def _key_text(key: Any) -> str:
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


def count_parameters(params: Mapping[str, Any]) -> int:
    """Total number of elements of the arrays in a parameter dict.

    Example:
        >>> import numpy as np
        >>> from jfit.lowering.model import count_parameters
        >>> count_parameters({"w": np.zeros((3, 4)), "b": np.zeros(3)})
        15
    """
    return sum(math.prod(v.shape) for v in params.values())
