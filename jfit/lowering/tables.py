"""Tables: parameters of which a batch reads some rows only, because nothing but embeddings with sparse gradients uses them.

Which rows those are follows from the batch alone, so a step can take them out, differentiate with respect to them, and leave
the rest of the table in peace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from jfit.graph.nodes import Entry, Node, topological
from jfit.lowering.interpret import Names, make_apply
from jfit.lowering.model import Inputs
from jfit.ops.nn import row_numbers


def tables_of(
    order: Sequence[Node], heads: Sequence[Entry], names: Names, params: Collection[str]
) -> dict[str, Callable[..., Array]]:
    """Name of each table -> `(inputs, policy=None) -> numbers of the rows that a batch looks up`, int32 (lookups,)."""
    uses: dict[str, list[Node | None]] = {h.node.name: [None] for h in heads}
    for node in order:
        for slot, entry in enumerate(node.inputs):
            uses.setdefault(entry.node.name, []).append(node if slot == 1 and _is_sparse(node) else None)
    found = {name: [n for n in nodes if n] for name, nodes in uses.items() if name in params and all(nodes)}
    return {name: _reader(nodes, names) for name, nodes in found.items() if all(_known(n, names) for n in nodes)}


def _is_sparse(node: Node) -> bool:
    assert node.op is not None
    return node.op.name == "_contrib_SparseEmbedding" or (node.op.name == "Embedding" and node.params["sparse_grad"])


def _known(node: Node, names: Names) -> bool:
    """Whether the batch alone says which rows a node looks up."""
    below = topological([node.inputs[0]])
    return all(n.name in names.fed if n.op is None else not (n.op.needs_rng or n.op.aux or n.subgraphs) for n in below)


def _reader(nodes: Sequence[Node], names: Names) -> Callable[..., Array]:
    entries = [n.inputs[0] for n in nodes]
    read = make_apply(topological(entries), entries, names)

    def numbers(inputs: Inputs, policy: Any = None) -> Array:
        ids, _ = read({}, {}, inputs, policy=policy)
        return jnp.concatenate([row_numbers(n.params, x).reshape(-1) for n, x in zip(nodes, ids, strict=True)])

    return numbers
