"""How FeedForward predicts and scores, in both traditions: on the first device, with the parameters of now."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import numpy as np

from jfit import counters
from jfit.mxnet import metric as metrics
from jfit.mxnet.box import unbox
from jfit.mxnet.callback import BatchEndParam
from jfit.mxnet.feedforward.data import data_iter, described, is_data_name
from jfit.mxnet.feedforward.holder import Holder
from jfit.mxnet.feedforward.modules import PythonFed
from jfit.mxnet.module import descs
from jfit.mxnet.module.base import call


class Predicts(Holder):
    """The methods of FeedForward that compute outputs; see there."""

    _python_module: type[PythonFed] = PythonFed
    allow_extra_params: bool
    numpy_batch_size: int
    _predictor: Any

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
            pad = descs.wrapped_rows(batch)
            outputs = module._without_padding(pad)
            if callback is not None:
                callback(outputs[0] if len(outputs) == 1 else outputs)
                continue
            kept = [_rows(part, pad) for part in (batch.data, batch.label or ())] if return_data else []
            found.append(([unbox(out) for out in outputs], *kept))
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
        fits = module is not None and descs.same(module.data_shapes, given)
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


def _same_rows(a: Any, b: Any) -> bool:
    """Whether only the numbers of rows differ."""
    shapes = [[np.delete(d.shape, d.get_batch_axis(d.layout)).tolist() for d in side] for side in (a, b)]
    return shapes[0] == shapes[1]


def _rows(arrays: Any, pad: int) -> list[Any]:
    whole = [unbox(a) for a in arrays]
    return [np.array(a[: a.shape[0] - pad]) if isinstance(a, np.ndarray) else a[: a.shape[0] - pad] for a in whole]
