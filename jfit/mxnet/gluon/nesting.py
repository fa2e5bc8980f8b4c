"""Arrays and symbols in nested lists and tuples, the inputs and outputs of hybridized blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jfit.graph.symbol import Symbol as Graph
from jfit.mxnet.ndarray.array import NDArray


def leaves_of(args: Any) -> Iterator[Any]:
    """Yield what is in nested lists, tuples and dicts."""
    if isinstance(args, (list, tuple, dict)):
        for each in args.values() if isinstance(args, dict) else args:
            yield from leaves_of(each)
    else:
        yield args


def flatten(args: Any, what: str) -> tuple[list[Any], Any]:
    """Flatten nested lists and tuples of arrays or symbols.

    Returns:
        (leaves, structure): the structure is 0 for an array, n for a symbol with n > 1 outputs, -1 for None, else a list.

    Example:
        >>> flatten((NDArray([1.0]), [NDArray([2.0]), None]), "inputs")[1]
        [0, [0, -1]]
    """
    if args is None:
        return [None], -1
    if isinstance(args, Graph):
        return [args], len(args) if len(args) > 1 else 0
    if isinstance(args, NDArray):
        return [args], 0
    if not isinstance(args, (list, tuple)):
        raise ValueError(f"{what} of a hybridized block are NDArrays or Symbols in (nested) lists; found {type(args).__name__}")
    parts = [flatten(each, what) for each in args]
    return [leaf for flat, _ in parts for leaf in flat], [form for _, form in parts]


def regroup(leaves: Sequence[Any], form: Any) -> Any:
    """Nest leaves as `flatten` found them.

    Example:
        >>> regroup([1, 2, None, 3], [0, [0, -1], 0])
        [1, [2, None], 3]
    """
    if form == 0:
        return leaves[0]
    rest = iter(leaves)

    def build(form: Any) -> Any:
        if isinstance(form, list):
            return [build(each) for each in form]
        return [next(rest) for _ in range(form)] if form > 0 else next(rest)

    return build(form)
