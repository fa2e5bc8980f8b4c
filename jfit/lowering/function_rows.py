"""`Model.plan` and `Model.verify` of JAX functions: where the rows of a batch are, and whether they affect each other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jfit import counters
from jfit.graph.costs import bodies
from jfit.lowering.coupling import Coupling, coupling_of, rows_are_independent
from jfit.lowering.dependence import Layout, batch_rows, row_layouts
from jfit.lowering.lookups import Lookup, lookups_of_function
from jfit.lowering.model import Aux, Inputs, Params, Plan, Specs, specs_of
from jfit.lowering.row_axes import NO_ROWS
from jfit.lowering.row_count import uses_row_count
from jfit.lowering.structure import LABEL_WEIGHT
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.programs import Made, Program


class FunctionRows:
    """Plans of a model of a JAX function.

    Args:
        adapter: the functions `init`, `apply` and `joint_loss` of the model, the names of its inputs and labels in a batch, its
            `terms` (the loss), and `weights`: the keywords by which the function takes row weights, so that it excludes
            padding rows itself.
    """

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self._traced: dict[Any, tuple[Coupling, tuple[Layout, ...]]] = {}  # shapes of the inputs, mode -> ...
        self._lookups: dict[Any, tuple[Lookup, ...]] = {}  # keys as those of `_traced`
        self._convolves = False  # whether a traced network or loss has convolutions

    def plan(self, specs: Specs) -> Plan:
        """Return shapes and row layouts of the outputs, see `Model.plan`; without labels in `specs`, those of a prediction."""
        # Inside pmap results of operations would have a sharding, and specs none; Equinox compares those of old and new states.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            values = (*self.adapter.specs(specs), self._data(specs))
            shapes, _ = jax.eval_shape(lambda *v: self.adapter.apply(*v, key=jax.random.key(0)), *values)
            evaluation = self._plan(specs, shapes, train=False)
            if not self.adapter.labelled(specs):
                return evaluation
            return self._plan(specs, shapes, train=True)._replace(evaluation=evaluation)

    def verify(self, params: Params, aux: Aux, inputs: Inputs) -> None:
        """See `Model.verify`: tests the modes whose jaxpr contains primitives that `dependence` has no rule for."""
        specs = specs_of(inputs)
        for train in (False, True) if self.adapter.labelled(specs) else (False,):
            key = self._row_shapes(specs, train)
            if key not in self.adapter.structure.tested and self._trace(specs, train)[0].kind == "unknown":
                constants = counters.read((params, aux))  # sync: once, before the first step
                arrays = {n: inputs[n] for n in self._names(specs)}
                fixed = {n: x for n, x in arrays.items() if not self.adapter.has_rows(n)}
                program = Program(Made(self._experiment(train), "rows", self.adapter, train), jax.jit, name="rows")
                run = lambda rows, run=program, values=constants, fixed=fixed: run(*values, {**fixed, **rows})  # noqa: E731
                of_rows = {n: x for n, x in arrays.items() if n not in fixed}
                self.adapter.structure.tested[key] = rows_are_independent(run, of_rows)

    def _experiment(self, train: bool) -> Callable[[Params, Aux, Inputs], tuple[Any, Any]]:
        def run(params: Params, aux: Aux, inputs: Inputs) -> tuple[Any, Any]:
            outputs, new_aux = self.adapter.apply(params, aux, inputs, key=jax.random.key(0), train=train)
            results, size = list(outputs), self.adapter.rows(inputs)
            if self.adapter.labelled(inputs):
                results += jax.tree.leaves(self.adapter.joint_loss(outputs, inputs, None, params, new_aux, separate=True))
            rows = [x for x in results if x.shape[:1] == (size,)]
            shared = [x for x in results if x.shape[:1] != (size,)]
            return rows, [*shared, *([counters.key_data(x) for x in new_aux.values()] if train else [])]

        return run

    # -------------------------------------------------------------------------------- plans
    def _plan(self, specs: Specs, shapes: Any, train: bool) -> Plan:
        (coupling, layouts), size = self._trace(specs, train), self.adapter.rows(specs)
        if coupling.kind == "unknown" and self.adapter.structure.tested.get(self._row_shapes(specs, train)):
            coupling = Coupling()
        rows = tuple(_rows(x, shape.shape, size) for x, shape in zip(layouts, shapes, strict=True))
        reason = "" if coupling.promised else coupling.sentence
        of_loss = coupling.sentence if coupling.in_loss else coupling.of_loss
        gathered = bool(of_loss) and self.adapter.gather
        lookups = self._lookups.get(self._shapes(specs, train), ())
        facts = coupling.sentence, coupling.in_loss, gathered, None, of_loss, lookups, self._convolves
        return Plan(shapes, rows, not reason, reason, *facts)

    def _trace(self, specs: Specs, train: bool) -> tuple[Coupling, tuple[Layout, ...]]:
        key = self._shapes(specs, train)
        if key not in self._traced:
            coupling, layouts = self._apply_coupling(specs, train)
            if coupling.kind and self.adapter.rows(specs) == 1:  # jax leaves out operations along axes of size 1
                two = self._resized(specs, 2)
                with contextlib.suppress(Exception):  # the function is written for one row
                    coupling = self._apply_coupling(two, train)[0]
            if not any(map(self.adapter.has_rows, self._names(specs))):
                coupling = Coupling("dependent", NO_ROWS)
            elif not coupling.kind and self._counts_rows(specs, train):
                coupling = Coupling("unknown", "a constant in the function or its loss depends on the number of rows")
            self._traced[key] = coupling, layouts
        return self._traced[key]

    def _apply_coupling(self, specs: Specs, train: bool) -> tuple[Coupling, tuple[Layout, ...]]:
        """Find how rows affect each other in the outputs, the losses and, in training, the auxiliary states."""
        adapter, size, labelled = self.adapter, self.adapter.rows(specs), self.adapter.labelled(specs)
        weight = jax.ShapeDtypeStruct((size,), jnp.float32)

        def apply(params: Any, aux: Any, data: Any, weight: Any) -> Any:
            outputs, new_aux = adapter.apply(params, aux, data, key=jax.random.key(0), train=train, weight=weight)
            return outputs, new_aux if train else {}

        arguments = (*adapter.specs(specs), self._data(specs), weight)
        closed, (outputs, new_aux) = jax.make_jaxpr(apply, return_shape=True)(*arguments)
        layouts = row_layouts(closed, self._layouts(arguments, size))
        names: list[str | None] = [None] * len(jax.tree.leaves(arguments[:2]))
        names += sorted(self._data(specs))  # the order of the leaves of a dict
        self._lookups[self._shapes(specs, train)] = lookups_of_function(closed, [*names, None])
        self._convolves |= _convolves(closed)
        of_outputs, of_aux = tuple(layouts[: len(outputs)]), layouts[len(outputs) :]
        self._check_gathered(of_outputs)
        found = list(zip(adapter.output_names(len(outputs)), of_outputs, strict=True))
        found += [(f"the auxiliary state {n!r}", x) for n, x in zip(sorted(new_aux), of_aux, strict=True)]
        # metrics take the weights of the rows along axis 0; the rows of a prediction may be on any axis
        axes = [0 if labelled and has_label else None for has_label in adapter.labelled_outputs(specs)]
        coupling = coupling_of(found, [*axes, *(-1 for _ in of_aux)])
        coupling = coupling._replace(promised=bool(coupling.kind and adapter.weights and labelled))
        by_row = [x.shape[:1] == (size,) for x in outputs]
        if labelled and (not coupling.kind or all(by_row)):  # the loss of an output without rows may raise
            rows = (batch_rows(size),) * len(outputs) if coupling.kind else of_outputs
            loss = self._loss_coupling(specs, outputs, rows, (arguments[0], arguments[1]))
            loss = loss._replace(in_loss=not coupling.kind)
            # synchronized statistics make outputs those of the whole batch, but not the loss
            of_loss = loss.sentence if loss.kind == "dependent" and coupling.kind else ""
            replaces = loss.kind and (not coupling.kind or (coupling.promised and not loss.promised))
            coupling = (loss if replaces else coupling)._replace(of_loss=of_loss)
        return coupling, of_outputs

    def _check_gathered(self, layouts: tuple[Layout, ...]) -> None:
        for name, layout in zip(self.adapter.output_names(len(layouts)), layouts, strict=True):
            if self.adapter.gather and isinstance(layout, RowLayout) and layout != batch_rows(layout.size):
                raise ValueError(f"gather_outputs=True gathers rows along axis 0, but {name} has them on axis {layout.axis}")

    def _loss_coupling(self, specs: Specs, outputs: Any, layouts: tuple[Layout, ...], values: tuple[Any, Any]) -> Coupling:
        adapter, size = self.adapter, self.adapter.rows(specs)
        batch = {n: specs[n] for n in self._names(specs)}
        weight = None if adapter.terms.per_batch else jax.ShapeDtypeStruct((size,), jnp.float32)
        arguments = (outputs, batch, weight, *values)
        joint_loss = functools.partial(adapter.joint_loss, separate=True)
        closed, losses = jax.make_jaxpr(joint_loss, return_shape=True)(*arguments)
        self._convolves |= _convolves(closed)
        if adapter.terms.per_batch:
            return Coupling("dependent", "the loss is one scalar for the batch (loss_per_batch=True)")
        known: list[Layout] = [batch_rows(size) if adapter.has_rows(n) else None for n in sorted(batch)]
        known.append(batch_rows(size))
        results = row_layouts(closed, [*layouts, *known, *[None] * len(jax.tree.leaves(values))])
        pair = ["the loss", "the weight in the loss"]
        names = [*pair, *(f"the value {n!r}" for n in sorted(losses.logged) for _ in (0, 1)), *pair * len(losses.terms)]
        coupling = coupling_of(list(zip(names, results, strict=True)), [0] * len(names))
        return coupling._replace(promised=bool(coupling.kind and adapter.terms.promised))

    def _counts_rows(self, specs: Specs, train: bool) -> bool:
        """Whether a result depends on the number of rows, as a loss that is divided by it."""
        size = self.adapter.rows(specs)
        traced = []
        for count in (size, size + 1):
            inputs = self._resized(specs, count)
            try:
                traced.append(jax.make_jaxpr(self._experiment(train))(*self.adapter.specs(specs), inputs))
            except Exception:  # also an assert of the user
                return True  # the function is written for one number of rows
        return any(uses_row_count(*traced))

    def _layouts(self, arguments: tuple[Any, ...], size: int) -> list[Layout]:
        """Abstract values of the leaves of (params, aux, data, weight): rows on axis 0 of data and weight."""
        params, aux, data, _ = arguments
        by_row = [self.adapter.has_rows(n) and data[n].shape[:1] == (size,) for n in sorted(data)]
        rows: list[Layout] = [batch_rows(size) if has_rows else None for has_rows in (*by_row, True)]
        return [*[None] * len(jax.tree.leaves((params, aux))), *rows]

    # -------------------------------------------------------------------------------- shapes
    def _resized(self, specs: Specs, count: int) -> dict[str, Any]:
        """The specs of a batch of `count` rows."""
        resize = lambda s: jax.ShapeDtypeStruct((count, *s.shape[1:]), s.dtype)  # noqa: E731
        return {n: resize(specs[n]) if self.adapter.has_rows(n) else specs[n] for n in self._names(specs)}

    def _data(self, specs: Specs) -> dict[str, Any]:
        return {n: specs[n] for n in self.adapter.data_names(specs)}

    def _names(self, specs: Mapping[str, Any]) -> list[str]:
        names = [*self.adapter.data_names(specs), *self.adapter.label_names(specs)]
        return [*names, *([LABEL_WEIGHT] if LABEL_WEIGHT in specs else [])]

    def _shapes(self, specs: Specs, train: bool) -> Any:
        return tuple((n, specs[n].shape, str(specs[n].dtype)) for n in self._names(specs)), train

    def _row_shapes(self, specs: Specs, train: bool) -> Any:
        of_row = lambda name, shape: shape[1:] if self.adapter.has_rows(name) else shape  # noqa: E731
        return tuple((name, of_row(name, shape), dtype) for name, shape, dtype in self._shapes(specs, train)[0]), train


def _rows(layout: Layout, shape: tuple[int, ...], size: int) -> MaybeLayout:
    """Row layout of an output: what was found, or axis 0 if it has the number of rows."""
    if isinstance(layout, RowLayout):
        return layout
    if shape[:1] == (size,):
        return batch_rows(size)
    return None if layout is None else LOST


def _convolves(closed: Any) -> bool:
    """Whether a jaxpr computes convolutions, also in the functions that it calls."""
    eqns = getattr(closed, "jaxpr", closed).eqns
    return any(e.primitive.name == "conv_general_dilated" or any(map(_convolves, bodies(e))) for e in eqns)
