"""Functions that create NDArrays: from data, filled with a value, and from MXNet's NDArray files."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.formats import mxnet_arrays
from jfit.formats.sparse import SparseArray
from jfit.mxnet.context import current_context, place
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.mutable import MutableArray, OnHost
from jfit.mxnet.ndarray.array import NDArray, copy_as, function, later, stays_on_host
from jfit.mxnet.ndarray.invoke import is_array
from jfit.mxnet.ndarray.sparse import from_record, to_record
from jfit.mxnet.recording.tape import mode
from jfit.mxnet.util import is_np_shape

_COPIED = 1 << 20  # maximum size of arrays of one value that are copied from the host: jnp.full compiles for each shape


def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> NDArray:
    """Create an NDArray by copying an array-like.

    Args:
        source_array: NDArray, JAX array, NumPy array, nested list or number; a sparse array stays sparse.
        ctx: device; the current context by default.
        dtype: by default the dtype of an NDArray or JAX array, and float32 for any other source, as in MXNet.  64-bit dtypes
            are kept on the host until the first computation.

    Returns:
        NDArray of the shape of the source.

    Example:
        >>> array([1, 2]).dtype.__name__, array(np.arange(2), dtype="int32").asnumpy().tolist()
        ('float32', [0, 1])
    """
    if dtype is None:
        dtype = source_array.dtype if isinstance(source_array, (MutableArray, jax.Array)) else np.float32
    if getattr(source_array, "stype", "default") != "default":
        return cast(NDArray, source_array).astype(dtype)
    return NDArray(copy_as(source_array, dtype, ctx))


def zeros(shape: int | Sequence[int], ctx: Any = None, dtype: Any = None, stype: str | None = None, **_: Any) -> NDArray:
    """Create an NDArray filled with 0.

    Args:
        shape: int or tuple.
        ctx: device; the current context by default.
        dtype: float32 by default.
        stype: "default" (dense), "csr" or "row_sparse".
        _: further arguments of MXNet, ignored.

    Returns:
        NDArray of this shape and dtype.

    Example:
        >>> zeros((2, 1)).asnumpy().tolist()
        [[0.0], [0.0]]
    """
    dense = full(_complete(shape), 0, ctx, dtype)
    return dense if stype in (None, "default") else dense.tostype(stype)


def ones(shape: int | Sequence[int], ctx: Any = None, dtype: Any = None, **_: Any) -> NDArray:
    """Create an NDArray filled with 1.

    Args:
        shape: int or tuple.
        ctx: device; the current context by default.
        dtype: float32 by default.
        _: further arguments of MXNet, ignored.

    Returns:
        NDArray of this shape and dtype.

    Example:
        >>> ones(2, dtype="int32").asnumpy().tolist()
        [1, 1]
    """
    return full(_complete(shape), 1, ctx, dtype)


def _complete(shape: Any) -> Any:
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not is_np_shape() and (len(sizes) == 0 or 0 in sizes):
        raise MXNetError(f"shape is {shape}, but () and 0 mean unknown sizes; call set_np_shape(True) to create such arrays")
    return shape


def empty(shape: int | Sequence[int], ctx: Any = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """Create an NDArray to be written later; it is filled with 0.

    Args:
        shape: int or tuple.
        ctx: device; the current context by default.
        dtype: float32 by default.
        stype: "default" (dense), "csr" or "row_sparse".

    Returns:
        NDArray of this shape and dtype.

    Example:
        >>> empty((2, 3)).shape
        (2, 3)
    """
    return zeros(shape, ctx, dtype, stype)


def full(shape: int | Sequence[int], val: Any, ctx: Any = None, dtype: Any = None, out: Any = None) -> NDArray:
    """Create an NDArray filled with one value.

    Args:
        shape: int or tuple.
        val: number.
        ctx: device; the current context by default.
        dtype: float32 by default.
        out: NDArray to write into instead.

    Returns:
        NDArray of this shape and dtype, or `out`.

    Example:
        >>> full((2,), 3).asnumpy().tolist()
        [3.0, 3.0]
    """
    dtype = np.dtype(np.float32 if dtype is None else dtype)
    sizes = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(s) for s in shape)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        result = NDArray(np.full(sizes, val, dtype))
    elif type(val) in (int, float) and _casts_alike(val, dtype) and (math.prod(sizes) <= _COPIED or stays_on_host(val, ctx)):
        result = NDArray(copy_as(np.full(sizes, val, dtype), dtype, ctx))
    else:
        result = NDArray(place(jnp.full(sizes, val, dtype), ctx))
    if out is None:
        return result
    out[:] = result
    return out


def _casts_alike(value: float, dtype: np.dtype) -> bool:
    """Return whether NumPy and JAX convert a number to a dtype alike: out of its range, they do not."""
    return value in range(128) or (jnp.issubdtype(dtype, jnp.floating) and abs(value) < 6e4)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    ctx: Any = None,
    dtype: Any = "float32",
) -> NDArray:
    """Create an NDArray of evenly spaced values in [start, stop), each repeated `repeat` times.

    Args:
        start: first value; with `stop=None` it is the end, and the first value is 0.
        stop: end, not included.
        step: spacing.
        repeat: number of times each value is repeated.
        infer_range: accepted and ignored.
        ctx: device; the current context by default.
        dtype: float32 by default.

    Returns:
        NDArray of one axis.

    Example:
        >>> arange(1, 3, repeat=2).asnumpy().tolist()
        [1.0, 1.0, 2.0, 2.0]
    """
    first, last = (0, start) if stop is None else (start, stop)
    exact: Any = dtype if np.dtype(dtype).kind == "i" else None  # start and step are truncated first
    return array(np.repeat(np.arange(first, last, step, dtype=exact), repeat), ctx, dtype)


def linspace(start: float, stop: float, num: int, endpoint: bool = True, ctx: Any = None, dtype: Any = "float32") -> NDArray:
    """Create an NDArray of `num` evenly spaced values from `start` to `stop`.

    Args:
        start: first value.
        stop: last value; excluded if `endpoint` is False.
        num: number of values.
        endpoint: include `stop`.
        ctx: device; the current context by default.
        dtype: float32 by default.

    Returns:
        NDArray (num,).

    Example:
        >>> linspace(0, 1, 3).asnumpy().tolist()
        [0.0, 0.5, 1.0]
    """
    return array(np.linspace(start, stop, num, endpoint), ctx, dtype)


def eye(N: int, M: int = 0, k: int = 0, ctx: Any = None, dtype: Any = "float32") -> NDArray:
    """Create a matrix with ones on a diagonal and zeros elsewhere.

    Args:
        N: number of rows.
        M: number of columns; 0 means N.
        k: diagonal; positive values are above the main diagonal.
        ctx: device; the current context by default.
        dtype: float32 by default.

    Returns:
        NDArray (N, M).

    Example:
        >>> eye(2, 3, 1).asnumpy().tolist()
        [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return array(np.eye(N, M or None, k), ctx, dtype)


def split_v2(ary: NDArray, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
    """Split an array along an axis, as `numpy.split`.

    Args:
        ary: the array.
        indices_or_sections: number of equal parts, or indices at which to split.
        axis: axis to split.
        squeeze_axis: remove the axis from parts of size 1.

    Returns:
        List of NDArrays, or one NDArray if there is one part.

    Example:
        >>> [p.shape for p in split_v2(ones((4, 3)), (1,))]
        [(1, 3), (3, 3)]
    """
    return ary.split_v2(indices_or_sections, axis, squeeze_axis)


def cast_storage(data: NDArray, stype: str, out: Any = None) -> NDArray:
    """Return an array in another storage type; in `out`, or while `mx.autograd` records, the values only.

    Args:
        data: the array.
        stype: "default" (dense), "csr" or "row_sparse".
        out: NDArray to write into.

    Returns:
        The array; `out` if it is passed.

    Example:
        >>> cast_storage(array([[0, 1], [2, 0]]), "csr").stype
        'csr'
    """
    if out is not None or mode.tape is not None:
        return function("cast_storage")(data, stype=stype, out=out)
    return data.tostype(stype)


def concatenate(arrays: Sequence[Any], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Concatenate arrays along an axis.

    Args:
        arrays: list of arrays that agree in all other axes.
        axis: axis to concatenate.
        always_copy: False returns a single array itself.

    Returns:
        NDArray.

    Example:
        >>> concatenate([ones((1, 2)), zeros((2, 2))]).shape
        (3, 2)
    """
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    return function("Concat")(*[a if isinstance(a, NDArray) else NDArray(a) for a in arrays], dim=axis)


def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    """Move axes to other positions, as `jax.numpy.moveaxis`.

    Args:
        tensor: the array.
        source: axis or axes to move.
        destination: new position of each.

    Returns:
        NDArray.

    Example:
        >>> moveaxis(zeros((2, 3, 4)), 0, 2).shape
        (3, 4, 2)
    """
    return NDArray(jnp.moveaxis(jnp.asarray(tensor.value), source, destination))


def histogram(a: NDArray, bins: Any = 10, range: tuple[float, float] | None = None) -> list[NDArray]:
    """Count the entries of an array in bins, as `numpy.histogram`.

    Args:
        a: the array.
        bins: number of bins of equal width, or an array of the edges.
        range: lower edge of the first and upper edge of the last bin; by default the smallest and the largest entry.

    Returns:
        [counts, edges], NDArrays.

    Example:
        >>> histogram(array([0, 1, 1, 3]), bins=3, range=(0, 3))[0].asnumpy().tolist()
        [1, 2, 1]
    """
    if is_array(bins):
        return function("_histogram")(a, bins)
    low, high = range or (a.min().asscalar(), a.max().asscalar())
    counts, edges = function("_histogram")(a, bin_cnt=bins, range=(float(low), float(high)))
    return [counts if range else counts.astype(np.float32), edges]


def from_numpy(ndarray: np.ndarray, zero_copy: bool = True) -> NDArray:
    """Create an NDArray of the values and dtype of a NumPy array.

    Args:
        ndarray: the NumPy array.
        zero_copy: accepted and ignored: the values are copied.

    Returns:
        NDArray.

    Example:
        >>> from_numpy(np.ones(2, "int32")).dtype.__name__
        'int32'
    """
    return array(ndarray, dtype=ndarray.dtype)


class _Capsule:
    """A DLPack capsule as JAX expects it, an object with methods."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def from_dlpack(dlpack: Any) -> NDArray:
    """Create an NDArray of an array of another library.

    Args:
        dlpack: object with a method `__dlpack__`, or a DLPack capsule of an array on the CPU.

    Returns:
        NDArray.

    Example:
        >>> from_dlpack(to_dlpack_for_read(ones(2))).shape
        (2,)
    """
    return NDArray(jax.dlpack.from_dlpack(dlpack if hasattr(dlpack, "__dlpack__") else _Capsule(dlpack)))


def to_dlpack_for_read(data: NDArray) -> Any:
    """Return a DLPack capsule of an array, which another library can read.

    Args:
        data: the array.

    Returns:
        The capsule; it must not be written into, because JAX arrays are immutable.

    Example:
        >>> type(to_dlpack_for_read(ones(2))).__name__
        'PyCapsule'
    """
    return jnp.asarray(data.value).__dlpack__()


to_dlpack_for_write = to_dlpack_for_read


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Write the one-hot encoding of `indices` into `out`: out[i, j] = 1 if j == indices[i], else 0.

    Args:
        indices: (rows,) class of each row.
        out: (rows, classes), overwritten.

    Returns:
        `out`.

    Example:
        >>> onehot_encode(array([1, 0]), zeros((2, 2))).asnumpy().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    out[:] = function("one_hot")(indices, depth=out.shape[1])
    return out


def waitall() -> None:
    """Block until all computations that were dispatched have finished.

    Example:
        >>> waitall()
    """
    counters.wait(jax.live_arrays())  # sync: the caller asked to wait


def save(fname: str | os.PathLike[str], data: Any) -> None:
    """Write arrays to a file in MXNet's NDArray format.

    Args:
        fname: path of the file.
        data: NDArray, list of NDArrays, or dict of NDArrays by name.  Sparse arrays keep their storage type.

    Raises:
        TypeError: a name is not a str, or a value is not an array.

    Example:
        >>> save("two.params", {"a": ones(2), "b": zeros((1, 3))})
        >>> sorted(load("two.params"))
        ['a', 'b']
    """
    names, values = (list(data), list(data.values())) if isinstance(data, Mapping) else ([], data)
    values = values if isinstance(values, (list, tuple)) else [data]
    wrong = [v for v in values if not is_array(v) and (v is not None or data is None)]
    wrong += [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"save needs an NDArray, a list of them or a dict of them by name, found {wrong[0]!r}")
    records = [to_record(v) for v in values]
    mxnet_arrays.save_arrays(fname, dict(zip(names, records, strict=True)) if isinstance(data, Mapping) else records)


def load(fname: str | os.PathLike[str]) -> Any:
    """Read a file in MXNet's NDArray format, of any version.

    Args:
        fname: path of the file.

    Returns:
        List of NDArrays, or dict by name, as the file was saved; sparse arrays keep their storage type.

    Raises:
        MXNetError: the file does not exist (then it is a FileNotFoundError too) or is damaged (then a FormatError too).

    Example:
        >>> save("one.params", [ones(2)])
        >>> load("one.params")[0].asnumpy().tolist()
        [1.0, 1.0]
    """
    with translated():
        return as_ndarrays(mxnet_arrays.load_arrays(fname))


def load_frombuffer(buf: bytes) -> Any:
    """Read the bytes of a file in MXNet's NDArray format; see `load`.

    Args:
        buf: content of the file.

    Returns:
        List of NDArrays, or dict by name.

    Example:
        >>> from pathlib import Path
        >>> save("one.params", {"a": ones(2)})
        >>> load_frombuffer(Path("one.params").read_bytes())["a"].shape
        (2,)
    """
    with translated():
        return as_ndarrays(mxnet_arrays.loads(buf, "buffer"))


def from_host(value: Any) -> Any:
    """Return a new NumPy array or sparse record as an NDArray, without a copy to the device until its value is read."""
    if not isinstance(value, np.ndarray) or jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
        return as_ndarrays(value)
    return later(OnHost(value, functools.partial(copy_as, dtype=value.dtype, ctx=current_context())), 0)


def as_ndarrays(value: Any) -> Any:
    """Return new NDArrays of NumPy arrays and sparse records, with the same dtypes, also inside lists and dicts.

    None is returned unchanged.

    Example:
        >>> [a.shape for a in as_ndarrays([np.zeros(2), np.zeros((2, 3))])]
        [(2,), (2, 3)]
    """
    if isinstance(value, SparseArray):
        return from_record(value)
    if isinstance(value, Mapping):
        return {k: as_ndarrays(v) for k, v in value.items()}
    if isinstance(value, list):
        return [as_ndarrays(v) for v in value]
    return None if value is None else array(value, dtype=value.dtype)
