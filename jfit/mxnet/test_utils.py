"""`mx.test_utils`: comparisons of arrays, and checks of the outputs and gradients of symbols.

Random inputs come from `numpy.random`, drawn in MXNet's order: after `np.random.seed` they are those of MXNet.  Checks with
dtype float64 compute in 64 bits, whatever jax_enable_x64 is.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json  # noqa: F401 (a name of mx.test_utils, as logging, sys and time)
import logging  # noqa: F401
import numbers
import os
import platform
import random as rnd  # noqa: F401
import sys  # noqa: F401
import time  # noqa: F401
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np

from jfit.data.files.mnist_iter import read_idx
from jfit.mxnet import random as mx_random
from jfit.mxnet.context import Context, current_context, num_gpus, set_default
from jfit.mxnet.gluon import utils
from jfit.mxnet.io.arrays import DataIter, MNISTIter, NDArrayIter  # noqa: F401 (NDArrayIter is in an example)
from jfit.mxnet.module.binding import requests_of
from jfit.mxnet.ndarray import sparse
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import array, waitall
from jfit.mxnet.symbol.symbol import Symbol, Variable, operator
from jfit.mxnet.util import getenv, setenv, use_np  # noqa: F401 (names of mx.test_utils)

_EXACT = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64")
Tolerance = float | Mapping[Any, float] | None


# ------------------------------------------------------------------------------------------------ contexts and tolerances
def default_context() -> Context:
    """Return the context of the checks, `mx.current_context()`.

    Returns:
        Context.

    Example:
        >>> default_context() == current_context()
        True
    """
    return current_context()


def set_default_context(ctx: Context) -> None:
    """Set the context of this thread outside of all `with ctx:` blocks, cpu(0) at first.

    Args:
        ctx: the context.

    Example:
        >>> set_default_context(Context("cpu", 0))
    """
    set_default(ctx)


def default_dtype() -> type:
    """Return the dtype of random inputs, float32.

    Returns:
        `numpy.float32`.

    Example:
        >>> default_dtype().__name__
        'float32'
    """
    return np.float32


def _by_dtype(float16: float, float32: float, float64: float) -> dict[np.dtype, float]:
    floats = {np.dtype(f"float{bits}"): value for bits, value in ((16, float16), (32, float32), (64, float64))}
    return floats | {np.dtype(name): 0 for name in _EXACT}


def default_rtols() -> dict[np.dtype, float]:
    """Return the relative tolerance of each dtype: 1e-2, 1e-4, 1e-5 for 16, 32 and 64 bits; 0 for integers.

    Returns:
        Dict dtype -> tolerance.

    Example:
        >>> default_rtols()[np.dtype("float32")]
        0.0001
    """
    return _by_dtype(1e-2, 1e-4, 1e-5)


def default_atols() -> dict[np.dtype, float]:
    """Return the absolute tolerance of each dtype: 1e-1, 1e-3, 1e-20 for 16, 32 and 64 bits; 0 for integers.

    Returns:
        Dict dtype -> tolerance.

    Example:
        >>> default_atols()[np.dtype("float32")]
        0.001
    """
    return _by_dtype(1e-1, 1e-3, 1e-20)


def default_numeric_eps() -> dict[np.dtype, float]:
    """Return the step of finite differences of each float dtype: 2**-6, 2**-9, 2**-14 for 16, 32 and 64 bits.

    Returns:
        Dict dtype -> step.

    Example:
        >>> default_numeric_eps()[np.dtype("float32")] == 2**-9
        True
    """
    return {k: v for k, v in _by_dtype(2.0**-6, 2.0**-9, 2.0**-14).items() if v}


def effective_dtype(dat: Any) -> np.dtype:
    """Return the dtype whose tolerances apply to an array: its own; float16 for bfloat16.

    Args:
        dat: NDArray or NumPy array.

    Returns:
        `numpy.dtype`.

    Example:
        >>> effective_dtype(np.zeros(3, "float32"))
        dtype('float32')
    """
    dtype = np.dtype(dat.dtype)
    return np.dtype(np.float16) if dtype == jax.numpy.bfloat16 else dtype


def get_tolerance(dat: Any, tol: Tolerance, default_tol: Mapping[np.dtype, float]) -> float:
    """Return the tolerance for an array.

    Args:
        dat: the array.
        tol: the tolerance itself, or a dict by dtype; None and missing dtypes mean the default.
        default_tol: defaults by dtype.

    Returns:
        The tolerance.

    Example:
        >>> get_tolerance(np.zeros(3, "float32"), {np.dtype("float16"): 0.1}, default_rtols())
        0.0001
    """
    if isinstance(tol, numbers.Number):
        return tol  # type: ignore[return-value]
    dtype, known = effective_dtype(dat), tol if isinstance(tol, Mapping) else {}
    return known.get(dtype, default_tol[dtype])


def get_tols(x: Any, y: Any, rtol: Tolerance, atol: Tolerance) -> tuple[float, float]:
    """Return (rtol, atol) for a comparison of two arrays: the larger ones of the two.

    Args:
        x: NDArray, NumPy array or number.
        y: NDArray, NumPy array or number.
        rtol, atol: relative and absolute tolerance: numbers, dicts by dtype, or None for the defaults.

    Returns:
        (rtol, atol).

    Example:
        >>> get_tols(np.zeros(3, "float32"), np.zeros(3, "float16"), None, 0.5)
        (0.01, 0.5)
    """
    pair = [v if hasattr(v, "dtype") else np.asarray(v) for v in (x, y)]
    rtols, atols = default_rtols(), default_atols()
    return max(get_tolerance(v, rtol, rtols) for v in pair), max(get_tolerance(v, atol, atols) for v in pair)


def get_atol(atol: float | None = None, dtype: Any = np.float64) -> float:
    """Return `atol`, or if it is None the absolute tolerance of a dtype.

    Args:
        atol: the tolerance, or None.
        dtype: dtype of the default.

    Returns:
        The tolerance.

    Example:
        >>> get_atol(), get_atol(0.5)
        (1e-20, 0.5)
    """
    return default_atols()[np.dtype(dtype)] if atol is None else atol


def get_rtol(rtol: float | None = None, dtype: Any = np.float64) -> float:
    """Return `rtol`, or if it is None the relative tolerance of a dtype.

    Args:
        rtol: the tolerance, or None.
        dtype: dtype of the default.

    Returns:
        The tolerance.

    Example:
        >>> get_rtol(), get_rtol(0.5)
        (1e-05, 0.5)
    """
    return default_rtols()[np.dtype(dtype)] if rtol is None else rtol


# ------------------------------------------------------------------------------------------------ random and special arrays
def random_arrays(*shapes: tuple[int, ...]) -> Any:
    """Draw float32 arrays from the standard normal distribution; one array, or a list if there are several shapes.

    Args:
        shapes: a shape for each array.

    Returns:
        NumPy array, or list of them.

    Example:
        >>> a, b = random_arrays((2, 3), (4,))
        >>> a.shape, b.shape
        ((2, 3), (4,))
    """
    arrays = [np.asarray(np.random.randn(*s), np.float32) for s in shapes]
    return arrays[0] if len(arrays) == 1 else arrays


def random_uniform_arrays(*shapes: tuple[int, ...], low: float = 0.0, high: float = 1.0, dtype: Any = np.float32) -> list[Any]:
    """Draw a list of arrays from the uniform distribution over [low, high).

    Args:
        shapes: a shape for each array.
        low, high: bounds of the values.
        dtype: dtype of the arrays.

    Returns:
        List of NumPy arrays.

    Example:
        >>> [a.shape for a in random_uniform_arrays((2, 3), (4,), high=0.5)]
        [(2, 3), (4,)]
    """
    return [np.random.uniform(low, high, size=s).astype(dtype) for s in shapes]


def rand_shape_2d(dim0: int = 10, dim1: int = 10, allow_zero_size: bool = False) -> tuple[int, int]:
    """Draw a shape of two axes; each size is between 1 (0 with `allow_zero_size`) and its argument.

    Args:
        dim0, dim1: largest size of each axis.
        allow_zero_size: whether sizes may be 0.

    Returns:
        The shape.

    Example:
        >>> len(rand_shape_2d(3, 4))
        2
    """
    return _rand_sizes((dim0, dim1), allow_zero_size)


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10, allow_zero_size: bool = False) -> tuple[int, int, int]:
    """Draw a shape of three axes; each size is between 1 (0 with `allow_zero_size`) and its argument.

    Args:
        dim0, dim1, dim2: largest size of each axis.
        allow_zero_size: whether sizes may be 0.

    Returns:
        The shape.

    Example:
        >>> len(rand_shape_3d())
        3
    """
    return _rand_sizes((dim0, dim1, dim2), allow_zero_size)


def _rand_sizes(most: Sequence[int], allow_zero_size: bool) -> Any:
    return tuple(np.random.randint(0 if allow_zero_size else 1, m + 1) for m in most)


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """Draw a shape of `num_dim` axes; each size is between 1 (0 with `allow_zero_size`) and `dim`.

    Args:
        num_dim: number of axes.
        dim: largest size of an axis.
        allow_zero_size: whether sizes may be 0.

    Returns:
        The shape.

    Example:
        >>> len(rand_shape_nd(4))
        4
    """
    return tuple(np.random.randint(0 if allow_zero_size else 1, dim + 1, size=num_dim))


def rand_ndarray(shape: Any, stype: str = "default", density: Any = None, dtype: Any = None, **options: Any) -> Any:
    """Draw an NDArray: dense from the standard normal distribution, or sparse as `rand_sparse_ndarray`.

    Args:
        shape: its shape.
        stype: "default" (dense), "csr" or "row_sparse".
        density, options: see `rand_sparse_ndarray`.
        dtype: float32 by default.

    Returns:
        NDArray.

    Example:
        >>> rand_ndarray((2, 3)).shape
        (2, 3)
    """
    if stype == "default":
        return array(random_arrays(tuple(shape)), options.get("ctx"), dtype)
    return rand_sparse_ndarray(shape, stype, density, dtype, **options)[0]


def rand_sparse_ndarray(
    shape: Sequence[int], stype: str, density: float | None = None, dtype: Any = None, distribution: str | None = None,
    data_init: float | None = None, rsp_indices: Any = None, modifier_func: Callable[[float], float] | None = None,
    shuffle_csr_indices: bool = False, ctx: Context | None = None,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """Draw a sparse NDArray whose values are uniform in [0, 1).

    Args:
        shape: its shape, for "csr" of two axes.
        stype: "csr" or "row_sparse".
        density: fraction of stored values ("csr") or probability that a row is stored ("row_sparse"); drawn by default.
        dtype: float32 by default.
        distribution: must be "uniform", the default; MXNet's "powerlaw" is not supported.
        data_init: value of all stored entries, instead of random ones.
        rsp_indices: indices of the stored rows of "row_sparse".
        modifier_func: function of one number, applied to all stored entries of "row_sparse".
        shuffle_csr_indices: must be False; columns are stored in order.
        ctx: accepted and ignored; the stored values are on the host.

    Returns:
        The array, and the tuple of its parts: (values, row indices), or (indptr, indices, data).

    Raises:
        ValueError: the density is not in [0, 1].
        AssertionError: the storage type or distribution is not supported.

    Example:
        >>> array, (values, rows) = rand_sparse_ndarray((4, 2), "row_sparse", rsp_indices=[0, 3])
        >>> values.shape, rows.tolist()
        ((2, 2), [0, 3])
    """
    assert distribution in (None, "uniform"), f"distribution must be 'uniform', found {distribution!r}"
    assert not shuffle_csr_indices, "shuffle_csr_indices=True is not supported"
    density = np.random.rand() if density is None else density
    dtype = np.float32 if dtype is None else dtype
    if stype == "csr":
        import scipy.sparse

        csr: Any = scipy.sparse.rand(*shape, density=density, dtype=dtype, format="csr")
        if data_init is not None:
            csr.data.fill(data_init)
        result = sparse.array(csr)
        return result, (result.indptr, result.indices, result.data)
    assert stype == "row_sparse", f"unknown storage type {stype!r}"
    rows = np.flatnonzero(np.random.rand(shape[0]) < density) if rsp_indices is None else np.asarray(rsp_indices)
    values = np.random.rand(len(rows), *shape[1:]).astype(dtype)
    if data_init is not None:
        values.fill(data_init)
    if modifier_func is not None:
        values = np.vectorize(modifier_func, otypes=[dtype])(values)
    return sparse.row_sparse_array((values, rows), tuple(shape), dtype=dtype), (values, rows)


def np_reduce(dat: np.ndarray, axis: Any, keepdims: bool, numpy_reduce_func: Callable[..., Any]) -> np.ndarray:
    """Reduce an array along one axis, several axes or (None) all axes by repeated calls of `numpy_reduce_func(x, axis=i)`.

    Args:
        dat: NumPy array.
        axis: number of an axis, several of them, or None.
        keepdims: whether reduced axes are kept with size 1.
        numpy_reduce_func: function such as `numpy.sum`.

    Returns:
        NumPy array.

    Example:
        >>> np_reduce(np.ones((2, 3)), (0, 1), True, np.sum).tolist()
        [[6.0]]
    """
    axes = [axis] if isinstance(axis, int) else list(range(dat.ndim) if axis is None else axis)
    for i in sorted(axes, reverse=True):
        dat = numpy_reduce_func(dat, axis=i)
    return np.expand_dims(dat, tuple(axes)) if keepdims else dat


def collapse_sum_like(a: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Sum an array over its broadcast axes, so that the result has a given shape: the gradient of `numpy.broadcast_to`.

    Args:
        a: NumPy array.
        shape: the shape, which broadcasts to that of the array.

    Returns:
        NumPy array of this shape.

    Example:
        >>> collapse_sum_like(np.ones((2, 3)), (1, 3)).tolist()
        [[2.0, 2.0, 2.0]]
    """
    extra = a.ndim - len(shape)
    assert extra >= 0
    assert all(s in (1, n) for s, n in zip(shape, a.shape[extra:], strict=True)), f"{shape} does not broadcast to {a.shape}"
    axes = (*range(extra), *(i + extra for i, s in enumerate(shape) if s != a.shape[i + extra]))
    return np.sum(a, axis=axes).reshape(tuple(shape)).astype(a.dtype)


# ------------------------------------------------------------------------------------------------ comparisons
def same(a: Any, b: Any) -> bool:
    """Return whether two arrays have the same shape and values.

    Args:
        a, b: NumPy arrays, or what `numpy.asarray` accepts.

    Returns:
        bool.

    Example:
        >>> same(np.zeros(2), np.zeros(2)), same(np.zeros(2), np.zeros(3))
        (True, False)
    """
    return np.array_equal(a, b)


def almost_equal(
    a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False, use_broadcast: bool = True
) -> bool:
    """Return whether |a - b| <= atol + rtol * |b| everywhere; the default tolerances are those of float64.

    Args:
        a, b: NumPy arrays.
        rtol, atol: relative and absolute tolerance.
        equal_nan: whether nan equals nan.
        use_broadcast: False also requires equal shapes, with an AssertionError.

    Returns:
        bool.

    Example:
        >>> almost_equal(np.array([1.0]), np.array([1.1])), almost_equal(np.array([1.0]), np.array([1.1]), rtol=0.2)
        (False, True)
    """
    assert use_broadcast or a.shape == b.shape, f"a.shape = {a.shape} and b.shape = {b.shape} are not equal"
    return np.allclose(a, b, rtol=get_rtol(rtol), atol=get_atol(atol), equal_nan=equal_nan)


def assert_almost_equal(
    a: Any, b: Any, rtol: Tolerance = None, atol: Tolerance = None, names: Sequence[str] = ("a", "b"),
    equal_nan: bool = False, use_broadcast: bool = True, mismatches: tuple[int, int] = (10, 10),
) -> None:  # fmt: skip
    """Raise an AssertionError unless |a - b| <= atol + rtol * |b| everywhere.

    Args:
        a: NDArray, NumPy array or number.
        b: NDArray, NumPy array or number.
        rtol: relative tolerance, or a dict by dtype; by default the larger one of the dtypes of the arrays
            (`default_rtols`).
        atol: absolute tolerance, in the same way (`default_atols`).
        names: names of the two arrays in the message.
        equal_nan: whether nan equals nan.
        use_broadcast: False also requires equal shapes.
        mismatches: accepted and ignored.

    Raises:
        AssertionError: the arrays differ; the message is that of `numpy.testing.assert_allclose`.

    Example:
        >>> assert_almost_equal(np.float32([1, 2]), np.float32([1, 2.0001]))
    """
    rtol, atol = get_tols(a, b, rtol, atol)
    a, b = _on_host(a), _on_host(b)
    if use_broadcast:
        a, b = np.broadcast_arrays(a, b)
    np.testing.assert_allclose(a, b, rtol, atol, equal_nan, f"actual: {names[0]}, desired: {names[1]}")


def _on_host(value: Any) -> Any:
    return value.asnumpy() if hasattr(value, "asnumpy") else value


def assert_allclose(a: Any, b: Any, rtol: float = 1e-07, atol: float = 0, equal_nan: bool = True) -> None:
    """Call `assert_almost_equal` with the defaults of `numpy.testing.assert_allclose`.

    Args:
        a, b: NDArrays, NumPy arrays or numbers.
        rtol, atol: relative and absolute tolerance.
        equal_nan: whether nan equals nan.

    Raises:
        AssertionError: the arrays differ.

    Example:
        >>> assert_allclose(np.ones(2), np.ones(2))
    """
    assert_almost_equal(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def assert_almost_equal_ignore_nan(
    a: Any, b: Any, rtol: Tolerance = None, atol: Tolerance = None, names: Sequence[str] = ("a", "b")
) -> None:
    """Call `assert_almost_equal` for the values that are nan in neither array.

    Args:
        a, b: NDArrays or NumPy arrays of the same shape.
        rtol, atol: tolerances as in `assert_almost_equal`.
        names: names of the two arrays in the message.

    Raises:
        AssertionError: the arrays differ.

    Example:
        >>> assert_almost_equal_ignore_nan(np.array([1.0, np.nan]), np.array([1.0, 2.0]))
    """
    a, b = np.copy(_on_host(a)), np.copy(_on_host(b))
    missing = np.isnan(a) | np.isnan(b)
    a[missing] = b[missing] = 0
    assert_almost_equal(a, b, rtol, atol, names)


def assert_exception(f: Callable[..., Any], exception_type: Any, *args: Any, **kwargs: Any) -> None:
    """Raise an AssertionError unless f(*args, **kwargs) raises an exception of this type.

    Args:
        f: the function.
        exception_type: class of the exception.
        args, kwargs: arguments of the call.

    Raises:
        AssertionError: it raised no exception; one of another type is not caught.

    Example:
        >>> assert_exception(int, ValueError, "two")
    """
    np.testing.assert_raises(exception_type, f, *args, **kwargs)


def same_array(array1: NDArray, array2: NDArray) -> bool:
    """Return whether a write into the first array changes the second one.

    Args:
        array1, array2: NDArrays of the same shape; their values are the same afterwards.

    Returns:
        bool.

    Example:
        >>> x = array([1, 2])
        >>> same_array(x, x), same_array(x, x.copy())
        (True, False)
    """
    array1[:] += 1
    shared = same(array1.asnumpy(), array2.asnumpy())
    array1[:] -= 1
    return shared and same(array1.asnumpy(), array2.asnumpy())


def compare_ndarray_tuple(t1: Any, t2: Any, rtol: Tolerance = None, atol: Tolerance = None) -> None:
    """Call `assert_almost_equal` for two arrays, or for each pair of two nested tuples; None is not compared.

    Args:
        t1, t2: NDArrays, nested tuples of them, or None.
        rtol, atol: tolerances as in `assert_almost_equal`.

    Raises:
        AssertionError: two arrays differ.

    Example:
        >>> compare_ndarray_tuple((array([1]), None), (array([1]), None))
    """
    if t1 is None or t2 is None:
        return
    if not isinstance(t1, tuple):
        return assert_almost_equal(t1, t2, rtol=rtol, atol=atol)
    for s1, s2 in zip(t1, t2, strict=False):
        compare_ndarray_tuple(s1, s2, rtol, atol)


def compare_optimizer(
    opt1: Any, opt2: Any, shape: Any, dtype: Any, w_stype: str = "default", g_stype: str = "default", rtol: float = 1e-4,
    atol: float = 1e-5, compare_states: bool = True, ntensors: int = 1,
) -> None:  # fmt: skip
    """Check that two optimizers make the same update of a random weight with a random gradient.

    Args:
        opt1, opt2: the optimizers; with several tensors, the second one updates all of them in one call.
        shape: shape of the weight, or a list of `ntensors` shapes.
        dtype: dtype of weight and gradient.
        w_stype, g_stype: storage types of the weight and of the gradient for `opt2`; those of `opt1` are dense.
        rtol, atol: tolerances.
        compare_states: also compare the states of the optimizers.
        ntensors: number of weights.

    Raises:
        AssertionError: the weights or states differ.

    Example:
        >>> import jfit.mx as mx
        >>> compare_optimizer(mx.optimizer.SGD(momentum=0), mx.optimizer.SGD(), (3, 4), "float32")
    """

    def draw(sizes: Any, stype: str, density: float | None) -> tuple[Any, Any]:
        if stype == "default":
            second = mx_random.uniform(shape=sizes, dtype=dtype)
            return second.copy(), second
        second = rand_ndarray(sizes, stype, density, dtype)
        return second.tostype("default"), second

    several = isinstance(shape, list)
    assert several or ntensors == 1
    pairs = [(draw(s, w_stype, 1.0), draw(s, g_stype, None)) for s in (shape if several else [shape])]
    first = [opt1.create_state_multi_precision(i, w[0]) for i, (w, _) in enumerate(pairs)]
    second = [opt2.create_state_multi_precision(0, w[1]) for w, _ in pairs]
    together = list(range(ntensors)), [w[1] for w, _ in pairs], [g[1] for _, g in pairs], second
    opt2.update_multi_precision(*(together if several else (part[0] for part in together)))
    for i, (weight, gradient) in enumerate(pairs):
        opt1.update_multi_precision(i, weight[0], gradient[0], first[i])
        if compare_states:
            compare_ndarray_tuple(first[i], second[i], rtol, atol)
        compare_ndarray_tuple(*weight, rtol, atol)


# ------------------------------------------------------------------------------------------------ checks of symbols
def simple_forward(sym: Symbol, ctx: Context | None = None, is_train: bool = False, **inputs: Any) -> Any:
    """Compute the outputs of a symbol from arrays by name; one NumPy array, or a list of them.

    Example:
        >>> simple_forward(Variable("x") * 2, x=np.ones(2)).tolist()
        [2.0, 2.0]

    Args:
        sym: the symbol.
        ctx: device; the current context by default.
        is_train: whether operators compute in training mode.
        inputs: value of each argument.

    Returns:
        NumPy array, or list of them.
    """
    outputs = sym.bind(ctx or default_context(), {k: array(v) for k, v in inputs.items()}).forward(is_train=is_train)
    values = [x.asnumpy() for x in outputs]
    return values[0] if len(values) == 1 else values


def _in_double(check: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a check that computes in 64 bits if its argument `dtype` is float64."""

    @functools.wraps(check)
    def checked(*args: Any, **kwargs: Any) -> Any:
        wide = inspect.signature(check).bind(*args, **kwargs).arguments.get("dtype") in (np.float64, "float64")
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            return check(*args, **kwargs)

    return checked


class _Check:
    """What the checks of a symbol share: its arguments and auxiliary states as NDArrays by name, and the tolerances."""

    def __init__(self, sym: Symbol, location: Any, aux_states: Any, ctx: Any, dtype: Any, *tolerances: Tolerance) -> None:
        self.ctx, self.dtype, self.tolerances = ctx or current_context(), dtype, tolerances
        self.args = self.named(location, sym.list_arguments())
        self.aux = aux_states and self.named(aux_states, sym.list_auxiliary_states())

    def array(self, value: Any) -> Any:
        """Convert a NumPy array to an NDArray; anything else is returned unchanged."""
        dtype = value.dtype if self.dtype == "asnumpy" else self.dtype
        return array(value, self.ctx, dtype) if isinstance(value, np.ndarray) else value

    def named(self, values: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return arrays, given by position or name, by name."""
        values = values if isinstance(values, Mapping) else dict(zip(names, values, strict=False))
        if {*values} != {*names}:
            raise ValueError(f"found values for the names {sorted(values)}, expected values for {sorted(names)}")
        return {name: self.array(values[name]) for name in names}

    def compare(self, kind: str, name: str, req: str, expected: Any, gradient: Any, before: Any, **options: Any) -> None:
        """Compare a gradient with `expected` ("write"), with it plus the values before ("add"), or with these ("null")."""
        if req == "add":
            gradient = gradient.asnumpy() - before.astype(gradient.dtype)
        expected = before if req == "null" else expected
        assert_almost_equal(expected, gradient, *self.tolerances, names=(f"{kind}_{name}", f"BACKWARD_{name}"), **options)


@_in_double
def check_symbolic_forward(
    sym: Symbol, location: Any, expected: Any, rtol: Tolerance = None, atol: Tolerance = None, aux_states: Any = None,
    ctx: Context | None = None, equal_nan: bool = False, dtype: Any = np.float32,
) -> list[NDArray]:  # fmt: skip
    """Check the outputs of a symbol in prediction mode.

    Args:
        sym: the symbol.
        location: values of all arguments, by position or name.
        expected: values of the outputs, by position or name.
        rtol, atol: tolerances as in `assert_almost_equal`.
        aux_states: values of the auxiliary states, by position or name.
        ctx: device; the current context by default.
        equal_nan: whether nan equals nan.
        dtype: dtype of the arrays; "asnumpy" keeps the dtype of each value.

    Returns:
        The outputs, NDArrays.

    Raises:
        AssertionError: an output differs.

    Example:
        >>> x = np.ones((2, 2), "float32")
        >>> len(check_symbolic_forward(Variable("x") + 1, [x], [x + 1]))
        1
    """
    check = _Check(sym, location, aux_states, ctx, dtype, rtol, atol)
    if isinstance(expected, Mapping):
        expected = [expected[k] for k in sym.list_outputs()]
    outputs = sym.bind(check.ctx, check.args, aux_states=check.aux).forward(is_train=False)
    for name, value, output in zip(sym.list_outputs(), expected, outputs, strict=False):
        names = (f"EXPECTED_{name}", f"FORWARD_{name}")
        assert_almost_equal(value, output, *check.tolerances, names=names, equal_nan=equal_nan)
    return outputs


@_in_double
def check_symbolic_backward(
    sym: Symbol, location: Any, out_grads: Any, expected: Any, rtol: Tolerance = None, atol: Tolerance = None,
    aux_states: Any = None, grad_req: Any = "write", ctx: Context | None = None,
    grad_stypes: Mapping[str, str] | None = None, equal_nan: bool = False, dtype: Any = np.float32,
) -> dict[str, NDArray]:  # fmt: skip
    """Check the gradients of a symbol.

    Args:
        sym: the symbol.
        location: values of all arguments, by position or name.
        out_grads: gradients of the outputs, by position or name; None for losses.
        expected: gradients of arguments, by position or name.
        rtol, atol, aux_states, ctx, equal_nan, dtype: as in `check_symbolic_forward`.
        grad_req: "write", "add" or "null" for all arguments, by position or by name.
        grad_stypes: accepted and ignored; gradient arrays are dense.

    Returns:
        The gradient arrays by name.

    Raises:
        AssertionError: a gradient differs.

    Example:
        >>> x = np.ones(2, "float32")
        >>> check_symbolic_backward(Variable("x") * 3, [x], [x], [3 * x])["x"].asnumpy().tolist()
        [3.0, 3.0]
    """
    check, names = _Check(sym, location, aux_states, ctx, dtype, rtol, atol), sym.list_arguments()
    if not isinstance(expected, Mapping):
        expected = dict(zip(names, expected, strict=False))
    before = {k: np.random.normal(size=v.shape).astype(v.dtype) for k, v in sorted(expected.items())}
    grads, reqs = {k: check.array(v) for k, v in before.items()}, requests_of(grad_req, names, "null")
    executor = sym.bind(check.ctx, check.args, grads, reqs, check.aux)
    executor.forward(is_train=True)
    executor.backward(out_grads if out_grads is None else list(check.named(out_grads, sym.list_outputs()).values()))
    for name, value in expected.items():
        check.compare("EXPECTED", name, reqs[name], value, grads[name], before[name], equal_nan=equal_nan)
    return grads


def numeric_grad(
    executor: Any, location: Any, aux_states: Any = None, eps: float = 1e-4, use_forward_train: bool = True,
    dtype: Any = np.float32,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Estimate d(sum of the first output)/dx ~ (f(x + eps/2) - f(x - eps/2)) / eps for each value x of the arguments.

    Args:
        executor: a bound symbol.
        location: values of all arguments by name; those that are not floats get gradient 0.
        aux_states: values of the auxiliary states by name, written before each evaluation.
        eps: the step.
        use_forward_train: evaluate in training mode.
        dtype: dtype of the result.

    Returns:
        Gradients by name.

    Example:
        >>> executor = (Variable("x") ** 2).simple_bind(default_context(), x=(1,))
        >>> round(float(numeric_grad(executor, {"x": np.array([3.0])}, eps=0.5)["x"][0]), 3)
        6.0
    """
    values = {k: np.array(_on_host(v), order="C") for k, v in location.items()}
    grads = {k: np.zeros(v.shape, dtype) for k, v in values.items()}

    def outputs_with(name: str) -> Any:
        executor.arg_dict[name][:] = values[name]
        for key, state in (aux_states or {}).items():
            executor.aux_dict[key][:] = state
        return executor.forward(is_train=use_forward_train)[0].asnumpy()

    for name, value in values.items():
        executor.arg_dict[name][:] = value
    for name, value in values.items():
        for index in np.ndindex(value.shape) if value.dtype.kind == "f" else ():
            old = value[index]
            value[index] = old + eps / 2
            above = outputs_with(name)
            value[index] = old - eps / 2
            grads[name][index] = (above - outputs_with(name)).sum() / eps
            value[index] = old
        executor.arg_dict[name][:] = value
    return grads


@_in_double
def check_numeric_gradient(
    sym: Symbol, location: Any, aux_states: Any = None, numeric_eps: float | None = None, rtol: Tolerance = None,
    atol: Tolerance = None, grad_nodes: Any = None, use_forward_train: bool = True, ctx: Context | None = None,
    grad_stype_dict: Mapping[str, str] | None = None, dtype: Any = np.float32,
) -> None:  # fmt: skip
    """Compare the gradients of a symbol with finite differences, for a random linear combination of its outputs.

    Args:
        sym: symbol with one output.
        location: values of all arguments, by position or name.
        aux_states: values of the auxiliary states, by position or name.
        numeric_eps: the step; `default_numeric_eps` by default.
        rtol, atol: tolerances as in `assert_almost_equal`.
        grad_nodes: names of the arguments to check, or a dict name -> "write", "add" or "null"; all by default.
        use_forward_train: evaluate in training mode.
        ctx: device; the current context by default.
        grad_stype_dict: accepted and ignored; gradient arrays are dense.
        dtype: float16, float32 or float64.

    Raises:
        AssertionError: a gradient differs.

    Example:
        >>> check_numeric_gradient(Variable("x") ** 2, [np.ones((2, 2), "float32")])
    """
    assert dtype in (np.float16, np.float32, np.float64)
    check = _Check(sym, location, aux_states, ctx, dtype, rtol, atol)
    values = {k: v.asnumpy() for k, v in check.args.items()}
    if not isinstance(grad_nodes, Mapping):
        grad_nodes = dict.fromkeys(sym.list_arguments() if grad_nodes is None else grad_nodes, "write")
    shape = sym.infer_shape(**{k: v.shape for k, v in values.items()})[1][0]
    out = operator("make_loss")(sym * Variable("__random_proj"))
    check.args["__random_proj"] = check.array(np.random.rand(*shape) + 0.1)  # not small: differences would cancel
    before = {k: np.random.normal(0, 0.01, size=check.args[k].shape) for k in (*grad_nodes, "__random_proj")}
    executor = out.bind(check.ctx, check.args, {k: check.array(v) for k, v in before.items()}, dict(grad_nodes), check.aux)
    executor.forward(is_train=True)
    eps = get_tolerance(executor.outputs[0], numeric_eps, default_numeric_eps())
    executor.backward()
    symbolic = {k: executor.grad_dict[k].copy() for k in grad_nodes}
    states = {k: v.asnumpy() for k, v in (check.aux or {}).items()}
    numeric = numeric_grad(executor, values, states, eps, use_forward_train, dtype)
    for name, req in grad_nodes.items():
        check.compare("NUMERICAL", name, req, numeric[name], symbolic[name], before[name])


def check_consistency(
    sym: Any, ctx_list: Sequence[Mapping[str, Any]], scale: float = 1.0, grad_req: Any = "write",
    arg_params: dict[str, Any] | None = None, aux_params: dict[str, Any] | None = None, rtol: Tolerance = None,
    atol: Tolerance = None, raise_on_err: bool = True, ground_truth: Mapping[str, Any] | None = None,
    equal_nan: bool = False, use_uniform: bool = False, rand_type: Any = np.float64,
) -> Mapping[str, Any]:  # fmt: skip
    """Check that a symbol has the same outputs and gradients on several contexts or with several dtypes.

    Args:
        sym: a symbol, or one per context.
        ctx_list: arguments of `simple_bind`, such as {"ctx": mx.cpu(0), "x": (2, 3), "type_dict": {"x": np.float32}}.
        scale: standard deviation of random arguments, or nearly the bound of uniform ones.
        grad_req: "write", "add" or "null".
        arg_params, aux_params: values by name, instead of random ones and of 0.
        rtol, atol: tolerances as in `assert_almost_equal`.
        raise_on_err: False compares nothing.
        ground_truth: expected outputs and gradients by name; by default those of the context with the most precise dtype.
        equal_nan: whether nan equals nan.
        use_uniform: draw arguments from a uniform distribution.
        rand_type: dtype to which random values are rounded.

    Returns:
        The expected outputs and gradients by name.

    Raises:
        AssertionError: an output or a gradient differs.

    Example:
        >>> contexts = [{"ctx": default_context(), "x": (2, 3), "type_dict": {"x": t}} for t in (np.float16, np.float32)]
        >>> sorted(check_consistency(Variable("x") * 2, contexts))[-1]
        'x'
    """
    symbols = [sym] * len(ctx_list) if isinstance(sym, Symbol) else sym
    executors = [s.simple_bind(grad_req=grad_req, **ctx) for s, ctx in zip(symbols, ctx_list, strict=True)]
    values = {**(aux_params or {}), **(arg_params or {})}
    for name, bound in sorted(executors[0].arg_dict.items()):
        if name not in values:
            draw, *limits = (np.random.uniform, -0.92 * scale, 0.92 * scale) if use_uniform else (np.random.normal, 0, scale)
            values[name] = draw(*limits, size=bound.shape).astype(rand_type)
    for executor in executors:
        for name, bound in (executor.arg_dict | executor.aux_dict).items():
            bound[:] = values.get(name, 0)
    best = int(np.argmax([np.dtype(executor.outputs[0].dtype).itemsize for executor in executors]))

    def compare(mode: str, results: list[dict[str, Any]]) -> Mapping[str, Any]:
        expected = ground_truth or results[best]
        for i, values in enumerate(results if raise_on_err else ()):
            for name, value in values.items():
                if i != best and expected.get(name) is not None:
                    # a float32 gradient of a float16 network has the accuracy of float16
                    tolerances = get_tols(executors[i].outputs[0], expected[name], rtol, atol)
                    names = f"{mode} {name} of context {i}", f"of context {best}"
                    assert_almost_equal(value, expected[name], *tolerances, names, equal_nan)
        return expected

    for executor in executors:
        executor.forward(is_train=False)
    expected = compare("Predict", [executor.output_dict for executor in executors])
    if grad_req == "null":
        return expected
    for executor in executors:
        executor.forward(is_train=True)
    least = min(executors, key=lambda executor: np.dtype(executor.outputs[0].dtype).itemsize)
    heads = [output.copy() for output in least.outputs]
    for executor in executors:
        executor.backward([h.as_in_context(o.context).astype(o.dtype) for h, o in zip(heads, executor.outputs, strict=True)])
    return compare("Train", [{**executor.output_dict, **executor.grad_dict} for executor in executors])


# ------------------------------------------------------------------------------------------------ files and data sets
def download(url: str, fname: str | None = None, dirname: str | None = None, overwrite: bool = False, retries: int = 5) -> str:
    """Return the path of a file that was downloaded before.

    Args:
        url: its address.
        fname: path of the file; the last part of the address by default.
        dirname: folder of the file.
        overwrite, retries: accepted and ignored.

    Returns:
        Path of the file.

    Raises:
        FileNotFoundError: there is no such file: jfit does not download; the message has the address and the path.

    Example:
        >>> open("train.csv", "w").close()
        >>> download("https://example.com/data/train.csv")
        'train.csv'
    """
    return utils.download(url, os.path.join(dirname or "", fname or url.split("/")[-1]))


_MNIST = {"train": "train", "test": "t10k"}


def _mnist_file(stem: str) -> str:
    """Return the path of an IDX file of MNIST, with or without .gz, in this folder or in `data`."""
    paths = [f"{folder}{stem}{end}" for folder in ("", "data/") for end in ("", ".gz")]
    return next(filter(os.path.exists, paths), None) or download(f"http://data.mxnet.io/data/mnist/{stem}.gz", dirname="data")


def get_mnist() -> dict[str, np.ndarray]:
    """Read MNIST from its four IDX files in the current folder or in `data`.

    Returns:
        Dict of "train_data" and "test_data", float32 (images, 1, 28, 28) in [0, 1], and "train_label" and "test_label", int8.

    Raises:
        FileNotFoundError: a file is missing.

    Example:
        >>> get_mnist()["train_data"].shape  # doctest: +SKIP
        (60000, 1, 28, 28)
    """
    result: dict[str, np.ndarray] = {}
    for part, stem in _MNIST.items():
        images = read_idx(_mnist_file(f"{stem}-images-idx3-ubyte"), 3)
        result[f"{part}_data"] = images[:, None].astype(np.float32) / 255
        result[f"{part}_label"] = np.array(read_idx(_mnist_file(f"{stem}-labels-idx1-ubyte"), 1)).astype(np.int8)
    return result


def get_mnist_iterator(batch_size: int, input_shape: Sequence[int], num_parts: int = 1, part_index: int = 0) -> Any:
    """Return iterators over the training and validation images of MNIST, read from its four IDX files.

    Args:
        batch_size: number of images of a batch.
        input_shape: shape of an image; one of three axes, (1, 28, 28), is kept, others are flat.
        num_parts, part_index: number of parts of the data, and the one to read.

    Returns:
        (training iterator, validation iterator).

    Raises:
        FileNotFoundError: a file is missing in the current folder and in `data`.

    Example:
        >>> train, valid = get_mnist_iterator(100, (784,))  # doctest: +SKIP
    """
    flat = len(input_shape) != 3
    options = {"batch_size": batch_size, "flat": flat, "num_parts": num_parts, "part_index": part_index}

    def files(stem: str) -> dict[str, str]:
        return {"image": _mnist_file(f"{stem}-images-idx3-ubyte"), "label": _mnist_file(f"{stem}-labels-idx1-ubyte")}

    return MNISTIter(**files("train"), **options), MNISTIter(**files("t10k"), shuffle=False, **options)


def get_mnist_ubyte() -> None:
    """Check that the four IDX files of MNIST exist, in the current folder or in `data`.

    Raises:
        FileNotFoundError: a file is missing.

    Example:
        >>> get_mnist_ubyte()
        Traceback (most recent call last):
        jfit.mxnet.errors.MissingFile: data/train-images-idx3-ubyte.gz does not exist; ...
    """
    for stem in _MNIST.values():
        _mnist_file(f"{stem}-images-idx3-ubyte")
        _mnist_file(f"{stem}-labels-idx1-ubyte")


# ------------------------------------------------------------------------------------------------ the process
def retry(n: int) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator that calls a test up to n times, until it raises no AssertionError.

    Args:
        n: number of calls, at least 1.

    Returns:
        The decorator.

    Example:
        >>> attempts = []
        >>> @retry(3)
        ... def test():
        ...     attempts.append(1)
        ...     assert len(attempts) == 2
        >>> test()
        >>> len(attempts)
        2
    """
    assert n > 0

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(test)
        def call(*args: Any, **kwargs: Any) -> None:
            for _ in range(n - 1):
                with contextlib.suppress(AssertionError):
                    return test(*args, **kwargs)
            return test(*args, **kwargs)

        return call

    return decorate


@contextlib.contextmanager
def discard_stderr() -> Iterator[None]:
    """Context manager that discards what the process writes to its standard error.

    Example:
        >>> with discard_stderr():
        ...     _ = os.write(2, b"a warning")
    """
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def environment(*args: Any) -> Iterator[None]:
    """Context manager that sets environment variables: `environment(name, value)` or `environment({name: value, ...})`.

    The value None removes the variable.  The earlier values return at the end of the block.

    Args:
        args: name and value, or a dict.

    Example:
        >>> with environment("MXNET_HOME", "data"):
        ...     os.environ["MXNET_HOME"]
        'data'
    """
    with mock.patch.dict(os.environ):  # which restores them
        for name, value in [args] if len(args) == 2 else args[0].items():
            setenv(name, value)
        yield
        waitall()


def list_gpus() -> range:
    """Return the numbers of the GPUs of this process.

    Returns:
        range.

    Example:
        >>> len(list_gpus()) == num_gpus()
        True
    """
    return range(num_gpus())


def is_cd_run() -> bool:
    """Return whether the environment variable CD_JOB is 1.

    Returns:
        bool.

    Example:
        >>> with environment("CD_JOB", "1"):
        ...     is_cd_run()
        True
    """
    return os.environ.get("CD_JOB") == "1"


def is_aarch64_run() -> bool:
    """Return whether the processor is an ARM processor of 64 bits.

    Returns:
        bool.

    Example:
        >>> is_aarch64_run() == (platform.machine() == "aarch64")
        True
    """
    return platform.machine() == "aarch64"


class DummyIter(DataIter):
    """Iterator that returns the first batch of another iterator again and again, to measure speed.

    Args:
        real_iter: iterator of the batch.

    Example:
        >>> batches = DummyIter(NDArrayIter(np.arange(4), batch_size=2))
        >>> [next(batches).data[0].asnumpy().tolist() for _ in range(2)]
        [[0.0, 1.0], [0.0, 1.0]]
    """

    def __init__(self, real_iter: Any) -> None:
        super().__init__(real_iter.batch_size)
        self.real_iter, self.the_batch = real_iter, next(real_iter)

    provide_data = property(lambda self: self.real_iter.provide_data, doc="Descriptions of the data of a batch.")  # type: ignore[assignment]
    provide_label = property(lambda self: self.real_iter.provide_label, doc="Descriptions of the labels of a batch.")  # type: ignore[assignment]

    def next(self) -> Any:
        """Return the batch."""
        return self.the_batch
