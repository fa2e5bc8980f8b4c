"""Compiled programs of bound graphs, shared by every executor over the same graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.counters import count_trace
from jfit.graph.nodes import Entry, Node
from jfit.graph.symbol import Symbol
from jfit.lowering import lower
from jfit.lowering.model import Model
from jfit.mxnet.monitor.capture import Capture, capture_gradients, capture_outputs
from jfit.ops.rules import dtype_of
from jfit.step.slices import part_key

# operators that pass no gradient on: an output of theirs needs no head gradient
_STOPS = {"BlockGrad", "zeros_like", "ones_like", "argmax", "argmin", "argmax_channel"}

Arrays = dict[str, Array]


class Programs:
    """The pure functions of one graph, jitted as they are needed.

    Every variable is an argument here, data and labels too: an executor gives each of them an array.
    """

    def __init__(self, heads: tuple[Entry, ...]) -> None:
        self.symbol = Symbol(heads)
        self.model = lower(self.symbol, inputs=[])
        self.random = any(n.op is not None and n.op.needs_rng for n in self.symbol.nodes())
        self.forward = functools.cache(self._forward)
        self.backward = functools.cache(self._backward)
        self.seen_forward = functools.cache(self._seen_forward)

    def _forward(self, train: bool) -> Callable[[Arrays, Arrays, Array], tuple[Array, ...]]:
        """(arguments, auxiliary states, key) -> outputs."""

        def run(args: Arrays, aux: Arrays, key: Array) -> tuple[Array, ...]:
            count_trace("executor_forward")
            return _apply(self.model, args, aux, key, train)[0]

        return jax.jit(run)

    def _backward(self, train: bool, wanted: tuple[str, ...], added: tuple[str, ...]) -> Callable[..., Any]:
        """(arguments, auxiliary states, key, head gradients, old gradients) -> (outputs, gradients, new auxiliary states)."""

        def run(args: Arrays, aux: Arrays, key: Array, head_gradients: Sequence[Array | None], old: Arrays):
            count_trace("executor_backward")

            def forward(learns: Arrays):
                return _apply(self.before_casts, {**args, **learns}, aux, key, train)

            reached, pull, moved = jax.vjp(forward, {n: args[n] for n in wanted}, has_aux=True)
            outputs = tuple(_cast(o, to) for o, to in zip(reached, self.end_casts, strict=True))
            heads = [g if g is None else _cast(g, to[::-1]) for g, to in zip(head_gradients, self.end_casts, strict=True)]
            (found,) = pull(tuple(_cotangent(o, g) for o, g in zip(reached, heads, strict=True)))
            return outputs, {n: old[n] + found[n] if n in added else found[n] for n in wanted}, moved

        return jax.jit(run)

    def _seen_forward(self, train: bool, monitor_all: bool) -> Capture:
        """What a monitor sees of a forward pass: (arguments, auxiliary states, {}, key, 0, 0) -> arrays by name."""
        return capture_outputs(self.symbol, [], monitor_all=monitor_all, train=train)

    @functools.cached_property
    def seen_backward(self) -> Capture:
        """What it sees of a backward pass: the same and the gradient of each output -> gradients by name."""
        return capture_gradients(self.symbol, [])

    @functools.cached_property
    def end_casts(self) -> list[tuple[Any, ...]]:
        """For each output: the dtypes it is cast to at its end, where integers are among them; usually none."""
        return [_end_casts(h)[1] for h in self.symbol.heads]

    @functools.cached_property
    def before_casts(self) -> Model:
        """The model without those casts: MXNet passes head gradients through them, JAX has none for integers."""
        if not any(self.end_casts):
            return self.model
        return lower(Symbol(tuple(_end_casts(h)[0] for h in self.symbol.heads)), inputs=[])

    @functools.cached_property
    def needs_head(self) -> list[frozenset[str]]:
        """For each output: the arguments that its head gradient reaches; none where the output makes its own."""
        return [frozenset() if _makes_its_own(h.node) else _reached(h.node) for h in self.symbol.heads]

    @functools.cached_property
    def label_only(self) -> frozenset[str]:
        """Arguments that only fill label slots of heads: MXNet leaves their gradient buffers as they are."""
        labels, others = set(), set()
        for node in self.symbol.nodes():
            if node.op is None:
                continue
            for slot, entry in zip(node.input_names(), node.inputs, strict=True):
                is_label = node.op.kind == "head" and slot == node.op.label
                (labels if is_label else others).add(entry.node.name)
        return frozenset(labels - others)


@functools.lru_cache(maxsize=128)
def programs_of(heads: tuple[Entry, ...]) -> Programs:
    """The programs of a graph; two executors over the same nodes share them.

    Example:
        >>> import jfit
        >>> net = jfit.sym.relu(jfit.sym.Variable("x"))
        >>> programs_of(net.heads) is programs_of(net[0].heads)
        True
    """
    return Programs(heads)


def _apply(model: Model, args: Mapping[str, Array], aux: Arrays, key: Array, train: bool):
    return model.apply(dict(args), aux, {}, key=part_key(key, 0), train=train)  # as `Capture` does: monitors see this pass


def _end_casts(head: Entry) -> tuple[Entry, tuple[Any, ...]]:
    """(what an output is before the casts at its end, their dtypes), as it is where none of them is to integers."""
    entry, dtypes = head, []
    while entry.node.op is not None and entry.node.op.name in ("Cast", "amp_cast"):
        dtypes.insert(0, dtype_of(entry.node.params.dtype))
        entry = entry.node.inputs[0]
    return (entry, tuple(dtypes)) if any(jnp.issubdtype(t, jnp.integer) for t in dtypes) else (head, ())


def _cast(array: Array, dtypes: Sequence[Any]) -> Array:
    for dtype in dtypes:
        array = array.astype(dtype)
    return array


def _cotangent(output: Array, given: Array | None) -> Any:
    """Heads ignore it; integer outputs have none."""
    if not jnp.issubdtype(output.dtype, jnp.inexact):
        return jnp.zeros(output.shape, jax.dtypes.float0)
    return jnp.ones_like(output) if given is None else jnp.broadcast_to(given, output.shape).astype(output.dtype)


def _makes_its_own(node: Node) -> bool:
    return node.op is not None and (node.op.kind != "plain" or node.op.name in _STOPS) and not node.params.get("out_grad")


def _reached(node: Node) -> frozenset[str]:
    found, seen, stack = set(), set(), [node]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op is None:
            found.add(node.name)
        elif node.op.name not in _STOPS:
            slots = zip(node.input_names(), node.inputs, strict=True)
            stack.extend(e.node for slot, e in slots if slot != node.op.label)
    return frozenset(found)
