"""2-bit gradient compression of a key-value store, with the quantization residuals kept between pushes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.errors import MXNetError
from jfit.mxnet.kvstore.transfer import sharding_of
from jfit.step.reduce import quantize

_PARAMS = ("type", "threshold")


class TwoBit:
    """2-bit compression with error feedback: r <- r + g;  q = sign(r) * t where |r| >= t, else 0;  r <- r - q.

    A device sends q; the residual r is kept for its next gradient.

    Args:
        threshold: t, greater than 0.

    Raises:
        MXNetError: the threshold is not greater than 0.

    Example:
        >>> two_bit = TwoBit(0.5)
        >>> [two_bit([("w", 0)], [jnp.array([0.3])])[0].item() for _ in range(3)]
        [0.0, 0.5, 0.0]

    Source: Apache MXNet 1.9.1, `kvstore.set_gradient_compression`.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        if not threshold > 0:
            raise MXNetError(f"the threshold of 2-bit compression is {threshold}, it must be greater than 0.")
        self.threshold = float(threshold)
        self.residuals: dict[Hashable, Any] = {}

    def __call__(self, places: list[Hashable], gradients: list[Any]) -> list[jax.Array]:
        """Quantize gradients and update their residuals; one dispatch per device.

        Args:
            places: the residual's key per gradient: (kvstore key, device number).
            gradients: float arrays, on any devices.

        Returns:
            Arrays of the gradients' shapes with entries -threshold, 0 or threshold, on the devices of the gradients.
        """
        sent: list[Any] = [None] * len(places)
        for where in {sharding_of(g): None for g in gradients}:
            local = [i for i, g in enumerate(gradients) if sharding_of(g) == where]
            residuals = [self._residual(places[i], gradients[i]) for i in local]
            pairs = _quantized([gradients[i] for i in local], residuals, self.threshold)
            for i, (value, residual) in zip(local, pairs, strict=True):
                sent[i], self.residuals[places[i]] = value, residual
        return sent

    def _residual(self, place: Hashable, gradient: Any) -> Any:
        residual = self.residuals.get(place)
        # zeros for the first push, and after the shape of the key has changed
        if residual is None or residual.shape != gradient.shape:
            where = sharding_of(gradient)
            residual = np.zeros(gradient.shape, gradient.dtype)
            return residual if where is None else jax.device_put(residual, where)
        return residual


def parse(params: Mapping[str, Any]) -> TwoBit:
    """Create the compression from MXNet's `compression_params`.

    Args:
        params: `{"type": "2bit", "threshold": 0.5}`; the threshold defaults to 0.5.

    Raises:
        MXNetError: the type is missing or unknown, or the threshold is not greater than 0.
        ValueError: an unknown parameter name.

    Example:
        >>> parse({"type": "2bit", "threshold": 2}).threshold
        2.0
    """
    unknown = [name for name in params if name not in _PARAMS]
    if unknown:
        raise ValueError(
            f"compression_params has the unknown name {unknown[0]!r}; supported are {' and '.join(map(repr, _PARAMS))}."
        )
    if params.get("type") != "2bit":
        raise MXNetError(f"the type of gradient compression is {params.get('type')!r}; the only supported type is '2bit'.")
    return TwoBit(float(params.get("threshold", 0.5)))


@jax.jit
def _quantized(gradients: list[jax.Array], residuals: list[jax.Array], threshold: float) -> list[tuple[jax.Array, jax.Array]]:
    return [quantize(g, r, jnp.asarray(threshold, g.dtype)) for g, r in zip(gradients, residuals, strict=True)]
