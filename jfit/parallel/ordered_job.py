"""Values of the slices of a batch, exchanged between the processes of a job that trains with `reduce="ordered"`.

A sum over devices by `lax.psum` adds in an order that depends on the number of devices and on the library that communicates.
So processes only gather, which rounds nothing, and each adds the values of all of them by a program for one device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.parallel.contexts import Device
from jfit.parallel.spmd import GATHERED, compile_spmd, unchanged
from jfit.programs import Made, Program

Buffers = dict[str, Array]  # dtype -> the elements of all leaves of this dtype, one after the other


class Gather:
    """Combine values of the slices of all processes: `gather(values of the slices of this process)`.

    All processes call it alike.  It runs three programs: one packs the values of this process, one gathers those of all
    processes, and one combines them.

    Args:
        owners: device of each slice, in order; the slices of a process are consecutive.
        combine: pure function of a sequence of pytrees, those of all slices; adds or stacks them.
        pairs: whether `combine` is a binary tree, so that it may combine the slices of a process first.  This needs processes
            with an equal number of slices, a power of 2, else the values of all slices are sent.
        name: name under which `jfit.counters` counts how often the programs are traced.

    Example:
        >>> import jax
        >>> gather = Gather([jax.devices()[0]] * 2, sum, pairs=True, name="total")
        >>> float(gather((jnp.float32(1), jnp.float32(2))))
        3.0
    """

    def __init__(self, owners: Sequence[Device], combine: Callable[[Sequence[Any]], Any], *, pairs: bool, name: str) -> None:
        firsts = {device.process_index: device for device in reversed(owners)}  # first device of each process
        order = [*dict.fromkeys(device.process_index for device in owners)]
        counts = Counter(device.process_index for device in owners)
        sizes = [counts[process] for process in order]
        early = pairs and len({*sizes}) == 1 and sizes[0] & (sizes[0] - 1) == 0
        sizes = [1] * len(order) if early else sizes

        def pack(parts: Sequence[Any]) -> Buffers:
            parts = [combine(parts)] if early else [*parts]
            # all processes send equally many values: those with fewer slices repeat one
            return jax.tree.map(lambda x: x[None], _packed([*parts, *parts[:1] * (max(sizes) - len(parts))]))

        def join(gathered: Buffers, parts: Sequence[Any]) -> Any:
            like = jax.eval_shape(combine, parts) if early else parts[0]
            return combine([_unpacked(gathered, (i, k), like) for i, size in enumerate(sizes) for k in range(size)])

        settings = combine, early, sizes
        self._pack = Program(Made(pack, "pack", settings), jax.jit, name=f"{name}_pack")
        self._join = Program(Made(join, "join", settings), jax.jit, name=f"{name}_join")
        self._gather = compile_spmd(unchanged, [firsts[process] for process in order], (0,), GATHERED, name=f"{name}_gather")

    def __call__(self, parts: Sequence[Any]) -> Any:
        """Combine the values of all slices.

        Args:
            parts: pytrees of arrays of equal shapes, on the first device of this process, one per slice of this process.

        Returns:
            The result of `combine`, on the first device of this process.
        """
        gathered = jax.tree.map(lambda x: x.addressable_shards[0].data, self._gather(self._pack(parts)))
        return self._join(gathered, parts)


def _packed(values: Sequence[Any]) -> Buffers:
    """Concatenate all leaves of each value by dtype: dtype -> (values, elements)."""
    leaves = [jnp.stack(xs).reshape(len(values), -1) for xs in zip(*map(jax.tree.leaves, values), strict=True)]
    return {
        str(dtype): jnp.concatenate([x for x in leaves if x.dtype == dtype], axis=1)
        for dtype in dict.fromkeys(x.dtype for x in leaves)
    }


def _unpacked(buffers: Buffers, at: tuple[int, int], like: Any) -> Any:
    """Return one of the values packed by `_packed`.

    Args:
        buffers: dtype -> (processes, values, elements).
        at: number of the process, and of the value among those of the process.
        like: pytree of arrays with the shapes and dtypes of the value.
    """
    leaves, tree = jax.tree.flatten(like)
    starts: Counter[str] = Counter()
    result = []
    for leaf in leaves:
        dtype, size = str(leaf.dtype), math.prod(leaf.shape)
        result.append(buffers[dtype][at][starts[dtype] : starts[dtype] + size].reshape(leaf.shape))
        starts[dtype] += size
    return tree.unflatten(result)
