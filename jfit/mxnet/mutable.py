"""`MutableArray`: a reference to an array whose contents can be replaced in place, because jax.Array is immutable.

The classes of `jfit.mxnet` accept and return jax or numpy arrays.  A `MutableArray` is used where MXNet's interface needs two
references to see the same write: a parameter's data and gradient, the weight that a user's optimizer class updates, `out=` of
a key-value store.  `jfit.mxnet.ndarray.NDArray` is a subclass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.optim.rows import stored_rows


class MutableArray:
    """A reference to an array that supports writing in place: `array[:] = value` replaces the referenced jax.Array.

    Args:
        value: jax.Array, numpy array, MutableArray, or anything `numpy.asarray` accepts.

    Attributes:
        value: the current contents, a jax.Array or a numpy array (64-bit data from a file stays numpy until it is used in
            a computation, because JAX would truncate it to 32 bits).

    Example:
        >>> array = MutableArray(np.zeros(3, "float32"))
        >>> array[:] = 2
        >>> array.asnumpy().tolist(), array.shape
        ([2.0, 2.0, 2.0], (3,))
    """

    __slots__ = ("__dict__", "__weakref__", "value")
    __array_priority__ = 100.0
    grad: Any = None  # where `mx.autograd` writes the gradient
    _grad_req: str | None = None  # "write" or "add": the array is a variable
    _entry: Any = None  # (tape, slot) if the array was recorded, see `jfit.mxnet.recording`
    _later: Any = None  # (tape, `WaitingPass`, `OnHost` or `Deferred`, number) if that makes the value when it is read

    def __init__(self, value: Any) -> None:
        self.value = as_array(value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        """Element type as a NumPy scalar type such as `numpy.float32`, as in MXNet."""
        return np.dtype(self.value.dtype).type

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def asnumpy(self) -> np.ndarray:
        """Copy to a numpy array; blocks until the value is computed."""
        return np.array(counters.read(self.value))  # sync: the caller needs the values on the host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.value, dtype=dtype)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.value)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        return type(self)(self.value[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write in place, keeping shape, dtype and device.

        The value is cast and broadcast; surplus leading axes of size 1 are removed.
        """
        value, key, old = as_array(value), _key(key), self.value
        value = _squeeze_leading(value if isinstance(old, np.ndarray) else jnp.asarray(value), old, key)
        if isinstance(old, np.ndarray):
            new = np.array(old)
            new[key] = np.asarray(value)
            self.value = new
            return
        value = value.astype(old.dtype)
        new = value if _selects_all(key) and value.shape == self.shape else old.at[key].set(value)
        self.value = _with_placement_of(new, old)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.asnumpy()!r})"


class MutableRowSparse(MutableArray):
    """A dense MutableArray that represents a row_sparse gradient.

    Args:
        value: array of shape (rows, ...).
        stored: bool of shape (rows,), which rows are stored; None: those that are not all zero.

    Example:
        >>> import jax.numpy as jnp
        >>> MutableRowSparse(jnp.array([[0.0], [2.0]])).by_rows.indices.tolist()
        [2, 1]
    """

    __slots__ = ("stored",)
    stype = "row_sparse"

    def __init__(self, value: Any, stored: np.ndarray | None = None) -> None:
        super().__init__(value)
        self.stored = stored

    @property
    def by_rows(self) -> Any:
        """Return the stored rows, as `jfit.optim.SparseRows`."""
        return _stored_rows(self.value, self.stored)


def as_array(value: Any) -> Any:
    """Convert a MutableArray, array, list or number to a jax.Array or numpy array, without a copy where possible.

    Args:
        value: a MutableArray or NDArray (its contents are returned), a jax or numpy array (returned unchanged), or anything
            `numpy.asarray` accepts.

    Returns:
        jax.Array or numpy array.

    Example:
        >>> as_array(MutableArray(np.ones(2, "float32"))).tolist(), as_array([1.0, 2.0]).dtype
        ([1.0, 1.0], dtype('float64'))
    """
    if isinstance(value, MutableArray):
        return value.value
    if isinstance(value, (jax.Array, np.ndarray)):
        return value
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


class OnHost:
    """A new NumPy array that an NDArray (its attribute `_later`) copies to a device when its value is read.

    Args:
        array: the array, which becomes read-only.
        place: function that copies it.
    """

    def __init__(self, array: np.ndarray, place: Callable[[np.ndarray], Any]) -> None:
        array.flags.writeable = False
        self.specs, self._place = (array,), place

    def read(self, _: int) -> Any:
        """Return the copy."""
        return self._place(self.specs[0])


def as_input(value: Any) -> Any:
    """Return `as_array(value)` for a program, which copies NumPy arrays faster than `jax.device_put`: also those `OnHost`."""
    source, _ = getattr(value, "_later", None) or (None, 0)
    return source.specs[0] if isinstance(source, OnHost) else as_array(value)


def is_constant(array: Any) -> bool:
    """Return whether this is a NumPy array that nobody can change: it owns its memory, and is read-only."""
    return isinstance(array, np.ndarray) and array.flags.owndata and not array.flags.writeable


def write_into(out: Any, value: Any) -> None:
    """Write `value` into an `out=` argument.

    Args:
        out: the destination, a MutableArray or a numpy array.
        value: array that broadcasts to the shape of `out`.

    Example:
        >>> out = np.zeros(2)
        >>> write_into(out, np.ones(2))
        >>> out.tolist()
        [1.0, 1.0]
    """
    if isinstance(out, MutableArray):
        out[:] = value
    else:
        out[...] = np.asarray(as_array(value))


def is_tracer(value: Any) -> bool:
    """Whether `value` is a JAX tracer, which has no concrete data and no device."""
    # exported by JAX, which has no public function for this test
    return isinstance(value, jax.core.Tracer)  # type: ignore[attr-defined]


def mutable_class(weight: Any) -> Callable[[Any], Any]:
    """Return the class to use for the optimizer state of `weight`: a mutable array class that is created from a value alone.

    That is the nearest such base class of the weight's type: for a view or a sparse array the dense class that it derives
    from, for any array that is not mutable `MutableArray`.
    """
    return next((base for base in type(weight).__mro__ if base.__init__ is MutableArray.__init__), MutableArray)


def replace(out: Any, value: jax.Array) -> None:
    """Write `value` into `out` in place; without a copy if `out` is a MutableArray of the same shape and dtype (the usual)."""
    if isinstance(out, MutableArray) and out.value.dtype == value.dtype and out.value.shape == value.shape:
        out.value = value
    else:
        write_into(out, value)


def _key(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(as_array(k) if isinstance(k, MutableArray) else k for k in key)
    return as_array(key) if isinstance(key, MutableArray) else key


def _squeeze_leading(value: Any, old: Any, key: Any) -> Any:
    """Return `value` without the leading axes of size 1 that `old[key]` lacks: NumPy ignores them, `.at[key].set` raises."""
    if value.ndim == 0 or value.shape[0] != 1:  # nothing to remove: skip computing the rank of old[key]
        return value
    if isinstance(old, np.ndarray):
        rank = old[key].ndim
    else:
        rank = old.ndim if _selects_all(key) else jax.eval_shape(lambda array: array[key], old).ndim
    while value.ndim > rank and value.shape[0] == 1:
        value = value.reshape(value.shape[1:])
    return value


def _with_placement_of(new: jax.Array, old: jax.Array) -> jax.Array:
    """Return `new` on the device(s) of `old`; uncommitted if `old` is uncommitted and on the same device."""
    if is_tracer(new) or is_tracer(old):
        return new
    return jax.device_put(new, old.sharding) if old.committed or old.devices() != new.devices() else new


def _selects_all(key: Any) -> bool:
    return key is Ellipsis or (isinstance(key, slice) and key == slice(None))


_stored_rows = jax.jit(stored_rows)
