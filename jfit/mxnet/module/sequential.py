"""SequentialModule: a chain of modules, in which the outputs of one are the data inputs of the next."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

from jfit.data.ndarray_iter import DataDesc
from jfit.mxnet.module.base import BaseModule, BindRequest, attribute, require
from jfit.mxnet.module.binding import desc_of, describe


class SequentialModule(BaseModule):
    """A chain of modules, in which the outputs of one are the data inputs of the next.

    Arrays stay on the devices between modules; each module updates its own parameters.  A single symbol trains faster, in one
    compiled program, so use this for stages that cannot be part of a symbol (see `PythonModule`) or are trained separately.

    Args:
        logger: logger for messages.

    Example:
        >>> import jfit, numpy as np
        >>> from jfit.mxnet.module.module import Module
        >>> first = jfit.sym.Activation(jfit.sym.FullyConnected(num_hidden=8, name="fc1"), act_type="relu")
        >>> second = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(num_hidden=2, name="fc2"), name="softmax")
        >>> chain = SequentialModule()
        >>> chain = chain.add(Module(first, ["fc1_data"], None), auto_wiring=True)
        >>> chain = chain.add(Module(second, ["fc2_data"]), take_labels=True, auto_wiring=True)
        >>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
        >>> train = jfit.NDArrayIter(x, x.argmax(1), batch_size=8)
        >>> params = {"learning_rate": 1.0}
        >>> chain.fit(train, num_epoch=20, initializer=jfit.init.Xavier(), optimizer_params=params)
        >>> chain.score(train, "acc")
        [('accuracy', 1.0)]

    Source: Apache MXNet 1.9.1, `mxnet.module.SequentialModule`.
    """

    META_TAKE_LABELS = "take_labels"
    META_AUTO_WIRING = "auto_wiring"

    def __init__(self, logger: Any = logging) -> None:
        super().__init__(logger)
        self._modules: list[Any] = []
        self._metas: list[dict[str, Any]] = []
        self._label_shapes: Any = None
        self._meta_keys = {getattr(type(self), name) for name in dir(type(self)) if name.startswith("META_")}

    def add(self, module: Any, **kwargs: Any) -> SequentialModule:
        """Append a module; the chain must then be bound and initialized (again).

        Args:
            module: any module.
            take_labels: whether it gets the labels of the batch, and its outputs are used for metrics.
            auto_wiring: True connects its data inputs to the previous outputs by position; False requires that its
                `data_names` are the names of those outputs.

        Returns:
            The chain itself.

        Raises:
            AssertionError: an unknown keyword.
        """
        for key in kwargs:
            assert key in self._meta_keys, f'Unknown meta "{key}", a typo? Supported are {", ".join(sorted(self._meta_keys))}'
        self._modules.append(module)
        self._metas.append(kwargs)
        self.binded = self.params_initialized = self.optimizer_initialized = False
        return self

    # -------------------------------------------------------------------------------- properties
    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs of the first module."""
        return self._modules[0].data_names if self._modules else []

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs of the last module."""
        return self._modules[-1].output_names if self._modules else []

    _first, _last = property(lambda self: self._modules[0]), property(lambda self: self._modules[-1])
    data_shapes = attribute("_first.data_shapes", "Descriptions of the data inputs of the first module.", "binded")
    label_shapes = attribute("_label_shapes", "Descriptions of the labels; None if no module takes labels.", "binded")
    output_shapes = attribute("_last.output_shapes", "(name, shape) of the outputs of the last module.", "binded")

    def _takes_labels(self) -> Iterator[Any]:
        return (m for m, meta in zip(self._modules, self._metas, strict=True) if meta.get(self.META_TAKE_LABELS))

    # -------------------------------------------------------------------------------- setting up
    def _bind(self, data_shapes: Any, label_shapes: Any, request: BindRequest) -> None:
        """Bind all modules; for training, all but the first compute gradients of their data inputs."""
        assert request.shared_module is None, "Shared module is not supported"
        assert self._modules, "Attempting to bind an empty SequentialModule"
        shapes = data_shapes
        for at, (module, meta) in enumerate(zip(self._modules, self._metas, strict=True)):
            if meta.get(self.META_AUTO_WIRING):
                shapes = _renamed(module.data_names, shapes, at)
            needs = request.inputs_need_grad or (request.for_training and at > 0)
            labels = label_shapes if meta.get(self.META_TAKE_LABELS) else None
            module.bind(shapes, labels, *request._replace(inputs_need_grad=needs))
            shapes = module.output_shapes
        self._label_shapes = label_shapes if any(True for _ in self._takes_labels()) else None

    def _init_params(self, initializer: Any, arg_params: Any, aux_params: Any, *options: bool) -> None:
        """Initialize the parameters of every module; each module uses the values of its own names."""
        for module in self._modules:
            module.init_params(initializer, arg_params, aux_params, *options)
        self._check_names()

    def _set_params(self, arg_params: Any, aux_params: Any, *options: bool) -> None:
        assert self.binded, "call bind before setting the parameters"
        *others, _ = options
        for module in self._modules:
            module.set_params(arg_params, aux_params, *others, allow_extra=True)
        self._check_names()
        self.params_initialized = True

    def _check_names(self) -> None:
        """Raise AssertionError if two modules have a parameter of the same name."""
        owners: tuple[dict[str, str], dict[str, str]] = ({}, {})
        for at, module in enumerate(self._modules):
            for owner, tree in zip(owners, module.get_params(), strict=True):
                for name in tree:
                    where = f"layer {at} ({type(module).__name__})"
                    used = f"is already used in {owner.get(name)}"
                    assert name not in owner, f'Duplicated parameter names: name "{name}" in {where} {used}'
                    owner[name] = where

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return copies of (parameters, auxiliary states) of all modules."""
        require(self, "get_params", "binded", "params_initialized")
        params, aux = zip(*(module.get_params() for module in self._modules), strict=True)
        return {n: v for tree in params for n, v in tree.items()}, {n: v for tree in aux for n, v in tree.items()}

    def _sync_devices(self) -> None:
        for module in self._modules:
            module._sync_devices()

    def _init_optimizer(self, kvstore: Any, optimizer: Any, optimizer_params: Any, force_init: bool) -> None:
        """Set an optimizer for every module.

        Pass a name: an Optimizer object would be shared and would count the updates of every module.
        """
        for module in self._modules:
            module.init_optimizer(kvstore, optimizer, optimizer_params, force_init)

    # -------------------------------------------------------------------------------- computing
    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run the forward pass of all modules; labels, padding and bucket key are passed to every module."""
        require(self, "forward", "binded", "params_initialized")
        batch = copy.copy(data_batch)
        for module, following in zip(self._modules, [*self._modules[1:], None], strict=True):
            module.forward(batch, is_train=is_train)
            if following is not None:
                batch.data = module.get_outputs()
                layouts = {d.name: d.layout for d in describe(following.data_shapes)}
                names_and_arrays = zip(following.data_names, batch.data, strict=True)
                batch.provide_data = [desc_of(name, array, layouts[name]) for name, array in names_and_arrays]

    def backward(self, out_grads: Any = None) -> None:
        """Run the backward pass, from the last module to the first.

        Args:
            out_grads: gradient with respect to each output of the last module; None if all are losses.
        """
        require(self, "backward", "binded", "params_initialized")
        for module in reversed(self._modules):
            module.backward(out_grads)
            if module is not self._modules[0]:
                out_grads = module.get_input_grads()

    def update(self) -> None:
        """Update the parameters of every module."""
        require(self, "update", "binded", "params_initialized", "optimizer_initialized")
        for module in self._modules:
            module.update()

    def _problem_of(self, where: str, data: bool = True) -> str | None:
        problems = (module._problem_of(where, data and module is self._modules[0]) for module in self._modules)
        return next(filter(None, problems), None)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Return the outputs of the last module."""
        require(self, "get_outputs", "binded", "params_initialized")
        return self._modules[-1].get_outputs(merge_multi_context)

    def _without_padding(self, pad: int) -> list[Any]:
        return self._modules[-1]._without_padding(pad)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Return the gradients of the first module's data inputs."""
        require(self, "get_input_grads", "binded", "params_initialized", "inputs_need_grad")
        return self._modules[0].get_input_grads(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Update a metric with the outputs of every module that takes labels."""
        require(self, "update_metric", "binded", "params_initialized")
        for module in self._takes_labels():
            module.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        """Attach a Monitor to every module."""
        require(self, "install_monitor", "binded")
        for module in self._modules:
            module.install_monitor(mon)


def _renamed(names: list[str], shapes: Any, at: int) -> list[DataDesc]:
    """Return descriptions of the previous module's outputs under the data names of the next module, by position.

    at: position of that module in the chain, for the error message.
    """
    assert len(names) == len(shapes), (
        f"layer {at} takes {len(names)} data arrays {names}, but the previous one has {len(shapes)}: {[s[0] for s in shapes]}"
    )
    return [DataDesc(name, d.shape, d.dtype, d.layout) for name, d in zip(names, describe(shapes), strict=True)]
