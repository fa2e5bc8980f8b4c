"""FeedForward: the estimator from before modules, in the traditions of Python and of Julia."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jfit import counters
from jfit.mxnet import files
from jfit.mxnet import metric as metrics
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.callback import BatchEndParam, LogValidationMetricsCallback
from jfit.mxnet.feedforward.callbacks import OptimizationState
from jfit.mxnet.feedforward.data import data_iter, described, eval_iter, is_data_name, sized_epoch
from jfit.mxnet.feedforward.julia import JuliaTraining, TrainingOptions, fitting
from jfit.mxnet.feedforward.modules import JuliaFed, PythonBuckets, PythonFed
from jfit.mxnet.module.base import call, listed
from jfit.mxnet.module.binding import same, wrapped_rows
from jfit.mxnet.module.initial import DEFAULT
from jfit.mxnet.mutable import as_array
from jfit.mxnet.optimizer import Optimizer
from jfit.parallel.devices import cpu
from jfit.train.interrupts import StopFlag

Params = dict[str, Any]


class FeedForward:
    """A network with its parameters, which learns from arrays or iterators and predicts.

    The Python tradition keeps the settings of a training in the object: `FeedForward(net, num_epoch=10, learning_rate=0.1)`,
    then `fit(X, y)`.  MXNet.jl gives them to the call: `FeedForward(net, context=...)`, then `train(optimizer, data,
    n_epoch=10)`, or `fit(optimizer, data, ...)`.  Both write the same parameters, so they can be mixed.

    |                       | Python                                     | Julia                                           |
    |-----------------------|--------------------------------------------|-------------------------------------------------|
    | parameters            | `arg_params=`, or drawn by `fit`           | `init_model(initializer, overwrite, **shapes)`  |
    | one of another shape  | ValueError                                 | a warning, and it is drawn anew                 |
    | batch of 10 on 3      | 3, 3, 4                                    | 4, 3, 3                                         |
    | gradient scale        | name: 1 / batch; object: its own           | name, or object with 0: 1 / batch               |
    | weight decay          | by the names of the parameters             | all parameters                                  |
    | scheduler counts      | updates                                    | epochs (`eta_decay="batch"`: updates)           |
    | epochs are numbered   | from `begin_epoch`                         | from 1                                          |
    | data is reset         | before the training, after each epoch      | before each epoch                               |
    | batch callbacks       | BatchEndParam, nbatch from 1               | OptimizationState, also at batch 0              |
    | epoch callbacks       | (epoch, symbol, arg_params, aux_params)    | (model, state, metric), also at epoch 0         |
    | freezing              | no                                         | attribute `weight_grad="freeze"` on an operator |
    | key-value store       | as Module                                  | `local` becomes local_update_cpu, ..allreduce.. |
    | eval_data             | any batch size                             | the batch size of the training                  |
    | log                   | always                                     | `verbosity` 0 to 3                              |
    | epoch_size, monitor   | yes                                        | no                                              |
    | symbol of a bucket    | `symbol` may be a function of the key      | no                                              |

    In both, arrays are row-major with the batch first (MXNet.jl's own are column-major with the batch last).

    Args:
        symbol: the network, or a function bucket key -> network.
        ctx: a device or a list of them; `context=` is the same.
        num_epoch: number after the last epoch.
        epoch_size: batches of an epoch; None: a pass over the data.
        optimizer: a name or an Optimizer.
        initializer: of missing parameters; "default" is Uniform(0.01).
        numpy_batch_size: rows of a batch where X is an array.
        arg_params: parameters by name.
        aux_params: auxiliary states by name.
        allow_extra_params: names that the network lacks are left out; otherwise they raise (MXNet's fit leaves them out).
        begin_epoch: number of the first epoch.
        **kwargs: parameters of a named optimizer.

    Where it differs from MXNet: `predict` and `score` use the parameters of now (MXNet's keep those of the first call); rows
    that an iterator wrapped around never count in metrics; metrics of several devices are those of the whole batch; MXNet.jl
    runs validation in training mode, with dropout, and here it is evaluation in both traditions; an initializer in a
    variable's attributes is used.

    Example:
        >>> import jfit, numpy as np
        >>> from jfit.mxnet.feedforward.feedforward import FeedForward
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
        >>> model = FeedForward(net, num_epoch=20, numpy_batch_size=8, learning_rate=1.0)
        >>> model.fit(x, x.argmax(1))
        >>> model.predict(x).argmax(1).tolist() == x.argmax(1).tolist()
        True
        >>> julia = FeedForward(net, context=jfit.cpu(0))
        >>> julia.train("sgd", jfit.NDArrayIter(x, x.argmax(1), 8), n_epoch=20, optimizer_params={"learning_rate": 1.0})
        >>> julia.score((x, x.argmax(1)))
        1.0

    Source: Apache MXNet 1.9.1, `mxnet.model.FeedForward`; MXNet.jl, `model.jl`.
    """

    symbol: Any  # None until data tells the first bucket
    arg_params: Any  # dict by name, or None before there are any
    aux_params: Any
    arrays: ArrayTypes = PLAIN
    _python_module: type[PythonFed] = PythonFed
    _bucket_module: type[PythonBuckets] = PythonBuckets
    julia_module: type[JuliaFed] = JuliaFed

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
        *,
        context: Any = None,
        **kwargs: Any,
    ) -> None:
        if ctx is not None and context is not None:
            raise ValueError("both ctx and context were given; they mean the same: pass one.")
        given = ctx if context is None else context
        self.ctx = [cpu()] if given is None else list(given) if type(given) in (list, tuple) else [given]
        is_network = hasattr(symbol, "list_arguments")
        if not is_network and not callable(symbol):
            raise TypeError(f"symbol is {symbol!r}; a Symbol, or a function of the bucket key that gives one, is needed.")
        self.symbol, self.sym_gen = (symbol, None) if is_network else (None, symbol)
        self.arg_params = None if arg_params is None else dict(arg_params)
        self.aux_params = None if aux_params is None else dict(aux_params)
        self.allow_extra_params = allow_extra_params
        self.num_epoch, self.epoch_size, self.begin_epoch = num_epoch, epoch_size, begin_epoch
        self.optimizer, self.initializer, self.kwargs = optimizer, initializer, kwargs
        self.numpy_batch_size = numpy_batch_size
        self._predictor: Any = None  # (what it was made for, module)
        self._check_arguments()

    @property
    def arch(self) -> Any:
        """The network, by MXNet.jl's name."""
        return self.symbol

    def _check_arguments(self) -> None:
        """Names of the network are unique; parameters it does not have are left out, if they may be there."""
        if self.symbol is None:
            return
        arguments, aux = self.symbol.list_arguments(), self.symbol.list_auxiliary_states()
        twice = [n for n in dict.fromkeys([*arguments, *aux]) if [*arguments, *aux].count(n) > 1]
        if twice:
            raise ValueError(
                f"the network has {twice[0]!r} more than once among its arguments and auxiliary states; rename one."
            )
        if self.allow_extra_params:
            self.arg_params = self.arg_params and {n: v for n, v in self.arg_params.items() if n in arguments}
            self.aux_params = self.aux_params and {n: v for n, v in self.aux_params.items() if n in aux}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_predictor": None}

    # -------------------------------------------------------------------------------- parameters
    def _known(self) -> tuple[Params, Params]:
        """(parameters, auxiliary states).

        Raises:
            ValueError: there are none yet, or no network.
        """
        if self.symbol is None:
            raise ValueError("the network is a function of the bucket key, and no data has given one yet; call fit first.")
        if self.arg_params is None:
            raise ValueError("the model has no parameters yet; call fit, train or init_model, or load a checkpoint.")
        return self.arg_params, self.aux_params or {}

    def _give(self, params: Mapping[str, Any], aux: Mapping[str, Any]) -> None:
        """Take plain arrays as parameters."""
        self.arg_params = {name: self.arrays.wrap(value) for name, value in params.items()}
        self.aux_params = {name: self.arrays.wrap(value) for name, value in aux.items()}

    def take(self, module: Any) -> None:
        """Copy the parameters of a module; the mean over devices where they have their own."""
        self.arg_params, self.aux_params = module.get_params()

    @contextlib.contextmanager
    def keeping(self, module: Any) -> Iterator[None]:
        """Where the block fails or is interrupted, what the module has learned so far is kept."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the devices may have lost it
                self.take(module)
            raise

    def init_model(
        self, initializer: Any = DEFAULT, overwrite: bool = False, **input_shapes: Sequence[int]
    ) -> tuple[list[str], list[str], list[str]]:
        """Draw the parameters that are not there yet; one of another shape is warned of and drawn anew.

        Args:
            initializer: of the drawn ones; "default" is Uniform(0.01).
            overwrite: draw all of them.
            **input_shapes: shape of every input, labels too, the batch first: `data=(100, 784), softmax_label=(100,)`.

        Returns:
            Names of (arguments, parameters, auxiliary states).

        Source: MXNet.jl, `init_model`.
        """
        if self.symbol is None:
            raise ValueError(
                "the symbol of this model is a function of the bucket key, which the Julia tradition does not know; call "
                "fit(data) with an iterator of buckets."
            )
        module = self.julia_module(self.symbol, data_names=list(input_shapes), label_names=(), context=self.ctx[:1])
        module.bind([(name, tuple(shape)) for name, shape in input_shapes.items()], for_training=False)
        initial = module.binding.initial(module.arrays)
        kept = {} if overwrite else fitting(self.arg_params, initial.params, module.logger)
        kept_aux = {} if overwrite else fitting(self.aux_params, initial.aux, module.logger)
        params, aux = initial.drawn(initializer, kept, kept_aux, True, True)
        self._give(params, aux)
        return self.symbol.list_arguments(), list(params), list(aux)

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
        **options: Any,
    ) -> None:
        """Train from epoch `begin_epoch` to `num_epoch`, with a fresh optimizer state.

        Args:
            X: an iterator, or an array of rows; or an Optimizer: then this is `train(X, y, ...)`.
            y: labels (N,) or (N, 1), where X is an array.
            eval_data: an iterator, or (X, y), to score after each epoch.
            eval_metric: metric of both.
            epoch_end_callback: called with (epoch, symbol, arg_params, aux_params).
            batch_end_callback: called with a BatchEndParam; `nbatch` counts from 1.
            kvstore: "local", "device", ..., a KVStore, or None.
            logger: where log lines go; None: the root logger.
            work_load_list: relative share of each device.
            monitor: a Monitor.
            eval_end_callback, eval_batch_end_callback: called with a BatchEndParam at the end of, and in the validation.
            **options: of `train`, where X is an Optimizer.

        Raises:
            AssertionError: the object has no num_epoch.
            TypeError: rescale_grad was given with the name of an optimizer.
            ValueError: data, labels or parameters that do not fit the network.
        """
        if isinstance(X, Optimizer):
            self.train(X, y, eval_data=eval_data, eval_metric=eval_metric, kvstore=kvstore, **options)
            return
        if options:
            raise TypeError(f"fit has no argument {next(iter(options))!r} where it is given data; see train for its options.")
        if self.num_epoch is None:
            raise AssertionError("num_epoch is missing: FeedForward(symbol, num_epoch=10) trains for 10 epochs.")
        if isinstance(self.optimizer, str) and "rescale_grad" in self.kwargs:
            raise TypeError(
                f"rescale_grad={self.kwargs['rescale_grad']} was given, but FeedForward sets it to 1 / batch size for an "
                "optimizer by name; leave it out, or pass an Optimizer object with the rescale_grad you want."
            )
        if self.sym_gen is not None:
            self.symbol = self.sym_gen(_default_key(X))
            self._check_arguments()
        data = data_iter(X, y, self.symbol, self.numpy_batch_size, training=True)
        valid = eval_iter(eval_data, self.symbol, self.numpy_batch_size)
        module = self._prepared_python(data, kvstore, logging if logger is None else logger, work_load_list, monitor)
        at_ends = {"batch_end_callback": eval_batch_end_callback, "score_end_callback": eval_end_callback}
        batch_callbacks = None if batch_end_callback is None else [_from_one(c) for c in listed(batch_end_callback)]
        data.reset()
        with self.keeping(module), StopFlag().watching() as flag:
            metric = metrics.create(eval_metric)
            for epoch in range(self.begin_epoch, self.num_epoch):
                start = time.time()
                metric.reset()
                self._fit_pass(module, data, metric, batch_callbacks, monitor, epoch, flag)
                module.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.time() - start)
                if epoch_end_callback is not None or epoch + 1 == self.num_epoch:
                    self.take(module)
                if epoch_end_callback is not None:
                    for callback in listed(epoch_end_callback):
                        callback(epoch, self.symbol, self.arg_params, self.aux_params)
                if valid is not None:
                    module.score(valid, metric, epoch=epoch, **at_ends)
                    valid.reset()
                module._stop_if(flag)

    def _prepared_python(self, data: Any, kvstore: Any, logger: Any, work_load_list: Any, monitor: Any) -> Any:
        """A module with parameters and a fresh optimizer."""
        given, labels = described(data)
        names, label_names = [d.name for d in given], [d.name for d in labels]
        self._check_fed([*names, *label_names])
        shared = {"logger": logger, "context": self.ctx, "work_load_list": work_load_list}
        if self.sym_gen is None:
            module = self._python_module(self.symbol, names, label_names, **shared)
        elif monitor is not None:
            raise NotImplementedError("a monitor does not see buckets; monitor a network that is no function of the key.")
        else:
            make = self.sym_gen
            module = self._bucket_module(lambda key: (make(key), names, label_names), _default_key(data), **shared)
        module.bind(given, labels)
        module.init_params(self.initializer, self.arg_params, self.aux_params, True, allow_extra=self.allow_extra_params)
        self.take(module)
        module.init_optimizer(kvstore, self.optimizer, self.kwargs)
        logger.info("Start training with %s", self.ctx)
        if monitor is not None:
            module.install_monitor(monitor)
        return module

    def _check_fed(self, given: list[str]) -> None:
        """The data gives every input that the network has by name."""
        for name in self.symbol.list_arguments():
            if is_data_name(name) and name not in given and name not in (self.arg_params or {}):
                raise ValueError(f"the network has the input {name!r}, but the data gives {given}; name its arrays so.")

    def _fit_pass(self, module: Any, data: Any, metric: Any, callbacks: Any, monitor: Any, epoch: int, flag: StopFlag) -> None:
        """One epoch, a pass over the data or `epoch_size` batches."""

        def say() -> None:
            module.logger.info("Epoch[%d] Resetting Data Iterator", epoch)

        stream = data if self.epoch_size is None else sized_epoch(data, self.epoch_size, say)
        module._fit_epoch(stream, metric, callbacks, monitor, epoch, None, flag)
        if stream is data:
            say()
            data.reset()

    def train(self, optimizer: Any, data: Any, **options: Any) -> None:
        """Train on an iterator, as `fit(model, optimizer, data; ...)` of MXNet.jl.

        Args:
            optimizer: an Optimizer, or a name (with `optimizer_params={...}`).  A `rescale_grad` of 0 becomes 1 / batch size
                (MXNet.jl's `scale`, whose default is 0); a name gets that always.  Weight decay is of all parameters, because
                MXNet.jl knows no rule by name.
            data: the iterator; it is reset before each epoch.
            **options: see `TrainingOptions`.

        Raises:
            AssertionError: eval_data has another batch size than data.
            TypeError: an unknown option, or a callback that is none.
            ValueError: fewer rows than devices.

        Source: MXNet.jl, `model.jl`.
        """
        JuliaTraining(self, optimizer, data, TrainingOptions.of(options)).run()

    # -------------------------------------------------------------------------------- predicting
    def predict(
        self,
        X: Any,
        num_batch: int | None = None,
        return_data: bool = False,
        reset: bool = True,
        *,
        overwrite: bool = True,
        callback: Any = None,
        verbosity: int = 0,
    ) -> Any:
        """The outputs for every row, on the host; rows that an iterator wrapped around are left out.

        Args:
            X: an iterator, or an array of rows.
            num_batch: most batches to take.
            return_data: give the data and the labels too.
            reset: rewind the iterator first.
            overwrite: False: the shapes need to be those of the last call (MXNet.jl then reuses its weights too; here the
                parameters of now are used always).
            callback: called with the output (the outputs, where there are several) of each batch; nothing is returned then.
            verbosity: 1: log what the network is bound to.

        Returns:
            One array, a list of arrays where there are several outputs, or (outputs, data, labels).

        Raises:
            AssertionError: with overwrite=False, other shapes.
            ValueError: no parameters yet, or no batch.
        """
        self._known()
        data = data_iter(X, None, self.symbol, self.numpy_batch_size, training=False)
        if reset:
            data.reset()
        module = self._bound(data, overwrite, verbosity)
        found: list[Any] = []
        for batch in itertools.islice(data, num_batch):
            module.forward(batch, is_train=False)
            pad = wrapped_rows(batch)
            outputs = module._without_padding(pad)
            if callback is not None:
                callback(outputs[0] if len(outputs) == 1 else outputs)
                continue
            kept = [_rows(part, pad) for part in (batch.data, batch.label or ())] if return_data else []
            found.append(([as_array(out) for out in outputs], *kept))
        if callback is not None:
            return None
        if not found:
            raise ValueError("predict got no batch: the data iterator is empty, or at its end (reset=True rewinds it).")
        found = counters.read(found)  # sync: the caller gets numbers
        parts = [[np.concatenate(column) for column in zip(*part, strict=True)] for part in zip(*found, strict=True)]
        single = [part[0] if len(part) == 1 else part for part in parts]
        return tuple(single) if return_data else single[0]

    def score(
        self, X: Any, eval_metric: Any = "acc", num_batch: int | None = None, batch_end_callback: Any = None, reset: bool = True
    ) -> Any:
        """The value of a metric (a list, where it has several) over the data.

        Args:
            X: an iterator, or a pair (X, y) of arrays.
            eval_metric: name, list of names or function; or an EvalMetric, which is not reset first.
            num_batch: most batches to take.
            batch_end_callback: called with a BatchEndParam after each batch.
            reset: rewind the iterator first.

        Raises:
            ValueError: no parameters yet, or an array without labels (MXNet compares with zeros).
        """
        X, y = X if type(X) in (list, tuple) and len(X) == 2 else (X, None)
        if y is None and not hasattr(X, "provide_data"):
            raise ValueError("score needs labels: pass an iterator that gives them, or a pair (X, y) of arrays.")
        self._known()
        metric = metrics.create(eval_metric)
        data = data_iter(X, y, self.symbol, self.numpy_batch_size, training=False)
        if reset:
            data.reset()
        module = self._bound(data)
        for nbatch, batch in enumerate(itertools.islice(data, num_batch)):
            module.forward(batch, is_train=False)
            module.update_metric(metric, batch.label)
            call(batch_end_callback, BatchEndParam(0, nbatch, metric, locals()))
        return metric.get()[1]

    def _bound(self, data: Any, overwrite: bool = True, verbosity: int = 0) -> PythonFed:
        """The module that predicts on such data, with the parameters of now; programs are compiled once per shape."""
        params, aux = self._known()
        given, labels = described(data)
        arguments, names = self.symbol.list_arguments(), [d.name for d in given]
        free = [n for n in arguments if n not in params and n not in names and is_data_name(n)]
        labels = [d for d in labels if d.name in free]
        last, made_for = self._predictor, (names, free)
        module = last[1] if last and last[1].symbol is self.symbol and last[0] == made_for else None
        fits = module is not None and same(module.data_shapes, given)
        if self._predictor and not fits and not overwrite:
            bound = [tuple(d) for d in self._predictor[1].data_shapes]
            raise AssertionError(
                f"the predictor is bound to {bound}, the data has {[tuple(d) for d in given]}; overwrite=True binds it anew."
            )
        if module is None:
            module = self._python_module(self.symbol, names, free, context=self.ctx[:1])
        if not module.binded:
            module.bind(given, labels, for_training=False)
        elif not fits and _same_rows(module.data_shapes, given):
            module.reshape(given, labels)
        elif not fits:
            module.bind(given, labels, for_training=False, force_rebind=True)
        if not fits and verbosity >= 1:
            logging.info("The predictor is bound to %s on %s", [tuple(d) for d in given], self.ctx[0])
        module.init_params(None, params, aux, force_init=True, allow_extra=self.allow_extra_params)
        self._predictor = (made_for, module)
        return module

    # -------------------------------------------------------------------------------- files
    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Write `prefix-symbol.json` and `prefix-%04d.params`, which MXNet reads; `epoch` is by default `num_epoch`."""
        epoch = self.num_epoch if epoch is None else epoch
        if epoch is None:
            raise AssertionError("epoch is missing: it numbers the file, and the object has no num_epoch; save(prefix, 10).")
        params, aux = self._known()
        files.save_checkpoint(prefix, epoch, self.symbol, params, aux, remove_amp_cast)

    @classmethod
    def load(cls, prefix: str, epoch: int, ctx: Any = None, **kwargs: Any) -> Any:
        """A model from checkpoint files of jfit or MXNet; `fit` goes on at epoch `epoch`.

        Args:
            prefix, epoch: name the files.
            ctx: as for `FeedForward`.
            **kwargs: as for `FeedForward`.
        """
        symbol, params, aux = files.load_checkpoint(prefix, epoch)
        model = cls(cls.arrays.symbol(symbol), ctx=ctx, begin_epoch=epoch, **kwargs)
        model._give(params, aux)
        model._check_arguments()
        return model

    def save_checkpoint(self, prefix: str, state: OptimizationState | int) -> None:
        """Write `prefix-symbol.json` and `prefix-%04d.params`, numbered by the epoch of a state, or by a number."""
        epoch = state.curr_epoch if isinstance(state, OptimizationState) else int(state)
        files.save_checkpoint(prefix, epoch, self.symbol, *self._known())

    def load_checkpoint(self, prefix: str, epoch: int, overwrite: bool = True, allow_different_arch: bool = False) -> Any:
        """Take the parameters of a checkpoint; returns the model.

        Args:
            prefix, epoch: name the files.
            overwrite: False: a model that has parameters keeps them.
            allow_different_arch: take them also where the checkpoint is of another network.

        Raises:
            AssertionError: the checkpoint is of another network.
        """
        if self.arg_params is not None and self.aux_params is not None and not overwrite:
            TrainingOptions().say(1, "the model has parameters, nothing is loaded (overwrite=True loads)")
            return self
        symbol, params, aux = files.load_checkpoint(prefix, epoch)
        if not allow_different_arch and self.symbol.tojson() != symbol.tojson():
            raise AssertionError(
                f"the checkpoint {prefix!r} is of another network than this model; build the model from "
                "FeedForward.load(prefix, epoch), or pass allow_different_arch=True to take the parameters all the same."
            )
        self._give(params, aux)
        return self

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
        """A model that was trained on X; arguments as for `FeedForward` and `fit`."""
        model = cls(symbol, ctx, num_epoch, epoch_size, optimizer, initializer, **kwargs)
        told = (epoch_end_callback, batch_end_callback)
        ends = {"eval_end_callback": eval_end_callback, "eval_batch_end_callback": eval_batch_end_callback}
        model.fit(X, y, eval_data, eval_metric, *told, kvstore, logger, work_load_list, **ends)
        return model


def _from_one(callback: Any) -> Any:
    """The callback, told numbers of batches that begin at 1."""

    def told(param: BatchEndParam) -> None:
        number = param.nbatch + 1
        callback(param._replace(nbatch=number, locals={**(param.locals or {}), "nbatch": number}))

    return told


def _default_key(data: Any) -> Any:
    if not hasattr(data, "default_bucket_key"):
        raise ValueError("symbol is a function of the bucket key, so the data needs a default_bucket_key, its first key.")
    return data.default_bucket_key


def _same_rows(a: Any, b: Any) -> bool:
    """Whether only the numbers of rows differ."""
    shapes = [[np.delete(d.shape, d.get_batch_axis(d.layout)).tolist() for d in side] for side in (a, b)]
    return shapes[0] == shapes[1]


def _rows(arrays: Any, pad: int) -> list[Any]:
    whole = [as_array(a) for a in arrays]
    return [np.array(a[: a.shape[0] - pad]) if isinstance(a, np.ndarray) else a[: a.shape[0] - pad] for a in whole]
