"""Errors of the stateful shells that scripts may already catch by MXNet's name."""

from __future__ import annotations


class MXNetError(RuntimeError):
    """Something that MXNet's engine refuses: keys of a store, gradient compression, parameters that are not there yet.

    Example:
        >>> try:
        ...     raise MXNetError("key 3 is in the store already")
        ... except RuntimeError as error:
        ...     print(error)
        key 3 is in the store already
    """
