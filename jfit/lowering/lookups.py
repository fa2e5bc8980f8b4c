"""Inputs of a model that are row indices of a table: `Embedding` in graphs, `table[ids]` and `jnp.take` in functions.

An index out of range is no error in a program: MXNet and JAX clip it or return nan.  So the values of these inputs are checked
where they are read.

>>> import jax, jax.numpy as jnp
>>> lookups_of_function(jax.make_jaxpr(lambda table, ids: table[ids])(jnp.ones((10, 4)), jnp.zeros(3, int)), [None, "ids"])
(Lookup(name='ids', rows=10, from_end=True),)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.lax import GatherScatterMode

from jfit.graph.nodes import Node
from jfit.lowering.dependence import body_of, interpret, is_literal


class Lookup(NamedTuple):
    """An input whose values are row indices of a table.

    Attributes:
        name: name of the input.
        rows: number of rows of the table; of the smallest one, if the input has several.
        from_end: whether negative indices from -rows to -1 are valid: they count from the end, as in NumPy.
    """

    name: str
    rows: int
    from_end: bool = False

    @property
    def low(self) -> int:
        """The smallest valid index; the largest one is rows - 1."""
        return -self.rows if self.from_end else 0


# operators that return the values of their first input in another shape or dtype
_SAME_VALUES = {"Reshape", "Flatten", "transpose", "SwapAxis", "expand_dims", "squeeze", "Cast", "_copy", "BlockGrad", "tile"}
TABLES = {"Embedding", "_contrib_SparseEmbedding"}  # operators whose first input is the indices


def lookups_of_graph(tables: Sequence[Node], inputs: Collection[str]) -> tuple[Lookup, ...]:
    """Find the inputs of a graph that are indices of an embedding, as they are or in another shape.

    Args:
        tables: the nodes of the operators in `TABLES`.
        inputs: names of the inputs, labels included.
    """
    result = []
    for node in tables:
        source = node.inputs[0].node
        while source.op is not None and source.op.name in _SAME_VALUES:
            source = source.inputs[0].node
        if source.op is None and source.name in inputs:
            result.append(Lookup(source.name, node.params["input_dim"]))
    return _smallest(result)


def _smallest(lookups: Sequence[Lookup]) -> tuple[Lookup, ...]:
    """One lookup of each input: that with the smallest range of valid indices."""
    by_name: dict[str, Lookup] = {}
    for x in lookups:
        other = by_name.get(x.name, x)
        by_name[x.name] = Lookup(x.name, min(x.rows, other.rows), x.from_end and other.from_end)
    return tuple(by_name.values())


# ------------------------------------------------------------------------------------------------ functions
class _Index(NamedTuple):
    """An index in a jaxpr: the input `name`, plus `added` if that is not None (to negative values only, if `wrapped`).

    With `of` above 1, only entry `at` of its last axis, which has `of` entries, is the index.
    """

    name: str
    added: int | None = None
    wrapped: bool = False
    at: int = 0
    of: int = 1


class _Negative(NamedTuple):
    """A value of a jaxpr: whether the input `name` is negative."""

    name: str


_DEPENDS = object()  # another value of a jaxpr that depends on the batch
_SAME = {"convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "transpose", "copy", "stop_gradient", "expand_dims"}


def lookups_of_function(closed: Any, names: Sequence[str | None]) -> tuple[Lookup, ...]:
    """Find the inputs of a jaxpr that are row indices of its other values.

    Lookups that clip indices (`mode="clip"`) or have a fill value are left out: any index is valid there.

    Args:
        closed: result of `jax.make_jaxpr`.
        names: for each input of the jaxpr its name, or None for parameters.
    """
    found: list[Lookup] = []
    _run(closed.jaxpr, [None if name is None else _Index(name) for name in names], found)
    return _smallest(found)


def _run(jaxpr: Any, values: Sequence[Any], found: list[Lookup]) -> list[Any]:
    return interpret(jaxpr, values, lambda eqn, operands: _results(eqn, operands, found))


def _results(eqn: Any, operands: list[Any], found: list[Lookup]) -> list[Any]:
    name, first = eqn.primitive.name, operands[0]
    inner = body_of(eqn)
    if name not in ("scan", "while") and inner is not None and len(inner.invars) == len(operands):
        results = _run(inner, operands, found)
        return results if len(results) == len(eqn.outvars) else [_DEPENDS] * len(eqn.outvars)
    if name in _SAME:
        return [first]
    if name == "gather":
        found += _gathered(eqn, *operands)
    if name == "concatenate":
        return [_joined(eqn, operands)]
    value = _arithmetic(name, eqn, operands) if isinstance(first, _Index | _Negative) else None
    return [_DEPENDS if value is None else value] * len(eqn.outvars)


def _arithmetic(name: str, eqn: Any, operands: list[Any]) -> Any:
    """The result of the operations by which JAX adds the number of rows to negative indices; None for other operations."""
    first = operands[0]
    number = eqn.invars[1].val if len(eqn.invars) > 1 and is_literal(eqn.invars[1]) else None
    number = int(number) if number is not None and np.ndim(number) == 0 else None
    if name == "lt" and number == 0 and first == _Index(first.name):
        return _Negative(first.name)
    if name == "add" and number is not None and first == _Index(first.name):
        return _Index(first.name, number)
    if name == "select_n" and isinstance(first, _Negative) and operands[1] == _Index(first.name):
        other = operands[2]
        if isinstance(other, _Index) and other.name == first.name and not other.wrapped:
            return other._replace(wrapped=True)
    return None


def _joined(eqn: Any, operands: list[Any]) -> Any:
    """The result of a concatenation of an index with constants, by which `jax.vmap` makes the index of a row and column 0."""
    indices = [i for i, x in enumerate(operands) if isinstance(x, _Index)]
    shapes = [v.aval.shape for v in eqn.invars]
    if len(indices) != 1 or any(x is _DEPENDS for x in operands) or any(s[-1] != 1 for s in shapes):
        return _DEPENDS
    last = eqn.params["dimension"] == len(shapes[0]) - 1
    return operands[indices[0]]._replace(at=indices[0], of=len(operands)) if last else _DEPENDS


def _gathered(eqn: Any, table: Any, index: Any) -> list[Lookup]:
    axes, shape = eqn.params["dimension_numbers"].start_index_map, eqn.invars[0].aval.shape
    if table is not None or not isinstance(index, _Index) or index.of != len(axes):
        return []
    axis, sizes = axes[index.at], eqn.params["slice_sizes"]
    if sizes[axis] != 1 or any(sizes[k] != shape[k] for k in axes if k != axis):
        return []
    mode, fill, rows = eqn.params["mode"], eqn.params["fill_value"], int(shape[axis])
    fills = mode == GatherScatterMode.FILL_OR_DROP and (fill is None or bool(np.isnan(fill)))
    if (
        not fills and mode != GatherScatterMode.PROMISE_IN_BOUNDS and index.of == 1
    ):  # vmap turns dynamic_slice into a gather, with the mode of dynamic_slice (out-of-range indices are clipped)
        return []
    if index.added is None:
        return [Lookup(index.name, rows)]
    return [Lookup(index.name, rows, True)] if index.wrapped and index.added == rows else []
