"""The operator `Custom`: Python code of the user that a compiled program calls on the host (`jax.pure_callback`).

The attribute `op_type` selects the code in the dict `HOSTS`; `jfit.mx.operator.register` adds CustomOpProp classes to it.
Every forward and backward pass then copies data to the host and back, and jfit waits for each program that calls Python, also
through `jax.pure_callback` in an operator of the user, before it dispatches the next: the Python code may run programs of JAX,
and XLA's CPU client runs at most 32 of a device at once, those included that wait for the results of the Python code.
If the operator can be written with `jax.numpy`, register it with `jfit.ops.operator` instead: it is
compiled, differentiated by JAX, and works with shape inference and export:

>>> import jax.numpy as jnp, jfit
>>> @jfit.ops.operator("doc_swish", attrs={"beta": jfit.ops.attributes.number(1.0)})
... def swish(ctx, attrs, data):
...     "y = x / (1 + exp(-β x))."
...     return data / (1 + jnp.exp(-attrs.beta * data))
>>> jfit.sym.doc_swish(jfit.sym.Variable("x"), beta=2.0).infer_shape(x=(2, 3))[1]
[(2, 3)]
>>> _ = jfit.ops.REGISTRY.pop("doc_swish"), jfit.ops.ALIASES.pop("doc_swish")  # remove the example again
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.checks import name_hint
from jfit.ops.attributes import DTYPES, Attrs, text
from jfit.ops.axis import axis_index
from jfit.ops.context import Ctx
from jfit.ops.registry import MaybeShape, Op, UnknownOperator, operator
from jfit.ops.rows import RowsLost, first_rows
from jfit.programs import tracing


class Host(Protocol):
    """The Python code of a custom operator, created for one set of arguments."""

    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]  # auxiliary states
    head: bool  # True for an output head: `backward` ignores the cotangents, such as in SoftmaxOutput
    hint: str  # first part of automatic names, such as "custom"

    def shapes(self, ins: list[MaybeShape]) -> tuple[list[MaybeShape], list[MaybeShape], list[MaybeShape]]:
        """Return (input shapes, output shapes, shapes of auxiliary states)."""
        ...

    def types(self, ins: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return (input dtypes, output dtypes, dtypes of auxiliary states)."""
        ...

    def forward(
        self, place: tuple[Any, ...], train: bool, ins: list[np.ndarray], outs: list[np.ndarray], states: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return (outputs, new states); `outs` are zeros of the right shapes; `place` is (node name, device index)."""
        ...

    def backward(
        self, place: tuple[Any, ...], heads: list[np.ndarray], ins: list[np.ndarray], outs: list[np.ndarray], grads: list[Any]
    ) -> list[np.ndarray]:
        """Return the gradients of the inputs.

        `heads` are the cotangents of the outputs; `ins` are the inputs and then the auxiliary states; `grads` are zeros of the
        right shapes, None for inputs without a gradient.
        """
        ...


class CustomError(RuntimeError):
    """The Python code of a custom operator raised an error, which is the cause of this one; the message names the node."""


HOSTS: dict[str, Callable[[dict[str, str]], Host]] = {}  # op_type -> function from the arguments (strings) to the host code


def _record(attrs: Mapping[str, Any]) -> Op:
    """Create the `Op` of a custom operator from its attributes: `op_type`, and the arguments of its Python class."""
    kind = attrs.get("op_type")
    if kind not in HOSTS:
        hint = name_hint(str(kind), HOSTS)
        raise UnknownOperator(f"Custom: op_type is {kind!r}, but no custom operator is registered with that name; {hint}")
    args = {k: str(v) for k, v in attrs.items() if k != "op_type" and v is not None and not (k[:2] == "__" == k[-2:])}
    return _cached_record(str(kind), HOSTS[str(kind)], tuple(sorted(args.items())))


# of names of variables, for which MXNet's initializers have a rule
MXNET_SUFFIXES = ("weight", "bias", "gamma", "beta", "min", "max", "_quantize", "moving_mean", "moving_var", "moving_avg")
MXNET_SUFFIXES += ("moving_inv_var", "running_mean", "running_var")


@functools.lru_cache(maxsize=4096)
def _cached_record(kind: str, factory: Callable[[dict[str, str]], Host], args: tuple[tuple[str, str], ...]) -> Op:
    try:
        host = factory(dict(args))
    except Exception as error:
        raise ValueError(f"Custom: {kind!r} cannot be created with {dict(args)}: {error}") from error
    return Op(
        name="Custom",
        fn=functools.wraps(custom)(functools.partial(_run, host, kind)),
        inputs=host.arguments,
        aux=host.states,
        # MXNet initializes them by the suffixes of their names, and raises for the others
        init={name: '["zero", {}]' for name in host.states if not name.endswith(MXNET_SUFFIXES)},
        outputs=host.outputs,
        attrs={"op_type": text(), **{k: text("") for k, _ in args}},
        shapes=lambda attrs, ins, outs: _inferred(host, "infer_shape", host.shapes, ins, outs),
        types=lambda attrs, ins: _inferred(host, "infer_type", host.types, ins, [None] * len(host.outputs)),
        rows=first_rows,
        kind="head" if host.head else "plain",
        label="label" if host.head and "label" in host.arguments else None,
        family="custom",
        hint=host.hint,
    )


def _inferred(host: Host, what: str, infer: Callable[..., Any], ins: list[Any], outs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return (inputs with the auxiliary states, outputs), shapes or dtypes, by the user's method `what`."""
    known = ins[: len(host.arguments)]
    try:
        filled, made, states = infer(list(known))
    except Exception as error:
        if any(v is None or (isinstance(v, tuple) and 0 in v) for v in known):  # it may support complete shapes only
            return ins, outs
        raise ValueError(f"{what} of the operator failed: {error}") from error
    return [*filled, *states], made


def _run(host: Host, kind: str, ctx: Ctx, attrs: Attrs, *arrays: Any) -> Any:
    if ctx.weight is not None:
        raise RowsLost(f"{ctx.node}: {kind!r} receives whole batches, so rows of weight 0 cannot be excluded; do not pad")
    tracing.calls_python = True
    ins = _present(host, arrays)
    place = axis_index(ctx.axis_name) if ctx.axis_name is not None else jnp.zeros((), jnp.int32)
    called: Any = _call
    outs, states = called(_Call(host, kind, ctx.node, ctx.train), place, ins, tuple(arrays[len(host.arguments) :]))
    outs = outs if len(outs) > 1 else outs[0]
    return (outs, states) if host.states else outs


def _present(host: Host, arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Return the inputs, with zeros for a label that was not passed (it is only read in training)."""
    shapes, _ = _inferred(host, "infer_shape", host.shapes, [None if a is None else a.shape for a in arrays], [])
    first = next((a for a in arrays if a is not None), None)
    pairs = zip(arrays[: len(host.arguments)], shapes, strict=False)
    return tuple(jnp.zeros(shape or (), getattr(first, "dtype", None)) if a is None else a for a, shape in pairs)


class _Call:
    """Call the Python code of one node: the host side of the callbacks."""

    def __init__(self, host: Host, kind: str, node: str, train: bool) -> None:
        self.host, self.kind, self.node, self.train = host, kind, node, train

    def specs(self, ins: Sequence[Any], states: Sequence[Any]) -> tuple[Any, Any]:
        """Return the `jax.ShapeDtypeStruct`s of (outputs, auxiliary states) for these inputs and auxiliary states."""
        _, shapes, _ = self.host.shapes([a.shape for a in ins])
        _, dtypes, _ = self.host.types([a.dtype for a in ins])
        outs = [jax.ShapeDtypeStruct(tuple(s or ()), _device_dtype(t)) for s, t in zip(shapes, dtypes, strict=True)]
        return tuple(outs), tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in states)

    def forward(self, specs: Any, at: Any, ins: Any, states: Any) -> Any:
        """Compute (outputs, new auxiliary states) on the host; `specs`: their shapes and dtypes; `at`: device index."""
        zeros = [np.zeros(s.shape, s.dtype) for s in specs[0]]
        with self._errors_of("forward"):
            outs, new_states = self.host.forward(self._place(at), self.train, _host(ins), zeros, _host(states))
        return _fitted(outs, specs[0]), _fitted(new_states, specs[1])

    def backward(self, specs: Any, at: Any, heads: Any, ins: Any, outs: Any) -> Any:
        """Compute on the host the gradients of the inputs that have one; `specs` is None for others, `heads` are cotangents."""
        zeros = [None if s is None else np.zeros(s.shape, s.dtype) for s in specs]
        with self._errors_of("backward"):
            grads = self.host.backward(self._place(at), _host(heads), _host(ins), _host(outs), zeros)
        pairs = [(g, s) for g, s in zip(grads, specs, strict=True) if s is not None]
        return _fitted([g for g, _ in pairs], [s for _, s in pairs])

    def _place(self, at: Any) -> tuple[Any, ...]:
        return self.node, int(at)

    def _errors_of(self, what: str) -> Any:
        """Context manager that converts errors of the user's code to CustomError; `what` is the name of the method."""
        return counters.host_code(
            lambda error: CustomError(f"{self.node}: {what} of the custom operator {self.kind!r} failed: {error!r}")
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _call(call: _Call, place: Array, ins: tuple[Array, ...], states: tuple[Array, ...]) -> Any:
    specs = call.specs(ins, states)
    return jax.pure_callback(functools.partial(call.forward, specs), specs, place, ins, states, vmap_method="sequential")


def _call_forward(call: _Call, place: Array, ins: tuple[Array, ...], states: tuple[Array, ...]) -> Any:
    called: Any = _call
    outs, new_states = called(call, place, ins, states)
    return (outs, new_states), (place, ins, states, outs, new_states)


def _call_backward(call: _Call, saved: Any, cotangents: Any) -> Any:
    place, ins, states, outs, new_states = saved
    heads = tuple(
        jnp.zeros(o.shape, o.dtype) if h.dtype == jax.dtypes.float0 else h for h, o in zip(cotangents[0], outs, strict=True)
    )
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) if jnp.issubdtype(a.dtype, jnp.floating) else None for a in ins]
    run, result = functools.partial(call.backward, specs), tuple(s for s in specs if s is not None)
    grads = iter(jax.pure_callback(run, result, place, heads, (*ins, *new_states), outs, vmap_method="sequential"))
    return None, tuple(None if s is None else next(grads) for s in specs), tuple(None for _ in states)


_call.defvjp(_call_forward, _call_backward)


def _host(arrays: Sequence[Any]) -> list[np.ndarray]:
    """Copy arrays to the host: the user's code may write into its arguments, and JAX's buffers must not change."""
    return [np.array(a) for a in arrays]


def _fitted(arrays: Sequence[Any], specs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(a, s.dtype).reshape(s.shape) for a, s in zip(arrays, specs, strict=True))


def _device_dtype(dtype: Any) -> Any:
    """Return the dtype as JAX stores it (32-bit unless 64-bit mode is on); float32 for None."""
    return jax.dtypes.canonicalize_dtype(DTYPES["float32"] if dtype is None else np.dtype(dtype))


@operator("Custom", inputs=("data",), attrs={"op_type": text()}, resolve=_record, rows=first_rows)
def custom(ctx: Ctx, attrs: Attrs, *arrays: Array) -> Any:
    """y = output of the Python code registered as `op_type`, computed on the host; its `backward` computes the gradient."""
    # never called: `_record` resolves every node to a record of its own
