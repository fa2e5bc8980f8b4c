"""The gradients of a module as NDArrays that scripts may overwrite: `module._exec_group.grad_arrays`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jfit.mxnet.module.base import require
from jfit.mxnet.ndarray.array import NDArray


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

    def install_monitor(self, mon: Any) -> None:
        """Call the monitor for this module, as `module.install_monitor` does."""
        self._module.install_monitor(mon)
