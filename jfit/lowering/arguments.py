"""The arguments of a function or of the call of a module: which of them are data, and how the data is passed."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

# arguments of a function that jfit passes
OF_FUNCTIONS = frozenset({"key", "train", "aux", "axis_name", "row_ids"})
# names of arguments that jfit passes, which arrays may have, too
AMBIGUOUS = frozenset({"key", "mask", "rng", "rngs", "state", "weight"})


class Arguments(NamedTuple):
    """The arguments of a call.

    Attributes:
        inputs: names of the arguments that every batch must have.
        optional: names of the arguments with a default, which are passed if a batch has them.
        by_position: those of `optional` that an array in a list or tuple after the inputs may be.
        keyword_only: names of the arguments that are passed by keyword.
        names: names of all arguments.
        required: names of the arguments without default.
        reserved: names of arguments that are no data, but that arrays may have, too.

    Example:
        >>> call = arguments_of(lambda x, mask=None, *, train=False: x, reserved={"train"})
        >>> call.inputs, call.optional
        (('x',), ('mask',))
    """

    inputs: tuple[str, ...]
    optional: tuple[str, ...]
    by_position: tuple[str, ...]
    keyword_only: frozenset[str]
    names: frozenset[str]
    required: frozenset[str]
    reserved: frozenset[str] = frozenset()

    def bind(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split data into positional and keyword arguments.

        Args:
            values: one value for each of `inputs`, then one for each of `optional`, None if the batch does not have it.

        Returns:
            (positional arguments, keyword arguments); arguments without a value keep their default.
        """
        args, kwargs, optional = [], {}, values[len(self.inputs) :]
        for name, value in zip(self.inputs, values, strict=False):
            if name in self.keyword_only:
                kwargs[name] = value
            else:
                args.append(value)
        kwargs |= {name: value for name, value in zip(self.optional, optional, strict=True) if value is not None}
        return args, kwargs


def arguments_of_function(fn: Callable[..., Any], weights: frozenset[str], inputs: Sequence[str] | None) -> Arguments:
    """Read the arguments of a function `apply(params, x, ...)`.

    Args:
        fn: the function.
        weights: names of the arguments by which it takes row weights.
        inputs: names of the inputs, if the user passed any, else None.

    Returns:
        `Arguments`.  A positional `key` is the PRNG key, but an array of a batch that has this name.

    Raises:
        ValueError: the function has no argument that is data.
    """
    reserved = OF_FUNCTIONS | weights
    call = arguments_of(fn, reserved, 1, inputs)
    if not call.inputs:
        raise ValueError("apply takes (params, inputs...), but no input was found in its signature; pass inputs=('x',)")
    if inputs is not None:
        return call
    key = inspect.signature(fn).parameters.get("key")
    positional_key = key is not None and key.kind is key.POSITIONAL_OR_KEYWORD
    optional = (*call.optional, "key") if positional_key else call.optional
    return call._replace(optional=optional, reserved=AMBIGUOUS & reserved & call.names - set(optional))


def arguments_of(
    fn: Callable[..., Any], reserved: Collection[str] = (), skip: int = 0, inputs: Sequence[str] | None = None
) -> Arguments:
    """Read the arguments of a function or bound method.

    Args:
        fn: the function.
        reserved: names of arguments that are no data.
        skip: number of positional arguments before the inputs.
        inputs: names of the inputs; then no other argument is data.

    Returns:
        `Arguments`; without inputs if the function has no argument without default that is data.
    """
    parameters = list(inspect.signature(fn).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][skip:]
    by_keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    names = frozenset(p.name for p in parameters)
    required = frozenset(p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    keyword_only = frozenset(p.name for p in by_keyword)
    if inputs is not None:
        return Arguments(tuple(inputs), (), (), keyword_only, names, required)
    data = tuple(p.name for p in (*positional, *by_keyword) if p.name in required and p.name not in reserved)
    fixed = fn.keywords if isinstance(fn, functools.partial) else {}
    defaults = [p for p in (*positional, *by_keyword) if p.name not in (*required, *reserved, *fixed)]
    optional = tuple(p.name for p in defaults if p.kind is not p.POSITIONAL_ONLY)
    positions = [p for p in defaults if p.kind is p.POSITIONAL_OR_KEYWORD and keyword_only.isdisjoint(data)]
    # With one input, a list of arrays may be one pytree; only a default of None marks the next argument as data.
    following = itertools.takewhile(lambda p: len(data) > 1 or p.default is None, positions)
    by_position = tuple(p.name for p in following)
    return Arguments(data, optional, by_position, keyword_only, names, required, AMBIGUOUS & frozenset(reserved) & names)
