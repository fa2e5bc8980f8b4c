"""What a module is: the methods that every kind defines."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from jfit.mxnet.seam import PLAIN, Arrays
from jfit.train.interrupts import StopFlag


class ModuleInterface:
    """State flags, and bind, init_params, init_optimizer, forward, backward, update, which each kind of module defines.

    Attributes:
        binded: `bind` was called.
        for_training: it was bound for training.
        inputs_need_grad: it gives gradients of its inputs.
        params_initialized: it has parameters.
        optimizer_initialized: it has an optimizer.
        logger: where log lines go.
        arrays: which arrays and graphs it hands out.

    Source: Apache MXNet 1.9.1, `mxnet.module.BaseModule`.
    """

    arrays: Arrays = PLAIN

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded = False
        self.for_training = False
        self.inputs_need_grad = False
        self.params_initialized = False
        self.optimizer_initialized = False
        self._symbol: Any = None
        self._flag: StopFlag | None = None  # while fit runs

    # -------------------------------------------------------------------------------- what subclasses give
    @property
    def symbol(self) -> Any:
        """The network."""
        return self._symbol

    def _missing(self, name: str) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no method {name}; a module defines it")

    def bind(self, data_shapes: Any, label_shapes: Any = None, *args: Any, **kwargs: Any) -> None:
        """Fix the shapes."""
        self._missing("bind")

    def init_params(self, *args: Any, **kwargs: Any) -> None:
        """Give the parameters their first values."""
        self._missing("init_params")

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(parameters, auxiliary states)."""
        return self._missing("get_params")

    def init_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Choose the optimizer."""
        self._missing("init_optimizer")

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch."""
        self._missing("forward")

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last forward pass."""
        self._missing("backward")

    def update(self) -> None:
        """One update of the parameters."""
        self._missing("update")

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward pass."""
        return self._missing("get_outputs")

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the inputs."""
        return self._missing("get_input_grads")

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Add the last batch to a metric."""
        self._missing("update_metric")

    def install_monitor(self, mon: Any) -> None:
        """Let a Monitor see the arrays."""
        self._missing("install_monitor")

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """What is needed before a batch."""

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The states that the module keeps itself; none here."""
        return []

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set those states."""
        if states:
            raise ValueError(f"{type(self).__name__} has no states; found {len(states)} arrays")

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters and auxiliary states."""
        self.init_params(None, arg_params, aux_params, allow_missing, force_init, allow_extra)
