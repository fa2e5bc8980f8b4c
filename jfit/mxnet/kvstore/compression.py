"""Gradient compression of a key-value store: the pure quantizer, with the residuals that it needs between pushes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.errors import MXNetError
from jfit.mxnet.kvstore.transfer import sharding_of
from jfit.step.reduce import quantize

_KNOWN = ("type", "threshold")


class TwoBit:
    """r <- r + g;  q = +-t where |r| reaches t, else 0;  r <- r - q: what leaves a device is q, what was cut stays in r.

    Args:
        threshold: t, above 0.

    Raises:
        MXNetError: a threshold that is not above 0.

    Example:
        >>> two_bit = TwoBit(0.5)
        >>> [two_bit([("w", 0)], [jnp.array([0.3])])[0].item() for _ in range(3)]
        [0.0, 0.5, 0.0]

    Source: Apache MXNet 1.9.1, `kvstore.set_gradient_compression`.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        if not threshold > 0:
            raise MXNetError(f"the threshold of 2-bit compression is {threshold}, a number above 0 is needed.")
        self.threshold = float(threshold)
        self.residuals: dict[Hashable, Any] = {}

    def __call__(self, places: list[Hashable], gradients: list[Any]) -> list[jax.Array]:
        """What is sent of each gradient; one dispatch per device.

        Args:
            places: whose residual belongs to a gradient, (key, number of the device).
            gradients: float arrays, on any devices.

        Returns:
            Arrays of +-threshold or 0, each on the device of its gradient.
        """
        sent: list[Any] = [None] * len(places)
        for where in {sharding_of(g): None for g in gradients}:
            mine = [i for i, g in enumerate(gradients) if sharding_of(g) == where]
            held = [self._residual(places[i], gradients[i]) for i in mine]
            pairs = _quantized([gradients[i] for i in mine], held, self.threshold)
            for i, (value, rest) in zip(mine, pairs, strict=True):
                sent[i], self.residuals[places[i]] = value, rest
        return sent

    def _residual(self, place: Hashable, gradient: Any) -> Any:
        found = self.residuals.get(place)
        # the first push, or a push after the key was given another shape
        if found is None or found.shape != gradient.shape:
            where = sharding_of(gradient)
            found = np.zeros(gradient.shape, gradient.dtype)
            return found if where is None else jax.device_put(found, where)
        return found


def parse(params: Mapping[str, Any]) -> TwoBit:
    """The compression that MXNet's `compression_params` mean.

    Args:
        params: `{"type": "2bit", "threshold": 0.5}`; the threshold may be left out.

    Raises:
        MXNetError: no type, an unknown one, or a threshold that is not above 0.
        ValueError: a name that compression does not know.

    Example:
        >>> parse({"type": "2bit", "threshold": 2}).threshold
        2.0
    """
    unknown = [name for name in params if name not in _KNOWN]
    if unknown:
        raise ValueError(
            f"compression_params has {unknown[0]!r}, which is unknown; needed are {' and '.join(map(repr, _KNOWN))}."
        )
    if params.get("type") != "2bit":
        raise MXNetError(f"the type of gradient compression is {params.get('type')!r}; the one that exists is '2bit'.")
    return TwoBit(float(params.get("threshold", 0.5)))


@jax.jit
def _quantized(gradients: list[jax.Array], residuals: list[jax.Array], threshold: float) -> list[tuple[jax.Array, jax.Array]]:
    return [quantize(g, r, jnp.asarray(threshold, g.dtype)) for g, r in zip(gradients, residuals, strict=True)]
