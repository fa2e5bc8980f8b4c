"""Sums over the processes of a job between the programs of its processes, as the `dist` stores of MXNet compute them.

Each process (a worker) runs programs on its own devices, for its own rows.  Between two of them one program adds arrays of all
processes, on the first device of each.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.distributed import exchange, num_processes, rank
from jfit.optim.rows import SparseRows, is_rows
from jfit.parallel.contexts import Device, across
from jfit.parallel.spmd import compile_spmd
from jfit.step.reduce import Reduce, all_reduce


class ProcessSums:
    """Reduce gradients over the processes of a job, and average other arrays, in one program.

    Args:
        rule: how gradients are reduced, a `jfit.step.reduce.Reduce`, such as `two_bit()`; None: they are summed.  Each process
            keeps the state of the rule, such as the residuals of its gradients.
        params: arrays of the shapes of the gradients by name, for the state of `rule`.

    Example:
        >>> sums = ProcessSums()
        >>> gradients, means = sums({"w": jnp.ones(2)}, {"moving_mean": jnp.ones(1)})
        >>> gradients["w"].tolist(), means["moving_mean"].tolist()
        ([1.0, 1.0], [1.0])
    """

    def __init__(self, rule: Reduce | None = None, params: Mapping[str, Any] | None = None) -> None:
        self._rule = rule or all_reduce()
        self._local: Any = self._rule.init(jax.tree.map(jnp.asarray, dict(params or {})))
        self._local = self._local and self._leading(jax.device_put(self._local, _home()))

    def __call__(self, gradients: Mapping[str, Any], means: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reduce gradients, and average other arrays, over all processes; all processes call it in the same order.

        Args:
            gradients: gradients of this process by name, arrays or `SparseRows`.
            means: arrays by name, of the same shapes in all processes.

        Returns:
            (reduced gradients, means), the same in all processes, on their first devices.
        """
        gradients = _equal_rows(dict(gradients))
        local = self._local and {name: self._local[name] for name in gradients}
        args = self._leading(_at_home((gradients, dict(means))))
        gradients, averaged, local = _program(self._rule, _devices())(*args, local)
        if local:
            self._local = {**self._local, **local}
        # the type of sharding that programs for one device return: another one would compile them again
        return jax.tree.map(lambda x: x.addressable_data(0), (gradients, averaged))

    def _leading(self, tree: Any) -> Any:
        return _with_axis(tree) if num_processes() > 1 else tree


def sum_over_processes(values: Sequence[Any]) -> list[Any]:
    """Sum arrays over the processes of the job; all processes call it in the same order, with arrays of the same shapes.

    Args:
        values: arrays.  Those of 64 bits in NumPy are added on the host.

    Returns:
        The sums, the same in all processes: jax.Arrays on the first device; NumPy arrays for NumPy arrays of 64 bits.

    Example:
        >>> [total.tolist() for total in sum_over_processes([np.ones(2)])]
        [[1.0, 1.0]]
    """
    totals: dict[str, Any] = {}
    names = {f"{i:09}": v for i, v in enumerate(values)}
    for name, v in names.items():
        if not isinstance(v, jax.Array) and jax.dtypes.canonicalize_dtype(v.dtype) != v.dtype:
            parts = exchange(np.ascontiguousarray(v).tobytes(), "sums of NumPy arrays")
            arrays = [np.frombuffer(part, v.dtype).reshape(v.shape) for part in parts]
            totals[name] = functools.reduce(np.add, arrays[1:], arrays[0].copy())
    if narrow := {name: jnp.asarray(v) for name, v in names.items() if name not in totals}:
        totals |= ProcessSums()(narrow, {})[0]
    return [totals[name] for name in names]


def from_main(arrays: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Replace arrays by those of rank 0, through the host; all processes call it with the same names and shapes.

    Args:
        arrays: arrays by name.
        what: what they are, for messages.

    Returns:
        The arrays themselves in rank 0, and copies of its arrays (NumPy) in the others.

    Raises:
        ValueError: a process has other names, shapes or dtypes.

    Example:
        >>> from_main({"w": np.ones(2)}, "parameters")["w"].tolist()
        [1.0, 1.0]
    """
    if num_processes() == 1:
        return dict(arrays)
    check_same([[name, list(np.shape(v)), str(v.dtype)] for name, v in arrays.items()], what)
    host = counters.read(dict(arrays)) if rank() == 0 else {}  # sync: once, before training
    sent = exchange(b"".join(np.ascontiguousarray(v).tobytes() for v in host.values()), what)[0]
    if rank() == 0:
        return dict(arrays)
    result, start = {}, 0
    for name, value in arrays.items():
        dtype, shape = jnp.dtype(value.dtype), np.shape(value)
        end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        result[name], start = np.frombuffer(sent[start:end], dtype).reshape(shape).copy(), end
    return result


def check_same(value: list[Any], what: str) -> None:
    """Raise an error unless all processes of the job have the same value.

    Args:
        value: list of JSON values.
        what: what they are, for messages.

    Raises:
        ValueError: another process has another value; the message shows the first difference.

    Example:
        >>> check_same([["w", [2, 3]]], "parameters")
    """
    values = exchange(value, what)
    for other, theirs in enumerate(values):
        if theirs == values[0]:
            continue
        i = next((i for i, (a, b) in enumerate(zip(values[0], theirs, strict=False)) if a != b), None)
        first, second = (values[0][i], theirs[i]) if i is not None else (f"{len(values[0])} of them", len(theirs))
        raise ValueError(f"the {what} of rank 0 and of rank {other} differ: {first} and {second}; start all processes alike")


def _home() -> Device:
    return jax.local_devices()[0]


@functools.cache
def _devices() -> tuple[Device, ...]:
    return tuple(across([_home()]))


def _at_home(tree: Any) -> Any:
    """Move arrays to the first device of this process, unless they are there."""
    home = _home()
    there = all(isinstance(x, jax.Array) and x.sharding.device_set == {home} for x in jax.tree.leaves(tree))
    return tree if there else jax.device_put(tree, home)


@functools.cache
def _program(rule: Reduce, devices: tuple[Device, ...]) -> Any:
    """Return the program (gradients, arrays to average, state of the rule) -> the same, reduced over `devices`."""
    fn = functools.partial(_reduced, rule=rule)
    return compile_spmd(fn, devices, (0, 0, 0), (None, None, 0), name="process_sums")


def _reduced(gradients: Any, means: Any, local: Any, *, rule: Reduce, axis_name: str | None) -> Any:
    gradients, sums, local = rule.apply(gradients, means, local, axis_name)
    count = 1 if axis_name is None else lax.axis_size(axis_name)
    return gradients, {name: (x / count).astype(x.dtype) for name, x in sums.items()}, local


@jax.jit
def _with_axis(tree: Any) -> Any:
    """Add a leading device axis of size 1, which arguments of a program for the devices of several processes have."""
    return jax.tree.map(lambda x: x[None], tree)


def _equal_rows(gradients: dict[str, Any]) -> dict[str, Any]:
    """Pad `SparseRows` to the largest number of rows of any process, because all send as many."""
    sizes = {name: len(g.indices) for name, g in gradients.items() if is_rows(g)}
    if not sizes:
        return gradients
    # processes may have batches of different sizes, or different buckets
    largest = [max(counts) for counts in zip(*exchange(list(sizes.values()), "numbers of row-sparse gradients"), strict=True)]
    padded = {name: _padded(gradients[name], size) for name, size in zip(sizes, largest, strict=True)}
    return {**gradients, **padded}


@functools.partial(jax.jit, static_argnums=1)
def _padded(rows: SparseRows, size: int) -> SparseRows:
    more = size - len(rows.indices)
    values: Array = jnp.pad(rows.values, [(0, more)] + [(0, 0)] * (rows.values.ndim - 1))
    return SparseRows(jnp.pad(rows.indices, (0, more), constant_values=-1), values)  # -1: ignored
