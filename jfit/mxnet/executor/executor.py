"""Executor: a graph bound to arrays.  forward, backward, and the arrays are written in place.

`forward` only notes what to compute: outputs that are read before `backward` are computed then, and `backward` computes
outputs, gradients and new auxiliary states in one program, with the random key that `forward` drew.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.graph.symbol import Symbol
from jfit.mxnet.context import Context
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.executor.programs import Programs, programs_of
from jfit.mxnet.keys import next_key
from jfit.mxnet.module.binding import REQUESTS, moving_aux
from jfit.mxnet.mutable import MutableArray, as_array
from jfit.mxnet.ndarray.array import NDArray, on_device
from jfit.mxnet.ndarray.create import zeros
from jfit.ops import nearest


class Executor:
    """A graph bound to arrays; made by `Symbol.bind` and `Symbol.simple_bind`.

    Attributes:
        arg_arrays, grad_arrays, aux_arrays: boxes in the order of `list_arguments` and `list_auxiliary_states`; no gradient
            is None.
        arg_dict, grad_dict, aux_dict: the same by name.
        outputs: arrays of the last `forward`.

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
        self,
        symbol: Symbol,
        ctx: Context,
        args: Sequence[NDArray],
        grads: Sequence[NDArray | None],
        grad_req: Mapping[str, str],
        aux: Sequence[NDArray],
    ) -> None:
        self._symbol, self._ctx, self._req = symbol, Context(ctx), dict(grad_req)
        self.arg_arrays, self.grad_arrays, self.aux_arrays = list(args), list(grads), list(aux)
        names = symbol.list_arguments()
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise MXNetError(f"several variables are named {twice[0]!r}; rename one, or share one variable")
        self.arg_dict = dict(zip(names, self.arg_arrays, strict=True))
        self.grad_dict = dict(zip(names, self.grad_arrays, strict=True))
        self.aux_dict = dict(zip(symbol.list_auxiliary_states(), self.aux_arrays, strict=True))
        with translated():
            self._programs: Programs = programs_of(symbol.heads)
        self._ones = {n: jnp.ones_like(jnp.asarray(self.arg_dict[n].value)) for n in sorted(self._programs.model.frozen)}
        self._placed: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._pass: _Pass | None = None
        self._monitor: tuple[Callable[[str, NDArray], None], bool] | None = None

    # -------------------------------------------------------------------------------- forward and backward
    def forward(self, is_train: bool = False, **kwargs: Any) -> list[NDArray]:
        """The outputs for the arrays as they are now.

        Args:
            is_train: training mode.
            kwargs: new values of arguments by name, written into their boxes.

        Raises:
            TypeError: no argument has that name.
            ValueError: a value has another shape than the bound array.
        """
        for name, value in kwargs.items():
            self._feed(name, value)
        for name, one in self._ones.items():  # MXNet's batch norm writes 1 into a fixed gamma
            if self.arg_dict[name].value is not one:
                self.arg_dict[name].value = one
        key = jax.random.key_data(next_key()) if self._programs.random else _fixed_key()
        self._pass = done = _Pass(self._programs, bool(is_train), *self._arrays(), key)
        self._tell(lambda every: self._programs.seen_forward(done.train, every)(done.args, done.aux, {}, key, 0, 0))
        return self.outputs

    @property
    def outputs(self) -> list[NDArray]:
        """Outputs of the last `forward`; computed when they are read."""
        if self._pass is None:
            raise MXNetError("there are no outputs yet; call forward first")
        return list(self._pass.boxes)

    @property
    def output_dict(self) -> dict[str, NDArray]:
        """Outputs by name."""
        return dict(zip(self._symbol.list_outputs(), self.outputs, strict=True))

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Gradients into `grad_arrays`, and new auxiliary states; the outputs of the same program.

        Args:
            out_grads: array, list or dict: gradient of each output; heads make their own.  A second backward pass over the same
                forward pass takes the arguments as they are by then.
            is_train: accepted; the mode is that of `forward`.

        Raises:
            MXNetError: `forward` was not called, or an output that is no loss has no gradient.
        """
        done = self._pass
        if done is None:
            raise MXNetError("backward needs a forward pass before it; call forward(is_train=True) first")
        reqs = {n: r for n, r in self._req.items() if r != "null" and self.grad_dict[n] is not None}
        heads = self._head_gradients(out_grads, set(reqs))
        skipped = self._programs.label_only
        args, aux = (done.args, done.aux) if done.args else self._arrays()
        wanted = tuple(n for n in reqs if n not in skipped and jnp.issubdtype(args[n].dtype, jnp.floating))
        added = tuple(n for n in wanted if reqs[n] == "add")
        old = {n: self._on_device(self.grad_dict[n]) for n in added}
        with translated():
            program = self._programs.backward(done.train, wanted, added)
            outputs, gradients, moved = program(args, aux, done.key, heads, old)
        done.finish(outputs)
        done.release()
        if done.train:
            self._tell(lambda _: self._programs.seen_backward(args, aux, {}, done.key, 0, 0, _whole(heads, outputs)))
        for name, gradient in gradients.items():
            _put(self.grad_dict[name], gradient)
        if done.train:
            moving = moving_aux(self._symbol, reqs)
            for name, value in moved.items():
                if name in moving:
                    _put(self.aux_dict[name], value)

    def _head_gradients(self, given: Any, wanted: set[str]) -> list[Any]:
        names = self._symbol.list_outputs()
        if isinstance(given, Mapping):
            given = [given.get(n) for n in names]
        heads = [given] if isinstance(given, (MutableArray, np.ndarray, jax.Array)) else list(given or ())
        if len(heads) > len(names):
            raise MXNetError(f"{len(heads)} head gradients were given for {len(names)} outputs: {names}")
        heads += [None] * (len(names) - len(heads))
        for name, head, reach in zip(names, heads, self._programs.needs_head, strict=True):
            if head is None and reach & wanted:
                raise MXNetError(
                    f"output {name!r} is no loss, so backward needs its head gradient: call backward([gradient of {name}]), "
                    "or pass the output through make_loss to minimise it"
                )
        return [None if h is None else self._put_there(on_device(h)) for h in heads]

    def _feed(self, name: str, value: Any) -> None:
        if name not in self.arg_dict:
            near = nearest(name, list(self.arg_dict))
            hint = f"did you mean {near}?" if near else f"they are {list(self.arg_dict)}"
            raise TypeError(f"Unknown argument {name!r}; {hint}")
        found, box = as_array(value), self.arg_dict[name]
        if tuple(found.shape) != box.shape:
            raise ValueError(f"argument {name!r}: the array has shape {tuple(found.shape)}, bound is {box.shape}; use reshape")
        box[:] = found

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arguments, auxiliary states) as they are now, on this executor's device."""
        return tuple({n: self._on_device(b) for n, b in boxes.items()} for boxes in (self.arg_dict, self.aux_dict))  # type: ignore[return-value]

    def _on_device(self, box: Any) -> Any:
        """The box's array, committed to this executor's device: a second kind would recompile.

        A copy made for that is kept as long as the array itself lives, and no longer.
        """
        value, kept = box.value, self._placed
        if getattr(value, "committed", False) and value.devices() == {self._ctx.device}:
            return value
        key = id(value)
        if key not in kept:
            kept[key] = (weakref.ref(value, lambda _: kept.pop(key, None)), self._put_there(on_device(value)))
        return kept[key][1]

    def _put_there(self, value: Any) -> Any:
        return jax.device_put(value, self._ctx.device)

    # -------------------------------------------------------------------------------- parameters and shapes
    def copy_params_from(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None, allow_extra_params: bool = False
    ) -> None:
        """Write values into arguments and auxiliary states.

        Raises:
            ValueError: a name is not bound, and `allow_extra_params` is False.
        """
        for kind, given, bound in (("arguments", arg_params, self.arg_dict), ("auxiliary states", aux_params, self.aux_dict)):
            for name, value in (given or {}).items():
                if name in bound:
                    bound[name][:] = value
                elif not allow_extra_params:
                    raise ValueError(f"found name {name!r} that is not in the {kind}; pass allow_extra_params=True to skip it")

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Sequence[int]) -> Executor:
        """An executor for other input shapes that shares every array whose shape stays.

        Args:
            partial_shaping: arrays that are not named may change their shape.
            allow_up_sizing: arrays may become larger.
            kwargs: new shapes by name.

        Raises:
            AssertionError: a parameter would change its shape without being allowed to.
            MXNetError: an array would grow without being allowed to.
        """
        shapes, _, aux_shapes = self._symbol.infer_shape(**kwargs)
        if shapes is None or aux_shapes is None:
            raise ValueError(f"the shapes {kwargs} are not enough to infer all others; give more")

        def moved(name: str, box: Any, shape: tuple[int, ...]) -> Any:
            if box is None or box.shape == shape:
                return box
            if name not in kwargs and not partial_shaping:
                raise AssertionError(
                    f"{name!r} would change from {box.shape} to {shape}; pass partial_shaping=True to allow it"
                )
            if int(np.prod(shape)) > box.size and not allow_up_sizing:
                raise MXNetError(f"{name!r} would grow from {box.shape} to {shape}; allow_up_sizing=True allows it")
            return zeros(shape, self._ctx, box.dtype)

        names, aux_names = list(self.arg_dict), list(self.aux_dict)
        args = [moved(n, b, s) for n, b, s in zip(names, self.arg_arrays, shapes, strict=True)]
        grads = [moved(n, b, s) for n, b, s in zip(names, self.grad_arrays, shapes, strict=True)]
        aux = [moved(n, b, s) for n, b, s in zip(aux_names, self.aux_arrays, aux_shapes, strict=True)]
        return Executor(self._symbol, self._ctx, args, grads, self._req, aux)

    # -------------------------------------------------------------------------------- monitor
    def set_monitor_callback(self, callback: Callable[[str, NDArray], None] | None, monitor_all: bool = False) -> None:
        """Call `callback(name, array)` for each operator's outputs in `forward` and its gradients in `backward`.

        A callback whose owner has `activated = False` (an idle `Monitor`) is not called, and costs nothing.

        Args:
            callback: None listens no more.
            monitor_all: the inputs of every operator too.
        """
        self._monitor = None if callback is None else (callback, monitor_all)

    def _tell(self, look: Callable[[bool], Mapping[str, Any]]) -> None:
        if self._monitor is None:
            return
        callback, monitor_all = self._monitor
        if getattr(getattr(callback, "__self__", None), "activated", True):
            for name, value in look(monitor_all).items():
                callback(name, NDArray(value))

    def debug_str(self) -> str:
        """A table of the graph's nodes."""
        return self._symbol.summary(**{n: b.shape for n, b in self.arg_dict.items()})


class _Pass:
    """One forward pass: the arrays it saw, its key, and its outputs once something computed them."""

    def __init__(self, programs: Programs, train: bool, args: dict[str, Any], aux: dict[str, Any], key: Any) -> None:
        self.programs, self.train, self.args, self.aux, self.key = programs, train, args, aux, key
        self.boxes = [Output(self, i) for i in range(len(programs.symbol.heads))]

    def run(self) -> None:
        """Compute the outputs alone."""
        with translated():
            self.finish(self.programs.forward(self.train)(self.args, self.aux, self.key))
        if not self.train:
            self.release()

    def release(self) -> None:
        """Nothing is left to compute: let go of the arrays, of which the boxes may hold newer ones by now."""
        self.args, self.aux = {}, {}

    @functools.cached_property
    def specs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of the outputs; nothing is computed."""
        with translated():
            return jax.eval_shape(self.programs.forward(self.train), self.args, self.aux, self.key)

    def finish(self, outputs: Sequence[Any]) -> None:
        """Outputs are known; those that were read before keep their values."""
        for box, value in zip(self.boxes, outputs, strict=True):
            if box._source is not None:
                box.value = value


class Output(NDArray):
    """An output of a forward pass, computed when it is first read."""

    __slots__ = ("_at", "_known", "_source")

    def __init__(self, source: _Pass, at: int) -> None:
        self._source: _Pass | None = source
        self._at, self._known = at, None

    @property
    def value(self) -> Any:
        """The values; computes them where nothing has yet."""
        if self._source is not None:
            self._source.run()
        return self._known

    @value.setter
    def value(self, new: Any) -> None:
        self._known, self._source = new, None

    @property
    def _spec(self) -> Any:
        return self._known if self._source is None else self._source.specs[self._at]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes; does not compute the values."""
        return tuple(self._spec.shape)

    @property
    def dtype(self) -> Any:
        """NumPy scalar type; does not compute the values."""
        return np.dtype(self._spec.dtype).type


def _put(box: Any, value: Any) -> None:
    """Write a whole result; the common case costs no copy."""
    if type(box) is NDArray and isinstance(box.value, jax.Array) and box.value.dtype == value.dtype:
        box.value = value
    else:
        box[:] = value


def _whole(heads: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """The gradient of each output, ones where it makes its own."""
    return [jnp.ones_like(o) if h is None else jnp.broadcast_to(h, o.shape) for h, o in zip(heads, outputs, strict=True)]


@functools.cache
def _fixed_key() -> np.ndarray:
    return np.asarray(jax.random.key_data(jax.random.key(0)))


# ------------------------------------------------------------------------------------------------ what bind is given
def boxes_of(what: str, given: Any, names: Sequence[str], optional: bool = False) -> list[Any]:
    """Boxes in the order of `names`, from a list or a dict by name; with `optional`, None where there is none.

    Raises:
        ValueError: a list of another length, or a dict in which a name is missing.
        TypeError: neither a list nor a dict.
    """
    if isinstance(given, Mapping):
        missing = [n for n in names if given.get(n) is None]
        if missing and not optional:
            raise ValueError(f"{missing[0]!r} is missing in {what}; found {sorted(given)}, needed {list(names)}")
        return [_box(given.get(n)) for n in names]
    if given is None and (optional or not names):
        return [None] * len(names)
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{what} is a {type(given).__name__}, a list of NDArrays or a dict by name is needed")
    if len(given) != len(names):
        raise ValueError(f"{what} has {len(given)} arrays, needed {len(names)}: {list(names)}")
    return [_box(g) for g in given]


def _box(value: Any) -> MutableArray | None:
    return value if value is None or isinstance(value, MutableArray) else NDArray(value)


def requests(grad_req: Any, names: Sequence[str], grads: Sequence[Any] | None) -> dict[str, str]:
    """write, add or null for each argument, from one word, a list, or a dict (null for what it leaves out).

    Raises:
        ValueError: another word, or a list of another length.

    Example:
        >>> requests({"x": "add"}, ["x", "y"], None)
        {'x': 'add', 'y': 'null'}
    """
    if isinstance(grad_req, str):
        found = dict.fromkeys(names, grad_req)
    elif isinstance(grad_req, Mapping):
        found = {n: grad_req.get(n, "null") for n in names}
    else:
        if len(grad_req) != len(names):
            raise ValueError(f"grad_req has {len(grad_req)} entries, needed {len(names)}: {list(names)}")
        found = dict(zip(names, grad_req, strict=True))
    for name, request in found.items():
        if request not in REQUESTS:
            raise ValueError(f"grad_req of {name!r} is {request!r}, needed one of {', '.join(REQUESTS)}")
    if grads is None:
        return found
    return {n: "null" if g is None else found[n] for n, g in zip(names, grads, strict=True)}
