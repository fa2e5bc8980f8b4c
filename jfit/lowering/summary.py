"""`summary`: a table of the parameters and outputs of any model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.graph.drawing import aligned, size
from jfit.graph.symbol import Symbol
from jfit.lowering.build import as_model, lower, split_trained
from jfit.lowering.model import flatten_names

COLUMNS = ("parameter", "shape", "dtype", "values", "bytes")


def summary(model: Any, inputs: Any, *, params: Any = None, aux: Any = None) -> str:
    """Tabulate the parameters of a model (name, shape, dtype, number of values, bytes), and the shapes of its outputs.

    Nothing is computed: parameters of modules without values, such as those of Flax linen, are shapes only.

    Args:
        model: a function with `params=`, a module of a JAX framework, a `jfit.Model`, a `Run`, a model returned by `jfit.load`,
            or a `Symbol`, whose table has one row per node (`Symbol.summary`).
        inputs: one batch in the forms of `fit`, or its shapes: an array or a shape of one input; a list of these for several
            inputs; a dict of these by input name; or `(x, y)`, whose labels are not used.  A shape is a tuple of integers, of
            dtype float32, or a jax.ShapeDtypeStruct.
        params: parameters of a function or module, a pytree; default: those of the model.
        aux: auxiliary states, likewise.

    Returns:
        The table as text.

    Raises:
        ValueError: a function without `params`, or inputs that do not fit the model.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> params = {"w": jnp.zeros((5, 3)), "b": jnp.zeros((1, 3))}
        >>> print(jfit.summary(lambda p, x: x @ p["w"] + p["b"], (32, 5), params=params))
        parameter  shape  dtype    values  bytes
        b          1x3    float32       3     12
        w          5x3    float32      15     60
        parameters: 18 values in 2 arrays, 72 bytes
        output: 32x3 float32
    """
    model, params, aux = split_trained(model, params, aux)
    symbol = model if isinstance(model, Symbol) else getattr(model, "symbol", None)
    if isinstance(symbol, Symbol):
        specs = input_specs(inputs, lower(symbol).inputs)
        return symbol.summary(**{name: s.shape for name, s in specs.items() if name in symbol.list_inputs()})
    lowered = as_model(model, params=params, aux=aux, predict=True)
    specs = input_specs(inputs, lowered.inputs)
    bound = lowered.bound(specs)
    values = jax.eval_shape(lambda: bound.init(jax.random.key(0), specs))
    trees = (bound.structure.params, bound.structure.aux)
    arrays, states = ({n: flat[n] for n in tree.names} for tree, flat in zip(trees, values, strict=True))
    rows = [(n, _shape(x), str(x.dtype), f"{_count([x]):,}", f"{num_bytes([x]):,}") for n, x in arrays.items()]
    totals = [_total(kind, list(v.values())) for kind, v in (("parameters", arrays), ("auxiliary states", states)) if v]
    outputs = zip(bound.outputs, bound.plan(specs).shapes, strict=True)
    return "\n".join([*aligned([COLUMNS, *rows], (3, 4)), *totals, *(f"{o.name}: {_shape(s)} {s.dtype}" for o, s in outputs)])


def input_specs(inputs: Any, names: Sequence[str], caller: str = "summary") -> dict[str, Any]:
    """Shapes and dtypes by input name of the argument `inputs` of `summary`; `caller` begins the error message."""
    if isinstance(inputs, tuple) and not is_shape(inputs) and not hasattr(inputs, "_fields"):
        return input_specs(inputs[0], names, caller)  # (x, y)
    if isinstance(inputs, Mapping) and (len(names) > 1 or any(n in inputs for n in names)):
        named = dict(inputs)
    elif isinstance(inputs, list) and len(names) > 1:
        named = dict(zip(names, inputs, strict=False))
    else:
        named = {names[0]: inputs}
    missing = [n for n in names if n not in named]
    if missing:
        raise ValueError(f"{caller}: the input {missing[0]!r} is missing; found {list(named)}, expected {list(names)}")
    leaves = jax.tree.map(spec_of, named, is_leaf=lambda x: is_shape(x) or hasattr(x, "shape"))
    return flatten_names(leaves)[0]


def is_shape(x: Any) -> bool:
    return isinstance(x, tuple) and all(isinstance(n, (int, np.integer)) for n in x)


def spec_of(x: Any) -> jax.ShapeDtypeStruct:
    """Shape and canonical dtype of an array, a number, or a tuple of integers, which is a shape of dtype float32."""
    if is_shape(x):
        return jax.ShapeDtypeStruct(x, np.float32)
    x = x if hasattr(x, "shape") and hasattr(x, "dtype") else np.asarray(x)
    return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))


def _shape(x: Any) -> str:
    return size(x.shape) if x.shape else "scalar"


def _count(arrays: Sequence[Any]) -> int:
    return sum(math.prod(x.shape) for x in arrays)


def num_bytes(tree: Any) -> int:
    """Bytes of the arrays or jax.ShapeDtypeStructs of a pytree."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _total(kind: str, arrays: Sequence[Any]) -> str:
    return f"{kind}: {_count(arrays):,} values in {len(arrays):,} arrays, {num_bytes(arrays):,} bytes"
