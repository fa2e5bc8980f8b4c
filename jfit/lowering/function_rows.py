"""`Model.plan` and `Model.verify` of JAX functions: where the rows of a batch are, and whether they affect each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jfit import counters
from jfit.lowering.coupling import Coupling, coupling_of, rows_are_independent
from jfit.lowering.dependence import Layout, batch_rows, row_layouts
from jfit.lowering.model import Aux, Inputs, Params, Plan, Specs, specs_of
from jfit.lowering.row_count import uses_row_count
from jfit.ops.rows import LOST, RowLayout


class FunctionRows:
    """Plans of a model of a JAX function.

    Args:
        adapter: the functions `init`, `apply` and `row_losses` of the model, its names, and `weights` and `loss_weights`: the
            keywords by which the function and its loss take row weights, so that they exclude padding rows themselves.
    """

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self._traced: dict[Any, tuple[Coupling, Layout]] = {}  # shapes of the inputs, mode -> coupling, layout of the output
        self._tested: dict[Any, bool] = {}  # shapes of single rows, mode -> result of the test on a batch

    def plan(self, specs: Specs) -> Plan:
        """See `Model.plan`.  Without the label, the plan is for prediction."""
        params, aux = self._values(specs)
        shapes, _ = jax.eval_shape(lambda *v: self.adapter.apply(*v, key=jax.random.key(0)), params, aux, self._data(specs))
        evaluation = self._plan(specs, shapes, train=False)
        return self._plan(specs, shapes, train=True)._replace(evaluation=evaluation) if self._labelled(specs) else evaluation

    def verify(self, params: Params, aux: Aux, inputs: Inputs) -> None:
        """See `Model.verify`: tests the modes whose jaxpr contains primitives that `dependence` has no rule for."""
        specs = specs_of(inputs)
        for train in (False, True) if self._labelled(specs) else (False,):
            key = self._row_shapes(specs, train)
            if key not in self._tested and self._trace(specs, train)[0].kind == "unknown":
                constants = counters.read((params, aux))  # sync: once, before the first step
                arrays = {n: inputs[n] for n in specs if n in (*self.adapter.names, self.adapter.label)}
                self._tested[key] = rows_are_independent(self._experiment(constants, train), arrays)

    def _experiment(self, constants: tuple[Params, Aux], train: bool) -> Callable[[Inputs], tuple[Any, Any]]:
        def run(inputs: Inputs) -> tuple[Any, Any]:
            (output,), new_aux = self.adapter.apply(*constants, inputs, key=jax.random.key(0), train=train)
            losses = (self.adapter.row_losses(output, inputs)[0],) if self.adapter.label in inputs else ()
            return (output, *losses), [_plain(x) for x in new_aux.values()] if train else []

        return run

    # -------------------------------------------------------------------------------- plans
    def _plan(self, specs: Specs, shapes: Any, train: bool) -> Plan:
        (coupling, layout), size = self._trace(specs, train), specs[self.adapter.names[0]].shape[0]
        if coupling.kind == "unknown" and self._tested.get(self._row_shapes(specs, train)):
            coupling = Coupling()
        rows = layout if isinstance(layout, RowLayout) else batch_rows(size) if shapes[0].shape[:1] == (size,) else LOST
        reason = "" if coupling.promised else coupling.sentence
        return Plan(shapes, (rows,), not reason, reason, coupled=coupling.sentence)

    def _trace(self, specs: Specs, train: bool) -> tuple[Coupling, Layout]:
        key = self._shapes(specs, train)
        if key not in self._traced:
            coupling, layout = self._apply_coupling(specs, train)
            if not coupling.kind and self._counts_rows(specs, train):
                coupling = Coupling("unknown", "a constant in the function or its loss depends on the number of rows")
            self._traced[key] = coupling, layout
        return self._traced[key]

    def _apply_coupling(self, specs: Specs, train: bool) -> tuple[Coupling, Layout]:
        """Find how rows affect each other in the outputs, the losses and, in training, the auxiliary states."""
        adapter, size, labelled = self.adapter, specs[self.adapter.names[0]].shape[0], self._labelled(specs)
        weight = jax.ShapeDtypeStruct((size,), jnp.float32)

        def apply(params: Any, aux: Any, data: Any, weight: Any) -> Any:
            (output,), new_aux = adapter.apply(params, aux, data, key=jax.random.key(0), train=train, weight=weight)
            return output, new_aux if train else {}

        arguments = (*self._values(specs), self._data(specs), weight)
        closed, (output, new_aux) = jax.make_jaxpr(apply, return_shape=True)(*arguments)
        layout, *aux_layouts = row_layouts(closed, _layouts(arguments, size))
        found = {
            "the output": layout,
            **{f"the auxiliary state {n!r}": x for n, x in zip(sorted(new_aux), aux_layouts, strict=True)},
        }
        # metrics take the weights of the rows along axis 0; the rows of a prediction may be on any axis
        coupling = coupling_of(found, [0 if labelled else None, *(-1 for _ in aux_layouts)])
        coupling = coupling._replace(promised=bool(coupling.kind and adapter.weights and labelled))
        if labelled and (not coupling.kind or coupling.promised):
            loss = self._loss_coupling(specs, output, batch_rows(size) if coupling.kind else layout)
            coupling = loss if loss.kind and not (loss.promised and coupling.kind) else coupling
        return coupling, layout

    def _loss_coupling(self, specs: Specs, output: Any, layout: Layout) -> Coupling:
        adapter, size = self.adapter, specs[self.adapter.label].shape[0]
        labels = {adapter.label: specs[adapter.label]}
        arguments = (output, labels, jax.ShapeDtypeStruct((size,), jnp.float32))
        closed = jax.make_jaxpr(adapter.row_losses)(*arguments)
        losses, counts = row_layouts(closed, [layout, batch_rows(size), batch_rows(size)])
        coupling = coupling_of({"the loss": losses, "the weight in the loss": counts}, [0, 0])
        return coupling._replace(promised=bool(coupling.kind and adapter.loss_weights))

    def _counts_rows(self, specs: Specs, train: bool) -> bool:
        """Whether a result depends on the number of rows, as a loss that is divided by it."""
        size = specs[self.adapter.names[0]].shape[0]
        names = [n for n in (*self.adapter.names, self.adapter.label) if n in specs]
        traced = []
        for count in (size, size + 1):
            inputs = {n: jax.ShapeDtypeStruct((count, *specs[n].shape[1:]), specs[n].dtype) for n in names}
            try:
                traced.append(jax.make_jaxpr(lambda p, a, d: self._experiment((p, a), train)(d))(*self._values(specs), inputs))
            except (TypeError, ValueError):
                return True  # the function is written for one number of rows
        return any(uses_row_count(*traced))

    # -------------------------------------------------------------------------------- shapes
    def _values(self, specs: Specs) -> tuple[Any, Any]:
        return jax.eval_shape(lambda: self.adapter.init(jax.random.key(0), specs))

    def _data(self, specs: Specs) -> dict[str, Any]:
        return {n: specs[n] for n in self.adapter.names}

    def _labelled(self, specs: Mapping[str, Any]) -> bool:
        return self.adapter.label in specs

    def _shapes(self, specs: Specs, train: bool) -> Any:
        names = [n for n in (*self.adapter.names, self.adapter.label) if n in specs]
        return tuple((n, specs[n].shape, str(specs[n].dtype)) for n in names), train

    def _row_shapes(self, specs: Specs, train: bool) -> Any:
        return tuple((name, shape[1:], dtype) for name, shape, dtype in self._shapes(specs, train)[0]), train


def _plain(x: jax.Array) -> jax.Array:
    """Key data of typed PRNG keys, other arrays unchanged."""
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _layouts(arguments: tuple[Any, ...], size: int) -> list[Layout]:
    """Abstract values of the leaves of (params, aux, data, weight): rows on axis 0 of data and weight."""
    params, aux, data, weight = (jax.tree.leaves(x) for x in arguments)
    rows: list[Layout] = [batch_rows(size) if x.shape[:1] == (size,) else None for x in (*data, *weight)]
    return [*[None] * (len(params) + len(aux)), *rows]
