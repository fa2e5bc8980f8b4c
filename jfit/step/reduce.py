"""Reduction of gradients over devices.

    all_reduce   sum over devices: data-parallel training
    unreduced    no reduction: every device trains its own copy of the parameters on its own rows
    two_bit      sum of gradients quantized to 2 bits, with error feedback
    sharded      sum over devices, of which each device gets and updates its part: optimizer state split over devices (ZeRO-1)
    sharded_parameters  the same, with parameters split as well (ZeRO-3, FSDP)
    ordered      sum over a fixed number of slices of the batch, in a fixed order: the same bits on any number of devices

Loss and metric sums are always summed over devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.lowering.model import Params
from jfit.optim.rows import SparseRows
from jfit.step.sharded import reduce_scattered


class Reduce(NamedTuple):
    """A reduction rule as a pair of pure functions.

    Attributes:
        init: `init(gradients) -> local`: initial state of the rule on one device (`TrainState.local`), such as the residual of
            `two_bit`; None for a rule without state.
        apply: `apply(gradients, sums, local, axis_name) -> (gradients, sums, local)`; reduces the gradients over devices, and
            adds the pytree `sums` (of losses, metrics and row weights) over devices.
        shared: whether all devices get the same gradients; otherwise each device has its own parameters and optimizer state.
        slices: number of virtual slices of the batch, for `ordered`; None for the other rules.
        sharded: whether the gradients that a device gets are those of its chunks of the parameters (see `sharded`).
        sharded_parameters: whether the parameters are split as well, between two steps.
    """

    init: Callable[[Params], Any]
    apply: Callable[[Params, Any, Any, str | None], tuple[Params, Any, Any]]
    shared: bool = True
    slices: int | None = None
    sharded: bool = False
    sharded_parameters: bool = False


@functools.cache  # always return the same object, because compiled programs are cached by it
def all_reduce() -> Reduce:
    """Sum the gradients over devices in one all-reduce; `SparseRows` gradients are gathered from all devices instead.

    Returns:
        `Reduce`.

    Example:
        >>> import jax.numpy as jnp
        >>> all_reduce().apply({"w": jnp.ones(1)}, (), None, None)[0]["w"].tolist()
        [1.0]
    """

    def apply(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
        if axis_name is not None:
            rows = {k: g.gathered(axis_name) for k, g in gradients.items() if isinstance(g, SparseRows)}
            whole = {k: g for k, g in gradients.items() if k not in rows}
            whole, sums = lax.psum((whole, sums), axis_name)
            gradients = cast(Params, {**whole, **rows})
        return gradients, sums, local

    return Reduce(lambda gradients: None, apply)


@functools.cache
def unreduced() -> Reduce:
    """No reduction: each device uses its own gradient, so the parameters of the devices diverge.

    MXNet trains this way on several devices with `kvstore=None`.

    Returns:
        `Reduce`.

    Example:
        >>> unreduced().shared
        False
    """

    def apply(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
        return gradients, sums if axis_name is None else lax.psum(sums, axis_name), local

    return Reduce(lambda gradients: None, apply, shared=False)


@functools.cache
def two_bit(threshold: float = 0.5) -> Reduce:
    """For gradient g of each device: r ← r + g;  q = ±t where |r| ≥ t, else 0;  r ← r − q;  result: Σ_devices q.

    2-bit quantization with error feedback: the residual r stays on each device, q is summed over devices; t: threshold.

    Args:
        threshold: t, above 0.

    Returns:
        `Reduce` whose per-device state is the residual r.

    Raises:
        ValueError: the threshold is not above 0.

    Example:
        >>> import jax.numpy as jnp
        >>> rule, g = two_bit(0.5), {"w": jnp.array([0.75, -0.25])}
        >>> q, _, local = rule.apply(g, (), rule.init(g), None)
        >>> q["w"].tolist(), local["w"].tolist()
        ([0.5, 0.0], [0.25, -0.25])

    Source: Apache MXNet 1.9.1, 2-bit gradient compression of its key-value store.
    """
    if not threshold > 0:
        raise ValueError(f"the threshold of 2-bit compression is {threshold}; it must be above 0")

    def apply(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
        sent, residuals = {}, dict(local)
        for name, gradient in gradients.items():
            gradient = gradient.dense(len(local[name])) if isinstance(gradient, SparseRows) else gradient
            sent[name], residuals[name] = quantize(gradient, local[name], threshold)
        if axis_name is not None:
            sent, sums = lax.psum((sent, sums), axis_name)
        return sent, sums, residuals

    return Reduce(lambda gradients: jax.tree.map(jnp.zeros_like, gradients), apply)


def quantize(gradient: Array, residual: Array, threshold: float | Array) -> tuple[Array, Array]:
    """Quantize gradient + residual to -threshold, 0 or threshold.

    Returns (quantized gradient, new residual), where the new residual is the part that quantization removed.

    Example:
        >>> import jax.numpy as jnp
        >>> sent, residual = quantize(jnp.array([0.3]), jnp.array([0.3]), 0.5)
        >>> sent.tolist()
        [0.5]
    """
    total = residual + gradient
    sent = jnp.where(total >= threshold, threshold, jnp.where(total <= -threshold, -threshold, 0)).astype(total.dtype)
    return sent, total - sent


@functools.cache
def ordered(slices: int = 8) -> Reduce:
    """Sum the gradients of a fixed number of slices of the batch in a fixed order, so that bits do not depend on the devices.

    The batch is cut into virtual slices.  Each device computes the gradients of its slices one after the other, with one
    program, and the slices are added as a binary tree: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) for 8.  Batch statistics and
    loss heads that normalize by the batch use one slice at a time, as if there were so many devices.

    A step then consists of several programs: pass it to `jfit.data_parallel`, or use `jfit.fit(..., reduce="ordered")`.

    Args:
        slices: number of slices, a power of 2; the number of devices must divide it.

    Returns:
        `Reduce`.

    Raises:
        ValueError: `slices` is not a power of 2.

    Example:
        >>> ordered(4).slices
        4
    """
    if slices < 1 or slices & (slices - 1):
        raise ValueError(f"ordered has slices={slices}; expected a power of 2, because slices are added in pairs")

    def apply(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
        raise ValueError(
            "a step with reduce='ordered' consists of several programs, so it cannot run inside jit or pmap; call it through "
            "jfit.data_parallel(step, devices), or train with jfit.fit(..., reduce='ordered')"
        )

    return Reduce(lambda gradients: None, apply, slices=slices)


@functools.cache
def sharded() -> Reduce:
    """Split update and optimizer state over the devices (ZeRO-1): reduce-scatter of gradients, all-gather of parameters.

    Each device sums 1/N of the gradients, updates 1/N of every parameter with 1/N of the optimizer state, and sends the new
    values to the others.  Optimizer memory per device falls by the number of devices N; parameters stay replicated.  The
    numbers are those of `all_reduce` up to the order of sums.  Scalars, and embedding tables with row-sparse gradients, are
    updated on all devices, with their optimizer state.

    The optimizer must update every element on its own, or be jfit's lamb, lars or lbsgd, whose norms are added over devices;
    others raise an error.  Pass the step to `jfit.data_parallel`, or use `jfit.fit(..., reduce="sharded")`.

    Returns:
        `Reduce`.

    Example:
        >>> sharded().sharded
        True

    Source: Rajbhandari et al. 2020, ZeRO, https://arxiv.org/abs/1910.02054.
    """

    return Reduce(lambda gradients: None, _reduce_scatter, sharded=True)


@functools.cache
def sharded_parameters() -> Reduce:
    """As `sharded`, and the parameters are split too (ZeRO-3, FSDP): a step begins with their all-gather.

    Between two steps, each of N devices has 1/N of the trainable parameters and of the optimizer state.  During a step, all
    devices have the whole parameters.  As many bytes are moved as with `sharded`.  Evaluation and prediction gather the
    parameters first.  Frozen parameters, scalars and embedding tables with row-sparse gradients stay replicated.

    In the state on the devices, `params` has placeholders: `jfit.step.sharded.whole_state(state)` and `run.params` have the
    whole parameters.

    Returns:
        `Reduce`.

    Example:
        >>> sharded_parameters().sharded_parameters
        True

    Source: Rajbhandari et al. 2020, ZeRO, https://arxiv.org/abs/1910.02054.
    """
    return Reduce(lambda gradients: None, _reduce_scatter, sharded=True, sharded_parameters=True)


def _reduce_scatter(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
    if axis_name is not None:
        gradients, sums = cast(Any, reduce_scattered(gradients, sums, axis_name))
    return gradients, sums, local


RULES: dict[str, Callable[[], Reduce]] = {
    "psum": all_reduce,
    "2bit": two_bit,
    "ordered": ordered,
    "sharded": sharded,
    "sharded_parameters": sharded_parameters,
}


def get(rule: Reduce | str | None) -> Reduce:
    """Convert a `reduce=` argument to a `Reduce`.

    Args:
        rule: a `Reduce`; "psum", "2bit", "sharded", "sharded_parameters" or "ordered", for the rule of that name with its
            default arguments; or None for "psum".

    Returns:
        `Reduce`.

    Raises:
        ValueError: an unknown name.
        TypeError: neither a name nor a `Reduce`.

    Example:
        >>> get("ordered").slices
        8
    """
    if rule is None:
        return all_reduce()
    if isinstance(rule, str):
        if rule not in RULES:
            raise ValueError(f"reduce is {rule!r}; expected one of {', '.join(map(repr, RULES))}, or a jfit.step.reduce.Reduce")
        return RULES[rule]()
    if not isinstance(rule, Reduce):
        raise TypeError(f"reduce is a {type(rule).__name__}; expected one of {', '.join(map(repr, RULES))}, or a Reduce")
    return rule
