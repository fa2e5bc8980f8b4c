"""Values that the backward pass computes again instead of reading: the argument `remat` of `jfit.fit`, and MXNet's mirroring.

XLA decides when to compute: with one `jax.checkpoint` around a model, everything may be computed again at once, and the peak of
memory stays.  A graph is therefore cut into parts, each a `jax.checkpoint` of its own, which has to wait for the gradient of
its results.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import math
import os
from collections import ChainMap
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name

from jfit.checks import matching
from jfit.graph.nodes import Entry, Node

SAVED = "jfit_saved"  # name of the arrays of a part that the forward pass saves
saved_only = jax.checkpoint_policies.save_only_these_names(SAVED)
# On a CPU, XLA removes the barriers of `jax.checkpoint` before it merges equal computations, unless this pass is off.
KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
# operators that MXNET_BACKWARD_DO_MIRROR does not run again
_NOT_MIRRORED = ("Convolution", "FullyConnected", "Concat", "SoftmaxOutput")

Remat = str | tuple[str, ...]


class Part(NamedTuple):
    """Nodes that run one after the other.

    Attributes:
        nodes: the nodes, in topological order.
        again: ids of those whose outputs are not kept but recomputed in the backward pass.
        results: the outputs that later nodes read, or that are outputs of the graph.
    """

    nodes: list[Node]
    again: frozenset[int] = frozenset()
    results: Sequence[Entry] = ()


def remat_of(remat: Any) -> Remat:
    """Check the argument `remat`: "none", "full", or a tuple of patterns of node names."""
    patterns = (remat,) if isinstance(remat, str) else remat
    if not isinstance(patterns, Sequence) or not all(isinstance(p, str) for p in patterns):
        raise ValueError(f'remat is {remat!r}; expected "none", "full", or a name or glob pattern of nodes, or a list of these')
    return remat if remat in ("none", "full") else tuple(patterns) or "none"  # type: ignore[return-value]


def is_mirrored(node: Node) -> bool:
    """Whether MXNet computes a node again: by its attribute `force_mirroring`, or by MXNET_BACKWARD_DO_MIRROR."""
    assert node.op is not None
    if node.op.name == "Dropout":
        return False
    forced = node.attrs.get("__force_mirroring__", node.attrs.get("force_mirroring", ""))
    everywhere = os.environ.get("MXNET_BACKWARD_DO_MIRROR", "0") not in ("", "0") and node.op.name not in _NOT_MIRRORED
    return forced.lower() in ("true", "1") or everywhere


def cut(operators: Sequence[Node], heads: Sequence[Entry], remat: Remat) -> list[Part]:
    """Cut a graph into parts whose results the forward pass saves.

    "full" makes √n parts of n nodes, each at the place with the fewest results, so that about 2√n arrays are in memory in place
    of n.  With patterns, a part ends wherever all arrays that later nodes read are saved.

    Args:
        operators: the nodes with an operator, in topological order.
        heads: the outputs of the graph.
        remat: see `remat_of`; "none": the nodes that MXNet mirrors.

    Raises:
        ValueError: a pattern matches no node.
    """
    if isinstance(remat, str):
        again = {id(n) for n in operators if remat == "full" or is_mirrored(n)}
    else:
        names = [n.name for n in operators]
        chosen = {name for p in remat for name in matching(p, names, f"remat has {p!r}, which matches no node of the graph")}
        again = {id(n) for n in operators if n.name in chosen}
    if not again:
        return []
    live = _live(operators, heads)
    if remat == "full":
        size = math.ceil(math.sqrt(len(operators)))
        starts = range(size, len(operators), size)
        ends = [min(range(at - size, at), key=lambda i: (len(live[i]), -i)) for at in starts]
    else:
        ends = [i for i, entries in enumerate(live[:-1]) if not any(id(e.node) in again for e in entries)]
    bounds = [0, *[i + 1 for i in ends], len(operators)]
    parts = []
    for start, end in itertools.pairwise(bounds):
        nodes = list(operators[start:end])
        # The backward pass begins with the last part: nothing is gained by computing it again.
        of_part = [id(n) for n in nodes if id(n) in again and (remat != "full" or end < len(operators))]
        parts.append(Part(nodes, frozenset(of_part), live[end - 1]))
    return parts


def _live(operators: Sequence[Node], heads: Sequence[Entry]) -> list[list[Entry]]:
    """For each node, the outputs of it and of earlier nodes that later nodes read, or that are outputs of the graph."""
    last = {(id(e.node), e.index): at for at, node in enumerate(operators) for e in node.inputs}
    last |= {(id(h.node), h.index): len(operators) for h in heads}
    live, now = [], list[Entry]()
    for at, node in enumerate(operators):
        outputs = [Entry(node, i) for i in range(len(node.op.output_names(node.params)))]  # type: ignore[union-attr]
        now = [e for e in (*now, *outputs) if last.get((id(e.node), e.index), -1) > at]
        live.append(now)
    return live


def tagged(node: Node, outs: Sequence[Any], again: Collection[int]) -> list[Any]:
    """Mark the outputs of a node, for the policy `saved_only`, unless the node is one of those that run again."""
    if id(node) in again:
        return list(outs)
    return [v and v._replace(array=checkpoint_name(v.array, SAVED)) for v in outs]


def run_part(part: Part, values: dict[Any, Any], aux: dict[str, Any], run: Callable[..., None]) -> None:
    """Run a part by `run(part, values)`, which adds to `values` and `aux`, in a `jax.checkpoint`."""
    before, found = dict(aux), list[Any]()

    def compute() -> Any:
        inside = ChainMap[Any, Any]({}, values)
        run(part, inside)
        found[:] = [inside[id(e.node), e.index] for e in part.results]
        return [v and v.array for v in found], {k: v for k, v in aux.items() if v is not before.get(k)}

    try:
        arrays, changed = jax.checkpoint(compute, policy=saved_only)()
    finally:  # arrays of the inner trace do not leave it
        aux.clear()
        aux.update(before)
    aux.update(changed)
    for entry, value, array in zip(part.results, found, arrays, strict=True):
        values[id(entry.node), entry.index] = value and value._replace(array=array)


def with_remat(model: Any, remat: Remat) -> Any:
    """Return a `Model` whose backward pass computes values again; see `jfit.fit` for the meaning of `remat`."""
    if remat == "none":
        return model
    apply = model.apply
    if model.symbol is not None:
        return model._replace(apply=functools.partial(apply, remat=remat))

    def is_saved(primitive: Any, *_: Any, **params: Any) -> bool:
        named = primitive.name == "name" and remat != "full"
        return named and not any(fnmatch.fnmatchcase(params["name"], pattern) for pattern in remat)

    def applied(params: Any, aux: Any, inputs: Any, **options: Any) -> Any:
        return jax.checkpoint(lambda p: apply(p, aux, inputs, **options), policy=is_saved)(params)

    return model._replace(apply=applied)
