"""Make a `Model` of a pure JAX function and its loss."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters.partial_eval import dce_jaxpr

from jfit.lowering.arguments import Arguments, arguments_of_function
from jfit.lowering.function_rows import FunctionRows
from jfit.lowering.joint import LossInputs, LossTerms, Term, row_weight_arguments, weight_keywords
from jfit.lowering.loss_kinds import known_kind
from jfit.lowering.losses import facts
from jfit.lowering.model import STEP, Aux, Inputs, Model, Output, Params, Policy, RowLosses, Specs, flatten_names, weighted
from jfit.lowering.row_axes import RowAxes
from jfit.lowering.structure import LABEL_WEIGHT, Structure, Tree, own_buffer
from jfit.ops.axis import Axis, axis_index, device_axis
from jfit.programs import Made


def from_function(
    apply: Callable[..., Any],
    *,
    loss: Any,
    params: Any = None,
    aux: Any = None,
    init: Callable[..., Any] | None = None,
    inputs: Sequence[str] | Mapping[str, Any] | None = None,
    label: str = "label",
    loss_weights: Any = None,
    loss_per_batch: bool = False,
    gather_outputs: bool = False,
    row_axes: Any = 0,
) -> Model:
    """Make a `Model` of a pure JAX function and its loss.

    Args:
        apply: `apply(params, x, ...) -> output`, an array or a pytree of arrays, whose axis 0 is the batch axis.  The names of
            its positional arguments after `params` are the input names; arguments may be pytrees.  If its signature has the
            keywords `key` (PRNG key), `train` (bool) or `aux`, they are passed; with `aux` it returns (output, new aux).  In
            training, `key` is `jfit.step.part_key(state.key, step, micro_batch)`.  `aux` is updated by each micro-batch.
            On several devices, floating-point `aux` is averaged over them, other `aux` is that of the first device.
            Incomplete batches are padded only if the rows do not affect each other, which is read from the jaxpr and, where
            that is not enough, tested on the first batch; other models, such as those with batch normalization, run incomplete
            batches with their own number of rows.  A keyword `weight` (float32 (batch,), 0 for padding rows, else 1) promises
            that the function excludes padding rows itself; so does a keyword-only `mask` without default (bool (batch,)).  With
            `sync_batch_stats=True` a keyword `axis_name` is passed, the name of the device axis or None.  On several devices,
            each folds its number into `key`, but a function with a keyword `row_ids` (int32 (batch,), the number of each row in
            the whole batch) gets the same key on all devices and in all micro-batches, `part_key(state.key, step)`, from which
            it can derive one for each row.
        loss: one of these.

            - `loss(output, label) -> (batch, ...)`, one value per example, or one per value of an example (these are
              averaged); or the name of one of `jfit.losses`, such as "cross_entropy".  `output` is what `apply` returns.
              If the names of the first two parameters are `y_true` and `y_pred`, as in Keras, the label is passed first.  A
              `keras.losses.Loss` is used without its reduction.
            - A dict of these by output name, `{"a": "cross_entropy", "b": fn}`, with labels by the same names.  Their sum is
              minimized, and each is logged as "a_loss", "b_loss".  If one of them has an `ignore_index`, each is the mean
              over the labels of the batch that it does not ignore.
            - `loss(output, batch)`: a second parameter named `batch` or `inputs` gets a dict of the inputs by argument name,
              the label if there is one, and of data that is a dict by name all other arrays that the loss reads.  Labels are
              then not required.

            Parameters `params` and `aux` after the second get the pytrees of the parameters and of the auxiliary states that
            `apply` returned; `step` gets `state.step`, the number of steps before this one (with float16, skipped ones too), an
            int32 scalar.  A loss may return (losses, dict of values by name): the weighted means over the rows of values of
            shape (batch, ...) or () are logged.  The keywords `weight` and `mask` are passed as to `apply`.
        params: parameters, any pytree of arrays (dicts, lists, NamedTuples, registered dataclasses, a Flax nnx.State, the
            arrays of an Equinox module); leaves are named by their path 'a/b/c'.  Leaves that are not floating-point, such as
            typed PRNG keys, are not trained.
        aux: auxiliary (untrained) state, any pytree of arrays; default: none.
        init: `init(key, *specs) -> params` or (params, aux), with a jax.ShapeDtypeStruct for each input; instead of `params`.
        inputs: input names; default: the argument names of `apply`.  Or a dict of argument name -> example, such as
            {"x": Point(0, 0)}: steps that are called with arrays by name, 'x/a', pass this structure to `apply`; default: that
            of the data of `fit`, `score` or `predict`, or else nested dicts.
        label: name of the label input.
        loss_weights: factor of each loss of a dict of losses, a dict by output name; default: 1.
        loss_per_batch: whether the loss returns one scalar for the batch, whose gradient is the gradient of the step.  Batches
            are never padded, and the mean loss of an epoch weights batches by their numbers of rows.  On several devices the
            scalar is computed per device, and the mean over devices is minimized.  If the arrays of the first batch have
            different numbers of rows, as those of a graph do, a batch is one unit: it is not split over devices, and every
            batch has the same weight in the mean of an epoch.
        gather_outputs: on several devices, compute the loss from the outputs, labels and inputs of all devices (gathered by
            `lax.all_gather` along axis 0), so that a loss that combines rows, such as a contrastive loss, is the same as on one
            device.  Default: each device computes it from its own rows, with a warning.  With micro-batches, the loss combines
            the rows of one micro-batch of all devices.
        row_axes: which arrays of a batch have rows, as for `jfit.fit`.

    Returns:
        The `Model`.  Its outputs, if the loss is not one function of one output and its label, are known by name when the first
        batch is (`Model.bound`): 'a', 'b/c' for {"a": ..., "b": {"c": ...}}.

    Raises:
        ValueError: both or neither of `params` and `init` are passed, `apply` has no input argument, `aux` is passed for a
            function and loss without this parameter, or the name of a loss is unknown.

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
    call = arguments_of_function(apply, weight_keywords(apply), tuple(inputs) if inputs else None)
    losses = {"loss": loss, "loss_weights": loss_weights, "loss_per_batch": loss_per_batch, "gather_outputs": gather_outputs}
    losses |= {"row_axes": row_axes}
    adapter = _Adapter(apply, call, params=params, aux=aux, init=init, label=label, **losses)
    if jax.tree.leaves(aux) and "aux" not in adapter.keywords and not any("aux" in t.form.extras for t in adapter.terms.terms):
        raise ValueError("aux= is passed, but the function has no parameter aux; add it, or leave out aux=")
    if isinstance(inputs, Mapping):
        adapter.structure.inputs.update({name: Tree(example) for name, example in inputs.items()})
    return _model_of(adapter)


def from_adapted(apply: Callable[..., Any], call: Arguments, **options: Any) -> Model:
    """Make a `Model` of the function that an adapter made of a module (Flax, Equinox, ...), as `from_function` does.

    Args:
        apply: `apply(params, *values, ...)` with a value for each input and optional input of the module, None if a batch does
            not have it.
        call: the names of the arguments of the module's call, and which of them are optional.
        **options: those of `from_function` except `inputs`; `init` gets the specs of the inputs in the places of `values`.

    Returns:
        The `Model`.
    """
    return _model_of(_Adapter(apply, call, of_module=True, **options))


def _model_of(adapter: _Adapter) -> Model:
    names, rows = adapter.names, FunctionRows(adapter)
    traits = {"loss_per_batch": adapter.terms.per_batch, "batch_means": adapter.terms.batch_means}
    traits |= {"row_keys": "row_ids" in adapter.keywords, "takes_step": "step" in adapter.terms.extras}
    return Model(
        adapter.init,
        Made(adapter.apply, "apply", adapter),  # pyright: ignore[reportArgumentType]
        tuple(adapter.output(t) for t in adapter.terms.terms if adapter.terms.by_name or adapter.terms.plain),
        names,
        adapter.terms.labels(),
        Made(rows.plan, "plan", adapter),
        batch_axes=adapter.structure.row_axes,
        traits=frozenset(name for name, present in traits.items() if present),
        structure=adapter.structure,
        verify=rows.verify,
        bind=Made(adapter.bind, "bind", adapter),
    )


class _Adapter:
    """Adapts a user's function on pytrees to the flat dicts of `Model`; keeps their structure."""

    def __init__(
        self,
        fn: Callable[..., Any],
        call: Arguments,
        *,
        loss: Any,
        params: Any = None,
        aux: Any = None,
        init: Callable[..., Any] | None = None,
        label: str = "label",
        loss_weights: Any = None,
        loss_per_batch: bool = False,
        row_axes: Any = 0,
        gather_outputs: bool = False,  # whether losses are computed from the rows of all devices
        of_module: bool = False,  # whether `fn` takes None for optional inputs that a batch does not have
        key: Any = None,  # `Adapted.key` of a module
    ) -> None:
        self.fn, self.call, self.names, self.label, self.key = fn, call, call.inputs, label, key
        self.losses = loss, loss_weights, loss_per_batch
        self.init_fn, self.initial = init, (params, aux)
        self.terms = LossTerms(loss, loss_weights, loss_per_batch, label)
        self.gather, self.of_module = gather_outputs, of_module
        self.keywords = frozenset(inspect.signature(fn).parameters) - set(self.names)
        self.weights = weight_keywords(fn) & self.keywords
        self.structure = Structure(self.names, label, call.optional, call.by_position, call.reserved)
        self.structure.row_axes = RowAxes(row_axes, self.names, loss_per_batch)
        self.structure.only_loss = None if any(t.form.second == "batch" for t in self.terms.terms) else ()
        # Names and shapes of the rows of a batch -> whether its loss is joint, names of the logged values.  Not the model: it
        # refers to this object, and a cycle would keep the parameters in memory until garbage collection.
        self._traced: dict[Any, tuple[bool, tuple[str, ...]]] = {}
        if init is None:
            self.structure.params, self.structure.aux = Tree(params), Tree(aux)

    @property
    def program_key(self) -> Any:
        """What the functions of the model depend on: the module by its key, or the user's function, which has none."""
        return self.fn if self.key is None else self.key, self.losses, self.label, self.gather, self.call, self.structure

    def init(self, key: Array, specs: Specs, initializer: Any = None) -> tuple[Params, Aux]:
        """Return (params, aux) as flat dicts of copies: training donates their buffers, and the caller's arrays stay valid."""
        params, aux = self.initial
        if self.init_fn is not None:
            whole = {n: jnp.zeros(s.shape, s.dtype) for n, s in specs.items() if self.of_module and not self.has_rows(n)}
            params = self.init_fn(key, *self._arguments({**specs, **whole})[: None if self.of_module else len(self.names)])
            if "aux" in self.keywords and type(params) is tuple:  # not a NamedTuple of parameters
                params, aux = params
        self.structure.params, self.structure.aux = Tree(params), Tree(aux)
        return _copied("params", params), _copied("aux", aux)

    def apply(self, params: Params, aux: Aux, inputs: Inputs, **options: Any) -> tuple[tuple[Array, ...], Aux]:
        """Apply the user's function, see `ApplyFn`.  `objective` and `loss_sums` apply `weight` to the losses."""
        tree, new_aux = self._call(params, aux, inputs, **options)
        outputs, treedef = jax.tree.flatten(tree)
        expected = self.structure.outputs = self.structure.outputs or _output_tree(tree)
        if treedef != expected.treedef:
            names = f"the outputs {list(_output_tree(tree).names)} with train={options.get('train', False)}"
            raise ValueError(f"apply returned {names}, and {list(expected.names)} before; return the same pytree every time")
        return tuple(_float32(jnp.asarray(x), options.get("policy")) for x in outputs), new_aux

    def _call(
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
    ) -> tuple[Any, Aux]:
        """Return (pytree of outputs, new auxiliary states by name)."""
        tree = self.structure.known("params").unflatten(params)
        rows = self.rows(inputs)
        cast = policy.cast if policy else lambda x: x
        extra: dict[str, Any] = {"train": train} if "train" in self.keywords else {}
        device = None if axis_name is None else axis_index(axis_name)
        if "row_ids" in self.keywords:  # keys of rows do not depend on the device
            extra["row_ids"] = jnp.arange(rows) + (0 if device is None else device * rows) if row_ids is None else row_ids
        elif key is not None and device is not None:
            key = jax.random.fold_in(key, device)
        if "key" in self.keywords:
            extra["key"] = key
        if "axis_name" in self.keywords:
            extra["axis_name"] = axis_name if sync_batch_stats else None
        elif sync_batch_stats:
            raise ValueError("sync_batch_stats=True needs a function that takes axis_name=, but this one does not")
        extra |= row_weight_arguments(self.weights, weight, rows)
        if "aux" in self.keywords:
            extra["aux"] = self.structure.known("aux").unflatten(aux)
        values = jax.tree.map(lambda x: cast(jnp.asarray(x)), self._arguments(inputs))
        arguments, named = (values, {}) if self.of_module else self.call.bind(values)
        result = self.fn(jax.tree.map(cast, tree), *arguments, **{**extra, **named})
        if "aux" not in self.keywords:
            return result, dict(aux)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(f"apply takes aux, so it must return (output, new aux); it returned a {type(result).__name__}")
        return result[0], self._updated_aux(result[1], aux)

    def _updated_aux(self, tree: Any, old: Aux) -> Aux:
        expected = self.structure.known("aux")
        flat, actual = flatten_names(tree)
        if actual != expected.treedef:
            names = list(expected.names)
            raise ValueError(f"apply returned aux with the leaves {list(flat)}, expected the tree it was passed: {names}")
        return {k: v if v.dtype == old[k].dtype else v.astype(old[k].dtype) for k, v in flat.items()}

    # -------------------------------------------------------------------------------- names
    def data_names(self, inputs: Mapping[str, Any]) -> list[str]:
        """Names of the data inputs: the arguments, or the leaves of their pytrees."""
        return [n for argument in (*self.names, *self.call.optional) for n in _leaves_of(argument, inputs)]

    def label_names(self, inputs: Mapping[str, Any]) -> list[str]:
        """Names of the labels of a batch: the label, or the leaves of its pytree, and the arrays that only the loss takes."""
        return [*_leaves_of(self.label, inputs), *self._only_loss(inputs)]

    def _only_loss(self, inputs: Mapping[str, Any]) -> list[str]:
        known, names = self.structure.only_loss, (*self.names, *self.call.optional, self.label, LABEL_WEIGHT)
        return [n for n in inputs if n.split("/")[0] not in names and (known is None or n in known)]

    def output_names(self, count: int) -> list[str]:
        """Names of the outputs, for messages."""
        tree = self.structure.outputs
        names = tree.names if tree is not None and len(tree.names) == count else map(str, range(count))
        return ["the output"] if count == 1 else [f"the output {n!r}" for n in names]

    def labelled_outputs(self, inputs: Mapping[str, Any]) -> list[bool]:
        """For each output, whether metrics are computed for it: whether it has a label, or is the only output."""
        outputs = self._outputs(self.label_names(inputs))
        return [len(outputs) == 1 or o.label in inputs for o in outputs]

    def labelled(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the losses can be computed from these inputs."""
        return self.terms.has_labels(self._batch(inputs)) and all(n in inputs for n in self.structure.labels)

    def rows(self, inputs: Mapping[str, Any]) -> int:
        """Number of rows of a batch."""
        self._check_inputs(inputs)
        names, has_rows = [*self.data_names(inputs), *self.label_names(inputs)], self.has_rows
        return next((inputs[n].shape[0] for n in names if has_rows(n)), 1)

    def has_rows(self, name: str) -> bool:
        """Whether an array of a batch has rows."""
        return self.structure.row_axes.get(name) is not None

    def _check_inputs(self, inputs: Mapping[str, Any]) -> None:
        for name in self.names:
            if not _leaves_of(name, inputs):
                remedy = "pass a batch, as in jfit.init_state(model, optimizer, batch)"
                raise ValueError(f"input {name!r} is missing; the model takes {self.names}, found {tuple(inputs)}; {remedy}")

    def specs(self, specs: Specs) -> tuple[Any, Any]:
        """Shapes and dtypes of (params, aux)."""
        return jax.eval_shape(lambda: self.init(jax.random.key(0), specs))

    def _batch(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs and the label as the user's pytrees."""
        names = [*self.names, *self.call.optional, self.label, *(n.split("/")[0] for n in self._only_loss(inputs))]
        return {n: self._argument(n, inputs) for n in dict.fromkeys(names) if _leaves_of(n, inputs)}

    def _arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the required arguments, then the optional ones; an optional one that the batch does not have is None."""
        self._check_inputs(inputs)
        optional = [self._argument(n, inputs) if _leaves_of(n, inputs) else None for n in self.call.optional]
        return [*(self._argument(n, inputs) for n in self.names), *optional]

    def _argument(self, name: str, inputs: Mapping[str, Any]) -> Any:
        """The array or pytree of an argument or label; nested dicts if its structure is not known."""
        if name in inputs:
            return inputs[name]
        leaves = {n.removeprefix(f"{name}/"): inputs[n] for n in _leaves_of(name, inputs)}
        tree = self.structure.inputs.get(name)
        return _nested(leaves) if tree is None or set(tree.names) != set(leaves) else tree.unflatten(leaves)

    # -------------------------------------------------------------------------------- losses
    def joint_loss(
        self,
        outputs: Sequence[Array],
        inputs: Inputs,
        weight: Array | None,
        params: Params,
        aux: Aux,
        axis_name: Axis = None,
        separate: bool = False,
    ) -> RowLosses | None:
        """Compute the losses of the rows, see `Model.joint_loss`.

        With `separate`, no value of the batch as a whole is used: for the analysis of which rows affect each other.
        """
        inputs, rows = {k: jnp.asarray(v) for k, v in inputs.items()}, self.rows(inputs)
        if not self.terms.has_labels(self._batch(inputs)):
            return None
        if self.gather and axis_name is not None:
            # Each device computes all losses and returns those of its rows.  The transpose of all_gather sums the cotangents
            # of all devices, so that a row gets the gradient of the losses of all rows.
            devices = device_axis(axis_name, "gather_outputs=True")
            gather = lambda x: jax.lax.all_gather(x, devices, tiled=True) if x.shape[:1] == (rows,) else x  # noqa: E731
            outputs, weight = jax.tree.map(gather, (tuple(outputs), weight))
            inputs = {n: gather(x) if self.has_rows(n) else x for n, x in inputs.items()}

        def total(values: Array) -> Array:
            summed = jnp.sum(weighted(values, weight))
            return summed if axis_name is None or self.gather else jax.lax.psum(summed, device_axis(axis_name, "this loss"))

        extras = self.terms.extras
        structure, tree = self.structure, self.structure.outputs
        assert tree is not None
        values = LossInputs(
            jax.tree.unflatten(tree.treedef, outputs),
            self._batch(inputs),
            structure.known("params").unflatten(params) if "params" in extras else None,
            structure.known("aux").unflatten(aux) if "aux" in extras else None,
            aux.get(STEP, jnp.zeros((), jnp.int32)),
        )
        of_positions, totals = inputs.get(LABEL_WEIGHT), None if separate else total
        losses = self.terms.row_losses(values, weight, self.rows(inputs), of_positions, totals)
        if axis_name is None or not self.gather:
            return losses
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, axis_index(axis_name) * rows, rows), losses)

    def output(self, term: Term, name: str = "output") -> Output:
        """The `Output` of a loss of one output and its label."""
        name, label = term.output or name, self.terms.label_name(term)
        kind = known_kind(term.loss)
        of_loss = {"task": kind.task, "scores": kind.scores, "takes_weight": True, **facts(term.loss)}
        return self._labelled_output(Output(name, "loss", **of_loss), term, label)

    def _term_losses(self, term: Term, label: str, output: Array, inputs: Inputs, weight: Array | None = None) -> Any:
        """Return (loss of each row, weight of each row in the mean, number of losses of a row); see `Output.sized`."""
        if label not in inputs:
            raise self.terms.missing_label(term, list(inputs))
        values, rows = LossInputs(output, {str(self.label): jnp.asarray(inputs[label])}), inputs[label].shape[0]
        losses = self.terms.of_term(term._replace(output=None), values, weight, rows)
        return losses[:3]

    # -------------------------------------------------------------------------------- binding to a batch
    def bind(self, model: Model, specs: Specs) -> Model:
        """Name the inputs, labels and outputs, see `Model.bound`."""
        key = tuple((n, s.shape[1:], str(s.dtype)) for n, s in specs.items())
        if key not in self._traced:
            self._traced[key] = self._trace(specs)
        (joint, logged), data, labels = self._traced[key], tuple(self.data_names(specs)), self.label_names(specs)
        if not joint:
            return model if data == model.inputs else model._replace(inputs=data)
        names = {"inputs": data, "labels": tuple(labels) or model.labels, "outputs": self._outputs(labels), "logged": logged}
        return model._replace(
            **names, joint_loss=Made(self.joint_loss, "joint", self), num_terms=len(self.terms.terms), bind=None
        )

    def _trace(self, specs: Specs) -> tuple[bool, tuple[str, ...]]:
        """Find the outputs; return whether the loss is a joint one, and the names of the values that it logs."""
        self.structure.row_axes.decide({n: s.shape for n, s in specs.items()})
        params, aux = self.specs(specs)
        data = {n: specs[n] for n in self.data_names(specs)}
        tree, _ = jax.eval_shape(lambda *v: self._call(*v, key=jax.random.key(0)), params, aux, data)
        self.structure.outputs, labels = _output_tree(tree), self.label_names(specs)
        self.terms.check_outputs(tree)
        if self.terms.has_labels(self._batch(specs)):
            self.structure.row_axes.check([*data, *labels])
            if self.structure.only_loss is None:
                self.structure.only_loss = self._read_by_loss(tree, specs, (params, aux))
                labels = self.label_names(specs)
        if not self.structure.labels and self.terms.has_labels(self._batch(specs)):
            self.structure.labels = self.terms.needed(labels)
        single = self.terms.plain and len(self.structure.outputs.names) == 1 and labels in ([], [self.label])
        self.terms.log_unused(tree, labels)
        joint = not single or self.gather or LABEL_WEIGHT in specs
        if not self.labelled(specs):
            return joint, ()
        losses = functools.partial(self.joint_loss, weight=None)
        result = jax.eval_shape(
            lambda o, d, p, a: losses(o, d, params=p, aux=a), jax.tree.leaves(tree), dict(specs), params, aux
        )
        return joint or bool(result.logged), tuple(result.logged)

    def _read_by_loss(self, outputs: Any, specs: Specs, values: tuple[Any, Any]) -> tuple[str, ...]:
        """Names of the arrays that only the loss takes and that its value depends on."""
        losses = lambda o, d, p, a: self.joint_loss(o, d, None, p, a)  # noqa: E731
        closed = jax.make_jaxpr(losses)(jax.tree.leaves(outputs), dict(specs), *values)
        used = dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals))[1][len(jax.tree.leaves(outputs)) :]
        is_read = dict(zip(sorted(specs), used, strict=False))  # the order of the leaves of a dict
        return tuple(n for n in self._only_loss(specs) if is_read[n])

    def _outputs(self, labels: Sequence[str]) -> tuple[Output, ...]:
        """Return an `Output` for each output of the model, for batches that have the labels of these names."""
        tree, outputs = self.structure.outputs, []
        assert tree is not None
        terms = {t.output: t for t in self.terms.terms if t.form.second == "label" and not t.form.extras}
        for name in tree.names:
            label = next((n for n in (f"{self.label}/{name}", self.label) if n in labels), None)
            if label == self.label and len(tree.names) > 1 and (len(self.terms.terms) > 1 or name not in terms):
                label = None  # the label is not that of this output only
            term = terms.get(name) or (terms.get(None) if len(tree.names) == 1 else None)
            if term is None:
                outputs.append(Output(name, label=label))
            else:
                output = self.output(term, name)
                outputs.append(output if label is None else self._labelled_output(output, term, label))
        return tuple(outputs)

    def _labelled_output(self, output: Output, term: Term, label: str) -> Output:
        sized = functools.partial(self._term_losses, term, label)
        return output._replace(
            label=label, loss=Made(lambda *args: sized(*args)[:2], "loss", label, term[:1], self), sized=sized
        )


Model.from_function = staticmethod(from_function)  # type: ignore[attr-defined]


def _copied(kind: str, tree: Any) -> dict[str, Array]:
    """Return copies of the leaves by name: training donates their buffers, the caller's arrays stay valid."""
    return {name: _array(kind, name, leaf) for name, leaf in flatten_names(tree)[0].items()}


def _array(kind: str, name: str, leaf: Any) -> Array:
    if isinstance(leaf, jax.ShapeDtypeStruct):  # values are not needed, as in `cost`
        return jnp.zeros(leaf.shape, leaf.dtype)
    if isinstance(leaf, np.ndarray | jax.Array) and leaf.dtype != object and not getattr(leaf, "weak_type", False):
        return own_buffer(leaf)  # jnp.array would compile a program for each shape
    try:
        return jnp.array(leaf)
    except TypeError as error:
        remedy = "expected an array or a number; split others off (equinox.partition)"
        raise TypeError(f"{kind}: {name!r} is a {type(leaf).__name__}, {remedy}") from error


def _output_tree(tree: Any) -> Tree:
    """Names and structure of the outputs; a single array is 'output'."""
    outputs = Tree(tree)
    if not outputs.names:
        raise ValueError(f"the function returned {tree!r}, expected a pytree of arrays; is a return statement missing?")
    if jax.tree_util.treedef_is_leaf(outputs.treedef):
        outputs.names = ("output",)
    return outputs


def _leaves_of(name: str, inputs: Mapping[str, Any]) -> list[str]:
    """Names of the arrays of an argument: its own, or those of the leaves of its pytree."""
    return [name] if name in inputs else [n for n in inputs if n.startswith(f"{name}/")]


def _nested(leaves: Mapping[str, Any]) -> Any:
    """Nested dicts of leaves by path 'a/b'."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *keys, last = path.split("/")
        place = tree
        for key in keys:
            place = place.setdefault(key, {})
        place[last] = leaf
    return tree


def _float32(output: Array, policy: Policy | None) -> Array:
    """Under a mixed-precision policy, outputs are cast to float32."""
    return output.astype(jnp.float32) if policy and jnp.issubdtype(output.dtype, jnp.floating) else output
