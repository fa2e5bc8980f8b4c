"""Stage 4: one program on N devices, and how far the host may run ahead of it.

This is the only file that names pmap.  Parameters are ONE replicated array of natural shape (out_axes=None): no leading device
axis, nothing to unreplicate.  `SPMD` chooses between pmap and jit(shard_map), which has the same signature
here: pmap is in maintenance upstream, and shard_map replaces it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jfit import counters
from jfit.parallel.devices import AXIS, Device

SPMD = "pmap"  # or "shard_map"
WAIT_EVERY = 8  # calls between two waits; twice as many may be in flight: emulated CPU devices abort the process at 32


def compile_spmd(
    fn: Callable[..., Any],
    devices: Sequence[Device],
    in_axes: tuple[Any, ...],
    out_axes: Any,
    *,
    donate: tuple[int, ...] = (),
    name: str = "program",
) -> Callable[..., Any]:
    """`fn(*args, axis_name=...)` as one program: jit on one device, one copy per device on several.

    Args:
        fn: pure; gets axis_name=None on one device, else the name of the device axis.
        devices: where it runs.
        in_axes: for each argument None (replicated) or 0 (a leading device axis), as pytree prefixes.
        out_axes: the same for the results.
        donate: arguments whose buffers are given up.
        name: what its traces are counted under.
    """
    axis = AXIS if len(devices) > 1 else None

    @functools.wraps(fn)
    def traced(*args: Any) -> Any:
        counters.count_trace(name)
        return fn(*args, axis_name=axis)

    if axis is None:
        return jax.jit(traced, donate_argnums=donate)
    twin = jax.pmap if SPMD == "pmap" else _shard_map
    return twin(traced, axis_name=AXIS, devices=list(devices), in_axes=in_axes, out_axes=out_axes, donate_argnums=donate)


def _shard_map(fn, *, axis_name, devices, in_axes, out_axes, donate_argnums):
    """The twin of pmap on jit(shard_map): same arguments, same results."""
    mesh = Mesh(np.array(devices), (axis_name,))
    is_none = lambda a: a is None  # noqa: E731
    spec = lambda a: PartitionSpec(axis_name) if a == 0 else PartitionSpec()  # noqa: E731

    def inner(*args: Any) -> Any:
        squeezed = [_each(lambda x, a: x[0] if a == 0 else x, arg, axes) for arg, axes in zip(args, in_axes, strict=True)]
        result = fn(*squeezed)
        return _each(lambda x, a: x[None] if a == 0 else x, result, out_axes)

    specs = (jax.tree.map(spec, in_axes, is_leaf=is_none), jax.tree.map(spec, out_axes, is_leaf=is_none))
    # check_vma=False: with it on, gradients of replicated parameters are psummed a second time
    mapped = jax.shard_map(inner, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    return jax.jit(mapped, donate_argnums=donate_argnums)


def _each(fn: Callable[[Any, Any], Any], tree: Any, axes: Any) -> Any:
    """`fn(leaf, axis)` over a pytree whose axes are given as a prefix tree."""
    is_none = lambda a: a is None  # noqa: E731
    return jax.tree.map(lambda a, sub: jax.tree.map(lambda x: fn(x, a), sub), axes, tree, is_leaf=is_none)


class Window:
    """At most 16 calls in flight: at every 8th call the host must wait for the call 8 before it.

    Example:
        >>> window = Window()
        >>> [call for call in range(1, 33) if window.push(call) is not None]
        [16, 24, 32]
    """

    def __init__(self) -> None:
        self._count = 0
        self._fence: Any = None  # of the last call that a later one waits for

    def push(self, fence: Any) -> Any | None:
        """Note a call; returns the fence to wait for now, or None."""
        self._count += 1
        if self._count % WAIT_EVERY:
            return None
        due, self._fence = self._fence, fence
        return due
