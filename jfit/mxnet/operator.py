"""`mx.operator`: operators whose work is done by Python code, as in MXNet: CustomOp, CustomOpProp, register.

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

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from jfit.mxnet.context import current_context
from jfit.mxnet.ndarray.array import NDArray
from jfit.ops import ALIASES, lookup
from jfit.ops.attributes import DTYPES
from jfit.ops.custom import HOSTS

__all__ = [
    "CustomOp",
    "CustomOpProp",
    "OperatorArguments",
    "get_all_registered_operators",
    "get_operator_arguments",
    "register",
]

LEAST_THREADS = 32


class CustomOp:
    """The work of an operator; one is made for each node and device, and may keep what its passes share."""

    def forward(self, is_train: bool, req: list[str], in_data: list, out_data: list, aux: list) -> None:
        """Compute the outputs.

        Args:
            is_train: training mode.
            req: for each output how to write it; see `assign`.
            in_data: inputs, NDArrays.
            out_data: outputs, to be written with `assign`.
            aux: auxiliary states, to be read and written; a program keeps what training passes write here.
        """

    def backward(self, req: list[str], out_grad: list, in_data: list, out_data: list, in_grad: list, aux: list) -> None:
        """Compute the gradients of the inputs.

        Args:
            req: for each input how to write its gradient; `null` where nobody wants one.
            out_grad: gradients of the outputs.
            in_data: inputs.
            out_data: outputs.
            in_grad: gradients of the inputs, to be written with `assign`.
            aux: auxiliary states, as forward left them; what is written here is lost.
        """

    def assign(self, dst: Any, req: str, src: Any) -> None:
        """Write `src` into `dst`: not at all (null), in its place (write, inplace), or on top of it (add)."""
        if req in ("write", "inplace"):
            dst[:] = src
        elif req == "add":
            dst[:] = dst + src
        elif req != "null":
            raise ValueError(f"req is {req!r}, needed null, write, inplace or add")


class CustomOpProp:
    """What an operator is: its inputs and outputs, their shapes and dtypes, and how to make a `CustomOp`.

    Args:
        need_top_grad: its gradient depends on that of its outputs; False for losses.
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the auxiliary states."""
        return []

    def infer_shape(self, in_shape: list) -> tuple:
        """(input shapes, output shapes, shapes of auxiliary states) from those of the inputs; [] is an unknown one."""
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list) -> tuple:
        """(input dtypes, output dtypes, dtypes of auxiliary states) from those of the inputs."""
        return in_type, [in_type[0]] * len(self.list_outputs()), [in_type[0]] * len(self.list_auxiliary_states())

    def infer_storage_type(self, in_stype: list) -> tuple:
        """Storage types; arrays are dense here."""
        return in_stype, ["default"] * len(self.list_outputs()), ["default"] * len(self.list_auxiliary_states())

    def infer_storage_type_backward(
        self, ograd_stype: list, in_stype: list, out_stype: list, igrad_stype: list, aux_stype: list
    ) -> tuple:
        """Storage types of the backward pass; arrays are dense here."""
        return tuple(["default"] * len(s) for s in (ograd_stype, in_stype, out_stype, igrad_stype, aux_stype))

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Which arrays backward reads; without any of `out_grad` the operator makes its own gradient, as a loss does."""
        return [*(out_grad if self.need_top_grad_ else ()), *in_data, *out_data]

    def create_operator(self, ctx: Any, in_shapes: list, in_dtypes: list) -> CustomOp:
        """The operator for a context, shapes, and dtypes (numbered as MXNet numbers them), inputs then states."""
        return CustomOp()


def register(reg_name: str) -> Callable[[type[CustomOpProp]], type[CustomOpProp]]:
    """Decorator: a `CustomOpProp` class becomes `Custom(..., op_type=reg_name)`; its arguments arrive as strings.

    Register before the first computation: the process then gets threads enough for arrays that the class computes with
    while several devices run it.
    """
    _more_threads()

    def add(prop_cls: type[CustomOpProp]) -> type[CustomOpProp]:
        HOSTS[reg_name] = lambda own: _PropHost(cast(Any, prop_cls)(**own))
        return prop_cls

    return add


def _more_threads() -> None:
    """Threads enough for programs on the CPU, if none has run yet and nobody says otherwise.

    A thread that runs the code of an operator waits there for the copies of its arrays, and for programs on them, which other
    threads make: where there are as few threads as (emulated) devices, all would wait for each other for ever.
    """
    if (os.cpu_count() or 1) < LEAST_THREADS:
        os.environ.setdefault("PJRT_NPROC", str(LEAST_THREADS))


def get_all_registered_operators() -> list[str]:
    """Names of all operators, aliases included."""
    return sorted(ALIASES)


class OperatorArguments(NamedTuple):
    """What an operator takes."""

    narg: int
    names: list[str]
    types: list[str]


def get_operator_arguments(op_name: str) -> OperatorArguments:
    """Number, names and types of an operator's inputs and attributes.

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
    return OperatorArguments(len(names), names, [*[kind] * len(arrays), *(a.kind for a in op.attrs.values())])


class _PropHost:
    """A `CustomOpProp` as `jfit.ops.custom.Host`."""

    def __init__(self, prop: CustomOpProp) -> None:
        self.prop = prop
        self.arguments = tuple(prop.list_arguments())
        self.outputs = tuple(prop.list_outputs())
        self.states = tuple(prop.list_auxiliary_states())
        outs, ins = len(self.outputs), len(self.arguments)
        numbers = list(range(2 * outs + ins))  # of the gradients of outputs, of inputs, of outputs
        needed = prop.declare_backward_dependency(numbers[:outs], numbers[outs : outs + ins], numbers[outs + ins :])
        self.head = not set(needed) & set(numbers[:outs])
        self._made: dict[Any, CustomOp] = {}
        self._lock = threading.Lock()

    def shapes(self, ins: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """As `CustomOpProp.infer_shape`, tuples; None for an unknown shape."""
        found = self.prop.infer_shape([list(s or ()) for s in ins])
        return self._three("infer_shape", found, lambda s: tuple(int(n) for n in s), scalars=ins)

    def types(self, ins: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """As `CustomOpProp.infer_type`; numpy scalar types for the class, dtypes outside."""
        found = self.prop.infer_type([None if t is None else np.dtype(t).type for t in ins])
        return self._three("infer_type", found, lambda t: None if t is None else np.dtype(t))

    def _three(
        self, what: str, found: Sequence[Any], read: Callable[[Any], Any], scalars: Sequence[Any] = ()
    ) -> tuple[list[Any], list[Any], list[Any]]:
        if len(found) not in (2, 3):
            raise ValueError(f"{what} returned {len(found)} lists, needed those of inputs, outputs and auxiliary states")
        parts = [[read(v) for v in part] for part in (*found, [])[:3]]
        for name, part, wanted in zip(("inputs", "outputs", "states"), parts, self._counts(), strict=True):
            if len(part) != wanted and not (name == "states" and not part):
                raise ValueError(f"{what} returned {len(part)} entries for the {name}, there are {wanted}")
        if scalars:  # an empty shape is an unknown one, unless it was given
            parts = [[v if v != () or () in scalars else None for v in part] for part in parts]
        return parts[0], parts[1], parts[2] or [None] * len(self.states)

    def _counts(self) -> tuple[int, int, int]:
        return len(self.arguments), len(self.outputs), len(self.states)

    def _operator(self, place: tuple[Any, ...], arrays: Sequence[np.ndarray]) -> CustomOp:
        key = (*place, tuple((a.shape, a.dtype) for a in arrays))
        with self._lock:  # devices call at the same time
            if key not in self._made:
                numbers = [list(DTYPES.values()).index(a.dtype) for a in arrays]
                self._made[key] = self.prop.create_operator(current_context(), [list(a.shape) for a in arrays], numbers)
            return self._made[key]

    def forward(self, place: tuple[Any, ...], train: bool, ins: Any, outs: Any, states: Any) -> tuple[list, list]:
        """As `CustomOp.forward`, on arrays of the host."""
        made = self._operator(place, [*ins, *states])
        boxes, aux = _boxes(outs), _boxes(states)
        made.forward(is_train=train, req=["write"] * len(outs), in_data=_boxes(ins), out_data=boxes, aux=aux)
        return _values(boxes), _values(aux)

    def backward(self, place: tuple[Any, ...], heads: Any, ins: Any, outs: Any, grads: Any) -> list[Any]:
        """As `CustomOp.backward`, on arrays of the host; states follow the inputs."""
        count, made = len(self.arguments), self._operator(place, ins)
        blank = [np.zeros(i.shape, i.dtype) if g is None else g for g, i in zip(grads, ins[:count], strict=True)]
        boxes = _boxes(blank)
        made.backward(
            req=["null" if g is None else "write" for g in grads],
            out_grad=_boxes(heads),
            in_data=_boxes(ins[:count]),
            out_data=_boxes(outs),
            in_grad=boxes,
            aux=_boxes(ins[count:]),
        )
        return _values(boxes)


def _boxes(arrays: Sequence[np.ndarray]) -> list[NDArray]:
    return [NDArray(a) for a in arrays]


def _values(boxes: Sequence[NDArray]) -> list[np.ndarray]:
    return [np.asarray(b.value) for b in boxes]


HOSTS["custom_op"] = lambda own: _PropHost(cast(Any, CustomOpProp)(**own))
