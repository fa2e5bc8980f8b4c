"""Optimizers of a model whose parameters are a pytree of the user, but flat dicts by name inside jfit.

An optax transformation sees the tree, in `init` and in `update`: masks, labels and other options may depend on it.  jfit's own
optimizers update each parameter separately, by name; those that depend on the order of the parameters get the leaf order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax import Array

from jfit.lowering.structure import Structure, Tree
from jfit.optim.core import Optimizer


def in_structure(optimizer: Optimizer, structure: Structure | None) -> Optimizer:
    """Wrap an optimizer for parameters that are flat dicts by name, but have a tree structure for the user.

    Args:
        optimizer: one of jfit's, or of optax's converted by `jfit.optim.get`.
        structure: `Model.structure`; None for a graph.

    Returns:
        `Optimizer` with the same attributes, whose `init` and `update` take and return dicts by name.  In its state, every tree
        with the structure of the parameters (such as the moments of Adam) is a dict by name too.  An optax transformation sees
        `optax.MaskedNode()` in place of parameters that are not trained.  The optimizer itself, if `structure` is None.

    Example:
        >>> import jax.numpy as jnp, jfit, optax
        >>> model = jfit.Model.from_function(
        ...     lambda params, x: x * params["layers"][0], loss=jnp.subtract, params={"layers": [jnp.ones(2), jnp.ones(2)]}
        ... )
        >>> only_first = optax.masked(optax.sgd(0.1, momentum=0.9), {"layers": [True, False]})
        >>> opt = in_structure(jfit.optim.get(only_first), model.structure)
        >>> opt.init({"layers/0": jnp.ones(2), "layers/1": jnp.ones(2)}).inner_state[0].trace["layers/1"]
        MaskedNode()
    """
    if structure is None:
        return optimizer
    if optimizer.state_spec is not None:
        return optimizer if optimizer.for_graph is None else _in_leaf_order(optimizer, structure)

    def init(params: Mapping[str, Array]) -> Any:
        tree = structure.known("params")
        try:
            state = optimizer.init(tree.unflatten(params, missing=optax.MaskedNode()))
        except Exception as error:
            error.add_note(f"jfit: the optimizer was initialized with parameters of the structure {str(tree.treedef)[:400]}")
            raise
        return _by_name(state, tree)

    def update(grads: Mapping[str, Array], state: Any, params: Any = None, **extra: Any) -> tuple[dict[str, Array], Any]:
        tree = structure.known("params")
        as_tree = lambda leaves: tree.unflatten(leaves, missing=optax.MaskedNode())  # noqa: E731
        updates, state = optimizer.update(as_tree(grads), _as_trees(state, tree), params and as_tree(params), **extra)
        by_name = tree.flatten(updates)
        return {name: by_name[name] for name in grads}, _by_name(state, tree)

    return _like(optimizer, init, update)


def _in_leaf_order(optimizer: Optimizer, structure: Structure) -> Optimizer:
    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        assert optimizer.for_graph is not None
        return optimizer.for_graph(structure.known("params").names, ()).update(grads, state, params, **extra)

    return _like(optimizer, optimizer.init, update)


def _like(optimizer: Optimizer, init: Callable[..., Any], update: Callable[..., Any]) -> Optimizer:
    fields = {k: getattr(optimizer, k) for k in ("takes_rate", "base_lr", "state_spec", "for_graph", "name", "multiplied")}
    return Optimizer(init, update, **fields)


# The state of an optimizer contains trees like the parameters.  They are stored as dicts by name, as the parameters are: jit
# flattens dicts faster than user-defined pytree nodes, at every dispatch, and checkpoints do not depend on the user's classes.
def _by_name(state: Any, tree: Tree) -> Any:
    """Replace each subtree with the structure of the parameters by a dict by name."""
    if jax.tree_util.treedef_is_leaf(tree.treedef):
        return state  # the parameters are one array, and so would be every leaf of the state
    leaves_of = lambda part: _leaves(part, tree)  # noqa: E731
    return jax.tree.map(lambda part: leaves_of(part) or part, state, is_leaf=lambda part: leaves_of(part) is not None)


def _as_trees(state: Any, tree: Tree) -> Any:
    """Inverse of `_by_name`."""
    if jax.tree_util.treedef_is_leaf(tree.treedef):
        return state

    def named(part: Any) -> bool:
        return isinstance(part, dict) and bool(part) and part.keys() == set(tree.names) and all(map(_is_leaf, part.values()))

    return jax.tree.map(lambda part: tree.unflatten(part) if named(part) else part, state, is_leaf=named)


def _leaves(part: Any, tree: Tree) -> dict[str, Any] | None:
    try:
        leaves = tree.flatten(part)
    except (ValueError, TypeError):
        return None
    return leaves if leaves and all(map(_is_leaf, leaves.values())) else None


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, optax.MaskedNode))
