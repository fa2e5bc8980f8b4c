"""Every registered operator on boxes, at once: `mx.nd.<name>(*arrays, **attributes, out=None)`.

An operator's function is compiled once for each set of attributes; numbers that Python operators bring (`x * lr`) are data
of the program, so a changing number never compiles.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet import keys
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.mutable import MutableArray, as_array
from jfit.ops import Attrs, Ctx, Op, lookup, nearest, record_for
from jfit.ops.elementwise import SCALAR_TABLE
from jfit.ops.rules import reason

SCALARS = {row[0] for row in SCALAR_TABLE}


def invoke(
    name: str, arrays: Sequence[Any], attrs: dict[str, Any], out: Any = None, kind: type[MutableArray] = MutableArray
) -> Any:
    """One operator on arrays.

    Args:
        name: any registered name.
        arrays: its inputs (then auxiliary states), in order.
        attrs: attributes, typed or as strings.
        out: box, or list of boxes, that takes the result.
        kind: class of the results.

    Returns:
        One `kind`, or a list where the operator has several visible outputs; `out` itself if it was given.

    Raises:
        MXNetError: the arrays do not fit the operator; the message names both.

    Example:
        >>> invoke("clip", [np.array([1.0, 5.0])], {"a_min": 0, "a_max": 2}).asnumpy().tolist()
        [1.0, 2.0]
    """
    op = record_for(name, attrs)
    if op.variadic:
        attrs = {op.variadic: len(arrays), **attrs}
    try:
        params = op.parse(attrs) if attrs else _defaults(op.name)
        wanted = len(op.input_names(params)) + len(op.aux)
    except ValueError as error:
        raise MXNetError(str(error)) from None
    values = [on_device(a) for a in arrays]
    if len(values) != wanted:
        names = (*op.input_names(params), *op.aux)
        raise MXNetError(f"{op.name} takes {wanted} arrays ({', '.join(names)}), {len(values)} were given")
    key = jax.random.key_data(keys.next_key()) if op.needs_rng else None
    try:
        outputs = _program(op, params)(key, *values)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        given = ", ".join(f"{v.dtype}{list(v.shape)}" for v in values)
        raise MXNetError(f"{op.name} cannot take {given or 'its attributes'}: {reason(error)}") from error
    return _given_out([kind(o) for o in outputs], out)


@functools.cache
def _defaults(name: str) -> Attrs:
    return lookup(name).parse({})


@functools.lru_cache(maxsize=4096)
def _program(op: Op, params: Attrs) -> Callable[..., tuple[Any, ...]]:
    def run(key: Any, *arrays: Any) -> tuple[Any, ...]:
        arrays = tuple(_floats_met(op, arrays))
        typed = None if key is None else jax.random.wrap_key_data(key)
        ctx = Ctx(train=False, key=typed, rows=(None,) * len(arrays), node=op.name)
        result = op.fn(ctx, params, *arrays)
        outputs = result[0] if op.aux else result
        return (outputs if isinstance(outputs, tuple) else (outputs,))[: op.num_visible(params)]

    return jax.jit(run, keep_unused=True)  # zeros_like uses no value of its input, and still belongs on its device


def _floats_met(op: Op, arrays: Sequence[Any]) -> list[Any]:
    """Where an operator wants one dtype, integers join the floats."""
    floats = [a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    if not floats or op.types is not None:
        return list(arrays)
    return [a if jnp.issubdtype(a.dtype, jnp.floating) else a.astype(floats[0]) for a in arrays]


def _given_out(results: list[MutableArray], out: Any) -> Any:
    if out is None:
        return results[0] if len(results) == 1 else results
    boxes = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(boxes) != len(results):
        raise MXNetError(f"out= has {len(boxes)} arrays, the operator gives {len(results)}")
    for box, result in zip(boxes, results, strict=True):
        box[:] = result.value
    return out


def with_number(name: str, array: Any, scalar: Any) -> jax.Array:
    """An array and a number, by the operator `name` (`_plus_scalar`, ...); the result keeps the array's dtype.

    Example:
        >>> with_number("_rminus_scalar", np.array([1.0, 2.0]), 5).tolist()
        [4.0, 3.0]
    """
    number = scalar.item() if hasattr(scalar, "item") else scalar
    if isinstance(number, numbers.Integral) and not -(2**31) <= int(number) < 2**31:
        number = float(number)
    return _number_program(name)(on_device(array), number)


@functools.cache
def _number_program(name: str) -> Callable[[Any, Any], Any]:
    fn = lookup(name).fn
    return jax.jit(lambda array, scalar: fn(None, SimpleNamespace(scalar=scalar, is_int=True), array))


def on_device(value: Any) -> jax.Array:
    """The JAX array of anything array-like; 64-bit host data becomes 32-bit here."""
    value = as_array(value)
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def is_array(value: Any) -> bool:
    """Whether an argument stands for an array (and not for an attribute)."""
    return isinstance(value, (MutableArray, np.ndarray, jax.Array)) and not isinstance(value, np.generic)


@functools.cache
def function(name: str, kind: type[MutableArray] = MutableArray) -> Callable[..., Any]:
    """The eager function of one operator, whose results are of class `kind`.

    Raises:
        UnknownOperator: no such operator (nearest names listed).

    Example:
        >>> function("concat")(np.ones((1, 2)), np.zeros((1, 2)), dim=0).shape
        (2, 2)
    """
    op = lookup(name)

    def call(*args: Any, out: Any = None, name: str | None = None, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], (list, tuple)) and op.variadic and all(map(is_array, args[0])):
            args = tuple(args[0])
        arrays = [a for a in args if is_array(a)]
        named = {k: v for k, v in kwargs.items() if is_array(v)}
        attrs = {k: v for k, v in kwargs.items() if not is_array(v) and v is not None}
        if op.resolve:  # a custom operator's class gets every argument, None too, as Python prints it
            attrs = {k: str(v) for k, v in kwargs.items() if not is_array(v)}
        free = [k for k in op.attrs if k not in attrs]
        loose = [a for a in args if not is_array(a)]
        if len(loose) > len(free):
            raise TypeError(f"{op.name} got {len(loose)} values by position, but has only the attributes {list(op.attrs)}")
        attrs.update((k, v) for k, v in zip(free, loose, strict=False) if v is not None)
        with translated():
            return invoke(op.name, _in_order(record_for(op.name, attrs), arrays, named, attrs), attrs, out, kind)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = op.doc
    return call


def _in_order(op: Op, arrays: list[Any], named: dict[str, Any], attrs: dict[str, Any]) -> list[Any]:
    """Arrays by position, then those by name, in the order of the operator's inputs."""
    if not named:
        return arrays
    counted = {op.variadic: len(arrays) + len(named)} if op.variadic else {}
    names = (*op.input_names(op.parse({**counted, **attrs})), *op.aux)
    found = dict(zip(names, arrays, strict=False))
    for key, value in named.items():
        if key not in names:
            near = nearest(key, names)
            raise MXNetError(f"{op.name} has no input {key!r}" + (f"; did you mean {near}?" if near else f"; it has {names}"))
        found[key] = value
    return [found[n] for n in names if n in found]
