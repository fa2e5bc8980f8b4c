"""BucketingModule: networks of different sequence lengths that share parameters, optimizer and optimizer state."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jfit.formats.atomic import FormatError
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.graph import load as load_symbol
from jfit.graph.scopes import NameManager
from jfit.mxnet import files
from jfit.mxnet.kvstore.store import create, workers_of
from jfit.mxnet.module.base import BaseModule, BindRequest, attribute, require
from jfit.mxnet.module.binding import desc_of, rows_of_batch
from jfit.mxnet.module.module import Module


class Bucket(NamedTuple):
    """The result of `sym_gen` for a bucket key."""

    symbol: Any
    data_names: list[str]
    label_names: list[str]


def _of_current(name: str) -> Any:
    """Return the method that calls the method `name` of the module of the current bucket."""

    @functools.wraps(getattr(Module, name))
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._curr_module, name)(*args, **kwargs)

    return call


class BucketingModule(BaseModule):
    """A module whose network depends on the batch's `bucket_key`, such as an RNN unrolled to the length of its sentences.

    Every bucket is a `Module` that shares the parameters and optimizer state of the default bucket.  It is compiled at its
    first batch.

    Differences from MXNet 1.9.1: checkpoints contain the graphs that were bound (MXNet calls `sym_gen` again); the optimizer
    is kept by `bind(force_rebind=True)`; optimizer state can be saved; buckets with fewer parameters work with every kvstore
    (MXNet confuses their indices if the kvstore does not update).

    Args:
        sym_gen: function from a bucket key to (symbol, data names, label names); called once for each key, with automatic
            node names that start at 0.
        default_bucket_key: key of the network that has all parameters, for example the longest sequence length.
        logger: logger for messages.
        context: a device or a list of devices.
        work_load_list: relative share of each device; None means equal shares.
        fixed_param_names: parameters that get no gradient and no update.
        state_names: inputs whose values persist in the module; buckets with states of equal names and shapes share them.
        group2ctxs: `ctx_group` -> device, as for `Module`; parameters are on the devices of their groups in the default bucket.
        compression_params: gradient compression `{"type": "2bit", "threshold": 0.5}`, for kvstore "device".

    Raises:
        ValueError: a name is not an argument of the default symbol.

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
        assert default_bucket_key is not None, "BucketingModule needs default_bucket_key=, of the network with all parameters"
        self._sym_gen, self._default_key = sym_gen, default_bucket_key
        self._settings = {"logger": logger, "context": context, "work_load_list": work_load_list}
        self._settings |= {"group2ctxs": group2ctxs, "compression_params": compression_params}
        self._fixed, self._state_names = list(fixed_param_names or ()), list(state_names or ())
        self._generated: dict[Any, Bucket] = {}
        self._buckets: dict[Any, Module] = {}  # bound modules by key
        self._curr_bucket_key: Any = default_bucket_key
        self._curr_module = self._new_module(default_bucket_key)  # also checks the names
        self._loaded: Any = None  # (parameters, auxiliary states) of a checkpoint, for bind
        self._monitor: Any = None
        self._grad_req: Any = "write"

    # -------------------------------------------------------------------------------- properties
    data_names = attribute("_curr_module.data_names", "Names of the data inputs of the current bucket.")
    label_names = attribute("_curr_module.label_names", "Names of the labels of the current bucket.")
    output_names = attribute("_curr_module.output_names", "Names of the outputs of the current bucket.")
    data_shapes = attribute("_curr_module.data_shapes", "Descriptions of the data inputs of the current bucket.")
    label_shapes = attribute("_curr_module.label_shapes", "Descriptions of the labels of the current bucket.")
    output_shapes = attribute("_curr_module.output_shapes", "(name, shape) of each output of the current bucket.")
    symbol = attribute("_curr_module.symbol", "Symbol of the current bucket.")

    # -------------------------------------------------------------------------------- buckets
    def _bucket(self, key: Any) -> Bucket:
        """Return the graph and input names of a bucket key; cached, so that `sym_gen` is called once for each key."""
        if key not in self._generated:
            with NameManager():
                symbol, data_names, label_names = self._sym_gen(key)
            self._generated[key] = Bucket(symbol, list(data_names or ()), list(label_names or ()))
        return self._generated[key]

    def _new_module(self, key: Any) -> Module:
        """Create the unbound module of a bucket; only the default bucket must have all fixed parameters and states."""
        symbol, data_names, label_names = self._bucket(key)
        arguments = set(symbol.list_arguments())
        default = key == self._default_key
        fixed, states = ([n for n in names if default or n in arguments] for names in (self._fixed, self._state_names))
        names = {"fixed_param_names": fixed, "state_names": states}
        return self._module_class(symbol, data_names, label_names, **names, **self._settings)

    @property
    def _default(self) -> Module:
        return self._buckets[self._default_key]

    def _bind(self, data_shapes: Any, label_shapes: Any, request: BindRequest) -> None:
        """Bind the default bucket; other buckets are bound by `switch_bucket`, which `forward` calls."""
        assert request.shared_module is None, "shared_module for BucketingModule is not supported"
        previous = self._default if self.binded and self.params_initialized else None
        if previous is not None:
            previous._settle()
        self._grad_req = request.grad_req
        module = self._new_module(self._default_key)
        module.bind(data_shapes, label_shapes, *request._replace(force_rebind=False, shared_module=previous))
        self._buckets = {self._default_key: module}
        self._curr_module, self._curr_bucket_key = module, self._default_key
        if self._loaded is not None:
            module.init_params(None, *self._loaded)
            self._loaded = None
        if previous is not None and self._monitor is not None:
            module.install_monitor(self._monitor)

    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Make a bucket the current one, and bind it at its first use.

        Args:
            bucket_key: key of the bucket.
            data_shapes: descriptions of its data inputs; only used when it is bound.
            label_shapes: the same for its labels.

        Raises:
            ValueError: its symbol has a parameter that the default bucket lacks, or one with a different shape.
        """
        assert self.binded, "call bind before switching bucket"
        if bucket_key not in self._buckets:
            self._buckets[bucket_key] = self._bound(bucket_key, data_shapes, label_shapes)
        self._curr_module, self._curr_bucket_key = self._buckets[bucket_key], bucket_key

    def _bound(self, key: Any, data_shapes: Any, label_shapes: Any) -> Module:
        """Create and bind the module of a bucket, which shares the parameters of the default bucket."""
        module, default = self._new_module(key), self._default
        binding, whole = module.binding, default.binding
        request = self._grad_req
        if isinstance(request, Mapping):
            request = {name: value for name, value in request.items() if name in binding.arguments}
        need = self.inputs_need_grad
        try:
            module.bind(data_shapes, label_shapes, self.for_training, need, shared_module=default, grad_req=request)
        except ValueError as error:
            default_bucket = f"default bucket {self._default_key!r}, which must have all parameters"
            raise ValueError(f"bucket {key!r} ({default_bucket}): {error}") from error
        # As in MXNet, grad_req "add" accumulates over the batches of all buckets, and state inputs are shared.
        module.passes.gradients = default.passes.gradients
        if [(k, v.shape) for k, v in binding.states.items()] == [(k, v.shape) for k, v in whole.states.items()]:
            binding.states = whole.states
        if self._monitor is not None:
            module.install_monitor(self._monitor)
        return module

    # -------------------------------------------------------------------------------- parameters
    def _sync_devices(self) -> None:
        self._default._sync_devices()

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return copies of (parameters, auxiliary states), which all buckets share."""
        require(self, "get_params", "params_initialized")
        if self._loaded is not None:
            params, aux = ({k: self.arrays.wrap(v) for k, v in tree.items()} for tree in self._loaded)
            return params, aux
        return self._default.get_params()

    def _init_params(self, initializer: Any, arg_params: Any, aux_params: Any, *options: bool) -> None:
        self._default.init_params(initializer, arg_params, aux_params, *options)

    def _set_params(self, arg_params: Any, aux_params: Any, *options: bool) -> None:
        assert self.binded, "call bind before setting the parameters"
        self._default.set_params(arg_params, aux_params, *options)
        self.params_initialized = True

    # -------------------------------------------------------------------------------- optimizer
    def _init_optimizer(self, kvstore: Any, optimizer: Any, optimizer_params: Any, force_init: bool) -> None:
        """Set the optimizer of all buckets; the batch size is that of the current bucket."""
        params = dict(optimizer_params)
        if isinstance(kvstore, str) and "dist" in kvstore:
            kvstore = create(kvstore)
        if isinstance(optimizer, str):
            rows = rows_of_batch(self._curr_module.data_shapes) * workers_of(kvstore)
            params.setdefault("rescale_grad", 1.0 / rows)
        self._default.init_optimizer(kvstore, optimizer, params, force_init)
        for module in self._buckets.values():
            if module is not self._default:
                module.borrow_optimizer(self._default)
        # Now, not at the first bucket with fewer parameters, where it would recompile the programs of all buckets.
        self._default.parameters.count_per_parameter()

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer state, which all buckets share, from a file, as `Module.load_optimizer_states` does."""
        require(self, "load_optimizer_states", "optimizer_initialized")
        self._default.load_optimizer_states(fname)
        self._default.parameters.count_per_parameter()

    # -------------------------------------------------------------------------------- computing
    def _switch_to(self, data_batch: Any) -> None:
        """Make the bucket of a batch the current one."""
        key = getattr(data_batch, "bucket_key", None)
        if key is None:
            raise ValueError("the batch has no bucket_key, by which a BucketingModule selects the network")
        if key in self._buckets:
            self.switch_bucket(key, None)
            return
        bucket = self._bucket(key)
        data = getattr(data_batch, "provide_data", None) or _described(bucket.data_names, data_batch.data)
        labels = getattr(data_batch, "provide_label", None) or _described(bucket.label_names, data_batch.label)
        self.switch_bucket(key, data, labels or None)

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Bind the bucket of a coming batch; the current bucket is unchanged."""
        require(self, "prepare", "binded", "params_initialized")
        key = self._curr_bucket_key
        self._switch_to(data_batch)
        self._curr_module.prepare(data_batch, sparse_row_id_fn)
        self.switch_bucket(key, None)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run the forward pass of a batch with the network of its `bucket_key`.

        Raises:
            ValueError: the batch has no bucket_key, or its network has parameters that the default bucket lacks.
        """
        require(self, "forward", "binded", "params_initialized")
        self._switch_to(data_batch)
        self._default._settle()  # the pass of another bucket may add to the same gradients
        self._curr_module.forward(data_batch, is_train)

    backward, update = _of_current("backward"), _of_current("update")
    get_outputs, get_input_grads = _of_current("get_outputs"), _of_current("get_input_grads")
    get_states, set_states = _of_current("get_states"), _of_current("set_states")
    update_metric, save_optimizer_states = _of_current("update_metric"), _of_current("save_optimizer_states")
    _problem_of, _without_padding = _of_current("_problem_of"), _of_current("_without_padding")

    def install_monitor(self, mon: Any) -> None:
        """Attach a Monitor to every bucket."""
        require(self, "install_monitor", "binded")
        self._monitor = mon
        for module in self._buckets.values():
            module.install_monitor(mon)

    # -------------------------------------------------------------------------------- files
    def save_checkpoint(self, prefix: str, epoch: int, remove_amp_cast: bool = False) -> None:
        """Write `prefix-%04d.params`, `prefix-<key>-symbol.json` of each bucket and `prefix.buckets`, in MXNet's formats.

        Raises:
            ValueError: a bucket key is not an integer, which the format requires.
        """
        assert self._buckets, "Empty BucketingModule cannot be saved"
        wrong = [k for k in self._buckets if isinstance(k, bool) or not isinstance(k, (int, np.integer))]
        if wrong:
            raise ValueError(f"bucket key {wrong[0]!r} is not an integer, as {prefix}.buckets needs; use save_params instead")
        self.save_params(f"{prefix}-{epoch:04d}.params")
        for key in self._buckets:
            self._bucket(key).symbol.save(f"{prefix}-{key}-symbol.json", remove_amp_cast=remove_amp_cast)
        save_arrays(f"{prefix}.buckets", [np.asarray(list(self._buckets), np.int32)])

    @classmethod
    def load(cls, prefix: str, epoch: int, sym_gen: Any = None, default_bucket_key: Any = None, **kwargs: Any) -> Any:
        """Create a module from the files of `save_checkpoint`; call `bind` before using it.

        Args:
            prefix: path and first part of the file names.
            epoch: number in the name of the parameter file.
            sym_gen: as for `BucketingModule`; used for input names, and for the graphs of keys that are not in the files.
            default_bucket_key: as for `BucketingModule`.
            **kwargs: further arguments of `BucketingModule`.

        Returns:
            BucketingModule.

        Raises:
            FormatError: a file is damaged.
        """
        where = f"{prefix}.buckets"
        keys = load_arrays(where)
        if not isinstance(keys, list) or len(keys) != 1 or getattr(keys[0], "ndim", 0) != 1:
            raise FormatError(where, "arrays", "expected one list of integer bucket keys", "save the checkpoint again.")
        paths = {int(key): f"{prefix}-{int(key)}-symbol.json" for key in np.asarray(keys[0])}
        symbols = {key: cls.arrays.symbol(load_symbol(path)) for key, path in paths.items()}
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
        """Create a module from graphs by bucket key and parameters by name; call `bind` before using it."""
        required = {"sym_dict": sym_dict, "sym_gen": sym_gen, "default_bucket_key": default_bucket_key}
        for name, value in {**required, "arg_params": arg_params, "aux_params": aux_params}.items():
            assert value is not None, f"{name} is required for loading a BucketingModule"
        module = cls(sym_gen, default_bucket_key, **kwargs)
        for key, symbol in (sym_dict or {}).items():
            module._generated[key] = module._bucket(key)._replace(symbol=symbol)
        module._curr_module = module._new_module(default_bucket_key)
        module._loaded, module.params_initialized = (dict(arg_params or {}), dict(aux_params or {})), True
        return module


def _described(names: Iterable[str], arrays: Any) -> list[Any]:
    """Return DataDesc descriptions of the arrays of a batch without `provide_data`."""
    return [desc_of(name, array) for name, array in zip(names, arrays or (), strict=False)]
