"""`mx.sym.Symbol`, a graph that can be bound to NDArrays, and the functions that create one."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.graph import compose, create, serial
from jfit.graph.nodes import bind_class
from jfit.graph.symbol import Symbol as Graph
from jfit.lowering.groups import variable_devices
from jfit.mxnet.context import Context
from jfit.mxnet.errors import MXNetError, NotImplementedForSymbol, translated
from jfit.mxnet.executor.executor import Executor, arrays_in_order, grad_reqs
from jfit.mxnet.groups import group_devices
from jfit.mxnet.namespaces import split_attributes
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import full as nd_full
from jfit.mxnet.precision import active
from jfit.mxnet.util import is_np_shape


class Symbol(Graph):
    """A network, or part of one, that can be bound to NDArrays and executed.

    Created by `mx.sym.Variable` and by the operators; the constructor is not meant to be called.

    Attributes:
        name: name of the output node.

    Example:
        >>> import jfit.mx as mx
        >>> y = mx.sym.Variable("x") * 2
        >>> y.eval(x=mx.nd.ones(2))[0].asnumpy().tolist()
        [2.0, 2.0]
    """

    __slots__ = ()
    NAMES_PER_PROCESS = True  # numbered as in MXNet, so that scripts can load files with automatic names
    PASSED_SHAPES_REPLACE = True

    def __bool__(self) -> bool:
        raise NotImplementedForSymbol(
            f"the truth value of {self!r} is known only at run time; use sym.where, or compare by `is`"
        )

    def infer_shape(self, *args: Any, **kwargs: Any):
        """Infer all shapes from those of some arguments.

        Args:
            args: shapes by position, in the order of `list_arguments`.
            kwargs: shapes by argument name.

        Returns:
            (argument shapes, output shapes, auxiliary shapes), or three None if a shape stays unknown.

        With NumPy shape semantics (`mx.np_shape`), an unknown size is -1 and an unknown shape None; a size 0 is known.
        """
        with translated():
            return _from_np_shapes(super().infer_shape, args, kwargs)

    def infer_shape_partial(self, *args: Any, **kwargs: Any):
        """Infer shapes as `infer_shape` does; a shape that stays unknown is ()."""
        with translated():
            return _from_np_shapes(super().infer_shape_partial, args, kwargs)

    def infer_type(self, *args: Any, **kwargs: Any):
        """Infer (argument dtypes, output dtypes, auxiliary dtypes) as NumPy scalar types, as in MXNet."""
        with translated():
            types = super().infer_type(*args, **kwargs)
        return tuple([np.dtype(t).type for t in part] for part in types)

    def infer_type_partial(self, *args: Any, **kwargs: Any):
        """Infer dtypes as `infer_type` does; a dtype that stays unknown is None."""
        with translated():
            types = super().infer_type_partial(*args, **kwargs)
        return tuple([None if t is None else np.dtype(t).type for t in part] for part in types)

    def list_attr(self, recursive: bool = False) -> dict[str, str]:
        """Attributes of the node as text; `recursive` raises a DeprecationWarning, as in MXNet: use `attr_dict`."""
        if recursive:
            raise DeprecationWarning("Symbol.list_attr has no recursive=True any more; use attr_dict, which has all nodes.")
        return super().list_attr()

    def get_backend_symbol(self, backend: str) -> Symbol:
        """Return the symbol itself: XLA optimizes it when it runs."""
        return self

    def optimize_for(self, backend: str, *args: Any, **kwargs: Any) -> Symbol:
        """Return the symbol itself: XLA optimizes it when it runs."""
        return self

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False, **kwargs: Any) -> Symbol:
        """`mx.sym.split_v2` of this symbol."""
        parts = split_attributes(indices_or_sections)
        return operator("_split_v2")(self, axis=axis, squeeze_axis=squeeze_axis, **parts, **kwargs)

    def astype(self, dtype: Any) -> Symbol:
        """Return the symbol cast to a dtype."""
        return operator("cast")(self, dtype=np.dtype(dtype).name)

    def tojson(self, remove_amp_cast: bool = True) -> str:
        """Return the graph as text in MXNet's symbol.json format.

        remove_amp_cast: leave out the casts of mixed-precision training.
        """
        return super().tojson(remove_amp_cast)

    def save(self, fname: str | os.PathLike[str], remove_amp_cast: bool = True) -> None:
        """Write the graph as a symbol.json file, atomically."""
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
        """Create an executor over existing arrays.

        Args:
            ctx: device of the computation.
            args: NDArrays of all arguments, by position (order of `list_arguments`) or by name.
            args_grad: NDArrays to write gradients into, by position or name; arguments without one get no gradient.
            grad_req: "write", "add" or "null" for all arguments, or a list, or a dict by name (missing names mean "null").
            aux_states: NDArrays of the auxiliary states, by position or name.
            group2ctx: `ctx_group` -> context: nodes with this attribute, and their arrays, are on the context of their group,
                all others on `ctx`, and so are the outputs.  A node without a group runs where its inputs are.
            shared_exec: accepted and ignored; XLA manages memory.

        Returns:
            Executor.

        Raises:
            ValueError: an array is missing, or there are too many.
        """
        names, aux_names = self.list_arguments(), self.list_auxiliary_states()
        arrays = arrays_in_order("args", args, names)
        grads = arrays_in_order("args_grad", args_grad, names, optional=True)
        reqs = grad_reqs(grad_req, names, grads)
        aux = arrays_in_order("aux_states", aux_states, aux_names)
        return Executor(self, ctx, arrays, grads, reqs, aux, group2ctx)

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
        """Create an executor over new arrays of zeros, whose shapes are inferred from the given ones.

        Args:
            ctx: device of the computation.
            grad_req: "write", "add" or "null" for all arguments, or a list, or a dict by name.
            type_dict: dtypes by argument name; float32 if nothing else can be inferred.
            stype_dict: accepted and ignored; all arrays are dense.
            group2ctx: `ctx_group` -> context: nodes with this attribute, and their arrays, are on the context of their group,
                all others on `ctx`, and so are the outputs.  A node without a group runs where its inputs are.
            shared_arg_names: arguments whose arrays and gradients are shared with `shared_exec`.
            shared_exec: executor to share these arrays and the auxiliary states with.
            shared_buffer: accepted and ignored; XLA manages memory.
            kwargs: shapes by argument name; other names, and values that are no shapes, are ignored.

        Returns:
            Executor.

        Raises:
            MXNetError: a shape cannot be inferred; the message lists the arguments.
            ValueError: a group in `group2ctx` has several contexts.

        Example:
            >>> import jfit.mx as mx
            >>> mx.sym.Flatten(mx.sym.Variable("x")).simple_bind(mx.cpu(), x=(2, 3, 4)).forward()[0].shape
            (2, 12)
        """
        names, aux_names = self.list_arguments(), self.list_auxiliary_states()
        known = {*names, *aux_names}
        kwargs = {n: s for n, s in kwargs.items() if n in known and isinstance(s, Sequence) and not isinstance(s, str)}
        shapes, aux_shapes = self._complete_shapes(kwargs)
        types, _, aux_types = self.infer_type(**dict(type_dict or {}))
        shared_args = {} if shared_exec is None else shared_exec.arg_dict
        groups = group_devices(self, group2ctx, Context(ctx).device) if group2ctx else {}
        devices = variable_devices(self, groups, ctx)

        def reuse_or_zeros(name: str, shape: Sequence[int], dtype: Any, shared: Mapping[str, Any]) -> NDArray:
            array = shared.get(name)
            if array is None or array.shape != tuple(shape) or array.dtype != np.dtype(dtype).type:
                return nd_full(tuple(shape), 0, devices[name], dtype)
            return array

        reusable = {n: shared_args[n] for n in shared_arg_names or () if n in shared_args}
        arrays = [reuse_or_zeros(n, s, t, reusable) for n, s, t in zip(names, shapes, types, strict=True)]
        reqs = grad_reqs(grad_req, names, None)
        shared_grads = {} if shared_exec is None else {n: shared_exec.grad_dict.get(n) for n in shared_arg_names or ()}
        grads: list[NDArray | None] = [
            None if reqs[n] == "null" else reuse_or_zeros(n, a.shape, a.dtype, shared_grads)
            for n, a in zip(names, arrays, strict=True)
        ]
        shared_aux = {} if shared_exec is None else shared_exec.aux_dict
        aux = [reuse_or_zeros(n, s, t, shared_aux) for n, s, t in zip(aux_names, aux_shapes, aux_types, strict=True)]
        return Executor(self, ctx, arrays, grads, reqs, aux, group2ctx)

    def _complete_shapes(self, known: Mapping[str, Sequence[int]]) -> tuple[list[Any], list[Any]]:
        shapes, _, aux = self.infer_shape(**known)
        if shapes is not None and aux is not None:
            return shapes, aux
        partial, _, aux_partial = self.infer_shape_partial(**known)
        names = (*self.list_arguments(), *self.list_auxiliary_states())
        pairs = zip(names, (*(partial or ()), *(aux_partial or ())), strict=True)
        unknown = [f"{n} {s or '?'}" for n, s in pairs if not s or 0 in s]
        raise MXNetError(f"simple_bind: the shapes of {', '.join(unknown)} cannot be inferred from {dict(known)}")

    def eval(self, ctx: Context | None = None, **kwargs: NDArray) -> list[NDArray]:
        """Bind the symbol to NDArrays by name and return its outputs, a list of NDArrays."""
        return self.bind(Context("cpu", 0) if ctx is None else ctx, kwargs, grad_req="null").forward()


_EMPTY = 1_000_000_007  # stands for a size 0, which is an unknown size in jfit's inference; a prime, so that products keep it


def _from_np_shapes(infer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function that infers shapes; with NumPy shape semantics, translate its arguments and results."""
    if not is_np_shape():
        return infer(*args, **kwargs)

    def inner(shape: Any) -> Any:
        return shape and tuple(_EMPTY if size == 0 else max(size, 0) for size in shape)

    parts = infer(*map(inner, args), **{name: inner(shape) for name, shape in kwargs.items()})
    outer = [part and [tuple(s % _EMPTY if s else -1 for s in shape) if shape else None for shape in part] for part in parts]
    return tuple(outer)


# ------------------------------------------------------------------------------------------------ functions
Variable = var = bind_class(Symbol, compose.variable)


def Group(symbols: Sequence[Graph], create_fn: Any = None) -> Symbol:
    """Combine symbols into one whose outputs are those of all of them.

    Args:
        symbols: list of symbols.
        create_fn: accepted and ignored.

    Returns:
        Symbol.

    Example:
        >>> Group([Variable("a"), Variable("b")]).list_outputs()
        ['a', 'b']
    """
    return compose.group(symbols, Symbol)


def load(fname: str | os.PathLike[str]) -> Symbol:
    """Read a graph from a symbol.json file of any MXNet version.

    Args:
        fname: path of the file.

    Returns:
        Symbol.

    Raises:
        MXNetError: the file does not exist or is damaged.

    Example:
        >>> (Variable("x") * 2).save("x-symbol.json")
        >>> load("x-symbol.json").list_arguments()
        ['x']
    """
    with translated():
        return serial.load(fname, Symbol)


def load_json(json_str: str) -> Symbol:
    """Read a graph from the text of a symbol.json file of any MXNet version.

    Args:
        json_str: content of the file.

    Returns:
        Symbol.

    Raises:
        MXNetError: the text is damaged.

    Example:
        >>> load_json((Variable("x") * 2).tojson()).list_arguments()
        ['x']
    """
    with translated():
        return serial.load_json(json_str, Symbol)


fromjson = load_json


@functools.cache
def operator(name: str) -> Any:
    """Return the function `mx.sym.<name>`, which adds a node to a graph.

    Args:
        name: name of any registered operator.

    Returns:
        Function of symbols and attributes, which returns a Symbol.

    Example:
        >>> operator("Flatten")(Variable("x"), name="flat").list_outputs()
        ['flat_output']
    """
    make = translated()(compose.function(name, Symbol))

    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        while args and args[-1] is None:  # a missing bias, as in F.FullyConnected(x, weight, None, no_bias=True)
            args = args[:-1]
        made = make(*args, **kwargs)
        return made if active.policy is None else active.policy.cast_symbol(made)

    return call


zeros, ones, full = (translated()(bind_class(Symbol, build)) for build in (create.zeros, create.ones, create.full))
arange, linspace = (translated()(bind_class(Symbol, build)) for build in (create.arange, create.linspace))
eye, histogram = (translated()(bind_class(Symbol, build)) for build in (create.eye, create.histogram))


def split_v2(ary: Symbol, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False, **kwargs: Any) -> Symbol:
    """Split an array along an axis, as `numpy.split`.

    Args:
        ary: the array.
        indices_or_sections: number of equal parts, or indices at which to split.
        axis: axis to split.
        squeeze_axis: remove the axis from parts of size 1.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol with one output per part.

    Example:
        >>> split_v2(Variable("x"), (1,)).infer_shape(x=(4, 3))[1]
        [(1, 3), (3, 3)]
    """
    return ary.split_v2(indices_or_sections, axis, squeeze_axis, **kwargs)
