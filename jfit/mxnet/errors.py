"""Errors by MXNet's names, which scripts may already catch, and how the errors of jfit become them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jfit.counters import explained
from jfit.formats.atomic import FormatError
from jfit.graph.nodes import GraphError
from jfit.ops import UnknownOperator

__all__ = ["DamagedFile", "MXNetError", "MissingFile", "ReshapeError", "string_types", "translated"]

string_types = (str,)


class MXNetError(RuntimeError):
    """Something that MXNet's engine refuses: keys of a store, gradient compression, parameters that are not there yet.

    Example:
        >>> try:
        ...     raise MXNetError("key 3 is in the store already")
        ... except RuntimeError as error:
        ...     print(error)
        key 3 is in the store already
    """


class DamagedFile(FormatError, MXNetError):
    """A file is not what it should be; scripts catch it as MXNetError, the rest of jfit as `FormatError`."""


class MissingFile(FileNotFoundError, MXNetError):
    """There is no such file; MXNet's engine calls that an MXNetError, Python a FileNotFoundError."""


class ReshapeError(MXNetError, ValueError):
    """Another number of values; MXNet raises MXNetError where more are asked for, ValueError where fewer are."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What MXNet's engine would refuse raises MXNetError, as scripts expect; the sentence stays.

    Example:
        >>> with translated():
        ...     raise GraphError("fc1: shapes (2,) and (3,) meet")
        Traceback (most recent call last):
        ...
        jfit.mxnet.errors.MXNetError: fc1: shapes (2,) and (3,) meet
    """
    try:
        with explained():
            yield
    except FormatError as error:  # first: a damaged graph file is a GraphError too
        raise DamagedFile(error.path, error.where, error.problem, error.remedy) from error
    except (GraphError, UnknownOperator) as error:
        raise MXNetError(str(error)) from error
    except FileNotFoundError as error:
        said = error.args if error.errno is None else (error.errno, error.strerror, error.filename)
        raise MissingFile(*said) from error
