"""Immutable graph data structures: `Node`, `Entry` (one output of a node) and `Graph` (a tuple of entries).

A `Node` is a variable (no operator) or an operator with its inputs.  It contains names and attributes but no arrays.
Composing creates new nodes, which share the old ones as inputs.  All traversals are iterative, so that the depth of a graph
is not limited by Python's recursion limit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from jfit.checks import name_hint
from jfit.formats.atomic import printable
from jfit.graph.names import LOCK, AutoName, Derived, Numbering, RawName, number
from jfit.graph.names import preview as previewed_names
from jfit.ops import Op
from jfit.ops.attributes import Attrs
from jfit.programs import ByIdentity, is_trusted

# User attributes that MXNet stores as `__key__`; `attr` and `list_attr` return them under both names.
HIDDEN_KEYS = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")


def underscored(attrs: dict[str, str]) -> dict[str, str]:
    """Rename user attributes in `HIDDEN_KEYS` to the stored form, such as `lr_mult` to `__lr_mult__`; all must be strings."""
    for key, value in attrs.items():
        if not isinstance(value, str):
            raise GraphError(f"attribute {key!r} is {value!r}; attributes of a graph are strings, pass {str(value)!r}")
    return {(f"__{k}__" if k in HIDDEN_KEYS else k): v for k, v in attrs.items()}


class GraphError(ValueError):
    """Raised if a graph cannot be built, read, inferred or lowered; the message has the name of the node."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(str(message)))  # names of a file may have escape sequences of terminals


_NO_PARAMS = Attrs({})


def _parsed(op: Op, attrs: tuple[tuple[str, Any], ...]) -> Attrs:
    is_text = all(type(value) is str for _, value in attrs)  # equal values of other types, such as 1 and True, may differ
    return _parsed_text(op, attrs) if is_text else op.parse(dict(attrs))


@functools.lru_cache(maxsize=4096)  # layers repeat, and parsing is most of the cost of creating a node
def _parsed_text(op: Op, attrs: tuple[tuple[str, str], ...]) -> Attrs:
    return op.parse(dict(attrs))


class Subgraph:
    """The body of a loop or branch with its numbers of inputs and outputs, as operator rules receive it in `attrs.graphs`."""

    __slots__ = ("graph", "inputs", "outputs")

    def __init__(self, graph: Graph) -> None:
        inputs = [node for node in topological(graph.raw_heads) if node.op is None]
        self.graph, self.inputs, self.outputs = graph, len(inputs), len(graph)


class _Immutable:
    __slots__ = ()

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"{key!r} cannot be set: symbols and nodes are immutable; compose a new symbol instead")


_put = object.__setattr__  # for the attributes that this module sets


class Node(_Immutable):
    """A variable (`op` is None) or one application of an operator.  Immutable except by `set_init`; compared by identity."""

    __slots__ = (
        "__weakref__", "attrs", "automatic", "inputs", "label_at", "name", "num_inputs",
        "numbering", "op", "params", "raw_name", "subgraphs",
    )  # fmt: skip

    op: Op | None
    name: str  # of an automatic name, set when it is first read, see `__getattr__`
    raw_name: RawName  # the name, or an automatic name, which has no number yet until the names of a graph are used
    automatic: bool  # whether this node or one that it depends on has an automatic name
    numbering: Numbering | None  # names of a graph that contains this node
    attrs: Mapping[str, str]  # operator attributes and user attributes, as text, as in symbol.json
    inputs: tuple[Entry, ...]  # inputs, then auxiliary states
    num_inputs: int  # number of `inputs` without the auxiliary states
    label_at: int | None  # position of the label in `inputs`, if the operator has one
    params: Attrs  # parsed operator attributes including defaults; with subgraphs also `graphs`, a tuple of Subgraph
    subgraphs: tuple[Graph, ...]  # bodies of loops and branches; inputs of this node are the values of their variables

    def __init__(
        self,
        op: Op | None,
        raw_name: RawName,
        attrs: Mapping[str, str],
        inputs: tuple[Entry, ...] = (),
        subgraphs: tuple[Graph, ...] = (),
    ) -> None:
        _put(self, "op", op)
        _put(self, "numbering", None)
        _put(self, "raw_name", raw_name)
        if isinstance(raw_name, str):
            _put(self, "name", raw_name)
        _put(self, "attrs", dict(attrs))
        _put(self, "inputs", inputs)
        _put(self, "num_inputs", len(inputs) - (len(op.aux) if op else 0))
        _put(self, "subgraphs", subgraphs)
        inner = [head for graph in subgraphs for head in graph.raw_heads]
        _put(self, "automatic", type(raw_name) is not str or any(e.node.automatic for e in (*inputs, *inner)))
        params = _NO_PARAMS
        if op is not None:
            try:
                params = _parsed(op, tuple([(k, v) for k, v in attrs.items() if k in op.attrs]))
            except (ValueError, IndexError) as error:
                raise GraphError(f"node {self.text_name!r}: {error}") from None
            if op.graphs:
                params = Attrs({**params, "graphs": tuple(map(Subgraph, subgraphs))})
        _put(self, "params", params)
        _put(self, "label_at", op.input_names(params).index(op.label) if op is not None and op.label else None)

    def set_init(self, text: str | None) -> None:
        """Store the initializer that an operator has for this variable, unless it is None or the variable has one.

        MXNet, too, changes variables of the user, so that `attr_dict` and symbol.json have it.
        """
        if text is not None and "__init__" not in self.attrs:
            _put(self, "attrs", {**self.attrs, "__init__": text})

    def __repr__(self) -> str:
        return f"<{self.op.name if self.op else 'Variable'} {self.text_name}>"

    def __getattr__(self, key: str) -> str:
        """The automatic name, the first time that it is read; the graph of this node and its inputs is numbered before."""
        if key != "name":
            raise AttributeError(f"Node has no attribute {key!r}")
        assert isinstance(self.raw_name, Derived)
        auto, suffix = self.raw_name
        if auto.text is None:
            with LOCK:
                number(_raw_names(topological((*auto.context, Entry(self, 0)))))
        _put(self, "name", f"{auto.text}{suffix}")
        return self.name

    @property
    def text_name(self) -> str:
        """The name as `repr` and error messages have it: an automatic name without a number gets none from being displayed."""
        raw_name = self.raw_name
        if isinstance(raw_name, str) or raw_name.auto.text is not None:
            return self.name
        with LOCK:
            copies = previewed_names(_raw_names(topological((*raw_name.auto.context, Entry(self, 0)))))
        return f"{copies[raw_name.auto].text}{raw_name.suffix}"

    def rebuilt(self, inputs: tuple[Entry, ...], raw_name: RawName | None = None) -> Node:
        """Copy the node with other inputs and, unless `raw_name` is None, another name."""
        return Node(self.op, raw_name or self.raw_name, self.attrs, inputs, self.subgraphs)

    def output_name(self, index: int) -> str:
        """Name of output `index`, such as `fc1_output` or `slice0_output2`; for a variable, its name."""
        return self.name + self.output_suffix(index)

    def output_suffix(self, index: int) -> str:
        """What `output_name` appends to the name: "" for a variable."""
        return "" if self.op is None else f"_{self.op.output_names(self.params)[index]}"

    def input_names(self) -> tuple[str, ...]:
        """Names that the operator has for its inputs and auxiliary states, such as ("data", "weight", "bias")."""
        assert self.op is not None
        return (*self.op.input_names(self.params), *self.op.aux)


class Entry(NamedTuple):
    """Output number `index` of `node`."""

    node: Node
    index: int


def topological(heads: Iterable[Entry]) -> list[Node]:
    """List the nodes that the outputs `heads` depend on, inputs before their users: depth-first post-order, as in MXNet.

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
    """Return the ids of the variables that are auxiliary states of some operator."""
    return {id(e.node) for n in order if n.op for e in n.inputs[n.num_inputs :] if e.node.op is None}


def replace_nodes(heads: Sequence[Entry], swap: Callable[[Node, tuple[Entry, ...]], Entry | Node | None]) -> tuple[Entry, ...]:
    """Rebuild the graph with the outputs `heads` with some nodes replaced; returns the new outputs.

    `swap(node, new_inputs)` returns the replacement: a node, an entry for all uses of the node's outputs, or None to keep it.
    """
    new: dict[int, Entry | Node] = {}

    def replaced(entry: Entry) -> Entry:
        result = new[id(entry.node)]
        return result if isinstance(result, Entry) else Entry(result, entry.index)

    for node in topological(heads):
        inputs = tuple(replaced(e) for e in node.inputs)
        changed = any(a.node is not b.node or a.index != b.index for a, b in zip(inputs, node.inputs, strict=True))
        new[id(node)] = swap(node, inputs) or (node.rebuilt(inputs) if changed else node)
    return tuple(replaced(e) for e in heads)


def _raw_names(nodes: Iterable[Node]) -> list[RawName]:
    """Names of some nodes and of all nodes of their subgraphs."""
    raw_names: list[RawName] = []
    for node in nodes:
        raw_names.append(node.raw_name)
        for graph in node.subgraphs:
            raw_names.extend(_raw_names(topological(graph.raw_heads)))
    return raw_names


def _to_number(heads: Sequence[Entry]) -> tuple[list[Node], Numbering]:
    """Return the nodes to number and the `Numbering` to add them to: the new nodes on top of a numbered graph, or all."""
    new: dict[int, Node] = {}
    numberings: set[Numbering] = set()
    complete = False  # whether the numbering has the names of the nodes below only
    stack = [heads[0].node] if len(heads) == 1 else []
    while stack:
        node = stack.pop()
        if node.numbering is not None:
            numberings.add(node.numbering)
            complete = complete or node.numbering.owner == id(node)
        elif id(node) not in new:
            new[id(node)] = node
            stack.extend([e.node for e in node.inputs])
    if complete and len(numberings) == 1:
        (numbering,) = numberings
        if numbering.can_add(_raw_names(new.values())):
            return list(new.values()), numbering
    return topological(heads), Numbering()


def _renamed(heads: Sequence[Entry], replacements: Mapping[AutoName, AutoName]) -> tuple[Entry, ...]:
    """Rebuild a graph, including its subgraphs, with some automatic names replaced.

    Where the graph has both a node and a copy of it that was renamed in another graph, they become one node.
    """
    nodes: dict[tuple[Any, ...], Node] = {}

    def swap(node: Node, inputs: tuple[Entry, ...]) -> Node:
        raw_name, bodies = node.raw_name, node.subgraphs
        if isinstance(raw_name, Derived) and raw_name.auto in replacements:
            raw_name = Derived(replacements[raw_name.auto], raw_name.suffix)
        if any(isinstance(x, Derived) and x.auto in replacements for g in bodies for x in _raw_names(topological(g.raw_heads))):
            bodies = tuple([Graph(_renamed(g.raw_heads, replacements)) for g in bodies])
        changed = raw_name is not node.raw_name or bodies is not node.subgraphs or inputs != node.inputs
        if not changed and node.op is None and isinstance(raw_name, str):
            return node
        body_ids = () if isinstance(raw_name, Derived) else tuple(map(id, bodies))
        key = raw_name, node.op, tuple(node.attrs.items()), tuple([(id(e.node), e.index) for e in inputs]), body_ids
        if key not in nodes:
            nodes[key] = Node(node.op, raw_name, node.attrs, inputs, bodies) if changed else node
        return nodes[key]

    return replace_nodes(heads, swap)


class Graph(_Immutable):
    """A tuple of outputs of nodes, with names and attributes; the base of `Symbol`, which adds operators and inference."""

    __slots__ = ("numbered", "order", "raw_heads", "reserved")
    order: list[Node] | None  # the nodes in topological order, None until they are listed
    raw_heads: tuple[Entry, ...]  # the outputs; automatic names may have no numbers yet, as while a graph is composed
    numbered: bool  # whether the automatic names of this graph have numbers and differ
    # Names of a graph that this one was cut out of by `get_internals` or `get_children`.  Nodes on top do not get them: a new
    # last layer on a part of a trained network must not take the parameters of the layer that it replaces.
    reserved: frozenset[str]
    NAMES_PER_PROCESS = False  # True in subclasses whose automatic names count all nodes of the process, as MXNet's do
    PASSED_SHAPES_REPLACE = False  # True in subclasses where a shape passed to inference replaces that of the Variable

    def __init__(self, heads: Iterable[Entry], reserved: frozenset[str] = frozenset()) -> None:
        _put(self, "raw_heads", tuple(heads))
        _put(self, "numbered", False)
        _put(self, "order", None)
        _put(self, "reserved", reserved)

    @property
    def heads(self) -> tuple[Entry, ...]:
        """The outputs.  The first access gives the automatic names of the graph their numbers."""
        if not self.numbered:
            if any(head.node.automatic for head in self.raw_heads):
                self._number()
            _put(self, "numbered", True)
        return self.raw_heads

    def _number(self) -> None:
        with LOCK:
            nodes, numbering = _to_number(self.raw_heads)
            replacements = number(_raw_names(nodes), numbering)
            if replacements:
                _put(self, "raw_heads", _renamed(self.raw_heads, replacements))
            elif len(self.raw_heads) == 1:
                numbering.owner = id(self.raw_heads[0].node)
                for node in nodes:
                    if node.automatic:  # others may be shared with graphs of other names
                        _put(node, "numbering", numbering)
            _put(self, "numbered", True)

    # -------------------------------------------------------------------------------- names
    @property
    def name(self) -> str | None:
        """Name of the node; None if the outputs are of several nodes."""
        names = {id(h.node): h.node.name for h in self.heads}
        return next(iter(names.values())) if len(names) == 1 else None

    def __repr__(self) -> str:
        shown = preview(self)
        return f"<Symbol {shown.name or 'group [' + ', '.join(h.node.name for h in shown.heads) + ']'}>"

    def nodes(self) -> list[Node]:
        """All nodes, inputs before their users."""
        if self.order is None:
            _put(self, "order", topological(self.heads))
        return list(self.order or ())

    def list_arguments(self) -> list[str]:
        """Names of the inputs and parameters, without auxiliary states, in MXNet's order."""
        order = self.nodes()
        aux = aux_nodes(order)
        return [n.name for n in order if n.op is None and id(n) not in aux]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the auxiliary states, such as the moving statistics of BatchNorm."""
        order = self.nodes()
        aux = aux_nodes(order)
        return [n.name for n in order if id(n) in aux]

    def list_inputs(self) -> list[str]:
        """Names of all variables, arguments and auxiliary states, in topological order."""
        return [n.name for n in self.nodes() if n.op is None]

    def list_outputs(self) -> list[str]:
        """Names of the outputs: `<node>_output`, `<node>_output<i>`."""
        return [h.node.output_name(h.index) for h in self.heads]

    # -------------------------------------------------------------------------------- parts
    def __len__(self) -> int:
        return len(self.raw_heads)

    def __iter__(self) -> Iterator[Self]:
        return (type(self)([h], self.reserved) for h in self.raw_heads)

    def __getitem__(self, key: int | str | slice) -> Self:
        """Select one output by position or name, or several by a slice.

        Args:
            key: index; name of an output (`fc_output`) or of its node (`fc`); or slice.

        Returns:
            A symbol of the same class with the selected outputs.

        Raises:
            IndexError: the index is out of range.
            ValueError: no output has this name.

        Example:
            >>> import jfit
            >>> parts = jfit.sym.SliceChannel(jfit.sym.Variable("x"), num_outputs=3, name="s")
            >>> parts[1:].list_outputs(), parts["s_output0"].list_outputs()
            (['s_output1', 's_output2'], ['s_output0'])
        """
        if isinstance(key, slice):
            return type(self)(self.raw_heads[key], self.reserved)
        if isinstance(key, str):
            names = self.list_outputs()
            matches = [i for i, n in enumerate(names) if n == key] or [
                i for i, h in enumerate(self.heads) if h.node.name == key
            ]
            if not matches:
                raise ValueError(f"no output is named {key!r}: {name_hint(key, names)}")
            return type(self)([self.heads[matches[0]]], self.reserved)
        return type(self)([self.raw_heads[key]], self.reserved)

    def get_internals(self) -> Self:
        """Group the outputs of all nodes, in topological order; select one by name to build on it.

        Returns:
            A symbol with all outputs of all nodes, variables included.

        Example:
            >>> import jfit
            >>> jfit.sym.relu(jfit.sym.Variable("x"), name="r").get_internals().list_outputs()
            ['x', 'r_output']
        """
        heads: list[Entry] = []
        order = self.nodes()
        for node in order:
            count = 1 if node.op is None else node.op.num_visible(node.params)
            heads.extend(Entry(node, i) for i in range(count))
        return type(self)(heads, self.reserved.union([node.name for node in order]))

    def get_children(self) -> Self | None:
        """Group the direct inputs of the output nodes; None for a variable."""
        nodes = {id(h.node): h.node for h in self.heads}
        children = [e for n in nodes.values() for e in n.inputs]
        return type(self)(children, self.reserved.union([n.name for n in self.nodes()])) if children else None

    # -------------------------------------------------------------------------------- attributes
    def attr(self, key: str) -> str | None:
        """Return one attribute of the node.

        Args:
            key: name of the attribute; `lr_mult` also matches `__lr_mult__`.

        Returns:
            The value as text; None if it is not set.

        Raises:
            ValueError: the symbol has outputs of several nodes.
        """
        return _with_short_keys(self._node().attrs).get(key)

    def list_attr(self) -> dict[str, str]:
        """Attributes of the node as text; keys such as `__lr_mult__` appear as `lr_mult` too."""
        return _with_short_keys(self._node().attrs)

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Attributes (see `list_attr`) of all nodes that have any, by node name."""
        return {n.name: _with_short_keys(n.attrs) for n in self.nodes() if n.attrs}

    def _node(self) -> Node:
        nodes = {id(h.node): h.node for h in self.heads}
        if len(nodes) != 1:
            raise ValueError(f"{self!r} has outputs of {len(nodes)} nodes; attributes are of one node: select an output first")
        return next(iter(nodes.values()))

    def __copy__(self) -> Self:
        return type(self)(self.raw_heads, self.reserved)

    def __deepcopy__(self, memo: Any) -> Self:
        return type(self)(self.raw_heads, self.reserved)


def _with_short_keys(attrs: Mapping[str, str]) -> dict[str, str]:
    return {**attrs, **{key: attrs[f"__{key}__"] for key in HIDDEN_KEYS if f"__{key}__" in attrs}}


G = TypeVar("G", bound=Graph)


def preview(graph: G) -> G:
    """Return the graph for a text that displays it: a copy, so that looking at a part does not decide the numbers of names.

    Example:
        >>> import jfit
        >>> preview(jfit.sym.relu(jfit.sym.Variable("x"), name="r")).list_outputs()
        ['r_output']
    """
    if graph.numbered or not any(head.node.automatic for head in graph.raw_heads):
        return graph
    with LOCK:
        heads = _renamed(graph.raw_heads, previewed_names(_raw_names(topological(graph.raw_heads))))
    copy = type(graph)(heads, graph.reserved)
    _put(copy, "numbered", True)
    return copy


def bind_class(cls: type[G], build: Callable[..., Graph]) -> Callable[..., G]:
    """Bind the keyword `cls` (class of the result) of a graph-building function; the returned function has no such argument."""

    @functools.wraps(build)
    def bound(*args: Any, **kwargs: Any) -> Any:
        return build(*args, **{"cls": cls, **kwargs})

    signature = inspect.signature(build)
    public = [p for name, p in signature.parameters.items() if name != "cls"]
    bound.__signature__ = signature.replace(parameters=public, return_annotation=cls.__name__)  # type: ignore[attr-defined]
    return bound


def description_of(symbol: Graph) -> Any:
    """Describe a graph completely: graphs with equal descriptions compute the same, and their variables have the same names.

    Args:
        symbol: the graph.

    Returns:
        Hashable value; None for a graph with an operator that the user defined, whose code may depend on other values.

    Example:
        >>> import jfit
        >>> net = lambda size: jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=size, name="fc")
        >>> description_of(net(3)) == description_of(net(3)), description_of(net(3)) == description_of(net(4))
        (True, False)
    """
    try:
        description = type(symbol), _describe(symbol)
        hash(description)
    except TypeError:
        return None
    return description


def _describe(graph: Graph) -> Any:
    order, numbers, nodes = graph.nodes(), {}, []
    for node in order:
        numbers[id(node)] = len(numbers)
        if node.op is not None and not is_own(node.op):
            raise TypeError(f"the code of operator {node.op.name!r} may depend on values that change")
        wiring = tuple([(numbers[id(e.node)], e.index) for e in node.inputs])
        op = None if node.op is None else ByIdentity(node.op)
        nodes.append((op, node.name, tuple(node.attrs.items()), wiring, tuple(map(_describe, node.subgraphs))))
    return tuple(nodes), tuple([(numbers[id(h.node)], h.index) for h in graph.heads])


def is_own(op: Op) -> bool:
    """Whether an operator is jfit's own; the code of a user, also in a Custom operator, may depend on values that change."""
    return op.name != "Custom" and is_trusted(getattr(op.fn, "__globals__", {}).get("__name__"))
