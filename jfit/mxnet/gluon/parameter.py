"""gluon's Parameter: a weight with a copy of its data and gradient on every device.

Data and gradients are `MutableArray`s, updated in place; `cast`, `reset_ctx` and `initialize` allocate new ones.  The
attribute `_fresh_grad` of each data array records whether its gradient was written since the last step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import init as initializers
from jfit.graph import Variable
from jfit.init.core import draw_one
from jfit.mxnet import initializer, keys
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.kvstore.transfer import device_put_all, private_copy, sharding_of, sum_groups, write
from jfit.mxnet.mutable import as_array
from jfit.parallel import contexts

STYPES = ("default", "row_sparse", "csr")
GRAD_REQS = ("write", "add", "null")


class DeferredInitializationError(MXNetError):
    """Raised when the values of a parameter are accessed before its shape is known.

    Example:
        >>> weight = Parameter("weight", shape=(2, 0), allow_deferred_init=True)
        >>> weight.initialize()
        >>> weight.data()
        Traceback (most recent call last):
            ...
        jfit.mxnet.gluon.parameter.DeferredInitializationError: parameter 'weight' has no values yet: its shape ...
    """


class Parameter:
    """A weight with shape, multipliers and initializer, and with a copy of its data and gradient on each device.

    Random initial values are determined by the seed of `mx.random` and the order of initializations.  `data` and `grad` of
    this class return jax arrays; those of `jfit.mx.gluon.Parameter` return the NDArrays themselves, which can be written.

    Args:
        name: unique name.
        grad_req: "write" (each gradient replaces the last one), "add" (gradients accumulate until `zero_grad`) or "null"
            (no gradient).
        shape: shape, 0 for unknown sizes; an int is a shape of one axis.
        dtype: dtype of data and gradient.
        lr_mult: learning rate multiplier.
        wd_mult: weight decay multiplier.
        init: initializer (see `jfit.init.get`); None: that of `initialize`.
        allow_deferred_init: whether `initialize` may be called before the shape is known.
        differentiable: False fixes grad_req to "null".
        stype: storage type of the data, "default" or "row_sparse".
        grad_stype: storage type of the gradient, "default" or "row_sparse".

    Raises:
        AssertionError: an invalid grad_req, stype or grad_stype.

    Example:
        >>> weight = Parameter("fc_weight", shape=(2, 3), init="one")
        >>> weight.initialize()
        >>> weight.data().shape, weight.grad().tolist()[0]
        ((2, 3), [0.0, 0.0, 0.0])

    Source: Apache MXNet 1.9.1, `mxnet.gluon.Parameter`.
    """

    arrays: ArrayTypes = PLAIN
    _initializer_of: Callable[[Any], Any] = staticmethod(initializers.get)

    def __init__(
        self,
        name: str,
        grad_req: str = "write",
        shape: Any = None,
        dtype: Any = np.float32,
        lr_mult: float = 1.0,
        wd_mult: float = 1.0,
        init: Any = None,
        allow_deferred_init: bool = False,
        differentiable: bool = True,
        stype: str = "default",
        grad_stype: str = "default",
    ) -> None:
        stypes = stype, grad_stype
        assert {*stypes} <= {*STYPES}, f"stype and grad_stype of parameter {name!r} are {stypes}; expected two of {STYPES}"
        self.name, self.lr_mult, self.wd_mult, self.init = name, lr_mult, wd_mult, init
        self._shape = (shape,) if isinstance(shape, int) else shape
        self._dtype, self._stype, self._grad_stype = dtype, stype, grad_stype
        self._allow_deferred_init, self._differentiable = allow_deferred_init, differentiable
        self._data: list[Any] | None = None  # one MutableArray per context
        self._grad: list[Any] | None = None
        self._contexts: list[Any] = []
        self._deferred: tuple[Any, Any] | None = None  # (initializer, data set before the shape was known or None)
        self._trainer: Any = None
        self._var: Any = None
        self._grad_req = "null"
        self.grad_req = grad_req

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.name} (shape={self.shape}, dtype={self.dtype})"

    @property
    def grad_req(self) -> str:
        """ "write", "add" or "null"; "null" frees the gradient.  Setting another value raises AssertionError."""
        return self._grad_req

    @grad_req.setter
    def grad_req(self, req: str) -> None:
        assert req in GRAD_REQS, f"grad_req of parameter {self.name!r} is {req!r}; it must be one of {', '.join(GRAD_REQS)}."
        before, self._grad_req = self._grad_req, req if self._differentiable else "null"
        if self._data is not None and self._grad_req != before:
            self._allocate_grad()

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape, 0 for unknown sizes, which may be set; a shape that contradicts a known size raises AssertionError."""
        return self._shape

    @shape.setter
    def shape(self, new: Sequence[int]) -> None:
        new = tuple(new)
        fits = self._shape is None or merged_shape(new, self._shape) == new
        assert fits, f"parameter {self.name!r} has shape {self._shape}, which {new} contradicts."
        self._shape = new

    @property
    def dtype(self) -> Any:
        """dtype of data and gradients; setting it casts them."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self.cast(dtype)

    stype = property(attrgetter("_stype"), doc="Storage type of the data.")
    grad_stype = property(attrgetter("_grad_stype"), doc="Storage type of the gradient.")

    def initialize(self, init: Any = None, ctx: Any = None, default_init: Any = "uniform", force_reinit: bool = False) -> None:
        """Initialize the values, equal on all contexts.

        Unlike in Module, the name is not used: a bias is initialized like a weight.

        Args:
            init: initializer; takes precedence over the parameter's `init`.
            ctx: context, device or list of them; None is the current context.
            default_init: initializer if both `init` and the parameter's `init` are None; "uniform" is `Uniform(0.07)`.
            force_reinit: initialize again if the parameter already has values.

        Raises:
            ValueError: the shape is not known and `allow_deferred_init` is False.
        """
        if self._data is not None and not force_reinit:
            message = f"parameter {self.name!r} is already initialized and left unchanged; pass force_reinit=True"
            warnings.warn(message, stacklevel=2)
            return
        chosen = next((i for i in (init, self.init, default_init) if i is not None), None)
        if not self._shape_is_known() and not self._allow_deferred_init:
            raise ValueError(
                f"parameter {self.name!r}: its shape {self.shape} is not fully known; set it, or allow_deferred_init."
            )
        # compute the values first: if the initializer raises, the parameter is unchanged
        values = self._initial_value(chosen) if self._shape_is_known() else None
        self._data, self._grad, self._contexts = None, None, self._context_list(ctx)
        self._deferred = (chosen, values)
        self._finish_deferred_init()

    def _set_trainer(self, trainer: Any) -> None:
        """Make `trainer` the one that updates this parameter; None: no trainer."""
        if self._stype != "default" and None not in (self._trainer, trainer) and self._trainer is not trainer:
            raise RuntimeError(f"parameter {self.name!r} is row_sparse, and in the store of another trainer.")
        self._trainer = trainer

    def set_data(self, data: Any) -> None:
        """Set the values on every context; a parameter of unknown shape takes the shape of `data`.

        A trainer that updates in its key-value store then creates a new store, as in MXNet, which resets its optimizer state.

        Args:
            data: array of the parameter's shape.

        Raises:
            AssertionError: `data` has another shape, or `initialize` was not called.
        """
        data = as_array(data)
        self.shape = data.shape
        if self._data is None:
            assert self._deferred is not None, f"parameter {self.name!r} is not initialized; call initialize() first."
            self._deferred = (self._deferred[0], data)
            self._finish_deferred_init()
            return
        if self._trainer is not None:
            self._trainer._on_data_set(self)
        data = private_copy(data)  # the caller may donate its array
        write([(cell, data) for cell in self._data])

    def data(self, ctx: Any = None) -> Any:
        """Return the values on one context.

        Args:
            ctx: context or device; None: the only context, or the current one if there are several.

        Raises:
            RuntimeError: not initialized, not on that context, or of storage type row_sparse.
            DeferredInitializationError: the shape is not known yet.
        """
        return self.arrays.wrap(self._at(self._dense(), ctx))

    def list_data(self) -> list[Any]:
        """Return the values on all contexts, a list with one array per context; raises the errors of `data`."""
        return [self.arrays.wrap(cell) for cell in self._cells(self._dense())]

    def row_sparse_data(self, row_id: Any) -> Any:
        """Return a row_sparse parameter as a dense array on the first context, with all rows except `row_id` set to 0.

        The next call writes to the same array, and a backward pass writes the gradient of the parameter, as in MXNet.

        Args:
            row_id: integer array of row indices.

        Raises:
            RuntimeError: the storage type is not row_sparse, or the parameter has no trainer.
        """
        rows, cell = self._rows(row_id), self._cells(self._data)[0]
        write([(cell, rows)])
        return self.arrays.wrap(cell)

    def list_row_sparse_data(self, row_id: Any) -> list[Any]:
        """Return a list with one result of `row_sparse_data(row_id)` per context (all are on the first context)."""
        return [self.row_sparse_data(row_id) for _ in self.list_ctx()]

    def grad(self, ctx: Any = None) -> Any:
        """Return the gradient on one context.

        Args:
            ctx: as in `data`.

        Raises:
            RuntimeError: grad_req is "null", or the parameter is not initialized, or not on that context.
        """
        return self.arrays.wrap(self._at(self._with_grad(), ctx))

    def list_grad(self) -> list[Any]:
        """Return the gradients, a list with one array per context.

        Raises:
            RuntimeError: grad_req is "null", or the parameter is not initialized.
        """
        return [self.arrays.wrap(cell) for cell in self._cells(self._with_grad())]

    def set_grad(self, value: Any, ctx: Any = None) -> None:
        """Set the gradient (grad_req "add": add to it) and mark it as fresh, as a backward pass does.

        Args:
            value: array of the parameter's shape.
            ctx: as in `data`.

        Example:
            >>> weight = Parameter("w", shape=(2,))
            >>> weight.initialize()
            >>> weight.set_grad(np.ones(2, "float32"))
            >>> weight.grad().tolist()
            [1.0, 1.0]
        """
        cell, value = self._at(self._with_grad(), ctx), as_array(value)
        write([(cell, sum_groups([[cell.value, value]])[0] if self.grad_req == "add" else value)])
        self._at(self._data, ctx)._fresh_grad = True

    def list_ctx(self) -> list[Any]:
        """Return the list of the parameter's contexts; raise RuntimeError if it is not initialized."""
        if self._data is None and self._deferred is None:
            raise RuntimeError(f"parameter {self.name!r} is not initialized, so it has no context; call initialize().")
        return list(self._contexts)

    def zero_grad(self) -> None:
        """Set the gradients on all contexts to 0 in place; does nothing if the parameter has no gradient."""
        for cell in self._grad or ():
            cell[:] = 0

    def reset_ctx(self, ctx: Any) -> None:
        """Move the parameter to other contexts; its new value is the mean over the current contexts.

        Args:
            ctx: context, device or list of them.

        Raises:
            ValueError: not initialized.
        """
        if self._data is None and self._deferred is None:
            raise ValueError(f"parameter {self.name!r} is not initialized, so its context cannot change; call initialize().")
        mean = None if self._data is None else self._reduce()
        self._contexts = self._context_list(ctx)
        if mean is not None:
            self._allocate(mean)

    def cast(self, dtype: Any) -> None:
        """Cast data and gradients to another dtype, in new arrays."""
        self._dtype = dtype
        cast = lambda cells: cells and [self.arrays.mutable(cell.value.astype(dtype)) for cell in cells]  # noqa: E731
        self._data, self._grad = cast(self._data), cast(self._grad)
        self._connect()

    def var(self) -> Any:
        """Return the Symbol variable of this parameter, the same one at each call."""
        if self._var is None:
            attrs = {name: getattr(self, name) for name in ("shape", "lr_mult", "wd_mult", "init", "stype")}
            self._var = self.arrays.symbol(Variable(self.name, dtype=np.dtype(self.dtype).name, **attrs))
        return self._var

    @staticmethod
    def _current_context() -> Any:
        return contexts.Context(jax.local_devices()[0].platform, 0)

    def _context_list(self, ctx: Any) -> list[Any]:
        # a Context is itself a tuple
        many = isinstance(ctx, (list, tuple)) and not isinstance(ctx, contexts.Context)
        return list(ctx) if many else [self._current_context() if ctx is None else ctx]

    def _shape_is_known(self) -> bool:
        return self._shape is not None and all(n > 0 for n in self._shape)

    def _finish_deferred_init(self) -> None:
        if self._deferred is not None and self._shape_is_known():
            (chosen, data), self._deferred = self._deferred, None
            self._allocate(self._initial_value(chosen) if data is None else data)

    def _initial_value(self, init: Any) -> Any:
        chosen, shape = self._initializer_of(init), self._shape or ()
        if isinstance(chosen, initializer.BothSignatures) or initializer.writes_in_place(chosen):
            cell = self.arrays.mutable(jnp.zeros(shape, np.dtype(self.dtype)))
            # in gluon the initializer treats every parameter as a weight, regardless of its name
            if hasattr(chosen, "_init_weight"):
                initializer.Initializer()(initializers.InitDesc(self.name, {"__init__": chosen}), cell)
            else:
                chosen(initializers.InitDesc(self.name), cell)
            return cell.value
        if isinstance(chosen, (initializers.Load, initializers.Mixed)):  # these select values by name
            return draw_one(chosen, keys.next_key(), self.name, shape, self.dtype)
        desc = initializers.InitDesc(self.name, {"__init__": chosen})
        return draw_one(initializers.Initializer(), keys.next_key(), desc, shape, self.dtype)

    def _allocate(self, data: Any) -> None:
        places = [device_of(ctx) for ctx in self._contexts]
        data = private_copy(data.astype(np.dtype(self.dtype)))  # the caller may donate his
        # one copy per context, even if two contexts are the same device
        self._data = [self.arrays.mutable(v) for v in device_put_all([data] * len(places), places)]
        self._allocate_grad()

    def _allocate_grad(self) -> None:
        cells = self._cells(self._data)
        self._grad = None
        if self._grad_req != "null":
            zeros = [np.zeros(cell.shape, cell.dtype) for cell in cells]
            self._grad = [self.arrays.mutable(v) for v in device_put_all(zeros, [sharding_of(cell.value) for cell in cells])]
        self._connect()

    def _connect(self) -> None:
        """Make the data variables whose gradients `mx.autograd` writes to this parameter's."""
        for cell, grad in zip(self._data or (), self._grad or [None] * len(self._data or ()), strict=True):
            cell.grad, cell._grad_req, cell._fresh_grad = grad, None if grad is None else self._grad_req, False

    def _reduce(self) -> Any:
        """Return the mean of the values over the contexts, on the first context."""
        if self._stype != "default":
            return self._rows(np.arange((self._shape or (0,))[0]))
        cells = self._cells(self._data)
        return sum_groups([[cell.value for cell in cells]])[0] / len(cells) if len(cells) > 1 else cells[0].value

    def _rows(self, row_id: Any) -> Any:
        if self._stype != "row_sparse" or self._trainer is None:
            problem = f"parameter {self.name!r} of storage type {self._stype!r} is not in the store of a Trainer"
            raise RuntimeError(f"{problem}, as row_sparse ones are; create a Trainer first, or use data().")
        return self._trainer._row_sparse_pull(self, row_id)

    def _dense(self) -> list[Any] | None:
        if self._stype != "default":
            raise RuntimeError(f"parameter {self.name!r} has storage type {self._stype!r}; use row_sparse_data(row_id).")
        return self._data

    def _with_grad(self) -> list[Any] | None:
        if self._data is not None and self._grad is None:
            raise RuntimeError(f"parameter {self.name!r} has no gradient, because its grad_req is 'null'.")
        return self._grad

    def _cells(self, cells: list[Any] | None) -> list[Any]:
        if cells is not None:
            return cells
        if self._deferred is not None:
            problem = f"has no values yet: its shape {self.shape} is not fully known"
            raise DeferredInitializationError(f"parameter {self.name!r} {problem}; set its shape, or call set_data().")
        raise RuntimeError(f"parameter {self.name!r} is not initialized; call initialize() first.")

    def _at(self, cells: list[Any] | None, ctx: Any) -> Any:
        cells = self._cells(cells)
        if ctx is None and len(cells) == 1:
            return cells[0]
        device = device_of(self._current_context() if ctx is None else ctx)
        for cell, context in zip(cells, self._contexts, strict=True):
            if device_of(context) == device:
                return cell
        raise RuntimeError(f"parameter {self.name!r} is not on {ctx or device}; it was initialized on {self._contexts}.")


def device_of(ctx: Any) -> Any:
    """Return the jax.Device of a context; a jax.Device is returned unchanged.

    Example:
        >>> device_of(contexts.cpu(0)).platform
        'cpu'
    """
    return ctx.device if hasattr(ctx, "device") else ctx


def merged_shape(new: Sequence[int], old: Sequence[int]) -> tuple[int, ...] | None:
    """Merge two shapes: a size that is unknown (0 or negative) is taken from the other shape.

    Return None if two known sizes differ, or the numbers of axes do.

    Example:
        >>> merged_shape((2, 0), (0, 3)), merged_shape((2, 3), (2, 4))
        ((2, 3), None)
    """
    if len(new) != len(old) or any(a != b and a > 0 and b > 0 for a, b in zip(new, old, strict=True)):
        return None
    return tuple(int(max(a, b)) for a, b in zip(new, old, strict=True))
