"""Functions that call operators by name, and a check of row independence: changing a row may change only its own outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jfit
from jfit.ops import Ctx, RowLayout, lookup


@functools.cache
def compiled(fn: Callable[..., Any], params: Any) -> Callable[..., Any]:
    """An operator function as one program for all calls: compiling its primitives one by one takes longer."""
    return jax.jit(lambda *arrays: fn(Ctx(rows=(None,) * len(arrays)), params, *arrays))


def call(name: str, *arrays: Any, **attrs: Any) -> Any:
    """The outputs of an operator: an array, or a tuple of them."""
    op = lookup(name)
    count = {op.variadic: len(arrays)} if op.variadic else {}
    return compiled(op.fn, op.parse(count | attrs))(*map(jnp.asarray, arrays))


def filled(name: str, *ins: Any, out: Any = None, **attrs: Any) -> list[Any]:
    """What an operator's shape rule makes of its input shapes."""
    op = lookup(name)
    params = op.parse(({op.variadic: len(ins)} if op.variadic else {}) | attrs)
    given = params, list(ins), [out] * len(op.output_names(params))
    if op.shapes is not None:
        return op.shapes(*given)[0]
    assert op.fill is not None
    return op.fill(*given)


def owners(rows: RowLayout, shape: tuple[int, ...]) -> np.ndarray:
    """Which row of the batch each entry belongs to."""
    ids = np.tile(np.repeat(np.arange(rows.size), rows.after), rows.before)
    return np.broadcast_to(ids.reshape([-1 if a == rows.axis else 1 for a in range(len(shape))]), shape)


def rows_after(name: str, arrays: list[np.ndarray], rows: list[Any], **attrs: Any) -> list[Any]:
    """Rows of the outputs by the operator's rule, after checking them: changing row k changes entries of row k alone."""
    op = lookup(name)
    params = op.parse(({op.variadic: len(arrays)} if op.variadic else {}) | attrs)
    program = compiled(op.fn, params)

    def outputs(given: list[np.ndarray]) -> list[np.ndarray]:
        found = program(*given)
        return [np.asarray(o) for o in (found if isinstance(found, tuple) else (found,))]

    base = outputs(arrays)
    predicted = list(op.rows(params, rows, [a.shape for a in arrays], [o.shape for o in base]))
    size = next(r.size for r in rows if isinstance(r, RowLayout))
    for k in range(size):
        changed = [
            np.where(owners(r, a.shape) == k, a[::-1] * 2 + 1, a).astype(a.dtype) if isinstance(r, RowLayout) else a
            for a, r in zip(arrays, rows, strict=True)
        ]
        for o, new, r in zip(base, outputs(changed), predicted, strict=True):
            if isinstance(r, RowLayout):
                same = owners(r, o.shape) != k
                np.testing.assert_allclose(new[same], o[same], rtol=1e-5, atol=1e-5, err_msg=f"{name}: row {k}")
            elif r is None:
                np.testing.assert_array_equal(new, o, err_msg=f"{name}: an output without rows changed")
    return predicted


def of_graph(name, *shapes, **attrs):
    """Infer the shapes of a graph of one operator on the variables a, b, ... of these shapes."""
    names = "abcd"[: len(shapes)]
    net = getattr(jfit.sym, name)(*map(jfit.sym.Variable, names), name="n", **attrs)
    return net.infer_shape(**dict(zip(names, shapes, strict=True)))
