"""Which array type the classes of `jfit.mxnet` return: jax arrays (`jfit.Module`) or NDArrays (`mx.mod.Module`).

Every class of this package computes with jax and numpy arrays and converts its return values with `self.arrays`, an
`ArrayTypes`.  `jfit.mxnet.ndarray_classes` derives the classes of `jfit.mx` by overriding `arrays`; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jfit.mxnet.mutable import MutableArray


class ArrayTypes(NamedTuple):
    """Conversion of internal arrays and graphs to the types that a class returns to its caller.

    Attributes:
        wrap: function from a jax array, numpy array or MutableArray to the returned array.
        mutable: MutableArray or a subclass, for arrays that are written in place, such as the gradient of a parameter.
        symbol: function from a graph to the returned symbol.

    Example:
        >>> import numpy as np
        >>> PLAIN.wrap(np.ones(2)).tolist()
        [1.0, 1.0]
    """

    wrap: Callable[[Any], Any] = lambda value: value.value if isinstance(value, MutableArray) else value
    mutable: type[MutableArray] = MutableArray
    symbol: Callable[[Any], Any] = lambda value: value


PLAIN = ArrayTypes()
