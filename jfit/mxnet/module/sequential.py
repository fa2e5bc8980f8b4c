"""SequentialModule: modules in a chain, the outputs of one are the data of the next."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from jfit.data.ndarray_iter import DataDesc
from jfit.mxnet.module.base import BaseModule, require
from jfit.mxnet.module.binding import desc_of
from jfit.mxnet.module.initial import DEFAULT
from jfit.ops import nearest


class SequentialModule(BaseModule):
    """Modules in a chain; arrays stay on the devices from one to the next.

    Each module updates its own parameters.  A single symbol trains in one program where a chain takes several, so this is for
    stages that do not go into a symbol (see `PythonModule`) or that are trained apart.

    Args:
        logger: where log lines go.

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
        """Append a module; the chain must then be bound and initialized again.

        Args:
            module: any module.
            take_labels: it gets the labels of the batch, and counts in metrics.
            auto_wiring: its data are the outputs before it in their order, whatever they are called; otherwise its
                `data_names` must be the names of those outputs.

        Returns:
            The chain itself.

        Raises:
            AssertionError: another keyword.
        """
        for key in kwargs:
            assert key in self._meta_keys, f'Unknown meta "{key}", a typo? There are {", ".join(sorted(self._meta_keys))}'
        self._modules.append(module)
        self._metas.append(kwargs)
        self.binded = self.params_initialized = self.optimizer_initialized = False
        return self

    # -------------------------------------------------------------------------------- what it is
    @property
    def data_names(self) -> list[str]:
        """Names of the data of the first module."""
        return self._modules[0].data_names if self._modules else []

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs of the last module."""
        return self._modules[-1].output_names if self._modules else []

    @property
    def data_shapes(self) -> Any:
        """Descriptions of the data of the first module."""
        require(self, "data_shapes", "binded")
        return self._modules[0].data_shapes

    @property
    def label_shapes(self) -> Any:
        """Descriptions of the labels; None where no module takes them."""
        require(self, "label_shapes", "binded")
        return self._label_shapes

    @property
    def output_shapes(self) -> Any:
        """(name, shape) of the outputs of the last module."""
        require(self, "output_shapes", "binded")
        return self._modules[-1].output_shapes

    def _takes_labels(self) -> Iterator[Any]:
        return (m for m, meta in zip(self._modules, self._metas, strict=True) if meta.get(self.META_TAKE_LABELS))

    # -------------------------------------------------------------------------------- setting up
    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
    ) -> None:
        """Bind all modules; those after the first give gradients of their data where the chain is trained.

        Args:
            data_shapes: of the first module.
            label_shapes: for the modules that take labels.
            for_training, force_rebind, grad_req: as for `Module.bind`, for all modules.
            inputs_need_grad: also gradients of the first module's data.
            shared_module: must be None.

        Raises:
            AssertionError: an empty chain, or a number of outputs that the next module does not take.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        assert for_training or not inputs_need_grad, "inputs_need_grad=True needs for_training=True"
        assert shared_module is None, "Shared module is not supported"
        assert self._modules, "Attempting to bind an empty SequentialModule"
        shapes = data_shapes
        for at, (module, meta) in enumerate(zip(self._modules, self._metas, strict=True)):
            if meta.get(self.META_AUTO_WIRING):
                shapes = _renamed(module.data_names, shapes, at)
            needs = inputs_need_grad or (for_training and at > 0)
            labels = label_shapes if meta.get(self.META_TAKE_LABELS) else None
            module.bind(shapes, labels, for_training, needs, force_rebind, None, grad_req)
            shapes = module.output_shapes
        self._label_shapes = label_shapes if any(True for _ in self._takes_labels()) else None
        self.for_training, self.inputs_need_grad, self.binded = for_training, inputs_need_grad, True

    def init_params(
        self,
        initializer: Any = DEFAULT,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set and draw the parameters of every module; each takes its own from the given values.

        Raises:
            AssertionError: two modules have a parameter of the same name.
            ValueError: a given value belongs to no module (unless allow_extra).
            RuntimeError: a value is missing (unless allow_missing).
        """
        if self.params_initialized and not force_init:
            return
        assert self.binded, "call bind before initializing the parameters"
        for module in self._modules:
            module.init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra=True)
        self._check_names(arg_params, aux_params, allow_extra)
        self.params_initialized = True

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters of every module; with allow_missing those that are not given keep their values."""
        assert self.binded, "call bind before setting the parameters"
        for module in self._modules:
            module.set_params(arg_params, aux_params, allow_missing, force_init, allow_extra=True)
        self._check_names(arg_params, aux_params, allow_extra)
        self.params_initialized = True

    def _check_names(self, arg_params: Any, aux_params: Any, allow_extra: bool) -> None:
        """No name twice, and none given that nobody has."""
        owners: tuple[dict[str, int], dict[str, int]] = ({}, {})
        for at, module in enumerate(self._modules):
            for known, found in zip(owners, module.get_params(), strict=True):
                for name in found:
                    before = self._modules[known.get(name, at)]
                    assert name not in known, (
                        f'Duplicated parameter names: name "{name}" in layer {at} ({type(module).__name__}) is already used in '
                        f"layer {known[name]} ({type(before).__name__}); give the operators other names"
                    )
                    known[name] = at
        for known, given, kind in zip(owners, (arg_params, aux_params), ("arg_params", "aux_params"), strict=True):
            unknown = [] if allow_extra else [n for n in given or () if n not in known]
            if unknown:
                raise ValueError(
                    f"Find name {unknown[0]!r} in {kind} that no module of the chain has; the nearest are "
                    f"{nearest(unknown[0], list(known)) or 'none'}. Leave it out, or pass allow_extra=True"
                )

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(parameters, auxiliary states) of all modules: copies."""
        require(self, "get_params", "binded", "params_initialized")
        params: dict[str, Any] = {}
        aux: dict[str, Any] = {}
        for module in self._modules:
            found, found_aux = module.get_params()
            params.update(found)
            aux.update(found_aux)
        return params, aux

    def _sync_devices(self) -> None:
        for module in self._modules:
            module._sync_devices()

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """An optimizer for every module, as `Module.init_optimizer`; give a name, since one object would count every module."""
        assert self.binded and self.params_initialized, "call bind and init_params before init_optimizer"
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring.")
            return
        for module in self._modules:
            module.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True

    # -------------------------------------------------------------------------------- computing
    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run a batch through the chain; labels, padding and bucket key go along."""
        require(self, "forward", "binded", "params_initialized")
        batch = copy.copy(data_batch)
        for module, following in zip(self._modules, [*self._modules[1:], None], strict=True):
            module.forward(batch, is_train=is_train)
            if following is not None:
                batch.data = module.get_outputs()
                batch.provide_data = _descriptions(following, batch.data)

    def backward(self, out_grads: Any = None) -> None:
        """Gradients, from the last module to the first.

        Args:
            out_grads: gradient of each output of the last module; not needed where they are losses.
        """
        require(self, "backward", "binded", "params_initialized")
        for module in reversed(self._modules):
            module.backward(out_grads)
            if module is not self._modules[0]:
                out_grads = module.get_input_grads()

    def update(self) -> None:
        """One update of the parameters of every module."""
        require(self, "update", "binded", "params_initialized", "optimizer_initialized")
        for module in self._modules:
            module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last module."""
        require(self, "get_outputs", "binded", "params_initialized")
        return self._modules[-1].get_outputs(merge_multi_context)

    def _without_padding(self, pad: int) -> list[Any]:
        return self._modules[-1]._without_padding(pad)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the first module's data."""
        require(self, "get_input_grads", "binded", "params_initialized", "inputs_need_grad")
        return self._modules[0].get_input_grads(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Add the outputs of each module that takes labels to a metric."""
        require(self, "update_metric", "binded", "params_initialized")
        for module in self._takes_labels():
            module.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        """Let a Monitor see the arrays of every module."""
        require(self, "install_monitor", "binded")
        for module in self._modules:
            module.install_monitor(mon)


def _renamed(names: list[str], shapes: Any, at: int) -> list[DataDesc]:
    """Descriptions under the names of a module's data."""
    assert len(names) == len(shapes), (
        f"layer {at} takes {len(names)} data arrays {names}, the layer before it gives {len(shapes)}: {[s[0] for s in shapes]}"
    )
    kept = [s if isinstance(s, DataDesc) else DataDesc(s[0], s[1]) for s in shapes]
    return [DataDesc(name, d.shape, d.dtype, d.layout) for name, d in zip(names, kept, strict=True)]


def _descriptions(module: Any, arrays: list[Any]) -> list[DataDesc]:
    """What a batch provides to the next module, under that module's own names."""
    bound = {d[0]: d for d in module.data_shapes}
    like = {name: d if isinstance(d, DataDesc) else None for name, d in bound.items()}
    return [desc_of(name, array, like.get(name)) for name, array in zip(module.data_names, arrays, strict=True)]
