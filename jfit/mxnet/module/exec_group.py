"""The executors of a module and its gradients, which scripts may overwrite: `module._exec_group`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jfit.mxnet.module.base import require
from jfit.mxnet.module.binding import python_slices
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
    edges = itertools.accumulate(python_slices(batch_size, work_load_list), initial=0)
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


_split_input_slice = split_slices  # MXNet's name


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


class DeviceExecutor:
    """What a module has on one device, as an executor has it: its arrays by name and a monitor.

    Attributes:
        arg_dict, aux_dict: inputs and parameters, and auxiliary states, by name; of the whole batch.
        grad_dict: the gradients of this device's rows by name, which may be overwritten.
        outputs: the outputs of this device's rows.
    """

    def __init__(self, group: ExecGroup, module: Any, device: int) -> None:
        self._module = module
        gradients = zip(group.param_names, (of_devices[device] for of_devices in group.grad_arrays), strict=True)
        self.grad_dict = {name: gradient for name, gradient in gradients if gradient is not None}
        self._device = device

    arg_dict = property(lambda self: {n: NDArray(v) for n, v in self._module.monitored()[0].items()})
    aux_dict = property(lambda self: {n: NDArray(v) for n, v in self._module.monitored()[1].items()})
    outputs = property(lambda self: [o[self._device] for o in self._module.get_outputs(merge_multi_context=False)])

    def set_monitor_callback(self, callback: Any, monitor_all: bool = False) -> None:
        """Call `callback(name, array)` for the outputs and gradients of all operators in each pass, on all devices."""
        self._module.monitor_with(Callback(callback, monitor_all))


class Callback:
    """A function (name, array) as a Monitor; a method of an object with `pattern` gets arrays of matching names only."""

    def __init__(self, callback: Any, monitor_all: bool) -> None:
        self._callback, self.monitor_all = callback, monitor_all
        self.pattern = getattr(getattr(callback, "__self__", None), "pattern", ".*")

    @property
    def activated(self) -> bool:
        return getattr(getattr(self._callback, "__self__", None), "activated", True)

    def collect(self, arrays: Any) -> None:
        for name, array in arrays.items():
            self._callback(name, NDArray(array))


class ExecGroup:
    """The executors and gradients of a bound module; gradients that scripts write are those of the next `update`.

    Of MXNet's DataParallelExecutorGroup it has only the attributes below.

    Attributes:
        param_names: names of the parameters, in the order of `grad_arrays`.
        grad_arrays: for each parameter, a list with its gradient on each device; None for a parameter without gradient.
            That of the gamma of a BatchNorm with fix_gamma=True is 0.
        execs: a `DeviceExecutor` for each device.
        install_monitor: `install_monitor` of the module.

    Example:
        >>> import jfit.mx as mx
        >>> module = mx.mod.Module(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"), label_names=None)
        >>> module.bind([("data", (4, 3))])
        >>> module._exec_group.param_names
        ['fc_weight', 'fc_bias']
    """

    def __init__(self, module: Any) -> None:
        require(module, "_exec_group", "binded")
        self._module, self.install_monitor = module, module.install_monitor
        self._passes, self.param_names, self._devices = module.passes, module.binding.params, len(module.binding.devices)

    @property
    def grad_arrays(self) -> list[list[NDArray | None]]:
        """For each parameter, a list with its gradient on each device; None where it has no gradient."""
        binding = self._module.binding
        zero = {n: NDArray(jnp.zeros(binding.specs[n].shape, binding.specs[n].dtype)) for n in binding.fixed_gammas}

        def gradient(name: str, device: int) -> NDArray | None:
            return Gradient(self._passes, name, device) if name in self._passes.grad_reqs else zero.get(name)

        return [[gradient(n, k) for k in range(self._devices)] for n in self.param_names]

    @property
    def execs(self) -> list[DeviceExecutor]:
        """The part of the module on each device."""
        return [DeviceExecutor(self, self._module, k) for k in range(self._devices)]
