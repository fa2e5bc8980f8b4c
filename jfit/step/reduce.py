"""How the gradients of several devices become the gradient of the update.

    all_reduce   the sum over devices: data-parallel training
    unreduced    none: every device learns from its own rows, and parameters drift apart
    two_bit      the sum of 2-bit values, with what was rounded away kept for the next step

Sums of loss and metrics are always added over devices.
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


class Reduce(NamedTuple):
    """A rule, as a pair of pure functions.

    Attributes:
        init: `init(gradients) -> local`: what one device keeps between steps (`TrainState.local`), or None.
        apply: `apply(gradients, sums, local, axis_name) -> (gradients, sums, local)`.
        shared: whether every device gets the same gradient; if not, parameters and optimizer state are per device.
    """

    init: Callable[[Params], Any]
    apply: Callable[[Params, Any, Any, str | None], tuple[Params, Any, Any]]
    shared: bool = True


@functools.cache  # one object for one rule: programs are kept by it
def all_reduce() -> Reduce:
    """g = Σ_devices g_d, in one all-reduce together with the sums; of tables the rows of all devices are gathered.

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
    """g = g_d: no exchange; MXNet's training on several devices with `kvstore=None`.

    Example:
        >>> unreduced().shared
        False
    """

    def apply(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
        return gradients, sums if axis_name is None else lax.psum(sums, axis_name), local

    return Reduce(lambda gradients: None, apply, shared=False)


@functools.cache
def two_bit(threshold: float = 0.5) -> Reduce:
    """r ← r + g_d;  q = ±t where |r| reaches t, else 0;  r ← r − q;  g = Σ_devices q.

    Args:
        threshold: t, above 0.

    Raises:
        ValueError: a threshold that is not above 0.

    Example:
        >>> import jax.numpy as jnp
        >>> rule, g = two_bit(0.5), {"w": jnp.array([0.75, -0.25])}
        >>> q, _, local = rule.apply(g, (), rule.init(g), None)
        >>> q["w"].tolist(), local["w"].tolist()
        ([0.5, 0.0], [0.25, -0.25])

    Source: Apache MXNet 1.9.1, 2-bit gradient compression of its key-value store.
    """
    if not threshold > 0:
        raise ValueError(f"the threshold of 2-bit compression is {threshold}, a number above 0 is needed")

    def apply(gradients: Params, sums: Any, local: Any, axis_name: str | None) -> tuple[Params, Any, Any]:
        sent, kept = {}, dict(local)
        for name, gradient in gradients.items():
            gradient = gradient.dense(len(local[name])) if isinstance(gradient, SparseRows) else gradient
            sent[name], kept[name] = quantize(gradient, local[name], threshold)
        if axis_name is not None:
            sent, sums = lax.psum((sent, sums), axis_name)
        return sent, sums, kept

    return Reduce(lambda gradients: jax.tree.map(jnp.zeros_like, gradients), apply)


def quantize(gradient: Array, residual: Array, threshold: float | Array) -> tuple[Array, Array]:
    """(what is sent, the new residual) of one device: values of ±threshold or 0.

    Example:
        >>> import jax.numpy as jnp
        >>> sent, residual = quantize(jnp.array([0.3]), jnp.array([0.3]), 0.5)
        >>> sent.tolist()
        [0.5]
    """
    total = residual + gradient
    sent = jnp.where(total >= threshold, threshold, jnp.where(total <= -threshold, -threshold, 0)).astype(total.dtype)
    return sent, total - sent
