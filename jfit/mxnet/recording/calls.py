"""Operations with fixed attributes, which run immediately or are recorded: operators, functions of arrays, and graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfit
from jfit.graph.nodes import Entry, Node, is_own
from jfit.graph.symbol import Symbol
from jfit.ops import Attrs, Ctx, Op
from jfit.platforms import placed
from jfit.programs import Program, kept

Arrays = Sequence[Any]
_KEY = jax.ShapeDtypeStruct((2,), np.uint32)  # key data of JAX's default generator, threefry


class Call:
    """An operator with parsed attributes.

    Args:
        op: the operator.
        params: its attributes.
        build: compiles a function.

    Attributes:
        is_random: whether it takes a key.
        aux: positions of the auxiliary states among the inputs.
        is_own: whether it calls no Python code of the user.
        run: for each training mode (False, True) the compiled function (key data if `is_random`, *inputs) -> visible outputs, a
            tuple.
        shapes: function (training mode, shapes and dtypes of the inputs, a tuple) -> those of the visible outputs.
        pull: for each mode the compiled function (key data or None, inputs, cotangents of the outputs) -> (cotangents of the
            inputs, new auxiliary states).
    """

    def __init__(self, op: Op, params: Attrs, build: Callable[..., Any] = jax.jit) -> None:
        self.op, self.params, self.is_random, self.is_own = op, params, op.needs_rng, is_own(op)
        self.shapes = functools.lru_cache(maxsize=64)(self._shapes)
        count = len(op.input_names(params))
        self.aux = tuple(range(count, count + len(op.aux)))
        # keep_unused: zeros_like does not read its input, but its output must be on the input's device
        build = functools.partial(jax.jit, keep_unused=True) if build is jax.jit else build
        key = () if self.is_random else (None,)
        place = placed if op.layout == "channels" else lambda run: run
        self.run = [place(build(functools.partial(self.outputs, train, *key))) for train in (False, True)]
        self.pull = [place(jax.jit(functools.partial(self._pull, train))) for train in (False, True)]

    def outputs(self, train: bool, key: Any, *arrays: Any) -> tuple[Any, ...]:
        """Compute the visible outputs."""
        return self._apply(train, key, *arrays)[0]

    def _shapes(self, train: bool, specs: tuple[Any, ...]) -> tuple[Any, ...]:
        key = _KEY if self.is_random else None
        return jax.eval_shape(functools.partial(self.outputs, train), key, *specs)

    def _apply(self, train: bool, key: Any, *arrays: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        op = self.op
        arrays = tuple(_integers_to_float(op, arrays))
        rng = None if key is None else jax.random.wrap_key_data(key)
        ctx = Ctx(train=train, key=rng, rows=(None,) * len(arrays), node=op.name)
        result = op.fn(ctx, self.params, *arrays)
        outputs, new_aux = result if op.aux else (result, ())
        outputs = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
        return (outputs if op.visible is None else outputs[: op.num_visible(self.params)]), tuple(new_aux)

    def _pull(self, train: bool, key: Any, arrays: Arrays, cotangents: Arrays) -> Any:
        floats = [i for i, a in enumerate(arrays) if is_float(a) and i not in self.aux]

        def forward(*values: Any) -> Any:
            given = dict(zip(floats, values, strict=True))
            return self._apply(train, key, *(given.get(i, a) for i, a in enumerate(arrays)))

        outputs, vjp, new_aux = jax.vjp(forward, *(arrays[i] for i in floats), has_aux=True)
        zeros = [jnp.zeros_like(o) if g is None else g for o, g in zip(outputs, cotangents, strict=True)]
        pulled = dict(zip(floats, vjp(tuple(map(cotangent, outputs, zeros))), strict=True))
        return [pulled.get(i) for i in range(len(arrays))], new_aux

    def node(self, name: Any, inputs: Sequence[Entry], predict: bool) -> Node:
        """Make a node of a graph; `predict`: the node computes in prediction mode even if the graph is in training mode."""
        attrs = {k: v for k, v in self.params.items() if v is not None} | ({"__predict__": "1"} if predict else {})
        return Node(self.op, name, attrs, tuple(inputs))


def is_float(array: Any) -> bool:
    """Return whether an array has a gradient."""
    return jnp.issubdtype(array.dtype, jnp.floating)


def cotangent(output: Any, gradient: Any) -> Any:
    """Return a gradient as the cotangent of an output: of its shape and dtype; ones if it is None."""
    if not jnp.issubdtype(output.dtype, jnp.inexact):
        return jnp.zeros(output.shape, jax.dtypes.float0)
    return jnp.ones_like(output) if gradient is None else jnp.broadcast_to(gradient, output.shape).astype(output.dtype)


@functools.lru_cache(maxsize=4096)
def operator_call(op: Op, params: Attrs) -> Call:
    """Return the `Call` of an operator; programs that call Python code of the user are a `Program`, which waits for them."""
    return Call(op, params, jax.jit if is_own(op) else functools.partial(Program, build=jax.jit, name=op.name))


def _integers_to_float(op: Op, arrays: Sequence[Any]) -> list[Any]:
    """Cast integer arrays to the dtype of the first float array, if the inputs of `op` must share one dtype."""
    floats = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    if not floats or op.types is not None:
        return list(arrays)
    return [a if jnp.issubdtype(a.dtype, jnp.floating) else a.astype(floats[0]) for a in arrays]


def _op(name: str, fn: Callable[..., Any], inputs: Sequence[str], aux: Sequence[str] = (), **fields: Any) -> Op:
    """Return the record of an operator that is not in the registry; it keeps the dtypes of its inputs."""
    rows = lambda params, rows, shapes, outputs: [None] * len(outputs)  # noqa: E731
    types = lambda params, dtypes: (dtypes, dtypes[:1])  # noqa: E731
    return Op(name, fn, tuple(inputs), tuple(aux), rows=rows, types=types, **fields)


@functools.lru_cache(maxsize=4096)
def function_call(fn: Callable[..., Any], count: int, static: tuple[tuple[str, Hashable], ...] = (), outputs: int = 1) -> Call:
    """Return the `Call` of a pure function of `count` arrays, which returns one array or a tuple; `static`: other arguments.

    `outputs` is the number of arrays that `fn` returns.  Shape inference finds it by itself; only nodes of symbols need it, of
    which the second result is used before.
    """
    keywords, names = dict(static), ["output"] * outputs

    def run(ctx: Ctx, attrs: Attrs, *arrays: Any) -> Any:
        result = fn(*arrays, **keywords)
        if isinstance(result, (tuple, list)):
            names[:] = [f"output{i}" for i in range(len(result))]
        return result

    inputs = [f"arg{i}" for i in range(count)]
    current = lambda attrs: tuple(names)  # noqa: E731
    return Call(_op(getattr(fn, "__name__", "function"), run, inputs, outputs=current), Attrs({}))


_graphs = kept(256)


def graph_call(symbol: Symbol) -> tuple[Call, tuple[str, ...]]:
    """Return the `Call` of a graph, and the names of its inputs: arguments, then auxiliary states."""
    known = _graphs.get(id(symbol))
    if known is None or known[0] is not symbol:
        names, aux = symbol.list_arguments(), symbol.list_auxiliary_states()
        model = jfit.lower(symbol, inputs=[])

        def run(ctx: Ctx, attrs: Attrs, *arrays: Any) -> Any:
            values = dict(zip((*names, *aux), arrays, strict=True))
            states = {n: values.pop(n) for n in aux}
            outputs, new = model.apply(values, states, {}, key=ctx.key, train=ctx.train)
            return (tuple(outputs), tuple(new[n] for n in aux)) if aux else tuple(outputs)

        is_random = any(n.op is not None and n.op.needs_rng for n in symbol.nodes())
        outputs = tuple([f"output{i}" for i in range(len(symbol))])
        op = _op("graph", run, names, aux, outputs=outputs, needs_rng=is_random)
        build = functools.partial(Program, build=jax.jit, name="graph_forward")
        call = Call(op, Attrs({}), build)
        call.is_own = all(n.op is None or is_own(n.op) for n in symbol.nodes())
        known = _graphs[id(symbol)] = symbol, (call, (*names, *aux))
    return known[1]
