"""Rate and decay multipliers of each parameter, by name: data of an optimizer's state, never constants of its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Multiplier = Mapping[str, float] | Callable[[str], float] | None

# which names decay, by the name of the rule
DECAYED = {"mxnet": ("_weight", "_gamma"), "lars": ("_weight",)}
_MXNET_ENDINGS = ("_weight", "_gamma", "_bias", "_beta")


def leaf_names(params: Any) -> list[str]:
    """Name of each leaf, in leaf order: a key of a flat dict, or `a/b/0`.

    Example:
        >>> leaf_names({"b": [1.0, 2.0], "a": 3.0})
        ['a', 'b/0', 'b/1']
    """
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def multipliers(
    params: Any, given: Multiplier | str | tuple[str, Mapping[str, float]], default: str | None = None, keep: bool = False
) -> Array | None:
    """The multiplier of each leaf, float32 (leaves,); None where all are 1, unless told to keep them.

    Args:
        params: the parameters.
        given: dict by name, function of the name, None (1 for all), "mxnet" (the decay rule of MXNet's Module) or "lars"
            (that of its LARS, which spares gammas too), or a pair (rule, dict).
        default: the rule, "mxnet" or "lars", that names which a dict does not list follow instead of being 1.
        keep: return an array even if all are 1.

    Raises:
        ValueError: another string.

    Example:
        >>> multipliers({"a_weight": jnp.ones(2), "b_bias": jnp.ones(2)}, "mxnet").tolist()
        [1.0, 0.0]
    """
    if given is None and not keep:
        return None
    if isinstance(given, tuple):
        default, given = given
    if isinstance(given, str) and given not in DECAYED:
        raise ValueError(
            f"wd_mult is {given!r}; it needs to be 'mxnet', 'lars', a dict by name, a function of the name, or None."
        )
    names = leaf_names(params)
    if callable(given):
        values = np.asarray([given(name) for name in names], np.float32)
    else:
        rule = given if isinstance(given, str) else default if given is not None else None
        base = _decays(names, [np.ndim(leaf) for leaf in jax.tree.leaves(params)], rule) if rule else [1.0] * len(names)
        own = given if isinstance(given, Mapping) else {}
        values = np.asarray([own.get(name, value) for name, value in zip(names, base, strict=True)], np.float32)
    return None if np.all(values == 1) and not keep else jnp.asarray(values)


def _decays(names: list[str], ndims: list[int], rule: str) -> list[float]:
    if any(name.endswith(_MXNET_ENDINGS) and "/" not in name for name in names):
        return [float(name.endswith(DECAYED[rule])) for name in names]
    return [float(ndim >= 2) for ndim in ndims]
