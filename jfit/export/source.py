"""What is exported: a model with its parameters, and the shapes of its inputs with the batch left open or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit.graph.symbol import Symbol
from jfit.lowering.build import lower, usual_inputs
from jfit.lowering.model import Model
from jfit.ops import nearest

STAND_IN = 2  # rows of a batch axis that a spec leaves open (None), where a number is needed


class ExportError(ValueError):
    """Something that cannot be exported; the message says what, why, and what to do."""


class Source(NamedTuple):
    """A model with its parameters and auxiliary states by name."""

    model: Model
    params: dict[str, Any]
    aux: dict[str, Any]


def source_of(net: Any, specs: Mapping[str, Any], params: Any = None, aux: Any = None) -> Source:
    """A Source from a Symbol or Model with parameters, or from anything that holds all three (a Run, a loaded model).

    Args:
        net: Symbol, Model, or an object with the fields model, params and aux.
        specs: shapes by input name: they say which variables of a Symbol are fed.
        params: parameters by name, where `net` does not hold them.
        aux: auxiliary states by name.

    Raises:
        ExportError: `net` is none of these.

    Example:
        >>> import jfit, numpy as np
        >>> from jfit.export.source import source_of
        >>> net = jfit.sym.relu(jfit.sym.Variable("data"))
        >>> source_of(net, {"data": (2, 3)}, {}).model.inputs
        ('data',)
    """
    held = all(hasattr(net, field) for field in ("model", "params", "aux"))
    if held:
        params, aux = net.params if params is None else params, net.aux if aux is None else aux
        net = net.model
    if isinstance(net, Symbol):
        net = lower(net, inputs=_fed(net, specs))
    if not isinstance(net, Model):
        raise ExportError(f"export takes a Symbol, a Model, a Run or a loaded model, found a {type(net).__name__}; pass one")
    return Source(net, dict(params or {}), dict(aux or {}))


def _fed(symbol: Symbol, specs: Mapping[str, Any]) -> list[str]:
    """The default inputs of a symbol, and whatever else the specs name."""
    usual, names = usual_inputs(symbol), symbol.list_inputs()
    for name in specs:
        if name not in names:
            near = nearest(name, names)
            hint = f"did you mean {near}?" if near else f"its variables are {names[:20]}"
            raise ExportError(f"a shape is given for {name!r}, but the graph has no such variable; {hint}")
    return [n for n in dict.fromkeys(names) if n in specs or n in usual]


def specs_with(model: Model, specs: Mapping[str, Any], rows: Any = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Specs as jax.ShapeDtypeStruct, with `rows` (a number or a symbol) on the batch axis of each input that has one.

    Args:
        model: the model; it says where the batch axis of an input is.
        specs: name -> shape, array, or anything with shape and dtype; None stands for an open batch axis.
        rows: rows of the batch; None keeps those given.

    Example:
        >>> import jfit
        >>> from jfit.export.source import specs_with
        >>> model = jfit.lower(jfit.sym.relu(jfit.sym.Variable("data")))
        >>> specs_with(model, {"data": (2, 3)}, rows=7)
        {'data': ShapeDtypeStruct(shape=(7, 3), dtype=float32)}
    """
    size, found = batch_rows(model, specs), {}
    for name, spec in specs.items():
        shape, dtype = shape_of(spec), getattr(spec, "dtype", np.dtype("float32"))
        axis = model.batch_axes.get(name, 0)
        sizes = [STAND_IN if d is None else d for d in shape]
        if axis < len(sizes) and rows is not None and shape[axis] in (None, size):
            sizes[axis] = rows
        found[name] = jax.ShapeDtypeStruct(tuple(sizes), jax.dtypes.canonicalize_dtype(dtype))
    return found


def batch_rows(model: Model, specs: Mapping[str, Any]) -> int:
    """Rows of the batch that the specs describe; `STAND_IN` where they leave it open.

    Example:
        >>> import jfit
        >>> from jfit.export.source import batch_rows
        >>> batch_rows(jfit.lower(jfit.sym.relu(jfit.sym.Variable("data"))), {"data": (4, 3)})
        4
    """
    if not specs:
        return STAND_IN
    for name in (*model.inputs, *model.labels):
        axis = model.batch_axes.get(name, 0)
        if name in specs and len(shape_of(specs[name])) > axis:
            found = shape_of(specs[name])[axis]
            return STAND_IN if found is None else found
    raise ExportError(
        f"the specs name {sorted(specs)}, the model has the inputs {list(model.inputs)}; give the shapes of those"
    )


def shape_of(spec: Any) -> tuple[Any, ...]:
    """The shape of a spec: itself, or its field `shape`.

    Example:
        >>> from jfit.export.source import shape_of
        >>> shape_of((None, 3))
        (None, 3)
    """
    return tuple(getattr(spec, "shape", spec))


def check_parameters(source: Source) -> None:
    """Raise a sentence where the graph has parameters that were not given."""
    if source.model.symbol is None:
        return
    fed = {*source.model.inputs, *source.model.labels}
    have = {*source.params, *source.aux}
    missing = [n for n in dict.fromkeys(source.model.symbol.list_inputs()) if n not in fed and n not in have]
    if missing:
        raise ExportError(
            f"the parameters {missing[:5]} of the graph were not given ({len(missing)} in all); pass params= and aux=, or a Run"
        )
