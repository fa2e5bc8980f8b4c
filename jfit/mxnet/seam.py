"""The one place that decides which arrays MXNet's classes hand out: jax arrays (`jfit.Module`) or NDArrays (`mx.mod.Module`).

Every class of this package works on plain arrays and passes what it returns through `self.arrays`.  `jfit.mxnet.spelled` makes
the classes of `jfit.mx` from the same classes with another `arrays`; nothing else differs between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jfit.mxnet.box import Box


def _as_it_is(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Box) else value


class Arrays(NamedTuple):
    """How arrays and graphs leave a class.

    Attributes:
        box: a plain array (jax or numpy), or the cell that holds one -> what the caller gets.
        cell: class of arrays that are written in place, such as the gradient of a parameter.
        symbol: a graph -> the symbol the caller gets.

    Example:
        >>> import numpy as np
        >>> PLAIN.box(np.ones(2)).tolist()
        [1.0, 1.0]
    """

    box: Callable[[Any], Any] = _plain
    cell: type[Box] = Box
    symbol: Callable[[Any], Any] = _as_it_is


PLAIN = Arrays()
