"""Optimizer state and parameters split over devices (ZeRO): the pure functions behind `jfit.step.reduce.sharded`.

Every trainable parameter with at least one axis is flattened, padded with zeros and cut into N equal chunks, one per device.
A device receives the summed gradients of its chunks (reduce-scatter), updates these chunks with its part of the optimizer
state, and sends the new values to the others (all-gather).  Scalars, and embedding tables with row-sparse gradients, are
updated on all devices.

In a `TrainState`, an array of the optimizer state that is split is a `Shard` in `opt_state`, which has no array, and its chunks
are an array (devices, chunk) in `local`.  With `sharded_parameters` (ZeRO-3), this holds for `params`, too, which are gathered
when they are used (see `jfit.step.gathered`).  `whole_state` converts such a state to the ordinary one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.optim.core import wide
from jfit.optim.rows import SparseRows
from jfit.step.packed import joined_call, psum

State = TypeVar("State")  # a TrainState; its file imports this one


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Shard:
    """Placeholder for an array of the optimizer state whose chunks are in `TrainState.local`; a pytree without leaves.

    Attributes:
        index: position of the chunks in `TrainState.local`, a tuple of arrays (devices, chunk).
        shape: shape of the whole array.
        dtype: its dtype, a string.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def is_split(x: Any) -> bool:
    """Return whether a parameter or its dense gradient is cut into chunks; scalars and row-sparse gradients are not."""
    return not isinstance(x, SparseRows) and x.ndim > 0 and x.size > 0


def split_names(trainable: Mapping[str, Any], tables: Collection[str]) -> set[str]:
    """Names of the parameters that `sharded_parameters` splits.

    Args:
        trainable: trainable parameters by name, or their chunks.
        tables: names of the embedding tables with row-sparse gradients.
    """
    return {k for k, w in trainable.items() if is_split(w) and k not in tables}


def chunk_shape(shape: Sequence[int], count: int) -> tuple[int, ...]:
    """Shape of one of `count` chunks: (1, ..., 1, n), with as many axes as the whole array.

    Optimizers may treat matrices and vectors differently (weight decay of matrices only), so the number of axes is kept.

    Args:
        shape: shape of the whole array, not empty.
        count: number of chunks.

    Example:
        >>> chunk_shape((3, 5), 4)
        (1, 4)
    """
    return (*(1,) * (len(shape) - 1), -(-math.prod(shape) // count))


def rows_of_chunks(x: Any, count: int) -> Any:
    """Flatten, pad with zeros and cut: (...) -> (count, chunk); NumPy arrays stay NumPy arrays."""
    lib = np if isinstance(x, np.ndarray) else jnp
    size = -(-x.size // count)
    return lib.pad(x.reshape(-1), (0, size * count - x.size)).reshape(count, size)


def from_chunks(chunks: Any, shape: tuple[int, ...]) -> Any:
    """Inverse of `rows_of_chunks`."""
    return chunks.reshape(-1)[: math.prod(shape)].reshape(shape)


# ------------------------------------------------------------------------------------------------ inside a step
def reduce_scattered(gradients: Mapping[str, Any], sums: Any, axis_name: str) -> tuple[dict[str, Any], Any]:
    """Sum gradients over devices, and keep the chunks of this device: one reduce-scatter per dtype.

    Args:
        gradients: gradients of this device by name; `SparseRows` are gathered from all devices instead.
        sums: pytree of further sums, added over devices together with the gradients of scalars.
        axis_name: name of the device axis.

    Returns:
        (gradients, sums).  Gradients of parameters with axes have the shape `chunk_shape(shape, devices)`.
    """
    count = lax.axis_size(axis_name)
    split = {k: g for k, g in gradients.items() if is_split(g)}
    rows = {k: g.gathered(axis_name) for k, g in gradients.items() if isinstance(g, SparseRows)}
    scalars = {k: g for k, g in gradients.items() if k not in split and k not in rows}
    scalars, sums = psum((scalars, sums), axis_name)
    parts = {k: rows_of_chunks(g, count) for k, g in split.items()}
    chunks = joined_call(lambda x: lax.psum_scatter(x, axis_name, scatter_dimension=0)[None], parts)
    chunks = {k: chunk.reshape(chunk_shape(split[k].shape, count)) for k, chunk in chunks.items()}
    return {k: (chunks | rows | scalars)[k] for k in gradients}, sums


class Split(NamedTuple):
    """The chunks of this device, inside a step.

    Attributes:
        axis_name: name of the device axis.
        shapes: name -> shape, of the parameters that are cut into chunks.
        others: names of the other trainable parameters.
    """

    axis_name: str
    shapes: dict[str, tuple[int, ...]]
    others: frozenset[str]

    def complete(self, trainable: Mapping[str, Array], gradients: Mapping[str, Any]) -> Split:
        """Add the trainable parameters that are whole in the state, but have gradients from `reduce_scattered`."""
        more = {k: w.shape for k, w in trainable.items() if is_split(w) and not isinstance(gradients[k], SparseRows)}
        shapes = {**more, **self.shapes}
        return Split(self.axis_name, shapes, frozenset(trainable) - frozenset(shapes))

    @property
    def count(self) -> int:
        """Number of devices."""
        return lax.axis_size(self.axis_name)

    def cut(self, tree: Mapping[str, Array]) -> dict[str, Array]:
        """Replace whole arrays by the chunks of this device."""
        number = lax.axis_index(self.axis_name)

        def chunk(x: Array) -> Array:
            rows = rows_of_chunks(x, self.count)
            return lax.dynamic_index_in_dim(rows, number, keepdims=False).reshape(chunk_shape(x.shape, self.count))

        return {k: chunk(x) if k in self.shapes else x for k, x in tree.items()}

    def gathered(self, tree: Mapping[str, Array]) -> dict[str, Array]:
        """Inverse of `cut`: one all-gather per dtype."""
        parts = {k: x.reshape(1, -1) for k, x in tree.items() if k in self.shapes}
        rows = joined_call(lambda x: lax.all_gather(x[0], self.axis_name), parts)
        return {k: from_chunks(rows[k], self.shapes[k]) if k in rows else x for k, x in tree.items()}

    def check_params(self, names: Collection[str]) -> None:
        """Raise a ValueError if the parameters that are split in a state are not those in `names`."""
        for name in sorted(self.shapes.keys() ^ set(names)):
            whole, split = "whole", "split over devices"
            actual, expected = (split, whole) if name in self.shapes else (whole, split)
            raise ValueError(
                f"the parameter {name!r} is {actual} in the state, but this step needs it {expected}; call "
                "state = step.place(state) before the first step, where step is the result of jfit.data_parallel(...)"
            )

    def check_state(self, opt_state: Any) -> None:
        """Raise a ValueError if arrays of an optimizer state have the shapes of whole matrices, and none those of chunks."""
        chunks = {chunk_shape(shape, self.count) for shape in self.shapes.values()}
        whole = {shape: name for name, shape in self.shapes.items() if len(shape) > 1 and shape not in chunks}
        shapes = {x.shape for x in jax.tree.leaves(opt_state)}
        if shapes & set(whole) and not shapes & chunks:
            raise self._not_split(whole[min(shapes & set(whole))])

    def check_chunks(self, tree: Mapping[str, Array]) -> None:
        """Raise a ValueError if new values of parameters are not chunks: a whole optimizer state has broadcast them."""
        for name, shape in self.shapes.items():
            if tree[name].shape != chunk_shape(shape, self.count):
                raise self._not_split(name)

    def _not_split(self, name: str) -> ValueError:
        return ValueError(
            f"the optimizer state of {name!r} is whole, but with reduce='sharded' each of {self.count} devices has a part of "
            "it; call state = step.place(state) before the first step, where step is the result of jfit.data_parallel(...)"
        )

    def whole_sum(self, name: str, x: Array) -> Array:
        """Sum of an array like parameter `name`, over its chunks on all devices; scalar."""
        if name not in self.shapes:
            check_name(name, self.others)
            return jnp.sum(x)
        size, chunk = math.prod(self.shapes[name]), x.size
        if chunk * self.count != size:  # the values of the padding are not always 0
            index = lax.axis_index(self.axis_name) * chunk + jnp.arange(chunk)
            x = jnp.where((index < size).reshape(x.shape), x, 0)
        return lax.psum(jnp.sum(x), self.axis_name)

    def norm(self, gradients: Mapping[str, Array]) -> Array:
        """Global L2 norm of gradients; float32 scalar."""
        squares = {k: jnp.sum(jnp.square(wide(g))) for k, g in gradients.items()}
        parts = lax.psum(sum((x for k, x in squares.items() if k in self.shapes), jnp.zeros(())), self.axis_name)
        return jnp.sqrt(parts + sum(x for k, x in squares.items() if k not in self.shapes))


def check_name(name: str, names: frozenset[str] | set[str]) -> None:
    """Raise an error if an update rule that sums over a whole parameter calls it by another name than the model.

    Args:
        name: name of the parameter in the rule.
        names: names of the trainable parameters.

    Raises:
        ValueError: unknown name.
    """
    if name not in names:
        raise ValueError(
            f"reduce='sharded': the optimizer needs the norm of a whole parameter and calls it {name!r}, but the parameters of "
            f"the model are {sorted(names)[:10]}, so its chunks cannot be found; pass the jfit optimizer itself instead of an "
            "optax transformation that contains it, or reduce='psum'"
        )


def check_whole(state: State) -> State:
    """Return a state for a step that does not split it.

    Args:
        state: `TrainState`.

    Raises:
        ValueError: it is split.
    """
    if is_sharded(state):
        raise ValueError(
            "the state is split over devices by reduce='sharded', but this step needs whole arrays; before the first step, "
            "call step.place(state), where step is the result of jfit.data_parallel(...), or "
            "jfit.step.sharded.whole_state(state)"
        )
    return state


def joined(state: Any, axis_name: str) -> tuple[Any, Split]:
    """Replace the `Shard`s of a state, placeholders of arrays that are split over devices, by the chunks of this device.

    A step calls this inside the function that is mapped over the devices; `parted` is the inverse.

    Args:
        state: `TrainState` of one device; `state.local` has the chunks of this device, arrays (chunk,).
        axis_name: name of the device axis.

    Returns:
        (`TrainState` with local=None, in which each split array is its chunk of shape (1, ..., 1, chunk), with as many axes as
        the whole array; the `Split`, which has the names and whole shapes of the split parameters).
    """

    def chunk(x: Any) -> Any:
        return state.local[x.index].reshape((*(1,) * (len(x.shape) - 1), -1)) if isinstance(x, Shard) else x

    opt_state, params = jax.tree.map(chunk, (state.opt_state, state.params), is_leaf=_is_shard)
    shapes = {k: x.shape for k, x in state.params.items() if isinstance(x, Shard)}
    split = Split(axis_name, shapes, frozenset(params) - frozenset(shapes))
    return state._replace(opt_state=opt_state, params=params, local=None), split


def parted(state: Any, like: Any) -> Any:
    """Move the chunks of this device to `local`: the inverse of `joined`.

    Args:
        state: result of a step on a joined state.
        like: the `TrainState` that was joined.
    """
    marks, tree = jax.tree.flatten((like.opt_state, like.params), is_leaf=_is_shard)
    leaves = tree.flatten_up_to((state.opt_state, state.params))
    chunks = {m.index: x.reshape(-1) for m, x in zip(marks, leaves, strict=True) if isinstance(m, Shard)}
    opt_state, params = tree.unflatten(m if isinstance(m, Shard) else x for m, x in zip(marks, leaves, strict=True))
    return state._replace(opt_state=opt_state, params=params, local=tuple(chunks[i] for i in range(len(chunks))) or None)


# ------------------------------------------------------------------------------------------------ between steps
def whole_params(state: Any) -> dict[str, Any]:
    """Whole parameters by name: those that are split are gathered, so that every device of the state has a full copy."""
    params = whole_leaves(state.params, state.local)
    return {k: jax.device_put(params[k], state.step.sharding) if _is_shard(x) else x for k, x in state.params.items()}


def _is_shard(x: Any) -> bool:
    return isinstance(x, Shard)


def is_sharded(state: Any) -> bool:
    """Return whether the optimizer state, or the parameters, of a `TrainState` are split over devices."""
    return any(map(_is_shard, jax.tree.leaves((state.opt_state, state.params), is_leaf=_is_shard)))


def whole_leaves(tree: Any, local: Any) -> Any:
    """Replace each `Shard` in a pytree by the whole array, of the kind of the arrays in `local`, NumPy or JAX.

    Args:
        tree: `TrainState.opt_state` or `TrainState.params`, or a part of it.
        local: `TrainState.local` of the same state, arrays (devices, chunk).
    """
    return jax.tree.map(lambda x: from_chunks(local[x.index], x.shape) if _is_shard(x) else x, tree, is_leaf=_is_shard)


def whole_state(state: State) -> State:
    """Convert a `TrainState` with split arrays to the ordinary one, in which all arrays have their natural shapes.

    Args:
        state: `TrainState` of NumPy or JAX arrays.

    Returns:
        `TrainState` as with `reduce="psum"`; the argument itself if nothing is split.

    Example:
        >>> import jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(3)})
        >>> state = jfit.init_state(model, "adam")
        >>> split = sharded_state(state, [state.opt_state.slots["mean"]["w"] is x for x in jax.tree.leaves(state.opt_state)], 2)
        >>> split.local[0].shape, whole_state(split).opt_state.slots["mean"]["w"].shape
        ((2, 2), (3,))
    """
    old: Any = state
    if not is_sharded(old):
        return state
    opt_state, params = whole_leaves((old.opt_state, old.params), old.local)
    return old._replace(opt_state=opt_state, params=params, local=None)


def whole_specs(state: State) -> State:
    """As `whole_state`, but with `jax.ShapeDtypeStruct` in place of the arrays that are split."""
    old: Any = state
    if not is_sharded(old):
        return state
    spec = lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(x.dtype)) if _is_shard(x) else x  # noqa: E731
    opt_state, params = jax.tree.map(spec, (old.opt_state, old.params), is_leaf=_is_shard)
    return old._replace(opt_state=opt_state, params=params, local=None)


def sharded_state(state: State, split: Sequence[bool], count: int, params: Collection[str] = ()) -> State:
    """Split arrays of a state into chunks; the inverse of `whole_state`.

    Args:
        state: `TrainState` with the natural shapes.
        split: for each leaf of `state.opt_state`, whether it is split.
        count: number of devices.
        params: names of the parameters that are split.

    Returns:
        `TrainState` whose `local` is a tuple of NumPy arrays (devices, chunk); the other arrays are not copied.
    """
    old: Any = state
    leaves, tree = jax.tree.flatten(old.opt_state)
    local: list[Any] = []

    def placeholder(x: Any) -> Shard:
        local.append(rows_of_chunks(np.asarray(x), count))
        return Shard(len(local) - 1, tuple(x.shape), str(x.dtype))

    opt_state = tree.unflatten(placeholder(x) if is_chunked else x for x, is_chunked in zip(leaves, split, strict=True))
    new_params = {k: placeholder(x) if k in params else x for k, x in old.params.items()}
    return old._replace(opt_state=opt_state, params=new_params, local=tuple(local) or None)


def sharded_like(state: State, like: Any, count: int | None = None) -> State:
    """Split a state as another state is split.

    Args:
        state: `TrainState` with the natural shapes.
        like: `TrainState` of the same optimizer on the devices.
        count: number of devices; None: as many as `like` has chunks.

    Returns:
        `TrainState`; the argument itself if `like` is not split.
    """
    if not is_sharded(like):
        return state
    marks = jax.tree.leaves(like.opt_state, is_leaf=_is_shard)
    names = {k for k, x in like.params.items() if _is_shard(x)}
    return sharded_state(state, [*map(_is_shard, marks)], count or len(like.local[0]), names)
