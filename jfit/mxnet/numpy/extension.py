"""`mx.npx`: the operators of `mx.nd` that NumPy lacks, for `mx.np.ndarray`s, and the switches of `mx.util`.

>>> from jfit.mx import np, npx
>>> npx.softmax(np.zeros((1, 2)))
array([[0.5, 0.5]])
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from jfit.mxnet import context, util
from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray import create
from jfit.mxnet.ndarray.create import waitall as waitall
from jfit.mxnet.ndarray.invoke import function
from jfit.mxnet.numpy import random as random
from jfit.mxnet.numpy.arrays import ndarray, operator_shape

# name -> operator; those without "=" have the same name
_SAME = (  # names of operators of `mx.nd`
    "batch_dot erf erfinv gamma gammaln gather_nd log_softmax one_hot pick relu reshape_like shape_array sigmoid slice "
    "smooth_l1 softmax topk"
)
_OTHER = (
    "activation=Activation arange_like=_contrib_arange_like batch_flatten=Flatten batch_norm=BatchNorm cast=Cast "
    "convolution=Convolution deconvolution=Deconvolution dropout=Dropout embedding=Embedding fully_connected=FullyConnected "
    "layer_norm=LayerNorm leaky_relu=LeakyReLU multibox_detection=_contrib_MultiBoxDetection pooling=Pooling rnn=RNN "
    "multibox_prior=_contrib_MultiBoxPrior multibox_target=_contrib_MultiBoxTarget roi_pooling=ROIPooling "
    "sequence_mask=SequenceMask"
)
OPERATORS: dict[str, str] = {n: n for n in _SAME.split()} | dict(pair.split("=") for pair in _OTHER.split())  # type: ignore
_CONTEXT = ("Context", "cpu", "cpu_pinned", "current_context", "gpu", "num_gpus")
_UTIL = ("is_np_array", "is_np_shape", "reset_np", "set_np")


def __getattr__(name: str) -> Any:
    if name in _CONTEXT or name in _UTIL:
        return getattr(context if name in _CONTEXT else util, name)
    if name not in OPERATORS:
        absent("mx.npx", name, __dir__())
    return function(OPERATORS[name], ndarray)


def nonzero(a: Any) -> ndarray:
    """Return the indices of the entries that are not 0.

    Args:
        a: ndarray.

    Returns:
        Integer ndarray (entries, a.ndim).

    Example:
        >>> from jfit.mx import np
        >>> nonzero(np.array([0, 3])).tolist()
        [[1]]
    """
    return ndarray(np.argwhere(a.asnumpy()))


def reshape(a: Any, newshape: Any, reverse: bool = False, order: str = "C") -> Any:
    """Reshape an array with codes for sizes.

    Args:
        a: the array.
        newshape: sizes and codes: -1 is inferred, -2 copies the size of the axis, -4 copies all remaining axes, -5 merges two
            axes, -6 splits an axis into the next two sizes.
        reverse: match sizes and codes to the axes from right to left.
        order: "C".

    Returns:
        ndarray.

    Raises:
        ReshapeError: the sizes do not fit, or the code -3, which skips an axis of size 1 in MXNet: squeeze the array first.

    Example:
        >>> from jfit.mx import np
        >>> reshape(np.ones((2, 3, 8)), (-5, -6, 2, -1)).shape
        (6, 2, 4)
    """
    return function("Reshape", ndarray)(a, shape=operator_shape(newshape), reverse=reverse)


def save(file: str | os.PathLike[str], arr: Any) -> None:
    """Write arrays to a file in MXNet's format, see `mx.nd.save`.

    Args:
        file: path of the file.
        arr: ndarray, list of them or dict of them by name.

    Example:
        >>> from jfit.mx import np
        >>> save("np.params", {"a": np.ones(2)})
        >>> load("np.params")["a"]
        array([1., 1.])
    """
    create.save(file, [arr] if isinstance(arr, ndarray) else arr)


def load(file: str | os.PathLike[str]) -> Any:
    """Read a file in MXNet's format, see `save`.

    Args:
        file: path of the file.

    Returns:
        List of ndarrays, or dict of them by name.

    Example:
        >>> from jfit.mx import np
        >>> save("list.params", [np.ones(2)])
        >>> load("list.params")
        [array([1., 1.])]
    """
    return jax.tree.map(lambda array: ndarray(array.value), create.load(file))


def __dir__() -> list[str]:
    own = ("load", "nonzero", "random", "reshape", "save", "waitall")
    return sorted([*own, *_CONTEXT, *_UTIL, *OPERATORS])
