"""`mx.operator`: operators computed by Python code on the host: CustomOp, CustomOpProp, register; NumpyOp.

>>> import jfit.mx as mx
>>> @mx.operator.register("doc_twice")
... class TwiceProp(mx.operator.CustomOpProp):
...     def create_operator(self, ctx, in_shapes, in_dtypes):
...         return Twice()
>>> class Twice(mx.operator.CustomOp):
...     def forward(self, is_train, req, in_data, out_data, aux):
...         self.assign(out_data[0], req[0], in_data[0] * 2)
...     def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
...         self.assign(in_grad[0], req[0], out_grad[0] * 2)
>>> mx.nd.Custom(mx.nd.ones(2), op_type="doc_twice").asnumpy().tolist()
[2.0, 2.0]
"""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from jfit import checks
from jfit.mxnet.context import current_context
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.recording.tape import on_host
from jfit.mxnet.symbol.symbol import operator as symbol_function
from jfit.ops import ALIASES, lookup
from jfit.ops.attributes import DTYPES, REQUIRED, Attr
from jfit.ops.custom import HOSTS

MIN_THREADS = 32


class CustomOp:
    """Base class for the computation of a custom operator.

    One instance is created per node and device; it may store values in forward for use in backward.

    The NDArrays that forward and backward receive are NumPy arrays inside.  Indexing, reshape, asnumpy, assign, + - * / and
    comparisons of float arrays, `mx.nd.array`, zeros, ones and full use NumPy, too.  Other functions of `mx.nd`, and the code's
    own `jax.numpy`, run programs of JAX.  They may: a program of jfit that calls Python is waited for before the next is
    dispatched.  In a function that you compile yourself (`jax.jit(model.apply)`), call `jax.block_until_ready` on its results
    before you dispatch more; else such code can wait for ever for a place among the 32 programs of a device that XLA runs at
    once.  In graphs with `ctx_group`s on several devices, whose stages are not waited for, use NumPy only.  The code may never
    read arrays that are computed from the results of the operator.

    Example:
        >>> class Twice(CustomOp):
        ...     def forward(self, is_train, req, in_data, out_data, aux):
        ...         self.assign(out_data[0], req[0], in_data[0] * 2)
    """

    def forward(self, is_train: bool, req: list[str], in_data: list, out_data: list, aux: list) -> None:
        """Compute the outputs.

        Args:
            is_train: True in training mode.
            req: write mode of each output; pass it to `assign`.
            in_data: input NDArrays.
            out_data: output NDArrays; write them with `assign`.
            aux: auxiliary states, NDArrays; values written here in training mode are kept.
        """

    def backward(self, req: list[str], out_grad: list, in_data: list, out_data: list, in_grad: list, aux: list) -> None:
        """Compute the gradients of the inputs.

        Args:
            req: write mode of each input gradient; `null` for a gradient that is not needed.
            out_grad: gradients with respect to the outputs, NDArrays.
            in_data: inputs of the forward pass.
            out_data: outputs of the forward pass.
            in_grad: gradients with respect to the inputs, NDArrays; write them with `assign`.
            aux: auxiliary states after the forward pass; values written here are discarded.
        """

    def assign(self, dst: Any, req: str, src: Any) -> None:
        """Write `src` into `dst` according to `req`.

        Args:
            dst: the NDArray to write.
            req: "null" (leave `dst` unchanged), "write" or "inplace" (dst = src), or "add" (dst = dst + src).
            src: the values.

        Raises:
            ValueError: `req` is none of these.
        """
        if req in ("write", "inplace"):
            dst[:] = src
        elif req == "add":
            dst[:] = dst + src
        else:
            checks.one_of(("null", "write", "inplace", "add"), req=req)


class CustomOpProp:
    """Base class for the description of a custom operator: names, shape and dtype inference, and creation of its `CustomOp`.

    Arrays are dense, so methods of a subclass that infer storage types are never called.

    Args:
        need_top_grad: whether backward uses the gradients of the outputs; False for losses.

    Example:
        >>> CustomOpProp().infer_shape([[2, 3]])
        ([[2, 3]], [[2, 3]], [])
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Return the names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Return the names of the auxiliary states."""
        return []

    def infer_shape(self, in_shape: list) -> tuple:
        """Infer shapes: input shapes -> (input shapes, output shapes, auxiliary-state shapes); [] is an unknown shape."""
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list) -> tuple:
        """Infer dtypes: input dtypes -> (input dtypes, output dtypes, auxiliary-state dtypes)."""
        return in_type, [in_type[0]] * len(self.list_outputs()), [in_type[0]] * len(self.list_auxiliary_states())

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Return the ids of the arrays that backward reads; if no `out_grad` id is among them, the operator is a loss."""
        return [*(out_grad if self.need_top_grad_ else ()), *in_data, *out_data]

    def create_operator(self, ctx: Any, in_shapes: list, in_dtypes: list) -> CustomOp:
        """Create the `CustomOp` of a node on a device.

        Args:
            ctx: the context.
            in_shapes: shapes of the inputs, then of the auxiliary states.
            in_dtypes: their dtypes, as MXNet's type numbers (0 is float32).
        """
        return CustomOp()


def register(reg_name: str) -> Callable[[type[CustomOpProp]], type[CustomOpProp]]:
    """Class decorator that makes a `CustomOpProp` available as `Custom(..., op_type=reg_name)`.

    The attributes of the node are passed to the constructor as strings.  Register before the first computation of the process,
    so that XLA's CPU client starts with enough threads to run the operator on several devices at once.  jfit waits for each
    program that contains the operator, so the host prepares nothing meanwhile; see `CustomOp` for what its code may call.

    Args:
        reg_name: name of the operator.

    Returns:
        Decorator that returns the class unchanged.

    Example:
        >>> @register("doc_same")
        ... class SameProp(CustomOpProp):
        ...     pass
    """
    _more_threads()

    def add(prop_cls: type[CustomOpProp]) -> type[CustomOpProp]:
        HOSTS[reg_name] = lambda attrs: _PropHost(cast(Any, prop_cls)(**attrs))
        return prop_cls

    return add


def _more_threads() -> None:
    """Set PJRT_NPROC so that XLA's CPU client starts with MIN_THREADS threads or more.

    It has no effect once the client has started, or if PJRT_NPROC is set already.  A thread that calls a custom operator blocks
    until another one has copied its arrays (`jax.pure_callback` passes jax arrays).  With as few threads as (emulated) devices,
    all could block at once, in callbacks and in sums over the devices.  One device needs no more threads.
    """
    if (os.cpu_count() or 1) < MIN_THREADS:
        os.environ.setdefault("PJRT_NPROC", str(MIN_THREADS))


def get_all_registered_operators() -> list[str]:
    """Return the names of all operators, including aliases.

    Returns:
        Sorted list of names.

    Example:
        >>> "FullyConnected" in get_all_registered_operators()
        True
    """
    return sorted(ALIASES)


class OperatorArguments(NamedTuple):
    """Inputs and attributes of an operator.

    Attributes:
        narg: number of inputs and attributes.
        names: their names, inputs first.
        types: their types as text, such as "NDArray-or-Symbol" or "int".

    Example:
        >>> get_operator_arguments("relu").names
        ['data']
    """

    narg: int
    names: list[str]
    types: list[str]


def get_operator_arguments(op_name: str) -> OperatorArguments:
    """Return the number, names and types of an operator's inputs and attributes.

    Args:
        op_name: name or alias of the operator.

    Returns:
        OperatorArguments.

    Example:
        >>> get_operator_arguments("Flatten")
        OperatorArguments(narg=1, names=['data'], types=['NDArray-or-Symbol'])
        >>> get_operator_arguments("FullyConnected").names[:3]
        ['data', 'weight', 'bias']
    """
    op = lookup(op_name)
    arrays = ["data"] if op.variadic else [*op.usual_inputs]
    kind = "NDArray-or-Symbol[]" if op.variadic else "NDArray-or-Symbol"
    names = [*arrays, *op.attrs]
    return OperatorArguments(len(names), names, [*[kind] * len(arrays), *map(_described, op.attrs.values())])


def _described(attr: Attr) -> str:
    """Return the type of an attribute in MXNet's words, where these are known."""
    choices = attr.kind.removeprefix("one of ")
    if choices == attr.kind or choices.endswith(" or None"):
        return attr.kind
    default = "required" if attr.default is REQUIRED else f"optional, default={attr.default!r}"
    return f"{{{', '.join(map(repr, choices.split(', ')))}}}, {default}"


class _PropHost:
    """Adapter from MXNet's `CustomOpProp` (NDArrays, lists) to `jfit.ops.custom.Host`, which runs custom operators in JAX."""

    def __init__(self, prop: CustomOpProp, hint: str = "custom") -> None:
        self.prop, self.hint = prop, hint
        self.arguments = tuple(prop.list_arguments())
        self.outputs = tuple(prop.list_outputs())
        self.states = tuple(prop.list_auxiliary_states())
        outs, ins = len(self.outputs), len(self.arguments)
        numbers = list(range(2 * outs + ins))  # ids: output gradients, then inputs, then outputs
        needed = prop.declare_backward_dependency(numbers[:outs], numbers[outs : outs + ins], numbers[outs + ins :])
        self.head = not set(needed) & set(numbers[:outs])
        self._operators: dict[Any, CustomOp] = {}
        self._lock = threading.Lock()

    def shapes(self, ins: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Call `CustomOpProp.infer_shape` with the input shapes (None: unknown).

        Returns (input, output and auxiliary-state shapes) as tuples; None for an unknown shape.
        """
        result = self.prop.infer_shape([list(s or ()) for s in ins])
        return self._checked("infer_shape", result, lambda s: tuple(int(n) for n in s), input_shapes=ins)

    def types(self, ins: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Call `CustomOpProp.infer_type` with NumPy scalar types.

        Returns (input, output and auxiliary-state dtypes) as NumPy dtypes.
        """
        result = self.prop.infer_type([None if t is None else np.dtype(t).type for t in ins])
        return self._checked("infer_type", result, lambda t: None if t is None else np.dtype(t))

    def _checked(
        self, method: str, result: Sequence[Any], convert: Callable[[Any], Any], input_shapes: Sequence[Any] = ()
    ) -> tuple[list[Any], list[Any], list[Any]]:
        parts = [[convert(v) for v in part] for part in (*result, [])[:3]]
        counts = len(self.arguments), len(self.outputs), len(self.states)
        for name, part, expected in zip(("inputs", "outputs", "states"), parts, counts, strict=True):
            if len(part) != expected and not (name == "states" and not part):
                raise ValueError(f"{method} returned {len(part)} entries for the {name}, expected {expected}")
        if input_shapes:  # () is a scalar's shape only if an input is a scalar; otherwise it means unknown
            parts = [[v if v != () or () in input_shapes else None for v in part] for part in parts]
        return parts[0], parts[1], parts[2] or [None] * len(self.states)

    def _operator(self, place: tuple[Any, ...], arrays: Sequence[np.ndarray]) -> CustomOp:
        key = (*place, tuple((a.shape, a.dtype) for a in arrays))
        with self._lock:  # the threads of several devices call concurrently
            if key not in self._operators:
                dtypes = [list(DTYPES.values()).index(a.dtype) for a in arrays]
                self._operators[key] = self.prop.create_operator(current_context(), [list(a.shape) for a in arrays], dtypes)
            return self._operators[key]

    @on_host()
    def forward(self, place: tuple[Any, ...], train: bool, ins: Any, outs: Any, states: Any) -> tuple[list, list]:
        """Call `CustomOp.forward` on NumPy arrays, for the node and device `place`; returns (outputs, new auxiliary states)."""
        operator = self._operator(place, [*ins, *states])
        outputs, aux = _ndarrays(outs), _ndarrays(states)
        operator.forward(is_train=train, req=["write"] * len(outs), in_data=_ndarrays(ins), out_data=outputs, aux=aux)
        return _values(outputs), _values(aux)

    @on_host()
    def backward(self, place: tuple[Any, ...], heads: Any, ins: Any, outs: Any, grads: Any) -> list[Any]:
        """Call `CustomOp.backward` on NumPy arrays; returns the gradients.  `ins`: the inputs, then the auxiliary states."""
        count, operator = len(self.arguments), self._operator(place, ins)
        zeros = [np.zeros(i.shape, i.dtype) if g is None else g for g, i in zip(grads, ins[:count], strict=True)]
        in_grad, req = _ndarrays(zeros), ["null" if g is None else "write" for g in grads]
        others = {"out_grad": heads, "in_data": ins[:count], "out_data": outs, "aux": ins[count:]}
        operator.backward(req=req, in_grad=in_grad, **{name: _ndarrays(arrays) for name, arrays in others.items()})
        return _values(in_grad)


def _ndarrays(arrays: Sequence[np.ndarray]) -> list[NDArray]:
    return [NDArray(a) for a in arrays]


def _values(arrays: Sequence[NDArray]) -> list[np.ndarray]:
    return [np.asarray(a.value) for a in arrays]


# -------------------------------------------------------------------------------- classes before CustomOp
class PythonOp(CustomOpProp):
    """Base class of `NumpyOp` and `NDArrayOp`, objects that describe and compute an operator; deprecated.

    Args:
        need_top_grad: whether backward uses the gradients of the outputs; False for losses.

    Example:
        >>> with warnings.catch_warnings(action="ignore"):
        ...     NumpyOp().infer_shape([(2, 3)])
        ([(2, 3)], [(2, 3)])
    """

    _hint = ""

    def __init__(self, need_top_grad: bool = True) -> None:
        super().__init__(need_top_grad)
        for kind in reversed(type(self).__mro__[:-2]):
            if kind.__module__ == __name__:
                warnings.warn(f"{kind.__name__} is deprecated. Please use CustomOp", stacklevel=2)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Same as `get_symbol`."""
        return self.get_symbol(*args, **kwargs)

    def get_symbol(self, *args: Any, **kwargs: Any) -> Any:
        """Create a symbol: one node that this object computes.

        Args:
            args: the inputs, symbols in the order of `list_arguments`; a missing one becomes a variable.
            kwargs: inputs by name, and `name`, the name of the node.

        Raises:
            NotImplementedError: the object is neither a NumpyOp nor an NDArrayOp.
        """
        if not self._hint:
            raise NotImplementedError(f"{type(self).__name__}: derive the class from NumpyOp or NDArrayOp, which make symbols.")
        kind = f"{self._hint}{next(_COUNT)}"
        _more_threads()
        HOSTS[kind] = lambda attrs: _PropHost(self, self._hint)
        return symbol_function("Custom")(*args, op_type=kind, **kwargs)

    def forward(self, in_data: list, out_data: list) -> None:
        """Compute the outputs from the inputs, and write them with `out_data[0][:] = ...`; by default a copy."""
        out_data[0][:] = in_data[0]

    def backward(self, out_grad: list, in_data: list, out_data: list, in_grad: list) -> None:
        """Compute the gradients of the inputs, and write them with `in_grad[0][:] = ...`; by default 1."""
        in_grad[0][:] = 1.0

    def infer_shape(self, in_shape: list) -> tuple:
        """Infer shapes: input shapes -> (input shapes, output shapes)."""
        return in_shape, [in_shape[0]]

    def create_operator(self, ctx: Any, in_shapes: list, in_dtypes: list) -> CustomOp:
        """Create the `CustomOp` that calls `forward` and `backward` of this object."""
        return _PythonOpRun(self)

    def need_top_grad(self) -> bool:
        """Return whether backward uses the gradients of the outputs."""
        return self.need_top_grad_


class NumpyOp(PythonOp):
    """An operator whose `forward` and `backward` compute with NumPy arrays.

    Example:
        >>> import jfit.mx as mx
        >>> class Square(mx.operator.NumpyOp):
        ...     def forward(self, in_data, out_data):
        ...         out_data[0][:] = in_data[0] ** 2
        ...     def backward(self, out_grad, in_data, out_data, in_grad):
        ...         in_grad[0][:] = 2 * in_data[0] * out_grad[0]
        >>> with warnings.catch_warnings(action="ignore"):
        ...     net = Square()(mx.sym.Variable("x"), name="square")
        >>> net.eval(x=mx.nd.array([3.0]))[0].asnumpy().tolist()
        [9.0]
    """

    _hint = "_native"


class NDArrayOp(PythonOp):
    """An operator whose `forward` and `backward` compute with NDArrays; see `NumpyOp` and, for what they may call, `CustomOp`.

    Example:
        >>> with warnings.catch_warnings(action="ignore"):
        ...     NDArrayOp(need_top_grad=False).declare_backward_dependency([0], [1], [2])
        [1, 2]
    """

    _hint = "_ndarray"


_COUNT = itertools.count()


class _PythonOpRun(CustomOp):
    def __init__(self, op: PythonOp) -> None:
        self.op = op

    def _arrays(self, arrays: dict[str, list]) -> dict[str, list]:
        if isinstance(self.op, NDArrayOp):
            return arrays
        return {name: [a.value for a in values] for name, values in arrays.items()}  # NumPy arrays, written in place

    def forward(self, is_train: bool, req: Any, aux: Any, **arrays: list) -> None:
        self.op.forward(**self._arrays(arrays))

    def backward(self, req: Any, aux: Any, **arrays: list) -> None:
        self.op.backward(**self._arrays(arrays))


HOSTS["custom_op"] = lambda attrs: _PropHost(cast(Any, CustomOpProp)(**attrs))
