"""Data of functions whose inputs and labels are pytrees: the leaves by name, 'x/ids', and a check of their structure.

The `Structure` of a model (`jfit.lowering.structure`) has the names of the arguments of the function and of its label, and gets
the structure of each pytree from the first batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from jfit.data.valid import check_values, unmasked, valid_weights
from jfit.lowering.structure import LABEL_WEIGHT, Structure, Tree


def named_arrays(structure: Structure, value: Any, what: str) -> dict[str, Any] | None:
    """Name the arrays of `x` or `y` of data `(x, y)`.

    Args:
        structure: names of the arguments and of the label.
        value: a pytree; several arguments are a list or tuple in their order, or a dict by name.
        what: "x" or "y".

    Returns:
        dict of name -> array, 'x/ids' for the leaves of a pytree; None if the value does not fit the arguments.

    Example:
        >>> structure = Structure(("x",), "label")
        >>> sorted(named_arrays(structure, {"ids": np.zeros(2), "mask": np.ones(2)}, "x"))
        ['x/ids', 'x/mask']
    """
    names = structure.arguments if what == "x" else (structure.label,)
    if value is None:
        return {}
    optional = structure.optional if what == "x" else ()
    if isinstance(value, Mapping) and all(_base(k, (*names, *optional)) for k in value) and any(_base(k, names) for k in value):
        return _join(_leaves(structure, str(k), v) for k, v in value.items())
    sequence = isinstance(value, list | tuple) and not hasattr(value, "_fields")
    several = sequence and what == "x" and len(value) > len(names) and _are_arrays([v for v in value if v is not None])
    if several and len(value) <= len(names) + len(structure.by_position):
        pairs = zip((*names, *structure.by_position), value, strict=False)
        return _join(_leaves(structure, n, v) for n, v in pairs if v is not None)
    if several and "key" in structure.optional and len(value) == len(names) + 1:
        raise ValueError(
            f"x has {len(value)} arrays, and the function has the inputs {names} and the argument 'key', which may be a PRNG "
            f"key or data; pass x as a dict by argument name, or their names, as from_function(..., inputs={names!r})"
        )
    if len(names) != 1:
        if not sequence or len(value) != len(names):
            return None
        return _join(_leaves(structure, n, v) for n, v in zip(names, value, strict=True))
    if sequence and len(value) == 1 and _is_array(value[0]) and np.ndim(value[0]):
        value = value[0]  # a list of the arguments, of which there is one
    rows = isinstance(value, list) and not _are_arrays(value)
    return _leaves(structure, names[0], value, is_array=rows)  # a list of numbers or strings has one entry per row


def named_batch(structure: Structure, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Name the arrays of a batch that is a dict by argument name; other names are returned unchanged.

    A dict with none of these names is the only argument of the function.

    Example:
        >>> structure = Structure(("x",), "label")
        >>> list(named_batch(structure, {"x": {"ids": np.zeros(2)}, "label": np.ones(2)}))
        ['x/ids', 'label']
    """
    names = (*structure.arguments, structure.label)
    if any(n in structure.reserved for n in arrays) and any(_base(k, names) for k in arrays):
        name = next(n for n in arrays if n in structure.reserved)
        raise ValueError(
            f"the data has {name!r}, but jfit passes the argument {name!r} of the model itself; rename the array, or pass "
            f"the names of the inputs, as in jfit.Model.from_function(model, inputs={(*structure.arguments, name)}, ...)"
        )
    if len(structure.arguments) == 1 and arrays and not any(_base(k, names) for k in arrays):
        return _leaves(structure, structure.arguments[0], arrays)
    names = (*names, *structure.optional)
    trees = [k for k, v in arrays.items() if structure.only_loss != () and (isinstance(v, Mapping) or hasattr(v, "_fields"))]
    return _join(_leaves(structure, k, v) if k in (*names, *trees) else {k: v} for k, v in arrays.items())


def is_argument(structure: Structure | None, value: Any) -> bool:
    """Return whether a tuple is the only argument of a function: whether it has the arrays that it had in the first batch.

    Example:
        >>> structure = Structure(("x",))
        >>> first, structure.outputs = named_arrays(structure, (np.zeros(2), np.ones(2)), "x"), Tree(0)
        >>> is_argument(structure, (np.zeros(3), np.ones(3))), is_argument(structure, (first, np.ones(2)))
        (True, False)
    """
    if structure is None or structure.outputs is None or len(structure.arguments) != 1:
        return False
    first = structure.inputs.get(structure.arguments[0])
    names = Tree(jax.tree.map(lambda _: 0, value, is_leaf=_is_leaf)).names
    return first is not None and not jax.tree_util.treedef_is_leaf(first.treedef) and first.names == names


def split_weight(structure: Structure | None, arrays: Mapping[str, Any], weight: Any) -> tuple[dict[str, Any], Any]:
    """Split weights into those of rows, (rows,), and of positions, (rows, positions, ...), which become an array of the batch.

    Args:
        structure: of a function; None for a graph, for which only weights of rows are supported.
        arrays: arrays of the batch by name.
        weight: weights, or None.

    Returns:
        (arrays, weights of rows or None).

    Raises:
        ValueError: a weight is not finite or negative.

    Example:
        >>> arrays, weight = split_weight(Structure(("x",)), {"x": np.zeros(2)}, np.ones((2, 3)))
        >>> list(arrays), weight
        (['x', 'label_weight'], None)
    """
    if structure is None or weight is None or np.ndim(weight) < 2:
        return dict(arrays), weight
    if not hasattr(weight, "addressable_shards"):  # reading a jax.Array would block the host
        weight = np.asarray(unmasked(weight, "weight"), np.float32)
        check_values(weight, valid_weights("weight"))
    return {**arrays, LABEL_WEIGHT: weight}, None


def others(structure: Structure, arrays: Iterable[str]) -> list[str]:
    """Return the names of arrays that are neither inputs nor labels; leaves of pytrees are named x/ids."""
    return [n for n in arrays if not _base(n, (*structure.arguments, *structure.optional, structure.label, LABEL_WEIGHT))]


def expected_names(
    structure: Structure, arrays: Mapping[str, Any], labels: tuple[str, ...], with_labels: bool = True
) -> tuple[Any, Any]:
    """Return the names of (inputs, labels) that a batch must have: those of the leaves it has, or else of the arguments.

    With labels, these include the arrays that only the loss takes; before it is known which, all arrays of numbers.
    """
    inputs = [n for a in structure.arguments for n in _of(a, arrays) or [a]]
    inputs += [n for a in structure.optional for n in _of(a, arrays)]
    extra = [LABEL_WEIGHT] if LABEL_WEIGHT in arrays else []
    if with_labels and structure.only_loss is not None:
        extra += structure.only_loss
    elif with_labels:
        extra += [n for n in others(structure, arrays) if _may_be_read(structure, n, arrays[n])]
    return tuple(inputs), (*(_of(structure.label, arrays) or labels), *extra)


def _may_be_read(structure: Structure, name: str, value: Any) -> bool:
    """Whether a loss may read a value of a batch: an array of numbers, with rows unless `row_axes=` says that it has none."""
    of_numbers = getattr(getattr(value, "dtype", None), "kind", "f") in "biufV" and (_is_leaf(value) or _is_rows([value]))
    return of_numbers and (np.ndim(value) > 0 or structure.row_axes.get(name) is None)


def _of(name: str, arrays: Mapping[str, Any]) -> list[str]:
    return [n for n in arrays if n == name or str(n).startswith(f"{name}/")]


def _base(name: Any, names: tuple[str, ...]) -> bool:
    return str(name).split("/")[0] in names


def _join(parts: Any) -> dict[str, Any]:
    return {k: v for part in parts for k, v in part.items()}


def _leaves(structure: Structure, name: str, tree: Any, is_array: bool = False) -> dict[str, Any]:
    """The leaves of a pytree by name; its structure must be that of the first batch."""
    if is_array or _is_leaf(tree):
        leaves, shape = [tree], Tree(0)
    else:
        tree = dict(tree) if isinstance(tree, Mapping) and jax.tree_util.all_leaves([tree]) else tree
        leaves = jax.tree.leaves(tree, is_leaf=_is_leaf)
        shape = Tree(jax.tree.map(lambda _: 0, tree, is_leaf=_is_leaf))
    if structure.outputs is None:  # the first batch
        structure.inputs[name] = shape
    first = structure.inputs.setdefault(name, shape)
    leaf = jax.tree_util.treedef_is_leaf
    if first.names != shape.names or leaf(first.treedef) != leaf(shape.treedef):  # a list may become a tuple
        raise ValueError(
            f"{name!r} has the arrays {_shown(shape)}, expected {_shown(first)} as in the first batch; pass one structure"
        )
    single = jax.tree_util.treedef_is_leaf(shape.treedef)
    return {name: leaves[0]} if single else {f"{name}/{n}": v for n, v in zip(shape.names, leaves, strict=True)}


def _shown(tree: Tree) -> str:
    return "of one array" if jax.tree_util.treedef_is_leaf(tree.treedef) else str(list(tree.names))


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") or hasattr(value, "__array__") or hasattr(value, "asnumpy") or hasattr(value, "to_numpy")


def _are_arrays(values: list[Any] | tuple[Any, ...]) -> bool:
    return all(_is_array(v) and np.ndim(v) for v in values)


def _is_leaf(value: Any) -> bool:
    """Whether a value is an array, or rows in (nested) lists of numbers."""
    return _is_array(value) or (isinstance(value, list | tuple) and not hasattr(value, "_fields") and _is_rows(value))


def _is_rows(value: Any) -> bool:
    return all(_is_rows(v) if isinstance(v, list | tuple) else isinstance(v, int | float | np.number) for v in value)
