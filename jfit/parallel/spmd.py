"""Compile a function for N devices (SPMD), and limit how far the host runs ahead of the devices.

This is the only file that uses pmap.  Parameters are ONE replicated array of their natural shape (out_axes=None), without a
leading device axis.  For the devices of a named mesh, and for a state that is split over the devices, jit splits the program
(`jfit.parallel.mesh`).  Programs are kept for the process (`jfit.programs`): an equal function is not compiled again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import global_array_to_host_local_array, host_local_array_to_global_array
from jax.sharding import Mesh

from jfit import activity
from jfit.lowering.remat import KEEP_BARRIERS
from jfit.parallel.contexts import Device
from jfit.parallel.devices import AXIS, place_on, spans_processes
from jfit.parallel.mesh import MeshDevices, SplitDevices, mesh_jit, spec_of_axis
from jfit.platforms import traced_for
from jfit.programs import Program
from jfit.step.layout import WHOLE, on_each_device
from jfit.step.state import TrainState

GATHERED = "gathered"  # an axis of results: 0, but every process of a job gets the slices of the devices of all processes
# number of calls between two waits of the host, so that at most 16 are queued: with 32, emulated CPU devices abort the process
WAIT_EVERY = 8


def compile_spmd(
    fn: Callable[..., Any],
    devices: Sequence[Device],
    in_axes: tuple[Any, ...],
    out_axes: Any,
    *,
    donate: tuple[int, ...] = (),
    name: str = "program",
    recomputes: bool = False,
) -> Program:
    """Compile `fn(*args, axis_name=...)` for devices: jit for one device or a mesh, pmap for several devices.

    A function that computes the same as one that was compiled before in this process uses its program, see `jfit.programs`.

    Args:
        fn: pure function; called with axis_name=None for one device, else with the name of the device axis.
        devices: list of `jax.Device`; `jfit.parallel.mesh.MeshDevices`, for which functions are those of one device; or
            `SplitDevices`, for which jit compiles the functions of a `TrainState`.
        in_axes: one pytree prefix per argument: None for replicated arrays, 0 for arrays with a leading device axis.
        out_axes: pytree prefix for the result, likewise; `GATHERED` in place of 0 for arrays of which each process of a job
            needs the slices of all devices, not only of its own.
        donate: positions of donated arguments.
        name: name under which `jfit.counters` counts how often the function is traced.
        recomputes: whether a backward pass computes values again, see `jfit.lowering.remat`; on several devices of a CPU, XLA
            does not.

    Returns:
        `jfit.programs.Program`, called with the positional arguments.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> double = compile_spmd(lambda x, axis_name: 2 * x, jax.devices()[:1], (None,), None)
        >>> float(double(jnp.float32(3.0)))
        6.0
    """
    mesh = devices if isinstance(devices, MeshDevices) else None
    split = devices if isinstance(devices, SplitDevices) and any(isinstance(a, TrainState) for a in in_axes) else None
    axis, devices, count = AXIS if len(devices) > 1 else None, mesh or list(devices), len(devices)
    spans, is_leaf = mesh is None and spans_processes(devices), lambda a: a is None
    gathered = out_axes if spans else None
    out_axes = jax.tree.map(lambda a: (None if spans else 0) if a == GATHERED else a, out_axes, is_leaf=is_leaf)

    def build(traced: Callable[..., Any], more: int) -> Any:
        if mesh is not None:
            return mesh.jit(traced, (*in_axes, *(None,) * more), out_axes, donate)
        if axis is None:
            options = KEEP_BARRIERS if recomputes and devices[0].platform == "cpu" else None
            return jax.jit(traced, donate_argnums=donate, compiler_options=options)
        axes = (*in_axes, *(None,) * more)
        if split is not None:
            run = jitted = mesh_jit(traced, split.mesh, axes, out_axes, donate)
        else:
            options: Any = {"in_axes": axes, "out_axes": out_axes, "donate_argnums": donate}
            run = jitted = jax.pmap(traced, axis_name=AXIS, devices=devices, **options)
        if not spans:
            return run
        everywhere = Mesh(np.array(devices), (AXIS,))
        if split is not None:
            run = _of_global_arrays(jitted, everywhere, axes, out_axes)
        else:
            specs = jax.tree.map(lambda a: WHOLE if a is None else a, out_axes, is_leaf=is_leaf)
            whole = on_each_device(lambda _, *args: traced(*args), AXIS, specs)
            jitted = mesh_jit(whole, everywhere, axes, out_axes, donate)
        return _Joined(run, jitted, axes, count)

    static = split is not None, tuple(devices) if mesh is None else mesh, donate, in_axes, out_axes, recomputes
    program = functools.partial(_on_device, fn, devices[0].platform, count, gathered)
    return Program(program, build, name=name, static=static, place=functools.partial(place_on, devices=devices))


def _on_device(fn: Callable[..., Any], platform: str, count: int, gathered: Any, *args: Any) -> Any:
    """Call a function on one of `count` devices of a platform; `gathered`: see `GATHERED`, None without it."""
    axis = AXIS if count > 1 else None
    # pmap runs on the first 3 of 4 devices, without an error, if the leading axis of all arguments has size 3
    if axis is not None and (size := jax.lax.axis_size(axis)) != count:
        raise ValueError(
            f"an argument has {size} slices along its leading device axis, but the program runs on {count} devices"
        )
    with traced_for(platform):
        result = fn(*args, axis_name=axis)
    if gathered is None:
        return result
    return _each(lambda x, a: jax.lax.all_gather(x, AXIS) if a == GATHERED else x, result, gathered)


_running = activity.Doing(activity.DEVICES, "running a program")


class _Joined:
    """A function for the devices of several processes.

    Args:
        run: from pmap, or from `_of_global_arrays`; it gets the arguments of this process, whose split axes have the slices of
            its own devices.
        jitted: the same function of global arrays, from jit, for `lower`, which pmap does not have for several processes.
        in_axes: one pytree prefix per argument.
        count: number of devices.
    """

    lowers_apart = True  # `lower` traces the function once more

    def __init__(self, run: Any, jitted: Any, in_axes: tuple[Any, ...], count: int) -> None:
        self._run, self._jitted, self._in_axes, self._count = run, jitted, in_axes, count

    def __call__(self, *args: Any) -> Any:
        activity.begin_together("a program of all processes")
        if activity.record.now.kind in (activity.COMPILING, activity.DEVICES):
            return self._run(*args)
        with _running:
            return self._run(*args)

    def lower(self, *args: Any) -> Any:
        """Lower the function; the arguments are those of a call in this process, with the slices of its own devices."""

        def of_all(x: Any, axis: Any) -> Any:
            shape = np.shape(x) if axis is None else (self._count, *np.shape(x)[1:])
            where = None if getattr(x, "is_fully_addressable", True) else x.sharding
            return jax.ShapeDtypeStruct(shape, x.dtype, weak_type=getattr(x, "weak_type", False), sharding=where)

        return self._jitted.lower(*(_each(of_all, arg, axes) for arg, axes in zip(args, self._in_axes, strict=True)))


def _of_global_arrays(jitted: Any, mesh: Mesh, in_axes: tuple[Any, ...], out_axes: Any) -> Callable[..., Any]:
    """Call a function of global arrays with those of this process: its own copies, or the slices of its own devices.

    Arrays that are split otherwise, those of the state, are global in all processes.
    """

    def own(x: jax.Array, axis: Any) -> jax.Array:
        is_own = axis is not None or x.is_fully_replicated
        return global_array_to_host_local_array(x, mesh, spec_of_axis(axis)) if is_own else x

    def run(*args: Any) -> Any:
        whole = [
            _each(lambda x, axis: host_local_array_to_global_array(x, mesh, spec_of_axis(axis)), arg, axes)
            for arg, axes in zip(args, in_axes, strict=True)
        ]
        return _each(own, jitted(*whole), out_axes)

    return run


def _each(fn: Callable[[Any, Any], Any], tree: Any, axes: Any) -> Any:
    """Map `fn(leaf, axis)` over a pytree; `axes` is a pytree prefix of axes (0 or None), as for pmap."""
    is_none = lambda a: a is None  # noqa: E731
    return jax.tree.map(lambda a, sub: jax.tree.map(lambda x: fn(x, a), sub), axes, tree, is_leaf=is_none)


def unchanged(x: Any, axis_name: str | None = None) -> Any:
    """Return the first argument, as a program that only gathers the arrays of all processes (see `GATHERED`) does."""
    return x


class Window:
    """Limits the number of dispatched calls that are not done to 16.

    At every 8th call, `push` returns an array of the call 8 before it, its fence, for which the caller then waits.

    Example:
        >>> window = Window()
        >>> [call for call in range(1, 33) if window.push(call) is not None]
        [16, 24, 32]
    """

    def __init__(self) -> None:
        self._count = 0
        self._fence: Any = None  # array of the last 8th call; it is ready when the call is done

    def push(self, fence: Any) -> Any | None:
        """Register a call.

        Args:
            fence: an array that is ready when the call is done, such as one of its results.

        Returns:
            At every 8th call, the fence of the call 8 before, for which the caller must wait; else, and at the first 8th, None.
        """
        self._count += 1
        if self._count % WAIT_EVERY:
            return None
        due, self._fence = self._fence, fence
        return due
