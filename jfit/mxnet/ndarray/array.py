"""NDArray: MXNet's mutable array, implemented as a reference to an immutable JAX array that writes replace.

64-bit data stays a NumPy array until the first computation, because JAX is 32-bit by default.  Basic indexing and `reshape`
return views, as in MXNet: writing into `a[0]` or `a.reshape(...)` writes into `a`.
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.formats.sparse import from_dense
from jfit.graph.infer import trace_shapes
from jfit.mxnet.context import Context, context_of, current_context, place
from jfit.mxnet.errors import MXNetError, ReshapeError
from jfit.mxnet.mutable import MutableArray, as_array, is_tracer
from jfit.mxnet.namespaces import split_attributes
from jfit.mxnet.ndarray.invoke import call, is_array, run, with_number
from jfit.mxnet.ndarray.invoke import function as operator_function
from jfit.mxnet.ndarray.invoke import invoke as invoke_operator
from jfit.mxnet.recording.backward import backward
from jfit.mxnet.recording.calls import operator_call
from jfit.mxnet.recording.tape import is_tracked, mode, origin
from jfit.ops import ALIASES, lookup


def _operator(array_op: str, scalar_op: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def call(self: NDArray, o: Any) -> Any:
        if isinstance(o, MutableArray):
            return run(_binary_call(array_op), (o, self) if swapped else (self, o), NDArray)[0]
        return binary(array_op, scalar_op, self, o, swapped)

    return call


def _in_place(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(self: NDArray, o: Any) -> NDArray:
        self[:] = compute(self, o)
        return self

    return call


def _copy_or_view(name: str) -> Callable[..., Any]:
    def call(self: NDArray, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        result = function(name)(self, *args, **kwargs)
        return self.reshaped(result.shape) if inplace else result

    call.__name__, call.__doc__ = name, f"Return `mx.nd.{name}` of this array, with `inplace=True` as a view of it."
    return call


class NDArray(MutableArray):
    """A mutable array on a device.

    Every operator is also a method: `x.sum(axis=0)` is `mx.nd.sum(x, axis=0)`.

    Args:
        value: JAX array, NumPy array, NDArray or nested list.  `mx.nd.array` is the usual constructor.

    Example:
        >>> import jfit.mx as mx
        >>> a = mx.nd.array([[1, 2], [3, 4]])
        >>> a[0] = 7
        >>> (a * 2 + 1).asnumpy().tolist()
        [[15.0, 15.0], [7.0, 9.0]]
    """

    __slots__ = ()
    _fresh_grad = False  # True from backward until a Trainer step has used this array as a gradient
    _kind: type[NDArray]  # class of the results of operators and methods, and `_view` of views
    _view: type[View]
    _single = True  # whether one entry of an array has shape (1,), not ()
    stype = "default"

    # -------------------------------------------------------------------------------- attributes and conversions
    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes; does not compute the values of a recorded array."""
        entry = self._entry or self._later
        return self.value.shape if entry is None else entry[0].specs[entry[1]].shape

    @property
    def dtype(self) -> Any:
        """Element type as a NumPy scalar type such as `numpy.float32`, as in MXNet."""
        entry = self._entry or self._later
        return np.dtype(self.value.dtype if entry is None else entry[0].specs[entry[1]].dtype).type

    @property
    def context(self) -> Context:
        """The device of the array; does not compute the values of a recorded array."""
        entry = self._entry
        return context_of(self.value if entry is None else entry[0].places[entry[1]])

    ctx = context

    @property
    def T(self) -> NDArray:
        """A copy of the array with its axes reversed; the array itself if it has fewer than two."""
        return self if self.ndim < 2 else self.transpose()

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return f"\n{self.asnumpy()!s}\n<NDArray {sizes} @{self.context}>"

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return self.size > 0 and bool(self.asnumpy())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __iter__(self) -> Iterator[NDArray]:
        return (self[i] for i in range(len(self)))

    def __reduce__(self):
        return self._kind, (self.asnumpy(),)

    def __copy__(self) -> NDArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> NDArray:
        return self.copy()

    # -------------------------------------------------------------------------------- copies
    def asscalar(self) -> Any:
        """Return the value of an array of size 1 as a NumPy scalar; waits for the computation.

        Raises:
            ValueError: the array has more than one value, or none.
        """
        return self.asnumpy().reshape(())[()]

    def item(self) -> Any:
        """Return the value of an array of size 1 as a Python number, after waiting for it; other sizes raise ValueError."""
        return self.asscalar().item()

    def wait_to_read(self) -> None:
        """Block until the value is computed."""
        counters.wait(self.value)  # sync: the caller asked to wait

    wait_to_write = wait_to_read

    def copy(self) -> NDArray:
        """Return a copy in a new buffer, on the same device."""
        if is_recording(self):
            return invoke_operator("_copy", [self], {}, None, self._kind)
        value = self.value
        return self._kind(np.array(value) if isinstance(value, np.ndarray) else jnp.array(value, copy=True))

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copy the values into another array, or to a device.

        Args:
            other: the NDArray to write into (values are broadcast and cast to its dtype), or a device.

        Returns:
            `other`, or the new NDArray on that device.
        """
        if isinstance(other, MutableArray):
            other[...] = self
            return other  # type: ignore[return-value]
        if is_recording(self):
            copy = self._kind(jax.device_put(self.value, Context(other).device))
            tape: Any = mode.tape
            copy._entry = tape, tape.add_leaf(copy, copy.value, "link")
            tape.sources[copy._entry[1]] = origin(self)
            return copy
        return self._kind(jax.device_put(self.copy().value, Context(other).device))

    def as_in_context(self, context: Context) -> NDArray:
        """Return the array itself if it is on the device `context` already, otherwise a copy on that device."""
        return self if self.context == tuple(context) else self.copyto(context)

    as_in_ctx = as_in_context

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """Return the values in another dtype.

        Args:
            dtype: 64-bit dtypes are kept on the host until the first computation, which makes them 32-bit.
            copy: False returns the array itself if it has this dtype already.
        """
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        if is_recording(self):
            return invoke_operator("Cast", [self], {"dtype": np.dtype(dtype).name}, None, self._kind)
        return self._kind(copy_as(self.value, dtype))

    def tostype(self, stype: str) -> Any:
        """Return a copy in another storage type: "default" (dense), "csr" or "row_sparse"."""
        return self.copy() if stype == "default" else STORAGE[stype](from_dense(self.asnumpy(), stype))

    def detach(self) -> NDArray:
        """Return a new NDArray with the same value and without a gradient buffer."""
        return self._kind(self.value)

    def as_np_ndarray(self) -> Any:
        """Return an `mx.np.ndarray` that shares the values: a write to one of them changes both."""
        return self.shared(KINDS["np"])

    def shared(self, kind: type[NDArray]) -> Any:
        """Return an array of another class that shares the values."""
        if is_recording(self):
            return invoke_operator("identity", [self], {}, None, kind)
        return kind._view(self, lambda value: value, functools.partial(self.__setitem__, Ellipsis))

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Make the array a variable: `mx.autograd` writes gradients to `grad`, an array of zeros of the same shape.

        Args:
            grad_req: "write" (each backward pass replaces the gradient), "add", or "null" (the array is a constant again).
            stype: accepted; gradients are dense.
        """
        value = self.value  # before the array is detached from what was recorded
        self._entry, self._grad_req = None, None if grad_req == "null" else grad_req
        self.grad = self._kind(jnp.zeros_like(jnp.asarray(value)))

    def backward(self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True) -> None:
        """Compute the gradients of this array with respect to all variables it was computed from, see `mx.autograd.backward`.

        Args:
            out_grad: gradient with respect to this array, of its shape; None: ones.
            retain_graph: whether `backward` can be called again.
            train_mode: accepted; the mode is that of the recording.
        """
        backward([self], [out_grad], retain_graph)

    # -------------------------------------------------------------------------------- indexing and shapes
    def __getitem__(self, key: Any) -> NDArray:
        """Integers and slices of contiguous entries return views; other indices return copies.  One entry has shape (1,)."""
        key = self._indices(key)
        parts = key if isinstance(key, tuple) else (key,)
        recorded, basic = is_recording(self), _is_basic(parts)
        if not recorded and not (basic and _is_contiguous(parts, self.shape)):
            return self._kind(self.value[key])
        ints = sum(isinstance(p, (int, np.integer)) for p in parts)
        single = basic and self._single and 0 < self.ndim == ints and None not in parts
        if recorded:
            arrays, static = _split_key(parts)
            return call(_index, [self, *arrays], {"key": static, "single": single}, self._kind)

        def get(value: Any) -> Any:
            return value[key].reshape(1) if single else value[key]

        def put(value: Any) -> None:
            self[key] = value.reshape(()) if single else value

        return self._view(self, get, put)

    def __setitem__(self, key: Any, value: Any) -> None:
        if mode.tape is not None and self._set_recorded(key, value):
            return
        value, old = as_array(value), cast(Any, self.value)
        if isinstance(old, jax.Array) and isinstance(value, jax.Array) and not is_tracer(old) and not is_tracer(value):
            if value.committed and value.devices() != old.devices():
                value = jax.device_put(value, min(old.devices(), key=lambda d: d.id))
        elif isinstance(value, np.ndarray):
            value = np.array(value)  # the caller may overwrite the source before the asynchronous transfer has read it
        super().__setitem__(self._indices(key), value)

    def _indices(self, key: Any) -> Any:
        """Check an index, and move index arrays to the device of this array, as MXNet's CPU devices share their memory."""
        key = _key(key)
        parts = key if isinstance(key, tuple) else (key,)
        _check_range(parts, self.shape)
        if not any(isinstance(p, jax.Array) and not is_tracer(p) and p.committed for p in parts):
            return key
        home = as_array(self).sharding if isinstance(as_array(self), jax.Array) else None
        if home is None or len(home.device_set) > 1:
            return key
        parts = tuple(jax.device_put(p, *home.device_set) if isinstance(p, jax.Array) else p for p in parts)
        return parts if isinstance(key, tuple) else parts[0]

    def _set_recorded(self, key: Any, value: Any) -> bool:
        """Write while recording; returns False if nothing of it needs to be recorded.

        Raises:
            MXNetError: this array is a variable or was recorded itself.
        """
        if is_tracked([self]):
            raise MXNetError(
                "Assigning to NDArrays that are already in a computational graph will cause undefined behavior: this array is "
                "a variable or was recorded, so it cannot be written (x[:] = y, x += y, out=x) inside record(); write x = x + y"
            )
        if not isinstance(value, NDArray) or not is_tracked([value]) or isinstance(self, View):
            return False
        arrays, static = _split_key(key if isinstance(key, tuple) else (key,))
        result = call(_assign, [self, value, *arrays], {"key": static}, NDArray)
        self._entry = result._entry
        del self.value
        self._entry[0].replace(result, self)
        return True

    def reshape(self, *shape: Any, reverse: bool = False, **kwargs: Any) -> NDArray:
        """Return a view in another shape.

        Args:
            shape: sizes as arguments, one tuple or `shape=`.  MXNet's codes are supported: 0 copies the size of the axis, -1 is
                inferred, -2 copies all remaining axes, -3 merges two axes, -4 splits one into the next two sizes.
            reverse: match sizes and codes to the axes from right to left.

        Raises:
            ReshapeError: the number of values differs.  It is both an MXNetError and a ValueError.
        """
        sizes = kwargs.get("shape", shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape)
        if isinstance(sizes, int):
            sizes = (sizes,)
        target = _target_shape(self.shape, tuple(int(s) for s in sizes), reverse)
        return self.reshaped(target)

    def reshaped(self, target: tuple[int, ...]) -> Any:
        """Return a view in a shape of the same size."""
        if is_recording(self):
            return call(_reshape, [self], {"shape": target}, self._kind)
        put = lambda value: self.__setitem__(Ellipsis, value.reshape(self.shape))  # noqa: E731
        return self._view(self, lambda value: value.reshape(target), put)

    expand_dims, flatten, squeeze = map(_copy_or_view, ("expand_dims", "flatten", "squeeze"))

    def broadcast_to(self, shape: tuple[int, ...]) -> NDArray:
        """Return a copy in `shape`, in which axes of size 1 are repeated; missing leading axes have size 1."""
        return function("broadcast_to")(self.reshaped((1,) * (len(shape) - self.ndim) + self.shape), shape=shape)

    def transpose(self, *axes: Any, **kwargs: Any) -> NDArray:
        """Return a copy with the axes permuted, as arguments, one tuple or `axes=`; reversed by default."""
        order = kwargs.get("axes", axes[0] if len(axes) == 1 and isinstance(axes[0], (list, tuple)) else axes)
        return function("transpose")(self, axes=tuple(order or ()))

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
        """`mx.nd.split_v2` of this array."""
        parts = split_attributes(indices_or_sections)
        return function("_split_v2")(self, axis=axis, squeeze_axis=squeeze_axis, **parts)

    def slice_assign(self, rhs: NDArray, begin: Any, end: Any, step: Any = None) -> NDArray:
        """Write an array into the slice begin[k] <= index < end[k] of each axis k; returns this array."""
        return function("_slice_assign")(self, rhs, begin=begin, end=end, step=step, out=self)

    def slice_assign_scalar(self, value: float, begin: Any, end: Any, step: Any = None) -> NDArray:
        """Write a number into the slice begin[k] <= index < end[k] of each axis k; returns this array."""
        return function("_slice_assign_scalar")(self, scalar=value, begin=begin, end=end, step=step, out=self)

    def slice(self, begin: Any, end: Any, step: Any = None) -> NDArray:
        """Return a copy of begin[k] <= index < end[k] along each axis k."""
        return function("slice")(self, begin=begin, end=end, step=step)

    def __getattr__(self, name: str) -> Any:
        if name == "value" and (entry := self._entry or self._later) is not None:  # not computed yet
            self.value, self._later = entry[0].read(entry[1]), None
            return self.value
        if name.startswith("_") or name not in ALIASES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and there is no operator of that name")
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
        return run(_binary_call("negative"), (self,), NDArray)[0]

    def __abs__(self) -> NDArray:
        return function("abs")(self)

    __iadd__, __isub__ = _in_place(operator.add), _in_place(operator.sub)
    __imul__, __itruediv__ = _in_place(operator.mul), _in_place(operator.truediv)
    __imod__, __ipow__ = _in_place(operator.mod), _in_place(operator.pow)


class View(NDArray):
    """A view of another NDArray, made by basic indexing or `reshape`: it has the base's values, and writes change the base."""

    __slots__ = ("_base", "_cached", "_get", "_put")

    def __init__(self, base: NDArray, get: Callable[[Any], Any], put: Callable[[Any], None]) -> None:
        self._base, self._get, self._put = base, get, put
        self._cached: tuple[Any, Any] = (None, None)  # (value of the base, value of the view computed from it)

    @property
    def value(self) -> Any:
        """The values of the view; computed again after a write to the base."""
        whole = self._base.value
        if self._cached[0] is not whole:
            self._cached = (whole, self._get(whole))
        return self._cached[1]

    @value.setter
    def value(self, new: Any) -> None:
        self._put(new)


def _index(array: Any, *arrays: Any, key: tuple[Any, ...], single: bool) -> Any:
    value = array[_merged_key(key, arrays)]
    return value.reshape(1) if single else value


def _assign(array: Any, value: Any, *arrays: Any, key: tuple[Any, ...]) -> Any:
    index = _merged_key(key, arrays)
    shape = jax.eval_shape(lambda a: a[index], array).shape
    while value.ndim > len(shape) and value.shape[0] == 1:  # NumPy ignores surplus leading axes
        value = value.reshape(value.shape[1:])
    return array.at[index].set(value.astype(array.dtype))


def _reshape(array: Any, shape: tuple[int, ...]) -> Any:
    return array.reshape(shape)


def _split_key(parts: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
    """Split an index into its arrays (masks become indices) and a hashable rest, for `_merged_key`."""
    arrays: list[Any] = []
    static: list[Any] = []
    for part in parts:
        if isinstance(part, slice):
            static.append(("slice", part.start, part.stop, part.step))
        elif part is None or part is Ellipsis or isinstance(part, (int, np.integer)):
            static.append(part)
        else:
            part = np.asarray(part)
            indices = np.nonzero(part) if part.dtype == bool else [part.astype(np.int32)]
            arrays += [MutableArray(i) for i in indices]
            static += ["array"] * len(indices)
    return arrays, tuple(static)


def _merged_key(static: tuple[Any, ...], arrays: Sequence[Any]) -> tuple[Any, ...]:
    rest = iter(arrays)
    parts = [next(rest) if part == "array" else part for part in static]
    return tuple([slice(*part[1:]) if isinstance(part, tuple) else part for part in parts])


def is_recording(array: Any) -> bool:
    """Return whether operations on this array are recorded now."""
    return mode.tape is not None and (array._entry is not None or array._grad_req is not None)


NDArray._kind, NDArray._view = NDArray, View
KINDS: dict[str, type[NDArray]] = {}  # "np" -> mx.np.ndarray; filled by the module that defines it
STORAGE: dict[str, Callable[[Any], NDArray]] = {}  # storage type -> NDArray class; filled by the module `sparse`


def later(source: Any, number: int) -> NDArray:
    """Return an array whose value is `source.read(number)` when it is first read; `source.specs` has its shape and dtype."""
    array = object.__new__(NDArray)
    array._later = source, number
    return array


def binary(array_op: str, scalar_op: str, left: NDArray, right: Any, swapped: bool = False) -> Any:
    """Apply a binary operator to an NDArray and another array (with broadcasting) or a number.

    Args:
        array_op: name of the operator of two arrays.
        scalar_op: name of the operator of an array and a number; its result has the array's dtype.
        left: the NDArray.
        right: array or number.
        swapped: pass (right, left) to `array_op`.  `scalar_op` is always called with the array first.

    Returns:
        NDArray, or NotImplemented if `right` is neither an array nor a number.
    """
    if not isinstance(right, MutableArray):  # the usual case first: looking for numbers is slow
        if isinstance(right, (numbers.Number, np.generic)):
            return with_number(scalar_op, left, right, NDArray)
        if not is_array(right):
            return NotImplemented
    return run(_binary_call(array_op), (right, left) if swapped else (left, right), NDArray)[0]


@functools.cache
def _binary_call(array_op: str) -> Any:
    return operator_call(lookup(array_op), lookup(array_op).parse({}))


def binary_function(array_op: str, scalar_op: str, reversed_scalar_op: str) -> Callable[[Any, Any], Any]:
    """Return the function of two arrays, or of an array and a number, with these operators."""

    def call(lhs: Any, rhs: Any) -> Any:
        result: Any = NotImplemented
        if isinstance(lhs, NDArray):
            result = binary(array_op, scalar_op, lhs, rhs)
        elif isinstance(rhs, NDArray):
            result = binary(array_op, reversed_scalar_op, rhs, lhs, swapped=True)
        if result is NotImplemented:
            found = f"{type(lhs).__name__} and {type(rhs).__name__}"
            raise TypeError(f"expected an NDArray and another array or a number, found {found}")
        return result

    return call


def stays_on_host(value: Any, ctx: Any = None) -> bool:
    """Whether a new NDArray of this value, for this context, is a NumPy array: in the Python code of a custom operator."""
    return mode.on_host and not isinstance(value, jax.Array) and ctx in (None, current_context())


def copy_as(value: Any, dtype: Any, ctx: Any = None) -> Any:
    """Copy a value to a new array of this dtype: a JAX array on `ctx`, or a NumPy array if JAX does not support the dtype."""
    dtype = np.dtype(dtype)
    value = as_array(value)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype or stays_on_host(value, ctx):
        return np.array(value, dtype)
    if isinstance(value, np.ndarray):
        value = value.astype(dtype)
    elif dtype == np.float32 and _is_numbers(value):
        value = np.array(value, dtype)
    # jnp.array compiles a program for each shape, even without a conversion.
    copy = jax.device_put(value, may_alias=False) if isinstance(value, np.ndarray) else jnp.array(value, dtype, copy=True)
    return place(copy, ctx)


def _is_numbers(value: Any) -> bool:
    """Return whether a value is a Python number or a nested list of them."""
    return all(map(_is_numbers, value)) if isinstance(value, (list, tuple)) else type(value) in (int, float, bool)


def invoke(name: str, arrays: Sequence[Any], attrs: dict[str, Any], out: Any = None) -> Any:
    """Run one operator on arrays and return NDArrays.

    Args:
        name: name of any registered operator.
        arrays: inputs, then auxiliary states, in the operator's order.
        attrs: attributes as typed values or as strings.
        out: NDArray, or list of NDArrays, to write the result into.

    Returns:
        One NDArray, or a list if the operator has several visible outputs; `out` itself if it is passed.

    Example:
        >>> invoke("clip", [np.array([1.0, 5.0])], {"a_min": 0, "a_max": 2}).asnumpy().tolist()
        [1.0, 2.0]
    """
    return invoke_operator(name, arrays, attrs, out, NDArray)


def function(name: str) -> Callable[..., Any]:
    """Return the function `mx.nd.<name>`, which runs one operator immediately.

    Args:
        name: name of any registered operator.

    Returns:
        Function of arrays and attributes, which returns NDArrays.

    Raises:
        UnknownOperator: there is no such operator; the message lists the nearest names.

    Example:
        >>> function("concat")(np.ones((1, 2)), np.zeros((1, 2)), dim=0).shape
        (2, 2)
    """
    return operator_function(name, NDArray)


def _key(key: Any) -> Any:
    """Convert an index to one that JAX and NumPy accept; index arrays of floats, which MXNet allows, become int32."""
    if isinstance(key, tuple):
        return tuple(_key(k) for k in key)
    if isinstance(key, MutableArray):
        key = key.value
    if isinstance(key, list):
        key = np.asarray(key)
    if isinstance(key, (np.ndarray, jax.Array)) and jnp.issubdtype(key.dtype, jnp.floating):
        return key.astype(np.int32)
    return key


def _check_range(parts: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """Raise IndexError if an index is out of range: JAX would clamp it silently."""
    axis, spare = 0, len(shape) - sum(p is not None and p is not Ellipsis for p in parts)
    if spare < 0:
        raise IndexError(f"too many indices: {len(parts)} for an array of shape {shape}")
    for part in parts:
        if part is Ellipsis:
            axis += spare
        elif part is not None:
            if isinstance(part, (int, np.integer)) and not -shape[axis] <= part < shape[axis]:
                raise IndexError(f"index {part} is out of bounds for axis {axis} with size {shape[axis]}")
            axis += 1


def _is_contiguous(parts: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Return whether a basic index selects entries that follow each other in memory (of MXNet's array)."""
    axes = [part for part in parts if part is not None]
    if Ellipsis in axes:
        at = axes.index(Ellipsis)
        axes[at : at + 1] = [slice(None)] * (len(shape) - len(axes) + 1)
    axes += [slice(None)] * (len(shape) - len(axes))
    ranges = [range(n)[axis] if isinstance(axis, slice) else range(1) for n, axis in zip(shape, axes, strict=True)]
    if not all(map(len, ranges)):
        return True
    first = next((i for i, entries in enumerate(ranges) if len(entries) > 1), len(ranges))
    return all(r.step == 1 if i == first else r == range(shape[i]) for i, r in enumerate(ranges) if i >= first)


def _is_basic(parts: tuple[Any, ...]) -> bool:
    return all(p is None or p is Ellipsis or isinstance(p, (int, np.integer, slice)) for p in parts)


def _target_shape(shape: tuple[int, ...], sizes: tuple[int, ...], reverse: bool) -> tuple[int, ...]:
    op, target = lookup("Reshape"), sizes
    if any(s <= 0 for s in sizes):
        try:
            target = trace_shapes(op, op.parse({"shape": sizes, "reverse": reverse}), (shape,), (np.dtype("float32"),))[0]
        except (ValueError, TypeError) as error:
            raise ReshapeError(f"reshape: {str(error).splitlines()[0]}") from error
    if math.prod(target) != math.prod(shape):
        raise ReshapeError(f"Cannot reshape array of size {math.prod(shape)} into shape {sizes}: the array is {shape}")
    return target
