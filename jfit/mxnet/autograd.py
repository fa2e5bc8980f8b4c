"""`mx.autograd`: record operations on NDArrays, and compute gradients of what was recorded (see `jfit.mxnet.recording`).

>>> import jfit.mx as mx
>>> x = mx.nd.array([1, 2])
>>> x.attach_grad()
>>> with mx.autograd.record():
...     y = (x * x).sum()
>>> y.backward()
>>> x.grad.asnumpy().tolist()
[2.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.recording.backward import backward as _backward
from jfit.mxnet.recording.backward import gradients_of
from jfit.mxnet.recording.tape import Pull, Tape, is_tracked, mode
from jfit.mxnet.symbol import Symbol

__all__ = [
    "Function", "backward", "get_symbol", "grad", "is_recording", "is_training", "mark_variables", "pause", "predict_mode",
    "record", "set_recording", "set_training", "train_mode",
]  # fmt: skip


def is_recording() -> bool:
    """Return whether operations are recorded, on this thread.

    Returns:
        bool.

    Example:
        >>> with record():
        ...     print(is_recording())
        True
    """
    return mode.tape is not None


def is_training() -> bool:
    """Return whether operators compute in training mode, on this thread: dropout is active, batch statistics are used.

    Returns:
        bool.

    Example:
        >>> with record(train_mode=False):
        ...     print(is_training())
        False
    """
    return mode.training


def set_recording(is_recording: bool) -> bool:
    """Start or stop recording on this thread; `record` and `pause` do it for a block.

    Args:
        is_recording: whether operations are recorded from now on.

    Returns:
        Whether they were recorded before.

    Example:
        >>> set_recording(True), set_recording(False)
        (False, True)
    """
    before = mode.tape is not None
    mode.set((mode.tape or Tape()) if is_recording else None, mode.training)
    return before


def set_training(train_mode: bool) -> bool:
    """Set training or prediction mode on this thread; `train_mode` and `predict_mode` set it for a `with` block.

    Args:
        train_mode: whether operators compute in training mode from now on.

    Returns:
        True if it was training mode before.

    Example:
        >>> set_training(True), set_training(False)
        (False, True)
    """
    before = mode.training
    mode.set(mode.tape, bool(train_mode))
    return before


class _Scope:
    """A context manager that can be entered again; None: unchanged."""

    def __init__(self, recording: bool | None, training: bool | None) -> None:
        self._recording, self._training, self._before = recording, training, list[Any]()

    def __enter__(self) -> None:
        self._before.append((mode.tape, mode.training))
        if self._recording is not None:
            set_recording(self._recording)
        if self._training is not None:
            mode.set(mode.tape, self._training)

    def __exit__(self, *exc: object) -> None:
        mode.set(*self._before.pop())


def record(train_mode: bool = True) -> Any:
    """Context manager in which operations on variables are recorded, so that their gradients can be computed.

    Args:
        train_mode: whether operators compute in training mode.

    Example:
        >>> import jfit.mx as mx
        >>> x = mx.nd.ones(3)
        >>> x.attach_grad()
        >>> with record():
        ...     y = mx.nd.exp(x)
        >>> y.backward()
        >>> bool((x.grad == y).asnumpy().all())
        True
    """
    return _Scope(True, train_mode)


def pause(train_mode: bool = False) -> Any:
    """Context manager in which nothing is recorded.

    Args:
        train_mode: whether operators compute in training mode.

    Example:
        >>> with record():
        ...     with pause():
        ...         print(is_recording())
        False
    """
    return _Scope(False, train_mode)


def train_mode() -> Any:
    """Context manager in which operators compute in training mode; it does not change whether they are recorded.

    Example:
        >>> import jfit.mx as mx
        >>> with train_mode():
        ...     dropped = mx.nd.Dropout(mx.nd.ones(1000))
        >>> bool((dropped == 0).asnumpy().any())
        True
    """
    return _Scope(None, True)


def predict_mode() -> Any:
    """Context manager in which operators compute in prediction mode; it does not change whether they are recorded.

    Example:
        >>> import jfit.mx as mx
        >>> with record(), predict_mode():
        ...     unchanged = mx.nd.Dropout(mx.nd.ones(1000))
        >>> bool((unchanged == 1).asnumpy().all())
        True
    """
    return _Scope(None, False)


def mark_variables(variables: Any, gradients: Any, grad_reqs: Any = "write") -> None:
    """Make arrays variables whose gradients are written to given arrays.

    Args:
        variables: an NDArray or a list.
        gradients: the array, or list, for the gradient of each.
        grad_reqs: "write", "add" or "null", for all or as a list.

    Example:
        >>> import jfit.mx as mx
        >>> x, gradient = mx.nd.array([1, 2]), mx.nd.zeros(2)
        >>> mark_variables(x, gradient)
        >>> with record():
        ...     y = x * x
        >>> y.backward()
        >>> gradient.asnumpy().tolist()
        [2.0, 4.0]
    """
    variables = [variables] if isinstance(variables, NDArray) else list(variables)
    gradients = [gradients] if isinstance(gradients, NDArray) else list(gradients)
    requests = [grad_reqs] * len(variables) if isinstance(grad_reqs, str) else list(grad_reqs)
    for variable, gradient, request in zip(variables, gradients, requests, strict=True):
        variable._entry, variable.grad, variable._grad_req = None, gradient, None if request == "null" else request


def backward(heads: Any, head_grads: Any = None, retain_graph: bool = False, train_mode: bool = True) -> None:
    """Compute the gradients of recorded arrays, and write them to the `grad` of the variables.

    Args:
        heads: NDArray or list of NDArrays.
        head_grads: gradient with respect to each head, of its shape; None: ones.  Output heads such as SoftmaxOutput ignore it.
        retain_graph: whether the gradients of these heads can be computed again.
        train_mode: accepted; the mode is that of the recording.

    Raises:
        MXNetError: a head was not recorded.

    Example:
        >>> import jfit.mx as mx
        >>> x = mx.nd.array([1, 2])
        >>> x.attach_grad()
        >>> with record():
        ...     y, z = x * x, 3 * x
        >>> backward([y, z], [mx.nd.ones(2), mx.nd.array([1, 0])])
        >>> x.grad.asnumpy().tolist()
        [5.0, 4.0]
    """
    heads, head_grads = _lists(heads, head_grads)
    _backward(heads, head_grads, retain_graph)


def grad(
    heads: Any,
    variables: Any,
    head_grads: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> Any:
    """Return the gradients of recorded arrays with respect to variables; their `grad` is not changed.

    Args:
        heads, head_grads: as for `backward`.
        variables: variable or list of variables.
        retain_graph: whether the gradients can be computed again; None: as `create_graph`.
        create_graph: record the gradients, so that they can be differentiated.
        train_mode: accepted; the mode is that of the recording.

    Returns:
        List of NDArrays, also for a single variable, as MXNet does.

    Raises:
        MXNetError: a head was not recorded, or does not depend on a variable.

    Example:
        >>> import jfit.mx as mx
        >>> x = mx.nd.array([2])
        >>> x.attach_grad()
        >>> with record():
        ...     (slope,) = grad(x * x * x, x, create_graph=True)
        >>> slope.backward()
        >>> float(slope.asscalar()), float(x.grad.asscalar())
        (12.0, 12.0)
    """
    heads, head_grads = _lists(heads, head_grads)
    retain = create_graph if retain_graph is None else retain_graph
    variables = [variables] if isinstance(variables, NDArray) else list(variables)
    with _Scope(True if create_graph else None, None):
        kind = NDArray if create_graph else None
        found = gradients_of(heads, variables, head_grads, retain, kind)
    return [g if isinstance(g, NDArray) else NDArray(g) for g in found]


def get_symbol(x: NDArray) -> Symbol:
    """Return the graph that computes a recorded array, with a variable for each array it was computed from.

    Args:
        x: an array that was computed inside `record`.

    Returns:
        Symbol.

    Raises:
        ValueError: the array was not recorded.

    Example:
        >>> import jfit.mx as mx
        >>> x = mx.nd.ones(2)
        >>> x.attach_grad()
        >>> with record():
        ...     y = mx.nd.exp(x)
        >>> len(get_symbol(y).list_arguments())
        1
    """
    tape, slot = x._entry or (None, 0)
    if tape is None:
        raise ValueError("the array was not recorded; compute it from variables inside autograd.record()")
    return Symbol(tape.plan((slot,), (), (slot,)).symbol.heads)


def _lists(heads: Any, head_grads: Any) -> tuple[list[Any], list[Any] | None]:
    if isinstance(heads, NDArray):
        heads, head_grads = [heads], None if head_grads is None else [head_grads]
    return list(heads), None if head_grads is None else list(head_grads)


class Function:
    """An operation whose gradient is Python code: a subclass defines `forward(*inputs)` and `backward(*output_gradients)`.

    Both get NDArrays and return an NDArray or a tuple; inside them nothing is recorded.

    Example:
        >>> import jfit.mx as mx
        >>> class Double(mx.autograd.Function):
        ...     def forward(self, x):
        ...         return 2 * x
        ...     def backward(self, gradient):
        ...         return 2 * gradient
        >>> x = mx.nd.ones(2)
        >>> x.attach_grad()
        >>> with mx.autograd.record():
        ...     y = Double()(x)
        >>> y.backward()
        >>> x.grad.asnumpy().tolist()
        [2.0, 2.0]
    """

    _saved: tuple[NDArray, ...] = ()

    def save_for_backward(self, *args: NDArray) -> None:
        """Keep arrays, which `saved_tensors` returns in `backward`."""
        self._saved = args

    @property
    def saved_tensors(self) -> tuple[NDArray, ...]:
        """The arrays that were passed to `save_for_backward`."""
        return self._saved

    def __call__(self, *inputs: NDArray) -> Any:
        """Compute `forward`, and record it."""
        with pause(mode.training):
            outputs = self.forward(*inputs)
        tape = mode.tape
        if tape is None or not is_tracked(inputs):
            return outputs
        results = [outputs] if isinstance(outputs, NDArray) else list(outputs)
        results = [NDArray(r.value) for r in results]  # an output may be an input
        slots = [tape.add_leaf(r, r.value, "link") for r in results]
        pull = Pull(lambda gradients: self._pulled(gradients, results), inputs, slots)
        for result, slot in zip(results, slots, strict=True):
            result._entry, tape.sources[slot] = (tape, slot), pull
        return results[0] if isinstance(outputs, NDArray) else tuple(results)

    def _pulled(self, gradients: list[Any], results: Sequence[NDArray]) -> list[Any]:
        wrapped = [r.zeros_like() if g is None else NDArray(g) for r, g in zip(results, gradients, strict=True)]
        with pause(mode.training):
            found = self.backward(*wrapped)
        return [None if g is None else g.value for g in ([found] if isinstance(found, NDArray) else found)]

    def forward(self, *inputs: NDArray) -> Any:
        """Compute the outputs; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} needs a method forward(self, *inputs)")

    def backward(self, *output_grads: NDArray) -> Any:
        """Compute the gradients of the inputs; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} needs a method backward(self, *output_gradients)")
