"""How the state of a data-parallel step is split over the devices: the pure functions behind `jfit.step.reduce.sharded`.

The arrays of the state have their natural shapes; a `PartitionSpec` per array says which of its axes is split over the devices
(ZeRO).  `jfit.parallel` compiles such a step with `jax.jit` for a mesh of the devices.  Inside the program, the function of one
device is mapped by `jax.vmap`: arrays that are equal on all devices are not mapped, so that the update is written as for one
device and XLA splits it as the state is.  The gradients are computed on each device (`on_each_device`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jax.sharding import AxisType, PartitionSpec

from jfit.optim.rows import SparseRows
from jfit.step.packed import joined_call, psum
from jfit.step.state import split_params

WHOLE = PartitionSpec()


def split_axis(shape: Sequence[int], count: int) -> int | None:
    """Return the first axis whose size `count` divides, along which an array is split over devices; None if there is none.

    Args:
        shape: shape of the array.
        count: number of devices.

    Example:
        >>> split_axis((10, 512), 8), split_axis((10,), 8)
        (1, None)
    """
    return next((axis for axis, size in enumerate(shape) if size and size % count == 0), None)


def like_params(state: Any, specs: Mapping[str, PartitionSpec]) -> Any:
    """Return how the arrays of a state are split if some of its parameters are.

    Args:
        state: `TrainState` of arrays, or of `jax.ShapeDtypeStruct`.
        specs: how parameters are split, by name; the others are whole on every device.

    Returns:
        `TrainState` of `PartitionSpec`: an array of the optimizer state that has the shape of its parameter is split as that;
        all other arrays are whole.
    """
    alone = next(iter(state.params)) if len(state.params) == 1 else ""  # a state of one array has no names

    def of(name: str, x: Any) -> PartitionSpec:
        return specs[name] if name in specs and x.shape == state.params[name].shape else WHOLE

    def of_slot(path: Any, x: Any) -> PartitionSpec:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey) and key.key in state.params]
        return of(names[-1] if names else alone, x)

    params = {name: of(name, x) for name, x in state.params.items()}
    opt_state = jax.tree_util.tree_map_with_path(of_slot, state.opt_state)
    return jax.tree.map(lambda _: WHOLE, state)._replace(params=params, opt_state=opt_state)


class Layout(NamedTuple):
    """How a step with reduce="sharded" or "sharded_parameters" splits its state.

    Attributes:
        axis_name: name of the device axis.
        specs: how the update of each trainable parameter is split, by name.
        keeps_params: whether the parameters stay split between two steps.
    """

    axis_name: str
    specs: dict[str, PartitionSpec]
    keeps_params: bool

    @classmethod
    def of(cls, step: Any, state: Any, axis_name: str, count: int) -> Layout:
        """Return how a step from `train_step` with a sharded rule splits the arrays of a state.

        Embedding tables with row-sparse gradients stay whole, with their optimizer state.

        Args:
            step: from `train_step`.
            state: `TrainState` of arrays, or of `jax.ShapeDtypeStruct`.
            axis_name: name of the device axis.
            count: number of devices.
        """
        trainable, _ = split_params(step.model, state.params, step.frozen)
        axes = {name: split_axis(w.shape, count) for name, w in trainable.items() if name not in step.model.tables}
        specs = {k: PartitionSpec(*[None] * axis, axis_name) for k, axis in axes.items() if axis is not None}
        return cls(axis_name, specs, step.reduce.sharded_parameters)

    def of_state(self, state: Any) -> Any:
        """Return the `PartitionSpec` of each array of a state between two steps."""
        result = like_params(state, self.specs)
        return result if self.keeps_params else result._replace(params=dict.fromkeys(state.params, WHOLE))

    def cut(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """Let each device compute its part of these arrays, parameters or arrays like them, in a traced function."""
        return {k: lax.with_sharding_constraint(x, self.specs.get(k, WHOLE)) for k, x in params.items()}

    def constrained(self, state: Any) -> Any:
        """Split the arrays of a state, in a traced function."""
        shared = state._replace(local=None)
        split = jax.tree.map(lax.with_sharding_constraint, shared, self.of_state(shared))
        return split._replace(local=state.local)

    def scattered(self, gradients: Mapping[str, Any], sums: Any) -> tuple[dict[str, Any], Any]:
        """Sum gradients over devices, of which this device keeps its part: one reduce-scatter per dtype.

        Args:
            gradients: gradients of this device by name; `SparseRows` are gathered from all devices instead.
            sums: pytree of further sums, added over devices together with the gradients of parameters that are not split.
        """
        count, moved, shapes = lax.axis_size(self.axis_name), {}, {}
        for name, spec in self.specs.items():
            x = jax.numpy.moveaxis(gradients[name], len(spec) - 1, 0)
            moved[name], shapes[name] = x.reshape(count, -1), (x.shape[0] // count, *x.shape[1:])
        rows = {k: g.gathered(self.axis_name) for k, g in gradients.items() if isinstance(g, SparseRows)}
        whole = {k: g for k, g in gradients.items() if k not in moved and k not in rows}
        whole, sums = psum((whole, sums), self.axis_name)
        parts = joined_call(lambda x: lax.psum_scatter(x, self.axis_name, scatter_dimension=0)[None], moved)
        parts = {k: jax.numpy.moveaxis(x.reshape(shapes[k]), 0, len(self.specs[k]) - 1) for k, x in parts.items()}
        return {k: (parts | rows | whole)[k] for k in gradients}, sums


def mesh_size(axis_name: Any) -> int:
    """Return the number of devices over which XLA splits this program along the device axis; 1 within pmap or shard_map."""
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh.shape[axis_name] if types.get(axis_name) == AxisType.Auto else 1


def on_each_device(fn: Callable[..., Any], axis_name: str, out_specs: Any) -> Callable[..., Any]:
    """Make a function that each device runs on its own part, within `jax.vmap` over the device axis.

    Without it, XLA would split the mapped function operation by operation.

    Args:
        fn: function of one device, `fn(split, *args)`.  With split=True it returns the part that this device has of each result
            that is split; with split=False whole results, which are only used for their shapes.
        axis_name: name of the device axis.
        out_specs: pytree prefix of the result: a `PartitionSpec` for arrays that all devices have together, 0 for an array of
            each device.

    Returns:
        Function of the arguments after `split`.
    """

    @jax.custom_batching.custom_vmap
    def call(*args: Any) -> Any:
        return fn(False, *args)

    @call.def_vmap
    def over_devices(_: int, is_mapped: Any, *args: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
        def one(*args: Any) -> Any:
            parts = jax.tree.map(lambda mapped, x: x[0] if mapped else x, tuple(is_mapped), args)
            result = fn(True, *parts)
            return jax.tree.map(
                lambda spec, tree: jax.tree.map(lambda x: x[None], tree) if spec == 0 else tree, out_specs, result
            )

        axis = PartitionSpec(axis_name)
        in_specs = jax.tree.map(lambda mapped: axis if mapped else WHOLE, tuple(is_mapped))
        specs = jax.tree.map(lambda spec: axis if spec == 0 else spec, out_specs)
        # With check_vma=True, shard_map would psum the gradients of whole parameters a second time.
        result = jax.shard_map(one, in_specs=in_specs, out_specs=specs, check_vma=False)(*args)
        return result, jax.tree.map(lambda spec, tree: jax.tree.map(lambda _: spec == 0, tree), out_specs, result)

    return call
