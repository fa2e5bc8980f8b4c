"""Compute internal arrays of a graph for a monitor: outputs and inputs of operators, and the gradients of these inputs.

Each capture is a separate program for the same graph, compiled at first use, so that the training step has no overhead on
steps that are not sampled.
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
from jfit.programs import Made, Program
from jfit.step import forward_step, gradient_step


class Capture:
    """A program that computes internal arrays of one pass by name, called with the arguments of that pass.

    Attributes:
        names: names of the arrays, in MXNet's order.
        raw: the pure function, to be compiled for several devices; returns a dict in unspecified order.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.square(jfit.sym.relu(jfit.sym.Variable("data"), name="r"), name="s")
        >>> key = jax.random.key_data(jax.random.key(0))
        >>> capture_outputs(net, ["data"], "r")({}, {}, {"data": np.array([-1.0, 2.0])}, key, 0, 0)
        {'r_output': Array([0., 2.], dtype=float32)}
    """

    def __init__(self, names: Sequence[str], raw: Callable[..., dict[str, Array]]) -> None:
        self.names, self.raw = tuple(names), raw
        self._compiled = Program(raw, jax.jit, name="monitor")

    def __call__(self, *args: Any) -> dict[str, Array]:
        """Run the pass and return the arrays by name, in the order of `names`, without waiting for the devices.

        args: those of the function that the capture was made by, `capture_outputs` or `capture_gradients`.
        """
        arrays = self._compiled(*args) if self.names else {}
        return {name: arrays[name] for name in self.names if name in arrays}


def capture_outputs(
    symbol: Symbol, inputs: Sequence[str], pattern: str = ".*", monitor_all: bool = False, train: bool = True
) -> Capture:
    """Capture outputs `<node>_output` (and inputs `<node>_<input>`) of operators, for names that match a pattern.

    Args:
        symbol: the graph.
        inputs: names of the variables that are inputs, not parameters, as for `jfit.lower`.
        pattern: regular expression that must match at the start of a name.
        monitor_all: also capture the inputs of every operator.
        train: training mode.

    Returns:
        A `Capture`: `(params, aux, batch, key, step, number) -> {name: array}`, see `jfit.step.forward_step`.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> capture_outputs(net, ["data"], monitor_all=True).names
        ('data', 'fc_data', 'fc_weight', 'fc_bias', 'fc_output')
    """
    matches: dict[str, Entry] = {}
    for _, name, entry in named_entries(symbol, monitor_all):
        for each in (entry.node.output_name(entry.index), name):  # a variable also has its own name
            if re.match(pattern, each):
                matches.setdefault(each, entry)
    computed = {name: entry for name, entry in matches.items() if entry.node.op is not None}
    variables = {name: entry.node.name for name, entry in matches.items() if entry.node.op is None}
    run = forward_step(lower(Symbol((*symbol.heads, *computed.values())), inputs=inputs), train=train)
    # `raw` refers to names, not to nodes, so that equal captures are one program.
    captured, outputs = tuple(computed), len(symbol.heads)

    def raw(params: Any, aux: Any, batch: Any, *args: Any, **kwargs: Any) -> dict[str, Array]:
        values = run(params, aux, batch, *args, **kwargs)[outputs:]
        available = {**params, **aux, **parts_of(batch)[0]}
        direct = {name: jnp.asarray(available[source]) for name, source in variables.items() if source in available}
        return {**direct, **dict(zip(captured, values, strict=True))}

    return Capture(list(matches), Made(raw, "captured", run, captured, outputs, variables))


class _Probe(NamedTuple):
    """An input of a node whose gradient is captured: the name of the gradient, and the node output that feeds the input."""

    name: str
    entry: Entry


def capture_gradients(symbol: Symbol, inputs: Sequence[str], pattern: str = ".*") -> Capture:
    """Capture the gradients `<node>_backward_output<i>` with respect to input i of operators, for names that match a pattern.

    An array of zeros is added to each operator input, and the pass is differentiated with respect to it.  Names of operators
    with one input have no `<i>`.  Operator inputs without a gradient are omitted: labels, integers, and initial states of RNNs
    that are created by default, not named in `inputs`.

    Args:
        symbol: the graph.
        inputs: names of the variables that are inputs, not parameters, as for `jfit.lower`.
        pattern: regular expression that must match at the start of a name.

    Returns:
        A `Capture`: `(params, aux, batch, key, step, number[, head_gradients]) -> {name: array}`, the last operator first, see
        `jfit.step.gradient_step`.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> capture_gradients(jfit.sym.relu(net, name="r"), ["data"]).names
        ('r_backward_output', 'fc_backward_output0', 'fc_backward_output1', 'fc_backward_output2')
    """
    probes = _probes(symbol, pattern, lower(symbol, inputs=inputs).optional)
    probed_inputs = forward_step(lower(Symbol((*symbol.heads, *(p.entry for p in probes.values()))), inputs=inputs))
    model = lower(Symbol(replace_nodes(symbol.heads, lambda node, ins: _probed(node, ins, probes))), inputs=inputs)
    gradient_names, outputs = tuple([p.name for p in probes.values()]), len(symbol.heads)

    def raw(params: Any, aux: Any, batch: Any, key: Any, step: Any, number: Any, *heads: Any, **kwargs: Any):
        run_inputs = lambda *a: probed_inputs(*a, **kwargs)  # noqa: E731
        shapes = jax.eval_shape(run_inputs, params, aux, batch, key, step, number)[outputs:]
        zeros = {n: jnp.zeros(s.shape, s.dtype) for n, s in zip(gradient_names, shapes, strict=True)}
        floats = [name for name, zero in zeros.items() if jnp.issubdtype(zero.dtype, jnp.floating)]
        run = gradient_step(model, floats)
        return run({**params, **zeros}, aux, batch, key, step, number, *heads, **kwargs)[1]

    keyed = Made(raw, "captured gradients", model, probed_inputs, gradient_names, outputs)
    return Capture(gradient_names, keyed)


def named_entries(symbol: Symbol, monitor_all: bool) -> Iterator[tuple[Node, str, Entry]]:
    """Yield (node, name, entry) of the outputs of all operators, in topological order; with `monitor_all` also of inputs."""
    for node in topological(symbol.heads):
        if node.op is None:
            continue
        if monitor_all:
            yield from ((node, f"{node.name}_{slot}", e) for slot, e in zip(node.input_names(), node.inputs, strict=True))
        yield from ((node, node.output_name(i), Entry(node, i)) for i in range(node.op.num_visible(node.params)))


def _probes(symbol: Symbol, pattern: str, optional: frozenset[str]) -> dict[tuple[int, int], _Probe]:
    """Return the `_Probe` of each operator input whose gradient is captured, by (id of the node, number of the input).

    optional: names of variables that are omitted, such as initial states of an RNN that default to zeros.
    """
    order = topological(symbol.heads)
    slots = [n.inputs[n.label_at] for n in order if n.label_at is not None]
    labels = {id(n) for n in topological(slots)}  # nodes that only compute labels, such as a reshape, have no gradient
    probes = {}
    for node in reversed(order):  # as a backward pass computes the gradients
        if node.op is None or id(node) in labels:
            continue
        for at in range(node.num_inputs):
            entry = node.inputs[at]
            name = f"{node.name}_backward_output{at if node.num_inputs > 1 else ''}"
            absent = entry.node.op is None and entry.node.name in optional
            if at != node.label_at and not absent and re.match(pattern, name):
                probes[id(node), at] = _Probe(name, entry)
    return probes


def _probed(node: Node, inputs: tuple[Entry, ...], probes: dict[tuple[int, int], _Probe]) -> Node | None:
    """Return the node with zeros added to its inputs that have a probe, or None if none has.

    The node keeps its name, because random keys are derived from it.
    """

    def added(at: int, entry: Entry) -> Entry:
        probe = probes.get((id(node), at))
        if probe is None:
            return entry
        zeros = Entry(Node(None, probe.name, {}), 0)
        return Entry(Node(lookup("elemwise_add"), f"{probe.name}_probed", {}, (entry, zeros)), 0)

    if not any((id(node), at) in probes for at in range(len(inputs))):
        return None
    return node.rebuilt(tuple(added(at, entry) for at, entry in enumerate(inputs)))
