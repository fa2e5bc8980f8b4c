"""BucketingModule: one network unrolled to several lengths; parameters, optimizer and their state are common to all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jfit.formats.atomic import FormatError
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.graph import load as load_symbol
from jfit.graph.scopes import NameManager
from jfit.mxnet import files
from jfit.mxnet.module.base import BaseModule, require
from jfit.mxnet.module.binding import desc_of, rows_of_batch
from jfit.mxnet.module.initial import DEFAULT
from jfit.mxnet.module.module import Module


class Bucket(NamedTuple):
    """What `sym_gen` gives for a key."""

    symbol: Any
    data_names: list[str]
    label_names: list[str]


def _current(name: str, doc: str) -> Any:
    """A property of the current bucket."""
    return property(lambda self: getattr(self._curr_module, name), doc=doc)


class BucketingModule(BaseModule):
    """A module whose network depends on the batch's `bucket_key`, such as an RNN unrolled to the length of its sentences.

    Every bucket is a `Module` over the parameters and optimizer state of the default bucket.  A bucket compiles when its first
    batch comes and never again.

    Args:
        sym_gen: key -> (symbol, data names, label names); called once for each key, automatic names start at 0.
        default_bucket_key: key of the network that has all parameters (the longest sentence, say).
        logger: where log lines go.
        context: a device or a list of them.
        work_load_list: relative share of each device.
        fixed_param_names: parameters without gradient and update.
        state_names: inputs that the module keeps itself; buckets with states of equal shapes keep them in common.
        group2ctxs: accepted; all groups share the devices of `context`.
        compression_params: `{"type": "2bit", "threshold": 0.5}`, for kvstore "device".

    Where it differs from MXNet 1.9.1: checkpoints hold the graphs that were bound (MXNet calls `sym_gen` again); an optimizer
    outlives `bind(force_rebind=True)`; optimizer state can be saved; buckets with fewer parameters work with every kvstore
    (MXNet confuses their indices where the kvstore does not update).

    Raises:
        ValueError: no default key, or a name that the default symbol does not have.

    Example:
        >>> import jfit, numpy as np
        >>> def sym_gen(length):
        ...     net = jfit.sym.sum(jfit.sym.Variable("data"), axis=1, keepdims=True)
        ...     net = jfit.sym.FullyConnected(net, num_hidden=2, name="fc")
        ...     return jfit.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)
        >>> module = BucketingModule(sym_gen, default_bucket_key=5)
        >>> module.bind([("data", (4, 5))], [("softmax_label", (4,))])
        >>> module.init_params()
        >>> module.switch_bucket(3, [("data", (4, 3))], [("softmax_label", (4,))])
        >>> module.data_shapes[0].shape, module.get_params()[0]["fc_weight"].shape
        ((4, 3), (2, 1))

    Source: Apache MXNet 1.9.1, `mxnet.module.BucketingModule`.
    """

    _module_class: ClassVar[type[Module]] = Module

    def __init__(
        self,
        sym_gen: Callable[[Any], Any],
        default_bucket_key: Any = None,
        logger: Any = logging,
        context: Any = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(logger)
        if default_bucket_key is None:
            raise ValueError("BucketingModule needs default_bucket_key=: the key of the network that has all parameters")
        self._sym_gen, self._default_key = sym_gen, default_bucket_key
        self._settings = {"logger": logger, "context": context, "work_load_list": work_load_list}
        self._settings |= {"group2ctxs": group2ctxs, "compression_params": compression_params}
        self._fixed, self._state_names = list(fixed_param_names or ()), list(state_names or ())
        self._generated: dict[Any, Bucket] = {}
        self._buckets: dict[Any, Module] = {}  # those that were bound
        self._curr_bucket_key: Any = default_bucket_key
        self._curr_module = self._new_module(default_bucket_key)  # which checks the names
        self._loaded: Any = None  # (parameters, auxiliary states) of a checkpoint, until bind
        self._active: Module | None = None  # the module of the last forward pass, where something may still wait to be run
        self._monitor: Any = None
        self._grad_req: Any = "write"

    # -------------------------------------------------------------------------------- what it is
    data_names = _current("data_names", "Names of the data of the current bucket.")
    label_names = _current("label_names", "Names of its labels.")
    output_names = _current("output_names", "Names of its outputs.")
    data_shapes = _current("data_shapes", "Descriptions of its data.")
    label_shapes = _current("label_shapes", "Descriptions of its labels.")
    output_shapes = _current("output_shapes", "(name, shape) of each of its outputs.")
    symbol = _current("symbol", "Its network.")

    # -------------------------------------------------------------------------------- buckets
    def _bucket(self, key: Any) -> Bucket:
        """Graph and names of a key."""
        if key not in self._generated:
            with NameManager():
                found = self._sym_gen(key)
            if not (isinstance(found, tuple) and len(found) == 3):
                raise ValueError(f"sym_gen({key!r}) returned {type(found).__name__}; needed (symbol, data names, label names)")
            self._generated[key] = Bucket(found[0], list(found[1] or ()), list(found[2] or ()))
        return self._generated[key]

    def _new_module(self, key: Any) -> Module:
        """The module of a bucket, not bound yet; only the default bucket must have all fixed parameters and states."""
        symbol, data_names, label_names = self._bucket(key)
        has = set(symbol.list_arguments())
        whole = key == self._default_key
        fixed, states = ([n for n in names if whole or n in has] for names in (self._fixed, self._state_names))
        names = {"fixed_param_names": fixed, "state_names": states}
        return self._module_class(symbol, data_names, label_names, **names, **self._settings)

    @property
    def _default(self) -> Module:
        return self._buckets[self._default_key]

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
        """Bind the default bucket; the others are bound by `switch_bucket`, which `forward` calls.

        Args:
            data_shapes, label_shapes: of a batch of the default bucket.
            for_training, inputs_need_grad, grad_req: as for `Module.bind`, for all buckets.
            force_rebind: bind again; parameters and optimizer stay.
            shared_module: must be None.

        Raises:
            ValueError: as `Module.bind`.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        assert shared_module is None, "shared_module for BucketingModule is not supported"
        self._settle()
        before = self._default if self.binded and self.params_initialized else None
        self._grad_req = grad_req
        fresh = self._new_module(self._default_key)
        fresh.bind(data_shapes, label_shapes, for_training, inputs_need_grad, shared_module=before, grad_req=grad_req)
        self._buckets = {self._default_key: fresh}
        self._curr_module, self._curr_bucket_key, self._active = fresh, self._default_key, None
        self.for_training, self.inputs_need_grad, self.binded = for_training, inputs_need_grad, True
        if self._loaded is not None:
            fresh.init_params(None, *self._loaded, allow_extra=True)
            self._loaded = None
        if before is not None and self._monitor is not None:
            fresh.install_monitor(self._monitor)

    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Make a bucket the current one; bind it if this is its first time.

        Args:
            bucket_key: its key.
            data_shapes: descriptions of its data; only read when it is bound.
            label_shapes: the same for its labels.

        Raises:
            ValueError: its symbol has a parameter that the default bucket lacks, or one of another shape.
        """
        assert self.binded, "call bind before switching bucket"
        if bucket_key not in self._buckets:
            self._buckets[bucket_key] = self._bound(bucket_key, data_shapes, label_shapes)
        self._curr_module, self._curr_bucket_key = self._buckets[bucket_key], bucket_key

    def _bound(self, key: Any, data_shapes: Any, label_shapes: Any) -> Module:
        """A new bucket over the arrays of the default one."""
        module, default = self._new_module(key), self._default
        mine, whole = module.binding, default.binding
        extra = [n for n in (*mine.params, *mine.aux) if n not in whole.params and n not in whole.aux]
        if extra:
            raise ValueError(
                f"bucket {key!r} has the parameter {extra[0]!r}, which the default bucket {self._default_key!r} lacks; "
                "default_bucket_key must be the key of a network that has all parameters"
            )
        request = self._grad_req
        if isinstance(request, Mapping):
            request = {name: word for name, word in request.items() if name in mine.arguments}
        need = self.inputs_need_grad
        try:
            module.bind(data_shapes, label_shapes, self.for_training, need, shared_module=default, grad_req=request)
        except ValueError as error:
            raise ValueError(f"bucket {key!r} (default bucket {self._default_key!r}): {error}") from error
        # As in MXNet, "add" adds over the batches of all buckets, and a state that one bucket sets is read by the others.
        module.passes.gradients = default.passes.gradients
        if [(k, v.shape) for k, v in mine.states.items()] == [(k, v.shape) for k, v in whole.states.items()]:
            mine.states = whole.states
        if self._monitor is not None:
            module.install_monitor(self._monitor)
        return module

    # -------------------------------------------------------------------------------- parameters
    def _sync_devices(self) -> None:
        self._settle()
        self._default._sync_devices()

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(parameters, auxiliary states) of all buckets: copies."""
        require(self, "get_params", "params_initialized")
        if self._loaded is not None:
            params, aux = ({k: self.arrays.wrap(v) for k, v in tree.items()} for tree in self._loaded)
            return params, aux
        self._settle()
        return self._default.get_params()

    def init_params(
        self,
        initializer: Any = DEFAULT,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set and draw the parameters, as `Module.init_params`."""
        if self.params_initialized and not force_init:
            return
        assert self.binded, "call bind before initializing the parameters"
        self._settle()
        self._default.init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        self.params_initialized = True

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters, as `Module.set_params`."""
        assert self.binded, "call bind before setting the parameters"
        self._settle()
        self._default.set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)
        self.params_initialized = True

    # -------------------------------------------------------------------------------- optimizer
    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose the optimizer of all buckets, as `Module.init_optimizer`; the batch size is that of the current bucket."""
        assert self.binded and self.params_initialized, "call bind and init_params before init_optimizer"
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring.")
            return
        self._settle()
        params = dict(optimizer_params)
        if isinstance(optimizer, str):
            params.setdefault("rescale_grad", 1.0 / rows_of_batch(self._curr_module.data_shapes))
        self._default.init_optimizer(kvstore, optimizer, params, force_init)
        for module in self._buckets.values():
            if module is not self._default:
                module.borrow_optimizer(self._default)
        self._default.parameters.count_each()  # now: a bucket with fewer parameters must not change the programs of the others
        self.optimizer_initialized = True

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer state of all buckets; see `Module.save_optimizer_states`."""
        require(self, "save_optimizer_states", "optimizer_initialized")
        self._settle()
        self._default.save_optimizer_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Read it; see `Module.load_optimizer_states`."""
        require(self, "load_optimizer_states", "optimizer_initialized")
        self._settle()
        self._default.load_optimizer_states(fname)
        self._default.parameters.count_each()

    # -------------------------------------------------------------------------------- computing
    def _switch_to(self, data_batch: Any) -> None:
        """Make the bucket of a batch the current one."""
        key = getattr(data_batch, "bucket_key", None)
        if key is None:
            raise ValueError(
                "the batch has no bucket_key, which tells a BucketingModule the network to run; take batches from an iterator "
                "that sets it, or pass DataBatch(..., bucket_key=, provide_data=, provide_label=)"
            )
        if key in self._buckets:
            self.switch_bucket(key, None)
            return
        bucket = self._bucket(key)
        data = getattr(data_batch, "provide_data", None) or _shown(bucket.data_names, data_batch.data)
        labels = getattr(data_batch, "provide_label", None) or _shown(bucket.label_names, data_batch.label)
        self.switch_bucket(key, data, labels or None)

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Bind the bucket of a batch that comes soon; the current bucket stays the current one."""
        require(self, "prepare", "binded", "params_initialized")
        key = self._curr_bucket_key
        self._switch_to(data_batch)
        self._curr_module.prepare(data_batch, sparse_row_id_fn)
        self.switch_bucket(key, None)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch with the network of its `bucket_key`.

        Raises:
            ValueError: the batch has no bucket_key, or its network has parameters that the default bucket lacks.
        """
        require(self, "forward", "binded", "params_initialized")
        self._switch_to(data_batch)
        if self._active is not self._curr_module:
            self._settle()
        self._active = self._curr_module
        self._curr_module.forward(data_batch, is_train)

    def _settle(self) -> None:
        """Run what still waits in the module of the last forward pass."""
        if self._active is not None:
            self._active._settle()

    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last forward pass."""
        self._curr_module.backward(out_grads)

    def update(self) -> None:
        """One update of the parameters of the current bucket's network."""
        self._curr_module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward pass."""
        return self._curr_module.get_outputs(merge_multi_context)

    def _without_padding(self, pad: int) -> list[Any]:
        return self._curr_module._without_padding(pad)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data inputs."""
        return self._curr_module.get_input_grads(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Add the last batch to a metric."""
        self._curr_module.update_metric(eval_metric, labels, pre_sliced)

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The arrays of `state_names` of the current bucket."""
        return self._curr_module.get_states(merge_multi_context)

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set them, as `Module.set_states`."""
        self._curr_module.set_states(states, value)

    def install_monitor(self, mon: Any) -> None:
        """Let a Monitor see the arrays of every bucket."""
        require(self, "install_monitor", "binded")
        self._monitor = mon
        for module in self._buckets.values():
            module.install_monitor(mon)

    # -------------------------------------------------------------------------------- files
    def save_checkpoint(self, prefix: str, epoch: int, remove_amp_cast: bool = False) -> None:
        """Write `prefix-%04d.params`, `prefix-<key>-symbol.json` of each bucket and `prefix.buckets`, all readable by MXNet.

        Raises:
            ValueError: a bucket key that is no integer, which the format cannot hold.
        """
        assert self._buckets, "Empty BucketingModule cannot be saved"
        wrong = [k for k in self._buckets if isinstance(k, bool) or not isinstance(k, (int, np.integer))]
        if wrong:
            raise ValueError(
                f"bucket key {wrong[0]!r} is no integer, and {prefix}.buckets holds integers only; use integer keys, or "
                "save_params and, for each bucket, symbol.save"
            )
        self.save_params(f"{prefix}-{epoch:04d}.params")
        for key in self._buckets:
            self._bucket(key).symbol.save(f"{prefix}-{key}-symbol.json", remove_amp_cast=remove_amp_cast)
        save_arrays(f"{prefix}.buckets", [np.asarray(list(self._buckets), np.int32)])

    @classmethod
    def load(cls, prefix: str, epoch: int, sym_gen: Any = None, default_bucket_key: Any = None, **kwargs: Any) -> Any:
        """A module from the files of `save_checkpoint`; `bind` it, then go on.

        Args:
            prefix, epoch: name the files.
            sym_gen: gives the names of inputs and, for keys that are not in the files, graphs.
            default_bucket_key: as for `BucketingModule`.
            **kwargs: as for `BucketingModule`.

        Raises:
            FormatError: a damaged file.
        """
        where = f"{prefix}.buckets"
        held = load_arrays(where)
        if not isinstance(held, list) or len(held) != 1 or getattr(held[0], "ndim", 0) != 1:
            raise FormatError(where, "arrays", "needed one list of integer bucket keys", "save the checkpoint again.")
        symbols = {int(k): cls.arrays.symbol(load_symbol(f"{prefix}-{int(k)}-symbol.json")) for k in np.asarray(held[0])}
        return cls.load_dict(symbols, sym_gen, default_bucket_key, *files.load_params(prefix, epoch), **kwargs)

    @classmethod
    def load_dict(
        cls,
        sym_dict: Mapping[Any, Any] | None = None,
        sym_gen: Any = None,
        default_bucket_key: Any = None,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """A module from graphs by bucket key and parameters by name; `bind` it, then go on."""
        given = {"sym_dict": sym_dict, "sym_gen": sym_gen, "default_bucket_key": default_bucket_key}
        for name, value in {**given, "arg_params": arg_params, "aux_params": aux_params}.items():
            assert value is not None, f"{name} is required for loading a BucketingModule"
        module = cls(sym_gen, default_bucket_key, **kwargs)
        for key, symbol in (sym_dict or {}).items():
            module._generated[key] = module._bucket(key)._replace(symbol=symbol)
        module._curr_module = module._new_module(default_bucket_key)
        module._loaded, module.params_initialized = (dict(arg_params or {}), dict(aux_params or {})), True
        return module


def _shown(names: Iterable[str], arrays: Any) -> list[Any]:
    """Descriptions of the arrays of a batch that brings none."""
    return [desc_of(name, array, None) for name, array in zip(names, arrays or (), strict=False)]
