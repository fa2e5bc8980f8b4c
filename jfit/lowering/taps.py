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
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from jfit.lowering.dependence import equation_layouts
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
_CUSTOM = {"custom_jvp_call", "custom_vjp_call"}  # functions with their own derivative
_BOOKKEEPING = "model.py:jfit"  # sums of losses over the rows, in `jfit.lowering.model`
# Primitives that move or convert values: their results have the names of their inputs.
_VIEWS = {"broadcast_in_dim", "copy", "copy_p", "expand_dims", "optimization_barrier", "reshape", "squeeze", "stop_gradient"}
_VIEWS |= {"convert_element_type", "transpose", "pvary"}


class _Known(NamedTuple):
    """A value during the evaluation: the array, the names of the points that it comes from, and where its rows are."""

    array: Any
    names: tuple[str, ...]
    layout: Any


def run_tapped(
    fn: Callable[..., Any], arrays: Sequence[Any], points: Sequence[Point], tap: Tap
) -> tuple[Any, list[tuple[str, ...]]]:
    """Return fn(*arrays), with a tap on the arguments, on the constants and on each floating-point result of a primitive.

    Args:
        fn: function of arrays that returns a pytree of arrays.
        arrays: its arguments.
        points: names and kinds of the arguments.
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
    trees: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(fn(*values))
        trees.append(tree)
        return leaves

    closed = jax.make_jaxpr(flat)(*arrays)
    walk = _Walk(tap, {p.name for p in points})
    known = [
        _Known(tap(p, x), (p.name,), p.rows if isinstance(p.rows, RowLayout) else None)
        for p, x in zip(points, arrays, strict=True)
    ]
    results = walk.run(closed.jaxpr, walk.constants(closed.consts), known, _Place("", "", ""))
    return jax.tree.unflatten(trees[0], [r.array for r in results]), [r.names for r in results]


class _Place(NamedTuple):
    """Where the equations of a jaxpr are called: the name of the function, its line, and the scope of its modules."""

    function: str
    source: str
    scope: str


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

    def constants(self, consts: Sequence[Any]) -> list[_Known]:
        return [self._constant(x) for x in consts]

    def _constant(self, x: Any) -> _Known:
        if not _is_float(x):
            return _Known(x, (), None)
        name = self._unique("constant")
        return _Known(self.tap(Point(name, "", "constant"), x), (name,), None)

    def _read(self, variable: Any, values: dict[Any, _Known]) -> _Known:
        if not isinstance(variable, Literal):
            return values[variable]
        if not _is_float(variable.val):
            return _Known(variable.val, (), None)
        name = str(np.asarray(variable.val).astype(np.float32).item())
        if name not in self.names:
            self.names.add(name)
            self.tap(Point(name, "", "constant"), jnp.asarray(variable.val))
        return _Known(variable.val, (name,), None)

    def run(self, jaxpr: Any, consts: Sequence[_Known], inputs: Sequence[_Known], place: _Place) -> list[_Known]:
        """Evaluate a jaxpr; returns its results."""
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))
        for eqn in jaxpr.eqns:
            operands = [self._read(v, values) for v in eqn.invars]
            values.update(zip(eqn.outvars, self._equation(jaxpr, eqn, operands, place), strict=True))
        return [self._read(v, values) for v in jaxpr.outvars]

    def _equation(self, jaxpr: Any, eqn: Any, operands: list[_Known], place: _Place) -> list[_Known]:
        name, (body, consts) = eqn.primitive.name, _body(eqn)
        scope = "/".join(part for part in (place.scope, str(eqn.source_info.name_stack)) if part)
        inner = _Place(str(eqn.params.get("name", "")), source_of(eqn, place), scope)
        if name in _CALLS and body is not None and len(body.invars) == len(operands):
            return self.run(body, self.constants(consts), operands, inner)
        results = _results_of(jaxpr, eqn, operands)
        layouts = equation_layouts(eqn, [x.layout for x in operands])
        sources = tuple(dict.fromkeys(n for x in operands for n in x.names))
        if name in _CUSTOM and body is not None and len(body.invars) == len(operands):
            name, sources = self._custom(body, consts, operands, inner, sources)
        known = []
        for i, (x, layout) in enumerate(zip(results, layouts, strict=True)):
            names = sources
            if name not in _VIEWS and _is_float(x) and not inner.source.startswith(_BOOKKEEPING):
                suffix = f":{i}" if len(results) > 1 else ""
                label = self._unique("/".join(part for part in (scope, name) if part) + suffix)
                names, rows = (label,), layout if isinstance(layout, RowLayout) else None
                x = self.tap(Point(label, name, "node", sources, inner.source, rows), x)
            known.append(_Known(x, names, layout))
        return known

    def _custom(
        self, body: Any, consts: Any, operands: list[_Known], place: _Place, sources: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        """Tap the equations of a function with its own derivative, whose result is computed as a whole.

        Returns (name of the function, names of the points that its results come from).
        """
        while len(body.eqns) == 1 and body.eqns[0].primitive.name in _CALLS:
            place = place._replace(function=str(body.eqns[0].params.get("name", "")))
            same = list(body.eqns[0].invars) == list(body.invars)
            if not same:
                break
            body, consts = _body(body.eqns[0])
        name = place.function or "custom function"
        if len(body.eqns) <= 1:
            return name, sources
        stopped = [x._replace(array=jax.lax.stop_gradient(x.array)) for x in operands]
        inner = self.run(
            body, self.constants(consts), stopped, place._replace(scope="/".join(filter(None, (place.scope, name))))
        )
        return name, tuple(dict.fromkeys((*(n for x in inner for n in x.names), *sources)))


def _is_float(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def _body(eqn: Any) -> tuple[Any, Sequence[Any]]:
    """Return (jaxpr, constants) of the function that an equation calls; (None, ()) if it calls none."""
    body = next((eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params), None)
    return getattr(body, "jaxpr", body), getattr(body, "consts", ())


def _results_of(jaxpr: Any, eqn: Any, operands: Sequence[_Known]) -> list[Any]:
    """Compute one equation of a jaxpr."""
    values = {v: x.array for v, x in zip(eqn.invars, operands, strict=True) if not isinstance(v, Literal)}
    alone = jaxpr.replace(constvars=[], invars=list(values), outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*values.values())


# ------------------------------------------------------------------------------------------------ lines of the user's code
_JAX = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (jax, jaxlib))
_JFIT = str(Path(__file__).parents[1]) + os.sep
_FRAMEWORKS = str(Path(__file__).with_name("frameworks")) + os.sep  # adapters, which call modules that call them
_MODEL = str(Path(__file__).with_name("model.py"))
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


def source_of(eqn: Any, place: _Place | None = None) -> str:
    """Return the line of code that an equation comes from: of the user, else of the library that the user called.

    Args:
        eqn: equation of a jaxpr.
        place: where the function is called that contains the equation.  JAX keeps the trace of a compiled function, such as
            jax.nn.relu, with the lines of its first call; the line of this call is then used.

    Returns:
        A string such as "model.py:12 in forward: return jnp.log(x)"; "" if it is not known.
    """
    library, fallback = None, "" if place is None else place.source
    for frame in getattr(getattr(eqn.source_info, "traceback", None), "frames", ()):
        name, is_package = frame.file_name, "-packages" + os.sep in frame.file_name
        if name.startswith(_FRAMEWORKS):
            continue
        is_own = not is_package and not name.startswith((_JFIT, _STDLIB, "<frozen")) and not name.startswith(_JAX)
        if is_own:
            return _text(frame)
        if name.startswith(_JFIT):
            return fallback or (_BOOKKEEPING if name.startswith(_MODEL) and library is None else _text(library or frame))
        if place is not None and place.function and frame.function_name.split(".")[-1] == place.function:
            return fallback
        if is_package and not name.startswith(_JAX):
            library = library or frame
    return fallback or ("" if library is None else _text(library))


def _text(frame: Any) -> str:
    path, line = Path(frame.file_name), linecache.getline(frame.file_name, frame.line_num).strip()
    function = frame.function_name.split("<locals>.")[-1]
    where = f"{path.name}:{frame.line_num} in {function}"
    return f"{where}: {line}" if line else where
