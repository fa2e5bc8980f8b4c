"""Densities and probabilities of samples: _random_pdf_*.

A parameter has the leading axes of the sample: parameter entry i belongs to all samples [i, ...].  Like MXNet's, they do not
look whether a sample lies where the distribution can put it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import gammaln

from jfit.ops.attributes import Attrs, flag
from jfit.ops.context import Ctx
from jfit.ops.registry import Shape, operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import accumulating, agreed

LogDensity = Callable[..., Array]


def _uniform(x: Array, low: Array, high: Array) -> Array:
    """p(x) = 1 / (high - low)."""
    return jnp.broadcast_to(-jnp.log(high - low), x.shape)


def _normal(x: Array, mu: Array, sigma: Array) -> Array:
    """p(x) = exp(-(x - mu)² / 2 sigma²) / (sigma √2π)."""
    return -0.5 * ((x - mu) / sigma) ** 2 - jnp.log(sigma) - 0.9189385332046727  # log √2π


def _gamma(x: Array, alpha: Array, beta: Array) -> Array:
    """p(x) = beta^alpha x^(alpha - 1) exp(-beta x) / Γ(alpha); beta is a rate here, although _sample_gamma's is a scale."""
    return alpha * jnp.log(beta) + (alpha - 1) * jnp.log(x) - beta * x - gammaln(alpha)


def _exponential(x: Array, lam: Array) -> Array:
    """p(x) = lam exp(-lam x)."""
    return jnp.log(lam) - lam * x


def _poisson(x: Array, lam: Array) -> Array:
    """p(x) = lam^x exp(-lam) / x!; no gradient for the sample."""
    x = lax.stop_gradient(x)
    return x * jnp.log(lam) - lam - gammaln(x + 1)


def _negative_binomial(x: Array, k: Array, p: Array) -> Array:
    """p(x) = Γ(x + k) / (x! Γ(k)) p^k (1 - p)^x; no gradient for the sample."""
    x = lax.stop_gradient(x)
    return gammaln(x + k) - gammaln(x + 1) - gammaln(k) + k * jnp.log(p) + x * jnp.log(1 - p)


def _generalized_negative_binomial(x: Array, mu: Array, alpha: Array) -> Array:
    """p(x) of the negative binomial with k = 1 / alpha and p = 1 / (1 + mu alpha); no gradient for the sample."""
    return _negative_binomial(x, 1 / alpha, 1 / (1 + mu * alpha))


TABLE: list[tuple[str, tuple[str, ...], LogDensity]] = [
    ("uniform", ("low", "high"), _uniform),
    ("normal", ("mu", "sigma"), _normal),
    ("gamma", ("alpha", "beta"), _gamma),
    ("exponential", ("lam",), _exponential),
    ("poisson", ("lam",), _poisson),
    ("negative_binomial", ("k", "p"), _negative_binomial),
    ("generalized_negative_binomial", ("mu", "alpha"), _generalized_negative_binomial),
]


def _leading(op: str, name: str, shape: Shape, sample: Shape) -> None:
    if sample[: len(shape)] != shape:
        raise ValueError(
            f"{op}: {name} has shape {shape} and sample has {sample}, needed the leading axes of the sample because each "
            f"entry of {name} belongs to all samples at its place; reshape {name}"
        )


def _same_rows(attrs, rows, shapes, outs):
    """Leading axes are shared, so the rows of every input are where the rows of the sample are."""
    found = agreed(rows)
    return [found if not isinstance(found, RowLayout) or found.axis < len(outs[0]) else LOST]


def _given(logs: Array, attrs: Attrs, dtype: Any) -> Array:
    return (logs if attrs.is_log else jnp.exp(logs)).astype(dtype)


def _add(law: str, names: tuple[str, ...], density: LogDensity) -> None:
    op = f"_random_pdf_{law}"

    def pdf(ctx: Ctx, attrs: Attrs, sample: Array, *parameters: Array) -> Array:
        wide = sample.astype(accumulating(sample.dtype))
        aligned = []
        for name, p in zip(names, parameters, strict=True):
            _leading(op, name, p.shape, sample.shape)
            aligned.append(p.astype(wide.dtype).reshape(*p.shape, *(1,) * (sample.ndim - p.ndim)))
        return _given(density(wide, *aligned), attrs, sample.dtype)

    pdf.__doc__ = density.__doc__
    operator(op, inputs=("sample", *names), attrs={"is_log": flag(False)}, aliases=(op[1:],), rows=_same_rows)(pdf)


for _row in TABLE:
    _add(*_row)


@operator(
    "_random_pdf_dirichlet",
    inputs=("sample", "alpha"),
    attrs={"is_log": flag(False)},
    aliases=("random_pdf_dirichlet",),
    rows=lambda attrs, rows, shapes, outs: (
        [LOST]
        if any(isinstance(r, RowLayout) and r.axis == len(s) - 1 for r, s in zip(rows, shapes, strict=True))
        else _same_rows(attrs, rows, shapes, outs)
    ),
)
def dirichlet(ctx: Ctx, attrs: Attrs, sample: Array, alpha: Array) -> Array:
    """p(x) = Γ(Σ alpha) Πᵢ xᵢ^(alphaᵢ - 1) / Πᵢ Γ(alphaᵢ), i along the last axis."""
    op = "_random_pdf_dirichlet"
    if alpha.ndim == 0 or sample.ndim == 0 or alpha.shape[-1] != sample.shape[-1]:
        raise ValueError(
            f"{op}: alpha has shape {alpha.shape} and sample has {sample.shape}, needed the same last axis because it holds "
            "the parts of one distribution; reshape alpha"
        )
    _leading(op, "alpha without its last axis", alpha.shape[:-1], sample.shape[:-1])
    wide = sample.astype(accumulating(sample.dtype))
    spread = (*alpha.shape[:-1], *(1,) * (sample.ndim - alpha.ndim), alpha.shape[-1])
    a = alpha.astype(wide.dtype).reshape(spread)
    logs = jnp.sum((a - 1) * jnp.log(wide), axis=-1) + gammaln(jnp.sum(a, axis=-1)) - jnp.sum(gammaln(a), axis=-1)
    return _given(logs, attrs, sample.dtype)
