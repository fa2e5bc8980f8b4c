"""Loops and branches in graphs: `foreach`, `while_loop` and `cond` take Python functions on symbols and make one node each.

A body is composed once, in an `AttrScope` that marks its nodes.  Where a marked node reads one that is not marked, the graph
is cut: what the body reads from outside becomes an input of the node, and a variable of the body.

>>> import jfit
>>> x, s = jfit.sym.Variable("x"), jfit.sym.Variable("s")
>>> ys, last = jfit.sym.contrib.foreach(lambda x, s: (x + s, x + s), x, s)
>>> ys.infer_shape(x=(5, 2), s=(2,))[1]
[(5, 2)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jfit.graph.compose import apply_op, group, variable
from jfit.graph.nodes import Entry, Graph, GraphError, Node, topological
from jfit.graph.scopes import AttrScope, body_name
from jfit.graph.symbol import Symbol

MARK = "__subgraph_name__"


def foreach(body: Callable[..., Any], data: Any, init_states: Any, name: str = "foreach") -> tuple[Any, Any]:
    """outₜ, stateₜ₊₁ = body(dataₜ, stateₜ) for each entry of the first axis of data.

    Args:
        body: takes one step of the data and the states, as symbols (nested as given); returns (outputs, new states).
        data: symbol, or nested lists of symbols, with the same first axis.
        init_states: symbol, or nested lists of symbols: the states before the first step.
        name: of the body, in the file.

    Returns:
        (all outputs, stacked along a new first axis; the states after the last step), nested as the body's.

    Raises:
        GraphError: the states change their number, or the body leaves data or a state out.
    """
    (items, form), (states, state_form) = _flat(data), _flat(init_states)
    cls = type(items[0])

    def compose(given: list[Symbol]) -> tuple[list[Symbol], list[Symbol], Any]:
        count = len(items)
        outs, new = body(nested(given[:count], form), nested(given[count:], state_form))
        (flat, out_form), (flat_new, new_form) = _flat(outs), _flat(new)
        if new_form != state_form:
            raise GraphError(f"foreach {name!r}: the body returns states nested in another way than it takes them")
        return flat, flat_new, out_form

    step, out_form = _composed(name, [*items, *states], compose, cls, apart=True)
    data_locs, state_locs = [step.place(s) for s in items], [step.place(s) for s in states]
    rest = {at: n for at, n in enumerate(step.graph.list_inputs()) if at not in (*data_locs, *state_locs)}
    attrs = {
        "num_outputs": len(step.graph),
        "num_out_data": step.count,
        "in_state_locs": str(state_locs),
        "in_data_locs": str(data_locs),
        "remain_locs": str(list(rest)),
    }
    inputs = [*items, *states, *(step.source(n, cls) for n in rest.values())]
    made = list(apply_op("_foreach", inputs, attrs, cls=cls, subgraphs=(step.graph,)))
    return nested(made[: step.count], out_form), nested(made[step.count :], state_form)


def while_loop(
    cond: Callable[..., Symbol], func: Callable[..., Any], loop_vars: Any, max_iterations: int, name: str = "while_loop"
) -> tuple[Any, Any]:
    """outₜ, varsₜ₊₁ = func(*varsₜ) while cond(*varsₜ) is not 0, at most `max_iterations` times.

    Args:
        cond: takes the loop variables; returns a symbol of one number.
        func: takes the loop variables; returns (outputs, new loop variables).
        loop_vars: list of symbols: their first values.
        max_iterations: the most steps, and the first axis of the outputs; steps that did not run are zeros there.
        name: of the bodies, in the file.

    Returns:
        (all outputs, stacked along a new first axis; the loop variables after the last step).

    Raises:
        GraphError: the number of loop variables changes, or `func` leaves one out.

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
    if not variables or max_iterations is None or int(max_iterations) < 0:
        raise ValueError(f"while_loop {name!r} needs a loop variable, and max_iterations, which is {max_iterations!r}")
    cls = type(variables[0])

    def condition(given: list[Symbol]) -> tuple[list[Symbol], list[Symbol], Any]:
        return [], [cond(*nested(given, form))], None

    def step(given: list[Symbol]) -> tuple[list[Symbol], list[Symbol], Any]:
        outs, new = func(*nested(given, form))
        (flat, out_form), (flat_new, _) = _flat([] if outs is None else outs), _flat([] if new is None else new)
        if len(flat_new) != len(variables):
            raise GraphError(f"while_loop {name!r}: func takes {len(variables)} loop variables and returns {len(flat_new)}")
        return flat, flat_new, out_form

    test, _ = _composed(f"{name}_cond", variables, condition, cls)
    body, out_form = _composed(f"{name}_func", variables, step, cls)
    inputs, locs = _united([test, body], {_placeholder(v): v for v in variables}, cls)
    attrs = {
        "max_iterations": int(max_iterations),
        "cond_input_locs": str(locs[0]),
        "func_input_locs": str(locs[1]),
        "func_var_locs": str([body.place(v) for v in variables]),
        "num_out_data": body.count,
        "num_outputs": len(body.graph),
    }
    made = list(apply_op("_while_loop", inputs, attrs, cls=cls, subgraphs=(test.graph, body.graph)))
    return nested(made[: body.count], out_form), nested(made[body.count :], form)


def cond(pred: Symbol, then_func: Callable[[], Any], else_func: Callable[[], Any], name: str = "cond") -> Any:
    """then_func() where `pred` is not 0, else else_func(); only one of them runs.

    Args:
        pred: symbol of one number.
        then_func: returns a symbol, or nested lists of symbols.
        else_func: the same, of the same shapes and dtypes.
        name: of the branches, in the file.

    Returns:
        The outputs of the branch that is taken, nested as `then_func`'s.

    Raises:
        GraphError: the branches have different numbers of outputs.

    Example:
        >>> import jfit, numpy as np
        >>> x = jfit.sym.Variable("x")
        >>> size = jfit.sym.contrib.cond(x < 0, lambda: -x, lambda: x)
        >>> jfit.lower(size, inputs=["x"]).apply({}, {}, {"x": np.full(1, -3, "float32")})[0][0].tolist()
        [3.0]
    """
    cls = type(pred)

    def part(kind: str, run: Callable[[], Any]) -> tuple[_Body, Any]:
        def compose(given: list[Symbol]) -> tuple[list[Symbol], list[Symbol], Any]:
            flat, form = _flat(run())
            return flat, [], form

        return _composed(f"{name}_{kind}", [], compose, cls)

    (test, _), (then, form), (other, _) = part("pred", lambda: pred), part("then", then_func), part("else", else_func)
    if len(then.graph) != len(other.graph):
        raise GraphError(f"cond {name!r}: then_func gives {len(then.graph)} outputs, else_func {len(other.graph)}")
    inputs, (test_locs, then_locs, else_locs) = _united([test, then, other], {}, cls, by_name=True)
    attrs = {
        "cond_input_locs": str(test_locs),
        "then_input_locs": str(then_locs),
        "else_input_locs": str(else_locs),
        "num_outputs": len(then.graph),
    }
    return nested(list(apply_op("_cond", inputs, attrs, cls=cls, subgraphs=(test.graph, then.graph, other.graph))), form)


# ------------------------------------------------------------------------------------------------ bodies
class _Body(NamedTuple):
    graph: Graph
    cuts: dict[str, Entry]  # variable of the body -> what it reads outside
    count: int  # outputs that are no states

    def source(self, name: str, cls: type[Symbol]) -> Symbol:
        """What feeds a variable of the body: the output it was cut from, or a variable of that name outside."""
        if name in self.cuts:
            return cls([self.cuts[name]])
        inside = next(n for n in self.graph.nodes() if n.op is None and n.name == name)
        return cls([Entry(Node(None, name, inside.attrs), 0)])

    def place(self, symbol: Symbol) -> int:
        """Which input of the body stands for a loop variable."""
        names, name = self.graph.list_inputs(), _placeholder(symbol)
        if name not in names:
            raise GraphError(f"the body of a loop leaves {symbol!r} out; every data and state has to be used in it")
        return names.index(name)


def _composed(
    name: str, symbols: Sequence[Symbol], compose: Callable[..., Any], cls: type[Symbol], apart: bool = False
) -> tuple[_Body, Any]:
    """(the body, how its outputs were nested); `compose` returns (outputs, states, nesting).

    `apart`: a state that is an output too gets a node of its own.
    """
    mark = body_name(name, MARK)
    with AttrScope(**{MARK: mark}):
        outs, states, form = compose([variable(_placeholder(s), cls=cls) for s in symbols])
        used = {id(end.heads[0].node) for end in outs} if apart else set()
        ends: list[Symbol] = []
        for end in (*outs, *states):
            if not isinstance(end, Symbol):
                raise TypeError(f"{name}: needs symbols, got {type(end).__name__}: {end!r}; make it a symbol, by sym.full")
            node = end.heads[0].node
            own = node.op is not None and node.attrs.get(MARK) == mark and not (len(ends) >= len(outs) and id(node) in used)
            ends.append(end if own else apply_op("identity", (end,), {}, cls=cls))
    heads, cuts = _cut(group(ends, Graph).heads, mark)
    graph = Graph(heads)
    names = graph.list_inputs()
    if len(set(names)) != len(names):
        raise GraphError(f"{name}: two variables of the body have the same name: {names}; rename one")
    return _Body(graph, cuts, len(outs)), form


def _cut(heads: Sequence[Entry], mark: str) -> tuple[tuple[Entry, ...], dict[str, Entry]]:
    """The marked part of a graph, and what its new variables stand for."""
    made: dict[int, Node] = {}
    cuts: dict[tuple[int, int], tuple[Entry, Entry]] = {}  # entry outside -> (itself, the variable in its place)

    def inside(entry: Entry) -> Entry:
        if id(entry.node) in made:
            return Entry(made[id(entry.node)], entry.index)
        stand_in = Entry(Node(None, entry.node.output_name(entry.index), {}), 0)
        return cuts.setdefault((id(entry.node), entry.index), (entry, stand_in))[1]

    for node in topological(heads):
        if node.attrs.get(MARK) == mark:
            made[id(node)] = node.rebuilt(tuple(map(inside, node.inputs))) if node.inputs else node
    return tuple(map(inside, heads)), {var.node.name: entry for entry, var in cuts.values()}


def _united(
    bodies: Sequence[_Body], known: dict[str, Symbol], cls: type[Symbol], by_name: bool = False
) -> tuple[list[Symbol], list[list[int]]]:
    """(inputs of the node, for each body: which of them feed it); `known` symbols stand for placeholders.

    `by_name`: a body finds what an earlier one reads by its name, as MXNet's cond does.
    """
    inputs: list[Symbol] = []
    locs: list[list[int]] = []
    for body in bodies:
        shared = {str(s.name): s for s in inputs} if by_name else known
        locs.append([])
        for name in body.graph.list_inputs():
            symbol = shared[name] if name in shared else body.source(name, cls)
            at = next((i for i, s in enumerate(inputs) if s is symbol), len(inputs))
            inputs.extend([symbol] if at == len(inputs) else [])
            locs[-1].append(at)
    return inputs, locs


# ------------------------------------------------------------------------------------------------ nested lists
def _flat(value: Any) -> tuple[list[Symbol], Any]:
    """(symbols of one output each, how they were nested: None for one symbol, else a list)."""
    if isinstance(value, Symbol) and len(value) == 1:
        return [value], None
    if not isinstance(value, (Symbol, list, tuple)):
        raise TypeError(f"control flow takes symbols and nested lists of symbols, got {type(value).__name__}: {value!r}")
    parts = [_flat(part) for part in value]
    return [s for flat, _ in parts for s in flat], [form for _, form in parts]


def nested(flat: Sequence[Any], form: Any) -> Any:
    """The parts in the lists that `form` describes (None for one part, else a list of forms).

    Example:
        >>> nested([1, 2, 3], [None, [None, None]])
        [1, [2, 3]]
    """
    rest = iter(flat)

    def build(form: Any) -> Any:
        return next(rest) if form is None else [build(f) for f in form]

    return build(form)


def _placeholder(symbol: Symbol) -> str:
    """The variable that stands for a symbol in a body."""
    return f"{symbol.heads[0].node.name}-{symbol.heads[0].index}"
