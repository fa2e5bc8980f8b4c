"""Observe the intermediate arrays of a model: a tap is called with every array that a forward pass computes.

`run_tapped` evaluates a function as a jaxpr, equation by equation, and `jfit.lowering.interpret` calls taps for the nodes of a
graph.  The computation goes on with the array that the tap returns: a tap that returns it through a function with its own
derivative (`jax.custom_vjp`) also observes its gradient.  Everything is traced, so taps work under jit, grad, scan, and pmap.
"""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from jfit.lowering.dependence import equation_layouts, is_literal
from jfit.ops.rows import MaybeLayout, RowLayout


class Point(NamedTuple):
    """An array of a forward pass.

    Attributes:
        name: name of the node and, if it has several outputs, of the output; unique.
        operator: name of the operator or JAX primitive; "" for variables.
        kind: "node", "input", "parameter", "auxiliary state", "constant" or "loss".
        inputs: names of the arrays that it was computed from.
        source: the line of the user's code that computes it, for functions; "" for graphs.
        rows: on which axis the rows of the batch are; None or LOST: on none.

    Example:
        >>> Point("log0", "log", "node", ("fc",)).inputs
        ('fc',)
    """

    name: str
    operator: str
    kind: str
    inputs: tuple[str, ...] = ()
    source: str = ""
    rows: MaybeLayout = None


Tap = Callable[[Point, Any], Any]

# Primitives whose bodies are evaluated as if they were written out
_CALLS = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}
_CUSTOM = {"custom_jvp_call", "custom_vjp_call"}  # functions with their own derivative, each a node of its own name
_BOOKKEEPING = "model.py:jfit"  # sums of losses over the rows, in `jfit.lowering.model`
# Primitives that move or convert values: their results have the names of their inputs.
_VIEWS = {"broadcast_in_dim", "copy", "copy_p", "expand_dims", "optimization_barrier", "reshape", "squeeze", "stop_gradient"}
_VIEWS |= {"convert_element_type", "transpose", "pvary"}


class _Known(NamedTuple):
    """A value during the evaluation: the array, the names of the points that it comes from, and where its rows are."""

    array: Any
    names: tuple[str, ...] = ()
    layout: Any = None


class _Place(NamedTuple):
    """Where the equations of a jaxpr are called: the name of the function, its line, and the scope of its modules."""

    function: str = ""
    source: str = ""
    scope: str = ""


def run_tapped(
    fn: Callable[..., Any], arguments: Sequence[Any], points: Sequence[Point], tap: Tap
) -> tuple[Any, list[tuple[str, ...]]]:
    """Return fn(*arguments), with a tap on the arguments, on the constants and on each floating-point result of a primitive.

    Args:
        fn: function of pytrees of arrays that returns a pytree of arrays.
        arguments: its arguments.
        points: names and kinds of the leaves of the arguments.
        tap: `tap(point, array) -> array`.

    Returns:
        (result of the function, for each of its leaves the names of the points that it comes from).

    Example:
        >>> import jax.numpy as jnp
        >>> found = []
        >>> tap = lambda point, array: found.append(point) or array
        >>> _ = run_tapped(lambda x: jnp.log(x) + 1, [jnp.ones(2)], [Point("x", "", "input")], tap)
        >>> [(p.name, p.inputs) for p in found]
        [('x', ()), ('log', ('x',)), ('1.0', ()), ('add', ('log', '1.0'))]
    """
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*arguments)
    walk = _Walk(tap, {p.name for p in points})
    leaves = zip(points, jax.tree.leaves(arguments), strict=True)
    known = [_Known(tap(p, x), (p.name,), p.rows if isinstance(p.rows, RowLayout) else None) for p, x in leaves]
    results = walk.run(closed.jaxpr, closed.consts, known, _Place())
    return jax.tree.unflatten(jax.tree.structure(shapes), [r.array for r in results]), [r.names for r in results]


class _Walk:
    """Evaluates jaxprs with a tap; keeps the names that are in use."""

    def __init__(self, tap: Tap, names: set[str]) -> None:
        self.tap, self.names, self._numbers = tap, names, Counter[str]()

    def _unique(self, name: str) -> str:
        result = name
        while result in self.names:
            self._numbers[name] += 1
            result = f"{name}_{self._numbers[name]}"
        self.names.add(result)
        return result

    def _constant(self, x: Any) -> _Known:
        if not _is_float(x):
            return _Known(x)
        name = self._unique("constant")
        return _Known(self.tap(Point(name, "", "constant"), x), (name,))

    def _read(self, variable: Any, values: dict[Any, _Known]) -> _Known:
        if not is_literal(variable):
            return values[variable]
        if not _is_float(variable.val):
            return _Known(variable.val)
        name = str(np.asarray(variable.val).astype(np.float32).item())
        if name not in self.names:
            self.names.add(name)
            self.tap(Point(name, "", "constant"), jnp.asarray(variable.val))
        return _Known(variable.val, (name,))

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[_Known], place: _Place) -> list[_Known]:
        """Evaluate a jaxpr; returns its results."""
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(self._constant, consts), *inputs), strict=True))
        for eqn in jaxpr.eqns:
            operands = [self._read(v, values) for v in eqn.invars]
            values.update(zip(eqn.outvars, self._equation(jaxpr, eqn, operands, place), strict=True))
        return [self._read(v, values) for v in jaxpr.outvars]

    def _equation(self, jaxpr: Any, eqn: Any, operands: list[_Known], place: _Place) -> list[_Known]:
        name, body = eqn.primitive.name, eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        scope = "/".join(part for part in (place.scope, str(eqn.source_info.name_stack)) if part)
        source, jaxpr_of_body = source_of(eqn, place), getattr(body, "jaxpr", body)
        if name in _CALLS:
            inner = _Place(jaxpr_of_body.debug_info.func_name, source, scope)
            return self.run(jaxpr_of_body, getattr(body, "consts", ()), operands, inner)
        name = jaxpr_of_body.debug_info.func_name if name in _CUSTOM else name
        sources = tuple(dict.fromkeys(n for x in operands for n in x.names))
        layouts, known = equation_layouts(eqn, [x.layout for x in operands]), []
        results = _results_of(jaxpr, eqn, operands)
        for i, (x, layout) in enumerate(zip(results, layouts, strict=True)):
            names = sources
            if name not in _VIEWS and _is_float(x) and not source.startswith(_BOOKKEEPING):
                suffix = f":{i}" if len(results) > 1 else ""
                label = self._unique("/".join(part for part in (scope, name) if part) + suffix)
                names, rows = (label,), layout if isinstance(layout, RowLayout) else None
                x = self.tap(Point(label, name, "node", sources, source, rows), x)
            known.append(_Known(x, names, layout))
        return known


def _is_float(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def _results_of(jaxpr: Any, eqn: Any, operands: Sequence[_Known]) -> list[Any]:
    """Compute one equation of a jaxpr."""
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # takes 20 ms, which `jfit.fit` does not have to wait for

    values = {v: x.array for v, x in zip(eqn.invars, operands, strict=True) if not is_literal(v)}
    alone = jaxpr.replace(constvars=[], invars=list(values), outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*values.values())


# ------------------------------------------------------------------------------------------------ lines of the user's code
_JAX = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (jax, jaxlib))
_JFIT = str(Path(__file__).parents[1]) + os.sep
_FRAMEWORKS = str(Path(__file__).with_name("frameworks")) + os.sep  # adapters, which call modules that call them
_MODEL = str(Path(__file__).with_name("model.py"))
_OTHERS = (_JFIT, *_JAX, sysconfig.get_paths()["stdlib"] + os.sep, "<frozen")


def source_of(eqn: Any, place: _Place) -> str:
    """Return the line of code that an equation comes from: of the user, else of the library that the user called.

    Args:
        eqn: equation of a jaxpr.
        place: where the function is called that contains the equation.  JAX keeps the trace of a compiled function, such as
            jax.nn.relu, with the lines of its first call; the line of this call is then used.

    Returns:
        A string such as "model.py:12 in forward: return jnp.log(x)"; "" if it is not known.
    """
    library = ""
    for frame in getattr(eqn.source_info.traceback, "frames", ()):
        file, is_package = frame.file_name, "-packages" + os.sep in frame.file_name
        if not is_package and not file.startswith(_OTHERS):
            return _text(frame)
        if file.startswith(_FRAMEWORKS):
            continue
        if file.startswith(_JFIT):
            library = library or (_BOOKKEEPING if file.startswith(_MODEL) else _text(frame))
        elif is_package and not file.startswith(_JAX):
            library = library or _text(frame)
        if file.startswith(_JFIT) or (place.function and frame.function_name.split(".")[-1] == place.function):
            break
    return place.source or library


def _text(frame: Any) -> str:
    path, line = Path(frame.file_name), linecache.getline(frame.file_name, frame.line_num).strip()
    function = frame.function_name.split("<locals>.")[-1]
    where = f"{path.name}:{frame.line_num} in {function}"
    return f"{where}: {line}" if line else where
