"""The gradients of a module as NDArrays that scripts may overwrite: `module._exec_group.grad_arrays`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp

from jfit.mxnet.module.base import require
from jfit.mxnet.ndarray.array import NDArray


def split_slices(batch_size: int, work_load_list: Sequence[float]) -> list[slice]:
    """Return the rows of a batch of each device, in proportion to their work loads; the last device gets what is left.

    Args:
        batch_size: number of rows.
        work_load_list: work load of each device.

    Returns:
        List of slices.

    Raises:
        ValueError: a device gets no row.

    Example:
        >>> split_slices(5, [1, 1])
        [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = list(itertools.accumulate(round(load * batch_size / sum(work_load_list)) for load in work_load_list))
    edges = [0, *(min(end, batch_size) for end in ends[:-1]), batch_size]
    if any(a >= b for a, b in itertools.pairwise(edges)):
        raise ValueError(f"Too many slices. Some splits are empty: {batch_size} rows for work loads {list(work_load_list)}")
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


class Gradient(NDArray):
    """The gradient of one parameter on one device; reading its `value` returns the module's gradient, writing replaces that."""

    __slots__ = ("_device", "_name", "_passes")

    def __init__(self, passes: Any, name: str, device: int) -> None:
        self._passes, self._name, self._device = passes, name, device

    @property
    def value(self) -> Any:
        """The gradient on this device; with several devices, that of this device's rows only."""
        return self._passes.gradient_slices(self._name)[self._device]

    @value.setter
    def value(self, new: Any) -> None:
        slices = self._passes.gradient_slices(self._name)
        slices[self._device] = new
        self._passes.set_gradient(self._name, slices)


class ExecGroup:
    """The gradients of a bound module, which scripts reset with `g[:] = 0`; the next `update` uses the written values.

    Of MXNet's DataParallelExecutorGroup it has only the attributes below.

    Attributes:
        param_names: names of the parameters, in the order of `grad_arrays`.
        grad_arrays: for each parameter, a list with its gradient on each device; None for a parameter without gradient.
            That of the gamma of a BatchNorm with fix_gamma=True is 0.
    """

    def __init__(self, module: Any) -> None:
        require(module, "_exec_group", "binded")
        self._module, self._passes, self.param_names = module, module.passes, module.binding.params

    @property
    def grad_arrays(self) -> list[list[NDArray | None]]:
        """For each parameter, a list with its gradient on each device; None where it has no gradient."""
        binding = self._module.binding
        zero = {n: NDArray(jnp.zeros(binding.specs[n].shape, binding.specs[n].dtype)) for n in binding.fixed_gammas}

        def gradient(name: str, device: int) -> NDArray | None:
            return Gradient(self._passes, name, device) if name in self._passes.grad_reqs else zero.get(name)

        return [[gradient(n, k) for k in range(len(binding.devices))] for n in self.param_names]

    @property
    def execs(self) -> list[SimpleNamespace]:
        """For each device, an object with `grad_dict`, the gradients by name."""
        each = [dict(zip(self.param_names, grads, strict=True)) for grads in zip(*self.grad_arrays, strict=True)]
        return [SimpleNamespace(grad_dict=gradients) for gradients in each]

    def install_monitor(self, mon: Any) -> None:
        """Call the monitor for this module, as `module.install_monitor` does."""
        self._module.install_monitor(mon)
