"""Compiled programs of bound graphs, shared by all executors of the same graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.graph.nodes import Entry, Node, description_of
from jfit.graph.symbol import Symbol
from jfit.lowering import lower
from jfit.lowering.groups import with_groups
from jfit.lowering.model import Model
from jfit.lowering.remat import KEEP_BARRIERS
from jfit.mxnet.module.binding import undeclared_labels
from jfit.mxnet.monitor.capture import Capture, capture_gradients, capture_outputs
from jfit.mxnet.recording.calls import cotangent
from jfit.ops.rules import dtype_of
from jfit.platforms import platform_of
from jfit.programs import Program, kept, settings
from jfit.step.slices import part_key

_COMPARISONS = "equal not_equal greater greater_equal lesser lesser_equal logical_and logical_or logical_xor"
_CONSTANT = """
    BlockGrad zeros_like ones_like argmax argmin argmax_channel argsort one_hot shape_array size_array logical_not
    sign floor ceil round rint fix trunc _contrib_Proposal _contrib_MultiProposal
"""
# operators that block gradients, so that their outputs need no head gradient
_STOPS = {
    *_CONSTANT.split(),
    *(name for c in _COMPARISONS.split() for name in (f"_{c}", f"_{c}_scalar", f"broadcast_{c}")),
}

Arrays = dict[str, Array]


class Programs:
    """The jitted functions of one graph (forward, backward, monitoring), compiled at first use.

    All variables, including data and labels, are entries of the dict `args`, because an executor has an array for each.

    Args:
        heads: the outputs of the graph.
        groups: `ctx_group` -> device, if the graph runs on several devices.  The functions then run stage by stage (see
            `jfit.lowering.groups`) instead of as one compiled program.
        home: the device of outputs and of nodes without a group.
    """

    def __init__(self, heads: tuple[Entry, ...], groups: Mapping[str, Any] | None = None, home: Any = None) -> None:
        self.symbol, self._groups, self._home = Symbol(heads), groups, home
        self.model = self._lowered(self.symbol)
        self.random = any(n.op is not None and n.op.needs_rng for n in self.symbol.nodes())
        self.forward = functools.cache(self._forward)
        self.backward = functools.cache(self._backward)
        self.monitor_forward = functools.cache(lambda train, every: capture_outputs(self.symbol, [], ".*", every, train))

    def _lowered(self, symbol: Symbol) -> Model:
        model = lower(symbol, inputs=[])
        return with_groups(model, self._groups, self._home) if self._groups else model

    def _forward(self, train: bool) -> Callable[[Arrays, Arrays, Array], tuple[Array, ...]]:
        """Return the jitted function (arguments, auxiliary states, key) -> tuple of outputs."""

        def run(args: Arrays, aux: Arrays, key: Array) -> tuple[Array, ...]:
            return _apply(self.model, args, aux, key, train)[0]

        return run if self._groups else Program(run, jax.jit, name="executor_forward")

    def _backward(self, train: bool, differentiated: tuple[str, ...], added: tuple[str, ...]) -> Callable[..., Any]:
        """Return the jitted function (args, aux, key, head gradients, old gradients) -> (outputs, gradients, new aux).

        differentiated: names of the arguments that get a gradient.  added: those whose new gradient is added to the old one.  A
        head gradient is the gradient with respect to one output, None for a loss.
        """

        def run(args: Arrays, aux: Arrays, key: Array, head_gradients: Sequence[Array | None], old: Arrays):
            def forward(variables: Arrays):
                return _apply(self.model_before_casts, {**args, **variables}, aux, key, train)

            uncast, vjp, new_aux = jax.vjp(forward, {n: args[n] for n in differentiated}, has_aux=True)
            outputs = tuple(_cast(o, to) for o, to in zip(uncast, self.final_casts, strict=True))
            heads = [g if g is None else _cast(g, to[::-1]) for g, to in zip(head_gradients, self.final_casts, strict=True)]
            (gradients,) = vjp(tuple(cotangent(o, g) for o, g in zip(uncast, heads, strict=True)))
            return outputs, {n: old[n] + gradients[n] if n in added else gradients[n] for n in differentiated}, new_aux

        def jit(fn: Callable[..., Any]) -> Any:
            again = "recomputed" in self.model.traits and platform_of() == "cpu"
            return jax.jit(fn, compiler_options=KEEP_BARRIERS if again else None)

        return run if self._groups else Program(run, jit, name="executor_backward")

    @functools.cached_property
    def monitor_backward(self) -> Capture:
        """The function (arguments, auxiliary states, {}, key, 0, 0, head gradients) -> internal gradients by name."""
        return capture_gradients(self.symbol, [])

    @functools.cached_property
    def final_casts(self) -> list[tuple[Any, ...]]:
        """For each output, the dtypes of the Cast nodes at its end, in order; () if none of them casts to an integer dtype."""
        return [_final_casts(h)[1] for h in self.symbol.heads]

    @functools.cached_property
    def model_before_casts(self) -> Model:
        """The model without the `final_casts`: MXNet propagates gradients through casts to integers, JAX does not."""
        if not any(self.final_casts):
            return self.model
        return self._lowered(Symbol(tuple(_final_casts(h)[0] for h in self.symbol.heads)))

    @functools.cached_property
    def needs_head(self) -> list[frozenset[str]]:
        """For each output, the arguments whose gradients depend on its head gradient (the gradient with respect to it).

        Empty for losses, which ignore the head gradient.
        """
        return [frozenset() if _has_own_gradient(h.node) else _reachable_arguments(h.node) for h in self.symbol.heads]

    @functools.cached_property
    def label_arguments(self) -> frozenset[str]:
        """Arguments used only as labels of output heads, whose gradient arrays MXNet leaves unchanged."""
        return frozenset(undeclared_labels(self.symbol, ()))


_programs = kept(128)


def programs_of(heads: tuple[Entry, ...], groups: Mapping[str, Any] | None = None, home: Any = None) -> Programs:
    """Return the cached `Programs` of the graph with these outputs; executors of equal graphs share one.

    Args:
        heads: the outputs of the graph.
        groups, home: as for `Programs`.

    Example:
        >>> import jfit
        >>> net = lambda: jfit.sym.relu(jfit.sym.Variable("x"), name="r")
        >>> programs_of(net().heads) is programs_of(net().heads)
        True
    """
    description = description_of(Symbol(heads))
    placement = tuple(sorted((groups or {}).items())), home
    key = (heads, placement) if description is None else (description, settings(), placement)
    programs = _programs.get(key)
    # The graph is compared, too: its attributes are dicts, which may have been changed since.
    if programs is None or (description is not None and description_of(programs.symbol) != description):
        programs = _programs[key] = Programs(heads, groups, home)
    return programs


def _apply(model: Model, args: Mapping[str, Array], aux: Arrays, key: Array, train: bool):
    return model.apply(dict(args), aux, {}, key=part_key(key, 0), train=train)  # the same key as in `Capture`


def _final_casts(head: Entry) -> tuple[Entry, tuple[Any, ...]]:
    """Return (output before the casts at its end, dtypes of these casts) if one of them is an integer, else (output, ())."""
    entry, dtypes = head, []
    while entry.node.op is not None and entry.node.op.name in ("Cast", "amp_cast"):
        dtypes.insert(0, dtype_of(entry.node.params.dtype))
        entry = entry.node.inputs[0]
    return (entry, tuple(dtypes)) if any(jnp.issubdtype(t, jnp.integer) for t in dtypes) else (head, ())


def _cast(array: Array, dtypes: Sequence[Any]) -> Array:
    for dtype in dtypes:
        array = array.astype(dtype)
    return array


def _has_own_gradient(node: Node) -> bool:
    return node.op is not None and (node.op.kind != "plain" or node.op.name in _STOPS) and not node.params.get("out_grad")


def _reachable_arguments(node: Node) -> frozenset[str]:
    seen: dict[int, Node] = {}
    stack = [node]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            if node.op is not None and node.op.name not in _STOPS:
                stack.extend(e.node for at, e in enumerate(node.inputs) if at != node.label_at)
    return frozenset(n.name for n in seen.values() if n.op is None)
