"""Small modules of `mx.contrib`: the first names of autograd, `DataLoaderIter`, `LogMetricsCallback`."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from jfit.data import DataDesc
from jfit.data.ndarray_iter import DataIter
from jfit.mxnet import autograd
from jfit.mxnet.autograd import mark_variables as mark_variables
from jfit.mxnet.ndarray.array import NDArray, function
from jfit.mxnet.ndarray.create import full


# ------------------------------------------------------------------------------------------------ contrib.autograd
def set_is_training(is_train: bool) -> bool:
    """Set both training mode and recording.

    Args:
        is_train: whether to train and record.

    Returns:
        Whether operations were recorded before.

    Example:
        >>> set_is_training(True), set_is_training(False)
        (False, True)
    """
    autograd.set_training(is_train)
    return autograd.set_recording(is_train)


def TrainingStateScope(enter_state: bool) -> Any:
    """Context manager that sets training mode and recording.

    Args:
        enter_state: whether to train and record in the block.

    Example:
        >>> with TrainingStateScope(True):
        ...     autograd.is_recording(), autograd.is_training()
        (True, True)
    """
    return autograd.record() if enter_state else autograd.pause()


train_section, test_section = autograd.record, autograd.pause  # with these names in the first versions of MXNet


def backward(outputs: Sequence[NDArray], out_grads: Any = None, retain_graph: bool = False) -> None:
    """Compute the gradients of variables, see `mx.autograd.backward`.

    Args:
        outputs: list of NDArrays.
        out_grads: list of their gradients; None: ones.
        retain_graph: whether `backward` can be called again.

    Example:
        >>> x = full(2, 0)
        >>> x.attach_grad()
        >>> with train_section():
        ...     y = x * 3
        >>> backward([y])
        >>> x.grad.asnumpy().tolist()
        [3.0, 3.0]
    """
    assert isinstance(outputs, (list, tuple)), f"outputs are a list of NDArrays, got {type(outputs).__name__}"
    autograd.backward(outputs, out_grads, retain_graph)


def compute_gradient(outputs: Sequence[NDArray]) -> None:
    """Compute the gradients of variables, see `backward`.

    Args:
        outputs: list of NDArrays.

    Example:
        >>> compute_gradient(full(1, 0))
        Traceback (most recent call last):
        ...
        AssertionError: outputs are a list of NDArrays, got NDArray
    """
    backward(outputs)


def grad_and_loss(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., Any]:
    """Return a function that returns (list of the gradients of `func` with respect to its arguments, result of `func`).

    Args:
        func: function of NDArrays.
        argnum: position, or list of positions, of the arguments to differentiate; None: all.

    Returns:
        Function of NDArrays.

    Example:
        >>> from jfit.mxnet.ndarray import array
        >>> grads, loss = grad_and_loss(lambda x: x * x)(array([3.0]))
        >>> grads[0].asnumpy().tolist()
        [6.0]
    """

    @functools.wraps(func)
    def wrapped(*args: Any) -> tuple[list[NDArray], Any]:
        numbers = range(len(args)) if argnum is None else argnum if isinstance(argnum, list) else [argnum]
        variables = [args[i] for i in numbers]
        for x in variables:
            assert isinstance(x, NDArray), f"grad differentiates NDArrays, got {type(x).__name__}"
        grads = [full(x.shape, 0, x.context, x.dtype) for x in variables]
        mark_variables(variables, grads)
        with train_section():
            outputs = func(*args)
        compute_gradient([outputs] if isinstance(outputs, NDArray) else outputs)
        return grads, outputs

    return wrapped


def grad(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., list[NDArray]]:
    """Return a function that returns the gradients only, see `grad_and_loss`.

    Args:
        func: function of NDArrays.
        argnum: position, or list of positions, of the arguments to differentiate; None: all.

    Returns:
        Function of NDArrays.

    Example:
        >>> grad(lambda x, y: x * y, argnum=0)(full(1, 2), full(1, 5))[0].asnumpy().tolist()
        [5.0]
    """
    both = grad_and_loss(func, argnum)
    return functools.wraps(func)(lambda *args: both(*args)[0])


# ------------------------------------------------------------------------------------------------ contrib.io
class DataLoaderIter(DataIter):
    """An iterator for modules over the batches of a gluon DataLoader; a smaller last batch is filled up with zeros.

    Args:
        loader: iterable of (data, label), NDArrays.
        data_name: name of the data.
        label_name: name of the labels.
        dtype: dtype that both are cast to.

    Example:
        >>> from jfit.mxnet.ndarray import ones
        >>> it = DataLoaderIter([(ones((2, 3)), ones(2)), (ones((1, 3)), ones(1))])
        >>> [(b.data[0].shape, b.pad) for b in it]
        [((2, 3), 0), ((2, 3), 1)]
    """

    def __init__(self, loader: Any, data_name: str = "data", label_name: str = "softmax_label", dtype: str = "float32") -> None:
        data, label = next(iter(loader))
        super().__init__(data.shape[0])
        self._loader, self.dtype = loader, dtype
        self.provide_data = [DataDesc(data_name, data.shape, dtype)]
        self.provide_label = [DataDesc(label_name, label.shape, dtype)]
        self.reset()

    def reset(self) -> None:
        """Start the next epoch."""
        self._batches = iter(self._loader)

    def iter_next(self) -> bool:
        """Advance to the next batch; return False at the end of the epoch."""
        arrays = [array.astype(self.dtype) for array in next(self._batches, ())]
        if arrays:
            self._pad = pad = self.batch_size - arrays[0].shape[0]
            if pad:
                arrays = [function("Concat")(a, full((pad, *a.shape[1:]), 0, dtype=self.dtype), dim=0) for a in arrays]
            self._arrays = arrays
        return bool(arrays)

    def getdata(self) -> list[NDArray]:
        """Data of the current batch."""
        return self._arrays[:1]

    def getlabel(self) -> list[NDArray]:
        """Labels of the current batch."""
        return self._arrays[1:]

    def getpad(self) -> int:
        """Number of rows of zeros."""
        return self._pad


# ------------------------------------------------------------------------------------------------ contrib.tensorboard
class LogMetricsCallback:
    """A callback that writes the values of the metric as scalars for TensorBoard, one step per epoch.

    Args:
        logging_dir: folder of the event files.
        prefix: put before the names of the metrics, with a hyphen.

    Without the package `mxboard` an error is logged, and a call with a metric raises AttributeError, as in MXNet.

    Example:
        >>> callback = LogMetricsCallback("logs/train", prefix="train")  # doctest: +SKIP
        >>> module.fit(data, num_epoch=9, batch_end_callback=callback)  # doctest: +SKIP
    """

    def __init__(self, logging_dir: str, prefix: str | None = None) -> None:
        self.prefix = prefix
        try:
            self.summary_writer = importlib.import_module("mxboard").SummaryWriter(logging_dir)
        except ImportError:
            logging.error("LogMetricsCallback needs mxboard: pip install mxboard.")

    def __call__(self, param: Any) -> None:
        for name, value in [] if param.eval_metric is None else param.eval_metric.get_name_value():
            name = name if self.prefix is None else f"{self.prefix}-{name}"
            self.summary_writer.add_scalar(name, value, global_step=param.epoch)
