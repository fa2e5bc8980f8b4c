"""A pytree of arrays as the parameters of a Trainer; gradients are pytrees of the same structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.distributed import num_processes
from jfit.mxnet.kvstore import compression
from jfit.mxnet.kvstore.transfer import device_put_all, private_copy, sharding_of, sum_groups, write
from jfit.mxnet.mutable import MutableArray, as_array
from jfit.parallel.workers import from_main, sum_over_processes


class PytreeParams:
    """A pytree of arrays, copied into one `MutableArray` per leaf.

    Args:
        params: pytree of arrays; only floating-point leaves are trained.  NumPy float64 becomes float32 unless
            jax_enable_x64 is set; integer leaves are unchanged.
        compression_params: compression of the gradients in `sum_over_devices`.
        distributed: whether `sum_over_devices` also sums over the processes of the job.  The arrays are then those of rank 0.

    Raises:
        ValueError: a leaf is not a numeric array, or the pytree has no leaves.

    Example:
        >>> tree = PytreeParams({"w": jnp.ones(2)})
        >>> [(i, grad.tolist()) for i, grad, _ in tree.updates({"w": jnp.ones(2)}, False)]
        [(0, [1.0, 1.0])]
    """

    def __init__(self, params: Any, compression_params: Mapping[str, Any] | None = None, distributed: bool = False) -> None:
        leaves, self.structure = jax.tree.flatten(params)
        wrong = sorted({problem for leaf in leaves if (problem := _problem(leaf))})
        if wrong or not leaves:
            kinds = ", ".join(wrong) or "nothing"
            raise ValueError(f"the first argument of a Trainer is Parameters or a pytree of arrays; found {kinds} in it.")
        self.cells = [MutableArray(_leaf(as_array(leaf))) for leaf in leaves]
        self.distributed = distributed and num_processes() > 1
        if self.distributed:
            first = from_main({self._path(i): cell.value for i, cell in enumerate(self.cells)}, "parameters of the Trainer")
            write(list(zip(self.cells, first.values(), strict=True)))
        self._compress = compression.parse(compression_params) if compression_params else None

    @property
    def params(self) -> Any:
        """The current pytree of arrays, copies that the caller may write to or donate."""
        values: list[Any] = [cell.value for cell in self.cells]
        arrays: list[Any] = [v for v in values if isinstance(v, jax.Array)]
        copies = iter(jax.device_put(arrays, [v.sharding for v in arrays], may_alias=False) if arrays else ())
        fresh = [next(copies) if isinstance(v, jax.Array) else np.array(v) for v in values]
        return jax.tree.unflatten(self.structure, fresh)

    def updates(self, grads: Any, ignore_missing: bool) -> list[tuple[int, Any, MutableArray]]:
        """Return a list of (leaf index, gradient, MutableArray) for every trainable leaf.

        Args:
            grads: pytree of gradients with the structure of the parameters; None for a leaf without gradient.
            ignore_missing: skip leaves without gradient instead of raising.

        Raises:
            ValueError: `grads` is None, or a gradient has the wrong shape.
            UserWarning: a leaf has no gradient, and `ignore_missing` is False.
        """
        if grads is None:
            raise ValueError("the parameters of this trainer are a pytree: pass grads=, a pytree of the same structure.")
        updates = []
        for i, (cell, grad) in enumerate(zip(self.cells, self.structure.flatten_up_to(grads), strict=True)):
            if not jnp.issubdtype(cell.dtype, jnp.inexact):
                continue
            if grad is None and not ignore_missing:
                raise UserWarning(f"{self._path(i)} has no gradient; pass ignore_stale_grad=True to skip it.")
            if grad is not None:
                if np.shape(grad) != cell.shape:
                    raise ValueError(f"the gradient of {self._path(i)} has shape {np.shape(grad)}, expected {cell.shape}.")
                updates.append((i, as_array(grad), cell))
        return updates

    def sum_over_devices(self, grads: Any) -> Any:
        """Sum the gradient pytrees of several devices on the device of the first.

        Args:
            grads: list of pytrees with the structure of the parameters, one per device.

        Returns:
            Pytree of the sums.

        Raises:
            ValueError: `grads` is not a non-empty list.
        """
        if not isinstance(grads, (list, tuple)) or not grads:
            raise ValueError("allreduce_grads needs a list with one pytree of gradients per device.")
        columns = [self.structure.flatten_up_to(each) for each in grads]
        groups = [list(group) for group in zip(*columns, strict=True)]
        if self.distributed:
            return jax.tree.unflatten(self.structure, self._over_processes(sum_groups(groups)))
        if self._compress is not None:
            devices = range(len(columns))
            groups = [self._compress([(i, k) for k in devices], group) for i, group in enumerate(groups)]
        return jax.tree.unflatten(self.structure, sum_groups(groups))

    def _over_processes(self, sums: list[Any]) -> list[Any]:
        at = [i for i, value in enumerate(sums) if value is not None]  # None: a stale gradient, in all processes
        values = [as_array(sums[i]) for i in at]
        if self._compress is not None:
            values = self._compress([(i, 0) for i in at], values)
        totals = dict(zip(at, device_put_all(sum_over_processes(values), [sharding_of(v) for v in values]), strict=True))
        return [totals.get(i) for i in range(len(sums))]

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
