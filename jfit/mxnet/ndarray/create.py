"""Arrays made from data, from nothing, and from files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.formats import mxnet_arrays
from jfit.formats.sparse import SparseArray
from jfit.mxnet.context import place
from jfit.mxnet.errors import translated
from jfit.mxnet.mutable import MutableArray, as_array
from jfit.mxnet.namespaces import split_attributes
from jfit.mxnet.ndarray.array import NDArray, function, held
from jfit.mxnet.ndarray.invoke import is_array
from jfit.mxnet.ndarray.sparse import from_record, to_record


def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> NDArray:
    """A new array from anything array-like; float32 unless the source is an NDArray or `dtype` says otherwise.

    Args:
        source_array: NDArray, numpy array, list or number.
        ctx: device; default the current context.
        dtype: 64-bit dtypes stay on the host until they are computed with.

    Example:
        >>> array([1, 2]).dtype.__name__, array(np.arange(2), dtype="int32").asnumpy().tolist()
        ('float32', [0, 1])
    """
    if dtype is None:
        dtype = as_array(source_array).dtype if isinstance(source_array, (MutableArray, jax.Array)) else np.float32
    return NDArray(held(source_array, dtype, ctx))


def zeros(shape: int | Sequence[int], ctx: Any = None, dtype: Any = None, stype: str | None = None, **_: Any) -> NDArray:
    """y = 0 everywhere."""
    return full(shape, 0, ctx, dtype)


def ones(shape: int | Sequence[int], ctx: Any = None, dtype: Any = None, **_: Any) -> NDArray:
    """y = 1 everywhere."""
    return full(shape, 1, ctx, dtype)


def empty(shape: int | Sequence[int], ctx: Any = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """An array to be written; it holds zeros."""
    return full(shape, 0, ctx, dtype)


def full(shape: int | Sequence[int], val: Any, ctx: Any = None, dtype: Any = None, out: Any = None) -> NDArray:
    """y = val everywhere.

    Example:
        >>> full((2,), 3).asnumpy().tolist()
        [3.0, 3.0]
    """
    dtype = np.dtype(np.float32 if dtype is None else dtype)
    sizes = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(s) for s in shape)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        made = NDArray(np.full(sizes, val, dtype))
    else:
        made = NDArray(place(jnp.full(sizes, val, dtype), ctx))
    if out is None:
        return made
    out[:] = made
    return out


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    ctx: Any = None,
    dtype: Any = "float32",
) -> NDArray:
    """start, start + step, ... below stop, each `repeat` times; without stop from 0 to start.

    Example:
        >>> arange(1, 3, repeat=2).asnumpy().tolist()
        [1.0, 1.0, 2.0, 2.0]
    """
    first, last = (0, start) if stop is None else (start, stop)
    return array(np.repeat(np.arange(first, last, step), repeat), ctx, dtype)


def linspace(start: float, stop: float, num: int, endpoint: bool = True, ctx: Any = None, dtype: Any = "float32") -> NDArray:
    """`num` values from start to stop, equally far apart."""
    return array(np.linspace(start, stop, num, endpoint), ctx, dtype)


def eye(N: int, M: int = 0, k: int = 0, ctx: Any = None, dtype: Any = "float32") -> NDArray:
    """1 on the diagonal `k`, else 0; M = 0 makes it square."""
    return array(np.eye(N, M or None, k), ctx, dtype)


def split_v2(ary: NDArray, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
    """Parts of an array along an axis: so many equal ones, or cut at these indices.

    Example:
        >>> [p.shape for p in split_v2(ones((4, 3)), (1,))]
        [(1, 3), (3, 3)]
    """
    return function("_split_v2")(ary, axis=axis, squeeze_axis=squeeze_axis, **split_attributes(indices_or_sections))


def concatenate(arrays: Sequence[Any], axis: int = 0, always_copy: bool = True) -> NDArray:
    """The arrays one after the other along an axis."""
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    return function("Concat")(*[a if isinstance(a, NDArray) else NDArray(a) for a in arrays], dim=axis)


def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    """Axes moved to other positions."""
    return NDArray(jnp.moveaxis(jnp.asarray(tensor.value), source, destination))


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """out[i, indices[i]] = 1, else 0."""
    out[:] = function("one_hot")(indices, depth=out.shape[1])
    return out


def waitall() -> None:
    """Wait for everything that was started."""
    counters.wait(jax.live_arrays())  # sync: the caller asked to wait


def save(fname: str | os.PathLike[str], data: Any) -> None:
    """Write a list of arrays, or a dict by name, as MXNet's NDArray file; waits once for all of them.

    Raises:
        TypeError: a name is no str, or a value no array.
        ValueError: neither an array nor a list or dict.

    Example:
        >>> save("two.params", {"a": ones(2), "b": zeros((1, 3))})
        >>> sorted(load("two.params"))
        ['a', 'b']
    """
    if isinstance(data, MutableArray):
        data = [data]
    if not isinstance(data, (Mapping, list, tuple)):
        raise ValueError(f"save needs an NDArray, a list of them or a dict of them by name, found {type(data).__name__}")
    for key, value in data.items() if isinstance(data, Mapping) else enumerate(data):
        if isinstance(data, Mapping) and not isinstance(key, str):
            raise TypeError(f"save only accepts names that are str, found the key {key!r}; pass {str(key)!r}")
        if value is not None and not is_array(value):
            raise TypeError(f"save only accepts NDArrays, found {value!r} at {key!r}; make it one with mx.nd.array")
    if isinstance(data, Mapping):
        mxnet_arrays.save_arrays(fname, {k: to_record(v) for k, v in data.items()})
    else:
        mxnet_arrays.save_arrays(fname, [to_record(v) for v in data])


def load(fname: str | os.PathLike[str]) -> Any:
    """Read an NDArray file of any version: a list, or a dict by name; sparse arrays keep their storage type.

    Raises:
        MXNetError: there is no such file (a FileNotFoundError too), or it is damaged (a FormatError too).
    """
    with translated():
        return as_ndarrays(mxnet_arrays.load_arrays(fname))


def load_frombuffer(buf: bytes) -> Any:
    """The same from bytes."""
    with translated():
        return as_ndarrays(mxnet_arrays.loads(buf, "buffer"))


def as_ndarrays(found: Any) -> Any:
    """Arrays of the host, dense or as a file holds sparse ones, as NDArrays of their own; of a list or a dict, each.

    Example:
        >>> [a.shape for a in as_ndarrays([np.zeros(2), np.zeros((2, 3))])]
        [(2,), (2, 3)]
    """
    if isinstance(found, SparseArray):
        return from_record(found)
    if isinstance(found, Mapping):
        return {k: as_ndarrays(v) for k, v in found.items()}
    if isinstance(found, list):
        return [as_ndarrays(v) for v in found]
    return None if found is None else array(found, dtype=found.dtype)
