"""`mx.nd.contrib.foreach`, `while_loop` and `cond`: control flow over NDArrays as Python loops, run immediately.

The arguments are those of `mx.sym.contrib.foreach`, `while_loop` and `cond`, which add a node to a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jfit.graph.control import nested
from jfit.mxnet.ndarray.array import NDArray, function
from jfit.mxnet.ndarray.create import zeros


def foreach(body: Callable[..., Any], data: Any, init_states: Any) -> tuple[Any, Any]:
    """Compute out[t], state[t + 1] = body(data[t], state[t]) for each entry t of the first axis of `data`.

    Args:
        body: function (data[t], states) -> (outputs, new states).
        data: NDArray, or nested lists of NDArrays, with the same first axis.
        init_states: NDArray, or nested lists of NDArrays.

    Returns:
        (outputs, states): the outputs of all steps, stacked along a new first axis, and the states after the last step, both
        nested as `body` returns them.

    Raises:
        ValueError: the first axis of `data` is empty.

    Example:
        >>> import jfit.mx as mx
        >>> outs, total = mx.nd.contrib.foreach(lambda x, s: (x + s, x + s), mx.nd.array([1, 2, 3]), mx.nd.zeros(1))
        >>> outs.asnumpy()[:, 0].tolist(), total.item()
        ([1.0, 3.0, 6.0], 6.0)
    """
    items, structure = _flatten(data)
    states, steps, out_structure = init_states, [], None
    if not items or not items[0].shape[0]:
        raise ValueError("foreach needs data with at least one step along its first axis; skip the call when the data is empty")
    for t in range(items[0].shape[0]):
        outs, states = body(nested([item[t] for item in items], structure), states)
        flat, out_structure = _flatten(outs)
        steps.append(flat)
    return nested([function("stack")(*parts) for parts in zip(*steps, strict=True)], out_structure), states


def while_loop(
    cond: Callable[..., Any], func: Callable[..., Any], loop_vars: Any, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """Compute out[t], vars[t + 1] = func(*vars[t]) while cond(*vars[t]) is not 0, for at most `max_iterations` steps.

    Args:
        cond: function of the loop variables that returns one number.
        func: function of the loop variables that returns (outputs, new loop variables).
        loop_vars: NDArray, or list of NDArrays.
        max_iterations: maximum number of steps, and the size of the first axis of the outputs; rows of steps that did not run
            are zeros.

    Returns:
        (outputs, loop variables): the outputs of all steps, stacked along a new first axis (an empty list if no step ran), and
        the loop variables after the last step.

    Raises:
        ValueError: `func` returns another number of loop variables.

    Example:
        >>> import jfit.mx as mx
        >>> outs, last = mx.nd.contrib.while_loop(lambda i: i < 2, lambda i: (i, [i + 1]), [mx.nd.zeros(1)], max_iterations=3)
        >>> outs.asnumpy()[:, 0].tolist(), last[0].item()
        ([0.0, 1.0, 0.0], 2.0)
    """
    if max_iterations is None:
        raise ValueError("while_loop needs max_iterations, the maximum number of steps")
    length = int(max_iterations)
    single = isinstance(loop_vars, NDArray)
    values: list[Any] = [loop_vars] if single else list(loop_vars)
    steps: list[list[Any]] = []
    out_structure: Any = []
    while len(steps) < length and _truth(cond(*values)):
        outs, new = func(*values)
        flat, out_structure = _flatten([] if outs is None else outs)
        new = [new] if isinstance(new, NDArray) else list(new or ())
        if len(new) != len(values):
            raise ValueError(f"func of while_loop returned {len(new)} loop variables, expected {len(values)}")
        values = new
        steps.append(flat)
    stacked = [_stack_and_pad(parts, length) for parts in zip(*steps, strict=True)]
    return nested(stacked, out_structure), values[0] if single else values


def cond(pred: Any, then_func: Callable[[], Any], else_func: Callable[[], Any]) -> Any:
    """Return then_func() if `pred` is not 0, otherwise else_func().

    Args:
        pred: NDArray of one value, or a number.
        then_func: function without arguments.
        else_func: function without arguments.

    Returns:
        The result of the function that was called.

    Example:
        >>> import jfit.mx as mx
        >>> a = mx.nd.array([1])
        >>> mx.nd.contrib.cond(a < 5, lambda: a + 5, lambda: a - 5).item()
        6.0
    """
    return then_func() if _truth(pred) else else_func()


def _truth(value: Any) -> bool:
    return bool(value.asscalar() if hasattr(value, "asscalar") else value)


def _stack_and_pad(parts: Sequence[NDArray], length: int) -> NDArray:
    stacked = function("stack")(*parts)
    missing = length - len(parts)
    if not missing:
        return stacked
    return function("concat")(stacked, zeros((missing, *stacked.shape[1:]), dtype=stacked.dtype), dim=0)


def _flatten(value: Any) -> tuple[list[NDArray], Any]:
    """Return (arrays, structure) of nested lists of NDArrays; structure is None for one array and a list for a list."""
    if isinstance(value, NDArray):
        return [value], None
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"control flow takes arrays and nested lists of arrays, got {type(value).__name__}")
    parts = [_flatten(part) for part in value]
    return [array for flat, _ in parts for array in flat], [structure for _, structure in parts]
