"""Shape and dtype inference: shapes and dtypes of a whole graph from those of its inputs.

Each operator has a function (`Op.fill`) that infers shapes of parameters from shapes of data.  Output shapes are those of
`jax.eval_shape` on the operator's function, so that inference cannot disagree with execution.  An operator with an unknown
input size (0) is traced with two different sizes in its place: output sizes that are equal in both are known.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.checks import name_hint
from jfit.graph.nodes import Graph, GraphError, Node, Subgraph, aux_nodes
from jfit.ops import Attrs, Ctx, Op
from jfit.ops.attributes import DTYPES, dtype, shape
from jfit.ops.rules import reason, same_shape

Shape = tuple[int, ...]
Known = dict[tuple[int, int], Any]  # (id(node), output) -> shape or dtype
# An unknown size is replaced by each of these in two traces: an output size that is equal in both does not depend on it.  Both
# are products of small primes (2 * 3, 2⁴ * 3² * 7), so that most reshapes and splits of the axis succeed.
PROBE_SIZES = (6, 1008)
MAX_SWEEPS = 4  # passes over the graph, each forward and backward
FLOAT = np.dtype(np.float32)  # the default dtype


def infer_shape(
    graph: Graph, /, *args: Sequence[int] | None, partial: bool = False, **kwargs: Sequence[int]
) -> tuple[Any, Any, Any]:
    """Infer the shapes of all arguments, outputs and auxiliary states.

    Args:
        graph: the graph.
        args: shapes by position in the order of `list_arguments()`; None or () if unknown.
        partial: if some shapes cannot be inferred, return the others, with () for an unknown shape and 0 for an unknown size.
        kwargs: shapes by variable name; 0 for an unknown size.

    Returns:
        (argument shapes, output shapes, auxiliary shapes): three lists of tuples in the order of `list_arguments`,
        `list_outputs`, `list_auxiliary_states`.  (None, None, None) if one cannot be inferred and `partial` is False.

    Raises:
        GraphError: shapes contradict each other; the message has the node and both shapes.
        TypeError: shapes are passed both by position and by name.

    Example:
        >>> import jfit
        >>> fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> fc.infer_shape(data=(2, 5))
        ([(2, 5), (3, 5), (3,)], [(2, 3)], [])
    """
    named = _by_name(graph, args, kwargs)
    shapes, _ = infer(graph, {n: s for n, s in named.items() if s})  # None and () are unknown, as in MXNet
    unknown = any(s is None or 0 in s for part in _lists(graph, shapes, None) for s in part)
    return (None, None, None) if unknown and not partial else _lists(graph, shapes, ())


def infer_type(graph: Graph, /, *args: Any, partial: bool = False, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Infer the dtypes of all arguments, outputs and auxiliary states.

    Args:
        graph: the graph.
        args: dtypes by position in the order of `list_arguments()`; None if unknown.
        partial: return None instead of float32 for a dtype that nothing determines.
        kwargs: dtypes by variable name.

    Returns:
        (argument dtypes, output dtypes, auxiliary dtypes): three lists of numpy dtypes in the order of `list_arguments`,
        `list_outputs`, `list_auxiliary_states`.

    Raises:
        GraphError: an unknown name.
        TypeError: an unknown dtype, or dtypes are passed both by position and by name.

    Example:
        >>> import jfit
        >>> fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> [str(t) for t in fc.infer_type(data="float16")[0]]
        ['float16', 'float16', 'float16']
    """
    named = {name: t for name, t in _by_name(graph, args, kwargs).items() if t is not None}
    _check_names("dtype", named, graph.list_inputs())
    dtypes = _infer_dtypes(graph, {k: np.dtype(DTYPES.get(v, v)) for k, v in named.items()}, partial)
    return _lists(graph, dtypes, None if partial else FLOAT)


def _by_name(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name values that are passed by position, in the order of `list_arguments()`."""
    if args and kwargs:
        raise TypeError("pass values by position or by name, not both")
    arguments = graph.list_arguments()
    if len(args) > len(arguments):
        raise GraphError(f"got {len(args)} values for {len(arguments)} arguments: {arguments}")
    return dict(zip(arguments, args, strict=False)) if args else dict(kwargs)


def _check_names(what: str, named: Mapping[str, Any], variables: Sequence[str]) -> None:
    for name in named:
        if name not in variables:
            raise GraphError(f"got a {what} for {name!r}, but the graph has no such variable; {name_hint(name, variables)}")


def _lists(graph: Graph, known: Known, missing: Any):
    order = graph.nodes()
    aux = aux_nodes(order)

    def of(node: Node, index: int = 0) -> Any:
        value = known.get((id(node), index))
        return missing if value is None else value

    return (
        [of(n) for n in order if n.op is None and id(n) not in aux],
        [of(h.node, h.index) for h in graph.heads],
        [of(n) for n in order if id(n) in aux],
    )


def infer(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, Any] | None = None,
    outs: Sequence[Shape | None] = (),
) -> tuple[Known, Known]:
    """Infer shapes and dtypes of all outputs of all nodes as far as possible.

    Args:
        graph: the graph.
        shapes: shapes by variable name; 0 for an unknown size.
        dtypes: dtypes by variable name.
        outs: known shapes of the outputs of the graph; None if unknown.

    Returns:
        (shapes, dtypes), two dicts with keys (id(node), output index).  A shape is missing or None if unknown, and may contain
        0 for an unknown size; a dtype that nothing determines is float32 or missing.

    Raises:
        GraphError: an unknown name, or shapes that contradict each other; the message has the node and both shapes.

    Example:
        >>> import jfit
        >>> from jfit.graph.infer import infer
        >>> y = jfit.sym.relu(jfit.sym.Variable("x"))
        >>> shapes, dtypes = infer(y, {"x": (2, 3)})
        >>> shapes[id(y.heads[0].node), 0]
        (2, 3)
    """
    order = graph.nodes()
    _check_names("shape", shapes, list(dict.fromkeys(n.name for n in order if n.op is None)))
    types = _infer_dtypes(graph, dtypes or {})
    passed = {name: tuple(int(size) for size in value) for name, value in shapes.items()}
    earlier = None if outs else _earlier_shapes(graph, order, passed, types)
    if earlier is not None:
        return dict(earlier), types
    known = _infer_shapes(graph, order, passed, types, outs)
    if all(_complete(s) for s in known.values()):
        _keep(_shapes, graph, (passed, types, dict(known)))
    return known, types


# What was inferred for a graph, by the node of its first output: binding, planning and tracing a model infer the same.  The
# values are lists of (weak references to the outputs, result).
_Kept = weakref.WeakKeyDictionary[Node, list[tuple[Any, Any]]]
_shapes: _Kept = weakref.WeakKeyDictionary()  # (shapes of inputs that were passed, dtypes, shapes of all outputs)
_dtypes: _Kept = weakref.WeakKeyDictionary()  # results: (arguments of _infer_dtypes, dtypes of all outputs)
MAX_KEPT = 8  # results per graph


def _outputs(graph: Graph) -> list[Any]:
    return [(weakref.ref(head.node), head.index) for head in graph.heads]


def _keep(kept: _Kept, graph: Graph, result: Any) -> None:
    if graph.heads:
        results = kept.setdefault(graph.heads[0].node, [])
        results[:] = [*results[-MAX_KEPT + 1 :], (_outputs(graph), result)]


def _results(kept: _Kept, graph: Graph) -> list[Any]:
    results = kept.get(graph.heads[0].node, []) if graph.heads else []
    outputs = _outputs(graph)
    return [result for of, result in results if of == outputs]


def _earlier_shapes(graph: Graph, order: Sequence[Node], passed: dict[str, Shape], types: Known) -> Known | None:
    """Return shapes that were inferred before from a part of `passed`, if the rest agrees with them; else None."""
    for earlier, earlier_types, shapes in _results(_shapes, graph):
        if earlier.items() <= passed.items() and _not_default(earlier_types) == _not_default(types):
            variables = [n for n in order if n.op is None and n.name in passed]
            if all(shapes[id(n), 0] == passed[n.name] for n in variables):
                return shapes
    return None


def _not_default(types: Known) -> Known:
    return {entry: t for entry, t in types.items() if t != FLOAT}


def _infer_shapes(
    graph: Graph, order: Sequence[Node], passed: Mapping[str, Shape], types: Known, outs: Sequence[Shape | None]
) -> Known:
    """Infer the shapes of all outputs of all nodes; arguments as for `infer`, `types` are the dtypes."""
    known: Known = {}
    for node in order:
        if node.op is None:
            declared, other = _declared(node, "__shape__", _read_shape), passed.get(node.name)
            known[id(node), 0] = other if other and graph.PASSED_SHAPES_REPLACE else _merge(declared, other, node, 0)
    known.update({(id(h.node), h.index): s for h, s in zip(graph.heads, outs, strict=False) if h.node.op is not None})
    provisional: set[tuple[int, int]] = set()  # outputs whose shapes come from inputs with unknown sizes
    for _ in range(MAX_SWEEPS):
        before = dict(known)
        for node in order:
            if node.op is not None:
                _fill(node, known)
                _infer_outputs(node, known, types, provisional)
        for node in reversed(order):
            if node.op is not None:
                _fill(node, known)
        if known == before or (not provisional and all(_complete(s) for s in known.values())):
            break
    return known


def _complete(shape: Shape | None) -> bool:
    return shape is not None and 0 not in shape


def _declared(node: Node, key: str, read: Callable[[str], Any]) -> Any:
    """Return what the attribute `key` of a variable declares; None if it declares nothing."""
    try:
        return read(node.attrs[key]) if key in node.attrs else None
    except (ValueError, IndexError) as error:
        raise GraphError(f"variable {node.name!r}: {key} is {node.attrs[key]!r}, which cannot be read ({error})") from None


def _read_shape(text: str) -> Shape | None:
    return tuple(max(size or 0, 0) for size in shape().read("Variable", "__shape__", text)) or None


def _read_dtype(text: str) -> np.dtype:
    return DTYPES[dtype().read("Variable", "__dtype__", text)]


def _fill(node: Node, known: Known) -> None:
    """Infer input shapes of a node by a function of its operator (`Op.fill` or `Op.shapes`) and merge them into `known`."""
    op = node.op
    assert op is not None
    if op.fill is None and op.shapes is None:
        return
    ins = [known.get((id(e.node), e.index)) for e in node.inputs]
    outs = [known.get((id(node), i)) for i in range(len(op.output_names(node.params)))]
    with _named_errors(node, ins):
        filled, outputs = op.shapes(_with_bodies(node), ins, outs) if op.shapes else (op.fill(node.params, list(ins), outs), [])  # type: ignore
    known.update({(id(node), i): inferred for i, inferred in enumerate(outputs)})
    for e, inferred in zip(node.inputs, filled, strict=True):
        known[id(e.node), e.index] = _merge(known.get((id(e.node), e.index)), inferred, e.node, e.index, user=node)


@contextlib.contextmanager
def _named_errors(node: Node, ins: Sequence[Any]) -> Iterator[None]:
    """Convert errors of an operator's rule to a GraphError with the node and its inputs; `ins`: their shapes or dtypes."""
    try:
        yield
    except GraphError:
        raise
    except Exception as error:
        assert node.op is not None
        inputs = ", ".join(f"{name}={value}" for name, value in zip(node.input_names(), ins, strict=False)) or "its attributes"
        raise GraphError(f"{node.name}: {node.op.name} cannot take {inputs}: {reason(error)}") from error


def _merge(old: Shape | None, new: Shape | None, node: Node, index: int, user: Node | None = None) -> Shape | None:
    """Merge two partly known shapes of output `index` of `node`; raise a GraphError if they contradict each other.

    `user` is the node that requires the shape `new`, for the message; None: the shape was passed or declared.
    """
    if old is None or new is None or old == new:
        return new if old is None else old
    if len(old) == len(new) and all(a == b or 0 in (a, b) for a, b in zip(old, new, strict=True)):
        return tuple(a or b for a, b in zip(old, new, strict=True))
    where = f"{user.name}: " if user is not None else ""
    needs = f"{user.op.name} needs" if user is not None and user.op is not None else "in contradiction to"
    data = ""
    if user is not None and user.inputs[0].node is not node:
        data = f" because of input {user.inputs[0].node.output_name(user.inputs[0].index)!r}"
    raise GraphError(f"{where}{node.output_name(index)!r} has shape {old}, {needs} {new}{data}; change a shape or an attribute")


def _infer_outputs(node: Node, known: Known, types: Known, provisional: set[tuple[int, int]]) -> None:
    """Infer output shapes by tracing the operator's function, if the ranks of all inputs are known; merge them into `known`.

    `types` are the inferred dtypes.  Shapes from inputs with unknown sizes are added to `provisional`: later ones replace them.
    """
    assert node.op is not None
    if node.op.shapes is not None:
        return  # `_fill` has already inferred the outputs of loops and branches
    ins = [known.get((id(e.node), e.index)) for e in node.inputs]
    if any(s is None for s in ins) or node.params.get("shape", ()) is None:
        return  # a constant without a shape: its shape is the one that its users need
    dtypes = tuple(types.get((id(e.node), e.index)) or FLOAT for e in node.inputs)
    unknown = any(0 in s for s in ins if s is not None)
    traced = []
    for size in PROBE_SIZES if unknown else (0,):
        sized = tuple(tuple(d or size for d in s) for s in ins if s is not None)
        try:
            with _named_errors(node, ins):
                traced.append(trace_shapes(node.op, node.params, sized, dtypes))
        except GraphError:
            if unknown:
                return  # the probe size may be invalid where the actual one is valid: no error
            raise
    shapes = traced[0]
    if unknown:
        if any(len(a) != len(b) for a, b in zip(*traced, strict=True)):
            return
        shapes = [tuple(x if x == y else 0 for x, y in zip(a, b, strict=True)) for a, b in zip(*traced, strict=True)]
    for i, inferred in enumerate(shapes):
        entry = (id(node), i)
        # A size that both probes agree on may still depend on the actual size: overwrite a provisional shape, never merge it.
        known[entry] = _merge(None if entry in provisional else known.get(entry), inferred, node, i)
        (provisional.add if unknown else provisional.discard)(entry)


@functools.lru_cache(maxsize=8192)
def trace_shapes(record: Op, params: Attrs, shapes: tuple[Shape, ...], dtypes: tuple[np.dtype, ...]) -> list[Shape]:
    """Infer the output shapes of an operator by `jax.eval_shape`; `shapes` and `dtypes`: inputs, then auxiliary states."""
    known = record.infer_outputs(params, shapes) if record.infer_outputs else None
    if record.fill is same_shape and len(set(shapes)) == 1:
        known = [shapes[0]] * len(record.output_names(params))
    if known is not None:
        return known
    specs = [jax.ShapeDtypeStruct(s, jax.dtypes.canonicalize_dtype(t)) for s, t in zip(shapes, dtypes, strict=True)]
    key = jax.eval_shape(lambda: jax.random.key(0))

    def call(key, *arrays):
        return record.run(Ctx(train=True, key=key, rows=(None,) * len(arrays)), params, arrays)[0]

    return [tuple(o.shape) for o in jax.eval_shape(call, key, *specs)]


def _infer_dtypes(graph: Graph, dtypes: Mapping[str, Any], partial: bool = False) -> Known:
    """Infer the dtypes of all outputs of all nodes from those of variables by name; arguments as for `infer_type`."""
    arguments = dict(dtypes), partial
    for earlier, known in _results(_dtypes, graph):
        if earlier == arguments:
            return dict(known)
    known = _new_dtypes(graph.nodes(), dtypes, partial)
    _keep(_dtypes, graph, (arguments, dict(known)))
    return known


def _new_dtypes(order: Sequence[Node], dtypes: Mapping[str, Any], partial: bool) -> Known:
    known: Known = {}
    for node in order:
        if node.op is None:
            declared = dtypes.get(node.name, _declared(node, "__dtype__", _read_dtype))
            if declared is not None:
                known[id(node), 0] = np.dtype(declared)
    operators = [n for n in order if n.op is not None]
    # forward, backward, then forward again with float32 as the default
    for nodes, default in ((operators, None), (operators[::-1], None), (operators, None if partial else FLOAT)):
        for node in nodes:
            assert node.op is not None
            ins = [known.get((id(e.node), e.index)) for e in node.inputs]
            outs = [known.get((id(node), i)) for i in range(len(node.op.output_names(node.params)))]
            if default is not None and all(t is None for t in (*ins, *outs)):
                ins = [default] * len(ins)
            in_types, out_types = _node_dtypes(node, ins, outs)
            for e, t in zip(node.inputs, in_types, strict=True):
                if t is not None:
                    known.setdefault((id(e.node), e.index), np.dtype(t))
            known.update({(id(node), i): np.dtype(t) for i, t in enumerate(out_types) if t is not None})
    return known


def _node_dtypes(node: Node, ins: list[Any], outs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Infer (input dtypes, output dtypes) of one node; if the operator has no `types`, all are the first known dtype."""
    assert node.op is not None
    if node.op.types is not None:
        with _named_errors(node, ins):
            return node.op.types(_with_bodies(node), ins)
    first = next((t for t in (*ins, *outs) if t is not None), None)
    return [first if t is None else t for t in ins], [first] * len(outs)


# ------------------------------------------------------------------------------------------------ bodies of loops and branches
class _Body(Subgraph):
    """A subgraph with inference by position, for the functions that infer shapes and dtypes of loops and branches."""

    __slots__ = ()

    def shapes(self, ins: Sequence[Shape | None], outs: Sequence[Shape | None]) -> tuple[list[Any], list[Any]]:
        """Infer (input shapes, output shapes) from known ones; None if unknown."""
        named = {n: s for n, s in zip(self.graph.list_inputs(), ins, strict=True) if s is not None}
        return self._lists(infer(self.graph, named, outs=outs)[0])

    def types(self, ins: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Infer (input dtypes, output dtypes) from known input dtypes; None if unknown."""
        named = {n: t for n, t in zip(self.graph.list_inputs(), ins, strict=True) if t is not None}
        return self._lists(_infer_dtypes(self.graph, named, partial=True))

    def _lists(self, known: Known) -> tuple[list[Any], list[Any]]:
        variables = [n for n in self.graph.nodes() if n.op is None]
        return [known.get((id(n), 0)) for n in variables], [known.get((id(h.node), h.index)) for h in self.graph.heads]


def _with_bodies(node: Node) -> Attrs:
    """Return the attributes of a node; `graphs`, the subgraphs of a loop or branch, are replaced by `_Body`s."""
    return Attrs({**node.params, "graphs": tuple(map(_Body, node.subgraphs))}) if node.subgraphs else node.params
