"""`mx.nd.contrib.foreach`, `while_loop` and `cond`: Python loops over arrays, with the arguments of the symbols' ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jfit.graph.control import nested
from jfit.mxnet.ndarray.array import NDArray, function
from jfit.mxnet.ndarray.create import zeros


def foreach(body: Callable[..., Any], data: Any, init_states: Any) -> tuple[Any, Any]:
    """outₜ, stateₜ₊₁ = body(dataₜ, stateₜ) for each entry of the first axis of data.

    Args:
        body: takes one step of the data and the states; returns (outputs, new states).
        data: array, or nested lists of arrays, with the same first axis.
        init_states: array, or nested lists of arrays.

    Returns:
        (all outputs, stacked along a new first axis; the states after the last step), nested as the body's.

    Example:
        >>> import jfit.mx as mx
        >>> outs, total = mx.nd.contrib.foreach(lambda x, s: (x + s, x + s), mx.nd.array([1, 2, 3]), mx.nd.zeros(1))
        >>> outs.asnumpy()[:, 0].tolist(), total.item()
        ([1.0, 3.0, 6.0], 6.0)
    """
    items, form = _flat(data)
    states, steps, out_form = init_states, [], None
    if not items or not items[0].shape or not items[0].shape[0]:
        raise ValueError(
            "foreach needs data with at least one step along its first axis; leave the loop out where there is none"
        )
    for at in range(items[0].shape[0]):
        outs, states = body(nested([item[at] for item in items], form), states)
        flat, out_form = _flat(outs)
        steps.append(flat)
    return nested([function("stack")(*parts) for parts in zip(*steps, strict=True)], out_form), states


def while_loop(
    cond: Callable[..., Any], func: Callable[..., Any], loop_vars: Any, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """outₜ, varsₜ₊₁ = func(*varsₜ) while cond(*varsₜ) is not 0, at most `max_iterations` times.

    Args:
        cond: takes the loop variables; returns one number.
        func: takes the loop variables; returns (outputs, new loop variables).
        loop_vars: array, or list of arrays.
        max_iterations: the most steps, and the first axis of the outputs; steps that did not run are zeros there.

    Returns:
        (all outputs, stacked along a new first axis, an empty list without a step; the loop variables after the last step).

    Raises:
        ValueError: there are no loop variables, or their number changes.

    Example:
        >>> import jfit.mx as mx
        >>> outs, last = mx.nd.contrib.while_loop(lambda i: i < 2, lambda i: (i, [i + 1]), [mx.nd.zeros(1)], max_iterations=3)
        >>> outs.asnumpy()[:, 0].tolist(), last[0].item()
        ([0.0, 1.0, 0.0], 2.0)
    """
    if max_iterations is None:
        raise ValueError("while_loop needs max_iterations: the most steps it may take")
    alone = isinstance(loop_vars, NDArray)
    values: list[Any] = [loop_vars] if alone else list(loop_vars)
    if not values:
        raise ValueError("while_loop needs at least one loop variable")
    steps: list[list[Any]] = []
    out_form: Any = []
    while len(steps) < int(max_iterations) and _truth(cond(*values)):
        outs, new = func(*values)
        flat, out_form = _flat([] if outs is None else outs)
        new = [new] if isinstance(new, NDArray) else list(new or ())
        if len(new) != len(values) or (steps and len(flat) != len(steps[0])):
            raise ValueError(f"func returns {len(new)} loop variables and {len(flat)} outputs, other numbers than before")
        values = new
        steps.append(flat)
    stacked = [_padded(parts, int(max_iterations)) for parts in zip(*steps, strict=True)]
    return nested(stacked, out_form), values[0] if alone else values


def cond(pred: Any, then_func: Callable[[], Any], else_func: Callable[[], Any]) -> Any:
    """then_func() where `pred` is not 0, else else_func().

    Example:
        >>> import jfit.mx as mx
        >>> a = mx.nd.array([1])
        >>> mx.nd.contrib.cond(a < 5, lambda: a + 5, lambda: a - 5).item()
        6.0
    """
    return then_func() if _truth(pred) else else_func()


def _truth(value: Any) -> bool:
    return bool(value.asscalar() if hasattr(value, "asscalar") else value)


def _padded(parts: Sequence[NDArray], length: int) -> NDArray:
    whole = function("stack")(*parts)
    rest = length - len(parts)
    return whole if not rest else function("concat")(whole, zeros((rest, *whole.shape[1:]), dtype=whole.dtype), dim=0)


def _flat(value: Any) -> tuple[list[NDArray], Any]:
    """(arrays, how they were nested: None for one array, else a list)."""
    if isinstance(value, NDArray):
        return [value], None
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"control flow takes arrays and nested lists of arrays, got {type(value).__name__}")
    parts = [_flat(part) for part in value]
    return [array for flat, _ in parts for array in flat], [form for _, form in parts]
