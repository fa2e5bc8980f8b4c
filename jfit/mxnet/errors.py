"""MXNet's exception types, which scripts may already catch, and the conversion of jfit's exceptions to them."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np

from jfit.counters import explained
from jfit.formats.atomic import FormatError
from jfit.graph.nodes import GraphError
from jfit.ops import UnknownOperator

string_types, integer_types = (str,), (int, np.int32, np.int64)
numeric_types = (float, int, np.generic)
mx_real_t = np.float32


def data_dir() -> str:
    """Return the folder of downloaded files: MXNET_HOME, by default ~/.mxnet.

    Returns:
        The path.

    Example:
        >>> import os
        >>> os.environ["MXNET_HOME"] = "data"
        >>> data_dir(), os.environ.pop("MXNET_HOME")
        ('data', 'data')
    """
    return os.environ.get("MXNET_HOME") or os.path.join(os.path.expanduser("~"), ".mxnet")


def as_list(value: Any) -> list[Any]:
    """Return a list or tuple as a list, anything else as a list with it alone.

    Args:
        value: list, tuple or one object.

    Returns:
        list.

    Example:
        >>> as_list((1, 2)), as_list(3)
        ([1, 2], [3])
    """
    return list(value) if isinstance(value, (list, tuple)) else [value]


_as_list = as_list  # MXNet's name


def py_str(text: bytes | str) -> str:
    """Decode UTF-8 text.

    Args:
        text: the bytes; a str is returned unchanged.

    Returns:
        str.

    Example:
        >>> py_str(b"conv")
        'conv'
    """
    return text if isinstance(text, str) else text.decode("utf-8")


class MXNetError(RuntimeError):
    """An error that MXNet's C++ engine would report, such as a duplicate key of a store or an uninitialized parameter.

    Example:
        >>> try:
        ...     raise MXNetError("key 3 is in the store already")
        ... except RuntimeError as error:
        ...     print(error)
        key 3 is in the store already
    """


class InternalError(MXNetError):
    """An error inside MXNet; a class for `except`, which jfit does not raise."""


class DamagedFile(FormatError, MXNetError):
    """A damaged file or one of another format: an MXNetError for MXNet scripts and a `FormatError` for jfit."""


class MissingFile(FileNotFoundError, MXNetError):
    """A missing file: an MXNetError, as MXNet raises, and a FileNotFoundError, as Python raises."""


class ReshapeError(MXNetError, ValueError):
    """A reshape to a different number of elements: MXNet raises MXNetError if it is larger, ValueError if smaller."""


class MissingGradient(MXNetError, ValueError):
    """A backward pass without the gradient of an output that is not a loss."""


class NotImplementedForSymbol(MXNetError, TypeError):
    """An operation that NDArrays support and symbols do not, such as `if symbol:`."""


class NotSupportedForSparseNDArray(MXNetError, TypeError):
    """An operation that dense arrays support and sparse ones do not."""


class translated(contextlib.ContextDecorator):
    """Context manager, or decorator, that re-raises jfit's graph, operator and file errors as MXNetError with the same message.

    Raises:
        MXNetError: a GraphError, UnknownOperator, FormatError (then a DamagedFile) or FileNotFoundError (then a MissingFile)
            was raised inside the block.

    Example:
        >>> with translated():
        ...     raise GraphError("fc1: shapes (2,) and (3,) meet")
        Traceback (most recent call last):
        ...
        jfit.mxnet.errors.MXNetError: fc1: shapes (2,) and (3,) meet
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            return
        try:
            with explained():
                raise error
        except FormatError as error:  # before GraphError: a damaged graph file raises a subclass of both
            raise DamagedFile(error.path, error.where, error.problem, error.remedy) from error
        except (GraphError, UnknownOperator) as error:
            raise MXNetError(str(error)) from error
        except FileNotFoundError as error:
            args = error.args if error.errno is None else (error.errno, error.strerror, error.filename)
            raise MissingFile(*args) from error
