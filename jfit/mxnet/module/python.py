"""Modules written in Python, without a symbol and parameters; mainly losses whose gradient is a Python function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit.mxnet.module.base import BaseModule, BindRequest, attribute
from jfit.mxnet.module.binding import wrapped_rows
from jfit.mxnet.mutable import as_array


class PythonModule(BaseModule):
    """Base class of modules without parameters whose computation is written in Python.

    Subclasses define `forward`, `backward`, `get_outputs`, `get_input_grads` and `_compute_output_shapes`.

    Args:
        data_names: names of the data inputs.
        label_names: names of the labels, or None.
        output_names: names of the outputs.
        logger: logger for messages.

    Example:
        >>> import numpy as np
        >>> class Double(PythonModule):
        ...     def _compute_output_shapes(self):
        ...         return [("double_output", self.data_shapes[0][1])]
        ...     def forward(self, data_batch, is_train=None):
        ...         self.doubled = data_batch.data[0] * 2
        ...     def get_outputs(self, merge_multi_context=True):
        ...         return [self.doubled]
        >>> module = Double(["data"], None, ["double_output"])
        >>> module.bind([("data", (1, 2))], for_training=False)
        >>> module.init_params()
        >>> module.predict(np.ones((1, 2))).tolist()
        [[2.0, 2.0]]

    Source: Apache MXNet 1.9.1, `mxnet.module.PythonModule`.
    """

    def __init__(
        self, data_names: Sequence[str], label_names: Sequence[str] | None, output_names: Sequence[str], logger: Any = logging
    ) -> None:
        super().__init__(logger)
        self._data_names, self._output_names = list(data_names), list(output_names)
        self._label_names = None if label_names is None else list(label_names)
        self._data_shapes: Any = None
        self._label_shapes: Any = None
        self._output_shapes: Any = None
        self._pad = 0  # number of padding rows at the end of the last batch

    # -------------------------------------------------------------------------------- properties
    data_names = attribute("_data_names", "Names of the data inputs.")
    label_names = attribute("_label_names", "Names of the labels, or None.")
    output_names = attribute("_output_names", "Names of the outputs.")
    data_shapes = attribute("_data_shapes", "(name, shape) of the data inputs, as passed to `bind`.")
    label_shapes = attribute("_label_shapes", "(name, shape) of the labels, or None.")
    output_shapes = attribute("_output_shapes", "(name, shape) of the outputs.")

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return (name, shape) of each output, computed from `data_shapes` and `label_shapes`."""
        return self._not_implemented("_compute_output_shapes")

    # -------------------------------------------------------------------------------- setting up
    def _bind(self, data_shapes: Any, label_shapes: Any, request: BindRequest) -> None:
        """Check the names of the inputs, in the order of `data_names` and `label_names`, and compute the output shapes."""
        assert request.grad_req == "write", "Python module only support write gradient"
        data = [d[0] for d in data_shapes]
        assert data == self._data_names, f"data_shapes are for {data}, the module's data_names are {self._data_names}"
        if label_shapes is not None:
            labels = [d[0] for d in label_shapes]
            message = f"label_shapes are for {labels}, the module's label_names are {self._label_names}"
            assert labels == self._label_names, message
        self.for_training, self.inputs_need_grad = request.for_training, request.inputs_need_grad
        self._data_shapes, self._label_shapes = data_shapes, label_shapes
        self._output_shapes = self._compute_output_shapes()

    def init_params(self, *args: Any, **kwargs: Any) -> None:
        """Mark the parameters as initialized, of which there are none; a subclass with parameters overrides this method."""
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return ({}, {}): there are no parameters and auxiliary states."""
        return {}, {}

    def init_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Ignore the optimizer: there are no parameters to update."""
        self.optimizer_initialized = True

    def update(self) -> None:
        """Do nothing: there are no parameters."""

    def install_monitor(self, mon: Any) -> None:
        """Do nothing: there are no internal arrays to monitor."""

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Update a metric with the last batch, if the module was bound with labels; padding rows have weight 0."""
        if self._label_shapes is None:
            return
        outputs, weights = self.get_outputs(), None
        if self._pad:
            rows = as_array(labels[0]).shape[0]
            weights = (np.arange(rows) < rows - self._pad).astype(np.float32)
        eval_metric.fold(labels, outputs, weights)


class PythonLossModule(PythonModule):
    """A loss for the end of a `SequentialModule`: output = scores (its input), input gradient = grad_func(scores, labels).

    Args:
        name: the output is named `{name}_output`.
        data_names: a list with the one name of the input.
        label_names: a list with the one name of the label.
        logger: logger for messages.
        grad_func: function (scores, labels) -> gradient of the loss with respect to the scores, an array.

    Raises:
        AssertionError: data_names or label_names has not exactly one name, or grad_func is not callable.

    Example:
        >>> import numpy as np
        >>> from jfit.data import DataBatch
        >>> loss = PythonLossModule(grad_func=lambda scores, labels: scores - labels)
        >>> loss.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
        >>> loss.forward(DataBatch([np.ones((2, 1))], [np.zeros((2, 1))]))
        >>> loss.backward()
        >>> loss.get_input_grads()[0].tolist()
        [[1.0], [1.0]]

    Source: Apache MXNet 1.9.1, `mxnet.module.PythonLossModule`.
    """

    def __init__(
        self,
        name: str = "pyloss",
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] = ("softmax_label",),
        logger: Any = logging,
        grad_func: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__(data_names, label_names, [f"{name}_output"], logger)
        assert len(data_names) == 1 and len(label_names) == 1, "a loss module needs exactly one data name and one label name"
        assert grad_func is None or callable(grad_func), f"grad_func is {grad_func!r}, expected a function of (scores, labels)"
        self._name, self._grad_func = name, grad_func
        self._scores: Any = None
        self._labels: Any = None
        self._scores_grad: Any = None

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(f"{self._name}_output", tuple(self._data_shapes[0][1]))]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Store the scores and, in training mode, the labels."""
        self._scores = self.arrays.wrap(data_batch.data[0])
        self._pad = wrapped_rows(data_batch)
        if self.for_training if is_train is None else is_train:
            self._labels = self.arrays.wrap(data_batch.label[0])

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Return [scores]."""
        assert merge_multi_context is True, "a Python module computes on one device"
        return [self._scores]

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradient with respect to the scores."""
        assert out_grads is None, "For a loss module, out_grads should be None"
        assert self.for_training, "the module was bound for prediction; call bind(for_training=True) before backward()"
        self._backward_impl()

    def _backward_impl(self) -> None:
        """Set `_scores_grad` from `_scores` and `_labels`."""
        gradient = as_array(self._grad_func(self._scores, self._labels))  # type: ignore[misc]  # else a subclass overrides this
        self._scores_grad = self.arrays.wrap(jnp.asarray(gradient, jnp.result_type(as_array(self._scores), jnp.float32)))

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Return [gradient with respect to the scores]."""
        assert merge_multi_context is True, "a Python module computes on one device"
        return [self._scores_grad]
