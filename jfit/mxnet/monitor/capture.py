"""What a monitor looks at: internal outputs, inputs of operators, and the gradients that flow into them.

Each capture is a second program over the same graph, compiled when a monitor first asks for it: the step itself carries
nothing for monitors that are idle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfit.data.batch import parts_of
from jfit.graph.nodes import Entry, Node, replace_nodes, topological
from jfit.graph.symbol import Symbol
from jfit.lowering import lower
from jfit.ops import lookup
from jfit.step import forward_step, gradient_step


class Capture:
    """Named arrays of one pass: call it with the arguments of the step it looks into.

    Attributes:
        names: of the arrays, in MXNet's order.
        raw: the pure function, to compile for several devices: returns a dict in no particular order.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.square(jfit.sym.relu(jfit.sym.Variable("data"), name="r"), name="s")
        >>> key = jax.random.key_data(jax.random.key(0))
        >>> capture_outputs(net, None, "r")({}, {}, {"data": np.array([-1.0, 2.0])}, key, 0, 0)
        {'r_output': Array([0., 2.], dtype=float32)}
    """

    def __init__(self, names: Sequence[str], raw: Callable[..., dict[str, Array]]) -> None:
        self.names, self.raw = tuple(names), raw
        self._compiled = jax.jit(raw)

    def __call__(self, *args: Any) -> dict[str, Array]:
        """The arrays by name, in order; nothing waits."""
        found = self._compiled(*args) if self.names else {}
        return {name: found[name] for name in self.names if name in found}


def capture_outputs(
    symbol: Symbol,
    inputs: Sequence[str] | None = None,
    pattern: str = ".*",
    monitor_all: bool = False,
    train: bool = True,
) -> Capture:
    """The outputs `<node>_output` (and inputs `<node>_<input>`) of operators whose name matches.

    Args:
        symbol: the graph.
        inputs: names of the variables that are fed, as for `jfit.lower`.
        pattern: regular expression that matches from the beginning of a name.
        monitor_all: the inputs of every operator too.
        train: the pass is one of training.

    Returns:
        A `Capture`: `(params, aux, batch, key, step, number) -> {name: array}`, see `jfit.step.forward_step`.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> capture_outputs(net, None, ".*", monitor_all=True).names
        ('fc_data', 'fc_weight', 'fc_bias', 'fc_output')
    """
    fed = _fed(symbol, inputs)
    found: dict[str, Entry] = {}
    for name, entry in _watched(symbol, monitor_all):
        if re.match(pattern, name):
            found.setdefault(name, entry)
    made = {name: entry for name, entry in found.items() if entry.node.op is not None}
    variables = {name: entry.node.name for name, entry in found.items() if entry.node.op is None}
    run = forward_step(lower(Symbol((*symbol.heads, *made.values())), inputs=fed), train=train)

    def raw(params: Any, aux: Any, batch: Any, *args: Any, **kwargs: Any) -> dict[str, Array]:
        values = run(params, aux, batch, *args, **kwargs)[len(symbol.heads) :]
        given = {**params, **aux, **parts_of(batch)[0]}
        plain = {name: jnp.asarray(given[source]) for name, source in variables.items() if source in given}
        return {**plain, **dict(zip(made, values, strict=True))}

    return Capture(list(found), raw)


class _Probe(NamedTuple):
    """A place where gradients are read: input `at` of a node."""

    name: str
    entry: Entry


def capture_gradients(symbol: Symbol, inputs: Sequence[str] | None = None, pattern: str = ".*") -> Capture:
    """The gradients `<node>_backward_output<i>` that flow out of operators whose name matches, into their input i.

    An array of zeros is added to each input; the gradient with respect to it is what arrives there.  Inputs that take no
    gradient are left out: labels, integers, begin states that are not fed.

    Args:
        symbol: the graph.
        inputs: names of the variables that are fed, as for `jfit.lower`.
        pattern: regular expression that matches from the beginning of a name.

    Returns:
        A `Capture`: `(params, aux, batch, key, step, number[, head_gradients]) -> {name: array}`, the last operator first, see
        `jfit.step.gradient_step`.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> capture_gradients(jfit.sym.relu(net, name="r")).names
        ('r_backward_output', 'fc_backward_output0', 'fc_backward_output1', 'fc_backward_output2')
    """
    fed = _fed(symbol, inputs)
    probes = _probes(symbol, pattern, lower(symbol, inputs=fed).optional)
    edges = forward_step(lower(Symbol((*symbol.heads, *(p.entry for p in probes.values()))), inputs=fed))
    model = lower(Symbol(replace_nodes(symbol.heads, lambda node, ins: _probed(node, ins, probes))), inputs=fed)

    def raw(params: Any, aux: Any, batch: Any, key: Any, step: Any, number: Any, *heads: Any, **kwargs: Any):
        shapes = jax.eval_shape(lambda *a: edges(*a, **kwargs), params, aux, batch, key, step, number)[len(symbol.heads) :]
        zeros = {p.name: jnp.zeros(s.shape, s.dtype) for p, s in zip(probes.values(), shapes, strict=True)}
        floats = [name for name, zero in zeros.items() if jnp.issubdtype(zero.dtype, jnp.floating)]
        run = gradient_step(model, floats)
        return run({**params, **zeros}, aux, batch, key, step, number, *heads, **kwargs)[1]

    order = {id(node): at for at, node in enumerate(topological(symbol.heads))}
    return Capture([p.name for (node, _), p in sorted(probes.items(), key=lambda item: (-order[item[0][0]], item[0][1]))], raw)


def _fed(symbol: Symbol, inputs: Sequence[str] | None) -> list[str]:
    if inputs is not None:
        variables = set(symbol.list_inputs())
        return [name for name in inputs if name in variables]
    model = lower(symbol)
    return [*model.inputs, *model.labels]


def _watched(symbol: Symbol, monitor_all: bool) -> Iterator[tuple[str, Entry]]:
    """(name, entry) of the outputs, and inputs, of each operator in turn."""
    for node in topological(symbol.heads):
        if node.op is None:
            continue
        if monitor_all:
            yield from ((f"{node.name}_{slot}", e) for slot, e in zip(node.input_names(), node.inputs, strict=True))
        yield from ((node.output_name(i), Entry(node, i)) for i in range(node.op.num_visible(node.params)))


def _probes(symbol: Symbol, pattern: str, optional: frozenset[str]) -> dict[tuple[int, int], _Probe]:
    """(id of the node, number of the input) -> probe."""
    order = topological(symbol.heads)
    slots = [n.inputs[n.input_names().index(n.op.label)] for n in order if n.op and n.op.label]
    labels = {id(n) for n in topological(slots)}  # a reshape of the label takes no gradient
    found = {}
    for node in order:
        if node.op is None or id(node) in labels:
            continue
        for at in range(node.num_inputs):
            entry = node.inputs[at]
            name = f"{node.name}_backward_output{at if node.num_inputs > 1 else ''}"
            label = node.input_names()[at] == node.op.label
            absent = entry.node.op is None and entry.node.name in optional
            if not label and not absent and re.match(pattern, name):
                found[id(node), at] = _Probe(name, entry)
    return found


def _probed(node: Node, inputs: tuple[Entry, ...], probes: dict[tuple[int, int], _Probe]) -> Node | None:
    """The node with probes added to its inputs, None where it has none.  Its name stays: so do its random numbers."""

    def added(at: int, entry: Entry) -> Entry:
        probe = probes.get((id(node), at))
        if probe is None:
            return entry
        zeros = Entry(Node(None, probe.name, {}), 0)
        return Entry(Node(lookup("elemwise_add"), f"{probe.name}_probed", {}, (entry, zeros)), 0)

    if not any((id(node), at) in probes for at in range(len(inputs))):
        return None
    return node.rebuilt(tuple(added(at, entry) for at, entry in enumerate(inputs)))
