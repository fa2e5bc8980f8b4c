"""Reduction of gradients over devices.

    all_reduce   sum over devices: data-parallel training
    unreduced    no reduction: every device trains its own copy of the parameters on its own rows
    bfloat16     sum of gradients that are sent in bfloat16 and added in float32
    two_bit      sum of gradients quantized to 2 bits, with error feedback
    sharded      sum over devices, of which each device gets and updates its part: optimizer state split over devices (ZeRO-1)
    sharded_parameters  the same, with parameters split as well between two steps (FSDP)
    ordered      sum over a fixed number of slices of the batch, in a fixed order: the same bits on any number of devices

Loss and metric sums are always summed over devices.  docs/scaling.md has a table of the bytes that each rule sends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import positive
from jfit.lowering.model import Params
from jfit.optim.rows import SparseRows
from jfit.programs import made
from jfit.step.packed import on_vectors, psum, sum_bfloat16, sum_signs
from jfit.step.state import TrainState


class Reduce(NamedTuple):
    """A reduction rule as a pair of pure functions.

    Attributes:
        init: `init(gradients) -> local`: initial state of the rule on one device (`TrainState.local`), such as the residual of
            `two_bit`; None for a rule without state.
        apply: `apply(gradients, sums, local, axis_name) -> (gradients, sums, local)`; reduces the gradients over devices, and
            adds the pytree `sums` (of losses, metrics and row weights) over devices.
        shared: whether all devices get the same gradients; otherwise each device has its own parameters and optimizer state.
        slices: number of virtual slices of the batch, for `ordered`; None for the other rules.
        sharded: whether update and optimizer state are split over the devices (see `sharded`).
        sharded_parameters: whether the parameters are split as well, between two steps.
    """

    init: Callable[[Params], Any]
    apply: Callable[[Params, Any, Any, str | None], tuple[Params, Any, Any]]
    shared: bool = True
    slices: int | None = None
    sharded: bool = False
    sharded_parameters: bool = False


def _once(make: Callable[..., Reduce]) -> Callable[..., Reduce]:
    """Decorator: always return the same object for the same arguments, because compiled programs are cached by it."""
    return functools.cache(made(make))


@_once
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
            whole, sums = psum((whole, sums), axis_name)
            gradients = cast(Params, {**whole, **rows})
        return gradients, sums, local

    return Reduce(lambda gradients: None, apply)


@_once
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
        return gradients, psum(sums, axis_name), local

    return Reduce(lambda gradients: None, apply, shared=False)


@_once
def bfloat16() -> Reduce:
    """Sum of gradients that are rounded to bfloat16 on each device and added in float32: half the bytes of `all_reduce`.

    With N > 2 devices, the sums are rounded to bfloat16, too.  For each element, |result - Σ g| ≤ 2⁻⁷ (1 + 2⁻⁸) Σ |g|, where
    Σ is the sum over devices, in addition to the rounding of float32 sums.  On one device, gradients are unchanged.

    `SparseRows` gradients are gathered from all devices without rounding.

    Returns:
        `Reduce`.

    Example:
        >>> import jax.numpy as jnp
        >>> bfloat16().apply({"w": jnp.ones(1)}, (), None, None)[0]["w"].tolist()
        [1.0]
    """

    def apply(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
        if axis_name is not None:
            rows = {k: g.gathered(axis_name) for k, g in gradients.items() if isinstance(g, SparseRows)}
            whole = cast(dict[str, Array], {k: g for k, g in gradients.items() if k not in rows})
            sums_of = on_vectors(lambda x: sum_bfloat16(x, axis_name), {k: g.astype(jnp.float32) for k, g in whole.items()})
            gradients = cast(Params, {**{k: sums_of[k].astype(g.dtype) for k, g in whole.items()}, **rows})
        return gradients, psum(sums, axis_name), local

    return Reduce(lambda gradients: None, apply)


@_once
def two_bit(threshold: float = 0.5) -> Reduce:
    """For gradient g of each device: r ← r + g;  q = ±t where |r| ≥ t, else 0;  r ← r − q;  result: Σ_devices q.

    2-bit quantization with error feedback: the residual r stays on each device, q is summed over devices; t: threshold.
    Packed words of 2 bits per element are sent, and the sums, which are integers times t, in few bits.

    If r + g of any device has an infinity or a NaN in a parameter, the result is NaN for the whole parameter; the residuals of
    such elements are unchanged.

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
    positive(threshold=threshold)

    def apply(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
        residuals, signs, bad = dict(local), {}, {}
        for name, gradient in _dense(gradients, local).items():
            sent, residual = quantize(gradient, local[name], threshold)
            finite = jnp.isfinite(residual)
            residuals[name] = jnp.where(finite, residual, local[name])
            signs[name], bad[name] = jnp.sign(sent), 1 - jnp.all(finite).astype(jnp.float32)
        (sums, bad), counts = psum((sums, bad), axis_name), signs
        if axis_name is not None:
            counts = on_vectors(lambda x: sum_signs(x, axis_name), {k: s.astype(jnp.int8) for k, s in signs.items()})
        counts = {k: c.astype(signs[k].dtype) for k, c in counts.items()}
        result = {k: jnp.where(bad[k] > 0, jnp.nan, c * jnp.asarray(threshold, c.dtype)) for k, c in counts.items()}
        return cast(Params, result), sums, residuals

    return Reduce(lambda gradients: jax.tree.map(jnp.zeros_like, gradients), apply)


def _dense(gradients: Params, local: Any) -> dict[str, Array]:
    """The gradients as arrays of the shapes of the residuals `local`."""
    return {k: g.dense(len(local[k])) if isinstance(g, SparseRows) else g for k, g in gradients.items()}


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


@_once
def ordered(slices: int = 8) -> Reduce:
    """Sum the gradients of a fixed number of slices of the batch in a fixed order, so that bits do not depend on the devices.

    The batch is cut into virtual slices.  Each device computes the gradients of its slices one after the other, and
    the slices are added as a binary tree: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) for 8.  Batch statistics and
    loss heads that normalize by the batch use one slice at a time, as if there were so many devices.

    A step then consists of several programs: pass it to `jfit.data_parallel`, or use `jfit.fit(..., reduce="ordered")`.

    Args:
        slices: number of slices, a power of 2; the maximum number of devices.

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
        raise ValueError("a step with reduce='ordered' consists of several programs; call it through jfit.data_parallel(step)")

    return Reduce(lambda gradients: None, apply, slices=slices)


@_once
def sharded() -> Reduce:
    """Split update and optimizer state over the devices (ZeRO-1): reduce-scatter of gradients, all-gather of parameters.

    Each device sums 1/N of the gradients, updates 1/N of every parameter with 1/N of the optimizer state, and sends the new
    values to the others.  Optimizer memory per device falls by the number of devices N; parameters stay replicated.  The
    numbers are those of `all_reduce` up to the order of sums.  Embedding tables with row-sparse gradients are updated on all
    devices, with their optimizer state.

    Any optimizer is possible.  An array is split along its first axis whose size is a multiple of N; arrays without such an
    axis are whole on every device.  The state is split by the program that `jfit.data_parallel` or `jfit.fit` compiles: inside
    a pmap or shard_map of yours the rule is `all_reduce`.

    Returns:
        `Reduce`.

    Example:
        >>> sharded().sharded
        True

    Source: Rajbhandari et al. 2020, ZeRO, https://arxiv.org/abs/1910.02054.
    """

    return all_reduce()._replace(sharded=True)


@_once
def sharded_parameters() -> Reduce:
    """As `sharded`, and the parameters are split between two steps, too (FSDP).

    Between two steps, each of N devices has 1/N of the trainable parameters and of the optimizer state.  A step gathers the
    parameters before the forward pass, so that during it a device has whole parameters and gradients, as with `sharded`.  The
    numbers, and the bytes sent, are those of `sharded`.  Frozen parameters, and embedding tables with row-sparse gradients,
    stay whole.  Evaluation and prediction gather all parameters first.

    Returns:
        `Reduce`.

    Example:
        >>> sharded_parameters().sharded_parameters
        True

    Source: Rajbhandari et al. 2020, ZeRO, https://arxiv.org/abs/1910.02054; Zhao et al. 2023, PyTorch FSDP,
    https://arxiv.org/abs/2304.11277.
    """
    return all_reduce()._replace(sharded=True, sharded_parameters=True)


RULES: dict[str, Callable[[], Reduce]] = {
    "psum": all_reduce,
    "bfloat16": bfloat16,
    "2bit": two_bit,
    "ordered": ordered,
    "sharded": sharded,
    "sharded_parameters": sharded_parameters,
}


def with_local(state: TrainState, rule: Reduce, trainable: Params, count: int) -> TrainState:
    """Add the initial per-device state of a reduction rule, such as the residuals of "2bit", unless the state has one.

    The per-device state of an earlier rule is dropped if this rule has none.

    Args:
        state: `TrainState`.
        rule: the reduction rule.
        trainable: the trainable parameters by name, which have the shapes and dtypes of their gradients.
        count: number of devices.

    Returns:
        `TrainState` whose `local` has a leading device axis if there are several devices.

    Raises:
        ValueError: the state has one with other shapes, such as that of another number of devices.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=jnp.subtract, params={"w": jnp.ones(2)})
        >>> state = jfit.init_state(model, "sgd")
        >>> with_local(state, two_bit(), state.params, 4).local["w"].shape
        (4, 2)
    """
    local = rule.init(trainable)
    if count > 1:
        local = jax.tree.map(lambda x: np.stack([np.asarray(x)] * count), local)
    if state.local is None:
        return state._replace(local=local)
    if local is None:  # residuals of another rule are not needed; per-device state of the user's own is kept
        is_residual = isinstance(state.local, Mapping) and set(state.local) == set(trainable)
        return state._replace(local=None) if is_residual else state
    expected, actual = (
        {jax.tree_util.keystr(k): np.shape(x) for k, x in jax.tree.leaves_with_path(t)} for t in (local, state.local)
    )
    if differ := [k for k in {**expected, **actual} if expected.get(k) != actual.get(k)]:
        raise ValueError(
            f"state.local{differ[0]} (residuals of '2bit') has shape {actual.get(differ[0])}, expected "
            f"{expected.get(differ[0])} on {count} device(s); for new residuals pass state._replace(local=None)"
        )
    return state


def get(rule: Reduce | str | None) -> Reduce:
    """Convert a `reduce=` argument to a `Reduce`.

    Args:
        rule: a `Reduce`; a name ("psum", "bfloat16", "2bit", "sharded", "sharded_parameters" or "ordered"), for the
            rule of that name with its default arguments; or None for "psum".

    Returns:
        `Reduce`.

    Raises:
        ValueError: neither a name nor a `Reduce`.

    Example:
        >>> get("ordered").slices
        8
    """
    if isinstance(rule, Reduce):
        return rule
    if rule is not None and rule not in RULES:
        raise ValueError(f"reduce is {rule!r}; expected one of {', '.join(map(repr, RULES))}, or a jfit.step.reduce.Reduce")
    return all_reduce() if rule is None else RULES[rule]()
