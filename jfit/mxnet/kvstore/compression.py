"""Gradient compression of a key-value store: 2 bits or bfloat16; quantization residuals are kept between pushes."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.errors import MXNetError
from jfit.mxnet.kvstore.transfer import sharding_of
from jfit.step.reduce import Reduce, bfloat16, two_bit


class Compression:
    """Quantize the gradients that devices push; made by `parse`.

    2 bits, with threshold t: r <- r + g;  q = sign(r) * t where |r| >= t, else 0;  r <- r - q.  A device sends
    q; the residual r is kept for its next gradient.  bfloat16: gradients are rounded before they are summed in their own dtype;
    there are no residuals.

    Args:
        rule: the reduction of a training step with the same numbers, a `jfit.step.reduce.Reduce`.

    Attributes:
        rule: as passed.
        residuals: (kvstore key, device number) -> the part of earlier gradients that was not sent.

    Example:
        >>> two_bits = parse({"type": "2bit"})
        >>> [two_bits([("w", 0)], [jnp.array([0.3])])[0].item() for _ in range(3)]
        [0.0, 0.5, 0.0]
        >>> parse({"type": "bfloat16"})([("w", 0)], [jnp.array([1.001])])[0].tolist()
        [1.0]

    Source: Apache MXNet 1.9.1, `kvstore.set_gradient_compression` (2 bits).
    """

    def __init__(self, rule: Reduce) -> None:
        self.rule = rule
        self.residuals: dict[Hashable, Any] = {}

    def __call__(self, places: list[Hashable], gradients: list[Any]) -> list[jax.Array]:
        """Quantize gradients and update their residuals; one dispatch per device.

        Args:
            places: the residual's key per gradient: (kvstore key, device number).
            gradients: float arrays, on any devices.

        Returns:
            Arrays of the shapes, dtypes and devices of the gradients.
        """
        sent: list[Any] = [None] * len(places)
        for where in {sharding_of(g): None for g in gradients}:
            local = [i for i, g in enumerate(gradients) if sharding_of(g) == where]
            residuals = [self._residual(places[i], gradients[i]) for i in local]
            pairs = _quantized(self.rule, [gradients[i] for i in local], residuals)
            for i, (value, residual) in zip(local, pairs, strict=True):
                sent[i], self.residuals[places[i]] = value, residual
        return sent

    def _residual(self, place: Hashable, gradient: Any) -> Any:
        residual = self.residuals.get(place)
        # zeros for the first push, and after the shape of the key has changed
        if (residual is None or residual.shape != gradient.shape) and self.rule is not bfloat16():
            residual, where = np.zeros(gradient.shape, gradient.dtype), sharding_of(gradient)
            return residual if where is None else jax.device_put(residual, where)
        return residual


def parse(params: Mapping[str, Any]) -> Compression:
    """Create the compression from MXNet's `compression_params`.

    Args:
        params: `{"type": "2bit", "threshold": 0.5}`, where the threshold defaults to 0.5, or
            `{"type": "bfloat16"}`.  MXNet has "2bit" only.

    Raises:
        MXNetError: the type is missing or unknown.
        ValueError: a parameter that the type does not have, or a threshold that is not above 0.

    Example:
        >>> parse({"type": "2bit", "threshold": 2}).rule is two_bit(2.0)
        True
    """
    kind, threshold = params.get("type"), float(params.get("threshold", 0.5))  # may be a string
    if kind not in ("2bit", "bfloat16"):
        raise MXNetError(f"the type of gradient compression is {kind!r}; the supported types are '2bit', 'bfloat16'.")
    known = ("type", "threshold") if kind == "2bit" else ("type",)
    for name in params:
        if name not in known:
            raise ValueError(f"compression_params of type {kind!r} has {name!r}; the parameters are {', '.join(known)}.")
    return Compression(two_bit(threshold) if kind == "2bit" else bfloat16())


@functools.partial(jax.jit, static_argnums=0)
def _quantized(rule: Reduce, gradients: list[jax.Array], residuals: list[Any]) -> list[tuple[jax.Array, Any]]:
    """Return (quantized gradient, new residual) of each gradient; all are on one device."""
    if rule is bfloat16():  # rounds between devices only
        return [(gradient.astype(jnp.bfloat16).astype(gradient.dtype), None) for gradient in gradients]
    names = [f"{i:09}" for i in range(len(gradients))]
    local = dict(zip(names, residuals, strict=True))
    sent, _, local = rule.apply(dict(zip(names, gradients, strict=True)), (), local, None)
    return [(sent[name], local[name]) for name in names]
