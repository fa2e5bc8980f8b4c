"""NDArray: MXNet's mutable array, a box over a JAX array (or over numpy, for 64-bit data that nobody computed with yet).

Basic indexing and `reshape` give views, as in MXNet: writing into `a[0]` or `a.reshape(...)` writes into `a`.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.formats.sparse import from_dense
from jfit.graph.infer import trace_shapes
from jfit.mxnet.context import Context, context_of, place
from jfit.mxnet.errors import ReshapeError
from jfit.mxnet.mutable import MutableArray, as_array, is_tracer
from jfit.mxnet.ndarray import invoke as operators
from jfit.mxnet.ndarray.invoke import is_array, on_device, with_number
from jfit.ops import ALIASES, lookup


def _operator(both: str, scalar: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def call(self: NDArray, o: Any) -> Any:
        return binary(both, scalar, self, o, swapped)

    return call


class NDArray(MutableArray):
    """A mutable array on a device.

    Args:
        value: array, box or nested list; `mx.nd.array` is the usual way to make one.

    Example:
        >>> import jfit.mx as mx
        >>> a = mx.nd.array([[1, 2], [3, 4]])
        >>> a[0] = 7
        >>> (a * 2 + 1).asnumpy().tolist()
        [[15.0, 15.0], [7.0, 9.0]]
    """

    __slots__ = ()
    _fresh_grad = False  # a gradient that backward wrote and no trainer used yet
    stype = "default"
    grad = None

    # -------------------------------------------------------------------------------- what it is
    @property
    def context(self) -> Context:
        """The device it lives on."""
        return context_of(self.value)

    ctx = context

    @property
    def T(self) -> NDArray:
        """Axes reversed."""
        return self.transpose()

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return f"\n{self.asnumpy()!s}\n<{'NDArray' if isinstance(self, View) else type(self).__name__} {sizes} @{self.context}>"

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError(f"the truth of an NDArray of shape {self.shape} is ambiguous; compare with .asnumpy()")
        return self.size == 1 and bool(self.asscalar())

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __index__(self) -> int:
        if not issubclass(self.dtype, np.integer):
            raise TypeError(f"only arrays of integers can be an index, this one is {self.dtype.__name__}")
        return int(self.asscalar())

    def __iter__(self) -> Iterator[NDArray]:
        return (self[i] for i in range(len(self)))

    def __reduce__(self):
        return NDArray, (self.asnumpy(),)

    def __copy__(self) -> NDArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> NDArray:
        return self.copy()

    # -------------------------------------------------------------------------------- to and from
    def asscalar(self) -> Any:
        """The one value it holds, a numpy scalar.

        Raises:
            ValueError: it holds several values, or none.
        """
        if self.size != 1:
            raise ValueError(f"asscalar needs one value, the array has shape {self.shape}; index it, or use asnumpy()")
        return self.asnumpy().reshape(())[()]

    def item(self) -> Any:
        """The one value it holds, a Python number."""
        return self.asscalar().item()

    def wait_to_read(self) -> None:
        """Wait until the value is computed."""
        counters.wait(self.value)  # sync: the caller asked to wait

    wait_to_write = wait_to_read

    def copy(self) -> NDArray:
        """A new array with the same values, in a buffer of its own."""
        value = self.value
        return NDArray(np.array(value) if isinstance(value, np.ndarray) else jnp.array(value, copy=True))

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Write the values into another array, or copy them to a device; returns the target."""
        if isinstance(other, MutableArray):
            other[:] = self
            return other  # type: ignore[return-value]
        return NDArray(jax.device_put(self.copy().value, Context(other).device))

    def as_in_context(self, context: Context) -> NDArray:
        """Itself where it is there already, else a copy on that device."""
        return self if self.context == tuple(context) else self.copyto(context)

    as_in_ctx = as_in_context

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """The values in another dtype; 64-bit ones stay on the host until they are computed with."""
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return NDArray(held(self.value, dtype))

    def tostype(self, stype: str) -> Any:
        """The same values in another storage type."""
        return self.copy() if stype == "default" else STORAGE[stype](from_dense(self.asnumpy(), stype))

    def detach(self) -> NDArray:
        """The values without history."""
        return NDArray(self.value)

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """A gradient buffer of zeros beside the array."""
        self.grad = None if grad_req == "null" else NDArray(jnp.zeros_like(jnp.asarray(self.value)))

    # -------------------------------------------------------------------------------- parts
    def __getitem__(self, key: Any) -> NDArray:
        """Rows, slices and single entries are views; index arrays and masks give copies.  A single entry has shape (1,)."""
        key = _in_range(_key(key), self.shape)
        if not _basic(key):
            return NDArray(self.value[key])
        parts = key if isinstance(key, tuple) else (key,)
        single = 0 < self.ndim == sum(isinstance(p, (int, np.integer)) for p in parts) and None not in parts

        def get(value: Any) -> Any:
            return value[key].reshape(1) if single else value[key]

        def put(value: Any) -> None:
            self[key] = jnp.reshape(value, ()) if single else value

        return View(self, get, put)

    def __setitem__(self, key: Any, value: Any) -> None:
        value, mine = as_array(value), cast(Any, self.value)
        if isinstance(mine, jax.Array) and isinstance(value, jax.Array) and not is_tracer(mine) and not is_tracer(value):
            if value.committed and value.devices() != mine.devices():
                value = jax.device_put(value, min(mine.devices(), key=lambda d: d.id))
        elif isinstance(value, np.ndarray):
            value = np.array(value)  # the caller may write into his array before the device has read it
        super().__setitem__(_in_range(_key(key), self.shape), value)

    def reshape(self, *shape: Any, reverse: bool = False, **kwargs: Any) -> NDArray:
        """A view in another shape, with MXNet's codes 0, -1, -2, -3, -4.

        Raises:
            ReshapeError: the shape holds another number of values; both an MXNetError and a ValueError.
        """
        sizes = kwargs.get("shape", shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape)
        if isinstance(sizes, int):
            sizes = (sizes,)
        target = _reshaped(self.shape, tuple(int(s) for s in sizes), reverse)
        return View(self, lambda value: value.reshape(target), lambda value: self.__setitem__(ALL, value.reshape(self.shape)))

    def reshape_like(self, other: NDArray) -> NDArray:
        """A view in the shape of another array."""
        return self.reshape(other.shape)

    def transpose(self, *axes: Any, **kwargs: Any) -> NDArray:
        """Axes in another order; reversed where none are given."""
        given = kwargs.get("axes", axes[0] if len(axes) == 1 and isinstance(axes[0], (list, tuple)) else axes)
        return function("transpose")(self, axes=tuple(given or ()))

    def slice(self, begin: Any, end: Any, step: Any = None) -> NDArray:
        """begin ≤ index < end on each axis."""
        return function("slice")(self, begin=begin, end=end, step=step)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Every operator is a method too: x.sum(axis=0) is mx.nd.sum(x, axis=0).
        if name.startswith("_") or name not in ALIASES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and no operator is called that")
        return functools.partial(function(name), self)

    # -------------------------------------------------------------------------------- operators
    __add__ = __radd__ = _operator("broadcast_add", "_plus_scalar")
    __sub__ = _operator("broadcast_sub", "_minus_scalar")
    __rsub__ = _operator("broadcast_sub", "_rminus_scalar", swapped=True)
    __mul__ = __rmul__ = _operator("broadcast_mul", "_mul_scalar")
    __truediv__ = _operator("broadcast_div", "_div_scalar")
    __rtruediv__ = _operator("broadcast_div", "_rdiv_scalar", swapped=True)
    __mod__ = _operator("broadcast_mod", "_mod_scalar")
    __rmod__ = _operator("broadcast_mod", "_rmod_scalar", swapped=True)
    __pow__ = _operator("broadcast_power", "_power_scalar")
    __rpow__ = _operator("broadcast_power", "_rpower_scalar", swapped=True)
    __eq__ = _operator("broadcast_equal", "_equal_scalar")
    __ne__ = _operator("broadcast_not_equal", "_not_equal_scalar")
    __gt__ = _operator("broadcast_greater", "_greater_scalar")
    __ge__ = _operator("broadcast_greater_equal", "_greater_equal_scalar")
    __lt__ = _operator("broadcast_lesser", "_lesser_scalar")
    __le__ = _operator("broadcast_lesser_equal", "_lesser_equal_scalar")

    def __neg__(self) -> NDArray:
        return binary("", "_mul_scalar", self, -1)

    def __abs__(self) -> NDArray:
        return function("abs")(self)

    def _into(self, result: Any) -> NDArray:
        if result is NotImplemented:
            return result
        self[:] = result
        return self

    def __iadd__(self, o: Any) -> NDArray:
        return self._into(self + o)

    def __isub__(self, o: Any) -> NDArray:
        return self._into(self - o)

    def __imul__(self, o: Any) -> NDArray:
        return self._into(self * o)

    def __itruediv__(self, o: Any) -> NDArray:
        return self._into(self / o)

    def __imod__(self, o: Any) -> NDArray:
        return self._into(self % o)

    def __ipow__(self, o: Any) -> NDArray:
        return self._into(self**o)


class View(NDArray):
    """A part of another array, or the same in another shape: what is written here is written there."""

    __slots__ = ("_base", "_get", "_put", "_seen")

    def __init__(self, base: NDArray, get: Callable[[Any], Any], put: Callable[[Any], None]) -> None:
        self._base, self._get, self._put = base, get, put
        self._seen: tuple[Any, Any] = (None, None)

    @property
    def value(self) -> Any:
        """The values as the base has them now."""
        whole = self._base.value
        if self._seen[0] is not whole:
            self._seen = (whole, self._get(whole))
        return self._seen[1]

    @value.setter
    def value(self, new: Any) -> None:
        self._put(new)


ALL = slice(None)
STORAGE: dict[str, Callable[[Any], NDArray]] = {}  # storage type -> class of its arrays; `sparse` enters its own


def binary(both: str, scalar: str, left: NDArray, right: Any, swapped: bool = False) -> Any:
    """Two arrays (broadcast against each other) or an array and a number; the result has the array's dtype."""
    if isinstance(right, (numbers.Number, np.generic)):
        return NDArray(with_number(scalar, left, right))
    if not both or not is_array(right):
        return NotImplemented
    pair = [on_device(left), on_device(right)]
    rank = max(x.ndim for x in pair)  # ranks are made equal here: jax may be told to refuse unequal ones
    pair = [x if x.ndim == rank else x.reshape((1,) * (rank - x.ndim) + x.shape) for x in pair]
    return invoke(both, pair[::-1] if swapped else pair, {})


def held(value: Any, dtype: Any, ctx: Any = None) -> Any:
    """An array of a dtype, in a buffer of its own: on the device, or on the host where the device has no such dtype."""
    dtype = np.dtype(dtype)
    value = as_array(value)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        return np.array(value, dtype)
    if isinstance(value, np.ndarray):
        value = value.astype(dtype)
    return place(jnp.array(value, dtype, copy=True), ctx)


def invoke(name: str, arrays: Sequence[Any], attrs: dict[str, Any], out: Any = None) -> Any:
    """One operator on arrays, as NDArrays; see `jfit.mxnet.ndarray.invoke`.

    Example:
        >>> invoke("clip", [np.array([1.0, 5.0])], {"a_min": 0, "a_max": 2}).asnumpy().tolist()
        [1.0, 2.0]
    """
    return operators.invoke(name, arrays, attrs, out, NDArray)


def function(name: str) -> Callable[..., Any]:
    """The eager function of one operator, as `mx.nd.<name>`.

    Raises:
        UnknownOperator: no such operator (nearest names listed).

    Example:
        >>> function("concat")(np.ones((1, 2)), np.zeros((1, 2)), dim=0).shape
        (2, 2)
    """
    return operators.function(name, NDArray)


def _key(key: Any) -> Any:
    """An index as arrays understand it; MXNet's index arrays may be floats."""
    if isinstance(key, tuple):
        return tuple(_key(k) for k in key)
    if isinstance(key, MutableArray):
        key = key.value
    if isinstance(key, list):
        key = np.asarray(key)
    if isinstance(key, (np.ndarray, jax.Array)) and jnp.issubdtype(key.dtype, jnp.floating):
        return key.astype(np.int32)
    return key


def _in_range(key: Any, shape: tuple[int, ...]) -> Any:
    """The index itself; jax would move one beyond the end back to the last entry."""
    parts = key if isinstance(key, tuple) else (key,)
    axis, spare = 0, len(shape) - sum(p is not None and p is not Ellipsis for p in parts)
    if spare < 0:
        raise IndexError(f"an index of {len(parts)} parts for an array of shape {shape}")
    for part in parts:
        if part is Ellipsis:
            axis += spare
        elif part is not None:
            if isinstance(part, (int, np.integer)) and not -shape[axis] <= part < shape[axis]:
                raise IndexError(f"index {part} is out of bounds for axis {axis} with size {shape[axis]}")
            axis += 1
    return key


def _basic(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(p is None or p is Ellipsis or isinstance(p, (int, np.integer, slice)) for p in parts)


def _reshaped(shape: tuple[int, ...], sizes: tuple[int, ...], reverse: bool) -> tuple[int, ...]:
    op, target = lookup("Reshape"), sizes
    if any(s <= 0 for s in sizes):
        try:
            target = trace_shapes(op, op.parse({"shape": sizes, "reverse": reverse}), (shape,), (np.dtype("float32"),))[0]
        except (ValueError, TypeError) as error:
            raise ReshapeError(f"reshape: {str(error).splitlines()[0]}") from error
    if math.prod(target) != math.prod(shape):
        raise ReshapeError(f"Cannot reshape array of size {math.prod(shape)} into shape {sizes}: the array is {shape}")
    return target
