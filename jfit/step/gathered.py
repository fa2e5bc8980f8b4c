"""Parameters that are split over devices and gathered when they are used (ZeRO-3, FSDP).

A function of whole parameters is traced to a jaxpr, which is then evaluated with the chunks of this device.  An equation that
reads a parameter gathers it first (all-gather), and its backward pass gathers it again and sums the gradient over devices at
once (reduce-scatter), so that whole parameters and whole gradients are in memory only around the equations that use them.

XLA may reorder gathers, and it would run all of them first: they need no other results.  So each is made to depend on another
input of its equation, or on the incoming gradient (`_after`).
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jfit.step.sharded import Split, chunk_shape, from_chunks, rows_of_chunks

SMALL = 2**16  # parameters of fewer bytes are gathered once, because each collective has a fixed cost
GROUP = 2**20  # together with others, up to this number of bytes
MAX_USES = 2  # parameters that more equations use, as in recurrent networks written as Python loops, are gathered once, too
CALLS = {"jit", "pjit", "closed_call", "core_call"}  # their bodies are evaluated as if they were written out
# Operations on a parameter alone that belong to the equation which uses the result, and are computed again in its backward
# pass: the result would be another whole copy of the parameter.
# fmt: off
CHEAP = {
    "abs", "add", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p", "div", "expand_dims", "max",
    "min", "mul", "neg", "reduce_precision", "reshape", "rev", "sign", "slice", "split", "square", "squeeze", "stop_gradient",
    "sub", "transpose",
}
# fmt: on


# ------------------------------------------------------------------------------------------------ collectives
class _Gather(NamedTuple):
    """Gathers parameters of this device.

    Attributes:
        axis_name: name of the device axis.
        shapes: name -> shape of the whole parameter.
        any_row: bool scalar, whether the rows of this device have gradients; if not, it adds zeros.  None: True.
    """

    axis_name: str
    shapes: Mapping[str, tuple[int, ...]]
    any_row: Array | None

    def __call__(self, chunks: Mapping[str, Array]) -> dict[str, Array]:
        """Gather chunks of one dtype with one all-gather."""
        rows = lax.all_gather(_joined([x.reshape(1, -1) for x in chunks.values()])[0], self.axis_name)  # (devices, sizes)
        parts = zip(chunks, _columns(rows, [x.size for x in chunks.values()]), strict=True)
        return {k: from_chunks(part, self.shapes[k]) for k, part in parts}

    def sums(self, gradients: Mapping[str, Array]) -> dict[str, Array]:
        """Sum gradients of one dtype over devices: the chunks of this device, by one reduce-scatter."""
        if self.any_row is not None:
            gradients = {k: jnp.where(self.any_row, g, jnp.zeros_like(g)) for k, g in gradients.items()}
        count = lax.axis_size(self.axis_name)
        rows = [rows_of_chunks(g, count) for g in gradients.values()]
        flat = lax.psum_scatter(_joined(rows), self.axis_name, scatter_dimension=0)[None]
        parts = zip(gradients.items(), _columns(flat, [x.shape[1] for x in rows]), strict=True)
        return {k: part.reshape(chunk_shape(g.shape, count)) for (k, g), part in parts}

    def once(self, chunks: Mapping[str, Array]) -> dict[str, Array]:
        """Gather parameters that stay in memory; their gradients are summed over devices."""

        @jax.custom_vjp
        def gather(chunks: Any) -> Any:
            return self(chunks)

        gather.defvjp(lambda chunks: (self(chunks), None), lambda _, gradients: (self.sums(gradients),))
        return gather(dict(chunks))

    def used(self, fn: Callable[[Any, Any], Any], chunks: Mapping[str, Array], others: Sequence[Any]) -> Any:
        """Return fn(parameters, others); the backward pass gathers the parameters again."""

        def gathered(chunks: Any, after: Sequence[Any]) -> Any:
            return {k: self({k: _after(x, after)})[k] for k, x in chunks.items()}

        @jax.custom_vjp
        def use(chunks: Any, others: Any) -> Any:
            return fn(gathered(chunks, others), others)

        def backward(inputs: Any, gradients: Any) -> Any:
            chunks, others = inputs
            _, pullback = jax.vjp(fn, gathered(chunks, jax.tree.leaves(gradients)), others)
            of_params, of_others = pullback(gradients)
            return {k: self.sums({k: g})[k] for k, g in of_params.items()}, of_others

        use.defvjp(lambda chunks, others: (use(chunks, others), (chunks, others)), backward)
        return use(dict(chunks), list(others))


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def _columns(rows: Array, sizes: Iterable[int]) -> list[Array]:
    """Cut an array (n, sum of the sizes) into arrays (n, size)."""
    result, at = [], 0
    for size in sizes:
        result.append(rows[:, at : at + size])
        at += size
    return result


def _after(chunk: Array, others: Iterable[Any]) -> Array:
    """Return the same bits, as the result of an operation that XLA can run only when `others` are computed.

    On CPU, XLA removes `lax.optimization_barrier` before it orders the operations.
    """
    zeros = [_zero_of(x) for x in others if getattr(x, "size", 0) and jnp.issubdtype(x.dtype, jnp.number)]
    if not zeros:
        return chunk
    bits = lax.bitcast_convert_type(chunk, f"uint{8 * chunk.dtype.itemsize}")
    for zero in zeros:
        bits ^= zero.astype(bits.dtype)
    return lax.bitcast_convert_type(bits, chunk.dtype)


def _zero_of(x: Array) -> Array:
    """Return 0, int32, computed from the first element of an array so that XLA does not find out that it is constant."""
    first = lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())
    if jnp.issubdtype(x.dtype, jnp.inexact):
        first = lax.bitcast_convert_type(first.real.astype(jnp.float32), jnp.int32)
    return jnp.minimum(first.astype(jnp.int32) & 1, 0)


def groups(params: Mapping[str, Any]) -> list[list[str]]:
    """Divide parameters into groups that are gathered together: small ones of the same dtype, others alone.

    Args:
        params: name -> array or `jax.ShapeDtypeStruct` with the shape of the whole parameter.

    Returns:
        List of lists of names.

    Example:
        >>> shapes = {"w1": (300, 300), "b1": (300,), "w2": (300, 300), "b2": (300,)}
        >>> groups({k: jax.ShapeDtypeStruct(shape, jnp.float32) for k, shape in shapes.items()})
        [['w1'], ['b1', 'b2'], ['w2']]
    """
    result: list[list[str]] = []
    shared: dict[Any, tuple[list[str], int]] = {}  # dtype -> (group that is not full, its bytes)
    for name, x in params.items():
        size = _bytes(x)
        group, total = shared.get(x.dtype, ([], GROUP))
        if is_large(x):
            result.append([name])
        elif total + size > GROUP:
            result.append([name])
            shared[x.dtype] = result[-1], size
        else:
            group.append(name)
            shared[x.dtype] = group, total + size
    return result


def _bytes(x: Any) -> int:
    return math.prod(x.shape) * x.dtype.itemsize


def is_large(x: Any) -> bool:
    """Return whether a parameter is gathered alone."""
    return _bytes(x) >= SMALL


# ------------------------------------------------------------------------------------------------ evaluation of a jaxpr
class _Derived(NamedTuple):
    """A parameter that is not gathered yet, or the result of cheap operations on such parameters.

    Attributes:
        names: names of the parameters.
        value: function of a dict of whole parameters that returns the array.
    """

    names: frozenset[str]
    value: Callable[[Any], Any]


def _kind(eqn: Any, derived: Sequence[bool]) -> str:
    """Return how `_evaluate` computes an equation of a jaxpr.

    Args:
        eqn: the equation.
        derived: for each input, whether it is a `_Derived`, an array that is computed from parameters not gathered yet.

    Returns:
        "plain": no input is a `_Derived`, the equation is computed as it is.  "call": it calls a jaxpr, whose equations are
        evaluated one by one.  "derived": a cheap operation on such inputs only, which is not computed yet: its result is a
        `_Derived`, too.  "use": all others; the parameters are gathered to compute it.
    """
    if not any(derived):
        return "plain"
    if eqn.primitive.name in CALLS:
        return "call"
    alone = all(is_derived or _is_literal(v) for v, is_derived in zip(eqn.invars, derived, strict=True))
    return "derived" if alone and eqn.primitive.name in CHEAP and len(eqn.outvars) == 1 else "use"


def _is_literal(v: Any) -> bool:
    return hasattr(v, "val")


def _body(eqn: Any) -> tuple[Any, Sequence[Any]]:
    """Return (jaxpr, constants) of the function that an equation calls."""
    body = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return getattr(body, "jaxpr", body), getattr(body, "consts", ())


def _count_uses(jaxpr: Any, inputs: Sequence[frozenset[str]], uses: collections.Counter[str]) -> list[frozenset[str]]:
    """Count the equations that use each parameter.

    Args:
        jaxpr: the function.
        inputs: names of the parameters that each input is derived from.
        uses: counter by name, to which is added.

    Returns:
        Names of the parameters that each output is derived from.
    """
    none: frozenset[str] = frozenset()
    names = dict(zip(jaxpr.invars, inputs, strict=True))
    read = lambda v: none if _is_literal(v) else names.get(v, none)  # noqa: E731
    for eqn in jaxpr.eqns:
        sources = [read(v) for v in eqn.invars]
        kind, result = _kind(eqn, [*map(bool, sources)]), [none] * len(eqn.outvars)
        if kind == "call":
            result = _count_uses(_body(eqn)[0], sources, uses)
        elif kind == "derived":
            result = [none.union(*sources)]
        elif kind == "use":
            uses.update(none.union(*sources))
        names.update(zip(eqn.outvars, result, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _evaluate(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], use: Callable[..., Any]) -> list[Any]:
    """Evaluate a jaxpr some of whose inputs are `_Derived`.

    Args:
        jaxpr: the function.
        consts: its constants.
        inputs: arrays and `_Derived`.
        use: `use(fn, names, others) -> list of arrays` evaluates fn(parameters, others); `parameters` has those in `names`.
    """
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))
    read = lambda v: v.val if _is_literal(v) else values[v]  # noqa: E731
    for eqn in jaxpr.eqns:
        variables = list(dict.fromkeys(v for v in eqn.invars if not _is_literal(v)))
        operands = [values[v] for v in variables]
        derived = [x if isinstance(x, _Derived) else None for x in operands]
        others = [x for x in operands if not isinstance(x, _Derived)]
        names = frozenset[str]().union(*(x.names for x in derived if x is not None))
        kind = _kind(eqn, [isinstance(read(v), _Derived) for v in eqn.invars])
        call = _function(jaxpr, eqn, variables)
        result_of = functools.partial(_with_derived, call, derived)
        if kind == "call":
            results = _evaluate(*_body(eqn), [read(v) for v in eqn.invars], use)
        elif kind == "derived":
            results = [_Derived(names, lambda params, result_of=result_of: result_of(params, ())[0])]
        else:
            results = call(*operands) if kind == "plain" else use(result_of, sorted(names), others)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _function(jaxpr: Any, eqn: Any, variables: Sequence[Any]) -> Callable[..., list[Any]]:
    """The function that an equation computes from the values of its variables."""
    alone = jaxpr.replace(constvars=[], invars=list(variables), outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))


def _with_derived(call: Callable[..., Any], derived: Sequence[_Derived | None], params: Any, others: Sequence[Any]) -> Any:
    """Call a function with the values of `derived` for whole parameters, and with `others` where `derived` has None."""
    rest = iter(others)
    return call(*[next(rest) if x is None else x.value(params) for x in derived])


# ------------------------------------------------------------------------------------------------ steps
def gathered_when_used(split: Split, fn: Callable[[Any], Any], any_row: Array | None) -> Callable[[Any], Any]:
    """Convert a function of whole parameters to one of the chunks of this device, that gathers parameters when they are used.

    Args:
        split: which parameters are chunks.
        fn: function of a dict of parameters.
        any_row: bool scalar, whether the rows of this device have gradients: if not, it adds zeros.  None: True.

    Returns:
        Function of the parameters of this device; the gradients of chunks are summed over devices.
    """
    gather = _Gather(split.axis_name, split.shapes, any_row)

    def of_chunks(params: Mapping[str, Array]) -> Any:
        specs = {k: jax.ShapeDtypeStruct(split.shapes.get(k, x.shape), x.dtype) for k, x in params.items()}
        trees: list[Any] = []

        def flat(*values: Array) -> list[Any]:
            leaves, tree = jax.tree.flatten(fn(dict(zip(specs, values, strict=True))))
            trees.append(tree)
            return leaves

        closed = jax.make_jaxpr(flat)(*specs.values())
        uses: collections.Counter[str] = collections.Counter()
        _count_uses(closed.jaxpr, [frozenset([k]) if k in split.shapes else frozenset() for k in specs], uses)
        late = [k for k in split.shapes if k in specs and is_large(specs[k]) and uses[k] <= MAX_USES]
        values = dict(params)
        for names in groups({k: x for k, x in specs.items() if k in split.shapes and k not in late}):
            values |= gather.once({k: params[k] for k in names})
        inputs = [_Derived(frozenset([k]), lambda whole, k=k: whole[k]) if k in late else x for k, x in values.items()]

        def use(fn: Callable[..., Any], names: Sequence[str], others: Sequence[Any]) -> Any:
            return gather.used(fn, {k: params[k] for k in names}, others)

        results = _evaluate(closed.jaxpr, closed.consts, inputs, use)
        whole = [use(lambda p, _, x=x: x.value(p), sorted(x.names), ()) if isinstance(x, _Derived) else x for x in results]
        return jax.tree.unflatten(trees[0], whole)

    return of_chunks


def gathered_after(split: Split, name: str, chunk: Array, others: Iterable[Any]) -> Array:
    """Gather one parameter when other arrays are computed.

    Args:
        split: which parameters are chunks.
        name: name of the parameter.
        chunk: the parameter of this device; returned if it is no chunk.
        others: the other arrays.

    Returns:
        The whole parameter.
    """
    if name not in split.shapes:
        return chunk
    return _Gather(split.axis_name, split.shapes, None)({name: _after(chunk, others)})[name]
