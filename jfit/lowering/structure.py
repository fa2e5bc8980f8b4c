"""The pytrees of parameters and auxiliary states that a user passed, and their leaves by name.

Inside jfit, parameters are flat dicts by name ('layers/0/w').  A model made of a function has a `Structure`, with which such a
dict is converted to the user's tree and back.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from jfit.lowering.model import flatten_names
from jfit.lowering.row_axes import RowAxes
from jfit.programs import Key, key_of_structure

LABEL_WEIGHT = "label_weight"  # name of the weights of the positions of a label in a batch


def own_buffer(x: Array | np.ndarray) -> Array:
    """Return a copy of an array in a new buffer, which can be donated; nothing is compiled."""
    # device_put of aligned host memory to a CPU device shares that memory, even with may_alias=False
    return jax.device_put(np.array(x) if isinstance(x, np.ndarray) else x, may_alias=False)


class Tree:
    """The structure of one pytree, with a name for each leaf.

    Args:
        tree: the pytree; its leaves are not kept.

    Attributes:
        names: name of each leaf, its path such as 'layers/0/w', in leaf order.
        treedef: the `jax.tree.structure` of the tree.

    Example:
        >>> tree = Tree({"layers": [1.0, 2.0]})
        >>> tree.names, tree.unflatten({"layers/1": 20.0, "layers/0": 10.0})
        (('layers/0', 'layers/1'), {'layers': [10.0, 20.0]})
    """

    def __init__(self, tree: Any) -> None:
        flat, self.treedef = flatten_names(tree)
        self.names = tuple(flat)

    @functools.cached_property
    def program_key(self) -> Key:
        """The structure with its static fields."""
        return key_of_structure(self.treedef)

    def flatten(self, tree: Any) -> dict[str, Any]:
        """Return the leaves by name, in leaf order; a subtree in the place of a leaf is returned as it is.

        Args:
            tree: pytree of this structure.

        Returns:
            dict of leaf name -> leaf.

        Raises:
            ValueError: the structure is another one.
        """
        return dict(zip(self.names, self.treedef.flatten_up_to(tree), strict=True))

    def unflatten(self, leaves: Mapping[str, Any], **default: Any) -> Any:
        """Return the pytree with these leaves; the order of the dict has no effect.

        Args:
            leaves: dict of leaf name -> leaf; other names are ignored.
            default: `missing=value`: the value of leaves that are not in the dict.

        Returns:
            The pytree.

        Raises:
            ValueError: a leaf is not in the dict, and `missing` is not passed.
        """
        absent = [n for n in self.names if n not in leaves]
        if absent and not default:
            found = list(leaves)[:20] if isinstance(leaves, Mapping) else f"a {type(leaves).__name__}"
            expected = f"all of {list(self.names)[:20]}; pass model.structure.params.flatten(tree), or likewise for aux"
            raise ValueError(f"{absent[0]!r} is missing; found {found}, expected {expected}")
        return jax.tree.unflatten(self.treedef, [leaves[n] if n in leaves else default["missing"] for n in self.names])


class Structure:
    """The trees of the parameters, auxiliary states, inputs and outputs of a model made of a function.

    Attributes:
        params: `Tree` of the parameters; None until the `init` function of the model has run.
        aux: `Tree` of the auxiliary states, likewise.
        outputs: `Tree` of the outputs; None until the first batch is known.
        labels: names of the labels of the first batch with labels.
        tested: shapes of single rows, mode -> whether a test on a batch found that its rows are independent.
        inputs: argument name or label name -> `Tree` of its arrays, from the first batch.
        optional: names of the arguments with a default, which are data if a batch has them.
        by_position: those of them that arrays in a list after the arguments are.
        reserved: names of arguments of the function that are no data, such as the PRNG key.
        row_axes: which arrays of a batch have rows.
        only_loss: names of the arrays that only the loss takes, `loss(outputs, batch)`; None: not known before the first batch
            with labels.

    Args:
        arguments: names of the arguments of the function that are data.
        label: name of the label.
        optional, by_position, reserved: see the attributes.

    Example:
        >>> structure = Structure()
        >>> structure.params is None
        True
    """

    def __init__(
        self,
        arguments: tuple[str, ...] = (),
        label: str = "label",
        optional: tuple[str, ...] = (),
        by_position: tuple[str, ...] = (),
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        self.arguments, self.label = arguments, label
        self.optional, self.by_position, self.reserved = optional, by_position, reserved
        self.inputs: dict[str, Tree] = {}
        self.params: Tree | None = None
        self.aux: Tree | None = None
        self.outputs: Tree | None = None
        self.labels: tuple[str, ...] = ()
        self.row_axes = RowAxes()
        self.only_loss: tuple[str, ...] | None = ()
        self.tested: dict[Any, bool] = {}

    @property
    def program_key(self) -> Any:
        """The structures without the arrays; see `jfit.programs.read_key`."""
        trees = (self.params, self.aux, *self.inputs.values())
        names = tuple(self.inputs), self.labels, self.only_loss
        return [t and t.program_key for t in trees], names, self.row_axes, self.tested

    def share_batches(self, others: Sequence[Structure]) -> None:
        """Make the batches of models with the same function and other losses those of this one."""
        read_by_loss = None if any(each.only_loss is None for each in (self, *others)) else ()
        for each in (self, *others):
            each.inputs, each.only_loss = self.inputs, read_by_loss

    def known(self, kind: str) -> Tree:
        """Return the `Tree` of kind "params" or "aux".

        Raises:
            ValueError: it is not known yet.
        """
        tree = getattr(self, kind)
        if tree is None:
            raise ValueError(f"the tree structure of {kind} is unknown before init, predict or score; read named_{kind}")
        return tree
