"""SGLD: gradient descent with noise, which samples from a posterior instead of finding its mode."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jfit.mxnet.keys import next_key
from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.ruled import Ruled


@Optimizer.register
class SGLD(Ruled):
    """w <- w - lr / 2 * (c(g) + wd * w) + sqrt(lr) * noise, noise from the standard normal distribution.

    The key is drawn from the shells' own sequence when the first update comes, so `mx.random.seed` before it makes a run
    repeatable.  The noise follows from key, update count and parameter: it is the same on any number of devices.

    Args:
        **kwargs: of `Optimizer`.

    Example:
        >>> SGLD(learning_rate=0.1).rule
        'sgld'

    Source: Welling and Teh 2011, https://icml.cc/2011/papers/398_icmlpaper.pdf; Apache MXNet 1.9.1, `SGLD`.
    """

    rule = "sgld"

    def first_shared(self) -> Mapping[str, Any]:
        """The key."""
        return {"key": jax.random.key_data(next_key())}

    def shared_for(self, indices: Sequence[Any]) -> Mapping[str, Any]:
        """The key of these parameters: an update of a list knows them by their place in it only."""
        key = jax.random.wrap_key_data(self.shared.given()["key"])
        return {"key": jax.random.key_data(jax.random.fold_in(key, zlib.crc32(repr(list(indices)).encode())))}

    def keep_shared(self, scalars: Mapping[str, Any]) -> None:
        """The key stays."""
