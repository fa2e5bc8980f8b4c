"""The inputs of every export: a model with its parameters, and the shapes of its inputs, with a fixed or dynamic batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit.checks import name_hint
from jfit.graph.symbol import Symbol
from jfit.lowering.build import default_inputs, lower
from jfit.lowering.model import Model, named, values_of

STAND_IN = 2  # number of rows used where a spec leaves the batch axis open (None) but a number is needed


class ExportError(ValueError):
    """A model, or a part of it, that cannot be exported; the message names it, the reason and a remedy."""


class Source(NamedTuple):
    """A model with its parameters and auxiliary states by name."""

    model: Model
    params: dict[str, Any]
    aux: dict[str, Any]


def source_of(net: Any, specs: Mapping[str, Any], params: Any = None, aux: Any = None) -> Source:
    """Make a Source from a Symbol or Model with parameters, or from a Run or loaded model, which have all three.

    Args:
        net: a Symbol, a Model, or an object with the attributes model, params and aux.
        specs: shapes by input name; for a Symbol, the variables with a shape become inputs.
        params: parameters by name; default: those of `net`.
        aux: auxiliary states by name; default: those of `net`.

    Returns:
        The Source.

    Raises:
        ExportError: `net` is none of these, or `specs` has a name that is not a variable of the graph.

    Example:
        >>> import jfit, numpy as np
        >>> from jfit.export.source import source_of
        >>> net = jfit.sym.relu(jfit.sym.Variable("data"))
        >>> source_of(net, {"data": (2, 3)}, {}).model.inputs
        ('data',)
    """
    if all(hasattr(net, field) for field in ("model", "params", "aux")):
        net, params, aux = values_of(net, params, aux)
    if isinstance(net, Symbol):
        net = lower(net, inputs=_inputs(net, specs))
    if not isinstance(net, Model):
        raise ExportError(f"net is a {type(net).__name__}, expected a Symbol, a Model, a Run or a loaded model; pass one")
    return Source(net, *({} if tree is None else named(tree) for tree in (params, aux)))


def _inputs(symbol: Symbol, specs: Mapping[str, Any]) -> list[str]:
    """Return the names of a symbol's default inputs and of the other variables that have a shape in `specs`."""
    usual, names = default_inputs(symbol), symbol.list_inputs()
    for name in specs:
        if name not in names:
            raise ExportError(f"specs has a shape for {name!r}, but the graph has no such variable; {name_hint(name, names)}")
    return [n for n in dict.fromkeys(names) if n in specs or n in usual]


def specs_with(model: Model, specs: Mapping[str, Any], rows: Any = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Convert specs to jax.ShapeDtypeStruct, with the batch size `rows` on the batch axis of each input that has one.

    Args:
        model: the model; its batch_axes define the batch axis of each input.
        specs: name -> shape, array, or anything with shape and dtype; a batch axis may be None.
        rows: batch size, an int or a symbolic dimension of jax.export; None keeps the sizes in `specs`.

    Returns:
        Name -> jax.ShapeDtypeStruct.

    Example:
        >>> import jfit
        >>> from jfit.export.source import specs_with
        >>> model = jfit.lower(jfit.sym.relu(jfit.sym.Variable("data")))
        >>> specs_with(model, {"data": (2, 3)}, rows=7)
        {'data': ShapeDtypeStruct(shape=(7, 3), dtype=float32)}
    """
    size, structs = batch_rows(model, specs), {}
    for name, spec in specs.items():
        shape, dtype = shape_of(spec), getattr(spec, "dtype", np.dtype("float32"))
        axis = model.batch_axes.get(name, 0)
        sizes = [STAND_IN if d is None else d for d in shape]
        if axis < len(sizes) and rows is not None and shape[axis] in (None, size):
            sizes[axis] = rows
        structs[name] = jax.ShapeDtypeStruct(tuple(sizes), jax.dtypes.canonicalize_dtype(dtype))
    return structs


def batch_rows(model: Model, specs: Mapping[str, Any]) -> int:
    """Return the batch size in the specs; `STAND_IN` if they leave it open (None).

    Args:
        model: the model; its batch_axes define the batch axis of each input.
        specs: name -> shape, array, or anything with shape and dtype.

    Returns:
        The number of rows.

    Raises:
        ExportError: no input of the model has a shape in `specs`.

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
            size = shape_of(specs[name])[axis]
            return STAND_IN if size is None else size
    raise ExportError(f"specs has shapes for {sorted(specs)}, but the inputs of the model are {list(model.inputs)}")


def shape_of(spec: Any) -> tuple[Any, ...]:
    """Return the shape of a spec: its attribute `shape`, or the spec itself as a tuple.

    Example:
        >>> from jfit.export.source import shape_of
        >>> shape_of((None, 3))
        (None, 3)
    """
    return tuple(getattr(spec, "shape", spec))


def shapes(arrays: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of arrays by name, the dtypes as JAX has them."""
    return {k: jax.ShapeDtypeStruct(np.shape(v), jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in arrays.items()}


def check_parameters(source: Source) -> None:
    """Raise ExportError if a parameter or auxiliary state of the graph is missing from the source."""
    if source.model.symbol is None:
        return
    inputs = {*source.model.inputs, *source.model.labels}
    available = {*source.params, *source.aux}
    missing = [n for n in dict.fromkeys(source.model.symbol.list_inputs()) if n not in inputs and n not in available]
    if missing:
        raise ExportError(f"{len(missing)} parameters of the graph are missing, {missing[:5]}; pass params= and aux=, or a Run")
