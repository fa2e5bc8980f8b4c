"""The graph: immutable nodes, and graphs that point at some of their outputs.  Data only; no array lives here.

A `Node` is a variable (no operator) or an operator with its inputs; a `Graph` is a tuple of entries (node, output
number).  Nothing is ever changed in place: composing makes new nodes and shares the old ones.  Every walk is iterative,
so graphs of any depth work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from jfit.ops import Op, nearest
from jfit.ops.attributes import Attrs

# User attributes that MXNet stores with underscores and shows without them too.
HIDDEN_KEYS = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")
# Attributes that give the number of outputs of an operator.  Readers of files check them against MOST_OUTPUTS first: lists of
# that length are made.
OUTPUT_COUNTS = ("num_outputs", "sections", "num_out_data", "num_weights", "num_arrays", "num_tensors")
MOST_OUTPUTS = 100_000


def stored(attrs: dict[str, str]) -> dict[str, str]:
    """Attributes as the graph stores them: the hidden keys get their underscores."""
    return {(f"__{k}__" if k in HIDDEN_KEYS else k): v for k, v in attrs.items()}


class GraphError(ValueError):
    """A graph that cannot be built, read, inferred or lowered; the message names the node."""


_NO_PARAMS = Attrs({})
# (record's id, attributes) -> (record, values): layers repeat, and reading attributes is most of the work of making a node.
# The record is kept, so that no other one can get its id.
_PARSED: dict[tuple[int, tuple[tuple[str, Any], ...]], tuple[Op, Attrs]] = {}


def _parsed(op: Op, given: tuple[tuple[str, Any], ...]) -> Attrs:
    if any(type(value) is not str for _, value in given):
        return op.parse(dict(given))
    found = _PARSED.get((id(op), given))
    if found is None:
        if len(_PARSED) >= 4096:
            _PARSED.clear()
        found = _PARSED[id(op), given] = op, op.parse(dict(given))
    return found[1]


class Subgraph:
    """The body of a loop or branch, as the attributes of its node show it to the operator's record."""

    __slots__ = ("graph", "inputs", "outputs")

    def __init__(self, graph: Graph) -> None:
        self.graph, self.inputs, self.outputs = graph, len(graph.list_inputs()), len(graph)


class Node:
    """One variable (`op` is None) or one application of an operator.  Immutable; compared by identity."""

    __slots__ = ("attrs", "inputs", "name", "op", "params", "subgraphs")

    op: Op | None
    name: str
    attrs: Mapping[str, str]  # as written to symbol.json: operator attributes and user attributes together
    inputs: tuple[Entry, ...]  # inputs, then auxiliary states
    params: Attrs  # typed operator attributes with defaults, and `graphs` where there are subgraphs
    subgraphs: tuple[Graph, ...]  # bodies of loops and branches: their variables are fed with inputs of this node

    def __init__(
        self,
        op: Op | None,
        name: str,
        attrs: Mapping[str, str],
        inputs: tuple[Entry, ...] = (),
        subgraphs: tuple[Graph, ...] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "op", op)
        put(self, "name", name)
        put(self, "attrs", dict(attrs))
        put(self, "inputs", inputs)
        put(self, "subgraphs", subgraphs)
        params = _NO_PARAMS
        if op is not None:
            try:
                params = _parsed(op, tuple([(k, v) for k, v in attrs.items() if k in op.attrs]))
            except (ValueError, IndexError) as error:
                raise GraphError(f"node {name!r}: {error}") from None
            if op.graphs:
                params = Attrs({**params, "graphs": tuple(map(Subgraph, subgraphs))})
        put(self, "params", params)

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError("nodes are immutable; compose a new symbol instead")

    def __repr__(self) -> str:
        return f"<{self.op.name if self.op else 'Variable'} {self.name}>"

    def rebuilt(self, inputs: tuple[Entry, ...], name: str | None = None) -> Node:
        """The same node on other inputs, perhaps under another name."""
        return Node(self.op, name or self.name, self.attrs, inputs, self.subgraphs)

    @property
    def num_inputs(self) -> int:
        """How many of `inputs` are inputs and not auxiliary states."""
        return len(self.inputs) - (len(self.op.aux) if self.op else 0)

    def output_name(self, index: int) -> str:
        """The public name of output `index`: `fc1_output`, `slice0_output2`; a variable's own name."""
        if self.op is None:
            return self.name
        return f"{self.name}_{self.op.output_names(self.params)[index]}"

    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs and auxiliary states, as the operator calls them."""
        assert self.op is not None
        return (*self.op.input_names(self.params), *self.op.aux)


class Entry(NamedTuple):
    """One output of one node."""

    node: Node
    index: int


def topological(heads: Iterable[Entry]) -> list[Node]:
    """All nodes below `heads`, inputs first, in depth-first post-order (MXNet's order).  Iterative.

    Example:
        >>> import jfit
        >>> from jfit.graph.nodes import topological
        >>> topological(jfit.sym.relu(jfit.sym.Variable("x"), name="r").heads)
        [<Variable x>, <relu r>]
    """
    done: set[int] = set()
    order: list[Node] = []
    for head in heads:
        stack = [(head.node, 0)]
        while stack:
            node, at = stack.pop()
            if id(node) in done:
                continue
            while at < len(node.inputs) and id(node.inputs[at].node) in done:
                at += 1
            if at < len(node.inputs):
                stack.append((node, at + 1))
                stack.append((node.inputs[at].node, 0))
            else:
                done.add(id(node))
                order.append(node)
    return order


def aux_nodes(order: Sequence[Node]) -> set[int]:
    """Ids of the variables that fill an auxiliary slot of some operator."""
    return {id(e.node) for n in order if n.op for e in n.inputs[n.num_inputs :] if e.node.op is None}


def replace_nodes(heads: Sequence[Entry], swap: Callable[[Node, tuple[Entry, ...]], Entry | Node | None]) -> tuple[Entry, ...]:
    """Rebuild the graph: `swap(node, new_inputs)` returns the entry, or the node, that stands for a node; None keeps it."""
    new: dict[int, Entry | Node] = {}

    def moved(entry: Entry) -> Entry:
        found = new[id(entry.node)]
        return found if isinstance(found, Entry) else Entry(found, entry.index)

    for node in topological(heads):
        inputs = tuple(moved(e) for e in node.inputs)
        found = swap(node, inputs)
        changed = any(a.node is not b.node or a.index != b.index for a, b in zip(inputs, node.inputs, strict=True))
        new[id(node)] = found or (node.rebuilt(inputs) if changed else node)
    return tuple(moved(e) for e in heads)


class Graph:
    """A tuple of outputs of immutable nodes, and what is known of them without computing.  `Symbol` builds on it."""

    __slots__ = ("heads",)
    heads: tuple[Entry, ...]

    def __init__(self, heads: Iterable[Entry]) -> None:
        object.__setattr__(self, "heads", tuple(heads))

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError("symbols are immutable; compose a new symbol instead")

    # -------------------------------------------------------------------------------- names
    @property
    def name(self) -> str | None:
        """The node's name; None for a group of several nodes."""
        names = {id(h.node): h.node.name for h in self.heads}
        return next(iter(names.values())) if len(names) == 1 else None

    def __repr__(self) -> str:
        return f"<Symbol {self.name or 'group [' + ', '.join(h.node.name for h in self.heads) + ']'}>"

    def nodes(self) -> list[Node]:
        """All nodes, inputs before their users."""
        return topological(self.heads)

    def list_arguments(self) -> list[str]:
        """Names of the inputs and parameters, in MXNet's order (auxiliary states left out)."""
        order = self.nodes()
        aux = aux_nodes(order)
        return [n.name for n in order if n.op is None and id(n) not in aux]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the auxiliary states (moving means and variances)."""
        order = self.nodes()
        aux = aux_nodes(order)
        return [n.name for n in order if id(n) in aux]

    def list_inputs(self) -> list[str]:
        """Names of all variables, arguments and auxiliary states together, in graph order."""
        return [n.name for n in self.nodes() if n.op is None]

    def list_outputs(self) -> list[str]:
        """Names of the outputs: `<node>_output`, `<node>_output<i>`."""
        return [h.node.output_name(h.index) for h in self.heads]

    # -------------------------------------------------------------------------------- parts
    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[Self]:
        return (type(self)([h]) for h in self.heads)

    def __getitem__(self, key: int | str | slice) -> Self:
        """One output by position or by name (with or without `_output`), or a slice of them.

        Example:
            >>> import jfit
            >>> parts = jfit.sym.SliceChannel(jfit.sym.Variable("x"), num_outputs=3, name="s")
            >>> parts[1:].list_outputs(), parts["s_output0"].list_outputs()
            (['s_output1', 's_output2'], ['s_output0'])
        """
        if isinstance(key, slice):
            return type(self)(self.heads[key])
        if isinstance(key, str):
            names = self.list_outputs()
            matches = [i for i, n in enumerate(names) if n == key] or [
                i for i, h in enumerate(self.heads) if h.node.name == key
            ]
            if not matches:
                raise ValueError(f"no output is named {key!r}: {near(key, names)}")
            return type(self)([self.heads[matches[0]]])
        if not -len(self.heads) <= key < len(self.heads):
            raise IndexError(f"output {key} asked for, but {self!r} has {len(self.heads)} outputs: {self.list_outputs()}")
        return type(self)([self.heads[key]])

    def get_internals(self) -> Self:
        """A group of every output of every node, inputs first.

        Example:
            >>> import jfit
            >>> jfit.sym.relu(jfit.sym.Variable("x"), name="r").get_internals().list_outputs()
            ['x', 'r_output']
        """
        heads: list[Entry] = []
        for node in self.nodes():
            count = 1 if node.op is None else node.op.num_visible(node.params)
            heads.extend(Entry(node, i) for i in range(count))
        return type(self)(heads)

    def get_children(self) -> Self | None:
        """A group of the direct inputs of the heads; None for a variable."""
        nodes = {id(h.node): h.node for h in self.heads}
        children = [e for n in nodes.values() for e in n.inputs]
        return type(self)(children) if children else None

    # -------------------------------------------------------------------------------- attributes
    def attr(self, key: str) -> str | None:
        """An attribute of the node, as a string; `lr_mult` finds `__lr_mult__` too."""
        return _shown(self._one().attrs).get(key)

    def list_attr(self) -> dict[str, str]:
        """The attributes of the node, hidden keys shown with and without underscores."""
        return _shown(self._one().attrs)

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """The attributes of every node that has some, by node name."""
        return {n.name: _shown(n.attrs) for n in self.nodes() if n.attrs}

    def _one(self) -> Node:
        nodes = {id(h.node): h.node for h in self.heads}
        if len(nodes) != 1:
            raise ValueError(f"attributes belong to one node, and {self!r} groups {len(nodes)}; index an output first")
        return next(iter(nodes.values()))

    def __copy__(self) -> Self:
        return type(self)(self.heads)

    def __deepcopy__(self, memo: Any) -> Self:
        return type(self)(self.heads)


def _shown(attrs: Mapping[str, str]) -> dict[str, str]:
    shown = dict(attrs)
    for key in HIDDEN_KEYS:
        if f"__{key}__" in attrs:
            shown[key] = attrs[f"__{key}__"]
    return shown


def near(key: str, known: Sequence[str]) -> str:
    """Half a sentence that says which name may be meant, or which names there are."""
    close = nearest(key, known)
    return f"did you mean {close}?" if close else f"known are {', '.join(map(repr, known[:10]))}."


G = TypeVar("G", bound=Graph)


def making(cls: type[G], build: Callable[..., Graph]) -> Callable[..., G]:
    """`build(..., cls=...)` as a function that makes graphs of this class."""

    @functools.wraps(build)
    def made(*args: Any, **kwargs: Any) -> Any:
        return build(*args, **{"cls": cls, **kwargs})

    signature = inspect.signature(build)
    shown = [p for name, p in signature.parameters.items() if name != "cls"]
    made.__signature__ = signature.replace(parameters=shown, return_annotation=cls.__name__)  # type: ignore[attr-defined]
    return made
