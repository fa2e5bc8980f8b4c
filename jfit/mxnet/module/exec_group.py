"""The gradients of a bound module as MXNet's executors hold them: scripts clear accumulated ones by `g[:] = 0`."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.module.base import require
from jfit.mxnet.ndarray.array import NDArray


class ExecGroup:
    """What scripts reach by `module._exec_group`.

    Attributes:
        param_names: names of the parameters, in the order of `grad_arrays`.
    """

    def __init__(self, module: Any) -> None:
        require(module, "_exec_group", "binded")
        self._passes, self.param_names, self._devices = module.passes, module.binding.params, len(module.binding.devices)

    @property
    def grad_arrays(self) -> list[list[Gradient | None]]:
        """For each parameter, its gradient on each device; None where it has none."""
        asked = self._passes.requests
        return [[Gradient(self._passes, n, k) if n in asked else None for k in range(self._devices)] for n in self.param_names]


class Gradient(NDArray):
    """A gradient inside a module: reading gives what `backward` left there, writing replaces it."""

    __slots__ = ("_at", "_name", "_passes")

    def __init__(self, passes: Any, name: str, at: int) -> None:
        self._passes, self._name, self._at = passes, name, at

    @property
    def value(self) -> Any:
        """The gradient of this device."""
        return self._passes.gradient_slices(self._name)[self._at]

    @value.setter
    def value(self, new: Any) -> None:
        slices = self._passes.gradient_slices(self._name)
        slices[self._at] = new
        self._passes.set_gradient(self._name, slices)
