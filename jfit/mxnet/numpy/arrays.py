"""`mx.np.ndarray`: MXNet's array with NumPy semantics, and the elementwise functions that its operators use.

Results have MXNet's dtypes: a number is cast to the dtype of the array beside it, functions of integers return integers
(except divisions), and comparisons return booleans.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.graph.nodes import Entry
from jfit.graph.scopes import raw_name_of
from jfit.graph.symbol import Symbol
from jfit.mxnet.errors import MXNetError, ReshapeError
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.ndarray.array import KINDS, NDArray, View
from jfit.mxnet.ndarray.invoke import run
from jfit.mxnet.recording.calls import Call, function_call
from jfit.mxnet.recording.tape import is_tracked, mode
from jfit.mxnet.util import is_np_array
from jfit.ops import lookup


def _histogram(a: Any, bins: Any = 10, range: Any = None, normed: Any = None, weights: Any = None, density: Any = None) -> Any:
    counts, edges = jnp.histogram(a, bins, range, weights, density)
    return counts.astype(np.int32), edges


def _take(a: Any, indices: Any, axis: Any = None, mode: str = "raise") -> Any:
    return jnp.take(a, indices.astype(np.int32), axis, mode=None if mode == "raise" else mode)


def _clip(a: Any, min: Any = None, max: Any = None) -> Any:
    if isinstance(min, jax.Array) or isinstance(max, jax.Array):
        return jnp.clip(a, min, max).astype(a.dtype)
    bounds = SimpleNamespace(a_min=-math.inf if min is None else min, a_max=math.inf if max is None else max)
    return lookup("clip").fn(None, bounds, a)  # integers keep their dtype, also with fractions or larger numbers as bounds


def _where(condition: Any, x: Any, y: Any) -> Any:
    dtype = next((value.dtype for value in (x, y) if isinstance(value, jax.Array)), np.float32)  # that of numbers
    with np.errstate(all="ignore"):  # float16 has no -1e9
        return jnp.where(condition, *(v if isinstance(v, jax.Array) else jnp.asarray(v).astype(dtype) for v in (x, y)))


# Functions that differ from those of jax.numpy: jnp.ldexp takes integer exponents only, rint rounds 0.5 down, and numbers
# beside an array do not change its dtype in clip and where.
OWN: dict[str, Callable[..., Any]] = {
    "ldexp": lambda x1, x2: x1 * jnp.exp2(x2),
    "rint": functools.partial(lookup("rint").fn, None, None),
    "fix": jnp.trunc,
    "around": jnp.round,
    "clip": _clip,
    "histogram": _histogram,
    "take": _take,
    "where": _where,
}
_DIVISIONS = ("divide", "true_divide")
_OPTIONS = {"where": True, "casting": "same_kind", "order": "K", "dtype": None, "subok": True}  # of NumPy's ufuncs


@functools.cache
def kept(name: str) -> Callable[..., Any]:
    """Return the function of jax.numpy with MXNet's result dtype: integers and booleans for integers, except of divisions."""
    fn = OWN.get(name) or getattr(jnp, name)

    def compute(*args: Any, **options: Any) -> Any:
        if _most_inputs(name) == 2 and not all(isinstance(a, jax.Array) for a in args):  # a symbol and a number
            array = next(a for a in args if isinstance(a, jax.Array))
            as_truth = array.dtype == bool and _takes_truth(name)
            if any(isinstance(a, (float, np.floating)) for a in args) and array.dtype.kind in "iub" and not as_truth:
                args = tuple([jnp.asarray(a, np.float32) for a in args])  # MXNet's are float64
            args = tuple([a if isinstance(a, jax.Array) else _beside(array, a, name) for a in args])
        with jax.numpy_rank_promotion("allow"):
            result = fn(*args, **options)
        if name in _DIVISIONS or options.get("dtype") is not None or isinstance(result, tuple) or result.dtype == bool:
            return result
        dtype = jnp.result_type(*(a for a in args if isinstance(a, jax.Array)))
        return result.astype(dtype) if jnp.issubdtype(dtype, jnp.integer) else result

    compute.__name__ = name
    return compute


def write(out: Any, result: Any) -> Any:
    """Write a result into `out` and return `out`; return the result itself if `out` is None."""
    if out is None:
        return result
    out[...] = result
    return out


@functools.cache
def _most_inputs(name: str) -> float:
    return getattr(getattr(np, name, None), "nin", math.inf)


def elementwise(name: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
    """Apply an elementwise function to arrays (with broadcasting) and numbers; NumPy's to numbers alone."""
    if options:
        inputs += tuple([options.pop(key) for key in ("x", "x1", "x2") if key in options])
    if len(inputs) > _most_inputs(name):
        *inputs, out = inputs  # type: ignore[assignment]
    for key, value in options.items():
        if key not in _OPTIONS:
            raise TypeError(f"mx.np.{name} has no argument {key!r}")
        if value is not _OPTIONS[key] and value != _OPTIONS[key]:
            raise NotImplementedError(f"mx.np.{name} does not support {key}={value!r}; leave it out")
    if all(isinstance(x, ndarray) for x in inputs):
        return write(out, run(function_call(kept(name), len(inputs)), inputs, ndarray)[0])
    if any(isinstance(x, Symbol) for x in inputs):
        return compute(kept(name), inputs)
    if not all(isinstance(x, (ndarray, numbers.Number, np.bool_)) for x in inputs):
        types = " and ".join(type(x).__name__ for x in inputs)
        raise TypeError(f"mx.np.{name} takes mx.np.ndarrays and numbers, found {types}; convert others with mx.np.array")
    array = next((x for x in inputs if isinstance(x, ndarray)), None)
    if array is None:
        return write(out, getattr(np, name)(*inputs))
    operation = function_call(kept(name), len(inputs))
    values = [x if isinstance(x, ndarray) else MutableArray(_beside(array, x, name)) for x in inputs]
    if mode.tape is not None and is_tracked(values):
        return write(out, run(operation, values, ndarray)[0])
    return write(out, ndarray(operation.run[mode.training](*(v.value for v in values))[0]))  # quicker than `run`


def _beside(array: ndarray | jax.Array, number: Any, name: str) -> np.ndarray:
    """Return a number in the dtype that it has beside an array; an array, so that the same program is used for every number."""
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if name in _DIVISIONS and dtype.kind in "iub":
        dtype = np.dtype(np.float32)
    return np.asarray(number).astype(np.int32 if dtype.kind == "b" and not _takes_truth(name) else dtype)


def _takes_truth(name: str) -> bool:
    """Return whether a number beside a boolean array becomes a boolean, as in MXNet."""
    return "bitwise" in name or name in _COMPARISONS.values()


def _operator(name: str, swapped: bool = False) -> Callable[..., Any]:
    def apply(self: ndarray, *other: Any) -> Any:
        return elementwise(name, *other, self) if swapped else elementwise(name, self, *other)

    return apply


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def apply(self: ndarray, other: Any) -> ndarray:
        return write(self, elementwise(name, self, other))

    return apply


class ndarray(NDArray):
    """A mutable array on a device that behaves as in NumPy: indexing, shapes () and (0,), bool results of comparisons.

    Args:
        value: JAX array, NumPy array or nested list.  `mx.np.array` is the usual constructor.

    Example:
        >>> from jfit.mx import np
        >>> x = np.array([[1, 2], [3, 4]])
        >>> x[x > 2]
        array([3., 4.])
        >>> (x @ x).sum()
        array(54.)
    """

    __slots__ = ()
    _single = False

    # -------------------------------------------------------------------------------- attributes and conversions
    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return np.dtype(NDArray.dtype.fget(self))  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        text, dtype = repr(self.asnumpy()), self.dtype
        if "dtype=" in text:
            text = text if dtype != np.float32 else text[: text.rindex(",")] + ")"
        elif dtype not in (np.float32, bool):
            text = f"{text[:-1]}, dtype={dtype})"
        return text if self.ctx.device_type == "cpu" else f"{text[:-1]}, ctx={self.ctx})"

    def __str__(self) -> str:
        text = str(self.asnumpy())
        return text if self.ndim == 0 or self.ctx.device_type == "cpu" else f"{text} @{self.ctx}"

    def __format__(self, fmt: str) -> str:
        return format(self.item() if self.ndim == 0 else str(self), fmt)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of an array of shape ()")
        return self.shape[0]

    def item(self, *args: Any) -> Any:
        """Return one value as a Python number: that at a flat index or at a tuple of indices, or that of an array of size 1."""
        return self.asnumpy().item(*args)

    def tolist(self) -> Any:
        """Return the values as nested lists of Python numbers."""
        return self.asnumpy().tolist()

    def as_np_ndarray(self) -> ndarray:
        """Return the array itself."""
        return self

    def as_nd_ndarray(self) -> NDArray:
        """Return an `mx.nd.NDArray` that shares the values: a write to one of them changes both."""
        return self.shared(NDArray)

    def copy(self, order: str = "C") -> Any:
        """Return a copy on the same device; `order` must be "C" (else NotImplementedError)."""
        if order != "C":
            raise NotImplementedError(f"copy(order={order!r}): arrays of JAX are always in order 'C'; leave it out")
        return super().copy()

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True) -> Any:
        """Return the values in another dtype; `copy=False` returns the array itself if it has this dtype already."""
        if order not in (None, "K", "C") or casting != "unsafe" or not subok:
            raise ValueError(f"astype takes order='K', casting='unsafe', subok=True; found {order}, {casting}, {subok}")
        return super().astype(np.dtype(dtype), copy)

    def _no_method(self, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError("an mx.np.ndarray does not have all methods of mx.nd.NDArray; see as_nd_ndarray()")

    asscalar = tostype = slice = slice_assign = slice_assign_scalar = split_v2 = expand_dims = _no_method  # type: ignore[assignment]

    # -------------------------------------------------------------------------------- indexing and shapes
    def __getitem__(self, key: Any) -> Any:
        """Basic indices (integers, slices) return views; index arrays and masks return copies."""
        if key == () if isinstance(key, tuple) else key is Ellipsis:
            return self
        return super().__getitem__(np.asarray(key) if isinstance(key, bool) else key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, NDArray) and not isinstance(value, ndarray):
            raise TypeError("an mx.nd.NDArray cannot be assigned to an mx.np.ndarray; convert it with as_np_ndarray()")
        if isinstance(key, bool):
            key = np.asarray(key)
        try:
            super().__setitem__(key, value)
        except (ValueError, TypeError) as error:
            raise MXNetError(f"cannot assign to an array of shape {self.shape}: {error}") from error

    def reshape(self, *args: Any) -> Any:
        """Return a view in another shape, as arguments or one tuple; one size can be -1."""
        try:
            target = np.broadcast_to(0, self.shape).reshape(*args).shape
        except ValueError as error:
            raise ReshapeError(f"reshape: {error}; the array has shape {self.shape}") from error
        return self.reshaped(target)

    def __getattr__(self, name: str) -> Any:
        if name == "value":
            return super().__getattr__(name)
        raise AttributeError(f"mx.np.ndarray has no attribute {name!r}")

    def __round__(self, n: int = 0) -> Any:
        return compute(kept("around"), (self, n))


# Python's operator -> elementwise function
_ARITHMETIC = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "mod": "mod", "pow": "power"}
_ARITHMETIC |= {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "matmul": "matmul"}
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal"}
_UNARY = {"neg": "negative", "abs": "abs", "invert": "invert", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}
OPERATORS = {f"__{k}__": _operator(name) for k, name in (_ARITHMETIC | _COMPARISONS).items()}
OPERATORS |= {f"__r{k}__": _operator(name, True) for k, name in _ARITHMETIC.items()}
OPERATORS |= {f"__{k}__": _operator(name) for k, name in _UNARY.items()}
for _name, _method in (OPERATORS | {f"__i{k}__": _in_place(name) for k, name in _ARITHMETIC.items()}).items():
    setattr(ndarray, _name, _method)


class _View(View, ndarray):
    """A view of another array, made by basic indexing or `reshape`: it has the base's values, and writes change the base."""

    __slots__ = ()


ndarray._kind, ndarray._view = ndarray, _View
KINDS["np"] = ndarray


def current_kind() -> type[NDArray]:
    """Return the class of the arrays that gluon and `mx.image` create: ndarray if NumPy array semantics are on, or NDArray."""
    return ndarray if is_np_array() else NDArray


_CODES = {-2: 0, -4: -2, -5: -3, -6: -4}  # for sizes in `mx.npx.reshape` -> those of the operator Reshape


def operator_shape(newshape: Any) -> tuple[int, ...]:
    """Return the argument `newshape` of `mx.npx.reshape` in the codes of the operator Reshape."""
    codes = (newshape,) if isinstance(newshape, int) else newshape
    if -3 in codes:
        raise ReshapeError(f"npx.reshape has no code -3, found {newshape}; remove axes of size 1 with squeeze first")
    return tuple(_CODES.get(code, code) for code in codes)


# -------------------------------------------------------------------------------- functions of arrays and other arguments
_ARRAY = "<array>"  # takes the place of an array among the arguments of a function


def compute(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any] | None = None, out: Any = None, count: int = 1) -> Any:
    """Run, or record, a function of JAX arrays and other arguments, also inside tuples, lists and dicts.

    Args:
        fn: a function of module level or a cached one, because its programs are kept by it.
        args: tuple of the positional arguments; lists of arrays become tuples.
        kwargs: keyword arguments.
        out: array to write the result into.
        count: number of arrays that the function returns, which is needed for symbols.

    Returns:
        One ndarray or symbol, or a list of them if the function returns several.

    Raises:
        AssertionError: none of the arguments is an array, as in MXNet.
        MXNetError: the function does not accept the arrays.
    """
    arrays: list[Any] = []
    texts: list[str] = []
    name = fn.__name__.lstrip("_")
    others = _split(args, arrays, texts), _split(kwargs, arrays, texts) if kwargs else ()
    operation = _compute_call(fn, *others, len(arrays), count, tuple(texts))
    if not arrays:
        found = ", ".join(type(a).__name__ for a in args)
        raise AssertionError(f"{name} takes mx.np.ndarrays, found {found}; convert them with mx.np.array")
    symbols = [a for a in arrays if isinstance(a, Symbol)]
    if symbols:
        if len(symbols) < len(arrays):
            remedy = "in a hybridized block, create arrays by F.np, and pass others, also random ones, as inputs or parameters"
            raise TypeError(f"mx.np.{name} got arrays beside symbols; {remedy}")
        node = operation.node(raw_name_of(None, f"np_{name}", True), [s.raw_heads[0] for s in symbols], False)
        results: Any = [type(symbols[0])([Entry(node, i)]) for i in range(count)]
    else:
        results = run(operation, arrays, ndarray)
    return write(out, results[0] if len(results) == 1 else results)


@functools.lru_cache(maxsize=4096)
def _compute_call(fn: Callable[..., Any], args: Any, kwargs: Any, count: int, outputs: int, texts: tuple[str, ...]) -> Call:
    """Return the `Call` of a function with these arguments.

    `texts`, see `_split`, are only there to tell keys of the cache apart: 2 and 2.0 are equal, and so are 0.0 and -0.0, but
    the results differ.  `__wrapped__`, because the cache of `function_call` would return the `Call` of an equal number.
    """
    return function_call.__wrapped__(_apply, count, (("fn", fn), ("args", args), ("kwargs", kwargs)), outputs)


def _split(value: Any, arrays: list[Any], texts: list[str]) -> Hashable:
    """Return an argument in hashable form, with placeholders for arrays.

    Its arrays are appended to `arrays`, and to `texts` the numbers that may equal one of another type: all but ints.
    """
    if isinstance(value, (ndarray, np.ndarray, jax.Array, Symbol)):
        arrays.append(value)
        return _ARRAY
    if isinstance(value, (list, tuple)):
        return tuple([_split(v, arrays, texts) for v in value])
    if isinstance(value, dict):
        return tuple([(k, _split(v, arrays, texts)) for k, v in value.items()])
    if isinstance(value, (float, bool, np.generic)):
        texts.append(repr(value))
    return value


def _apply(*arrays: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    rest = iter(arrays)

    def merge(value: Any) -> Any:
        return tuple(map(merge, value)) if isinstance(value, tuple) else next(rest) if value is _ARRAY else value

    with jax.numpy_rank_promotion("allow"):
        args = merge(args)
        result = fn(*args, **{k: merge(v) for k, v in kwargs})
    return tuple(result) if isinstance(result, (list, tuple)) else result
