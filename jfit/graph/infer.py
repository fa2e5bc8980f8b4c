"""Shapes and dtypes of a whole graph from those of its inputs.

Each operator record knows how its parameter shapes follow from its data shapes; output shapes come from tracing the
operator's own function on abstract values, so that shapes and values can never disagree.  An unknown size (0) is traced
twice with two different stand-ins: sizes that come out equal are known, the others are unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.graph.nodes import Graph, GraphError, Node, Subgraph, aux_nodes
from jfit.ops import Attrs, Ctx, Op, nearest
from jfit.ops.attributes import DTYPES, dtype, shape
from jfit.ops.rules import reason, same_shape

Shape = tuple[int, ...]
Known = dict[tuple[int, int], Any]  # (id(node), output) -> shape or dtype
STAND_INS = (6, 1008)  # for unknown sizes, with many divisors; traced shapes that differ depend on them
MAX_SWEEPS = 4
FLOAT = np.dtype(np.float32)  # where nothing says otherwise


def infer_shape(
    graph: Graph, /, *args: Sequence[int] | None, partial: bool = False, **kwargs: Sequence[int]
) -> tuple[Any, Any, Any]:
    """Shapes of all arguments, outputs and auxiliary states.

    Args:
        graph: the graph.
        args: shapes by position in `list_arguments()` order; None or () for unknown.
        partial: return () for what stays unknown instead of giving up.
        kwargs: shapes by variable name; 0 for an unknown size.

    Returns:
        (argument shapes, output shapes, auxiliary shapes): three lists of tuples in the order of `list_arguments`,
        `list_outputs`, `list_auxiliary_states`; (None, None, None) when something stays unknown and not `partial`.

    Raises:
        GraphError: shapes contradict each other; the message names the node and both shapes.

    Example:
        >>> import jfit
        >>> fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> fc.infer_shape(data=(2, 5))
        ([(2, 5), (3, 5), (3,)], [(2, 3)], [])
    """
    arguments = graph.list_arguments()
    if args and kwargs:
        raise TypeError("pass shapes by position or by name, not both")
    if len(args) > len(arguments):
        raise GraphError(f"{len(args)} shapes given for {len(arguments)} arguments: {arguments}")
    named = dict(zip(arguments, args, strict=False)) if args else kwargs
    shapes, _ = infer(graph, {n: s for n, s in named.items() if s})  # None and () are unknown, as in MXNet
    unknown = any(s is None or 0 in s for part in _lists(graph, shapes, None) for s in part)
    return (None, None, None) if unknown and not partial else _lists(graph, shapes, ())


def infer_type(graph: Graph, /, *args: Any, partial: bool = False, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Dtypes of all arguments, outputs and auxiliary states; float32 (`partial`: None) where nothing says otherwise.

    Example:
        >>> import jfit
        >>> fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> [str(t) for t in fc.infer_type(data="float16")[0]]
        ['float16', 'float16', 'float16']
    """
    arguments = graph.list_arguments()
    if len(args) > len(arguments):
        raise GraphError(f"{len(args)} dtypes given for {len(arguments)} arguments: {arguments}")
    given = {n: t for n, t in zip(arguments, args, strict=False) if t is not None} if args else kwargs
    _check_names("dtype", given, graph.list_inputs())
    dtypes = _infer_dtypes(graph, {k: _dtype(k, v) for k, v in given.items()}, partial)
    return _lists(graph, dtypes, None if partial else FLOAT)


def _dtype(name: str, given: Any) -> np.dtype:
    try:
        return DTYPES[given] if isinstance(given, str) else np.dtype(given)
    except (KeyError, TypeError):
        raise GraphError(f"{name}: dtype is {given!r}, needed one of {', '.join(DTYPES)}") from None


def _check_names(what: str, given: Mapping[str, Any], variables: Sequence[str]) -> None:
    for name in given:
        if name not in variables:
            near = nearest(name, variables)
            hint = f"; did you mean {near}?" if near else f"; its inputs are {', '.join(map(repr, variables[:20]))}"
            raise GraphError(f"a {what} is given for {name!r}, but the graph has no such input{hint}")


def _lists(graph: Graph, known: Known, missing: Any):
    order = graph.nodes()
    aux = aux_nodes(order)

    def of(node: Node, index: int = 0) -> Any:
        found = known.get((id(node), index))
        return missing if found is None else found

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
    """Shapes and dtypes of every entry that can be known, by (id(node), output).

    Args:
        graph: the graph.
        shapes: shapes by variable name; 0 for an unknown size.
        dtypes: dtypes by variable name.
        outs: what is known of the shapes of the outputs.

    Raises:
        GraphError: an unknown name, or shapes that contradict each other; the message names the node and both shapes.

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
    known: Known = {}
    for node in order:
        if node.op is None:
            declared = _declared_shape(node)
            own = tuple(int(s) for s in shapes[node.name]) if node.name in shapes else None
            known[id(node), 0] = _merge(declared, own, node, 0)
    known.update({(id(h.node), h.index): s for h, s in zip(graph.heads, outs, strict=False) if h.node.op is not None})
    guessed: set[tuple[int, int]] = set()  # outputs of partly known inputs
    for _ in range(MAX_SWEEPS):
        before = dict(known)
        for node in order:
            if node.op is not None:
                _fill(node, known)
                _outputs(node, known, types, guessed)
        for node in reversed(order):
            if node.op is not None:
                _fill(node, known)
        if known == before or (not guessed and all(_complete(s) for s in known.values())):
            break
    return known, types


def _complete(shape: Shape | None) -> bool:
    return shape is not None and 0 not in shape


def _declared_shape(node: Node) -> Shape | None:
    if "__shape__" not in node.attrs:
        return None
    try:
        sizes = shape().read("Variable", "__shape__", node.attrs["__shape__"])
    except ValueError as error:
        raise GraphError(f"variable {node.name!r}: {error}") from None
    return tuple(max(s or 0, 0) for s in sizes) or None


def _declared_dtype(node: Node) -> np.dtype | None:
    if "__dtype__" not in node.attrs:
        return None
    try:
        return DTYPES[dtype().read("Variable", "__dtype__", node.attrs["__dtype__"])]
    except (ValueError, IndexError):
        raise GraphError(
            f"variable {node.name!r}: __dtype__ is {node.attrs['__dtype__']!r}, needed a number from 0 to 12 or a dtype name"
        ) from None


def _fill(node: Node, known: Known) -> None:
    """Apply the parameter-shape rule of the node's operator to what is known of its inputs and outputs."""
    op = node.op
    assert op is not None
    if op.fill is None and op.shapes is None:
        return
    ins = [known.get((id(e.node), e.index)) for e in node.inputs]
    outs = [known.get((id(node), i)) for i in range(len(op.output_names(node.params)))]
    try:
        filled, made = op.shapes(_with_bodies(node), ins, outs) if op.shapes else (op.fill(node.params, list(ins), outs), [])  # type: ignore
    except GraphError:
        raise
    except ValueError as error:
        raise GraphError(f"{node.name}: {error}") from None
    except Exception as error:  # a rule that did not expect such attributes
        raise GraphError(f"{node.name}: {op.name} cannot take {_given(node, ins)}: {reason(error)}") from error
    known.update({(id(node), i): found for i, found in enumerate(made)})
    for e, found in zip(node.inputs, filled, strict=True):
        known[id(e.node), e.index] = _merge(known.get((id(e.node), e.index)), found, e.node, e.index, user=node)


def _given(node: Node, ins: Sequence[Any]) -> str:
    """What an operator was given, for a sentence."""
    return ", ".join(f"{name}={value}" for name, value in zip(node.input_names(), ins, strict=False)) or "its attributes"


def _merge(old: Shape | None, new: Shape | None, node: Node, index: int, user: Node | None = None) -> Shape | None:
    if old is None or new is None or old == new:
        return new if old is None else old
    if len(old) == len(new) and all(a == b or 0 in (a, b) for a, b in zip(old, new, strict=True)):
        return tuple(a or b for a, b in zip(old, new, strict=True))
    where = f"{user.name}: " if user is not None else ""
    needs = f"{user.op.name} needs" if user is not None and user.op is not None else "its declaration says"
    data = ""
    if user is not None and user.inputs[0].node is not node:
        data = f" because of input {user.inputs[0].node.output_name(user.inputs[0].index)!r}"
    raise GraphError(
        f"{where}{node.output_name(index)!r} has shape {old}, {needs} {new}{data}; "
        "fix the given shape or the attributes of the node"
    )


def _outputs(node: Node, known: Known, types: Known, guessed: set[tuple[int, int]]) -> None:
    """Output shapes by tracing the operator's function, where the ranks of all inputs are known."""
    assert node.op is not None
    if node.op.shapes is not None:
        return  # they came with those of the inputs
    ins = [known.get((id(e.node), e.index)) for e in node.inputs]
    if any(s is None for s in ins) or node.params.get("shape", ()) is None:
        return  # a made array without a shape gets the one that its users need
    dtypes = tuple(types.get((id(e.node), e.index)) or FLOAT for e in node.inputs)
    unknown = any(0 in s for s in ins if s is not None)
    traced = []
    for size in STAND_INS if unknown else (0,):
        sized = tuple(tuple(d or size for d in s) for s in ins if s is not None)
        try:
            traced.append(trace_shapes(node.op, node.params, sized, dtypes))
        except Exception as error:
            if unknown:
                return  # not enough is known yet to say anything
            raise GraphError(f"{node.name}: {node.op.name} cannot take {_given(node, ins)}: {reason(error)}") from None
    shapes = traced[0]
    if unknown:
        if any(len(a) != len(b) for a, b in zip(*traced, strict=True)):
            return
        shapes = [tuple(x if x == y else 0 for x, y in zip(a, b, strict=True)) for a, b in zip(*traced, strict=True)]
    for i, found in enumerate(shapes):
        entry = (id(node), i)
        # a size that two stand-ins agreed on may still depend on the true one: what was guessed gives way
        known[entry] = _merge(None if entry in guessed else known.get(entry), found, node, i)
        (guessed.add if unknown else guessed.discard)(entry)


@functools.lru_cache(maxsize=8192)
def trace_shapes(record: Op, params: Attrs, shapes: tuple[Shape, ...], dtypes: tuple[np.dtype, ...]) -> list[Shape]:
    """Output shapes of one operator on inputs of these shapes (inputs, then auxiliary states)."""
    known = record.infer_outputs(params, shapes) if record.infer_outputs else None
    if record.fill is same_shape and len(set(shapes)) == 1:
        known = [shapes[0]] * len(record.output_names(params))
    if known is not None:
        return known
    specs = [jax.ShapeDtypeStruct(s, jax.dtypes.canonicalize_dtype(t)) for s, t in zip(shapes, dtypes, strict=True)]
    key = jax.eval_shape(lambda: jax.random.key(0))

    def call(key, *arrays):
        result = record.fn(Ctx(train=True, key=key, rows=(None,) * len(arrays)), params, *arrays)
        outputs = result[0] if record.aux else result
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return [tuple(o.shape) for o in jax.eval_shape(call, key, *specs)]


def _infer_dtypes(graph: Graph, given: Mapping[str, Any], partial: bool = False) -> Known:
    order = graph.nodes()
    known: Known = {}
    for node in order:
        if node.op is None:
            found = given.get(node.name, _declared_dtype(node))
            if found is not None:
                known[id(node), 0] = np.dtype(found)
    operators = [n for n in order if n.op is not None]
    # forward, backward, then forward again with float32 where nothing is known
    for nodes, default in ((operators, None), (operators[::-1], None), (operators, None if partial else FLOAT)):
        for node in nodes:
            assert node.op is not None
            ins = [known.get((id(e.node), e.index)) for e in node.inputs]
            outs = [known.get((id(node), i)) for i in range(len(node.op.output_names(node.params)))]
            if default is not None and all(t is None for t in (*ins, *outs)):
                ins = [default] * len(ins)
            filled, made = _types_of(node, ins, outs)
            for e, t in zip(node.inputs, filled, strict=True):
                if t is not None:
                    known.setdefault((id(e.node), e.index), np.dtype(t))
            known.update({(id(node), i): np.dtype(t) for i, t in enumerate(made) if t is not None})
    return known


def _types_of(node: Node, ins: list[Any], outs: list[Any]) -> tuple[list[Any], list[Any]]:
    """The dtype rule of the operator, or the common one: everything has the dtype of the first known input."""
    assert node.op is not None
    if node.op.types is not None:
        try:
            return node.op.types(_with_bodies(node), ins)
        except GraphError:
            raise
        except Exception as error:
            raise GraphError(f"{node.name}: {node.op.name} cannot take {_given(node, ins)}: {reason(error)}") from error
    first = next((t for t in (*ins, *outs) if t is not None), None)
    return [first if t is None else t for t in ins], [first] * len(outs)


# ------------------------------------------------------------------------------------------------ bodies of loops and branches
class _Body(Subgraph):
    """What the record of a loop or branch may ask of its body: shapes and dtypes, by position."""

    __slots__ = ()

    def shapes(self, ins: Sequence[Shape | None], outs: Sequence[Shape | None]) -> tuple[list[Any], list[Any]]:
        """(input shapes, output shapes) as far as they follow from these; None is an unknown one."""
        given = {n: s for n, s in zip(self.graph.list_inputs(), ins, strict=True) if s is not None}
        return self._of(infer(self.graph, given, outs=outs)[0])

    def types(self, ins: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(input dtypes, output dtypes) as far as they follow from these; None is an unknown one."""
        given = {n: t for n, t in zip(self.graph.list_inputs(), ins, strict=True) if t is not None}
        return self._of(_infer_dtypes(self.graph, given, partial=True))

    def _of(self, known: Known) -> tuple[list[Any], list[Any]]:
        variables = [n for n in self.graph.nodes() if n.op is None]
        return [known.get((id(n), 0)) for n in variables], [known.get((id(h.node), h.index)) for h in self.graph.heads]


def _with_bodies(node: Node) -> Attrs:
    """The attributes of a node, with bodies that infer where there are bodies."""
    return Attrs({**node.params, "graphs": tuple(map(_Body, node.subgraphs))}) if node.subgraphs else node.params
