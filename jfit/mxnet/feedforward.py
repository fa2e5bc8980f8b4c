"""FeedForward, MXNet's estimator class, which is older than Module."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jfit import counters
from jfit.data import NDArrayIter
from jfit.mxnet import files
from jfit.mxnet import metric as metrics
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.callback import BatchEndParam, LogValidationMetricsCallback
from jfit.mxnet.logs import of_worker
from jfit.mxnet.module.base import call, listed
from jfit.mxnet.module.binding import describe, same_shapes, wrapped_rows
from jfit.mxnet.module.bucketing import BucketingModule
from jfit.mxnet.module.initial import DEFAULT, check_names
from jfit.mxnet.module.module import Module
from jfit.mxnet.mutable import as_array
from jfit.parallel.contexts import check_entry, cpu

Params = dict[str, Any]
_INPUTS = ("data", "label")  # arguments of a network whose names end so are inputs, not parameters


class FeedForwardModule(Module):
    """Module for FeedForward, which differs from Module in two ways, as in MXNet.

    Metrics get labels and outputs by position, not by name.  There is no warning if the rescale_grad of an Optimizer object is
    not 1 / batch size.
    """

    _warns_of_scale = False

    def _fold(self, eval_metric: Any, labels: list[Any], outputs: list[Any], weights: Any) -> None:
        eval_metric.fold(labels, outputs, weights)


class FeedForwardBucketingModule(BucketingModule):
    """FeedForwardModule for a network that depends on the batch's `bucket_key`."""

    _module_class = FeedForwardModule


class FeedForward:
    """A network with its parameters, trained on arrays or data iterators.

    The training settings are attributes of the object: `FeedForward(net, num_epoch=10, learning_rate=0.1)`, then `fit(X, y)`.

    Differences from MXNet: `predict` and `score` use the current parameters (MXNet's those of the first call); padding rows
    are excluded from metrics; metrics on several devices are computed over the whole batch; initializers in attributes of
    variables are used.

    Args:
        symbol: the network, or a function bucket key -> network.
        ctx: a device or a list of devices; default cpu(0).
        num_epoch: number of the epoch at which training ends (exclusive).
        epoch_size: number of batches per epoch; None: one pass over the data.
        optimizer: name of an optimizer, or an Optimizer.
        initializer: initializer of missing parameters; "default" is Uniform(0.01).
        numpy_batch_size: batch size if X is an array.
        arg_params, aux_params: parameters and auxiliary states by name.
        allow_extra_params: drop parameters that the network does not have; if False, `fit` ignores them, and `predict` and
            `score` raise a ValueError, as in MXNet.
        begin_epoch: number of the first epoch.
        **kwargs: arguments of an optimizer given by name.

    Raises:
        ValueError: the network has duplicate names.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
        >>> model = FeedForward(net, num_epoch=20, numpy_batch_size=8, learning_rate=1.0)
        >>> model.fit(x, x.argmax(1))
        >>> model.predict(x).argmax(1).tolist() == x.argmax(1).tolist()
        True
        >>> model.score((x, x.argmax(1)))
        1.0

    Source: Apache MXNet 1.9.1, `mxnet.model.FeedForward`.
    """

    arrays: ArrayTypes = PLAIN
    symbol: Any  # None while it is a function of the bucket key that no data has called
    arg_params: Any  # None if not initialized
    aux_params: Any
    _python_module: type[FeedForwardModule] = FeedForwardModule
    _bucket_module: type[FeedForwardBucketingModule] = FeedForwardBucketingModule

    def __init__(
        self,
        symbol: Any,
        ctx: Any = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: Any = "sgd",
        initializer: Any = DEFAULT,
        numpy_batch_size: int = 128,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
        begin_epoch: int = 0,
        **kwargs: Any,
    ) -> None:
        check_entry("FeedForward", several=True)
        self.ctx = [cpu()] if ctx is None else list(ctx) if type(ctx) in (list, tuple) else [ctx]
        self.symbol, self.sym_gen = (symbol, None) if hasattr(symbol, "list_arguments") else (None, symbol)
        self.arg_params = None if arg_params is None else dict(arg_params)
        self.aux_params = None if aux_params is None else dict(aux_params)
        self.allow_extra_params = allow_extra_params
        self.num_epoch, self.epoch_size, self.begin_epoch = num_epoch, epoch_size, begin_epoch
        self.optimizer, self.initializer, self.kwargs = optimizer, initializer, kwargs
        self.numpy_batch_size = numpy_batch_size
        self._predictor: Any = None  # the module of the last prediction
        self._check_arguments()

    def _check_arguments(self) -> None:
        """Raise ValueError for duplicate argument names; drop unknown parameters if allow_extra_params is set."""
        if self.symbol is None:
            return
        arguments, aux = self.symbol.list_arguments(), self.symbol.list_auxiliary_states()
        twice = [n for n in dict.fromkeys([*arguments, *aux]) if [*arguments, *aux].count(n) > 1]
        if twice:
            raise ValueError(f"the network has the name {twice[0]!r} more than once; rename one argument or auxiliary state.")
        if self.allow_extra_params:
            self.arg_params = self.arg_params and {n: v for n, v in self.arg_params.items() if n in arguments}
            self.aux_params = self.aux_params and {n: v for n, v in self.aux_params.items() if n in aux}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_predictor": None}

    # -------------------------------------------------------------------------------- parameters
    def _checked_params(self) -> tuple[Params, Params]:
        """Return (parameters, auxiliary states) by name; raise ValueError if they are not initialized."""
        if self.symbol is None or self.arg_params is None:
            raise ValueError("the model has no parameters yet; call fit, or load a checkpoint.")
        return self.arg_params, self.aux_params or {}

    def copy_params_from(self, module: Any) -> None:
        """Copy the parameters of a module; of values that differ between devices, copy their mean."""
        self.arg_params, self.aux_params = module.get_params()

    @contextlib.contextmanager
    def keep_params(self, module: Any) -> Iterator[None]:
        """Context manager: when the block ends, also by an error or interrupt, copy the module's parameters to the model."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the arrays may be donated or lost with the device
                self.copy_params_from(module)
            raise
        self.copy_params_from(module)

    # -------------------------------------------------------------------------------- training
    def fit(
        self,
        X: Any,
        y: Any = None,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Any = None,
        batch_end_callback: Any = None,
        kvstore: Any = "local",
        logger: Any = None,
        work_load_list: Any = None,
        monitor: Any = None,
        eval_end_callback: Any = LogValidationMetricsCallback(),  # noqa: B008
        eval_batch_end_callback: Any = None,
    ) -> None:
        """Train from epoch `begin_epoch` to `num_epoch`, with new optimizer state.

        Args:
            X: data iterator, or array (N, ...).
            y: labels (N,) or (N, 1), if X is an array.
            eval_data: validation data for each epoch: data iterator, or (X, y), or None.
            eval_metric: metric of training and validation, in any form that `mx.metric.create` accepts.
            epoch_end_callback: function or list of functions, called with (epoch, symbol, arg_params, aux_params).
            batch_end_callback: function or list of functions, called with a BatchEndParam whose `nbatch` starts at 1.
            kvstore: "local", "device", ..., a KVStore, or None.
            logger: logger of the training; None: the root logger.
            work_load_list: relative workload per device.
            monitor: a Monitor, or None.
            eval_end_callback, eval_batch_end_callback: called with a BatchEndParam after the validation, and after each of
                its batches.

        Raises:
            AssertionError: num_epoch is not set.
            TypeError: rescale_grad is set for an optimizer given by name.
            ValueError: data, labels or parameters do not match the network.
        """
        assert self.num_epoch is not None, "num_epoch is missing: FeedForward(symbol, num_epoch=10) trains for 10 epochs."
        if isinstance(self.optimizer, str) and "rescale_grad" in self.kwargs:
            raise TypeError("FeedForward sets rescale_grad of a named optimizer to 1 / batch size; pass an Optimizer.")
        if self.sym_gen is not None:
            self.symbol = self.sym_gen(X.default_bucket_key)
            self._check_arguments()
        data, valid = self._iter(X, y, True, "roll_over"), self._eval_iter(eval_data)
        module = self._training_module(data, kvstore, logger or logging, work_load_list)
        if monitor is not None:
            module.install_monitor(monitor)
        batch_callbacks = [functools.partial(_count_from_one, c) for c in listed(batch_end_callback)]
        data.reset()
        with self.keep_params(module), module._stoppable():
            metric = metrics.create(eval_metric)
            for epoch in range(self.begin_epoch, self.num_epoch):
                start = time.time()
                log_reset = functools.partial(module.logger.info, of_worker("Epoch[%d] Resetting Data Iterator"), epoch)
                metric.reset()
                batches = data if self.epoch_size is None else _sized_epoch(data, self.epoch_size, log_reset)
                module._fit_epoch(batches, metric, batch_callbacks, monitor, epoch, {})
                if batches is data:
                    log_reset()
                    data.reset()
                module.logger.info(of_worker("Epoch[%d] Time cost=%.3f"), epoch, time.time() - start)
                if epoch_end_callback is not None or epoch + 1 == self.num_epoch:
                    self.copy_params_from(module)
                for callback in listed(epoch_end_callback):
                    callback(epoch, self.symbol, self.arg_params, self.aux_params)
                if valid is not None:
                    module.score(valid, metric, None, eval_batch_end_callback, eval_end_callback, epoch=epoch)
                    valid.reset()
                module._stop_if_asked()

    def _training_module(self, data: Any, kvstore: Any, logger: Any, work_load_list: Any) -> Any:
        """Create a bound module with parameters and a new optimizer, after checking that the data has all inputs."""
        inputs, labels = describe(data.provide_data), describe(data.provide_label)
        names, label_names = [d.name for d in inputs], [d.name for d in labels]
        for name in self.symbol.list_arguments():
            if name.endswith(_INPUTS) and name not in (*names, *label_names, *(self.arg_params or ())):
                raise ValueError(f"the network has the input {name!r}, but the data has {names + label_names}.")
        shared = {"logger": logger, "context": self.ctx, "work_load_list": work_load_list}
        make = self.sym_gen
        if make is None:
            module = self._python_module(self.symbol, names, label_names, **shared)
        else:
            module = self._bucket_module(lambda key: (make(key), names, label_names), data.default_bucket_key, **shared)
        module.bind(inputs, labels)
        module.init_params(self.initializer, self.arg_params, self.aux_params, True)
        self.copy_params_from(module)
        module.init_optimizer(kvstore, self.optimizer, self.kwargs)
        logger.info(of_worker("Start training with %s"), self.ctx)
        return module

    # -------------------------------------------------------------------------------- data
    def _iter(self, X: Any, y: Any, shuffle: bool, tail: str, labels: bool = True) -> Any:
        """Return an iterator unchanged, and arrays as an `NDArrayIter`.

        The network's arguments whose names end with `data` and `label` are those of the arrays.

        Args:
            X: data iterator, or array (N, ...).
            y: labels (N,) or (N, 1).
            shuffle: whether to shuffle the rows.
            tail: `last_batch_handle` of the `NDArrayIter`; "roll_over" moves the rows of an incomplete batch to the next epoch.
            labels: False: `y` may be None, and labels are zeros (for predictions).
        """
        if hasattr(X, "provide_data"):
            return X
        if y is None and labels:
            raise ValueError("y is missing: an array X needs one label per row; or pass an iterator with labels.")
        rows = int(X.shape[0])
        y = np.zeros(rows, np.float32) if y is None else as_array(y)
        if tuple(y.shape) not in ((rows,), (rows, 1)):
            raise ValueError(f"y has shape {tuple(y.shape)}; expected one label for each of the {rows} rows of X.")
        names = []
        for ending, default in (("data", "data"), ("label", "softmax_label")):
            found = [n for n in self.symbol.list_arguments() if n.endswith(ending)]
            names.append(found[0] if len(found) == 1 else default)
        return NDArrayIter(X, y.reshape(rows), min(rows, self.numpy_batch_size), shuffle, tail, *names)

    def _eval_iter(self, eval_data: Any) -> Any:
        """Return validation data as an iterator, or None; a pair (X, y) of arrays is wrapped.

        A pair is shuffled as in MXNet, where it uses the same NumPy random numbers as the training data.  Unlike in MXNet, an
        incomplete last batch is not moved to the next pass, so each pass uses every row exactly once.
        """
        if eval_data is None or hasattr(eval_data, "provide_data"):
            return eval_data
        if not isinstance(eval_data, (list, tuple)) or len(eval_data) != 2:
            raise TypeError(f"eval_data is {type(eval_data).__name__}; expected a data iterator or a pair (X, y) of arrays.")
        X, y = (np.array(part) if isinstance(part, list) else part for part in eval_data)
        return self._iter(X, y, True, "pad")

    # -------------------------------------------------------------------------------- predicting
    def predict(self, X: Any, num_batch: int | None = None, return_data: bool = False, reset: bool = True) -> Any:
        """Compute the outputs for all rows, as NumPy arrays; padding rows are removed.

        Args:
            X: data iterator, or array (N, ...).
            num_batch: maximum number of batches; None: all.
            return_data: also return the data and the labels.
            reset: reset the iterator first.

        Returns:
            Array (N, ...), a list of arrays for several outputs, or (outputs, data, labels) with return_data.

        Raises:
            ValueError: the model has no parameters, or the data has no batch.
        """
        self._checked_params()
        data = self._iter(X, None, False, "pad", labels=False)
        module = self._predictor_module(data, reset)
        results: list[Any] = []
        for outputs, _, batch in module.iter_predict(itertools.islice(data, num_batch), reset=False):
            parts = (batch.data, batch.label or ()) if return_data else ()
            real = [[_real_rows(as_array(a), wrapped_rows(batch)) for a in part] for part in parts]
            results.append([[as_array(out) for out in outputs], *real])
        if not results:
            raise ValueError("predict got no batch: the data iterator is empty or exhausted (reset=True resets it).")
        results = counters.read(results)  # sync: the caller gets NumPy arrays
        parts = [[np.concatenate(column) for column in zip(*part, strict=True)] for part in zip(*results, strict=True)]
        single = [part[0] if len(part) == 1 else part for part in parts]
        return tuple(single) if return_data else single[0]

    def score(
        self, X: Any, eval_metric: Any = "acc", num_batch: int | None = None, batch_end_callback: Any = None, reset: bool = True
    ) -> Any:
        """Compute a metric over the data.

        Args:
            X: data iterator, or a pair (X, y) of arrays.
            eval_metric: name, list of names or function; or an EvalMetric, which is not reset first.
            num_batch: maximum number of batches; None: all.
            batch_end_callback: called with a BatchEndParam after each batch.
            reset: reset the iterator first.

        Returns:
            The value of the metric; a list of values for several metrics.

        Raises:
            ValueError: the model has no parameters, or there are no labels (MXNet compares with zeros).
        """
        X, y = X if type(X) in (list, tuple) and len(X) == 2 else (X, None)
        self._checked_params()
        metric, data = metrics.create(eval_metric), self._iter(X, y, False, "pad")
        module = self._predictor_module(data, reset)
        for nbatch, batch in module._evaluated(itertools.islice(data, num_batch), None, False, None):
            module._measure(metric, batch)
            call(batch_end_callback, BatchEndParam(0, nbatch, metric, locals()))
        return metric.get()[1]

    def _predictor_module(self, data: Any, reset: bool) -> FeedForwardModule:
        """Return a module bound to the shapes of this data iterator, with the current parameters.

        The module of the last call is used again if the inputs have the same names; it compiles once per shape.
        """
        if reset:
            data.reset()
        params, aux = self._checked_params()
        inputs, labels = describe(data.provide_data), describe(data.provide_label)
        names = [d.name for d in inputs]
        free = [n for n in self.symbol.list_arguments() if n not in (*params, *names) and n.endswith(_INPUTS)]
        last = module = self._predictor
        if last is None or last.symbol is not self.symbol or (last.data_names, last.label_names) != (names, free):
            module = self._python_module(self.symbol, names, free, context=self.ctx[:1])
        if not (module.binded and same_shapes(module.data_shapes, inputs)):
            self._predictor = None  # a module whose bind fails is not used again
            module.bind(inputs, [d for d in labels if d.name in free], for_training=False, force_rebind=True)
        if not self.allow_extra_params:
            check_names(module.binding, params, aux, "allow_extra_params")
        module.init_params(None, params, aux, force_init=True)
        self._predictor = module
        return module

    # -------------------------------------------------------------------------------- files
    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Write `prefix-symbol.json` and `prefix-%04d.params` in MXNet's format.

        Args:
            prefix: path and first part of the file names.
            epoch: number in the name of the parameter file; None: `num_epoch`.
            remove_amp_cast: remove `amp_cast` nodes from the saved symbol.

        Raises:
            AssertionError: both epoch and num_epoch are None.
            ValueError: the model has no parameters.
        """
        epoch = self.num_epoch if epoch is None else epoch
        assert epoch is not None, "epoch is missing: pass the number of the parameter file, as in save(prefix, 10)."
        params, aux = self._checked_params()
        files.save_checkpoint(prefix, epoch, self.symbol, params, aux, remove_amp_cast)

    @classmethod
    def load(cls, prefix: str, epoch: int, ctx: Any = None, **kwargs: Any) -> Any:
        """Create a model from checkpoint files of jfit or MXNet; `fit` continues at epoch `epoch`.

        Args:
            prefix, epoch: as in `save`.
            ctx, **kwargs: as in `FeedForward`.
        """
        symbol, params, aux = files.load_checkpoint(prefix, epoch)
        params, aux = ({name: cls.arrays.wrap(value) for name, value in tree.items()} for tree in (params, aux))
        return cls(cls.arrays.symbol(symbol), ctx, arg_params=params, aux_params=aux, begin_epoch=epoch, **kwargs)

    @classmethod
    def create(
        cls,
        symbol: Any,
        X: Any,
        y: Any = None,
        ctx: Any = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: Any = "sgd",
        initializer: Any = DEFAULT,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Any = None,
        batch_end_callback: Any = None,
        kvstore: Any = "local",
        logger: Any = None,
        work_load_list: Any = None,
        eval_end_callback: Any = LogValidationMetricsCallback(),  # noqa: B008
        eval_batch_end_callback: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Create a model and train it on X.

        Args:
            symbol, ctx, num_epoch, epoch_size, optimizer, initializer, **kwargs: as in `FeedForward`.
            X, y, eval_data, eval_metric, epoch_end_callback, batch_end_callback: as in `fit`.
            kvstore, logger, work_load_list, eval_end_callback, eval_batch_end_callback: as in `fit`.
        """
        model = cls(symbol, ctx, num_epoch, epoch_size, optimizer, initializer, **kwargs)
        callbacks = (epoch_end_callback, batch_end_callback)
        eval_callbacks = {"eval_end_callback": eval_end_callback, "eval_batch_end_callback": eval_batch_end_callback}
        model.fit(X, y, eval_data, eval_metric, *callbacks, kvstore, logger, work_load_list, **eval_callbacks)
        return model


def _real_rows(array: Any, wrapped: int) -> Any:
    """The rows of a batch without its padding; NumPy arrays are copied, because the next batch may reuse their buffer."""
    rows = array[: array.shape[0] - wrapped]
    return rows.copy() if isinstance(rows, np.ndarray) else rows


def _count_from_one(callback: Any, param: BatchEndParam) -> None:
    """Call a batch callback with an `nbatch` that starts at 1 instead of 0."""
    number = param.nbatch + 1
    callback(param._replace(nbatch=number, locals={**(param.locals or {}), "nbatch": number}))


def _sized_epoch(data: Any, size: int, log_reset: Callable[[], None]) -> Iterator[Any]:
    """Yield `size` batches, starting at the iterator's current position; it is reset whenever it is exhausted."""
    stream = iter(data)
    for _ in range(size):
        batch = next(stream, None)
        if batch is None:
            log_reset()
            data.reset()
            stream = iter(data)
            batch = next(stream, None)
        if batch is None:
            raise ValueError(f"epoch_size is {size}, but the data iterator has no batch after a reset.")
        yield batch
