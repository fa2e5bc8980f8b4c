"""What a module is bound to: names, shapes, and which arrays want a gradient."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.data.ndarray_iter import DataDesc
from jfit.graph import Symbol
from jfit.ops import nearest

REQUESTS = ("write", "add", "null")
PARAMETER_ENDINGS = ("_weight", "_bias", "_gamma", "_beta")


def describe(shapes: Any, what: str) -> list[DataDesc]:
    """Descriptions from DataDesc objects or (name, shape[, dtype[, layout]]) tuples.

    Raises:
        ValueError: something that is neither.

    Example:
        >>> describe([("data", (8, 4))], "data_shapes")[0].shape
        (8, 4)
    """
    found = []
    for each in shapes or ():
        if isinstance(each, DataDesc):
            found.append(each)
        elif isinstance(each, Sequence) and not isinstance(each, str) and 2 <= len(each) <= 4 and isinstance(each[0], str):
            found.append(DataDesc(each[0], tuple(each[1]), *each[2:]))
        else:
            raise ValueError(f"{what} holds {each!r}; needed (name, shape) pairs or DataDesc objects, one for each input")
    return found


def check_names(symbol: Symbol, names: Sequence[str], what: str, logger: logging.Logger, *, must: bool) -> list[str]:
    """The names that the graph has as arguments.

    Raises:
        ValueError: (with must=True) a name is no argument; candidates are listed.  Otherwise it is a warning in the log.
    """
    arguments = symbol.list_arguments()
    for name in names:
        if name in arguments:
            continue
        candidates = [a for a in arguments if not a.endswith(PARAMETER_ENDINGS)]
        message = (
            f"You created Module with Module(..., {what}_names={list(names)}) but input with name '{name}' is not found in "
            f"symbol.list_arguments(). Did you mean one of: {', '.join(candidates) or nearest(name, arguments)}?"
        )
        if must:
            raise ValueError(message)
        logger.warning(message)
    return [n for n in names if n in arguments]


def spare_labels(symbol: Symbol, fed: Collection[str]) -> list[str]:
    """Labels of loss heads that nobody declared as inputs: prediction does without them, and they are no parameters.

    Example:
        >>> import jfit
        >>> spare_labels(jfit.sym.SoftmaxOutput(jfit.sym.Variable("data"), name="softmax"), {"data"})
        ['softmax_label']
    """
    labels: dict[str, None] = {}
    used = set()
    for node in symbol.nodes():
        if node.op is None:
            continue
        for slot, entry in zip(node.input_names(), node.inputs, strict=False):
            if entry.node.op is None and slot == node.op.label:
                labels[entry.node.name] = None
            else:
                used.add(entry.node.name)
    return [name for name in labels if name not in used and name not in fed]


def match_names(expected: Sequence[str], given: Sequence[DataDesc], what: str, logger: logging.Logger, *, must: bool) -> None:
    """The shapes are given for exactly the expected names.

    Raises:
        ValueError: (with must=True) they are not.  Otherwise it is a warning in the log.
    """
    actual = [d.name for d in given]
    if sorted(expected) == sorted(actual):
        return
    message = f"{what}_shapes do not match the names of the module: {what}_names are {list(expected)}, shapes are for {actual}"
    if must:
        raise ValueError(message)
    logger.warning(message)


def requests_of(
    grad_req: Any, arguments: Sequence[str], params: Sequence[str], fixed: Sequence[str], data: Sequence[str], wanted: bool
) -> dict[str, str]:
    """argument -> "write", "add" or "null".

    Args:
        grad_req: one word for all, a list in the order of the arguments, or a dict by name (others: write).
        arguments: all arguments of the graph.
        params: those that are parameters.
        fixed: parameters that never learn.
        data: data inputs.
        wanted: whether data inputs want a gradient.

    Raises:
        ValueError: an unknown word, a list of another length, or an unknown name.

    Example:
        >>> requests_of("write", ["data", "w"], ["w"], [], ["data"], False)
        {'data': 'null', 'w': 'write'}
    """
    base: dict[str, str]
    if isinstance(grad_req, str):
        base = dict.fromkeys(arguments, grad_req)
    elif isinstance(grad_req, Mapping):
        unknown = [n for n in grad_req if n not in arguments]
        if unknown:
            raise ValueError(
                f"grad_req names {unknown[0]!r}, which is no argument; did you mean {nearest(unknown[0], arguments)}?"
            )
        base = {**dict.fromkeys(arguments, "write"), **grad_req}
    else:
        if len(grad_req) != len(arguments):
            raise ValueError(f"grad_req lists {len(grad_req)} words, needed one for each of the {len(arguments)} arguments")
        base = dict(zip(arguments, grad_req, strict=True))
    found = {}
    for name in arguments:
        if base[name] not in REQUESTS:
            raise ValueError(f"grad_req of {name!r} is {base[name]!r}, needed one of {', '.join(REQUESTS)}")
        given = isinstance(grad_req, Mapping) and name in grad_req
        listed = not isinstance(grad_req, (str, Mapping))  # a list says it of each parameter, fixed or not, as in MXNet
        if name in params:
            found[name] = "null" if name in fixed and not (given or listed) else base[name]
        elif name in data:
            found[name] = base[name] if wanted or given else "null"
        else:
            found[name] = base[name] if given else "null"
    return found


def rows_of_batch(descs: Sequence[DataDesc]) -> int:
    """Rows of a whole batch: the size of the batch axis of the first description that has one."""
    for desc in descs:
        axis = DataDesc.get_batch_axis(desc.layout)
        if axis >= 0 and len(desc.shape) > axis:
            return desc.shape[axis]
    raise ValueError(f"none of the inputs {[d.name for d in descs]} has a batch axis; give shapes with the batch first")


def same(a: Sequence[DataDesc], b: Sequence[DataDesc]) -> bool:
    """Whether two lists describe the same arrays."""
    return [(d.name, tuple(d.shape)) for d in a] == [(d.name, tuple(d.shape)) for d in b]


def desc_of(name: str, value: Any, like: DataDesc | None) -> DataDesc:
    """The description of an array that takes the place of a bound one."""
    layout = "NCHW" if like is None else like.layout
    return DataDesc(name, tuple(value.shape), np.dtype(value.dtype).type, layout)


def dtypes_of(symbol: Symbol, data: Sequence[DataDesc]) -> dict[str, np.dtype]:
    """Dtype of every argument and auxiliary state: as declared, or as follows from floating data; float32 where unknown."""
    given = {d.name: d.dtype for d in data if np.dtype(d.dtype).kind == "f" and d.name in symbol.list_arguments()}
    arguments, _, aux = symbol.infer_type(**given)
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    found = zip(names, [*(arguments or [None] * len(names)), *(aux or [])], strict=False)
    return {n: np.dtype(jax.dtypes.canonicalize_dtype(t or np.float32)) for n, t in found}


def row_axes(found: Sequence[DataDesc]) -> dict[str, int]:
    """Where the rows are, for inputs whose layout puts them elsewhere than first."""
    axes = {d.name: DataDesc.get_batch_axis(d.layout) for d in found}
    return {name: axis for name, axis in axes.items() if axis > 0}


def with_shapes(like: Sequence[DataDesc], arrays: Sequence[Any]) -> list[DataDesc]:
    """The bound descriptions with the shapes of arrays."""
    return [desc_of(d.name, a, d) for d, a in zip(like, arrays, strict=False)]


def kept(array: Any) -> Any:
    """An array that stays as it is until the pass is computed, although an iterator may fill its buffer again."""
    return array.copy() if isinstance(array, np.ndarray) else array


def joined(parts: Sequence[Any], axis: int) -> Any:
    """Slices of several devices as one array."""
    return np.concatenate([np.asarray(p) for p in parts], axis)


def wrapped_rows(data_batch: Any) -> int:
    """Rows at the end of a batch that an iterator wrapped around."""
    return int(getattr(data_batch, "wrapped", getattr(data_batch, "pad", None)) or 0)
