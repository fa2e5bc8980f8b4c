"""The functions of `mx.np`, made from tables: those of jax.numpy with MXNet's arguments and dtypes, and NumPy's on the host.

MXNet computes the functions of `_HOST` with NumPy, and so does this module; they have no gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.errors import MXNetError
from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.numpy import create
from jfit.mxnet.numpy.arrays import binary, check_options, compute, elementwise, ndarray, unary
from jfit.mxnet.recording.tape import mode

_UNARY = (
    "abs absolute arccos arccosh arcsin arcsinh arctan arctanh bitwise_not cbrt ceil cos cosh deg2rad degrees exp expm1 "
    "fabs fix floor invert isfinite isinf isnan isneginf isposinf log log10 log1p log2 logical_not negative rad2deg radians "
    "reciprocal rint sign sin sinh sqrt square tan tanh trunc"
)
_BINARY = (
    "add arctan2 bitwise_and bitwise_or bitwise_xor copysign divide hypot lcm ldexp matmul maximum minimum mod multiply "
    "power remainder subtract true_divide "
    "equal not_equal greater less greater_equal less_equal"
)
# Order of the arguments, where it is not that of jax.numpy, or where integers keep their dtype (marked by "kept").
_SIGNATURES = {
    "all any max min amax amin": "a axis keepdims out",
    "kept sum": "a axis dtype keepdims initial out",
    "kept prod": "a axis dtype out keepdims",
    "mean": "a axis dtype out keepdims",
    "kept std var": "a axis dtype out ddof keepdims",
    "kept cumsum": "a axis dtype out",
    "argmax argmin": "a axis out",
    "kept average": "a axis weights returned out",
    "percentile quantile": "a q axis out overwrite_input method=interpolation keepdims",
    "reshape": "a shape=newshape order out",
    "trace": "a offset axis1 axis2 out",
    "take": "a indices axis mode out",
    "clip": "a min=a_min max=a_max out",
    "diag": "v=array k",
    "diagflat": "v=array k",
    "concatenate": "arrays=seq axis out",
    "stack": "arrays axis out",
    "vstack hstack dstack": "tup=arrays out",
    "histogram": "a bins range normed weights density",
}
_PLAIN = (
    "append argsort atleast_1d atleast_2d atleast_3d broadcast_to column_stack copy diagonal diff dot "
    "ediff1d einsum expand_dims flip fliplr flipud inner moveaxis nan_to_num outer pad polyval ravel "
    "repeat resize roll rollaxis rot90 sort squeeze swapaxes tensordot tile transpose tril vdot where"
)
_LISTS = "array_split broadcast_arrays dsplit hsplit meshgrid split vsplit"  # the result is a list, also of one array
_ROUND = ("around", "round", "round_")
_FINANCIAL = ("mirr", "npv", "ppmt", "pv", "rate")
_ALIASES = {"row_stack": "vstack", "product": "prod", "sometrue": "any", "alltrue": "all"}
_HOST = (
    "allclose apply_along_axis apply_over_axes argpartition argwhere array_equal array_equiv bincount choose compress "
    "corrcoef correlate count_nonzero cov delete diag_indices_from digitize divmod extract flatnonzero float_power frexp "
    "heaviside histogram2d histogram_bin_edges histogramdd i0 in1d insert interp intersect1d isclose isin ix_ lexsort "
    "min_scalar_type modf msort nanargmax nanargmin nancumprod nancumsum nanmax nanmedian nanmin nanpercentile nanprod "
    "nanquantile ndim nonzero packbits partition piecewise poly polyadd polydiv polyfit polyint polymul polysub positive "
    "promote_types ptp real result_type roots searchsorted select setdiff1d setxor1d shape shares_memory signbit size "
    "spacing take_along_axis trapz tril_indices_from trim_zeros triu_indices_from union1d unique unpackbits unravel_index "
    "unwrap vander may_share_memory"
)
UNARY, BINARY, _jax, _lists, _host = (frozenset(words.split()) for words in (_UNARY, _BINARY, _PLAIN, _LISTS, _HOST))
_OLD = {  # functions that newer versions of NumPy have under another name
    "in1d": lambda ar1, ar2, **options: np.isin(np.ravel(ar1), ar2, **options),
    "msort": functools.partial(np.sort, axis=0),
    "trapz": getattr(np, "trapezoid", None) or np.trapz,  # type: ignore[attr-defined]
}


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Return the function `mx.np.<name>`.

    Raises:
        AttributeError: MXNet has no such function, or NumPy has it no longer.

    Example:
        >>> from jfit.mx import np
        >>> function("sum")(np.ones((2, 3)), axis=0)
        array([2., 2., 2.])
    """
    if name in UNARY or name in BINARY:
        made = functools.partial(unary if name in UNARY else binary, name)
    elif name in _ROUND:
        made = functools.partial(_round)
    elif name in _lists:
        made = functools.partial(_list_of, getattr(jnp, name))
    elif name in _host:
        made = functools.partial(host, name, _OLD.get(name) or getattr(np, name))
    elif name in _FINANCIAL:
        raise AttributeError(f"mx.np.{name}: NumPy no longer has its financial functions; use the package numpy-financial")
    else:
        made = _of_jax(_ALIASES.get(name, name))
    made.__name__ = made.__qualname__ = name  # type: ignore[attr-defined]
    made.__doc__ = getattr(getattr(jnp, name, None) or getattr(np, name, None), "__doc__", None)
    return made


def _of_jax(name: str) -> Callable[..., Any]:
    """Return a function that calls jax.numpy's with the arguments of MXNet's."""
    row = next(((names, order) for names, order in _SIGNATURES.items() if name in names.split()), None)
    if row is None and name not in _jax:
        absent("mx.np", name, names())
    fn = getattr(jnp, name)
    if row is None:
        return functools.partial(compute_with_out, fn)
    fn = {"histogram": _histogram, "take": _take}.get(name) or (_kept(fn) if row[0].startswith("kept") else fn)
    order = [word.split("=") for word in row[1].split()]
    mxnet, jax_names = [w[-1] for w in order], {w[-1]: w[0] for w in order}

    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        given = dict(zip(mxnet, args, strict=False)) | kwargs
        out = given.pop("out", out)
        first = given.pop(mxnet[0], None)
        if not given:
            return compute(fn, (first,), None, out)
        if unknown := [k for k in given if k not in jax_names]:
            raise TypeError(f"mx.np.{name} has no argument {unknown[0]!r}; its arguments are {', '.join(mxnet)}")
        if "dtype" in given:
            given["dtype"] = _canonical(given["dtype"])
        wanted = {k: v for k, v in given.items() if (v is not None or k == "axis") and (k, v) != ("mode", "raise")}
        result = compute(fn, (first,), {jax_names[k]: v for k, v in wanted.items()}, out)
        return tuple(result) if isinstance(result, list) else result

    return call


@functools.cache
def _kept(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction whose results for integers have their dtype."""

    def compute(a: Any, **kwargs: Any) -> Any:
        result: Any = fn(a, **kwargs)
        keeps = jnp.issubdtype(a.dtype, jnp.integer) and kwargs.get("dtype") is None and not isinstance(result, tuple)
        return result.astype(a.dtype) if keeps else result  # type: ignore[attr-defined]

    compute.__name__ = fn.__name__
    return compute


def _histogram(a: Any, **kwargs: Any) -> Any:
    counts, edges = jnp.histogram(a, **kwargs)
    return counts.astype(np.int32), edges


def _take(a: Any, indices: Any, **kwargs: Any) -> Any:
    return jnp.take(a, indices.astype(np.int32), **kwargs)


def compute_with_out(fn: Callable[..., Any], *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """Call a function of jax.numpy; `where` of one argument returns the indices of the entries that are not 0."""
    if fn is jnp.where and len(args) == 1:
        return host("nonzero", np.nonzero, *args)
    result = compute(fn, args, kwargs, out)
    return tuple(result) if isinstance(result, list) else result


def _list_of(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    try:
        result = compute(fn, args, kwargs)
    except MXNetError as error:
        raise ValueError(str(error)) from error  # the exception of MXNet for sections that do not divide the axis
    return result if isinstance(result, list) else [result]


def _round(x: Any, decimals: int = 0, out: Any = None, **options: Any) -> Any:
    check_options("around", options)
    return compute(elementwise("round"), (x, decimals), None, out)


def host(name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of NumPy with the values of the arrays; arrays that it returns become ndarrays."""
    if mode.tape is not None and name not in ("ndim", "shape", "size", "nonzero", "unique"):
        raise ValueError(f"mx.np.{name} is computed by NumPy and has no gradient; call it outside of autograd.record()")
    return as_ndarrays(fn(*_as_numpy(args), **_as_numpy(kwargs)))


def _as_numpy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_numpy, value))
    if isinstance(value, dict):
        return {k: _as_numpy(v) for k, v in value.items()}
    return value.asnumpy() if isinstance(value, NDArray) else value


def as_ndarrays(value: Any) -> Any:
    """Convert NumPy arrays and booleans, also in lists and tuples, to ndarrays; numbers are unchanged."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(as_ndarrays, value)) if type(value) in (list, tuple) else tuple(map(as_ndarrays, value))
    return ndarray(np.ascontiguousarray(value) if value.ndim else value) if isinstance(value, np.ndarray) else value


def _canonical(dtype: Any) -> Any:
    return None if dtype is None else jax.dtypes.canonicalize_dtype(np.dtype(dtype))


def names() -> list[str]:
    """Return the names of all functions that `function` returns."""
    rows = " ".join(_SIGNATURES).replace("kept", "").split()
    return sorted({*UNARY, *BINARY, *rows, *_jax, *_lists, *_ALIASES, *_host, *_ROUND})


# -------------------------------------------------------------------------------- methods
_METHODS = (
    "all any argmax argmin argsort broadcast_to clip cumsum diagonal dot max mean min nonzero prod ravel repeat round "
    "squeeze std sum swapaxes take var"
)


def _method(name: str) -> Callable[..., Any]:
    def call(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        return function(name)(self, *args, **kwargs)

    call.__name__, call.__doc__ = name, f"Return `mx.np.{name}` of this array."
    return call


def _flatten(self: ndarray, order: str = "C") -> Any:
    """Return a copy with one axis."""
    return function("ravel")(self, order)


def _transpose(self: ndarray, *axes: Any) -> Any:
    """Return a copy with the axes permuted, as arguments or one tuple; reversed by default."""
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return function("transpose")(self, tuple(order) if order else None)


def _array_ufunc(self: ndarray, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Compute `numpy.<ufunc>` of ndarrays with the function of `mx.np`."""
    if method != "__call__":
        return NotImplemented
    if "out" in kwargs:
        (kwargs["out"],) = kwargs["out"]
    return _dispatched(ufunc.__name__, ufunc)(*inputs, **kwargs)


def _array_function(self: ndarray, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Compute a function of NumPy of ndarrays with the function of `mx.np`, or NumPy's."""
    return _dispatched(func.__name__, func)(*args, **kwargs)


def _dispatched(name: str, func: Any) -> Callable[..., Any]:
    if name in ("zeros_like", "ones_like", "full_like", "empty_like"):
        return getattr(create, name)
    return function(name) if name in names() else functools.partial(host, name, func)


METHODS = (*_METHODS.split(), "flatten", "transpose")
for _name in METHODS[:-2]:
    setattr(ndarray, _name, _method(_name))
ndarray.flatten, ndarray.transpose = _flatten, _transpose  # type: ignore[method-assign]
ndarray.__array_ufunc__, ndarray.__array_function__ = _array_ufunc, _array_function  # type: ignore[attr-defined]
