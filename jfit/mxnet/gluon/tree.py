"""The parameters of a Trainer that are a pytree: a cell per leaf, and gradients that come as pytrees too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.kvstore import compression
from jfit.mxnet.kvstore.transfer import private_copy, total
from jfit.mxnet.mutable import MutableArray, as_array


class TreeCells:
    """A pytree of arrays as cells, in leaf order.

    Args:
        params: pytree of arrays, copied; leaves that are not floating do not learn.  float64 of numpy becomes float32 unless
            JAX is told to keep 64 bits; integers stay as they are.
        compression_params: 2-bit compression of the gradients that `summed` adds up.

    Raises:
        ValueError: a leaf is no array of numbers, or there is none.

    Example:
        >>> tree = TreeCells({"w": jnp.ones(2)})
        >>> [(i, grad.tolist()) for i, grad, _ in tree.batch({"w": jnp.ones(2)}, False)]
        [(0, [1.0, 1.0])]
    """

    def __init__(self, params: Any, compression_params: Mapping[str, Any] | None = None) -> None:
        leaves, self.structure = jax.tree.flatten(params)
        wrong = sorted({problem for leaf in leaves if (problem := _problem(leaf))})
        if wrong or not leaves:
            found = ", ".join(wrong) or "nothing"
            raise ValueError(f"the first argument of a Trainer is Parameters or a pytree of arrays; found {found} in it.")
        self.cells = [MutableArray(_leaf(as_array(leaf))) for leaf in leaves]
        self._compress = compression.parse(compression_params) if compression_params else None

    @property
    def params(self) -> Any:
        """The pytree of what the cells hold: copies, which the caller may write to or donate."""
        values: list[Any] = [cell.value for cell in self.cells]
        arrays: list[Any] = [v for v in values if isinstance(v, jax.Array)]
        copies = iter(jax.device_put(arrays, [v.sharding for v in arrays], may_alias=False) if arrays else ())
        fresh = [next(copies) if isinstance(v, jax.Array) else np.array(v) for v in values]
        return jax.tree.unflatten(self.structure, fresh)

    def batch(self, grads: Any, ignore_missing: bool) -> list[tuple[int, Any, MutableArray]]:
        """(number of the leaf, gradient, cell) of every leaf that learns.

        Args:
            grads: pytree of the same structure, None where a leaf has no gradient.
            ignore_missing: leave those out.

        Raises:
            ValueError: no gradients, or one of another shape.
            UserWarning: a gradient is None and may not be.
        """
        if grads is None:
            raise ValueError("this trainer is over a pytree: pass grads=, a pytree of the same structure.")
        found = []
        for i, (cell, grad) in enumerate(zip(self.cells, self.structure.flatten_up_to(grads), strict=True)):
            if not jnp.issubdtype(cell.dtype, jnp.inexact):
                continue
            if grad is None and not ignore_missing:
                raise UserWarning(f"{self._path(i)} has no gradient; pass ignore_stale_grad=True to leave it out.")
            if grad is not None:
                if np.shape(grad) != cell.shape:
                    raise ValueError(f"the gradient of {self._path(i)} has shape {np.shape(grad)}, needed is {cell.shape}.")
                found.append((i, as_array(grad), cell))
        return found

    def summed(self, grads: Any) -> Any:
        """Sum of a list of gradient pytrees, each on its own device, on the device of the first.

        Raises:
            ValueError: it is no list, or empty.
        """
        if not isinstance(grads, (list, tuple)) or not grads:
            raise ValueError("allreduce_grads needs a list with one pytree of gradients per device.")
        columns = [self.structure.flatten_up_to(each) for each in grads]
        groups = [list(group) for group in zip(*columns, strict=True)]
        if self._compress is not None:
            devices = range(len(columns))
            groups = [self._compress([(i, k) for k in devices], group) for i, group in enumerate(groups)]
        return jax.tree.unflatten(self.structure, total(groups))

    def _path(self, leaf: int) -> str:
        paths = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(self.structure, range(len(self.cells))))[0]
        return f"parameter {jax.tree_util.keystr(paths[leaf][0], simple=True, separator='/')!r}"


def _problem(leaf: Any) -> str | None:
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, MutableArray)):
        return type(leaf).__name__
    dtype = as_array(leaf).dtype
    wrong = not isinstance(as_array(leaf), jax.Array) and dtype.kind in "OSUMm"
    return f"an array of {dtype}" if wrong else None


def _leaf(value: Any) -> Any:
    inexact = isinstance(value, np.ndarray) and jnp.issubdtype(value.dtype, jnp.inexact)
    return private_copy(jnp.asarray(value) if inexact else value)
