"""`mx.nd.sgd_update`, `mx.nd.adam_update`, ...: one step of an optimizer of `mx.optimizer`, without the object.

Each function updates its states in place, and returns the new weight or writes it into `out`, which may be the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jfit.mxnet.mutable import write_into
from jfit.mxnet.optimizer import named
from jfit.mxnet.optimizer.base import Optimizer
from jfit.optim.core import decay_rates, wide
from jfit.optim.rules import lamb_direction, lamb_ratio, lars_ratio

# function -> (optimizer, names of its states, defaults that differ from those of the optimizer)
_RULES: dict[str, tuple[type[Optimizer], str, dict[str, Any]]] = {
    "sgd_update": (named.SGD, "", {}),
    "sgd_mom_update": (named.SGD, "mom", {"momentum": 0.0}),
    "nag_mom_update": (named.NAG, "mom", {"momentum": 0.0}),
    "signsgd_update": (named.Signum, "", {"momentum": 0.0}),
    "signum_update": (named.Signum, "mom", {"momentum": 0.0}),
    "adam_update": (named.Adam, "mean var", {"begin_num_update": 10**8}),  # so late that the correction of the bias is 1
    "ftml_update": (named.FTML, "d v z", {}),
    "ftrl_update": (named.Ftrl, "z n", {}),
    "rmsprop_update": (named.RMSProp, "n", {"gamma1": 0.95, "centered": False}),
    "rmspropalex_update": (named.RMSProp, "n g delta", {"gamma1": 0.95, "centered": True}),
    "mp_sgd_update": (named.SGD, "weight32", {}),
    "mp_sgd_mom_update": (named.SGD, "mom weight32", {"momentum": 0.0}),
    "mp_nag_mom_update": (named.NAG, "mom weight32", {"momentum": 0.0}),
    "adagrad_update": (named.AdaGrad, "history", {"eps": 1e-7}),
    "group_adagrad_update": (named.GroupAdaGrad, "history", {"eps": 1e-5}),
}
_SEVERAL = ("sgd_update", "sgd_mom_update", "mp_sgd_update", "mp_sgd_mom_update")
_ELSEWHERE = ("adagrad_update", "group_adagrad_update")
SPARSE = ("adagrad_update", "adam_update", "ftrl_update", "sgd_mom_update", "sgd_update")  # also in `mx.nd.sparse`


def update(name: str) -> Callable[..., Any]:
    """Return the function `mx.nd.<name>`, one of `NAMES`.

    Example:
        >>> import jfit.mx as mx
        >>> update("sgd_update")(mx.nd.ones(2), mx.nd.ones(2), lr=0.5).asnumpy().tolist()
        [0.5, 0.5]
    """
    if name in _PHASES:
        return _PHASES[name]
    if name not in _RULES:
        return _several(update(name.removeprefix("preloaded_").removeprefix("multi_")), name)
    rule, states, defaults = _RULES[name]

    def call(weight: Any, grad: Any, *arrays: Any, lr: float = 0.01, out: Any = None, **options: Any) -> Any:
        parts = dict(zip(states.split(), arrays, strict=False))
        parts |= {n: options.pop(n) for n in states.split() if n in options}
        numbers = {**defaults, **options, "learning_rate": lr}
        limit = numbers.pop("clip_gradient", numbers.pop("clip_grad", None))
        numbers["clip_gradient"] = limit if limit is not None and limit > 0 else None
        if numbers.get("clip_weights", 0) <= 0:
            numbers.pop("clip_weights", None)
        if "eps" in defaults and "epsilon" in numbers:
            numbers["eps"] = numbers.pop("epsilon")
        if "t" in numbers:
            numbers["begin_num_update"] = numbers.pop("t") - 1
        target = weight if out is weight else weight.copy()
        optimizer = rule(**numbers, multi_precision="weight32" in parts)
        if "weight32" in parts:
            optimizer.update_multi_precision(0, target, grad, (parts.get("mom"), parts["weight32"]))
        else:
            optimizer.update(0, target, grad, (*parts.values(),) if len(parts) > 1 else next(iter(parts.values()), None))
        if out is None or out is weight:
            return target
        write_into(out, target)
        return out

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Update a weight as `mx.optimizer.{rule.__name__}`; arrays: weight, grad, {states}."
    return call


def _several(one: Callable[..., Any], name: str) -> Callable[..., list[Any]]:
    """Return the function of several weights: (weight, grad, states) of each in turn, and their rates `lrs` and `wds`."""

    def call(*data: Any, lrs: Any = None, wds: Any = None, num_weights: int = 1, out: Any = None, **options: Any) -> list[Any]:
        if name.startswith("preloaded"):
            *data, lrs, wds = data  # type: ignore[assignment]
            lrs, wds = lrs.asnumpy().tolist(), wds.asnumpy().tolist()
        size = len(data) // num_weights
        outs: Sequence[Any] = out if isinstance(out, (list, tuple)) else [out] * num_weights
        groups = [data[i * size : (i + 1) * size] for i in range(num_weights)]
        return [one(*g, lr=r, wd=w, out=o, **options) for g, r, w, o in zip(groups, lrs, wds, outs, strict=True)]

    call.__name__ = call.__qualname__ = name
    return call


def _written(value: Any, like: Any, out: Any) -> Any:
    if out is None:
        return type(like)(value)
    write_into(out, value)
    return out


def lamb_update_phase1(
    weight: Any, grad: Any, mean: Any, var: Any, weight32: Any = None, beta1: float = 0.9, beta2: float = 0.999,
    epsilon: float = 1e-6, t: int = 1, bias_correction: bool = True, wd: float = 0.0, rescale_grad: float = 1.0,
    clip_gradient: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    """Return the direction of a step of `mx.optimizer.LAMB`, in float32; updates `mean` and `var`."""
    gradient = wide(grad.value) * rescale_grad
    gradient = jnp.clip(gradient, -clip_gradient, clip_gradient) if clip_gradient >= 0 else gradient
    at, numbers = jnp.asarray(t) if bias_correction else None, decay_rates(beta1, beta2, epsilon=epsilon)
    values = (weight if weight32 is None else weight32).value, (mean.value, var.value)
    step, (mean[:], var[:]) = lamb_direction(gradient, *values, numbers, at, wd)
    return _written(step, weight, out)


def lamb_update_phase2(
    weight: Any, g: Any, r1: Any, r2: Any, weight32: Any = None, lr: float = 0.01, lower_bound: float = -1.0,
    upper_bound: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    """Return the weight after a step of `mx.optimizer.LAMB` in direction `g`; r1, r2: norms of the weight and of g.

    `weight32`, the weight in float32, is read, but, as in MXNet, not updated.
    """
    lower, upper = (bound if bound >= 0 else None for bound in (lower_bound, upper_bound))
    before = (weight if weight32 is None else weight32).value
    new = before - lr * lamb_ratio(r1.value, r2.value, lower, upper) * g.value
    return _written(new.astype(weight.dtype), weight, out)


def multi_lars(
    lrs: Any, weights_sum_sq: Any, grads_sum_sq: Any, wds: Any, eta: float = 0.001, eps: float = 0.0,
    rescale_grad: float = 1.0, out: Any = None,
) -> Any:  # fmt: skip
    """Return the learning rates of `mx.optimizer.LARS` for several weights from the sums of squares of their elements."""
    sizes, slopes = jnp.sqrt(weights_sum_sq.value), jnp.sqrt(grads_sum_sq.value) * rescale_grad
    return _written(lrs.value * lars_ratio(sizes, slopes, eta, wds.value, eps), lrs, out)


_PHASES: dict[str, Callable[..., Any]] = {"multi_lars": multi_lars}
_PHASES |= dict.fromkeys(("lamb_update_phase1", "mp_lamb_update_phase1"), lamb_update_phase1)
_PHASES |= dict.fromkeys(("lamb_update_phase2", "mp_lamb_update_phase2"), lamb_update_phase2)
NAMES = [name for name in _RULES if name not in _ELSEWHERE]
NAMES += [*_PHASES, *(f"{kind}_{name}" for kind in ("multi", "preloaded_multi") for name in _SEVERAL)]
