"""Custom: an operator whose work is done by Python code of the user, on the host, in the middle of a compiled program.

What the code is called by (`op_type`) is looked up in `HOSTS`; `jfit.mx.operator.register` puts MXNet's classes there.  Such
an operator costs a round trip to the host in each pass.  One that can be written with `jax.numpy` had better be a record,
which compiles with the rest, has its gradient for free, and takes part in everything from inference to export:

>>> import jax.numpy as jnp, jfit
>>> @jfit.ops.operator("doc_swish", attrs={"beta": jfit.ops.attributes.number(1.0)})
... def swish(ctx, attrs, data):
...     "y = x / (1 + exp(-β x))."
...     return data / (1 + jnp.exp(-attrs.beta * data))
>>> jfit.sym.doc_swish(jfit.sym.Variable("x"), beta=2.0).infer_shape(x=(2, 3))[1]
[(2, 3)]
>>> _ = jfit.ops.REGISTRY.pop("doc_swish"), jfit.ops.ALIASES.pop("doc_swish")  # it was an example only
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.ops.attributes import DTYPES, Attrs, text
from jfit.ops.context import Ctx
from jfit.ops.registry import MaybeShape, Op, UnknownOperator, nearest, operator
from jfit.ops.rows import RowsLost, first_rows


class Host(Protocol):
    """The Python side of a custom operator, for one set of arguments."""

    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]  # auxiliary states
    head: bool  # it makes its own gradient and does not look at that of its outputs

    def shapes(self, ins: list[MaybeShape]) -> tuple[list[MaybeShape], list[MaybeShape], list[MaybeShape]]:
        """(input shapes, output shapes, state shapes)."""
        ...

    def types(self, ins: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """(input dtypes, output dtypes, state dtypes)."""
        ...

    def forward(
        self, place: tuple[Any, ...], train: bool, ins: list[np.ndarray], outs: list[np.ndarray], states: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(outputs, states); `outs` are zeros; `place` says for which node and device."""
        ...

    def backward(
        self, place: tuple[Any, ...], heads: list[np.ndarray], ins: list[np.ndarray], outs: list[np.ndarray], grads: list[Any]
    ) -> list[np.ndarray]:
        """Gradients of the inputs; `grads` are zeros (None where an input has no gradient), states follow the inputs."""
        ...


class CustomError(RuntimeError):
    """The Python code of a custom operator failed; names the node, and the error of the code is its cause."""


HOSTS: dict[str, Callable[[dict[str, str]], Host]] = {}  # op_type -> host for these arguments, all strings


def _record(attrs: Mapping[str, Any]) -> Op:
    """The record for an op_type and its arguments."""
    kind = attrs.get("op_type")
    if kind not in HOSTS:
        near = nearest(str(kind), HOSTS)
        hint = f"did you mean {near}?" if near else f"registered are {', '.join(map(repr, HOSTS)) or 'none'}."
        raise UnknownOperator(f"Custom: op_type is {kind!r}, and nothing is registered by that name; {hint}")
    own = {k: str(v) for k, v in attrs.items() if k != "op_type" and v is not None and not (k[:2] == "__" == k[-2:])}
    return _made(str(kind), HOSTS[str(kind)], tuple(sorted(own.items())))


@functools.lru_cache(maxsize=4096)
def _made(kind: str, factory: Callable[[dict[str, str]], Host], own: tuple[tuple[str, str], ...]) -> Op:
    try:
        host = factory(dict(own))
    except Exception as error:
        raise ValueError(f"Custom: {kind!r} cannot be made with {dict(own)}: {error}") from error
    return Op(
        name="Custom",
        fn=functools.wraps(custom)(functools.partial(_run, host, kind)),
        inputs=host.arguments,
        aux=host.states,
        aux_init=("zero",) * len(host.states),
        outputs=host.outputs,
        attrs={"op_type": text(), **{k: text("") for k, _ in own}},
        shapes=lambda attrs, ins, outs: _shapes(host, ins, outs),
        types=lambda attrs, ins: _types(host, ins),
        rows=first_rows,
        kind="head" if host.head else "plain",
        label="label" if host.head and "label" in host.arguments else None,
        family="custom",
    )


def _shapes(host: Host, ins: list[MaybeShape], outs: list[MaybeShape]) -> tuple[list[MaybeShape], list[MaybeShape]]:
    count = len(host.arguments)
    known = all(s is not None and 0 not in s for s in ins[:count])
    try:
        found, made, states = host.shapes(list(ins[:count]))
    except Exception as error:
        if not known:  # it was written for complete shapes
            return ins, outs
        raise ValueError(f"infer_shape of the operator failed: {error}") from error
    return [*found, *states], made


def _types(host: Host, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    try:
        found, made, states = host.types(list(ins[: len(host.arguments)]))
    except Exception:
        if all(t is not None for t in ins):
            raise
        return ins, [None] * len(host.outputs)
    return [*found, *states], made


def _run(host: Host, kind: str, ctx: Ctx, attrs: Attrs, *arrays: Any) -> Any:
    if ctx.weight is not None:
        raise RowsLost(
            f"{ctx.node}: the Python code of {kind!r} sees whole batches, so rows of weight 0 cannot be left out; feed batches "
            "without padding and equal slices per device"
        )
    ins = _present(host, arrays)
    place = lax.axis_index(ctx.axis_name) if ctx.axis_name else jnp.zeros((), jnp.int32)
    called: Any = _call
    outs, states = called(_Call(host, kind, ctx.node, ctx.train), place, ins, tuple(arrays[len(host.arguments) :]))
    outs = outs if len(outs) > 1 else outs[0]
    return (outs, states) if host.states else outs


def _present(host: Host, arrays: Sequence[Any]) -> tuple[Array, ...]:
    """The inputs; a label that was not fed is zeros, for nobody reads it outside training."""
    shapes, _ = _shapes(host, [None if a is None else a.shape for a in arrays], [])
    first = next(a for a in arrays if a is not None)
    pairs = zip(arrays[: len(host.arguments)], shapes, strict=False)
    return tuple(jnp.zeros(shape or (), first.dtype) if a is None else a for a, shape in pairs)


class _Call:
    """One node's calls of its Python code."""

    def __init__(self, host: Host, kind: str, node: str, train: bool) -> None:
        self.host, self.kind, self.node, self.train = host, kind, node, train

    def specs(self, ins: Sequence[Any], states: Sequence[Any]) -> tuple[Any, Any]:
        """What a forward pass gives: (outputs, states)."""
        _, shapes, _ = self.host.shapes([a.shape for a in ins])
        _, dtypes, _ = self.host.types([a.dtype for a in ins])
        made = [jax.ShapeDtypeStruct(tuple(s or ()), _held(t)) for s, t in zip(shapes, dtypes, strict=True)]
        return tuple(made), tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in states)

    def forward(self, specs: Any, at: Any, ins: Any, states: Any) -> Any:
        """On the host: (outputs, states)."""
        outs = [np.zeros(s.shape, s.dtype) for s in specs[0]]
        with self._told("forward"):
            made, moved = self.host.forward(self._place(at), self.train, _host(ins), outs, _host(states))
        return _fitted(made, specs[0]), _fitted(moved, specs[1])

    def backward(self, specs: Any, at: Any, heads: Any, ins: Any, outs: Any) -> Any:
        """On the host: gradients of the inputs that have one."""
        grads = [None if s is None else np.zeros(s.shape, s.dtype) for s in specs]
        with self._told("backward"):
            made = self.host.backward(self._place(at), _host(heads), _host(ins), _host(outs), grads)
        pairs = [(g, s) for g, s in zip(made, specs, strict=True) if s is not None]
        return _fitted([g for g, _ in pairs], [s for _, s in pairs])

    def _place(self, at: Any) -> tuple[Any, ...]:
        return self.node, int(at)

    def _told(self, what: str) -> Any:
        return counters.host_code(
            lambda error: CustomError(f"{self.node}: {what} of the custom operator {self.kind!r} failed: {error!r}")
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _call(call: _Call, place: Array, ins: tuple[Array, ...], states: tuple[Array, ...]) -> Any:
    specs = call.specs(ins, states)
    return jax.pure_callback(functools.partial(call.forward, specs), specs, place, ins, states, vmap_method="sequential")


def _call_forward(call: _Call, place: Array, ins: tuple[Array, ...], states: tuple[Array, ...]) -> Any:
    made: Any = _call
    outs, moved = made(call, place, ins, states)
    return (outs, moved), (place, ins, states, outs, moved)


def _call_backward(call: _Call, saved: Any, cotangents: Any) -> Any:
    place, ins, states, outs, moved = saved
    heads = tuple(
        jnp.zeros(o.shape, o.dtype) if h.dtype == jax.dtypes.float0 else h for h, o in zip(cotangents[0], outs, strict=True)
    )
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) if jnp.issubdtype(a.dtype, jnp.floating) else None for a in ins]
    wanted = tuple(s for s in specs if s is not None)
    run = functools.partial(call.backward, specs)
    found = iter(jax.pure_callback(run, wanted, place, heads, (*ins, *moved), outs, vmap_method="sequential"))
    return None, tuple(None if s is None else next(found) for s in specs), tuple(None for _ in states)


_call.defvjp(_call_forward, _call_backward)


def _host(arrays: Sequence[Any]) -> list[np.ndarray]:
    """Copies on the host: the code may write into what it is given, and the program's buffers must not change."""
    return [np.array(a) for a in arrays]


def _fitted(made: Sequence[Any], specs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(m, s.dtype).reshape(s.shape) for m, s in zip(made, specs, strict=True))


def _held(dtype: Any) -> Any:
    """The dtype as the device holds it; float32 where the code says none."""
    return jax.dtypes.canonicalize_dtype(DTYPES["float32"] if dtype is None else np.dtype(dtype))


@operator("Custom", attrs={"op_type": text()}, resolve=_record, rows=first_rows)
def custom(ctx: Ctx, attrs: Attrs, *arrays: Array) -> Any:
    """y = what the Python code registered as `op_type` computes on the host; its backward is the gradient."""
    raise ValueError(f"Custom needs op_type, one of {', '.join(map(repr, HOSTS)) or 'none: register one first'}")
