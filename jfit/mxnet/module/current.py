"""A module that passes computing on to the one of several modules whose turn it is."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.module.base import BaseModule
from jfit.mxnet.module.module import Module


class CurrentModule(BaseModule):
    """The methods of a module that concern the current one of several; a subclass says which that is.

    Attributes:
        _curr_module: the current module; before `bind` it only knows names.
        _active: the module of the last forward pass, where something may still wait to be run.
    """

    _curr_module: Module
    _active: Module | None = None

    # -------------------------------------------------------------------------------- what it is
    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs."""
        return self._curr_module.data_names

    @property
    def label_names(self) -> list[str]:
        """Names of the labels."""
        return self._curr_module.label_names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return self._curr_module.output_names

    @property
    def data_shapes(self) -> list[Any]:
        """Descriptions of the data of the current module."""
        assert self.binded
        return self._curr_module.data_shapes

    @property
    def label_shapes(self) -> list[Any]:
        """Descriptions of the labels of the current module."""
        assert self.binded
        return self._curr_module.label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) of each output of the current module."""
        assert self.binded
        return self._curr_module.output_shapes

    @property
    def symbol(self) -> Any:
        """The network of the current module."""
        return self._curr_module.symbol

    # -------------------------------------------------------------------------------- states
    def _settle(self) -> None:
        """Run what still waits in the module of the last forward pass."""
        if self._active is not None:
            self._active._settle()

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The arrays of `state_names` of the current module."""
        assert self.binded and self.params_initialized
        return self._curr_module.get_states(merge_multi_context)

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set them, as `Module.set_states`."""
        assert self.binded and self.params_initialized
        self._curr_module.set_states(states, value)

    # -------------------------------------------------------------------------------- computing
    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last forward pass."""
        assert self.binded and self.params_initialized
        self._curr_module.backward(out_grads)

    def update(self) -> None:
        """One update of the parameters of the current module's network."""
        assert self.binded and self.params_initialized and self.optimizer_initialized
        self._curr_module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward pass."""
        assert self.binded and self.params_initialized
        return self._curr_module.get_outputs(merge_multi_context)

    def _without_padding(self, pad: int) -> list[Any]:
        return self._curr_module._without_padding(pad)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data inputs."""
        assert self.binded and self.params_initialized and self.inputs_need_grad
        return self._curr_module.get_input_grads(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Add the last batch to a metric."""
        assert self.binded and self.params_initialized
        self._curr_module.update_metric(eval_metric, labels, pre_sliced)
