"""A parameter with a copy of its data and gradient on every device, as gluon has it.

Data and gradients sit in cells that every update writes into; `cast`, `reset_ctx` and `initialize` make new ones.  A flag on
each data cell says whether its gradient is newer than the last step; a new cell's says no.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import init as initializers
from jfit.graph import Variable
from jfit.mxnet import initializer, keys
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.kvstore.transfer import moved, private_copy, sharding_of, total, write
from jfit.mxnet.mutable import as_array
from jfit.parallel import devices

STYPES = ("default", "row_sparse", "csr")
GRAD_REQS = ("write", "add", "null")


class DeferredInitializationError(MXNetError):
    """The values are asked for before the shape is known.

    Example:
        >>> weight = Parameter("weight", shape=(2, 0), allow_deferred_init=True)
        >>> weight.initialize()
        >>> weight.data()
        Traceback (most recent call last):
            ...
        jfit.mxnet.gluon.parameter.DeferredInitializationError: parameter 'weight' has no values yet: its shape ...
    """


class Parameter:
    """Name, shape, multipliers and initializer of a weight, with its data and gradient per device.

    Args:
        name: unique name.
        grad_req: `write` (each gradient replaces the last), `add` (until `zero_grad`), `null` (none).
        shape: sizes, 0 where unknown; an int is one axis.
        dtype: of data and gradient.
        lr_mult: factor of the learning rate.
        wd_mult: factor of the weight decay.
        init: initializer (see `jfit.init.get`); None leaves it to `initialize`.
        allow_deferred_init: `initialize` may be called before the shape is known.
        differentiable: False fixes grad_req at `null`.
        stype: `default` or `row_sparse` data.
        grad_stype: `default` or `row_sparse` gradient.

    Random values come from the seed of `jfit.mxnet.keys`: the same seed and the same order of initializations give the same
    values.  Plain arrays come out here; `jfit.mx` gives the cells themselves, which can be written.

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
        for what, value in (("stype", stype), ("grad_stype", grad_stype)):
            if value not in STYPES:
                raise AssertionError(f"{what} of parameter {name!r} is {value!r}; it must be one of {', '.join(STYPES)}.")
        self.name, self.lr_mult, self.wd_mult, self.init = name, lr_mult, wd_mult, init
        self._shape = (shape,) if isinstance(shape, int) else shape
        self._dtype, self._stype, self._grad_stype = dtype, stype, grad_stype
        self._allow_deferred_init, self._differentiable = allow_deferred_init, differentiable
        self._data: list[Any] | None = None  # a cell per context
        self._grad: list[Any] | None = None
        self._contexts: list[Any] = []
        self._deferred: tuple[Any, Any] | None = None  # (initializer, data given early)
        self._trainer: Any = None
        self._grad_req = "null"
        self.grad_req = grad_req

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.name} (shape={self.shape}, dtype={self.dtype})"

    @property
    def grad_req(self) -> str:
        """`write`, `add` or `null`; `null` frees the gradient.  Raises AssertionError for anything else."""
        return self._grad_req

    @grad_req.setter
    def grad_req(self, req: str) -> None:
        if req not in GRAD_REQS:
            raise AssertionError(f"grad_req of parameter {self.name!r} is {req!r}; it must be one of {', '.join(GRAD_REQS)}.")
        req = req if self._differentiable else "null"
        if req == self._grad_req:
            return
        self._grad_req = req
        if self._data is not None:
            self._make_grad()

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Sizes, 0 where unknown; unknown sizes may be set.  Raises AssertionError for a shape that contradicts a known one."""
        return self._shape

    @shape.setter
    def shape(self, new: Sequence[int]) -> None:
        new = tuple(new)
        if self._shape is not None and not _fits(new, self._shape):
            raise AssertionError(f"parameter {self.name!r} has shape {self._shape}, which {new} does not fit.")
        self._shape = new

    @property
    def dtype(self) -> Any:
        """Type of the values; setting it casts them."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self.cast(dtype)

    @property
    def stype(self) -> str:
        """Storage type of the data."""
        return self._stype

    @property
    def grad_stype(self) -> str:
        """Storage type of the gradient."""
        return self._grad_stype

    def initialize(self, init: Any = None, ctx: Any = None, default_init: Any = "uniform", force_reinit: bool = False) -> None:
        """Give the parameter values on one context or several, the same on each.

        Args:
            init: initializer that wins over the parameter's own.
            ctx: context, device or list of them; None is the current one.
            default_init: used where neither `init` nor the parameter's own is given; `Uniform(0.07)`.
            force_reinit: again, though there are values.

        Unlike in Module, the name plays no part: a bias gets what the initializer gives a weight.

        Raises:
            ValueError: the shape is not known, and `allow_deferred_init` is off.
        """
        if self._data is not None and not force_reinit:
            warnings.warn(
                f"parameter {self.name!r} is initialized already, so nothing is done; pass force_reinit=True to do it again.",
                stacklevel=2,
            )
            return
        chosen = next((i for i in (init, self.init, default_init) if i is not None), None)
        if not self._known() and not self._allow_deferred_init:
            raise ValueError(
                f"parameter {self.name!r} cannot be initialized, because its shape {self.shape} is not fully known; set "
                "shape first, or allow_deferred_init=True and set it later."
            )
        values = self._draw(chosen) if self._known() else None  # an initializer that fails leaves everything as it was
        self._data, self._grad, self._contexts = None, None, self._listed(ctx)
        self._deferred = (chosen, values)
        self._finish_deferred_init()

    def set_data(self, data: Any) -> None:
        """Write values to every context; a deferred parameter takes its shape from them.

        Args:
            data: array of the parameter's shape.

        Raises:
            AssertionError: another shape, or a parameter that was never initialized.

        A trainer that updates in its key-value store makes a new one, as in MXNet: its optimizer state starts again.
        """
        data = as_array(data)
        self.shape = data.shape
        if self._data is None:
            if self._deferred is None:
                raise AssertionError(f"parameter {self.name!r} is not initialized; call initialize() before set_data().")
            self._deferred = (self._deferred[0], data)
            self._finish_deferred_init()
            return
        if self._trainer is not None:
            self._trainer._data_was_set(self)
        data = private_copy(data)  # the caller may donate his
        write([(cell, data) for cell in self._data])

    def data(self, ctx: Any = None) -> Any:
        """The values on a context.

        Args:
            ctx: context or device; None is the only one, or the current one.

        Raises:
            RuntimeError: not initialized, not on that context, or stored by rows.
            DeferredInitializationError: the shape is not known yet.
        """
        return self.arrays.wrap(self._at(self._dense(), ctx))

    def list_data(self) -> list[Any]:
        """The values on every context; raises as `data` does."""
        return [self.arrays.wrap(cell) for cell in self._cells(self._dense())]

    def row_sparse_data(self, row_id: Any) -> Any:
        """The rows of `row_id` of a parameter stored by rows, all others 0; dense, on the first context.

        Raises:
            RuntimeError: a dense parameter, or one without a trainer.
        """
        if self._stype != "row_sparse":
            raise RuntimeError(f"parameter {self.name!r} has storage type {self._stype!r}; ask for data() instead.")
        return self.arrays.wrap(self.arrays.mutable(self._rows(row_id)))

    def list_row_sparse_data(self, row_id: Any) -> list[Any]:
        """`row_sparse_data` once per context."""
        return [self.row_sparse_data(row_id) for _ in self.list_ctx()]

    def grad(self, ctx: Any = None) -> Any:
        """The gradient on a context.

        Raises:
            RuntimeError: grad_req is `null`, not initialized, or not on that context.
        """
        return self.arrays.wrap(self._at(self._with_grad(), ctx))

    def list_grad(self) -> list[Any]:
        """The gradients on every context; raises as `grad` does."""
        return [self.arrays.wrap(cell) for cell in self._cells(self._with_grad())]

    def set_grad(self, value: Any, ctx: Any = None) -> None:
        """Write a gradient (with grad_req `add`, add to it) and mark it as new, as a backward pass does.

        Args:
            value: array of the parameter's shape.
            ctx: context or device; None is the only one, or the current one.

        Example:
            >>> weight = Parameter("w", shape=(2,))
            >>> weight.initialize()
            >>> weight.set_grad(np.ones(2, "float32"))
            >>> weight.grad().tolist()
            [1.0, 1.0]
        """
        cell, value = self._at(self._with_grad(), ctx), as_array(value)
        write([(cell, total([[cell.value, value]])[0] if self.grad_req == "add" else value)])
        self._at(self._data, ctx)._fresh_grad = True

    def list_ctx(self) -> list[Any]:
        """The contexts it is initialized on.  Raises RuntimeError where there are none."""
        if self._data is None and self._deferred is None:
            raise RuntimeError(f"parameter {self.name!r} is not initialized, so it is on no context; call initialize().")
        return list(self._contexts)

    def zero_grad(self) -> None:
        """Set the gradients to 0; nothing happens where there are none."""
        for cell in self._grad or ():
            cell[:] = 0

    def reset_ctx(self, ctx: Any) -> None:
        """Move to other contexts; the values become the mean over the present ones.

        Raises:
            ValueError: not initialized.
        """
        if self._data is None and self._deferred is None:
            raise ValueError(f"parameter {self.name!r} is not initialized, so its context cannot change; call initialize().")
        mean = None if self._data is None else self._reduce()
        self._contexts = self._listed(ctx)
        if mean is not None:
            self._make(mean)

    def cast(self, dtype: Any) -> None:
        """Change the type of data and gradients."""
        self._dtype = dtype
        if self._data is not None:
            self._data = [self.arrays.mutable(cell.value.astype(dtype)) for cell in self._data]
        if self._grad is not None:
            self._grad = [self.arrays.mutable(cell.value.astype(dtype)) for cell in self._grad]

    def var(self) -> Any:
        """The symbol variable of the parameter."""
        dtype, shape = np.dtype(self.dtype).name, self.shape if self._known() else None
        found = Variable(self.name, shape=shape, dtype=dtype, lr_mult=self.lr_mult, wd_mult=self.wd_mult, init=self.init)
        return self.arrays.symbol(found)

    @staticmethod
    def _current_context() -> Any:
        return devices.Context(jax.local_devices()[0].platform, 0)

    def _listed(self, ctx: Any) -> list[Any]:
        # a Context is a tuple itself
        many = isinstance(ctx, (list, tuple)) and not isinstance(ctx, devices.Context)
        return list(ctx) if many else [self._current_context() if ctx is None else ctx]

    def _known(self) -> bool:
        return self._shape is not None and all(n > 0 for n in self._shape)

    def _finish_deferred_init(self) -> None:
        if self._deferred is None or not self._known():
            return
        (chosen, data), self._deferred = self._deferred, None
        self._make(self._draw(chosen) if data is None else data)

    def _draw(self, init: Any) -> Any:
        chosen, shape = self._initializer_of(init), self._shape or ()
        if isinstance(chosen, initializer.TwoForms) or initializer.writes_in_place(chosen):
            cell = self.arrays.mutable(jnp.zeros(shape, np.dtype(self.dtype)))
            # gluon's rule: the initializer treats every parameter as a weight, whatever its name ends in
            if hasattr(chosen, "_init_weight"):
                initializer.Initializer()(initializers.InitDesc(self.name, {"__init__": chosen}), cell)
            else:
                chosen(initializers.InitDesc(self.name), cell)
            return cell.value
        if isinstance(chosen, (initializers.Load, initializers.Mixed)):  # these go by the name
            return chosen(keys.next_key(), self.name, shape, self.dtype)
        desc = initializers.InitDesc(self.name, {"__init__": chosen})
        return initializers.Initializer()(keys.next_key(), desc, shape, self.dtype)

    def _make(self, data: Any) -> None:
        places = [device_of(ctx) for ctx in self._contexts]
        data = private_copy(data.astype(np.dtype(self.dtype)))  # the caller may donate his
        # one copy per context: two contexts may be one device
        self._data = [self.arrays.mutable(v) for v in moved([data] * len(places), places)]
        self._make_grad()

    def _make_grad(self) -> None:
        if self._grad_req == "null":
            self._grad = None
            return
        cells = self._cells(self._data)
        zeros = [np.zeros(cell.shape, cell.dtype) for cell in cells]
        self._grad = [self.arrays.mutable(v) for v in moved(zeros, [sharding_of(cell.value) for cell in cells])]

    def _reduce(self) -> Any:
        """Mean over the contexts, on the first."""
        if self._stype != "default":
            return self._rows(np.arange((self._shape or (0,))[0]))
        cells = self._cells(self._data)
        return total([[cell.value for cell in cells]])[0] / len(cells) if len(cells) > 1 else cells[0].value

    def _rows(self, row_id: Any) -> Any:
        if self._trainer is None:
            raise RuntimeError(f"parameter {self.name!r} is stored by rows in the store of a Trainer; create one first.")
        return self._trainer._row_sparse_pull(self, row_id)

    def _dense(self) -> list[Any] | None:
        if self._stype != "default":
            raise RuntimeError(f"parameter {self.name!r} has storage type {self._stype!r}; ask for row_sparse_data(row_id).")
        return self._data

    def _with_grad(self) -> list[Any] | None:
        if self._data is not None and self._grad is None:
            raise RuntimeError(f"parameter {self.name!r} has no gradient, because its grad_req is 'null'.")
        return self._grad

    def _cells(self, cells: list[Any] | None) -> list[Any]:
        if cells is not None:
            return cells
        if self._deferred is not None:
            raise DeferredInitializationError(
                f"parameter {self.name!r} has no values yet: its shape {self.shape} is not fully known; set its shape, or "
                "its data with set_data()."
            )
        raise RuntimeError(f"parameter {self.name!r} is not initialized; call initialize() first.")

    def _at(self, cells: list[Any] | None, ctx: Any) -> Any:
        cells = self._cells(cells)
        if ctx is None and len(cells) == 1:
            return cells[0]
        device = device_of(self._current_context() if ctx is None else ctx)
        for cell, own in zip(cells, self._contexts, strict=True):
            if device_of(own) == device:
                return cell
        raise RuntimeError(f"parameter {self.name!r} is not on {ctx or device}; it was initialized on {self._contexts}.")


def device_of(ctx: Any) -> Any:
    """The jax.Device of a context or device.

    Example:
        >>> device_of(devices.cpu(0)).platform
        'cpu'
    """
    return ctx.device if hasattr(ctx, "device") else ctx


def _fits(new: tuple[int, ...], old: Sequence[int]) -> bool:
    return len(new) == len(old) and all(b in (0, -1, a) for a, b in zip(new, old, strict=True))
