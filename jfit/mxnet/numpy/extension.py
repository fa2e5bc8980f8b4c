"""`mx.npx`: the operators of `mx.nd` that NumPy lacks, for `mx.np.ndarray`s, and the switches of `mx.util`.

>>> from jfit.mx import np, npx
>>> npx.softmax(np.zeros((1, 2)))
array([[0.5, 0.5]])
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.mxnet.context import Context as Context
from jfit.mxnet.context import cpu as cpu
from jfit.mxnet.context import cpu_pinned as cpu_pinned
from jfit.mxnet.context import current_context as current_context
from jfit.mxnet.context import gpu as gpu
from jfit.mxnet.context import num_gpus as num_gpus
from jfit.mxnet.errors import ReshapeError
from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray import create
from jfit.mxnet.ndarray.create import waitall as waitall
from jfit.mxnet.ndarray.invoke import function
from jfit.mxnet.numpy import random as random
from jfit.mxnet.numpy.arrays import ndarray
from jfit.mxnet.util import is_np_array as is_np_array
from jfit.mxnet.util import is_np_shape as is_np_shape
from jfit.mxnet.util import reset_np as reset_np
from jfit.mxnet.util import set_np as set_np

# name -> operator; those without "=" have the same name
_SAME = (  # names of operators of `mx.nd`
    "batch_dot erf erfinv gamma gammaln gather_nd log_softmax one_hot pick relu reshape_like shape_array sigmoid slice "
    "smooth_l1 softmax topk"
)
OPERATORS = {name: name for name in _SAME.split()} | {
    "activation": "Activation",
    "arange_like": "_contrib_arange_like",
    "batch_flatten": "Flatten",
    "batch_norm": "BatchNorm",
    "cast": "Cast",
    "convolution": "Convolution",
    "deconvolution": "Deconvolution",
    "dropout": "Dropout",
    "embedding": "Embedding",
    "fully_connected": "FullyConnected",
    "layer_norm": "LayerNorm",
    "leaky_relu": "LeakyReLU",
    "multibox_detection": "_contrib_MultiBoxDetection",
    "multibox_prior": "_contrib_MultiBoxPrior",
    "multibox_target": "_contrib_MultiBoxTarget",
    "pooling": "Pooling",
    "rnn": "RNN",
    "roi_pooling": "ROIPooling",
    "sequence_mask": "SequenceMask",
}


def __getattr__(name: str) -> Any:
    if name not in OPERATORS:
        absent("mx.npx", name, __dir__())
    return function(OPERATORS[name], ndarray)


def nonzero(a: Any) -> ndarray:
    """Return the indices of the entries that are not 0, as an integer array (entries, a.ndim)."""
    return ndarray(np.argwhere(a.asnumpy()))


def reshape(a: Any, newshape: Any, reverse: bool = False, order: str = "C") -> Any:
    """Reshape an array with codes for sizes.

    Args:
        a: the array.
        newshape: sizes and codes: -1 is inferred, -2 copies the size of the axis, -3 skips an axis of size 1, -4 copies all
            remaining axes, -5 merges two axes, -6 splits an axis into the next two sizes.
        reverse: match sizes and codes to the axes from right to left.
        order: "C".

    Raises:
        ReshapeError: the sizes do not fit.

    Example:
        >>> from jfit.mx import np
        >>> reshape(np.ones((2, 3, 8)), (-5, -6, 2, -1)).shape
        (6, 2, 4)
    """
    codes = (newshape,) if isinstance(newshape, int) else tuple(newshape)
    axes = list(a.shape)
    if reverse:
        axes, codes = axes[::-1], codes[::-1]
    try:
        sizes = _sizes_of(codes, axes)
    except (IndexError, StopIteration):
        raise ReshapeError(f"npx.reshape: {newshape} has more entries than the shape {a.shape} has axes") from None
    return a.reshape(*(sizes[::-1] if reverse else sizes))


def _sizes_of(codes: Sequence[int], axes: list[int]) -> list[int]:
    """Return sizes without codes except -1."""
    sizes: list[int] = []
    rest, axis = iter(codes), 0
    for code in rest:
        if code == -4:
            end = len(axes)
            sizes += axes[axis:end]
            axis = end
        elif code == -5:
            sizes.append(axes[axis] * axes[axis + 1])
            axis += 2
        elif code == -6:
            first, second, size = next(rest), next(rest), axes[axis]
            first, second = (size // second if first == -1 else first), (size // first if second == -1 else second)
            sizes += [first, second]
            axis += 1
        else:
            if code == -2:
                sizes.append(axes[axis])
            elif code != -3:
                sizes.append(code)
            axis += 1
    return sizes


def constraint_check(x: Any, msg: str = "") -> ndarray:
    """Return a boolean array True; raises ValueError with this message if an entry of `x` is False."""
    if not x.asnumpy().all():
        raise ValueError(msg)
    return ndarray(np.array(True))


def save(file: str | os.PathLike[str], arr: Any) -> None:
    """Write an ndarray, a list of them or a dict of them by name to a file in MXNet's format, see `mx.nd.save`.

    Raises:
        ValueError: NumPy semantics are off; call `set_np()` first.
    """
    _need_np("save")
    create.save(file, [arr] if isinstance(arr, ndarray) else arr)


def load(file: str | os.PathLike[str]) -> Any:
    """Read a file in MXNet's format; returns a list of ndarrays, or a dict of them by name.

    Raises:
        ValueError: NumPy semantics are off; call `set_np()` first.
    """
    _need_np("load")
    arrays = create.load(file)
    if isinstance(arrays, dict):
        return {name: ndarray(a.value) for name, a in arrays.items()}
    return [ndarray(a.value) for a in arrays]


def _need_np(name: str) -> None:
    if not (is_np_shape() and is_np_array()):
        raise ValueError(f"npx.{name} of mx.np.ndarrays needs NumPy semantics; call npx.set_np() first")


def __dir__() -> list[str]:
    return sorted({*(n for n in globals() if not n.startswith("_") and n != "OPERATORS"), *OPERATORS})
