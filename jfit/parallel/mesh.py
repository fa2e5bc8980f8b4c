"""Parameters split over the axes of a named mesh (tensor parallelism): programs of one device that XLA splits over the devices.

The functions are those of one device, without a device axis; jit compiles them with the shardings of the state, and XLA inserts
the collectives.  `MeshDevices` takes the place of a list of devices in placement (`jfit.parallel.devices`) and compilation
(`jfit.parallel.spmd`), and `on_mesh` splits the rows of a batch inside a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jfit.checks import matching
from jfit.lowering.model import Model
from jfit.parallel.contexts import Device, resolve
from jfit.programs import Made
from jfit.step.layout import Layout, like_params
from jfit.step.reduce import all_reduce
from jfit.step.reduce import get as get_reduce
from jfit.step.state import TrainState

ROWS = "data"  # name of the mesh axis over which the rows of a batch are split
AXIS = "devices"  # name of the device axis inside a step, and of the mesh axis of `SplitDevices`


class MeshDevices(list[Device]):
    """The devices of a mesh, for programs that are written for one device: as a list it has the first device only.

    Args:
        mesh: the mesh.
        specs: parameter name -> how it is split; parameters that are not in it are replicated.
        state: the `TrainState` of the run, with whole arrays, of which shapes are used.

    Attributes:
        mesh: the mesh, with axes of type Auto.
        specs: parameter name -> `PartitionSpec`.
        state: `TrainState` of `NamedSharding`s: parameters by `specs`, optimizer state as its parameter, the rest replicated.
        parts: number of parts of the rows of a batch, the size of the axis "data".
        replicated: sharding of arrays of which every device has a copy.

    Example:
        >>> import jax, jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda p, x: x @ p["w"], loss=jnp.subtract, params={"w": jnp.ones((4, 2))})
        >>> mesh, state = mesh_of({"model": 1}), jfit.init_state(model, "adam")
        >>> devices = MeshDevices(mesh, {"w": PartitionSpec("model")}, state)
        >>> len(devices), tuple(devices.state.opt_state.inner[0].mu["w"].spec)
        (1, ('model',))
    """

    def __init__(self, mesh: Mesh, specs: Mapping[str, PartitionSpec], state: TrainState) -> None:
        super().__init__([mesh.devices.flat[0]])
        self.mesh, self.specs = mesh, dict(specs)
        self.parts, self.replicated = mesh.shape.get(ROWS, 1), NamedSharding(mesh, PartitionSpec())
        self._shapes = {name: np.shape(x) for name, x in state.params.items()}
        self.state = self.shardings(state)

    def shardings(self, state: TrainState) -> TrainState:
        """Return the sharding of each array of a state: of parameters, of optimizer state like a parameter, and of the rest."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), like_params(state, self.specs))

    @property
    def program_key(self) -> Any:
        """What programs depend on, see `jfit.programs.key_of`."""
        mesh = self.mesh.axis_names, self.mesh.devices.shape, tuple(self.mesh.devices.flat)
        return mesh, tuple(sorted((name, tuple(spec)) for name, spec in self.specs.items()))

    def jit(self, fn: Callable[..., Any], in_axes: Sequence[Any], out_axes: Any, donate: tuple[int, ...]) -> Any:
        """Compile a function for the mesh, with the axes of `jfit.parallel.compile_spmd`.

        A `TrainState` has the shardings of `state`, before and after.  Other results are replicated if their axis is None; XLA
        decides about results with rows (axis 0), and about arguments that are not on the devices yet.
        """

        def of_result(axes: Any) -> Any:
            return self.state if isinstance(axes, TrainState) else self.replicated if axes is None else None

        is_leaf = lambda axes: axes is None or isinstance(axes, TrainState)  # noqa: E731
        arguments = tuple([self.state if isinstance(axes, TrainState) else None for axes in in_axes])
        results = jax.tree.map(of_result, out_axes, is_leaf=is_leaf)
        return jax.jit(fn, in_shardings=arguments, out_shardings=results, donate_argnums=donate)

    def split_rows(self, inputs: Mapping[str, Any], axes: Mapping[str, int]) -> dict[str, Any]:
        """Split the rows of a batch over the axis "data" in a traced function, if they divide by its size.

        Args:
            inputs: arrays by name.
            axes: input name -> batch axis, for inputs whose batch axis is not 0.
        """

        def split(x: Any, axis: int | None) -> Any:
            if self.parts == 1 or axis is None or np.ndim(x) <= axis or x.shape[axis] % self.parts:
                return x
            return lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*[None] * axis, ROWS)))

        return {k: split(v, axes.get(k, 0)) for k, v in inputs.items()}

    def split_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Constrain traced parameters, and so their gradients, to their shardings; tables cut to the rows of a batch stay."""
        whole = {k: v for k, v in params.items() if k in self.specs and v.shape == self._shapes[k]}
        return {**params, **{k: lax.with_sharding_constraint(v, self.state.params[k]) for k, v in whole.items()}}


class SplitDevices(list[Device]):
    """Devices of data-parallel training with reduce="sharded" or "sharded_parameters", over which the state is split.

    Programs of a `TrainState` are compiled by jit for a mesh of these devices; all others are those of a list of devices.

    Args:
        devices: list of `jax.Device`, in a job of several processes those of all, by rank.
        step: from `train_step`; it decides how its state is split.

    Attributes:
        mesh: the mesh, with the one axis "devices".

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda p, x: x @ p["w"], loss=jnp.subtract, params={"w": jnp.ones((4, 2))})
        >>> devices = SplitDevices(jax.devices()[:1], jfit.train_step(model, "adam", reduce="sharded"))
        >>> tuple(devices.shardings(jfit.init_state(model, "adam")).opt_state.inner[0].mu["w"].spec)
        ('devices',)
    """

    def __init__(self, devices: Sequence[Device], step: Any) -> None:
        super().__init__(devices)
        self.mesh, self._step = Mesh(np.array(devices), (AXIS,)), step

    def shardings(self, state: TrainState) -> TrainState:
        """Return the sharding of each array of a state but `local`."""
        specs = Layout.of(self._step, state, AXIS, len(self)).of_state(state._replace(local=None))
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)


def mesh_jit(fn: Callable[..., Any], mesh: Mesh, in_axes: Sequence[Any], out_axes: Any, donate: tuple[int, ...]) -> Any:
    """Compile a function of one device with `jax.jit` for all devices of a mesh, mapped by `jax.vmap(axis_name="devices")`.

    Arrays with axis None are not mapped: they keep their shapes and shardings.  What is computed from them alone is computed
    once, for all devices, and XLA splits it as the arrays are split.

    Args:
        fn: function of one device, in which "devices" is the name of the device axis.
        mesh: the mesh.
        in_axes, out_axes, donate: as for `jfit.parallel.compile_spmd`.

    Returns:
        The jitted function.  A `TrainState` keeps the shardings of its arrays; `fn` and XLA choose those of a returned one.
    """

    def mapped(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return jax.vmap(fn, tuple(in_axes), out_axes, axis_name=AXIS, axis_size=mesh.size)(*args)

    def shardings(axes: Any) -> Any:
        where = lambda a: None if isinstance(a, TrainState) else NamedSharding(mesh, spec_of_axis(a))  # noqa: E731
        return jax.tree.map(where, axes, is_leaf=lambda a: a is None or isinstance(a, TrainState))

    options: Any = {"in_shardings": shardings(tuple(in_axes)), "out_shardings": shardings(out_axes)}
    return jax.jit(mapped, **options, donate_argnums=donate)


def spec_of_axis(axis: int | None) -> PartitionSpec:
    """Return the `PartitionSpec` of an entry of `in_axes`: 0, the leading axis is split over the devices; None, replicated."""
    return PartitionSpec() if axis is None else PartitionSpec(AXIS)


def split_devices(devices: list[Device], step: Any) -> list[Device]:
    """Return `SplitDevices` if a step splits its state over several devices, else the devices themselves."""
    rule = getattr(step, "reduce", None)
    return SplitDevices(devices, step) if rule is not None and rule.sharded and len(devices) > 1 else devices


def on_mesh(model: Model, devices: Sequence[Device]) -> Model:
    """Make a model for programs on a mesh: the rows of a batch are split over the axis "data", parameters as in the state.

    Args:
        model: the model.
        devices: list of `jax.Device`, or `MeshDevices`.

    Returns:
        `Model` with the same numbers; the argument itself if `devices` is a list of devices.
    """
    if not isinstance(devices, MeshDevices):
        return model
    apply, bind, axes = model.apply, model.bind, model.batch_axes

    def apply_split(params: Any, aux: Any, inputs: Any, **options: Any) -> Any:
        return apply(devices.split_params(params), aux, devices.split_rows(inputs, axes), **options)

    # a model of a function gets its apply when the names of its outputs are known
    bound = None if bind is None else lambda _, specs: on_mesh(bind(model, specs), devices)
    return model._replace(apply=cast(Any, Made(apply_split, "mesh", apply, devices, axes)), bind=bound)


# ------------------------------------------------------------------------------------------------ arguments of fit
def mesh_of(mesh: Any, shard: Mapping[str, Any] | None = None, devices: Any = None, reduce: Any = None) -> Mesh:
    """Make the mesh from the arguments `mesh`, `shard`, `devices` and `reduce` of `jfit.fit`.

    Args:
        mesh: `jax.sharding.Mesh`; dict axis name -> size; or None for all devices along the axis that `shard` names.
        shard: see `jfit.fit`.
        devices: devices of the mesh if `mesh` is not a `Mesh`; None: all local devices that it needs.
        reduce: must be None or "psum".

    Returns:
        `jax.sharding.Mesh` with axes of type Auto.

    Raises:
        NotImplementedError: this process is one of several.
        ValueError: arguments that cannot be combined, or a mesh without devices or with too many.

    Example:
        >>> dict(mesh_of({"data": 1, "model": 1}).shape)
        {'data': 1, 'model': 1}
    """
    if jax.process_count() > 1:
        raise NotImplementedError(
            f"mesh= and shard= do not support jobs of {jax.process_count()} processes; pass reduce='sharded_parameters'"
        )
    if get_reduce(reduce) != all_reduce() or (isinstance(mesh, Mesh) and devices is not None):
        passed = f"{'shard' if mesh is None else 'mesh'}= is passed with reduce={reduce!r} and devices={devices!r}"
        raise ValueError(f"{passed}, but a mesh has its devices, and on a mesh XLA inserts the sums; leave these out")
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    sizes = {_only_axis(shard or {}): len(resolve("all" if devices is None else devices))} if mesh is None else mesh
    chosen, shape = resolve(math.prod(sizes.values()) if devices is None else devices), tuple(sizes.values())
    return Mesh(np.array(chosen).reshape(shape), tuple(sizes), axis_types=(AxisType.Auto,) * len(shape))


def _only_axis(shard: Mapping[str, Any]) -> str:
    """The axis that `shard` names, if it is only one."""
    names = {name for spec in shard.values() for name in _axes_of(_spec_of(spec))}
    if len(names) != 1:
        found = f"the axes {sorted(names)}" if names else "no axis"
        raise ValueError(f"shard= names {found}, so the mesh cannot be made without mesh=; pass the sizes of its axes")
    return names.pop()


def _spec_of(spec: Any) -> PartitionSpec:
    """Convert a value of the mapping `shard` to a `PartitionSpec`; a name or None alone is that of the first dimension."""
    dims = (spec,) if spec is None or isinstance(spec, str) else spec
    return PartitionSpec(*[tuple(d) if isinstance(d, list) else d for d in dims])


def _axes_of(spec: PartitionSpec) -> set[str]:
    """The names of the axes in a spec."""
    return {name for d in spec if d is not None for name in ((d,) if isinstance(d, str) else d)}


def mesh_devices(mesh: Mesh, shard: Mapping[str, Any] | None, state: TrainState, rows: Mapping[str, int]) -> MeshDevices:
    """Check `shard` against the mesh and the parameters, and make the devices of a run.

    Args:
        mesh: result of `mesh_of`.
        shard: name or glob pattern of parameters -> axis names by dimension; a later pattern replaces an earlier one.
        state: the initial `TrainState`.
        rows: what must be divisible by the size of the axis "data": description -> number of rows.

    Returns:
        `MeshDevices`.

    Raises:
        ValueError: a pattern matches no parameter; an axis is not in the mesh, or is used for nothing or twice; a parameter has
            too few dimensions, or one that does not divide by the devices along its axes; or rows that do not divide.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda p, x: x @ p["w"], loss=jnp.subtract, params={"w": jnp.ones((4, 2))})
        >>> tuple(mesh_devices(mesh_of({"m": 1}), {"w": (None, "m")}, jfit.init_state(model), {}).specs["w"])
        (None, 'm')
    """
    specs: dict[str, PartitionSpec] = {}
    for pattern, spec in (shard or {}).items():
        for name in matching(pattern, list(state.params), f"shard has {pattern!r}, which matches no parameter"):
            specs[name] = _checked_spec(pattern, spec, name, np.shape(state.params[name]), mesh)
    used = {ROWS}.union(*map(_axes_of, specs.values()))
    for axis, size in mesh.shape.items():
        if axis not in used and size > 1:
            raise ValueError(
                f"no parameter is split over axis {axis!r} of the mesh, of size {size}; use it in shard=, or leave it out"
            )
    parts = mesh.shape.get(ROWS, 1)
    for what, count in rows.items():
        if count % parts:
            raise ValueError(f"{what} has {count} rows, which do not divide by the axis {ROWS!r} of the mesh, of size {parts}")
    return MeshDevices(mesh, specs, state)


def _checked_spec(pattern: str, spec: Any, name: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Return the `PartitionSpec` of a parameter; raise a ValueError if JAX cannot split an array of this shape so."""
    try:
        result = _spec_of(spec)
        sharding = NamedSharding(mesh, result)
        sharding.check_compatible_aval(shape)
        sharding.shard_shape(shape)
        return result
    except Exception as error:  # JAX has several types for it
        raise ValueError(f"shard[{pattern!r}] cannot split {name!r} of shape {shape}: {error}") from None
