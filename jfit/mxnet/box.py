"""The mutable cell of MXNet's classes: an array that can be written in place, though JAX arrays cannot.

Module and friends give and take plain arrays; what must alias (a parameter's data and gradient, the weight that a user's
own optimizer class updates, `out=` of a key-value store) goes through a `Box`.  The MXNet-spelled NDArray is a Box.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.optim.rows import stored_rows


class Box:
    """An array that can be written: `box[:] = value` replaces what it holds.

    Attributes:
        value: the array it holds, jax.Array or numpy (64-bit data of a file stays numpy until it is computed with).

    Example:
        >>> box = Box(np.zeros(3, "float32"))
        >>> box[:] = 2
        >>> box.asnumpy().tolist(), box.shape
        ([2.0, 2.0, 2.0], (3,))
    """

    __slots__ = ("__dict__", "value")
    __array_priority__ = 100.0

    def __init__(self, value: Any) -> None:
        self.value = unbox(value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        """NumPy scalar type, as MXNet reports it (`numpy.float32`)."""
        return np.dtype(self.value.dtype).type

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def asnumpy(self) -> np.ndarray:
        """A copy on the host; waits for the value."""
        return np.array(counters.read(self.value))  # sync: the caller asked for the numbers

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.value, dtype=dtype)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.value)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        return type(self)(self.value[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write in place: shape, dtype and device stay; values are cast and broadcast, surplus leading axes of size 1 go."""
        value, key, old = unbox(value), _key(key), self.value
        value = _fitted(value if isinstance(old, np.ndarray) else jnp.asarray(value), old, key)
        if isinstance(old, np.ndarray):
            fresh = np.array(old)
            fresh[key] = np.asarray(value)
            self.value = fresh
            return
        value = value.astype(old.dtype)
        new = value if _whole(key) and value.shape == self.shape else old.at[key].set(value)
        self.value = _back(new, old)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.asnumpy()!r})"


class RowsBox(Box):
    """A box of a table of which rows of zeros count as not stored, as in a row_sparse gradient.

    Example:
        >>> import jax.numpy as jnp
        >>> RowsBox(jnp.array([[0.0], [2.0]])).by_rows.indices.tolist()
        [2, 1]
    """

    __slots__ = ()
    stype = "row_sparse"

    @property
    def by_rows(self) -> Any:
        """The rows that are stored, as `jfit.optim.SparseRows`."""
        return _stored_rows(self.value)


def unbox(value: Any) -> Any:
    """The plain array (jax or numpy) behind anything array-like: a Box, an array, a list, a number.

    Example:
        >>> unbox(Box(np.ones(2, "float32"))).tolist(), unbox([1.0, 2.0]).dtype
        ([1.0, 1.0], dtype('float64'))
    """
    if isinstance(value, Box):
        return value.value
    if isinstance(value, (jax.Array, np.ndarray)):
        return value
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def write_into(out: Any, value: Any, what: str = "out") -> None:
    """Write a value into what a caller gave as `out=`: a Box or a numpy array.

    Raises:
        TypeError: a jax.Array, which cannot be written; the message says what to do.

    Example:
        >>> out = np.zeros(2)
        >>> write_into(out, np.ones(2))
        >>> out.tolist()
        [1.0, 1.0]
    """
    if isinstance(out, jax.Array):
        raise TypeError(
            f"{what} is a jax.Array, which cannot be written in place; take the value that the call returns, or pass a numpy "
            "array or an NDArray of jfit.mx"
        )
    if isinstance(out, Box):
        out[:] = value
    else:
        out[...] = np.asarray(unbox(value))


def traced(value: Any) -> bool:
    """Whether a value is a tracer of JAX, which has no data and no device."""
    return isinstance(value, jax.core.Tracer)  # type: ignore[attr-defined]


def box_of(weight: Any) -> Callable[[Any], Any]:
    """The kind of Box that a weight is, for the state beside it; of a view or a sparse array the plain kind it derives from."""
    return next((kind for kind in type(weight).__mro__ if kind.__init__ is Box.__init__), Box)


def replace(box: Any, value: jax.Array, what: str) -> None:
    """Write a result into `box`; without a copy where shape and dtype agree, as they nearly always do."""
    if isinstance(box, Box) and box.value.dtype == value.dtype and box.value.shape == value.shape:
        box.value = value
    else:
        write_into(box, value, what)


def _key(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(unbox(k) if isinstance(k, Box) else k for k in key)
    return unbox(key) if isinstance(key, Box) else key


def _fitted(value: Any, old: Any, key: Any) -> Any:
    if value.ndim == 0 or value.shape[0] != 1:  # nothing to drop: the target's rank need not be found
        return value
    rank = old.ndim if _whole(key) else jax.eval_shape(lambda array: array[key], old).ndim
    while value.ndim > rank and value.shape[0] == 1:
        value = value.reshape(value.shape[1:])
    return value


def _back(new: jax.Array, old: jax.Array) -> jax.Array:
    if traced(new) or traced(old):
        return new
    return jax.device_put(new, old.sharding) if old.committed or old.devices() != new.devices() else new


def _whole(key: Any) -> bool:
    return key is Ellipsis or (isinstance(key, slice) and key == slice(None))


_stored_rows = jax.jit(stored_rows)
