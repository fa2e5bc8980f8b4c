"""The symbol that binds, and the functions that make one."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.graph import compose, serial
from jfit.graph.nodes import making
from jfit.graph.symbol import Symbol as Graph
from jfit.mxnet.context import Context
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.executor.executor import Executor, boxes_of, requests
from jfit.mxnet.namespaces import split_attributes
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import zeros as nd_zeros


class Symbol(Graph):
    """A network, or part of one, that binds to arrays.

    Example:
        >>> import jfit.mx as mx
        >>> y = mx.sym.Variable("x") * 2
        >>> y.eval(x=mx.nd.ones(2))[0].asnumpy().tolist()
        [2.0, 2.0]
    """

    __slots__ = ()

    def infer_shape(self, *args: Any, **kwargs: Any):
        """(argument shapes, output shapes, auxiliary shapes); three None where something stays unknown."""
        with translated():
            return super().infer_shape(*args, **kwargs)

    def infer_shape_partial(self, *args: Any, **kwargs: Any):
        """As `infer_shape`, with () for what stays unknown."""
        with translated():
            return super().infer_shape_partial(*args, **kwargs)

    def infer_type(self, *args: Any, **kwargs: Any):
        """(argument dtypes, output dtypes, auxiliary dtypes), numpy scalar types as in MXNet."""
        with translated():
            found = super().infer_type(*args, **kwargs)
        return tuple([np.dtype(t).type for t in part] for part in found)

    def infer_type_partial(self, *args: Any, **kwargs: Any):
        """As `infer_type`, with None for what stays unknown."""
        with translated():
            found = super().infer_type_partial(*args, **kwargs)
        return tuple([None if t is None else np.dtype(t).type for t in part] for part in found)

    def tojson(self, remove_amp_cast: bool = True) -> str:
        """The graph as symbol.json text."""
        return super().tojson(remove_amp_cast)

    def save(self, fname: str | os.PathLike[str], remove_amp_cast: bool = True) -> None:
        """Write symbol.json, atomically."""
        super().save(os.fspath(fname), remove_amp_cast)

    # -------------------------------------------------------------------------------- execution
    def bind(
        self,
        ctx: Context,
        args: Any,
        args_grad: Any = None,
        grad_req: Any = "write",
        aux_states: Any = None,
        group2ctx: Any = None,
        shared_exec: Executor | None = None,
    ) -> Executor:
        """An executor over these arrays.

        Args:
            ctx: where it computes.
            args: arrays by position (`list_arguments` order) or by name; all are needed.
            args_grad: arrays that take the gradients, by position or name; what is left out gets none.
            grad_req: write, add or null: one for all, a list, or a dict (null for what it leaves out).
            aux_states: auxiliary states by position or name.
            group2ctx: accepted; every group runs on `ctx`.
            shared_exec: accepted; memory is XLA's business.

        Raises:
            ValueError: an array is missing or too many were given.
        """
        names, aux_names = self.list_arguments(), self.list_auxiliary_states()
        arrays = boxes_of("args", args, names)
        grads = boxes_of("args_grad", args_grad, names, optional=True)
        wanted = requests(grad_req, names, grads)
        return Executor(self, ctx, arrays, grads, wanted, boxes_of("aux_states", aux_states, aux_names))

    def simple_bind(
        self,
        ctx: Context,
        grad_req: Any = "write",
        type_dict: Mapping[str, Any] | None = None,
        stype_dict: Any = None,
        group2ctx: Any = None,
        shared_arg_names: Sequence[str] | None = None,
        shared_exec: Executor | None = None,
        shared_buffer: dict[str, NDArray] | None = None,
        **kwargs: Sequence[int],
    ) -> Executor:
        """An executor over new arrays of zeros, their shapes inferred from the inputs'.

        Args:
            ctx: where it computes.
            grad_req: write, add or null: one for all, a list, or a dict.
            type_dict: dtypes by name; float32 where nothing says otherwise.
            stype_dict: accepted; arrays are dense.
            group2ctx: accepted; every group runs on `ctx`.
            shared_arg_names: arguments whose arrays (and gradients) are those of `shared_exec`.
            shared_exec: also lends its auxiliary states.
            shared_buffer: arrays by name to take from and to add to.
            kwargs: shapes by name.

        Raises:
            MXNetError: a shape cannot be inferred; the message names it.

        Example:
            >>> import jfit.mx as mx
            >>> mx.sym.Flatten(mx.sym.Variable("x")).simple_bind(mx.cpu(), x=(2, 3, 4)).forward()[0].shape
            (2, 12)
        """
        names, aux_names = self.list_arguments(), self.list_auxiliary_states()
        shapes, aux_shapes = self._complete_shapes(kwargs)
        types, _, aux_types = self.infer_type(**dict(type_dict or {}))
        lent = {} if shared_exec is None else shared_exec.arg_dict

        def made(name: str, shape: Sequence[int], dtype: Any, given: Mapping[str, Any]) -> NDArray:
            found = given.get(name)
            if found is None or found.shape != tuple(shape) or found.dtype != np.dtype(dtype).type:
                return nd_zeros(tuple(shape), ctx, dtype)
            return found

        own = {n: lent[n] for n in shared_arg_names or () if n in lent} | dict(shared_buffer or {})
        arrays = [made(n, s, t, own) for n, s, t in zip(names, shapes, types, strict=True)]
        if shared_buffer is not None:
            shared_buffer.update((n, a) for n, a in zip(names, arrays, strict=True) if n not in kwargs)
        wanted = requests(grad_req, names, None)
        old = {} if shared_exec is None else {n: shared_exec.grad_dict.get(n) for n in shared_arg_names or ()}
        grads: list[NDArray | None] = [
            None if wanted[n] == "null" else made(n, a.shape, a.dtype, old) for n, a in zip(names, arrays, strict=True)
        ]
        kept = {} if shared_exec is None else shared_exec.aux_dict
        aux = [made(n, s, t, kept) for n, s, t in zip(aux_names, aux_shapes, aux_types, strict=True)]
        return Executor(self, ctx, arrays, grads, wanted, aux)

    def _complete_shapes(self, given: Mapping[str, Sequence[int]]) -> tuple[list[Any], list[Any]]:
        shapes, _, aux = self.infer_shape(**given)
        if shapes is not None and aux is not None:
            return shapes, aux
        partial, _, aux_partial = self.infer_shape_partial(**given)
        names = (*self.list_arguments(), *self.list_auxiliary_states())
        pairs = zip(names, (*(partial or ()), *(aux_partial or ())), strict=True)
        open_ones = [f"{n} {s or '?'}" for n, s in pairs if not s or 0 in s]
        raise MXNetError(
            f"simple_bind: the shapes of {', '.join(open_ones)} cannot be inferred from {dict(given)}; give more shapes"
        )

    def eval(self, ctx: Context | None = None, **kwargs: NDArray) -> list[NDArray]:
        """The outputs for these arrays, by name."""
        return self.bind(Context("cpu", 0) if ctx is None else ctx, kwargs, grad_req="null").forward()

    def gradient(self, wrt: Any) -> Any:
        """MXNet never had it working either: bind the symbol and call backward."""
        raise NotImplementedError("Symbol.gradient is not implemented; bind the symbol and call backward on the executor")


# ------------------------------------------------------------------------------------------------ functions
Variable = var = making(Symbol, compose.variable)


def Group(symbols: Sequence[Graph], create_fn: Any = None) -> Symbol:
    """One symbol with the outputs of several."""
    return compose.group(symbols, Symbol)


def load(fname: str | os.PathLike[str]) -> Symbol:
    """Read a symbol.json file of any MXNet version."""
    with translated():
        return serial.load(fname, Symbol)


def load_json(json_str: str) -> Symbol:
    """A symbol from symbol.json text."""
    with translated():
        return serial.load_json(json_str, Symbol)


fromjson = load_json


@functools.cache
def operator(name: str) -> Any:
    """The graph-building function of an operator."""
    build = compose.function(name, Symbol)

    @functools.wraps(build)
    def call(*args: Any, **kwargs: Any) -> Any:
        with translated():
            return build(*args, **kwargs)

    return call


def zeros(shape: Any, dtype: Any = "float32", **kwargs: Any) -> Symbol:
    """y = 0 everywhere."""
    return operator("_zeros")(shape=shape, dtype=dtype or "float32", **kwargs)


def ones(shape: Any, dtype: Any = "float32", **kwargs: Any) -> Symbol:
    """y = 1 everywhere."""
    return operator("_ones")(shape=shape, dtype=dtype or "float32", **kwargs)


def full(shape: Any, val: float, dtype: Any = "float32", **kwargs: Any) -> Symbol:
    """y = val everywhere."""
    return operator("_full")(shape=shape, value=float(val), dtype=dtype or "float32", **kwargs)


def arange(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, **kwargs: Any) -> Symbol:
    """start, start + step, ... below stop, each `repeat` times."""
    return operator("_arange")(start=start, stop=stop, step=step, repeat=repeat, **kwargs)


def split_v2(ary: Symbol, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False, **kwargs: Any) -> Symbol:
    """Parts of an array along an axis: so many equal ones, or cut at these indices."""
    parts = split_attributes(indices_or_sections)
    return operator("_split_v2")(ary, axis=axis, squeeze_axis=squeeze_axis, **parts, **kwargs)
