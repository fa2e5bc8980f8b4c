"""Errors by MXNet's names, and how the errors of jfit become them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jfit.facade.errors import MXNetError
from jfit.ops import UnknownOperator
from jfit.symbol.graph import GraphError

__all__ = ["MXNetError", "string_types", "translated"]

string_types = (str,)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What MXNet's engine would refuse raises MXNetError, as scripts expect; the sentence stays.

    Example:
        >>> with translated():
        ...     raise GraphError("fc1: shapes (2,) and (3,) meet")
        Traceback (most recent call last):
        ...
        jfit.facade.errors.MXNetError: fc1: shapes (2,) and (3,) meet
    """
    try:
        yield
    except (GraphError, UnknownOperator) as error:
        raise MXNetError(str(error)) from error
