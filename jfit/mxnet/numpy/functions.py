"""The functions of `mx.np`, made from tables: those of jax.numpy with MXNet's arguments and dtypes, and NumPy's on the host.

Functions that are in no table are NumPy's, computed on the host; they have no gradient, as many of MXNet's.
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
from jfit.mxnet.numpy.arrays import OWN, compute, elementwise, kept, ndarray
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
# Order of the arguments after the first, where it is not that of jax.numpy
_ORDERS = {
    "all any amax amin max min": "axis keepdims out",
    "sum": "axis dtype keepdims initial out",
    "cumsum mean prod": "axis dtype out keepdims",
    "std var": "axis dtype out ddof keepdims",
    "around": "decimals out",
}
_ORDER = {name: order.split() for names, order in _ORDERS.items() for name in names.split()}
# Arguments that jax.numpy has under another name
_RENAMED = {"a_max": "max", "a_min": "min", "interpolation": "method", "newshape": "shape", "seq": "arrays"}
_KEPT = ("around", "average", "cumsum", "prod", "std", "sum", "var")  # results for integers have their dtype
_COUNTS = {"svd": 3, "eigh": 2, "slogdet": 2, "_histogram": 2}  # numbers of results
_PLAIN = (
    "append argmax argmin argsort atleast_1d atleast_2d atleast_3d average broadcast_to clip column_stack concatenate copy "
    "diag diagflat diagonal diff dot dstack ediff1d einsum expand_dims flip fliplr flipud histogram hstack inner moveaxis "
    "nan_to_num outer pad percentile polyval quantile ravel repeat reshape resize roll rollaxis rot90 sort squeeze stack "
    "swapaxes take tensordot tile trace transpose tril vdot vstack where"
)
_LISTS = "array_split broadcast_arrays dsplit hsplit meshgrid split vsplit"  # the result is a list, also of one array
_ALIASES = {"row_stack": "vstack", "product": "prod", "sometrue": "any", "alltrue": "all", "trapz": "trapezoid"}
_ALIASES |= {"round": "around", "round_": "around"}
_CREATE = (
    "arange array blackman empty empty_like eye full full_like genfromtxt hamming hanning identity indices linspace logspace "
    "ones ones_like zeros zeros_like"
)
_tables = (f"{_UNARY} {_BINARY}", _PLAIN, _LISTS, _CREATE)
_elementwise, _jax, _lists, CREATED = (frozenset(words.split()) for words in _tables)


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Return the function `mx.np.<name>`.

    Raises:
        AttributeError: MXNet has no such function, or NumPy has removed it.

    Example:
        >>> from jfit.mx import np
        >>> function("sum")(np.ones((2, 3)), axis=0)
        array([2., 2., 2.])
    """
    known = _ALIASES.get(name, name)
    if known in CREATED:
        return getattr(create, known)
    if known in _elementwise:
        made = functools.partial(elementwise, known)
    elif known in _lists:
        made = functools.partial(_list_of, getattr(jnp, known))
    elif known in _jax or known in _ORDER:
        made = functools.partial(of_jax, kept(known) if known in _KEPT else OWN.get(known) or getattr(jnp, known))
    elif _is_function(getattr(np, known, None)):
        made = functools.partial(host, known, getattr(np, known))
    else:
        absent("mx.np", name, names())
    made.__name__ = made.__qualname__ = name  # type: ignore[attr-defined]
    made.__doc__ = getattr(getattr(jnp, name, None) or getattr(np, name, None), "__doc__", None)
    return made


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def of_jax(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of JAX arrays with MXNet's arguments."""
    if fn.__name__ == "_where" and len(args) == 1:  # the indices of the entries that are not 0
        return host("nonzero", np.nonzero, *args)
    if fn.__name__ in _ORDER:
        args, kwargs = args[:1], dict(zip(_ORDER[fn.__name__], args[1:], strict=False)) | kwargs
    if kwargs.get("dtype") is not None:
        kwargs["dtype"] = jax.dtypes.canonicalize_dtype(np.dtype(kwargs["dtype"]))
    out, count = kwargs.pop("out", None), _COUNTS.get(fn.__name__, 1) + bool(kwargs.get("returned"))
    result = compute(fn, args, {_RENAMED.get(k, k): v for k, v in kwargs.items()}, out, count)
    return tuple(result) if isinstance(result, list) else result


def _list_of(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    count: Any = len(args)  # of meshgrid and broadcast_arrays
    if "split" in fn.__name__:
        parts: Any = args[1] if len(args) > 1 else kwargs.get("indices_or_sections")
        count = parts if isinstance(parts, (int, np.integer)) else np.size(parts) + 1
    try:
        result = compute(fn, args, kwargs, count=count)
    except MXNetError as error:
        raise ValueError(str(error)) from error  # the exception of MXNet for sections that do not divide the axis
    return result if isinstance(result, list) else [result]


def host(name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of NumPy with the values of the arrays; arrays that it returns become ndarrays."""
    if mode.tape is not None and name not in ("ndim", "shape", "size", "nonzero", "unique"):
        raise ValueError(f"mx.np.{name} is computed by NumPy and has no gradient; call it outside of autograd.record()")
    args, kwargs = jax.tree.map(lambda x: x.asnumpy() if isinstance(x, NDArray) else x, (args, kwargs))
    return as_ndarrays(fn(*args, **kwargs))


def as_ndarrays(value: Any) -> Any:
    """Convert NumPy arrays, also in lists and tuples, to ndarrays; other values are unchanged."""
    return jax.tree.map(lambda x: ndarray(np.array(x, order="C")) if isinstance(x, np.ndarray) else x, value)


def names() -> list[str]:
    """Return the names of all functions that `function` returns."""
    of_numpy = (name for name, value in vars(np).items() if name[0] != "_" and _is_function(value))
    return sorted({*CREATED, *_elementwise, *_jax, *_ORDER, *_lists, *_ALIASES, *of_numpy})


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
    return function(ufunc.__name__)(*inputs, **kwargs)


def _array_function(self: ndarray, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Compute a function of NumPy of ndarrays with the function of `mx.np`, or NumPy's."""
    made = function(func.__name__) if func.__name__ in names() else functools.partial(host, func.__name__, func)
    return made(*args, **kwargs)


METHODS = (*_METHODS.split(), "flatten", "transpose")
for _name in _METHODS.split():
    setattr(ndarray, _name, _method(_name))
ndarray.flatten, ndarray.transpose = _method("ravel"), _transpose  # type: ignore[method-assign]
ndarray.__array_ufunc__, ndarray.__array_function__ = _array_ufunc, _array_function  # type: ignore[attr-defined]
