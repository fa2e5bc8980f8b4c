"""Executor: a graph bound to arrays, whose forward and backward write outputs, gradients and auxiliary states in place.

`forward` is deferred (`jfit.mxnet.deferred`): outputs are computed when they are read, or by `backward`, which computes
outputs, gradients and new auxiliary states in one program, with the random key of the forward pass.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import checks
from jfit.graph.symbol import Symbol
from jfit.lowering.groups import variable_devices
from jfit.mxnet.context import Context, place
from jfit.mxnet.deferred import Deferred
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.executor.programs import programs_of
from jfit.mxnet.groups import group_devices
from jfit.mxnet.keys import next_key
from jfit.mxnet.module.binding import moving_aux, requests_of
from jfit.mxnet.module.exec_group import Callback
from jfit.mxnet.mutable import MutableArray, OnHost, as_input, is_constant
from jfit.mxnet.ndarray.array import NDArray, later
from jfit.mxnet.ndarray.create import full
from jfit.mxnet.ndarray.invoke import on_device

__all__ = ["Executor"]
Arrays = Sequence[Any]  # NDArrays; None as the gradient of an argument without one


class Executor:
    """A graph bound to arrays, created by `Symbol.bind` and `Symbol.simple_bind`.

    Attributes:
        arg_arrays, grad_arrays, aux_arrays: NDArrays in the order of `list_arguments` and `list_auxiliary_states`; the gradient
            is None for arguments that get none.
        arg_dict, grad_dict, aux_dict: the same by name.
        outputs: NDArrays of the last `forward`.

    Example:
        >>> import jfit.mx as mx
        >>> y = mx.sym.square(mx.sym.Variable("x"))
        >>> ex = y.bind(mx.cpu(), {"x": mx.nd.array([3])}, args_grad={"x": mx.nd.zeros(1)})
        >>> ex.forward(is_train=True)[0].item()
        9.0
        >>> ex.backward([mx.nd.ones(1)])
        >>> ex.grad_dict["x"].item()
        6.0
    """

    def __init__(
        self, symbol: Symbol, ctx: Any, args: Arrays, grads: Arrays, grad_req: Any, aux: Arrays, group2ctx: Any = None
    ) -> None:
        self._symbol, self._ctx, self._req = symbol, Context(ctx), dict(grad_req)
        groups = group_devices(symbol, group2ctx, self._ctx.device)
        self._group2ctx, self._devices = group2ctx, variable_devices(symbol, groups, self._ctx.device) if groups else {}
        self.arg_arrays, self.grad_arrays, self.aux_arrays = list(args), list(grads), list(aux)
        names = symbol.list_arguments()
        duplicates = sorted({n for n in names if names.count(n) > 1})
        if duplicates:
            raise MXNetError(f"several variables are named {duplicates[0]!r}; rename them, or use one variable")
        self.arg_dict = dict(zip(names, self.arg_arrays, strict=True))
        self.grad_dict = dict(zip(names, self.grad_arrays, strict=True))
        self.aux_dict = dict(zip(symbol.list_auxiliary_states(), self.aux_arrays, strict=True))
        with translated():
            self._programs = programs_of(symbol.heads, groups, self._ctx.device)
        self._ones = {n: jnp.ones_like(jnp.asarray(self.arg_dict[n].value)) for n in sorted(self._programs.model.frozen)}
        self._device_copies: dict[Any, tuple[weakref.ref[Any], Any]] = {}
        self._deferred: Deferred | None = None  # the last pass
        self._recorded: Any = None  # its (training mode, arrays or None if they are released, random key)
        self._outputs: list[NDArray] = []
        self._monitor: Callback | None = None

    # -------------------------------------------------------------------------------- forward and backward
    def forward(self, is_train: bool = False, **kwargs: Any) -> list[NDArray]:
        """Run the forward pass on the current values of the arguments; computed when the outputs are read.

        Args:
            is_train: training mode.
            kwargs: new values of arguments by name, written into the bound arrays.

        Returns:
            The outputs, NDArrays.

        Raises:
            TypeError: an argument name is unknown.
            ValueError: a value's shape differs from that of the bound array.
        """
        for name, value in kwargs.items():
            self._write_input(name, value)
        for name, one in self._ones.items():  # MXNet's BatchNorm writes 1 into a fixed gamma
            if self.arg_dict[name].value is not one:
                self.arg_dict[name].value = one
        key = jax.random.key_data(next_key()) if self._programs.random else _fixed_key()
        train, arrays = bool(is_train), self._arrays()
        self._deferred = deferred = Deferred(functools.partial(self._run_forward, train, arrays, key))
        self._recorded = train, arrays, key
        self._outputs = [later(deferred, i) for i in range(len(self._symbol.heads))]
        self._notify_monitor(lambda every: self._programs.monitor_forward(train, every)(*self._gathered(arrays), {}, key, 0, 0))
        return self.outputs

    def _run_forward(self, train: bool, arrays: tuple[Any, Any], key: Any) -> tuple[jax.Array, ...]:
        with translated():
            return self._programs.forward(train)(*arrays, key)

    @property
    def outputs(self) -> list[NDArray]:
        """Outputs of the last `forward`, a list of NDArrays that are computed when they are read.

        Before the first `forward`, they are those of the current values of the arguments.
        """
        if self._deferred is None:
            deferred = Deferred(functools.partial(self._run_forward, False, self._arrays(), _fixed_key()))
            return [later(deferred, i) for i in range(len(self._symbol.heads))]
        return list(self._outputs)

    @property
    def output_dict(self) -> dict[str, NDArray]:
        """Outputs of the last `forward` by name, NDArrays."""
        return dict(zip(self._symbol.list_outputs(), self.outputs, strict=True))

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Run the backward pass: write gradients to `grad_arrays`, and (in training mode) update the auxiliary states.

        A second backward pass for the same forward pass uses the current values of the arguments; one without a forward pass
        runs it in training mode.

        Args:
            out_grads: gradient with respect to each output: an array, list, or dict by name; losses need none, and ignore it.
            is_train: accepted and ignored; the mode is that of `forward`.

        Raises:
            MXNetError: the gradient of an output that is not a loss is missing.
        """
        if self._deferred is None:
            self.forward(is_train=True)
        assert self._deferred is not None
        deferred, (train, arrays, key) = self._deferred, self._recorded
        if arrays is None or (deferred.is_done and not train):
            arrays = self._arrays()
        reqs = {n: r for n, r in self._req.items() if r != "null" and self.grad_dict[n] is not None}
        heads = self._head_gradients(out_grads, set(reqs))
        skipped = self._programs.label_arguments
        differentiated = tuple(n for n in reqs if n not in skipped and jnp.issubdtype(arrays[0][n].dtype, jnp.floating))
        added = tuple(n for n in differentiated if reqs[n] == "add")
        constant = [n for n in reqs if n not in skipped and n not in differentiated and reqs[n] == "write"]
        old = {n: self._on_device(n, self.grad_dict[n]) for n in added}

        def run() -> tuple[jax.Array, ...]:
            with translated():
                program = self._programs.backward(train, differentiated, added)
                outputs, gradients, new_aux = program(*arrays, key, heads, old)
            if train:
                self._notify_monitor(
                    lambda _: self._programs.monitor_backward(
                        *self._gathered(arrays), {}, key, 0, 0, [_full(h, o) for h, o in zip(heads, outputs, strict=True)]
                    )
                )
            moving = moving_aux(self._symbol, reqs) & new_aux.keys() if train and new_aux else ()
            for name, gradient in gradients.items():
                _put(self.grad_dict[name], gradient)
            for name in constant:
                _put(self.grad_dict[name], jnp.zeros_like(arrays[0][name]))
            for name in moving:
                _put(self.aux_dict[name], new_aux[name])
            return outputs

        deferred.backward(run)
        deferred.settle()  # now: the caller reads the gradients from arrays of its own
        self._recorded = train, None, key  # JAX can free the arrays then

    def _head_gradients(self, out_grads: Any, differentiated: set[str]) -> list[Any]:
        names = self._symbol.list_outputs()
        if isinstance(out_grads, Mapping):
            out_grads = [out_grads.get(n) for n in names]
        heads = [out_grads] if isinstance(out_grads, (MutableArray, np.ndarray, jax.Array)) else list(out_grads or ())
        heads = (heads + [None] * len(names))[: len(names)]
        for name, head, reach in zip(names, heads, self._programs.needs_head, strict=True):
            if head is None and reach & differentiated:
                raise MXNetError(f"output {name!r} is not a loss, so backward needs its head gradient: call backward([...])")
        needed = self._programs.needs_head
        return [None if h is None or not r else self._to_device(on_device(h)) for h, r in zip(heads, needed, strict=True)]

    def _write_input(self, name: str, value: Any) -> None:
        if name not in self.arg_dict:
            raise TypeError(f"Unknown argument {name!r}; {checks.name_hint(name, self.arg_dict)}")
        new, bound = as_input(value), self.arg_dict[name]
        if tuple(new.shape) != bound.shape:
            raise ValueError(f"argument {name!r} is bound with shape {bound.shape}, but the value has {tuple(new.shape)}")
        plain = type(bound) is NDArray and bound._entry is None and new.dtype == bound.dtype
        if is_constant(new) and plain and not self._devices:
            if not is_constant(as_input(bound)):
                del bound.value
            bound._later = OnHost(new, functools.partial(place, ctx=self._ctx)), 0
        else:
            bound[:] = new

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the current (arguments, auxiliary states), dicts of jax.Arrays by name on this executor's devices."""
        return tuple({n: self._on_device(n, a) for n, a in arrays.items()} for arrays in (self.arg_dict, self.aux_dict))  # type: ignore[return-value]

    def _on_device(self, name: str, array: Any) -> Any:
        """Return the jax.Array of a mutable array, committed to the device of `name` (else programs would be recompiled).

        If this makes a copy, the copy is cached for the lifetime of the original jax.Array.
        """
        value, copies = as_input(array), self._device_copies
        if is_constant(value) and not self._devices:
            return value
        device = self._devices.get(name, self._ctx.device)
        if getattr(value, "committed", False) and value.devices() == {device}:
            return value
        key = id(value), device
        if key not in copies:
            copies[key] = (weakref.ref(value, lambda _: copies.pop(key, None)), jax.device_put(on_device(value), device))
        return copies[key][1]

    def _to_device(self, value: Any) -> Any:
        return jax.device_put(value, self._ctx.device)

    # -------------------------------------------------------------------------------- parameters and shapes
    def copy_params_from(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None, allow_extra_params: bool = False
    ) -> None:
        """Write values into arguments and auxiliary states.

        Raises:
            ValueError: a name is unknown, and `allow_extra_params` is False.
        """
        for kind, values, bound in (("arguments", arg_params, self.arg_dict), ("auxiliary states", aux_params, self.aux_dict)):
            for name, value in (values or {}).items():
                if name in bound:
                    bound[name][:] = value
                elif not allow_extra_params:
                    raise ValueError(f"{name!r} is not among the {kind} of the graph; pass allow_extra_params=True")

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Sequence[int]) -> Executor:
        """Create an executor for other input shapes, which shares all arrays whose shape is unchanged; smaller ones start with
        the first values of the old ones.

        Args:
            partial_shaping: allow arrays that are not named in `kwargs` to change their shape.
            allow_up_sizing: allow arrays to become larger.
            kwargs: new shapes by name.

        Returns:
            Executor.

        Raises:
            AssertionError: an array not named in `kwargs` would change its shape, and partial_shaping is False.
            MXNetError: an array would become larger, and allow_up_sizing is False.
            ValueError: not all shapes can be inferred from `kwargs`.
        """
        shapes, _, aux_shapes = self._symbol.infer_shape(**kwargs)
        if shapes is None or aux_shapes is None:
            raise ValueError(f"the shapes {kwargs} do not determine all others; pass the shapes of more arguments")

        def resized(name: str, array: Any, shape: tuple[int, ...]) -> Any:
            if array is None or array.shape == shape:
                return array
            allowed = name in kwargs or partial_shaping
            assert allowed, f"{name!r} would change from {array.shape} to {shape}; pass partial_shaping=True"
            size = int(np.prod(shape))
            if size <= array.size:
                return array.reshape((-1,))[:size].reshape(shape)
            if not allow_up_sizing:
                raise MXNetError(f"{name!r} would grow from {array.shape} to {shape}; pass allow_up_sizing=True to allow it")
            return full(shape, 0, self._devices.get(name, self._ctx), array.dtype)

        names = list(self.arg_dict)
        args, grads = (list(map(resized, names, arrays, shapes)) for arrays in (self.arg_arrays, self.grad_arrays))
        aux = list(map(resized, self.aux_dict, self.aux_arrays, aux_shapes))
        return Executor(self._symbol, self._ctx, args, grads, self._req, aux, self._group2ctx)

    # -------------------------------------------------------------------------------- monitor
    def set_monitor_callback(self, callback: Callable[[str, NDArray], None] | None, monitor_all: bool = False) -> None:
        """Call `callback(name, array)` for each operator's outputs in `forward` and its gradients in `backward`.

        A method of an object with `activated = False` (a `Monitor` between samples) is not called, at no cost.

        Args:
            callback: function (name, NDArray), or None to remove the callback.
            monitor_all: also call it for the inputs of every operator.
        """
        self._monitor = None if callback is None else Callback(callback, monitor_all)

    def _gathered(self, tree: Any) -> Any:
        """Return the arrays on one device, where the programs of monitors run."""
        return self._to_device(tree) if self._devices else tree

    def _notify_monitor(self, compute: Callable[[bool], Mapping[str, Any]]) -> None:
        if self._monitor is not None and self._monitor.activated:
            self._monitor.collect(compute(self._monitor.monitor_all))

    def debug_str(self) -> str:
        """Return a table of the graph's nodes as text."""
        return self._symbol.summary(**{n: b.shape for n, b in self.arg_dict.items()})


def _full(head: Any, output: Any) -> Any:
    return jnp.ones_like(output) if head is None else jnp.broadcast_to(head, output.shape)


def _put(array: Any, value: Any) -> None:
    """Replace the contents of a mutable array in place; usually without a copy."""
    if type(array) is NDArray and isinstance(array.value, jax.Array) and array.value.dtype == value.dtype:
        array.value = value
    else:
        array[:] = value


@functools.cache
def _fixed_key() -> np.ndarray:
    with jax.ensure_compile_time_eval():  # shapes of outputs may be read before anything is computed
        return np.asarray(jax.random.key_data(jax.random.key(0)))


# ------------------------------------------------------------------------------------------------ arguments of bind
def arrays_in_order(what: str, arrays: Any, names: Sequence[str], optional: bool = False) -> list[Any]:
    """Convert a list, or a dict by name, to a list of mutable arrays in the order of `names`.

    optional: a name may be missing, its entry is then None.  what: name of the argument, for error messages.

    Raises:
        ValueError: the list has the wrong length, or a name is missing in the dict.
    """
    if isinstance(arrays, Mapping):
        missing = [n for n in names if arrays.get(n) is None]
        if missing and not optional:
            raise ValueError(f"{missing[0]!r} is missing in {what}; found {sorted(arrays)}, expected {list(names)}")
        return [_as_mutable(arrays.get(n)) for n in names]
    values = [None] * len(names) if arrays is None and (optional or not names) else list(arrays or ())
    if len(values) != len(names):
        raise ValueError(f"{what} has {len(values)} arrays, expected {len(names)}: {list(names)}")
    return [_as_mutable(a) for a in values]


def _as_mutable(value: Any) -> MutableArray | None:
    return value if value is None or isinstance(value, MutableArray) else NDArray(value)


def grad_reqs(grad_req: Any, names: Sequence[str], grads: Sequence[Any] | None) -> dict[str, str]:
    """Gradient request of each argument ("write", "add" or "null") from one request, a list, or a dict (default "null").

    Arguments whose gradient array is None in `grads` get "null".

    Raises:
        ValueError: a request is unknown, or the list has the wrong length.

    Example:
        >>> grad_reqs({"x": "add"}, ["x", "y"], None)
        {'x': 'add', 'y': 'null'}
    """
    reqs = requests_of(grad_req, names, "null")
    if grads is None:
        return reqs
    return {n: "null" if g is None else reqs[n] for n, g in zip(names, grads, strict=True)}
