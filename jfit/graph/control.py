"""Loops and branches in graphs: `foreach`, `while_loop` and `cond` create one node from Python functions on symbols.

The Python function runs once, in an `AttrScope` that sets the attribute `__subgraph_name__` of the nodes it creates to the
unique name of this body.  These nodes become a subgraph of the loop node.  If one of them reads an output of another (outer)
node, this output becomes an input of the loop node, and a variable of the subgraph replaces it.

>>> import jfit
>>> x, s = jfit.sym.Variable("x"), jfit.sym.Variable("s")
>>> ys, last = jfit.sym.contrib.foreach(lambda x, s: (x + s, x + s), x, s)
>>> ys.infer_shape(x=(5, 2), s=(2,))[1]
[(5, 2)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jfit.graph.compose import apply_op, group
from jfit.graph.names import RawName, derived
from jfit.graph.nodes import Entry, Graph, GraphError, Node, preview, topological
from jfit.graph.scopes import AttrScope, body_name
from jfit.graph.symbol import Symbol

MARK = "__subgraph_name__"  # key of the attribute that contains the name of the body which a node belongs to


def foreach(body: Callable[..., Any], data: Any, init_states: Any, name: str = "foreach") -> tuple[Any, Any]:
    """Scan over the first axis of data: outₜ, stateₜ₊₁ = body(dataₜ, stateₜ), as `jax.lax.scan`.

    Args:
        body: `body(data, states) -> (outputs, new states)` on symbols; `data` is one entry of the first axis.
        data: symbol or nested list of symbols, with first axes of one size.
        init_states: symbol or nested list of symbols: the states before the first step.
        name: name of the subgraph in symbol.json.

    Returns:
        (outputs stacked along a new first axis, states after the last step), in nested lists like those that `body` returns.

    Raises:
        GraphError: `body` returns states in nested lists of another structure than `init_states`, or does not use some data or
            state.
    """
    (items, form), (states, state_form) = _flat(data), _flat(init_states)
    cls = type(items[0])

    def compose(arguments: list[Symbol]) -> tuple[list[Symbol], list[Symbol], Any]:
        count = len(items)
        outs, new = body(nested(arguments[:count], form), nested(arguments[count:], state_form))
        (flat, out_form), (flat_new, new_form) = _flat(outs), _flat(new)
        if new_form != state_form:
            raise GraphError(f"foreach {name!r}: the body returns states in nested lists of another structure than init_states")
        return flat, flat_new, out_form

    step, out_form = _compose_body(name, [*items, *states], compose, cls, separate_states=True)
    data_locs, state_locs = [step.place(s) for s in items], [step.place(s) for s in states]
    rest = {at: n for at, n in enumerate(step.inputs()) if at not in (*data_locs, *state_locs)}
    attrs = {
        "num_outputs": len(step.graph),
        "num_out_data": step.count,
        "in_state_locs": str(state_locs),
        "in_data_locs": str(data_locs),
        "remain_locs": str(list(rest)),
    }
    inputs = [*items, *states, *(step.source(n, cls) for n in rest.values())]
    outputs = list(apply_op("_foreach", inputs, attrs, cls=cls, subgraphs=(step.graph,)))
    return nested(outputs[: step.count], out_form), nested(outputs[step.count :], state_form)


def while_loop(
    cond: Callable[..., Symbol], func: Callable[..., Any], loop_vars: Any, max_iterations: int, name: str = "while_loop"
) -> tuple[Any, Any]:
    """Loop outₜ, varsₜ₊₁ = func(*varsₜ) while cond(*varsₜ) is not 0, for at most `max_iterations` steps.

    Args:
        cond: `cond(*loop_vars)` -> symbol with one element.
        func: `func(*loop_vars) -> (outputs, new loop variables)`.
        loop_vars: list of symbols: the initial values of the loop variables.
        max_iterations: maximum number of steps.  It is the size of the first axis of the outputs, whose entries are zeros
            for steps that did not run.
        name: prefix of the names of the subgraphs in symbol.json.

    Returns:
        (outputs stacked along a new first axis, loop variables after the last step).

    Raises:
        GraphError: `func` returns another number of loop variables or does not use one of them, or `cond` not one symbol.
        ValueError: there are no loop variables, or `max_iterations` is negative.

    Example:
        >>> import jfit
        >>> i, total = jfit.sym.Variable("i"), jfit.sym.Variable("total")
        >>> _, (i, total) = jfit.sym.contrib.while_loop(
        ...     lambda i, total: i < 4, lambda i, total: (total, [i + 1, total + i]), [i, total], max_iterations=10
        ... )
        >>> net = jfit.lower(total, inputs=["i", "total"])
        >>> import numpy as np
        >>> net.apply({}, {}, {"i": np.ones(1, "float32"), "total": np.zeros(1, "float32")})[0][0].tolist()
        [6.0]
    """
    variables, form = _flat(loop_vars)
    if not variables or max_iterations < 0:
        raise ValueError(f"while_loop {name!r} needs a loop variable, and max_iterations >= 0; it is {max_iterations!r}")
    cls = type(variables[0])

    def condition(arguments: list[Symbol]) -> tuple[list[Symbol], list[Symbol], Any]:
        return [], [_condition(name, cond(*nested(arguments, form)))], None

    def step(arguments: list[Symbol]) -> tuple[list[Symbol], list[Symbol], Any]:
        outs, new = func(*nested(arguments, form))
        (flat, out_form), (flat_new, _) = _flat([] if outs is None else outs), _flat([] if new is None else new)
        if len(flat_new) != len(variables):
            raise GraphError(f"while_loop {name!r}: func takes {len(variables)} loop variables and returns {len(flat_new)}")
        return flat, flat_new, out_form

    test, _ = _compose_body(f"{name}_cond", variables, condition, cls)
    body, out_form = _compose_body(f"{name}_func", variables, step, cls)
    inputs, locs = _merged_inputs([test, body], {_placeholder(v): v for v in variables}, cls)
    attrs = {
        "max_iterations": int(max_iterations),
        "cond_input_locs": str(locs[0]),
        "func_input_locs": str(locs[1]),
        "func_var_locs": str([body.place(v) for v in variables]),
        "num_out_data": body.count,
        "num_outputs": len(body.graph),
    }
    outputs = list(apply_op("_while_loop", inputs, attrs, cls=cls, subgraphs=(test.graph, body.graph)))
    return nested(outputs[: body.count], out_form), nested(outputs[body.count :], form)


def cond(pred: Symbol, then_func: Callable[[], Any], else_func: Callable[[], Any], name: str = "cond") -> Any:
    """Return the outputs of then_func() if `pred` is not 0, else those of else_func(); only one branch runs.

    Args:
        pred: symbol with one element.
        then_func: function without arguments that returns a symbol or a nested list of symbols.
        else_func: the same; its outputs have the same shapes and dtypes.
        name: prefix of the names of the subgraphs in symbol.json.

    Returns:
        The outputs of the selected branch, in nested lists like those of `then_func`.

    Raises:
        GraphError: `pred` is not one symbol, or the branches have different numbers of outputs.

    Example:
        >>> import jfit, numpy as np
        >>> x = jfit.sym.Variable("x")
        >>> size = jfit.sym.contrib.cond(x < 0, lambda: -x, lambda: x)
        >>> jfit.lower(size, inputs=["x"]).apply({}, {}, {"x": np.full(1, -3, "float32")})[0][0].tolist()
        [3.0]
    """
    pred = _condition(name, pred)
    cls = type(pred)

    def part(kind: str, run: Callable[[], Any]) -> tuple[_Body, Any]:
        def compose(arguments: list[Symbol]) -> tuple[list[Symbol], list[Symbol], Any]:
            flat, form = _flat(run())
            return flat, [], form

        return _compose_body(f"{name}_{kind}", [], compose, cls, reads=[pred])

    (test, _), (then, form), (other, _) = part("pred", lambda: pred), part("then", then_func), part("else", else_func)
    if len(then.graph) != len(other.graph):
        raise GraphError(f"cond {name!r}: then_func returns {len(then.graph)} outputs, else_func {len(other.graph)}")
    inputs, (test_locs, then_locs, else_locs) = _merged_inputs([test, then, other], {}, cls, by_name=True)
    attrs = {
        "cond_input_locs": str(test_locs),
        "then_input_locs": str(then_locs),
        "else_input_locs": str(else_locs),
        "num_outputs": len(then.graph),
    }
    return nested(list(apply_op("_cond", inputs, attrs, cls=cls, subgraphs=(test.graph, then.graph, other.graph))), form)


# ------------------------------------------------------------------------------------------------ bodies
class _Body(NamedTuple):
    """The body of a loop or branch: its subgraph, and which outputs of nodes outside of the body its variables replace."""

    graph: Graph
    outer: dict[RawName, Entry]  # name of a variable of the body -> output of a node outside of the body that it replaces
    count: int  # number of outputs before the loop states

    def inputs(self) -> dict[RawName, Node]:
        """Variables of the body by name.  Names have no numbers yet: the whole graph will be numbered when it is used."""
        return {n.raw_name: n for n in topological(self.graph.raw_heads) if n.op is None}

    def source(self, raw_name: RawName, cls: type[Symbol]) -> Symbol:
        """Return the input of the loop node for a variable of the body, a `cls`: the output it replaces, or a variable."""
        if raw_name in self.outer:
            return cls([self.outer[raw_name]])
        return cls([Entry(Node(None, raw_name, self.inputs()[raw_name].attrs), 0)])

    def place(self, symbol: Symbol) -> int:
        """Return the index of the body's input that receives the loop variable with the initial value `symbol`."""
        raw_names, raw_name = list(self.inputs()), _placeholder(symbol)
        if raw_name not in raw_names:
            raise GraphError(f"the body of a loop does not use {symbol!r}; a body must use all data and states of the loop")
        return raw_names.index(raw_name)


def _compose_body(
    name: str,
    symbols: Sequence[Symbol],
    compose: Callable[..., Any],
    cls: type[Symbol],
    separate_states: bool = False,
    reads: Sequence[Symbol] = (),
) -> tuple[_Body, Any]:
    """Build the body of a loop or branch by calling the user's Python function on new variables.

    Args:
        name: name of the loop or branch; the name of the subgraph starts with it.
        symbols: the initial values (data, states) for which the body gets variables.
        compose: wrapper of the user's function: list of these variables -> (outputs, states, structure of the nested outputs).
        cls: class of the variables.
        separate_states: copy a state that is also an output by an identity node, so that all outputs of the subgraph differ.
        reads: further symbols that the body reads.

    Returns:
        (the body, structure of the nested outputs as in `_flat`).
    """
    mark = body_name(name, MARK, None if cls.NAMES_PER_PROCESS else _marks([*symbols, *reads]))
    with AttrScope(**{MARK: mark}):
        outs, states, form = compose([_variable(_placeholder(s), cls) for s in symbols])
        used = {id(end.raw_heads[0].node) for end in outs} if separate_states else set()
        ends: list[Symbol] = []
        for end in (*outs, *states):
            node = end.raw_heads[0].node
            inner = node.op is not None and node.attrs.get(MARK) == mark and not (len(ends) >= len(outs) and id(node) in used)
            ends.append(end if inner else apply_op("identity", (end,), {}, cls=cls))
    heads, outer = _cut(group(ends, Graph).raw_heads, mark)
    graph = Graph(heads)
    raw_names = [n.raw_name for n in topological(heads) if n.op is None]
    if len(set(raw_names)) != len(raw_names):
        names = preview(graph).list_inputs()
        raise GraphError(f"{name}: two variables of the body have the same name: {names}; rename one")
    return _Body(graph, outer, len(outs)), form


def _marks(symbols: Sequence[Symbol]) -> set[str]:
    """Names of all bodies in the graphs of some symbols."""
    nodes = topological([head for symbol in symbols for head in symbol.raw_heads])
    inner = [node for n in nodes for graph in n.subgraphs for node in topological(graph.raw_heads)]
    return {node.attrs[MARK] for node in inner if MARK in node.attrs}


def _variable(raw_name: RawName, cls: type[Symbol]) -> Symbol:
    """Create a variable with the attributes of the active `AttrScope`."""
    return cls([Entry(Node(None, raw_name, AttrScope.current()), 0)])


def _cut(heads: Sequence[Entry], mark: str) -> tuple[tuple[Entry, ...], dict[RawName, Entry]]:
    """Cut the nodes of a body out of a graph: those whose attribute `__subgraph_name__` is `mark`.

    Returns:
        (outputs of the subgraph, dict: name of a new variable -> output of a node outside of the body that it replaces).
    """
    rebuilt: dict[int, Node] = {}
    # (id of a node outside of the body, output index) -> (this output, the variable that replaces it in the body)
    replaced: dict[tuple[int, int], tuple[Entry, Entry]] = {}

    def inside(entry: Entry) -> Entry:
        if id(entry.node) in rebuilt:
            return Entry(rebuilt[id(entry.node)], entry.index)
        new = Entry(Node(None, derived(entry.node.raw_name, entry.node.output_suffix(entry.index)), {}), 0)
        return replaced.setdefault((id(entry.node), entry.index), (entry, new))[1]

    for node in topological(heads):
        if node.attrs.get(MARK) == mark:
            rebuilt[id(node)] = node.rebuilt(tuple(map(inside, node.inputs))) if node.inputs else node
    return tuple(map(inside, heads)), {var.node.raw_name: entry for entry, var in replaced.values()}


def _merged_inputs(
    bodies: Sequence[_Body], arguments: dict[RawName, Symbol], cls: type[Symbol], by_name: bool = False
) -> tuple[list[Symbol], list[list[int]]]:
    """Merge the inputs of several bodies; returns (inputs of the node, for each body the indices of its inputs among them).

    `arguments`: name of a variable of a body (see `_placeholder`) -> symbol to pass for it.  `cls`: class of new variables.
    `by_name`: variables of different bodies with the same name are one input, as in MXNet's cond.
    """
    inputs: list[Symbol] = []
    locs: list[list[int]] = []
    for body in bodies:
        shared = {s.raw_heads[0].node.raw_name: s for s in inputs} if by_name else arguments
        locs.append([])
        for raw_name in body.inputs():
            symbol = shared[raw_name] if raw_name in shared else body.source(raw_name, cls)
            at = next((i for i, s in enumerate(inputs) if s is symbol), len(inputs))
            inputs.extend([symbol] if at == len(inputs) else [])
            locs[-1].append(at)
    return inputs, locs


# ------------------------------------------------------------------------------------------------ nested lists
def _flat(value: Any) -> tuple[list[Symbol], Any]:
    """Flatten nested lists of symbols; returns (list of symbols, structure of the nested lists).

    The structure is None for one symbol, else a list of the structures of the elements; `nested` restores the lists from it.
    """
    if isinstance(value, Symbol) and len(value) == 1:
        return [value], None
    if not isinstance(value, (Symbol, list, tuple)):
        raise TypeError(f"control flow takes symbols and nested lists of them, not {value!r}; convert it, such as by sym.full")
    parts = [_flat(part) for part in value]
    return [s for flat, _ in parts for s in flat], [form for _, form in parts]


def _condition(name: str, value: Any) -> Symbol:
    flat, _ = _flat(value)
    if len(flat) != 1:
        raise GraphError(f"{name!r}: the condition is {len(flat)} symbols, expected one with one element")
    return flat[0]


def nested(flat: Sequence[Any], form: Any) -> Any:
    """Restore nested lists from a flat list and their structure `form`: None for one element, else a list of structures.

    Example:
        >>> nested([1, 2, 3], [None, [None, None]])
        [1, [2, 3]]
    """
    rest = iter(flat)

    def build(form: Any) -> Any:
        return next(rest) if form is None else [build(f) for f in form]

    return build(form)


def _placeholder(symbol: Symbol) -> RawName:
    """Return the name of the variable of a body that replaces the initial value `symbol`."""
    head = symbol.raw_heads[0]
    return derived(head.node.raw_name, f"-{head.index}")
